-- The other verbs: what people do to tasks and queues that exist. They take only what is free (SKIP LOCKED) and never
-- wait: what somebody holds at this moment is answered `busy`, and may be asked for again.

-- The ids a call is about, by id or by subject, checked.
create or replace function penstock.asked_ids(p_queue_id int, p_ids bigint[], p_subjects text[]) returns bigint[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
begin
    if coalesce(cardinality(p_ids), 0) + coalesce(cardinality(p_subjects), 0) > 10000 then
        perform penstock.refuse('PS400', format('ids, subjects: %s are more than 10000 in one call',
                                                coalesce(cardinality(p_ids), 0) + coalesce(cardinality(p_subjects), 0)));
    elsif greatest(array_ndims(p_ids), array_ndims(p_subjects)) > 1 then
        perform penstock.refuse('PS400', 'ids, subjects: a nested array');
    elsif array_position(p_ids, null) is not null or array_position(p_subjects, null) is not null then
        perform penstock.refuse('PS400', 'ids, subjects: there is a null in it');
    elsif p_ids is null and p_subjects is null then
        perform penstock.refuse('PS400', 'ids: neither ids nor subjects are given');
    end if;
    perform penstock.check_distinct(p_ids);
    return array(
        select unnest(p_ids)
        union
        select t.id from penstock.task as t where t.queue_id = p_queue_id and t.subject = any(p_subjects));
end
$$;

create or replace function penstock.note_audit(p_verb text, p_queue text, p_detail jsonb) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    insert into penstock.audit (actor, verb, queue, detail) values (session_user, p_verb, p_queue, p_detail)
$$;

-- Whether a text is in what went wrong with a task, upper or lower case.
create or replace function penstock.mentions(p_error text, p_reason text, p_text text) returns boolean
language sql immutable parallel safe
return strpos(lower(coalesce(p_error, '') || ' ' || coalesce(p_reason, '')), lower(p_text)) > 0;

-- What became of those that a verb could not take: unknown, ended, active, or busy.
create or replace function penstock.left_out(p_queue_id int, p_ids bigint[], p_taken bigint[])
returns table (id bigint, result text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
    return query
    select g.id, case
        when t.id is null then 'unknown'
        when t.ended is not null then 'ended'
        when a.task_id is null and not exists (
            -- held, and by somebody who may be bringing it back
            select from penstock.task as f where f.id = g.id for update skip locked) then 'busy'
        when a.task_id is null then 'active'
        else 'busy' end
    from (select unnest(p_ids) except select unnest(p_taken)) as g(id)
    left join (select d.id, d.ended from penstock.task as d where d.id = any(p_ids) and d.queue_id = p_queue_id) as t on t.id = g.id
    left join (select w.task_id from penstock.agenda as w where w.task_id = any(p_ids)) as a on a.task_id = g.id;
end
$$;

-- The documents among these that are live and free, locked.
create or replace function penstock.hold_live(p_queue_id int, p_ids bigint[]) returns bigint[]
language sql volatile security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
    select array(select t.id from penstock.task as t
                 where t.id = any(p_ids) and t.queue_id = p_queue_id and t.ended is null for update skip locked)
$$;

-- The agenda rows of these that are free, locked.
create or replace function penstock.hold_waiting(p_ids bigint[]) returns bigint[]
language sql volatile security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
    select array(select a.task_id from penstock.agenda as a where a.task_id = any(p_ids) for update skip locked)
$$;

-- Tasks end unfinished. One that waits leaves the agenda; one that somebody works on is revoked: it ends now, and its
-- worker is told at the next extend or settle. cancelled | revoked | ended | busy | unknown.
create or replace function penstock.cancel(
    p_queue text, p_ids bigint[] default null, p_subjects text[] default null, p_reason text default 'cancelled'
) returns table (id bigint, result text)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_queue   constant penstock.queue := penstock.the_queue(p_queue);
    v_ids     constant bigint[] := penstock.asked_ids(v_queue.id, p_ids, p_subjects);
    v_now     constant timestamptz := penstock.clock();
    v_live    bigint[] := penstock.hold_live(v_queue.id, v_ids);
    v_waiting bigint[] := penstock.hold_waiting(v_live);
    v_revoked bigint[];
begin
    delete from penstock.agenda as a where a.task_id = any(v_waiting);
    v_revoked := penstock.revoke(v_queue.id, array(select unnest(v_live) except select unnest(v_waiting)), v_now);
    update penstock.task as t
    set ended = 'cancelled', ended_at = v_now, reason = penstock.safe_text(coalesce(p_reason, 'cancelled')), renew = null
    where t.id = any(v_waiting || v_revoked);
    if v_waiting || v_revoked <> '{}' then
        insert into penstock.counter_log (queue_id, metric, delta)
        values (v_queue.id, 'cancelled_total', cardinality(v_waiting || v_revoked));
        perform penstock.note_audit('cancel', p_queue, jsonb_build_object('tasks', cardinality(v_waiting || v_revoked)));
    end if;
    return query
    select w.id, 'cancelled' from unnest(v_waiting) as w(id)
    union all
    select r.id, 'revoked' from unnest(v_revoked) as r(id)
    union all
    select o.id, replace(o.result, 'active', 'busy') from penstock.left_out(v_queue.id, v_ids, v_waiting || v_revoked) as o;
end
$$;

-- Takes tasks out of the leases they are in, and answers which. The lease stays, to tell its worker.
create or replace function penstock.revoke(p_queue_id int, p_ids bigint[], p_now timestamptz) returns bigint[]
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
    perform penstock.make_history((p_now at time zone 'UTC')::date);
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

        insert into penstock.history (task_id, created, due, claimed_at, finished_at, queue_id, iteration, attempt, outcome,
                                      kind, worker, subject)
        select t.id, t.created, h.due, v_lease.claimed_at, p_now, p_queue_id, t.iterations, coalesce(h.attempts, 0) + 1, 'revoked',
               t.kind, v_lease.worker, t.subject
        from penstock.task as t join unnest(v_lease.ids, v_lease.dues, v_lease.attempts) as h(id, due, attempts) on h.id = t.id
        where t.id = any(v_hit);
        v_all := v_all || v_hit;
    end loop;
    if v_all <> '{}' then
        insert into penstock.counter_log (queue_id, metric, delta) values (p_queue_id, 'revoked_total', cardinality(v_all));
    end if;
    return v_all;
end
$$;

-- Dead tasks get another life: chosen by id or subject (cancelled ones too), or all dead ones of a kind, with an error
-- text, since a moment. Attempts, crashes and age begin anew. redriven | live | busy | unknown.
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
    v_free  bigint[];
    v_done  bigint;
begin
    perform penstock.check_limit(p_limit);
    perform penstock.check_filter(p_error);
    if v_named and num_nonnulls(p_kind, p_error, p_since) > 0 then
        perform penstock.refuse('PS400', 'kind, error, since: they choose among all dead tasks; with ids or subjects there is nothing to choose');
    end if;
    if v_named then
        v_ids := penstock.asked_ids(v_queue.id, p_ids, p_subjects);
        select t.id into v_done from penstock.task as t
        where t.id = any(v_ids) and t.queue_id = v_queue.id and t.ended = 'done' limit 1;
        if v_done is not null then
            perform penstock.refuse('PS409', format('id: %s is done; only dead and cancelled tasks are redriven', v_done));
        end if;
    end if;
    v_free := array(
        select t.id from penstock.task as t
        where t.queue_id = v_queue.id
          and (case when v_named then t.id = any(v_ids) and t.ended in ('dead', 'cancelled') else t.ended = 'dead' end)
          and (p_kind is null or t.kind = p_kind)
          and (p_error is null or penstock.mentions(t.error, t.reason, p_error))
          and (p_since is null or t.ended_at >= p_since)
        order by t.ended_at, t.id
        limit p_limit
        for update skip locked);
    perform penstock.reopen(v_free, null, v_now);
    if v_free <> '{}' then
        insert into penstock.counter_log (queue_id, metric, delta) values (v_queue.id, 'redriven_total', cardinality(v_free));
        perform penstock.note_audit('redrive', p_queue, jsonb_build_object('tasks', cardinality(v_free)));
    end if;
    return query
    select f.id, 'redriven' from unnest(v_free) as f(id)
    union all
    select g.id, case when t.id is null then 'unknown' when t.ended is null then 'live' else 'busy' end
    from (select unnest(v_ids) except select unnest(v_free)) as g(id)
    left join (select d.id, d.ended from penstock.task as d where d.id = any(v_ids) and d.queue_id = v_queue.id) as t on t.id = g.id;
end
$$;

-- Waiting tasks get another due. rescheduled | active | ended | busy | unknown.
create or replace function penstock.reschedule(
    p_queue text, p_due timestamptz, p_ids bigint[] default null, p_subjects text[] default null
) returns table (id bigint, result text)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_queue   constant penstock.queue := penstock.the_queue(p_queue);
    v_ids     constant bigint[] := penstock.asked_ids(v_queue.id, p_ids, p_subjects);
    v_waiting bigint[];
begin
    if p_due is null then
        perform penstock.refuse('PS400', 'due: it is null');
    end if;
    perform penstock.check_push(array['{}'], null, null, array[p_due], null, 2);
    v_waiting := penstock.hold_waiting(penstock.hold_live(v_queue.id, v_ids));
    update penstock.agenda as a set due = p_due, pending = false where a.task_id = any(v_waiting);
    update penstock.task as t set due = p_due where t.id = any(v_waiting);
    if v_waiting <> '{}' then
        perform penstock.note_audit('reschedule', p_queue, jsonb_build_object('tasks', cardinality(v_waiting), 'due', p_due));
    end if;
    return query
    select w.id, 'rescheduled' from unnest(v_waiting) as w(id)
    union all
    select o.id, o.result from penstock.left_out(v_queue.id, v_ids, v_waiting) as o;
end
$$;

-- Another priority: of what waits, at once; of what somebody works on, from its next attempt on.
-- reprioritised | ended | busy | unknown.
create or replace function penstock.reprioritise(
    p_queue text, p_priority smallint, p_ids bigint[] default null, p_subjects text[] default null
) returns table (id bigint, result text)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_ids   constant bigint[] := penstock.asked_ids(v_queue.id, p_ids, p_subjects);
    v_live  bigint[];
    v_busy  bigint[];
begin
    if p_priority is null or p_priority not between 0 and 9 then
        perform penstock.refuse('PS400', format('priority: %s is not between 0 and 9', coalesce(p_priority::text, 'null')));
    end if;
    v_live := penstock.hold_live(v_queue.id, v_ids);
    v_busy := array(select a.task_id from penstock.agenda as a where a.task_id = any(v_live)
                    except select unnest(penstock.hold_waiting(v_live)));    -- a claim is taking them now
    v_live := array(select unnest(v_live) except select unnest(v_busy));
    update penstock.agenda as a set priority = p_priority where a.task_id = any(v_live);
    update penstock.task as t set priority = p_priority where t.id = any(v_live);
    if v_live <> '{}' then
        perform penstock.note_audit('reprioritise', p_queue, jsonb_build_object('tasks', cardinality(v_live), 'priority', p_priority));
    end if;
    return query
    select w.id, 'reprioritised' from unnest(v_live) as w(id)
    union all
    select o.id, o.result from penstock.left_out(v_queue.id, v_ids, v_live) as o;
end
$$;

create or replace function penstock.check_limit(p_limit int) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if p_limit is null or p_limit not between 1 and 10000 then
        perform penstock.refuse('PS400', format('limit: %s is not between 1 and 10000', coalesce(p_limit::text, 'null')));
    end if;
end
$$;

-- Every text has an empty one in it: asked for by mistake, it would choose everything.
create or replace function penstock.check_filter(p_error text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if p_error = '' then
        perform penstock.refuse('PS400', 'error: it is empty');
    end if;
end
$$;

-- Tasks in these states are removed for good, up to a limit; answers how many. Never what somebody works on.
create or replace function penstock.purge(
    p_queue text, p_states text[], p_ids bigint[] default null, p_kind text default null, p_error text default null,
    p_before timestamptz default null, p_limit int default 10000
) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_custom_plan as $$
declare
    v_queue  constant penstock.queue := penstock.the_queue(p_queue);
    v_bad    text;
    v_state  text;
    v_active bigint;
    v_gone   bigint[];
begin
    perform penstock.check_limit(p_limit);
    perform penstock.check_filter(p_error);
    if p_states is null or p_states = '{}' or array_position(p_states, null) is not null then
        perform penstock.refuse('PS400', 'states: none is given, or one is null');
    end if;
    select s.state into v_bad from unnest(p_states) as s(state)
    where s.state not in ('planned', 'pending', 'done', 'dead', 'cancelled') limit 1;
    if v_bad = 'active' then
        perform penstock.refuse('PS409', 'state: active tasks are not purged', 'Cancel them first.');
    elsif v_bad is not null then
        perform penstock.refuse('PS400', format('state: %L is not planned, pending, done, dead or cancelled', left(v_bad, 80)));
    end if;
    if p_ids is not null then
        select t.id into v_active from penstock.task as t
        where t.id = any(penstock.asked_ids(v_queue.id, p_ids, null)) and t.queue_id = v_queue.id and t.ended is null
          and not exists (select from penstock.agenda as a where a.task_id = t.id) limit 1;
        if v_active is not null then
            perform penstock.refuse('PS409', format('id: %s is active; active tasks are not purged', v_active), 'Cancel it first.');
        end if;
    end if;

    v_gone := array(
        select t.id from penstock.task as t
        where t.queue_id = v_queue.id and t.ended = any(p_states)
          and (p_ids is null or t.id = any(p_ids))
          and (p_kind is null or t.kind = p_kind)
          and (p_error is null or penstock.mentions(t.error, t.reason, p_error))
          and (p_before is null or t.ended_at < p_before)
        limit p_limit
        for update skip locked);
    foreach v_state in array array['pending', 'planned'] loop
        continue when v_state <> all(p_states) or cardinality(v_gone) >= p_limit;
        v_gone := v_gone || penstock.hold_waiting(array(
            select t.id from penstock.task as t join penstock.agenda as a on a.task_id = t.id
            where a.queue_id = v_queue.id
              and (v_state = 'pending' and a.pending or v_state = 'planned' and not a.pending)
              and (p_ids is null or t.id = any(p_ids))
              and (p_kind is null or t.kind = p_kind)
              and (p_error is null or penstock.mentions(t.error, t.reason, p_error))
              and (p_before is null or t.created < p_before)
            limit p_limit - cardinality(v_gone)
            for update of t skip locked));
    end loop;
    delete from penstock.agenda as a where a.task_id = any(v_gone);
    delete from penstock.task as t where t.id = any(v_gone);
    if v_gone <> '{}' then
        perform penstock.note_audit('purge', p_queue, jsonb_build_object('tasks', cardinality(v_gone), 'states', p_states));
    end if;
    return cardinality(v_gone);
end
$$;

-- Everything that writes tasks stands still until the end of this transaction. In short tries that let go of what they got:
-- waiting with one table locked would make everybody wait, and meet whoever holds the others in a deadlock.
create or replace function penstock.stand_still(p_queue_id int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
begin
    for v_try in 1 .. 40 loop
        begin
            lock table penstock.lease, penstock.task, penstock.agenda in exclusive mode;
            perform from penstock.low as l where p_queue_id is null or l.queue_id = p_queue_id for update;
            return;
        exception when lock_not_available then
            perform pg_sleep(0.05 + 0.1 * random());
        end;
    end loop;
    raise exception using errcode = '55P03', message = 'somebody holds tasks all the time', hint = 'Try again.';
end
$$;

-- A queue goes, with its settings and counters; history stays until its days are dropped. Tasks in it are a reason to
-- refuse, unless forced. Pushes under way end first; later ones find no queue (count_task).
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
    delete from penstock.schedule as s where s.queue_id = v_queue.id;    -- first: whoever fires one waits for documents next
    perform penstock.stand_still(v_queue.id);
    v_queue := penstock.the_queue(p_queue);    -- somebody else may have dropped it meanwhile
    select s.planned + s.pending + s.active + s.done + s.dead + s.cancelled into v_tasks from penstock.status(p_queue) as s;
    if v_tasks > 0 and not p_force then
        perform penstock.refuse('PS409', format('queue %L has %s tasks in it', p_queue, v_tasks), 'Purge it first, or force it.');
    end if;
    -- Place by place, by their indexes: there is none over all documents of a queue.
    delete from penstock.task as t using penstock.agenda as a where a.queue_id = v_queue.id and a.pending and t.id = a.task_id;
    delete from penstock.task as t using penstock.agenda as a where a.queue_id = v_queue.id and not a.pending and t.id = a.task_id;
    delete from penstock.task as t where t.id in (select unnest(l.ids) from penstock.lease as l where l.queue_id = v_queue.id);
    delete from penstock.task as t where t.queue_id = v_queue.id and t.ended in ('done', 'dead', 'cancelled');
    delete from penstock.agenda as a where a.queue_id = v_queue.id and a.pending;
    delete from penstock.agenda as a where a.queue_id = v_queue.id and not a.pending;
    delete from penstock.lease as l where l.queue_id = v_queue.id;
    delete from penstock.stream as s where s.queue_id = v_queue.id;
    delete from penstock.scaling as s where s.queue = v_queue.name;
    delete from penstock.kind as k where k.queue_id = v_queue.id;
    delete from penstock.counter as c where c.queue_id = v_queue.id;
    delete from penstock.counter_log as l where l.queue_id = v_queue.id;
    delete from penstock.low as l where l.queue_id = v_queue.id;
    delete from penstock.sample as s where s.queue_id = v_queue.id;
    delete from penstock.profile as p where p.queue_id = v_queue.id;
    delete from penstock.history_dropped as d where d.queue_id = v_queue.id;
    insert into penstock.queue_gone (id, name) values (v_queue.id, v_queue.name);
    delete from penstock.queue as q where q.id = v_queue.id;
    -- What was set meanwhile. One that is being fired now stays behind, without a queue: nobody sees it any more.
    delete from penstock.schedule as s
    where s.name in (select n.name from penstock.schedule as n where n.queue_id = v_queue.id for update skip locked);
    perform penstock.note_audit('drop', p_queue, jsonb_build_object('tasks', v_tasks));
    return v_tasks;
end
$$;
