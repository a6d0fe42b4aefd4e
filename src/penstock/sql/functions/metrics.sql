-- Metrics: everything that a monitoring system reads about a database, in one snapshot. Its cost does not depend on the
-- number of tasks.

-- Returns the board with the samples of the last minute, and the state of the database as a whole. It runs with the
-- rights of its caller: only a member of pg_read_all_stats sees the transactions of other users. Without that right
-- `oldest_snapshot` is null, because the oldest transaction may be one that the caller does not see.
create or replace function penstock.metrics() returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    v_board  constant jsonb := penstock.board(null, 0, 7);
    v_now    constant timestamptz := to_timestamp((v_board->>'at')::double precision);
    v_hidden constant boolean := exists (
        select from pg_stat_activity as a where a.datid is not null and a.query = '<insufficient privilege>');
begin
    return jsonb_build_object(
        'board', v_board,
        'contract', penstock.contract(),
        -- How long the most overdue schedule is overdue. Null: no schedule waits.
        'schedule_overdue', (
            select greatest(0, extract(epoch from v_now - min(s.next_at)))
            from penstock.schedule as s
            where not s.paused and exists (select from penstock.queue as q where q.id = s.queue_id)
            having count(*) > 0),
        'readers', (
            select coalesce(jsonb_object_agg(r.name, greatest(0, extract(epoch from v_now - r.seen))), '{}')
            from penstock.history_reader as r),
        -- For how many seconds a transaction has been open that keeps vacuum from removing rows. Zero: there is none.
        'oldest_snapshot', case when not v_hidden then coalesce(greatest(
            (select max(extract(epoch from clock_timestamp() - a.xact_start))
             from pg_stat_activity as a
             where (a.backend_xid is not null or (a.backend_xmin is not null and a.datname = current_database()))
               and a.pid <> pg_backend_pid() and coalesce(a.backend_type, '') <> 'autovacuum worker'
               and not exists (select from pg_stat_progress_vacuum as v where v.pid = a.pid)),
            (select max(extract(epoch from clock_timestamp() - p.prepared)) from pg_prepared_xacts as p)), 0) end,
        'dead_rows', (
            select jsonb_object_agg(n.name, pg_stat_get_dead_tuples(to_regclass('penstock.' || n.name)))
            from unnest(array['task', 'agenda', 'lease', 'counter_log']) as n(name)));
end
$$;
