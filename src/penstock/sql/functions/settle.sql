-- Settle: notes what became of claimed tasks. It writes documents, agenda, history, counters and the lease in one
-- transaction, and only while the token is valid.

-- Settles tasks of a lease. Returns one row per id: the state that the task is in now, or why nothing changed. The
-- reasons are refused (the lease is lost), revoked (the task was cancelled meanwhile), unknown (the task was never in
-- this lease) and busy (p_wait is false, and another transaction holds the document or the lease: settle it again
-- later). Null outcomes mean that all tasks are done.
drop function if exists penstock.settle(uuid, bigint[], text[], timestamptz[], interval[], text[], text[], text[]);
create or replace function penstock.settle(
    p_token    uuid,
    p_ids      bigint[],
    p_outcomes text[] default null,
    p_dues     timestamptz[] default null,
    p_delays   interval[] default null,
    p_payloads text[] default null,
    p_errors   text[] default null,
    p_classes  text[] default null,
    p_wait     boolean default true
) returns table (id bigint, result text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_nestloop = off as $$
#variable_conflict use_column
declare
    v_count constant int := cardinality(p_ids);
    v_lease penstock.lease;
    v_now   timestamptz;
    v_open  bigint[];    -- the tasks that this lease may settle
    v_busy  bigint[];
    v_done  bigint[];
    v_gone  bigint[];
begin
    perform penstock._check_settle(p_token, p_ids, p_outcomes, p_dues, p_delays, p_payloads, p_errors, p_classes);
    if p_wait is null then
        perform penstock.refuse('PS400', 'wait: it is null');
    elsif p_wait then
        select * into v_lease from penstock.lease as l where l.token = p_token for update;
    else
        select * into v_lease from penstock.lease as l where l.token = p_token for update skip locked;
        if not found and exists (select from penstock.lease as l where l.token = p_token) then
            return query select s.id, 'busy' from unnest(p_ids) as s(id);
            return;
        end if;
    end if;
    if p_ids is distinct from v_lease.ids then
        perform penstock._check_distinct(p_ids);
    end if;
    if v_lease.token is null then
        return query select s.id, 'refused' from unnest(p_ids) as s(id);
        return;
    end if;
    v_now := penstock.clock();
    perform penstock._make_history((v_now at time zone 'UTC')::date);
    if p_payloads is not null then
        perform penstock._check_sizes(p_payloads, v_lease.queue_id);
    end if;

    if p_ids = v_lease.ids and bit_count(v_lease.open) = v_count then
        v_open := p_ids;
    else
        select array_agg(h.id) filter (where s.id is not null and get_bit(v_lease.open, h.n::int - 1) = 1)
        into v_open
        from unnest(v_lease.ids) with ordinality as h(id, n)
        left join unnest(p_ids) as s(id) on s.id = h.id;
        return query
        select s.id,
               case when s.id = any(v_lease.revoked) then 'revoked' when h.id is null then 'unknown' else 'refused' end
        from unnest(p_ids) as s(id)
        left join unnest(v_lease.ids) as h(id) on h.id = s.id
        left join unnest(v_open) as o(id) on o.id = s.id
        where o.id is null;
        if v_open is null then
            return;
        end if;
    end if;

    if v_lease.named or p_outcomes is not null then
        if p_wait then
            perform penstock._lock_documents(v_open, p_named_only => p_outcomes is null);
        else
            v_busy := penstock._held_elsewhere(v_open, p_named_only => p_outcomes is null);
        end if;
        if v_busy <> '{}' then
            return query select b.id, 'busy' from unnest(v_busy) as b(id);
            v_open := array(select unnest(v_open) except select unnest(v_busy));
            if v_open = '{}' then
                return;
            end if;
        end if;
    end if;
    if p_outcomes is null then
        v_done := v_open;
    else
        select array_agg(s.id) into v_done
        from unnest(p_ids, p_outcomes) as s(id, outcome)
        join unnest(v_open) as o(id) on o.id = s.id
        where s.outcome = 'done';
    end if;
    if v_done is not null and not exists (
        select from penstock.queue as q
        where q.id = v_lease.queue_id and (q.keep_done is not null or q.follows_done)
    ) then
        v_gone := penstock._finish(v_lease, v_now, v_done);
        return query select g.id, 'done' from unnest(v_gone) as g(id);
    end if;
    if cardinality(v_gone) is distinct from cardinality(v_open) then
        return query
        select c.id, c.result
        from (
            select array_agg(s.id) as ids, array_agg(coalesce(s.outcome, 'done')) as outcomes, array_agg(s.due) as dues,
                   array_agg(s.delay) as delays, array_agg(s.payload) as payloads, array_agg(s.error) as errors,
                   array_agg(s.error_class) as classes
            from unnest(p_ids, p_outcomes, p_dues, p_delays, p_payloads, p_errors, p_classes)
                 as s(id, outcome, due, delay, payload, error, error_class)
            join (select unnest(v_open) except select unnest(v_gone)) as o(id) on o.id = s.id
        ) as r
        cross join lateral penstock._conclude(
            v_lease, v_now, r.ids, r.outcomes, r.dues, r.delays, r.payloads, r.errors, r.classes) as c;
    end if;
    perform penstock._close_lease(v_lease, v_open);
end
$$;

-- Puts the open tasks of a lease, or the given ones of them, back as they were, without burning an attempt. Returns no
-- row if the lease is lost.
drop function if exists penstock.release(uuid, bigint[], interval);
create or replace function penstock.release(
    p_token uuid, p_ids bigint[] default null, p_delay interval default null, p_wait boolean default true
) returns table (id bigint, result text)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_ids bigint[] := p_ids;
begin
    if v_ids is null then
        select array_agg(h.id) into v_ids
        from penstock.lease as l, unnest(l.ids) with ordinality as h(id, n)
        where l.token = p_token and get_bit(l.open, h.n::int - 1) = 1;
    end if;
    return query
    select s.id, s.result
    from penstock.settle(p_token, coalesce(v_ids, '{}'),
                         array_fill('release'::text, array[coalesce(cardinality(v_ids), 0)]),
                         p_delays => array_fill(p_delay, array[coalesce(cardinality(v_ids), 0)]),
                         p_wait => p_wait) as s;
end
$$;

-- Locks documents that another session may hold: all documents of a call, in one statement and one order. A document
-- without a subject is held only to change its priority, which matters where the task goes back to waiting with it.
create or replace function penstock._lock_documents(p_ids bigint[], p_named_only boolean) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
begin
    perform from penstock.task as t
    where t.id = any(p_ids) and (t.subject is not null or not p_named_only)
    order by t.subject collate "C", t.id
    for update;
end
$$;

-- Handles the common end: tasks that are done, not kept and not renewed. Returns the ids that it removed.
create or replace function penstock._finish(p_lease penstock.lease, p_now timestamptz, p_ids bigint[]) returns bigint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off as $$
declare
    v_xid  constant bigint := pg_current_xact_id()::text::bigint;    -- once: the default would cost 0.3 µs a row
    v_gone bigint[];
begin
    with gone as (
        delete from penstock.task as t
        where t.id = any(p_ids) and t.renew is null and t.ended is null
        returning t.id, t.created, t.iterations, t.kind, t.subject
    ), noted as (
        insert into penstock.history (xid, task_id, created, due, claimed_at, finished_at, queue_id, iteration, attempt,
                                      outcome, kind, worker, subject)
        select v_xid, g.id, g.created, h.due, p_lease.claimed_at, p_now, p_lease.queue_id, g.iterations,
               coalesce(h.attempts, 0) + 1, 'done', g.kind, p_lease.worker, g.subject
        from gone as g
        join unnest(p_lease.ids, p_lease.dues, p_lease.attempts) as h(id, due, attempts) on h.id = g.id
    ), tallied as (
        insert into penstock.counter_log (queue_id, metric, delta)
        select p_lease.queue_id, 'done_total', count(*) from gone having count(*) > 0
    )
    select array_agg(g.id) into v_gone from gone as g;
    return v_gone;
end
$$;

-- Handles every end of an attempt except the plain done: a worker reports it (again, failed, dead, release) or the
-- clock does (expired). The caller holds the lease row and the named documents. It also pushes the follow-ups of the
-- tasks that end. Returns where each task is now.
create or replace function penstock._conclude(
    p_lease    penstock.lease,
    p_now      timestamptz,
    p_ids      bigint[],
    p_outcomes text[],
    p_dues     timestamptz[],
    p_delays   interval[],
    p_payloads text[],
    p_errors   text[],
    p_classes  text[]
) returns table (id bigint, result text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off as $$
#variable_conflict use_column
declare
    v_ids        bigint[];
    v_states     text[];
    v_follow_ups text[];
    v_ends       jsonb[];
begin
    with known as materialized (
        select
            t.id, t.queue_id, t.kind, t.subject, t.created, t.iterations, t.priority, t.renew, t.key,
            k.on_dead, k.on_done,
            -- A done document is deleted by this statement.
            case when coalesce(k.on_dead, k.on_done) is not null then t.payload end as ended_payload,
            case when k.on_dead is not null then t.error_class end as last_class,
            case when k.on_dead is not null then t.error end as last_error,
            s.outcome, s.due as asked_due, penstock._in_seconds(s.delay) as delay, s.payload,
            penstock._safe_text(s.error) as error, left(s.error_class, 200) as error_class,
            h.due as was_due, coalesce(h.attempts, 0) as attempts, coalesce(h.quarantine, 0) as quarantine,
            greatest(-1 - h.quarantine, 0) as crashes,
            -- An expiry burns the attempt only of a task that was alone: that task killed its worker.
            s.outcome = 'failed' or (s.outcome = 'expired' and (p_lease).alone) as burned,
            coalesce(k.max_attempts, q.max_attempts) as max_attempts, q.max_crashes, q.keep_done,
            case when (s.outcome = 'failed' and s.delay is null) or (s.outcome = 'expired' and (p_lease).alone)
                 then penstock.retry_delay(coalesce(k.retry, q.retry), coalesce(h.attempts, 0) + 1,
                                           p_now - coalesce(t.since, t.created), t.id)
                 else penstock._in_seconds(s.delay) end as wait
        from unnest(p_ids, p_outcomes, p_dues, p_delays, p_payloads, p_errors, p_classes)
             as s(id, outcome, due, delay, payload, error, error_class)
        join unnest((p_lease).ids, (p_lease).dues, (p_lease).attempts, (p_lease).quarantines)
             as h(id, due, attempts, quarantine) on h.id = s.id
        join (select * from penstock.task as d where d.id = any(p_ids) and d.ended is null) as t on t.id = s.id
        join penstock.queue as q on q.id = t.queue_id
        left join penstock.kind as k on k.queue_id = t.queue_id and k.kind = t.kind

    ), judged as materialized (
        select k.*,
            case
                when k.renew is not null then 'waits'
                when k.outcome = 'done' then case when k.keep_done is null then 'gone' else 'done' end
                when k.outcome = 'dead' then 'dead'
                when k.burned and (k.attempts + 1 >= k.max_attempts or k.wait is null) then 'dead'
                when k.burned and k.outcome = 'expired' and k.crashes + 1 >= k.max_crashes then 'dead'
                else 'waits'
            end as fate,
            k.outcome in ('done', 'again') as succeeded,
            k.outcome in ('release', 'expired') as unfinished
        from known as k

    ), dated as materialized (
        select j.*,
            case when j.outcome = 'release' then 'released'
                 when j.fate = 'dead' then 'dead'
                 else j.outcome end as told,
            case when j.fate = 'dead' then j.on_dead
                 when j.fate in ('gone', 'done') then j.on_done end as follow_up,
            -- Class and text always belong to the same error.
            num_nonnulls(j.error_class, j.error) > 0 as has_error,
            case when j.fate <> 'dead' then null
                 when j.outcome = 'dead' then coalesce(split_part(j.error, E'\n', 1), 'told so')
                 when j.outcome = 'expired' then 'crashed'
                 when j.attempts + 1 >= j.max_attempts then 'attempts spent'
                 else 'the strategy ended' end as reason,
            nextval('penstock.history_id_seq') as history_id,
            case when j.renew is not null then j.renew
                 when j.outcome = 'again' then coalesce(j.asked_due, p_now + j.delay, p_now)
                 when j.outcome = 'failed' then p_now + j.wait
                 -- The task was alone because of an earlier crash. It most likely kills its workers, and would kill the
                 -- next one at once.
                 when j.outcome = 'expired' and (p_lease).alone and j.quarantine < 0 then p_now + j.wait
                 when j.outcome = 'release' then coalesce(p_now + j.delay, j.was_due)
                 else p_now end as next_due
        from judged as j

    ), removed as (
        delete from penstock.task as t using dated as d where t.id = d.id and d.fate = 'gone'

    ), rewritten as (
        update penstock.task as t set
            iterations = t.iterations + d.succeeded::int,
            last_iteration = case when d.succeeded then p_now else t.last_iteration end,
            since = case when d.succeeded or d.renew is not null then p_now else t.since end,
            payload = case when d.outcome = 'again' and d.renew is null then coalesce(d.payload::jsonb, t.payload)
                           else t.payload end,
            renew = null,
            expires = case when d.outcome <> 'again' or d.renew is not null then t.expires end,
            ended = case when d.fate in ('done', 'dead') then d.fate end,
            ended_at = case when d.fate in ('done', 'dead') then p_now end,
            reason = d.reason,
            error_class = case when d.succeeded then null when d.has_error then d.error_class else t.error_class end,
            error = case when d.succeeded then null when d.has_error then d.error else t.error end,
            attempts = case when d.fate = 'dead' then least(d.attempts + 1, 32767) end
        from dated as d
        where t.id = d.id and d.fate <> 'gone' and (not d.unfinished or d.renew is not null or d.fate = 'dead')

    ), put_back as (
        insert into penstock.agenda (task_id, due, queue_id, key_id, priority, attempts, quarantine, pending, named)
        select
            d.id, d.next_due, d.queue_id, penstock._key_id(d.queue_id, d.key), d.priority,
            case when d.succeeded or d.renew is not null then 0 else least(d.attempts + d.burned::int, 32767) end,
            case when d.renew is not null or not d.unfinished then 0
                 when d.outcome = 'release' then d.quarantine
                 when (p_lease).alone then -2 - d.crashes    -- one crash more
                 -- The limit is an eighth of the lease that the task shared or, for a small lease, of the number of
                 -- tasks that it may have shared a process with. A lease of one task is quarantine.
                 when greatest(bit_count((p_lease).open), coalesce(nullif(d.quarantine, 0), 64)) < 16 then -1
                 else greatest(bit_count((p_lease).open), coalesce(nullif(d.quarantine, 0), 64)) / 8 end,
            -- A task with a moment in the future waits for it; the others may run now.
            d.next_due <= p_now or (d.outcome = 'release' and d.delay is null and d.renew is null),
            d.subject is not null
        from dated as d
        where d.fate = 'waits'

    ), noted as (
        insert into penstock.history (id, task_id, created, due, claimed_at, finished_at, queue_id, iteration, attempt,
                                      outcome, kind, worker, subject, error_class, error)
        select d.history_id, d.id, d.created, d.was_due, (p_lease).claimed_at, p_now, d.queue_id, d.iterations,
               d.attempts + 1,
               d.told, d.kind, (p_lease).worker, d.subject,
               coalesce(d.error_class, case when d.outcome = 'expired' and d.fate = 'dead' then 'Crashed' end), d.error
        from dated as d

    ), tallied as (
        insert into penstock.counter_log (queue_id, metric, delta)
        select d.queue_id, d.told || '_total', count(*) from dated as d group by d.queue_id, d.told
    )
    select array_agg(d.id),
           array_agg(case d.fate
               when 'gone' then 'done'
               when 'waits' then case when d.next_due <= p_now
                                           or (d.outcome = 'release' and d.delay is null and d.renew is null)
                                      then 'pending' else 'planned' end
               else d.fate end),
           array_agg(d.follow_up) filter (where d.follow_up is not null),
           array_agg(penstock._describe_end(
               d.id, d.history_id, d.queue_id, d.kind, d.subject, d.ended_payload, d.attempts + 1, d.reason,
               case when d.succeeded then null when d.has_error then d.error_class else d.last_class end,
               case when d.succeeded then null when d.has_error then d.error else d.last_error end, p_now)
           ) filter (where d.follow_up is not null)
    into v_ids, v_states, v_follow_ups, v_ends
    from dated as d;
    if v_follow_ups is not null then
        perform penstock._push_follow_ups(v_follow_ups, v_ends);
    end if;
    return query select r.id, r.state from unnest(v_ids, v_states) as r(id, state);
end
$$;

-- Removes these tasks from the lease. The lease is deleted with its last task.
create or replace function penstock._close_lease(p_lease penstock.lease, p_ids bigint[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_nestloop = off as $$
declare
    v_open varbit := p_lease.open;
    v_n    int;
begin
    if cardinality(p_ids) = bit_count(v_open) then
        delete from penstock.lease as l where l.token = p_lease.token;
        return;
    end if;
    for v_n in
        select h.n::int - 1
        from unnest(p_lease.ids) with ordinality as h(id, n) join unnest(p_ids) as s(id) on s.id = h.id
    loop
        v_open := set_bit(v_open, v_n, 0);
    end loop;
    update penstock.lease as l set open = v_open where l.token = p_lease.token;
end
$$;

-- Returns an error text in the form in which it is stored: cut, and without characters that a terminal would obey.
create or replace function penstock._safe_text(p_text text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp
return case when p_text is null then null else
    regexp_replace(
        case when octet_length(p_text) <= 8192 then p_text
             when octet_length(left(p_text, 8000)) <= 8000 then left(p_text, 8000) || ' … (cut)'
             else left(p_text, 2000) || ' … (cut)' end,
        '[\x01-\x08\x0B-\x1F\x7F\u0080-\u009F]', '?', 'g') end;

create or replace function penstock._check_settle(
    p_token uuid, p_ids bigint[], p_outcomes text[], p_dues timestamptz[], p_delays interval[], p_payloads text[],
    p_errors text[], p_classes text[]
) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    v_count    constant int := cardinality(p_ids);
    v_earliest constant timestamptz := '0001-01-02 00:00:00+00';
    v_latest   constant timestamptz := penstock.clock() + interval '10 years';
    v_bad      record;
begin
    if p_token is null then
        perform penstock.refuse('PS400', 'token: it is null');
    elsif v_count is null or array_ndims(p_ids) > 1 or array_position(p_ids, null) is not null then
        perform penstock.refuse('PS400', 'ids: it is null, nested, or has a null in it');
    elsif v_count > 10000 then
        perform penstock.refuse('PS400', format('ids: %s are more than 10000 in one call', v_count));
    elsif coalesce(cardinality(p_outcomes), v_count) <> v_count or coalesce(cardinality(p_dues), v_count) <> v_count
       or coalesce(cardinality(p_delays), v_count) <> v_count or coalesce(cardinality(p_payloads), v_count) <> v_count
       or coalesce(cardinality(p_errors), v_count) <> v_count or coalesce(cardinality(p_classes), v_count) <> v_count
       or greatest(array_ndims(p_outcomes), array_ndims(p_dues), array_ndims(p_delays), array_ndims(p_payloads),
                   array_ndims(p_errors), array_ndims(p_classes)) > 1 then
        perform penstock.refuse('PS400',
            format('outcomes, dues, delays, payloads, errors, classes: flat, and as many as ids (%s), or null',
                   v_count));
    end if;

    if p_outcomes is null then
        return;
    end if;

    select s.n - 1 as index, case
        when s.outcome is null or s.outcome not in ('done', 'again', 'failed', 'dead', 'release')
            then array['PS400', format('outcome: %s is not done, again, failed, dead or release',
                                       coalesce(quote_literal(left(s.outcome, 80)), 'null'))]
        when penstock._in_seconds(s.delay) not between '0' and '3650 days'
            then array['PS400', format('delay: %s is not between 0 and 3650 days', s.delay)]
        when s.due not between v_earliest and v_latest
            then array['PS400', format('due: %s is not between %s and ten years ahead', s.due, v_earliest)]
        else array['PS422', 'payload: it is not a JSON object'] end as said
    into v_bad
    from unnest(p_outcomes, p_dues, p_delays, p_payloads) with ordinality as s(outcome, due, delay, payload, n)
    where s.outcome is null or s.outcome not in ('done', 'again', 'failed', 'dead', 'release')
       or penstock._in_seconds(s.delay) not between '0' and '3650 days'
       or s.due not between v_earliest and v_latest
       or ltrim(s.payload, E' \t\r\n') not like '{%'
    order by s.n limit 1;
    if found then
        perform penstock.refuse(v_bad.said[1], format('item %s: %s', v_bad.index, v_bad.said[2]));
    end if;
end
$$;

create or replace function penstock._check_distinct(p_ids bigint[]) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    v_twice bigint;
begin
    select s.id into v_twice from unnest(p_ids) as s(id) group by s.id having count(*) > 1 limit 1;
    if found then
        perform penstock.refuse('PS400', format('ids: %s is given twice', v_twice));
    end if;
end
$$;

-- Applies the payload limit of the queue to the payloads that `again` brings, as for a push.
create or replace function penstock._check_sizes(p_payloads text[], p_queue_id int) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    v_bad record;
begin
    select i.n - 1 as index, octet_length(i.payload) as size, penstock.largest_payload(q) as largest into v_bad
    from penstock.queue as q, unnest(p_payloads) with ordinality as i(payload, n)
    where q.id = p_queue_id and octet_length(i.payload) > penstock.largest_payload(q)
    order by i.n limit 1;
    if found then
        perform penstock.refuse('PS413',
            format('item %s: payload: %s bytes are more than %s', v_bad.index, v_bad.size, v_bad.largest));
    end if;
end
$$;
