-- Which waiting tasks a claim takes.

-- Takes the first task that must run alone. Such tasks come first when a worker can take one alone: the chance is rare
-- while there is much to do.
create or replace function penstock._pick_quarantined(p_queue_id int) returns penstock.picks
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off as $$
declare
    v_picks penstock.picks;
begin
    with chosen as materialized (
        select a.ctid as place, a.task_id, a.due, a.attempts, a.quarantine, a.key_id, a.named
        from penstock.agenda as a
        where a.queue_id = p_queue_id and a.pending and a.quarantine < 0
        order by a.priority, a.due, a.task_id
        limit 1
        for update skip locked
    )
    select array[c.place], array[c.task_id], array[c.due], array[c.attempts], array[c.quarantine], array[c.key_id],
           c.named, true, c.key_id > 0
    into v_picks
    from chosen as c;
    return v_picks;
end
$$;

-- Takes up to p_limit waiting tasks, from the hint on or from the start.
create or replace function penstock._pick(p_queue_id int, p_hint penstock.place, p_limit int, p_quarantined boolean)
returns penstock.picks
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off as $$
declare
    v_picks penstock.picks;
begin
    if p_hint.task_id > 0 then
        with chosen as materialized (
            select a.ctid as place, a.task_id, a.due, a.attempts, a.quarantine, a.key_id, a.named
            from penstock.agenda as a
            where a.queue_id = p_queue_id
              and a.pending
              and (a.priority, a.due, a.task_id) >= (p_hint.priority, p_hint.due, p_hint.task_id)
              and (p_quarantined or a.quarantine >= 0)
            order by a.priority, a.due, a.task_id
            limit p_limit
            for update skip locked
        )
        select array_agg(c.place), array_agg(c.task_id), array_agg(c.due), array_agg(c.attempts),
               array_agg(c.quarantine), array_agg(c.key_id), bool_or(c.named),
               bool_or(c.attempts > 0 or c.quarantine <> 0), max(c.key_id) > 0
        into v_picks
        from chosen as c;
    else
        -- One range of priorities after the other, each from its own bound.
        with chosen as materialized (
            select c.*
            from penstock._watermark(p_queue_id) as l
            cross join lateral (
                select min(y.due) as due from penstock.early as y
                where y.queue_id = l.queue_id and y.xid >= coalesce(l.running[1], l.xid)
            ) as e
            cross join lateral penstock._priority_ranges(l.priorities, l.first_due) as b
            cross join lateral (
                select a.ctid as place, a.task_id, a.due, a.attempts, a.quarantine, a.key_id, a.named
                from penstock.agenda as a
                where a.queue_id = p_queue_id
                  and a.pending
                  and (a.priority, a.due) >= (b.first, least(b.due, e.due))
                  and a.priority < b.next
                  and (p_quarantined or a.quarantine >= 0)
                order by a.priority, a.due, a.task_id
                limit p_limit
                for update skip locked
            ) as c
            limit p_limit
        )
        select array_agg(c.place), array_agg(c.task_id), array_agg(c.due), array_agg(c.attempts),
               array_agg(c.quarantine), array_agg(c.key_id), bool_or(c.named),
               bool_or(c.attempts > 0 or c.quarantine <> 0), max(c.key_id) > 0
        into v_picks
        from chosen as c;
    end if;
    return v_picks;
end
$$;

-- Takes up to p_limit waiting tasks of a queue with a priority step, by due + priority × step. Of each priority it
-- reads the first tasks and merges them. It locks only those that it takes; if other sessions hold some of them, it
-- looks further.
create or replace function penstock._pick_aged(p_queue penstock.queue, p_limit int, p_quarantined boolean)
returns penstock.picks
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = on as $$
declare
    v_most  int := p_limit;    -- tasks to read of each priority
    v_found bigint[];
    v_picks penstock.picks;
begin
    for v_round in 1 .. 4 loop
        v_found := array(
            select c.task_id
            from penstock._watermark(p_queue.id) as l
            cross join lateral (
                select min(y.due) as due from penstock.early as y
                where y.queue_id = l.queue_id and y.xid >= coalesce(l.running[1], l.xid)
            ) as e
            cross join lateral penstock._priority_ranges(l.priorities, l.first_due) as b
            cross join lateral (
                select a.task_id, a.due + a.priority * p_queue.priority_step as rank
                from penstock.agenda as a
                where a.queue_id = p_queue.id
                  and a.pending
                  and (a.priority, a.due) >= (b.first, least(b.due, e.due))
                  and a.priority < b.next
                  and (p_quarantined or a.quarantine >= 0)
                order by a.priority, a.due, a.task_id
                limit v_most
            ) as c
            order by c.rank, c.task_id
            limit v_most);
        with chosen as materialized (
            select a.ctid as place, a.task_id, a.due, a.attempts, a.quarantine, a.key_id, a.named
            from unnest(v_found) with ordinality as f(id, n)
            join penstock.agenda as a on a.task_id = f.id and a.pending
            order by f.n
            limit p_limit
            for update of a skip locked
        )
        select array_agg(c.place), array_agg(c.task_id), array_agg(c.due), array_agg(c.attempts),
               array_agg(c.quarantine), array_agg(c.key_id), bool_or(c.named),
               bool_or(c.attempts > 0 or c.quarantine <> 0), max(c.key_id) > 0
        into v_picks
        from chosen as c;
        exit when cardinality(v_picks.ids) = p_limit or cardinality(v_found) < v_most;
        v_most := 4 * v_most;
    end loop;
    return v_picks;
end
$$;

-- Returns the first of these tasks that may share a lease. After a crash a task may share it with only a few others,
-- and a quarantined task with none.
create or replace function penstock._within_quarantine(p_picks penstock.picks) returns penstock.picks
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
    v_count int;
begin
    select count(*) into v_count
    from (
        select c.n, min(case when c.quarantine < 0 then 1 else nullif(c.quarantine, 0) end) over (order by c.n)
                    as smallest
        from unnest(p_picks.quarantines) with ordinality as c(quarantine, n)
    ) as s
    where s.n <= coalesce(s.smallest, s.n);
    p_picks.places := p_picks.places[:v_count];
    p_picks.ids := p_picks.ids[:v_count];
    p_picks.dues := p_picks.dues[:v_count];
    p_picks.attempts := p_picks.attempts[:v_count];
    p_picks.quarantines := p_picks.quarantines[:v_count];
    p_picks.key_ids := p_picks.key_ids[:v_count];
    return p_picks;
end
$$;

-- Returns those of these tasks that may start. Some of the others have no live document, because it was removed by
-- hand: they leave the agenda and are counted, and verify reports them. The others have expired, and end.
create or replace function penstock._without_unstartable(p_queue_id int, p_picks penstock.picks, p_now timestamptz)
returns penstock.picks
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off as $$
declare
    v_all     constant int := cardinality(p_picks.ids);
    v_live    constant bigint[] := array(
        select t.id from penstock.task as t where t.id = any(p_picks.ids) and t.ended is null);
    v_orphans constant int := v_all - cardinality(v_live);
begin
    if v_orphans > 0 then
        delete from penstock.agenda as a
        where a.task_id = any(array(select unnest(p_picks.ids) except select unnest(v_live)));
        insert into penstock.counter_log (queue_id, metric, delta) values (p_queue_id, 'orphaned_total', v_orphans);
    end if;
    select array_agg(h.place), array_agg(h.id), array_agg(h.due), array_agg(h.attempts), array_agg(h.quarantine),
           array_agg(h.key_id)
    into p_picks.places, p_picks.ids, p_picks.dues, p_picks.attempts, p_picks.quarantines, p_picks.key_ids
    from unnest(p_picks.places, p_picks.ids, p_picks.dues, p_picks.attempts, p_picks.quarantines, p_picks.key_ids)
         as h(place, id, due, attempts, quarantine, key_id)
    join (
        select d.id from penstock.task as d
        where d.id = any(v_live) and d.ended is null and (d.expires is null or d.expires > p_now)
    ) as t on t.id = h.id;
    if coalesce(cardinality(p_picks.ids), 0) < cardinality(v_live) then
        perform penstock._end_unstarted(p_queue_id);
    end if;
    return p_picks;
end
$$;
