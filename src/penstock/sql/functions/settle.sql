-- Settle: what became of claimed tasks. Documents, agenda, history, counters and the lease, in one transaction,
-- only while the token is still ours.

-- Today's partition of history, if nobody made it ahead. Like, then attach: no exclusive lock on history.
create or replace function penstock.make_history(p_day date) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
    v_name constant text := 'history_' || to_char(p_day, 'YYYYMMDD');
begin
    if to_regclass('penstock.' || v_name) is not null then
        return false;
    end if;
    perform pg_advisory_xact_lock(hashtext('penstock.make_history'));
    begin
        execute format('create table penstock.%I (like penstock.history including all)', v_name);
    exception when duplicate_table then
        return false;    -- made while we waited for the lock
    end;
    execute format('alter table penstock.history attach partition penstock.%I for values from (%L) to (%L)',
                   v_name, p_day::timestamptz, (p_day + 1)::timestamptz);
    return true;
end
$$;

-- An error text as it may be stored: cut, and free of what a terminal would obey.
create or replace function penstock.safe_text(p_text text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp
return case when p_text is null then null else
    regexp_replace(
        case when octet_length(p_text) <= 8192 then p_text
             when octet_length(left(p_text, 8000)) <= 8000 then left(p_text, 8000) || ' … (cut)'
             else left(p_text, 2000) || ' … (cut)' end,
        '[\x01-\x08\x0B-\x1F\x7F\u0080-\u009F]', '?', 'g') end;

-- Every end of an attempt but the plain done: told by a worker (again, failed, dead, release) or by the clock (expired).
-- The caller holds the lease row and the named documents. Answers where each task is now.
create or replace function penstock.conclude(
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
begin
    return query
    with known as materialized (
        select
            t.id, t.queue_id, t.kind, t.subject, t.created, t.iterations, t.priority, t.renew,
            s.outcome, s.due as asked_due, s.delay, s.payload, penstock.safe_text(s.error) as error, left(s.error_class, 200) as error_class,
            h.due as was_due, coalesce(h.attempts, 0) as attempts, coalesce(h.company, 0) as company,
            coalesce(h.crashes, 0) as crashes,
            -- An expiry burns the attempt only of a task that was alone: it is the one that killed its worker.
            s.outcome = 'failed' or (s.outcome = 'expired' and (p_lease).alone) as burned,
            coalesce(k.max_attempts, q.max_attempts) as max_attempts, q.keep_done,
            case when (s.outcome = 'failed' and s.delay is null) or (s.outcome = 'expired' and (p_lease).alone)
                 then penstock.retry_delay(coalesce(k.retry, q.retry), coalesce(h.attempts, 0) + 1,
                                           p_now - coalesce(t.since, t.created), t.id)
                 else s.delay end as wait
        from unnest(p_ids, p_outcomes, p_dues, p_delays, p_payloads, p_errors, p_classes)
             as s(id, outcome, due, delay, payload, error, error_class)
        join unnest((p_lease).ids, (p_lease).dues, (p_lease).attempts, (p_lease).companies, (p_lease).crashes)
             as h(id, due, attempts, company, crashes) on h.id = s.id
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
                when k.burned and k.outcome = 'expired' and k.crashes + 1 >= 20 then 'dead'
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
            case when j.renew is not null then j.renew
                 when j.outcome = 'again' then coalesce(j.asked_due, p_now + j.delay, p_now)
                 when j.outcome = 'failed' then p_now + j.wait
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
            payload = case when d.outcome = 'again' and d.renew is null then coalesce(d.payload::jsonb, t.payload) else t.payload end,
            renew = null,
            ended = case when d.fate in ('done', 'dead') then d.fate end,
            ended_at = case when d.fate in ('done', 'dead') then p_now end,
            reason = case when d.fate <> 'dead' then null
                          when d.outcome = 'dead' then coalesce(d.error, 'told so')
                          when d.outcome = 'expired' then 'crashed'
                          when d.attempts + 1 >= d.max_attempts then 'attempts spent'
                          else 'the strategy ended' end,
            error = case when d.succeeded then null else coalesce(d.error, t.error) end
        from dated as d
        where t.id = d.id and d.fate <> 'gone' and (not d.unfinished or d.renew is not null or d.fate = 'dead')

    ), put_back as (
        insert into penstock.agenda (task_id, due, queue_id, priority, attempts, company, crashes, pending, named)
        select
            d.id, d.next_due, d.queue_id, d.priority,
            case when d.succeeded or d.renew is not null then 0 else least(d.attempts + d.burned::int, 32767) end,
            case when d.renew is not null or not d.unfinished then 0
                 when d.outcome = 'release' then d.company
                 when (p_lease).alone then 1
                 -- An eighth of the lease it shared, or, of a small one, of what it may have shared a process with.
                 else greatest(1, greatest(bit_count((p_lease).open), coalesce(nullif(d.company, 0), 64)) / 8) end,
            case when d.renew is not null or not d.unfinished then 0
                 else d.crashes + d.burned::int end,
            -- What was given a moment to come waits for it; the rest may run now.
            d.next_due <= p_now or (d.outcome = 'release' and d.delay is null and d.renew is null),
            d.subject is not null
        from dated as d
        where d.fate = 'waits'

    ), noted as (
        insert into penstock.history (task_id, created, due, claimed_at, finished_at, queue_id, iteration, attempt, outcome,
                                      kind, worker, subject, error_class, error)
        select d.id, d.created, d.was_due, (p_lease).claimed_at, p_now, d.queue_id, d.iterations, d.attempts + 1, d.told,
               d.kind, (p_lease).worker, d.subject,
               coalesce(d.error_class, case when d.outcome = 'expired' and d.fate = 'dead' then 'Crashed' end), d.error
        from dated as d

    ), tallied as (
        insert into penstock.counter_log (queue_id, metric, delta)
        select d.queue_id, d.told || '_total', count(*) from dated as d group by d.queue_id, d.told
    )
    select d.id,
           case d.fate when 'gone' then 'done'
                       when 'waits' then case when d.next_due <= p_now or (d.outcome = 'release' and d.delay is null and d.renew is null)
                                              then 'pending' else 'planned' end
                       else d.fate end
    from dated as d;
end
$$;

-- The common end: done, not kept, not renewed. Answers the ids it removed.
create or replace function penstock.finish(p_lease penstock.lease, p_now timestamptz, p_ids bigint[]) returns bigint[]
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

-- Documents that somebody else may hold: all of a call's in one statement and one order. One without a subject is only ever
-- held to change its priority, and matters where the task goes back to waiting with it.
create or replace function penstock.lock_documents(p_ids bigint[], p_named_only boolean) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
begin
    perform from penstock.task as t
    where t.id = any(p_ids) and (t.subject is not null or not p_named_only)
    order by t.subject collate "C", t.id
    for update;
end
$$;

-- One row per id: the state it is in now, or why nothing was changed: refused (no longer ours), revoked (cancelled
-- meanwhile), unknown (never in this lease). Outcomes null: all done.
create or replace function penstock.settle(
    p_token    uuid,
    p_ids      bigint[],
    p_outcomes text[] default null,
    p_dues     timestamptz[] default null,
    p_delays   interval[] default null,
    p_payloads text[] default null,
    p_errors   text[] default null,
    p_classes  text[] default null
) returns table (id bigint, result text)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_nestloop = off as $$
#variable_conflict use_column
declare
    v_count constant int := cardinality(p_ids);
    v_lease penstock.lease;
    v_now   timestamptz;
    v_open  bigint[];    -- ours to settle
    v_done  bigint[];
    v_gone  bigint[];
begin
    perform penstock.check_settle(p_token, p_ids, p_outcomes, p_dues, p_delays, p_payloads, p_errors, p_classes);
    select * into v_lease from penstock.lease as l where l.token = p_token for update;
    if p_ids is distinct from v_lease.ids then
        perform penstock.check_distinct(p_ids);
    end if;
    if v_lease.token is null then
        return query select s.id, 'refused' from unnest(p_ids) as s(id);
        return;
    end if;
    v_now := penstock.clock();
    perform penstock.make_history((v_now at time zone 'UTC')::date);
    if p_payloads is not null then
        perform penstock.check_sizes(p_payloads, v_lease.queue_id);
    end if;

    if p_ids = v_lease.ids and bit_count(v_lease.open) = v_count then
        v_open := p_ids;
    else
        select array_agg(h.id) filter (where s.id is not null and get_bit(v_lease.open, h.n::int - 1) = 1)
        into v_open
        from unnest(v_lease.ids) with ordinality as h(id, n)
        left join unnest(p_ids) as s(id) on s.id = h.id;
        return query
        select s.id, case when s.id = any(v_lease.revoked) then 'revoked' when h.id is null then 'unknown' else 'refused' end
        from unnest(p_ids) as s(id)
        left join unnest(v_lease.ids) as h(id) on h.id = s.id
        left join unnest(v_open) as o(id) on o.id = s.id
        where o.id is null;
        if v_open is null then
            return;
        end if;
    end if;

    if v_lease.named or p_outcomes is not null then
        perform penstock.lock_documents(v_open, p_named_only => p_outcomes is null);
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
        select from penstock.queue as q where q.id = v_lease.queue_id and q.keep_done is not null
    ) then
        v_gone := penstock.finish(v_lease, v_now, v_done);
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
        cross join lateral penstock.conclude(v_lease, v_now, r.ids, r.outcomes, r.dues, r.delays, r.payloads, r.errors, r.classes) as c;
    end if;
    perform penstock.close(v_lease, v_open);
end
$$;

-- These tasks are no longer part of the lease; with the last of them it goes.
create or replace function penstock.close(p_lease penstock.lease, p_ids bigint[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_nestloop = off as $$
declare
    v_open varbit := p_lease.open;
    v_n    int;
begin
    if cardinality(p_ids) = bit_count(v_open) then
        delete from penstock.lease as l where l.token = p_lease.token;
        return;
    end if;
    for v_n in
        select h.n::int - 1 from unnest(p_lease.ids) with ordinality as h(id, n) join unnest(p_ids) as s(id) on s.id = h.id
    loop
        v_open := set_bit(v_open, v_n, 0);
    end loop;
    update penstock.lease as l set open = v_open where l.token = p_lease.token;
end
$$;

-- What `again` brings along is held to the queue's limit, like a push.
create or replace function penstock.check_sizes(p_payloads text[], p_queue_id int) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    v_bad record;
begin
    select i.n - 1 as index, octet_length(i.payload) as size, penstock.largest_payload(q) as largest into v_bad
    from penstock.queue as q, unnest(p_payloads) with ordinality as i(payload, n)
    where q.id = p_queue_id and octet_length(i.payload) > penstock.largest_payload(q)
    order by i.n limit 1;
    if found then
        perform penstock.refuse('PS413', format('item %s: payload: %s bytes are more than %s', v_bad.index, v_bad.size, v_bad.largest));
    end if;
end
$$;

create or replace function penstock.check_distinct(p_ids bigint[]) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    v_twice bigint;
begin
    select s.id into v_twice from unnest(p_ids) as s(id) group by s.id having count(*) > 1 limit 1;
    if found then
        perform penstock.refuse('PS400', format('ids: %s is there twice', v_twice));
    end if;
end
$$;

create or replace function penstock.check_settle(
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
        perform penstock.refuse('PS400', format('outcomes, dues, delays, payloads, errors, classes: flat, and as many as ids (%s), or null', v_count));
    end if;

    if p_outcomes is null then
        return;
    end if;

    select s.n - 1 as index, case
        when s.outcome is null or s.outcome not in ('done', 'again', 'failed', 'dead', 'release')
            then array['PS400', format('outcome: %s is not done, again, failed, dead or release', coalesce(quote_literal(left(s.outcome, 80)), 'null'))]
        when s.delay not between '0' and '3650 days' then array['PS400', format('delay: %s is not between 0 and 3650 days', s.delay)]
        when s.due not between v_earliest and v_latest
            then array['PS400', format('due: %s is not between %s and ten years ahead', s.due, v_earliest)]
        else array['PS422', 'payload: it is not a JSON object'] end as said
    into v_bad
    from unnest(p_outcomes, p_dues, p_delays, p_payloads) with ordinality as s(outcome, due, delay, payload, n)
    where s.outcome is null or s.outcome not in ('done', 'again', 'failed', 'dead', 'release')
       or s.delay not between '0' and '3650 days'
       or s.due not between v_earliest and v_latest
       or ltrim(s.payload, E' \t\r\n') not like '{%'
    order by s.n limit 1;
    if found then
        perform penstock.refuse(v_bad.said[1], format('item %s: %s', v_bad.index, v_bad.said[2]));
    end if;
end
$$;

-- Put back what is open of a lease, or these of it, as it was: no attempt burned. No row: the lease is lost.
create or replace function penstock.release(p_token uuid, p_ids bigint[] default null, p_delay interval default null)
returns table (id bigint, result text)
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
    from penstock.settle(p_token, coalesce(v_ids, '{}'), array_fill('release'::text, array[coalesce(cardinality(v_ids), 0)]),
                         p_delays => array_fill(p_delay, array[coalesce(cardinality(v_ids), 0)])) as s;
end
$$;

-- Leases that nobody kept alive give their tasks back, at once claimable. No daemon: a claim does it. What somebody
-- holds is left for the next round: a lease being settled, a document being pushed to.
create or replace function penstock.expire(p_queue_id int, p_limit int default 10000, p_thorough boolean default false) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_now   constant timestamptz := penstock.clock();
    v_from  timestamptz;
    v_lease penstock.lease;
    v_open  bigint[];
    v_count int := 0;
begin
    select l.until into v_from from penstock.low as l where l.queue_id = p_queue_id;
    if p_thorough or v_from is null then
        v_from := '-infinity';
    end if;
    for v_lease in
        select l.* from penstock.lease as l
        where l.queue_id = p_queue_id and l.until >= v_from and l.until < v_now
        order by l.until
        limit p_limit
        for update skip locked
    loop
        v_open := array(
            select h.id from unnest(v_lease.ids) with ordinality as h(id, n) where get_bit(v_lease.open, h.n::int - 1) = 1);
        -- An expiry writes a document when it is renewed, so it has a subject, or when it dies, so it was alone.
        if v_lease.named or v_lease.alone then
            v_open := array(select unnest(v_open) except select unnest(penstock.held_elsewhere(v_open)));
        end if;
        perform penstock.make_history((v_now at time zone 'UTC')::date);
        perform penstock.conclude(v_lease, v_now, v_open, array_fill('expired'::text, array[cardinality(v_open)]),
                                  null, null, null, null, null);
        perform penstock.close(v_lease, v_open);
        v_count := v_count + cardinality(v_open);
        exit when v_count >= p_limit;
    end loop;

    -- Remember how far all is done: not past a lease that is still there, nor past now, since claims under way end later.
    update penstock.low as b
    set until = least(v_now, (select min(l.until) from penstock.lease as l
                              where l.queue_id = p_queue_id and l.until >= v_from and l.until < v_now))
    where b.ctid = any(array(
        select l.ctid from penstock.low as l
        where l.queue_id = p_queue_id and l.until < v_now - interval '500 milliseconds' for update skip locked));
    return v_count;
end
$$;

-- Locks the named documents among these that are free, and answers those that somebody else holds.
create or replace function penstock.held_elsewhere(p_ids bigint[]) returns bigint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_free bigint[];
begin
    v_free := array(select t.id from penstock.task as t where t.id = any(p_ids) for update skip locked);
    return array(
        select t.id from penstock.task as t where t.id = any(p_ids) except select unnest(v_free));
end
$$;
