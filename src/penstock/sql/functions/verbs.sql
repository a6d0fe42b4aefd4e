-- The other verbs, on tasks and queues that exist. They take only free rows (SKIP LOCKED): a task that another session
-- holds at this moment is reported as `busy`, and the call may be repeated.

-- Returns the ids that a call is about, given by id or by subject, after a check.
create or replace function penstock._asked_ids(p_queue_id int, p_ids bigint[], p_subjects text[]) returns bigint[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
begin
    if coalesce(cardinality(p_ids), 0) + coalesce(cardinality(p_subjects), 0) > 10000 then
        perform penstock.refuse('PS400',
            format('ids, subjects: %s are more than 10000 in one call',
                   coalesce(cardinality(p_ids), 0) + coalesce(cardinality(p_subjects), 0)));
    elsif greatest(array_ndims(p_ids), array_ndims(p_subjects)) > 1 then
        perform penstock.refuse('PS400', 'ids, subjects: a nested array');
    elsif array_position(p_ids, null) is not null or array_position(p_subjects, null) is not null then
        perform penstock.refuse('PS400', 'ids, subjects: there is a null in it');
    elsif p_ids is null and p_subjects is null then
        perform penstock.refuse('PS400', 'ids: no ids and no subjects are given');
    end if;
    perform penstock._check_distinct(p_ids);
    return array(
        select unnest(p_ids)
        union
        select t.id from penstock.task as t where t.queue_id = p_queue_id and t.subject = any(p_subjects));
end
$$;

-- Notes a change: the login that made it and, if that is a dashboard, `via` and the user on whose behalf it acts, which
-- the dashboard sets for its transaction. Any session can set these two, so they never replace the login.
create or replace function penstock._note_audit(p_verb text, p_queue text, p_detail jsonb) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    insert into penstock.audit (actor, verb, queue, detail)
    values (session_user, p_verb, p_queue, p_detail || jsonb_strip_nulls(jsonb_build_object(
        'via', nullif(left(current_setting('penstock.via', true), 40), ''),
        'user', nullif(left(current_setting('penstock.actor', true), 200), ''))))
$$;

-- Returns whether a text occurs in what went wrong with a task, in upper or lower case: the class of its error, as in
-- KeyError, the message, both as in 'KeyError: name', the traceback, and the reason of its end.
drop function if exists penstock.mentions(text, text, text);
create or replace function penstock.mentions(p_class text, p_error text, p_reason text, p_text text) returns boolean
language sql immutable parallel safe
return strpos(lower(coalesce(p_class || ': ', '') || coalesce(p_error, '') || ' ' || coalesce(p_reason, '')),
              lower(p_text)) > 0;

-- Returns why a verb did not take the remaining tasks: unknown, ended, active, or busy. p_held are the tasks whose
-- documents it holds.
create or replace function penstock._left_out(p_queue_id int, p_ids bigint[], p_held bigint[], p_taken bigint[])
returns table (id bigint, result text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off as $$
#variable_conflict use_column
begin
    return query
    select g.id, case
        when t.id is null then 'unknown'
        when t.ended is not null then 'ended'
        when h.id is not null and a.task_id is null and not t.blocked then 'active'
        else 'busy' end
    from (select unnest(p_ids) except select unnest(p_taken)) as g(id)
    left join unnest(p_held) as h(id) on h.id = g.id
    left join (
        select d.id, d.ended, coalesce(d.waits_for, 0) > 0 as blocked
        from penstock.task as d where d.id = any(p_ids) and d.queue_id = p_queue_id
    ) as t on t.id = g.id
    left join (select w.task_id from penstock.agenda as w where w.task_id = any(p_ids)) as a on a.task_id = g.id;
end
$$;

-- Locks those of these documents that are free and still have the given end, null for a live task, and returns them.
-- They are locked in the order in which push and settle lock them, although SKIP LOCKED should never wait: it does wait
-- if the document is updated at this moment and the next session locks the new version at once (decision 38).
create or replace function penstock._hold_documents(
    p_queue_id int, p_ids bigint[], p_ended_at timestamptz[] default null
) returns bigint[]
language sql volatile security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off as $$
    select array(
        select t.id
        from penstock.task as t join unnest(p_ids, p_ended_at) as c(id, ended_at) on c.id = t.id
        where t.id = any(p_ids)
          and (p_queue_id is null or t.queue_id = p_queue_id)
          and t.ended_at is not distinct from c.ended_at
        order by t.subject collate "C", t.id
        for update of t skip locked)
$$;

-- Locks those of the agenda rows of these tasks that are free, and returns them.
create or replace function penstock._hold_waiting(p_ids bigint[]) returns bigint[]
language sql volatile security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
    select array(select a.task_id from penstock.agenda as a where a.task_id = any(p_ids) for update skip locked)
$$;

-- Returns those of these tasks, whose documents the caller holds, that wait for other tasks.
create or replace function penstock._blocked(p_ids bigint[]) returns bigint[]
language sql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
    select array(select t.id from penstock.task as t where t.id = any(p_ids) and t.ended is null and t.waits_for > 0)
$$;

-- Returns those of these tasks that are open in a free lease, and locks that lease: no session settles or expires it
-- until the transaction ends.
create or replace function penstock._hold_leased(p_queue_id int, p_ids bigint[]) returns bigint[]
language sql volatile security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off as $$
    with held as materialized (
        select l.ids, l.open
        from penstock.lease as l
        where l.token in (
            select f.token
            from penstock.lease as f cross join lateral unnest(f.ids) as h(id)
            join unnest(p_ids) as a(id) on a.id = h.id
            where f.queue_id = p_queue_id)
        for update skip locked
    )
    select coalesce(array_agg(o.id), '{}')
    from held as l cross join lateral unnest(l.ids) with ordinality as o(id, n)
    join unnest(p_ids) as a(id) on a.id = o.id
    where get_bit(l.open, o.n::int - 1) = 1
$$;

-- Cancels tasks: they end unfinished. A waiting task leaves the agenda. An active task is revoked: it ends now, and its
-- worker is told at the next extend or settle. The results are cancelled | revoked | ended | busy | unknown.
create or replace function penstock.cancel(
    p_queue text, p_ids bigint[] default null, p_subjects text[] default null, p_reason text default 'cancelled'
) returns table (id bigint, result text)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_queue   constant penstock.queue := penstock.the_queue(p_queue);
    v_ids     constant bigint[] := penstock._asked_ids(v_queue.id, p_ids, p_subjects);
    v_now     constant timestamptz := penstock.clock();
    v_live    bigint[] := penstock._hold_documents(v_queue.id, v_ids);
    v_waiting bigint[] := penstock._hold_waiting(v_live);
    v_revoked bigint[];
begin
    delete from penstock.agenda as a where a.task_id = any(v_waiting);
    v_waiting := v_waiting || penstock._blocked(v_live);
    v_revoked := penstock._revoke(v_queue.id, array(select unnest(v_live) except select unnest(v_waiting)), v_now);
    update penstock.task as t
    set ended = 'cancelled', ended_at = v_now,
        reason = penstock._safe_text(coalesce(p_reason, 'cancelled')), renew = null
    where t.id = any(v_waiting || v_revoked);
    if v_waiting || v_revoked <> '{}' then
        insert into penstock.counter_log (queue_id, metric, delta)
        values (v_queue.id, 'cancelled_total', cardinality(v_waiting || v_revoked));
        perform penstock._note_audit('cancel', p_queue,
            jsonb_build_object('tasks', cardinality(v_waiting || v_revoked)));
    end if;
    return query
    select w.id, 'cancelled' from unnest(v_waiting) as w(id)
    union all
    select r.id, 'revoked' from unnest(v_revoked) as r(id)
    union all
    select o.id, replace(o.result, 'active', 'busy')
    from penstock._left_out(v_queue.id, v_ids, v_live, v_waiting || v_revoked) as o;
end
$$;

-- Takes tasks out of their leases, and returns which. The lease stays, so that its worker can be told.
create or replace function penstock._revoke(p_queue_id int, p_ids bigint[], p_now timestamptz) returns bigint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off as $$
declare
    v_lease penstock.lease;
    v_hit   bigint[];
    v_all   bigint[] := '{}';
    v_n     int;
begin
    if p_ids = '{}' then
        return v_all;
    end if;
    perform penstock._make_history((p_now at time zone 'UTC')::date);
    for v_lease in
        select l.* from penstock.lease as l
        where l.token in (
            select f.token
            from penstock.lease as f cross join lateral unnest(f.ids) as h(id)
            join unnest(p_ids) as a(id) on a.id = h.id
            where f.queue_id = p_queue_id)
        for update skip locked
    loop
        v_hit := '{}';
        for v_n in
            select h.n::int - 1
            from unnest(v_lease.ids) with ordinality as h(id, n) join unnest(p_ids) as a(id) on a.id = h.id
        loop
            if get_bit(v_lease.open, v_n) = 1 then
                v_lease.open := set_bit(v_lease.open, v_n, 0);
                v_hit := v_hit || v_lease.ids[v_n + 1];
            end if;
        end loop;
        continue when v_hit = '{}';
        update penstock.lease as l set open = v_lease.open, revoked = l.revoked || v_hit where l.token = v_lease.token;

        insert into penstock.history (task_id, created, due, claimed_at, finished_at, queue_id, iteration, attempt,
                                      outcome, kind, worker, subject)
        select t.id, t.created, h.due, v_lease.claimed_at, p_now, p_queue_id, t.iterations, coalesce(h.attempts, 0) + 1,
               'revoked', t.kind, v_lease.worker, t.subject
        from penstock.task as t
        join unnest(v_lease.ids, v_lease.dues, v_lease.attempts) as h(id, due, attempts) on h.id = t.id
        where t.id = any(v_hit);
        v_all := v_all || v_hit;
    end loop;
    if v_all <> '{}' then
        insert into penstock.counter_log (queue_id, metric, delta)
        values (p_queue_id, 'revoked_total', cardinality(v_all));
    end if;
    return v_all;
end
$$;

-- Redrives dead tasks: they run again. Tasks are chosen by id or subject (cancelled ones too), or all dead tasks of a
-- kind, with an error text, since a moment. Attempts, crashes and age begin anew, and the tasks no longer expire. The
-- results are redriven | live | busy | unknown.
create or replace function penstock.redrive(
    p_queue text, p_ids bigint[] default null, p_subjects text[] default null, p_kind text default null,
    p_error text default null, p_since timestamptz default null, p_limit int default 10000
) returns table (id bigint, result text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_column
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_now   constant timestamptz := penstock.clock();
    v_named constant boolean := p_ids is not null or p_subjects is not null;
    v_ids   bigint[];
    v_found bigint[];
    v_ends  timestamptz[];
    v_free  bigint[];
    v_done  bigint;
begin
    perform penstock._check_limit(p_limit);
    perform penstock._check_filter(p_error);
    if v_named and num_nonnulls(p_kind, p_error, p_since) > 0 then
        perform penstock.refuse('PS400',
            'kind, error, since: they choose among all dead tasks; with ids or subjects there is nothing to choose');
    end if;
    if v_named then
        v_ids := penstock._asked_ids(v_queue.id, p_ids, p_subjects);
        select t.id into v_done from penstock.task as t
        where t.id = any(v_ids) and t.queue_id = v_queue.id and t.ended = 'done' limit 1;
        if v_done is not null then
            perform penstock.refuse('PS409',
                format('id: %s is done; only dead and cancelled tasks are redriven', v_done));
        end if;
    end if;
    select array_agg(c.id), array_agg(c.ended_at) into v_found, v_ends
    from (
        select t.id, t.ended_at from penstock.task as t
        where t.queue_id = v_queue.id
          and (case when v_named then t.id = any(v_ids) and t.ended in ('dead', 'cancelled') else t.ended = 'dead' end)
          and (p_kind is null or t.kind = p_kind)
          and (p_error is null or penstock.mentions(t.error_class, t.error, t.reason, p_error))
          and (p_since is null or t.ended_at >= p_since)
        order by t.ended_at, t.id
        limit p_limit
    ) as c;
    v_free := penstock._hold_documents(v_queue.id, v_found, v_ends);
    perform penstock._reopen(v_free, null, v_now, p_lasting => true);
    if v_free <> '{}' then
        insert into penstock.counter_log (queue_id, metric, delta)
        values (v_queue.id, 'redriven_total', cardinality(v_free));
        perform penstock._note_audit('redrive', p_queue, jsonb_build_object('tasks', cardinality(v_free)));
    end if;
    return query
    select f.id, 'redriven' from unnest(v_free) as f(id)
    union all
    select g.id, case when t.id is null then 'unknown' when t.ended is null then 'live' else 'busy' end
    from (select unnest(coalesce(v_ids, v_found)) except select unnest(v_free)) as g(id)
    left join (
        select d.id, d.ended from penstock.task as d
        where d.id = any(coalesce(v_ids, v_found)) and d.queue_id = v_queue.id
    ) as t on t.id = g.id;
end
$$;

-- Gives waiting tasks another due. The results are rescheduled | active | ended | busy | unknown.
create or replace function penstock.reschedule(
    p_queue text, p_due timestamptz, p_ids bigint[] default null, p_subjects text[] default null
) returns table (id bigint, result text)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_queue   constant penstock.queue := penstock.the_queue(p_queue);
    v_ids     constant bigint[] := penstock._asked_ids(v_queue.id, p_ids, p_subjects);
    v_live    bigint[];
    v_waiting bigint[];
begin
    if p_due is null then
        perform penstock.refuse('PS400', 'due: it is null');
    end if;
    perform penstock._check_push(array['{}'], null, null, array[p_due], null, 2);
    v_live := penstock._hold_documents(v_queue.id, v_ids);
    v_waiting := penstock._hold_waiting(v_live);
    perform penstock._replace_waiting(v_waiting, v_waiting, array_fill(p_due, array[cardinality(v_waiting)]), null,
                                      null);
    v_waiting := v_waiting || penstock._blocked(v_live);
    update penstock.task as t set due = p_due where t.id = any(v_waiting);
    if v_waiting <> '{}' then
        perform penstock._note_audit('reschedule', p_queue,
            jsonb_build_object('tasks', cardinality(v_waiting), 'due', p_due));
    end if;
    return query
    select w.id, 'rescheduled' from unnest(v_waiting) as w(id)
    union all
    select o.id, o.result from penstock._left_out(v_queue.id, v_ids, v_live, v_waiting) as o;
end
$$;

-- Changes the priority of tasks: of a waiting task at once, of an active task from its next attempt on. The function
-- locks the lease of an active task, because the session that ends the lease reads the priority from the document
-- without a lock. The results are reprioritised | ended | busy | unknown.
create or replace function penstock.reprioritise(
    p_queue text, p_priority smallint, p_ids bigint[] default null, p_subjects text[] default null
) returns table (id bigint, result text)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_queue   constant penstock.queue := penstock.the_queue(p_queue);
    v_ids     constant bigint[] := penstock._asked_ids(v_queue.id, p_ids, p_subjects);
    v_live    bigint[];
    v_waiting bigint[];
    v_taken   bigint[];
begin
    if p_priority is null or p_priority not between -100 and 100 then
        perform penstock.refuse('PS400',
            format('priority: %s is not between -100 and 100', coalesce(p_priority::text, 'null')));
    end if;
    v_live := penstock._hold_documents(v_queue.id, v_ids);
    v_waiting := penstock._hold_waiting(v_live);
    v_taken := v_waiting;
    if cardinality(v_waiting) < cardinality(v_live) then
        v_taken := v_waiting || penstock._blocked(v_live)
            || penstock._hold_leased(v_queue.id, array(select unnest(v_live) except select unnest(v_waiting)));
    end if;
    perform penstock._replace_waiting(v_waiting, v_waiting, null,
                                      array_fill(p_priority, array[cardinality(v_waiting)]), null);
    update penstock.task as t set priority = p_priority where t.id = any(v_taken);
    if v_taken <> '{}' then
        perform penstock._note_audit('reprioritise', p_queue,
            jsonb_build_object('tasks', cardinality(v_taken), 'priority', p_priority));
    end if;
    return query
    select w.id, 'reprioritised' from unnest(v_taken) as w(id)
    union all
    -- A task that is in neither place is moving from one to the other.
    select o.id, replace(o.result, 'active', 'busy') from penstock._left_out(v_queue.id, v_ids, v_live, v_taken) as o;
end
$$;

create or replace function penstock._check_limit(p_limit int) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if p_limit is null or p_limit not between 1 and 10000 then
        perform penstock.refuse('PS400',
            format('limit: %s is not between 1 and 10000', coalesce(p_limit::text, 'null')));
    end if;
end
$$;

-- Refuses an empty error text: every text contains the empty one, so an empty filter given by mistake would choose
-- everything.
create or replace function penstock._check_filter(p_error text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if p_error = '' then
        perform penstock.refuse('PS400', 'error: it is empty');
    end if;
end
$$;
