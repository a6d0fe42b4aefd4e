-- Bounds: where in the agenda and among the leases nothing can be any more, so that no query walks over dead rows
-- (decision 35).

-- Returns the watermark of a queue, from the end of the index: the row is replaced once a second, and under a held
-- snapshot its old versions stay at the front. A search for an equal key would read all of them. The planner inlines
-- it.
create or replace function penstock._watermark(p_queue_id int) returns setof penstock.watermark
language sql stable parallel safe rows 1
begin atomic
    select w.* from penstock.watermark as w
    where w.queue_id >= p_queue_id and w.queue_id <= p_queue_id
    order by w.queue_id desc
    limit 1;
end;

create or replace function penstock._without_bounds(p_watermark penstock.watermark) returns penstock.watermark
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
    p_watermark.until := '-infinity';
    p_watermark.first_due := array_fill('-infinity'::timestamptz, array[cardinality(p_watermark.priorities)]);
    p_watermark.first_planned := '-infinity';
    p_watermark.next_bound := null;
    p_watermark.next_xid := null;
    return p_watermark;
end
$$;

-- Returns the ranges of priorities of a watermark: the first priority, the first one after the range, whether it has
-- more than one priority, and the bound. The planner inlines it.
create or replace function penstock._priority_ranges(p_priorities smallint[], p_first_due timestamptz[])
returns table (first smallint, next int, many boolean, due timestamptz)
language sql immutable parallel safe rows 3
begin atomic
    select r.first, coalesce(p_priorities[r.n + 1], 32768), coalesce(p_priorities[r.n + 1], 32768) - r.first > 1, r.due
    from unnest(p_priorities, p_first_due) with ordinality as r(first, due, n);
end;

-- Gives the first priority of each range that has tasks, and more than one priority, a range of its own. A claim looks
-- into every range, so a priority without one is only slower under a held snapshot. Ranges stay, because dead rows do.
create or replace function penstock._split_ranges(p_watermark penstock.watermark) returns penstock.watermark
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
begin
    select array_agg(s.first order by s.first), array_agg(s.due order by s.first)
    into p_watermark.priorities, p_watermark.first_due
    from (
        select r.first, r.due from penstock._priority_ranges(p_watermark.priorities, p_watermark.first_due) as r
        union
        select n.first, timestamptz '-infinity'
        from penstock._priority_ranges(p_watermark.priorities, p_watermark.first_due) as r
        cross join lateral (
            select a.priority from penstock.agenda as a
            where r.many and a.queue_id = p_watermark.queue_id and a.pending
              and a.priority >= r.first and a.priority < r.next
            order by a.priority limit 1
        ) as f
        cross join lateral (values (f.priority), (f.priority + 1)) as n(first)
        where n.first < r.next
    ) as s;
    return p_watermark;
end
$$;

-- Moves the bounds up to the point that the last look found to be over, but not past any row that exists. A transaction
-- that was running at that look may still commit a lease that ends, or a task that is due, before that point. So a
-- bound takes effect only when all of these transactions have ended. A transaction that began later got its id, and
-- then read the clock, after the look. So its lease ends later, and its task is either due later than two seconds
-- before that reading of the clock, or _count_agenda notes it in `early`.
create or replace function penstock._move_bounds(
    p_watermark penstock.watermark, p_snapshot pg_snapshot, p_now timestamptz
) returns penstock.watermark
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
begin
    p_watermark := penstock._split_ranges(p_watermark);
    if p_watermark.next_xid > pg_snapshot_xmin(p_snapshot)::text::bigint then
        return p_watermark;
    end if;
    if p_watermark.next_bound > p_watermark.until then
        p_watermark.until := coalesce(
            (select min(l.until) from penstock.lease as l
             where l.queue_id = p_watermark.queue_id and l.until >= p_watermark.until
               and l.until < p_watermark.next_bound),
            p_watermark.next_bound);
    end if;
    if p_watermark.next_bound > p_watermark.first_planned then
        p_watermark.first_planned := coalesce(
            (select min(a.due) from penstock.agenda as a
             where a.queue_id = p_watermark.queue_id and not a.pending
               and a.due >= p_watermark.first_planned and a.due < p_watermark.next_bound),
            p_watermark.next_bound);
    end if;
    if p_watermark.next_bound is not null then
        p_watermark.first_due := array(
            select case when r.many then '-infinity' when r.due >= p_watermark.next_bound then r.due
                        else coalesce(f.due, p_watermark.next_bound) end
            from penstock._priority_ranges(p_watermark.priorities, p_watermark.first_due) as r
            left join lateral (
                select a.due from penstock.agenda as a
                where not r.many and a.queue_id = p_watermark.queue_id and a.pending and a.priority = r.first
                  and a.due >= r.due and a.due < p_watermark.next_bound
                order by a.due, a.task_id limit 1
            ) as f on true
            order by r.first);
    end if;
    p_watermark.next_bound := p_now - interval '2 seconds';
    p_watermark.next_xid := pg_snapshot_xmax(p_snapshot)::text::bigint;
    return p_watermark;
end
$$;
