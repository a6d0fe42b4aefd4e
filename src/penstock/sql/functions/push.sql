-- Push: the bulk form is the function; a single push is a batch of one. The trigger of the document writes the agenda
-- row.

-- Pushes a batch. One pass, in the order of subjects, inserts each document or locks the one that has its subject, so
-- two pushes never wait for each other in a circle (a second pass for tasks that ended meanwhile would allow that: it
-- caused deadlocks). The session that holds a document also owns its agenda row, once a claim under way has finished.
drop function if exists penstock.push_many(text, text[], text[], text[], timestamptz[], smallint[], text);
create or replace function penstock.push_many(
    p_queue       text,
    p_payloads    text[],
    p_subjects    text[] default null,
    p_kinds       text[] default null,
    p_dues        timestamptz[] default null,
    p_priorities  smallint[] default null,
    p_on_conflict text default 'skip',
    p_keys        text[] default null,
    p_metas       text[] default null,
    p_expires     timestamptz[] default null,
    p_debounce    interval default null,
    p_at_most     interval default null,
    p_throttle    interval default null
) returns table (n int, id bigint, result text, state text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off as $$
#variable_conflict use_column
declare
    v_queue   constant penstock.queue := penstock.the_queue(p_queue);
    v_updates constant boolean := p_on_conflict = 'update';
    v_twice   int[];       -- positions superseded by a later one in this batch
    v_new     int[];       -- positions that were created, and their documents
    v_made    bigint[];
    v_planned boolean[];
    v_ns      int[];       -- positions whose subject exists, and its document
    v_ids     bigint[];
    v_ended   text[];
    v_dues    timestamptz[];
    v_ranks   smallint[];
    v_keys    text[];
    v_firsts  timestamptz[];    -- when the age of these documents began
    v_left    int[];       -- positions whose subject exists, when nothing is to be updated
    v_later   timestamptz;      -- the due by debounce
begin
    perform penstock._check_arrays(p_payloads, p_subjects, p_kinds, p_dues, p_priorities, p_on_conflict);
    perform penstock._check_push(p_payloads, p_subjects, p_kinds, p_dues, p_priorities,
                                 penstock.largest_payload(v_queue));
    if num_nonnulls(p_keys, p_metas, p_expires) > 0 then
        perform penstock._check_extras(cardinality(p_payloads), p_keys, p_metas, p_expires, p_dues);
    end if;

    if num_nonnulls(p_debounce, p_at_most, p_throttle) > 0 then
        perform penstock._check_pace(p_subjects, p_dues, p_on_conflict, p_debounce, p_at_most, p_throttle);
        v_later := penstock.clock() + penstock._in_seconds(p_debounce);
        if p_throttle is not null then
            return query
            select r.n, r.id, r.result, r.state
            from penstock._push_throttled(p_queue, p_payloads, p_subjects, p_kinds, p_dues, p_priorities, p_on_conflict,
                                          p_keys, p_metas, p_expires, p_throttle) as r;
            return;
        end if;
    end if;

    if v_updates then
        perform penstock._check_texts(p_payloads, penstock._largest_text(v_queue));
    end if;

    if cardinality(p_payloads) = 1 and p_subjects[1] is null then
        -- A task without a subject cannot conflict with another task, which halves the work.
        return query
        insert into penstock.task as t (queue_id, priority, kind, payload, due, key, meta, expires)
        values (v_queue.id, coalesce(p_priorities[1], 5::smallint), coalesce(p_kinds[1], 'default'),
                p_payloads[1]::jsonb, p_dues[1], p_keys[1], p_metas[1]::jsonb, p_expires[1])
        returning 1, t.id, 'created', case when t.due is null then 'pending' else 'planned' end;
        return;
    end if;

    -- The last of several equal subjects wins.
    select array_agg(s.n) into v_twice
    from (
        select i.n::int, lead(i.subject) over (order by i.subject collate "C", i.n) = i.subject as again
        from unnest(p_subjects) with ordinality as i(subject, n)
    ) as s
    where s.again;

    -- Ids follow the given order, so that the first task runs first. A conflict locks the document even if nothing is
    -- updated.
    with asked as materialized (
        select i.n::int, nextval('penstock.task_id_seq') as id, i.payload, i.subject, i.kind,
               coalesce(i.due, v_later) as due, i.priority, i.key, i.meta, i.expires
        from unnest(p_payloads, p_subjects, p_kinds, p_dues, p_priorities, p_keys, p_metas, p_expires)
             with ordinality as i(payload, subject, kind, due, priority, key, meta, expires, n)
        where v_twice is null or i.n not in (select unnest(v_twice))
    ), written as (
        insert into penstock.task as t (id, queue_id, priority, kind, subject, payload, due, key, meta, expires)
        select a.id, v_queue.id, coalesce(a.priority, 5::smallint), coalesce(a.kind, 'default'),
               a.subject, a.payload::jsonb, a.due, a.key, a.meta::jsonb, a.expires
        from asked as a
        order by a.subject collate "C", a.id
        on conflict (queue_id, subject) where subject is not null do update
        set payload = excluded.payload, kind = excluded.kind, priority = excluded.priority,
            due = coalesce(excluded.due, t.due), key = excluded.key, meta = excluded.meta, expires = excluded.expires
        where v_updates
        returning t.id, t.subject, coalesce(t.ended, case when t.waits_for > 0 then 'waiting' end) as ended,
                  coalesce(t.since, t.created) as first
    ), matched as materialized (
        select a.n, a.due, coalesce(a.priority, 5::smallint) as priority, a.key, c.id as made, e.id, e.ended,
               e.first
        from asked as a
        left join written as c on c.id = a.id
        left join written as e on e.subject = a.subject and c.id is null
    )
    select array_agg(m.n) filter (where m.made is not null), array_agg(m.made) filter (where m.made is not null),
           array_agg(m.due is not null) filter (where m.made is not null),
           array_agg(m.n) filter (where m.id is not null), array_agg(m.id) filter (where m.id is not null),
           array_agg(m.ended) filter (where m.id is not null), array_agg(m.due) filter (where m.id is not null),
           array_agg(m.priority) filter (where m.id is not null), array_agg(m.key) filter (where m.id is not null),
           array_agg(m.first) filter (where m.id is not null),
           array_agg(m.n order by m.n) filter (where m.made is null and m.id is null)
    into v_new, v_made, v_planned, v_ns, v_ids, v_ended, v_dues, v_ranks, v_keys, v_firsts, v_left
    from matched as m;

    if v_left is not null and p_on_conflict = 'error' then
        perform penstock.refuse('PS409',
            format('item %s: subject %L is taken in queue %L', v_left[1] - 1,
                   left(p_subjects[v_left[1]], 80), p_queue));
    end if;
    return query
    select c.n, c.id, 'created', case when c.planned then 'planned' else 'pending' end
    from unnest(v_new, v_made, v_planned) as c(n, id, planned);
    if v_ids is not null then
        return query
        select r.n, r.id, r.result, r.state
        from penstock._refresh(v_ns, v_ids, v_ended, v_dues, v_ranks,
                               case when p_keys is not null then penstock._number_keys(v_queue.id, v_keys) end,
                               case when p_at_most is not null then v_firsts end, penstock._in_seconds(p_at_most)) as r;
    end if;
    -- These are new statements, so that they see the documents that the insert met.
    if v_left is not null then
        return query
        select f.n, f.id, 'skipped', f.state from penstock._find_subjects(v_queue.id, p_subjects, v_left) as f;
    end if;
    if v_twice is not null then
        return query
        select f.n, f.id, 'superseded', f.state from penstock._find_subjects(v_queue.id, p_subjects, v_twice) as f;
    end if;
end
$$;

-- Updates the agenda for documents that have new content and that the caller holds. It LOCKS an agenda row before it
-- reports the task as updated, and writes the row if it changes. So a claim that comes later reads the new payload. If
-- a claim came first, this function has waited for its end and finds no row to lock: that claim has the old payload, so
-- the task is renewed, which means that it runs again. With p_at_most a waiting task is due that long after the
-- beginning of its age, in p_firsts, at the latest; of a running or ended task the push begins a new age.
drop function if exists penstock._refresh(int[], bigint[], text[], timestamptz[], smallint[]);
create or replace function penstock._refresh(
    p_ns int[], p_ids bigint[], p_ended text[], p_dues timestamptz[], p_priorities smallint[], p_key_ids int[],
    p_firsts timestamptz[] default null, p_at_most interval default null
) returns table (n int, id bigint, result text, state text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off as $$
#variable_conflict use_column
declare
    v_now     constant timestamptz := penstock.clock();
    v_waiting bigint[];
    v_pending boolean[];
    v_moved   bigint[];
    v_active  bigint[];
    v_dues    timestamptz[] := p_dues;
begin
    if p_firsts is not null then
        v_dues := array(
            select least(g.due, greatest(g.first + p_at_most, v_now))
            from unnest(p_dues, p_firsts) with ordinality as g(due, first, n) order by g.n);
    end if;
    -- The task waits: it gets the new priority, and the new due if one was given.
    with held as materialized (
        select a.task_id, a.pending, a.priority, a.key_id from penstock.agenda as a
        where a.task_id = any(p_ids) for update
    )
    select array_agg(h.task_id), array_agg(h.pending and g.due is null),
           array_agg(h.task_id) filter (
               where h.priority <> g.priority or g.due is not null or h.key_id <> coalesce(g.key_id, 0))
    into v_waiting, v_pending, v_moved
    from held as h
    join unnest(p_ids, p_dues, p_priorities, p_key_ids) as g(id, due, priority, key_id) on g.id = h.task_id;
    if v_moved is not null then
        perform penstock._replace_waiting(v_moved, p_ids, v_dues, p_priorities,
                                          coalesce(p_key_ids, array_fill(0, array[cardinality(p_ids)])));
    end if;

    return query
    select g.n, g.id, 'updated', case when w.pending then 'pending' else 'planned' end
    from unnest(p_ns, p_ids) as g(n, id) join unnest(v_waiting, v_pending) as w(id, pending) on w.id = g.id;

    -- The task waits for others: it has its due, priority and key only in the document.
    if array_position(p_ended, 'waiting') is not null then
        return query
        select g.n, g.id, 'updated', 'waiting' from unnest(p_ns, p_ids, p_ended) as g(n, id, ended)
        where g.ended = 'waiting';
    end if;

    -- The task has ended: it begins anew.
    if array_position(p_ended, 'done') is not null or array_position(p_ended, 'dead') is not null
       or array_position(p_ended, 'cancelled') is not null then
        return query
        select g.n, g.id, 'reopened', r.state
        from unnest(p_ns, p_ids, p_ended) as g(n, id, ended)
        join penstock._reopen(p_ids, p_dues, v_now) as r on r.id = g.id
        where g.ended <> 'waiting';
    end if;

    -- The task is active.
    select array_agg(g.id) into v_active
    from unnest(p_ids, p_ended) as g(id, ended)
    left join unnest(v_waiting) as w(id) on w.id = g.id
    where g.ended is null and w.id is null;
    if v_active is not null then
        update penstock.task as t
        set renew = coalesce(g.due, v_now)
        from unnest(p_ids, p_dues) as g(id, due)
        where t.id = any(v_active) and g.id = t.id;
        return query
        select g.n, g.id, 'renewed', 'active'
        from unnest(p_ns, p_ids) as g(n, id) join unnest(v_active) as a(id) on a.id = g.id;
    end if;
end
$$;

-- Gives agenda rows that the caller holds, with their documents, a new priority, due and key, where one is given. It
-- writes new rows instead of new versions: a claim that skips what is locked would wait for the next session that locks
-- a new version (decision 38).
drop function if exists penstock._replace_waiting(bigint[], bigint[], timestamptz[], smallint[]);
create or replace function penstock._replace_waiting(
    p_which bigint[], p_ids bigint[], p_dues timestamptz[], p_priorities smallint[], p_key_ids int[]
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off as $$
begin
    with gone as (
        delete from penstock.agenda as a where a.task_id = any(p_which) returning a.*
    )
    insert into penstock.agenda (task_id, due, queue_id, key_id, priority, attempts, quarantine, pending, named)
    select o.task_id, coalesce(g.due, o.due), o.queue_id, coalesce(g.key_id, o.key_id),
           coalesce(g.priority, o.priority), o.attempts, o.quarantine, o.pending and g.due is null, o.named
    from gone as o
    join unnest(p_ids, p_dues, p_priorities, p_key_ids) as g(id, due, priority, key_id) on g.id = o.task_id;
end
$$;

-- Puts ended documents, which the caller holds, back into the agenda. Their attempts, crashes, errors and age begin
-- anew. They wait for no other task and, with p_lasting, do not expire.
drop function if exists penstock._reopen(bigint[], timestamptz[], timestamptz);
create or replace function penstock._reopen(
    p_ids bigint[], p_dues timestamptz[], p_now timestamptz, p_lasting boolean default false
) returns table (id bigint, state text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off as $$
#variable_conflict use_column
begin
    return query
    with opened as (
        update penstock.task as t
        set ended = null, ended_at = null, reason = null, error = null, error_class = null, attempts = null,
            renew = null, since = p_now, waits_for = null,
            expires = case when not p_lasting then t.expires end
        where t.id = any(p_ids) and t.ended is not null
        returning t.id, t.queue_id, t.priority, t.subject, t.key
    ), waiting as (
        insert into penstock.agenda (task_id, due, queue_id, key_id, priority, pending, named)
        select o.id, coalesce(g.due, p_now), o.queue_id, penstock._key_id(o.queue_id, o.key), o.priority, g.due is null,
               o.subject is not null
        from opened as o join unnest(p_ids, p_dues) as g(id, due) on g.id = o.id
        returning task_id, pending
    )
    select w.task_id, case when w.pending then 'pending' else 'planned' end from waiting as w;
end
$$;

-- Returns the documents that now have the subjects at these positions. `offset 0` keeps this a look-up by index,
-- regardless of the planner's estimate.
create or replace function penstock._find_subjects(p_queue_id int, p_subjects text[], p_which int[])
returns table (n int, id bigint, state text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
begin
    return query
    select i.n::int, t.id,
           coalesce(t.ended, case when a.pending then 'pending' when not a.pending then 'planned'
                                  when t.waits_for > 0 then 'waiting' else 'active' end)
    from unnest(p_subjects) with ordinality as i(subject, n)
    cross join lateral (
        select d.id, d.ended, d.waits_for from penstock.task as d
        where d.queue_id = p_queue_id and d.subject = i.subject offset 0
    ) as t
    left join lateral (
        select w.pending from penstock.agenda as w where w.task_id = t.id offset 0
    ) as a on true
    where i.n in (select unnest(p_which));
end
$$;

drop function if exists penstock.push(text, jsonb, text, text, timestamptz, smallint, text);
drop function if exists penstock.push(text, json, text, text, timestamptz, smallint, text);
drop function if exists penstock.push(text, text, text, text, timestamptz, smallint, text);
create or replace function penstock.push(
    p_queue       text,
    p_payload     jsonb default '{}',
    p_subject     text default null,
    p_kind        text default null,
    p_due         timestamptz default null,
    p_priority    smallint default 5,
    p_on_conflict text default 'skip',
    p_key         text default null,
    p_meta        jsonb default null,
    p_expires     timestamptz default null,
    p_debounce    interval default null,
    p_at_most     interval default null,
    p_throttle    interval default null
) returns table (id bigint, result text, state text)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    return query
    select r.id, r.result, r.state
    from penstock.push_many(p_queue, array[p_payload::text], array[p_subject], array[p_kind], array[p_due],
                            array[p_priority], p_on_conflict, penstock._given(p_key), penstock._given(p_meta::text),
                            case when p_expires is not null then array[p_expires] end,
                            p_debounce, p_at_most, p_throttle) as r;
end
$$;

-- Pushes a payload of type json, as json_build_object and row_to_json make it, or of type text. Without the text
-- version, PostgreSQL would refuse to choose between jsonb and json for a literal or for a parameter without a type;
-- with it, PostgreSQL prefers text. For the same reason only the first version has a default for the payload.
create or replace function penstock.push(
    p_queue       text,
    p_payload     json,
    p_subject     text default null,
    p_kind        text default null,
    p_due         timestamptz default null,
    p_priority    smallint default 5,
    p_on_conflict text default 'skip',
    p_key         text default null,
    p_meta        jsonb default null,
    p_expires     timestamptz default null,
    p_debounce    interval default null,
    p_at_most     interval default null,
    p_throttle    interval default null
) returns table (id bigint, result text, state text)
language sql security definer set search_path = pg_catalog, pg_temp as $$
    select r.id, r.result, r.state
    from penstock.push_many(p_queue, array[p_payload::text], array[p_subject], array[p_kind], array[p_due],
                            array[p_priority], p_on_conflict, penstock._given(p_key), penstock._given(p_meta::text),
                            case when p_expires is not null then array[p_expires] end,
                            p_debounce, p_at_most, p_throttle) as r
$$;

create or replace function penstock.push(
    p_queue       text,
    p_payload     text,
    p_subject     text default null,
    p_kind        text default null,
    p_due         timestamptz default null,
    p_priority    smallint default 5,
    p_on_conflict text default 'skip',
    p_key         text default null,
    p_meta        jsonb default null,
    p_expires     timestamptz default null,
    p_debounce    interval default null,
    p_at_most     interval default null,
    p_throttle    interval default null
) returns table (id bigint, result text, state text)
language sql security definer set search_path = pg_catalog, pg_temp as $$
    select r.id, r.result, r.state
    from penstock.push_many(p_queue, array[p_payload], array[p_subject], array[p_kind], array[p_due],
                            array[p_priority], p_on_conflict, penstock._given(p_key), penstock._given(p_meta::text),
                            case when p_expires is not null then array[p_expires] end,
                            p_debounce, p_at_most, p_throttle) as r
$$;

-- Returns a value as an array, or null without one, so that a push that has none is as cheap as it can be.
create or replace function penstock._given(p_value text) returns text[]
language sql immutable parallel safe
return case when p_value is not null then array[p_value] end;

-- Notes a part of a bulk push before it is written. Returns null if the part is new and may be written; otherwise it
-- returns what was reported when the part was written. The same part with different content is an error and is never
-- skipped.
create or replace function penstock.enter_part(
    p_queue text, p_batch_id uuid, p_part int, p_rows bigint, p_checksum text, p_report jsonb
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_known penstock.ledger;
begin
    insert into penstock.ledger (batch_id, part, queue_id, rows, checksum, report, at)
    values (p_batch_id, p_part, v_queue.id, p_rows, p_checksum, p_report, penstock.clock())
    on conflict (batch_id, part) do nothing;
    if found then
        return null;
    end if;
    select * into v_known from penstock.ledger as l where l.batch_id = p_batch_id and l.part = p_part;
    if (v_known.queue_id, v_known.rows, v_known.checksum) is distinct from (v_queue.id, p_rows, p_checksum) then
        perform penstock.refuse('PS409',
            format('batch %s, part %s: it was written before with other content', p_batch_id, p_part),
            'Repeat a batch id only with the same tasks in the same order.');
    end if;
    return v_known.report;
end
$$;

create or replace function penstock.note_report(p_batch_id uuid, p_part int, p_report jsonb) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update penstock.ledger as l set report = p_report where l.batch_id = p_batch_id and l.part = p_part
$$;
