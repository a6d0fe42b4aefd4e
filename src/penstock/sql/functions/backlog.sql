-- Adopted tables: what we remember of them. Their own statements are made in Python, from the catalog (backlog/claim.py).

-- Takes a table over, or changes what is known of one that was. How far its ticks were walked stays.
create or replace function penstock.adopt(
    p_name text, p_schema text, p_table text, p_mode text, p_terms jsonb, p_retry jsonb, p_max_attempts int default null, p_sla interval default null
) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_known penstock.adopted;
    v_id    int;
begin
    if p_name is null or p_name !~ '^[a-z0-9][a-z0-9_.-]{0,62}$' then
        perform penstock.refuse('PS400', format('name: %s is not a name', coalesce(quote_literal(left(p_name, 80)), 'null')),
            'A name has 1 to 63 of a-z, 0-9, _ . - and begins with a letter or digit.');
    elsif p_schema is null or p_table is null or p_terms is null or jsonb_typeof(p_terms) <> 'object' then
        perform penstock.refuse('PS400', 'table: schema, table and terms are needed');
    elsif p_mode is null or p_mode not in ('observe', 'sidecar', 'columns') then
        perform penstock.refuse('PS400', format('mode: %s is not observe, sidecar or columns', coalesce(quote_literal(left(p_mode, 80)), 'null')));
    elsif p_max_attempts not between 1 and 32767 then
        perform penstock.refuse('PS400', format('max_attempts: %s is not between 1 and 32767', p_max_attempts));
    elsif penstock.in_seconds(p_sla) <= '0' or p_sla > '3650 days' then
        perform penstock.refuse('PS400', format('sla: %s is not more than 0 and at most 3650 days', p_sla));
    end if;
    perform penstock.check_retry(p_retry);
    if exists (select from penstock.queue as q where q.name = p_name) then
        perform penstock.refuse('PS409', format('name: there is a queue %s', quote_literal(p_name)), 'Give the adopted table another name.');
    end if;
    insert into penstock.adopted (name, schema_name, table_name, mode, terms, retry, max_attempts, sla)
    values (p_name, p_schema, p_table, p_mode, p_terms, p_retry, p_max_attempts, p_sla)
    on conflict (name) do nothing returning id into v_id;
    if v_id is null then
        select * into v_known from penstock.adopted as a where a.name = p_name for update;
        if (v_known.schema_name, v_known.table_name) <> (p_schema, p_table) then
            perform penstock.refuse('PS409', format('name: %s is the adopted table %I.%I', quote_literal(p_name), v_known.schema_name, v_known.table_name),
                'Give this one another name.');
        end if;
        v_id := v_known.id;
        update penstock.adopted as a
        set mode = p_mode, terms = p_terms, retry = p_retry, max_attempts = p_max_attempts, sla = p_sla
        where a.id = v_id;
    end if;
    perform penstock.note_audit('adopt', p_name, jsonb_build_object('schema', p_schema, 'table', p_table, 'mode', p_mode));
    return v_id;
end
$$;

-- Forgets an adopted table. Nothing in the table itself is changed.
create or replace function penstock.abandon(p_name text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_id int;
begin
    delete from penstock.adopted as a where a.name = p_name returning a.id into v_id;
    if v_id is null then
        return false;
    end if;
    delete from penstock.adopted_record as r where r.adopted_id = v_id;
    delete from penstock.adopted_hand as h where h.adopted_id = v_id;
    perform penstock.note_audit('abandon', p_name, '{}');
    return true;
end
$$;

-- Records that failed: [{"key": ["7"], "failures": 2, "due": "…", "error": "…"}, …]; without a due they were given up.
create or replace function penstock.note_records(p_adopted int, p_records jsonb) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    insert into penstock.adopted_record (adopted_id, key, failures, last_failure, due, error)
    select p_adopted, array(select jsonb_array_elements_text(r.value->'key')), (r.value->>'failures')::int, penstock.clock(),
           (r.value->>'due')::timestamptz, left(r.value->>'error', 8192)
    from jsonb_array_elements(p_records) as r
    order by 2
    on conflict (adopted_id, key) do update
    set failures = excluded.failures, last_failure = excluded.last_failure, due = excluded.due, error = excluded.error
$$;

-- Records that succeeded, or are no longer there: [["7"], …].
create or replace function penstock.forget_records(p_adopted int, p_keys jsonb) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    delete from penstock.adopted_record as r
    using (select array(select jsonb_array_elements_text(k.value)) as key from jsonb_array_elements(p_keys) as k) as f
    where r.adopted_id = p_adopted and r.key = f.key
$$;

-- How far the ticks were walked. Never backwards, unless told so.
create or replace function penstock.mark_adopted(p_adopted int, p_tick timestamptz, p_key text[], p_back boolean default false) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update penstock.adopted as a set tick = p_tick, key = p_key
    where a.id = p_adopted
      and (p_back or a.tick is null or a.tick < p_tick
           or (a.tick = p_tick and a.key is not null and (p_key is null or a.key collate "C" < p_key collate "C")))
$$;

create or replace function penstock.note_pass(p_adopted int, p_report jsonb) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update penstock.adopted as a set last_pass = p_report where a.id = p_adopted
$$;

create or replace function penstock.next_hand() returns int
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select nextval('penstock.adopted_hand_id_seq')::int
$$;

-- A pass begins, and holds its lock already. Answers those before it that did not end: nobody holds theirs.
create or replace function penstock.begin_hand(p_adopted int, p_hand int) returns table (hand int, key text[])
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    return query
    select h.id, h.key from penstock.adopted_hand as h
    where h.adopted_id = p_adopted and pg_try_advisory_xact_lock(1346719304, h.id);
    insert into penstock.adopted_hand (id, adopted_id) overriding system value values (p_hand, p_adopted);
end
$$;

-- The record that a careful pass handles next.
create or replace function penstock.note_hand(p_hand int, p_key text[]) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update penstock.adopted_hand as h set key = p_key where h.id = p_hand
$$;

create or replace function penstock.end_hands(p_hands int[]) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    delete from penstock.adopted_hand as h where h.id = any(p_hands)
$$;
