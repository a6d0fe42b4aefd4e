-- Status: exact counts in one snapshot, and whether the counters are right. These functions are STABLE: a volatile
-- function would take a new snapshot for each inner statement.

-- Returns the first pending task of each priority from p_first on and before p_next.
create or replace function penstock._first_of_each(p_queue_id int, p_first smallint, p_next int)
returns table (priority smallint, due timestamptz)
language sql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
    with recursive step as (
        (select a.priority, a.due from penstock.agenda as a
         where a.queue_id = p_queue_id and a.pending and a.priority >= p_first and a.priority < p_next
         order by a.priority, a.due, a.task_id limit 1)
        union all
        select n.priority, n.due
        from step as s
        cross join lateral (
            select a.priority, a.due from penstock.agenda as a
            where a.queue_id = p_queue_id and a.pending and a.priority > s.priority and a.priority < p_next
            order by a.priority, a.due, a.task_id limit 1
        ) as n
    )
    select s.priority, s.due from step as s
$$;

drop function if exists penstock.status(text);
create or replace function penstock.status(p_queue text default null)
returns table (
    queue text, paused boolean, sla interval, waiting bigint, planned bigint, pending bigint, active bigint,
    done bigint, dead bigint, cancelled bigint, oldest_pending_age interval, totals jsonb, at timestamptz
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_now    constant timestamptz := penstock.clock();
    v_system constant bigint := penstock._system();
begin
    if p_queue is not null then
        perform penstock.the_queue(p_queue);
    end if;
    return query
    with asked as materialized (
        select q.id, q.name, q.paused, q.sla from penstock.queue as q where p_queue is null or q.name = p_queue
    ), summed as (
        select q.id as queue_id, n.metric, sum(n.value)::bigint as value
        from asked as q
        cross join lateral penstock._counter_rows(q.id, v_system) as n
        group by q.id, n.metric
    ), booked as (
        select s.queue_id, jsonb_object_agg(s.metric, s.value) as value from summed as s group by s.queue_id
    )
    select
        q.name, q.paused, q.sla,
        coalesce((b.value->>'waiting')::bigint, 0),
        coalesce((b.value->>'planned')::bigint, 0), coalesce((b.value->>'pending')::bigint, 0),
        coalesce((b.value->>'active')::bigint, 0), coalesce((b.value->>'done')::bigint, 0),
        coalesce((b.value->>'dead')::bigint, 0), coalesce((b.value->>'cancelled')::bigint, 0),
        v_now - least(o.due, p.due),
        (select jsonb_object_agg(t.word, coalesce((b.value->>(t.word || '_total'))::bigint, 0))
         from unnest(array['pushed', 'removed', 'done', 'again', 'failed', 'dead', 'released', 'expired', 'revoked',
                           'unstarted', 'cancelled', 'redriven', 'orphaned']) as t(word)),
        v_now
    from asked as q
    left join booked as b on b.queue_id = q.id
    left join lateral penstock._watermark(q.id) as w on true
    left join lateral (
        select min(y.due) as due from penstock.early as y
        where y.queue_id = q.id and y.xid >= coalesce(w.running[1], w.xid)
    ) as e on true
    -- The oldest task of each priority is the first entry of the pick index: this takes a few probes for a queue of any
    -- length. Priorities that have no bound of their own yet are found one after the other.
    left join lateral (
        select min(f.due) as due
        from penstock._priority_ranges(w.priorities, w.first_due) as g
        cross join lateral (
            (select a.due from penstock.agenda as a
             where not g.many and a.queue_id = q.id and a.pending and a.priority = g.first
               and a.due >= least(g.due, e.due)
             order by a.due, a.task_id limit 1)
            union all
            select x.due from penstock._first_of_each(q.id, g.first, g.next) as x where g.many
        ) as f
    ) as o on true
    -- An overdue task waits, even if it has not been promoted yet.
    left join lateral (
        select a.due from penstock.agenda as a
        where a.queue_id = q.id and not a.pending and a.due <= v_now and a.due >= least(w.first_planned, e.due)
        order by a.due limit 1
    ) as p on true
    order by q.name;
end
$$;

-- Returns what is wrong, one row per problem; no row means that all is well. The areas are drift (a counter differs
-- from a recount), orphans (a task is in no place, or in two), history (a total differs from history) and balance (the
-- tasks pushed are not the tasks that exist plus those that were removed).
create or replace function penstock.verify(p_queue text default null)
returns table (area text, queue text, what text, expected bigint, found bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    -- A snapshot that is taken while a day of history is being dropped sees the day in neither place. This lock waits
    -- for the drop before the snapshot is taken.
    lock table penstock.history in access share mode;
    return query select r.area, r.queue, r.what, r.expected, r.found from penstock._recount(p_queue) as r;
end
$$;

-- Returns the tasks of a queue, each with the place it is in: planned and pending tasks by the agenda, active tasks by
-- leases, the others by their documents. It uses indexes of the queue and does not read the documents of other queues.
-- A task in two places appears twice.
create or replace function penstock.places_of(p_queue_id int) returns table (id bigint, place text)
language sql stable security definer rows 10000 set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
    select a.task_id, 'planned' from penstock.agenda as a where a.queue_id = p_queue_id and not a.pending
    union all
    select a.task_id, 'pending' from penstock.agenda as a where a.queue_id = p_queue_id and a.pending
    union all
    select h.id, 'active' from penstock.lease as l cross join lateral unnest(l.ids) with ordinality as h(id, n)
    where l.queue_id = p_queue_id and substring(l.open from h.n::int for 1) = b'1'
    union all
    select t.id, 'waiting' from penstock.task as t
    where t.queue_id = p_queue_id and t.waits_for > 0 and t.ended is null
    union all
    select t.id, t.ended from penstock.task as t
    where t.queue_id = p_queue_id and t.ended in ('done', 'dead', 'cancelled')
$$;

-- Returns how many tasks of a queue wait before its bounds, where no claim looks. There are none, unless the bounds are
-- wrong.
create or replace function penstock._hidden_tasks(p_queue_id int) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
    with watermark as materialized (
        select l.priorities, l.first_due, l.first_planned, (
            select min(y.due) from penstock.early as y
            where y.queue_id = l.queue_id and y.xid >= coalesce(l.running[1], l.xid)) as early
        from penstock.watermark as l where l.queue_id = p_queue_id
    )
    select (select count(*) from watermark as l
            cross join lateral penstock._priority_ranges(l.priorities, l.first_due) as b
            cross join lateral (
                select from penstock.agenda as a
                where a.queue_id = p_queue_id and a.pending
                  and a.priority >= b.first and a.priority < b.next and a.due < least(b.due, l.early)
            ) as p)
         + (select count(*) from watermark as l
            join penstock.agenda as a
              on a.queue_id = p_queue_id and not a.pending and a.due < least(l.first_planned, l.early))
$$;

-- Returns how many rows of a queue have values that no Penstock function writes. Such a row in the agenda or in a lease
-- could be lost.
create or replace function penstock._damaged_rows(p_queue_id int) returns table (what text, rows bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
    select 'waiting with a priority or a count out of range', count(*)
    from (    -- by the two indexes of the queue
        select w.* from penstock.agenda as w where w.queue_id = p_queue_id and w.pending
        union all
        select w.* from penstock.agenda as w where w.queue_id = p_queue_id and not w.pending
    ) as a
    where a.priority not between -100 and 100 or a.attempts < 0 or a.key_id < 0
    having count(*) > 0
    union all
    select 'leased in columns of different lengths', count(*)
    from penstock.lease as l
    where l.queue_id = p_queue_id
      and (cardinality(l.ids), cardinality(l.ids), cardinality(l.ids), cardinality(l.ids), cardinality(l.ids))
       <> (length(l.open), cardinality(l.dues), coalesce(cardinality(l.attempts), cardinality(l.ids)),
           coalesce(cardinality(l.quarantines), cardinality(l.ids)),
           coalesce(cardinality(l.key_ids), cardinality(l.ids)))
    having count(*) > 0
$$;

-- Recounts a queue. Only a scan of every document can find a live document that is in no place. The function does this
-- scan for all queues; for one queue it does so only if the documents pushed and not removed outnumber those found in
-- places.
create or replace function penstock._recount(p_queue text)
returns table (area text, queue text, what text, expected bigint, found bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
    with stated as materialized (
        select q.id, s.* from penstock.status(p_queue) as s join penstock.queue as q on q.name = s.queue
    ), located as materialized (
        select s.id as queue_id, p.id, p.place from stated as s cross join lateral penstock.places_of(s.id) as p
    ), counted as materialized (
        select s.id as queue_id, m.metric, coalesce(c.value, 0) as value
        from stated as s
        cross join unnest(array['waiting', 'planned', 'pending', 'active', 'done', 'dead', 'cancelled']) as m(metric)
        left join (
            select l.queue_id, l.place, count(*) as value from located as l group by l.queue_id, l.place
        ) as c on c.queue_id = s.id and c.place = m.metric
    ), placed as materialized (
        select l.id, min(l.queue_id) as queue_id, count(*) as places
        from located as l where l.place in ('waiting', 'planned', 'pending', 'active') group by l.id
    ), missing as materialized (
        select p_queue is null or exists (
            select from stated as s
            where (s.totals->>'pushed')::bigint - (s.totals->>'removed')::bigint
               <> (select sum(c.value) from counted as c where c.queue_id = s.id)) as some
    ), documents as (
        select t.id, t.queue_id, t.ended from penstock.task as t
        where (select m.some from missing as m) and t.queue_id in (select s.id from stated as s)
        union all
        select t.id, t.queue_id, t.ended from penstock.task as t
        where not (select m.some from missing as m) and t.id = any(array(select p.id from placed as p))
          and t.queue_id in (select s.id from stated as s)
    ), stray as (
        select coalesce(t.queue_id, p.queue_id) as queue_id, case
            when t.id is null then 'waiting or leased without a document'
            when t.ended is not null then 'ended, but still waiting or leased'
            when p.id is null then 'live, but neither waiting nor leased'
            else 'in two places' end as what
        from documents as t
        full join placed as p on p.id = t.id
        where t.id is null or (t.ended is null) <> (p.id is not null) or p.places > 1
    ), finished as (
        select h.queue_id, h.outcome, sum(h.rows)::bigint as rows
        from (
            select h.queue_id, h.outcome, count(*) as rows from penstock.history as h
            where h.queue_id in (select s.id from stated as s) group by h.queue_id, h.outcome
            union all
            select d.queue_id, d.outcome, d.rows from penstock.history_dropped as d
            where d.queue_id in (select s.id from stated as s)
        ) as h
        group by h.queue_id, h.outcome
    )
    select 'drift', s.queue, c.metric, c.value,
           (to_jsonb(s)->>c.metric)::bigint as booked
    from stated as s join counted as c on c.queue_id = s.id
    where c.value <> (to_jsonb(s)->>c.metric)::bigint
    union all
    select 'orphans', s.queue, y.what, 0, count(*)
    from stated as s join stray as y on y.queue_id = s.id group by s.queue, y.what
    union all
    select 'orphans', s.queue, 'waiting before a bound, where no claim looks', 0, h.tasks
    from stated as s cross join lateral (select penstock._hidden_tasks(s.id) as tasks) as h
    where h.tasks > 0
    union all
    select 'orphans', s.queue, d.what, 0, d.rows from stated as s cross join lateral penstock._damaged_rows(s.id) as d
    union all
    -- No known path leaves such tasks behind, and no other query would ever look at them.
    select 'orphans', '', 'of no queue', 0, count(*)
    from penstock.task as t
    where p_queue is null and not exists (select from penstock.queue as q where q.id = t.queue_id)
    having count(*) > 0
    union all
    -- A pass may have noted them while its table was forgotten.
    select 'orphans', '', 'of no adopted table', 0, count(*)
    from (
        select r.adopted_id from penstock.adopted_record as r
        union all
        select f.adopted_id from penstock.adopted_failure as f
    ) as n
    where p_queue is null and not exists (select from penstock.adopted as a where a.id = n.adopted_id)
    having count(*) > 0
    union all
    select 'history', s.queue, o.outcome, coalesce(f.rows, 0), (s.totals->>o.outcome)::bigint
    from stated as s
    cross join unnest(array['done', 'again', 'failed', 'dead', 'released', 'expired', 'revoked',
                            'unstarted']) as o(outcome)
    left join finished as f on f.queue_id = s.id and f.outcome = o.outcome
    where coalesce(f.rows, 0) <> (s.totals->>o.outcome)::bigint
    union all
    select 'balance', s.queue, 'pushed', (s.totals->>'pushed')::bigint,
           s.waiting + s.planned + s.pending + s.active + s.done + s.dead + s.cancelled
           + (s.totals->>'removed')::bigint
    from stated as s
    where (s.totals->>'pushed')::bigint
       <> s.waiting + s.planned + s.pending + s.active + s.done + s.dead + s.cancelled
          + (s.totals->>'removed')::bigint;
end
$$;

-- Corrects what verify finds, and returns what it did. All other writers wait meanwhile (seconds on a large queue).
create or replace function penstock.repair(p_queue text default null)
returns table (queue text, what text, rows bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    v_now   constant timestamptz := penstock.clock();
    v_lease record;
begin
    perform penstock._stand_still(case when p_queue is not null then (penstock.the_queue(p_queue)).id end);
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

        return query
        with records as (
            delete from penstock.adopted_record as r
            where not exists (select from penstock.adopted as a where a.id = r.adopted_id) returning r.adopted_id
        ), failures as (
            delete from penstock.adopted_failure as f
            where not exists (select from penstock.adopted as a where a.id = f.adopted_id) returning f.adopted_id
        )
        select '', 'of no adopted table, removed', count(*)
        from (select r.adopted_id from records as r union all select f.adopted_id from failures as f) as n
        having count(*) > 0;
    end if;

    return query
    with behind as (
        select v.queue, v.found from penstock._recount(p_queue) as v
        where v.what = 'waiting before a bound, where no claim looks'
    ), reset as (
        update penstock.watermark as l
        set (priorities, first_due, first_planned, next_bound, next_xid) = (
            select b.priorities, b.first_due, b.first_planned, b.next_bound, b.next_xid
            from penstock._without_bounds(l) as b)
        from behind as b join penstock.queue as q on q.name = b.queue
        where l.queue_id = q.id
    )
    select b.queue, 'found before a bound', b.found from behind as b;

    -- If a task is leased twice, the later lease counts. A task without a live document is removed from its lease.
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
        select h.id from penstock.lease as l, unnest(l.ids) with ordinality as h(id, n)
        where get_bit(l.open, h.n::int - 1) = 1
    ), stray as (
        delete from penstock.agenda as a
        using penstock.queue as q
        where q.id = a.queue_id and (p_queue is null or q.name = p_queue)
          and (not exists (select from penstock.task as t
                           where t.id = a.task_id and t.ended is null and coalesce(t.waits_for, 0) = 0)
               or a.task_id in (select o.id from opened as o))
        returning q.name
    )
    select s.name, 'taken out of the agenda', count(*) from stray as s group by s.name;

    return query
    with opened as materialized (
        select h.id from penstock.lease as l, unnest(l.ids) with ordinality as h(id, n)
        where get_bit(l.open, h.n::int - 1) = 1
    ), lost as (
        insert into penstock.agenda (task_id, due, queue_id, key_id, priority, pending, named)
        select t.id, v_now, t.queue_id, penstock._key_id(t.queue_id, t.key), t.priority, true, t.subject is not null
        from penstock.task as t join penstock.queue as q on q.id = t.queue_id
        where (p_queue is null or q.name = p_queue) and t.ended is null and coalesce(t.waits_for, 0) = 0
          and not exists (select from penstock.agenda as a where a.task_id = t.id)
          and t.id not in (select o.id from opened as o)
        returning queue_id
    )
    select q.name, 'put back into the agenda', count(*)
    from lost as l join penstock.queue as q on q.id = l.queue_id group by q.name;

    -- The counters come last: gauges and outcomes follow what exists, and then pushed follows what exists and what was
    -- removed.
    return query
    with off as (
        select v.queue, v.area, v.what, v.expected - v.found as delta
        from penstock.verify(p_queue) as v where v.area in ('drift', 'history')
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
    perform penstock._note_audit('repair', p_queue, '{}');
end
$$;
