-- Removal for good: tasks by state, and a whole queue with its settings.

-- Removes tasks in these states for good, up to a limit, and returns how many. It never removes an active task.
create or replace function penstock.purge(
    p_queue text, p_states text[], p_ids bigint[] default null, p_kind text default null, p_error text default null,
    p_before timestamptz default null, p_limit int default 10000
) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_custom_plan as $$
declare
    v_queue   constant penstock.queue := penstock.the_queue(p_queue);
    v_bad     text;
    v_active  bigint;
    v_found   bigint[];
    v_ends    timestamptz[];
    v_held    bigint[];
    v_waiting bigint[];
    v_gone    bigint;
begin
    perform penstock._check_limit(p_limit);
    perform penstock._check_filter(p_error);
    if p_states is null or p_states = '{}' or array_position(p_states, null) is not null then
        perform penstock.refuse('PS400', 'states: none is given, or one is null');
    end if;
    select s.state into v_bad from unnest(p_states) as s(state)
    where s.state not in ('waiting', 'planned', 'pending', 'done', 'dead', 'cancelled') limit 1;
    if v_bad = 'active' then
        perform penstock.refuse('PS409', 'state: active tasks are not purged', 'Cancel them first.');
    elsif v_bad is not null then
        perform penstock.refuse('PS400',
            format('state: %L is not waiting, planned, pending, done, dead or cancelled', left(v_bad, 80)));
    end if;
    if p_ids is not null then
        select t.id into v_active from penstock.task as t
        where t.id = any(penstock._asked_ids(v_queue.id, p_ids, null)) and t.queue_id = v_queue.id and t.ended is null
          and coalesce(t.waits_for, 0) = 0
          and not exists (select from penstock.agenda as a where a.task_id = t.id) limit 1;
        if v_active is not null then
            perform penstock.refuse('PS409', format('id: %s is active; active tasks are not purged', v_active),
                'Cancel it first.');
        end if;
    end if;

    select array_agg(c.id), array_agg(c.ended_at) into v_found, v_ends
    from (
        (select t.id, t.ended_at from penstock.task as t
         where t.queue_id = v_queue.id and t.ended = any(p_states)
           and (p_ids is null or t.id = any(p_ids))
           and (p_kind is null or t.kind = p_kind)
           and (p_error is null or penstock.mentions(t.error_class, t.error, t.reason, p_error))
           and (p_before is null or t.ended_at < p_before)
         limit p_limit)
        union all
        (select t.id, null
         from (
             select p.task_id from penstock.agenda as p
             where p.queue_id = v_queue.id and p.pending and 'pending' = any(p_states)
             union all
             select p.task_id from penstock.agenda as p
             where p.queue_id = v_queue.id and not p.pending and 'planned' = any(p_states)
             union all
             select p.id from penstock.task as p
             where p.queue_id = v_queue.id and p.waits_for > 0 and p.ended is null and 'waiting' = any(p_states)
         ) as a
         join penstock.task as t on t.id = a.task_id
         where (p_ids is null or t.id = any(p_ids))
           and (p_kind is null or t.kind = p_kind)
           and (p_error is null or penstock.mentions(t.error_class, t.error, t.reason, p_error))
           and (p_before is null or t.created < p_before)
         limit p_limit)
        limit p_limit
    ) as c;
    v_held := penstock._hold_documents(v_queue.id, v_found, v_ends);
    v_waiting := penstock._hold_waiting(v_held);
    delete from penstock.agenda as a where a.task_id = any(v_waiting);
    v_waiting := v_waiting || penstock._blocked(v_held);
    delete from penstock.task as t where t.id = any(v_held) and (t.ended is not null or t.id = any(v_waiting));
    get diagnostics v_gone = row_count;
    if v_gone > 0 then
        perform penstock._note_audit('purge', p_queue, jsonb_build_object('tasks', v_gone, 'states', p_states));
    end if;
    return v_gone;
end
$$;

-- Drops a queue with its settings and counters. History stays until its days are dropped. A queue that has tasks is
-- refused, unless p_force is true. Pushes under way end first; later ones find no queue (_count_task).
create or replace function penstock.drop_queue(p_queue text, p_force boolean default false) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_queue penstock.queue := penstock.the_queue(p_queue);
    v_tasks bigint;
begin
    if p_force is null then
        perform penstock.refuse('PS400', 'force: it is null');
    end if;
    -- Schedules go first: a session that fires one waits for documents next.
    delete from penstock.schedule as s where s.queue_id = v_queue.id;
    perform penstock._stand_still(v_queue.id);
    v_queue := penstock.the_queue(p_queue);    -- another session may have dropped it meanwhile
    select s.waiting + s.planned + s.pending + s.active + s.done + s.dead + s.cancelled into v_tasks
    from penstock.status(p_queue) as s;
    if v_tasks > 0 and not p_force then
        perform penstock.refuse('PS409', format('queue %L has %s tasks in it', p_queue, v_tasks),
            'Purge it first, or force it.');
    end if;
    -- Tasks are deleted place by place, by the indexes of each place: there is no index over all documents of a queue.
    delete from penstock.task as t using penstock.agenda as a
    where a.queue_id = v_queue.id and a.pending and t.id = a.task_id;
    delete from penstock.task as t using penstock.agenda as a
    where a.queue_id = v_queue.id and not a.pending and t.id = a.task_id;
    delete from penstock.task as t
    where t.id in (select unnest(l.ids) from penstock.lease as l where l.queue_id = v_queue.id);
    delete from penstock.task as t where t.queue_id = v_queue.id and t.waits_for > 0 and t.ended is null;
    delete from penstock.task as t where t.queue_id = v_queue.id and t.ended in ('done', 'dead', 'cancelled');
    delete from penstock.agenda as a where a.queue_id = v_queue.id and a.pending;
    delete from penstock.agenda as a where a.queue_id = v_queue.id and not a.pending;
    delete from penstock.lease as l where l.queue_id = v_queue.id;
    delete from penstock.stream as s where s.queue_id = v_queue.id;
    delete from penstock.scaling as s where s.queue = v_queue.name;
    delete from penstock.throttle as h where h.queue_id = v_queue.id;
    delete from penstock.key as k where k.queue_id = v_queue.id;
    delete from penstock.kind as k where k.queue_id = v_queue.id;
    delete from penstock.counter as c where c.queue_id = v_queue.id;
    delete from penstock.counter_log as l where l.queue_id = v_queue.id;
    delete from penstock.early as e where e.queue_id = v_queue.id;
    delete from penstock.watermark as l where l.queue_id = v_queue.id;
    delete from penstock.queue_set as s where s.queue_id = v_queue.id;
    delete from penstock.sample as s where s.queue_id = v_queue.id;
    delete from penstock.profile as p where p.queue_id = v_queue.id;
    delete from penstock.history_dropped as d where d.queue_id = v_queue.id;
    insert into penstock.queue_gone (id, name) values (v_queue.id, v_queue.name);
    delete from penstock.queue as q where q.id = v_queue.id;
    -- These schedules were set meanwhile. A schedule that is being fired now stays behind without a queue, where it is
    -- no longer visible.
    delete from penstock.schedule as s
    where s.name in (select n.name from penstock.schedule as n where n.queue_id = v_queue.id for update skip locked);
    perform penstock._note_audit('drop', p_queue, jsonb_build_object('tasks', v_tasks));
    return v_tasks;
end
$$;

-- Stops everything that writes tasks until the end of this transaction. It makes short attempts and releases what it
-- got after each: waiting with one table locked would block all other sessions, and could deadlock with a session that
-- holds the other tables.
create or replace function penstock._stand_still(p_queue_id int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
begin
    for v_try in 1 .. 40 loop
        begin
            lock table penstock.lease, penstock.task, penstock.agenda in exclusive mode;
            perform from penstock.watermark as l where p_queue_id is null or l.queue_id = p_queue_id for update;
            return;
        exception when lock_not_available then
            perform pg_sleep(0.05 + 0.1 * random());
        end;
    end loop;
    raise exception using errcode = '55P03', message = 'other sessions hold tasks all the time', hint = 'Try again.';
end
$$;
