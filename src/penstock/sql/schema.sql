CREATE SCHEMA penstock;
COMMENT ON SCHEMA penstock IS 'Penstock: a task queue. All behaviour is in functions; tables are written by them.';
CREATE TYPE penstock.place AS (
	priority smallint,
	due timestamp with time zone,
	task_id bigint
);
CREATE FUNCTION penstock.abandon(p_name text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_id int;
begin
    delete from penstock.adopted as a where a.name = p_name returning a.id into v_id;
    if v_id is null then
        return false;
    end if;
    delete from penstock.adopted_record as r where r.adopted_id = v_id;
    delete from penstock.adopted_hand as h where h.adopted_id = v_id;
    perform penstock.note_audit('abandon', p_name, '{}');
    return true;
end
$$;
CREATE FUNCTION penstock.adopt(p_name text, p_schema text, p_table text, p_mode text, p_terms jsonb, p_retry jsonb, p_max_attempts integer DEFAULT NULL::integer, p_sla interval DEFAULT NULL::interval) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
declare
    v_known penstock.adopted;
    v_id    int;
begin
    if p_name is null or p_name !~ '^[a-z0-9][a-z0-9_.-]{0,62}$' then
        perform penstock.refuse('PS400', format('name: %s is not a name', coalesce(quote_literal(left(p_name, 80)), 'null')),
            'A name has 1 to 63 of a-z, 0-9, _ . - and begins with a letter or digit.');
    elsif p_schema is null or p_table is null or p_terms is null or jsonb_typeof(p_terms) <> 'object' then
        perform penstock.refuse('PS400', 'table: schema, table and terms are needed');
    elsif p_mode is null or p_mode not in ('observe', 'sidecar', 'columns') then
        perform penstock.refuse('PS400', format('mode: %s is not observe, sidecar or columns', coalesce(quote_literal(left(p_mode, 80)), 'null')));
    elsif p_max_attempts not between 1 and 32767 then
        perform penstock.refuse('PS400', format('max_attempts: %s is not between 1 and 32767', p_max_attempts));
    elsif penstock.in_seconds(p_sla) <= '0' or p_sla > '3650 days' then
        perform penstock.refuse('PS400', format('sla: %s is not more than 0 and at most 3650 days', p_sla));
    end if;
    perform penstock.check_retry(p_retry);
    if exists (select from penstock.queue as q where q.name = p_name) then
        perform penstock.refuse('PS409', format('name: there is a queue %s', quote_literal(p_name)), 'Give the adopted table another name.');
    end if;
    insert into penstock.adopted (name, schema_name, table_name, mode, terms, retry, max_attempts, sla)
    values (p_name, p_schema, p_table, p_mode, p_terms, p_retry, p_max_attempts, p_sla)
    on conflict (name) do nothing returning id into v_id;
    if v_id is null then
        select * into v_known from penstock.adopted as a where a.name = p_name for update;
        if (v_known.schema_name, v_known.table_name) <> (p_schema, p_table) then
            perform penstock.refuse('PS409', format('name: %s is the adopted table %I.%I', quote_literal(p_name), v_known.schema_name, v_known.table_name),
                'Give this one another name.');
        end if;
        v_id := v_known.id;
        update penstock.adopted as a
        set mode = p_mode, terms = p_terms, retry = p_retry, max_attempts = p_max_attempts, sla = p_sla
        where a.id = v_id;
    end if;
    perform penstock.note_audit('adopt', p_name, jsonb_build_object('schema', p_schema, 'table', p_table, 'mode', p_mode));
    return v_id;
end
$_$;
CREATE FUNCTION penstock.asked_ids(p_queue_id integer, p_ids bigint[], p_subjects text[]) RETURNS bigint[]
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
    if coalesce(cardinality(p_ids), 0) + coalesce(cardinality(p_subjects), 0) > 10000 then
        perform penstock.refuse('PS400', format('ids, subjects: %s are more than 10000 in one call',
                                                coalesce(cardinality(p_ids), 0) + coalesce(cardinality(p_subjects), 0)));
    elsif greatest(array_ndims(p_ids), array_ndims(p_subjects)) > 1 then
        perform penstock.refuse('PS400', 'ids, subjects: a nested array');
    elsif array_position(p_ids, null) is not null or array_position(p_subjects, null) is not null then
        perform penstock.refuse('PS400', 'ids, subjects: there is a null in it');
    elsif p_ids is null and p_subjects is null then
        perform penstock.refuse('PS400', 'ids: neither ids nor subjects are given');
    end if;
    perform penstock.check_distinct(p_ids);
    return array(
        select unnest(p_ids)
        union
        select t.id from penstock.task as t where t.queue_id = p_queue_id and t.subject = any(p_subjects));
end
$$;
CREATE FUNCTION penstock.at_place(p_priority smallint, p_due timestamp with time zone, p_task_id bigint) RETURNS penstock.place
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (p_task_id IS NOT NULL) THEN ROW(p_priority, p_due, p_task_id)::penstock.place ELSE NULL::penstock.place END;
CREATE FUNCTION penstock.batch_leases(p_stream integer, p_epoch integer, p_after bigint, p_upto bigint) RETURNS TABLE(token uuid, tasks integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_stream constant penstock.stream := penstock.held_stream(p_stream, p_epoch);
begin
    if v_stream.batch > p_after and v_stream.batch <= p_upto then
        return query
        select l.token, cardinality(l.ids)
        from unnest(v_stream.tokens) with ordinality as o(token, n) join penstock.lease as l on l.token = o.token
        order by o.n;
    end if;
end
$$;
CREATE FUNCTION penstock.beat(p_worker text, p_queues text[], p_slots integer DEFAULT 1, p_busy integer DEFAULT 0, p_host text DEFAULT ''::text, p_pid integer DEFAULT NULL::integer, p_requested_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_started_by text DEFAULT NULL::text, p_leaving boolean DEFAULT false) RETURNS TABLE(queue text, channel text, alone boolean, dismissed boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
    v_now       constant timestamptz := penstock.clock();
    v_dismissed boolean;
begin
    if p_worker is null or octet_length(p_worker) not between 1 and 200 then
        perform penstock.refuse('PS400', 'worker: it is null, or not 1 to 200 bytes long');
    elsif p_queues is null or array_ndims(p_queues) > 1 or array_position(p_queues, null) is not null then
        perform penstock.refuse('PS400', 'queues: it is null, nested, or has a null in it');
    elsif p_slots is null or p_slots not between 1 and 100000 then
        perform penstock.refuse('PS400', format('slots: %s is not between 1 and 100000', coalesce(p_slots::text, 'null')));
    elsif p_busy is null or p_busy not between 0 and p_slots then
        perform penstock.refuse('PS400', format('busy: %s is not between 0 and %s slots', coalesce(p_busy::text, 'null'), p_slots));
    elsif p_host is null or octet_length(p_host) > 200 then
        perform penstock.refuse('PS400', 'host: it is null or longer than 200 bytes');
    elsif octet_length(p_started_by) > 200 then
        perform penstock.refuse('PS400', 'started_by: it is longer than 200 bytes');
    elsif p_leaving is null then
        perform penstock.refuse('PS400', 'leaving: it is null');
    end if;
    perform penstock.the_queue(q.name) from unnest(p_queues) as q(name);
    insert into penstock.worker as w (name, host, pid, queues, slots, busy, requested_at, started_at, first_claim_at, beat,
                                      started_by, leaving)
    values (p_worker, p_host, p_pid, p_queues, p_slots, p_busy, coalesce(p_requested_at, v_now), v_now,
            case when p_busy > 0 then v_now end, v_now, p_started_by, p_leaving)
    on conflict (name) do update
    set host = excluded.host, pid = excluded.pid, queues = excluded.queues, slots = excluded.slots, busy = excluded.busy,
        first_claim_at = coalesce(w.first_claim_at, excluded.first_claim_at), beat = excluded.beat,
        started_by = excluded.started_by, leaving = excluded.leaving
    returning w.dismissed or (p_started_by is not null and v_now - w.started_at > interval '10 minutes' and not exists (
        select from penstock.scaling as s where s.queue = any(p_queues) and s.decided_at > v_now - interval '10 minutes'))
    into v_dismissed;
    return query
    select q.name, 'penstock_' || q.id,
           exists (select from penstock.agenda as a where a.queue_id = q.id and a.pending and a.company = 1), v_dismissed
    from penstock.queue as q where q.name = any(p_queues) order by q.name;
end
$$;
CREATE FUNCTION penstock.begin_hand(p_adopted integer, p_hand integer) RETURNS TABLE(hand integer, key text[])
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return query
    select h.id, h.key from penstock.adopted_hand as h
    where h.adopted_id = p_adopted and pg_try_advisory_xact_lock(1346719304, h.id);
    insert into penstock.adopted_hand (id, adopted_id) overriding system value values (p_hand, p_adopted);
end
$$;
CREATE FUNCTION penstock.board(p_queue text DEFAULT NULL::text, p_decisions integer DEFAULT 10, p_samples integer DEFAULT 0) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock.cancel(p_queue text, p_ids bigint[] DEFAULT NULL::bigint[], p_subjects text[] DEFAULT NULL::text[], p_reason text DEFAULT 'cancelled'::text) RETURNS TABLE(id bigint, result text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_queue   constant penstock.queue := penstock.the_queue(p_queue);
    v_ids     constant bigint[] := penstock.asked_ids(v_queue.id, p_ids, p_subjects);
    v_now     constant timestamptz := penstock.clock();
    v_live    bigint[] := penstock.hold_live(v_queue.id, v_ids);
    v_waiting bigint[] := penstock.hold_waiting(v_live);
    v_revoked bigint[];
begin
    delete from penstock.agenda as a where a.task_id = any(v_waiting);
    v_revoked := penstock.revoke(v_queue.id, array(select unnest(v_live) except select unnest(v_waiting)), v_now);
    update penstock.task as t
    set ended = 'cancelled', ended_at = v_now, reason = penstock.safe_text(coalesce(p_reason, 'cancelled')), renew = null
    where t.id = any(v_waiting || v_revoked);
    if v_waiting || v_revoked <> '{}' then
        insert into penstock.counter_log (queue_id, metric, delta)
        values (v_queue.id, 'cancelled_total', cardinality(v_waiting || v_revoked));
        perform penstock.note_audit('cancel', p_queue, jsonb_build_object('tasks', cardinality(v_waiting || v_revoked)));
    end if;
    return query
    select w.id, 'cancelled' from unnest(v_waiting) as w(id)
    union all
    select r.id, 'revoked' from unnest(v_revoked) as r(id)
    union all
    select o.id, replace(o.result, 'active', 'busy') from penstock.left_out(v_queue.id, v_ids, v_waiting || v_revoked) as o;
end
$$;
CREATE FUNCTION penstock.check_arrays(p_payloads text[], p_subjects text[], p_kinds text[], p_dues timestamp with time zone[], p_priorities smallint[], p_on_conflict text) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_count constant int := cardinality(p_payloads);
begin
    if v_count is null or array_ndims(p_payloads) > 1 then
        perform penstock.refuse('PS400', 'payloads: it is not a flat array');
    elsif v_count > 10000 then
        perform penstock.refuse('PS400', format('payloads: %s are more than 10000 in one call', v_count));
    elsif coalesce(cardinality(p_subjects), v_count) <> v_count or coalesce(cardinality(p_kinds), v_count) <> v_count
       or coalesce(cardinality(p_dues), v_count) <> v_count or coalesce(cardinality(p_priorities), v_count) <> v_count
       or greatest(array_ndims(p_subjects), array_ndims(p_kinds), array_ndims(p_dues), array_ndims(p_priorities)) > 1 then
        perform penstock.refuse('PS400', format('subjects, kinds, dues, priorities: flat, and as many as payloads (%s), or null', v_count));
    elsif p_on_conflict is null or p_on_conflict not in ('skip', 'update', 'error') then
        perform penstock.refuse('PS400', format('on_conflict: %s is not known', coalesce(quote_literal(left(p_on_conflict, 80)), 'null')),
            'Say skip, update or error.');
    end if;
end
$$;
CREATE FUNCTION penstock.check_claim(p_limit integer, p_lease interval, p_worker text, p_may_alone boolean, p_durable boolean) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if p_limit is null or p_limit not between 1 and 10000 then
        perform penstock.refuse('PS400', format('limit: %s is not between 1 and 10000', coalesce(p_limit::text, 'null')));
    elsif p_lease not between '100 milliseconds' and '24 hours' then
        perform penstock.refuse('PS400', format('lease: %s is not between 100 ms and 24 h', p_lease));
    elsif p_worker is null or octet_length(p_worker) > 200 then
        perform penstock.refuse('PS400', 'worker: it is null or longer than 200 bytes');
    elsif p_may_alone is null or p_durable is null then
        perform penstock.refuse('PS400', 'may_alone and durable must not be null');
    elsif current_setting('transaction_isolation') <> 'read committed' then
        perform penstock.refuse('PS400', format('claim can not run in a %s transaction', current_setting('transaction_isolation')),
            'Begin it with: begin isolation level read committed.');
    end if;
end
$$;
CREATE FUNCTION penstock.check_distinct(p_ids bigint[]) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_twice bigint;
begin
    select s.id into v_twice from unnest(p_ids) as s(id) group by s.id having count(*) > 1 limit 1;
    if found then
        perform penstock.refuse('PS400', format('ids: %s is there twice', v_twice));
    end if;
end
$$;
CREATE FUNCTION penstock.check_filter(p_error text) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if p_error = '' then
        perform penstock.refuse('PS400', 'error: it is empty');
    end if;
end
$$;
CREATE FUNCTION penstock.check_hold(p_lease interval, p_driver text DEFAULT '-'::text) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if p_lease is null or penstock.in_seconds(p_lease) not between '100 milliseconds' and '24 hours' then
        perform penstock.refuse('PS400', format('lease: %s is not between 100 ms and 24 h', coalesce(p_lease::text, 'null')));
    elsif p_driver is null or octet_length(p_driver) not between 1 and 200 then
        perform penstock.refuse('PS400', 'driver: it is null, or not 1 to 200 bytes long');
    end if;
end
$$;
CREATE FUNCTION penstock.check_limit(p_limit integer) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if p_limit is null or p_limit not between 1 and 10000 then
        perform penstock.refuse('PS400', format('limit: %s is not between 1 and 10000', coalesce(p_limit::text, 'null')));
    end if;
end
$$;
CREATE FUNCTION penstock.check_origin() RETURNS void
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if (select array_agg(o.system) from penstock.history_origin as o) is distinct from array[penstock.system()] then
        perform penstock.refuse('PS409', 'history: it was written in another cluster and restored into this one',
            'As admin: select penstock.rebase_history(); then read it with a new checkpoint.');
    end if;
end
$$;
CREATE FUNCTION penstock.check_push(p_payloads text[], p_subjects text[], p_kinds text[], p_dues timestamp with time zone[], p_priorities smallint[], p_largest bigint) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_earliest constant timestamptz := '0001-01-02 00:00:00+00';    -- Python can not read anything earlier
    v_latest   constant timestamptz := penstock.clock() + interval '10 years';
    v_bad      record;
begin
    select i.n - 1 as index, case
        when i.payload is null then array['PS422', 'payload: null is not a JSON object']
        when octet_length(i.payload) > p_largest
            then array['PS413', format('payload: %s bytes are more than %s', octet_length(i.payload), p_largest)]
        when ltrim(i.payload, E' \t\r\n') not like '{%' then array['PS422', 'payload: it is not a JSON object']
        when octet_length(i.subject) not between 1 and 512
            then array['PS400', format('subject: %s bytes are not between 1 and 512', octet_length(i.subject))]
        when octet_length(i.kind) not between 1 and 128
            then array['PS400', format('kind: %s bytes are not between 1 and 128', octet_length(i.kind))]
        when i.priority not between 0 and 9 then array['PS400', format('priority: %s is not between 0 and 9', i.priority)]
        when i.due not between v_earliest and v_latest
            then array['PS400', format('due: %s is not between %s and ten years ahead', i.due, v_earliest)]
        end as said
    into v_bad
    from unnest(p_payloads, p_subjects, p_kinds, p_dues, p_priorities)
         with ordinality as i(payload, subject, kind, due, priority, n)
    where i.payload is null
       or octet_length(i.payload) > p_largest
       or i.payload not like '{%' and ltrim(i.payload, E' \t\r\n') not like '{%'
       or octet_length(i.subject) not between 1 and 512
       or octet_length(i.kind) not between 1 and 128
       or i.priority not between 0 and 9
       or i.due not between v_earliest and v_latest
    order by i.n limit 1;
    if found then
        perform penstock.refuse(v_bad.said[1], format('item %s: %s', v_bad.index, v_bad.said[2]));
    end if;
end
$$;
CREATE FUNCTION penstock.clock() RETURNS timestamp with time zone
    LANGUAGE sql PARALLEL SAFE
    RETURN clock_timestamp();
CREATE TABLE penstock.queue (
    id integer NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    lease interval DEFAULT '00:00:30'::interval NOT NULL,
    max_attempts integer DEFAULT 20,
    retry jsonb DEFAULT '{"cap": 3600, "base": 5, "type": "exponential", "factor": 2, "jitter": 0.1}'::jsonb NOT NULL,
    sla interval,
    paused boolean DEFAULT false NOT NULL,
    keep_done interval,
    keep_dead interval,
    keep_cancelled interval,
    settings jsonb DEFAULT '{}'::jsonb NOT NULL,
    created timestamp with time zone DEFAULT penstock.clock() NOT NULL,
    CONSTRAINT lease_in_range CHECK (((lease >= '00:00:00.1'::interval) AND (lease <= '24:00:00'::interval))),
    CONSTRAINT max_attempts_in_range CHECK (((max_attempts >= 1) AND (max_attempts <= 32767))),
    CONSTRAINT name_is_plain CHECK ((name ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'::text)),
    CONSTRAINT retry_has_type CHECK ((retry ? 'type'::text)),
    CONSTRAINT sla_is_positive CHECK ((sla > '00:00:00'::interval))
);
COMMENT ON COLUMN penstock.queue.max_attempts IS 'null: the retry strategy alone decides when to stop';
COMMENT ON COLUMN penstock.queue.keep_done IS 'null: a done task is deleted at settle';
CREATE FUNCTION penstock.check_queue(p_queue penstock.queue) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
begin
    if p_queue.name is null or p_queue.name !~ '^[a-z0-9][a-z0-9_.-]{0,62}$' then
        perform penstock.refuse('PS400', format('queue: %s is not a name', coalesce(quote_literal(left(p_queue.name, 80)), 'null')),
            'A name has 1 to 63 of a-z, 0-9, _ . - and begins with a letter or digit.');
    elsif p_queue.lease is null or penstock.in_seconds(p_queue.lease) not between '100 milliseconds' and '24 hours' then
        perform penstock.refuse('PS400', format('lease: %s is not between 100 ms and 24 h', coalesce(p_queue.lease::text, 'null')));
    elsif p_queue.max_attempts not between 1 and 32767 then
        perform penstock.refuse('PS400', format('max_attempts: %s is not between 1 and 32767', p_queue.max_attempts));
    elsif penstock.in_seconds(p_queue.sla) <= '0' or p_queue.sla > '3650 days' then
        perform penstock.refuse('PS400', format('sla: %s is not more than 0 and at most 3650 days', p_queue.sla));
    elsif least(p_queue.keep_done, p_queue.keep_dead, p_queue.keep_cancelled) < '0'
       or greatest(p_queue.keep_done, p_queue.keep_dead, p_queue.keep_cancelled) > '3650 days' then
        perform penstock.refuse('PS400', 'keep_done, keep_dead, keep_cancelled: a retention is between 0 and 3650 days');
    elsif p_queue.settings is null or jsonb_typeof(p_queue.settings) <> 'object' then
        perform penstock.refuse('PS400', format('settings: %s is not a JSON object', coalesce(left(p_queue.settings::text, 80), 'null')));
    elsif p_queue.settings ? 'max_payload' and not penstock.is_number(p_queue.settings->'max_payload', 2, 16777216) then
        perform penstock.refuse('PS400', format('max_payload: %s is not between 2 and 16777216', left(p_queue.settings->>'max_payload', 80)));
    elsif p_queue.settings ? 'notify' and jsonb_typeof(p_queue.settings->'notify') <> 'boolean' then
        perform penstock.refuse('PS400', format('notify: %s is not true or false', left(p_queue.settings->>'notify', 80)));
    elsif p_queue.paused is null then
        perform penstock.refuse('PS400', 'paused: it is null');
    end if;
    perform penstock.check_retry(p_queue.retry);
end
$_$;
CREATE TABLE penstock.ledger (
    batch_id uuid NOT NULL,
    part integer NOT NULL,
    queue_id integer NOT NULL,
    rows bigint NOT NULL,
    checksum text NOT NULL,
    report jsonb NOT NULL,
    at timestamp with time zone NOT NULL
);
CREATE FUNCTION penstock.check_repeat(p_what text, p_known penstock.ledger, p_queue penstock.queue, p_rows bigint, p_checksum text) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_said constant text := case
        when p_known.queue_id <> p_queue.id then format('it was written into another queue before, not into %L', p_queue.name)
        when p_known.rows <> p_rows then format('it was written with %s rows before, now there are %s', p_known.rows, p_rows)
        when p_known.checksum <> p_checksum then format('its %s rows were written with other content before', p_rows)
    end;
begin
    if v_said is not null then
        perform penstock.refuse('PS409', p_what || v_said,
            'The same job has the same rows in the same partitions. Other rows are another txnVersion.');
    end if;
end
$$;
CREATE FUNCTION penstock.check_retry(p_strategy jsonb) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_least   constant numeric := 0.000001;
    v_longest constant numeric := 3650 * 86400;
    v_good    boolean;
begin
    v_good := case p_strategy->>'type'
        when 'fibonacci' then penstock.is_number(p_strategy->'unit', v_least, v_longest)
        when 'exponential' then penstock.is_number(p_strategy->'base', v_least, v_longest)
                            and (not p_strategy ? 'factor' or penstock.is_number(p_strategy->'factor', 1, 1000))
        when 'fixed' then penstock.is_number(p_strategy->'delay', v_least, v_longest)
        when 'schedule' then case when jsonb_typeof(p_strategy->'delays') = 'array' then (
            select count(*) between 1 and 1000 and bool_and(penstock.is_number(d.value, v_least, v_longest))
            from jsonb_array_elements(p_strategy->'delays') as d) end
        when 'progressive' then case when jsonb_typeof(p_strategy->'tiers') = 'array' then (
            select count(*) between 1 and 100
               and bool_and(penstock.is_number(t.value->0, v_least, 10 * v_longest)
                            and penstock.is_number(t.value->1, v_least, v_longest))
            from jsonb_array_elements(p_strategy->'tiers') as t) end
        end;
    if v_good is not true
       or (p_strategy ? 'cap' and not penstock.is_number(p_strategy->'cap', v_least, v_longest))
       or (p_strategy ? 'jitter' and not penstock.is_number(p_strategy->'jitter', 0, 1)) then
        perform penstock.refuse('PS400', format('retry: %s is not a strategy', coalesce(left(p_strategy::text, 80), 'null')),
            'One of {"type": "fibonacci", "unit": s}, {"type": "exponential", "base": s, "factor": f}, {"type": "fixed", "delay": s}, '
            '{"type": "schedule", "delays": [s, …]}, {"type": "progressive", "tiers": [[younger than, s], …]}, with "cap" and "jitter".');
    end if;
end
$$;
CREATE FUNCTION penstock.check_scaling(p_queues text[], p_holder text, p_lease interval) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_queue text;
begin
    if p_queues is null or array_ndims(p_queues) > 1 or array_position(p_queues, null) is not null then
        perform penstock.refuse('PS400', 'queues: it is null, nested, or has a null in it');
    elsif p_holder is null or octet_length(p_holder) not between 1 and 200 then
        perform penstock.refuse('PS400', 'holder: it is null, or not 1 to 200 bytes long');
    elsif p_lease is null or penstock.in_seconds(p_lease) not between '1 second' and '24 hours' then
        perform penstock.refuse('PS400', format('lease: %s is not between 1 s and 24 h', coalesce(p_lease::text, 'null')));
    end if;
    foreach v_queue in array p_queues loop
        if not exists (select from penstock.adopted as a where a.name = v_queue) then
            perform penstock.the_queue(v_queue);
        end if;
    end loop;
end
$$;
CREATE TABLE penstock.schedule (
    name text NOT NULL COLLATE pg_catalog."C",
    queue_id integer NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    payload jsonb NOT NULL,
    priority smallint NOT NULL,
    cron text NOT NULL,
    tz text NOT NULL,
    backfill text NOT NULL COLLATE pg_catalog."C",
    paused boolean DEFAULT false NOT NULL,
    mark timestamp with time zone NOT NULL,
    next_at timestamp with time zone NOT NULL,
    last_tick timestamp with time zone,
    created timestamp with time zone NOT NULL,
    updated timestamp with time zone NOT NULL,
    who text NOT NULL,
    CONSTRAINT backfill_is_known CHECK ((backfill = ANY (ARRAY['none'::text, 'last'::text, 'all'::text]))),
    CONSTRAINT name_fits CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 200))),
    CONSTRAINT payload_is_object CHECK ((jsonb_typeof(payload) = 'object'::text))
)
WITH (fillfactor='50');
COMMENT ON COLUMN penstock.schedule.mark IS 'every tick up to here is decided: pushed, or left out';
COMMENT ON COLUMN penstock.schedule.next_at IS 'when somebody has to look: its next tick, or sooner';
COMMENT ON COLUMN penstock.schedule.last_tick IS 'the last one that was pushed';
CREATE FUNCTION penstock.check_schedule(p_schedule penstock.schedule, p_largest bigint) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
begin
    if p_schedule.name is null or octet_length(p_schedule.name) not between 1 and 200 then
        perform penstock.refuse('PS400', 'name: it is null, or not 1 to 200 bytes long');
    elsif p_schedule.kind is null or octet_length(p_schedule.kind) not between 1 and 128 then
        perform penstock.refuse('PS400', 'kind: it is null, or not 1 to 128 bytes long');
    elsif p_schedule.payload is null or jsonb_typeof(p_schedule.payload) <> 'object' then
        perform penstock.refuse('PS422', 'payload: it is not a JSON object');
    elsif octet_length(p_schedule.payload::text) > p_largest then
        perform penstock.refuse('PS413', format('payload: %s bytes are more than %s', octet_length(p_schedule.payload::text), p_largest));
    elsif p_schedule.priority is null or p_schedule.priority not between 0 and 9 then
        perform penstock.refuse('PS400', format('priority: %s is not between 0 and 9', coalesce(p_schedule.priority::text, 'null')));
    elsif p_schedule.cron is null or octet_length(p_schedule.cron) > 200 or p_schedule.cron !~ '^\S+( \S+){4}$' then
        perform penstock.refuse('PS400', format('cron: %s is not five fields', coalesce(quote_literal(left(p_schedule.cron, 80)), 'null')));
    elsif p_schedule.backfill is null or p_schedule.backfill not in ('none', 'last', 'all') then
        perform penstock.refuse('PS400',
            format('backfill: %s is not none, last or all', coalesce(quote_literal(left(p_schedule.backfill, 80)), 'null')));
    elsif p_schedule.tz is null then
        perform penstock.refuse('PS400', 'tz: it is null');
    end if;
    begin
        perform penstock.clock() at time zone p_schedule.tz;
    exception when invalid_parameter_value then
        perform penstock.refuse('PS400', format('tz: %L is not a time zone', left(p_schedule.tz, 80)));
    end;
end
$_$;
CREATE FUNCTION penstock.check_settle(p_token uuid, p_ids bigint[], p_outcomes text[], p_dues timestamp with time zone[], p_delays interval[], p_payloads text[], p_errors text[], p_classes text[]) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_count    constant int := cardinality(p_ids);
    v_earliest constant timestamptz := '0001-01-02 00:00:00+00';
    v_latest   constant timestamptz := penstock.clock() + interval '10 years';
    v_bad      record;
begin
    if p_token is null then
        perform penstock.refuse('PS400', 'token: it is null');
    elsif v_count is null or array_ndims(p_ids) > 1 or array_position(p_ids, null) is not null then
        perform penstock.refuse('PS400', 'ids: it is null, nested, or has a null in it');
    elsif v_count > 10000 then
        perform penstock.refuse('PS400', format('ids: %s are more than 10000 in one call', v_count));
    elsif coalesce(cardinality(p_outcomes), v_count) <> v_count or coalesce(cardinality(p_dues), v_count) <> v_count
       or coalesce(cardinality(p_delays), v_count) <> v_count or coalesce(cardinality(p_payloads), v_count) <> v_count
       or coalesce(cardinality(p_errors), v_count) <> v_count or coalesce(cardinality(p_classes), v_count) <> v_count
       or greatest(array_ndims(p_outcomes), array_ndims(p_dues), array_ndims(p_delays), array_ndims(p_payloads),
                   array_ndims(p_errors), array_ndims(p_classes)) > 1 then
        perform penstock.refuse('PS400', format('outcomes, dues, delays, payloads, errors, classes: flat, and as many as ids (%s), or null', v_count));
    end if;
    if p_outcomes is null then
        return;
    end if;
    select s.n - 1 as index, case
        when s.outcome is null or s.outcome not in ('done', 'again', 'failed', 'dead', 'release')
            then array['PS400', format('outcome: %s is not done, again, failed, dead or release', coalesce(quote_literal(left(s.outcome, 80)), 'null'))]
        when s.delay not between '0' and '3650 days' then array['PS400', format('delay: %s is not between 0 and 3650 days', s.delay)]
        when s.due not between v_earliest and v_latest
            then array['PS400', format('due: %s is not between %s and ten years ahead', s.due, v_earliest)]
        else array['PS422', 'payload: it is not a JSON object'] end as said
    into v_bad
    from unnest(p_outcomes, p_dues, p_delays, p_payloads) with ordinality as s(outcome, due, delay, payload, n)
    where s.outcome is null or s.outcome not in ('done', 'again', 'failed', 'dead', 'release')
       or s.delay not between '0' and '3650 days'
       or s.due not between v_earliest and v_latest
       or ltrim(s.payload, E' \t\r\n') not like '{%'
    order by s.n limit 1;
    if found then
        perform penstock.refuse(v_bad.said[1], format('item %s: %s', v_bad.index, v_bad.said[2]));
    end if;
end
$$;
CREATE FUNCTION penstock.check_sizes(p_payloads text[], p_queue_id integer) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_bad record;
begin
    select i.n - 1 as index, octet_length(i.payload) as size, penstock.largest_payload(q) as largest into v_bad
    from penstock.queue as q, unnest(p_payloads) with ordinality as i(payload, n)
    where q.id = p_queue_id and octet_length(i.payload) > penstock.largest_payload(q)
    order by i.n limit 1;
    if found then
        perform penstock.refuse('PS413', format('item %s: payload: %s bytes are more than %s', v_bad.index, v_bad.size, v_bad.largest));
    end if;
end
$$;
CREATE FUNCTION penstock.check_window(p_system text, p_database bigint, p_from bigint, p_to bigint, p_dropped bigint, p_queue text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone, p_until timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS void
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $$
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
CREATE FUNCTION penstock.claim(p_queue text, p_limit integer DEFAULT 1, p_lease interval DEFAULT NULL::interval, p_worker text DEFAULT ''::text, p_hint penstock.place DEFAULT NULL::penstock.place, p_may_alone boolean DEFAULT true, p_durable boolean DEFAULT true) RETURNS TABLE(token uuid, until timestamp with time zone, id bigint, kind text, subject text, payload jsonb, priority smallint, due timestamp with time zone, attempt integer, iterations integer, created timestamp with time zone, since timestamp with time zone, alone boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_queue     constant penstock.queue := penstock.the_queue(p_queue);
    v_token     constant uuid := gen_random_uuid();
    v_lease     constant interval := penstock.in_seconds(coalesce(p_lease, v_queue.lease));
    v_now       timestamptz := penstock.clock();
    v_hint      penstock.place := p_hint;
    v_places    tid[];
    v_ids       bigint[];
    v_dues      timestamptz[];
    v_attempts  smallint[];
    v_companies smallint[];
    v_crashes   smallint[];
    v_named     boolean;
    v_tried     boolean;
    v_alone     boolean;
    v_count     int;
begin
    perform penstock.check_claim(p_limit, v_lease, p_worker, p_may_alone, p_durable);
    if v_queue.paused then
        return;
    end if;
    if not p_durable then
        -- A lost claim is only a repeated one. For this transaction alone: behind a pooler a session SET would leak into a settle.
        perform set_config('synchronous_commit', 'off', true);
    end if;
    loop
        if v_hint is null then
            -- Folding counters is no hurry, and dearer than the claim of one task: twice a second, by what expire remembers.
            if (select l.until > v_now - interval '500 milliseconds' from penstock.low as l where l.queue_id = v_queue.id)
               is not true then
                perform penstock.squeeze(v_queue.id);
            end if;
            perform penstock.expire(v_queue.id, 1000);
            perform penstock.promote(v_queue.id, greatest(2 * p_limit, 1000));
            v_now := penstock.clock();
        end if;
        if p_may_alone and v_hint is null then
            -- What must be alone comes first when somebody can take it so: the chance is rare while there is much to do.
            with chosen as materialized (
                select a.ctid as place, a.task_id, a.due, a.attempts, a.company, a.crashes, a.named
                from penstock.agenda as a
                where a.queue_id = v_queue.id and a.pending and a.company = 1
                order by a.priority, a.due, a.task_id
                limit 1
                for update skip locked
            )
            select array[c.place], array[c.task_id], array[c.due], array[c.attempts], array[c.company], array[c.crashes], c.named, true
            into v_places, v_ids, v_dues, v_attempts, v_companies, v_crashes, v_named, v_tried
            from chosen as c;
            exit when v_ids is not null;
        end if;
        with chosen as materialized (
            select a.ctid as place, a.task_id, a.due, a.attempts, a.company, a.crashes, a.named
            from penstock.agenda as a
            where a.queue_id = v_queue.id
              and a.pending
              and (a.priority, a.due, a.task_id) >= (coalesce(v_hint.priority, 0::smallint), coalesce(v_hint.due, '-infinity'),
                                                     coalesce(v_hint.task_id, 0))
              and (p_may_alone or a.company <> 1)
            order by a.priority, a.due, a.task_id
            limit p_limit
            for update skip locked
        )
        select array_agg(c.place), array_agg(c.task_id), array_agg(c.due), array_agg(c.attempts), array_agg(c.company),
               array_agg(c.crashes), bool_or(c.named), max(c.attempts) > 0 or max(c.company) > 0
        into v_places, v_ids, v_dues, v_attempts, v_companies, v_crashes, v_named, v_tried
        from chosen as c;
        -- Rows can appear before the hint (late commits, releases, higher priority): short means look again from the start.
        -- Task 0 is before all: whoever was just told of a push gives that for a hint, and takes what there is.
        exit when v_hint is null or cardinality(v_ids) = p_limit or v_hint.task_id = 0 and v_ids is not null;
        v_hint := null;
    end loop;
    if v_ids is null then
        return;
    end if;
    if v_tried then
        -- After a crash a task may share a lease with few others, 1: with none. The claim ends before it grows too large.
        select count(*) into v_count
        from (
            select c.n, min(nullif(c.company, 0)) over (order by c.n) as smallest
            from unnest(v_companies) with ordinality as c(company, n)
        ) as s
        where s.n <= coalesce(s.smallest, s.n);
        v_places := v_places[:v_count];
        v_ids := v_ids[:v_count];
        v_dues := v_dues[:v_count];
        v_attempts := v_attempts[:v_count];
        v_companies := v_companies[:v_count];
        v_crashes := v_crashes[:v_count];
    end if;
    delete from penstock.agenda as a where a.ctid = any(v_places);
    -- Alone: it must be, or whoever asked for one wanted no more. Whoever asked for more may yet take others beside it.
    v_alone := p_may_alone and cardinality(v_ids) = 1 and (v_companies[1] = 1 or p_limit = 1);
    return query
    select v_token, v_now + v_lease, t.id, t.kind, t.subject, t.payload, t.priority, h.due, h.attempts + 1, t.iterations, t.created, t.since,
           v_alone
    from unnest(v_ids, v_dues, v_attempts) with ordinality as h(id, due, attempts, n)
    join (select * from penstock.task as d where d.id = any(v_ids) and d.ended is null) as t on t.id = h.id
    order by h.n;
    get diagnostics v_count = row_count;
    if v_count < cardinality(v_ids) then
        -- Somebody removed documents by hand. Only live ones are leased; the rest leaves the agenda, and verify tells of it.
        select array_agg(h.id), array_agg(h.due), array_agg(h.attempts), array_agg(h.company), array_agg(h.crashes)
        into v_ids, v_dues, v_attempts, v_companies, v_crashes
        from unnest(v_ids, v_dues, v_attempts, v_companies, v_crashes) as h(id, due, attempts, company, crashes)
        where exists (select from penstock.task as t where t.id = h.id and t.ended is null);
        insert into penstock.counter_log (queue_id, metric, delta)
        values (v_queue.id, 'orphaned_total', cardinality(v_places) - v_count);
    end if;
    if v_count > 0 then
        insert into penstock.lease (token, claimed_at, until, queue_id, alone, named, worker, open, ids, dues, attempts, companies, crashes)
        values (v_token, v_now, v_now + v_lease, v_queue.id, v_alone, v_named, p_worker,
                repeat('1', v_count)::varbit, v_ids, v_dues,
                case when v_tried then v_attempts end, case when v_tried then v_companies end, case when v_tried then v_crashes end);
        update penstock.low as l set until = v_now + v_lease where l.queue_id = v_queue.id and l.until > v_now + v_lease;
    end if;
end
$$;
CREATE FUNCTION penstock.claim_batch(p_queue penstock.queue, p_driver text, p_limit integer, p_slots integer, p_lease interval, p_before timestamp with time zone) RETURNS TABLE(tokens uuid[], tasks integer, early integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_tokens uuid[] := '{}';
    v_tasks  int := 0;
    v_early  int := 0;
    v_size   int;
    v_most   int;
    v_ask    int;
    v_hint   penstock.place;
    v_claim  record;
begin
    if p_limit > 0 and not p_queue.paused then
        perform penstock.expire(p_queue.id, p_limit);
        perform penstock.promote(p_queue.id, p_limit);
        if p_before is null or penstock.waits_since(p_queue.id, p_before) then
            -- A lease for each slot, of what there is; more where that would be too many for one.
            select greatest(1, ceil(least(p_limit, s.pending)::numeric / p_slots)) into v_size from penstock.status(p_queue.name) as s;
            v_size := greatest(2, least(10000, ceil(v_size::numeric / ceil(v_size::numeric / 10000))));
        end if;
    end if;
    v_most := greatest(64, 4 * (p_limit / v_size));
    while v_size is not null and v_tasks < p_limit and cardinality(v_tokens) < v_most loop
        v_ask := least(v_size, p_limit - v_tasks);
        select (array_agg(c.token))[1] as token, count(*)::int as tasks, count(*) filter (where c.due <= p_before)::int as early,
               bool_and(c.alone) as alone, (array_agg(penstock.at_place(c.priority, c.due, c.id)))[count(*)] as place
        into v_claim
        from penstock.claim(p_queue.name, v_ask, p_lease, p_driver, v_hint, p_may_alone => v_tasks = 0) as c;
        exit when v_claim.tasks = 0;
        v_tokens := v_tokens || v_claim.token;
        v_tasks := v_tasks + v_claim.tasks;
        v_early := v_early + v_claim.early;
        v_hint := v_claim.place;
        exit when v_claim.alone;
    end loop;
    return query select v_tokens, v_tasks, v_early;
end
$$;
CREATE TABLE penstock.lease (
    token uuid DEFAULT gen_random_uuid() NOT NULL,
    claimed_at timestamp with time zone NOT NULL,
    until timestamp with time zone NOT NULL,
    queue_id integer NOT NULL,
    alone boolean NOT NULL,
    named boolean NOT NULL,
    worker text DEFAULT ''::text NOT NULL,
    open bit varying NOT NULL,
    ids bigint[] NOT NULL,
    dues timestamp with time zone[] NOT NULL,
    attempts smallint[],
    companies smallint[],
    crashes smallint[],
    revoked bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    CONSTRAINT a_bit_per_task CHECK ((length((open)::"bit") = cardinality(ids))),
    CONSTRAINT arrays_are_parallel CHECK (((cardinality(dues) = cardinality(ids)) AND (COALESCE(cardinality(attempts), cardinality(ids)) = cardinality(ids)) AND (COALESCE(cardinality(companies), cardinality(ids)) = cardinality(ids)) AND (COALESCE(cardinality(crashes), cardinality(ids)) = cardinality(ids))))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='500');
ALTER TABLE ONLY penstock.lease ALTER COLUMN ids SET STORAGE EXTERNAL;
ALTER TABLE ONLY penstock.lease ALTER COLUMN dues SET STORAGE EXTERNAL;
ALTER TABLE ONLY penstock.lease ALTER COLUMN attempts SET STORAGE EXTERNAL;
ALTER TABLE ONLY penstock.lease ALTER COLUMN companies SET STORAGE EXTERNAL;
ALTER TABLE ONLY penstock.lease ALTER COLUMN crashes SET STORAGE EXTERNAL;
COMMENT ON TABLE penstock.lease IS 'attempts, companies and crashes are null when all are zero, as they mostly are';
CREATE FUNCTION penstock.close(p_lease penstock.lease, p_ids bigint[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
declare
    v_open varbit := p_lease.open;
    v_n    int;
begin
    if cardinality(p_ids) = bit_count(v_open) then
        delete from penstock.lease as l where l.token = p_lease.token;
        return;
    end if;
    for v_n in
        select h.n::int - 1 from unnest(p_lease.ids) with ordinality as h(id, n) join unnest(p_ids) as s(id) on s.id = h.id
    loop
        v_open := set_bit(v_open, v_n, 0);
    end loop;
    update penstock.lease as l set open = v_open where l.token = p_lease.token;
end
$$;
CREATE FUNCTION penstock.conclude(p_lease penstock.lease, p_now timestamp with time zone, p_ids bigint[], p_outcomes text[], p_dues timestamp with time zone[], p_delays interval[], p_payloads text[], p_errors text[], p_classes text[]) RETURNS TABLE(id bigint, result text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
#variable_conflict use_column
begin
    return query
    with known as materialized (
        select
            t.id, t.queue_id, t.kind, t.subject, t.created, t.iterations, t.priority, t.renew,
            s.outcome, s.due as asked_due, s.delay, s.payload, penstock.safe_text(s.error) as error, left(s.error_class, 200) as error_class,
            h.due as was_due, coalesce(h.attempts, 0) as attempts, coalesce(h.company, 0) as company,
            coalesce(h.crashes, 0) as crashes,
            -- An expiry burns the attempt only of a task that was alone: it is the one that killed its worker.
            s.outcome = 'failed' or (s.outcome = 'expired' and (p_lease).alone) as burned,
            coalesce(k.max_attempts, q.max_attempts) as max_attempts, q.keep_done,
            case when (s.outcome = 'failed' and s.delay is null) or (s.outcome = 'expired' and (p_lease).alone)
                 then penstock.retry_delay(coalesce(k.retry, q.retry), coalesce(h.attempts, 0) + 1,
                                           p_now - coalesce(t.since, t.created), t.id)
                 else s.delay end as wait
        from unnest(p_ids, p_outcomes, p_dues, p_delays, p_payloads, p_errors, p_classes)
             as s(id, outcome, due, delay, payload, error, error_class)
        join unnest((p_lease).ids, (p_lease).dues, (p_lease).attempts, (p_lease).companies, (p_lease).crashes)
             as h(id, due, attempts, company, crashes) on h.id = s.id
        join (select * from penstock.task as d where d.id = any(p_ids) and d.ended is null) as t on t.id = s.id
        join penstock.queue as q on q.id = t.queue_id
        left join penstock.kind as k on k.queue_id = t.queue_id and k.kind = t.kind
    ), judged as materialized (
        select k.*,
            case
                when k.renew is not null then 'waits'
                when k.outcome = 'done' then case when k.keep_done is null then 'gone' else 'done' end
                when k.outcome = 'dead' then 'dead'
                when k.burned and (k.attempts + 1 >= k.max_attempts or k.wait is null) then 'dead'
                when k.burned and k.outcome = 'expired' and k.crashes + 1 >= 20 then 'dead'
                else 'waits'
            end as fate,
            k.outcome in ('done', 'again') as succeeded,
            k.outcome in ('release', 'expired') as unfinished
        from known as k
    ), dated as materialized (
        select j.*,
            case when j.outcome = 'release' then 'released'
                 when j.fate = 'dead' then 'dead'
                 else j.outcome end as told,
            case when j.renew is not null then j.renew
                 when j.outcome = 'again' then coalesce(j.asked_due, p_now + j.delay, p_now)
                 when j.outcome = 'failed' then p_now + j.wait
                 when j.outcome = 'release' then coalesce(p_now + j.delay, j.was_due)
                 else p_now end as next_due
        from judged as j
    ), removed as (
        delete from penstock.task as t using dated as d where t.id = d.id and d.fate = 'gone'
    ), rewritten as (
        update penstock.task as t set
            iterations = t.iterations + d.succeeded::int,
            last_iteration = case when d.succeeded then p_now else t.last_iteration end,
            since = case when d.succeeded or d.renew is not null then p_now else t.since end,
            payload = case when d.outcome = 'again' and d.renew is null then coalesce(d.payload::jsonb, t.payload) else t.payload end,
            renew = null,
            ended = case when d.fate in ('done', 'dead') then d.fate end,
            ended_at = case when d.fate in ('done', 'dead') then p_now end,
            reason = case when d.fate <> 'dead' then null
                          when d.outcome = 'dead' then coalesce(d.error, 'told so')
                          when d.outcome = 'expired' then 'crashed'
                          when d.attempts + 1 >= d.max_attempts then 'attempts spent'
                          else 'the strategy ended' end,
            error = case when d.succeeded then null else coalesce(d.error, t.error) end
        from dated as d
        where t.id = d.id and d.fate <> 'gone' and (not d.unfinished or d.renew is not null or d.fate = 'dead')
    ), put_back as (
        insert into penstock.agenda (task_id, due, queue_id, priority, attempts, company, crashes, pending, named)
        select
            d.id, d.next_due, d.queue_id, d.priority,
            case when d.succeeded or d.renew is not null then 0 else least(d.attempts + d.burned::int, 32767) end,
            case when d.renew is not null or not d.unfinished then 0
                 when d.outcome = 'release' then d.company
                 when (p_lease).alone then 1
                 -- An eighth of the lease it shared, or, of a small one, of what it may have shared a process with.
                 else greatest(1, greatest(bit_count((p_lease).open), coalesce(nullif(d.company, 0), 64)) / 8) end,
            case when d.renew is not null or not d.unfinished then 0
                 else d.crashes + d.burned::int end,
            -- What was given a moment to come waits for it; the rest may run now.
            d.next_due <= p_now or (d.outcome = 'release' and d.delay is null and d.renew is null),
            d.subject is not null
        from dated as d
        where d.fate = 'waits'
    ), noted as (
        insert into penstock.history (task_id, created, due, claimed_at, finished_at, queue_id, iteration, attempt, outcome,
                                      kind, worker, subject, error_class, error)
        select d.id, d.created, d.was_due, (p_lease).claimed_at, p_now, d.queue_id, d.iterations, d.attempts + 1, d.told,
               d.kind, (p_lease).worker, d.subject,
               coalesce(d.error_class, case when d.outcome = 'expired' and d.fate = 'dead' then 'Crashed' end), d.error
        from dated as d
    ), tallied as (
        insert into penstock.counter_log (queue_id, metric, delta)
        select d.queue_id, d.told || '_total', count(*) from dated as d group by d.queue_id, d.told
    )
    select d.id,
           case d.fate when 'gone' then 'done'
                       when 'waits' then case when d.next_due <= p_now or (d.outcome = 'release' and d.delay is null and d.renew is null)
                                              then 'pending' else 'planned' end
                       else d.fate end
    from dated as d;
end
$$;
CREATE FUNCTION penstock.contract() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN 3;
CREATE FUNCTION penstock.count_agenda() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if tg_op = 'INSERT' then
        insert into penstock.counter_log (queue_id, metric, delta)
        select n.queue_id, case when n.pending then 'pending' else 'planned' end, count(*)
        from arrived as n group by n.queue_id, n.pending;
    elsif tg_op = 'DELETE' then
        insert into penstock.counter_log (queue_id, metric, delta)
        select o.queue_id, case when o.pending then 'pending' else 'planned' end, -count(*)
        from parted as o group by o.queue_id, o.pending;
    else
        insert into penstock.counter_log (queue_id, metric, delta)
        select c.queue_id, case when c.pending then 'pending' else 'planned' end, sum(c.delta)
        from (
            select n.queue_id, n.pending, count(*) as delta from arrived as n group by n.queue_id, n.pending
            union all
            select o.queue_id, o.pending, -count(*) from parted as o group by o.queue_id, o.pending
        ) as c
        group by c.queue_id, c.pending
        having sum(c.delta) <> 0;
    end if;
    return null;
end
$$;
CREATE FUNCTION penstock.count_lease() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if tg_op = 'INSERT' then
        insert into penstock.counter_log (queue_id, metric, delta)
        select n.queue_id, 'active', sum(bit_count(n.open)) from arrived as n group by n.queue_id
        having sum(bit_count(n.open)) <> 0;
    elsif tg_op = 'DELETE' then
        insert into penstock.counter_log (queue_id, metric, delta)
        select o.queue_id, 'active', -sum(bit_count(o.open)) from parted as o group by o.queue_id
        having sum(bit_count(o.open)) <> 0;
    else
        insert into penstock.counter_log (queue_id, metric, delta)
        select c.queue_id, 'active', sum(c.delta)
        from (
            select n.queue_id, bit_count(n.open) as delta from arrived as n
            union all
            select o.queue_id, -bit_count(o.open) from parted as o
        ) as c
        group by c.queue_id
        having sum(c.delta) <> 0;
    end if;
    return null;
end
$$;
CREATE FUNCTION penstock.count_task() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now   constant timestamptz := penstock.clock();    -- one for all: then ids decide, and the first given runs first
    v_group record;
begin
    if tg_op = 'INSERT' then
        -- One look at all of them: this is the cost of a bulk push.
        for v_group in
            select n.queue_id, n.ended, count(*) as tasks, min(n.id) as first, max(n.id) as last
            from arrived as n group by n.queue_id, n.ended
        loop
            if v_group.first < 1 or v_group.last > (select s.last_value from penstock.task_id_seq as s) then
                perform penstock.refuse('PS400', 'id: it is not one that penstock.task_id_seq has given out');
            end if;
            insert into penstock.counter_log (queue_id, metric, delta)
            select v_group.queue_id, m.metric, v_group.tasks
            from unnest(array['pushed_total', v_group.ended]) as m(metric) where m.metric is not null;
            perform penstock.meet(v_group.queue_id);
        end loop;
        -- A live document is born into the agenda, whoever wrote it. Given a due it is planned, else pending:
        -- only the database's clock decides.
        insert into penstock.agenda (task_id, due, queue_id, priority, pending, named)
        select n.id, coalesce(n.due, v_now), n.queue_id, n.priority, n.due is null, n.subject is not null
        from arrived as n
        where n.ended is null;
    elsif tg_op = 'DELETE' then
        insert into penstock.counter_log (queue_id, metric, delta)
        select o.queue_id, 'removed_total', count(*) from parted as o group by o.queue_id
        union all
        select o.queue_id, o.ended, -count(*) from parted as o where o.ended is not null group by o.queue_id, o.ended;
    else
        insert into penstock.counter_log (queue_id, metric, delta)
        select c.queue_id, m.metric, sum(c.delta)
        from (
            select n.queue_id, n.ended, count(*) as delta from arrived as n group by n.queue_id, n.ended
            union all
            select o.queue_id, o.ended, -count(*) from parted as o group by o.queue_id, o.ended
        ) as c, unnest(array['pushed_total', c.ended]) as m(metric)
        where m.metric is not null
        group by c.queue_id, m.metric
        having sum(c.delta) <> 0;
    end if;
    return null;
end
$$;
CREATE FUNCTION penstock.create_queue(p_name text, p_lease interval DEFAULT '00:00:30'::interval, p_max_attempts integer DEFAULT 20, p_retry jsonb DEFAULT '{"cap": 3600, "base": 5, "type": "exponential", "factor": 2, "jitter": 0.1}'::jsonb, p_sla interval DEFAULT NULL::interval, p_keep_done interval DEFAULT NULL::interval, p_keep_dead interval DEFAULT NULL::interval, p_keep_cancelled interval DEFAULT NULL::interval, p_settings jsonb DEFAULT '{}'::jsonb, p_exist_ok boolean DEFAULT false) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_new penstock.queue;
    v_id  int;
begin
    v_new.name := p_name;
    v_new.lease := p_lease;
    v_new.max_attempts := p_max_attempts;
    v_new.retry := p_retry;
    v_new.sla := p_sla;
    v_new.paused := false;
    v_new.keep_done := p_keep_done;
    v_new.keep_dead := p_keep_dead;
    v_new.keep_cancelled := p_keep_cancelled;
    v_new.settings := p_settings;
    perform penstock.check_queue(v_new);
    if p_exist_ok is null then
        perform penstock.refuse('PS400', 'exist_ok: it is null');
    end if;
    insert into penstock.queue (name, lease, max_attempts, retry, sla, keep_done, keep_dead, keep_cancelled, settings)
    values (p_name, penstock.in_seconds(p_lease), p_max_attempts, p_retry, penstock.in_seconds(p_sla), p_keep_done, p_keep_dead,
            p_keep_cancelled, p_settings)
    on conflict (name) do nothing
    returning id into v_id;
    if v_id is not null then
        insert into penstock.low (queue_id, xid, system) values (v_id, 0, penstock.system());
        perform penstock.make_history((penstock.clock() at time zone 'UTC')::date + d.n) from generate_series(0, 14) as d(n);
    elsif not p_exist_ok then
        perform penstock.refuse('PS409', format('queue %L exists already', p_name));
    end if;
    return v_id is not null;
end
$$;
CREATE FUNCTION penstock.decide(p_holder text, p_lease interval, p_decisions jsonb) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
declare
    v_now     timestamptz := penstock.clock();
    v_changed text[];
    v_lost    record;
begin
    if p_decisions is null or jsonb_typeof(p_decisions) <> 'array' then
        perform penstock.refuse('PS400', 'decisions: it is not a JSON array');
    end if;
    perform penstock.check_scaling('{}', p_holder, p_lease);
    -- At rest not every look is worth a new row, nor a lock, which is written too. Who is not ours is looked at again below.
    v_changed := array(
        select d.queue
        from jsonb_to_recordset(p_decisions) as d(
            queue text, epoch int, policy text, workers int, urgency text, bound_by text, reason text, memory jsonb)
        left join penstock.scaling as s on s.queue = d.queue and s.epoch = d.epoch and s.holder = p_holder
        where s.queue is null or s.target is distinct from d.workers or s.policy <> d.policy or coalesce(d.memory, 'null') <> 'null'
           or s.decided_at is null or s.decided_at < v_now - penstock.in_seconds(p_lease) / 4
           or (d.reason is not null and not exists (
                select from (
                    select l.workers, l.urgency, l.bound_by, l.at from penstock.decision as l
                    where l.queue = d.queue order by l.at desc limit 1
                ) as last
                where last.at > v_now - interval '1 minute'
                  and (last.workers, last.urgency, last.bound_by) is not distinct from (d.workers, d.urgency, d.bound_by))));
    if v_changed = '{}' then
        return;
    end if;
    -- Locked in the order of names, as everybody does; what follows sees what a newer holder committed.
    perform from penstock.scaling as s where s.queue = any(v_changed) order by s.queue for update;
    v_now := penstock.clock();
    select d.queue, s.holder into v_lost
    from jsonb_to_recordset(p_decisions) as d(queue text, epoch int)
    left join penstock.scaling as s on s.queue = d.queue
    where s.epoch is distinct from d.epoch or s.holder is distinct from p_holder
    limit 1;
    if found then
        perform penstock.refuse('PS409',
            format('queue %L is no longer scaled by %s: %s has taken over', v_lost.queue, p_holder, coalesce(v_lost.holder, 'nobody')),
            'It was silent for longer than its hold, or its queue was dropped. What it decided meanwhile does not count.');
    end if;
    update penstock.scaling as s
    set until = v_now + penstock.in_seconds(p_lease), target = d.workers, decided_at = v_now, policy = d.policy,
        memory = coalesce(nullif(d.memory, 'null'), s.memory)
    from jsonb_to_recordset(p_decisions) as d(queue text, policy text, workers int, memory jsonb)
    where s.queue = d.queue and s.queue = any(v_changed)
      and (s.target is distinct from d.workers or s.policy <> d.policy or coalesce(d.memory, 'null') <> 'null'
           or s.decided_at is null or s.decided_at < v_now - penstock.in_seconds(p_lease) / 4);
    return query
    insert into penstock.decision (queue, at, epoch, policy, workers, actual, wanted, urgency, bound_by, reason, time_to_breach,
                                   predicted_breach, inputs, rules)
    select d.queue, v_now, d.epoch, d.policy, d.workers, d.actual, d.wanted, d.urgency, d.bound_by, d.reason, d.time_to_breach,
           d.predicted_breach, coalesce(d.inputs, '{}'), coalesce(d.rules, '{}')
    from jsonb_to_recordset(p_decisions) as d(
        queue text, epoch int, policy text, workers int, actual int, wanted int, urgency text, bound_by text, reason text,
        time_to_breach double precision, predicted_breach double precision, inputs jsonb, rules jsonb)
    left join lateral (
        select l.workers, l.urgency, l.bound_by, l.at from penstock.decision as l where l.queue = d.queue order by l.at desc limit 1
    ) as last on true
    where d.reason is not null and d.queue = any(v_changed)
      and (last.at is null or last.at <= v_now - interval '1 minute'
           or (last.workers, last.urgency, last.bound_by) is distinct from (d.workers, d.urgency, d.bound_by))
    returning queue;
end
$$;
CREATE TABLE penstock.decision (
    id bigint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    at timestamp with time zone NOT NULL,
    epoch integer NOT NULL,
    policy text NOT NULL,
    workers integer NOT NULL,
    actual integer NOT NULL,
    wanted integer NOT NULL,
    urgency text NOT NULL,
    bound_by text NOT NULL,
    reason text NOT NULL,
    time_to_breach double precision,
    predicted_breach double precision,
    inputs jsonb NOT NULL,
    rules jsonb NOT NULL
);
COMMENT ON COLUMN penstock.decision.workers IS 'the target';
CREATE FUNCTION penstock.decisions(p_queue text, p_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_limit integer DEFAULT 20) RETURNS SETOF penstock.decision
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if p_limit is null or p_limit not between 1 and 10000 then
        perform penstock.refuse('PS400', format('limit: %s is not between 1 and 10000', coalesce(p_limit::text, 'null')));
    end if;
    perform penstock.check_scaling(array[p_queue], '-', '1 second');
    return query
    select * from penstock.decision as d
    where d.queue = p_queue and d.at <= coalesce(p_at, 'infinity') order by d.at desc, d.id desc limit p_limit;
end
$$;
CREATE FUNCTION penstock.dismiss(p_workers text[]) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_count int;
begin
    update penstock.worker as w set dismissed = true
    where w.name = any(p_workers) and w.started_by is not null and not w.dismissed;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
CREATE FUNCTION penstock.distance(p_one text, p_other text) RETURNS integer
    LANGUAGE plpgsql IMMUTABLE STRICT
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_row   int[] := array(select generate_series(0, length(p_other)));
    v_next  int[];
begin
    for i in 1 .. length(p_one) loop
        v_next := array[i];
        for j in 1 .. length(p_other) loop
            v_next[j + 1] := least(v_next[j] + 1, v_row[j + 1] + 1,
                                   v_row[j] + (substr(p_one, i, 1) <> substr(p_other, j, 1))::int);
        end loop;
        v_row := v_next;
    end loop;
    return v_row[length(p_other) + 1];
end
$$;
CREATE FUNCTION penstock.drop_day(p_relation regclass, p_day date) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $$
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
CREATE FUNCTION penstock.drop_history(p_before timestamp with time zone) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    SET lock_timeout TO '200ms'
    AS $_$
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
$_$;
CREATE FUNCTION penstock.drop_queue(p_queue text, p_force boolean DEFAULT false) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    v_queue penstock.queue := penstock.the_queue(p_queue);
    v_tasks bigint;
begin
    if p_force is null then
        perform penstock.refuse('PS400', 'force: it is null');
    end if;
    delete from penstock.schedule as s where s.queue_id = v_queue.id;    -- first: whoever fires one waits for documents next
    perform penstock.stand_still(v_queue.id);
    v_queue := penstock.the_queue(p_queue);    -- somebody else may have dropped it meanwhile
    select s.planned + s.pending + s.active + s.done + s.dead + s.cancelled into v_tasks from penstock.status(p_queue) as s;
    if v_tasks > 0 and not p_force then
        perform penstock.refuse('PS409', format('queue %L has %s tasks in it', p_queue, v_tasks), 'Purge it first, or force it.');
    end if;
    -- Place by place, by their indexes: there is none over all documents of a queue.
    delete from penstock.task as t using penstock.agenda as a where a.queue_id = v_queue.id and a.pending and t.id = a.task_id;
    delete from penstock.task as t using penstock.agenda as a where a.queue_id = v_queue.id and not a.pending and t.id = a.task_id;
    delete from penstock.task as t where t.id in (select unnest(l.ids) from penstock.lease as l where l.queue_id = v_queue.id);
    delete from penstock.task as t where t.queue_id = v_queue.id and t.ended in ('done', 'dead', 'cancelled');
    delete from penstock.agenda as a where a.queue_id = v_queue.id and a.pending;
    delete from penstock.agenda as a where a.queue_id = v_queue.id and not a.pending;
    delete from penstock.lease as l where l.queue_id = v_queue.id;
    delete from penstock.stream as s where s.queue_id = v_queue.id;
    delete from penstock.scaling as s where s.queue = v_queue.name;
    delete from penstock.kind as k where k.queue_id = v_queue.id;
    delete from penstock.counter as c where c.queue_id = v_queue.id;
    delete from penstock.counter_log as l where l.queue_id = v_queue.id;
    delete from penstock.low as l where l.queue_id = v_queue.id;
    delete from penstock.sample as s where s.queue_id = v_queue.id;
    delete from penstock.profile as p where p.queue_id = v_queue.id;
    delete from penstock.history_dropped as d where d.queue_id = v_queue.id;
    insert into penstock.queue_gone (id, name) values (v_queue.id, v_queue.name);
    delete from penstock.queue as q where q.id = v_queue.id;
    -- What was set meanwhile. One that is being fired now stays behind, without a queue: nobody sees it any more.
    delete from penstock.schedule as s
    where s.name in (select n.name from penstock.schedule as n where n.queue_id = v_queue.id for update skip locked);
    perform penstock.note_audit('drop', p_queue, jsonb_build_object('tasks', v_tasks));
    return v_tasks;
end
$$;
CREATE FUNCTION penstock.drop_schedule(p_name text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    delete from penstock.schedule as s where s.name = p_name;
    if not found then
        perform penstock.miss_schedule(p_name);
    end if;
    perform penstock.note_audit('drop schedule', null, jsonb_build_object('schedule', p_name));
end
$$;
CREATE FUNCTION penstock.due_schedules(p_limit integer DEFAULT 1000) RETURNS SETOF text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select s.name
    from penstock.schedule as s
    where not s.paused and s.next_at <= penstock.clock() and exists (select from penstock.queue as q where q.id = s.queue_id)
    order by s.next_at, s.name
    limit p_limit
    for update skip locked
$$;
CREATE FUNCTION penstock.end_hands(p_hands integer[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    delete from penstock.adopted_hand as h where h.id = any(p_hands)
$$;
CREATE FUNCTION penstock.enter_part(p_queue text, p_batch_id uuid, p_part integer, p_rows bigint, p_checksum text, p_report jsonb) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_known penstock.ledger;
begin
    insert into penstock.ledger (batch_id, part, queue_id, rows, checksum, report, at)
    values (p_batch_id, p_part, v_queue.id, p_rows, p_checksum, p_report, penstock.clock())
    on conflict (batch_id, part) do nothing;
    if found then
        return null;
    end if;
    select * into v_known from penstock.ledger as l where l.batch_id = p_batch_id and l.part = p_part;
    if (v_known.queue_id, v_known.rows, v_known.checksum) is distinct from (v_queue.id, p_rows, p_checksum) then
        perform penstock.refuse('PS409', format('batch %s, part %s: it was written before with other content', p_batch_id, p_part),
            'Repeat a batch id only with the same tasks in the same order.');
    end if;
    return v_known.report;
end
$$;
CREATE FUNCTION penstock.enter_partition(p_queue text, p_job uuid, p_partition integer, p_batch_id uuid, p_rows bigint, p_checksum text) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_known penstock.ledger;
    v_seal  penstock.ledger;
begin
    insert into penstock.ledger (batch_id, part, queue_id, rows, checksum, report, at)
    values (p_batch_id, 0, v_queue.id, p_rows, p_checksum, '{}', penstock.clock())
    on conflict (batch_id, part) do nothing;
    if found then
        select * into v_seal from penstock.ledger as l where l.batch_id = p_job and l.part = 0;
        if v_seal.batch_id is not null then
            perform penstock.refuse('PS409',
                format('partition %s: it is new, and the job was sealed with %s partitions and %s rows', p_partition,
                       v_seal.report->>'partitions', v_seal.rows),
                'The same job has the same rows in the same partitions. Other rows are another txnVersion.');
        end if;
        return null;
    end if;
    select * into v_known from penstock.ledger as l where l.batch_id = p_batch_id and l.part = 0;
    perform penstock.check_repeat(format('partition %s: ', p_partition), v_known, v_queue, p_rows, p_checksum);
    return v_known.report;
end
$$;
CREATE FUNCTION penstock.expire(p_queue_id integer, p_limit integer DEFAULT 10000, p_thorough boolean DEFAULT false) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    v_now   constant timestamptz := penstock.clock();
    v_from  timestamptz;
    v_lease penstock.lease;
    v_open  bigint[];
    v_count int := 0;
begin
    select l.until into v_from from penstock.low as l where l.queue_id = p_queue_id;
    if p_thorough or v_from is null then
        v_from := '-infinity';
    end if;
    for v_lease in
        select l.* from penstock.lease as l
        where l.queue_id = p_queue_id and l.until >= v_from and l.until < v_now
        order by l.until
        limit p_limit
        for update skip locked
    loop
        v_open := array(
            select h.id from unnest(v_lease.ids) with ordinality as h(id, n) where get_bit(v_lease.open, h.n::int - 1) = 1);
        -- An expiry writes a document when it is renewed, so it has a subject, or when it dies, so it was alone.
        if v_lease.named or v_lease.alone then
            v_open := array(select unnest(v_open) except select unnest(penstock.held_elsewhere(v_open)));
        end if;
        perform penstock.make_history((v_now at time zone 'UTC')::date);
        perform penstock.conclude(v_lease, v_now, v_open, array_fill('expired'::text, array[cardinality(v_open)]),
                                  null, null, null, null, null);
        perform penstock.close(v_lease, v_open);
        v_count := v_count + cardinality(v_open);
        exit when v_count >= p_limit;
    end loop;
    -- Remember how far all is done: not past a lease that is still there, nor past now, since claims under way end later.
    update penstock.low as b
    set until = least(v_now, (select min(l.until) from penstock.lease as l
                              where l.queue_id = p_queue_id and l.until >= v_from and l.until < v_now))
    where b.ctid = any(array(
        select l.ctid from penstock.low as l
        where l.queue_id = p_queue_id and l.until < v_now - interval '500 milliseconds' for update skip locked));
    return v_count;
end
$$;
CREATE FUNCTION penstock.extend(p_token uuid, p_lease interval DEFAULT NULL::interval) RETURNS TABLE(until timestamp with time zone, revoked bigint[], open integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET lock_timeout TO '5s'
    AS $$
#variable_conflict use_column
declare
    v_now constant timestamptz := penstock.clock();
begin
    if p_token is null then
        perform penstock.refuse('PS400', 'token: it is null');
    elsif penstock.in_seconds(p_lease) not between '100 milliseconds' and '24 hours' then
        perform penstock.refuse('PS400', format('lease: %s is not between 100 ms and 24 h', p_lease));
    end if;
    return query
    with extended as (
        update penstock.lease as l
        set until = v_now + penstock.in_seconds(coalesce(p_lease, (select q.lease from penstock.queue as q where q.id = l.queue_id)))
        where l.token = p_token
        returning l.queue_id, l.until, l.revoked, bit_count(l.open)::int as open
    ), lowered as (
        update penstock.low as b set until = e.until from extended as e where b.queue_id = e.queue_id and b.until > e.until
    )
    select e.until, e.revoked, e.open from extended as e;
end
$$;
CREATE FUNCTION penstock.extend_many(p_tokens uuid[], p_lease interval DEFAULT NULL::interval) RETURNS TABLE(token uuid, until timestamp with time zone, revoked bigint[])
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_now constant timestamptz := penstock.clock();
begin
    if p_tokens is null or array_ndims(p_tokens) > 1 or array_position(p_tokens, null) is not null then
        perform penstock.refuse('PS400', 'tokens: it is null, nested, or has a null in it');
    elsif penstock.in_seconds(p_lease) not between '100 milliseconds' and '24 hours' then
        perform penstock.refuse('PS400', format('lease: %s is not between 100 ms and 24 h', p_lease));
    end if;
    return query
    with free as materialized (
        select l.token from penstock.lease as l where l.token = any(p_tokens) for update skip locked
    ), extended as (
        update penstock.lease as l
        set until = v_now + penstock.in_seconds(coalesce(p_lease, (select q.lease from penstock.queue as q where q.id = l.queue_id)))
        from free as f
        where l.token = f.token
        returning l.token, l.queue_id, l.until, l.revoked
    ), lowered as (
        update penstock.low as b set until = e.until
        from (select x.queue_id, min(x.until) as until from extended as x group by x.queue_id) as e
        where b.queue_id = e.queue_id and b.until > e.until
    )
    select l.token, e.until, coalesce(e.revoked, '{}')
    from penstock.lease as l left join extended as e on e.token = l.token
    where l.token = any(p_tokens);
end
$$;
CREATE FUNCTION penstock.find_subjects(p_queue_id integer, p_subjects text[], p_which integer[]) RETURNS TABLE(n integer, id bigint, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
    return query
    select i.n::int, t.id, coalesce(t.ended, case when a.pending then 'pending' when not a.pending then 'planned' else 'active' end)
    from unnest(p_subjects) with ordinality as i(subject, n)
    cross join lateral (
        select d.id, d.ended from penstock.task as d where d.queue_id = p_queue_id and d.subject = i.subject offset 0
    ) as t
    left join lateral (
        select w.pending from penstock.agenda as w where w.task_id = t.id offset 0
    ) as a on true
    where i.n in (select unnest(p_which));
end
$$;
CREATE FUNCTION penstock.finish(p_lease penstock.lease, p_now timestamp with time zone, p_ids bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
declare
    v_xid  constant bigint := pg_current_xact_id()::text::bigint;    -- once: the default would cost 0.3 µs a row
    v_gone bigint[];
begin
    with gone as (
        delete from penstock.task as t
        where t.id = any(p_ids) and t.renew is null and t.ended is null
        returning t.id, t.created, t.iterations, t.kind, t.subject
    ), noted as (
        insert into penstock.history (xid, task_id, created, due, claimed_at, finished_at, queue_id, iteration, attempt,
                                      outcome, kind, worker, subject)
        select v_xid, g.id, g.created, h.due, p_lease.claimed_at, p_now, p_lease.queue_id, g.iterations,
               coalesce(h.attempts, 0) + 1, 'done', g.kind, p_lease.worker, g.subject
        from gone as g
        join unnest(p_lease.ids, p_lease.dues, p_lease.attempts) as h(id, due, attempts) on h.id = g.id
    ), tallied as (
        insert into penstock.counter_log (queue_id, metric, delta)
        select p_lease.queue_id, 'done_total', count(*) from gone having count(*) > 0
    )
    select array_agg(g.id) into v_gone from gone as g;
    return v_gone;
end
$$;
CREATE FUNCTION penstock.fire(p_name text, p_mark timestamp with time zone, p_ticks timestamp with time zone[], p_decided timestamp with time zone, p_next_at timestamp with time zone) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_many     constant int := cardinality(p_ticks);
    v_schedule penstock.schedule;
    v_queue    text;
    v_pushed   int := 0;
begin
    if p_mark is null or v_many is null or p_decided is null or p_next_at is null then
        perform penstock.refuse('PS400', 'mark, ticks, decided, next_at: one is null');
    elsif v_many > 1000 then
        perform penstock.refuse('PS400', format('ticks: %s are more than 1000 in one call', v_many));
    elsif p_decided < p_mark or p_next_at <= p_decided then
        perform penstock.refuse('PS400', format('decided, next_at: %s, %s are not in order after %s', p_decided, p_next_at, p_mark));
    elsif p_decided > greatest(p_mark, penstock.clock()) then
        perform penstock.refuse('PS400', format('decided: %s is yet to come', p_decided));
    elsif exists (
        select from unnest(p_ticks) with ordinality as t(tick, n)
        where t.tick is null or t.tick <= p_mark or t.tick > p_decided or t.tick <= p_ticks[t.n - 1]
    ) then
        perform penstock.refuse('PS400', format('ticks: they are not in order between %s and %s', p_mark, p_decided));
    end if;
    select * into v_schedule
    from penstock.schedule as s
    where s.name = p_name and s.mark = p_mark and not s.paused
    for update skip locked;
    if not found then
        return null;
    end if;
    if v_many > 0 then
        select q.name into v_queue from penstock.queue as q where q.id = v_schedule.queue_id;
        if not found then
            perform penstock.refuse('PS404', format('schedule %L: its queue was dropped', left(p_name, 80)));
        elsif v_many > 1 and v_many * octet_length(v_schedule.payload::text)::bigint > 16777216 then
            perform penstock.refuse('PS400', format('ticks: the payloads of %s are more than 16 MiB in one call', v_many));
        end if;
        select count(*) into v_pushed
        from penstock.push_many(
            v_queue,
            array_fill(v_schedule.payload::text, array[v_many]),
            array(
                select p_name || '@' || to_char(t.tick at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
                from unnest(p_ticks) as t(tick)),
            array_fill(v_schedule.kind, array[v_many]),
            p_priorities => array_fill(v_schedule.priority, array[v_many])) as p
        where p.result = 'created';
    end if;
    update penstock.schedule as s
    set mark = p_decided, next_at = p_next_at, last_tick = coalesce(p_ticks[v_many], s.last_tick)
    where s.name = p_name;
    return v_pushed;
end
$$;
CREATE FUNCTION penstock.forget_reader(p_name text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    delete from penstock.history_reader as r where r.name = p_name;
    if not found then
        perform penstock.refuse('PS404', format('reader: %L does not read history', left(p_name, 80)),
            'There are: ' || coalesce((select string_agg(r.name, ', ' order by r.name) from penstock.history_reader as r), 'none') || '.');
    end if;
    perform penstock.note_audit('forget', null, jsonb_build_object('reader', p_name));
end
$$;
CREATE FUNCTION penstock.forget_records(p_adopted integer, p_keys jsonb) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    delete from penstock.adopted_record as r
    using (select array(select jsonb_array_elements_text(k.value)) as key from jsonb_array_elements(p_keys) as k) as f
    where r.adopted_id = p_adopted and r.key = f.key
$$;
CREATE FUNCTION penstock.held_elsewhere(p_ids bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    v_free bigint[];
begin
    v_free := array(select t.id from penstock.task as t where t.id = any(p_ids) for update skip locked);
    return array(
        select t.id from penstock.task as t where t.id = any(p_ids) except select unnest(v_free));
end
$$;
CREATE TABLE penstock.stream (
    id integer NOT NULL,
    identity uuid DEFAULT gen_random_uuid() NOT NULL,
    queue_id integer NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    epoch integer NOT NULL,
    until timestamp with time zone NOT NULL,
    driver text NOT NULL,
    batch bigint DEFAULT 0 NOT NULL,
    tokens uuid[] DEFAULT '{}'::uuid[] NOT NULL,
    created timestamp with time zone DEFAULT penstock.clock() NOT NULL,
    CONSTRAINT name_fits CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 200)))
)
WITH (fillfactor='50');
COMMENT ON COLUMN penstock.stream.identity IS 'every checkpoint has it: one of another group, or of a queue that was dropped, is told by it';
COMMENT ON COLUMN penstock.stream.until IS 'how long the driver holds the group, if it does not say that it lives';
COMMENT ON COLUMN penstock.stream.tokens IS 'the leases of the last batch; none: it is settled';
CREATE FUNCTION penstock.held_stream(p_stream integer, p_epoch integer) RETURNS penstock.stream
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_stream penstock.stream;
begin
    -- Frozen before its commit, a driver would keep the group locked for as long as it likes.
    perform set_config('idle_in_transaction_session_timeout', '10s', true);
    select * into v_stream from penstock.stream as s where s.id = p_stream for update;
    if not found then
        perform penstock.refuse('PS404', format('consumerGroup: there is no group %s any more', coalesce(p_stream::text, 'null')),
            'Its queue was dropped. Begin with a new checkpoint.');
    elsif p_epoch is null or v_stream.epoch <> p_epoch then
        perform penstock.refuse('PS409', format('consumerGroup: driver %s has taken over %L', v_stream.driver, v_stream.name),
            'This driver was silent for longer than its lease, or was replaced. What it had in hand is the other one''s now.');
    end if;
    return v_stream;
end
$$;
CREATE FUNCTION penstock.history_between(p_from bigint, p_to bigint) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
    select exists (select from penstock.history as h where h.xid >= p_from and h.xid < p_to)
$$;
CREATE FUNCTION penstock.history_horizon() RETURNS TABLE(system text, database bigint, xid bigint, dropped bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform penstock.check_origin();
    return query
    select penstock.system()::text, d.oid::bigint, pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
           coalesce((select max(g.n) from penstock.history_gone as g), 0)
    from pg_database as d where d.datname = current_database();
end
$$;
CREATE FUNCTION penstock.history_spans(p_from bigint, p_to bigint, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone, p_until timestamp with time zone DEFAULT NULL::timestamp with time zone, p_roughly boolean DEFAULT false) RETURNS TABLE(day date, relation bigint, first_page bigint, pages bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    SET enable_seqscan TO 'off'
    AS $_$
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
$_$;
CREATE FUNCTION penstock.history_sums(p_day date, p_first bigint, p_pages bigint, p_below bigint, p_thorough boolean DEFAULT false) RETURNS TABLE(queue_id integer, outcome text, rows bigint, checksum numeric)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $$
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
CREATE FUNCTION penstock.hold_live(p_queue_id integer, p_ids bigint[]) RETURNS bigint[]
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
    select array(select t.id from penstock.task as t
                 where t.id = any(p_ids) and t.queue_id = p_queue_id and t.ended is null for update skip locked)
$$;
CREATE FUNCTION penstock.hold_scaling(p_queues text[], p_holder text, p_policy text, p_lease interval, p_instead_of text[] DEFAULT '{}'::text[]) RETURNS TABLE(queue text, epoch integer, memory jsonb, target integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_row penstock.scaling;
begin
    perform penstock.check_scaling(p_queues, p_holder, p_lease);
    if p_policy is null or octet_length(p_policy) not between 1 and 200 then
        perform penstock.refuse('PS400', 'policy: it is null, or not 1 to 200 bytes long');
    end if;
    insert into penstock.scaling (queue, epoch, holder, until, policy)
    select n.name, 0, '', '-infinity', p_policy from unnest(p_queues) as n(name) order by n.name
    on conflict (queue) do nothing;
    for v_row in
        select * from penstock.scaling as s where s.queue = any(p_queues) order by s.queue for update
    loop
        v_now := penstock.clock();
        if v_row.holder <> p_holder and v_row.until > v_now and v_row.holder <> all(coalesce(p_instead_of, '{}')) then
            perform penstock.refuse('PS409', format('queue %L is scaled by %s until %s', v_row.queue, v_row.holder, v_row.until),
                'Stop that scaler, or let this one wait: --standby.');
        end if;
    end loop;
    return query
    update penstock.scaling as s
    set epoch = case when s.holder = p_holder then s.epoch else s.epoch + 1 end, holder = p_holder, policy = p_policy,
        until = v_now + penstock.in_seconds(p_lease)
    where s.queue = any(p_queues)
    returning s.queue, s.epoch, s.memory, s.target;
end
$$;
CREATE FUNCTION penstock.hold_stream(p_queue text, p_group text, p_epoch integer, p_driver text, p_lease interval) RETURNS TABLE(stream integer, identity uuid, batch bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
#variable_conflict use_column
declare
    v_queue  constant penstock.queue := penstock.the_queue(p_queue);
    v_now    timestamptz;
    v_stream penstock.stream;
begin
    if p_group is null or octet_length(p_group) not between 1 and 200 then
        perform penstock.refuse('PS400', 'group: it is null, or not 1 to 200 bytes long');
    elsif p_epoch is null then
        perform penstock.refuse('PS400', 'epoch: it is null', 'Ask penstock.next_epoch for one.');
    end if;
    perform penstock.check_hold(p_lease, p_driver);
    insert into penstock.stream (queue_id, name, epoch, until, driver)
    values (v_queue.id, p_group, p_epoch, '-infinity', p_driver)
    on conflict (queue_id, name) do nothing;
    select * into v_stream from penstock.stream as s where s.queue_id = v_queue.id and s.name = p_group for update;
    v_now := penstock.clock();
    if v_stream.epoch <> p_epoch and v_stream.until > v_now and not pg_try_advisory_xact_lock(1346719303, v_stream.epoch) then
        perform penstock.refuse('PS409',
            format('consumerGroup: %L of queue %L is held by driver %s until %s', p_group, p_queue, v_stream.driver, v_stream.until),
            'Stop that driver, wait until its hold has ended, or give this one a consumerGroup of its own.');
    end if;
    update penstock.stream as s
    set epoch = p_epoch, until = v_now + penstock.in_seconds(p_lease), driver = p_driver,
        tokens = case when v_stream.epoch = p_epoch then v_stream.tokens else penstock.renew_tokens(v_stream.tokens, p_driver, p_lease) end
    where s.id = v_stream.id;
    return query select v_stream.id, v_stream.identity, v_stream.batch;
end
$$;
CREATE FUNCTION penstock.hold_waiting(p_ids bigint[]) RETURNS bigint[]
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
    select array(select a.task_id from penstock.agenda as a where a.task_id = any(p_ids) for update skip locked)
$$;
CREATE FUNCTION penstock.in_seconds(p_length interval) RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN ((p_length >= '-100 years'::interval) AND (p_length <= '100 years'::interval)) THEN make_interval(secs => (EXTRACT(epoch FROM p_length))::double precision) ELSE p_length END;
CREATE FUNCTION penstock.is_number(p_value jsonb, p_least numeric, p_most numeric) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (jsonb_typeof(p_value) = 'number'::text) THEN (((p_value)::numeric >= p_least) AND ((p_value)::numeric <= p_most)) ELSE false END;
CREATE FUNCTION penstock.job_report(p_job uuid) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN (SELECT l.report FROM penstock.ledger l WHERE ((l.batch_id = job_report.p_job) AND (l.part = 0)));
CREATE FUNCTION penstock.judge_payloads(p_payloads text[]) RETURNS TABLE(n integer, reason text)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_message text;
    v_detail  text;
begin
    for i in 1 .. coalesce(cardinality(p_payloads), 0) loop
        begin
            if jsonb_typeof(p_payloads[i]::jsonb) is distinct from 'object' then
                n := i - 1;
                reason := 'payload: it is not a JSON object';
                return next;
            end if;
        exception when data_exception or program_limit_exceeded then
            get stacked diagnostics v_message = message_text, v_detail = pg_exception_detail;
            n := i - 1;
            reason := concat_ws(' ', 'payload: ' || v_message || '.', nullif(v_detail, ''));
            return next;
        end;
    end loop;
end
$$;
CREATE FUNCTION penstock.keep_stream(p_stream integer, p_epoch integer, p_lease interval) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_stream constant penstock.stream := penstock.held_stream(p_stream, p_epoch);
begin
    perform penstock.check_hold(p_lease);
    perform penstock.extend_many(v_stream.tokens, p_lease);
    update penstock.stream as s set until = penstock.clock() + penstock.in_seconds(p_lease) where s.id = p_stream;
end
$$;
CREATE FUNCTION penstock.largest_payload(p_queue penstock.queue) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN COALESCE((((p_queue).settings ->> 'max_payload'::text))::bigint, (1048576)::bigint);
CREATE FUNCTION penstock.leave(p_worker text) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    delete from penstock.worker as w where w.name = p_worker
$$;
CREATE FUNCTION penstock.leave_scaling(p_holder text) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    update penstock.scaling as s set until = '-infinity' where s.holder = p_holder
$$;
CREATE FUNCTION penstock.leave_stream(p_stream integer, p_epoch integer) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    update penstock.stream as s set until = '-infinity' where s.id = p_stream and s.epoch = p_epoch
$$;
CREATE FUNCTION penstock.left_out(p_queue_id integer, p_ids bigint[], p_taken bigint[]) RETURNS TABLE(id bigint, result text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
#variable_conflict use_column
begin
    return query
    select g.id, case
        when t.id is null then 'unknown'
        when t.ended is not null then 'ended'
        when a.task_id is null and not exists (
            -- held, and by somebody who may be bringing it back
            select from penstock.task as f where f.id = g.id for update skip locked) then 'busy'
        when a.task_id is null then 'active'
        else 'busy' end
    from (select unnest(p_ids) except select unnest(p_taken)) as g(id)
    left join (select d.id, d.ended from penstock.task as d where d.id = any(p_ids) and d.queue_id = p_queue_id) as t on t.id = g.id
    left join (select w.task_id from penstock.agenda as w where w.task_id = any(p_ids)) as a on a.task_id = g.id;
end
$$;
CREATE FUNCTION penstock.lock_documents(p_ids bigint[], p_named_only boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
    perform from penstock.task as t
    where t.id = any(p_ids) and (t.subject is not null or not p_named_only)
    order by t.subject collate "C", t.id
    for update;
end
$$;
CREATE FUNCTION penstock.look(p_queues text[], p_horizons double precision[], p_rows integer[], p_bins double precision[]) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    v_now constant timestamptz := penstock.clock();
begin
    if p_queues is null or array_ndims(p_queues) > 1
       or (cardinality(p_horizons), cardinality(p_rows), cardinality(p_bins))
          is distinct from (cardinality(p_queues), cardinality(p_queues), cardinality(p_queues)) then
        perform penstock.refuse('PS400', 'queues, horizons, rows, bins: they are null, or not of one length');
    elsif 1 > any(p_rows) or 100000 < any(p_rows) then
        perform penstock.refuse('PS400', 'rows: one is not between 1 and 100000');
    elsif 0 > any(p_horizons) or 31536000 < any(p_horizons) or 0.001 > any(p_bins) then
        perform penstock.refuse('PS400', 'horizons, bins: one is negative, more than a year, or less than a millisecond');
    end if;
    perform penstock.promote(q.id)
    from unnest(p_queues) as n(name)
    join penstock.queue as q on q.name = n.name
    cross join lateral (
        select from penstock.agenda as a where a.queue_id = q.id and not a.pending and a.due <= v_now limit 1
    ) as due;
    return penstock.seen(p_queues, p_horizons, p_rows, p_bins);
end
$$;
CREATE FUNCTION penstock.make_history(p_day date) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $$
declare
    v_name constant text := 'history_' || to_char(p_day, 'YYYYMMDD');
begin
    if to_regclass('penstock.' || v_name) is not null then
        return false;
    end if;
    perform pg_advisory_xact_lock(hashtext('penstock.make_history'));
    begin
        execute format('create table penstock.%I (like penstock.history including all)', v_name);
    exception when duplicate_table then
        return false;    -- made while we waited for the lock
    end;
    execute format('alter table penstock.history attach partition penstock.%I for values from (%L) to (%L)',
                   v_name, p_day::timestamptz, (p_day + 1)::timestamptz);
    return true;
end
$$;
CREATE FUNCTION penstock.mark_adopted(p_adopted integer, p_tick timestamp with time zone, p_key text[], p_back boolean DEFAULT false) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    update penstock.adopted as a set tick = p_tick, key = p_key
    where a.id = p_adopted
      and (p_back or a.tick is null or a.tick < p_tick
           or (a.tick = p_tick and a.key is not null and (p_key is null or a.key collate "C" < p_key collate "C")))
$$;
CREATE FUNCTION penstock.meet(p_queue_id integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_queue penstock.queue;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        -- Its snapshot may be older than a drop: then this is an error of serialization, not a task that nobody will run.
        perform from penstock.queue as q where q.id = p_queue_id for key share;
    end if;
    select * into v_queue from penstock.queue as q where q.id = p_queue_id;
    if not found then
        perform penstock.refuse('PS404', format('queue_id: there is no queue %s', p_queue_id));
    end if;
    if v_queue.settings->'notify' is distinct from 'false' and pg_notification_queue_usage() < 0.5 and exists (
        select from penstock.worker as w
        where w.busy < w.slots and v_queue.name = any(w.queues) and w.beat > penstock.clock() - interval '1 minute') then
        perform pg_notify('penstock_' || p_queue_id, '');
    end if;
end
$$;
CREATE FUNCTION penstock.mentions(p_error text, p_reason text, p_text text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (strpos(lower(((COALESCE(p_error, ''::text) || ' '::text) || COALESCE(p_reason, ''::text))), lower(p_text)) > 0);
CREATE FUNCTION penstock.miss_schedule(p_name text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform penstock.refuse(
        'PS404', format('schedule %s does not exist', coalesce(quote_literal(left(p_name, 80)), 'null')),
        coalesce('Did you mean ' || quote_literal(penstock.nearest_schedule(p_name)) || '?', '`penstock schedules ls` lists them.'));
end
$$;
CREATE FUNCTION penstock.moment() RETURNS timestamp with time zone
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN penstock.clock();
CREATE FUNCTION penstock.nearest_queue(p_name text) RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN (SELECT q.name FROM (SELECT q_1.name, penstock.distance("left"(nearest_queue.p_name, 80), q_1.name) AS steps FROM penstock.queue q_1 ORDER BY q_1.name LIMIT 1000) q WHERE (q.steps <= GREATEST(2, (length(nearest_queue.p_name) / 3))) ORDER BY q.steps, q.name LIMIT 1);
CREATE FUNCTION penstock.nearest_schedule(p_name text) RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select n.name
    from (
        select s.name, penstock.distance(left(p_name, 80), left(s.name, 80)) as steps
        from penstock.schedule as s order by s.name limit 1000
    ) as n
    where n.steps <= greatest(2, length(p_name) / 3)
    order by n.steps, n.name limit 1
$$;
CREATE FUNCTION penstock.next_batch(p_stream integer, p_epoch integer, p_after bigint, p_limit integer, p_slots integer, p_lease interval, p_before timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS TABLE(batch bigint, tasks integer, early integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_stream penstock.stream := penstock.held_stream(p_stream, p_epoch);
    v_queue  penstock.queue;
    v_tasks  int;
    v_early  int := 0;
begin
    if p_after is null or p_after not between 0 and v_stream.batch then
        perform penstock.refuse('PS400', format('after: batch %s is not between 0 and %s, the last of consumerGroup %L',
                                                coalesce(p_after::text, 'null'), v_stream.batch, v_stream.name));
    elsif p_limit is null or p_limit not between 0 and 10000000 then
        perform penstock.refuse('PS400', format('limit: %s is not between 0 and 10000000', coalesce(p_limit::text, 'null')));
    elsif p_slots is null or p_slots not between 1 and 1000 then
        perform penstock.refuse('PS400', format('slots: %s is not between 1 and 1000', coalesce(p_slots::text, 'null')));
    end if;
    perform penstock.check_hold(p_lease);
    if v_stream.batch <= p_after then
        perform penstock.settle_batch(v_stream.tokens);
        v_stream.tokens := '{}';
    end if;
    v_tasks := penstock.open_tasks(v_stream.tokens);
    if v_tasks = 0 then
        select * into v_queue from penstock.queue as q where q.id = v_stream.queue_id;
        select c.tokens, c.tasks, c.early into v_stream.tokens, v_tasks, v_early
        from penstock.claim_batch(v_queue, v_stream.driver, p_limit, p_slots, p_lease, p_before) as c;
        v_stream.batch := v_stream.batch + (v_tasks > 0)::int;
    end if;
    update penstock.stream as s
    set batch = v_stream.batch, tokens = v_stream.tokens, until = penstock.clock() + penstock.in_seconds(p_lease)
    where s.id = p_stream;
    return query select case when v_tasks > 0 then v_stream.batch else p_after end, v_tasks, v_early;
end
$$;
CREATE FUNCTION penstock.next_epoch() RETURNS integer
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select nextval('penstock.stream_epoch_seq')::int
$$;
CREATE FUNCTION penstock.next_hand() RETURNS integer
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select nextval('penstock.adopted_hand_id_seq')::int
$$;
CREATE FUNCTION penstock.next_schedule() RETURNS double precision
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select extract(epoch from s.next_at - penstock.clock())::float8
    from penstock.schedule as s
    where not s.paused and exists (select from penstock.queue as q where q.id = s.queue_id)
    order by s.next_at
    limit 1
$$;
CREATE FUNCTION penstock.note_audit(p_verb text, p_queue text, p_detail jsonb) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    insert into penstock.audit (actor, verb, queue, detail) values (session_user, p_verb, p_queue, p_detail)
$$;
CREATE FUNCTION penstock.note_hand(p_hand integer, p_key text[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    update penstock.adopted_hand as h set key = p_key where h.id = p_hand
$$;
CREATE FUNCTION penstock.note_pass(p_adopted integer, p_report jsonb) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    update penstock.adopted as a set last_pass = p_report where a.id = p_adopted
$$;
CREATE FUNCTION penstock.note_reader(p_name text, p_system text, p_passed bigint DEFAULT 0) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock.note_records(p_adopted integer, p_records jsonb) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    insert into penstock.adopted_record (adopted_id, key, failures, last_failure, due, error)
    select p_adopted, array(select jsonb_array_elements_text(r.value->'key')), (r.value->>'failures')::int, penstock.clock(),
           (r.value->>'due')::timestamptz, left(r.value->>'error', 8192)
    from jsonb_array_elements(p_records) as r
    order by 2
    on conflict (adopted_id, key) do update
    set failures = excluded.failures, last_failure = excluded.last_failure, due = excluded.due, error = excluded.error
$$;
CREATE FUNCTION penstock.note_rejects(p_queue text, p_job uuid, p_partition integer, p_reasons text[], p_payloads text[], p_subjects text[], p_kinds text[], p_dues text[], p_priorities text[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_count bigint;
begin
    insert into penstock.reject (job, partition, queue, reason, payload, subject, kind, due, priority)
    select p_job, p_partition, v_queue.name, r.reason, r.payload, r.subject, r.kind, r.due, r.priority
    from unnest(p_reasons, p_payloads, p_subjects, p_kinds, p_dues, p_priorities)
         with ordinality as r(reason, payload, subject, kind, due, priority, n)
    order by r.n;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
CREATE FUNCTION penstock.note_report(p_batch_id uuid, p_part integer, p_report jsonb) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    update penstock.ledger as l set report = p_report where l.batch_id = p_batch_id and l.part = p_part
$$;
CREATE FUNCTION penstock.open_tasks(p_tokens uuid[]) RETURNS integer
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
    select coalesce(sum(bit_count(l.open)), 0)::int from penstock.lease as l where l.token = any(p_tokens)
$$;
CREATE FUNCTION penstock.pause_schedule(p_name text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    update penstock.schedule as s
    set paused = true, updated = penstock.clock(), who = session_user
    where s.name = p_name and not s.paused;
    if found then
        perform penstock.note_audit('pause schedule', null, jsonb_build_object('schedule', p_name));
    elsif not exists (select from penstock.schedule as s where s.name = p_name) then
        perform penstock.miss_schedule(p_name);
    end if;
end
$$;
CREATE FUNCTION penstock.profiles(p_queue text DEFAULT NULL::text) RETURNS TABLE(queue text, version integer, made timestamp with time zone, age interval, covers_from timestamp with time zone, covers_to timestamp with time zone, data jsonb)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if p_queue is not null then
        perform penstock.the_queue(p_queue);
    end if;
    return query
    select q.name, p.version, p.made, penstock.clock() - p.made, p.covers_from, p.covers_to, p.data
    from penstock.queue as q left join penstock.profile as p on p.queue_id = q.id
    where p_queue is null or q.name = p_queue
    order by q.name;
end
$$;
CREATE FUNCTION penstock.promote(p_queue_id integer, p_limit integer DEFAULT 10000) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    v_now   constant timestamptz := penstock.clock();
    v_count int;
begin
    update penstock.agenda as a
    set pending = true
    where a.ctid = any(array(
        select d.ctid
        from penstock.agenda as d
        where d.queue_id = p_queue_id and not d.pending and d.due <= v_now
        order by d.due
        limit p_limit
        for update skip locked));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
CREATE FUNCTION penstock.purge(p_queue text, p_states text[], p_ids bigint[] DEFAULT NULL::bigint[], p_kind text DEFAULT NULL::text, p_error text DEFAULT NULL::text, p_before timestamp with time zone DEFAULT NULL::timestamp with time zone, p_limit integer DEFAULT 10000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
declare
    v_queue  constant penstock.queue := penstock.the_queue(p_queue);
    v_bad    text;
    v_state  text;
    v_active bigint;
    v_gone   bigint[];
begin
    perform penstock.check_limit(p_limit);
    perform penstock.check_filter(p_error);
    if p_states is null or p_states = '{}' or array_position(p_states, null) is not null then
        perform penstock.refuse('PS400', 'states: none is given, or one is null');
    end if;
    select s.state into v_bad from unnest(p_states) as s(state)
    where s.state not in ('planned', 'pending', 'done', 'dead', 'cancelled') limit 1;
    if v_bad = 'active' then
        perform penstock.refuse('PS409', 'state: active tasks are not purged', 'Cancel them first.');
    elsif v_bad is not null then
        perform penstock.refuse('PS400', format('state: %L is not planned, pending, done, dead or cancelled', left(v_bad, 80)));
    end if;
    if p_ids is not null then
        select t.id into v_active from penstock.task as t
        where t.id = any(penstock.asked_ids(v_queue.id, p_ids, null)) and t.queue_id = v_queue.id and t.ended is null
          and not exists (select from penstock.agenda as a where a.task_id = t.id) limit 1;
        if v_active is not null then
            perform penstock.refuse('PS409', format('id: %s is active; active tasks are not purged', v_active), 'Cancel it first.');
        end if;
    end if;
    v_gone := array(
        select t.id from penstock.task as t
        where t.queue_id = v_queue.id and t.ended = any(p_states)
          and (p_ids is null or t.id = any(p_ids))
          and (p_kind is null or t.kind = p_kind)
          and (p_error is null or penstock.mentions(t.error, t.reason, p_error))
          and (p_before is null or t.ended_at < p_before)
        limit p_limit
        for update skip locked);
    foreach v_state in array array['pending', 'planned'] loop
        continue when v_state <> all(p_states) or cardinality(v_gone) >= p_limit;
        v_gone := v_gone || penstock.hold_waiting(array(
            select t.id from penstock.task as t join penstock.agenda as a on a.task_id = t.id
            where a.queue_id = v_queue.id
              and (v_state = 'pending' and a.pending or v_state = 'planned' and not a.pending)
              and (p_ids is null or t.id = any(p_ids))
              and (p_kind is null or t.kind = p_kind)
              and (p_error is null or penstock.mentions(t.error, t.reason, p_error))
              and (p_before is null or t.created < p_before)
            limit p_limit - cardinality(v_gone)
            for update of t skip locked));
    end loop;
    delete from penstock.agenda as a where a.task_id = any(v_gone);
    delete from penstock.task as t where t.id = any(v_gone);
    if v_gone <> '{}' then
        perform penstock.note_audit('purge', p_queue, jsonb_build_object('tasks', cardinality(v_gone), 'states', p_states));
    end if;
    return cardinality(v_gone);
end
$$;
CREATE FUNCTION penstock.push(p_queue text, p_payload jsonb DEFAULT '{}'::jsonb, p_subject text DEFAULT NULL::text, p_kind text DEFAULT NULL::text, p_due timestamp with time zone DEFAULT NULL::timestamp with time zone, p_priority smallint DEFAULT 5, p_on_conflict text DEFAULT 'skip'::text) RETURNS TABLE(id bigint, result text, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return query
    select r.id, r.result, r.state
    from penstock.push_many(p_queue, array[p_payload::text], array[p_subject], array[p_kind], array[p_due],
                            array[p_priority], p_on_conflict) as r;
end
$$;
CREATE FUNCTION penstock.push_many(p_queue text, p_payloads text[], p_subjects text[] DEFAULT NULL::text[], p_kinds text[] DEFAULT NULL::text[], p_dues timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], p_priorities smallint[] DEFAULT NULL::smallint[], p_on_conflict text DEFAULT 'skip'::text) RETURNS TABLE(n integer, id bigint, result text, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_queue   constant penstock.queue := penstock.the_queue(p_queue);
    v_updates constant boolean := p_on_conflict = 'update';
    v_twice   int[];       -- positions superseded by a later one in this batch
    v_new     int[];       -- positions that were created, and their documents
    v_made    bigint[];
    v_planned boolean[];
    v_ns      int[];       -- positions whose subject was there, and its document
    v_ids     bigint[];
    v_ended   text[];
    v_dues    timestamptz[];
    v_ranks   smallint[];
    v_left    int[];       -- positions whose subject was there, when nothing shall be updated
begin
    perform penstock.check_arrays(p_payloads, p_subjects, p_kinds, p_dues, p_priorities, p_on_conflict);
    perform penstock.check_push(p_payloads, p_subjects, p_kinds, p_dues, p_priorities, penstock.largest_payload(v_queue));
    if cardinality(p_payloads) = 1 and p_subjects[1] is null then
        -- It can meet no other task: half the work.
        return query
        insert into penstock.task as t (queue_id, priority, kind, payload, due)
        values (v_queue.id, coalesce(p_priorities[1], 5::smallint), coalesce(p_kinds[1], 'default'), p_payloads[1]::jsonb, p_dues[1])
        returning 1, t.id, 'created', case when t.due is null then 'pending' else 'planned' end;
        return;
    end if;
    -- The last of equal subjects wins.
    select array_agg(s.n) into v_twice
    from (
        select i.n::int, lead(i.subject) over (order by i.subject collate "C", i.n) = i.subject as again
        from unnest(p_subjects) with ordinality as i(subject, n)
    ) as s
    where s.again;
    -- Ids in the order given, so that the first runs first. A conflict locks the document even where nothing is updated.
    with asked as materialized (
        select i.n::int, nextval('penstock.task_id_seq') as id, i.payload, i.subject, i.kind, i.due, i.priority
        from unnest(p_payloads, p_subjects, p_kinds, p_dues, p_priorities)
             with ordinality as i(payload, subject, kind, due, priority, n)
        where v_twice is null or i.n not in (select unnest(v_twice))
    ), written as (
        insert into penstock.task as t (id, queue_id, priority, kind, subject, payload, due)
        select a.id, v_queue.id, coalesce(a.priority, 5::smallint), coalesce(a.kind, 'default'), a.subject, a.payload::jsonb, a.due
        from asked as a
        order by a.subject collate "C", a.id
        on conflict (queue_id, subject) where subject is not null do update
        set payload = excluded.payload, kind = excluded.kind, priority = excluded.priority, due = coalesce(excluded.due, t.due)
        where v_updates
        returning t.id, t.subject, t.ended
    ), matched as materialized (
        select a.n, a.due, coalesce(a.priority, 5::smallint) as priority, c.id as made, e.id, e.ended
        from asked as a
        left join written as c on c.id = a.id
        left join written as e on e.subject = a.subject and c.id is null
    )
    select array_agg(m.n) filter (where m.made is not null), array_agg(m.made) filter (where m.made is not null),
           array_agg(m.due is not null) filter (where m.made is not null),
           array_agg(m.n) filter (where m.id is not null), array_agg(m.id) filter (where m.id is not null),
           array_agg(m.ended) filter (where m.id is not null), array_agg(m.due) filter (where m.id is not null),
           array_agg(m.priority) filter (where m.id is not null),
           array_agg(m.n order by m.n) filter (where m.made is null and m.id is null)
    into v_new, v_made, v_planned, v_ns, v_ids, v_ended, v_dues, v_ranks, v_left
    from matched as m;
    if v_left is not null and p_on_conflict = 'error' then
        perform penstock.refuse('PS409', format('item %s: subject %L is taken in queue %L', v_left[1] - 1, left(p_subjects[v_left[1]], 80), p_queue));
    end if;
    return query
    select c.n, c.id, 'created', case when c.planned then 'planned' else 'pending' end
    from unnest(v_new, v_made, v_planned) as c(n, id, planned);
    if v_ids is not null then
        return query select r.n, r.id, r.result, r.state from penstock.refresh(v_ns, v_ids, v_ended, v_dues, v_ranks) as r;
    end if;
    -- New statements, so that they see what the insert ran into.
    if v_left is not null then
        return query select f.n, f.id, 'skipped', f.state from penstock.find_subjects(v_queue.id, p_subjects, v_left) as f;
    end if;
    if v_twice is not null then
        return query select f.n, f.id, 'superseded', f.state from penstock.find_subjects(v_queue.id, p_subjects, v_twice) as f;
    end if;
end
$$;
CREATE FUNCTION penstock.queues_named(p_queue text) RETURNS integer[]
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock.read_lease(p_token uuid, p_first integer, p_count integer) RETURNS TABLE(id bigint, kind text, subject text, payload text, priority smallint, due timestamp with time zone, attempt integer, iterations integer, created timestamp with time zone, since timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_lease penstock.lease;
    v_ids   bigint[];
begin
    if p_token is null or p_first is null or p_first < 0 or p_count is null or p_count not between 1 and 10000 then
        perform penstock.refuse('PS400', 'token, first, count: null, or not from 0, and not between 1 and 10000');
    end if;
    select * into v_lease from penstock.lease as l where l.token = p_token;
    if not found then
        if p_first > 0 then
            perform penstock.refuse('PS409', 'token: the lease was lost while it was read');
        end if;
        return;
    end if;
    v_ids := v_lease.ids[p_first + 1 : p_first + p_count];
    return query
    select t.id, t.kind, t.subject, t.payload::text, t.priority, h.due, coalesce(h.attempts, 0) + 1, t.iterations, t.created,
           coalesce(t.since, t.created)
    from unnest(v_ids, v_lease.dues[p_first + 1 : p_first + p_count], v_lease.attempts[p_first + 1 : p_first + p_count])
         with ordinality as h(id, due, attempts, n)
    join (select * from penstock.task as d where d.id = any(v_ids) and d.ended is null) as t on t.id = h.id
    where get_bit(v_lease.open, p_first + h.n::int - 1) = 1
    order by h.n;
end
$$;
CREATE FUNCTION penstock.read_up_to() RETURNS bigint
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select coalesce(min(case when r.system = penstock.system() then r.passed else 0 end), 9223372036854775807)
    from penstock.history_reader as r
$$;
CREATE FUNCTION penstock.rebase_history() RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock.recount(p_queue text) RETURNS TABLE(area text, queue text, what text, expected bigint, found bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
begin
    return query
    with stated as materialized (
        select q.id, s.* from penstock.status(p_queue) as s join penstock.queue as q on q.name = s.queue
    ), counted as materialized (
        select q.id as queue_id, m.metric, m.value
        from stated as q
        cross join lateral (
            select 'planned' as metric, count(*) filter (where not a.pending) as value from penstock.agenda as a where a.queue_id = q.id
            union all
            select 'pending', count(*) filter (where a.pending) from penstock.agenda as a where a.queue_id = q.id
            union all
            select 'active', coalesce(sum(bit_count(l.open)), 0)::bigint from penstock.lease as l where l.queue_id = q.id
            union all
            select e.ended, count(t.id)
            from unnest(array['done', 'dead', 'cancelled']) as e(ended)
            left join penstock.task as t on t.queue_id = q.id and t.ended = e.ended
            group by e.ended
        ) as m
    ), opened as materialized (
        select l.queue_id, h.id
        from penstock.lease as l, unnest(l.ids) with ordinality as h(id, n)
        where get_bit(l.open, h.n::int - 1) = 1 and l.queue_id in (select s.id from stated as s)
    ), placed as materialized (
        select p.id, min(p.queue_id) as queue_id, count(*) as places
        from (
            select a.task_id as id, a.queue_id from penstock.agenda as a where a.queue_id in (select s.id from stated as s)
            union all
            select o.id, o.queue_id from opened as o
        ) as p
        group by p.id
    ), stray as (
        select coalesce(t.queue_id, p.queue_id) as queue_id, case
            when t.id is null then 'waiting or leased without a document'
            when t.ended is not null then 'ended, but still waiting or leased'
            when p.id is null then 'live, but neither waiting nor leased'
            else 'in two places' end as what
        from (select t.* from penstock.task as t where t.queue_id in (select s.id from stated as s)) as t
        full join placed as p on p.id = t.id
        where t.id is null or (t.ended is null) <> (p.id is not null) or p.places > 1
    ), finished as (
        select h.queue_id, h.outcome, sum(h.rows)::bigint as rows
        from (
            select h.queue_id, h.outcome, count(*) as rows from penstock.history as h
            where h.queue_id in (select s.id from stated as s) group by h.queue_id, h.outcome
            union all
            select d.queue_id, d.outcome, d.rows from penstock.history_dropped as d where d.queue_id in (select s.id from stated as s)
        ) as h
        group by h.queue_id, h.outcome
    )
    select 'drift', s.queue, c.metric, c.value,
           case c.metric when 'planned' then s.planned when 'pending' then s.pending when 'active' then s.active
                         when 'done' then s.done when 'dead' then s.dead else s.cancelled end as booked
    from stated as s join counted as c on c.queue_id = s.id
    where c.value <> case c.metric when 'planned' then s.planned when 'pending' then s.pending when 'active' then s.active
                                   when 'done' then s.done when 'dead' then s.dead else s.cancelled end
    union all
    select 'orphans', s.queue, y.what, 0, count(*)
    from stated as s join stray as y on y.queue_id = s.id group by s.queue, y.what
    union all
    -- Left behind by nobody we know; nothing else would ever look at them.
    select 'orphans', '', 'of no queue', 0, count(*)
    from penstock.task as t
    where p_queue is null and not exists (select from penstock.queue as q where q.id = t.queue_id)
    having count(*) > 0
    union all
    select 'history', s.queue, o.outcome, coalesce(f.rows, 0), (s.totals->>o.outcome)::bigint
    from stated as s
    cross join unnest(array['done', 'again', 'failed', 'dead', 'released', 'expired', 'revoked']) as o(outcome)
    left join finished as f on f.queue_id = s.id and f.outcome = o.outcome
    where coalesce(f.rows, 0) <> (s.totals->>o.outcome)::bigint
    union all
    select 'balance', s.queue, 'pushed', (s.totals->>'pushed')::bigint,
           s.planned + s.pending + s.active + s.done + s.dead + s.cancelled + (s.totals->>'removed')::bigint
    from stated as s
    where (s.totals->>'pushed')::bigint
       <> s.planned + s.pending + s.active + s.done + s.dead + s.cancelled + (s.totals->>'removed')::bigint;
end
$$;
CREATE FUNCTION penstock.redrive(p_queue text, p_ids bigint[] DEFAULT NULL::bigint[], p_subjects text[] DEFAULT NULL::text[], p_kind text DEFAULT NULL::text, p_error text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone, p_limit integer DEFAULT 10000) RETURNS TABLE(id bigint, result text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
#variable_conflict use_column
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_now   constant timestamptz := penstock.clock();
    v_named constant boolean := p_ids is not null or p_subjects is not null;
    v_ids   bigint[];
    v_free  bigint[];
    v_done  bigint;
begin
    perform penstock.check_limit(p_limit);
    perform penstock.check_filter(p_error);
    if v_named and num_nonnulls(p_kind, p_error, p_since) > 0 then
        perform penstock.refuse('PS400', 'kind, error, since: they choose among all dead tasks; with ids or subjects there is nothing to choose');
    end if;
    if v_named then
        v_ids := penstock.asked_ids(v_queue.id, p_ids, p_subjects);
        select t.id into v_done from penstock.task as t
        where t.id = any(v_ids) and t.queue_id = v_queue.id and t.ended = 'done' limit 1;
        if v_done is not null then
            perform penstock.refuse('PS409', format('id: %s is done; only dead and cancelled tasks are redriven', v_done));
        end if;
    end if;
    v_free := array(
        select t.id from penstock.task as t
        where t.queue_id = v_queue.id
          and (case when v_named then t.id = any(v_ids) and t.ended in ('dead', 'cancelled') else t.ended = 'dead' end)
          and (p_kind is null or t.kind = p_kind)
          and (p_error is null or penstock.mentions(t.error, t.reason, p_error))
          and (p_since is null or t.ended_at >= p_since)
        order by t.ended_at, t.id
        limit p_limit
        for update skip locked);
    perform penstock.reopen(v_free, null, v_now);
    if v_free <> '{}' then
        insert into penstock.counter_log (queue_id, metric, delta) values (v_queue.id, 'redriven_total', cardinality(v_free));
        perform penstock.note_audit('redrive', p_queue, jsonb_build_object('tasks', cardinality(v_free)));
    end if;
    return query
    select f.id, 'redriven' from unnest(v_free) as f(id)
    union all
    select g.id, case when t.id is null then 'unknown' when t.ended is null then 'live' else 'busy' end
    from (select unnest(v_ids) except select unnest(v_free)) as g(id)
    left join (select d.id, d.ended from penstock.task as d where d.id = any(v_ids) and d.queue_id = v_queue.id) as t on t.id = g.id;
end
$$;
CREATE FUNCTION penstock.refresh(p_ns integer[], p_ids bigint[], p_ended text[], p_dues timestamp with time zone[], p_priorities smallint[]) RETURNS TABLE(n integer, id bigint, result text, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_now     constant timestamptz := penstock.clock();
    v_waiting bigint[];
    v_pending boolean[];
    v_moved   bigint[];
    v_active  bigint[];
begin
    -- It waits: the new priority, the new due if one was given.
    with held as materialized (
        select a.task_id, a.pending, a.priority from penstock.agenda as a where a.task_id = any(p_ids) for update
    )
    select array_agg(h.task_id), array_agg(h.pending and g.due is null),
           array_agg(h.task_id) filter (where h.priority <> g.priority or g.due is not null)
    into v_waiting, v_pending, v_moved
    from held as h join unnest(p_ids, p_dues, p_priorities) as g(id, due, priority) on g.id = h.task_id;
    if v_moved is not null then
        update penstock.agenda as a
        set priority = g.priority, due = coalesce(g.due, a.due), pending = a.pending and g.due is null
        from unnest(p_ids, p_dues, p_priorities) as g(id, due, priority)
        where a.task_id = any(v_moved) and g.id = a.task_id;
    end if;
    return query
    select g.n, g.id, 'updated', case when w.pending then 'pending' else 'planned' end
    from unnest(p_ns, p_ids) as g(n, id) join unnest(v_waiting, v_pending) as w(id, pending) on w.id = g.id;
    -- It has ended: it begins anew.
    if array_position(p_ended, 'done') is not null or array_position(p_ended, 'dead') is not null
       or array_position(p_ended, 'cancelled') is not null then
        return query
        select g.n, g.id, 'reopened', r.state
        from unnest(p_ns, p_ids, p_ended) as g(n, id, ended)
        join penstock.reopen(p_ids, p_dues, v_now) as r on r.id = g.id
        where g.ended is not null;
    end if;
    -- Somebody works on it.
    select array_agg(g.id) into v_active
    from unnest(p_ids, p_ended) as g(id, ended)
    left join unnest(v_waiting) as w(id) on w.id = g.id
    where g.ended is null and w.id is null;
    if v_active is not null then
        update penstock.task as t
        set renew = coalesce(g.due, v_now)
        from unnest(p_ids, p_dues) as g(id, due)
        where t.id = any(v_active) and g.id = t.id;
        return query
        select g.n, g.id, 'renewed', 'active' from unnest(p_ns, p_ids) as g(n, id) join unnest(v_active) as a(id) on a.id = g.id;
    end if;
end
$$;
CREATE FUNCTION penstock.refuse(p_code text, p_message text, p_hint text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if p_hint is null then
        raise exception using errcode = p_code, message = p_message;
    end if;
    raise exception using errcode = p_code, message = p_message, hint = p_hint;
end
$$;
CREATE FUNCTION penstock.refuse_truncate() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    raise exception 'truncate of penstock.% would make the counters lie', tg_table_name
        using errcode = 'PS409', hint = 'Delete the rows instead, or drop the queue.';
end
$$;
CREATE FUNCTION penstock.release(p_token uuid, p_ids bigint[] DEFAULT NULL::bigint[], p_delay interval DEFAULT NULL::interval) RETURNS TABLE(id bigint, result text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_ids bigint[] := p_ids;
begin
    if v_ids is null then
        select array_agg(h.id) into v_ids
        from penstock.lease as l, unnest(l.ids) with ordinality as h(id, n)
        where l.token = p_token and get_bit(l.open, h.n::int - 1) = 1;
    end if;
    return query
    select s.id, s.result
    from penstock.settle(p_token, coalesce(v_ids, '{}'), array_fill('release'::text, array[coalesce(cardinality(v_ids), 0)]),
                         p_delays => array_fill(p_delay, array[coalesce(cardinality(v_ids), 0)])) as s;
end
$$;
CREATE FUNCTION penstock.release_day(p_day date, p_rows bigint, p_below bigint) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    SET lock_timeout TO '200ms'
    AS $$
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
CREATE FUNCTION penstock.renew_tokens(p_tokens uuid[], p_driver text, p_lease interval) RETURNS uuid[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_tokens uuid[];
begin
    with renewed as (
        update penstock.lease as l set token = gen_random_uuid(), worker = p_driver
        from unnest(p_tokens) with ordinality as o(token, n)
        where l.token = o.token
        returning l.token, o.n
    )
    select coalesce(array_agg(r.token order by r.n), '{}') into v_tokens from renewed as r;
    perform penstock.extend_many(v_tokens, p_lease);
    return v_tokens;
end
$$;
CREATE FUNCTION penstock.reopen(p_ids bigint[], p_dues timestamp with time zone[], p_now timestamp with time zone) RETURNS TABLE(id bigint, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
#variable_conflict use_column
begin
    return query
    with opened as (
        update penstock.task as t
        set ended = null, ended_at = null, reason = null, error = null, renew = null, since = p_now
        where t.id = any(p_ids) and t.ended is not null
        returning t.id, t.queue_id, t.priority, t.subject
    ), waiting as (
        insert into penstock.agenda (task_id, due, queue_id, priority, pending, named)
        select o.id, coalesce(g.due, p_now), o.queue_id, o.priority, g.due is null, o.subject is not null
        from opened as o join unnest(p_ids, p_dues) as g(id, due) on g.id = o.id
        returning task_id, pending
    )
    select w.task_id, case when w.pending then 'pending' else 'planned' end from waiting as w;
end
$$;
CREATE FUNCTION penstock.repair(p_queue text DEFAULT NULL::text) RETURNS TABLE(queue text, what text, rows bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
    v_now   constant timestamptz := penstock.clock();
    v_lease record;
begin
    perform penstock.stand_still(case when p_queue is not null then (penstock.the_queue(p_queue)).id end);
    lock table penstock.history in access share mode;
    if p_queue is null then
        return query
        with unknown as (
            delete from penstock.task as t
            where not exists (select from penstock.queue as q where q.id = t.queue_id) returning t.id
        ), waiting as (
            delete from penstock.agenda as a using unknown as u where a.task_id = u.id
        )
        select '', 'of no queue, removed', count(*) from unknown having count(*) > 0;
    end if;
    -- Of a task leased twice the later lease counts; what has no live document is in no lease.
    for v_lease in
        select q.name, l.token, l.open, array_agg(o.n) as stray
        from (
            select f.token, f.queue_id, h.id, h.n::int - 1 as n,
                   row_number() over (partition by h.id order by f.claimed_at desc, f.token desc) as nth
            from penstock.lease as f cross join lateral unnest(f.ids) with ordinality as h(id, n)
            where get_bit(f.open, h.n::int - 1) = 1
        ) as o
        join penstock.queue as q on q.id = o.queue_id
        join penstock.lease as l on l.token = o.token
        left join penstock.task as t on t.id = o.id and t.ended is null
        where (p_queue is null or q.name = p_queue) and (t.id is null or o.nth > 1)
        group by q.name, l.token, l.open
    loop
        for n in 1 .. cardinality(v_lease.stray) loop
            v_lease.open := set_bit(v_lease.open, v_lease.stray[n], 0);
        end loop;
        update penstock.lease as l set open = v_lease.open where l.token = v_lease.token;
        return query select v_lease.name, 'taken out of a lease', cardinality(v_lease.stray)::bigint;
    end loop;
    return query
    with opened as materialized (
        select h.id from penstock.lease as l, unnest(l.ids) with ordinality as h(id, n) where get_bit(l.open, h.n::int - 1) = 1
    ), stray as (
        delete from penstock.agenda as a
        using penstock.queue as q
        where q.id = a.queue_id and (p_queue is null or q.name = p_queue)
          and (not exists (select from penstock.task as t where t.id = a.task_id and t.ended is null)
               or a.task_id in (select o.id from opened as o))
        returning q.name
    )
    select s.name, 'taken out of the agenda', count(*) from stray as s group by s.name;
    return query
    with opened as materialized (
        select h.id from penstock.lease as l, unnest(l.ids) with ordinality as h(id, n) where get_bit(l.open, h.n::int - 1) = 1
    ), lost as (
        insert into penstock.agenda (task_id, due, queue_id, priority, pending, named)
        select t.id, v_now, t.queue_id, t.priority, true, t.subject is not null
        from penstock.task as t join penstock.queue as q on q.id = t.queue_id
        where (p_queue is null or q.name = p_queue) and t.ended is null
          and not exists (select from penstock.agenda as a where a.task_id = t.id)
          and t.id not in (select o.id from opened as o)
        returning queue_id
    )
    select q.name, 'put back into the agenda', count(*) from lost as l join penstock.queue as q on q.id = l.queue_id group by q.name;
    -- Now the books: gauges and outcomes by what is there, then pushed by what is there and was removed.
    return query
    with off as (
        select v.queue, v.area, v.what, v.expected - v.found as delta from penstock.verify(p_queue) as v where v.area in ('drift', 'history')
    ), noted as (
        insert into penstock.counter_log (queue_id, metric, delta)
        select q.id, case o.area when 'drift' then o.what else o.what || '_total' end, o.delta
        from off as o join penstock.queue as q on q.name = o.queue
    )
    select o.queue, 'counter ' || o.what || ' corrected', abs(o.delta) from off as o;
    return query
    with off as (
        select v.queue, v.found - v.expected as delta from penstock.verify(p_queue) as v where v.area = 'balance'
    ), noted as (
        insert into penstock.counter_log (queue_id, metric, delta)
        select q.id, 'pushed_total', o.delta from off as o join penstock.queue as q on q.name = o.queue
    )
    select o.queue, 'counter pushed corrected', abs(o.delta) from off as o;
    perform penstock.note_audit('repair', p_queue, '{}');
end
$$;
CREATE FUNCTION penstock.reprioritise(p_queue text, p_priority smallint, p_ids bigint[] DEFAULT NULL::bigint[], p_subjects text[] DEFAULT NULL::text[]) RETURNS TABLE(id bigint, result text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_ids   constant bigint[] := penstock.asked_ids(v_queue.id, p_ids, p_subjects);
    v_live  bigint[];
    v_busy  bigint[];
begin
    if p_priority is null or p_priority not between 0 and 9 then
        perform penstock.refuse('PS400', format('priority: %s is not between 0 and 9', coalesce(p_priority::text, 'null')));
    end if;
    v_live := penstock.hold_live(v_queue.id, v_ids);
    v_busy := array(select a.task_id from penstock.agenda as a where a.task_id = any(v_live)
                    except select unnest(penstock.hold_waiting(v_live)));    -- a claim is taking them now
    v_live := array(select unnest(v_live) except select unnest(v_busy));
    update penstock.agenda as a set priority = p_priority where a.task_id = any(v_live);
    update penstock.task as t set priority = p_priority where t.id = any(v_live);
    if v_live <> '{}' then
        perform penstock.note_audit('reprioritise', p_queue, jsonb_build_object('tasks', cardinality(v_live), 'priority', p_priority));
    end if;
    return query
    select w.id, 'reprioritised' from unnest(v_live) as w(id)
    union all
    select o.id, o.result from penstock.left_out(v_queue.id, v_ids, v_live) as o;
end
$$;
CREATE FUNCTION penstock.reschedule(p_queue text, p_due timestamp with time zone, p_ids bigint[] DEFAULT NULL::bigint[], p_subjects text[] DEFAULT NULL::text[]) RETURNS TABLE(id bigint, result text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_queue   constant penstock.queue := penstock.the_queue(p_queue);
    v_ids     constant bigint[] := penstock.asked_ids(v_queue.id, p_ids, p_subjects);
    v_waiting bigint[];
begin
    if p_due is null then
        perform penstock.refuse('PS400', 'due: it is null');
    end if;
    perform penstock.check_push(array['{}'], null, null, array[p_due], null, 2);
    v_waiting := penstock.hold_waiting(penstock.hold_live(v_queue.id, v_ids));
    update penstock.agenda as a set due = p_due, pending = false where a.task_id = any(v_waiting);
    update penstock.task as t set due = p_due where t.id = any(v_waiting);
    if v_waiting <> '{}' then
        perform penstock.note_audit('reschedule', p_queue, jsonb_build_object('tasks', cardinality(v_waiting), 'due', p_due));
    end if;
    return query
    select w.id, 'rescheduled' from unnest(v_waiting) as w(id)
    union all
    select o.id, o.result from penstock.left_out(v_queue.id, v_ids, v_waiting) as o;
end
$$;
CREATE FUNCTION penstock.resume_schedule(p_name text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := penstock.clock();
begin
    update penstock.schedule as s
    set paused = false, mark = greatest(s.mark, v_now), next_at = v_now, updated = v_now, who = session_user
    where s.name = p_name and s.paused;
    if found then
        perform penstock.note_audit('resume schedule', null, jsonb_build_object('schedule', p_name));
    elsif not exists (select from penstock.schedule as s where s.name = p_name) then
        perform penstock.miss_schedule(p_name);
    end if;
end
$$;
CREATE FUNCTION penstock.retire(p_limit integer DEFAULT 10000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
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
CREATE FUNCTION penstock.retry_delay(p_strategy jsonb, p_failures integer, p_age interval DEFAULT '00:00:00'::interval, p_seed bigint DEFAULT 0) RETURNS interval
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_longest constant double precision := 10 * 365 * 86400.0;
    v_age     constant double precision := greatest(extract(epoch from p_age), 0);
    v_cap     constant double precision := least(coalesce((p_strategy->>'cap')::double precision, v_longest), v_longest);
    v_seconds double precision;
    v_before  double precision := 0;
    v_swap    double precision;
    v_power   double precision;
begin
    if p_strategy is null or p_failures is null or p_failures < 1 then
        perform penstock.refuse('PS400', format('failures: %s is not a count of at least 1', coalesce(p_failures::text, 'null')));
    end if;
    case p_strategy->>'type'
    when 'fibonacci' then
        -- 1, 1, 2, 3, 5, 8, … units.
        v_seconds := (p_strategy->>'unit')::double precision;
        for i in 2 .. p_failures loop
            exit when v_seconds >= v_cap;
            v_swap := v_seconds;
            v_seconds := v_seconds + v_before;
            v_before := v_swap;
        end loop;
    when 'exponential' then
        v_seconds := (p_strategy->>'base')::double precision;
        v_power := coalesce((p_strategy->>'factor')::double precision, 2);
        -- By logarithms first: the power itself would overflow long before failures run out.
        if v_seconds > 0 and (p_failures - 1) * ln(v_power) >= ln(v_cap / v_seconds) then
            v_seconds := v_cap;
        else
            v_seconds := v_seconds * power(v_power, p_failures - 1);
        end if;
    when 'fixed' then
        v_seconds := (p_strategy->>'delay')::double precision;
    when 'schedule' then
        v_seconds := (p_strategy->'delays'->>(p_failures - 1))::double precision;
    when 'progressive' then
        select (t.tier->>1)::double precision into v_seconds
        from jsonb_array_elements(p_strategy->'tiers') with ordinality as t(tier, n)
        where v_age < (t.tier->>0)::double precision
        order by t.n limit 1;
    else
        perform penstock.refuse('PS400', format('retry: type %s is not known', coalesce(p_strategy->>'type', 'null')),
            'Types are fibonacci, progressive, exponential, fixed and schedule.');
    end case;
    if v_seconds is null then
        return null;    -- the schedule is at its end, or the task older than every tier
    end if;
    v_seconds := least(v_seconds, v_cap);
    if v_seconds > 0 and (p_strategy->>'jitter')::double precision > 1e-100 then  -- less adds nothing to 1, and may underflow
        v_seconds := v_seconds * (1 + (p_strategy->>'jitter')::double precision
                                      * (2 * penstock.retry_spread(p_seed, p_failures) - 1));
    end if;
    return make_interval(secs => v_seconds);
end
$$;
CREATE FUNCTION penstock.retry_spread(p_seed bigint, p_failures integer) RETURNS double precision
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN ((mod(((mod(abs(p_seed), '2147483648'::bigint) * '2654435761'::bigint) + ((p_failures)::bigint * 1013904223)), '4294967296'::bigint))::double precision / (4294967296.0)::double precision);
CREATE FUNCTION penstock.revoke(p_queue_id integer, p_ids bigint[], p_now timestamp with time zone) RETURNS bigint[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_nestloop TO 'off'
    AS $$
declare
    v_lease penstock.lease;
    v_hit   bigint[];
    v_all   bigint[] := '{}';
    v_n     int;
begin
    if p_ids = '{}' then
        return v_all;
    end if;
    perform penstock.make_history((p_now at time zone 'UTC')::date);
    for v_lease in
        select l.* from penstock.lease as l
        where l.token in (
            select f.token
            from penstock.lease as f cross join lateral unnest(f.ids) as h(id)
            join unnest(p_ids) as a(id) on a.id = h.id
            where f.queue_id = p_queue_id)
        for update skip locked
    loop
        v_hit := '{}';
        for v_n in
            select h.n::int - 1
            from unnest(v_lease.ids) with ordinality as h(id, n) join unnest(p_ids) as a(id) on a.id = h.id
        loop
            if get_bit(v_lease.open, v_n) = 1 then
                v_lease.open := set_bit(v_lease.open, v_n, 0);
                v_hit := v_hit || v_lease.ids[v_n + 1];
            end if;
        end loop;
        continue when v_hit = '{}';
        update penstock.lease as l set open = v_lease.open, revoked = l.revoked || v_hit where l.token = v_lease.token;
        insert into penstock.history (task_id, created, due, claimed_at, finished_at, queue_id, iteration, attempt, outcome,
                                      kind, worker, subject)
        select t.id, t.created, h.due, v_lease.claimed_at, p_now, p_queue_id, t.iterations, coalesce(h.attempts, 0) + 1, 'revoked',
               t.kind, v_lease.worker, t.subject
        from penstock.task as t join unnest(v_lease.ids, v_lease.dues, v_lease.attempts) as h(id, due, attempts) on h.id = t.id
        where t.id = any(v_hit);
        v_all := v_all || v_hit;
    end loop;
    if v_all <> '{}' then
        insert into penstock.counter_log (queue_id, metric, delta) values (p_queue_id, 'revoked_total', cardinality(v_all));
    end if;
    return v_all;
end
$$;
CREATE FUNCTION penstock.running_times() RETURNS TABLE(queue text, kind text, bucket integer, tasks bigint, seconds double precision)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    with opened as (
        select l.queue_id, h.id, greatest(0.001, extract(epoch from penstock.clock() - l.claimed_at)::double precision) as seconds
        from penstock.lease as l, unnest(l.ids) with ordinality as h(id, n)
        where get_bit(l.open, h.n::int - 1) = 1
    )
    select q.name, t.kind, floor(10 * log(o.seconds))::int, count(*), sum(o.seconds)
    from opened as o
    join penstock.task as t on t.id = o.id
    join penstock.queue as q on q.id = o.queue_id
    group by 1, 2, 3
    order by 1, 2, 3
$$;
CREATE FUNCTION penstock.safe_text(p_text text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN CASE WHEN (p_text IS NULL) THEN NULL::text ELSE regexp_replace(CASE WHEN (octet_length(p_text) <= 8192) THEN p_text WHEN (octet_length("left"(p_text, 8000)) <= 8000) THEN ("left"(p_text, 8000) || ' … (cut)'::text) ELSE ("left"(p_text, 2000) || ' … (cut)'::text) END, '[\x01-\x08\x0B-\x1F\x7F\u0080-\u009F]'::text, '?'::text, 'g'::text) END;
CREATE FUNCTION penstock.sample_days(p_from bigint, p_to bigint) RETURNS TABLE(day date)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    SET enable_seqscan TO 'off'
    AS $$
    select distinct s.at::date from penstock.sample as s where s.xid >= p_from and s.xid < p_to order by 1
$$;
CREATE FUNCTION penstock.scalers(p_queues text[] DEFAULT NULL::text[]) RETURNS TABLE(queue text, holder text, policy text, until timestamp with time zone, target integer, decided_at timestamp with time zone)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select s.queue, s.holder, s.policy, s.until, s.target, s.decided_at
    from penstock.scaling as s
    where s.until > penstock.clock() and (p_queues is null or s.queue = any(p_queues)) order by s.queue
$$;
CREATE FUNCTION penstock.schedules(p_name text DEFAULT NULL::text) RETURNS TABLE(name text, queue text, kind text, payload text, priority smallint, cron text, tz text, backfill text, paused boolean, mark timestamp with time zone, next_at timestamp with time zone, last_tick timestamp with time zone, created timestamp with time zone, updated timestamp with time zone, who text, size integer, at timestamp with time zone)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select s.name, q.name, s.kind, s.payload::text, s.priority, s.cron, s.tz, s.backfill, s.paused, s.mark, s.next_at, s.last_tick,
           s.created, s.updated, s.who, octet_length(s.payload::text), c.at
    from penstock.schedule as s
    join penstock.queue as q on q.id = s.queue_id
    cross join (select penstock.clock() as at) as c
    where p_name is null or s.name = p_name
    order by s.name
$$;
CREATE FUNCTION penstock.seal_job(p_queue text, p_job uuid, p_partitions integer, p_rows bigint, p_checksum text, p_report jsonb) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_queue  constant penstock.queue := penstock.the_queue(p_queue);
    v_report constant jsonb := p_report || jsonb_build_object('partitions', p_partitions, 'rows', p_rows);
    v_known  penstock.ledger;
begin
    insert into penstock.ledger (batch_id, part, queue_id, rows, checksum, report, at)
    values (p_job, 0, v_queue.id, p_rows, p_checksum, v_report, penstock.clock())
    on conflict (batch_id, part) do nothing;
    if found then
        return v_report;
    end if;
    select * into v_known from penstock.ledger as l where l.batch_id = p_job and l.part = 0;
    if (v_known.report->>'partitions')::int <> p_partitions then
        perform penstock.refuse('PS409',
            format('job: it was sealed with %s partitions, now there are %s', v_known.report->>'partitions', p_partitions),
            'The same job has the same rows in the same partitions. Other rows are another txnVersion.');
    end if;
    perform penstock.check_repeat('job: ', v_known, v_queue, p_rows, p_checksum);
    return v_known.report;
end
$$;
CREATE FUNCTION penstock.seen(p_queues text[], p_horizons double precision[], p_rows integer[], p_bins double precision[]) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
declare
    v_now    constant timestamptz := penstock.clock();
    v_edge   constant timestamptz := v_now + interval '1 microsecond';  -- an age of whole bins is the older bin's
    v_system constant bigint := penstock.system();
begin
    return (
    with recursive asked as materialized (
        select q.id, q.name, q.paused, q.sla, n.horizon, n.rows, make_interval(secs => n.bin) as bin
        from unnest(p_queues, p_horizons, p_rows, p_bins) as n(name, horizon, rows, bin) join penstock.queue as q on q.name = n.name
    ), noted as (
        select c.queue_id, c.metric, c.value
        from asked as q join penstock.counter as c on c.queue_id = q.id
        union all
        select l.queue_id, l.metric, l.delta
        from asked as q
        join penstock.low as b on b.queue_id = q.id
        join penstock.counter_log as l
          on l.queue_id = q.id and l.xid >= case when b.system = v_system then b.xid else 0 end
    ), booked as (
        select n.queue_id,
               coalesce(sum(n.value) filter (where n.metric = 'planned'), 0) as planned,
               coalesce(sum(n.value) filter (where n.metric = 'pending'), 0) as pending,
               coalesce(sum(n.value) filter (where n.metric = 'active'), 0) as active,
               coalesce(sum(n.value) filter (where n.metric in ('done_total', 'again_total', 'failed_total', 'dead_total')), 0) as ended,
               coalesce(sum(n.value) filter (where n.metric in ('released_total', 'expired_total', 'revoked_total')), 0) as left
        from noted as n group by n.queue_id
    ), newest as (
        -- Of each priority that anybody has: from the last to the one before. Mostly there is one, and to look for each of ten costs
        -- more than what is found.
        select q.id, f.priority, f.due
        from asked as q
        join booked as b on b.queue_id = q.id and b.pending > 0
        cross join lateral (
            select a.priority, a.due from penstock.agenda as a
            where a.queue_id = q.id and a.pending
            order by a.priority desc, a.due desc, a.task_id desc limit 1
        ) as f
        union all
        select n.id, f.priority, f.due
        from newest as n
        cross join lateral (
            select a.priority, a.due from penstock.agenda as a
            where a.queue_id = n.id and a.pending and a.priority < n.priority
            order by a.priority desc, a.due desc, a.task_id desc limit 1
        ) as f
    ), binned as (
        -- The oldest of each priority, by age: those of one bin are told as its oldest.
        select q.id, max(q.rows) as rows, min(o.due) as due, count(*) as tasks
        from newest as n
        join asked as q on q.id = n.id
        cross join lateral (
            select a.due from penstock.agenda as a
            where a.queue_id = n.id and a.pending and a.priority = n.priority
            order by a.due, a.task_id limit q.rows
        ) as o
        group by q.id, date_bin(q.bin, o.due, v_edge)
    ), counted as (
        -- Of all priorities together only so many: behind them somebody may be missing.
        select b.id, b.due, least(b.tasks, b.rows - coalesce(sum(b.tasks) over older, 0))::bigint as tasks
        from binned as b
        window older as (partition by b.id order by b.due rows between unbounded preceding and 1 preceding)
    ), oldest as (
        select c.id, json_agg(json_build_array(date_part('epoch', v_now - c.due), c.tasks) order by c.due) as bins,
               sum(c.tasks) as tasks
        from counted as c where c.tasks > 0 group by c.id
    ), filed as (
        select n.id, max(n.due) as newest from newest as n group by n.id
    ), looked as (
        select json_build_object(
            'queue', q.name, 'paused', q.paused, 'sla', extract(epoch from q.sla), 'planned', coalesce(b.planned, 0),
            'pending', coalesce(b.pending, 0), 'active', coalesce(b.active, 0), 'ended', coalesce(b.ended, 0),
            'left', coalesce(b.left, 0), 'waiting', o.bins,
            -- Of more than were looked at, the newest: between the two lie the others.
            'newest', case when b.pending > o.tasks then date_part('epoch', v_now - f.newest) end,
            'ahead', p.seconds, 'running', l.leases) as value
        from asked as q
        left join booked as b on b.queue_id = q.id
        left join filed as f on f.id = q.id
        left join oldest as o on o.id = q.id
        -- What is known to come, by the second.
        left join lateral (
            select json_agg(json_build_array(g.second, g.tasks) order by g.second) as seconds
            from (
                select floor(date_part('epoch', k.due))::bigint as second, count(*) as tasks
                from (
                    select a.due from penstock.agenda as a
                    where a.queue_id = q.id and not a.pending and a.due > v_now and a.due <= v_now + make_interval(secs => q.horizon)
                    order by a.due limit q.rows
                ) as k
                where b.planned > 0
                group by 1
            ) as g
        ) as p on true
        -- How long what runs has been running.
        left join lateral (
            select json_agg(json_build_array(date_part('epoch', v_now - r.claimed_at), r.tasks)) as leases
            from (
                select l.claimed_at, bit_count(l.open) as tasks from penstock.lease as l
                where l.queue_id = q.id and b.active > 0 order by l.until limit 200
            ) as r
        ) as l on true
    )
    select jsonb_build_object(
        'at', extract(epoch from v_now)::double precision,
        'queues', coalesce((select json_agg(l.value) from looked as l), '[]'),
        'workers', coalesce((
            select jsonb_agg(jsonb_build_object(
                'name', w.name, 'queues', w.queues, 'slots', w.slots, 'busy', w.busy, 'started_by', w.started_by,
                'leaving', w.leaving or w.dismissed, 'silent', extract(epoch from v_now - w.beat)::double precision,
                'began', extract(epoch from w.started_at)::double precision,
                'latency', extract(epoch from w.started_at - w.requested_at)::double precision))
            from penstock.worker as w where w.queues && p_queues), '[]'),
        'connections', jsonb_build_array(
            (select sum(d.numbackends) from pg_stat_database as d),
            current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
                - coalesce(current_setting('reserved_connections', true)::int, 0)),
        'schedule', penstock.next_schedule()));
end
$$;
CREATE FUNCTION penstock.set_kinds(p_queue text, p_kinds jsonb) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_kind  record;
    v_count int := 0;
begin
    if p_kinds is null or jsonb_typeof(p_kinds) <> 'array' then
        perform penstock.refuse('PS400', 'kinds: it is not a JSON array');
    end if;
    begin
        perform from jsonb_to_recordset(p_kinds) as k(kind text, retry jsonb, max_attempts int, timeout interval);
    exception when data_exception then
        perform penstock.refuse('PS400', 'kinds: ' || sqlerrm);
    end;
    for v_kind in
        select k.kind, nullif(k.retry, 'null') as retry, k.max_attempts, k.timeout
        from jsonb_to_recordset(p_kinds) as k(kind text, retry jsonb, max_attempts int, timeout interval)
        order by k.kind collate "C"
    loop
        if v_kind.kind is null or octet_length(v_kind.kind) not between 1 and 128 then
            perform penstock.refuse('PS400', 'kind: it is null, or not 1 to 128 bytes long');
        elsif v_kind.max_attempts not between 1 and 32767 then
            perform penstock.refuse('PS400', format('max_attempts: %s is not between 1 and 32767', v_kind.max_attempts));
        elsif v_kind.timeout not between '1 millisecond' and '3650 days' then
            perform penstock.refuse('PS400', format('timeout: %s is not more than 0 and at most 3650 days', v_kind.timeout));
        elsif v_kind.retry is not null then
            perform penstock.check_retry(v_kind.retry);
        end if;
        insert into penstock.kind as k (queue_id, kind, retry, max_attempts, timeout)
        values (v_queue.id, v_kind.kind, v_kind.retry, v_kind.max_attempts, v_kind.timeout)
        on conflict (queue_id, kind) do update
        set retry = excluded.retry, max_attempts = excluded.max_attempts, timeout = excluded.timeout
        where (k.retry, k.max_attempts, k.timeout) is distinct from (excluded.retry, excluded.max_attempts, excluded.timeout);
        if found then
            v_count := v_count + 1;
        end if;
    end loop;
    return v_count;
end
$$;
CREATE FUNCTION penstock.set_profiles(p_profiles jsonb) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_bad   text;
    v_count int;
begin
    if p_profiles is null or jsonb_typeof(p_profiles) <> 'array' or jsonb_array_length(p_profiles) > 10000 then
        perform penstock.refuse('PS400', 'profiles: it is null, no array, or of more than 10,000');
    end if;
    select coalesce(e.value->>'queue', 'null') into v_bad
    from jsonb_array_elements(p_profiles) as e
    where jsonb_typeof(e.value) <> 'object' or jsonb_typeof(e.value->'queue') is distinct from 'string'
       or jsonb_typeof(e.value->'version') is distinct from 'number' or jsonb_typeof(e.value->'data') is distinct from 'object'
       or e.value->>'covers_from' is null or e.value->>'covers_to' is null
    limit 1;
    if found then
        perform penstock.refuse('PS400', format('profiles: that of queue %L has no queue, version, covers_from, covers_to or data', v_bad));
    end if;
    insert into penstock.profile as p (queue_id, version, made, covers_from, covers_to, data)
    select distinct on (q.id) q.id, (e.value->>'version')::int, penstock.clock(), (e.value->>'covers_from')::timestamptz,
           (e.value->>'covers_to')::timestamptz, e.value->'data'
    from jsonb_array_elements(p_profiles) with ordinality as e(value, n)
    join penstock.queue as q on q.name = e.value->>'queue'
    order by q.id, e.n desc
    on conflict (queue_id) do update
    set version = excluded.version, made = excluded.made, covers_from = excluded.covers_from, covers_to = excluded.covers_to,
        data = excluded.data;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
CREATE FUNCTION penstock.set_queue(p_name text, p_changes jsonb) RETURNS penstock.queue
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_old constant penstock.queue := penstock.the_queue(p_name);
    v_new penstock.queue := v_old;
    v_bad text;
begin
    if p_changes is null or jsonb_typeof(p_changes) <> 'object' then
        perform penstock.refuse('PS400', 'changes: it is not a JSON object');
    end if;
    select k.key into v_bad from jsonb_object_keys(p_changes) as k(key)
    where k.key not in ('lease', 'max_attempts', 'retry', 'sla', 'paused', 'keep_done', 'keep_dead', 'keep_cancelled', 'max_payload',
                        'notify');
    if v_bad is not null then
        perform penstock.refuse('PS400', format('changes: %L is not a setting', left(v_bad, 80)),
            'Settings are lease, max_attempts, retry, sla, paused, keep_done, keep_dead, keep_cancelled, max_payload and notify.');
    end if;
    begin
        v_new := jsonb_populate_record(v_old, p_changes - array['max_payload', 'notify']);
    exception when others then
        perform penstock.refuse('PS400', 'changes: ' || sqlerrm);
    end;
    v_new.settings := v_old.settings || (
        select coalesce(jsonb_object_agg(c.key, c.value), '{}') from jsonb_each(p_changes) as c where c.key in ('max_payload', 'notify'));
    perform penstock.check_queue(v_new);
    update penstock.queue as q
    set lease = penstock.in_seconds(v_new.lease), max_attempts = v_new.max_attempts, retry = v_new.retry,
        sla = penstock.in_seconds(v_new.sla), paused = v_new.paused, keep_done = v_new.keep_done, keep_dead = v_new.keep_dead,
        keep_cancelled = v_new.keep_cancelled, settings = v_new.settings
    where q.id = v_old.id
    returning * into v_new;
    if not found then
        perform penstock.the_queue(p_name);    -- dropped meanwhile: says so
    end if;
    perform penstock.note_audit('set', p_name, p_changes);
    return v_new;
end
$$;
CREATE FUNCTION penstock.set_schedule(p_name text, p_queue text, p_cron text, p_tz text DEFAULT 'UTC'::text, p_kind text DEFAULT 'default'::text, p_payload jsonb DEFAULT '{}'::jsonb, p_priority smallint DEFAULT 5, p_backfill text DEFAULT 'last'::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_now   constant timestamptz := penstock.clock();
    v_new   penstock.schedule;
begin
    v_new.name := p_name;
    v_new.kind := p_kind;
    v_new.payload := p_payload;
    v_new.priority := p_priority;
    v_new.cron := p_cron;
    v_new.tz := p_tz;
    v_new.backfill := p_backfill;
    perform penstock.check_schedule(v_new, penstock.largest_payload(v_queue));
    insert into penstock.schedule as s (name, queue_id, kind, payload, priority, cron, tz, backfill, mark, next_at, created, updated, who)
    values (p_name, v_queue.id, p_kind, p_payload, p_priority, p_cron, p_tz, p_backfill, v_now, v_now, v_now, v_now, session_user)
    on conflict (name) do update
    set queue_id = excluded.queue_id, kind = excluded.kind, payload = excluded.payload, priority = excluded.priority,
        cron = excluded.cron, tz = excluded.tz, backfill = excluded.backfill, updated = v_now, who = session_user,
        mark = case when (s.cron, s.tz) = (excluded.cron, excluded.tz) then s.mark else greatest(s.mark, v_now) end,
        next_at = case when (s.cron, s.tz) = (excluded.cron, excluded.tz) then s.next_at else v_now end
    where (s.queue_id, s.kind, s.payload, s.priority, s.cron, s.tz, s.backfill)
          is distinct from
          (excluded.queue_id, excluded.kind, excluded.payload, excluded.priority, excluded.cron, excluded.tz, excluded.backfill);
    if found then
        perform penstock.note_audit('set schedule', p_queue, jsonb_build_object('schedule', p_name, 'cron', p_cron, 'tz', p_tz));
    end if;
end
$$;
CREATE FUNCTION penstock.settle(p_token uuid, p_ids bigint[], p_outcomes text[] DEFAULT NULL::text[], p_dues timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], p_delays interval[] DEFAULT NULL::interval[], p_payloads text[] DEFAULT NULL::text[], p_errors text[] DEFAULT NULL::text[], p_classes text[] DEFAULT NULL::text[]) RETURNS TABLE(id bigint, result text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_count constant int := cardinality(p_ids);
    v_lease penstock.lease;
    v_now   timestamptz;
    v_open  bigint[];    -- ours to settle
    v_done  bigint[];
    v_gone  bigint[];
begin
    perform penstock.check_settle(p_token, p_ids, p_outcomes, p_dues, p_delays, p_payloads, p_errors, p_classes);
    select * into v_lease from penstock.lease as l where l.token = p_token for update;
    if p_ids is distinct from v_lease.ids then
        perform penstock.check_distinct(p_ids);
    end if;
    if v_lease.token is null then
        return query select s.id, 'refused' from unnest(p_ids) as s(id);
        return;
    end if;
    v_now := penstock.clock();
    perform penstock.make_history((v_now at time zone 'UTC')::date);
    if p_payloads is not null then
        perform penstock.check_sizes(p_payloads, v_lease.queue_id);
    end if;
    if p_ids = v_lease.ids and bit_count(v_lease.open) = v_count then
        v_open := p_ids;
    else
        select array_agg(h.id) filter (where s.id is not null and get_bit(v_lease.open, h.n::int - 1) = 1)
        into v_open
        from unnest(v_lease.ids) with ordinality as h(id, n)
        left join unnest(p_ids) as s(id) on s.id = h.id;
        return query
        select s.id, case when s.id = any(v_lease.revoked) then 'revoked' when h.id is null then 'unknown' else 'refused' end
        from unnest(p_ids) as s(id)
        left join unnest(v_lease.ids) as h(id) on h.id = s.id
        left join unnest(v_open) as o(id) on o.id = s.id
        where o.id is null;
        if v_open is null then
            return;
        end if;
    end if;
    if v_lease.named or p_outcomes is not null then
        perform penstock.lock_documents(v_open, p_named_only => p_outcomes is null);
    end if;
    if p_outcomes is null then
        v_done := v_open;
    else
        select array_agg(s.id) into v_done
        from unnest(p_ids, p_outcomes) as s(id, outcome)
        join unnest(v_open) as o(id) on o.id = s.id
        where s.outcome = 'done';
    end if;
    if v_done is not null and not exists (
        select from penstock.queue as q where q.id = v_lease.queue_id and q.keep_done is not null
    ) then
        v_gone := penstock.finish(v_lease, v_now, v_done);
        return query select g.id, 'done' from unnest(v_gone) as g(id);
    end if;
    if cardinality(v_gone) is distinct from cardinality(v_open) then
        return query
        select c.id, c.result
        from (
            select array_agg(s.id) as ids, array_agg(coalesce(s.outcome, 'done')) as outcomes, array_agg(s.due) as dues,
                   array_agg(s.delay) as delays, array_agg(s.payload) as payloads, array_agg(s.error) as errors,
                   array_agg(s.error_class) as classes
            from unnest(p_ids, p_outcomes, p_dues, p_delays, p_payloads, p_errors, p_classes)
                 as s(id, outcome, due, delay, payload, error, error_class)
            join (select unnest(v_open) except select unnest(v_gone)) as o(id) on o.id = s.id
        ) as r
        cross join lateral penstock.conclude(v_lease, v_now, r.ids, r.outcomes, r.dues, r.delays, r.payloads, r.errors, r.classes) as c;
    end if;
    perform penstock.close(v_lease, v_open);
end
$$;
CREATE FUNCTION penstock.settle_batch(p_tokens uuid[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
declare
    v_named bigint[];
    v_lease record;
begin
    perform from penstock.lease as l where l.token = any(p_tokens) order by l.token for update;
    select array_agg(h.id) into v_named
    from penstock.lease as l cross join lateral unnest(l.ids) with ordinality as h(id, n)
    where l.token = any(p_tokens) and l.named and get_bit(l.open, h.n::int - 1) = 1;
    if v_named is not null then
        perform penstock.lock_documents(v_named, p_named_only => true);
    end if;
    for v_lease in
        select l.token, case
            when bit_count(l.open) = cardinality(l.ids) then l.ids
            else array(select h.id from unnest(l.ids) with ordinality as h(id, n) where get_bit(l.open, h.n::int - 1) = 1) end as open
        from penstock.lease as l where l.token = any(p_tokens) order by l.token
    loop
        if v_lease.open = '{}' then
            delete from penstock.lease as l where l.token = v_lease.token;    -- all of it was cancelled
        else
            perform penstock.settle(v_lease.token, v_lease.open);
        end if;
    end loop;
end
$$;
CREATE FUNCTION penstock.squeeze(p_queue_id integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_low     penstock.low;
    v_horizon bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    v_folded  bigint;
begin
    select * into v_low from penstock.low as l where l.queue_id = p_queue_id for update skip locked;
    if not found then
        return 0;
    end if;
    if v_low.system <> penstock.system() then
        -- Restored from another cluster: its log is all in the past, whatever the numbers say, and its workers are not ours.
        v_low.xid := 0;
        update penstock.lease as l set until = '-infinity' where l.queue_id = p_queue_id;
        update penstock.low as l set until = '-infinity' where l.queue_id = p_queue_id;
    elsif v_low.xid >= v_horizon then
        return 0;
    end if;
    with folded as (
        delete from penstock.counter_log as l
        where l.queue_id = p_queue_id
          and l.xid >= v_low.xid
          and (l.xid < v_horizon or v_low.system <> penstock.system())
        returning l.metric, l.delta
    ), summed as (
        select f.metric, sum(f.delta) as delta, count(*) as rows from folded as f group by f.metric
    ), added as (
        insert into penstock.counter as c (queue_id, metric, value)
        select p_queue_id, s.metric, s.delta from summed as s
        on conflict (queue_id, metric) do update set value = c.value + excluded.value
    )
    select coalesce(sum(s.rows), 0) into v_folded from summed as s;
    update penstock.low as l set xid = v_horizon, system = penstock.system() where l.queue_id = p_queue_id;
    return v_folded;
end
$$;
CREATE FUNCTION penstock.stand_still(p_queue_id integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '100ms'
    AS $$
begin
    for v_try in 1 .. 40 loop
        begin
            lock table penstock.lease, penstock.task, penstock.agenda in exclusive mode;
            perform from penstock.low as l where p_queue_id is null or l.queue_id = p_queue_id for update;
            return;
        exception when lock_not_available then
            perform pg_sleep(0.05 + 0.1 * random());
        end;
    end loop;
    raise exception using errcode = '55P03', message = 'somebody holds tasks all the time', hint = 'Try again.';
end
$$;
CREATE FUNCTION penstock.start_latencies() RETURNS TABLE(queue text, workers bigint, p50 double precision, p90 double precision)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    with started as (
        select n.queue, extract(epoch from w.first_claim_at - coalesce(w.requested_at, w.started_at))::double precision as seconds
        from penstock.worker as w, unnest(w.queues) as n(queue)
        where w.first_claim_at >= coalesce(w.requested_at, w.started_at)
    )
    select s.queue, count(*), percentile_cont(0.5) within group (order by s.seconds),
           percentile_cont(0.9) within group (order by s.seconds)
    from started as s group by s.queue order by s.queue
$$;
CREATE FUNCTION penstock.status(p_queue text DEFAULT NULL::text) RETURNS TABLE(queue text, paused boolean, sla interval, planned bigint, pending bigint, active bigint, done bigint, dead bigint, cancelled bigint, oldest_pending_age interval, totals jsonb, at timestamp with time zone)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
declare
    v_now    constant timestamptz := penstock.clock();
    v_system constant bigint := penstock.system();
begin
    if p_queue is not null then
        perform penstock.the_queue(p_queue);
    end if;
    return query
    with asked as materialized (
        select q.id, q.name, q.paused, q.sla from penstock.queue as q where p_queue is null or q.name = p_queue
    ), noted as (
        select c.queue_id, c.metric, c.value
        from asked as q join penstock.counter as c on c.queue_id = q.id
        union all
        select l.queue_id, l.metric, l.delta
        from asked as q
        join penstock.low as b on b.queue_id = q.id
        join penstock.counter_log as l
          on l.queue_id = q.id and l.xid >= case when b.system = v_system then b.xid else 0 end
    ), summed as (
        select n.queue_id, n.metric, sum(n.value)::bigint as value from noted as n group by n.queue_id, n.metric
    ), booked as (
        select s.queue_id, jsonb_object_agg(s.metric, s.value) as value from summed as s group by s.queue_id
    )
    select
        q.name, q.paused, q.sla,
        coalesce((b.value->>'planned')::bigint, 0), coalesce((b.value->>'pending')::bigint, 0),
        coalesce((b.value->>'active')::bigint, 0), coalesce((b.value->>'done')::bigint, 0),
        coalesce((b.value->>'dead')::bigint, 0), coalesce((b.value->>'cancelled')::bigint, 0),
        v_now - least(o.due, p.due),
        (select jsonb_object_agg(t.word, coalesce((b.value->>(t.word || '_total'))::bigint, 0))
         from unnest(array['pushed', 'removed', 'done', 'again', 'failed', 'dead', 'released', 'expired', 'revoked',
                           'cancelled', 'redriven', 'orphaned']) as t(word)),
        v_now
    from asked as q
    left join booked as b on b.queue_id = q.id
    -- The oldest of each priority is the first of the pick index: ten probes, however long the queue.
    left join lateral (
        select min(f.due) as due
        from generate_series(0, 9) as g(priority)
        cross join lateral (
            select a.due from penstock.agenda as a
            where a.queue_id = q.id and a.pending and a.priority = g.priority
            order by a.due, a.task_id limit 1
        ) as f
    ) as o on true
    -- What is overdue waits, even if nobody has promoted it yet.
    left join lateral (
        select a.due from penstock.agenda as a
        where a.queue_id = q.id and not a.pending and a.due <= v_now order by a.due limit 1
    ) as p on true
    order by q.name;
end
$$;
CREATE FUNCTION penstock.system() RETURNS bigint
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN (SELECT pg_control_system.system_identifier FROM pg_control_system() pg_control_system(pg_control_version, catalog_version_no, system_identifier, pg_control_last_modified));
CREATE FUNCTION penstock.take_place(p_job uuid, p_places integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    for n in 1 .. p_places loop
        if pg_try_advisory_xact_lock(hashtext('penstock.job ' || p_job), n) then
            return true;
        end if;
    end loop;
    return false;
end
$$;
CREATE FUNCTION penstock.take_samples() RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock.target_age(p_queue text) RETURNS interval
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform penstock.check_scaling(array[p_queue], '-', '1 second');
    return (select penstock.clock() - s.decided_at from penstock.scaling as s where s.queue = p_queue);
end
$$;
CREATE FUNCTION penstock.target_workers(p_queue text) RETURNS integer
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_row penstock.scaling;
begin
    perform penstock.check_scaling(array[p_queue], '-', '1 second');
    select * into v_row from penstock.scaling as s where s.queue = p_queue;
    if v_row.until > penstock.clock() and v_row.target is not null then
        return v_row.target;
    end if;
    return greatest(coalesce(v_row.target, 1), 1);
end
$$;
CREATE FUNCTION penstock.the_queue(p_name text) RETURNS penstock.queue
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_queue penstock.queue;
begin
    select * into v_queue from penstock.queue as q where q.name = p_name;
    if not found then
        perform penstock.refuse(
            'PS404', format('queue %s does not exist', coalesce(quote_literal(left(p_name, 80)), 'null')),
            coalesce('Did you mean ' || quote_literal(penstock.nearest_queue(p_name)) || '?',
                     'Create it with penstock.create_queue or `penstock queues create`.'));
    end if;
    return v_queue;
end
$$;
CREATE FUNCTION penstock.unread(p_relation regclass) RETURNS boolean
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_found boolean;
begin
    execute format('select exists (select from %s where xid >= %s)', p_relation, penstock.read_up_to()) into v_found;
    return v_found;
end
$$;
CREATE FUNCTION penstock.upkeep(p_keep_history interval DEFAULT '30 days'::interval, p_keep_samples interval DEFAULT '90 days'::interval, p_keep_ledger interval DEFAULT '30 days'::interval) RETURNS TABLE(part text, rows bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $$
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
            -- Noted in the order of their ids: the oldest are the first, however many there are.
            select d.ctid
            from (select o.id from penstock.decision as o order by o.id limit 10000) as first
            join penstock.decision as d on d.id = first.id
            where d.at < v_now - p_keep_samples
            for update of d skip locked
        ), gone as (
            delete from penstock.decision as d using old where d.ctid = old.ctid returning 1
        )
        select 'decisions dropped', count(*) from gone;
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
CREATE FUNCTION penstock.verify(p_queue text DEFAULT NULL::text) RETURNS TABLE(area text, queue text, what text, expected bigint, found bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    -- A day of history that is being dropped is in neither place for a snapshot taken meanwhile: wait, then look.
    lock table penstock.history in access share mode;
    return query select r.area, r.queue, r.what, r.expected, r.found from penstock.recount(p_queue) as r;
end
$$;
CREATE FUNCTION penstock.waiting_now(p_queue text) RETURNS TABLE(at timestamp with time zone, tasks bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_now   constant timestamptz := penstock.clock();
begin
    perform penstock.expire(v_queue.id, 10000000);
    return query
    select greatest(v_now, max(a.due) filter (where a.pending)), count(*)
    from penstock.agenda as a where a.queue_id = v_queue.id and (a.pending or a.due <= v_now);
end
$$;
CREATE FUNCTION penstock.waits_since(p_queue_id integer, p_before timestamp with time zone) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
    select exists (
        select from generate_series(0, 9) as g(priority)
        cross join lateral (
            select a.due from penstock.agenda as a
            where a.queue_id = p_queue_id and a.pending and a.priority = g.priority
            order by a.due, a.task_id limit 1
        ) as f
        where f.due <= p_before)
$$;
CREATE TABLE penstock.adopted (
    id integer NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    schema_name text NOT NULL,
    table_name text NOT NULL,
    mode text NOT NULL COLLATE pg_catalog."C",
    terms jsonb NOT NULL,
    retry jsonb NOT NULL,
    max_attempts integer,
    sla interval,
    tick timestamp with time zone,
    key text[],
    last_pass jsonb DEFAULT '{}'::jsonb NOT NULL,
    created timestamp with time zone DEFAULT penstock.clock() NOT NULL,
    CONSTRAINT max_attempts_in_range CHECK (((max_attempts >= 1) AND (max_attempts <= 32767))),
    CONSTRAINT mode_is_known CHECK ((mode = ANY (ARRAY['observe'::text, 'sidecar'::text, 'columns'::text]))),
    CONSTRAINT name_is_plain CHECK ((name ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'::text)),
    CONSTRAINT retry_has_type CHECK ((retry ? 'type'::text)),
    CONSTRAINT sla_is_positive CHECK ((sla > '00:00:00'::interval))
)
WITH (fillfactor='50');
COMMENT ON COLUMN penstock.adopted.tick IS 'progressive: ticks up to here, and at it keys up to `key` (null: all), were handled; sidecar: how far strangers were looked for';
CREATE TABLE penstock.adopted_hand (
    id integer NOT NULL,
    adopted_id integer NOT NULL,
    key text[],
    began timestamp with time zone DEFAULT penstock.clock() NOT NULL
);
COMMENT ON COLUMN penstock.adopted_hand.key IS 'the record in hand, where a pass is careful';
ALTER TABLE penstock.adopted_hand ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.adopted_hand_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
ALTER TABLE penstock.adopted ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.adopted_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE penstock.adopted_record (
    adopted_id integer NOT NULL,
    key text[] NOT NULL COLLATE pg_catalog."C",
    failures integer NOT NULL,
    last_failure timestamp with time zone NOT NULL,
    due timestamp with time zone,
    error text,
    CONSTRAINT failures_not_negative CHECK ((failures >= 0))
);
COMMENT ON COLUMN penstock.adopted_record.due IS 'null: it was given up';
CREATE TABLE penstock.agenda (
    task_id bigint NOT NULL,
    due timestamp with time zone NOT NULL,
    queue_id integer NOT NULL,
    priority smallint NOT NULL,
    attempts smallint DEFAULT 0 NOT NULL,
    company smallint DEFAULT 0 NOT NULL,
    crashes smallint DEFAULT 0 NOT NULL,
    pending boolean NOT NULL,
    named boolean DEFAULT false NOT NULL,
    CONSTRAINT attempts_not_negative CHECK (((attempts >= 0) AND (crashes >= 0) AND (company >= 0))),
    CONSTRAINT priority_in_range CHECK (((priority >= 0) AND (priority <= 9)))
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');
COMMENT ON COLUMN penstock.agenda.company IS 'the largest lease it may share after a crash; 1: alone; 0: any';
COMMENT ON COLUMN penstock.agenda.crashes IS 'lone expiries since the last settled outcome';
COMMENT ON COLUMN penstock.agenda.named IS 'its document has a subject, so somebody else may be waiting for that document';
CREATE TABLE penstock.audit (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT penstock.clock() NOT NULL,
    actor text DEFAULT CURRENT_USER NOT NULL,
    verb text NOT NULL,
    queue text,
    detail jsonb DEFAULT '{}'::jsonb NOT NULL
);
ALTER TABLE penstock.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE penstock.counter (
    queue_id integer NOT NULL,
    metric text NOT NULL COLLATE pg_catalog."C",
    value bigint NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE penstock.counter_log (
    queue_id integer NOT NULL,
    metric text NOT NULL COLLATE pg_catalog."C",
    delta bigint NOT NULL,
    xid bigint DEFAULT ((pg_current_xact_id())::text)::bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='1000');
ALTER TABLE penstock.decision ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.decision_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE penstock.history (
    id bigint NOT NULL,
    xid bigint DEFAULT ((pg_current_xact_id())::text)::bigint NOT NULL,
    task_id bigint NOT NULL,
    created timestamp with time zone NOT NULL,
    due timestamp with time zone NOT NULL,
    claimed_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone NOT NULL,
    queue_id integer NOT NULL,
    iteration integer NOT NULL,
    attempt integer NOT NULL,
    outcome text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    worker text NOT NULL,
    subject text COLLATE pg_catalog."C",
    error_class text,
    error text,
    CONSTRAINT outcome_is_known CHECK ((outcome = ANY (ARRAY['done'::text, 'again'::text, 'failed'::text, 'dead'::text, 'released'::text, 'expired'::text, 'revoked'::text])))
)
PARTITION BY RANGE (finished_at);
CREATE TABLE penstock.history_dropped (
    queue_id integer NOT NULL,
    outcome text NOT NULL COLLATE pg_catalog."C",
    rows bigint NOT NULL
);
CREATE TABLE penstock.history_gone (
    n bigint NOT NULL,
    day date NOT NULL,
    queue_id integer NOT NULL,
    rows bigint NOT NULL,
    first_xid bigint NOT NULL,
    last_xid bigint NOT NULL
);
COMMENT ON COLUMN penstock.history_gone.n IS 'the order in which days were dropped: one at a time, under a lock';
ALTER TABLE penstock.history_gone ALTER COLUMN n ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.history_gone_n_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE SEQUENCE penstock.history_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 100;
ALTER SEQUENCE penstock.history_id_seq OWNED BY penstock.history.id;
CREATE TABLE penstock.history_origin (
    system bigint NOT NULL
);
CREATE TABLE penstock.history_reader (
    name text NOT NULL COLLATE pg_catalog."C",
    system bigint NOT NULL,
    passed bigint NOT NULL,
    seen timestamp with time zone DEFAULT penstock.clock() NOT NULL,
    CONSTRAINT name_fits CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 200)))
)
WITH (fillfactor='50');
COMMENT ON COLUMN penstock.history_reader.passed IS 'every row of a smaller xid has been read';
CREATE TABLE penstock.kind (
    queue_id integer NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    retry jsonb,
    max_attempts integer,
    timeout interval,
    CONSTRAINT max_attempts_in_range CHECK (((max_attempts >= 1) AND (max_attempts <= 32767))),
    CONSTRAINT retry_has_type CHECK ((retry ? 'type'::text))
);
CREATE TABLE penstock.low (
    queue_id integer NOT NULL,
    xid bigint NOT NULL,
    system bigint NOT NULL,
    until timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE penstock.migration (
    number integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE penstock.profile (
    queue_id integer NOT NULL,
    version integer NOT NULL,
    made timestamp with time zone DEFAULT penstock.clock() NOT NULL,
    covers_from timestamp with time zone NOT NULL,
    covers_to timestamp with time zone NOT NULL,
    data jsonb NOT NULL,
    CONSTRAINT covers_something CHECK ((covers_from <= covers_to))
);
CREATE TABLE penstock.queue_gone (
    id integer NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C"
);
ALTER TABLE penstock.queue ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.queue_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE penstock.reject (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT penstock.clock() NOT NULL,
    job uuid NOT NULL,
    partition integer NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    reason text NOT NULL,
    payload text,
    subject text,
    kind text,
    due text,
    priority text
);
ALTER TABLE penstock.reject ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.reject_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE penstock.sample (
    queue_id integer NOT NULL,
    at timestamp with time zone NOT NULL,
    planned bigint NOT NULL,
    pending bigint NOT NULL,
    active bigint NOT NULL,
    done bigint NOT NULL,
    dead bigint NOT NULL,
    cancelled bigint NOT NULL,
    oldest_age interval,
    sla interval,
    workers integer NOT NULL,
    totals jsonb NOT NULL,
    xid bigint DEFAULT ((pg_current_xact_id())::text)::bigint NOT NULL
);
COMMENT ON COLUMN penstock.sample.at IS 'start of the ten-second bucket';
CREATE TABLE penstock.scaling (
    queue text NOT NULL COLLATE pg_catalog."C",
    epoch integer NOT NULL,
    holder text NOT NULL,
    until timestamp with time zone NOT NULL,
    policy text NOT NULL,
    target integer,
    decided_at timestamp with time zone,
    memory jsonb,
    CONSTRAINT target_not_negative CHECK ((target >= 0))
)
WITH (fillfactor='50');
COMMENT ON COLUMN penstock.scaling.epoch IS 'grows with each new holder: what an older one still decides is refused';
COMMENT ON COLUMN penstock.scaling.memory IS 'what the policy wants to be told next time, whoever asks';
CREATE SEQUENCE penstock.stream_epoch_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER TABLE penstock.stream ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.stream_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE penstock.task (
    id bigint NOT NULL,
    created timestamp with time zone DEFAULT penstock.moment() NOT NULL,
    queue_id integer NOT NULL,
    iterations integer DEFAULT 0 NOT NULL,
    priority smallint DEFAULT 5 NOT NULL,
    kind text DEFAULT 'default'::text NOT NULL COLLATE pg_catalog."C",
    subject text COLLATE pg_catalog."C",
    payload jsonb DEFAULT '{}'::jsonb NOT NULL,
    due timestamp with time zone,
    since timestamp with time zone,
    last_iteration timestamp with time zone,
    renew timestamp with time zone,
    ended text COLLATE pg_catalog."C",
    ended_at timestamp with time zone,
    reason text,
    error text,
    CONSTRAINT due_in_range CHECK (((due >= '0001-01-02 00:00:00+00'::timestamp with time zone) AND (due <= '9999-12-30 00:00:00+00'::timestamp with time zone))),
    CONSTRAINT ended_has_time CHECK (((ended IS NULL) = (ended_at IS NULL))),
    CONSTRAINT ended_is_known CHECK ((ended = ANY (ARRAY['done'::text, 'dead'::text, 'cancelled'::text]))),
    CONSTRAINT kind_fits CHECK (((octet_length(kind) >= 1) AND (octet_length(kind) <= 128))),
    CONSTRAINT payload_is_object CHECK ((jsonb_typeof(payload) = 'object'::text)),
    CONSTRAINT priority_in_range CHECK (((priority >= 0) AND (priority <= 9))),
    CONSTRAINT subject_fits CHECK (((octet_length(subject) >= 1) AND (octet_length(subject) <= 512)))
);
COMMENT ON COLUMN penstock.task.due IS 'as pushed; null: at once. Where it waits now is in the agenda';
COMMENT ON COLUMN penstock.task.since IS 'start of its age after a re-open, redrive or success; null: created';
COMMENT ON COLUMN penstock.task.renew IS 'due of the run after this one; null: none';
CREATE SEQUENCE penstock.task_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE penstock.task_id_seq OWNED BY penstock.task.id;
CREATE VIEW penstock.tasks AS
 SELECT t.id,
    q.name AS queue,
    t.kind,
    t.subject,
    COALESCE(t.ended,
        CASE
            WHEN a.pending THEN 'pending'::text
            WHEN (NOT a.pending) THEN 'planned'::text
            ELSE 'active'::text
        END) AS state,
    COALESCE(a.priority, t.priority) AS priority,
    a.due,
    a.attempts,
    t.iterations,
    t.created,
    t.last_iteration,
    t.ended_at,
    t.reason,
    t.error,
    t.payload
   FROM ((penstock.task t
     JOIN penstock.queue q ON ((q.id = t.queue_id)))
     LEFT JOIN penstock.agenda a ON ((a.task_id = t.id)));
CREATE TABLE penstock.worker (
    name text NOT NULL,
    host text DEFAULT ''::text NOT NULL,
    pid integer,
    queues text[] DEFAULT '{}'::text[] NOT NULL,
    slots integer DEFAULT 1 NOT NULL,
    busy integer DEFAULT 0 NOT NULL,
    requested_at timestamp with time zone,
    started_at timestamp with time zone,
    first_claim_at timestamp with time zone,
    beat timestamp with time zone NOT NULL,
    started_by text,
    leaving boolean DEFAULT false NOT NULL,
    dismissed boolean DEFAULT false NOT NULL,
    CONSTRAINT busy_fits CHECK (((busy >= 0) AND (busy <= slots)))
)
WITH (fillfactor='50');
COMMENT ON COLUMN penstock.worker.started_by IS 'the scaler that started it, and its number there; null: somebody else did';
COMMENT ON COLUMN penstock.worker.leaving IS 'it takes nothing new, and goes when it has finished';
COMMENT ON COLUMN penstock.worker.dismissed IS 'a scaler wants it to go';
ALTER TABLE ONLY penstock.history ALTER COLUMN id SET DEFAULT nextval('penstock.history_id_seq'::regclass);
ALTER TABLE ONLY penstock.task ALTER COLUMN id SET DEFAULT nextval('penstock.task_id_seq'::regclass);
ALTER TABLE ONLY penstock.adopted_hand
    ADD CONSTRAINT adopted_hand_pkey PRIMARY KEY (id);
ALTER TABLE ONLY penstock.adopted
    ADD CONSTRAINT adopted_name_key UNIQUE (name);
ALTER TABLE ONLY penstock.adopted
    ADD CONSTRAINT adopted_pkey PRIMARY KEY (id);
ALTER TABLE ONLY penstock.adopted_record
    ADD CONSTRAINT adopted_record_pkey PRIMARY KEY (adopted_id, key);
ALTER TABLE ONLY penstock.agenda
    ADD CONSTRAINT agenda_pkey PRIMARY KEY (task_id);
ALTER TABLE ONLY penstock.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);
ALTER TABLE ONLY penstock.counter
    ADD CONSTRAINT counter_pkey PRIMARY KEY (queue_id, metric);
ALTER TABLE ONLY penstock.decision
    ADD CONSTRAINT decision_pkey PRIMARY KEY (id);
ALTER TABLE ONLY penstock.history_dropped
    ADD CONSTRAINT history_dropped_pkey PRIMARY KEY (queue_id, outcome);
ALTER TABLE ONLY penstock.history_gone
    ADD CONSTRAINT history_gone_pkey PRIMARY KEY (n);
ALTER TABLE ONLY penstock.history_origin
    ADD CONSTRAINT history_origin_pkey PRIMARY KEY (system);
ALTER TABLE ONLY penstock.history_reader
    ADD CONSTRAINT history_reader_pkey PRIMARY KEY (name);
ALTER TABLE ONLY penstock.kind
    ADD CONSTRAINT kind_pkey PRIMARY KEY (queue_id, kind);
ALTER TABLE ONLY penstock.lease
    ADD CONSTRAINT lease_pkey PRIMARY KEY (token);
ALTER TABLE ONLY penstock.ledger
    ADD CONSTRAINT ledger_pkey PRIMARY KEY (batch_id, part);
ALTER TABLE ONLY penstock.low
    ADD CONSTRAINT low_pkey PRIMARY KEY (queue_id);
ALTER TABLE ONLY penstock.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (number);
ALTER TABLE ONLY penstock.stream
    ADD CONSTRAINT name_is_taken UNIQUE (queue_id, name);
ALTER TABLE ONLY penstock.profile
    ADD CONSTRAINT profile_pkey PRIMARY KEY (queue_id);
ALTER TABLE ONLY penstock.queue_gone
    ADD CONSTRAINT queue_gone_pkey PRIMARY KEY (id);
ALTER TABLE ONLY penstock.queue
    ADD CONSTRAINT queue_name_key UNIQUE (name);
ALTER TABLE ONLY penstock.queue
    ADD CONSTRAINT queue_pkey PRIMARY KEY (id);
ALTER TABLE ONLY penstock.reject
    ADD CONSTRAINT reject_pkey PRIMARY KEY (id);
ALTER TABLE ONLY penstock.sample
    ADD CONSTRAINT sample_pkey PRIMARY KEY (queue_id, at);
ALTER TABLE ONLY penstock.scaling
    ADD CONSTRAINT scaling_pkey PRIMARY KEY (queue);
ALTER TABLE ONLY penstock.schedule
    ADD CONSTRAINT schedule_pkey PRIMARY KEY (name);
ALTER TABLE ONLY penstock.stream
    ADD CONSTRAINT stream_pkey PRIMARY KEY (id);
ALTER TABLE ONLY penstock.task
    ADD CONSTRAINT task_pkey PRIMARY KEY (id);
ALTER TABLE ONLY penstock.worker
    ADD CONSTRAINT worker_pkey PRIMARY KEY (name);
CREATE INDEX adopted_record_due ON penstock.adopted_record USING btree (adopted_id, due, key) WHERE (due IS NOT NULL);
CREATE INDEX agenda_alone ON penstock.agenda USING btree (queue_id, priority, due, task_id) WHERE (pending AND (company = 1));
CREATE INDEX agenda_pick ON penstock.agenda USING btree (queue_id, priority, due, task_id) WHERE pending;
CREATE INDEX agenda_planned ON penstock.agenda USING btree (queue_id, due) WHERE (NOT pending);
CREATE INDEX counter_log_xid ON penstock.counter_log USING btree (queue_id, xid);
CREATE INDEX decision_by_queue ON penstock.decision USING btree (queue, at DESC);
CREATE INDEX history_xid ON ONLY penstock.history USING brin (xid) WITH (autosummarize='on');
CREATE INDEX lease_until ON penstock.lease USING btree (queue_id, until);
CREATE INDEX ledger_at ON penstock.ledger USING btree (at);
CREATE INDEX reject_at ON penstock.reject USING btree (at);
CREATE INDEX reject_job ON penstock.reject USING btree (job);
CREATE INDEX sample_xid ON penstock.sample USING brin (xid) WITH (autosummarize='on');
CREATE INDEX schedule_next ON penstock.schedule USING btree (next_at) WHERE (NOT paused);
CREATE INDEX task_ended ON penstock.task USING btree (queue_id, ended, ended_at) WHERE (ended IS NOT NULL);
CREATE UNIQUE INDEX task_subject ON penstock.task USING btree (queue_id, subject) WHERE (subject IS NOT NULL);
CREATE TRIGGER count_delete AFTER DELETE ON penstock.agenda REFERENCING OLD TABLE AS parted FOR EACH STATEMENT EXECUTE FUNCTION penstock.count_agenda();
CREATE TRIGGER count_delete AFTER DELETE ON penstock.lease REFERENCING OLD TABLE AS parted FOR EACH STATEMENT EXECUTE FUNCTION penstock.count_lease();
CREATE TRIGGER count_delete AFTER DELETE ON penstock.task REFERENCING OLD TABLE AS parted FOR EACH STATEMENT EXECUTE FUNCTION penstock.count_task();
CREATE TRIGGER count_insert AFTER INSERT ON penstock.agenda REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION penstock.count_agenda();
CREATE TRIGGER count_insert AFTER INSERT ON penstock.lease REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION penstock.count_lease();
CREATE TRIGGER count_insert AFTER INSERT ON penstock.task REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION penstock.count_task();
CREATE TRIGGER count_update AFTER UPDATE ON penstock.agenda REFERENCING OLD TABLE AS parted NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION penstock.count_agenda();
CREATE TRIGGER count_update AFTER UPDATE ON penstock.lease REFERENCING OLD TABLE AS parted NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION penstock.count_lease();
CREATE TRIGGER count_update AFTER UPDATE ON penstock.task REFERENCING OLD TABLE AS parted NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION penstock.count_task();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON penstock.agenda FOR EACH STATEMENT EXECUTE FUNCTION penstock.refuse_truncate();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON penstock.counter FOR EACH STATEMENT EXECUTE FUNCTION penstock.refuse_truncate();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON penstock.counter_log FOR EACH STATEMENT EXECUTE FUNCTION penstock.refuse_truncate();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON penstock.history FOR EACH STATEMENT EXECUTE FUNCTION penstock.refuse_truncate();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON penstock.lease FOR EACH STATEMENT EXECUTE FUNCTION penstock.refuse_truncate();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON penstock.task FOR EACH STATEMENT EXECUTE FUNCTION penstock.refuse_truncate();
GRANT USAGE ON SCHEMA penstock TO penstock_producer;
GRANT USAGE ON SCHEMA penstock TO penstock_worker;
GRANT USAGE ON SCHEMA penstock TO penstock_reader;
GRANT USAGE ON SCHEMA penstock TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.abandon(p_name text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.abandon(p_name text) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.adopt(p_name text, p_schema text, p_table text, p_mode text, p_terms jsonb, p_retry jsonb, p_max_attempts integer, p_sla interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.adopt(p_name text, p_schema text, p_table text, p_mode text, p_terms jsonb, p_retry jsonb, p_max_attempts integer, p_sla interval) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.asked_ids(p_queue_id integer, p_ids bigint[], p_subjects text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.at_place(p_priority smallint, p_due timestamp with time zone, p_task_id bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.at_place(p_priority smallint, p_due timestamp with time zone, p_task_id bigint) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.batch_leases(p_stream integer, p_epoch integer, p_after bigint, p_upto bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.batch_leases(p_stream integer, p_epoch integer, p_after bigint, p_upto bigint) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.beat(p_worker text, p_queues text[], p_slots integer, p_busy integer, p_host text, p_pid integer, p_requested_at timestamp with time zone, p_started_by text, p_leaving boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.beat(p_worker text, p_queues text[], p_slots integer, p_busy integer, p_host text, p_pid integer, p_requested_at timestamp with time zone, p_started_by text, p_leaving boolean) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.begin_hand(p_adopted integer, p_hand integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.begin_hand(p_adopted integer, p_hand integer) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.board(p_queue text, p_decisions integer, p_samples integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.board(p_queue text, p_decisions integer, p_samples integer) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.board(p_queue text, p_decisions integer, p_samples integer) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.cancel(p_queue text, p_ids bigint[], p_subjects text[], p_reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.cancel(p_queue text, p_ids bigint[], p_subjects text[], p_reason text) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.check_arrays(p_payloads text[], p_subjects text[], p_kinds text[], p_dues timestamp with time zone[], p_priorities smallint[], p_on_conflict text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.check_claim(p_limit integer, p_lease interval, p_worker text, p_may_alone boolean, p_durable boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.check_distinct(p_ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.check_filter(p_error text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.check_hold(p_lease interval, p_driver text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.check_limit(p_limit integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.check_origin() FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.check_push(p_payloads text[], p_subjects text[], p_kinds text[], p_dues timestamp with time zone[], p_priorities smallint[], p_largest bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.clock() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.clock() TO penstock_producer;
GRANT ALL ON FUNCTION penstock.clock() TO penstock_worker;
GRANT ALL ON FUNCTION penstock.clock() TO penstock_reader;
GRANT SELECT ON TABLE penstock.queue TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.check_queue(p_queue penstock.queue) FROM PUBLIC;
GRANT SELECT ON TABLE penstock.ledger TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.check_repeat(p_what text, p_known penstock.ledger, p_queue penstock.queue, p_rows bigint, p_checksum text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.check_retry(p_strategy jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.check_scaling(p_queues text[], p_holder text, p_lease interval) FROM PUBLIC;
GRANT SELECT ON TABLE penstock.schedule TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.check_schedule(p_schedule penstock.schedule, p_largest bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.check_settle(p_token uuid, p_ids bigint[], p_outcomes text[], p_dues timestamp with time zone[], p_delays interval[], p_payloads text[], p_errors text[], p_classes text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.check_sizes(p_payloads text[], p_queue_id integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.check_window(p_system text, p_database bigint, p_from bigint, p_to bigint, p_dropped bigint, p_queue text, p_since timestamp with time zone, p_until timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.check_window(p_system text, p_database bigint, p_from bigint, p_to bigint, p_dropped bigint, p_queue text, p_since timestamp with time zone, p_until timestamp with time zone) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.claim(p_queue text, p_limit integer, p_lease interval, p_worker text, p_hint penstock.place, p_may_alone boolean, p_durable boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.claim(p_queue text, p_limit integer, p_lease interval, p_worker text, p_hint penstock.place, p_may_alone boolean, p_durable boolean) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.claim_batch(p_queue penstock.queue, p_driver text, p_limit integer, p_slots integer, p_lease interval, p_before timestamp with time zone) FROM PUBLIC;
GRANT SELECT(claimed_at) ON TABLE penstock.lease TO penstock_reader;
GRANT SELECT(until) ON TABLE penstock.lease TO penstock_reader;
GRANT SELECT(queue_id) ON TABLE penstock.lease TO penstock_reader;
GRANT SELECT(alone) ON TABLE penstock.lease TO penstock_reader;
GRANT SELECT(named) ON TABLE penstock.lease TO penstock_reader;
GRANT SELECT(worker) ON TABLE penstock.lease TO penstock_reader;
GRANT SELECT(open) ON TABLE penstock.lease TO penstock_reader;
GRANT SELECT(ids) ON TABLE penstock.lease TO penstock_reader;
GRANT SELECT(dues) ON TABLE penstock.lease TO penstock_reader;
GRANT SELECT(attempts) ON TABLE penstock.lease TO penstock_reader;
GRANT SELECT(companies) ON TABLE penstock.lease TO penstock_reader;
GRANT SELECT(crashes) ON TABLE penstock.lease TO penstock_reader;
GRANT SELECT(revoked) ON TABLE penstock.lease TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.close(p_lease penstock.lease, p_ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.conclude(p_lease penstock.lease, p_now timestamp with time zone, p_ids bigint[], p_outcomes text[], p_dues timestamp with time zone[], p_delays interval[], p_payloads text[], p_errors text[], p_classes text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.contract() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.contract() TO penstock_producer;
GRANT ALL ON FUNCTION penstock.contract() TO penstock_worker;
GRANT ALL ON FUNCTION penstock.contract() TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.count_agenda() FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.count_lease() FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.count_task() FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.create_queue(p_name text, p_lease interval, p_max_attempts integer, p_retry jsonb, p_sla interval, p_keep_done interval, p_keep_dead interval, p_keep_cancelled interval, p_settings jsonb, p_exist_ok boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.create_queue(p_name text, p_lease interval, p_max_attempts integer, p_retry jsonb, p_sla interval, p_keep_done interval, p_keep_dead interval, p_keep_cancelled interval, p_settings jsonb, p_exist_ok boolean) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.decide(p_holder text, p_lease interval, p_decisions jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.decide(p_holder text, p_lease interval, p_decisions jsonb) TO penstock_worker;
GRANT SELECT ON TABLE penstock.decision TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.decisions(p_queue text, p_at timestamp with time zone, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.decisions(p_queue text, p_at timestamp with time zone, p_limit integer) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.decisions(p_queue text, p_at timestamp with time zone, p_limit integer) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.dismiss(p_workers text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.dismiss(p_workers text[]) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.distance(p_one text, p_other text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.drop_day(p_relation regclass, p_day date) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.drop_history(p_before timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.drop_queue(p_queue text, p_force boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.drop_queue(p_queue text, p_force boolean) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.drop_schedule(p_name text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.drop_schedule(p_name text) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.due_schedules(p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.due_schedules(p_limit integer) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.end_hands(p_hands integer[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.end_hands(p_hands integer[]) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.enter_part(p_queue text, p_batch_id uuid, p_part integer, p_rows bigint, p_checksum text, p_report jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.enter_part(p_queue text, p_batch_id uuid, p_part integer, p_rows bigint, p_checksum text, p_report jsonb) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.enter_partition(p_queue text, p_job uuid, p_partition integer, p_batch_id uuid, p_rows bigint, p_checksum text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.enter_partition(p_queue text, p_job uuid, p_partition integer, p_batch_id uuid, p_rows bigint, p_checksum text) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.expire(p_queue_id integer, p_limit integer, p_thorough boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.extend(p_token uuid, p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.extend(p_token uuid, p_lease interval) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.extend_many(p_tokens uuid[], p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.extend_many(p_tokens uuid[], p_lease interval) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.find_subjects(p_queue_id integer, p_subjects text[], p_which integer[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.finish(p_lease penstock.lease, p_now timestamp with time zone, p_ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.fire(p_name text, p_mark timestamp with time zone, p_ticks timestamp with time zone[], p_decided timestamp with time zone, p_next_at timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.fire(p_name text, p_mark timestamp with time zone, p_ticks timestamp with time zone[], p_decided timestamp with time zone, p_next_at timestamp with time zone) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.forget_reader(p_name text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.forget_reader(p_name text) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.forget_records(p_adopted integer, p_keys jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.forget_records(p_adopted integer, p_keys jsonb) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.held_elsewhere(p_ids bigint[]) FROM PUBLIC;
GRANT SELECT(id) ON TABLE penstock.stream TO penstock_reader;
GRANT SELECT(identity) ON TABLE penstock.stream TO penstock_reader;
GRANT SELECT(queue_id) ON TABLE penstock.stream TO penstock_reader;
GRANT SELECT(name) ON TABLE penstock.stream TO penstock_reader;
GRANT SELECT(epoch) ON TABLE penstock.stream TO penstock_reader;
GRANT SELECT(until) ON TABLE penstock.stream TO penstock_reader;
GRANT SELECT(driver) ON TABLE penstock.stream TO penstock_reader;
GRANT SELECT(batch) ON TABLE penstock.stream TO penstock_reader;
GRANT SELECT(created) ON TABLE penstock.stream TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.held_stream(p_stream integer, p_epoch integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.history_between(p_from bigint, p_to bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.history_between(p_from bigint, p_to bigint) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.history_horizon() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.history_horizon() TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.history_spans(p_from bigint, p_to bigint, p_since timestamp with time zone, p_until timestamp with time zone, p_roughly boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.history_spans(p_from bigint, p_to bigint, p_since timestamp with time zone, p_until timestamp with time zone, p_roughly boolean) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.history_sums(p_day date, p_first bigint, p_pages bigint, p_below bigint, p_thorough boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.history_sums(p_day date, p_first bigint, p_pages bigint, p_below bigint, p_thorough boolean) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.hold_live(p_queue_id integer, p_ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.hold_scaling(p_queues text[], p_holder text, p_policy text, p_lease interval, p_instead_of text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.hold_scaling(p_queues text[], p_holder text, p_policy text, p_lease interval, p_instead_of text[]) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.hold_stream(p_queue text, p_group text, p_epoch integer, p_driver text, p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.hold_stream(p_queue text, p_group text, p_epoch integer, p_driver text, p_lease interval) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.hold_waiting(p_ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.in_seconds(p_length interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.is_number(p_value jsonb, p_least numeric, p_most numeric) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.job_report(p_job uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.job_report(p_job uuid) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.judge_payloads(p_payloads text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.judge_payloads(p_payloads text[]) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.keep_stream(p_stream integer, p_epoch integer, p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.keep_stream(p_stream integer, p_epoch integer, p_lease interval) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.largest_payload(p_queue penstock.queue) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.largest_payload(p_queue penstock.queue) TO penstock_producer;
GRANT ALL ON FUNCTION penstock.largest_payload(p_queue penstock.queue) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.largest_payload(p_queue penstock.queue) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.leave(p_worker text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.leave(p_worker text) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.leave_scaling(p_holder text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.leave_scaling(p_holder text) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.leave_stream(p_stream integer, p_epoch integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.leave_stream(p_stream integer, p_epoch integer) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.left_out(p_queue_id integer, p_ids bigint[], p_taken bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.lock_documents(p_ids bigint[], p_named_only boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.look(p_queues text[], p_horizons double precision[], p_rows integer[], p_bins double precision[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.look(p_queues text[], p_horizons double precision[], p_rows integer[], p_bins double precision[]) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.make_history(p_day date) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.mark_adopted(p_adopted integer, p_tick timestamp with time zone, p_key text[], p_back boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.mark_adopted(p_adopted integer, p_tick timestamp with time zone, p_key text[], p_back boolean) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.meet(p_queue_id integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.mentions(p_error text, p_reason text, p_text text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.mentions(p_error text, p_reason text, p_text text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.miss_schedule(p_name text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.moment() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.moment() TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.nearest_queue(p_name text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.nearest_schedule(p_name text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.next_batch(p_stream integer, p_epoch integer, p_after bigint, p_limit integer, p_slots integer, p_lease interval, p_before timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.next_batch(p_stream integer, p_epoch integer, p_after bigint, p_limit integer, p_slots integer, p_lease interval, p_before timestamp with time zone) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.next_epoch() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.next_epoch() TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.next_hand() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.next_hand() TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.next_schedule() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.next_schedule() TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.note_audit(p_verb text, p_queue text, p_detail jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.note_hand(p_hand integer, p_key text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.note_hand(p_hand integer, p_key text[]) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.note_pass(p_adopted integer, p_report jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.note_pass(p_adopted integer, p_report jsonb) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.note_reader(p_name text, p_system text, p_passed bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.note_reader(p_name text, p_system text, p_passed bigint) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.note_records(p_adopted integer, p_records jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.note_records(p_adopted integer, p_records jsonb) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.note_rejects(p_queue text, p_job uuid, p_partition integer, p_reasons text[], p_payloads text[], p_subjects text[], p_kinds text[], p_dues text[], p_priorities text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.note_rejects(p_queue text, p_job uuid, p_partition integer, p_reasons text[], p_payloads text[], p_subjects text[], p_kinds text[], p_dues text[], p_priorities text[]) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.note_report(p_batch_id uuid, p_part integer, p_report jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.note_report(p_batch_id uuid, p_part integer, p_report jsonb) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.open_tasks(p_tokens uuid[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.pause_schedule(p_name text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.pause_schedule(p_name text) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.profiles(p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.profiles(p_queue text) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.profiles(p_queue text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.promote(p_queue_id integer, p_limit integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.purge(p_queue text, p_states text[], p_ids bigint[], p_kind text, p_error text, p_before timestamp with time zone, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.purge(p_queue text, p_states text[], p_ids bigint[], p_kind text, p_error text, p_before timestamp with time zone, p_limit integer) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.push(p_queue text, p_payload jsonb, p_subject text, p_kind text, p_due timestamp with time zone, p_priority smallint, p_on_conflict text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.push(p_queue text, p_payload jsonb, p_subject text, p_kind text, p_due timestamp with time zone, p_priority smallint, p_on_conflict text) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.push_many(p_queue text, p_payloads text[], p_subjects text[], p_kinds text[], p_dues timestamp with time zone[], p_priorities smallint[], p_on_conflict text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.push_many(p_queue text, p_payloads text[], p_subjects text[], p_kinds text[], p_dues timestamp with time zone[], p_priorities smallint[], p_on_conflict text) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.queues_named(p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.queues_named(p_queue text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.read_lease(p_token uuid, p_first integer, p_count integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.read_lease(p_token uuid, p_first integer, p_count integer) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.read_up_to() FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.rebase_history() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.rebase_history() TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.recount(p_queue text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.redrive(p_queue text, p_ids bigint[], p_subjects text[], p_kind text, p_error text, p_since timestamp with time zone, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.redrive(p_queue text, p_ids bigint[], p_subjects text[], p_kind text, p_error text, p_since timestamp with time zone, p_limit integer) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.refresh(p_ns integer[], p_ids bigint[], p_ended text[], p_dues timestamp with time zone[], p_priorities smallint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.refuse(p_code text, p_message text, p_hint text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.refuse(p_code text, p_message text, p_hint text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.refuse_truncate() FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.release(p_token uuid, p_ids bigint[], p_delay interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.release(p_token uuid, p_ids bigint[], p_delay interval) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.release_day(p_day date, p_rows bigint, p_below bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.release_day(p_day date, p_rows bigint, p_below bigint) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.renew_tokens(p_tokens uuid[], p_driver text, p_lease interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.reopen(p_ids bigint[], p_dues timestamp with time zone[], p_now timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.repair(p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.repair(p_queue text) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.reprioritise(p_queue text, p_priority smallint, p_ids bigint[], p_subjects text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.reprioritise(p_queue text, p_priority smallint, p_ids bigint[], p_subjects text[]) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.reschedule(p_queue text, p_due timestamp with time zone, p_ids bigint[], p_subjects text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.reschedule(p_queue text, p_due timestamp with time zone, p_ids bigint[], p_subjects text[]) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.resume_schedule(p_name text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.resume_schedule(p_name text) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.retire(p_limit integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.retry_delay(p_strategy jsonb, p_failures integer, p_age interval, p_seed bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.retry_delay(p_strategy jsonb, p_failures integer, p_age interval, p_seed bigint) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.retry_spread(p_seed bigint, p_failures integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.retry_spread(p_seed bigint, p_failures integer) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.revoke(p_queue_id integer, p_ids bigint[], p_now timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.running_times() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.running_times() TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.safe_text(p_text text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.sample_days(p_from bigint, p_to bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.sample_days(p_from bigint, p_to bigint) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.scalers(p_queues text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.scalers(p_queues text[]) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.scalers(p_queues text[]) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.schedules(p_name text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.schedules(p_name text) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.schedules(p_name text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.seal_job(p_queue text, p_job uuid, p_partitions integer, p_rows bigint, p_checksum text, p_report jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.seal_job(p_queue text, p_job uuid, p_partitions integer, p_rows bigint, p_checksum text, p_report jsonb) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.seen(p_queues text[], p_horizons double precision[], p_rows integer[], p_bins double precision[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.set_kinds(p_queue text, p_kinds jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.set_kinds(p_queue text, p_kinds jsonb) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.set_profiles(p_profiles jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.set_profiles(p_profiles jsonb) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.set_profiles(p_profiles jsonb) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.set_queue(p_name text, p_changes jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.set_queue(p_name text, p_changes jsonb) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.set_schedule(p_name text, p_queue text, p_cron text, p_tz text, p_kind text, p_payload jsonb, p_priority smallint, p_backfill text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.set_schedule(p_name text, p_queue text, p_cron text, p_tz text, p_kind text, p_payload jsonb, p_priority smallint, p_backfill text) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.settle(p_token uuid, p_ids bigint[], p_outcomes text[], p_dues timestamp with time zone[], p_delays interval[], p_payloads text[], p_errors text[], p_classes text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.settle(p_token uuid, p_ids bigint[], p_outcomes text[], p_dues timestamp with time zone[], p_delays interval[], p_payloads text[], p_errors text[], p_classes text[]) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.settle_batch(p_tokens uuid[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.squeeze(p_queue_id integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.stand_still(p_queue_id integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.start_latencies() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.start_latencies() TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.status(p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.status(p_queue text) TO penstock_producer;
GRANT ALL ON FUNCTION penstock.status(p_queue text) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.status(p_queue text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.system() FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.take_place(p_job uuid, p_places integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.take_place(p_job uuid, p_places integer) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.take_samples() FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.target_age(p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.target_age(p_queue text) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.target_age(p_queue text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.target_workers(p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.target_workers(p_queue text) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.target_workers(p_queue text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.the_queue(p_name text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.the_queue(p_name text) TO penstock_producer;
GRANT ALL ON FUNCTION penstock.the_queue(p_name text) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.the_queue(p_name text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.unread(p_relation regclass) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.upkeep(p_keep_history interval, p_keep_samples interval, p_keep_ledger interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.upkeep(p_keep_history interval, p_keep_samples interval, p_keep_ledger interval) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.verify(p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.verify(p_queue text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.waiting_now(p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.waiting_now(p_queue text) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.waits_since(p_queue_id integer, p_before timestamp with time zone) FROM PUBLIC;
GRANT SELECT ON TABLE penstock.adopted TO penstock_reader;
GRANT SELECT ON TABLE penstock.adopted TO penstock_worker;
GRANT SELECT ON TABLE penstock.adopted_hand TO penstock_reader;
GRANT SELECT ON TABLE penstock.adopted_record TO penstock_reader;
GRANT SELECT ON TABLE penstock.adopted_record TO penstock_worker;
GRANT SELECT ON TABLE penstock.agenda TO penstock_reader;
GRANT SELECT ON TABLE penstock.audit TO penstock_reader;
GRANT SELECT ON TABLE penstock.counter TO penstock_reader;
GRANT SELECT ON TABLE penstock.counter_log TO penstock_reader;
GRANT SELECT ON TABLE penstock.history TO penstock_reader;
GRANT SELECT ON TABLE penstock.history_dropped TO penstock_reader;
GRANT SELECT ON TABLE penstock.history_gone TO penstock_reader;
GRANT SELECT ON TABLE penstock.history_origin TO penstock_reader;
GRANT SELECT ON TABLE penstock.history_reader TO penstock_reader;
GRANT SELECT ON TABLE penstock.kind TO penstock_reader;
GRANT SELECT ON TABLE penstock.low TO penstock_reader;
GRANT SELECT ON TABLE penstock.migration TO penstock_reader;
GRANT SELECT ON TABLE penstock.profile TO penstock_reader;
GRANT SELECT ON TABLE penstock.queue_gone TO penstock_reader;
GRANT SELECT ON TABLE penstock.reject TO penstock_reader;
GRANT SELECT ON TABLE penstock.sample TO penstock_reader;
GRANT SELECT ON TABLE penstock.scaling TO penstock_reader;
GRANT SELECT ON TABLE penstock.task TO penstock_reader;
GRANT INSERT(id) ON TABLE penstock.task TO penstock_producer;
GRANT INSERT(queue_id) ON TABLE penstock.task TO penstock_producer;
GRANT INSERT(priority) ON TABLE penstock.task TO penstock_producer;
GRANT INSERT(kind) ON TABLE penstock.task TO penstock_producer;
GRANT INSERT(subject) ON TABLE penstock.task TO penstock_producer;
GRANT INSERT(payload) ON TABLE penstock.task TO penstock_producer;
GRANT INSERT(due) ON TABLE penstock.task TO penstock_producer;
GRANT USAGE ON SEQUENCE penstock.task_id_seq TO penstock_producer;
GRANT SELECT ON TABLE penstock.tasks TO penstock_reader;
GRANT SELECT ON TABLE penstock.worker TO penstock_reader;
