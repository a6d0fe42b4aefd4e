-- Progress: what handlers say of their tasks while they run. It is kept beside the tasks, so that no row of the queue
-- grows, and no settle looks at it.

-- Stores what handlers said of tasks of a lease: [{"id", "part", "text", "ago", "lines": [[n, ago, text], …]}, …]. The
-- `ago` are seconds. A null part leaves the last part and text. n numbers the lines of a run, so that lines that are
-- sent again are stored once. Of each task the last 100 lines are kept, and of each text 200 characters. Tasks that
-- this lease does not hold, or no longer, are left out. Returns how many tasks are noted.
create or replace function penstock.note_progress(p_token uuid, p_notes jsonb) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set timezone = 'UTC' as $$
declare
    v_now   constant timestamptz := penstock.clock();
    v_lease penstock.lease;
    v_count int;
begin
    perform penstock._check_notes(p_token, p_notes);
    -- The lease is not locked: of a task that ends at this moment, upkeep removes the note.
    select * into v_lease from penstock.lease as l where l.token = p_token and l.until >= v_now;
    insert into penstock.progress as p (task_id, queue_id, claimed_at, attempt, at, part, text, lines, log)
    select n.id, v_lease.queue_id, v_lease.claimed_at, coalesce(h.attempts, 0) + 1,
           v_now - make_interval(secs => n.ago), n.part, penstock._note_text(n.text),
           coalesce((n.lines->-1->>0)::int, 0),
           penstock._join_lines('[]', penstock._read_lines(n.lines, coalesce(h.attempts, 0) + 1, v_now), 0)
    from jsonb_to_recordset(p_notes) as n(id bigint, part float8, text text, ago float8, lines jsonb)
    join unnest(v_lease.ids, v_lease.attempts) with ordinality as h(id, attempts, o) on h.id = n.id
    where get_bit(v_lease.open, h.o::int - 1) = 1
    order by n.id
    on conflict (task_id) do update
    set claimed_at = excluded.claimed_at, attempt = excluded.attempt, at = excluded.at,
        part = coalesce(excluded.part, p.part),
        text = case when excluded.part is null then p.text else excluded.text end,
        lines = greatest(excluded.lines, case when p.claimed_at = excluded.claimed_at then p.lines else 0 end),
        log = penstock._join_lines(
            p.log, excluded.log, case when p.claimed_at = excluded.claimed_at then p.lines else 0 end)
    where p.claimed_at <= excluded.claimed_at;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

-- Returns a text of a handler in the form in which it is stored.
create or replace function penstock._note_text(p_text text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp
return penstock._safe_text(case when length(p_text) > 200 then left(p_text, 199) || '…' else p_text end);

-- Returns lines as they are sent in the form in which they are stored.
create or replace function penstock._read_lines(p_lines jsonb, p_attempt int, p_now timestamptz) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp
return (
    select coalesce(jsonb_agg(jsonb_build_object(
        'n', (e.line->>0)::int, 'at', p_now - make_interval(secs => (e.line->>1)::float8), 'attempt', p_attempt,
        'text', penstock._note_text(e.line->>2)) order by e.o), '[]')
    from jsonb_array_elements(p_lines) with ordinality as e(line, o)
);

-- Returns the last 100 of the stored lines and those new ones whose number is above p_known.
create or replace function penstock._join_lines(p_old jsonb, p_new jsonb, p_known int) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp
return (
    select coalesce(jsonb_agg(l.line order by l.o), '[]')
    from (
        select e.line, e.o
        from jsonb_array_elements(p_old || (
            select coalesce(jsonb_agg(w.line order by w.o), '[]')
            from jsonb_array_elements(p_new) with ordinality as w(line, o)
            where (w.line->>'n')::int > p_known
        )) with ordinality as e(line, o)
        order by e.o desc limit 100
    ) as l
);

create or replace function penstock._check_notes(p_token uuid, p_notes jsonb) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    v_bad text;
begin
    if p_token is null then
        perform penstock.refuse('PS400', 'token: it is null');
    elsif p_notes is null or jsonb_typeof(p_notes) <> 'array' then
        perform penstock.refuse('PS400', 'notes: it is not a JSON array');
    elsif jsonb_array_length(p_notes) > 10000 then
        perform penstock.refuse('PS400', format('notes: %s are more than 10000', jsonb_array_length(p_notes)));
    end if;
    begin
        select case
            when n.id is null then 'id: it is null'
            when n.part not between 0 and 1 then format('part: %s is not between 0 and 1', n.part)
            when n.ago is null or n.ago not between 0 and 31536000
                then format('ago: %s is not between 0 and 31536000 seconds', coalesce(n.ago::text, 'null'))
            when n.lines is null or jsonb_typeof(n.lines) <> 'array' then 'lines: it is not a JSON array'
            else (
                select 'lines: one is not [number, seconds ago, text]'
                from jsonb_array_elements(n.lines) as e(line)
                where jsonb_typeof(e.line) <> 'array' or jsonb_typeof(e.line->0) is distinct from 'number'
                   or (e.line->>0)::int < 1 or jsonb_typeof(e.line->2) is distinct from 'string'
                   or coalesce((e.line->>1)::float8 not between 0 and 31536000, true)
                limit 1
            ) end
        into v_bad
        from jsonb_to_recordset(p_notes) as n(id bigint, part float8, text text, ago float8, lines jsonb)
        where n.id is null or n.part not between 0 and 1 or n.ago is null or n.ago not between 0 and 31536000
           or n.lines is null or n.lines <> '[]'
        order by 1 nulls last limit 1;
    exception when data_exception then
        v_bad := sqlerrm;
    end;
    if v_bad is not null then
        perform penstock.refuse('PS400', 'notes: ' || v_bad);
    end if;
    select n.id::text into v_bad
    from jsonb_to_recordset(p_notes) as n(id bigint) group by n.id having count(*) > 1 limit 1;
    if v_bad is not null then
        perform penstock.refuse('PS400', format('notes: id %s is given twice', v_bad));
    end if;
end
$$;

-- Returns what the handler of a task said last: how far it is, between 0 and 1, a text, when and in which attempt it
-- said something, and the last lines of its log: [{"at", "attempt", "text"}, …]. Returns no row if it said nothing.
-- Refuses a task that does not exist and, with p_queue, a task of another queue.
create or replace function penstock.find_progress(p_id bigint, p_queue text default null)
returns table (part double precision, text text, at timestamptz, attempt int, log jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    perform penstock._check_id(p_id);
    if not exists (
        select from penstock.task as t
        where t.id = p_id and (p_queue is null or t.queue_id = (penstock.the_queue(p_queue)).id)
    ) then
        perform penstock.refuse('PS404',
            format('id: there is no task %s', p_id) || coalesce(' in queue ' || quote_literal(p_queue), ''),
            'Progress is removed with its task.');
    end if;
    return query
    select p.part, p.text, p.at, p.attempt,
           (select coalesce(jsonb_agg(e.line - 'n' order by e.o), '[]')
            from jsonb_array_elements(p.log) with ordinality as e(line, o))
    from penstock.progress as p where p.task_id = p_id;
end
$$;

-- Removes notes of tasks that are gone. A settle does not look for them.
create or replace function penstock._forget_progress(p_limit int) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_bitmapscan = off as $$
declare
    v_count bigint;
begin
    delete from penstock.progress as p
    where p.task_id = any(array(
        select g.task_id from penstock.progress as g
        where not exists (select from penstock.task as t where t.id = g.task_id)
        limit p_limit));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
