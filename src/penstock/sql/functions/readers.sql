-- Readers that read history by windows and come again. Upkeep drops no day and no sample that one of them has not
-- passed. A reader that never comes again holds everything back: the doctor reports it, and forget_reader removes it.

-- Registers a reader that has read everything below p_passed, which is a mark of its own. On one branch `passed` only
-- grows.
drop function if exists penstock.note_reader(text, text, bigint);
create or replace function penstock.note_reader(
    p_name text, p_system text, p_database bigint, p_branch text, p_passed bigint default 0
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if p_name is null or octet_length(p_name) not between 1 and 200 then
        perform penstock.refuse('PS400', format('reader: %L is not 1 to 200 bytes long', left(p_name, 80)));
    end if;
    perform penstock.check_mark(p_system, p_database, p_branch, p_passed);
    insert into penstock.history_reader as r (name, branch, passed, seen)
    values (p_name, penstock._begin_branch(), p_passed, penstock.clock())
    on conflict (name) do update set
        branch = excluded.branch,
        passed = case when r.branch = excluded.branch then greatest(r.passed, excluded.passed) else excluded.passed end,
        seen = excluded.seen;
end
$$;

create or replace function penstock.forget_reader(p_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    delete from penstock.history_reader as r where r.name = p_name;
    if not found then
        perform penstock.refuse('PS404', format('reader: %L does not read history', left(p_name, 80)),
            'There are: ' || coalesce((select string_agg(r.name, ', ' order by r.name)
                                       from penstock.history_reader as r), 'none') || '.');
    end if;
    perform penstock._note_audit('forget', null, jsonb_build_object('reader', p_name));
end
$$;

-- Returns the transaction below which every reader has read everything. A reader that has not come since this branch
-- began counts as 0: it may have read rows that are lost, and then has to compare the days that exist here.
create or replace function penstock._read_up_to() returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(min(case when r.branch = b.id then r.passed else 0 end), 9223372036854775807)
    from penstock.history_reader as r cross join (select penstock.find_branch() as id) as b
$$;

-- Returns whether some reader has not yet passed this day of history.
create or replace function penstock._unread(p_relation regclass) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select penstock._written_since(p_relation, penstock._read_up_to()) $$;

-- Returns the sums of some pages of a day of history: its rows below a transaction by queue and outcome and, with
-- p_thorough, a checksum over all columns but xid. The holder of a copy can compute the same checksum. It leaves out
-- xid because a restore changes it.
create or replace function penstock.history_sums(
    p_day date, p_first bigint, p_pages bigint, p_below bigint, p_thorough boolean default false
) returns table (queue_id int, outcome text, rows bigint, checksum numeric)
language sql stable security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
    select h.queue_id, h.outcome, count(*), coalesce(sum(case when p_thorough then
        ('x' || left(md5(concat_ws(E'\x1f', h.id, h.queue_id, h.task_id,
            (extract(epoch from h.created) * 1000000)::bigint, (extract(epoch from h.due) * 1000000)::bigint,
            (extract(epoch from h.claimed_at) * 1000000)::bigint, (extract(epoch from h.finished_at) * 1000000)::bigint,
            h.iteration, h.attempt, h.outcome, h.kind, h.worker, coalesce(h.subject, E'\x1e'),
            coalesce(h.error_class, E'\x1e'), coalesce(h.error, E'\x1e'))), 15))::bit(60)::bigint end), 0)
    from penstock.history as h
    where h.finished_at >= p_day::timestamptz and h.finished_at < (p_day + 1)::timestamptz and h.xid < p_below
      and h.ctid >= format('(%s,0)', p_first)::tid and h.ctid < format('(%s,0)', p_first + p_pages)::tid
    group by h.queue_id, h.outcome
$$;

-- Drops a day of history of which the caller has a copy: p_rows rows, all below transaction p_below. The caller has
-- compared them. The function checks, while no session can write, that no row came since. Returns false if another
-- session uses that day now.
create or replace function penstock.release_day(p_day date, p_rows bigint, p_below bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
    v_today    constant date := (penstock.clock() at time zone 'UTC')::date;
    v_relation constant regclass := to_regclass('penstock.history_' || to_char(p_day, 'YYYYMMDD'));
    v_count    penstock.history_count;
    v_rows     bigint;
    v_late     bigint;
begin
    if p_day is null or p_rows is null or p_below is null then
        perform penstock.refuse('PS400', 'day, rows, below: none of them may be null');
    elsif p_day >= v_today then
        perform penstock.refuse('PS400', format('day: %s is not over: today is %s', p_day, v_today));
    elsif v_relation is null then
        perform penstock.refuse('PS404', format('day: there is no history of %s', p_day));
    elsif not penstock._take_chore('drop_history') then
        return false;
    end if;
    if penstock._unread(v_relation) then
        perform penstock.refuse('PS409', format('day: a reader of history has not passed %s', p_day),
            '`penstock doctor` names the reader.');
    end if;
    v_count := penstock._begin_count(p_day, v_relation, p_below);
    perform penstock._count_pages(v_count, v_relation, v_count.pages);
    select coalesce(sum(s.rows), 0) into v_rows from penstock.history_sum as s where s.day = p_day;
    execute format('select count(*) from %s where xid >= %s', v_relation, p_below) into v_late;
    if v_rows <> p_rows or v_late > 0 then
        perform penstock.refuse('PS409',
            format('day: %s has %s rows, not %s; %s of them came late', p_day, v_rows + v_late, p_rows, v_late),
            'penstock pipeline run reads them.');
    elsif penstock._drop_day(v_relation, p_day, p_below) is not true then
        return false;
    end if;
    perform penstock._note_audit('release', null, jsonb_build_object('day', p_day, 'rows', p_rows));
    return true;
end
$$;

-- Returns the days for which samples were written in a window of transactions.
create or replace function penstock.sample_days(p_from bigint, p_to bigint) returns table (day date)
language sql stable security definer set search_path = pg_catalog, pg_temp
set timezone = 'UTC' set enable_seqscan = off as $$
    select distinct s.at::date from penstock.sample as s where s.xid >= p_from and s.xid < p_to order by 1
$$;
