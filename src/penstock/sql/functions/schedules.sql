-- Schedules. Clients read the cron expressions; the database keeps what was decided. Any number of clients may decide
-- at once: if several see the same mark, exactly one pushes, and the others find a changed mark. There is no leader.

-- Returns schedules in readable form. A queue that is dropped takes its schedules along.
drop function if exists penstock.schedules(text);
create or replace function penstock.schedules(p_name text default null)
returns table (
    name text, queue text, kind text, payload text, priority smallint, cron text, tz text, backfill text,
    paused boolean, mark timestamptz, next_at timestamptz, last_tick timestamptz, created timestamptz,
    updated timestamptz, who text, size int, at timestamptz, key text, expires interval, until_next boolean
)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select s.name, q.name, s.kind, s.payload::text, s.priority, s.cron, s.tz, s.backfill, s.paused, s.mark,
           s.next_at, s.last_tick, s.created, s.updated, s.who, octet_length(s.payload::text), c.at, s.key, s.expires,
           s.until_next
    from penstock.schedule as s
    join penstock.queue as q on q.id = s.queue_id
    cross join (select penstock.clock() as at) as c
    where p_name is null or s.name = p_name
    order by s.name
$$;

-- Returns the seconds until the next schedule is due, or null if no schedule is waiting. It is one look-up in an index.
create or replace function penstock.next_schedule() returns float8
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select extract(epoch from s.next_at - penstock.clock())::float8
    from penstock.schedule as s
    where not s.paused and exists (select from penstock.queue as q where q.id = s.queue_id)
    order by s.next_at
    limit 1
$$;

-- Returns the schedules to look at now, the most overdue first, without those that another session fires or changes at
-- this moment.
create or replace function penstock.due_schedules(p_limit int default 1000) returns setof text
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select s.name
    from penstock.schedule as s
    where not s.paused and s.next_at <= penstock.clock()
      and exists (select from penstock.queue as q where q.id = s.queue_id)
    order by s.next_at, s.name
    limit p_limit
    for update skip locked
$$;

-- Creates or changes a schedule. A new schedule, and one with a changed line or zone, counts from now: what was decided
-- stays decided, and ticks that the old line had missed are lost. The next client that looks (at once, because next_at
-- is now) computes its next tick.
drop function if exists penstock.set_schedule(text, text, text, text, text, jsonb, smallint, text);
create or replace function penstock.set_schedule(
    p_name     text,
    p_queue    text,
    p_cron     text,
    p_tz       text default 'UTC',
    p_kind     text default 'default',
    p_payload  jsonb default '{}',
    p_priority smallint default 5,
    p_backfill text default 'last',
    p_key      text default null,
    p_expires  interval default null,
    p_until_next boolean default false
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_now   constant timestamptz := penstock.clock();
    v_new   penstock.schedule;
begin
    v_new.name := p_name;
    v_new.kind := p_kind;
    v_new.payload := p_payload;
    v_new.priority := p_priority;
    v_new.cron := p_cron;
    v_new.tz := p_tz;
    v_new.backfill := p_backfill;
    v_new.key := p_key;
    v_new.expires := penstock._in_seconds(p_expires);
    v_new.until_next := p_until_next;
    perform penstock._check_schedule(v_new, penstock.largest_payload(v_queue));

    insert into penstock.schedule as s (name, queue_id, kind, payload, priority, cron, tz, backfill,
                                        mark, next_at, created, updated, who, key, expires, until_next)
    values (p_name, v_queue.id, p_kind, p_payload, p_priority, p_cron, p_tz, p_backfill,
            v_now, v_now, v_now, v_now, session_user, p_key, v_new.expires, p_until_next)
    on conflict (name) do update
    set queue_id = excluded.queue_id, kind = excluded.kind, payload = excluded.payload, priority = excluded.priority,
        cron = excluded.cron, tz = excluded.tz, backfill = excluded.backfill, key = excluded.key,
        expires = excluded.expires, until_next = excluded.until_next, updated = v_now, who = session_user,
        mark = case when (s.cron, s.tz) = (excluded.cron, excluded.tz) then s.mark else greatest(s.mark, v_now) end,
        next_at = case when (s.cron, s.tz) = (excluded.cron, excluded.tz) then s.next_at else v_now end
    where (s.queue_id, s.kind, s.payload, s.priority, s.cron, s.tz, s.backfill, s.key, s.expires, s.until_next)
          is distinct from
          (excluded.queue_id, excluded.kind, excluded.payload, excluded.priority,
           excluded.cron, excluded.tz, excluded.backfill, excluded.key, excluded.expires, excluded.until_next);
    if found then
        perform penstock._note_audit('set schedule', p_queue,
            jsonb_build_object('schedule', p_name, 'cron', p_cron, 'tz', p_tz));
    end if;
end
$$;

-- Drops a schedule. The tasks that it pushed stay.
create or replace function penstock.drop_schedule(p_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    delete from penstock.schedule as s where s.name = p_name;
    if not found then
        perform penstock._miss_schedule(p_name);
    end if;
    perform penstock._note_audit('drop schedule', null, jsonb_build_object('schedule', p_name));
end
$$;

-- Pauses a schedule. Ticks that pass meanwhile are lost.
create or replace function penstock.pause_schedule(p_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    update penstock.schedule as s
    set paused = true, updated = penstock.clock(), who = session_user
    where s.name = p_name and not s.paused;
    if found then
        perform penstock._note_audit('pause schedule', null, jsonb_build_object('schedule', p_name));
    elsif not exists (select from penstock.schedule as s where s.name = p_name) then
        perform penstock._miss_schedule(p_name);
    end if;
end
$$;

-- Resumes a schedule from now.
create or replace function penstock.resume_schedule(p_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_now constant timestamptz := penstock.clock();
begin
    update penstock.schedule as s
    set paused = false, mark = greatest(s.mark, v_now), next_at = v_now, updated = v_now, who = session_user
    where s.name = p_name and s.paused;
    if found then
        perform penstock._note_audit('resume schedule', null, jsonb_build_object('schedule', p_name));
    elsif not exists (select from penstock.schedule as s where s.name = p_name) then
        perform penstock._miss_schedule(p_name);
    end if;
end
$$;

-- Fires a schedule: pushes one task per tick and moves the mark to p_decided, in one transaction. Returns how many
-- tasks were pushed, or null if another session was first or holds the schedule at this moment. The subject names the
-- tick, so that even a task pushed by hand does not exist twice; such a task is left as it is. The task of a tick
-- expires at the moment of p_expires in the same place.
drop function if exists penstock.fire(text, timestamptz, timestamptz[], timestamptz, timestamptz);
create or replace function penstock.fire(
    p_name text, p_mark timestamptz, p_ticks timestamptz[], p_decided timestamptz, p_next_at timestamptz,
    p_expires timestamptz[] default null
) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_many     constant int := cardinality(p_ticks);
    v_schedule penstock.schedule;
    v_queue    text;
    v_pushed   int := 0;
begin
    if p_mark is null or v_many is null or p_decided is null or p_next_at is null then
        perform penstock.refuse('PS400', 'mark, ticks, decided, next_at: one is null');
    elsif v_many > 1000 then
        perform penstock.refuse('PS400', format('ticks: %s are more than 1000 in one call', v_many));
    elsif p_decided < p_mark or p_next_at <= p_decided then
        perform penstock.refuse('PS400',
            format('decided, next_at: %s, %s are not in order after %s', p_decided, p_next_at, p_mark));
    elsif p_decided > greatest(p_mark, penstock.clock()) then
        perform penstock.refuse('PS400', format('decided: %s is yet to come', p_decided));
    elsif exists (
        select from unnest(p_ticks) with ordinality as t(tick, n)
        where t.tick is null or t.tick <= p_mark or t.tick > p_decided or t.tick <= p_ticks[t.n - 1]
    ) then
        perform penstock.refuse('PS400', format('ticks: they are not in order between %s and %s', p_mark, p_decided));
    end if;

    select * into v_schedule
    from penstock.schedule as s
    where s.name = p_name and s.mark = p_mark and not s.paused
    for update skip locked;
    if not found then
        return null;
    end if;

    if v_many > 0 then
        select q.name into v_queue from penstock.queue as q where q.id = v_schedule.queue_id;
        if not found then
            perform penstock.refuse('PS404', format('schedule %L: its queue was dropped', left(p_name, 80)));
        elsif v_many > 1 and v_many * octet_length(v_schedule.payload::text)::bigint > 16777216 then
            perform penstock.refuse('PS400',
                format('ticks: the payloads of %s are more than 16 MiB in one call', v_many));
        end if;
        select count(*) into v_pushed
        from penstock.push_many(
            v_queue,
            array_fill(v_schedule.payload::text, array[v_many]),
            array(
                select p_name || '@' || to_char(t.tick at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
                from unnest(p_ticks) as t(tick)),
            array_fill(v_schedule.kind, array[v_many]),
            p_priorities => array_fill(v_schedule.priority, array[v_many]),
            p_keys => case when v_schedule.key is not null then array_fill(v_schedule.key, array[v_many]) end,
            p_expires => p_expires) as p
        where p.result = 'created';
    end if;

    update penstock.schedule as s
    set mark = p_decided, next_at = p_next_at, last_tick = coalesce(p_ticks[v_many], s.last_tick)
    where s.name = p_name;
    return v_pushed;
end
$$;

create or replace function penstock._nearest_schedule(p_name text) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select penstock._nearest(
        p_name, array(select left(s.name, 80) from penstock.schedule as s order by s.name limit 10000))
$$;

-- Refuses a schedule name that does not exist.
create or replace function penstock._miss_schedule(p_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform penstock.refuse(
        'PS404', format('schedule %s does not exist', coalesce(quote_literal(left(p_name, 80)), 'null')),
        coalesce('Did you mean ' || quote_literal(penstock._nearest_schedule(p_name)) || '?',
                 '`penstock schedules ls` lists them.'));
end
$$;

-- Refuses the first invalid field of a schedule. Only clients can tell whether its cron expression is valid.
create or replace function penstock._check_schedule(p_schedule penstock.schedule, p_largest bigint) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if p_schedule.name is null or octet_length(p_schedule.name) not between 1 and 200 then
        perform penstock.refuse('PS400', 'name: it is null, or not 1 to 200 bytes long');
    elsif p_schedule.kind is null or octet_length(p_schedule.kind) not between 1 and 128 then
        perform penstock.refuse('PS400', 'kind: it is null, or not 1 to 128 bytes long');
    elsif p_schedule.payload is null or jsonb_typeof(p_schedule.payload) <> 'object' then
        perform penstock.refuse('PS422', 'payload: it is not a JSON object');
    elsif octet_length(p_schedule.payload::text) > p_largest then
        perform penstock.refuse('PS413',
            format('payload: %s bytes are more than %s', octet_length(p_schedule.payload::text), p_largest));
    elsif p_schedule.priority is null or p_schedule.priority not between -100 and 100 then
        perform penstock.refuse('PS400',
            format('priority: %s is not between -100 and 100', coalesce(p_schedule.priority::text, 'null')));
    elsif p_schedule.cron is null or octet_length(p_schedule.cron) > 200
       or p_schedule.cron !~ '^[^[:space:]]+( [^[:space:]]+){4}$' then
        perform penstock.refuse('PS400',
            format('cron: %s is not five fields', coalesce(quote_literal(left(p_schedule.cron, 80)), 'null')));
    elsif p_schedule.backfill is null or p_schedule.backfill not in ('none', 'last', 'all') then
        perform penstock.refuse('PS400',
            format('backfill: %s is not none, last or all',
                   coalesce(quote_literal(left(p_schedule.backfill, 80)), 'null')));
    elsif octet_length(p_schedule.key) not between 1 and 128 then
        perform penstock.refuse('PS400',
            format('key: %s bytes are not between 1 and 128', octet_length(p_schedule.key)));
    elsif p_schedule.expires not between '1 microsecond' and '3650 days' then
        perform penstock.refuse('PS400',
            format('expires: %s is not more than 0 and at most 3650 days', p_schedule.expires));
    elsif p_schedule.until_next is null or p_schedule.until_next and p_schedule.expires is not null then
        perform penstock.refuse('PS400', 'until_next: it is null, or expires is given too');
    elsif p_schedule.tz is null then
        perform penstock.refuse('PS400', 'tz: it is null');
    end if;
    begin
        perform penstock.clock() at time zone p_schedule.tz;
    exception when invalid_parameter_value then
        perform penstock.refuse('PS400', format('tz: %L is not a time zone', left(p_schedule.tz, 80)));
    end;
end
$$;
