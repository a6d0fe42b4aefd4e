-- Streams: a consumer group reads a queue batch by batch. A batch counts as done when the group asks for what comes
-- after it. A batch is a set of leases; until it is settled the group gets the same batch again, under any driver.
-- Locks are taken on the group first, and then in the usual order.

-- Returns a new epoch for the driver of a group. A driver holds the lock of its epoch for as long as it lives: the lock
-- ends with its process.
create or replace function penstock.next_epoch() returns int
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select nextval('penstock.stream_epoch_seq')::int
$$;

-- Takes a group for a driver, and creates the group if it does not exist. The call is refused while another driver is
-- alive: it has its lock, and its hold has not ended. So a killed driver is replaced at once, and a driver that hangs
-- is replaced when its hold has ended.
create or replace function penstock.hold_stream(
    p_queue text, p_group text, p_epoch int, p_driver text, p_lease interval
) returns table (stream int, identity uuid, batch bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
#variable_conflict use_column
declare
    v_queue  constant penstock.queue := penstock.the_queue(p_queue);
    v_now    timestamptz;
    v_stream penstock.stream;
begin
    if p_group is null or octet_length(p_group) not between 1 and 200 then
        perform penstock.refuse('PS400', 'group: it is null, or not 1 to 200 bytes long');
    elsif p_epoch is null then
        perform penstock.refuse('PS400', 'epoch: it is null', 'Ask penstock.next_epoch for one.');
    end if;
    perform penstock._check_hold(p_lease, p_driver);
    insert into penstock.stream (queue_id, name, epoch, until, driver)
    values (v_queue.id, p_group, p_epoch, '-infinity', p_driver)
    on conflict (queue_id, name) do nothing;

    select * into v_stream from penstock.stream as s where s.queue_id = v_queue.id and s.name = p_group for update;
    v_now := penstock.clock();
    if v_stream.epoch <> p_epoch and v_stream.until > v_now
       and not pg_try_advisory_xact_lock(1346719303, v_stream.epoch) then
        perform penstock.refuse('PS409',
            format('consumerGroup: %L of queue %L is held by driver %s until %s',
                   p_group, p_queue, v_stream.driver, v_stream.until),
            'Stop that driver, wait until its hold has ended, or give this one a consumerGroup of its own.');
    end if;
    update penstock.stream as s
    set epoch = p_epoch, until = v_now + penstock._in_seconds(p_lease), driver = p_driver,
        tokens = case when v_stream.epoch = p_epoch then v_stream.tokens
                      else penstock._renew_tokens(v_stream.tokens, p_driver, p_lease) end
    where s.id = v_stream.id;
    return query select v_stream.id, v_stream.identity, v_stream.batch;
end
$$;

-- Gives new tokens to the leases of the previous driver. Its old tokens become useless, on that driver and on its
-- executors.
create or replace function penstock._renew_tokens(p_tokens uuid[], p_driver text, p_lease interval) returns uuid[]
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    v_tokens uuid[];
begin
    with renewed as (
        update penstock.lease as l set token = gen_random_uuid(), worker = p_driver
        from unnest(p_tokens) with ordinality as o(token, n)
        where l.token = o.token
        returning l.token, o.n
    )
    select coalesce(array_agg(r.token order by r.n), '{}') into v_tokens from renewed as r;
    perform penstock.extend_many(v_tokens, p_lease);
    return v_tokens;
end
$$;

-- Locks and returns the group, if this driver still holds it.
create or replace function penstock._held_stream(p_stream int, p_epoch int) returns penstock.stream
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_stream penstock.stream;
begin
    -- A driver that freezes before its commit would otherwise keep the group locked without limit.
    perform set_config('idle_in_transaction_session_timeout', '10s', true);
    select * into v_stream from penstock.stream as s where s.id = p_stream for update;
    if not found then
        perform penstock.refuse('PS404',
            format('consumerGroup: there is no group %s any more', coalesce(p_stream::text, 'null')),
            'Its queue was dropped. Begin with a new checkpoint.');
    elsif p_epoch is null or v_stream.epoch <> p_epoch then
        perform penstock.refuse('PS409',
            format('consumerGroup: driver %s has taken over %L', v_stream.driver, v_stream.name),
            'This driver was silent for longer than its lease, or was replaced. '
            'Its tasks now belong to the other driver.');
    end if;
    return v_stream;
end
$$;

-- Extends the hold of a living driver on the group, and the leases of its batch.
create or replace function penstock.keep_stream(p_stream int, p_epoch int, p_lease interval) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_stream constant penstock.stream := penstock._held_stream(p_stream, p_epoch);
begin
    perform penstock._check_hold(p_lease);
    perform penstock.extend_many(v_stream.tokens, p_lease);
    update penstock.stream as s set until = penstock.clock() + penstock._in_seconds(p_lease) where s.id = p_stream;
end
$$;

-- Ends the hold of a driver. Its batch still belongs to the group until the leases end.
create or replace function penstock.leave_stream(p_stream int, p_epoch int) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update penstock.stream as s set until = '-infinity' where s.id = p_stream and s.epoch = p_epoch
$$;

-- Returns the batch that comes after batch `p_after`. Everything up to `p_after` is settled as done. A later batch that
-- is still open is returned again; otherwise up to `p_limit` tasks are claimed, spread over `p_slots` leases or more.
-- With `p_before`, tasks are claimed only while a task waits that was due by that moment. The result is one row: the
-- batch (`p_after` if there is nothing), its tasks, and how many of them were due by that moment.
create or replace function penstock.next_batch(
    p_stream int, p_epoch int, p_after bigint, p_limit int, p_slots int, p_lease interval,
    p_before timestamptz default null
) returns table (batch bigint, tasks int, early int)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_stream penstock.stream := penstock._held_stream(p_stream, p_epoch);
    v_queue  penstock.queue;
    v_tasks  int;
    v_early  int := 0;
begin
    if p_after is null or p_after not between 0 and v_stream.batch then
        perform penstock.refuse('PS400', format('after: batch %s is not between 0 and %s, the last of consumerGroup %L',
                                                coalesce(p_after::text, 'null'), v_stream.batch, v_stream.name),
            'After a restore, or a failover to a standby that lagged: begin with a new checkpoint. '
            'What is not settled comes again.');
    elsif p_limit is null or p_limit not between 0 and 10000000 then
        perform penstock.refuse('PS400',
            format('limit: %s is not between 0 and 10000000', coalesce(p_limit::text, 'null')));
    elsif p_slots is null or p_slots not between 1 and 1000 then
        perform penstock.refuse('PS400',
            format('slots: %s is not between 1 and 1000', coalesce(p_slots::text, 'null')));
    end if;
    perform penstock._check_hold(p_lease);

    if v_stream.batch <= p_after then
        perform penstock._settle_batch(v_stream.tokens);
        v_stream.tokens := '{}';
    end if;
    v_tasks := penstock._open_tasks(v_stream.tokens);
    if v_tasks = 0 then
        select * into v_queue from penstock.queue as q where q.id = v_stream.queue_id;
        select c.tokens, c.tasks, c.early into v_stream.tokens, v_tasks, v_early
        from penstock._claim_batch(v_queue, v_stream.driver, p_limit, p_slots, p_lease, p_before) as c;
        v_stream.batch := v_stream.batch + (v_tasks > 0)::int;
    end if;
    update penstock.stream as s
    set batch = v_stream.batch, tokens = v_stream.tokens, until = penstock.clock() + penstock._in_seconds(p_lease)
    where s.id = p_stream;
    return query select case when v_tasks > 0 then v_stream.batch else p_after end, v_tasks, v_early;
end
$$;

-- Returns how many tasks of these leases are neither settled nor cancelled.
create or replace function penstock._open_tasks(p_tokens uuid[]) returns int
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
    select coalesce(sum(bit_count(l.open)), 0)::int from penstock.lease as l where l.token = any(p_tokens)
$$;

-- Settles the open tasks of these leases as done. It locks all leases and then all documents, each in one order, before
-- it settles the first: settling one lease after the other could deadlock with a push of the same subjects.
create or replace function penstock._settle_batch(p_tokens uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_nestloop = off as $$
declare
    v_named bigint[];
    v_lease record;
begin
    perform from penstock.lease as l where l.token = any(p_tokens) order by l.token for update;
    select array_agg(h.id) into v_named
    from penstock.lease as l cross join lateral unnest(l.ids) with ordinality as h(id, n)
    where l.token = any(p_tokens) and l.named and get_bit(l.open, h.n::int - 1) = 1;
    if v_named is not null then
        perform penstock._lock_documents(v_named, p_named_only => true);
    end if;
    for v_lease in
        select l.token, case
            when bit_count(l.open) = cardinality(l.ids) then l.ids
            else array(select h.id from unnest(l.ids) with ordinality as h(id, n)
                       where get_bit(l.open, h.n::int - 1) = 1) end as open
        from penstock.lease as l where l.token = any(p_tokens) order by l.token
    loop
        if v_lease.open = '{}' then
            delete from penstock.lease as l where l.token = v_lease.token;    -- all of it was cancelled
        else
            perform penstock.settle(v_lease.token, v_lease.open);
        end if;
    end loop;
end
$$;

-- Claims leases one after the other, in one transaction. After a crash a task comes in small leases, and finally alone;
-- then that task is the whole batch.
create or replace function penstock._claim_batch(
    p_queue penstock.queue, p_driver text, p_limit int, p_slots int, p_lease interval, p_before timestamptz
) returns table (tokens uuid[], tasks int, early int)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_tokens uuid[] := '{}';
    v_tasks  int := 0;
    v_early  int := 0;
    v_size   int;
    v_most   int;
    v_ask    int;
    v_hint   penstock.place;
    v_claim  record;
begin
    if p_limit > 0 and not p_queue.paused then
        perform penstock._expire(p_queue.id, p_limit);
        perform penstock._promote(p_queue.id, p_limit);
        if p_before is null or penstock._waits_since(p_queue.id, p_before) then
            -- The waiting tasks are spread evenly, one lease per slot; there are more leases where one would be too
            -- large.
            select greatest(1, ceil(least(p_limit, s.pending)::numeric / p_slots)) into v_size
            from penstock.status(p_queue.name) as s;
            v_size := greatest(2, least(10000, ceil(v_size::numeric / ceil(v_size::numeric / 10000))));
        end if;
    end if;
    v_most := greatest(64, 4 * (p_limit / v_size));
    while v_size is not null and v_tasks < p_limit and cardinality(v_tokens) < v_most loop
        v_ask := least(v_size, p_limit - v_tasks);
        select (array_agg(c.token))[1] as token, count(*)::int as tasks,
               count(*) filter (where c.due <= p_before)::int as early, bool_and(c.alone) as alone,
               (array_agg(penstock.at_place(c.priority, c.due, c.id)))[count(*)] as place
        into v_claim
        from penstock.claim(p_queue.name, v_ask, p_lease, p_driver, v_hint, p_quarantined => v_tasks = 0) as c;
        exit when v_claim.tasks = 0;
        v_tokens := v_tokens || v_claim.token;
        v_tasks := v_tasks + v_claim.tasks;
        v_early := v_early + v_claim.early;
        v_hint := v_claim.place;
        exit when v_claim.alone;
    end loop;
    return query select v_tokens, v_tasks, v_early;
end
$$;

-- Returns whether a task still waits that was due by p_before. It looks up the oldest task of each priority in the
-- index.
create or replace function penstock._waits_since(p_queue_id int, p_before timestamptz) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
    select exists (
        select from penstock._watermark(p_queue_id) as w
        cross join lateral penstock._priority_ranges(w.priorities, w.first_due) as r
        cross join lateral (
            (select a.due from penstock.agenda as a
             where not r.many and a.queue_id = p_queue_id and a.pending and a.priority = r.first
             order by a.due, a.task_id limit 1)
            union all
            (select a.due from penstock.agenda as a
             where r.many and a.queue_id = p_queue_id and a.pending and a.priority >= r.first and a.priority < r.next
               and a.due <= p_before
             limit 1)
        ) as f
        where f.due <= p_before)
$$;

-- Returns how many tasks wait at this moment and may run, and the moment.
create or replace function penstock.waiting_now(p_queue text) returns table (at timestamptz, tasks bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_now   constant timestamptz := penstock.clock();
begin
    perform penstock._expire(v_queue.id, 10000000);
    return query
    select greatest(v_now, max(a.due) filter (where a.pending)), count(*)
    from penstock.agenda as a where a.queue_id = v_queue.id and (a.pending or a.due <= v_now);
end
$$;

-- Returns the leases of the batches after `p_after` up to `p_upto`, in their order. It leaves out leases that were
-- settled, or that went back to the queue because they were not kept alive.
create or replace function penstock.batch_leases(p_stream int, p_epoch int, p_after bigint, p_upto bigint)
returns table (token uuid, tasks int)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_stream constant penstock.stream := penstock._held_stream(p_stream, p_epoch);
begin
    if v_stream.batch > p_after and v_stream.batch <= p_upto then
        return query
        select l.token, cardinality(l.ids)
        from unnest(v_stream.tokens) with ordinality as o(token, n) join penstock.lease as l on l.token = o.token
        order by o.n;
    end if;
end
$$;

-- Returns some tasks of a lease, by position and in its order. Each call returns the same rows, except tasks that were
-- settled or cancelled meanwhile. It returns nothing if the lease is lost, and raises an error if the lease was lost
-- while it was being read.
create or replace function penstock.read_lease(p_token uuid, p_first int, p_count int)
returns table (
    id bigint, kind text, subject text, payload text, priority smallint, due timestamptz, attempt int, iterations int,
    created timestamptz, since timestamptz
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off as $$
#variable_conflict use_column
declare
    v_lease penstock.lease;
    v_ids   bigint[];
begin
    if p_token is null or p_first is null or p_first < 0 or p_count is null or p_count not between 1 and 10000 then
        perform penstock.refuse('PS400', 'token, first, count: null, or not from 0, and not between 1 and 10000');
    end if;
    select * into v_lease from penstock.lease as l where l.token = p_token;
    if not found then
        if p_first > 0 then
            perform penstock.refuse('PS409', 'token: the lease was lost while it was read');
        end if;
        return;
    end if;
    v_ids := v_lease.ids[p_first + 1 : p_first + p_count];
    return query
    select t.id, t.kind, t.subject, t.payload::text, t.priority, h.due, coalesce(h.attempts, 0) + 1, t.iterations,
           t.created, coalesce(t.since, t.created)
    from unnest(v_ids, v_lease.dues[p_first + 1 : p_first + p_count], v_lease.attempts[p_first + 1 : p_first + p_count])
         with ordinality as h(id, due, attempts, n)
    join (select * from penstock.task as d where d.id = any(v_ids) and d.ended is null) as t on t.id = h.id
    where get_bit(v_lease.open, p_first + h.n::int - 1) = 1
    order by h.n;
end
$$;

create or replace function penstock._check_hold(p_lease interval, p_driver text default '-') returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if p_lease is null or not penstock._lease_fits(p_lease) then
        perform penstock._refuse_lease(p_lease);
    elsif p_driver is null or octet_length(p_driver) not between 1 and 200 then
        perform penstock.refuse('PS400', 'driver: it is null, or not 1 to 200 bytes long');
    end if;
end
$$;
