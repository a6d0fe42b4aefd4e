-- Profiles: what the pipeline learnt about queues from history, for the scaler, and the parts of it that only the
-- database knows.

-- Writes profiles, and returns how many were written. p_profiles is [{queue, version, covers_from, covers_to, data}];
-- each replaces the previous profile of its queue. A queue that no longer exists is skipped.
create or replace function penstock.set_profiles(p_profiles jsonb) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_bad   text;
    v_count int;
begin
    if p_profiles is null or jsonb_typeof(p_profiles) <> 'array' or jsonb_array_length(p_profiles) > 10000 then
        perform penstock.refuse('PS400', 'profiles: it is null, no array, or of more than 10,000');
    end if;
    select coalesce(e.value->>'queue', 'null') into v_bad
    from jsonb_array_elements(p_profiles) as e
    where jsonb_typeof(e.value) <> 'object' or jsonb_typeof(e.value->'queue') is distinct from 'string'
       or jsonb_typeof(e.value->'version') is distinct from 'number'
       or jsonb_typeof(e.value->'data') is distinct from 'object'
       or e.value->>'covers_from' is null or e.value->>'covers_to' is null
    limit 1;
    if found then
        perform penstock.refuse('PS400',
            format('profiles: that of queue %L has no queue, version, covers_from, covers_to or data', v_bad));
    end if;
    insert into penstock.profile as p (queue_id, version, made, covers_from, covers_to, data)
    select distinct on (q.id) q.id, (e.value->>'version')::int, penstock.clock(),
           (e.value->>'covers_from')::timestamptz, (e.value->>'covers_to')::timestamptz, e.value->'data'
    from jsonb_array_elements(p_profiles) with ordinality as e(value, n)
    join penstock.queue as q on q.name = e.value->>'queue'
    order by q.id, e.n desc
    on conflict (queue_id) do update
    set version = excluded.version, made = excluded.made, covers_from = excluded.covers_from,
        covers_to = excluded.covers_to, data = excluded.data;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

-- Returns the profile of each queue, and its age. If made is null, the queue has no profile.
create or replace function penstock.profiles(p_queue text default null)
returns table (
    queue text, version int, made timestamptz, age interval, covers_from timestamptz, covers_to timestamptz, data jsonb
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    if p_queue is not null then
        perform penstock.the_queue(p_queue);
    end if;
    return query
    select q.name, p.version, p.made, penstock.clock() - p.made, p.covers_from, p.covers_to, p.data
    from penstock.queue as q left join penstock.profile as p on p.queue_id = q.id
    where p_queue is null or q.name = p_queue
    order by q.name;
end
$$;

-- Returns how long running tasks have been running, which history does not know yet. The times are in buckets, ten for
-- each power of ten seconds: bucket 0 is from 1 s to 1.26 s. A time shorter than a millisecond counts as one
-- millisecond.
create or replace function penstock.running_times()
returns table (queue text, kind text, bucket int, tasks bigint, seconds double precision)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    with opened as (
        select l.queue_id, h.id,
               greatest(0.001, extract(epoch from penstock.clock() - l.claimed_at)::double precision) as seconds
        from penstock.lease as l, unnest(l.ids) with ordinality as h(id, n)
        where get_bit(l.open, h.n::int - 1) = 1
    )
    select q.name, t.kind, floor(10 * log(o.seconds))::int, count(*), sum(o.seconds)
    from opened as o
    join penstock.task as t on t.id = o.id
    join penstock.queue as q on q.id = o.queue_id
    group by 1, 2, 3
    order by 1, 2, 3
$$;

-- Returns, by queue, the median and the 90th percentile of the seconds from the request for a worker to its first task,
-- over the workers that exist.
create or replace function penstock.start_latencies()
returns table (queue text, workers bigint, p50 double precision, p90 double precision)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    with started as (
        select n.queue, extract(epoch from w.first_claim_at - coalesce(w.requested_at, w.started_at))::double precision
               as seconds
        from penstock.worker as w, unnest(w.queues) as n(queue)
        where w.first_claim_at >= coalesce(w.requested_at, w.started_at)
    )
    select s.queue, count(*), percentile_cont(0.5) within group (order by s.seconds),
           percentile_cont(0.9) within group (order by s.seconds)
    from started as s group by s.queue order by s.queue
$$;
