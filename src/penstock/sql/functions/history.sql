-- The partitions of history, one per day: they are made ahead, counted, and dropped when their retention has ended.

-- Creates the history partition of a day, if it does not exist. It creates a table LIKE history and then attaches it,
-- which needs no exclusive lock on history. Today's partition is needed at once, so the function waits for another
-- session that creates it; for a later day it leaves the work to that session.
create or replace function penstock._make_history(p_day date) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
    v_name constant text := 'history_' || to_char(p_day, 'YYYYMMDD');
begin
    if to_regclass('penstock.' || v_name) is not null then
        return false;
    end if;
    if p_day <= (penstock.clock() at time zone 'UTC')::date then
        perform from penstock.chore as c where c.name = 'make_history' for update;
    elsif not penstock._take_chore('make_history') then
        return false;
    end if;
    begin
        execute format('create table penstock.%I (like penstock.history including all)', v_name);
    exception when duplicate_table then
        return false;    -- another session made it while this one waited for the lock
    end;
    -- PostgreSQL summarizes the first range of an empty index. Each insert there would update that summary: 230 bytes
    -- of WAL.
    perform brin_desummarize_range(i.indexrelid, 0)
    from pg_index as i join pg_class as c on c.oid = i.indexrelid join pg_am as a on a.oid = c.relam
    where i.indrelid = ('penstock.' || v_name)::regclass and a.amname = 'brin';
    execute format('alter table penstock.history attach partition penstock.%I for values from (%L) to (%L)',
                   v_name, p_day::timestamptz, (p_day + 1)::timestamptz);
    return true;
end
$$;

-- Returns the days of history that are over before a moment, oldest first.
create or replace function penstock._history_days(p_before timestamptz) returns table (day date, relation regclass)
language sql stable security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
    select d.day, d.relation
    from (
        select to_date(right(c.relname, 8), 'YYYYMMDD') as day, c.oid::regclass as relation
        from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
        where i.inhparent = 'penstock.history'::regclass and c.relname ~ '^history_[0-9]{8}$'
    ) as d
    where d.day + 1 <= p_before::date
    order by d.day
$$;

-- Returns whether a day of history has rows of this transaction or of later ones. It uses the index of xids, so it
-- reads a few pages.
create or replace function penstock._written_since(p_relation regclass, p_xid bigint) returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    v_found boolean;
begin
    execute format('select exists (select from %s where xid >= %s)', p_relation, p_xid) into v_found;
    return v_found;
end
$$;

-- Begins to count a day, or begins again. Every transaction below `below` is over: its rows exist, and no others will
-- join them.
create or replace function penstock._begin_count(p_day date, p_relation regclass, p_below bigint)
returns penstock.history_count
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_count penstock.history_count;
begin
    -- This lets the index of xids tell quickly whether any row came later.
    perform brin_summarize_new_values(i.indexrelid)
    from pg_index as i join pg_class as c on c.oid = i.indexrelid join pg_am as a on a.oid = c.relam
    where i.indrelid = p_relation and a.amname = 'brin';
    delete from penstock.history_sum as s where s.day = p_day;
    insert into penstock.history_count as c (day, system, below, next_page, pages)
    values (p_day, penstock._system(), p_below, 0, pg_relation_size(p_relation) / current_setting('block_size')::bigint)
    on conflict (day) do update
    set system = excluded.system, below = excluded.below, next_page = excluded.next_page, pages = excluded.pages
    returning * into v_count;
    return v_count;
end
$$;

-- Counts some pages of a day, and adds them to its sums.
create or replace function penstock._count_pages(p_count penstock.history_count, p_relation regclass, p_pages bigint)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_upto constant bigint := least(p_count.next_page + p_pages, p_count.pages);
begin
    execute format(
        'insert into penstock.history_sum as s (day, queue_id, outcome, rows, first_xid, last_xid) '
        'select %L, queue_id, outcome, count(*), min(xid), max(xid) from %s '
        'where xid < %s and ctid >= ''(%s,0)'' and ctid < ''(%s,0)'' group by queue_id, outcome '
        'on conflict (day, queue_id, outcome) do update set rows = s.rows + excluded.rows, '
        'first_xid = least(s.first_xid, excluded.first_xid), last_xid = greatest(s.last_xid, excluded.last_xid)',
        p_count.day, p_relation, p_count.below, p_count.next_page, v_upto);
    update penstock.history_count as c set next_page = v_upto where c.day = p_count.day;
    return v_upto;
end
$$;

-- Counts the days before a moment that are not yet counted, oldest first and some pages at a time. Returns how many
-- days it finished.
create or replace function penstock._count_history(
    p_before timestamptz, p_pages bigint default 500, out rows bigint, out more boolean
)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_ends  constant timestamptz := penstock._part_ends();
    v_below constant bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    v_day   record;
    v_count penstock.history_count;
begin
    rows := 0;
    more := false;
    for v_day in select d.day, d.relation from penstock._history_days(p_before) as d loop
        select * into v_count from penstock.history_count as c where c.day = v_day.day;
        if v_count.day is null or v_count.system <> penstock._system() then
            -- A day is not counted while a transaction is open that was running when the last rows of the day were
            -- written.
            continue when penstock._unread(v_day.relation) or penstock._written_since(v_day.relation, v_below);
            v_count := penstock._begin_count(v_day.day, v_day.relation, v_below);
        elsif v_count.next_page = v_count.pages then
            continue;    -- it waits to be dropped
        end if;
        while v_count.next_page < v_count.pages loop
            v_count.next_page := penstock._count_pages(v_count, v_day.relation, p_pages);
            exit when clock_timestamp() > v_ends;
        end loop;
        rows := rows + (v_count.next_page = v_count.pages)::int;
        more := clock_timestamp() > v_ends;
        exit when more;
    end loop;
end
$$;

-- Drops one day of history that is over before a moment, and keeps its sums. The day is counted already. A check under
-- the lock, for which settles wait some milliseconds, shows that no row came since. A day that another session reads,
-- or that has a view on it, is left for another time.
create or replace function penstock._drop_history(p_before timestamptz, out rows bigint, out more boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
    v_day     record;
    v_dropped boolean;
begin
    rows := 0;
    more := false;
    if not penstock._take_chore('drop_history') then
        return;
    end if;
    for v_day in
        select d.day, d.relation, c.below
        from penstock._history_days(p_before) as d join penstock.history_count as c on c.day = d.day
        where c.next_page = c.pages and c.system = penstock._system()
    loop
        if rows > 0 then
            more := true;    -- one per transaction: settles wait until it ends
            exit;
        end if;
        continue when penstock._unread(v_day.relation);
        if penstock._written_since(v_day.relation, v_day.below) then
            delete from penstock.history_count as c where c.day = v_day.day;    -- the day is counted again
            continue;
        end if;
        v_dropped := penstock._drop_day(v_day.relation, v_day.day, v_day.below);
        exit when v_dropped is null;
        rows := rows + v_dropped::int;
    end loop;
end
$$;

-- Drops a counted day of history. Returns false if another session reads it, wrote to it or dropped it, or if it has a
-- view on it. Returns null if another session reads all of history. The lock on history itself comes last: while this
-- function waits for it, settles wait too.
create or replace function penstock._drop_day(p_relation regclass, p_day date, p_below bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
set timezone = 'UTC' set lock_timeout = '50ms' as $$
declare
    v_all boolean := false;
begin
    execute format('lock table %s in access exclusive mode', p_relation);
    v_all := true;
    perform set_config('lock_timeout', '200ms', true);
    lock table only penstock.history in access exclusive mode;
    v_all := false;
    if penstock._written_since(p_relation, p_below) then
        raise exception using errcode = '55P03', message = 'another session wrote to it';    -- gives the locks back
    end if;
    insert into penstock.history_dropped as d (queue_id, outcome, rows)
    select s.queue_id, s.outcome, s.rows from penstock.history_sum as s where s.day = p_day
    on conflict (queue_id, outcome) do update set rows = d.rows + excluded.rows;
    insert into penstock.history_gone (day, queue_id, rows, first_xid, last_xid)
    select p_day, s.queue_id, sum(s.rows), min(s.first_xid), max(s.last_xid)
    from penstock.history_sum as s where s.day = p_day group by s.queue_id;
    delete from penstock.history_sum as s where s.day = p_day;
    delete from penstock.history_count as c where c.day = p_day;
    execute format('drop table %s', p_relation);
    return true;
exception when lock_not_available or undefined_table or dependent_objects_still_exist then
    return case when not v_all then false end;
end
$$;

-- --- what is kept for a while ----------------------------------------------------------------------------------------
