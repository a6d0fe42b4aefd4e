-- Claim: what waits becomes somebody's lease.

create or replace function penstock.check_claim(
    p_limit int, p_lease interval, p_worker text, p_may_alone boolean, p_durable boolean
) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if p_limit is null or p_limit not between 1 and 10000 then
        perform penstock.refuse('PS400', format('limit: %s is not between 1 and 10000', coalesce(p_limit::text, 'null')));
    elsif p_lease not between '100 milliseconds' and '24 hours' then
        perform penstock.refuse('PS400', format('lease: %s is not between 100 ms and 24 h', p_lease));
    elsif p_worker is null or octet_length(p_worker) > 200 then
        perform penstock.refuse('PS400', 'worker: it is null or longer than 200 bytes');
    elsif p_may_alone is null or p_durable is null then
        perform penstock.refuse('PS400', 'may_alone and durable must not be null');
    elsif current_setting('transaction_isolation') <> 'read committed' then
        perform penstock.refuse('PS400', format('claim can not run in a %s transaction', current_setting('transaction_isolation')),
            'Begin it with: begin isolation level read committed.');
    end if;
end
$$;

-- Two statements, on purpose. The first takes agenda rows; the second reads the documents in a NEW snapshot: in one
-- statement an update committed between snapshot and lock, and reported as done, would run with the old payload.
create or replace function penstock.claim(
    p_queue     text,
    p_limit     int default 1,
    p_lease     interval default null,
    p_worker    text default '',
    p_hint      penstock.place default null,
    p_may_alone boolean default true,
    p_durable   boolean default true
) returns table (
    token uuid, until timestamptz, id bigint, kind text, subject text, payload jsonb, priority smallint,
    due timestamptz, attempt int, iterations int, created timestamptz, since timestamptz,
    alone boolean
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off as $$
#variable_conflict use_column
declare
    v_queue     constant penstock.queue := penstock.the_queue(p_queue);
    v_token     constant uuid := gen_random_uuid();
    v_lease     constant interval := penstock.in_seconds(coalesce(p_lease, v_queue.lease));
    v_now       timestamptz := penstock.clock();
    v_hint      penstock.place := p_hint;
    v_places    tid[];
    v_ids       bigint[];
    v_dues      timestamptz[];
    v_attempts  smallint[];
    v_companies smallint[];
    v_crashes   smallint[];
    v_named     boolean;
    v_tried     boolean;
    v_alone     boolean;
    v_count     int;
begin
    perform penstock.check_claim(p_limit, v_lease, p_worker, p_may_alone, p_durable);
    if v_queue.paused then
        return;
    end if;
    if not p_durable then
        -- A lost claim is only a repeated one. For this transaction alone: behind a pooler a session SET would leak into a settle.
        perform set_config('synchronous_commit', 'off', true);
    end if;
    loop
        if v_hint is null then
            -- Folding counters is no hurry, and dearer than the claim of one task: twice a second, by what expire remembers.
            if (select l.until > v_now - interval '500 milliseconds' from penstock.low as l where l.queue_id = v_queue.id)
               is not true then
                perform penstock.squeeze(v_queue.id);
            end if;
            perform penstock.expire(v_queue.id, 1000);
            perform penstock.promote(v_queue.id, greatest(2 * p_limit, 1000));
            v_now := penstock.clock();
        end if;
        if p_may_alone and v_hint is null then
            -- What must be alone comes first when somebody can take it so: the chance is rare while there is much to do.
            with chosen as materialized (
                select a.ctid as place, a.task_id, a.due, a.attempts, a.company, a.crashes, a.named
                from penstock.agenda as a
                where a.queue_id = v_queue.id and a.pending and a.company = 1
                order by a.priority, a.due, a.task_id
                limit 1
                for update skip locked
            )
            select array[c.place], array[c.task_id], array[c.due], array[c.attempts], array[c.company], array[c.crashes], c.named, true
            into v_places, v_ids, v_dues, v_attempts, v_companies, v_crashes, v_named, v_tried
            from chosen as c;
            exit when v_ids is not null;
        end if;

        with chosen as materialized (
            select a.ctid as place, a.task_id, a.due, a.attempts, a.company, a.crashes, a.named
            from penstock.agenda as a
            where a.queue_id = v_queue.id
              and a.pending
              and (a.priority, a.due, a.task_id) >= (coalesce(v_hint.priority, 0::smallint), coalesce(v_hint.due, '-infinity'),
                                                     coalesce(v_hint.task_id, 0))
              and (p_may_alone or a.company <> 1)
            order by a.priority, a.due, a.task_id
            limit p_limit
            for update skip locked
        )
        select array_agg(c.place), array_agg(c.task_id), array_agg(c.due), array_agg(c.attempts), array_agg(c.company),
               array_agg(c.crashes), bool_or(c.named), max(c.attempts) > 0 or max(c.company) > 0
        into v_places, v_ids, v_dues, v_attempts, v_companies, v_crashes, v_named, v_tried
        from chosen as c;
        -- Rows can appear before the hint (late commits, releases, higher priority): short means look again from the start.
        -- Task 0 is before all: whoever was just told of a push gives that for a hint, and takes what there is.
        exit when v_hint is null or cardinality(v_ids) = p_limit or v_hint.task_id = 0 and v_ids is not null;
        v_hint := null;
    end loop;
    if v_ids is null then
        return;
    end if;

    if v_tried then
        -- After a crash a task may share a lease with few others, 1: with none. The claim ends before it grows too large.
        select count(*) into v_count
        from (
            select c.n, min(nullif(c.company, 0)) over (order by c.n) as smallest
            from unnest(v_companies) with ordinality as c(company, n)
        ) as s
        where s.n <= coalesce(s.smallest, s.n);
        v_places := v_places[:v_count];
        v_ids := v_ids[:v_count];
        v_dues := v_dues[:v_count];
        v_attempts := v_attempts[:v_count];
        v_companies := v_companies[:v_count];
        v_crashes := v_crashes[:v_count];
    end if;
    delete from penstock.agenda as a where a.ctid = any(v_places);
    -- Alone: it must be, or whoever asked for one wanted no more. Whoever asked for more may yet take others beside it.
    v_alone := p_may_alone and cardinality(v_ids) = 1 and (v_companies[1] = 1 or p_limit = 1);

    return query
    select v_token, v_now + v_lease, t.id, t.kind, t.subject, t.payload, t.priority, h.due, h.attempts + 1, t.iterations, t.created, t.since,
           v_alone
    from unnest(v_ids, v_dues, v_attempts) with ordinality as h(id, due, attempts, n)
    join (select * from penstock.task as d where d.id = any(v_ids) and d.ended is null) as t on t.id = h.id
    order by h.n;
    get diagnostics v_count = row_count;

    if v_count < cardinality(v_ids) then
        -- Somebody removed documents by hand. Only live ones are leased; the rest leaves the agenda, and verify tells of it.
        select array_agg(h.id), array_agg(h.due), array_agg(h.attempts), array_agg(h.company), array_agg(h.crashes)
        into v_ids, v_dues, v_attempts, v_companies, v_crashes
        from unnest(v_ids, v_dues, v_attempts, v_companies, v_crashes) as h(id, due, attempts, company, crashes)
        where exists (select from penstock.task as t where t.id = h.id and t.ended is null);
        insert into penstock.counter_log (queue_id, metric, delta)
        values (v_queue.id, 'orphaned_total', cardinality(v_places) - v_count);
    end if;
    if v_count > 0 then
        insert into penstock.lease (token, claimed_at, until, queue_id, alone, named, worker, open, ids, dues, attempts, companies, crashes)
        values (v_token, v_now, v_now + v_lease, v_queue.id, v_alone, v_named, p_worker,
                repeat('1', v_count)::varbit, v_ids, v_dues,
                case when v_tried then v_attempts end, case when v_tried then v_companies end, case when v_tried then v_crashes end);
        update penstock.low as l set until = v_now + v_lease where l.queue_id = v_queue.id and l.until > v_now + v_lease;
    end if;
end
$$;

-- A place from its parts; null when there is none.
create or replace function penstock.at_place(p_priority smallint, p_due timestamptz, p_task_id bigint) returns penstock.place
language sql immutable parallel safe
return case when p_task_id is not null then row(p_priority, p_due, p_task_id)::penstock.place end;

-- A lease goes on. No row: it is lost. Tasks cancelled meanwhile are named, so that their work can stop; `open` are left.
-- A settle under way in somebody's transaction is not waited for long: that is not a lost lease, ask again.
create or replace function penstock.extend(p_token uuid, p_lease interval default null)
returns table (until timestamptz, revoked bigint[], open int)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set lock_timeout = '5s' as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := penstock.clock();
begin
    if p_token is null then
        perform penstock.refuse('PS400', 'token: it is null');
    elsif penstock.in_seconds(p_lease) not between '100 milliseconds' and '24 hours' then
        perform penstock.refuse('PS400', format('lease: %s is not between 100 ms and 24 h', p_lease));
    end if;
    return query
    with extended as (
        update penstock.lease as l
        set until = v_now + penstock.in_seconds(coalesce(p_lease, (select q.lease from penstock.queue as q where q.id = l.queue_id)))
        where l.token = p_token
        returning l.queue_id, l.until, l.revoked, bit_count(l.open)::int as open
    ), lowered as (
        update penstock.low as b set until = e.until from extended as e where b.queue_id = e.queue_id and b.until > e.until
    )
    select e.until, e.revoked, e.open from extended as e;
end
$$;

-- Many leases go on, for whoever keeps those of others alive. A row for each that is there; without an end: somebody settles
-- it this moment. Nobody is waited for.
create or replace function penstock.extend_many(p_tokens uuid[], p_lease interval default null)
returns table (token uuid, until timestamptz, revoked bigint[])
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := penstock.clock();
begin
    if p_tokens is null or array_ndims(p_tokens) > 1 or array_position(p_tokens, null) is not null then
        perform penstock.refuse('PS400', 'tokens: it is null, nested, or has a null in it');
    elsif penstock.in_seconds(p_lease) not between '100 milliseconds' and '24 hours' then
        perform penstock.refuse('PS400', format('lease: %s is not between 100 ms and 24 h', p_lease));
    end if;
    return query
    with free as materialized (
        select l.token from penstock.lease as l where l.token = any(p_tokens) for update skip locked
    ), extended as (
        update penstock.lease as l
        set until = v_now + penstock.in_seconds(coalesce(p_lease, (select q.lease from penstock.queue as q where q.id = l.queue_id)))
        from free as f
        where l.token = f.token
        returning l.token, l.queue_id, l.until, l.revoked
    ), lowered as (
        update penstock.low as b set until = e.until
        from (select x.queue_id, min(x.until) as until from extended as x group by x.queue_id) as e
        where b.queue_id = e.queue_id and b.until > e.until
    )
    select l.token, e.until, coalesce(e.revoked, '{}')
    from penstock.lease as l left join extended as e on e.token = l.token
    where l.token = any(p_tokens);
end
$$;

-- A worker lives: which queues it serves, how many tasks it may run at once, and how many it runs now. Pushes wake it when
-- it is idle; the channel of each queue is answered, to listen on, and whether a task waits there that must be alone: then
-- somebody has to let go of everything else for a moment. After five minutes of silence upkeep forgets the worker. One that a
-- scaler started is told to go when a scaler wants that, or when for ten minutes none has held any of its queues.
create or replace function penstock.beat(
    p_worker text, p_queues text[], p_slots int default 1, p_busy int default 0, p_host text default '', p_pid int default null,
    p_requested_at timestamptz default null, p_started_by text default null, p_leaving boolean default false
) returns table (queue text, channel text, alone boolean, dismissed boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    v_now       constant timestamptz := penstock.clock();
    v_dismissed boolean;
begin
    if p_worker is null or octet_length(p_worker) not between 1 and 200 then
        perform penstock.refuse('PS400', 'worker: it is null, or not 1 to 200 bytes long');
    elsif p_queues is null or array_ndims(p_queues) > 1 or array_position(p_queues, null) is not null then
        perform penstock.refuse('PS400', 'queues: it is null, nested, or has a null in it');
    elsif p_slots is null or p_slots not between 1 and 100000 then
        perform penstock.refuse('PS400', format('slots: %s is not between 1 and 100000', coalesce(p_slots::text, 'null')));
    elsif p_busy is null or p_busy not between 0 and p_slots then
        perform penstock.refuse('PS400', format('busy: %s is not between 0 and %s slots', coalesce(p_busy::text, 'null'), p_slots));
    elsif p_host is null or octet_length(p_host) > 200 then
        perform penstock.refuse('PS400', 'host: it is null or longer than 200 bytes');
    elsif octet_length(p_started_by) > 200 then
        perform penstock.refuse('PS400', 'started_by: it is longer than 200 bytes');
    elsif p_leaving is null then
        perform penstock.refuse('PS400', 'leaving: it is null');
    end if;
    perform penstock.the_queue(q.name) from unnest(p_queues) as q(name);
    insert into penstock.worker as w (name, host, pid, queues, slots, busy, requested_at, started_at, first_claim_at, beat,
                                      started_by, leaving)
    values (p_worker, p_host, p_pid, p_queues, p_slots, p_busy, coalesce(p_requested_at, v_now), v_now,
            case when p_busy > 0 then v_now end, v_now, p_started_by, p_leaving)
    on conflict (name) do update
    set host = excluded.host, pid = excluded.pid, queues = excluded.queues, slots = excluded.slots, busy = excluded.busy,
        first_claim_at = coalesce(w.first_claim_at, excluded.first_claim_at), beat = excluded.beat,
        started_by = excluded.started_by, leaving = excluded.leaving
    returning w.dismissed or (p_started_by is not null and v_now - w.started_at > interval '10 minutes' and not exists (
        select from penstock.scaling as s where s.queue = any(p_queues) and s.decided_at > v_now - interval '10 minutes'))
    into v_dismissed;
    return query
    select q.name, 'penstock_' || q.id,
           exists (select from penstock.agenda as a where a.queue_id = q.id and a.pending and a.company = 1), v_dismissed
    from penstock.queue as q where q.name = any(p_queues) order by q.name;
end
$$;

-- A worker goes. What it still holds comes back when its leases end.
create or replace function penstock.leave(p_worker text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    delete from penstock.worker as w where w.name = p_worker
$$;

-- What is due stops being planned. Bounded; what somebody else holds is left to them.
create or replace function penstock.promote(p_queue_id int, p_limit int default 10000) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_now   constant timestamptz := penstock.clock();
    v_count int;
begin
    update penstock.agenda as a
    set pending = true
    where a.ctid = any(array(
        select d.ctid
        from penstock.agenda as d
        where d.queue_id = p_queue_id and not d.pending and d.due <= v_now
        order by d.due
        limit p_limit
        for update skip locked));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
