-- The board: queues, workers and decisions for people to look at, read in one snapshot and one round trip.

-- Returns the state of one queue or of all queues: its counts (as in `status`), the scaler that holds it and the last
-- target, its samples of the last p_samples times ten seconds (oldest first, with idle periods filled in), the workers
-- that serve it and the latest decisions (newest first). An adopted table appears here as a queue, without counts, once
-- a scaler has held it.
create or replace function penstock.board(
    p_queue text default null, p_decisions int default 10, p_samples int default 0
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set extra_float_digits = 1 as $$
declare
    v_now    constant timestamptz := penstock.clock();
    v_looked constant timestamptz := (select c.upto from penstock.chore as c where c.name = 'take_samples');
    v_step   constant interval := interval '10 seconds';
    v_pause  constant interval := interval '11 minutes';    -- an idle queue has a sample every ten minutes
begin
    if p_decisions is null or p_decisions not between 0 and 1000
       or p_samples is null or p_samples not between 0 and 1000 then
        perform penstock.refuse('PS400', 'decisions, samples: one is null, or not between 0 and 1000');
    end if;
    return jsonb_build_object(
        'at', extract(epoch from v_now)::double precision,
        'queues', coalesce((
            select jsonb_agg(jsonb_build_object(
                'queue', s.queue, 'paused', s.paused, 'sla', extract(epoch from s.sla)::double precision,
                'waiting', s.waiting, 'planned', s.planned, 'pending', s.pending, 'active', s.active, 'done', s.done,
                'dead', s.dead, 'cancelled', s.cancelled,
                'oldest_pending_age', extract(epoch from s.oldest_pending_age)::double precision, 'totals', s.totals,
                'samples', (
                    select jsonb_agg(jsonb_build_array(
                        extract(epoch from g.at)::double precision, (l.one).pending, (l.one).active,
                        coalesce(extract(epoch from (l.one).oldest_age), 0)::double precision,
                        (l.one).workers, (l.one).totals)
                        order by g.at)
                    from (
                        select f.one, lead(f.one) over (order by (f.one).at) as next
                        from (
                            select p as one from penstock.sample as p join penstock.queue as q on q.id = p.queue_id
                            where p_samples > 0 and q.name = s.queue and p.at > v_now - p_samples * v_step - v_pause
                            order by p.at desc limit p_samples + 1
                        ) as f
                    ) as l
                    cross join lateral (
                        select case when penstock._idle_between(l.one, coalesce(l.next, l.one))
                            then coalesce((l.next).at - v_step, v_looked) end as until
                    ) as u
                    cross join lateral generate_series(
                        (l.one).at,
                        case when u.until between (l.one).at and (l.one).at + v_pause then u.until else (l.one).at end,
                        v_step
                    ) as g(at)
                    where g.at > v_now - p_samples * v_step)) order by s.queue)
            from penstock.status(p_queue) as s), '[]'),
        'scaling', coalesce((
            select jsonb_agg(jsonb_build_object(
                'queue', g.queue, 'holder', g.holder, 'policy', g.policy, 'target', g.target, 'alive', g.until > v_now,
                'decided', extract(epoch from v_now - g.decided_at)::double precision) order by g.queue)
            from penstock.scaling as g where p_queue is null or g.queue = p_queue), '[]'),
        'workers', coalesce((
            select jsonb_agg(jsonb_build_object(
                'name', w.name, 'host', w.host, 'pid', w.pid, 'queues', w.queues, 'slots', w.slots, 'busy', w.busy,
                'age', extract(epoch from v_now - coalesce(w.started_at, w.requested_at))::double precision,
                'silent', extract(epoch from v_now - w.beat)::double precision, 'claimed', w.first_claim_at is not null,
                'leaving', w.leaving or w.dismissed) order by w.started_at, w.name)
            from penstock.worker as w where p_queue is null or p_queue = any(w.queues)), '[]'),
        'decisions', coalesce((
            select jsonb_agg(to_jsonb(l) || jsonb_build_object('at', extract(epoch from l.at)::double precision)
                             order by l.id desc)
            from (
                select d.* from penstock.decision as d
                where p_queue is null or d.queue = p_queue order by d.id desc limit p_decisions
            ) as l), '[]'),
        -- The latest decision of each queue, of any age, explains why its target is what it is.
        'latest', coalesce((
            select jsonb_agg(to_jsonb(l) || jsonb_build_object('at', extract(epoch from l.at)::double precision))
            from penstock.scaling as g
            cross join lateral (
                select d.* from penstock.decision as d where d.queue = g.queue order by d.at desc, d.id desc limit 1
            ) as l
            where p_queue is null or g.queue = p_queue), '[]'));
end
$$;
