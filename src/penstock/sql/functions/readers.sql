-- Those who read history by windows and will come again, and what they are owed: upkeep drops no day, and no sample, that one of
-- them has not passed. One that never comes again holds everything back: doctor tells of it, forget_reader ends it.

-- He is there, and has read everything below p_passed. Known already: that only grows, unless he comes from another cluster.
create or replace function penstock.note_reader(p_name text, p_system text, p_passed bigint default 0) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_now record;
begin
    select * into v_now from penstock.history_horizon();
    if p_name is null or octet_length(p_name) not between 1 and 200 then
        perform penstock.refuse('PS400', format('reader: %L is not 1 to 200 bytes long', left(p_name, 80)));
    elsif p_system is distinct from v_now.system then
        perform penstock.refuse('PS409', format('reader: it read another cluster (system %s, this is %s)', left(p_system, 40), v_now.system),
            'After a restore: penstock pipeline rebase.');
    elsif p_passed is null or p_passed not between 0 and v_now.xid then
        perform penstock.refuse('PS400', format('passed: %s is not between 0 and %s', p_passed, v_now.xid));
    end if;
    insert into penstock.history_reader as r (name, system, passed, seen)
    values (p_name, p_system::bigint, p_passed, penstock.clock())
    on conflict (name) do update set
        system = excluded.system,
        passed = case when r.system = excluded.system then greatest(r.passed, excluded.passed) else excluded.passed end,
        seen = excluded.seen;
end
$$;

create or replace function penstock.forget_reader(p_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    delete from penstock.history_reader as r where r.name = p_name;
    if not found then
        perform penstock.refuse('PS404', format('reader: %L does not read history', left(p_name, 80)),
            'There are: ' || coalesce((select string_agg(r.name, ', ' order by r.name) from penstock.history_reader as r), 'none') || '.');
    end if;
    perform penstock.note_audit('forget', null, jsonb_build_object('reader', p_name));
end
$$;

-- Below this transaction everybody has read everything. Of a reader from another cluster nobody knows what he has.
create or replace function penstock.read_up_to() returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(min(case when r.system = penstock.system() then r.passed else 0 end), 9223372036854775807)
    from penstock.history_reader as r
$$;

-- Whether somebody has not yet passed this day of history. By the index: upkeep asks every few seconds.
create or replace function penstock.unread(p_relation regclass) returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    v_found boolean;
begin
    execute format('select exists (select from %s where xid >= %s)', p_relation, penstock.read_up_to()) into v_found;
    return v_found;
end
$$;

-- Some pages of a day of history, summed up: its rows below a transaction by queue and outcome, and if asked a sum over all they
-- say, which whoever has a copy can make too. Not over xid: a restore changes it.
create or replace function penstock.history_sums(
    p_day date, p_first bigint, p_pages bigint, p_below bigint, p_thorough boolean default false
) returns table (queue_id int, outcome text, rows bigint, checksum numeric)
language sql stable security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
    select h.queue_id, h.outcome, count(*), coalesce(sum(case when p_thorough then
        ('x' || left(md5(concat_ws(E'\x1f', h.id, h.queue_id, h.task_id,
            (extract(epoch from h.created) * 1000000)::bigint, (extract(epoch from h.due) * 1000000)::bigint,
            (extract(epoch from h.claimed_at) * 1000000)::bigint, (extract(epoch from h.finished_at) * 1000000)::bigint,
            h.iteration, h.attempt, h.outcome, h.kind, h.worker, coalesce(h.subject, E'\x1e'), coalesce(h.error_class, E'\x1e'),
            coalesce(h.error, E'\x1e'))), 15))::bit(60)::bigint end), 0)
    from penstock.history as h
    where h.finished_at >= p_day::timestamptz and h.finished_at < (p_day + 1)::timestamptz and h.xid < p_below
      and h.ctid >= format('(%s,0)', p_first)::tid and h.ctid < format('(%s,0)', p_first + p_pages)::tid
    group by h.queue_id, h.outcome
$$;

-- A day of history goes because somebody has a copy: so many rows, all below that transaction. He has compared them; that nothing
-- came since is seen here, while nobody can write. False: somebody is at that day now.
create or replace function penstock.release_day(p_day date, p_rows bigint, p_below bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' set lock_timeout = '200ms' as $$
declare
    v_today    constant date := (penstock.clock() at time zone 'UTC')::date;
    v_relation constant regclass := to_regclass('penstock.history_' || to_char(p_day, 'YYYYMMDD'));
    v_found    record;
begin
    if p_day is null or p_rows is null or p_below is null then
        perform penstock.refuse('PS400', 'day, rows, below: none of them may be null');
    elsif p_day >= v_today then
        perform penstock.refuse('PS400', format('day: %s is not over: today is %s', p_day, v_today));
    elsif v_relation is null then
        perform penstock.refuse('PS404', format('day: there is no history of %s', p_day));
    elsif not pg_try_advisory_xact_lock(hashtext('penstock.drop_history')) then
        return false;
    end if;
    if penstock.unread(v_relation) then
        perform penstock.refuse('PS409', format('day: somebody who reads history has not passed %s', p_day), '`penstock doctor` says who.');
    end if;
    begin
        execute format('lock table %s in access exclusive mode', v_relation);
        execute format('select count(*) as rows, count(*) filter (where xid >= %s) as late from %s', p_below, v_relation) into v_found;
        if v_found.rows <> p_rows or v_found.late > 0 then
            perform penstock.refuse('PS409', format('day: %s has %s rows, not %s; %s of them came late', p_day, v_found.rows, p_rows, v_found.late),
                'penstock pipeline run reads them.');
        end if;
        perform penstock.drop_day(v_relation, p_day);
    exception when lock_not_available or undefined_table or dependent_objects_still_exist then
        return false;
    end;
    perform penstock.note_audit('release', null, jsonb_build_object('day', p_day, 'rows', p_rows));
    return true;
end
$$;

-- The days of which samples were written in a window of transactions.
create or replace function penstock.sample_days(p_from bigint, p_to bigint) returns table (day date)
language sql stable security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' set enable_seqscan = off as $$
    select distinct s.at::date from penstock.sample as s where s.xid >= p_from and s.xid < p_to order by 1
$$;
