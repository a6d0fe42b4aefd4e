-- Scaling: one scaler at a time holds a queue, looks at it, decides, and notes the decision. A scaler that was replaced
-- is refused. A queue is either a Penstock queue or an adopted table: both have a name, and both may have a promise.

-- Takes queues for a scaler, all of them or none. The call is refused while another scaler holds any of them: that
-- scaler has until its hold ends to show that it is alive. `p_instead_of` lists holders that are known to be dead, so
-- that their holds need not be waited for. Returns the epoch of the new holder, and what the previous holder wanted and
-- remembered.
create or replace function penstock.hold_scaling(
    p_queues text[], p_holder text, p_policy text, p_lease interval, p_instead_of text[] default '{}'
) returns table (queue text, epoch int, memory jsonb, target int)
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_row penstock.scaling;
begin
    perform penstock._check_scaling(p_queues, p_holder, p_lease);
    if p_policy is null or octet_length(p_policy) not between 1 and 200 then
        perform penstock.refuse('PS400', 'policy: it is null, or not 1 to 200 bytes long');
    end if;
    insert into penstock.scaling (queue, epoch, holder, until, policy)
    select n.name, 0, '', '-infinity', p_policy from unnest(p_queues) as n(name) order by n.name
    on conflict (queue) do nothing;
    for v_row in
        select * from penstock.scaling as s where s.queue = any(p_queues) order by s.queue for update
    loop
        v_now := penstock.clock();
        if v_row.holder <> p_holder and v_row.until > v_now and v_row.holder <> all(coalesce(p_instead_of, '{}')) then
            perform penstock.refuse('PS409',
                format('queue %L is scaled by %s until %s', v_row.queue, v_row.holder, v_row.until),
                'Stop that scaler, or let this one wait: --standby.');
        end if;
    end loop;
    return query
    update penstock.scaling as s
    set epoch = case when s.holder = p_holder then s.epoch else s.epoch + 1 end, holder = p_holder, policy = p_policy,
        until = v_now + penstock._in_seconds(p_lease)
    where s.queue = any(p_queues)
    returning s.queue, s.epoch, s.memory, s.target;
end
$$;

-- Returns the scalers that hold these queues now (null: any queues).
create or replace function penstock.scalers(p_queues text[] default null)
returns table (queue text, holder text, policy text, until timestamptz, target int, decided_at timestamptz)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select s.queue, s.holder, s.policy, s.until, s.target, s.decided_at
    from penstock.scaling as s
    where s.until > penstock.clock() and (p_queues is null or s.queue = any(p_queues)) order by s.queue
$$;

-- Notes what a scaler wants, for any number of queues, and returns the queues whose decision was noted. p_decisions is
-- an array of objects with queue, epoch, policy, workers, actual, wanted, urgency, bound_by, reason, time_to_breach,
-- predicted_breach, inputs, rules, and memory (null keeps the memory as it was). The whole call is refused if any of
-- the queues has a newer holder. The call also extends the holds. A decision is noted when its target, urgency or bound
-- changes, and once a minute. A decision without a reason is not noted: it is known to equal the last one.
create or replace function penstock.decide(p_holder text, p_lease interval, p_decisions jsonb) returns setof text
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
    v_now     timestamptz := penstock.clock();
    v_changed text[];
    v_lost    record;
begin
    if p_decisions is null or jsonb_typeof(p_decisions) <> 'array' then
        perform penstock.refuse('PS400', 'decisions: it is not a JSON array');
    end if;
    perform penstock._check_scaling('{}', p_holder, p_lease);
    -- At rest, not every look is worth a new row or a lock, which is written too. Queues with another holder are
    -- checked again below.
    v_changed := array(
        select d.queue
        from jsonb_to_recordset(p_decisions) as d(
            queue text, epoch int, policy text, workers int, urgency text, bound_by text, reason text, memory jsonb)
        left join penstock.scaling as s on s.queue = d.queue and s.epoch = d.epoch and s.holder = p_holder
        where s.queue is null or s.target is distinct from d.workers or s.policy <> d.policy
           or coalesce(d.memory, 'null') <> 'null'
           or s.decided_at is null or s.decided_at < v_now - penstock._in_seconds(p_lease) / 4
           or (d.reason is not null and not exists (
                select from (
                    select l.workers, l.urgency, l.bound_by, l.at from penstock.decision as l
                    where l.queue = d.queue order by l.at desc limit 1
                ) as last
                where last.at > v_now - interval '1 minute'
                  and (last.workers, last.urgency, last.bound_by)
                      is not distinct from (d.workers, d.urgency, d.bound_by))));
    if v_changed = '{}' then
        return;
    end if;
    -- All sessions lock in the order of names. The statements that follow see what a newer holder committed.
    perform from penstock.scaling as s where s.queue = any(v_changed) order by s.queue for update;
    v_now := penstock.clock();
    select d.queue, s.holder into v_lost
    from jsonb_to_recordset(p_decisions) as d(queue text, epoch int)
    left join penstock.scaling as s on s.queue = d.queue
    where s.epoch is distinct from d.epoch or s.holder is distinct from p_holder
    limit 1;
    if found then
        perform penstock.refuse('PS409',
            format('queue %L is no longer scaled by %s: %s has taken over',
                   v_lost.queue, p_holder, coalesce(v_lost.holder, 'no scaler')),
            'It was silent for longer than its hold, or its queue was dropped. '
            'What it decided meanwhile does not count.');
    end if;
    update penstock.scaling as s
    set until = v_now + penstock._in_seconds(p_lease), target = d.workers, decided_at = v_now, policy = d.policy,
        memory = coalesce(nullif(d.memory, 'null'), s.memory)
    from jsonb_to_recordset(p_decisions) as d(queue text, policy text, workers int, memory jsonb)
    where s.queue = d.queue and s.queue = any(v_changed)
      and (s.target is distinct from d.workers or s.policy <> d.policy or coalesce(d.memory, 'null') <> 'null'
           or s.decided_at is null or s.decided_at < v_now - penstock._in_seconds(p_lease) / 4);
    return query
    insert into penstock.decision (queue, at, epoch, policy, workers, actual, wanted, urgency, bound_by, reason,
                                   time_to_breach, predicted_breach, inputs, rules)
    select d.queue, v_now, d.epoch, d.policy, d.workers, d.actual, d.wanted, d.urgency, d.bound_by, d.reason,
           d.time_to_breach, d.predicted_breach, coalesce(d.inputs, '{}'), coalesce(d.rules, '{}')
    from jsonb_to_recordset(p_decisions) as d(
        queue text, epoch int, policy text, workers int, actual int, wanted int, urgency text, bound_by text,
        reason text, time_to_breach double precision, predicted_breach double precision, inputs jsonb, rules jsonb)
    left join lateral (
        select l.workers, l.urgency, l.bound_by, l.at from penstock.decision as l
        where l.queue = d.queue order by l.at desc limit 1
    ) as last on true
    where d.reason is not null and d.queue = any(v_changed)
      and (last.at is null or last.at <= v_now - interval '1 minute'
           or (last.workers, last.urgency, last.bound_by) is distinct from (d.workers, d.urgency, d.bound_by))
    returning queue;
end
$$;

-- Releases the queues of a scaler. Its targets stay, and another scaler may begin at once.
create or replace function penstock.leave_scaling(p_holder text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update penstock.scaling as s set until = '-infinity' where s.holder = p_holder
$$;

-- Returns what was decided for a queue up to a moment (null: now), newest first.
create or replace function penstock.decisions(p_queue text, p_at timestamptz default null, p_limit int default 20)
returns setof penstock.decision
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    if p_limit is null or p_limit not between 1 and 10000 then
        perform penstock.refuse('PS400',
            format('limit: %s is not between 1 and 10000', coalesce(p_limit::text, 'null')));
    end if;
    perform penstock._check_scaling(array[p_queue], '-', '1 second');
    return query
    select * from penstock.decision as d
    where d.queue = p_queue and d.at <= coalesce(p_at, 'infinity') order by d.at desc, d.id desc limit p_limit;
end
$$;

-- Returns how many workers a queue should have, for clients that ask PostgreSQL (KEDA's postgresql scaler). While a
-- scaler is alive, this is its target, which may be zero. When none is alive, or none ever was, it is the last target
-- but at least one, because with no worker and no scaler new work would go unnoticed.
create or replace function penstock.target_workers(p_queue text) returns int
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_row penstock.scaling;
begin
    perform penstock._check_scaling(array[p_queue], '-', '1 second');
    select * into v_row from penstock.scaling as s where s.queue = p_queue;
    if v_row.until > penstock.clock() and v_row.target is not null then
        return v_row.target;
    end if;
    return greatest(coalesce(v_row.target, 1), 1);
end
$$;

-- Returns how long ago the target was decided, or null if it never was. More than a few seconds means that no scaler is
-- alive.
create or replace function penstock.target_age(p_queue text) returns interval
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform penstock._check_scaling(array[p_queue], '-', '1 second');
    return (select penstock.clock() - s.decided_at from penstock.scaling as s where s.queue = p_queue);
end
$$;

-- Tells workers that scalers started to finish their tasks and stop. A worker learns this at its next beat.
create or replace function penstock.dismiss(p_workers text[]) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_count int;
begin
    -- The rows are locked in the order of names, as when a supervisor beats for many workers.
    perform from penstock.worker as w
    where w.name = any(p_workers) and w.started_by is not null and not w.dismissed
    order by w.name
    for no key update;
    update penstock.worker as w set dismissed = true
    where w.name = any(p_workers) and w.started_by is not null and not w.dismissed;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

-- Returns everything that a decision needs, in one round trip. It first promotes tasks that are due, since without
-- workers no other session would; then it takes one snapshot of the given queues and of the workers that serve them. Of
-- the waiting tasks it reads only the oldest (`p_rows` for each queue); the rest is described by its number and by the
-- age of the newest. `p_horizons` are the seconds ahead that matter; `p_bins` are the seconds that a bin of ages spans.
create or replace function penstock.scaler_snapshot(
    p_queues text[], p_horizons double precision[], p_rows int[], p_bins double precision[]
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_now constant timestamptz := penstock.clock();
begin
    if p_queues is null or array_ndims(p_queues) > 1
       or (cardinality(p_horizons), cardinality(p_rows), cardinality(p_bins))
          is distinct from (cardinality(p_queues), cardinality(p_queues), cardinality(p_queues)) then
        perform penstock.refuse('PS400', 'queues, horizons, rows, bins: they are null, or not of one length');
    elsif 1 > any(p_rows) or 100000 < any(p_rows) then
        perform penstock.refuse('PS400', 'rows: one is not between 1 and 100000');
    elsif 0 > any(p_horizons) or 31536000 < any(p_horizons) or 0.001 > any(p_bins) then
        perform penstock.refuse('PS400',
            'horizons, bins: one is negative, more than a year, or less than a millisecond');
    end if;
    perform penstock._promote(q.id)
    from unnest(p_queues) as n(name)
    join penstock.queue as q on q.name = n.name
    cross join lateral (
        select from penstock.agenda as a where a.queue_id = q.id and not a.pending and a.due <= v_now limit 1
    ) as due;
    return penstock._scaler_snapshot(p_queues, p_horizons, p_rows, p_bins);
end
$$;

create or replace function penstock._scaler_snapshot(
    p_queues text[], p_horizons double precision[], p_rows int[], p_bins double precision[]
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan set extra_float_digits = 1 as $$
#variable_conflict use_column
declare
    v_now    constant timestamptz := penstock.clock();
    v_edge   constant timestamptz := v_now + interval '1 microsecond';  -- an age of whole bins belongs to the older bin
    v_system constant bigint := penstock._system();
begin
    return (
    with recursive asked as materialized (
        select q.id, q.name, q.paused, q.sla, n.horizon, n.rows, make_interval(secs => n.bin) as bin
        from unnest(p_queues, p_horizons, p_rows, p_bins) as n(name, horizon, rows, bin)
        join penstock.queue as q on q.name = n.name
    ), booked as (
        select q.id as queue_id,
               coalesce(sum(n.value) filter (where n.metric = 'planned'), 0) as planned,
               coalesce(sum(n.value) filter (where n.metric = 'pending'), 0) as pending,
               coalesce(sum(n.value) filter (where n.metric = 'active'), 0) as active,
               coalesce(sum(n.value) filter (
                   where n.metric in ('done_total', 'again_total', 'failed_total', 'dead_total')), 0) as ended,
               coalesce(sum(n.value) filter (
                   where n.metric in ('released_total', 'expired_total', 'revoked_total')), 0) as left
        from asked as q
        cross join lateral penstock._counter_rows(q.id, v_system) as n
        group by q.id
    ), newest as (
        -- This recursion visits each priority that has tasks, from the last to the first. There is usually one, and a
        -- probe for each of the ten would cost more than the result.
        select q.id, f.priority, f.due
        from asked as q
        join booked as b on b.queue_id = q.id and b.pending > 0
        cross join lateral (
            select a.priority, a.due from penstock.agenda as a
            where a.queue_id = q.id and a.pending
            order by a.priority desc, a.due desc, a.task_id desc limit 1
        ) as f
        union all
        select n.id, f.priority, f.due
        from newest as n
        cross join lateral (
            select a.priority, a.due from penstock.agenda as a
            where a.queue_id = n.id and a.pending and a.priority < n.priority
            order by a.priority desc, a.due desc, a.task_id desc limit 1
        ) as f
    ), binned as (
        -- These are the oldest tasks of each priority, by age. All tasks of a bin count with the due of the oldest one.
        select q.id, max(q.rows) as rows, min(o.due) as due, count(*) as tasks
        from newest as n
        join asked as q on q.id = n.id
        cross join lateral (
            select a.due from penstock.agenda as a
            where a.queue_id = n.id and a.pending and a.priority = n.priority
            order by a.due, a.task_id limit q.rows
        ) as o
        group by q.id, date_bin(q.bin, o.due, v_edge)
    ), counted as (
        -- Over all priorities together only p_rows tasks of a queue are counted: behind them, some tasks may be
        -- missing.
        select b.id, b.due, least(b.tasks, b.rows - coalesce(sum(b.tasks) over older, 0))::bigint as tasks
        from binned as b
        window older as (partition by b.id order by b.due rows between unbounded preceding and 1 preceding)
    ), oldest as (
        select c.id, json_agg(json_build_array(date_part('epoch', v_now - c.due), c.tasks) order by c.due) as bins,
               sum(c.tasks) as tasks
        from counted as c where c.tasks > 0 group by c.id
    ), filed as (
        select n.id, max(n.due) as newest from newest as n group by n.id
    ), looked as (
        select json_build_object(
            'queue', q.name, 'paused', q.paused, 'sla', extract(epoch from q.sla), 'planned', coalesce(b.planned, 0),
            'pending', coalesce(b.pending, 0), 'active', coalesce(b.active, 0), 'ended', coalesce(b.ended, 0),
            'left', coalesce(b.left, 0), 'waiting', o.bins,
            -- If more tasks wait than were read, this is the age of the newest; the others lie between the two.
            'newest', case when b.pending > o.tasks then date_part('epoch', v_now - f.newest) end,
            'ahead', p.seconds, 'running', l.leases) as value
        from asked as q
        left join booked as b on b.queue_id = q.id
        left join filed as f on f.id = q.id
        left join oldest as o on o.id = q.id
        -- These are the planned tasks, by the second in which they are due.
        left join lateral (
            select json_agg(json_build_array(g.second, g.tasks) order by g.second) as seconds
            from (
                select floor(date_part('epoch', k.due))::bigint as second, count(*) as tasks
                from (
                    select a.due from penstock.agenda as a
                    where a.queue_id = q.id and not a.pending
                      and a.due > v_now and a.due <= v_now + make_interval(secs => q.horizon)
                    order by a.due limit q.rows
                ) as k
                where b.planned > 0
                group by 1
            ) as g
        ) as p on true
        -- These are the times for which running tasks have been running.
        left join lateral (
            select json_agg(json_build_array(date_part('epoch', v_now - r.claimed_at), r.tasks)) as leases
            from (
                select l.claimed_at, bit_count(l.open) as tasks from penstock.lease as l
                where l.queue_id = q.id and b.active > 0 order by l.until limit 200
            ) as r
        ) as l on true
    )
    select jsonb_build_object(
        'at', extract(epoch from v_now)::double precision,
        'queues', coalesce((select json_agg(l.value) from looked as l), '[]'),
        'workers', coalesce((
            select jsonb_agg(jsonb_build_object(
                'name', w.name, 'queues', w.queues, 'slots', w.slots, 'busy', w.busy, 'started_by', w.started_by,
                'leaving', w.leaving or w.dismissed, 'silent', extract(epoch from v_now - w.beat)::double precision,
                'began', extract(epoch from w.started_at)::double precision,
                'latency', extract(epoch from w.started_at - w.requested_at)::double precision))
            from penstock.worker as w where w.queues && p_queues), '[]'),
        'connections', jsonb_build_array(
            (select sum(d.numbackends) from pg_stat_database as d),
            current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
                - coalesce(current_setting('reserved_connections', true)::int, 0)),
        'schedule', penstock.next_schedule()));
end
$$;

create or replace function penstock._check_scaling(p_queues text[], p_holder text, p_lease interval) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    v_queue text;
begin
    if p_queues is null or array_ndims(p_queues) > 1 or array_position(p_queues, null) is not null then
        perform penstock.refuse('PS400', 'queues: it is null, nested, or has a null in it');
    elsif p_holder is null or octet_length(p_holder) not between 1 and 200 then
        perform penstock.refuse('PS400', 'holder: it is null, or not 1 to 200 bytes long');
    elsif p_lease is null or penstock._in_seconds(p_lease) not between '1 second' and '24 hours' then
        perform penstock.refuse('PS400',
            format('lease: %s is not between 1 s and 24 h', coalesce(p_lease::text, 'null')));
    end if;
    foreach v_queue in array p_queues loop
        if not exists (select from penstock.adopted as a where a.name = v_queue) then
            perform penstock.the_queue(v_queue);
        end if;
    end loop;
end
$$;
