-- Queues and their settings.

-- One way to say no. PS400 validation, PS404 not found, PS409 conflict, PS413 too large, PS422 payload.
create or replace function penstock.refuse(p_code text, p_message text, p_hint text default null) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if p_hint is null then
        raise exception using errcode = p_code, message = p_message;
    end if;
    raise exception using errcode = p_code, message = p_message, hint = p_hint;
end
$$;

-- A length of time without months and days, whose lengths depend on where they begin.
create or replace function penstock.in_seconds(p_length interval) returns interval
language sql immutable parallel safe
return case when p_length between '-100 years' and '100 years' then make_interval(secs => extract(epoch from p_length)) else p_length end;

create or replace function penstock.largest_payload(p_queue penstock.queue) returns bigint
language sql immutable parallel safe
return coalesce((p_queue.settings->>'max_payload')::bigint, 1048576);

-- How many letters must change to make one name of the other (Levenshtein). For error messages only.
create or replace function penstock.distance(p_one text, p_other text) returns int
language plpgsql immutable strict set search_path = pg_catalog, pg_temp as $$
declare
    v_row   int[] := array(select generate_series(0, length(p_other)));
    v_next  int[];
begin
    for i in 1 .. length(p_one) loop
        v_next := array[i];
        for j in 1 .. length(p_other) loop
            v_next[j + 1] := least(v_next[j] + 1, v_row[j + 1] + 1,
                                   v_row[j] + (substr(p_one, i, 1) <> substr(p_other, j, 1))::int);
        end loop;
        v_row := v_next;
    end loop;
    return v_row[length(p_other) + 1];
end
$$;

create or replace function penstock.nearest_queue(p_name text) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp
return (
    select q.name
    from (select q.name, penstock.distance(left(p_name, 80), q.name) as steps from penstock.queue as q order by q.name limit 1000) as q
    where q.steps <= greatest(2, length(p_name) / 3)
    order by q.steps, q.name limit 1
);

create or replace function penstock.the_queue(p_name text) returns penstock.queue
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_queue penstock.queue;
begin
    select * into v_queue from penstock.queue as q where q.name = p_name;
    if not found then
        perform penstock.refuse(
            'PS404', format('queue %s does not exist', coalesce(quote_literal(left(p_name, 80)), 'null')),
            coalesce('Did you mean ' || quote_literal(penstock.nearest_queue(p_name)) || '?',
                     'Create it with penstock.create_queue or `penstock queues create`.'));
    end if;
    return v_queue;
end
$$;

-- Refuses settings that could not be kept.
create or replace function penstock.check_queue(p_queue penstock.queue) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if p_queue.name is null or p_queue.name !~ '^[a-z0-9][a-z0-9_.-]{0,62}$' then
        perform penstock.refuse('PS400', format('queue: %s is not a name', coalesce(quote_literal(left(p_queue.name, 80)), 'null')),
            'A name has 1 to 63 of a-z, 0-9, _ . - and begins with a letter or digit.');
    elsif p_queue.lease is null or penstock.in_seconds(p_queue.lease) not between '100 milliseconds' and '24 hours' then
        perform penstock.refuse('PS400', format('lease: %s is not between 100 ms and 24 h', coalesce(p_queue.lease::text, 'null')));
    elsif p_queue.max_attempts not between 1 and 32767 then
        perform penstock.refuse('PS400', format('max_attempts: %s is not between 1 and 32767', p_queue.max_attempts));
    elsif penstock.in_seconds(p_queue.sla) <= '0' or p_queue.sla > '3650 days' then
        perform penstock.refuse('PS400', format('sla: %s is not more than 0 and at most 3650 days', p_queue.sla));
    elsif least(p_queue.keep_done, p_queue.keep_dead, p_queue.keep_cancelled) < '0'
       or greatest(p_queue.keep_done, p_queue.keep_dead, p_queue.keep_cancelled) > '3650 days' then
        perform penstock.refuse('PS400', 'keep_done, keep_dead, keep_cancelled: a retention is between 0 and 3650 days');
    elsif p_queue.settings is null or jsonb_typeof(p_queue.settings) <> 'object' then
        perform penstock.refuse('PS400', format('settings: %s is not a JSON object', coalesce(left(p_queue.settings::text, 80), 'null')));
    elsif p_queue.settings ? 'max_payload' and not penstock.is_number(p_queue.settings->'max_payload', 2, 16777216) then
        perform penstock.refuse('PS400', format('max_payload: %s is not between 2 and 16777216', left(p_queue.settings->>'max_payload', 80)));
    elsif p_queue.settings ? 'notify' and jsonb_typeof(p_queue.settings->'notify') <> 'boolean' then
        perform penstock.refuse('PS400', format('notify: %s is not true or false', left(p_queue.settings->>'notify', 80)));
    elsif p_queue.paused is null then
        perform penstock.refuse('PS400', 'paused: it is null');
    end if;
    perform penstock.check_retry(p_queue.retry);
end
$$;

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
    p_exist_ok       boolean default false
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
    perform penstock.check_queue(v_new);
    if p_exist_ok is null then
        perform penstock.refuse('PS400', 'exist_ok: it is null');
    end if;

    insert into penstock.queue (name, lease, max_attempts, retry, sla, keep_done, keep_dead, keep_cancelled, settings)
    values (p_name, penstock.in_seconds(p_lease), p_max_attempts, p_retry, penstock.in_seconds(p_sla), p_keep_done, p_keep_dead,
            p_keep_cancelled, p_settings)
    on conflict (name) do nothing
    returning id into v_id;

    if v_id is not null then
        insert into penstock.low (queue_id, xid, system) values (v_id, 0, penstock.system());
        perform penstock.make_history((penstock.clock() at time zone 'UTC')::date + d.n) from generate_series(0, 14) as d(n);
    elsif not p_exist_ok then
        perform penstock.refuse('PS409', format('queue %L exists already', p_name));
    end if;
    return v_id is not null;
end
$$;

-- Changes settings of a queue: an object with any of lease, max_attempts, retry, sla, paused, keep_done, keep_dead,
-- keep_cancelled (lengths of time as text; null: none), max_payload and notify. Answers the queue as it is then.
create or replace function penstock.set_queue(p_name text, p_changes jsonb) returns penstock.queue
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_old constant penstock.queue := penstock.the_queue(p_name);
    v_new penstock.queue := v_old;
    v_bad text;
begin
    if p_changes is null or jsonb_typeof(p_changes) <> 'object' then
        perform penstock.refuse('PS400', 'changes: it is not a JSON object');
    end if;
    select k.key into v_bad from jsonb_object_keys(p_changes) as k(key)
    where k.key not in ('lease', 'max_attempts', 'retry', 'sla', 'paused', 'keep_done', 'keep_dead', 'keep_cancelled', 'max_payload',
                        'notify');
    if v_bad is not null then
        perform penstock.refuse('PS400', format('changes: %L is not a setting', left(v_bad, 80)),
            'Settings are lease, max_attempts, retry, sla, paused, keep_done, keep_dead, keep_cancelled, max_payload and notify.');
    end if;
    begin
        v_new := jsonb_populate_record(v_old, p_changes - array['max_payload', 'notify']);
    exception when others then
        perform penstock.refuse('PS400', 'changes: ' || sqlerrm);
    end;
    v_new.settings := v_old.settings || (
        select coalesce(jsonb_object_agg(c.key, c.value), '{}') from jsonb_each(p_changes) as c where c.key in ('max_payload', 'notify'));
    perform penstock.check_queue(v_new);
    update penstock.queue as q
    set lease = penstock.in_seconds(v_new.lease), max_attempts = v_new.max_attempts, retry = v_new.retry,
        sla = penstock.in_seconds(v_new.sla), paused = v_new.paused, keep_done = v_new.keep_done, keep_dead = v_new.keep_dead,
        keep_cancelled = v_new.keep_cancelled, settings = v_new.settings
    where q.id = v_old.id
    returning * into v_new;
    if not found then
        perform penstock.the_queue(p_name);    -- dropped meanwhile: says so
    end if;
    perform penstock.note_audit('set', p_name, p_changes);
    return v_new;
end
$$;

-- What the code knows of its kinds: [{"kind", "retry", "max_attempts", "timeout"}, …], null: as the queue has it. Written by
-- workers at their start, so that settle and expiry agree with the code. Answers how many changed.
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
        perform from jsonb_to_recordset(p_kinds) as k(kind text, retry jsonb, max_attempts int, timeout interval);
    exception when data_exception then
        perform penstock.refuse('PS400', 'kinds: ' || sqlerrm);
    end;
    for v_kind in
        select k.kind, nullif(k.retry, 'null') as retry, k.max_attempts, k.timeout
        from jsonb_to_recordset(p_kinds) as k(kind text, retry jsonb, max_attempts int, timeout interval)
        order by k.kind collate "C"
    loop
        if v_kind.kind is null or octet_length(v_kind.kind) not between 1 and 128 then
            perform penstock.refuse('PS400', 'kind: it is null, or not 1 to 128 bytes long');
        elsif v_kind.max_attempts not between 1 and 32767 then
            perform penstock.refuse('PS400', format('max_attempts: %s is not between 1 and 32767', v_kind.max_attempts));
        elsif v_kind.timeout not between '1 millisecond' and '3650 days' then
            perform penstock.refuse('PS400', format('timeout: %s is not more than 0 and at most 3650 days', v_kind.timeout));
        elsif v_kind.retry is not null then
            perform penstock.check_retry(v_kind.retry);
        end if;
        insert into penstock.kind as k (queue_id, kind, retry, max_attempts, timeout)
        values (v_queue.id, v_kind.kind, v_kind.retry, v_kind.max_attempts, v_kind.timeout)
        on conflict (queue_id, kind) do update
        set retry = excluded.retry, max_attempts = excluded.max_attempts, timeout = excluded.timeout
        where (k.retry, k.max_attempts, k.timeout) is distinct from (excluded.retry, excluded.max_attempts, excluded.timeout);
        if found then
            v_count := v_count + 1;
        end if;
    end loop;
    return v_count;
end
$$;

-- What a client may rely on: grows when a function is called differently or answers differently.
create or replace function penstock.contract() returns int
language sql immutable parallel safe
return 3;
