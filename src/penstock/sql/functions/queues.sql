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
    v_id int;
begin
    if p_name is null or p_name !~ '^[a-z0-9][a-z0-9_.-]{0,62}$' then
        perform penstock.refuse('PS400', format('queue: %s is not a name', coalesce(quote_literal(left(p_name, 80)), 'null')),
            'A name has 1 to 63 of a-z, 0-9, _ . - and begins with a letter or digit.');
    elsif p_lease is null or penstock.in_seconds(p_lease) not between '100 milliseconds' and '24 hours' then
        perform penstock.refuse('PS400', format('lease: %s is not between 100 ms and 24 h', coalesce(p_lease::text, 'null')));
    elsif p_max_attempts not between 1 and 32767 then
        perform penstock.refuse('PS400', format('max_attempts: %s is not between 1 and 32767', p_max_attempts));
    elsif penstock.in_seconds(p_sla) <= '0' or p_sla > '3650 days' then
        perform penstock.refuse('PS400', format('sla: %s is not more than 0 and at most 3650 days', p_sla));
    elsif least(p_keep_done, p_keep_dead, p_keep_cancelled) < '0'
       or greatest(p_keep_done, p_keep_dead, p_keep_cancelled) > '3650 days' then
        perform penstock.refuse('PS400', 'keep_done, keep_dead, keep_cancelled: a retention is between 0 and 3650 days');
    elsif p_settings is null or jsonb_typeof(p_settings) <> 'object' then
        perform penstock.refuse('PS400', format('settings: %s is not a JSON object', coalesce(left(p_settings::text, 80), 'null')));
    elsif p_settings ? 'max_payload' and not penstock.is_number(p_settings->'max_payload', 2, 16777216) then
        perform penstock.refuse('PS400', format('max_payload: %s is not between 2 and 16777216', left(p_settings->>'max_payload', 80)));
    elsif p_exist_ok is null then
        perform penstock.refuse('PS400', 'exist_ok: it is null');
    end if;
    perform penstock.check_retry(p_retry);

    insert into penstock.queue (name, lease, max_attempts, retry, sla, keep_done, keep_dead, keep_cancelled, settings)
    values (p_name, penstock.in_seconds(p_lease), p_max_attempts, p_retry, penstock.in_seconds(p_sla), p_keep_done, p_keep_dead,
            p_keep_cancelled, p_settings)
    on conflict (name) do nothing
    returning id into v_id;

    if v_id is not null then
        insert into penstock.low (queue_id, xid, system) values (v_id, 0, penstock.system());
    elsif not p_exist_ok then
        perform penstock.refuse('PS409', format('queue %L exists already', p_name));
    end if;
    return v_id is not null;
end
$$;
