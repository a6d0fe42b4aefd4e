-- Counters cannot drift, even through hand-written SQL: statement triggers note every change of a gauge, with one log
-- row per statement, queue and metric. Gauges are waiting, planned, pending, active, done, dead and cancelled. Totals
-- end in _total. The plans of these triggers are made once per session. Otherwise PostgreSQL may prefer a plan for the
-- specific values and make one for every statement, which can cost as much as a push.

-- Returns what is wrong with a document, regardless of how it was written, or null if nothing is. Python must be able
-- to read the due: one unreadable task would stop every claim of its queue.
create or replace function penstock._document_fault(
    p_priority smallint, p_kind text, p_subject text, p_payload jsonb, p_due timestamptz,
    p_ended text, p_ended_at timestamptz
) returns text
language sql stable parallel safe
return case
    when p_priority not between -100 and 100 then 'priority: ' || p_priority || ' is not between -100 and 100'
    when octet_length(p_kind) not between 1 and 128
        then 'kind: ' || octet_length(p_kind) || ' bytes are not between 1 and 128'
    when octet_length(p_subject) not between 1 and 512
        then 'subject: ' || octet_length(p_subject) || ' bytes are not between 1 and 512'
    when jsonb_typeof(p_payload) <> 'object' then 'payload: it is not a JSON object'
    when p_due not between '0001-01-02 00:00:00+00' and '9999-12-30 00:00:00+00'
        then 'due: ' || p_due || ' is not between 0001-01-02 and 9999-12-30'
    when p_ended not in ('done', 'dead', 'cancelled')
        then 'ended: ' || left(p_ended, 80) || ' is not done, dead or cancelled'
    when (p_ended is null) <> (p_ended_at is null) then 'ended_at: it is given just when the task has ended'
end;

-- The same for the values that few documents have.
create or replace function penstock._extras_fault(p_key text, p_meta jsonb, p_expires timestamptz, p_waits_for int)
returns text
language sql stable parallel safe
return case
    when octet_length(p_key) not between 1 and 128
        then 'key: ' || octet_length(p_key) || ' bytes are not between 1 and 128'
    when jsonb_typeof(p_meta) <> 'object' then 'meta: it is not a JSON object'
    when pg_column_size(p_meta) > 32768 or octet_length(p_meta::text) > 16384
        then 'meta: it is larger than 8192 bytes'
    when p_expires not between '0001-01-02 00:00:00+00' and '9999-12-30 00:00:00+00'
        then 'expires: ' || p_expires || ' is not between 0001-01-02 and 9999-12-30'
    when p_waits_for < 0 then 'waits_for: ' || p_waits_for || ' is less than 0'
end;

create or replace function penstock._count_task() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
    -- One value for all rows: then ids decide, and the first one given runs first.
    v_now   constant timestamptz := penstock.clock();
    v_group record;
    v_given bigint;      -- the last id that the sequence has given out
    v_most  bigint;      -- the largest payload that the queue allows
    v_text  bigint;      -- the largest size that a payload may have as text
    v_fits  bigint;      -- a payload stored in at most this many bytes never exceeds v_text
    v_large record;
    v_queue text;
    v_idle  bigint[];    -- the channels of the idle workers of the queue
    v_extra boolean := false;    -- some documents have a value that few have
begin
    if tg_op = 'INSERT' then
        -- All rows are examined in one query, because this is the cost of a bulk push.
        for v_group in
            select n.queue_id, n.ended, count(*) as tasks, min(n.id) as first, max(n.id) as last,
                   max(pg_column_size(n.payload)) as widest,
                   bool_or(pg_column_compression(n.payload) is not null) as packed,
                   min(penstock._document_fault(
                       n.priority, n.kind, n.subject, n.payload, n.due, n.ended, n.ended_at)) as fault,
                   bool_or(n.key is not null or n.meta is not null or n.expires is not null
                           or n.waits_for is not null) as extra
            from arrived as n group by n.queue_id, n.ended
        loop
            if v_group.fault is not null then
                perform penstock.refuse('PS400', v_group.fault);
            end if;
            v_extra := v_extra or v_group.extra;
            if current_setting('transaction_isolation') <> 'read committed' then
                -- The snapshot of the transaction may be older than a drop of the queue. In that case this lock fails
                -- with a serialization error, instead of leaving a task that no worker will run.
                perform from penstock.queue as q where q.id = v_group.queue_id for key share;
            end if;
            -- Workers are woken unless notifications are switched off for this queue (PREPARE TRANSACTION refuses a
            -- NOTIFY).
            select s.last_value, penstock.largest_payload(q), penstock._largest_text(q),
                   penstock._largest_text(q) / 131075 * 12, q.name,
                   array(select i.channel from penstock.queue_set as w
                         join penstock.idle_worker as i on i.queue_set = w.id
                         where w.queue_id = q.id and q.settings->'notify' is distinct from 'false')
            into v_given, v_most, v_text, v_fits, v_queue, v_idle
            from penstock.queue as q, penstock.task_id_seq as s where q.id = v_group.queue_id;
            if not found then
                -- The queue was dropped while this transaction waited.
                perform penstock.refuse('PS404', format('queue_id: there is no queue %s', v_group.queue_id));
            end if;
            if v_group.first < 1 or v_group.last > v_given then
                perform penstock.refuse('PS400', 'id: it is not one that penstock.task_id_seq has given out');
            end if;
            -- A number takes at least 12 bytes when stored and at most 131,075 as text, so a small payload fits (6 KB
            -- by default). For larger payloads the text is made here, by the session that writes them. PostgreSQL
            -- refuses to make more than 1 GB.
            if v_group.widest > v_fits or v_group.packed then
                begin
                    select n.id, octet_length(n.payload::text) as size into v_large
                    from arrived as n
                    where n.queue_id = v_group.queue_id
                      and (pg_column_size(n.payload) > v_fits or pg_column_compression(n.payload) is not null)
                      and octet_length(n.payload::text) > v_text
                    limit 1;
                    if found then
                        perform penstock._refuse_text(format('task %s', v_large.id), v_large.size::text, v_text);
                    end if;
                exception when program_limit_exceeded then
                    perform penstock._refuse_text('a task', '1073741824 or more', v_text);
                end;
            end if;
            if v_group.widest > v_most then
                -- A payload that takes more bytes when stored than its text may have is usually too large. A push has
                -- checked this already; an INSERT has not.
                select n.id, penstock._least_size(n.payload) as size into v_large
                from arrived as n
                where n.queue_id = v_group.queue_id
                  and pg_column_size(n.payload) > v_most and penstock._least_size(n.payload) > v_most
                limit 1;
                if found then
                    perform penstock.refuse('PS413',
                        format('task %s: payload: %s bytes are more than %s', v_large.id, v_large.size, v_most));
                end if;
            end if;
            insert into penstock.counter_log (queue_id, metric, delta)
            select v_group.queue_id, m.metric, v_group.tasks
            from unnest(array['pushed_total', v_group.ended]) as m(metric) where m.metric is not null;
            if v_idle <> '{}' then
                perform penstock._wake(v_queue, v_idle, v_group.tasks);
            end if;
        end loop;

        if v_extra then
            select penstock._extras_fault(n.key, n.meta, n.expires, n.waits_for) as fault into v_group
            from arrived as n
            where penstock._extras_fault(n.key, n.meta, n.expires, n.waits_for) is not null
            limit 1;
            if found then
                perform penstock.refuse('PS400', v_group.fault);
            end if;
            insert into penstock.counter_log (queue_id, metric, delta)
            select n.queue_id, 'waiting', count(*) from arrived as n
            where n.waits_for > 0 and n.ended is null group by n.queue_id;
            insert into penstock.agenda (task_id, due, queue_id, key_id, priority, pending, named)
            select n.id, coalesce(n.due, v_now), n.queue_id, coalesce(k.id, 0), n.priority, n.due is null,
                   n.subject is not null
            from arrived as n
            left join penstock._note_keys(
                array(select a.queue_id from arrived as a where a.key is not null order by a.id),
                array(select a.key from arrived as a where a.key is not null order by a.id)) as k
              on k.queue_id = n.queue_id and k.key = n.key
            where n.ended is null and coalesce(n.waits_for, 0) = 0;
            return null;
        end if;
        -- Every live document gets an agenda row, regardless of how it was written, unless it waits for other tasks.
        -- With a due it is planned, otherwise pending: only the clock of the database decides.
        insert into penstock.agenda (task_id, due, queue_id, priority, pending, named)
        select n.id, coalesce(n.due, v_now), n.queue_id, n.priority, n.due is null, n.subject is not null
        from arrived as n
        where n.ended is null;

    elsif tg_op = 'DELETE' then
        insert into penstock.counter_log (queue_id, metric, delta)
        select o.queue_id, 'removed_total', count(*) from parted as o group by o.queue_id
        union all
        select o.queue_id, coalesce(o.ended, 'waiting'), -count(*) from parted as o
        where o.ended is not null or o.waits_for > 0
        group by o.queue_id, coalesce(o.ended, 'waiting');

    else
        select coalesce(penstock._document_fault(n.priority, n.kind, n.subject, n.payload, n.due, n.ended, n.ended_at),
                        penstock._extras_fault(n.key, n.meta, n.expires, n.waits_for)) as fault
        into v_group
        from arrived as n
        where penstock._document_fault(n.priority, n.kind, n.subject, n.payload, n.due, n.ended, n.ended_at) is not null
           or penstock._extras_fault(n.key, n.meta, n.expires, n.waits_for) is not null
        limit 1;
        if found then
            perform penstock.refuse('PS400', v_group.fault);
        end if;
        insert into penstock.counter_log (queue_id, metric, delta)
        select c.queue_id, m.metric, sum(c.delta)
        from (
            select n.queue_id, coalesce(n.ended, case when n.waits_for > 0 then 'waiting' end) as ended,
                   count(*) as delta
            from arrived as n group by 1, 2
            union all
            select o.queue_id, coalesce(o.ended, case when o.waits_for > 0 then 'waiting' end), -count(*)
            from parted as o group by 1, 2
        ) as c, unnest(array['pushed_total', c.ended]) as m(metric)
        where m.metric is not null
        group by c.queue_id, m.metric
        having sum(c.delta) <> 0;
    end if;
    return null;
end
$$;

create or replace function penstock._count_agenda() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
    v_group record;
    v_first timestamptz;
    v_early timestamptz;
begin
    if tg_op = 'INSERT' then
        for v_group in
            select n.queue_id, n.pending, count(*) as tasks, min(n.due) as first
            from arrived as n group by n.queue_id, n.pending
        loop
            insert into penstock.counter_log (queue_id, metric, delta)
            values (v_group.queue_id, case when v_group.pending then 'pending' else 'planned' end, v_group.tasks);
            v_first := least(v_first, v_group.first);
        end loop;

    elsif tg_op = 'DELETE' then
        insert into penstock.counter_log (queue_id, metric, delta)
        select o.queue_id, case when o.pending then 'pending' else 'planned' end, -count(*)
        from parted as o group by o.queue_id, o.pending;

    else
        insert into penstock.counter_log (queue_id, metric, delta)
        select c.queue_id, case when c.pending then 'pending' else 'planned' end, sum(c.delta)
        from (
            select n.queue_id, n.pending, count(*) as delta from arrived as n group by n.queue_id, n.pending
            union all
            select o.queue_id, o.pending, -count(*) from parted as o group by o.queue_id, o.pending
        ) as c
        group by c.queue_id, c.pending
        having sum(c.delta) <> 0;
        select min(n.due) into v_first from arrived as n;
    end if;
    v_early := penstock.clock() - interval '2 seconds';    -- bounds stay this far behind the clock: see _move_bounds
    if v_first < v_early then
        insert into penstock.early (queue_id, due, priority, pending)
        select n.queue_id, min(n.due), n.priority, n.pending from arrived as n
        where n.due < v_early group by n.queue_id, n.priority, n.pending;
    end if;
    return null;
end
$$;

create or replace function penstock._count_lease() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
begin
    if tg_op = 'INSERT' then
        insert into penstock.counter_log (queue_id, metric, delta)
        select n.queue_id, 'active', sum(bit_count(n.open)) from arrived as n group by n.queue_id
        having sum(bit_count(n.open)) <> 0;

    elsif tg_op = 'DELETE' then
        insert into penstock.counter_log (queue_id, metric, delta)
        select o.queue_id, 'active', -sum(bit_count(o.open)) from parted as o group by o.queue_id
        having sum(bit_count(o.open)) <> 0;

    else
        insert into penstock.counter_log (queue_id, metric, delta)
        select c.queue_id, 'active', sum(c.delta)
        from (
            select n.queue_id, bit_count(n.open) as delta from arrived as n
            union all
            select o.queue_id, -bit_count(o.open) from parted as o
        ) as c
        group by c.queue_id
        having sum(c.delta) <> 0;
    end if;
    return null;
end
$$;

create or replace function penstock._refuse_truncate() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    raise exception 'truncate of penstock.% would make the counters lie', tg_table_name
        using errcode = 'PS409', hint = 'Delete the rows instead, or drop the queue.';
end
$$;

-- The triggers are created once and then left alone: replacing a trigger on a busy queue would lock out every writer
-- for no benefit. A migration changes a trigger that has to change.
do $$
declare
    v_table text;
    v_event record;
begin
    foreach v_table in array array['task', 'agenda', 'lease'] loop
        for v_event in
            select e.name, e.tables
            from (values ('insert', 'new table as arrived'), ('update', 'new table as arrived old table as parted'),
                         ('delete', 'old table as parted')) as e(name, tables)
            where not exists (
                select from pg_catalog.pg_trigger as t
                where t.tgrelid = ('penstock.' || v_table)::pg_catalog.regclass and t.tgname = 'count_' || e.name)
        loop
            execute pg_catalog.format(
                'create trigger %I after %s on penstock.%I referencing %s '
                'for each statement execute function penstock.%I()',
                'count_' || v_event.name, v_event.name, v_table, v_event.tables, '_count_' || v_table);
        end loop;
    end loop;

    foreach v_table in array array['task', 'agenda', 'lease', 'counter', 'counter_log', 'history'] loop
        if not exists (
            select from pg_catalog.pg_trigger as t
            where t.tgrelid = ('penstock.' || v_table)::pg_catalog.regclass and t.tgname = 'refuse_truncate') then
            execute pg_catalog.format(
                'create trigger refuse_truncate before truncate on penstock.%I '
                'for each statement execute function penstock._refuse_truncate()', v_table);
        end if;
    end loop;
end
$$;

-- Returns the identifier of this cluster. Transaction ids of one cluster mean nothing in another.
create or replace function penstock._system() returns bigint
language sql stable set search_path = pg_catalog, pg_temp
return (select system_identifier from pg_control_system());

-- Returns the rows whose sums by metric are the counters of a queue: its sums, and what is not folded into them yet.
-- The planner inlines it, so it has no settings of its own. It takes one queue at a time: in a join over all queues the
-- planner would read every row of these small tables, and under a held snapshot thousands of them are dead
-- (decision 35).
create or replace function penstock._counter_rows(p_queue_id int, p_system bigint)
returns table (metric text, value bigint) language sql stable parallel safe
begin atomic
    select s.metric, s.value
    from penstock._watermark(p_queue_id) as b
    cross join lateral (
        select c.metric, c.value from penstock.counter as c where c.queue_id = b.queue_id and c.xid = b.sums
        union all
        select l.metric, l.delta
        from penstock.counter_log as l
        where l.queue_id = b.queue_id and l.xid >= case when b.system = p_system then b.xid else 0 end
        union all
        select l.metric, l.delta
        from unnest(b.running) as r(xid)
        join penstock.counter_log as l on l.queue_id = b.queue_id and l.xid = r.xid
        where b.system = p_system
    ) as s;
end;

-- Folds the log of one queue into its sums, and moves its bounds. Returns how many rows were folded. One session does
-- this at a time; the others leave it to that session.
--
-- The function folds and deletes the rows that its snapshot sees. The other rows stay: they belong to transactions that
-- are running (`running`) or begin later (from `xid` on). So a transaction that stays open for hours holds up only its
-- own rows.
create or replace function penstock._squeeze(p_queue_id int) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_limit constant int := 50000;
    v_now   constant timestamptz := penstock.clock();
    v_watermark   penstock.watermark;
    v_fold  record;
begin
    select * into v_watermark from penstock.watermark as l where l.queue_id = p_queue_id for update skip locked;
    if not found then
        return 0;
    end if;
    if v_watermark.system <> penstock._system() then
        -- The database was restored from another cluster. All of its log is in the past, whatever the transaction ids
        -- say, and its workers do not belong to this cluster.
        v_watermark.xid := 0;
        v_watermark.running := '{}';
        v_watermark.system := penstock._system();
        v_watermark := penstock._without_bounds(v_watermark);
        update penstock.lease as l set until = '-infinity' where l.queue_id = p_queue_id;
    elsif v_now < v_watermark.looked_at then
        -- The clock was set back: tasks that start to wait now may lie before the bounds.
        v_watermark := penstock._without_bounds(v_watermark);
    end if;

    -- This is one statement, so that the snapshot it returns is the one by which it deletes.
    with folded as (
        delete from penstock.counter_log as l
        where l.ctid = any(array(
            select r.ctid from penstock.counter_log as r
            where r.queue_id = p_queue_id and r.xid = any(v_watermark.running)
            union all
            (select r.ctid from penstock.counter_log as r
             where r.queue_id = p_queue_id and r.xid >= v_watermark.xid order by r.xid limit v_limit)))
        returning l.metric, l.delta, l.xid
    ), summed as (
        select f.metric, sum(f.delta)::bigint as delta, count(*) as rows, max(f.xid) as last
        from folded as f group by f.metric
    ), moved as (
        delete from penstock.early as e
        where e.queue_id = p_queue_id and e.xid >= coalesce(v_watermark.running[1], v_watermark.xid)
        returning e.due, e.priority, e.pending
    )
    select coalesce(sum(s.rows), 0) as rows, max(s.last) as last,
           array_agg(s.metric) as metrics, array_agg(s.delta) as deltas,
           array(select coalesce(
                     (select min(m.due) from moved as m where m.pending and m.priority = p.first), 'infinity')
                 from unnest(v_watermark.priorities) with ordinality as p(first, n) order by p.n) as first_due,
           (select min(m.due) from moved as m where not m.pending) as first_planned,
           pg_current_snapshot() as snapshot
    into v_fold
    from summed as s;

    if v_fold.rows > 0 then
        v_watermark.sums := penstock._add_to_sums(v_watermark, v_fold.metrics, v_fold.deltas);
    end if;
    v_watermark.first_due := array(
        select least(b.due, b.early)
        from unnest(v_watermark.first_due, v_fold.first_due) with ordinality as b(due, early, n) order by b.n);
    v_watermark.first_planned := least(v_watermark.first_planned, v_fold.first_planned);
    v_watermark := penstock._move_bounds(v_watermark, v_fold.snapshot, v_now);
    v_watermark.xid := pg_snapshot_xmax(v_fold.snapshot)::text::bigint;
    if v_fold.rows >= v_limit then
        v_watermark.xid := least(v_watermark.xid, v_fold.last);  -- there may be more rows, also of the last transaction
    end if;
    v_watermark.running := array(
        select r.xid
        from (select pg_snapshot_xip(v_fold.snapshot)::text::bigint
              union select pg_current_xact_id()::text::bigint) as r(xid)
        where r.xid < v_watermark.xid order by r.xid);
    update penstock.watermark as l
    set sums = v_watermark.sums, xid = v_watermark.xid, running = v_watermark.running, system = v_watermark.system,
        until = v_watermark.until, priorities = v_watermark.priorities, first_due = v_watermark.first_due,
        first_planned = v_watermark.first_planned,
        next_bound = v_watermark.next_bound, next_xid = v_watermark.next_xid, looked_at = v_now
    where l.queue_id = p_queue_id;
    return v_fold.rows;
end
$$;

-- Writes new sums in place of the valid ones, and returns their xid.
create or replace function penstock._add_to_sums(p_watermark penstock.watermark, p_metrics text[], p_deltas bigint[])
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    v_xid     constant bigint := pg_current_xact_id()::text::bigint;
    v_metrics text[];
    v_values  bigint[];
begin
    select array_agg(s.metric), array_agg(s.value) into v_metrics, v_values
    from (
        select n.metric, sum(n.value) as value
        from (
            select c.metric, c.value from penstock.counter as c
            where c.queue_id = p_watermark.queue_id and c.xid = p_watermark.sums
            union all
            select d.metric, d.delta from unnest(p_metrics, p_deltas) as d(metric, delta)
        ) as n
        group by n.metric
    ) as s;
    delete from penstock.counter as c where c.queue_id = p_watermark.queue_id and c.xid = p_watermark.sums;
    insert into penstock.counter (queue_id, xid, metric, value)
    select p_watermark.queue_id, v_xid, s.metric, s.value from unnest(v_metrics, v_values) as s(metric, value);
    return v_xid;
end
$$;
