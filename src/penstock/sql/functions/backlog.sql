-- Adopted tables: what Penstock remembers about them. backlog/claim.py makes the statements on the tables themselves
-- from the catalog.

-- Adopts a table, or changes the terms of a table that is already adopted. A change keeps the mark up to which the
-- ticks of the table were walked.
create or replace function penstock.adopt(
    p_name text, p_schema text, p_table text, p_mode text, p_terms jsonb, p_retry jsonb,
    p_max_attempts int default null, p_sla interval default null
) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_known penstock.adopted;
    v_id    int;
begin
    if p_name is null or p_name !~ '^[a-z0-9][a-z0-9_.-]{0,62}$' then
        perform penstock.refuse('PS400',
            format('name: %s is not a name', coalesce(quote_literal(left(p_name, 80)), 'null')),
            'A name has 1 to 63 of a-z, 0-9, _ . - and begins with a letter or digit.');
    elsif p_schema is null or p_table is null or p_terms is null or jsonb_typeof(p_terms) <> 'object' then
        perform penstock.refuse('PS400', 'table: schema, table and terms are needed');
    elsif p_mode is null or p_mode not in ('observe', 'sidecar', 'columns') then
        perform penstock.refuse('PS400',
            format('mode: %s is not observe, sidecar or columns', coalesce(quote_literal(left(p_mode, 80)), 'null')));
    elsif p_max_attempts not between 1 and 32767 then
        perform penstock.refuse('PS400', format('max_attempts: %s is not between 1 and 32767', p_max_attempts));
    elsif penstock._in_seconds(p_sla) not between '1 microsecond' and '3650 days' then
        perform penstock.refuse('PS400', format('sla: %s is not more than 0 and at most 3650 days', p_sla));
    end if;
    perform penstock._check_retry(p_retry);
    if exists (select from penstock.queue as q where q.name = p_name) then
        perform penstock.refuse('PS409', format('name: there is a queue %s', quote_literal(p_name)),
            'Give the adopted table another name.');
    end if;
    insert into penstock.adopted as a (name, schema_name, table_name, mode, terms, retry, max_attempts, sla)
    values (p_name, p_schema, p_table, p_mode, p_terms, p_retry, p_max_attempts, penstock._in_seconds(p_sla))
    on conflict (name) do update
    set mode = excluded.mode, terms = excluded.terms, retry = excluded.retry,
        max_attempts = excluded.max_attempts, sla = excluded.sla
    where (a.schema_name, a.table_name) = (excluded.schema_name, excluded.table_name)
    returning a.id into v_id;
    if v_id is null then
        select * into v_known from penstock.adopted as a where a.name = p_name;
        perform penstock.refuse('PS409',
            format('name: %s is the adopted table %I.%I', quote_literal(p_name),
                   v_known.schema_name, v_known.table_name),
            'Give this one another name.');
    end if;
    perform penstock._note_audit('adopt', p_name,
        jsonb_build_object('schema', p_schema, 'table', p_table, 'mode', p_mode));
    return v_id;
end
$$;

-- Forgets an adopted table. The table itself does not change.
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
    delete from penstock.adopted_failure as f where f.adopted_id = v_id;
    delete from penstock.adopted_pass as p where p.adopted_id = v_id;
    perform penstock._note_audit('abandon', p_name, '{}');
    return true;
end
$$;

-- Notes records that failed: [{"key": ["7"], "failures": 2, "due": "…", "error": "…"}, …]. A record without a due is
-- given up.
create or replace function penstock.note_records(p_adopted int, p_records jsonb) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    insert into penstock.adopted_record (adopted_id, key, failures, last_failure, due, error)
    select p_adopted, array(select jsonb_array_elements_text(r.value->'key')), (r.value->>'failures')::int,
           penstock.clock(), (r.value->>'due')::timestamptz, left(r.value->>'error', 8192)
    from jsonb_array_elements(p_records) as r
    order by 2
    on conflict (adopted_id, key) do update
    set failures = excluded.failures, last_failure = excluded.last_failure, due = excluded.due, error = excluded.error
$$;

-- Forgets records that succeeded or no longer exist: [["7"], …].
create or replace function penstock.forget_records(p_adopted int, p_keys jsonb) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    delete from penstock.adopted_record as r
    using (select array(select jsonb_array_elements_text(k.value)) as key from jsonb_array_elements(p_keys) as k) as f
    where r.adopted_id = p_adopted and r.key = f.key
$$;

-- Notes why records failed: [{"key": ["7"], "error_class": "…", "error": "…", "dead": false, "unwritten": false}, …],
-- and deletes the failures of records that did not fail this time: [["7"], …]. Call it as the last statement of a
-- transaction. It waits for other sessions only before it deletes rows that they may have written.
create or replace function penstock.note_failures(p_adopted int, p_failed jsonb, p_succeeded jsonb default '[]')
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    c_kept constant int := 1000;
    v_over bigint;
begin
    delete from penstock.adopted_failure as f
    using (select array(select jsonb_array_elements_text(k.value)) as key
           from jsonb_array_elements(p_succeeded) as k) as s
    where f.adopted_id = p_adopted and f.key = s.key;
    if p_failed is null or p_failed = '[]' or not exists (select from penstock.adopted as a where a.id = p_adopted) then
        return;
    end if;
    insert into penstock.adopted_failure as f (adopted_id, key, error_class, error, times, dead, unwritten,
                                               first_at, last_at)
    select distinct on (g.key) p_adopted, g.key, left(r.value->>'error_class', 200), left(r.value->>'error', 8192), 1,
           (r.value->>'dead')::boolean, (r.value->>'unwritten')::boolean, penstock.clock(), penstock.clock()
    from jsonb_array_elements(p_failed) as r
    cross join lateral (select array(select jsonb_array_elements_text(r.value->'key')) collate "C" as key) as g
    order by g.key
    on conflict (adopted_id, key) do update
    set error_class = excluded.error_class, error = excluded.error, times = f.times + 1, dead = excluded.dead,
        unwritten = excluded.unwritten, last_at = excluded.last_at;
    -- Two sessions that note failures at the same time do not see each other's rows. The next call deletes the surplus.
    select count(*) - c_kept into v_over from penstock.adopted_failure as f where f.adopted_id = p_adopted;
    if v_over > 0 then
        delete from penstock.adopted_failure as f
        using (
            select o.key from penstock.adopted_failure as o
            where o.adopted_id = p_adopted order by o.last_at limit v_over for update skip locked
        ) as o
        where f.adopted_id = p_adopted and f.key = o.key;
    end if;
end
$$;

-- Notes how far the ticks were walked. The mark never moves backwards unless p_back is true.
create or replace function penstock.mark_adopted(
    p_adopted int, p_tick timestamptz, p_key text[], p_back boolean default false
) returns void
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

create or replace function penstock.next_pass() returns int
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select nextval('penstock.adopted_pass_id_seq')::int
$$;

-- Returns the server process that holds the lock of a pass, or null if none does. The caller compares it with the
-- process that the pass noted when it began, because any login could hold such a lock. (A row lock would also work, but
-- a pass lasts long, and a row lock needs a transaction id, which holds up vacuum and the folding of counters.)
create or replace function penstock._pass_keeper(p_pass int) returns int
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select l.pid
    from pg_locks as l join pg_database as d on d.oid = l.database
    where l.locktype = 'advisory' and l.classid = 1346719304 and l.objid = p_pass::oid and l.objsubid = 2 and l.granted
      and d.datname = current_database()
    limit 1
$$;

-- Begins a pass, which already holds its lock. Returns the earlier passes that did not end: their process no longer
-- holds their lock.
create or replace function penstock.begin_pass(p_adopted int, p_pass int) returns table (pass int, key text[])
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    return query
    select p.id, p.key from penstock.adopted_pass as p
    where p.adopted_id = p_adopted and penstock._pass_keeper(p.id) is distinct from p.pid;
    insert into penstock.adopted_pass (id, adopted_id, pid) overriding system value
    values (p_pass, p_adopted, penstock._pass_keeper(p_pass));
end
$$;

-- Lets a pass that has begun walk the ticks of its table. Returns false if another pass walks them and has not ended.
create or replace function penstock.begin_walk(p_pass int) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_adopted int;
begin
    select p.adopted_id into v_adopted from penstock.adopted_pass as p where p.id = p_pass;
    perform from penstock.adopted as a where a.id = v_adopted for no key update;    -- one session at a time asks
    if exists (
        select from penstock.adopted_pass as p
        where p.adopted_id = v_adopted and p.id <> p_pass and p.walks and penstock._pass_keeper(p.id) = p.pid) then
        return false;
    end if;
    update penstock.adopted_pass as p set walks = true where p.id = p_pass;
    return found;
end
$$;

-- Notes the record that a careful pass handles next.
create or replace function penstock.note_pass_record(p_pass int, p_key text[]) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update penstock.adopted_pass as p set key = p_key where p.id = p_pass
$$;

create or replace function penstock.end_passes(p_passes int[]) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    delete from penstock.adopted_pass as p where p.id = any(p_passes)
$$;
