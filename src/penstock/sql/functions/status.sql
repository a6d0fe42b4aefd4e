-- How things stand, exactly, in one snapshot; and whether the books are true. STABLE functions: a volatile one would
-- take a new snapshot for each inner statement.

create or replace function penstock.status(p_queue text default null)
returns table (
    queue text, paused boolean, sla interval, planned bigint, pending bigint, active bigint, done bigint, dead bigint,
    cancelled bigint, oldest_pending_age interval, totals jsonb, at timestamptz
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_now    constant timestamptz := penstock.clock();
    v_system constant bigint := penstock.system();
begin
    if p_queue is not null then
        perform penstock.the_queue(p_queue);
    end if;
    return query
    with asked as materialized (
        select q.id, q.name, q.paused, q.sla from penstock.queue as q where p_queue is null or q.name = p_queue
    ), noted as (
        select c.queue_id, c.metric, c.value
        from asked as q join penstock.counter as c on c.queue_id = q.id
        union all
        select l.queue_id, l.metric, l.delta
        from asked as q
        join penstock.low as b on b.queue_id = q.id
        join penstock.counter_log as l
          on l.queue_id = q.id and l.xid >= case when b.system = v_system then b.xid else 0 end
    ), summed as (
        select n.queue_id, n.metric, sum(n.value)::bigint as value from noted as n group by n.queue_id, n.metric
    ), booked as (
        select s.queue_id, jsonb_object_agg(s.metric, s.value) as value from summed as s group by s.queue_id
    )
    select
        q.name, q.paused, q.sla,
        coalesce((b.value->>'planned')::bigint, 0), coalesce((b.value->>'pending')::bigint, 0),
        coalesce((b.value->>'active')::bigint, 0), coalesce((b.value->>'done')::bigint, 0),
        coalesce((b.value->>'dead')::bigint, 0), coalesce((b.value->>'cancelled')::bigint, 0),
        v_now - least(o.due, p.due),
        (select jsonb_object_agg(t.word, coalesce((b.value->>(t.word || '_total'))::bigint, 0))
         from unnest(array['pushed', 'removed', 'done', 'again', 'failed', 'dead', 'released', 'expired', 'revoked',
                           'cancelled', 'redriven', 'orphaned']) as t(word)),
        v_now
    from asked as q
    left join booked as b on b.queue_id = q.id
    -- The oldest of each priority is the first of the pick index: ten probes, however long the queue.
    left join lateral (
        select min(f.due) as due
        from generate_series(0, 9) as g(priority)
        cross join lateral (
            select a.due from penstock.agenda as a
            where a.queue_id = q.id and a.pending and a.priority = g.priority
            order by a.due, a.task_id limit 1
        ) as f
    ) as o on true
    -- What is overdue waits, even if nobody has promoted it yet.
    left join lateral (
        select a.due from penstock.agenda as a
        where a.queue_id = q.id and not a.pending and a.due <= v_now order by a.due limit 1
    ) as p on true
    order by q.name;
end
$$;

-- What is off, one row each; none: all is well. area: drift (a counter differs from a recount), orphans (a task in no
-- place, or in two), history (a total differs from history), balance (pushed is not what is there and what was removed).
create or replace function penstock.verify(p_queue text default null)
returns table (area text, queue text, what text, expected bigint, found bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    -- A day of history that is being dropped is in neither place for a snapshot taken meanwhile: wait, then look.
    lock table penstock.history in access share mode;
    return query select r.area, r.queue, r.what, r.expected, r.found from penstock.recount(p_queue) as r;
end
$$;

create or replace function penstock.recount(p_queue text)
returns table (area text, queue text, what text, expected bigint, found bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
    with stated as materialized (
        select q.id, s.* from penstock.status(p_queue) as s join penstock.queue as q on q.name = s.queue
    ), counted as materialized (
        select q.id as queue_id, m.metric, m.value
        from stated as q
        cross join lateral (
            select 'planned' as metric, count(*) filter (where not a.pending) as value from penstock.agenda as a where a.queue_id = q.id
            union all
            select 'pending', count(*) filter (where a.pending) from penstock.agenda as a where a.queue_id = q.id
            union all
            select 'active', coalesce(sum(bit_count(l.open)), 0)::bigint from penstock.lease as l where l.queue_id = q.id
            union all
            select e.ended, count(t.id)
            from unnest(array['done', 'dead', 'cancelled']) as e(ended)
            left join penstock.task as t on t.queue_id = q.id and t.ended = e.ended
            group by e.ended
        ) as m
    ), opened as materialized (
        select l.queue_id, h.id
        from penstock.lease as l, unnest(l.ids) with ordinality as h(id, n)
        where get_bit(l.open, h.n::int - 1) = 1 and l.queue_id in (select s.id from stated as s)
    ), placed as materialized (
        select p.id, min(p.queue_id) as queue_id, count(*) as places
        from (
            select a.task_id as id, a.queue_id from penstock.agenda as a where a.queue_id in (select s.id from stated as s)
            union all
            select o.id, o.queue_id from opened as o
        ) as p
        group by p.id
    ), stray as (
        select coalesce(t.queue_id, p.queue_id) as queue_id, case
            when t.id is null then 'waiting or leased without a document'
            when t.ended is not null then 'ended, but still waiting or leased'
            when p.id is null then 'live, but neither waiting nor leased'
            else 'in two places' end as what
        from (select t.* from penstock.task as t where t.queue_id in (select s.id from stated as s)) as t
        full join placed as p on p.id = t.id
        where t.id is null or (t.ended is null) <> (p.id is not null) or p.places > 1
    ), finished as (
        select h.queue_id, h.outcome, sum(h.rows)::bigint as rows
        from (
            select h.queue_id, h.outcome, count(*) as rows from penstock.history as h
            where h.queue_id in (select s.id from stated as s) group by h.queue_id, h.outcome
            union all
            select d.queue_id, d.outcome, d.rows from penstock.history_dropped as d where d.queue_id in (select s.id from stated as s)
        ) as h
        group by h.queue_id, h.outcome
    )
    select 'drift', s.queue, c.metric, c.value,
           case c.metric when 'planned' then s.planned when 'pending' then s.pending when 'active' then s.active
                         when 'done' then s.done when 'dead' then s.dead else s.cancelled end as booked
    from stated as s join counted as c on c.queue_id = s.id
    where c.value <> case c.metric when 'planned' then s.planned when 'pending' then s.pending when 'active' then s.active
                                   when 'done' then s.done when 'dead' then s.dead else s.cancelled end
    union all
    select 'orphans', s.queue, y.what, 0, count(*)
    from stated as s join stray as y on y.queue_id = s.id group by s.queue, y.what
    union all
    -- Left behind by nobody we know; nothing else would ever look at them.
    select 'orphans', '', 'of no queue', 0, count(*)
    from penstock.task as t
    where p_queue is null and not exists (select from penstock.queue as q where q.id = t.queue_id)
    having count(*) > 0
    union all
    select 'history', s.queue, o.outcome, coalesce(f.rows, 0), (s.totals->>o.outcome)::bigint
    from stated as s
    cross join unnest(array['done', 'again', 'failed', 'dead', 'released', 'expired', 'revoked']) as o(outcome)
    left join finished as f on f.queue_id = s.id and f.outcome = o.outcome
    where coalesce(f.rows, 0) <> (s.totals->>o.outcome)::bigint
    union all
    select 'balance', s.queue, 'pushed', (s.totals->>'pushed')::bigint,
           s.planned + s.pending + s.active + s.done + s.dead + s.cancelled + (s.totals->>'removed')::bigint
    from stated as s
    where (s.totals->>'pushed')::bigint
       <> s.planned + s.pending + s.active + s.done + s.dead + s.cancelled + (s.totals->>'removed')::bigint;
end
$$;

-- Puts right what verify finds, and says what it did. Everything else stands still meanwhile (seconds on a large queue).
create or replace function penstock.repair(p_queue text default null)
returns table (queue text, what text, rows bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    v_now   constant timestamptz := penstock.clock();
    v_lease record;
begin
    perform penstock.stand_still(case when p_queue is not null then (penstock.the_queue(p_queue)).id end);
    lock table penstock.history in access share mode;

    if p_queue is null then
        return query
        with unknown as (
            delete from penstock.task as t
            where not exists (select from penstock.queue as q where q.id = t.queue_id) returning t.id
        ), waiting as (
            delete from penstock.agenda as a using unknown as u where a.task_id = u.id
        )
        select '', 'of no queue, removed', count(*) from unknown having count(*) > 0;
    end if;

    -- Of a task leased twice the later lease counts; what has no live document is in no lease.
    for v_lease in
        select q.name, l.token, l.open, array_agg(o.n) as stray
        from (
            select f.token, f.queue_id, h.id, h.n::int - 1 as n,
                   row_number() over (partition by h.id order by f.claimed_at desc, f.token desc) as nth
            from penstock.lease as f cross join lateral unnest(f.ids) with ordinality as h(id, n)
            where get_bit(f.open, h.n::int - 1) = 1
        ) as o
        join penstock.queue as q on q.id = o.queue_id
        join penstock.lease as l on l.token = o.token
        left join penstock.task as t on t.id = o.id and t.ended is null
        where (p_queue is null or q.name = p_queue) and (t.id is null or o.nth > 1)
        group by q.name, l.token, l.open
    loop
        for n in 1 .. cardinality(v_lease.stray) loop
            v_lease.open := set_bit(v_lease.open, v_lease.stray[n], 0);
        end loop;
        update penstock.lease as l set open = v_lease.open where l.token = v_lease.token;
        return query select v_lease.name, 'taken out of a lease', cardinality(v_lease.stray)::bigint;
    end loop;

    return query
    with opened as materialized (
        select h.id from penstock.lease as l, unnest(l.ids) with ordinality as h(id, n) where get_bit(l.open, h.n::int - 1) = 1
    ), stray as (
        delete from penstock.agenda as a
        using penstock.queue as q
        where q.id = a.queue_id and (p_queue is null or q.name = p_queue)
          and (not exists (select from penstock.task as t where t.id = a.task_id and t.ended is null)
               or a.task_id in (select o.id from opened as o))
        returning q.name
    )
    select s.name, 'taken out of the agenda', count(*) from stray as s group by s.name;

    return query
    with opened as materialized (
        select h.id from penstock.lease as l, unnest(l.ids) with ordinality as h(id, n) where get_bit(l.open, h.n::int - 1) = 1
    ), lost as (
        insert into penstock.agenda (task_id, due, queue_id, priority, pending, named)
        select t.id, v_now, t.queue_id, t.priority, true, t.subject is not null
        from penstock.task as t join penstock.queue as q on q.id = t.queue_id
        where (p_queue is null or q.name = p_queue) and t.ended is null
          and not exists (select from penstock.agenda as a where a.task_id = t.id)
          and t.id not in (select o.id from opened as o)
        returning queue_id
    )
    select q.name, 'put back into the agenda', count(*) from lost as l join penstock.queue as q on q.id = l.queue_id group by q.name;

    -- Now the books: gauges and outcomes by what is there, then pushed by what is there and was removed.
    return query
    with off as (
        select v.queue, v.area, v.what, v.expected - v.found as delta from penstock.verify(p_queue) as v where v.area in ('drift', 'history')
    ), noted as (
        insert into penstock.counter_log (queue_id, metric, delta)
        select q.id, case o.area when 'drift' then o.what else o.what || '_total' end, o.delta
        from off as o join penstock.queue as q on q.name = o.queue
    )
    select o.queue, 'counter ' || o.what || ' corrected', abs(o.delta) from off as o;
    return query
    with off as (
        select v.queue, v.found - v.expected as delta from penstock.verify(p_queue) as v where v.area = 'balance'
    ), noted as (
        insert into penstock.counter_log (queue_id, metric, delta)
        select q.id, 'pushed_total', o.delta from off as o join penstock.queue as q on q.name = o.queue
    )
    select o.queue, 'counter pushed corrected', abs(o.delta) from off as o;
    perform penstock.note_audit('repair', p_queue, '{}');
end
$$;
