-- Tasks that expire: a push may say until when a task may start. One that has not started by then is cancelled.

-- Ends the tasks of a queue that have expired before they were started, and returns how many. Claims, promote and
-- upkeep call it. A task that runs has started in time. It skips what another session has locked. A caller may hold
-- rows of the agenda, and then it must not wait for a document, which SKIP LOCKED may do (decision 38): after 50 ms it
-- leaves the tasks to the next call.
create or replace function penstock._end_unstarted(p_queue_id int, p_limit int default 1000) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '50ms' as $$
declare
    v_now     constant timestamptz := penstock.clock();
    v_found   bigint[];
    v_held    bigint[];
    v_waiting bigint[];
begin
    v_found := array(
        select t.id from penstock.task as t
        where t.queue_id = p_queue_id and t.expires <= v_now and t.expires is not null and t.ended is null
          and (t.waits_for > 0 or exists (select from penstock.agenda as a where a.task_id = t.id))
        order by t.expires limit p_limit);
    if v_found = '{}' then
        return 0;
    end if;
    begin
        v_held := penstock._hold_documents(p_queue_id, v_found);
        -- A push may have given a task another end meanwhile.
        v_held := array(select t.id from penstock.task as t where t.id = any(v_held) and t.expires <= v_now);
        v_waiting := penstock._hold_waiting(v_held);
        return penstock._cancel_unstarted(p_queue_id, v_waiting || penstock._blocked(v_held), v_now);
    exception when lock_not_available then
        return 0;
    end;
end
$$;

-- Ends these tasks, whose documents and agenda rows the caller holds. History gets a row for each, although none ran:
-- the attempt that would have been next, with the outcome `unstarted`.
create or replace function penstock._cancel_unstarted(p_queue_id int, p_ids bigint[], p_now timestamptz) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off as $$
begin
    if p_ids = '{}' then
        return 0;
    end if;
    perform penstock._make_history((p_now at time zone 'UTC')::date);
    with gone as (
        delete from penstock.agenda as a where a.task_id = any(p_ids) returning a.task_id, a.due, a.attempts
    ), ended as (
        update penstock.task as t
        set ended = 'cancelled', ended_at = p_now, reason = 'expired', renew = null
        where t.id = any(p_ids)
        returning t.id, t.created, t.due, t.iterations, t.kind, t.subject
    )
    insert into penstock.history (task_id, created, due, claimed_at, finished_at, queue_id, iteration, attempt,
                                  outcome, kind, worker, subject, error_class)
    select e.id, e.created, coalesce(g.due, e.due, e.created), p_now, p_now, p_queue_id, e.iterations,
           coalesce(g.attempts, 0) + 1, 'unstarted', e.kind, '', e.subject, 'Expired'
    from ended as e left join gone as g on g.task_id = e.id;
    insert into penstock.counter_log (queue_id, metric, delta)
    values (p_queue_id, 'unstarted_total', cardinality(p_ids)), (p_queue_id, 'cancelled_total', cardinality(p_ids));
    return cardinality(p_ids);
end
$$;

-- Ends the expired tasks of all queues. It touches only queues that have some, in a different order each time.
create or replace function penstock._end_unstarted_all(out rows bigint, out more boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    v_now   constant timestamptz := penstock.clock();
    v_ends  constant timestamptz := penstock._part_ends();
    v_queue int;
    v_count int;
begin
    rows := 0;
    more := false;
    for v_queue in
        select q.id
        from penstock.queue as q
        cross join lateral (
            select from penstock.task as t
            where t.queue_id = q.id and t.expires <= v_now and t.expires is not null and t.ended is null
            limit 1
        ) as first
        order by random()
    loop
        -- Once per queue and transaction: all documents are locked by one statement.
        v_count := penstock._end_unstarted(v_queue, 1000);
        rows := rows + v_count;
        more := more or v_count >= 1000;
        if clock_timestamp() > v_ends then
            more := more or rows > 0;
            exit;
        end if;
    end loop;
end
$$;
