-- Upkeep: any number of processes may run it at any time. It consists of parts, each a short transaction of its own. A
-- part is bounded and idempotent, skips locked rows, and leaves to the next call what it has no time for.

-- Returns the parts, and how often a fleet does each of them: a worker skips a part that another one has just done.
create or replace function penstock.upkeep_pace() returns table (part text, every interval)
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    values ('squeezed', interval '8 seconds'), ('expired', '8 seconds'), ('promoted', '8 seconds'),
           ('unstarted tasks ended', '8 seconds'), ('sampled', '8 seconds'), ('history noted', '8 seconds'),
           ('ended tasks retired', '8 seconds'),
           ('idle workers forgotten', '8 seconds'),
           ('workers forgotten', '1 minute'), ('progress forgotten', '10 minutes'),
           ('history days made', '1 minute'),
           ('history days counted', '1 minute'), ('history days dropped', '1 minute'), ('samples dropped', '1 minute'),
           ('decisions dropped', '1 minute'), ('ledger parts dropped', '1 minute'), ('rejects dropped', '1 minute'),
           ('audit entries dropped', '1 minute'), ('throttles dropped', '1 minute')
$$;

insert into penstock.chore (name) select p.part from penstock.upkeep_pace() as p on conflict (name) do nothing;

-- Returns the names of the parts, least recently done first. With p_due it returns only those that were not done
-- lately.
create or replace function penstock.upkeep_parts(p_due boolean default false) returns setof text
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select p.part
    from penstock.upkeep_pace() with ordinality as p(part, every, n)
    left join penstock.chore as c on c.name = p.part
    cross join penstock.clock() as now
    where not p_due or c.done_at is null or c.done_at not between now - p.every and now
    order by c.done_at nulls first, p.n
$$;

-- Does one part of upkeep. Returns the number of rows, or null if another session does the part now or, with p_due, if
-- it was done lately. If `more` is true the part is not finished: call it again.
create or replace function penstock.upkeep_part(
    p_part text, p_due boolean default false, out rows bigint, out more boolean
)
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
    v_now   constant timestamptz := penstock.clock();
    v_limit constant int := 5000;
    v_every interval;
begin
    select p.every into v_every from penstock.upkeep_pace() as p where p.part = p_part;
    if not found then
        perform penstock.refuse('PS400',
            format('part: %s is no part of upkeep', coalesce(quote_literal(left(p_part, 80)), 'null')),
            'The parts are ' || (select string_agg(p.part, ', ') from penstock.upkeep_pace() as p) || '.');
    end if;
    more := false;
    if not penstock._take_chore(p_part, case when p_due then v_every end) then
        return;
    end if;
    case p_part
        when 'squeezed' then select * into rows, more from penstock._squeeze_all();
        when 'expired' then select * into rows, more from penstock._expire_all();
        when 'unstarted tasks ended' then select * into rows, more from penstock._end_unstarted_all();
        when 'promoted' then select * into rows, more from penstock._promote_all();
        when 'sampled' then rows := penstock._take_samples();
        when 'history noted' then rows := penstock._keep_branch();
        when 'ended tasks retired' then rows := penstock._retire(v_limit);
        when 'idle workers forgotten' then rows := penstock._forget_idle(v_now - interval '10 seconds');
        when 'workers forgotten' then rows := penstock._forget_workers(v_now - interval '5 minutes', v_limit);
        when 'progress forgotten' then rows := penstock._forget_progress(v_limit);
        when 'history days made' then
            rows := count(*) filter (where penstock._make_history(v_now::date + d.n))
                from generate_series(0, 14) as d(n);
        when 'history days counted' then
            select * into rows, more from penstock._count_history(v_now - penstock._keeps('history'));
        when 'history days dropped' then
            select * into rows, more from penstock._drop_history(v_now - penstock._keeps('history'));
        when 'samples dropped' then rows := penstock._drop_samples(v_now - penstock._keeps('samples'), v_limit);
        when 'decisions dropped' then rows := penstock._drop_decisions(v_now - penstock._keeps('decisions'), v_limit);
        when 'ledger parts dropped' then rows := penstock._drop_ledger(v_now - penstock._keeps('ledger'), v_limit);
        when 'rejects dropped' then rows := penstock._drop_rejects(v_now - penstock._keeps('rejects'), v_limit);
        when 'throttles dropped' then rows := penstock._drop_throttles(v_now, v_limit);
        when 'audit entries dropped' then rows := penstock._drop_audit(v_now - penstock._keeps('audit'), v_limit);
    end case;
    more := more or (rows >= v_limit and p_part not in ('squeezed', 'sampled'));
    if more then
        update penstock.chore as c set done_at = '-infinity' where c.name = p_part;
    end if;
end
$$;

-- Does all parts, for a plain SQL client: call penstock.upkeep(). Every part commits by itself, so the procedure cannot
-- be called inside a transaction. A part that fails raises a warning, and an error at the end. The procedure runs with
-- the rights of its caller, because a procedure that commits can neither be SECURITY DEFINER nor pin its settings: it
-- pins them for each transaction.
drop function if exists penstock.upkeep(interval, interval, interval);
create or replace procedure penstock.upkeep()
language plpgsql as $$
declare
    v_parts  pg_catalog.text[];
    v_part   pg_catalog.text;
    v_more   pg_catalog.bool;
    v_failed pg_catalog.text[];
    v_until  pg_catalog.timestamptz;
begin
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    v_failed := '{}';
    v_until := clock_timestamp() + interval '5 seconds';
    v_parts := array(select penstock.upkeep_parts());
    foreach v_part in array v_parts loop
        loop
            begin
                select u.more into v_more from penstock.upkeep_part(v_part) as u;
            exception when others then
                raise warning 'upkeep: % failed: %', v_part, sqlerrm;
                v_failed := v_failed || v_part;
                v_more := false;
            end;
            commit;
            perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
            exit when not v_more or clock_timestamp() > v_until;
        end loop;
    end loop;
    if v_failed <> '{}' then
        raise exception using message = 'upkeep: failed parts: ' || array_to_string(v_failed, ', '),
            hint = 'All other parts are done. The warnings say what went wrong.';
    end if;
end
$$;

-- --- retention -------------------------------------------------------------------------------------------------------

-- Returns how long something is kept; null means for ever.
create or replace function penstock._keeps(p_what text) returns interval
language sql stable security definer set search_path = pg_catalog, pg_temp
return (select r.keep from penstock.retention as r where r.what = p_what);

-- Sets how long upkeep keeps history, samples, decisions, ledger, rejects or audit: at least a day, or null for ever.
create or replace function penstock.set_retention(p_what text, p_keep interval) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    update penstock.retention as r set keep = penstock._check_retention(p_what, p_keep) where r.what = p_what;
    if not found then
        perform penstock.refuse('PS404',
            format('retention: %s is not kept by upkeep', coalesce(quote_literal(left(p_what, 80)), 'null')),
            'It keeps ' || (select string_agg(r.what, ', ' order by r.what) from penstock.retention as r) || '.');
    end if;
    perform penstock._note_audit('retain', null, jsonb_build_object('what', p_what, 'keep', p_keep));
end
$$;

-- --- queues ----------------------------------------------------------------------------------------------------------

-- Returns the moment at which a part stops and leaves the rest to the next call: rows that it has locked stay locked
-- until then. The moment is by the real clock, and well before a statement_timeout would undo all of the part.
create or replace function penstock._part_ends() returns timestamptz
language sql volatile set search_path = pg_catalog, pg_temp
return clock_timestamp()
    + least(interval '200 milliseconds', nullif(current_setting('statement_timeout')::interval, interval '0') / 4);

-- The next three functions touch only queues that have something to do, in a different order each time, so that no
-- queue is always the last.
create or replace function penstock._squeeze_all(out rows bigint, out more boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    v_ends  constant timestamptz := penstock._part_ends();
    v_queue int;
begin
    rows := 0;
    more := false;
    for v_queue in
        select b.queue_id from penstock.watermark as b
        where exists (select from penstock.counter_log as l where l.queue_id = b.queue_id and l.xid >= b.xid)
           or exists (select from penstock.counter_log as l where l.queue_id = b.queue_id and l.xid = any(b.running))
           or b.system <> penstock._system()
        order by random()
    loop
        rows := rows + penstock._squeeze(v_queue);
        more := rows > 0 and clock_timestamp() > v_ends;
        exit when more;
    end loop;
end
$$;

-- Expires the leases of all queues. No lease ends before the bound in `watermark`. Once a minute this function looks
-- there nevertheless, for rows that were written by hand; under a held snapshot this look walks over every lease that
-- has ended since.
create or replace function penstock._expire_all(out rows bigint, out more boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    v_now   constant timestamptz := penstock.clock();
    v_ends  constant timestamptz := penstock._part_ends();
    v_whole constant boolean := penstock._take_chore('expire_all', interval '1 minute');
    v_queue int;
    v_count int;
begin
    rows := 0;
    more := false;
    for v_queue in
        select q.id
        from penstock.queue as q
        left join penstock.watermark as b on b.queue_id = q.id and not v_whole
        cross join lateral (
            select from penstock.lease as l
            where l.queue_id = q.id and l.until >= coalesce(b.until, '-infinity') and l.until < v_now
            limit 1    -- so that the planner starts at the bound of each queue; an exists becomes a join of all
        ) as first
        order by random()
    loop
        -- Once per queue and transaction: by the lock rule, leases come before documents.
        v_count := penstock._expire(v_queue, 1000, v_whole);
        rows := rows + v_count;
        more := more or v_count >= 1000;
        if clock_timestamp() > v_ends then
            more := more or rows > 0;
            exit;
        end if;
    end loop;
    if more and v_whole then
        update penstock.chore as c set done_at = '-infinity' where c.name = 'expire_all';
    end if;
end
$$;

create or replace function penstock._promote_all(out rows bigint, out more boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    v_now   constant timestamptz := penstock.clock();
    v_ends  constant timestamptz := penstock._part_ends();
    v_queue int;
    v_count int;
begin
    rows := 0;
    more := false;
    for v_queue in
        select b.queue_id
        from penstock.watermark as b
        cross join lateral (
            select min(y.due) as due from penstock.early as y
            where y.queue_id = b.queue_id and y.xid >= coalesce(b.running[1], b.xid)
        ) as e
        cross join lateral (
            select from penstock.agenda as a
            where a.queue_id = b.queue_id and not a.pending and a.due <= v_now
              and a.due >= least(b.first_planned, e.due)
            limit 1    -- as above
        ) as first
        order by random()
    loop
        loop
            v_count := penstock._promote(v_queue, 2000);
            rows := rows + v_count;
            exit when v_count = 0 or clock_timestamp() > v_ends;
        end loop;
        more := rows > 0 and clock_timestamp() > v_ends;
        exit when more;
    end loop;
end
$$;

-- Returns whether a queue was idle from one sample to the next: all values are equal, and no task waited (its age would
-- have grown).
create or replace function penstock._idle_between(p_one penstock.sample, p_next penstock.sample) returns boolean
language sql immutable parallel safe set search_path = pg_catalog, pg_temp
return (p_one).oldest_age is null and (p_next).oldest_age is null
   and ((p_one).waiting,
        (p_one).planned, (p_one).pending, (p_one).active, (p_one).done, (p_one).dead, (p_one).cancelled,
        (p_one).sla, (p_one).workers, (p_one).totals)
   is not distinct from
       ((p_next).waiting,
        (p_next).planned, (p_next).pending, (p_next).active, (p_next).done, (p_next).dead, (p_next).cancelled,
        (p_next).sla, (p_next).workers, (p_next).totals);

-- Writes a sample of each queue that is not idle. An idle queue gets one every ten minutes, and the first of each UTC
-- day (decision 34). `chore.upto` is the bucket of the last call. When an idle queue changes, or a day ends, the
-- function also writes the sample of that last call, a copy of the queue's last one. So an idle period lies between two
-- equal samples of one day, and a rate between neighbours never spans it. A gap between samples that differ means that
-- upkeep did not run.
create or replace function penstock._take_samples() returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_now    constant timestamptz := penstock.clock();
    v_bucket constant timestamptz := date_bin('10 seconds', v_now, 'epoch');
    v_looked timestamptz;    -- the last bucket for which an idle queue is known to have been idle
    v_count  int;
begin
    if not penstock._take_chore('take_samples') then
        return 0;    -- another session does it; to wait for the same rows would gain nothing
    end if;
    select least(c.upto, v_bucket - interval '10 seconds') into v_looked
    from penstock.chore as c where c.name = 'take_samples';
    update penstock.chore as c set upto = v_bucket where c.name = 'take_samples' and c.upto is distinct from v_bucket;
    with serving as materialized (
        select n.name, count(*)::int as workers
        from penstock.worker as w cross join lateral (select distinct unnest(w.queues)) as n(name)
        group by n.name
    ), looked as materialized (
        select (q.id, v_bucket, s.waiting, s.planned, s.pending, s.active, s.done, s.dead, s.cancelled,
                s.oldest_pending_age, s.sla, coalesce(w.workers, 0), s.totals, null)::penstock.sample as now,
               l.row as last
        from penstock.status() as s
        join penstock.queue as q on q.name = s.queue
        left join serving as w on w.name = s.queue
        left join lateral (
            select p as row from penstock.sample as p
            where p.queue_id = q.id and p.at <= v_bucket order by p.at desc limit 1
        ) as l on true
    ), judged as (
        select k.now, k.last, penstock._idle_between(k.last, k.now) as idle,
               ((k.last).at at time zone 'UTC')::date < (v_bucket at time zone 'UTC')::date as another_day
        from looked as k
        where (k.last).at is distinct from v_bucket
    ), due as (
        select (j.now).* from judged as j
        where j.idle is not true or j.another_day or (j.last).at <= v_bucket - interval '10 minutes'
        union all
        select (r.again).*
        from judged as j
        cross join lateral (
            select ((j.last).queue_id, v_looked, (j.last).waiting, (j.last).planned, (j.last).pending,
                    (j.last).active, (j.last).done, (j.last).dead, (j.last).cancelled, null,
                    (j.last).sla, (j.last).workers, (j.last).totals, null)::penstock.sample as again
        ) as r
        where (j.last).at < v_looked and (j.last).oldest_age is null and (j.idle is not true or j.another_day)
    )
    insert into penstock.sample (queue_id, at, waiting, planned, pending, active, done, dead, cancelled,
                                 oldest_age, sla, workers, totals)
    select d.queue_id, d.at, d.waiting, d.planned, d.pending, d.active, d.done, d.dead, d.cancelled,
           d.oldest_age, d.sla, d.workers, d.totals
    from due as d
    on conflict (queue_id, at) do nothing;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

-- Removes ended tasks that a queue no longer keeps.
create or replace function penstock._retire(p_limit int default 10000) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_now   constant timestamptz := penstock.clock();
    v_found bigint[];
    v_ends  timestamptz[];
    v_held  bigint[];
    v_count bigint;
begin
    select array_agg(f.id), array_agg(f.ended_at) into v_found, v_ends
    from (
        select d.id, d.ended_at
        from penstock.queue as q
        cross join lateral (
            values ('done', coalesce(q.keep_done, '0')), ('dead', q.keep_dead), ('cancelled', q.keep_cancelled)
        ) as k(ended, keep)
        cross join lateral (
            select e.id, e.ended_at from penstock.task as e
            where e.queue_id = q.id and e.ended = k.ended and e.ended_at < v_now - k.keep
            order by e.ended_at
            limit p_limit
        ) as d
        limit p_limit
    ) as f;
    v_held := penstock._hold_documents(null, v_found, v_ends);
    delete from penstock.task as t where t.id = any(v_held);
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

-- Removes workers that miss their beats from the idle workers, so that pushes do not wake them, and deletes sets of
-- queues that no worker serves.
create or replace function penstock._forget_idle(p_before timestamptz) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_count bigint;
begin
    delete from penstock.idle_worker as i
    where i.ctid = any(array(
        select s.ctid from penstock.idle_worker as s
        where not exists (select from penstock.worker as w where w.name = s.worker and w.beat >= p_before)
        for update skip locked));
    get diagnostics v_count = row_count;
    delete from penstock.queue_set as s
    where s.ctid = any(array(
        select u.ctid from penstock.queue_set as u
        where not exists (select from penstock.worker as w where w.queue_set = u.id)
        for update skip locked));
    return v_count;
end
$$;

create or replace function penstock._forget_workers(p_before timestamptz, p_limit int) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_count bigint;
begin
    delete from penstock.worker as w
    where w.ctid = any(array(
        select s.ctid from penstock.worker as s where s.beat < p_before limit p_limit for update skip locked));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

-- --- history ---------------------------------------------------------------------------------------------------------

-- Drops old samples, except those that some reader of history has not passed.
create or replace function penstock._drop_samples(p_before timestamptz, p_limit int) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    v_read  constant bigint := penstock._read_up_to();
    v_count bigint;
begin
    delete from penstock.sample as s
    where s.ctid = any(array(
        select o.place
        from penstock.queue as q
        cross join lateral (
            select p.ctid as place from penstock.sample as p
            where p.queue_id = q.id and p.at < p_before and p.xid < v_read
            order by p.at limit p_limit for update skip locked
        ) as o
        limit p_limit));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

-- Drops old decisions. Decisions are noted in the order of their ids, so the oldest are the first, whatever their
-- number.
create or replace function penstock._drop_decisions(p_before timestamptz, p_limit int) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_count bigint;
begin
    delete from penstock.decision as d
    where d.ctid = any(array(
        select o.ctid
        from (select f.id from penstock.decision as f order by f.id limit p_limit) as first
        join penstock.decision as o on o.id = first.id
        where o.at < p_before
        for update of o skip locked));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

-- Drops old entries of the ledger, except the newest job of each series: a streaming query that restarts after any time
-- repeats its last batch. The partitions and the seal of a job are kept together. Nothing is kept for a queue that was
-- dropped.
create or replace function penstock._drop_ledger(p_before timestamptz, p_limit int) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    v_count bigint;
begin
    delete from penstock.ledger as l
    where l.ctid = any(array(
        select o.ctid
        from penstock.ledger as o
        where o.at < p_before and not exists (
            select from (
                select b.job, b.series from penstock.ledger as b
                where b.batch_id = o.batch_id and b.part = 0 and b.series is not null
                union all
                (select s.job, s.series from penstock.ledger as s
                 where s.job = o.batch_id and s.series is not null limit 1)
            ) as k
            where exists (select from penstock.queue as q where q.id = o.queue_id)
              and k.job = (select n.job from penstock.ledger as n where n.series = k.series order by n.at desc limit 1))
        order by o.at limit p_limit for update skip locked));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

create or replace function penstock._drop_rejects(p_before timestamptz, p_limit int) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_count bigint;
begin
    delete from penstock.reject as r
    where r.ctid = any(array(
        select o.ctid from penstock.reject as o
        where o.at < p_before order by o.at limit p_limit for update skip locked));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

-- Drops old entries of the audit, which is written in the order of its ids, as decisions are.
create or replace function penstock._drop_audit(p_before timestamptz, p_limit int) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_count bigint;
begin
    delete from penstock.audit as a
    where a.ctid = any(array(
        select o.ctid
        from (select f.id from penstock.audit as f order by f.id limit p_limit) as first
        join penstock.audit as o on o.id = first.id
        where o.at < p_before
        for update of o skip locked));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
