-- Windows on history, for readers that come again. A window is defined by the transactions that wrote the rows, never
-- by row ids, which commit out of order. A window [from, to) ends below every transaction that still runs: its rows
-- never change, and no row joins them.

-- Returns the timeline that this server writes. After a promotion, the control file has the old timeline until the next
-- checkpoint. So the control file is read only where WAL functions are refused: on a standby, and by services that hide
-- their WAL.
create or replace function penstock.timeline() returns int
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    return ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int;
exception when object_not_in_prerequisite_state or feature_not_supported or insufficient_privilege then
    return (select c.timeline_id from pg_control_checkpoint() as c);
end
$$;

-- Returns the branch that this server writes now, or null if it is not noted yet, and on a standby.
create or replace function penstock.find_branch() returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select b.id from penstock.history_branch as b
    where b.timeline = penstock.timeline() and b.started = pg_postmaster_start_time()
      and b.relation = 'penstock.history'::regclass
$$;

-- Returns the branch that this server writes, and notes it first if it is new and this transaction may write.
create or replace function penstock._begin_branch() returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_branch text := penstock.find_branch();
begin
    if v_branch is null and not current_setting('transaction_read_only')::boolean then
        insert into penstock.history_branch (id, timeline, started, relation)
        values (format('%s-%s', penstock.timeline(), left(replace(gen_random_uuid()::text, '-', ''), 16)),
                penstock.timeline(), pg_postmaster_start_time(), 'penstock.history'::regclass)
        on conflict on constraint one_branch_per_start do nothing;
        v_branch := penstock.find_branch();
    end if;
    return v_branch;
end
$$;

-- Returns how far history can be read now. Any transaction that writes, in any database of the cluster, holds this
-- back. A standby and a READ ONLY transaction cannot note a new branch: there, history can be read up to the last note.
drop function if exists penstock.history_horizon();
create function penstock.history_horizon()
returns table (system text, database bigint, branch text, xid bigint, dropped bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_branch text;
begin
    perform penstock._check_origin();
    v_branch := penstock._begin_branch();
    return query
    select penstock._system()::text, d.oid::bigint, b.id,
           case when v_branch is null then b.noted else pg_snapshot_xmin(pg_current_snapshot())::text::bigint end,
           coalesce((select max(g.n) from penstock.history_gone as g), 0)
    from pg_database as d
    cross join (
        select h.id, h.noted from penstock.history_branch as h
        where v_branch is null or h.id = v_branch order by h.n desc limit 1
    ) as b
    where d.datname = current_database();
end
$$;

-- Notes the horizon and returns it, for a reader that keeps it and comes again. A server that has the note has
-- everything below the horizon, because that was committed before. The note is flushed to disk; it waits for a standby
-- only if every commit does.
create or replace function penstock.note_horizon()
returns table (system text, database bigint, branch text, xid bigint, dropped bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    v_now record;
begin
    select * into v_now from penstock.history_horizon();
    if not current_setting('transaction_read_only')::boolean then
        if current_setting('synchronous_commit') = 'off' then
            perform set_config('synchronous_commit', 'local', true);
        end if;
        -- The row is also written when as much is noted already: upkeep's commits do not wait for the disk or a
        -- standby, and this one does.
        update penstock.history_branch as b set noted = greatest(b.noted, v_now.xid), noted_at = penstock.clock()
        where b.id = v_now.branch;
    end if;
    return query select v_now.system, v_now.database, v_now.branch, v_now.xid, v_now.dropped;
end
$$;

-- Notes the horizon for readers on standbys; this is a part of upkeep. Returns 1 if there was something to note. It
-- skips a row that another session has locked.
create or replace function penstock._keep_branch() returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_branch  constant text := penstock._begin_branch();
    v_horizon constant bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    v_count   bigint;
begin
    update penstock.history_branch as b set noted = v_horizon, noted_at = penstock.clock()
    where b.n = any(array(
        select h.n from penstock.history_branch as h
        where h.id = v_branch and h.noted < v_horizon for update skip locked));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

-- Refuses a mark that a reader kept and that is not in the past of this database: it belongs to another cluster or
-- database, is ahead of this one, or is further than what was noted here of its branch. Rows below such a mark may be
-- lost, and their ids may be given again.
create or replace function penstock.check_mark(p_system text, p_database bigint, p_branch text, p_xid bigint)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
    v_hint constant text :=
        'Begin with a new checkpoint; after a restore, as admin, select penstock.rebase_history() first.';
    v_now  record;
    v_then penstock.history_branch;
begin
    select * into v_now from penstock.history_horizon();
    select * into v_then from penstock.history_branch as b where b.id = p_branch;
    if p_system is null or p_database is null or p_branch is null or p_xid is null then
        perform penstock.refuse('PS400', 'offset: system, database, branch and xid must not be null');
    elsif p_system <> v_now.system then
        perform penstock.refuse('PS409',
            format('offset: it is of another cluster (system %s, this is %s)', left(p_system, 40), v_now.system),
            v_hint);
    elsif p_database <> v_now.database then
        perform penstock.refuse('PS409',
            format('offset: it is of another database (%s, this is %s)', p_database, v_now.database), v_hint);
    elsif p_xid < 0 then
        perform penstock.refuse('PS400', format('offset: %s is below 0', p_xid));
    elsif p_branch = v_now.branch and p_xid > v_now.xid or v_then.id is null and p_xid > 0 and pg_is_in_recovery() then
        perform penstock.refuse('PS409',
            format('offset: transaction %s is ahead of this cluster, which is at %s: '
                   'it was set back, or it is a copy that lags',
                   p_xid, v_now.xid), v_hint);
    elsif p_branch <> v_now.branch and p_xid > coalesce(v_then.noted, 0) then
        perform penstock._refuse_branch(p_branch, p_xid, v_then);
    end if;
end
$$;

-- Makes restored rows the oldest ones, because this cluster may never reach the transaction ids of the old cluster.
-- Rows whose ids it has reached are below the horizon already or soon, like any others. Returns how many rows had to be
-- changed.
create or replace function penstock.rebase_history() returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_rows bigint;
begin
    lock table penstock.history_origin in exclusive mode;
    if (select array_agg(o.system) from penstock.history_origin as o) = array[penstock._system()] then
        return 0;
    end if;
    update penstock.history as h set xid = 0 where h.xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    get diagnostics v_rows = row_count;
    update penstock.sample as s set xid = 0 where s.xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    delete from penstock.history_count;    -- counted by the old transaction ids
    delete from penstock.history_origin;
    insert into penstock.history_origin (system) values (penstock._system());
    delete from penstock.history_branch;
    perform penstock._begin_branch();
    perform penstock._note_audit('rebase', null, jsonb_build_object('rows', v_rows));
    return v_rows;
end
$$;

-- Returns the queues that had this name: the present one and those before it.
create or replace function penstock.queues_named(p_queue text) returns int[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_ids int[];
begin
    select array_agg(q.id) into v_ids
    from (select n.id, n.name from penstock.queue as n union all select g.id, g.name from penstock.queue_gone as g) as q
    where q.name = p_queue;
    if v_ids is null then
        perform penstock.the_queue(p_queue);    -- the error names a similar queue
    end if;
    return v_ids;
end
$$;

-- Refuses a window with rows that were dropped after drop p_dropped, the last one that the reader knew of. check_mark
-- decides whether the ends of the window belong to this database.
drop function if exists penstock.check_window(text, bigint, bigint, bigint, bigint, text, timestamptz, timestamptz);
create or replace function penstock.check_window(
    p_from bigint, p_to bigint, p_dropped bigint,
    p_queue text default null, p_since timestamptz default null, p_until timestamptz default null
) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
    v_ids   int[];
    v_days  date[];
    v_rows  bigint;
begin
    if p_from is null or p_to is null or p_dropped is null then
        perform penstock.refuse('PS400', 'offset: from, to and dropped must not be null');
    elsif p_from not between 0 and p_to then
        perform penstock.refuse('PS400', format('offset: %s is not between 0 and %s', p_from, p_to));
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
                   array_to_string(v_days[:5], ', ') || case when cardinality(v_days) > 5 then ' …' else '' end,
                   v_rows, p_from, p_to),
            'Begin with a new checkpoint; after a restore, as admin, select penstock.rebase_history() first. '
            'Upkeep keeps history for 30 days: read it more often.');
    end if;
end
$$;

-- Returns whether anything was written in a window. With it, a reader of idle queues writes nothing.
create or replace function penstock.history_between(p_from bigint, p_to bigint) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
    select exists (select from penstock.history as h where h.xid >= p_from and h.xid < p_to)
$$;

-- Returns where the rows of a window are: for each day, the pages from the first to the last that has a row. With
-- p_roughly it returns all pages of each day, at no cost; otherwise it searches the index of xids, which costs about a
-- tenth of reading the rows.
create or replace function penstock.history_spans(
    p_from bigint, p_to bigint, p_since timestamptz default null, p_until timestamptz default null,
    p_roughly boolean default false
) returns table (day date, relation bigint, first_page bigint, pages bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set timezone = 'UTC' set enable_seqscan = off as $$
begin
    return query
    with days as materialized (
        select c.oid, to_date(right(c.relname, 8), 'YYYYMMDD') as day,
               pg_relation_size(c.oid) / current_setting('block_size')::bigint as pages
        from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
        where i.inhparent = 'penstock.history'::regclass and c.relname ~ '^history_[0-9]{8}$'
    ), kept as (
        select d.* from days as d
        where d.pages > 0 and (p_since is null or d.day + 1 > p_since) and (p_until is null or d.day < p_until)
    )
    select k.day, k.oid::bigint, 0::bigint, k.pages from kept as k where p_roughly
    union all
    select k.day, k.oid::bigint, f.first, f.last + 1 - f.first
    from (
        select h.tableoid as oid,
               (min(h.ctid)::text::point)[0]::bigint as first, (max(h.ctid)::text::point)[0]::bigint as last
        from penstock.history as h
        where not p_roughly and h.xid >= p_from and h.xid < p_to
          and (p_since is null or h.finished_at >= p_since) and (p_until is null or h.finished_at < p_until)
        group by h.tableoid
    ) as f
    join kept as k on k.oid = f.oid
    order by 1;
end
$$;

-- A branch always exists, so that a standby has one to read.
do $$
begin
    perform penstock._begin_branch();
end
$$;

create or replace function penstock._check_origin() returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    if (select array_agg(o.system) from penstock.history_origin as o) is distinct from array[penstock._system()] then
        perform penstock.refuse('PS409', 'history: it was written in another cluster and restored into this one',
            'As admin: select penstock.rebase_history(); then read it with a new checkpoint.');
    end if;
end
$$;

-- Raises the error for a mark that is not in the past of this database. The error says what happened to its rows, and
-- how to go on.
create or replace function penstock._refuse_branch(p_branch text, p_xid bigint, p_known penstock.history_branch)
returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
    v_before constant text := left(split_part(p_branch, '-', 1), 10);
    v_now    constant text := penstock.timeline()::text;
begin
    perform penstock.refuse('PS409', format(
        'history: it was read up to transaction %s of timeline %s, and this database (timeline %s) '
        'does not remember that: it was %s. '
        'Rows that were read%s may no longer exist, and rows that were written here since may not have been read',
        p_xid, v_before, v_now,
        case when v_before = v_now then 'restored from an older copy'
             else 'failed over to a standby that lagged, or restored' end,
        ' from transaction ' || p_known.noted || ' on (' || date_trunc('second', p_known.noted_at)::text || ')'),
        'A lake: penstock pipeline rebase --lake DIR. A stream: begin with a new checkpoint.');
end
$$;
