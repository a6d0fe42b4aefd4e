-- Claim: moves waiting tasks from the agenda into a lease of one worker.
--
-- Functions in this directory pin planner settings where a plan that is made on an empty queue would be ruinous later
-- (decision 5).

-- Claims tasks in two separate statements. The first takes agenda rows. The second reads the documents in a NEW
-- snapshot: in a single statement, an update that commits between snapshot and lock, and is reported as done, would run
-- with the old payload.
drop function if exists penstock.claim(text, int, interval, text, penstock.place, boolean, boolean);
create or replace function penstock.claim(
    p_queue     text,
    p_limit     int default 1,
    p_lease     interval default null,
    p_worker    text default '',
    p_hint      penstock.place default null,
    p_quarantined boolean default true,
    p_durable   boolean default true
) returns table (
    token uuid, until timestamptz, id bigint, kind text, subject text, payload jsonb, priority smallint,
    due timestamptz, attempt int, iterations int, created timestamptz, since timestamptz,
    alone boolean, key text, meta jsonb
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off as $$
#variable_conflict use_column
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_token constant uuid := gen_random_uuid();
    v_lease constant interval := penstock._in_seconds(coalesce(p_lease, v_queue.lease));
    v_hint  penstock.place := p_hint;
    v_now   timestamptz;
    v_picks penstock.picks;
    v_alone boolean;
    v_count int;
begin
    perform penstock._check_claim(p_limit, v_lease, p_worker, p_quarantined, p_durable);
    if v_queue.paused then
        return;
    end if;
    if not p_durable then
        -- A claim that is lost in a crash is only repeated. The setting is for this transaction alone: behind a pooler,
        -- a session SET would leak into a settle.
        perform set_config('synchronous_commit', 'off', true);
    end if;
    if v_queue.priority_step is not null and v_hint.task_id > 0 then
        v_hint := null;    -- a place is of another order
    end if;
    -- There is a second round only if none of the tasks that were found may start.
    for v_round in 1 .. 10 loop
        loop
            if v_hint is null then
                perform penstock._tend(v_queue.id, p_limit);
                if p_quarantined then
                    v_picks := penstock._pick_quarantined(v_queue.id);
                    exit when v_picks.ids is not null;
                end if;
            end if;
            if v_queue.priority_step is null then
                v_picks := penstock._pick(v_queue.id, v_hint, p_limit, p_quarantined);
            else
                v_picks := penstock._pick_aged(v_queue, p_limit, p_quarantined);
            end if;
            -- Rows can appear before the hint (late commits, releases, higher priority). If the claim found fewer tasks
            -- than it may take, it searches again from the start. A hint with task 0 precedes all rows: a worker that
            -- was just told of a push gives this hint, and takes what there is.
            exit when v_hint is null or cardinality(v_picks.ids) = p_limit
                      or v_hint.task_id = 0 and v_picks.ids is not null;
            v_hint := null;
        end loop;
        if v_picks.ids is null then
            return;
        end if;
        -- The lease begins now, after the row locks gave this transaction its id. _expire relies on this order (see
        -- _move_bounds).
        v_now := penstock.clock();
        if v_picks.tried then
            v_picks := penstock._within_quarantine(v_picks);
        end if;
        -- The lease is alone if its task must be, or if the caller asked for one task only. A caller that asked for
        -- more may still claim others to run beside it.
        v_alone := p_quarantined and cardinality(v_picks.ids) = 1 and (v_picks.quarantines[1] < 0 or p_limit = 1);

        return query
        select v_token, v_now + v_lease, t.id, t.kind, t.subject, t.payload, t.priority, h.due, h.attempts + 1,
               t.iterations, t.created, t.since, v_alone, t.key, t.meta
        from unnest(v_picks.ids, v_picks.dues, v_picks.attempts) with ordinality as h(id, due, attempts, n)
        join (
            select * from penstock.task as d
            where d.id = any(v_picks.ids) and d.ended is null and (d.expires is null or d.expires > v_now)
        ) as t on t.id = h.id
        order by h.n;
        get diagnostics v_count = row_count;

        if v_count < cardinality(v_picks.ids) then
            v_picks := penstock._without_unstartable(v_queue.id, v_picks, v_now);
        end if;
        delete from penstock.agenda as a where a.ctid = any(v_picks.places);
        if v_count > 0 then
            perform penstock._lease_out(v_token, v_queue.id, v_now, v_now + v_lease, p_worker, v_alone, v_picks);
            return;
        end if;
    end loop;
end
$$;

-- Does what the queue needs before a claim reads it from the start: folds counters and moves bounds, puts the tasks of
-- expired leases back, and promotes planned tasks that are due. One query tells whether any of it is needed; usually
-- nothing is. Counters are folded at most once a second, and once a minute if nothing was counted meanwhile.
create or replace function penstock._tend(p_queue_id int, p_limit int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off as $$
declare
    v_now  constant timestamptz := penstock.clock();
    v_look record;
begin
    select l.looked_at not between v_now - interval '1 second' and v_now
           and (l.looked_at not between v_now - interval '1 minute' and v_now
                or exists (select from penstock.counter_log as c
                           where c.queue_id = l.queue_id and c.xid >= l.xid)) as old,
           exists (select from penstock.lease as x
                   where x.queue_id = l.queue_id and x.until >= l.until and x.until < v_now) as expired,
           exists (select from penstock.agenda as a
                   where a.queue_id = l.queue_id and not a.pending and a.due <= v_now
                     and a.due >= least(l.first_planned, e.due)) as planned
    into v_look
    from penstock._watermark(p_queue_id) as l, lateral (
        select min(y.due) as due from penstock.early as y
        where y.queue_id = l.queue_id and y.xid >= coalesce(l.running[1], l.xid)) as e;
    if v_look.old then
        perform penstock._squeeze(p_queue_id);    -- it may end leases of another cluster and move the bounds
    end if;
    if v_look.old or v_look.expired then
        perform penstock._expire(p_queue_id, 1000);
    end if;
    if v_look.old or v_look.planned then
        perform penstock._promote(p_queue_id, greatest(2 * p_limit, 1000));
    end if;
end
$$;

-- Makes planned tasks pending when they are due. It handles at most p_limit tasks, and skips rows that another session
-- has locked. One session does this at a time, because SKIP LOCKED waits where two sessions update the same rows
-- (decision 38). The others leave it to that session, unless a task is two seconds late: a claim in a transaction that
-- stays open would otherwise hold up all planned tasks of its queue.
create or replace function penstock._promote(p_queue_id int, p_limit int default 10000) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_until timestamptz := penstock.clock();
    v_from  timestamptz;
    v_count int;
begin
    perform penstock._end_unstarted(p_queue_id);    -- first: a task that has expired is not promoted
    perform from penstock.watermark as l where l.queue_id = p_queue_id for update skip locked;
    if not found then
        v_until := v_until - interval '2 seconds';
    end if;
    select least(l.first_planned, (
        select min(e.due) from penstock.early as e
        where e.queue_id = p_queue_id and e.xid >= coalesce(l.running[1], l.xid)))
    into v_from from penstock._watermark(p_queue_id) as l;
    update penstock.agenda as a
    set pending = true
    where a.ctid = any(array(
        select d.ctid
        from penstock.agenda as d
        where d.queue_id = p_queue_id and not d.pending and d.due <= v_until and d.due >= v_from
        order by d.due
        limit p_limit
        for update skip locked));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

-- Writes the lease of these picks, and lowers the bound from which expiry looks if the lease ends before it.
create or replace function penstock._lease_out(
    p_token uuid, p_queue_id int, p_now timestamptz, p_until timestamptz, p_worker text, p_alone boolean,
    p_picks penstock.picks
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
begin
    insert into penstock.lease (token, claimed_at, until, queue_id, alone, named, worker, open, ids, dues, attempts,
                                quarantines, key_ids)
    values (p_token, p_now, p_until, p_queue_id, p_alone, p_picks.named, p_worker,
            repeat('1', cardinality(p_picks.ids))::varbit, p_picks.ids, p_picks.dues,
            case when p_picks.tried then p_picks.attempts end, case when p_picks.tried then p_picks.quarantines end,
            case when p_picks.keyed then p_picks.key_ids end);
    if exists (select from penstock._watermark(p_queue_id) as l where l.until > p_until) then
        update penstock.watermark as l set until = p_until where l.queue_id = p_queue_id and l.until > p_until;
    end if;
end
$$;

-- Builds a place in the agenda from its parts. Returns null when there is none.
create or replace function penstock.at_place(p_priority smallint, p_due timestamptz, p_task_id bigint)
returns penstock.place
language sql immutable parallel safe
return case when p_task_id is not null then row(p_priority, p_due, p_task_id)::penstock.place end;

-- Extends a lease. Returns no row if the lease is lost. The row names the tasks that were cancelled meanwhile, so that
-- their work can stop; `open` counts the tasks that are left. It does not wait long for a settle that is under way in
-- another transaction. In that case the lease is not lost: call extend again.
create or replace function penstock.extend(p_token uuid, p_lease interval default null)
returns table (until timestamptz, revoked bigint[], open int)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set lock_timeout = '5s' as $$
#variable_conflict use_column
declare
    v_now timestamptz;
begin
    if p_token is null then
        perform penstock.refuse('PS400', 'token: it is null');
    elsif not penstock._lease_fits(p_lease) then
        perform penstock._refuse_lease(p_lease);
    end if;
    -- The new end is computed after the lock gave this transaction its id. expire relies on this order.
    perform from penstock.lease as l where l.token = p_token for update;
    v_now := penstock.clock();
    return query
    with extended as (
        update penstock.lease as l
        set until = v_now + penstock._in_seconds(
            coalesce(p_lease, (select q.lease from penstock.queue as q where q.id = l.queue_id)))
        where l.token = p_token
        returning l.queue_id, l.until, l.revoked, bit_count(l.open)::int as open
    ), lowered as (
        update penstock.watermark as b set until = e.until
        from extended as e where b.queue_id = e.queue_id and b.until > e.until
    )
    select e.until, e.revoked, e.open from extended as e;
end
$$;

-- Extends many leases, for a process that keeps the leases of others alive. Returns a row for each lease that exists; a
-- row without an end means that the lease is being settled at this moment. It never waits.
create or replace function penstock.extend_many(p_tokens uuid[], p_lease interval default null)
returns table (token uuid, until timestamptz, revoked bigint[])
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_now  timestamptz;
    v_free uuid[];
begin
    if p_tokens is null or array_ndims(p_tokens) > 1 or array_position(p_tokens, null) is not null then
        perform penstock.refuse('PS400', 'tokens: it is null, nested, or has a null in it');
    elsif not penstock._lease_fits(p_lease) then
        perform penstock._refuse_lease(p_lease);
    end if;
    -- The new ends are computed after the locks gave this transaction its id. expire relies on this order.
    v_free := array(select l.token from penstock.lease as l where l.token = any(p_tokens) for update skip locked);
    v_now := penstock.clock();
    return query
    with extended as (
        update penstock.lease as l
        set until = v_now + penstock._in_seconds(
            coalesce(p_lease, (select q.lease from penstock.queue as q where q.id = l.queue_id)))
        where l.token = any(v_free)
        returning l.token, l.queue_id, l.until, l.revoked
    ), lowered as (
        update penstock.watermark as b set until = e.until
        from (select x.queue_id, min(x.until) as until from extended as x group by x.queue_id) as e
        where b.queue_id = e.queue_id and b.until > e.until
    )
    select l.token, e.until, coalesce(e.revoked, '{}')
    from penstock.lease as l left join extended as e on e.token = l.token
    where l.token = any(p_tokens);
end
$$;

-- Chooses the one worker that empties itself to run a quarantined task of this queue alone. The first
-- worker that asks is chosen, for p_seconds. Returns whether it is this worker. The choice ends early when the task has
-- been claimed, because no worker asks again.
create or replace function penstock.take_quarantine(p_queue text, p_worker text, p_seconds double precision default 30)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_now   constant timestamptz := penstock.clock();
begin
    if p_worker is null or octet_length(p_worker) not between 1 and 200 then
        perform penstock.refuse('PS400', 'worker: it is null, or not 1 to 200 bytes long');
    elsif p_seconds is null or p_seconds not between 1 and 3600 then
        perform penstock.refuse('PS400',
            format('seconds: %s is not between 1 and 3600', coalesce(p_seconds::text, 'null')));
    end if;
    if exists (select from penstock.watermark as l
               where l.queue_id = v_queue.id and l.quarantine = p_worker and l.quarantine_until > v_now) then
        return true;
    end if;
    update penstock.watermark as l
    set quarantine = p_worker, quarantine_until = v_now + make_interval(secs => p_seconds)
    where l.ctid = any(array(
        select f.ctid from penstock.watermark as f
        where f.queue_id = v_queue.id and coalesce(f.quarantine_until, '-infinity') <= v_now
        for update skip locked));
    return found;
end
$$;

create or replace function penstock._check_claim(
    p_limit int, p_lease interval, p_worker text, p_quarantined boolean, p_durable boolean
) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if p_limit is null or p_limit not between 1 and 10000 then
        perform penstock.refuse('PS400',
            format('limit: %s is not between 1 and 10000', coalesce(p_limit::text, 'null')));
    elsif not penstock._lease_fits(p_lease) then
        perform penstock._refuse_lease(p_lease);
    elsif p_worker is null or octet_length(p_worker) > 200 then
        perform penstock.refuse('PS400', 'worker: it is null or longer than 200 bytes');
    elsif p_quarantined is null or p_durable is null then
        perform penstock.refuse('PS400', 'quarantined and durable must not be null');
    elsif current_setting('transaction_isolation') <> 'read committed' then
        perform penstock.refuse('PS400',
            format('claim cannot run in a %s transaction', current_setting('transaction_isolation')),
            'Begin it with: begin isolation level read committed.');
    end if;
end
$$;
