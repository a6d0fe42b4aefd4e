-- Queues and their settings.

-- Raises an error; every refusal goes through this function. The codes are PS400 validation, PS404 not found, PS409
-- conflict, PS413 too large and PS422 payload.
create or replace function penstock.refuse(p_code text, p_message text, p_hint text default null) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if p_hint is null then
        raise exception using errcode = p_code, message = p_message;
    end if;
    raise exception using errcode = p_code, message = p_message, hint = p_hint;
end
$$;

-- Returns a length of time without months and days, whose lengths depend on where they begin. Lengths that a caller
-- gives are compared, stored and added only in this form: PostgreSQL compares with months of 30 days but adds real
-- months, so '-120 mons 3601 days' compares as one day and leads seven weeks back.
create or replace function penstock._in_seconds(p_length interval) returns interval
language sql immutable parallel safe
return case
    when p_length between '-100 years' and '100 years' then make_interval(secs => extract(epoch from p_length))
    else p_length
end;

-- Returns whether a lease has a length that is allowed. Null fits: callers that need a length check for it.
create or replace function penstock._lease_fits(p_lease interval) returns boolean
language sql immutable parallel safe
return penstock._in_seconds(p_lease) between '100 milliseconds' and '24 hours';

create or replace function penstock._refuse_lease(p_lease interval) returns void
language sql stable set search_path = pg_catalog, pg_temp as $$
    select penstock.refuse('PS400', format('lease: %s is not between 100 ms and 24 h', coalesce(p_lease::text, 'null')))
$$;

create or replace function penstock.largest_payload(p_queue penstock.queue) returns bigint
language sql immutable parallel safe
return coalesce((p_queue.settings->>'max_payload')::bigint, 1048576);

-- Returns whether a follow-up without payload and error text always fits into a queue.
create or replace function penstock._takes_follow_ups(p_queue penstock.queue) returns boolean
language sql immutable parallel safe
return penstock.largest_payload(p_queue) >= 8192;

-- Returns how many bytes a payload may take as text, which is how it is read. PostgreSQL writes numbers out: 1e131071
-- takes eight bytes when sent and 131,072 when read, so a payload of ten thousand such numbers would stop every claim
-- of its queue. Any number that a double can hold is read as at most 52 times its sent length (1e308), so only numbers
-- beyond that are refused.
create or replace function penstock._largest_text(p_queue penstock.queue) returns bigint
language sql immutable parallel safe
return greatest(64 * penstock.largest_payload(p_queue), 4194304);

-- Returns a lower bound of the bytes with which a payload can be written. It counts no blanks and no pairs of zeros,
-- since a number that is shown with 300 zeros may have been sent as 1e300. The bound is at least a sixth of the stored
-- size, because no JSON takes more room when stored than [0,0,…].
create or replace function penstock._least_size(p_payload jsonb) returns int
language sql immutable parallel safe
return greatest(octet_length(replace(replace(replace(p_payload::text, ', ', ','), '": ', '":'), '00', '')),
                (pg_column_size(p_payload) - 64) / 6);

-- Returns how many letters must change to turn one name into the other (Levenshtein), or some number above p_most if
-- there are more than p_most. It is for error messages only. A common beginning and a common end are skipped, which
-- leaves little of two names that differ by a typing error.
create or replace function penstock._distance(p_one text, p_other text, p_most int) returns int
language plpgsql immutable strict set search_path = pg_catalog, pg_temp as $$
declare
    v_one   text[] := string_to_array(p_one, null);
    v_other text[] := string_to_array(p_other, null);
    v_row   int[];
    v_next  int[];
    v_least int;
begin
    while v_one[1] = v_other[1] loop
        v_one := v_one[2:];
        v_other := v_other[2:];
    end loop;
    while v_one[cardinality(v_one)] = v_other[cardinality(v_other)] loop
        v_one := v_one[:cardinality(v_one) - 1];
        v_other := v_other[:cardinality(v_other) - 1];
    end loop;
    v_row := array(select generate_series(0, cardinality(v_other)));
    for i in 1 .. cardinality(v_one) loop
        v_next := array[i];
        v_least := i;
        for j in 1 .. cardinality(v_other) loop
            v_next[j + 1] := least(v_next[j] + 1, v_row[j + 1] + 1, v_row[j] + (v_one[i] <> v_other[j])::int);
            v_least := least(v_least, v_next[j + 1]);
        end loop;
        if v_least > p_most then
            return v_least;
        end if;
        v_row := v_next;
    end loop;
    return v_row[cardinality(v_other) + 1];
end
$$;

-- Returns the name that was most likely meant, or null if none is near. Only twenty names are compared letter by
-- letter. The distance of a name is at least the difference of the lengths, and at least half the number of letters
-- that occur in only one of the two. One or two typing errors usually leave the beginning or the end of a name as it
-- is.
create or replace function penstock._nearest(p_name text, p_names text[]) returns text
language sql immutable set search_path = pg_catalog, pg_temp
return (
    with meant as (
        select m.name, length(m.name) as size, greatest(2, length(m.name) / 3) as most
        from (values (left(p_name, 80))) as m(name)
    ), likely as materialized (
        select n.name
        from meant as m
        cross join unnest(p_names) as n(name)
        cross join lateral (
            select greatest(abs(length(n.name) - m.size),
                            (length(translate(n.name, m.name, ''))
                             + length(translate(m.name, n.name, '')) + 1) / 2) as bound,
                   (left(n.name, m.size / 2) = left(m.name, m.size / 2))::int
                   + (right(n.name, m.size / 2) = right(m.name, m.size / 2))::int
                   + (left(n.name, m.size / 3) = left(m.name, m.size / 3))::int
                   + (right(n.name, m.size / 3) = right(m.name, m.size / 3))::int
                   as alike
        ) as b
        where b.bound <= m.most
        order by b.alike desc, b.bound, n.name
        limit 20
    )
    select l.name
    from meant as m cross join likely as l
    cross join lateral (select penstock._distance(m.name, l.name, m.most) as steps) as d
    where d.steps <= m.most
    order by d.steps, l.name limit 1
);

create or replace function penstock._nearest_queue(p_name text) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp
return penstock._nearest(p_name, array(select q.name from penstock.queue as q order by q.name limit 10000));

create or replace function penstock.the_queue(p_name text) returns penstock.queue
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_queue penstock.queue;
begin
    select * into v_queue from penstock.queue as q where q.name = p_name;
    if not found then
        perform penstock.refuse(
            'PS404', format('queue %s does not exist', coalesce(quote_literal(left(p_name, 80)), 'null')),
            coalesce('Did you mean ' || quote_literal(penstock._nearest_queue(p_name)) || '?',
                     'Create it with penstock.create_queue or `penstock queues create`.'));
    end if;
    return v_queue;
end
$$;

drop function if exists penstock.create_queue(
    text, interval, int, jsonb, interval, interval, interval, interval, jsonb, boolean);
create or replace function penstock.create_queue(
    p_name           text,
    p_lease          interval default '30 seconds',
    p_max_attempts   int default 20,
    p_retry          jsonb default '{"type": "exponential", "base": 5, "factor": 2, "cap": 3600, "jitter": 0.1}',
    p_sla            interval default null,
    p_keep_done      interval default null,
    p_keep_dead      interval default null,
    p_keep_cancelled interval default null,
    p_settings       jsonb default '{}',
    p_exist_ok       boolean default false,
    p_max_crashes    int default 20,
    p_priority_step  interval default null
) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_new penstock.queue;
    v_id  int;
begin
    v_new.name := p_name;
    v_new.lease := p_lease;
    v_new.max_attempts := p_max_attempts;
    v_new.retry := p_retry;
    v_new.sla := p_sla;
    v_new.paused := false;
    v_new.keep_done := p_keep_done;
    v_new.keep_dead := p_keep_dead;
    v_new.keep_cancelled := p_keep_cancelled;
    v_new.settings := p_settings;
    v_new.max_crashes := p_max_crashes;
    v_new.priority_step := p_priority_step;
    perform penstock._check_queue(v_new);
    if p_exist_ok is null then
        perform penstock.refuse('PS400', 'exist_ok: it is null');
    end if;

    insert into penstock.queue (name, lease, max_attempts, retry, sla, keep_done, keep_dead, keep_cancelled, settings,
                                max_crashes, priority_step)
    values (p_name, penstock._in_seconds(p_lease), p_max_attempts, p_retry, penstock._in_seconds(p_sla),
            penstock._in_seconds(p_keep_done), penstock._in_seconds(p_keep_dead),
            penstock._in_seconds(p_keep_cancelled), p_settings, p_max_crashes,
            penstock._in_seconds(p_priority_step))
    on conflict (name) do nothing
    returning id into v_id;

    if v_id is not null then
        insert into penstock.watermark (queue_id, xid, system) values (v_id, 0, penstock._system());
        perform penstock._make_history((penstock.clock() at time zone 'UTC')::date + d.n)
        from generate_series(0, 14) as d(n);
    elsif not p_exist_ok then
        perform penstock.refuse('PS409', format('queue %L exists already', p_name));
    end if;
    return v_id is not null;
end
$$;

-- Changes settings of a queue and returns the changed queue. p_changes is an object with any of lease, max_attempts,
-- max_crashes, retry, sla, paused, priority_step, keep_done, keep_dead, keep_cancelled (lengths of time as text; null
-- means none), max_payload and notify.
create or replace function penstock.set_queue(p_name text, p_changes jsonb) returns penstock.queue
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_old penstock.queue;
    v_new penstock.queue;
    v_bad text;
begin
    -- The row is locked before it is read: everything is written again below, which would undo a change that commits
    -- meanwhile.
    select * into v_old from penstock.queue as q where q.name = p_name for no key update;
    if not found then
        perform penstock.the_queue(p_name);    -- raises the error
    end if;
    if p_changes is null or jsonb_typeof(p_changes) <> 'object' then
        perform penstock.refuse('PS400', 'changes: it is not a JSON object');
    end if;
    select k.key into v_bad from jsonb_object_keys(p_changes) as k(key)
    where k.key not in ('lease', 'max_attempts', 'max_crashes', 'retry', 'sla', 'paused', 'keep_done', 'keep_dead',
                        'keep_cancelled', 'priority_step', 'max_payload', 'notify');
    if v_bad is not null then
        perform penstock.refuse('PS400', format('changes: %L is not a setting', left(v_bad, 80)),
            'Settings are lease, max_attempts, max_crashes, retry, sla, paused, keep_done, keep_dead, '
            'keep_cancelled, priority_step, max_payload and notify.');
    end if;
    begin
        v_new := jsonb_populate_record(v_old, p_changes - array['max_payload', 'notify']);
    exception when others then
        perform penstock.refuse('PS400', 'changes: ' || sqlerrm);
    end;
    v_new.settings := v_old.settings || (
        select coalesce(jsonb_object_agg(c.key, c.value), '{}')
        from jsonb_each(p_changes) as c where c.key in ('max_payload', 'notify'));
    perform penstock._check_queue(v_new);
    update penstock.queue as q
    set lease = penstock._in_seconds(v_new.lease), max_attempts = v_new.max_attempts, retry = v_new.retry,
        sla = penstock._in_seconds(v_new.sla), paused = v_new.paused, keep_done = penstock._in_seconds(v_new.keep_done),
        keep_dead = penstock._in_seconds(v_new.keep_dead), keep_cancelled = penstock._in_seconds(v_new.keep_cancelled),
        priority_step = penstock._in_seconds(v_new.priority_step), settings = v_new.settings,
        max_crashes = v_new.max_crashes
    where q.id = v_old.id
    returning * into v_new;
    perform penstock._note_audit('set', p_name, p_changes);
    return v_new;
end
$$;

-- Pauses a queue (claims return nothing; pushes and settles go on) or resumes it. Unlike set_queue it changes nothing
-- else, so operators may call it.
create or replace function penstock.set_paused(p_queue text, p_paused boolean) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if p_paused is null then
        perform penstock.refuse('PS400', 'paused: it is null');
    end if;
    perform penstock.set_queue(p_queue, jsonb_build_object('paused', p_paused));
end
$$;

-- Stores the settings of kinds that the code declares: [{"kind", "retry", "max_attempts", "timeout", "on_dead",
-- "on_done"}, …]. A null retry or max_attempts means the setting of the queue. on_dead and on_done are the queue:kind
-- of the task that is pushed when a task of this kind dies or is done. Workers call it when they start, so that settle
-- and expiry agree with the code. Returns how many kinds changed.
create or replace function penstock.set_kinds(p_queue text, p_kinds jsonb) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_kind  record;
    v_count int := 0;
begin
    if p_kinds is null or jsonb_typeof(p_kinds) <> 'array' then
        perform penstock.refuse('PS400', 'kinds: it is not a JSON array');
    end if;
    begin
        perform from jsonb_to_recordset(p_kinds)
            as k(kind text, retry jsonb, max_attempts int, timeout interval, on_dead text, on_done text);
    exception when data_exception then
        perform penstock.refuse('PS400', 'kinds: ' || sqlerrm);
    end;
    for v_kind in
        select k.kind, nullif(k.retry, 'null') as retry, k.max_attempts, penstock._in_seconds(k.timeout) as timeout,
               k.on_dead, k.on_done
        from jsonb_to_recordset(p_kinds)
             as k(kind text, retry jsonb, max_attempts int, timeout interval, on_dead text, on_done text)
        order by k.kind collate "C"
    loop
        if v_kind.kind is null or octet_length(v_kind.kind) not between 1 and 128 then
            perform penstock.refuse('PS400', 'kind: it is null, or not 1 to 128 bytes long');
        elsif v_kind.max_attempts not between 1 and 32767 then
            perform penstock.refuse('PS400',
                format('max_attempts: %s is not between 1 and 32767', v_kind.max_attempts));
        elsif v_kind.timeout not between '1 millisecond' and '3650 days' then
            perform penstock.refuse('PS400',
                format('timeout: %s is not more than 0 and at most 3650 days', v_kind.timeout));
        elsif v_kind.retry is not null then
            perform penstock._check_retry(v_kind.retry);
        end if;
        perform penstock._check_follow_up('on_dead', v_kind.on_dead, p_queue, v_kind.kind);
        perform penstock._check_follow_up('on_done', v_kind.on_done, p_queue, v_kind.kind);
        insert into penstock.kind as k (queue_id, kind, retry, max_attempts, timeout, on_dead, on_done)
        values (v_queue.id, v_kind.kind, v_kind.retry, v_kind.max_attempts, v_kind.timeout, v_kind.on_dead,
                v_kind.on_done)
        on conflict (queue_id, kind) do update
        set retry = excluded.retry, max_attempts = excluded.max_attempts, timeout = excluded.timeout,
            on_dead = excluded.on_dead, on_done = excluded.on_done
        where (k.retry, k.max_attempts, k.timeout, k.on_dead, k.on_done)
              is distinct from (excluded.retry, excluded.max_attempts, excluded.timeout, excluded.on_dead,
                                excluded.on_done);
        if found then
            v_count := v_count + 1;
        end if;
    end loop;
    if v_count > 0 then
        perform penstock._note_follows_done(v_queue.id);
    end if;
    return v_count;
end
$$;

-- Refuses settings that cannot be kept.
create or replace function penstock._check_queue(p_queue penstock.queue) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    v_bad text;
begin
    select k.name || ': ' || k.keep into v_bad
    from (values ('keep_done', p_queue.keep_done), ('keep_dead', p_queue.keep_dead),
                 ('keep_cancelled', p_queue.keep_cancelled)) as k(name, keep)
    where penstock._in_seconds(k.keep) not between '0' and '3650 days'
    limit 1;
    if p_queue.name is null or p_queue.name !~ '^[a-z0-9][a-z0-9_.-]{0,62}$' then
        perform penstock.refuse('PS400',
            format('queue: %s is not a name', coalesce(quote_literal(left(p_queue.name, 80)), 'null')),
            'A name has 1 to 63 of a-z, 0-9, _ . - and begins with a letter or digit.');
    elsif p_queue.lease is null
       or not penstock._lease_fits(p_queue.lease) then
        perform penstock._refuse_lease(p_queue.lease);
    elsif p_queue.max_attempts not between 1 and 32767 then
        perform penstock.refuse('PS400', format('max_attempts: %s is not between 1 and 32767', p_queue.max_attempts));
    elsif p_queue.max_crashes is null or p_queue.max_crashes not between 1 and 32767 then
        perform penstock.refuse('PS400', format('max_crashes: %s is not between 1 and 32767',
                                                coalesce(p_queue.max_crashes::text, 'null')));
    elsif penstock._in_seconds(p_queue.sla) not between '1 microsecond' and '3650 days' then
        perform penstock.refuse('PS400', format('sla: %s is not more than 0 and at most 3650 days', p_queue.sla));
    elsif penstock._in_seconds(p_queue.priority_step) not between '1 microsecond' and '365 days' then
        perform penstock.refuse('PS400',
            format('priority_step: %s is not more than 0 and at most 365 days', p_queue.priority_step));
    elsif v_bad is not null then
        perform penstock.refuse('PS400', v_bad || ' is not between 0 and 3650 days');
    elsif p_queue.settings is null or jsonb_typeof(p_queue.settings) <> 'object' then
        perform penstock.refuse('PS400',
            format('settings: %s is not a JSON object', coalesce(left(p_queue.settings::text, 80), 'null')));
    elsif p_queue.settings ? 'max_payload'
       and not penstock._is_number(p_queue.settings->'max_payload', 2, 16777216) then
        perform penstock.refuse('PS400',
            format('max_payload: %s is not between 2 and 16777216', left(p_queue.settings->>'max_payload', 80)));
    elsif p_queue.settings ? 'notify' and jsonb_typeof(p_queue.settings->'notify') <> 'boolean' then
        perform penstock.refuse('PS400',
            format('notify: %s is not true or false', left(p_queue.settings->>'notify', 80)));
    elsif p_queue.paused is null then
        perform penstock.refuse('PS400', 'paused: it is null');
    end if;
    perform penstock._check_retry(p_queue.retry);
end
$$;

-- Checks how long upkeep keeps something: at least a day, or null for ever. Every worker may call upkeep, and none may
-- delete what others rely on. Returns the length without months and days, and short enough to be subtracted from any
-- moment.
create or replace function penstock._check_retention(p_field text, p_keep interval) returns interval
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
    v_keep constant interval := penstock._in_seconds(p_keep);
begin
    if v_keep < '1 day' then
        perform penstock.refuse('PS400', format('%s: %s is less than 1 day', p_field, p_keep),
            'Keep at least 1 day; null keeps for ever.');
    end if;
    return case when p_keep is not null then least(v_keep, penstock._in_seconds('36500 days')) end;
end
$$;
