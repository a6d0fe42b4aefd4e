-- What the dashboard shows. Every function here reads a bounded number of rows, however large the queue is, and says
-- how far it looked.

-- Returns the tasks that a page of a list considers, in its order, each with its place in that order. Ended tasks come
-- newest first, pending ones in the order in which claims take them, planned ones by due, all others by id, newest
-- first. p_after is the place of the last task of the page before.
create or replace function penstock._page_candidates(p_queue_id int, p_state text, p_after jsonb, p_most int)
returns table (id bigint, place jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC'
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_column
begin
    if p_state = 'pending' then
        return query
        select a.task_id, jsonb_build_array(a.priority, a.due, a.task_id)
        from penstock.agenda as a
        where a.queue_id = p_queue_id and a.pending
          and (p_after is null or (a.priority, a.due, a.task_id)
               > ((p_after->>0)::smallint, (p_after->>1)::timestamptz, (p_after->>2)::bigint))
        order by a.priority, a.due, a.task_id limit p_most;
    elsif p_state = 'planned' then
        return query
        select a.task_id, jsonb_build_array(a.due, a.task_id)
        from penstock.agenda as a
        where a.queue_id = p_queue_id and not a.pending
          and (p_after is null or (a.due, a.task_id) > ((p_after->>0)::timestamptz, (p_after->>1)::bigint))
        order by a.due, a.task_id limit p_most;
    elsif p_state in ('done', 'dead', 'cancelled') then
        return query
        select t.id, jsonb_build_array(t.ended_at, t.id)
        from penstock.task as t
        where t.queue_id = p_queue_id and t.ended = p_state
          and (p_after is null or (t.ended_at, t.id) < ((p_after->>0)::timestamptz, (p_after->>1)::bigint))
        order by t.ended_at desc, t.id desc limit p_most;
    elsif p_state = 'active' then
        return query
        select o.id, jsonb_build_array(o.id)
        from penstock.lease as l cross join lateral unnest(l.ids) with ordinality as o(id, n)
        where l.queue_id = p_queue_id and get_bit(l.open, o.n::int - 1) = 1
          and (p_after is null or o.id < (p_after->>0)::bigint)
        order by o.id desc limit p_most;
    else
        return query
        select t.id, jsonb_build_array(t.id)
        from (
            select d.id, d.queue_id from penstock.task as d
            where p_after is null or d.id < (p_after->>0)::bigint
            order by d.id desc limit p_most
        ) as t
        order by t.id desc;
    end if;
end
$$;

-- Returns a page of the tasks of a queue (null: of all queues, without a state): an object with `tasks`; `next`, the
-- place to go on from, or null after the last page; and `looked`, how many tasks were considered. With a filter that
-- has no index, a page considers at most p_look tasks, and may have fewer tasks than p_limit although others follow.
create or replace function penstock.task_page(
    p_queue text, p_state text default null, p_kind text default null, p_error text default null,
    p_subject text default null, p_after jsonb default null, p_limit int default 50, p_look int default 20000
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC'
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_custom_plan as $$
declare
    -- A state by which nothing is indexed filters tasks in the order of ids.
    v_by_state constant boolean := p_state in ('pending', 'planned', 'active', 'done', 'dead', 'cancelled');
    v_queue    penstock.queue;
    v_most     int;
    v_ids      bigint[];
    v_places   jsonb[];
    v_page     jsonb;
    v_kept     int;
    v_last     int;
begin
    perform penstock._check_limit(p_limit);
    perform penstock._check_filter(p_error);
    if p_look is null or p_look not between 1 and 1000000 then
        perform penstock.refuse('PS400', 'look: it is null, or not between 1 and 1000000');
    elsif p_queue is null and v_by_state then
        perform penstock.refuse('PS400', 'queue: tasks of one state are listed for one queue');
    end if;
    if p_queue is not null then
        v_queue := penstock.the_queue(p_queue);
    end if;
    if p_subject is not null then
        v_ids := array(select t.id from penstock.task as t
                       where t.subject = p_subject and t.queue_id = any(
                           array(select q.id from penstock.queue as q where p_queue is null or q.id = v_queue.id))
                       limit p_limit);
        v_most := p_limit + 1;
    else
        v_most := case when num_nonnulls(p_kind, p_error) = 0 and (v_by_state or p_queue is null)
                            and (v_by_state or p_state is null) then p_limit
                       else greatest(p_look, p_limit) end;
        select array_agg(c.id order by c.n), array_agg(c.place order by c.n) into v_ids, v_places
        from (
            select x.id, x.place, row_number() over () as n
            from penstock._page_candidates(v_queue.id, p_state, p_after, v_most) as x
        ) as c;
    end if;
    select jsonb_agg(jsonb_build_object(
               'id', m.id, 'queue', m.queue, 'kind', m.kind, 'subject', m.subject, 'state', m.state,
               'priority', m.priority, 'due', m.due, 'attempts', m.attempts, 'iterations', m.iterations,
               'created', m.created, 'ended_at', m.ended_at, 'reason', left(m.reason, 300),
               'error_class', m.error_class, 'error', left(split_part(m.error, E'\n', 1), 300)) order by m.n),
           count(*), max(m.n)
    into v_page, v_kept, v_last
    from (
        select t.*, c.n
        from unnest(v_ids) with ordinality as c(id, n)
        join penstock.tasks as t on t.id = c.id
        where (p_queue is null or t.queue = p_queue)
          and (p_state is null or t.state = p_state)
          and (p_kind is null or t.kind = p_kind)
          and (p_error is null or penstock.mentions(t.error_class, t.error, t.reason, p_error))
        order by c.n limit p_limit
    ) as m;
    return jsonb_build_object(
        'tasks', coalesce(v_page, '[]'), 'looked', coalesce(cardinality(v_ids), 0),
        'next', case when v_kept = p_limit then v_places[v_last]
                     when cardinality(v_ids) >= v_most then v_places[cardinality(v_ids)] end);
end
$$;

-- Returns a message without what differs from task to task: quoted texts, UUIDs, long hexadecimal numbers and digits.
create or replace function penstock._error_pattern(p_error text, p_reason text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp
return regexp_replace(regexp_replace(regexp_replace(
    left(split_part(coalesce(p_error, p_reason, ''), E'\n', 1), 300),
    '''[^'']{0,200}''|"[^"]{0,200}"', '…', 'g'),
    '\m([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|0x[0-9a-f]+|(?=[0-9a-f]*[0-9])[0-9a-f]{12,})\M',
    '…', 'gi'),
    '\d+([.,:]\d+)*', 'N', 'g');

create or replace function penstock._error_fingerprint(p_class text, p_pattern text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp
return lpad(to_hex(hashtextextended((coalesce(p_class, '') || E'\n' || p_pattern) collate "C", 0)), 16, '0');

-- Returns the dead tasks of one queue or of all queues by their fingerprint, which is the class of the error and the
-- pattern of its message. It considers the p_look newest dead tasks of each queue; `complete` says whether these are
-- all.
create or replace function penstock.failures(p_queue text default null, p_look int default 10000) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC'
set enable_seqscan = off as $$
begin
    perform penstock._check_limit(p_look);
    if p_queue is not null then
        perform penstock.the_queue(p_queue);
    end if;
    return coalesce((
        select jsonb_agg(to_jsonb(g) order by g.last desc)
        from (
            select d.queue, penstock._error_fingerprint(d.error_class, d.pattern) as fingerprint,
                   d.error_class, d.pattern as message, count(*) as tasks,
                   (array_agg(distinct d.kind))[1:10] as kinds, min(d.ended_at) as first, max(d.ended_at) as last,
                   max(d.id) as newest, min(d.complete::int) = 1 as complete
            from (
                select q.name as queue, t.id, t.kind, t.error_class, t.ended_at,
                       penstock._error_pattern(t.error, t.reason) as pattern,
                       count(*) over (partition by q.id) < p_look as complete
                from penstock.queue as q
                cross join lateral (
                    select x.id, x.kind, x.error_class, x.error, x.reason, x.ended_at
                    from penstock.task as x
                    where x.queue_id = q.id and x.ended = 'dead'
                    order by x.ended_at desc limit p_look
                ) as t
                where p_queue is null or q.name = p_queue
            ) as d
            group by d.queue, d.error_class, d.pattern
            order by max(d.ended_at) desc
            limit 500
        ) as g), '[]');
end
$$;

-- Returns the newest dead tasks of a queue with this fingerprint, among the p_look newest.
create or replace function penstock.failed_ids(p_queue text, p_fingerprint text, p_limit int, p_look int default 10000)
returns setof bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
begin
    perform penstock._check_limit(p_limit);
    perform penstock._check_limit(p_look);
    return query
    select t.id
    from (
        select x.id, x.error_class, x.error, x.reason, x.ended_at
        from penstock.task as x
        where x.queue_id = v_queue.id and x.ended = 'dead'
        order by x.ended_at desc limit p_look
    ) as t
    where penstock._error_fingerprint(t.error_class, penstock._error_pattern(t.error, t.reason)) = p_fingerprint
    order by t.ended_at desc
    limit p_limit;
end
$$;

-- Returns how long the tasks of a queue waited and ran lately: by kind, and as a whole (kind null), each with the 50th,
-- 90th and 99th percentile and the maximum in seconds. History has no index on time, but it is written in order: the
-- function reads the last p_pages pages of today's partition, and of yesterday's if need be. `from` is the moment from
-- which every attempt was read.
create or replace function penstock.recent_times(
    p_queue text, p_span interval default '1 hour', p_pages int default 1000
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_now   constant timestamptz := penstock.clock();
    v_from  timestamptz := v_now - least(penstock._in_seconds(p_span), '1 day');
    v_left  bigint := p_pages;
    v_parts text[] := '{}';
    v_day   date := (v_now at time zone 'UTC')::date;
    v_name  text;
    v_pages bigint;
    v_oldest timestamptz;
    v_found jsonb;
begin
    if p_span is null or p_span <= '0' or p_pages is null or p_pages not between 1 and 100000 then
        perform penstock.refuse('PS400', 'span, pages: span is not positive, or pages is not between 1 and 100000');
    end if;
    while v_left > 0 and v_day >= (v_from at time zone 'UTC')::date loop
        v_name := 'penstock.history_' || to_char(v_day, 'YYYYMMDD');
        v_pages := coalesce(pg_relation_size(to_regclass(v_name)) / current_setting('block_size')::bigint, 0);
        if v_pages > 0 then
            v_parts := v_parts || format(
                'select h.kind, h.outcome, h.due, h.claimed_at, h.finished_at, h.queue_id from %s as h '
                'where h.ctid >= ''(%s,0)''::tid', v_name, greatest(v_pages - v_left, 0));
            if v_pages > v_left then
                -- Rows of one moment may be on neighbouring pages, so the first pages that are read are not complete.
                execute format('select max(h.finished_at) from %s as h where h.ctid >= ''(%s,0)''::tid '
                               'and h.ctid < ''(%s,0)''::tid', v_name, v_pages - v_left, v_pages - v_left + 8)
                into v_oldest;
                v_from := greatest(v_from, v_oldest);
            end if;
        end if;
        v_left := v_left - v_pages;
        v_day := v_day - 1;
    end loop;
    if v_parts <> '{}' then
        execute 'select jsonb_agg(to_jsonb(g) order by g.kind nulls first, g.attempts desc) from (
            select case when grouping(h.kind) = 0 then h.kind end as kind, count(*) as attempts,
                   count(*) filter (where h.outcome in (''failed'', ''dead'')) as failed,
                   percentile_cont(array[0.5, 0.9, 0.99, 1]) within group (order by
                       greatest(extract(epoch from h.claimed_at - h.due), 0)::float8) as wait,
                   percentile_cont(array[0.5, 0.9, 0.99, 1]) within group (order by
                       greatest(extract(epoch from h.finished_at - h.claimed_at), 0)::float8) as run
            from (' || array_to_string(v_parts, ' union all ') || ') as h
            where h.queue_id = $1 and h.finished_at >= $2 and h.outcome in (''done'', ''again'', ''failed'', ''dead'')
            group by grouping sets ((), (h.kind))
            order by count(*) desc limit 51) as g
            where g.attempts > 0'
        into v_found using v_queue.id, v_from;
    end if;
    return jsonb_build_object('from', v_from, 'at', v_now, 'kinds', coalesce(v_found, '[]'));
end
$$;

-- Returns the samples of a queue between two moments as points: [seconds since 1970, pending, active, age of the oldest
-- waiting task, workers, totals, SLA]. Up to 25 hours a point is the worst of its samples; of a longer time, a point is
-- the last sample of its part of it, found by the index.
create or replace function penstock.sample_series(
    p_queue text, p_from timestamptz, p_to timestamptz, p_points int default 180
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set extra_float_digits = 1 as $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_step  constant interval := (p_to - p_from) / greatest(p_points, 1);
begin
    if p_from is null or p_to is null or p_from >= p_to or p_to - p_from > '400 days'
       or p_points is null or p_points not between 1 and 1000 then
        perform penstock.refuse('PS400', 'from, to, points: the time is empty or longer than 400 days, '
                                         'or points is not between 1 and 1000');
    end if;
    if p_to - p_from <= '25 hours' then
        return coalesce((
            select jsonb_agg(jsonb_build_array(
                extract(epoch from g.at)::float8, g.pending, g.active, g.age, g.workers, g.totals, g.sla) order by g.at)
            from (
                select max(s.at) as at, max(s.pending) as pending, max(s.active) as active,
                       extract(epoch from max(s.oldest_age))::float8 as age, max(s.workers) as workers,
                       (array_agg(s.totals order by s.at desc))[1] as totals,
                       extract(epoch from min(s.sla))::float8 as sla
                from penstock.sample as s
                where s.queue_id = v_queue.id and s.at >= p_from and s.at < p_to
                group by floor(extract(epoch from s.at - p_from) / extract(epoch from v_step))
            ) as g), '[]');
    end if;
    return coalesce((
        select jsonb_agg(jsonb_build_array(
            extract(epoch from s.at)::float8, s.pending, s.active, extract(epoch from s.oldest_age)::float8, s.workers,
            s.totals, extract(epoch from s.sla)::float8) order by s.at)
        from generate_series(0, p_points - 1) as n
        cross join lateral (
            select x.* from penstock.sample as x
            where x.queue_id = v_queue.id and x.at >= p_from + n * v_step and x.at < p_from + (n + 1) * v_step
            order by x.at desc limit 1
        ) as s), '[]');
end
$$;

-- Notes in the audit that the payload of a task was shown to a person who sees payloads only on request.
create or replace function penstock.note_reveal(p_id bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_task penstock.task;
begin
    perform penstock._check_id(p_id);
    select * into v_task from penstock.task as t where t.id = p_id;
    if v_task.id is null then
        perform penstock.refuse('PS404', format('id: there is no task %s', p_id));
    end if;
    perform penstock._note_audit('reveal', penstock._queue_name(v_task.queue_id), jsonb_build_object('task', p_id));
end
$$;
