-- What people look at: queues, workers and decisions, in one snapshot and one round trip.

-- Of one queue or of all: how it stands (as `status`), who scales it and what was wanted last, its latest samples (as many as
-- asked for, oldest first), the workers that serve it and the latest decisions (newest first). An adopted table is a queue here
-- as soon as somebody has scaled it, without counts.
create or replace function penstock.board(p_queue text default null, p_decisions int default 10, p_samples int default 0)
returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_now constant timestamptz := penstock.clock();
begin
    if p_decisions is null or p_decisions not between 0 and 1000 or p_samples is null or p_samples not between 0 and 1000 then
        perform penstock.refuse('PS400', 'decisions, samples: one is null, or not between 0 and 1000');
    end if;
    return jsonb_build_object(
        'at', extract(epoch from v_now)::double precision,
        'queues', coalesce((
            select jsonb_agg(jsonb_build_object(
                'queue', s.queue, 'paused', s.paused, 'sla', extract(epoch from s.sla)::double precision, 'planned', s.planned,
                'pending', s.pending, 'active', s.active, 'done', s.done, 'dead', s.dead, 'cancelled', s.cancelled,
                'oldest_pending_age', extract(epoch from s.oldest_pending_age)::double precision, 'totals', s.totals,
                'samples', (
                    select jsonb_agg(jsonb_build_array(
                        extract(epoch from l.at)::double precision, l.pending, l.active,
                        coalesce(extract(epoch from l.oldest_age), 0)::double precision, l.workers, l.totals) order by l.at)
                    from (
                        select p.* from penstock.sample as p join penstock.queue as q on q.id = p.queue_id
                        where q.name = s.queue order by p.at desc limit p_samples
                    ) as l)) order by s.queue)
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
            select jsonb_agg(to_jsonb(l) || jsonb_build_object('at', extract(epoch from l.at)::double precision) order by l.id desc)
            from (
                select d.* from penstock.decision as d where p_queue is null or d.queue = p_queue order by d.id desc limit p_decisions
            ) as l), '[]'),
        -- The latest of each, however long ago: why its target is what it is.
        'latest', coalesce((
            select jsonb_agg(to_jsonb(l) || jsonb_build_object('at', extract(epoch from l.at)::double precision))
            from penstock.scaling as g
            cross join lateral (
                select d.* from penstock.decision as d where d.queue = g.queue order by d.at desc, d.id desc limit 1
            ) as l
            where p_queue is null or g.queue = p_queue), '[]'));
end
$$;
