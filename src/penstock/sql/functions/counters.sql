-- Counters can not drift, not even by hand-written SQL: statement triggers note every change of a gauge, one log row per
-- statement, queue and metric. Gauges: planned, pending, active, done, dead, cancelled. Totals end in _total.

create or replace function penstock.count_task() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_now   constant timestamptz := penstock.clock();    -- one for all: then ids decide, and the first given runs first
    v_group record;
begin
    if tg_op = 'INSERT' then
        -- One look at all of them: this is the cost of a bulk push.
        for v_group in
            select n.queue_id, n.ended, count(*) as tasks, min(n.id) as first, max(n.id) as last
            from arrived as n group by n.queue_id, n.ended
        loop
            if v_group.first < 1 or v_group.last > (select s.last_value from penstock.task_id_seq as s) then
                perform penstock.refuse('PS400', 'id: it is not one that penstock.task_id_seq has given out');
            end if;
            insert into penstock.counter_log (queue_id, metric, delta)
            select v_group.queue_id, m.metric, v_group.tasks
            from unnest(array['pushed_total', v_group.ended]) as m(metric) where m.metric is not null;
            perform penstock.meet(v_group.queue_id);
        end loop;

        -- A live document is born into the agenda, whoever wrote it. Given a due it is planned, else pending:
        -- only the database's clock decides.
        insert into penstock.agenda (task_id, due, queue_id, priority, pending, named)
        select n.id, coalesce(n.due, v_now), n.queue_id, n.priority, n.due is null, n.subject is not null
        from arrived as n
        where n.ended is null;

    elsif tg_op = 'DELETE' then
        insert into penstock.counter_log (queue_id, metric, delta)
        select o.queue_id, 'removed_total', count(*) from parted as o group by o.queue_id
        union all
        select o.queue_id, o.ended, -count(*) from parted as o where o.ended is not null group by o.queue_id, o.ended;

    else
        insert into penstock.counter_log (queue_id, metric, delta)
        select c.queue_id, m.metric, sum(c.delta)
        from (
            select n.queue_id, n.ended, count(*) as delta from arrived as n group by n.queue_id, n.ended
            union all
            select o.queue_id, o.ended, -count(*) from parted as o group by o.queue_id, o.ended
        ) as c, unnest(array['pushed_total', c.ended]) as m(metric)
        where m.metric is not null
        group by c.queue_id, m.metric
        having sum(c.delta) <> 0;
    end if;
    return null;
end
$$;

-- New tasks have come to this queue: it must exist (it may have been dropped while we waited), and an idle worker of its is
-- woken. A hint, never a duty: not when nobody is idle, not when the notification queue fills up, not where it was switched
-- off (PREPARE TRANSACTION refuses a NOTIFY). PostgreSQL sends equal ones of a transaction once.
create or replace function penstock.meet(p_queue_id int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_queue penstock.queue;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        -- Its snapshot may be older than a drop: then this is an error of serialization, not a task that nobody will run.
        perform from penstock.queue as q where q.id = p_queue_id for key share;
    end if;
    select * into v_queue from penstock.queue as q where q.id = p_queue_id;
    if not found then
        perform penstock.refuse('PS404', format('queue_id: there is no queue %s', p_queue_id));
    end if;
    if v_queue.settings->'notify' is distinct from 'false' and pg_notification_queue_usage() < 0.5 and exists (
        select from penstock.worker as w
        where w.busy < w.slots and v_queue.name = any(w.queues) and w.beat > penstock.clock() - interval '1 minute') then
        perform pg_notify('penstock_' || p_queue_id, '');
    end if;
end
$$;

create or replace function penstock.count_agenda() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if tg_op = 'INSERT' then
        insert into penstock.counter_log (queue_id, metric, delta)
        select n.queue_id, case when n.pending then 'pending' else 'planned' end, count(*)
        from arrived as n group by n.queue_id, n.pending;

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
    end if;
    return null;
end
$$;

create or replace function penstock.count_lease() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
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

create or replace function penstock.refuse_truncate() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    raise exception 'truncate of penstock.% would make the counters lie', tg_table_name
        using errcode = 'PS409', hint = 'Delete the rows instead, or drop the queue.';
end
$$;

-- Made once, and left alone: to replace a trigger would lock out every writer, on a busy queue, for nothing. A trigger that
-- has to change does so in a migration.
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
                'create trigger %I after %s on penstock.%I referencing %s for each statement execute function penstock.%I()',
                'count_' || v_event.name, v_event.name, v_table, v_event.tables, 'count_' || v_table);
        end loop;
    end loop;

    foreach v_table in array array['task', 'agenda', 'lease', 'counter', 'counter_log', 'history'] loop
        if not exists (
            select from pg_catalog.pg_trigger as t
            where t.tgrelid = ('penstock.' || v_table)::pg_catalog.regclass and t.tgname = 'refuse_truncate') then
            execute pg_catalog.format(
                'create trigger refuse_truncate before truncate on penstock.%I '
                'for each statement execute function penstock.refuse_truncate()', v_table);
        end if;
    end loop;
end
$$;

-- Which cluster this is: transaction ids mean nothing in another one.
create or replace function penstock.system() returns bigint
language sql stable set search_path = pg_catalog, pg_temp
return (select system_identifier from pg_control_system());

-- Folds the log of one queue into its counters. Only what every running transaction can see: xids commit out of order,
-- and a row folded before an older one has committed would be lost from the sums. One squeezer per queue at a time.
create or replace function penstock.squeeze(p_queue_id int) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    v_low     penstock.low;
    v_horizon bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    v_folded  bigint;
begin
    select * into v_low from penstock.low as l where l.queue_id = p_queue_id for update skip locked;
    if not found then
        return 0;
    end if;
    if v_low.system <> penstock.system() then
        -- Restored from another cluster: its log is all in the past, whatever the numbers say, and its workers are not ours.
        v_low.xid := 0;
        update penstock.lease as l set until = '-infinity' where l.queue_id = p_queue_id;
        update penstock.low as l set until = '-infinity' where l.queue_id = p_queue_id;
    elsif v_low.xid >= v_horizon then
        return 0;
    end if;

    with folded as (
        delete from penstock.counter_log as l
        where l.queue_id = p_queue_id
          and l.xid >= v_low.xid
          and (l.xid < v_horizon or v_low.system <> penstock.system())
        returning l.metric, l.delta
    ), summed as (
        select f.metric, sum(f.delta) as delta, count(*) as rows from folded as f group by f.metric
    ), added as (
        insert into penstock.counter as c (queue_id, metric, value)
        select p_queue_id, s.metric, s.delta from summed as s
        on conflict (queue_id, metric) do update set value = c.value + excluded.value
    )
    select coalesce(sum(s.rows), 0) into v_folded from summed as s;

    update penstock.low as l set xid = v_horizon, system = penstock.system() where l.queue_id = p_queue_id;
    return v_folded;
end
$$;
