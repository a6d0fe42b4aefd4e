-- Windows on history, for readers who come again: by the transactions that wrote the rows, never by their ids, which commit
-- out of order. A window [from, to) ends below every transaction that still runs: its rows never change, and no row joins them.

-- How far history can be read now. Any transaction that writes, in any database of the cluster, holds it back.
create or replace function penstock.history_horizon()
returns table (system text, database bigint, xid bigint, dropped bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform penstock.check_origin();
    return query
    select penstock.system()::text, d.oid::bigint, pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
           coalesce((select max(g.n) from penstock.history_gone as g), 0)
    from pg_database as d where d.datname = current_database();
end
$$;

create or replace function penstock.check_origin() returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    if (select array_agg(o.system) from penstock.history_origin as o) is distinct from array[penstock.system()] then
        perform penstock.refuse('PS409', 'history: it was written in another cluster and restored into this one',
            'As admin: select penstock.rebase_history(); then read it with a new checkpoint.');
    end if;
end
$$;

-- Restored rows become the oldest there are: the numbers of the old cluster's transactions may never be reached in this one.
-- Those that were are below the horizon already, or soon, like any other. Answers how many had to be changed.
create or replace function penstock.rebase_history() returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_rows bigint;
begin
    lock table penstock.history_origin in exclusive mode;
    if (select array_agg(o.system) from penstock.history_origin as o) = array[penstock.system()] then
        return 0;
    end if;
    update penstock.history as h set xid = 0 where h.xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    get diagnostics v_rows = row_count;
    update penstock.sample as s set xid = 0 where s.xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    delete from penstock.history_origin;
    insert into penstock.history_origin (system) values (penstock.system());
    perform penstock.note_audit('rebase', null, jsonb_build_object('rows', v_rows));
    return v_rows;
end
$$;

-- The queues that had this name, the present one and those before it.
create or replace function penstock.queues_named(p_queue text) returns int[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_ids int[];
begin
    select array_agg(q.id) into v_ids
    from (select n.id, n.name from penstock.queue as n union all select g.id, g.name from penstock.queue_gone as g) as q
    where q.name = p_queue;
    if v_ids is null then
        perform penstock.the_queue(p_queue);    -- says which name is near
    end if;
    return v_ids;
end
$$;

-- Refuses a window that can no longer be read whole: of another cluster or database, ahead of this one, or with rows in it that
-- were dropped after the reader came by (p_dropped: the last drop he knew of).
create or replace function penstock.check_window(
    p_system text, p_database bigint, p_from bigint, p_to bigint, p_dropped bigint,
    p_queue text default null, p_since timestamptz default null, p_until timestamptz default null
) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
    v_hint  constant text := 'Begin with a new checkpoint; after a restore, as admin, select penstock.rebase_history() first.';
    v_now   record;
    v_ids   int[];
    v_days  date[];
    v_rows  bigint;
begin
    select * into v_now from penstock.history_horizon();
    if p_system is null or p_database is null or p_from is null or p_to is null or p_dropped is null then
        perform penstock.refuse('PS400', 'offset: system, database, from, to and dropped must not be null');
    elsif p_system <> v_now.system then
        perform penstock.refuse('PS409',
            format('offset: it is of another cluster (system %s, this is %s)', left(p_system, 40), v_now.system), v_hint);
    elsif p_database <> v_now.database then
        perform penstock.refuse('PS409',
            format('offset: it is of another database (%s, this is %s)', p_database, v_now.database), v_hint);
    elsif p_from not between 0 and p_to then
        perform penstock.refuse('PS400', format('offset: %s is not between 0 and %s', p_from, p_to));
    elsif p_to > v_now.xid then
        perform penstock.refuse('PS409',
            format('offset: transaction %s is ahead of this cluster, which is at %s: it was set back, or it is a copy that lags',
                   p_to, v_now.xid), v_hint);
    end if;

    if p_queue is not null then
        v_ids := penstock.queues_named(p_queue);
    end if;
    select array_agg(distinct g.day order by g.day), sum(g.rows) into v_days, v_rows
    from penstock.history_gone as g
    where g.n > p_dropped and g.first_xid < p_to and g.last_xid >= p_from
      and (v_ids is null or g.queue_id = any(v_ids))
      and (p_since is null or g.day + 1 > p_since) and (p_until is null or g.day < p_until);
    if v_days is not null then
        perform penstock.refuse('PS409',
            format('offset: history of %s was dropped before it was read (up to %s rows, transactions %s to %s)',
                   array_to_string(v_days[:5], ', ') || case when cardinality(v_days) > 5 then ' …' else '' end, v_rows, p_from, p_to),
            v_hint || ' Upkeep keeps history for 30 days: read it more often.');
    end if;
end
$$;

-- Whether anything was written in a window. Idle queues shall not make a reader's books grow.
create or replace function penstock.history_between(p_from bigint, p_to bigint) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
    select exists (select from penstock.history as h where h.xid >= p_from and h.xid < p_to)
$$;

-- Where the rows of a window are: by day, the pages from the first to the last that has one. Roughly: all pages of each day, at
-- no cost; else they are looked for by the index of xids, which costs about a tenth of reading them.
create or replace function penstock.history_spans(
    p_from bigint, p_to bigint, p_since timestamptz default null, p_until timestamptz default null, p_roughly boolean default false
) returns table (day date, relation bigint, first_page bigint, pages bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set timezone = 'UTC' set enable_seqscan = off as $$
begin
    return query
    with days as materialized (
        select c.oid, to_date(right(c.relname, 8), 'YYYYMMDD') as day,
               pg_relation_size(c.oid) / current_setting('block_size')::bigint as pages
        from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
        where i.inhparent = 'penstock.history'::regclass and c.relname ~ '^history_\d{8}$'
    ), kept as (
        select d.* from days as d
        where d.pages > 0 and (p_since is null or d.day + 1 > p_since) and (p_until is null or d.day < p_until)
    )
    select k.day, k.oid::bigint, 0::bigint, k.pages from kept as k where p_roughly
    union all
    select k.day, k.oid::bigint, f.first, f.last + 1 - f.first
    from (
        select h.tableoid as oid, (min(h.ctid)::text::point)[0]::bigint as first, (max(h.ctid)::text::point)[0]::bigint as last
        from penstock.history as h
        where not p_roughly and h.xid >= p_from and h.xid < p_to
          and (p_since is null or h.finished_at >= p_since) and (p_until is null or h.finished_at < p_until)
        group by h.tableoid
    ) as f
    join kept as k on k.oid = f.oid
    order by 1;
end
$$;
