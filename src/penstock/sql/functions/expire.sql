-- Expiry: puts the tasks of leases back whose worker did not extend or settle them in time, or is dead.

-- Puts the tasks of expired leases back, so that they can be claimed at once. A claim does this, so no daemon is
-- needed. It skips rows that another session holds, such as a lease that is being settled or a document that is being
-- pushed to, and leaves them for the next round. It stops after the lease with which p_limit tasks are put back.
create or replace function penstock._expire(p_queue_id int, p_limit int default 10000, p_thorough boolean default false)
returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_now    constant timestamptz := penstock.clock();
    v_from   timestamptz;
    v_lease  penstock.lease;
    v_leases penstock.lease[];
    v_count  int := 0;
begin
    select l.until into v_from from penstock._watermark(p_queue_id) as l;
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
        v_leases := v_leases || v_lease;
        v_count := v_count + bit_count(v_lease.open);
        exit when v_count >= p_limit;
    end loop;
    if v_leases is null then
        return 0;
    end if;
    return (select sum(b.tasks) from penstock._put_back(v_leases, v_now) as b);
end
$$;

-- Puts the tasks of expired leases of these queues back. It is for workers that are all busy and claim nothing
-- meanwhile.
create or replace function penstock.expire_leases(p_queues text[]) returns int
language sql security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(sum(penstock._expire(q.id, 1000)), 0)::int from penstock.queue as q where q.name = any(p_queues)
$$;

-- Ends these leases now, because their worker is dead. It skips what another transaction holds. Returns how many
-- attempts failed and how many tasks are dead. A failed attempt belongs to a task that ran alone: it killed the worker,
-- and is tried again.
create or replace function penstock.end_leases(p_tokens uuid[], out failed int, out dead int)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    v_leases penstock.lease[];
begin
    if p_tokens is null or array_ndims(p_tokens) > 1 or array_position(p_tokens, null) is not null then
        perform penstock.refuse('PS400', 'tokens: it is null, nested, or has a null in it');
    end if;
    v_leases := array(
        select l from penstock.lease as l where l.token = any(p_tokens) order by l.until for update skip locked);
    select coalesce(sum(b.tasks - b.dead) filter (where b.alone), 0), coalesce(sum(b.dead), 0) into failed, dead
    from penstock._put_back(v_leases, penstock.clock()) as b;
end
$$;

-- Ends the leases of a dead worker process in these queues: also one that it claimed just before its end, of which
-- nothing outside of PostgreSQL knows. It answers as end_leases does.
create or replace function penstock.end_leases_of(p_worker text, p_queues text[], out failed int, out dead int)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    v_tokens uuid[];
begin
    if coalesce(p_worker, '') = '' then
        perform penstock.refuse('PS400', 'worker: it is null or empty');
    end if;
    v_tokens := array(
        select l.token from penstock.queue as q join penstock.lease as l on l.queue_id = q.id
        where q.name = any(p_queues) and l.worker = p_worker);
    if v_tokens <> '{}' then
        select e.failed, e.dead into failed, dead from penstock.end_leases(v_tokens) as e;
    end if;
    failed := coalesce(failed, 0);
    dead := coalesce(dead, 0);
end
$$;

-- Puts the tasks of these locked leases back, except those that another transaction holds. Returns for each lease
-- whether it was alone, how many tasks left it, and how many of these are dead.
create or replace function penstock._put_back(p_leases penstock.lease[], p_now timestamptz)
returns table (alone boolean, tasks int, dead int)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
    -- An expiry writes a document in two cases: the task was renewed, so it has a subject, or it dies, so it was alone.
    -- The documents of all leases are locked in one statement, and so in one order.
    v_held  constant bigint[] := penstock._held_elsewhere(array(
        select h.id from unnest(p_leases) as l cross join lateral unnest(l.ids) with ordinality as h(id, n)
        where (l.named or l.alone) and get_bit(l.open, h.n::int - 1) = 1));
    v_lease penstock.lease;
    v_open  bigint[];
begin
    perform penstock._make_history((p_now at time zone 'UTC')::date);
    foreach v_lease in array p_leases loop
        v_open := array(
            select h.id from unnest(v_lease.ids) with ordinality as h(id, n)
            where get_bit(v_lease.open, h.n::int - 1) = 1 and h.id <> all(v_held));
        return query
        select v_lease.alone, cardinality(v_open), count(*) filter (where c.result = 'dead')::int
        from penstock._conclude(v_lease, p_now, v_open, array_fill('expired'::text, array[cardinality(v_open)]),
                               null, null, null, null, null) as c;
        perform penstock._close_lease(v_lease, v_open);
    end loop;
end
$$;

-- Locks those of these documents that are free, and returns those that another transaction holds. For the order see
-- hold_documents.
create or replace function penstock._held_elsewhere(p_ids bigint[], p_named_only boolean default false) returns bigint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_free bigint[];
begin
    v_free := array(
        select t.id from penstock.task as t
        where t.id = any(p_ids) and (t.subject is not null or not p_named_only)
        order by t.subject collate "C", t.id
        for update skip locked);
    if cardinality(v_free) = cardinality(p_ids) then
        return '{}';
    end if;
    return array(
        select t.id from penstock.task as t
        where t.id = any(p_ids) and (t.subject is not null or not p_named_only)
        except select unnest(v_free));
end
$$;
