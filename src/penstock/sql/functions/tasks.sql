-- One task: its attempts, what became of it, and why it does not run. These functions are STABLE, so each of them reads
-- one snapshot, in which a live task is in exactly one place.

-- Returns the last attempts of a task, newest first. History is large: without statistics of today's rows the planner
-- would read all of it, and a BRIN index needs a bitmap scan. A task has no attempt before its creation, so the days
-- before p_since are skipped; null means that it is not known.
create or replace function penstock._last_attempts(p_id bigint, p_since timestamptz, p_limit int)
returns setof penstock.history
language sql stable security definer rows 10 set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = on as $$
    select h.* from penstock.history as h
    where h.task_id = p_id
      -- An hour, because the clock may have been set back meanwhile.
      and h.finished_at >= coalesce(p_since - interval '1 hour', '-infinity')
    order by h.finished_at desc, h.id desc
    limit p_limit
$$;

-- Returns the name of a queue, which may have been dropped.
create or replace function penstock._queue_name(p_queue_id int) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
    select coalesce((select q.name from penstock.queue as q where q.id = p_queue_id),
                    (select g.name from penstock.queue_gone as g where g.id = p_queue_id))
$$;

-- Returns the lease that a task is in now.
create or replace function penstock._lease_of(p_queue_id int, p_id bigint)
returns table (worker text, claimed_at timestamptz, until timestamptz, due timestamptz, attempt int)
language sql stable security definer rows 1 set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
    select l.worker, l.claimed_at,
           greatest(l.until, l.claimed_at),    -- after a restore, leases of the other cluster end at -infinity
           l.dues[o.n], coalesce(l.attempts[o.n], 0) + 1
    from penstock.lease as l
    cross join lateral (select array_position(l.ids, p_id) as n offset 0) as o
    where l.queue_id = p_queue_id
      and l.until >= coalesce((select w.until from penstock._watermark(p_queue_id) as w), '-infinity')
      and get_bit(l.open, o.n - 1) = 1
$$;

create or replace function penstock._check_id(p_id bigint) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
    if p_id is null then
        perform penstock.refuse('PS400', 'id: it is null');
    end if;
end
$$;

-- Returns the attempts of a task, oldest first: the finished ones as history has them, and at the end the running one,
-- which has no finished_at and no outcome. If there are more than p_limit, it returns the last ones. Refuses a task
-- that neither exists nor has attempts in history, and, with p_queue, a task of another queue.
create or replace function penstock.attempts(p_id bigint, p_queue text default null, p_limit int default 10000)
returns table (
    queue text, attempt int, iteration int, worker text, due timestamptz, claimed_at timestamptz,
    finished_at timestamptz, lease_until timestamptz, outcome text, error_class text, error text
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_task penstock.task;
begin
    perform penstock._check_id(p_id);
    perform penstock._check_limit(p_limit);
    if p_queue is not null then
        perform penstock.the_queue(p_queue);
    end if;
    select * into v_task from penstock.task as t where t.id = p_id;
    return query
    with found as (
        select h.queue_id, h.attempt, h.iteration, h.worker, h.due, h.claimed_at, h.finished_at,
               null::timestamptz as lease_until, h.outcome, h.error_class, h.error, h.id
        from penstock._last_attempts(p_id, v_task.created, p_limit) as h
        union all
        select v_task.queue_id, l.attempt, v_task.iterations, l.worker, l.due, l.claimed_at, null, l.until, null, null,
               null, null
        from penstock._lease_of(v_task.queue_id, p_id) as l
        where v_task.ended is null
    ), named as (
        select penstock._queue_name(f.queue_id) as queue, f.* from found as f
        order by f.finished_at desc nulls first, f.id desc
        limit p_limit
    )
    select n.queue, n.attempt, n.iteration, n.worker, n.due, n.claimed_at, n.finished_at, n.lease_until, n.outcome,
           n.error_class, n.error
    from named as n
    where p_queue is null or n.queue = p_queue
    order by n.finished_at nulls last, n.id;
    if not found and (v_task.id is null or penstock._queue_name(v_task.queue_id) <> p_queue) then
        perform penstock.refuse('PS404',
            format('id: there is no task %s', p_id) || coalesce(' in queue ' || quote_literal(p_queue), ''),
            case when p_queue is null
                 then 'Nor does history know it; `penstock retention` tells how long history is kept.'
                 else '`app.find_task(id)` finds a task of any queue.' end);
    end if;
end
$$;

-- Returns a task whose document is gone, from its last attempt. Returns nothing if that attempt did not end the task (a
-- failure, before a purge).
create or replace function penstock.find_removed(p_id bigint)
returns table (
    task_id bigint, queue text, kind text, subject text, state text, attempts int, iterations int, created timestamptz,
    last_iteration timestamptz, ended_at timestamptz, error_class text, error text, worker text, claimed_at timestamptz
)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select
        h.task_id, penstock._queue_name(h.queue_id), h.kind, h.subject,
        case when h.outcome in ('revoked', 'unstarted') then 'cancelled' else h.outcome end,
        case when h.outcome = 'dead' then h.attempt else 0 end,
        h.iteration + (h.outcome = 'done')::int,
        h.created, case when h.outcome = 'done' then h.finished_at end, h.finished_at,
        h.error_class, h.error, h.worker, h.claimed_at
    from penstock._last_attempts(p_id, null, 1) as h
    where h.outcome in ('done', 'dead', 'revoked', 'unstarted')
$$;

-- --- why a task does not run -----------------------------------------------------------------------------------------

-- Returns why a task of a queue does not run, that it runs, or how it ended: an object with the `reason`, a word for
-- programs, and the facts that belong to it. Clients write the sentence. The reasons are unknown, other_queue, removed,
-- done, dead and cancelled; running and lease_ended; expired; waiting (for other tasks); paused, planned and
-- unknown_kind (it is due later); no_worker, quarantined, behind, busy and next (it is due); and stray (it is in no
-- place, which verify reports).
--
-- The first reason that holds is told. A new one belongs where nothing after it could let the task run.
create or replace function penstock.why(p_queue text, p_id bigint) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set timezone = 'UTC' as $$
declare
    v_now   constant timestamptz := penstock.clock();
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_task  penstock.task;
    v_row   penstock.agenda;
    v_lease record;
    v_facts jsonb;
begin
    perform penstock._check_id(p_id);
    select * into v_task from penstock.task as t where t.id = p_id;
    if v_task.id is null then
        v_facts := penstock._why_gone(v_queue, p_id);
    elsif v_task.queue_id <> v_queue.id then
        v_facts := jsonb_build_object('reason', 'other_queue', 'found_in', penstock._queue_name(v_task.queue_id));
    elsif v_task.ended is not null then
        v_facts := jsonb_build_object(
            'reason', v_task.ended, 'ended_at', v_task.ended_at, 'attempts', v_task.attempts, 'cause', v_task.reason,
            'error_class', v_task.error_class, 'error', v_task.error, 'removed', false);
    else
        select * into v_row from penstock.agenda as a where a.task_id = p_id;
        if v_task.expires <= v_now and (v_row.task_id is not null or v_task.waits_for > 0) then
            v_facts := jsonb_build_object('reason', 'expired', 'expires', v_task.expires, 'paused', v_queue.paused);
        elsif v_row.task_id is not null then
            v_facts := penstock._why_waiting(v_queue, v_task, v_row, v_now)
                || jsonb_build_object('expires', v_task.expires);
        elsif v_task.waits_for > 0 then
            v_facts := jsonb_build_object('reason', 'waiting', 'waits_for', v_task.waits_for,
                                          'expires', v_task.expires);
        else
            select * into v_lease from penstock._lease_of(v_queue.id, p_id);
            v_facts := case when v_lease.until is null then jsonb_build_object('reason', 'stray')
                else jsonb_build_object(
                    'reason', case when v_lease.until < v_now then 'lease_ended' else 'running' end,
                    'worker', v_lease.worker, 'since', v_lease.claimed_at, 'until', v_lease.until,
                    'attempt', v_lease.attempt, 'renewed_to', v_task.renew, 'paused', v_queue.paused) end;
        end if;
    end if;
    return jsonb_build_object('id', p_id, 'queue', v_queue.name, 'at', v_now) || v_facts;
end
$$;

-- Returns what history knows of a task without a document. Its last attempt ended it, unless it was removed later.
create or replace function penstock._why_gone(p_queue penstock.queue, p_id bigint) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
    v_last penstock.history;
    v_name text;
begin
    select * into v_last from penstock._last_attempts(p_id, null, 1) as h;
    v_name := penstock._queue_name(v_last.queue_id);
    if v_last.task_id is null then
        return jsonb_build_object('reason', 'unknown');
    elsif v_name is distinct from p_queue.name then
        return jsonb_build_object('reason', 'other_queue', 'found_in', v_name);
    elsif v_last.outcome in ('done', 'dead', 'revoked', 'unstarted') then
        return jsonb_build_object(
            'reason', case when v_last.outcome in ('done', 'dead') then v_last.outcome else 'cancelled' end,
            'ended_at', v_last.finished_at, 'worker', v_last.worker, 'attempts', v_last.attempt,
            'cause', case when v_last.outcome = 'unstarted' then 'expired' end, 'error_class', v_last.error_class,
            'error', v_last.error, 'removed', true);
    end if;
    return jsonb_build_object('reason', 'removed', 'last', penstock._in_short(v_last));
end
$$;

-- Returns the attempt as an object, or null if there is none.
create or replace function penstock._in_short(p_attempt penstock.history) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp
return case when (p_attempt).task_id is not null then jsonb_build_object(
    'attempt', (p_attempt).attempt, 'outcome', (p_attempt).outcome, 'worker', (p_attempt).worker,
    'finished_at', (p_attempt).finished_at, 'error_class', (p_attempt).error_class) end;

-- Returns why a task waits that is in the agenda. Only the last attempt shows that a worker had no handler for the
-- task's kind: workers do not say which kinds they run, and the table `kind` keeps what any code once declared.
create or replace function penstock._why_waiting(
    p_queue penstock.queue, p_task penstock.task, p_row penstock.agenda, p_now timestamptz
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set timezone = 'UTC' as $$
declare
    v_later constant boolean := not p_row.pending and p_row.due > p_now;
    v_last  penstock.history;
    v_line  record;
    v_fleet record;
begin
    if p_queue.paused then
        return jsonb_build_object('reason', 'paused', 'due', p_row.due, 'later', v_later)
            || penstock._pause_of(p_queue);
    elsif v_later then
        select * into v_last from penstock._last_attempts(p_task.id, p_task.created, 1) as h;
        return jsonb_build_object(
            'reason', case when v_last.outcome = 'released' and v_last.error_class = 'UnknownKind' then 'unknown_kind'
                           else 'planned' end,
            'due', p_row.due, 'kind', p_task.kind, 'failures', p_row.attempts,
            'max_attempts', coalesce((select k.max_attempts from penstock.kind as k
                                      where k.queue_id = p_queue.id and k.kind = p_task.kind), p_queue.max_attempts),
            'last', penstock._in_short(v_last));
    end if;
    select * into v_line from penstock._tasks_before(p_row, p_now, 10000, p_queue.priority_step);
    select * into v_fleet from penstock._fleet_of(p_queue.name, p_now);
    return jsonb_build_object(
        'reason', case when v_fleet.workers = 0 then 'no_worker' when p_row.quarantine < 0 then 'quarantined'
                       when v_line.tasks > 0 then 'behind' when v_fleet.free = 0 then 'busy' else 'next' end,
        'due', p_row.due, 'before', v_line.tasks, 'exact', v_line.exact, 'quarantined', p_row.quarantine < 0,
        'crashes', greatest(-1 - p_row.quarantine, 0), 'max_crashes', p_queue.max_crashes)
        || to_jsonb(v_fleet)
        || coalesce((
            select jsonb_build_object('emptying', w.quarantine, 'emptying_until', w.quarantine_until)
            from penstock._watermark(p_queue.id) as w where p_row.quarantine < 0 and w.quarantine_until > p_now), '{}');
end
$$;

-- Returns since when a queue is paused, and who paused it, by the audit: the first pause after the last resume. Both
-- are null if the audit does not know it.
create or replace function penstock._pause_of(p_queue penstock.queue) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set timezone = 'UTC' as $$
    select jsonb_build_object('since', min(p.at), 'actor', (array_agg(p.actor order by p.id))[1])
    from penstock.audit as p
    where p.verb = 'set' and p.detail ? 'paused' and p.queue = p_queue.name and p.at >= p_queue.created
      and p.id > coalesce((
          select r.id from penstock.audit as r
          where r.verb = 'set' and r.detail ? 'paused' and r.queue = p_queue.name
            and not (r.detail->>'paused')::boolean
          order by r.id desc limit 1), 0)
$$;

-- Returns whether a claim takes a task before the task of this row.
create or replace function penstock._comes_before(
    p_priority smallint, p_due timestamptz, p_id bigint, p_row penstock.agenda, p_step interval
) returns boolean
language sql immutable parallel safe
return case
    when p_step is null then (p_priority, p_due, p_id) < ((p_row).priority, (p_row).due, (p_row).task_id)
    else (p_due + p_priority * p_step, p_id) < ((p_row).due + (p_row).priority * p_step, (p_row).task_id)
end;

-- Returns how many due tasks of its queue a claim takes before this one, counted up to p_most. Of a quarantined task
-- these are the quarantined tasks before it. `exact` is false if there may be more.
drop function if exists penstock._tasks_before(penstock.agenda, timestamptz, int);
create or replace function penstock._tasks_before(
    p_row penstock.agenda, p_now timestamptz, p_most int, p_step interval
)
returns table (tasks bigint, exact boolean)
language sql stable security definer rows 1 set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
    with watermark as materialized (    -- the search begins at the bounds, as a claim does
        select w.priorities, w.first_due, w.first_planned, (
            select min(y.due) from penstock.early as y
            where y.queue_id = w.queue_id and y.xid >= coalesce(w.running[1], w.xid)) as early
        from penstock._watermark((p_row).queue_id) as w
    ), quarantined as materialized (
        select from penstock.agenda as a
        where (p_row).quarantine < 0 and a.queue_id = (p_row).queue_id and a.pending and a.quarantine < 0
          and (a.priority, a.due, a.task_id) < ((p_row).priority, (p_row).due, (p_row).task_id)
        limit p_most + 1
    ), pending as materialized (
        select from watermark as w
        cross join lateral penstock._priority_ranges(w.priorities, w.first_due) as b
        cross join lateral (    -- where the search ends
            select (case when p_step is null then (p_row).priority when b.many then 32767 else b.first end)::smallint
                       as priority,
                   case when p_step is null then (p_row).due when b.many then 'infinity'
                        else (p_row).due + ((p_row).priority - b.first) * p_step end as due
        ) as u
        cross join lateral (
            select from penstock.agenda as a
            where a.queue_id = (p_row).queue_id and a.pending
              and (a.priority, a.due) >= (b.first, least(b.due, w.early)) and a.priority < b.next
              and (a.priority, a.due, a.task_id) < (u.priority, u.due, (p_row).task_id)
              and (not b.many or penstock._comes_before(a.priority, a.due, a.task_id, p_row, p_step))
            limit p_most + 1
        ) as c
        where (p_row).quarantine >= 0 and (b.first <= (p_row).priority or p_step is not null)
        limit p_most + 1
    ), overdue as materialized (    -- planned tasks that are due: a claim promotes them before it takes any
        select o.priority, o.due, o.task_id from watermark as w
        cross join lateral (
            select a.priority, a.due, a.task_id from penstock.agenda as a
            where (p_row).quarantine >= 0 and a.queue_id = (p_row).queue_id and not a.pending and a.due <= p_now
              and a.due >= least(w.first_planned, w.early)
            order by a.due limit p_most + 1
        ) as o
    ), counted as (
        select (select count(*) from quarantined) + (select count(*) from pending) as waiting,
               (select count(*) from overdue as o
                where penstock._comes_before(o.priority, o.due, o.task_id, p_row, p_step)) as promoted,
               (select count(*) from overdue) as seen
    )
    select least(c.waiting + c.promoted, p_most), c.waiting + c.promoted <= p_most and c.seen <= p_most
    from counted as c
$$;

-- Returns the workers of a queue by their last beats: how many run, how many slots they have, and how many slots are
-- free; and how many workers have been silent for ten seconds, or are about to stop.
create or replace function penstock._fleet_of(
    p_queue text, p_now timestamptz, out workers bigint, out slots bigint, out free bigint, out silent bigint,
    out leaving bigint
)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select count(*) filter (where s.heard and not s.leaves),
           coalesce(sum(s.slots) filter (where s.heard and not s.leaves), 0),
           coalesce(sum(s.slots - s.busy) filter (where s.heard and not s.leaves), 0),
           count(*) filter (where not s.heard), count(*) filter (where s.heard and s.leaves)
    from (
        select w.slots, w.busy, w.beat > p_now - interval '10 seconds' as heard, w.leaving or w.dismissed as leaves
        from penstock.worker as w where p_queue = any(w.queues)
    ) as s
$$;
