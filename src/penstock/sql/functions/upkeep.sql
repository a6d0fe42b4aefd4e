-- Upkeep: what anybody may do at any time, any number at once. Every part is bounded, idempotent and skips locked rows.

create or replace function penstock.take_samples() returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_count int;
begin
    if not pg_try_advisory_xact_lock(hashtext('penstock.take_samples')) then
        return 0;    -- somebody is at it; waiting for the same rows would be for nothing
    end if;
    insert into penstock.sample (queue_id, at, planned, pending, active, done, dead, cancelled, oldest_age, sla, workers, totals)
    select q.id, date_bin('10 seconds', s.at, 'epoch'), s.planned, s.pending, s.active, s.done, s.dead, s.cancelled,
           s.oldest_pending_age, s.sla,
           (select count(*) from penstock.worker as w where s.queue = any(w.queues)), s.totals
    from penstock.status() as s join penstock.queue as q on q.name = s.queue
    where not exists (
        select from penstock.sample as p where p.queue_id = q.id and p.at = date_bin('10 seconds', s.at, 'epoch'))
    on conflict (queue_id, at) do nothing;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

-- History older than that goes, a day at a time, its sums kept. Busy is no reason to wait: the next round will do it. Nor does
-- a day go that somebody who reads history has not passed.
create or replace function penstock.drop_history(p_before timestamptz) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' set lock_timeout = '200ms' as $$
declare
    v_day   record;
    v_count int := 0;
begin
    if not pg_try_advisory_xact_lock(hashtext('penstock.drop_history')) then
        return 0;
    end if;
    for v_day in
        select c.oid::regclass as name, to_date(right(c.relname, 8), 'YYYYMMDD') as day
        from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
        where i.inhparent = 'penstock.history'::regclass and c.relname ~ '^history_\d{8}$'
          and to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= p_before::date
        order by c.relname
        limit 1    -- settles wait from here to the end of the transaction
    loop
        exit when penstock.unread(v_day.name);
        begin
            execute format('lock table %s in access exclusive mode', v_day.name);
            perform penstock.drop_day(v_day.name, v_day.day);
            v_count := v_count + 1;
        exception when lock_not_available or undefined_table or dependent_objects_still_exist then
            exit;    -- somebody reads it, dropped it, or has a view on it
        end;
    end loop;
    return v_count;
end
$$;

-- Whoever calls this has locked the day.
create or replace function penstock.drop_day(p_relation regclass, p_day date) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
begin
    execute format(
        'insert into penstock.history_dropped as d (queue_id, outcome, rows) '
        'select queue_id, outcome, count(*) from %s group by 1, 2 '
        'on conflict (queue_id, outcome) do update set rows = d.rows + excluded.rows', p_relation);
    execute format(
        'insert into penstock.history_gone (day, queue_id, rows, first_xid, last_xid) '
        'select %L, queue_id, count(*), min(xid), max(xid) from %s group by queue_id', p_day, p_relation);
    execute format('drop table %s', p_relation);
end
$$;

-- Ended tasks that a queue no longer keeps.
create or replace function penstock.retire(p_limit int default 10000) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_now   constant timestamptz := penstock.clock();
    v_kept  record;
    v_count bigint;
    v_all   bigint := 0;
begin
    for v_kept in
        select q.id, k.ended, k.keep
        from penstock.queue as q
        cross join lateral (
            values ('done', coalesce(q.keep_done, '0')), ('dead', q.keep_dead), ('cancelled', q.keep_cancelled)) as k(ended, keep)
        where k.keep is not null
    loop
        delete from penstock.task as t
        where t.ctid = any(array(
            select d.ctid from penstock.task as d
            where d.queue_id = v_kept.id and d.ended = v_kept.ended and d.ended_at < v_now - v_kept.keep
            order by d.ended_at
            limit p_limit
            for update skip locked));
        get diagnostics v_count = row_count;
        v_all := v_all + v_count;
    end loop;
    return v_all;
end
$$;

create or replace function penstock.upkeep(
    p_keep_history interval default '30 days',
    p_keep_samples interval default '90 days',
    p_keep_ledger  interval default '30 days'
) returns table (part text, rows bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
    v_now  constant timestamptz := penstock.clock();
    v_read constant bigint := penstock.read_up_to();
begin
    if least(p_keep_history, p_keep_samples, p_keep_ledger) < '1 day' then
        -- Every worker may call this: none shall wipe out what others rely on.
        perform penstock.refuse('PS400', 'keep_history, keep_samples, keep_ledger: a retention is at least 1 day, or null: for ever');
    end if;
    return query select 'squeezed', coalesce(sum(penstock.squeeze(q.id)), 0)::bigint from penstock.queue as q;
    return query select 'expired', coalesce(sum(penstock.expire(q.id, p_thorough => true)), 0)::bigint from penstock.queue as q;
    return query select 'promoted', coalesce(sum(penstock.promote(q.id)), 0)::bigint from penstock.queue as q;
    return query select 'sampled', penstock.take_samples()::bigint;
    return query select 'ended tasks retired', penstock.retire();
    return query
        with gone as (
            delete from penstock.worker as w
            where w.ctid = any(array(
                select s.ctid from penstock.worker as s where s.beat < v_now - interval '5 minutes' for update skip locked))
            returning 1
        )
        select 'workers forgotten', count(*) from gone;
    return query
        select 'history days made', count(*) filter (where penstock.make_history(v_now::date + d.n))
        from generate_series(0, 14) as d(n);
    return query
        with old as (
            select s.ctid
            from penstock.queue as q
            cross join lateral (
                select p.ctid from penstock.sample as p
                where p.queue_id = q.id and p.at < v_now - p_keep_samples and p.xid < v_read
                order by p.at limit 1000 for update skip locked
            ) as s
        ), gone as (
            delete from penstock.sample as s using old where s.ctid = old.ctid returning 1
        )
        select 'samples dropped', count(*) from gone;
    return query
        with old as (
            select l.ctid from penstock.ledger as l where l.at < v_now - p_keep_ledger limit 10000 for update skip locked
        ), gone as (
            delete from penstock.ledger as l using old where l.ctid = old.ctid returning 1
        )
        select 'ledger parts dropped', count(*) from gone;
    return query
        with old as (
            select r.ctid from penstock.reject as r where r.at < v_now - p_keep_ledger limit 10000 for update skip locked
        ), gone as (
            delete from penstock.reject as r using old where r.ctid = old.ctid returning 1
        )
        select 'rejects dropped', count(*) from gone;
    -- Last: from here on nobody settles until this transaction ends.
    return query select 'history days dropped', penstock.drop_history(v_now - p_keep_history)::bigint;
end
$$;
