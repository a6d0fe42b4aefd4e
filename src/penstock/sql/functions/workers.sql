-- Workers: which of them are alive, which are idle, how a push wakes some of these, and what a supervisor asks for all
-- of its processes at once.

-- Wakes idle workers of a queue by their channels: at most as many as tasks have come, and at most four. It begins at a
-- random channel, so that a worker that is dead, and not yet forgotten, does not take every wake-up. A wake-up is only
-- a hint, because supervisors look at all queues once a second. Nothing is sent while the notification queue fills up.
-- PostgreSQL sends equal notifications of a transaction once.
create or replace function penstock._wake(p_queue text, p_channels bigint[], p_tasks bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_many constant int := cardinality(p_channels);
    v_from constant int := (random() * 1000)::int;
begin
    if pg_notification_queue_usage() >= 0.5 then
        return;
    end if;
    for n in 1 .. least(p_tasks, v_many, 4) loop
        perform pg_notify('penstock_' || p_channels[1 + (v_from + n) % v_many], p_queue);
    end loop;
end
$$;

-- Passes a wake-up on, for a worker that was woken and has no free slot: the worker no longer counts as idle, and
-- another one is woken for the tasks that still wait.
create or replace function penstock.pass_on(p_worker text, p_queue text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    delete from penstock.idle_worker as i where i.worker = p_worker;
    perform penstock._wake(q.name, array(
        select i.channel from penstock.queue_set as s join penstock.idle_worker as i on i.queue_set = s.id
        where s.queue_id = q.id), 1)
    from penstock.queue as q
    where q.name = p_queue and q.settings->'notify' is distinct from 'false'
      and exists (select from penstock.agenda as a where a.queue_id = q.id and a.pending);
end
$$;

-- Returns the number of a worker's channel. The numbers of workers are spread evenly.
create or replace function penstock._channel_number(p_worker text) returns bigint
language sql immutable parallel safe
return hashtextextended(p_worker collate "C", 0) & 9223372036854775807;

-- Returns the set of these queues, which all workers that serve exactly these queues share.
create or replace function penstock._note_queue_set(p_ids int[]) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    v_set constant bigint := hashtextextended(p_ids::text collate "C", 0);
begin
    if not exists (select from penstock.queue_set as s where s.id = v_set) then
        insert into penstock.queue_set (queue_id, id)
        select q.id, v_set from unnest(p_ids) as q(id) on conflict do nothing;
    end if;
    return v_set;
end
$$;

-- Returns whether a worker of these queues should listen: either pushes wake it already, or fewer than four workers are
-- woken. Before PostgreSQL 19 a notification wakes the server process of every session that listens on anything, so not
-- all idle workers should listen.
create or replace function penstock._shall_listen(p_worker text, p_queue_set bigint) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp
return exists (select from penstock.idle_worker as i where i.worker = p_worker and i.queue_set = p_queue_set)
    or (select count(*) from (select from penstock.idle_worker as i where i.queue_set = p_queue_set limit 4) as s) < 4;

-- Writes a beat, and whether pushes wake the worker. Returns whether the worker should stop: a scaler wants that, or no
-- scaler has held any of its queues for ten minutes.
create or replace function penstock._note_beat(
    p_worker text, p_queues text[], p_queue_set bigint, p_slots int, p_busy int, p_host text, p_pid int,
    p_requested_at timestamptz, p_started_by text, p_leaving boolean, p_listens boolean
) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_now       constant timestamptz := penstock.clock();
    v_idle      constant boolean := p_listens and p_busy < p_slots and not p_leaving;
    v_full      constant boolean := p_listens and p_busy >= p_slots and not p_leaving;
    v_was_full  boolean;
    v_set       bigint;
    v_dismissed boolean;
begin
    perform penstock._check_beat(p_worker, p_queues, p_slots, p_busy, p_host, p_started_by, p_leaving, p_listens);
    select w.busy >= w.slots into v_was_full from penstock.worker as w where w.name = p_worker;
    insert into penstock.worker as w (name, host, pid, queues, slots, busy, requested_at, started_at, first_claim_at,
                                      beat, started_by, leaving, queue_set)
    values (p_worker, p_host, p_pid, p_queues, p_slots, p_busy, coalesce(p_requested_at, v_now), v_now,
            case when p_busy > 0 then v_now end, v_now, p_started_by, p_leaving, p_queue_set)
    on conflict (name) do update
    set host = excluded.host, pid = excluded.pid, queues = excluded.queues, slots = excluded.slots,
        busy = excluded.busy, first_claim_at = coalesce(w.first_claim_at, excluded.first_claim_at),
        beat = excluded.beat, started_by = excluded.started_by,
        leaving = excluded.leaving, queue_set = excluded.queue_set
    returning w.dismissed or (p_started_by is not null and v_now - w.started_at > interval '10 minutes' and not exists (
        select from penstock.scaling as s
        where s.queue = any(p_queues) and s.decided_at > v_now - interval '10 minutes'))
    into v_dismissed;

    -- The row is read first: a row that is already right is neither written nor locked. A worker that is full keeps its
    -- row until it was full for a whole beat, and passes on the wake-ups that it gets meanwhile. Otherwise workers that
    -- are repeatedly full for a moment would leave dead rows, and under a held snapshot every push would walk over
    -- them.
    select i.queue_set into v_set from penstock.idle_worker as i where i.worker = p_worker;
    if found and v_full and v_was_full is not true then
        null;
    elsif found and not v_idle then
        delete from penstock.idle_worker as i where i.worker = p_worker;
    elsif v_idle and v_set is distinct from p_queue_set then
        insert into penstock.idle_worker as i (worker, queue_set, channel)
        values (p_worker, p_queue_set, penstock._channel_number(p_worker))
        on conflict (worker) do update set queue_set = excluded.queue_set;
    end if;
    return v_dismissed;
end
$$;

-- Notes that a worker is alive: which queues it serves, how many tasks it may run at once, and how many it runs now.
-- While it has a free slot and listens, pushes wake it with a notification on the channel that is returned; the
-- notification carries the name of the queue. Returns a row for each queue, which says whether a quarantined task
-- waits there: a worker then has to finish everything else first. After five minutes without a beat upkeep forgets
-- the worker. A worker that a scaler started is told to stop when a scaler wants that, or when no scaler has held any
-- of its queues for ten minutes.
drop function if exists penstock.beat(text, text[], int, int, text, int, timestamptz, text, boolean);
create or replace function penstock.beat(
    p_worker text, p_queues text[], p_slots int default 1, p_busy int default 0, p_host text default '',
    p_pid int default null, p_requested_at timestamptz default null, p_started_by text default null,
    p_leaving boolean default false, p_listens boolean default true
) returns table (queue text, channel text, quarantined boolean, dismissed boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    v_set       bigint;
    v_dismissed boolean;
begin
    perform penstock._check_beat(p_worker, p_queues, p_slots, p_busy, p_host, p_started_by, p_leaving, p_listens);
    perform penstock.the_queue(q.name) from unnest(p_queues) as q(name);
    v_set := penstock._note_queue_set(
        array(select q.id from penstock.queue as q where q.name = any(p_queues) order by q.id));
    v_dismissed := penstock._note_beat(p_worker, p_queues, v_set, p_slots, p_busy, p_host, p_pid, p_requested_at,
                                       p_started_by, p_leaving, p_listens);
    return query
    select q.name, 'penstock_' || penstock._channel_number(p_worker),
           exists (select from penstock.agenda as a where a.queue_id = q.id and a.pending and a.quarantine < 0),
           v_dismissed
    from penstock.queue as q where q.name = any(p_queues) order by q.name;
end
$$;

-- Notes the beats of all processes of a supervisor: [{"name", "pid", "busy", "requested_at", "listens"}, …]. Queues
-- that do not exist are left out. Returns the channel of each worker that should listen, which are a few of all idle
-- ones; the queues in which a quarantined task waits; the workers that should stop; and the leases of the
-- queues by name, in seconds, unless they equal p_known, which is what the last beat returned.
create or replace function penstock.beat_all(
    p_workers jsonb, p_queues text[], p_slots int default 1, p_host text default '', p_started_by text default null,
    p_leaving boolean default false, p_known bigint default null
) returns table (channels jsonb, quarantined text[], dismissed text[], known bigint, leases jsonb)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    v_names  text[];
    v_ids    int[];
    v_set    bigint;
    v_worker record;
    v_shall  boolean;
begin
    if p_workers is null or jsonb_typeof(p_workers) <> 'array' then
        perform penstock.refuse('PS400', 'workers: it is not a JSON array');
    end if;
    begin
        perform from jsonb_to_recordset(p_workers)
            as w(name text, pid int, busy int, requested_at timestamptz, listens boolean);
    exception when data_exception then
        perform penstock.refuse('PS400', 'workers: ' || sqlerrm);
    end;
    perform penstock._check_beat('-', p_queues, p_slots, 0, p_host, p_started_by, p_leaving, true);
    select coalesce(array_agg(q.name), '{}'), coalesce(array_agg(q.id), '{}'),
           hashtextextended(string_agg(q.id || ' ' || q.lease, ','), 0),
           array_agg(q.name) filter (where q.has_quarantined)
    into v_names, v_ids, known, quarantined
    from (
        select q.id, q.name, extract(epoch from q.lease) as lease,
               exists (select from penstock.agenda as a
                       where a.queue_id = q.id and a.pending and a.quarantine < 0) as has_quarantined
        from penstock.queue as q where q.name = any(p_queues) order by q.id
    ) as q;
    known := coalesce(known, 0);
    quarantined := coalesce(quarantined, '{}');
    if known is distinct from p_known then
        leases := (select coalesce(jsonb_object_agg(q.name, extract(epoch from q.lease)), '{}')
                   from penstock.queue as q where q.id = any(v_ids));
    end if;
    v_set := penstock._note_queue_set(v_ids);
    channels := '{}';
    dismissed := '{}';
    -- Workers are handled in the order of names, so that sessions never wait in a circle.
    for v_worker in
        select w.name, w.pid, w.busy, w.requested_at, w.listens
        from jsonb_to_recordset(p_workers) as w(name text, pid int, busy int, requested_at timestamptz, listens boolean)
        order by w.name
    loop
        v_shall := penstock._shall_listen(v_worker.name, v_set);
        if penstock._note_beat(v_worker.name, v_names, v_set, p_slots, v_worker.busy, p_host, v_worker.pid,
                               v_worker.requested_at, p_started_by, p_leaving, v_worker.listens and v_shall) then
            dismissed := dismissed || v_worker.name;
        end if;
        if v_shall then
            channels := channels
                || jsonb_build_object(v_worker.name, 'penstock_' || penstock._channel_number(v_worker.name));
        end if;
    end loop;
    return next;
end
$$;

-- Removes a worker. Tasks that it still holds come back when its leases end.
create or replace function penstock.leave(p_worker text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    delete from penstock.idle_worker as i where i.worker = p_worker;
    delete from penstock.worker as w where w.name = p_worker
$$;

-- Returns what a supervisor looks for, for all of its queues at once: the queues in which a claim would find a task
-- (one waits, one is due, or a lease has expired); the seconds until a task is due or a lease ends in the other queues,
-- and until a schedule is due; and whether upkeep is due.
create or replace function penstock.find_work(p_queues text[])
returns table (waiting text[], next_due double precision, next_schedule double precision, upkeep boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_now constant timestamptz := penstock.clock();
begin
    select coalesce(array_agg(s.name) filter (where s.pending or s.next <= v_now), '{}'),
           extract(epoch from min(s.next) filter (where s.next > v_now) - v_now)::double precision
    into waiting, next_due
    from (
        -- The search begins at the bounds, as a claim does, because it may run every second under a held snapshot.
        select q.name,
               exists (select from penstock._priority_ranges(b.priorities, b.first_due) as f
                       cross join lateral (
                           select from penstock.agenda as a
                           where a.queue_id = q.id and a.pending and a.priority >= f.first and a.priority < f.next
                             and a.due >= least(f.due, e.due)
                           limit 1) as a) as pending,
               least((select a.due from penstock.agenda as a
                      where a.queue_id = q.id and not a.pending and a.due >= least(b.first_planned, e.due)
                      order by a.due limit 1),
                     (select l.until from penstock.lease as l where l.queue_id = q.id and l.until >= b.until
                      order by l.until limit 1)) as next
        from penstock.queue as q
        cross join lateral penstock._watermark(q.id) as b
        left join lateral (
            select min(y.due) as due from penstock.early as y
            where y.queue_id = q.id and y.xid >= coalesce(b.running[1], b.xid)
        ) as e on true
        where q.name = any(p_queues) and not q.paused
    ) as s;
    next_schedule := penstock.next_schedule();
    upkeep := exists (select from penstock.upkeep_parts(true));
    return next;
end
$$;

-- Returns what a supervisor has to know before it begins: the lease of each queue in seconds, and whether the queue is
-- paused. Refuses the first queue that does not exist. p_kinds is what the code declares about the kinds of each queue
-- (see set_kinds).
create or replace function penstock.prepare_work(p_queues text[], p_kinds jsonb default '{}')
returns table (queue text, lease double precision, paused boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    if p_queues is null or array_ndims(p_queues) > 1 or array_position(p_queues, null) is not null then
        perform penstock.refuse('PS400', 'queues: it is null, nested, or has a null in it');
    elsif p_kinds is null or jsonb_typeof(p_kinds) <> 'object' then
        perform penstock.refuse('PS400', 'kinds: it is not a JSON object');
    end if;
    perform penstock.the_queue(q.name) from unnest(p_queues) as q(name);
    perform penstock.set_kinds(k.queue, k.kinds) from jsonb_each(p_kinds) as k(queue, kinds) order by k.queue;
    return query
    select q.name, extract(epoch from q.lease)::double precision, q.paused
    from penstock.queue as q where q.name = any(p_queues);
end
$$;

create or replace function penstock._check_beat(
    p_worker text, p_queues text[], p_slots int, p_busy int, p_host text,
    p_started_by text, p_leaving boolean, p_listens boolean
) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
    if p_worker is null or octet_length(p_worker) not between 1 and 200 then
        perform penstock.refuse('PS400', 'worker: it is null, or not 1 to 200 bytes long');
    elsif p_queues is null or array_ndims(p_queues) > 1 or array_position(p_queues, null) is not null then
        perform penstock.refuse('PS400', 'queues: it is null, nested, or has a null in it');
    elsif p_slots is null or p_slots not between 1 and 100000 then
        perform penstock.refuse('PS400',
            format('slots: %s is not between 1 and 100000', coalesce(p_slots::text, 'null')));
    elsif p_busy is null or p_busy not between 0 and p_slots then
        perform penstock.refuse('PS400',
            format('busy: %s is not between 0 and %s slots', coalesce(p_busy::text, 'null'), p_slots));
    elsif p_host is null or octet_length(p_host) > 200 then
        perform penstock.refuse('PS400', 'host: it is null or longer than 200 bytes');
    elsif octet_length(p_started_by) > 200 then
        perform penstock.refuse('PS400', 'started_by: it is longer than 200 bytes');
    elsif p_leaving is null then
        perform penstock.refuse('PS400', 'leaving: it is null');
    elsif p_listens is null then
        perform penstock.refuse('PS400', 'listens: it is null');
    end if;
end
$$;
