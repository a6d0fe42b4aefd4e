CREATE SCHEMA penstock;
COMMENT ON SCHEMA penstock IS 'Penstock: a task queue. All behaviour is in functions; tables are written by them.';
CREATE TYPE penstock.picks AS (
	places tid[],
	ids bigint[],
	dues timestamp with time zone[],
	attempts smallint[],
	quarantines smallint[],
	key_ids integer[],
	named boolean,
	tried boolean,
	keyed boolean
);
CREATE TYPE penstock.place AS (
	priority smallint,
	due timestamp with time zone,
	task_id bigint
);
CREATE TABLE penstock.watermark (
    queue_id integer NOT NULL,
    sums bigint DEFAULT 0 NOT NULL,
    xid bigint NOT NULL,
    running bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    system bigint NOT NULL,
    until timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    priorities smallint[] DEFAULT '{-32768,5,6}'::smallint[] NOT NULL,
    first_due timestamp with time zone[] DEFAULT '{-infinity,-infinity,-infinity}'::timestamp with time zone[] NOT NULL,
    first_planned timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    next_bound timestamp with time zone,
    next_xid bigint,
    looked_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    quarantine text,
    quarantine_until timestamp with time zone,
    CONSTRAINT a_bound_per_range CHECK ((cardinality(first_due) = cardinality(priorities)))
)
WITH (fillfactor='50');
COMMENT ON COLUMN penstock.watermark.sums IS 'the rows of `counter` with this xid are valid';
COMMENT ON COLUMN penstock.watermark.xid IS 'rows of counter_log and `early` with this xid or a later one are not folded yet';
COMMENT ON COLUMN penstock.watermark.running IS 'rows of these earlier transactions are not folded either: they ran when the others were folded';
COMMENT ON COLUMN penstock.watermark.system IS 'the cluster whose transactions these are';
COMMENT ON COLUMN penstock.watermark.until IS 'no lease ends earlier';
COMMENT ON COLUMN penstock.watermark.priorities IS 'ranges of priorities, each by its first one and up to the next: one range for each priority that was seen, and ranges of all others between them';
COMMENT ON COLUMN penstock.watermark.first_due IS 'by range: no pending task is due earlier, except those in `early`; -infinity where the range has several priorities';
COMMENT ON COLUMN penstock.watermark.first_planned IS 'no planned task is due earlier, except those in `early`';
COMMENT ON COLUMN penstock.watermark.next_bound IS 'becomes the bound when every transaction below next_xid has ended: one of them may commit a row before it';
COMMENT ON COLUMN penstock.watermark.looked_at IS 'when the bounds were last moved; at most once a second';
COMMENT ON COLUMN penstock.watermark.quarantine IS 'the worker that claims nothing else until quarantine_until, to run a quarantined task alone';
CREATE FUNCTION penstock._add_to_sums(p_watermark penstock.watermark, p_metrics text[], p_deltas bigint[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_xid     constant bigint := pg_current_xact_id()::text::bigint;
    v_metrics text[];
    v_values  bigint[];
begin
    select array_agg(s.metric), array_agg(s.value) into v_metrics, v_values
    from (
        select n.metric, sum(n.value) as value
        from (
            select c.metric, c.value from penstock.counter as c
            where c.queue_id = p_watermark.queue_id and c.xid = p_watermark.sums
            union all
            select d.metric, d.delta from unnest(p_metrics, p_deltas) as d(metric, delta)
        ) as n
        group by n.metric
    ) as s;
    delete from penstock.counter as c where c.queue_id = p_watermark.queue_id and c.xid = p_watermark.sums;
    insert into penstock.counter (queue_id, xid, metric, value)
    select p_watermark.queue_id, v_xid, s.metric, s.value from unnest(v_metrics, v_values) as s(metric, value);
    return v_xid;
end
$$;
CREATE FUNCTION penstock._asked_ids(p_queue_id integer, p_ids bigint[], p_subjects text[]) RETURNS bigint[]
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
    if coalesce(cardinality(p_ids), 0) + coalesce(cardinality(p_subjects), 0) > 10000 then
        perform penstock.refuse('PS400',
            format('ids, subjects: %s are more than 10000 in one call',
                   coalesce(cardinality(p_ids), 0) + coalesce(cardinality(p_subjects), 0)));
    elsif greatest(array_ndims(p_ids), array_ndims(p_subjects)) > 1 then
        perform penstock.refuse('PS400', 'ids, subjects: a nested array');
    elsif array_position(p_ids, null) is not null or array_position(p_subjects, null) is not null then
        perform penstock.refuse('PS400', 'ids, subjects: there is a null in it');
    elsif p_ids is null and p_subjects is null then
        perform penstock.refuse('PS400', 'ids: no ids and no subjects are given');
    end if;
    perform penstock._check_distinct(p_ids);
    return array(
        select unnest(p_ids)
        union
        select t.id from penstock.task as t where t.queue_id = p_queue_id and t.subject = any(p_subjects));
end
$$;
CREATE FUNCTION penstock._begin_branch() RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE TABLE penstock.history_count (
    day date NOT NULL,
    system bigint NOT NULL,
    below bigint NOT NULL,
    next_page bigint NOT NULL,
    pages bigint NOT NULL
);
COMMENT ON COLUMN penstock.history_count.below IS 'rows of smaller xids are counted: all of them existed when the count began';
COMMENT ON COLUMN penstock.history_count.pages IS 'the number of pages when the count began; it is complete when next_page is equal';
CREATE FUNCTION penstock._begin_count(p_day date, p_relation regclass, p_below bigint) RETURNS penstock.history_count
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock._blocked(p_ids bigint[]) RETURNS bigint[]
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
    select array(select t.id from penstock.task as t where t.id = any(p_ids) and t.ended is null and t.waits_for > 0)
$$;
CREATE FUNCTION penstock._cancel_unstarted(p_queue_id integer, p_ids bigint[], p_now timestamp with time zone) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
begin
    if p_ids = '{}' then
        return 0;
    end if;
    perform penstock._make_history((p_now at time zone 'UTC')::date);
    with gone as (
        delete from penstock.agenda as a where a.task_id = any(p_ids) returning a.task_id, a.due, a.attempts
    ), ended as (
        update penstock.task as t
        set ended = 'cancelled', ended_at = p_now, reason = 'expired', renew = null
        where t.id = any(p_ids)
        returning t.id, t.created, t.due, t.iterations, t.kind, t.subject
    )
    insert into penstock.history (task_id, created, due, claimed_at, finished_at, queue_id, iteration, attempt,
                                  outcome, kind, worker, subject, error_class)
    select e.id, e.created, coalesce(g.due, e.due, e.created), p_now, p_now, p_queue_id, e.iterations,
           coalesce(g.attempts, 0) + 1, 'unstarted', e.kind, '', e.subject, 'Expired'
    from ended as e left join gone as g on g.task_id = e.id;
    insert into penstock.counter_log (queue_id, metric, delta)
    values (p_queue_id, 'unstarted_total', cardinality(p_ids)), (p_queue_id, 'cancelled_total', cardinality(p_ids));
    return cardinality(p_ids);
end
$$;
CREATE FUNCTION penstock._channel_number(p_worker text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (hashtextextended((p_worker COLLATE "C"), (0)::bigint) & '9223372036854775807'::bigint);
CREATE FUNCTION penstock._check_arrays(p_payloads text[], p_subjects text[], p_kinds text[], p_dues timestamp with time zone[], p_priorities smallint[], p_on_conflict text) RETURNS void
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
       or greatest(array_ndims(p_subjects), array_ndims(p_kinds), array_ndims(p_dues),
                   array_ndims(p_priorities)) > 1 then
        perform penstock.refuse('PS400',
            format('subjects, kinds, dues, priorities: flat, and as many as payloads (%s), or null', v_count));
    elsif p_on_conflict is null or p_on_conflict not in ('skip', 'update', 'error') then
        perform penstock.refuse('PS400',
            format('on_conflict: %s is not known', coalesce(quote_literal(left(p_on_conflict, 80)), 'null')),
            'Say skip, update or error.');
    end if;
end
$$;
CREATE FUNCTION penstock._check_beat(p_worker text, p_queues text[], p_slots integer, p_busy integer, p_host text, p_started_by text, p_leaving boolean, p_listens boolean) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if p_worker is null or octet_length(p_worker) not between 1 and 200 then
        perform penstock.refuse('PS400', 'worker: it is null, or not 1 to 200 bytes long');
    elsif p_queues is null or array_ndims(p_queues) > 1 or array_position(p_queues, null) is not null then
        perform penstock.refuse('PS400', 'queues: it is null, nested, or has a null in it');
    elsif p_slots is null or p_slots not between 1 and 100000 then
        perform penstock.refuse('PS400',
            format('slots: %s is not between 1 and 100000', coalesce(p_slots::text, 'null')));
    elsif p_busy is null or p_busy not between 0 and p_slots then
        perform penstock.refuse('PS400',
            format('busy: %s is not between 0 and %s slots', coalesce(p_busy::text, 'null'), p_slots));
    elsif p_host is null or octet_length(p_host) > 200 then
        perform penstock.refuse('PS400', 'host: it is null or longer than 200 bytes');
    elsif octet_length(p_started_by) > 200 then
        perform penstock.refuse('PS400', 'started_by: it is longer than 200 bytes');
    elsif p_leaving is null then
        perform penstock.refuse('PS400', 'leaving: it is null');
    elsif p_listens is null then
        perform penstock.refuse('PS400', 'listens: it is null');
    end if;
end
$$;
CREATE FUNCTION penstock._check_claim(p_limit integer, p_lease interval, p_worker text, p_quarantined boolean, p_durable boolean) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if p_limit is null or p_limit not between 1 and 10000 then
        perform penstock.refuse('PS400',
            format('limit: %s is not between 1 and 10000', coalesce(p_limit::text, 'null')));
    elsif not penstock._lease_fits(p_lease) then
        perform penstock._refuse_lease(p_lease);
    elsif p_worker is null or octet_length(p_worker) > 200 then
        perform penstock.refuse('PS400', 'worker: it is null or longer than 200 bytes');
    elsif p_quarantined is null or p_durable is null then
        perform penstock.refuse('PS400', 'quarantined and durable must not be null');
    elsif current_setting('transaction_isolation') <> 'read committed' then
        perform penstock.refuse('PS400',
            format('claim cannot run in a %s transaction', current_setting('transaction_isolation')),
            'Begin it with: begin isolation level read committed.');
    end if;
end
$$;
CREATE FUNCTION penstock._check_distinct(p_ids bigint[]) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_twice bigint;
begin
    select s.id into v_twice from unnest(p_ids) as s(id) group by s.id having count(*) > 1 limit 1;
    if found then
        perform penstock.refuse('PS400', format('ids: %s is given twice', v_twice));
    end if;
end
$$;
CREATE FUNCTION penstock._check_extras(p_count integer, p_keys text[], p_metas text[], p_expires timestamp with time zone[], p_dues timestamp with time zone[]) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_earliest constant timestamptz := '0001-01-02 00:00:00+00';
    v_latest   constant timestamptz := penstock.clock() + interval '20 years';    -- ten years after any due
    v_bad      record;
begin
    if coalesce(cardinality(p_keys), p_count) <> p_count or coalesce(cardinality(p_metas), p_count) <> p_count
       or coalesce(cardinality(p_expires), p_count) <> p_count
       or greatest(array_ndims(p_keys), array_ndims(p_metas), array_ndims(p_expires)) > 1 then
        perform penstock.refuse('PS400',
            format('keys, metas, expires: flat, and as many as payloads (%s), or null', p_count));
    end if;
    select i.n - 1 as index, case
        when octet_length(i.key) not between 1 and 128
            then array['PS400', format('key: %s bytes are not between 1 and 128', octet_length(i.key))]
        when octet_length(i.meta) > 8192
            then array['PS413', format('meta: %s bytes are more than 8192', octet_length(i.meta))]
        when ltrim(i.meta, E' \t\r\n') not like '{%' then array['PS422', 'meta: it is not a JSON object']
        when i.expires not between v_earliest and v_latest
            then array['PS400', format('expires: %s is not between %s and twenty years ahead', i.expires, v_earliest)]
        else array['PS400', format('expires: %s is not after the due, %s', i.expires, i.due)] end as said
    into v_bad
    from unnest(p_keys, p_metas, p_expires, p_dues) with ordinality as i(key, meta, expires, due, n)
    where octet_length(i.key) not between 1 and 128
       or octet_length(i.meta) > 8192
       or ltrim(i.meta, E' \t\r\n') not like '{%'
       or i.expires not between v_earliest and v_latest
       or i.expires <= i.due
    order by i.n limit 1;
    if found then
        perform penstock.refuse(v_bad.said[1], format('item %s: %s', v_bad.index, v_bad.said[2]));
    end if;
end
$$;
CREATE FUNCTION penstock._check_filter(p_error text) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if p_error = '' then
        perform penstock.refuse('PS400', 'error: it is empty');
    end if;
end
$$;
CREATE FUNCTION penstock._check_follow_up(p_field text, p_target text, p_queue text, p_kind text) RETURNS void
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_queue penstock.queue;
begin
    if p_target is null then
        return;
    elsif p_target !~ '^[^:]+:.' or octet_length(split_part(p_target, ':', 1)) + 129 < octet_length(p_target) then
        perform penstock.refuse('PS400', format('%s: %L is not queue:kind', p_field, left(p_target, 80)),
            'Write the name of a queue, a colon, and a kind of at most 128 bytes.');
    elsif p_target = p_queue || ':' || p_kind then
        perform penstock.refuse('PS400', format('%s: %L would follow itself for ever', p_field, left(p_target, 80)));
    end if;
    select * into v_queue from penstock.queue as q where q.name = split_part(p_target, ':', 1);
    if not found then
        perform penstock.refuse('PS404',
            format('%s: queue %L does not exist', p_field, left(split_part(p_target, ':', 1), 80)),
            coalesce('Did you mean ' || quote_literal(penstock._nearest_queue(split_part(p_target, ':', 1))) || '?',
                     'Create it with penstock.create_queue or `penstock queues create`.'));
    elsif not penstock._takes_follow_ups(v_queue) then
        perform penstock.refuse('PS400',
            format('%s: the largest payload of queue %L is %s bytes, and a follow-up needs up to 8192', p_field,
                   v_queue.name, penstock.largest_payload(v_queue)),
            'Raise max_payload of that queue.');
    end if;
end
$$;
CREATE FUNCTION penstock._check_hold(p_lease interval, p_driver text DEFAULT '-'::text) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if p_lease is null or not penstock._lease_fits(p_lease) then
        perform penstock._refuse_lease(p_lease);
    elsif p_driver is null or octet_length(p_driver) not between 1 and 200 then
        perform penstock.refuse('PS400', 'driver: it is null, or not 1 to 200 bytes long');
    end if;
end
$$;
CREATE FUNCTION penstock._check_id(p_id bigint) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if p_id is null then
        perform penstock.refuse('PS400', 'id: it is null');
    end if;
end
$$;
CREATE FUNCTION penstock._check_limit(p_limit integer) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if p_limit is null or p_limit not between 1 and 10000 then
        perform penstock.refuse('PS400',
            format('limit: %s is not between 1 and 10000', coalesce(p_limit::text, 'null')));
    end if;
end
$$;
CREATE FUNCTION penstock._check_notes(p_token uuid, p_notes jsonb) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_bad text;
begin
    if p_token is null then
        perform penstock.refuse('PS400', 'token: it is null');
    elsif p_notes is null or jsonb_typeof(p_notes) <> 'array' then
        perform penstock.refuse('PS400', 'notes: it is not a JSON array');
    elsif jsonb_array_length(p_notes) > 10000 then
        perform penstock.refuse('PS400', format('notes: %s are more than 10000', jsonb_array_length(p_notes)));
    end if;
    begin
        select case
            when n.id is null then 'id: it is null'
            when n.part not between 0 and 1 then format('part: %s is not between 0 and 1', n.part)
            when n.ago is null or n.ago not between 0 and 31536000
                then format('ago: %s is not between 0 and 31536000 seconds', coalesce(n.ago::text, 'null'))
            when n.lines is null or jsonb_typeof(n.lines) <> 'array' then 'lines: it is not a JSON array'
            else (
                select 'lines: one is not [number, seconds ago, text]'
                from jsonb_array_elements(n.lines) as e(line)
                where jsonb_typeof(e.line) <> 'array' or jsonb_typeof(e.line->0) is distinct from 'number'
                   or (e.line->>0)::int < 1 or jsonb_typeof(e.line->2) is distinct from 'string'
                   or coalesce((e.line->>1)::float8 not between 0 and 31536000, true)
                limit 1
            ) end
        into v_bad
        from jsonb_to_recordset(p_notes) as n(id bigint, part float8, text text, ago float8, lines jsonb)
        where n.id is null or n.part not between 0 and 1 or n.ago is null or n.ago not between 0 and 31536000
           or n.lines is null or n.lines <> '[]'
        order by 1 nulls last limit 1;
    exception when data_exception then
        v_bad := sqlerrm;
    end;
    if v_bad is not null then
        perform penstock.refuse('PS400', 'notes: ' || v_bad);
    end if;
    select n.id::text into v_bad
    from jsonb_to_recordset(p_notes) as n(id bigint) group by n.id having count(*) > 1 limit 1;
    if v_bad is not null then
        perform penstock.refuse('PS400', format('notes: id %s is given twice', v_bad));
    end if;
end
$$;
CREATE FUNCTION penstock._check_origin() RETURNS void
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if (select array_agg(o.system) from penstock.history_origin as o) is distinct from array[penstock._system()] then
        perform penstock.refuse('PS409', 'history: it was written in another cluster and restored into this one',
            'As admin: select penstock.rebase_history(); then read it with a new checkpoint.');
    end if;
end
$$;
CREATE FUNCTION penstock._check_pace(p_subjects text[], p_dues timestamp with time zone[], p_on_conflict text, p_debounce interval, p_at_most interval, p_throttle interval) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_bad text;
begin
    select l.name || ': ' || l.value into v_bad
    from (values ('debounce', p_debounce), ('at_most', p_at_most), ('throttle', p_throttle)) as l(name, value)
    where penstock._in_seconds(l.value) not between '1 microsecond' and '3650 days'
    limit 1;
    if v_bad is not null then
        perform penstock.refuse('PS400', v_bad || ' is not more than 0 and at most 3650 days');
    elsif p_debounce is not null and p_throttle is not null then
        perform penstock.refuse('PS400', 'throttle: there is a debounce too', 'Give one of them.');
    elsif p_at_most is not null and p_debounce is null then
        perform penstock.refuse('PS400', 'at_most: it limits a debounce, and there is none');
    elsif penstock._in_seconds(p_at_most) < penstock._in_seconds(p_debounce) then
        perform penstock.refuse('PS400', format('at_most: %s is less than the debounce, %s', p_at_most, p_debounce));
    elsif p_debounce is not null and p_on_conflict <> 'update' then
        perform penstock.refuse('PS400', format('debounce: it needs on_conflict update, not %s', p_on_conflict));
    elsif p_throttle is not null and p_on_conflict = 'error' then
        perform penstock.refuse('PS400', 'throttle: it skips tasks, so on_conflict cannot be error');
    elsif p_subjects is null or array_position(p_subjects, null) is not null then
        perform penstock.refuse('PS400', 'subject: a task with a debounce or a throttle needs one');
    elsif p_debounce is not null and exists (select from unnest(p_dues) as d(due) where d.due is not null) then
        perform penstock.refuse('PS400', 'due: there is a debounce too', 'Give one of them.');
    end if;
end
$$;
CREATE FUNCTION penstock._check_push(p_payloads text[], p_subjects text[], p_kinds text[], p_dues timestamp with time zone[], p_priorities smallint[], p_largest bigint) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_earliest constant timestamptz := '0001-01-02 00:00:00+00';    -- Python cannot read an earlier moment
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
        when i.priority not between -100 and 100
            then array['PS400', format('priority: %s is not between -100 and 100', i.priority)]
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
       or i.priority not between -100 and 100
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
    priority_step interval,
    keep_done interval,
    keep_dead interval,
    keep_cancelled interval,
    settings jsonb DEFAULT '{}'::jsonb NOT NULL,
    created timestamp with time zone DEFAULT penstock.clock() NOT NULL,
    follows_done boolean DEFAULT false NOT NULL,
    max_crashes integer DEFAULT 20 NOT NULL,
    CONSTRAINT lease_in_range CHECK (((lease >= '00:00:00.1'::interval) AND (lease <= '24:00:00'::interval))),
    CONSTRAINT max_attempts_in_range CHECK (((max_attempts >= 1) AND (max_attempts <= 32767))),
    CONSTRAINT max_crashes_in_range CHECK (((max_crashes >= 1) AND (max_crashes <= 32767))),
    CONSTRAINT name_is_plain CHECK ((name ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'::text)),
    CONSTRAINT retry_has_type CHECK ((retry ? 'type'::text)),
    CONSTRAINT sla_is_positive CHECK ((sla > '00:00:00'::interval))
);
COMMENT ON COLUMN penstock.queue.max_attempts IS 'null: the retry strategy alone decides when to stop';
COMMENT ON COLUMN penstock.queue.priority_step IS 'how much earlier a task is taken for each step of its priority; null: a smaller priority always comes first';
COMMENT ON COLUMN penstock.queue.keep_done IS 'null: a done task is deleted at settle';
COMMENT ON COLUMN penstock.queue.follows_done IS 'a kind of the queue has on_done, so settle has to read the kinds of its tasks; set_kinds keeps it';
COMMENT ON COLUMN penstock.queue.max_crashes IS 'a task that ended its worker so often while it ran alone is dead, whatever max_attempts says';
CREATE FUNCTION penstock._check_queue(p_queue penstock.queue) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
declare
    v_bad text;
begin
    select k.name || ': ' || k.keep into v_bad
    from (values ('keep_done', p_queue.keep_done), ('keep_dead', p_queue.keep_dead),
                 ('keep_cancelled', p_queue.keep_cancelled)) as k(name, keep)
    where penstock._in_seconds(k.keep) not between '0' and '3650 days'
    limit 1;
    if p_queue.name is null or p_queue.name !~ '^[a-z0-9][a-z0-9_.-]{0,62}$' then
        perform penstock.refuse('PS400',
            format('queue: %s is not a name', coalesce(quote_literal(left(p_queue.name, 80)), 'null')),
            'A name has 1 to 63 of a-z, 0-9, _ . - and begins with a letter or digit.');
    elsif p_queue.lease is null
       or not penstock._lease_fits(p_queue.lease) then
        perform penstock._refuse_lease(p_queue.lease);
    elsif p_queue.max_attempts not between 1 and 32767 then
        perform penstock.refuse('PS400', format('max_attempts: %s is not between 1 and 32767', p_queue.max_attempts));
    elsif p_queue.max_crashes is null or p_queue.max_crashes not between 1 and 32767 then
        perform penstock.refuse('PS400', format('max_crashes: %s is not between 1 and 32767',
                                                coalesce(p_queue.max_crashes::text, 'null')));
    elsif penstock._in_seconds(p_queue.sla) not between '1 microsecond' and '3650 days' then
        perform penstock.refuse('PS400', format('sla: %s is not more than 0 and at most 3650 days', p_queue.sla));
    elsif penstock._in_seconds(p_queue.priority_step) not between '1 microsecond' and '365 days' then
        perform penstock.refuse('PS400',
            format('priority_step: %s is not more than 0 and at most 365 days', p_queue.priority_step));
    elsif v_bad is not null then
        perform penstock.refuse('PS400', v_bad || ' is not between 0 and 3650 days');
    elsif p_queue.settings is null or jsonb_typeof(p_queue.settings) <> 'object' then
        perform penstock.refuse('PS400',
            format('settings: %s is not a JSON object', coalesce(left(p_queue.settings::text, 80), 'null')));
    elsif p_queue.settings ? 'max_payload'
       and not penstock._is_number(p_queue.settings->'max_payload', 2, 16777216) then
        perform penstock.refuse('PS400',
            format('max_payload: %s is not between 2 and 16777216', left(p_queue.settings->>'max_payload', 80)));
    elsif p_queue.settings ? 'notify' and jsonb_typeof(p_queue.settings->'notify') <> 'boolean' then
        perform penstock.refuse('PS400',
            format('notify: %s is not true or false', left(p_queue.settings->>'notify', 80)));
    elsif p_queue.paused is null then
        perform penstock.refuse('PS400', 'paused: it is null');
    end if;
    perform penstock._check_retry(p_queue.retry);
end
$_$;
CREATE TABLE penstock.ledger (
    batch_id uuid NOT NULL,
    part integer NOT NULL,
    queue_id integer NOT NULL,
    rows bigint NOT NULL,
    checksum text NOT NULL,
    report jsonb NOT NULL,
    at timestamp with time zone NOT NULL,
    job uuid,
    series uuid
);
COMMENT ON COLUMN penstock.ledger.job IS 'of a partition: the job it belongs to';
COMMENT ON COLUMN penstock.ledger.series IS 'of a partition: the streaming query or txnAppId that its job belongs to; the newest job of a series is kept whatever its age';
CREATE FUNCTION penstock._check_repeat(p_what text, p_known penstock.ledger, p_queue penstock.queue, p_rows bigint, p_checksum text) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_said constant text := case
        when p_known.queue_id <> p_queue.id
            then format('it was written into another queue before, not into %L', p_queue.name)
        when p_known.rows <> p_rows
            then format('it was written with %s rows before, now there are %s', p_known.rows, p_rows)
        when p_known.checksum <> p_checksum then format('its %s rows were written with other content before', p_rows)
    end;
begin
    if v_said is not null then
        perform penstock.refuse('PS409', p_what || v_said,
            'The same job has the same rows in the same partitions. Other rows are another txnVersion.');
    end if;
end
$$;
CREATE FUNCTION penstock._check_retention(p_field text, p_keep interval) RETURNS interval
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_keep constant interval := penstock._in_seconds(p_keep);
begin
    if v_keep < '1 day' then
        perform penstock.refuse('PS400', format('%s: %s is less than 1 day', p_field, p_keep),
            'Keep at least 1 day; null keeps for ever.');
    end if;
    return case when p_keep is not null then least(v_keep, penstock._in_seconds('36500 days')) end;
end
$$;
CREATE FUNCTION penstock._check_retry(p_strategy jsonb) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_least   constant numeric := 0.000001;
    v_longest constant numeric := 3650 * 86400;
    v_good    boolean;
begin
    v_good := case p_strategy->>'type'
        when 'fibonacci' then penstock._is_number(p_strategy->'unit', v_least, v_longest)
        when 'exponential' then penstock._is_number(p_strategy->'base', v_least, v_longest)
                            and (not p_strategy ? 'factor' or penstock._is_number(p_strategy->'factor', 1, 1000))
        when 'fixed' then penstock._is_number(p_strategy->'delay', v_least, v_longest)
        when 'delays' then case when jsonb_typeof(p_strategy->'delays') = 'array' then (
            select count(*) between 1 and 1000 and bool_and(penstock._is_number(d.value, v_least, v_longest))
            from jsonb_array_elements(p_strategy->'delays') as d) end
        when 'progressive' then case when jsonb_typeof(p_strategy->'tiers') = 'array' then (
            select count(*) between 1 and 100
               and bool_and(penstock._is_number(t.value->0, v_least, 10 * v_longest)
                            and penstock._is_number(t.value->1, v_least, v_longest))
            from jsonb_array_elements(p_strategy->'tiers') as t) end
        end;
    if v_good is not true
       or (p_strategy ? 'cap' and not penstock._is_number(p_strategy->'cap', v_least, v_longest))
       or (p_strategy ? 'jitter' and not penstock._is_number(p_strategy->'jitter', 0, 1)) then
        perform penstock.refuse('PS400',
            format('retry: %s is not a strategy', coalesce(left(p_strategy::text, 80), 'null')),
            'One of {"type": "fibonacci", "unit": s}, {"type": "exponential", "base": s, "factor": f}, '
            '{"type": "fixed", "delay": s}, {"type": "delays", "delays": [s, …]}, '
            '{"type": "progressive", "tiers": [[younger than, s], …]}, with "cap" and "jitter".');
    end if;
end
$$;
CREATE FUNCTION penstock._check_scaling(p_queues text[], p_holder text, p_lease interval) RETURNS void
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
    elsif p_lease is null or penstock._in_seconds(p_lease) not between '1 second' and '24 hours' then
        perform penstock.refuse('PS400',
            format('lease: %s is not between 1 s and 24 h', coalesce(p_lease::text, 'null')));
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
    key text COLLATE pg_catalog."C",
    expires interval,
    until_next boolean DEFAULT false NOT NULL,
    CONSTRAINT backfill_is_known CHECK ((backfill = ANY (ARRAY['none'::text, 'last'::text, 'all'::text]))),
    CONSTRAINT name_fits CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 200))),
    CONSTRAINT payload_is_object CHECK ((jsonb_typeof(payload) = 'object'::text))
)
WITH (fillfactor='50');
COMMENT ON COLUMN penstock.schedule.mark IS 'every tick up to here is decided: pushed, or left out';
COMMENT ON COLUMN penstock.schedule.next_at IS 'when a worker has to look at it: its next tick, or sooner';
COMMENT ON COLUMN penstock.schedule.last_tick IS 'the last tick that was pushed';
COMMENT ON COLUMN penstock.schedule.expires IS 'tasks are cancelled that have not started so long after their tick; null: they may always start';
COMMENT ON COLUMN penstock.schedule.until_next IS 'tasks are cancelled that have not started at the next tick';
CREATE FUNCTION penstock._check_schedule(p_schedule penstock.schedule, p_largest bigint) RETURNS void
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
        perform penstock.refuse('PS413',
            format('payload: %s bytes are more than %s', octet_length(p_schedule.payload::text), p_largest));
    elsif p_schedule.priority is null or p_schedule.priority not between -100 and 100 then
        perform penstock.refuse('PS400',
            format('priority: %s is not between -100 and 100', coalesce(p_schedule.priority::text, 'null')));
    elsif p_schedule.cron is null or octet_length(p_schedule.cron) > 200
       or p_schedule.cron !~ '^[^[:space:]]+( [^[:space:]]+){4}$' then
        perform penstock.refuse('PS400',
            format('cron: %s is not five fields', coalesce(quote_literal(left(p_schedule.cron, 80)), 'null')));
    elsif p_schedule.backfill is null or p_schedule.backfill not in ('none', 'last', 'all') then
        perform penstock.refuse('PS400',
            format('backfill: %s is not none, last or all',
                   coalesce(quote_literal(left(p_schedule.backfill, 80)), 'null')));
    elsif octet_length(p_schedule.key) not between 1 and 128 then
        perform penstock.refuse('PS400',
            format('key: %s bytes are not between 1 and 128', octet_length(p_schedule.key)));
    elsif p_schedule.expires not between '1 microsecond' and '3650 days' then
        perform penstock.refuse('PS400',
            format('expires: %s is not more than 0 and at most 3650 days', p_schedule.expires));
    elsif p_schedule.until_next is null or p_schedule.until_next and p_schedule.expires is not null then
        perform penstock.refuse('PS400', 'until_next: it is null, or expires is given too');
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
CREATE FUNCTION penstock._check_settle(p_token uuid, p_ids bigint[], p_outcomes text[], p_dues timestamp with time zone[], p_delays interval[], p_payloads text[], p_errors text[], p_classes text[]) RETURNS void
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
        perform penstock.refuse('PS400',
            format('outcomes, dues, delays, payloads, errors, classes: flat, and as many as ids (%s), or null',
                   v_count));
    end if;
    if p_outcomes is null then
        return;
    end if;
    select s.n - 1 as index, case
        when s.outcome is null or s.outcome not in ('done', 'again', 'failed', 'dead', 'release')
            then array['PS400', format('outcome: %s is not done, again, failed, dead or release',
                                       coalesce(quote_literal(left(s.outcome, 80)), 'null'))]
        when penstock._in_seconds(s.delay) not between '0' and '3650 days'
            then array['PS400', format('delay: %s is not between 0 and 3650 days', s.delay)]
        when s.due not between v_earliest and v_latest
            then array['PS400', format('due: %s is not between %s and ten years ahead', s.due, v_earliest)]
        else array['PS422', 'payload: it is not a JSON object'] end as said
    into v_bad
    from unnest(p_outcomes, p_dues, p_delays, p_payloads) with ordinality as s(outcome, due, delay, payload, n)
    where s.outcome is null or s.outcome not in ('done', 'again', 'failed', 'dead', 'release')
       or penstock._in_seconds(s.delay) not between '0' and '3650 days'
       or s.due not between v_earliest and v_latest
       or ltrim(s.payload, E' \t\r\n') not like '{%'
    order by s.n limit 1;
    if found then
        perform penstock.refuse(v_bad.said[1], format('item %s: %s', v_bad.index, v_bad.said[2]));
    end if;
end
$$;
CREATE FUNCTION penstock._check_sizes(p_payloads text[], p_queue_id integer) RETURNS void
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
        perform penstock.refuse('PS413',
            format('item %s: payload: %s bytes are more than %s', v_bad.index, v_bad.size, v_bad.largest));
    end if;
end
$$;
CREATE FUNCTION penstock._check_texts(p_payloads text[], p_most bigint) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_large record;
    v_n     int;
begin
    for v_n in
        select i.n - 1 from unnest(p_payloads) with ordinality as i(payload, n)
        where octet_length(i.payload) > p_most / 131075 * 8 and i.payload ~ '[0-9][eE][+-]?[0-9]{3}'
    loop
        begin
            select octet_length(p_payloads[v_n + 1]::jsonb::text) as size into v_large;
            if v_large.size > p_most then
                perform penstock._refuse_text(format('item %s', v_n), v_large.size::text, p_most);
            end if;
        exception when program_limit_exceeded then
            perform penstock._refuse_text(format('item %s', v_n), '1073741824 or more', p_most);
        end;
    end loop;
end
$$;
CREATE FUNCTION penstock._chosen(p_values anyarray, p_positions integer[]) RETURNS anyarray
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select case when p_values is not null then
        array(select p_values[i.at] from unnest(p_positions) with ordinality as i(at, n) order by i.n) end
$$;
CREATE FUNCTION penstock._claim_batch(p_queue penstock.queue, p_driver text, p_limit integer, p_slots integer, p_lease interval, p_before timestamp with time zone) RETURNS TABLE(tokens uuid[], tasks integer, early integer)
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
        perform penstock._expire(p_queue.id, p_limit);
        perform penstock._promote(p_queue.id, p_limit);
        if p_before is null or penstock._waits_since(p_queue.id, p_before) then
            -- The waiting tasks are spread evenly, one lease per slot; there are more leases where one would be too
            -- large.
            select greatest(1, ceil(least(p_limit, s.pending)::numeric / p_slots)) into v_size
            from penstock.status(p_queue.name) as s;
            v_size := greatest(2, least(10000, ceil(v_size::numeric / ceil(v_size::numeric / 10000))));
        end if;
    end if;
    v_most := greatest(64, 4 * (p_limit / v_size));
    while v_size is not null and v_tasks < p_limit and cardinality(v_tokens) < v_most loop
        v_ask := least(v_size, p_limit - v_tasks);
        select (array_agg(c.token))[1] as token, count(*)::int as tasks,
               count(*) filter (where c.due <= p_before)::int as early, bool_and(c.alone) as alone,
               (array_agg(penstock.at_place(c.priority, c.due, c.id)))[count(*)] as place
        into v_claim
        from penstock.claim(p_queue.name, v_ask, p_lease, p_driver, v_hint, p_quarantined => v_tasks = 0) as c;
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
    quarantines smallint[],
    revoked bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    key_ids integer[]
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='500');
ALTER TABLE ONLY penstock.lease ALTER COLUMN ids SET STORAGE EXTERNAL;
ALTER TABLE ONLY penstock.lease ALTER COLUMN dues SET STORAGE EXTERNAL;
ALTER TABLE ONLY penstock.lease ALTER COLUMN attempts SET STORAGE EXTERNAL;
ALTER TABLE ONLY penstock.lease ALTER COLUMN quarantines SET STORAGE EXTERNAL;
ALTER TABLE ONLY penstock.lease ALTER COLUMN key_ids SET STORAGE EXTERNAL;
COMMENT ON TABLE penstock.lease IS 'attempts, quarantines and key_ids are null when all are zero, as they mostly are';
CREATE FUNCTION penstock._close_lease(p_lease penstock.lease, p_ids bigint[]) RETURNS void
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
        select h.n::int - 1
        from unnest(p_lease.ids) with ordinality as h(id, n) join unnest(p_ids) as s(id) on s.id = h.id
    loop
        v_open := set_bit(v_open, v_n, 0);
    end loop;
    update penstock.lease as l set open = v_open where l.token = p_lease.token;
end
$$;
CREATE TABLE penstock.agenda (
    task_id bigint NOT NULL,
    due timestamp with time zone NOT NULL,
    queue_id integer NOT NULL,
    key_id integer DEFAULT 0 NOT NULL,
    priority smallint NOT NULL,
    attempts smallint DEFAULT 0 NOT NULL,
    quarantine smallint DEFAULT 0 NOT NULL,
    pending boolean NOT NULL,
    named boolean DEFAULT false NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');
COMMENT ON COLUMN penstock.agenda.key_id IS 'of its key in penstock.key; 0: it has none';
COMMENT ON COLUMN penstock.agenda.quarantine IS '0: it may share a lease with any tasks; above 0: the size of the largest lease that it may be in after a crash; below 0: it is quarantined and runs alone, and -1 - quarantine is how often its lease expired while it was alone, since the last settled outcome';
COMMENT ON COLUMN penstock.agenda.named IS 'its document has a subject, so another session may be waiting for that document';
CREATE FUNCTION penstock._comes_before(p_priority smallint, p_due timestamp with time zone, p_id bigint, p_row penstock.agenda, p_step interval) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (p_step IS NULL) THEN (ROW(p_priority, p_due, p_id) < ROW((p_row).priority, (p_row).due, (p_row).task_id)) ELSE (ROW((p_due + ((p_priority)::double precision * p_step)), p_id) < ROW(((p_row).due + (((p_row).priority)::double precision * p_step)), (p_row).task_id)) END;
CREATE FUNCTION penstock._conclude(p_lease penstock.lease, p_now timestamp with time zone, p_ids bigint[], p_outcomes text[], p_dues timestamp with time zone[], p_delays interval[], p_payloads text[], p_errors text[], p_classes text[]) RETURNS TABLE(id bigint, result text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_ids        bigint[];
    v_states     text[];
    v_follow_ups text[];
    v_ends       jsonb[];
begin
    with known as materialized (
        select
            t.id, t.queue_id, t.kind, t.subject, t.created, t.iterations, t.priority, t.renew, t.key,
            k.on_dead, k.on_done,
            -- A done document is deleted by this statement.
            case when coalesce(k.on_dead, k.on_done) is not null then t.payload end as ended_payload,
            case when k.on_dead is not null then t.error_class end as last_class,
            case when k.on_dead is not null then t.error end as last_error,
            s.outcome, s.due as asked_due, penstock._in_seconds(s.delay) as delay, s.payload,
            penstock._safe_text(s.error) as error, left(s.error_class, 200) as error_class,
            h.due as was_due, coalesce(h.attempts, 0) as attempts, coalesce(h.quarantine, 0) as quarantine,
            greatest(-1 - h.quarantine, 0) as crashes,
            -- An expiry burns the attempt only of a task that was alone: that task killed its worker.
            s.outcome = 'failed' or (s.outcome = 'expired' and (p_lease).alone) as burned,
            coalesce(k.max_attempts, q.max_attempts) as max_attempts, q.max_crashes, q.keep_done,
            case when (s.outcome = 'failed' and s.delay is null) or (s.outcome = 'expired' and (p_lease).alone)
                 then penstock.retry_delay(coalesce(k.retry, q.retry), coalesce(h.attempts, 0) + 1,
                                           p_now - coalesce(t.since, t.created), t.id)
                 else penstock._in_seconds(s.delay) end as wait
        from unnest(p_ids, p_outcomes, p_dues, p_delays, p_payloads, p_errors, p_classes)
             as s(id, outcome, due, delay, payload, error, error_class)
        join unnest((p_lease).ids, (p_lease).dues, (p_lease).attempts, (p_lease).quarantines)
             as h(id, due, attempts, quarantine) on h.id = s.id
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
                when k.burned and k.outcome = 'expired' and k.crashes + 1 >= k.max_crashes then 'dead'
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
            case when j.fate = 'dead' then j.on_dead
                 when j.fate in ('gone', 'done') then j.on_done end as follow_up,
            -- Class and text always belong to the same error.
            num_nonnulls(j.error_class, j.error) > 0 as has_error,
            case when j.fate <> 'dead' then null
                 when j.outcome = 'dead' then coalesce(split_part(j.error, E'\n', 1), 'told so')
                 when j.outcome = 'expired' then 'crashed'
                 when j.attempts + 1 >= j.max_attempts then 'attempts spent'
                 else 'the strategy ended' end as reason,
            nextval('penstock.history_id_seq') as history_id,
            case when j.renew is not null then j.renew
                 when j.outcome = 'again' then coalesce(j.asked_due, p_now + j.delay, p_now)
                 when j.outcome = 'failed' then p_now + j.wait
                 -- The task was alone because of an earlier crash. It most likely kills its workers, and would kill the
                 -- next one at once.
                 when j.outcome = 'expired' and (p_lease).alone and j.quarantine < 0 then p_now + j.wait
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
            payload = case when d.outcome = 'again' and d.renew is null then coalesce(d.payload::jsonb, t.payload)
                           else t.payload end,
            renew = null,
            expires = case when d.outcome <> 'again' or d.renew is not null then t.expires end,
            ended = case when d.fate in ('done', 'dead') then d.fate end,
            ended_at = case when d.fate in ('done', 'dead') then p_now end,
            reason = d.reason,
            error_class = case when d.succeeded then null when d.has_error then d.error_class else t.error_class end,
            error = case when d.succeeded then null when d.has_error then d.error else t.error end,
            attempts = case when d.fate = 'dead' then least(d.attempts + 1, 32767) end
        from dated as d
        where t.id = d.id and d.fate <> 'gone' and (not d.unfinished or d.renew is not null or d.fate = 'dead')
    ), put_back as (
        insert into penstock.agenda (task_id, due, queue_id, key_id, priority, attempts, quarantine, pending, named)
        select
            d.id, d.next_due, d.queue_id, penstock._key_id(d.queue_id, d.key), d.priority,
            case when d.succeeded or d.renew is not null then 0 else least(d.attempts + d.burned::int, 32767) end,
            case when d.renew is not null or not d.unfinished then 0
                 when d.outcome = 'release' then d.quarantine
                 when (p_lease).alone then -2 - d.crashes    -- one crash more
                 -- The limit is an eighth of the lease that the task shared or, for a small lease, of the number of
                 -- tasks that it may have shared a process with. A lease of one task is quarantine.
                 when greatest(bit_count((p_lease).open), coalesce(nullif(d.quarantine, 0), 64)) < 16 then -1
                 else greatest(bit_count((p_lease).open), coalesce(nullif(d.quarantine, 0), 64)) / 8 end,
            -- A task with a moment in the future waits for it; the others may run now.
            d.next_due <= p_now or (d.outcome = 'release' and d.delay is null and d.renew is null),
            d.subject is not null
        from dated as d
        where d.fate = 'waits'
    ), noted as (
        insert into penstock.history (id, task_id, created, due, claimed_at, finished_at, queue_id, iteration, attempt,
                                      outcome, kind, worker, subject, error_class, error)
        select d.history_id, d.id, d.created, d.was_due, (p_lease).claimed_at, p_now, d.queue_id, d.iterations,
               d.attempts + 1,
               d.told, d.kind, (p_lease).worker, d.subject,
               coalesce(d.error_class, case when d.outcome = 'expired' and d.fate = 'dead' then 'Crashed' end), d.error
        from dated as d
    ), tallied as (
        insert into penstock.counter_log (queue_id, metric, delta)
        select d.queue_id, d.told || '_total', count(*) from dated as d group by d.queue_id, d.told
    )
    select array_agg(d.id),
           array_agg(case d.fate
               when 'gone' then 'done'
               when 'waits' then case when d.next_due <= p_now
                                           or (d.outcome = 'release' and d.delay is null and d.renew is null)
                                      then 'pending' else 'planned' end
               else d.fate end),
           array_agg(d.follow_up) filter (where d.follow_up is not null),
           array_agg(penstock._describe_end(
               d.id, d.history_id, d.queue_id, d.kind, d.subject, d.ended_payload, d.attempts + 1, d.reason,
               case when d.succeeded then null when d.has_error then d.error_class else d.last_class end,
               case when d.succeeded then null when d.has_error then d.error else d.last_error end, p_now)
           ) filter (where d.follow_up is not null)
    into v_ids, v_states, v_follow_ups, v_ends
    from dated as d;
    if v_follow_ups is not null then
        perform penstock._push_follow_ups(v_follow_ups, v_ends);
    end if;
    return query select r.id, r.state from unnest(v_ids, v_states) as r(id, state);
end
$$;
CREATE FUNCTION penstock._count_agenda() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
    v_group record;
    v_first timestamptz;
    v_early timestamptz;
begin
    if tg_op = 'INSERT' then
        for v_group in
            select n.queue_id, n.pending, count(*) as tasks, min(n.due) as first
            from arrived as n group by n.queue_id, n.pending
        loop
            insert into penstock.counter_log (queue_id, metric, delta)
            values (v_group.queue_id, case when v_group.pending then 'pending' else 'planned' end, v_group.tasks);
            v_first := least(v_first, v_group.first);
        end loop;
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
        select min(n.due) into v_first from arrived as n;
    end if;
    v_early := penstock.clock() - interval '2 seconds';    -- bounds stay this far behind the clock: see _move_bounds
    if v_first < v_early then
        insert into penstock.early (queue_id, due, priority, pending)
        select n.queue_id, min(n.due), n.priority, n.pending from arrived as n
        where n.due < v_early group by n.queue_id, n.priority, n.pending;
    end if;
    return null;
end
$$;
CREATE FUNCTION penstock._count_history(p_before timestamp with time zone, p_pages bigint DEFAULT 500, OUT rows bigint, OUT more boolean) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock._count_lease() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
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
CREATE FUNCTION penstock._count_pages(p_count penstock.history_count, p_relation regclass, p_pages bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock._count_task() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
    -- One value for all rows: then ids decide, and the first one given runs first.
    v_now   constant timestamptz := penstock.clock();
    v_group record;
    v_given bigint;      -- the last id that the sequence has given out
    v_most  bigint;      -- the largest payload that the queue allows
    v_text  bigint;      -- the largest size that a payload may have as text
    v_fits  bigint;      -- a payload stored in at most this many bytes never exceeds v_text
    v_large record;
    v_queue text;
    v_idle  bigint[];    -- the channels of the idle workers of the queue
    v_extra boolean := false;    -- some documents have a value that few have
begin
    if tg_op = 'INSERT' then
        -- All rows are examined in one query, because this is the cost of a bulk push.
        for v_group in
            select n.queue_id, n.ended, count(*) as tasks, min(n.id) as first, max(n.id) as last,
                   max(pg_column_size(n.payload)) as widest,
                   bool_or(pg_column_compression(n.payload) is not null) as packed,
                   min(penstock._document_fault(
                       n.priority, n.kind, n.subject, n.payload, n.due, n.ended, n.ended_at)) as fault,
                   bool_or(n.key is not null or n.meta is not null or n.expires is not null
                           or n.waits_for is not null) as extra
            from arrived as n group by n.queue_id, n.ended
        loop
            if v_group.fault is not null then
                perform penstock.refuse('PS400', v_group.fault);
            end if;
            v_extra := v_extra or v_group.extra;
            if current_setting('transaction_isolation') <> 'read committed' then
                -- The snapshot of the transaction may be older than a drop of the queue. In that case this lock fails
                -- with a serialization error, instead of leaving a task that no worker will run.
                perform from penstock.queue as q where q.id = v_group.queue_id for key share;
            end if;
            -- Workers are woken unless notifications are switched off for this queue (PREPARE TRANSACTION refuses a
            -- NOTIFY).
            select s.last_value, penstock.largest_payload(q), penstock._largest_text(q),
                   penstock._largest_text(q) / 131075 * 12, q.name,
                   array(select i.channel from penstock.queue_set as w
                         join penstock.idle_worker as i on i.queue_set = w.id
                         where w.queue_id = q.id and q.settings->'notify' is distinct from 'false')
            into v_given, v_most, v_text, v_fits, v_queue, v_idle
            from penstock.queue as q, penstock.task_id_seq as s where q.id = v_group.queue_id;
            if not found then
                -- The queue was dropped while this transaction waited.
                perform penstock.refuse('PS404', format('queue_id: there is no queue %s', v_group.queue_id));
            end if;
            if v_group.first < 1 or v_group.last > v_given then
                perform penstock.refuse('PS400', 'id: it is not one that penstock.task_id_seq has given out');
            end if;
            -- A number takes at least 12 bytes when stored and at most 131,075 as text, so a small payload fits (6 KB
            -- by default). For larger payloads the text is made here, by the session that writes them. PostgreSQL
            -- refuses to make more than 1 GB.
            if v_group.widest > v_fits or v_group.packed then
                begin
                    select n.id, octet_length(n.payload::text) as size into v_large
                    from arrived as n
                    where n.queue_id = v_group.queue_id
                      and (pg_column_size(n.payload) > v_fits or pg_column_compression(n.payload) is not null)
                      and octet_length(n.payload::text) > v_text
                    limit 1;
                    if found then
                        perform penstock._refuse_text(format('task %s', v_large.id), v_large.size::text, v_text);
                    end if;
                exception when program_limit_exceeded then
                    perform penstock._refuse_text('a task', '1073741824 or more', v_text);
                end;
            end if;
            if v_group.widest > v_most then
                -- A payload that takes more bytes when stored than its text may have is usually too large. A push has
                -- checked this already; an INSERT has not.
                select n.id, penstock._least_size(n.payload) as size into v_large
                from arrived as n
                where n.queue_id = v_group.queue_id
                  and pg_column_size(n.payload) > v_most and penstock._least_size(n.payload) > v_most
                limit 1;
                if found then
                    perform penstock.refuse('PS413',
                        format('task %s: payload: %s bytes are more than %s', v_large.id, v_large.size, v_most));
                end if;
            end if;
            insert into penstock.counter_log (queue_id, metric, delta)
            select v_group.queue_id, m.metric, v_group.tasks
            from unnest(array['pushed_total', v_group.ended]) as m(metric) where m.metric is not null;
            if v_idle <> '{}' then
                perform penstock._wake(v_queue, v_idle, v_group.tasks);
            end if;
        end loop;
        if v_extra then
            select penstock._extras_fault(n.key, n.meta, n.expires, n.waits_for) as fault into v_group
            from arrived as n
            where penstock._extras_fault(n.key, n.meta, n.expires, n.waits_for) is not null
            limit 1;
            if found then
                perform penstock.refuse('PS400', v_group.fault);
            end if;
            insert into penstock.counter_log (queue_id, metric, delta)
            select n.queue_id, 'waiting', count(*) from arrived as n
            where n.waits_for > 0 and n.ended is null group by n.queue_id;
            insert into penstock.agenda (task_id, due, queue_id, key_id, priority, pending, named)
            select n.id, coalesce(n.due, v_now), n.queue_id, coalesce(k.id, 0), n.priority, n.due is null,
                   n.subject is not null
            from arrived as n
            left join penstock._note_keys(
                array(select a.queue_id from arrived as a where a.key is not null order by a.id),
                array(select a.key from arrived as a where a.key is not null order by a.id)) as k
              on k.queue_id = n.queue_id and k.key = n.key
            where n.ended is null and coalesce(n.waits_for, 0) = 0;
            return null;
        end if;
        -- Every live document gets an agenda row, regardless of how it was written, unless it waits for other tasks.
        -- With a due it is planned, otherwise pending: only the clock of the database decides.
        insert into penstock.agenda (task_id, due, queue_id, priority, pending, named)
        select n.id, coalesce(n.due, v_now), n.queue_id, n.priority, n.due is null, n.subject is not null
        from arrived as n
        where n.ended is null;
    elsif tg_op = 'DELETE' then
        insert into penstock.counter_log (queue_id, metric, delta)
        select o.queue_id, 'removed_total', count(*) from parted as o group by o.queue_id
        union all
        select o.queue_id, coalesce(o.ended, 'waiting'), -count(*) from parted as o
        where o.ended is not null or o.waits_for > 0
        group by o.queue_id, coalesce(o.ended, 'waiting');
    else
        select coalesce(penstock._document_fault(n.priority, n.kind, n.subject, n.payload, n.due, n.ended, n.ended_at),
                        penstock._extras_fault(n.key, n.meta, n.expires, n.waits_for)) as fault
        into v_group
        from arrived as n
        where penstock._document_fault(n.priority, n.kind, n.subject, n.payload, n.due, n.ended, n.ended_at) is not null
           or penstock._extras_fault(n.key, n.meta, n.expires, n.waits_for) is not null
        limit 1;
        if found then
            perform penstock.refuse('PS400', v_group.fault);
        end if;
        insert into penstock.counter_log (queue_id, metric, delta)
        select c.queue_id, m.metric, sum(c.delta)
        from (
            select n.queue_id, coalesce(n.ended, case when n.waits_for > 0 then 'waiting' end) as ended,
                   count(*) as delta
            from arrived as n group by 1, 2
            union all
            select o.queue_id, coalesce(o.ended, case when o.waits_for > 0 then 'waiting' end), -count(*)
            from parted as o group by 1, 2
        ) as c, unnest(array['pushed_total', c.ended]) as m(metric)
        where m.metric is not null
        group by c.queue_id, m.metric
        having sum(c.delta) <> 0;
    end if;
    return null;
end
$$;
CREATE FUNCTION penstock._watermark(p_queue_id integer) RETURNS SETOF penstock.watermark
    LANGUAGE sql STABLE ROWS 1 PARALLEL SAFE
    BEGIN ATOMIC
 SELECT w.queue_id,
     w.sums,
     w.xid,
     w.running,
     w.system,
     w.until,
     w.priorities,
     w.first_due,
     w.first_planned,
     w.next_bound,
     w.next_xid,
     w.looked_at,
     w.quarantine,
     w.quarantine_until
    FROM penstock.watermark w
   WHERE ((w.queue_id >= _watermark.p_queue_id) AND (w.queue_id <= _watermark.p_queue_id))
   ORDER BY w.queue_id DESC
  LIMIT 1;
END;
CREATE TABLE penstock.counter (
    queue_id integer NOT NULL,
    xid bigint DEFAULT 0 NOT NULL,
    metric text NOT NULL COLLATE pg_catalog."C",
    value bigint NOT NULL
);
COMMENT ON COLUMN penstock.counter.xid IS 'the transaction that wrote it; watermark.sums says which sums are valid';
CREATE TABLE penstock.counter_log (
    queue_id integer NOT NULL,
    metric text NOT NULL COLLATE pg_catalog."C",
    delta bigint NOT NULL,
    xid bigint DEFAULT ((pg_current_xact_id())::text)::bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='1000');
CREATE FUNCTION penstock._counter_rows(p_queue_id integer, p_system bigint) RETURNS TABLE(metric text, value bigint)
    LANGUAGE sql STABLE PARALLEL SAFE
    BEGIN ATOMIC
 SELECT s.metric,
     s.value
    FROM (penstock._watermark(_counter_rows.p_queue_id) b(queue_id, sums, xid, running, system, until, priorities, first_due, first_planned, next_bound, next_xid, looked_at, quarantine, quarantine_until)
      CROSS JOIN LATERAL ( SELECT c.metric,
             c.value
            FROM penstock.counter c
           WHERE ((c.queue_id = b.queue_id) AND (c.xid = b.sums))
         UNION ALL
          SELECT l.metric,
             l.delta
            FROM penstock.counter_log l
           WHERE ((l.queue_id = b.queue_id) AND (l.xid >=
                 CASE
                     WHEN (b.system = _counter_rows.p_system) THEN b.xid
                     ELSE (0)::bigint
                 END))
         UNION ALL
          SELECT l.metric,
             l.delta
            FROM (unnest(b.running) r(xid)
              JOIN penstock.counter_log l ON (((l.queue_id = b.queue_id) AND (l.xid = r.xid))))
           WHERE (b.system = _counter_rows.p_system)) s);
END;
CREATE FUNCTION penstock._damaged_rows(p_queue_id integer) RETURNS TABLE(what text, rows bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
    select 'waiting with a priority or a count out of range', count(*)
    from (    -- by the two indexes of the queue
        select w.* from penstock.agenda as w where w.queue_id = p_queue_id and w.pending
        union all
        select w.* from penstock.agenda as w where w.queue_id = p_queue_id and not w.pending
    ) as a
    where a.priority not between -100 and 100 or a.attempts < 0 or a.key_id < 0
    having count(*) > 0
    union all
    select 'leased in columns of different lengths', count(*)
    from penstock.lease as l
    where l.queue_id = p_queue_id
      and (cardinality(l.ids), cardinality(l.ids), cardinality(l.ids), cardinality(l.ids), cardinality(l.ids))
       <> (length(l.open), cardinality(l.dues), coalesce(cardinality(l.attempts), cardinality(l.ids)),
           coalesce(cardinality(l.quarantines), cardinality(l.ids)),
           coalesce(cardinality(l.key_ids), cardinality(l.ids)))
    having count(*) > 0
$$;
CREATE FUNCTION penstock._describe_end(p_id bigint, p_end bigint, p_queue_id integer, p_kind text, p_subject text, p_payload jsonb, p_attempts integer, p_reason text, p_error_class text, p_error text, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET "TimeZone" TO 'UTC'
    AS $$
    select jsonb_build_object(
        'id', p_id, 'end', p_end, 'queue', q.name, 'kind', p_kind, 'subject', p_subject, 'payload', p_payload,
        'outcome', case when p_reason is null then 'done' else 'dead' end, 'attempts', p_attempts,
        'reason', left(p_reason, 200), 'error_class', p_error_class, 'error', p_error, 'ended_at', p_now)
    from penstock.queue as q where q.id = p_queue_id
$$;
CREATE FUNCTION penstock._distance(p_one text, p_other text, p_most integer) RETURNS integer
    LANGUAGE plpgsql IMMUTABLE STRICT
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_one   text[] := string_to_array(p_one, null);
    v_other text[] := string_to_array(p_other, null);
    v_row   int[];
    v_next  int[];
    v_least int;
begin
    while v_one[1] = v_other[1] loop
        v_one := v_one[2:];
        v_other := v_other[2:];
    end loop;
    while v_one[cardinality(v_one)] = v_other[cardinality(v_other)] loop
        v_one := v_one[:cardinality(v_one) - 1];
        v_other := v_other[:cardinality(v_other) - 1];
    end loop;
    v_row := array(select generate_series(0, cardinality(v_other)));
    for i in 1 .. cardinality(v_one) loop
        v_next := array[i];
        v_least := i;
        for j in 1 .. cardinality(v_other) loop
            v_next[j + 1] := least(v_next[j] + 1, v_row[j + 1] + 1, v_row[j] + (v_one[i] <> v_other[j])::int);
            v_least := least(v_least, v_next[j + 1]);
        end loop;
        if v_least > p_most then
            return v_least;
        end if;
        v_row := v_next;
    end loop;
    return v_row[cardinality(v_other) + 1];
end
$$;
CREATE FUNCTION penstock._document_fault(p_priority smallint, p_kind text, p_subject text, p_payload jsonb, p_due timestamp with time zone, p_ended text, p_ended_at timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN ((p_priority < '-100'::integer) OR (p_priority > 100)) THEN (('priority: '::text || p_priority) || ' is not between -100 and 100'::text) WHEN ((octet_length(p_kind) < 1) OR (octet_length(p_kind) > 128)) THEN (('kind: '::text || octet_length(p_kind)) || ' bytes are not between 1 and 128'::text) WHEN ((octet_length(p_subject) < 1) OR (octet_length(p_subject) > 512)) THEN (('subject: '::text || octet_length(p_subject)) || ' bytes are not between 1 and 512'::text) WHEN (jsonb_typeof(p_payload) <> 'object'::text) THEN 'payload: it is not a JSON object'::text WHEN ((p_due < '0001-01-02 00:00:00+00'::timestamp with time zone) OR (p_due > '9999-12-30 00:00:00+00'::timestamp with time zone)) THEN (('due: '::text || p_due) || ' is not between 0001-01-02 and 9999-12-30'::text) WHEN (p_ended <> ALL (ARRAY['done'::text, 'dead'::text, 'cancelled'::text])) THEN (('ended: '::text || "left"(p_ended, 80)) || ' is not done, dead or cancelled'::text) WHEN ((p_ended IS NULL) <> (p_ended_at IS NULL)) THEN 'ended_at: it is given just when the task has ended'::text ELSE NULL::text END;
CREATE FUNCTION penstock._drop_audit(p_before timestamp with time zone, p_limit integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock._drop_day(p_relation regclass, p_day date, p_below bigint) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    SET lock_timeout TO '50ms'
    AS $$
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
CREATE FUNCTION penstock._drop_decisions(p_before timestamp with time zone, p_limit integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock._drop_history(p_before timestamp with time zone, OUT rows bigint, OUT more boolean) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $$
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
CREATE FUNCTION penstock._drop_ledger(p_before timestamp with time zone, p_limit integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
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
CREATE FUNCTION penstock._drop_rejects(p_before timestamp with time zone, p_limit integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock._drop_samples(p_before timestamp with time zone, p_limit integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
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
CREATE FUNCTION penstock._drop_throttles(p_before timestamp with time zone, p_limit integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_count bigint;
begin
    delete from penstock.throttle as h
    where h.ctid = any(array(
        select o.ctid from penstock.throttle as o
        where o.until < p_before order by o.until limit p_limit for update skip locked));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
CREATE FUNCTION penstock._end_unstarted(p_queue_id integer, p_limit integer DEFAULT 1000) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET lock_timeout TO '50ms'
    AS $$
declare
    v_now     constant timestamptz := penstock.clock();
    v_found   bigint[];
    v_held    bigint[];
    v_waiting bigint[];
begin
    v_found := array(
        select t.id from penstock.task as t
        where t.queue_id = p_queue_id and t.expires <= v_now and t.expires is not null and t.ended is null
          and (t.waits_for > 0 or exists (select from penstock.agenda as a where a.task_id = t.id))
        order by t.expires limit p_limit);
    if v_found = '{}' then
        return 0;
    end if;
    begin
        v_held := penstock._hold_documents(p_queue_id, v_found);
        -- A push may have given a task another end meanwhile.
        v_held := array(select t.id from penstock.task as t where t.id = any(v_held) and t.expires <= v_now);
        v_waiting := penstock._hold_waiting(v_held);
        return penstock._cancel_unstarted(p_queue_id, v_waiting || penstock._blocked(v_held), v_now);
    exception when lock_not_available then
        return 0;
    end;
end
$$;
CREATE FUNCTION penstock._end_unstarted_all(OUT rows bigint, OUT more boolean) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_now   constant timestamptz := penstock.clock();
    v_ends  constant timestamptz := penstock._part_ends();
    v_queue int;
    v_count int;
begin
    rows := 0;
    more := false;
    for v_queue in
        select q.id
        from penstock.queue as q
        cross join lateral (
            select from penstock.task as t
            where t.queue_id = q.id and t.expires <= v_now and t.expires is not null and t.ended is null
            limit 1
        ) as first
        order by random()
    loop
        -- Once per queue and transaction: all documents are locked by one statement.
        v_count := penstock._end_unstarted(v_queue, 1000);
        rows := rows + v_count;
        more := more or v_count >= 1000;
        if clock_timestamp() > v_ends then
            more := more or rows > 0;
            exit;
        end if;
    end loop;
end
$$;
CREATE FUNCTION penstock._error_fingerprint(p_class text, p_pattern text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN lpad(to_hex(hashtextextended((((COALESCE(p_class, ''::text) || '
'::text) || p_pattern) COLLATE "C"), (0)::bigint)), 16, '0'::text);
CREATE FUNCTION penstock._error_pattern(p_error text, p_reason text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN regexp_replace(regexp_replace(regexp_replace("left"(split_part(COALESCE(p_error, p_reason, ''::text), '
'::text, 1), 300), '''[^'']{0,200}''|"[^"]{0,200}"'::text, '…'::text, 'g'::text), '\m([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|0x[0-9a-f]+|(?=[0-9a-f]*[0-9])[0-9a-f]{12,})\M'::text, '…'::text, 'gi'::text), '\d+([.,:]\d+)*'::text, 'N'::text, 'g'::text);
CREATE FUNCTION penstock._expire(p_queue_id integer, p_limit integer DEFAULT 10000, p_thorough boolean DEFAULT false) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    v_now    constant timestamptz := penstock.clock();
    v_from   timestamptz;
    v_lease  penstock.lease;
    v_leases penstock.lease[];
    v_count  int := 0;
begin
    select l.until into v_from from penstock._watermark(p_queue_id) as l;
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
        v_leases := v_leases || v_lease;
        v_count := v_count + bit_count(v_lease.open);
        exit when v_count >= p_limit;
    end loop;
    if v_leases is null then
        return 0;
    end if;
    return (select sum(b.tasks) from penstock._put_back(v_leases, v_now) as b);
end
$$;
CREATE FUNCTION penstock._expire_all(OUT rows bigint, OUT more boolean) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
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
CREATE FUNCTION penstock._extras_fault(p_key text, p_meta jsonb, p_expires timestamp with time zone, p_waits_for integer) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN ((octet_length(p_key) < 1) OR (octet_length(p_key) > 128)) THEN (('key: '::text || octet_length(p_key)) || ' bytes are not between 1 and 128'::text) WHEN (jsonb_typeof(p_meta) <> 'object'::text) THEN 'meta: it is not a JSON object'::text WHEN ((pg_column_size(p_meta) > 32768) OR (octet_length((p_meta)::text) > 16384)) THEN 'meta: it is larger than 8192 bytes'::text WHEN ((p_expires < '0001-01-02 00:00:00+00'::timestamp with time zone) OR (p_expires > '9999-12-30 00:00:00+00'::timestamp with time zone)) THEN (('expires: '::text || p_expires) || ' is not between 0001-01-02 and 9999-12-30'::text) WHEN (p_waits_for < 0) THEN (('waits_for: '::text || p_waits_for) || ' is less than 0'::text) ELSE NULL::text END;
CREATE FUNCTION penstock._find_subjects(p_queue_id integer, p_subjects text[], p_which integer[]) RETURNS TABLE(n integer, id bigint, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
    return query
    select i.n::int, t.id,
           coalesce(t.ended, case when a.pending then 'pending' when not a.pending then 'planned'
                                  when t.waits_for > 0 then 'waiting' else 'active' end)
    from unnest(p_subjects) with ordinality as i(subject, n)
    cross join lateral (
        select d.id, d.ended, d.waits_for from penstock.task as d
        where d.queue_id = p_queue_id and d.subject = i.subject offset 0
    ) as t
    left join lateral (
        select w.pending from penstock.agenda as w where w.task_id = t.id offset 0
    ) as a on true
    where i.n in (select unnest(p_which));
end
$$;
CREATE FUNCTION penstock._finish(p_lease penstock.lease, p_now timestamp with time zone, p_ids bigint[]) RETURNS bigint[]
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
CREATE FUNCTION penstock._first_of_each(p_queue_id integer, p_first smallint, p_next integer) RETURNS TABLE(priority smallint, due timestamp with time zone)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
    with recursive step as (
        (select a.priority, a.due from penstock.agenda as a
         where a.queue_id = p_queue_id and a.pending and a.priority >= p_first and a.priority < p_next
         order by a.priority, a.due, a.task_id limit 1)
        union all
        select n.priority, n.due
        from step as s
        cross join lateral (
            select a.priority, a.due from penstock.agenda as a
            where a.queue_id = p_queue_id and a.pending and a.priority > s.priority and a.priority < p_next
            order by a.priority, a.due, a.task_id limit 1
        ) as n
    )
    select s.priority, s.due from step as s
$$;
CREATE FUNCTION penstock._fleet_of(p_queue text, p_now timestamp with time zone, OUT workers bigint, OUT slots bigint, OUT free bigint, OUT silent bigint, OUT leaving bigint) RETURNS record
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select count(*) filter (where s.heard and not s.leaves),
           coalesce(sum(s.slots) filter (where s.heard and not s.leaves), 0),
           coalesce(sum(s.slots - s.busy) filter (where s.heard and not s.leaves), 0),
           count(*) filter (where not s.heard), count(*) filter (where s.heard and s.leaves)
    from (
        select w.slots, w.busy, w.beat > p_now - interval '10 seconds' as heard, w.leaving or w.dismissed as leaves
        from penstock.worker as w where p_queue = any(w.queues)
    ) as s
$$;
CREATE FUNCTION penstock._forget_idle(p_before timestamp with time zone) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock._forget_progress(p_limit integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    v_count bigint;
begin
    delete from penstock.progress as p
    where p.task_id = any(array(
        select g.task_id from penstock.progress as g
        where not exists (select from penstock.task as t where t.id = g.task_id)
        limit p_limit));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
CREATE FUNCTION penstock._forget_workers(p_before timestamp with time zone, p_limit integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock._given(p_value text) RETURNS text[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (p_value IS NOT NULL) THEN ARRAY[p_value] ELSE NULL::text[] END;
CREATE FUNCTION penstock._held_elsewhere(p_ids bigint[], p_named_only boolean DEFAULT false) RETURNS bigint[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    v_free bigint[];
begin
    v_free := array(
        select t.id from penstock.task as t
        where t.id = any(p_ids) and (t.subject is not null or not p_named_only)
        order by t.subject collate "C", t.id
        for update skip locked);
    if cardinality(v_free) = cardinality(p_ids) then
        return '{}';
    end if;
    return array(
        select t.id from penstock.task as t
        where t.id = any(p_ids) and (t.subject is not null or not p_named_only)
        except select unnest(v_free));
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
COMMENT ON COLUMN penstock.stream.identity IS 'every checkpoint has it, so that one of another group or of a dropped queue is recognised';
COMMENT ON COLUMN penstock.stream.until IS 'when the driver loses the group, unless it extends its hold';
COMMENT ON COLUMN penstock.stream.tokens IS 'the leases of the last batch; empty: it is settled';
CREATE FUNCTION penstock._held_stream(p_stream integer, p_epoch integer) RETURNS penstock.stream
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_stream penstock.stream;
begin
    -- A driver that freezes before its commit would otherwise keep the group locked without limit.
    perform set_config('idle_in_transaction_session_timeout', '10s', true);
    select * into v_stream from penstock.stream as s where s.id = p_stream for update;
    if not found then
        perform penstock.refuse('PS404',
            format('consumerGroup: there is no group %s any more', coalesce(p_stream::text, 'null')),
            'Its queue was dropped. Begin with a new checkpoint.');
    elsif p_epoch is null or v_stream.epoch <> p_epoch then
        perform penstock.refuse('PS409',
            format('consumerGroup: driver %s has taken over %L', v_stream.driver, v_stream.name),
            'This driver was silent for longer than its lease, or was replaced. '
            'Its tasks now belong to the other driver.');
    end if;
    return v_stream;
end
$$;
CREATE FUNCTION penstock._hidden_tasks(p_queue_id integer) RETURNS bigint
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
    with watermark as materialized (
        select l.priorities, l.first_due, l.first_planned, (
            select min(y.due) from penstock.early as y
            where y.queue_id = l.queue_id and y.xid >= coalesce(l.running[1], l.xid)) as early
        from penstock.watermark as l where l.queue_id = p_queue_id
    )
    select (select count(*) from watermark as l
            cross join lateral penstock._priority_ranges(l.priorities, l.first_due) as b
            cross join lateral (
                select from penstock.agenda as a
                where a.queue_id = p_queue_id and a.pending
                  and a.priority >= b.first and a.priority < b.next and a.due < least(b.due, l.early)
            ) as p)
         + (select count(*) from watermark as l
            join penstock.agenda as a
              on a.queue_id = p_queue_id and not a.pending and a.due < least(l.first_planned, l.early))
$$;
CREATE FUNCTION penstock._history_days(p_before timestamp with time zone) RETURNS TABLE(day date, relation regclass)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $_$
    select d.day, d.relation
    from (
        select to_date(right(c.relname, 8), 'YYYYMMDD') as day, c.oid::regclass as relation
        from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
        where i.inhparent = 'penstock.history'::regclass and c.relname ~ '^history_[0-9]{8}$'
    ) as d
    where d.day + 1 <= p_before::date
    order by d.day
$_$;
CREATE FUNCTION penstock._hold_documents(p_queue_id integer, p_ids bigint[], p_ended_at timestamp with time zone[] DEFAULT NULL::timestamp with time zone[]) RETURNS bigint[]
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
    select array(
        select t.id
        from penstock.task as t join unnest(p_ids, p_ended_at) as c(id, ended_at) on c.id = t.id
        where t.id = any(p_ids)
          and (p_queue_id is null or t.queue_id = p_queue_id)
          and t.ended_at is not distinct from c.ended_at
        order by t.subject collate "C", t.id
        for update of t skip locked)
$$;
CREATE FUNCTION penstock._hold_leased(p_queue_id integer, p_ids bigint[]) RETURNS bigint[]
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_nestloop TO 'off'
    AS $$
    with held as materialized (
        select l.ids, l.open
        from penstock.lease as l
        where l.token in (
            select f.token
            from penstock.lease as f cross join lateral unnest(f.ids) as h(id)
            join unnest(p_ids) as a(id) on a.id = h.id
            where f.queue_id = p_queue_id)
        for update skip locked
    )
    select coalesce(array_agg(o.id), '{}')
    from held as l cross join lateral unnest(l.ids) with ordinality as o(id, n)
    join unnest(p_ids) as a(id) on a.id = o.id
    where get_bit(l.open, o.n::int - 1) = 1
$$;
CREATE FUNCTION penstock._hold_waiting(p_ids bigint[]) RETURNS bigint[]
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
    select array(select a.task_id from penstock.agenda as a where a.task_id = any(p_ids) for update skip locked)
$$;
CREATE TABLE penstock.sample (
    queue_id integer NOT NULL,
    at timestamp with time zone NOT NULL,
    waiting bigint DEFAULT 0 NOT NULL,
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
COMMENT ON TABLE penstock.sample IS 'every ten seconds; of an idle queue every ten minutes, and before and after each change';
COMMENT ON COLUMN penstock.sample.at IS 'start of the ten-second bucket';
CREATE FUNCTION penstock._idle_between(p_one penstock.sample, p_next penstock.sample) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN (((p_one).oldest_age IS NULL) AND ((p_next).oldest_age IS NULL) AND (NOT (((((((((((p_one).waiting IS DISTINCT FROM (p_next).waiting) OR ((p_one).planned IS DISTINCT FROM (p_next).planned)) OR ((p_one).pending IS DISTINCT FROM (p_next).pending)) OR ((p_one).active IS DISTINCT FROM (p_next).active)) OR ((p_one).done IS DISTINCT FROM (p_next).done)) OR ((p_one).dead IS DISTINCT FROM (p_next).dead)) OR ((p_one).cancelled IS DISTINCT FROM (p_next).cancelled)) OR ((p_one).sla IS DISTINCT FROM (p_next).sla)) OR ((p_one).workers IS DISTINCT FROM (p_next).workers)) OR ((p_one).totals IS DISTINCT FROM (p_next).totals))));
CREATE FUNCTION penstock._in_seconds(p_length interval) RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN ((p_length >= '-100 years'::interval) AND (p_length <= '100 years'::interval)) THEN make_interval(secs => (EXTRACT(epoch FROM p_length))::double precision) ELSE p_length END;
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
    error text
)
PARTITION BY RANGE (finished_at);
CREATE FUNCTION penstock._in_short(p_attempt penstock.history) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN CASE WHEN ((p_attempt).task_id IS NOT NULL) THEN jsonb_build_object('attempt', (p_attempt).attempt, 'outcome', (p_attempt).outcome, 'worker', (p_attempt).worker, 'finished_at', (p_attempt).finished_at, 'error_class', (p_attempt).error_class) ELSE NULL::jsonb END;
CREATE FUNCTION penstock._is_number(p_value jsonb, p_least numeric, p_most numeric) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (jsonb_typeof(p_value) = 'number'::text) THEN (((p_value)::numeric >= p_least) AND ((p_value)::numeric <= p_most)) ELSE false END;
CREATE FUNCTION penstock._join_lines(p_old jsonb, p_new jsonb, p_known integer) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN (SELECT COALESCE(jsonb_agg(l.line ORDER BY l.o), '[]'::jsonb) AS "coalesce" FROM (SELECT e.line, e.o FROM jsonb_array_elements((_join_lines.p_old || (SELECT COALESCE(jsonb_agg(w.line ORDER BY w.o), '[]'::jsonb) AS "coalesce" FROM jsonb_array_elements(_join_lines.p_new) WITH ORDINALITY w(line, o) WHERE (((w.line ->> 'n'::text))::integer > _join_lines.p_known)))) WITH ORDINALITY e(line, o) ORDER BY e.o DESC LIMIT 100) l);
CREATE FUNCTION penstock._keep_branch() RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE TABLE penstock.retention (
    what text NOT NULL COLLATE pg_catalog."C",
    keep interval,
    CONSTRAINT keep_is_long_enough CHECK ((keep >= '1 day'::interval))
);
CREATE FUNCTION penstock._keeps(p_what text) RETURNS interval
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN (SELECT r.keep FROM penstock.retention r WHERE (r.what = _keeps.p_what));
CREATE TABLE penstock.key (
    id integer NOT NULL,
    queue_id integer NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    CONSTRAINT key_fits CHECK (((octet_length(key) >= 1) AND (octet_length(key) <= 128)))
);
CREATE FUNCTION penstock._key_id(p_queue_id integer, p_key text) RETURNS integer
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN (p_key IS NULL) THEN 0 ELSE COALESCE((SELECT k.id FROM penstock.key k WHERE ((k.queue_id = _key_id.p_queue_id) AND (k.key = _key_id.p_key))), 0) END;
CREATE FUNCTION penstock.largest_payload(p_queue penstock.queue) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN COALESCE((((p_queue).settings ->> 'max_payload'::text))::bigint, (1048576)::bigint);
CREATE FUNCTION penstock._largest_text(p_queue penstock.queue) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN GREATEST((64 * penstock.largest_payload(p_queue)), (4194304)::bigint);
CREATE FUNCTION penstock._last_attempts(p_id bigint, p_since timestamp with time zone, p_limit integer) RETURNS SETOF penstock.history
    LANGUAGE sql STABLE SECURITY DEFINER ROWS 10
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'on'
    AS $$
    select h.* from penstock.history as h
    where h.task_id = p_id
      -- An hour, because the clock may have been set back meanwhile.
      and h.finished_at >= coalesce(p_since - interval '1 hour', '-infinity')
    order by h.finished_at desc, h.id desc
    limit p_limit
$$;
CREATE FUNCTION penstock._lease_fits(p_lease interval) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ((penstock._in_seconds(p_lease) >= '00:00:00.1'::interval) AND (penstock._in_seconds(p_lease) <= '24:00:00'::interval));
CREATE FUNCTION penstock._lease_of(p_queue_id integer, p_id bigint) RETURNS TABLE(worker text, claimed_at timestamp with time zone, until timestamp with time zone, due timestamp with time zone, attempt integer)
    LANGUAGE sql STABLE SECURITY DEFINER ROWS 1
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
    select l.worker, l.claimed_at,
           greatest(l.until, l.claimed_at),    -- after a restore, leases of the other cluster end at -infinity
           l.dues[o.n], coalesce(l.attempts[o.n], 0) + 1
    from penstock.lease as l
    cross join lateral (select array_position(l.ids, p_id) as n offset 0) as o
    where l.queue_id = p_queue_id
      and l.until >= coalesce((select w.until from penstock._watermark(p_queue_id) as w), '-infinity')
      and get_bit(l.open, o.n - 1) = 1
$$;
CREATE FUNCTION penstock._lease_out(p_token uuid, p_queue_id integer, p_now timestamp with time zone, p_until timestamp with time zone, p_worker text, p_alone boolean, p_picks penstock.picks) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
    insert into penstock.lease (token, claimed_at, until, queue_id, alone, named, worker, open, ids, dues, attempts,
                                quarantines, key_ids)
    values (p_token, p_now, p_until, p_queue_id, p_alone, p_picks.named, p_worker,
            repeat('1', cardinality(p_picks.ids))::varbit, p_picks.ids, p_picks.dues,
            case when p_picks.tried then p_picks.attempts end, case when p_picks.tried then p_picks.quarantines end,
            case when p_picks.keyed then p_picks.key_ids end);
    if exists (select from penstock._watermark(p_queue_id) as l where l.until > p_until) then
        update penstock.watermark as l set until = p_until where l.queue_id = p_queue_id and l.until > p_until;
    end if;
end
$$;
CREATE FUNCTION penstock._least_size(p_payload jsonb) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN GREATEST(octet_length(replace(replace(replace((p_payload)::text, ', '::text, ','::text), '": '::text, '":'::text), '00'::text, ''::text)), ((pg_column_size(p_payload) - 64) / 6));
CREATE FUNCTION penstock._left_out(p_queue_id integer, p_ids bigint[], p_held bigint[], p_taken bigint[]) RETURNS TABLE(id bigint, result text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
#variable_conflict use_column
begin
    return query
    select g.id, case
        when t.id is null then 'unknown'
        when t.ended is not null then 'ended'
        when h.id is not null and a.task_id is null and not t.blocked then 'active'
        else 'busy' end
    from (select unnest(p_ids) except select unnest(p_taken)) as g(id)
    left join unnest(p_held) as h(id) on h.id = g.id
    left join (
        select d.id, d.ended, coalesce(d.waits_for, 0) > 0 as blocked
        from penstock.task as d where d.id = any(p_ids) and d.queue_id = p_queue_id
    ) as t on t.id = g.id
    left join (select w.task_id from penstock.agenda as w where w.task_id = any(p_ids)) as a on a.task_id = g.id;
end
$$;
CREATE FUNCTION penstock._lock_documents(p_ids bigint[], p_named_only boolean) RETURNS void
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
CREATE FUNCTION penstock._make_history(p_day date) RETURNS boolean
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
CREATE FUNCTION penstock._miss_schedule(p_name text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform penstock.refuse(
        'PS404', format('schedule %s does not exist', coalesce(quote_literal(left(p_name, 80)), 'null')),
        coalesce('Did you mean ' || quote_literal(penstock._nearest_schedule(p_name)) || '?',
                 '`penstock schedules ls` lists them.'));
end
$$;
CREATE FUNCTION penstock._move_bounds(p_watermark penstock.watermark, p_snapshot pg_snapshot, p_now timestamp with time zone) RETURNS penstock.watermark
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
    p_watermark := penstock._split_ranges(p_watermark);
    if p_watermark.next_xid > pg_snapshot_xmin(p_snapshot)::text::bigint then
        return p_watermark;
    end if;
    if p_watermark.next_bound > p_watermark.until then
        p_watermark.until := coalesce(
            (select min(l.until) from penstock.lease as l
             where l.queue_id = p_watermark.queue_id and l.until >= p_watermark.until
               and l.until < p_watermark.next_bound),
            p_watermark.next_bound);
    end if;
    if p_watermark.next_bound > p_watermark.first_planned then
        p_watermark.first_planned := coalesce(
            (select min(a.due) from penstock.agenda as a
             where a.queue_id = p_watermark.queue_id and not a.pending
               and a.due >= p_watermark.first_planned and a.due < p_watermark.next_bound),
            p_watermark.next_bound);
    end if;
    if p_watermark.next_bound is not null then
        p_watermark.first_due := array(
            select case when r.many then '-infinity' when r.due >= p_watermark.next_bound then r.due
                        else coalesce(f.due, p_watermark.next_bound) end
            from penstock._priority_ranges(p_watermark.priorities, p_watermark.first_due) as r
            left join lateral (
                select a.due from penstock.agenda as a
                where not r.many and a.queue_id = p_watermark.queue_id and a.pending and a.priority = r.first
                  and a.due >= r.due and a.due < p_watermark.next_bound
                order by a.due, a.task_id limit 1
            ) as f on true
            order by r.first);
    end if;
    p_watermark.next_bound := p_now - interval '2 seconds';
    p_watermark.next_xid := pg_snapshot_xmax(p_snapshot)::text::bigint;
    return p_watermark;
end
$$;
CREATE FUNCTION penstock._nearest(p_name text, p_names text[]) RETURNS text
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN (WITH meant AS (SELECT m_1.name, length(m_1.name) AS size, GREATEST(2, (length(m_1.name) / 3)) AS most FROM (VALUES ("left"(_nearest.p_name, 80))) m_1(name)), likely AS MATERIALIZED (SELECT n.name FROM ((meant m_1 CROSS JOIN unnest(_nearest.p_names) n(name)) CROSS JOIN LATERAL (SELECT GREATEST(abs((length(n.name) - m_1.size)), (((length(translate(n.name, m_1.name, ''::text)) + length(translate(m_1.name, n.name, ''::text))) + 1) / 2)) AS bound, ((((("left"(n.name, (m_1.size / 2)) = "left"(m_1.name, (m_1.size / 2))))::integer + (("right"(n.name, (m_1.size / 2)) = "right"(m_1.name, (m_1.size / 2))))::integer) + (("left"(n.name, (m_1.size / 3)) = "left"(m_1.name, (m_1.size / 3))))::integer) + (("right"(n.name, (m_1.size / 3)) = "right"(m_1.name, (m_1.size / 3))))::integer) AS alike) b) WHERE (b.bound <= m_1.most) ORDER BY b.alike DESC, b.bound, n.name LIMIT 20) SELECT l.name FROM ((meant m CROSS JOIN likely l) CROSS JOIN LATERAL (SELECT penstock._distance(m.name, l.name, m.most) AS steps) d) WHERE (d.steps <= m.most) ORDER BY d.steps, l.name LIMIT 1);
CREATE FUNCTION penstock._nearest_queue(p_name text) RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN penstock._nearest(p_name, ARRAY(SELECT q.name FROM penstock.queue q ORDER BY q.name LIMIT 10000));
CREATE FUNCTION penstock._nearest_schedule(p_name text) RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select penstock._nearest(
        p_name, array(select left(s.name, 80) from penstock.schedule as s order by s.name limit 10000))
$$;
CREATE FUNCTION penstock._note_audit(p_verb text, p_queue text, p_detail jsonb) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    insert into penstock.audit (actor, verb, queue, detail)
    values (session_user, p_verb, p_queue, p_detail || jsonb_strip_nulls(jsonb_build_object(
        'via', nullif(left(current_setting('penstock.via', true), 40), ''),
        'user', nullif(left(current_setting('penstock.actor', true), 200), ''))))
$$;
CREATE FUNCTION penstock._note_beat(p_worker text, p_queues text[], p_queue_set bigint, p_slots integer, p_busy integer, p_host text, p_pid integer, p_requested_at timestamp with time zone, p_started_by text, p_leaving boolean, p_listens boolean) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now       constant timestamptz := penstock.clock();
    v_idle      constant boolean := p_listens and p_busy < p_slots and not p_leaving;
    v_full      constant boolean := p_listens and p_busy >= p_slots and not p_leaving;
    v_was_full  boolean;
    v_set       bigint;
    v_dismissed boolean;
begin
    perform penstock._check_beat(p_worker, p_queues, p_slots, p_busy, p_host, p_started_by, p_leaving, p_listens);
    select w.busy >= w.slots into v_was_full from penstock.worker as w where w.name = p_worker;
    insert into penstock.worker as w (name, host, pid, queues, slots, busy, requested_at, started_at, first_claim_at,
                                      beat, started_by, leaving, queue_set)
    values (p_worker, p_host, p_pid, p_queues, p_slots, p_busy, coalesce(p_requested_at, v_now), v_now,
            case when p_busy > 0 then v_now end, v_now, p_started_by, p_leaving, p_queue_set)
    on conflict (name) do update
    set host = excluded.host, pid = excluded.pid, queues = excluded.queues, slots = excluded.slots,
        busy = excluded.busy, first_claim_at = coalesce(w.first_claim_at, excluded.first_claim_at),
        beat = excluded.beat, started_by = excluded.started_by,
        leaving = excluded.leaving, queue_set = excluded.queue_set
    returning w.dismissed or (p_started_by is not null and v_now - w.started_at > interval '10 minutes' and not exists (
        select from penstock.scaling as s
        where s.queue = any(p_queues) and s.decided_at > v_now - interval '10 minutes'))
    into v_dismissed;
    -- The row is read first: a row that is already right is neither written nor locked. A worker that is full keeps its
    -- row until it was full for a whole beat, and passes on the wake-ups that it gets meanwhile. Otherwise workers that
    -- are repeatedly full for a moment would leave dead rows, and under a held snapshot every push would walk over
    -- them.
    select i.queue_set into v_set from penstock.idle_worker as i where i.worker = p_worker;
    if found and v_full and v_was_full is not true then
        null;
    elsif found and not v_idle then
        delete from penstock.idle_worker as i where i.worker = p_worker;
    elsif v_idle and v_set is distinct from p_queue_set then
        insert into penstock.idle_worker as i (worker, queue_set, channel)
        values (p_worker, p_queue_set, penstock._channel_number(p_worker))
        on conflict (worker) do update set queue_set = excluded.queue_set;
    end if;
    return v_dismissed;
end
$$;
CREATE FUNCTION penstock._note_follows_done(p_queue_id integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
begin
    perform from penstock.queue as q where q.id = p_queue_id for no key update;
    update penstock.queue as q
    set follows_done = not q.follows_done
    where q.id = p_queue_id
      and q.follows_done <> exists (
          select from penstock.kind as k where k.queue_id = p_queue_id and k.on_done is not null);
end
$$;
CREATE FUNCTION penstock._note_keys(p_queue_ids integer[], p_keys text[]) RETURNS TABLE(queue_id integer, key text, id integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
#variable_conflict use_column
begin
    -- A key that exists is not inserted: each attempt would use up a number.
    insert into penstock.key (queue_id, key)
    select distinct g.queue_id, g.key collate "C" as key
    from unnest(p_queue_ids, p_keys) as g(queue_id, key)
    where g.key is not null
      and not exists (select from penstock.key as k where k.queue_id = g.queue_id and k.key = g.key)
    order by g.queue_id, key
    on conflict do nothing;
    return query
    select k.queue_id, k.key, k.id
    from (select distinct u.queue_id, u.key from unnest(p_queue_ids, p_keys) as u(queue_id, key)) as g
    cross join lateral (
        select f.queue_id, f.key, f.id from penstock.key as f
        where f.queue_id = g.queue_id and f.key = g.key offset 0
    ) as k;
end
$$;
CREATE FUNCTION penstock._note_queue_set(p_ids integer[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_set constant bigint := hashtextextended(p_ids::text collate "C", 0);
begin
    if not exists (select from penstock.queue_set as s where s.id = v_set) then
        insert into penstock.queue_set (queue_id, id)
        select q.id, v_set from unnest(p_ids) as q(id) on conflict do nothing;
    end if;
    return v_set;
end
$$;
CREATE FUNCTION penstock._safe_text(p_text text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN CASE WHEN (p_text IS NULL) THEN NULL::text ELSE regexp_replace(CASE WHEN (octet_length(p_text) <= 8192) THEN p_text WHEN (octet_length("left"(p_text, 8000)) <= 8000) THEN ("left"(p_text, 8000) || ' … (cut)'::text) ELSE ("left"(p_text, 2000) || ' … (cut)'::text) END, '[\x01-\x08\x0B-\x1F\x7F\u0080-\u009F]'::text, '?'::text, 'g'::text) END;
CREATE FUNCTION penstock._note_text(p_text text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN penstock._safe_text(CASE WHEN (length(p_text) > 200) THEN ("left"(p_text, 199) || '…'::text) ELSE p_text END);
CREATE FUNCTION penstock._number_keys(p_queue_id integer, p_keys text[]) RETURNS integer[]
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select array_agg(coalesce(k.id, 0) order by g.n)
    from unnest(p_keys) with ordinality as g(key, n)
    left join penstock._note_keys(array_fill(p_queue_id, array[cardinality(p_keys)]), p_keys) as k on k.key = g.key
$$;
CREATE FUNCTION penstock._open_tasks(p_tokens uuid[]) RETURNS integer
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
    select coalesce(sum(bit_count(l.open)), 0)::int from penstock.lease as l where l.token = any(p_tokens)
$$;
CREATE FUNCTION penstock._page_candidates(p_queue_id integer, p_state text, p_after jsonb, p_most integer) RETURNS TABLE(id bigint, place jsonb)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
#variable_conflict use_column
begin
    if p_state = 'pending' then
        return query
        select a.task_id, jsonb_build_array(a.priority, a.due, a.task_id)
        from penstock.agenda as a
        where a.queue_id = p_queue_id and a.pending
          and (p_after is null or (a.priority, a.due, a.task_id)
               > ((p_after->>0)::smallint, (p_after->>1)::timestamptz, (p_after->>2)::bigint))
        order by a.priority, a.due, a.task_id limit p_most;
    elsif p_state = 'planned' then
        return query
        select a.task_id, jsonb_build_array(a.due, a.task_id)
        from penstock.agenda as a
        where a.queue_id = p_queue_id and not a.pending
          and (p_after is null or (a.due, a.task_id) > ((p_after->>0)::timestamptz, (p_after->>1)::bigint))
        order by a.due, a.task_id limit p_most;
    elsif p_state in ('done', 'dead', 'cancelled') then
        return query
        select t.id, jsonb_build_array(t.ended_at, t.id)
        from penstock.task as t
        where t.queue_id = p_queue_id and t.ended = p_state
          and (p_after is null or (t.ended_at, t.id) < ((p_after->>0)::timestamptz, (p_after->>1)::bigint))
        order by t.ended_at desc, t.id desc limit p_most;
    elsif p_state = 'active' then
        return query
        select o.id, jsonb_build_array(o.id)
        from penstock.lease as l cross join lateral unnest(l.ids) with ordinality as o(id, n)
        where l.queue_id = p_queue_id and get_bit(l.open, o.n::int - 1) = 1
          and (p_after is null or o.id < (p_after->>0)::bigint)
        order by o.id desc limit p_most;
    else
        return query
        select t.id, jsonb_build_array(t.id)
        from (
            select d.id, d.queue_id from penstock.task as d
            where p_after is null or d.id < (p_after->>0)::bigint
            order by d.id desc limit p_most
        ) as t
        order by t.id desc;
    end if;
end
$$;
CREATE FUNCTION penstock._part_ends() RETURNS timestamp with time zone
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN (clock_timestamp() + LEAST('00:00:00.2'::interval, (NULLIF((current_setting('statement_timeout'::text))::interval, '00:00:00'::interval) / (4)::double precision)));
CREATE FUNCTION penstock._pass_keeper(p_pass integer) RETURNS integer
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select l.pid
    from pg_locks as l join pg_database as d on d.oid = l.database
    where l.locktype = 'advisory' and l.classid = 1346719304 and l.objid = p_pass::oid and l.objsubid = 2 and l.granted
      and d.datname = current_database()
    limit 1
$$;
CREATE FUNCTION penstock._pause_of(p_queue penstock.queue) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET "TimeZone" TO 'UTC'
    AS $$
    select jsonb_build_object('since', min(p.at), 'actor', (array_agg(p.actor order by p.id))[1])
    from penstock.audit as p
    where p.verb = 'set' and p.detail ? 'paused' and p.queue = p_queue.name and p.at >= p_queue.created
      and p.id > coalesce((
          select r.id from penstock.audit as r
          where r.verb = 'set' and r.detail ? 'paused' and r.queue = p_queue.name
            and not (r.detail->>'paused')::boolean
          order by r.id desc limit 1), 0)
$$;
CREATE FUNCTION penstock._pick(p_queue_id integer, p_hint penstock.place, p_limit integer, p_quarantined boolean) RETURNS penstock.picks
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
declare
    v_picks penstock.picks;
begin
    if p_hint.task_id > 0 then
        with chosen as materialized (
            select a.ctid as place, a.task_id, a.due, a.attempts, a.quarantine, a.key_id, a.named
            from penstock.agenda as a
            where a.queue_id = p_queue_id
              and a.pending
              and (a.priority, a.due, a.task_id) >= (p_hint.priority, p_hint.due, p_hint.task_id)
              and (p_quarantined or a.quarantine >= 0)
            order by a.priority, a.due, a.task_id
            limit p_limit
            for update skip locked
        )
        select array_agg(c.place), array_agg(c.task_id), array_agg(c.due), array_agg(c.attempts),
               array_agg(c.quarantine), array_agg(c.key_id), bool_or(c.named),
               bool_or(c.attempts > 0 or c.quarantine <> 0), max(c.key_id) > 0
        into v_picks
        from chosen as c;
    else
        -- One range of priorities after the other, each from its own bound.
        with chosen as materialized (
            select c.*
            from penstock._watermark(p_queue_id) as l
            cross join lateral (
                select min(y.due) as due from penstock.early as y
                where y.queue_id = l.queue_id and y.xid >= coalesce(l.running[1], l.xid)
            ) as e
            cross join lateral penstock._priority_ranges(l.priorities, l.first_due) as b
            cross join lateral (
                select a.ctid as place, a.task_id, a.due, a.attempts, a.quarantine, a.key_id, a.named
                from penstock.agenda as a
                where a.queue_id = p_queue_id
                  and a.pending
                  and (a.priority, a.due) >= (b.first, least(b.due, e.due))
                  and a.priority < b.next
                  and (p_quarantined or a.quarantine >= 0)
                order by a.priority, a.due, a.task_id
                limit p_limit
                for update skip locked
            ) as c
            limit p_limit
        )
        select array_agg(c.place), array_agg(c.task_id), array_agg(c.due), array_agg(c.attempts),
               array_agg(c.quarantine), array_agg(c.key_id), bool_or(c.named),
               bool_or(c.attempts > 0 or c.quarantine <> 0), max(c.key_id) > 0
        into v_picks
        from chosen as c;
    end if;
    return v_picks;
end
$$;
CREATE FUNCTION penstock._pick_aged(p_queue penstock.queue, p_limit integer, p_quarantined boolean) RETURNS penstock.picks
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'on'
    AS $$
declare
    v_most  int := p_limit;    -- tasks to read of each priority
    v_found bigint[];
    v_picks penstock.picks;
begin
    for v_round in 1 .. 4 loop
        v_found := array(
            select c.task_id
            from penstock._watermark(p_queue.id) as l
            cross join lateral (
                select min(y.due) as due from penstock.early as y
                where y.queue_id = l.queue_id and y.xid >= coalesce(l.running[1], l.xid)
            ) as e
            cross join lateral penstock._priority_ranges(l.priorities, l.first_due) as b
            cross join lateral (
                select a.task_id, a.due + a.priority * p_queue.priority_step as rank
                from penstock.agenda as a
                where a.queue_id = p_queue.id
                  and a.pending
                  and (a.priority, a.due) >= (b.first, least(b.due, e.due))
                  and a.priority < b.next
                  and (p_quarantined or a.quarantine >= 0)
                order by a.priority, a.due, a.task_id
                limit v_most
            ) as c
            order by c.rank, c.task_id
            limit v_most);
        with chosen as materialized (
            select a.ctid as place, a.task_id, a.due, a.attempts, a.quarantine, a.key_id, a.named
            from unnest(v_found) with ordinality as f(id, n)
            join penstock.agenda as a on a.task_id = f.id and a.pending
            order by f.n
            limit p_limit
            for update of a skip locked
        )
        select array_agg(c.place), array_agg(c.task_id), array_agg(c.due), array_agg(c.attempts),
               array_agg(c.quarantine), array_agg(c.key_id), bool_or(c.named),
               bool_or(c.attempts > 0 or c.quarantine <> 0), max(c.key_id) > 0
        into v_picks
        from chosen as c;
        exit when cardinality(v_picks.ids) = p_limit or cardinality(v_found) < v_most;
        v_most := 4 * v_most;
    end loop;
    return v_picks;
end
$$;
CREATE FUNCTION penstock._pick_quarantined(p_queue_id integer) RETURNS penstock.picks
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
declare
    v_picks penstock.picks;
begin
    with chosen as materialized (
        select a.ctid as place, a.task_id, a.due, a.attempts, a.quarantine, a.key_id, a.named
        from penstock.agenda as a
        where a.queue_id = p_queue_id and a.pending and a.quarantine < 0
        order by a.priority, a.due, a.task_id
        limit 1
        for update skip locked
    )
    select array[c.place], array[c.task_id], array[c.due], array[c.attempts], array[c.quarantine], array[c.key_id],
           c.named, true, c.key_id > 0
    into v_picks
    from chosen as c;
    return v_picks;
end
$$;
CREATE FUNCTION penstock._priority_ranges(p_priorities smallint[], p_first_due timestamp with time zone[]) RETURNS TABLE(first smallint, next integer, many boolean, due timestamp with time zone)
    LANGUAGE sql IMMUTABLE ROWS 3 PARALLEL SAFE
    BEGIN ATOMIC
 SELECT r.first,
     COALESCE(((_priority_ranges.p_priorities)[(r.n + 1)])::integer, 32768) AS "coalesce",
     ((COALESCE(((_priority_ranges.p_priorities)[(r.n + 1)])::integer, 32768) - r.first) > 1),
     r.due
    FROM UNNEST(_priority_ranges.p_priorities, _priority_ranges.p_first_due) WITH ORDINALITY r(first, due, n);
END;
CREATE FUNCTION penstock._promote(p_queue_id integer, p_limit integer DEFAULT 10000) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    v_until timestamptz := penstock.clock();
    v_from  timestamptz;
    v_count int;
begin
    perform penstock._end_unstarted(p_queue_id);    -- first: a task that has expired is not promoted
    perform from penstock.watermark as l where l.queue_id = p_queue_id for update skip locked;
    if not found then
        v_until := v_until - interval '2 seconds';
    end if;
    select least(l.first_planned, (
        select min(e.due) from penstock.early as e
        where e.queue_id = p_queue_id and e.xid >= coalesce(l.running[1], l.xid)))
    into v_from from penstock._watermark(p_queue_id) as l;
    update penstock.agenda as a
    set pending = true
    where a.ctid = any(array(
        select d.ctid
        from penstock.agenda as d
        where d.queue_id = p_queue_id and not d.pending and d.due <= v_until and d.due >= v_from
        order by d.due
        limit p_limit
        for update skip locked));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
CREATE FUNCTION penstock._promote_all(OUT rows bigint, OUT more boolean) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
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
CREATE FUNCTION penstock._push_follow_ups(p_targets text[], p_ends jsonb[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
begin
    insert into penstock.task (queue_id, kind, subject, payload)
    select q.id, substr(f.target, strpos(f.target, ':') + 1), s.subject,
           case when octet_length(f.ended::text) <= penstock.largest_payload(q) then f.ended
                when octet_length((f.ended || '{"payload": null}')::text) <= penstock.largest_payload(q)
                    then f.ended || '{"payload": null}'
                else f.ended || '{"payload": null, "error": null}' end
    from unnest(p_targets, p_ends) as f(target, ended)
    join penstock.queue as q on q.name = split_part(f.target, ':', 1)
    cross join lateral (
        select format('%s:%s:%s', f.ended->>'outcome', f.ended->>'id', f.ended->>'end') collate "C" as subject
    ) as s
    where penstock._takes_follow_ups(q)
    order by s.subject
    on conflict (queue_id, subject) where subject is not null do nothing;
end
$$;
CREATE FUNCTION penstock._push_throttled(p_queue text, p_payloads text[], p_subjects text[], p_kinds text[], p_dues timestamp with time zone[], p_priorities smallint[], p_on_conflict text, p_keys text[], p_metas text[], p_expires timestamp with time zone[], p_throttle interval) RETURNS TABLE(n integer, id bigint, result text, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_now   constant timestamptz := penstock.clock();
    v_first int[];    -- the first position of each subject that may be pushed
begin
    with asked as (
        select i.subject, min(i.n)::int as n from unnest(p_subjects) with ordinality as i(subject, n) group by i.subject
    ), admitted as (
        insert into penstock.throttle as h (queue_id, subject, until)
        select v_queue.id, a.subject, v_now + penstock._in_seconds(p_throttle)
        from asked as a order by a.subject collate "C"
        on conflict (queue_id, subject) do update set until = excluded.until, task_id = null where h.until <= v_now
        returning h.subject
    )
    select array_agg(a.n order by a.n) into v_first
    from asked as a join admitted as d on d.subject = a.subject;
    if v_first is not null then
        return query
        with pushed as materialized (
            select v_first[m.n] as n, m.id, m.result, m.state
            from penstock.push_many(
                p_queue, penstock._chosen(p_payloads, v_first), penstock._chosen(p_subjects, v_first),
                penstock._chosen(p_kinds, v_first), penstock._chosen(p_dues, v_first),
                penstock._chosen(p_priorities, v_first), p_on_conflict, penstock._chosen(p_keys, v_first),
                penstock._chosen(p_metas, v_first), penstock._chosen(p_expires, v_first)) as m
        ), noted as (
            update penstock.throttle as h set task_id = p.id
            from pushed as p where h.queue_id = v_queue.id and h.subject = p_subjects[p.n]
        )
        select p.n, p.id, p.result, p.state from pushed as p;
    end if;
    return query
    select i.n::int, coalesce(f.id, h.task_id), 'skipped', coalesce(f.state, 'removed')
    from unnest(p_subjects) with ordinality as i(subject, n)
    join penstock.throttle as h on h.queue_id = v_queue.id and h.subject = i.subject
    left join penstock._find_subjects(v_queue.id, p_subjects, array(select generate_series(1, cardinality(p_subjects))))
         as f on f.n = i.n
    where v_first is null or i.n <> all(v_first);
end
$$;
CREATE FUNCTION penstock._put_back(p_leases penstock.lease[], p_now timestamp with time zone) RETURNS TABLE(alone boolean, tasks integer, dead integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    -- An expiry writes a document in two cases: the task was renewed, so it has a subject, or it dies, so it was alone.
    -- The documents of all leases are locked in one statement, and so in one order.
    v_held  constant bigint[] := penstock._held_elsewhere(array(
        select h.id from unnest(p_leases) as l cross join lateral unnest(l.ids) with ordinality as h(id, n)
        where (l.named or l.alone) and get_bit(l.open, h.n::int - 1) = 1));
    v_lease penstock.lease;
    v_open  bigint[];
begin
    perform penstock._make_history((p_now at time zone 'UTC')::date);
    foreach v_lease in array p_leases loop
        v_open := array(
            select h.id from unnest(v_lease.ids) with ordinality as h(id, n)
            where get_bit(v_lease.open, h.n::int - 1) = 1 and h.id <> all(v_held));
        return query
        select v_lease.alone, cardinality(v_open), count(*) filter (where c.result = 'dead')::int
        from penstock._conclude(v_lease, p_now, v_open, array_fill('expired'::text, array[cardinality(v_open)]),
                               null, null, null, null, null) as c;
        perform penstock._close_lease(v_lease, v_open);
    end loop;
end
$$;
CREATE FUNCTION penstock._queue_name(p_queue_id integer) RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
    select coalesce((select q.name from penstock.queue as q where q.id = p_queue_id),
                    (select g.name from penstock.queue_gone as g where g.id = p_queue_id))
$$;
CREATE FUNCTION penstock._read_lines(p_lines jsonb, p_attempt integer, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN (SELECT COALESCE(jsonb_agg(jsonb_build_object('n', ((e.line ->> 0))::integer, 'at', (_read_lines.p_now - make_interval(secs => ((e.line ->> 1))::double precision)), 'attempt', _read_lines.p_attempt, 'text', penstock._note_text((e.line ->> 2))) ORDER BY e.o), '[]'::jsonb) AS "coalesce" FROM jsonb_array_elements(_read_lines.p_lines) WITH ORDINALITY e(line, o));
CREATE FUNCTION penstock._read_up_to() RETURNS bigint
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select coalesce(min(case when r.branch = b.id then r.passed else 0 end), 9223372036854775807)
    from penstock.history_reader as r cross join (select penstock.find_branch() as id) as b
$$;
CREATE FUNCTION penstock._recount(p_queue text) RETURNS TABLE(area text, queue text, what text, expected bigint, found bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
begin
    return query
    with stated as materialized (
        select q.id, s.* from penstock.status(p_queue) as s join penstock.queue as q on q.name = s.queue
    ), located as materialized (
        select s.id as queue_id, p.id, p.place from stated as s cross join lateral penstock.places_of(s.id) as p
    ), counted as materialized (
        select s.id as queue_id, m.metric, coalesce(c.value, 0) as value
        from stated as s
        cross join unnest(array['waiting', 'planned', 'pending', 'active', 'done', 'dead', 'cancelled']) as m(metric)
        left join (
            select l.queue_id, l.place, count(*) as value from located as l group by l.queue_id, l.place
        ) as c on c.queue_id = s.id and c.place = m.metric
    ), placed as materialized (
        select l.id, min(l.queue_id) as queue_id, count(*) as places
        from located as l where l.place in ('waiting', 'planned', 'pending', 'active') group by l.id
    ), missing as materialized (
        select p_queue is null or exists (
            select from stated as s
            where (s.totals->>'pushed')::bigint - (s.totals->>'removed')::bigint
               <> (select sum(c.value) from counted as c where c.queue_id = s.id)) as some
    ), documents as (
        select t.id, t.queue_id, t.ended from penstock.task as t
        where (select m.some from missing as m) and t.queue_id in (select s.id from stated as s)
        union all
        select t.id, t.queue_id, t.ended from penstock.task as t
        where not (select m.some from missing as m) and t.id = any(array(select p.id from placed as p))
          and t.queue_id in (select s.id from stated as s)
    ), stray as (
        select coalesce(t.queue_id, p.queue_id) as queue_id, case
            when t.id is null then 'waiting or leased without a document'
            when t.ended is not null then 'ended, but still waiting or leased'
            when p.id is null then 'live, but neither waiting nor leased'
            else 'in two places' end as what
        from documents as t
        full join placed as p on p.id = t.id
        where t.id is null or (t.ended is null) <> (p.id is not null) or p.places > 1
    ), finished as (
        select h.queue_id, h.outcome, sum(h.rows)::bigint as rows
        from (
            select h.queue_id, h.outcome, count(*) as rows from penstock.history as h
            where h.queue_id in (select s.id from stated as s) group by h.queue_id, h.outcome
            union all
            select d.queue_id, d.outcome, d.rows from penstock.history_dropped as d
            where d.queue_id in (select s.id from stated as s)
        ) as h
        group by h.queue_id, h.outcome
    )
    select 'drift', s.queue, c.metric, c.value,
           (to_jsonb(s)->>c.metric)::bigint as booked
    from stated as s join counted as c on c.queue_id = s.id
    where c.value <> (to_jsonb(s)->>c.metric)::bigint
    union all
    select 'orphans', s.queue, y.what, 0, count(*)
    from stated as s join stray as y on y.queue_id = s.id group by s.queue, y.what
    union all
    select 'orphans', s.queue, 'waiting before a bound, where no claim looks', 0, h.tasks
    from stated as s cross join lateral (select penstock._hidden_tasks(s.id) as tasks) as h
    where h.tasks > 0
    union all
    select 'orphans', s.queue, d.what, 0, d.rows from stated as s cross join lateral penstock._damaged_rows(s.id) as d
    union all
    -- No known path leaves such tasks behind, and no other query would ever look at them.
    select 'orphans', '', 'of no queue', 0, count(*)
    from penstock.task as t
    where p_queue is null and not exists (select from penstock.queue as q where q.id = t.queue_id)
    having count(*) > 0
    union all
    -- A pass may have noted them while its table was forgotten.
    select 'orphans', '', 'of no adopted table', 0, count(*)
    from (
        select r.adopted_id from penstock.adopted_record as r
        union all
        select f.adopted_id from penstock.adopted_failure as f
    ) as n
    where p_queue is null and not exists (select from penstock.adopted as a where a.id = n.adopted_id)
    having count(*) > 0
    union all
    select 'history', s.queue, o.outcome, coalesce(f.rows, 0), (s.totals->>o.outcome)::bigint
    from stated as s
    cross join unnest(array['done', 'again', 'failed', 'dead', 'released', 'expired', 'revoked',
                            'unstarted']) as o(outcome)
    left join finished as f on f.queue_id = s.id and f.outcome = o.outcome
    where coalesce(f.rows, 0) <> (s.totals->>o.outcome)::bigint
    union all
    select 'balance', s.queue, 'pushed', (s.totals->>'pushed')::bigint,
           s.waiting + s.planned + s.pending + s.active + s.done + s.dead + s.cancelled
           + (s.totals->>'removed')::bigint
    from stated as s
    where (s.totals->>'pushed')::bigint
       <> s.waiting + s.planned + s.pending + s.active + s.done + s.dead + s.cancelled
          + (s.totals->>'removed')::bigint;
end
$$;
CREATE FUNCTION penstock._refresh(p_ns integer[], p_ids bigint[], p_ended text[], p_dues timestamp with time zone[], p_priorities smallint[], p_key_ids integer[], p_firsts timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], p_at_most interval DEFAULT NULL::interval) RETURNS TABLE(n integer, id bigint, result text, state text)
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
    v_dues    timestamptz[] := p_dues;
begin
    if p_firsts is not null then
        v_dues := array(
            select least(g.due, greatest(g.first + p_at_most, v_now))
            from unnest(p_dues, p_firsts) with ordinality as g(due, first, n) order by g.n);
    end if;
    -- The task waits: it gets the new priority, and the new due if one was given.
    with held as materialized (
        select a.task_id, a.pending, a.priority, a.key_id from penstock.agenda as a
        where a.task_id = any(p_ids) for update
    )
    select array_agg(h.task_id), array_agg(h.pending and g.due is null),
           array_agg(h.task_id) filter (
               where h.priority <> g.priority or g.due is not null or h.key_id <> coalesce(g.key_id, 0))
    into v_waiting, v_pending, v_moved
    from held as h
    join unnest(p_ids, p_dues, p_priorities, p_key_ids) as g(id, due, priority, key_id) on g.id = h.task_id;
    if v_moved is not null then
        perform penstock._replace_waiting(v_moved, p_ids, v_dues, p_priorities,
                                          coalesce(p_key_ids, array_fill(0, array[cardinality(p_ids)])));
    end if;
    return query
    select g.n, g.id, 'updated', case when w.pending then 'pending' else 'planned' end
    from unnest(p_ns, p_ids) as g(n, id) join unnest(v_waiting, v_pending) as w(id, pending) on w.id = g.id;
    -- The task waits for others: it has its due, priority and key only in the document.
    if array_position(p_ended, 'waiting') is not null then
        return query
        select g.n, g.id, 'updated', 'waiting' from unnest(p_ns, p_ids, p_ended) as g(n, id, ended)
        where g.ended = 'waiting';
    end if;
    -- The task has ended: it begins anew.
    if array_position(p_ended, 'done') is not null or array_position(p_ended, 'dead') is not null
       or array_position(p_ended, 'cancelled') is not null then
        return query
        select g.n, g.id, 'reopened', r.state
        from unnest(p_ns, p_ids, p_ended) as g(n, id, ended)
        join penstock._reopen(p_ids, p_dues, v_now) as r on r.id = g.id
        where g.ended <> 'waiting';
    end if;
    -- The task is active.
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
        select g.n, g.id, 'renewed', 'active'
        from unnest(p_ns, p_ids) as g(n, id) join unnest(v_active) as a(id) on a.id = g.id;
    end if;
end
$$;
CREATE TABLE penstock.history_branch (
    n bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    timeline integer NOT NULL,
    started timestamp with time zone NOT NULL,
    relation oid NOT NULL,
    noted bigint DEFAULT 0 NOT NULL,
    noted_at timestamp with time zone DEFAULT penstock.clock() NOT NULL
)
WITH (fillfactor='50');
COMMENT ON COLUMN penstock.history_branch.id IS 'the timeline and random digits, because two servers may have the same timeline';
COMMENT ON COLUMN penstock.history_branch.started IS 'when the server started, because a restored copy of the disk has to be started too';
COMMENT ON COLUMN penstock.history_branch.relation IS 'the oid of the table history: a restored dump has another one';
CREATE FUNCTION penstock._refuse_branch(p_branch text, p_xid bigint, p_known penstock.history_branch) RETURNS void
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $$
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
CREATE FUNCTION penstock._refuse_lease(p_lease interval) RETURNS void
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select penstock.refuse('PS400', format('lease: %s is not between 100 ms and 24 h', coalesce(p_lease::text, 'null')))
$$;
CREATE FUNCTION penstock._refuse_text(p_which text, p_size text, p_most bigint) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform penstock.refuse('PS413', format('%s: payload: %s bytes as text are more than %s', p_which, p_size, p_most),
        'PostgreSQL writes numbers like 1e100000 out. Send them as JSON strings.');
end
$$;
CREATE FUNCTION penstock._refuse_truncate() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    raise exception 'truncate of penstock.% would make the counters lie', tg_table_name
        using errcode = 'PS409', hint = 'Delete the rows instead, or drop the queue.';
end
$$;
CREATE FUNCTION penstock._renew_tokens(p_tokens uuid[], p_driver text, p_lease interval) RETURNS uuid[]
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
CREATE FUNCTION penstock._reopen(p_ids bigint[], p_dues timestamp with time zone[], p_now timestamp with time zone, p_lasting boolean DEFAULT false) RETURNS TABLE(id bigint, state text)
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
        set ended = null, ended_at = null, reason = null, error = null, error_class = null, attempts = null,
            renew = null, since = p_now, waits_for = null,
            expires = case when not p_lasting then t.expires end
        where t.id = any(p_ids) and t.ended is not null
        returning t.id, t.queue_id, t.priority, t.subject, t.key
    ), waiting as (
        insert into penstock.agenda (task_id, due, queue_id, key_id, priority, pending, named)
        select o.id, coalesce(g.due, p_now), o.queue_id, penstock._key_id(o.queue_id, o.key), o.priority, g.due is null,
               o.subject is not null
        from opened as o join unnest(p_ids, p_dues) as g(id, due) on g.id = o.id
        returning task_id, pending
    )
    select w.task_id, case when w.pending then 'pending' else 'planned' end from waiting as w;
end
$$;
CREATE FUNCTION penstock._replace_waiting(p_which bigint[], p_ids bigint[], p_dues timestamp with time zone[], p_priorities smallint[], p_key_ids integer[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
begin
    with gone as (
        delete from penstock.agenda as a where a.task_id = any(p_which) returning a.*
    )
    insert into penstock.agenda (task_id, due, queue_id, key_id, priority, attempts, quarantine, pending, named)
    select o.task_id, coalesce(g.due, o.due), o.queue_id, coalesce(g.key_id, o.key_id),
           coalesce(g.priority, o.priority), o.attempts, o.quarantine, o.pending and g.due is null, o.named
    from gone as o
    join unnest(p_ids, p_dues, p_priorities, p_key_ids) as g(id, due, priority, key_id) on g.id = o.task_id;
end
$$;
CREATE FUNCTION penstock._retire(p_limit integer DEFAULT 10000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
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
CREATE FUNCTION penstock._revoke(p_queue_id integer, p_ids bigint[], p_now timestamp with time zone) RETURNS bigint[]
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
    perform penstock._make_history((p_now at time zone 'UTC')::date);
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
        insert into penstock.history (task_id, created, due, claimed_at, finished_at, queue_id, iteration, attempt,
                                      outcome, kind, worker, subject)
        select t.id, t.created, h.due, v_lease.claimed_at, p_now, p_queue_id, t.iterations, coalesce(h.attempts, 0) + 1,
               'revoked', t.kind, v_lease.worker, t.subject
        from penstock.task as t
        join unnest(v_lease.ids, v_lease.dues, v_lease.attempts) as h(id, due, attempts) on h.id = t.id
        where t.id = any(v_hit);
        v_all := v_all || v_hit;
    end loop;
    if v_all <> '{}' then
        insert into penstock.counter_log (queue_id, metric, delta)
        values (p_queue_id, 'revoked_total', cardinality(v_all));
    end if;
    return v_all;
end
$$;
CREATE FUNCTION penstock._scaler_snapshot(p_queues text[], p_horizons double precision[], p_rows integer[], p_bins double precision[]) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET extra_float_digits TO '1'
    AS $$
#variable_conflict use_column
declare
    v_now    constant timestamptz := penstock.clock();
    v_edge   constant timestamptz := v_now + interval '1 microsecond';  -- an age of whole bins belongs to the older bin
    v_system constant bigint := penstock._system();
begin
    return (
    with recursive asked as materialized (
        select q.id, q.name, q.paused, q.sla, n.horizon, n.rows, make_interval(secs => n.bin) as bin
        from unnest(p_queues, p_horizons, p_rows, p_bins) as n(name, horizon, rows, bin)
        join penstock.queue as q on q.name = n.name
    ), booked as (
        select q.id as queue_id,
               coalesce(sum(n.value) filter (where n.metric = 'planned'), 0) as planned,
               coalesce(sum(n.value) filter (where n.metric = 'pending'), 0) as pending,
               coalesce(sum(n.value) filter (where n.metric = 'active'), 0) as active,
               coalesce(sum(n.value) filter (
                   where n.metric in ('done_total', 'again_total', 'failed_total', 'dead_total')), 0) as ended,
               coalesce(sum(n.value) filter (
                   where n.metric in ('released_total', 'expired_total', 'revoked_total')), 0) as left
        from asked as q
        cross join lateral penstock._counter_rows(q.id, v_system) as n
        group by q.id
    ), newest as (
        -- This recursion visits each priority that has tasks, from the last to the first. There is usually one, and a
        -- probe for each of the ten would cost more than the result.
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
        -- These are the oldest tasks of each priority, by age. All tasks of a bin count with the due of the oldest one.
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
        -- Over all priorities together only p_rows tasks of a queue are counted: behind them, some tasks may be
        -- missing.
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
            -- If more tasks wait than were read, this is the age of the newest; the others lie between the two.
            'newest', case when b.pending > o.tasks then date_part('epoch', v_now - f.newest) end,
            'ahead', p.seconds, 'running', l.leases) as value
        from asked as q
        left join booked as b on b.queue_id = q.id
        left join filed as f on f.id = q.id
        left join oldest as o on o.id = q.id
        -- These are the planned tasks, by the second in which they are due.
        left join lateral (
            select json_agg(json_build_array(g.second, g.tasks) order by g.second) as seconds
            from (
                select floor(date_part('epoch', k.due))::bigint as second, count(*) as tasks
                from (
                    select a.due from penstock.agenda as a
                    where a.queue_id = q.id and not a.pending
                      and a.due > v_now and a.due <= v_now + make_interval(secs => q.horizon)
                    order by a.due limit q.rows
                ) as k
                where b.planned > 0
                group by 1
            ) as g
        ) as p on true
        -- These are the times for which running tasks have been running.
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
CREATE FUNCTION penstock._settle_batch(p_tokens uuid[]) RETURNS void
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
        perform penstock._lock_documents(v_named, p_named_only => true);
    end if;
    for v_lease in
        select l.token, case
            when bit_count(l.open) = cardinality(l.ids) then l.ids
            else array(select h.id from unnest(l.ids) with ordinality as h(id, n)
                       where get_bit(l.open, h.n::int - 1) = 1) end as open
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
CREATE TABLE penstock.idle_worker (
    worker text NOT NULL,
    queue_set bigint NOT NULL,
    channel bigint NOT NULL
);
COMMENT ON COLUMN penstock.idle_worker.channel IS 'it listens on penstock_ and this number';
CREATE FUNCTION penstock._shall_listen(p_worker text, p_queue_set bigint) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN ((EXISTS (SELECT FROM penstock.idle_worker i WHERE ((i.worker = _shall_listen.p_worker) AND (i.queue_set = _shall_listen.p_queue_set)))) OR ((SELECT count(*) AS count FROM (SELECT FROM penstock.idle_worker i WHERE (i.queue_set = _shall_listen.p_queue_set) LIMIT 4) s) < 4));
CREATE FUNCTION penstock._split_ranges(p_watermark penstock.watermark) RETURNS penstock.watermark
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
    select array_agg(s.first order by s.first), array_agg(s.due order by s.first)
    into p_watermark.priorities, p_watermark.first_due
    from (
        select r.first, r.due from penstock._priority_ranges(p_watermark.priorities, p_watermark.first_due) as r
        union
        select n.first, timestamptz '-infinity'
        from penstock._priority_ranges(p_watermark.priorities, p_watermark.first_due) as r
        cross join lateral (
            select a.priority from penstock.agenda as a
            where r.many and a.queue_id = p_watermark.queue_id and a.pending
              and a.priority >= r.first and a.priority < r.next
            order by a.priority limit 1
        ) as f
        cross join lateral (values (f.priority), (f.priority + 1)) as n(first)
        where n.first < r.next
    ) as s;
    return p_watermark;
end
$$;
CREATE FUNCTION penstock._squeeze(p_queue_id integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    v_limit constant int := 50000;
    v_now   constant timestamptz := penstock.clock();
    v_watermark   penstock.watermark;
    v_fold  record;
begin
    select * into v_watermark from penstock.watermark as l where l.queue_id = p_queue_id for update skip locked;
    if not found then
        return 0;
    end if;
    if v_watermark.system <> penstock._system() then
        -- The database was restored from another cluster. All of its log is in the past, whatever the transaction ids
        -- say, and its workers do not belong to this cluster.
        v_watermark.xid := 0;
        v_watermark.running := '{}';
        v_watermark.system := penstock._system();
        v_watermark := penstock._without_bounds(v_watermark);
        update penstock.lease as l set until = '-infinity' where l.queue_id = p_queue_id;
    elsif v_now < v_watermark.looked_at then
        -- The clock was set back: tasks that start to wait now may lie before the bounds.
        v_watermark := penstock._without_bounds(v_watermark);
    end if;
    -- This is one statement, so that the snapshot it returns is the one by which it deletes.
    with folded as (
        delete from penstock.counter_log as l
        where l.ctid = any(array(
            select r.ctid from penstock.counter_log as r
            where r.queue_id = p_queue_id and r.xid = any(v_watermark.running)
            union all
            (select r.ctid from penstock.counter_log as r
             where r.queue_id = p_queue_id and r.xid >= v_watermark.xid order by r.xid limit v_limit)))
        returning l.metric, l.delta, l.xid
    ), summed as (
        select f.metric, sum(f.delta)::bigint as delta, count(*) as rows, max(f.xid) as last
        from folded as f group by f.metric
    ), moved as (
        delete from penstock.early as e
        where e.queue_id = p_queue_id and e.xid >= coalesce(v_watermark.running[1], v_watermark.xid)
        returning e.due, e.priority, e.pending
    )
    select coalesce(sum(s.rows), 0) as rows, max(s.last) as last,
           array_agg(s.metric) as metrics, array_agg(s.delta) as deltas,
           array(select coalesce(
                     (select min(m.due) from moved as m where m.pending and m.priority = p.first), 'infinity')
                 from unnest(v_watermark.priorities) with ordinality as p(first, n) order by p.n) as first_due,
           (select min(m.due) from moved as m where not m.pending) as first_planned,
           pg_current_snapshot() as snapshot
    into v_fold
    from summed as s;
    if v_fold.rows > 0 then
        v_watermark.sums := penstock._add_to_sums(v_watermark, v_fold.metrics, v_fold.deltas);
    end if;
    v_watermark.first_due := array(
        select least(b.due, b.early)
        from unnest(v_watermark.first_due, v_fold.first_due) with ordinality as b(due, early, n) order by b.n);
    v_watermark.first_planned := least(v_watermark.first_planned, v_fold.first_planned);
    v_watermark := penstock._move_bounds(v_watermark, v_fold.snapshot, v_now);
    v_watermark.xid := pg_snapshot_xmax(v_fold.snapshot)::text::bigint;
    if v_fold.rows >= v_limit then
        v_watermark.xid := least(v_watermark.xid, v_fold.last);  -- there may be more rows, also of the last transaction
    end if;
    v_watermark.running := array(
        select r.xid
        from (select pg_snapshot_xip(v_fold.snapshot)::text::bigint
              union select pg_current_xact_id()::text::bigint) as r(xid)
        where r.xid < v_watermark.xid order by r.xid);
    update penstock.watermark as l
    set sums = v_watermark.sums, xid = v_watermark.xid, running = v_watermark.running, system = v_watermark.system,
        until = v_watermark.until, priorities = v_watermark.priorities, first_due = v_watermark.first_due,
        first_planned = v_watermark.first_planned,
        next_bound = v_watermark.next_bound, next_xid = v_watermark.next_xid, looked_at = v_now
    where l.queue_id = p_queue_id;
    return v_fold.rows;
end
$$;
CREATE FUNCTION penstock._squeeze_all(OUT rows bigint, OUT more boolean) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
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
CREATE FUNCTION penstock._stand_still(p_queue_id integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '100ms'
    AS $$
begin
    for v_try in 1 .. 40 loop
        begin
            lock table penstock.lease, penstock.task, penstock.agenda in exclusive mode;
            perform from penstock.watermark as l where p_queue_id is null or l.queue_id = p_queue_id for update;
            return;
        exception when lock_not_available then
            perform pg_sleep(0.05 + 0.1 * random());
        end;
    end loop;
    raise exception using errcode = '55P03', message = 'other sessions hold tasks all the time', hint = 'Try again.';
end
$$;
CREATE FUNCTION penstock._system() RETURNS bigint
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN (SELECT pg_control_system.system_identifier FROM pg_control_system() pg_control_system(pg_control_version, catalog_version_no, system_identifier, pg_control_last_modified));
CREATE FUNCTION penstock._take_chore(p_name text, p_every interval DEFAULT NULL::interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now  constant timestamptz := penstock.clock();
    v_done timestamptz;
begin
    select c.done_at into v_done from penstock.chore as c where c.name = p_name for update skip locked;
    if not found then
        if not exists (select from penstock.chore as c where c.name = p_name) then
            perform penstock.refuse('PS404', format('chore: there is no %L', p_name), 'Add it to penstock.chore.');
        end if;
        return false;
    elsif v_done > v_now - p_every and v_done <= v_now then
        return false;
    end if;
    update penstock.chore as c set done_at = v_now where c.name = p_name;
    return true;
end
$$;
CREATE FUNCTION penstock._take_samples() RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock._takes_follow_ups(p_queue penstock.queue) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (penstock.largest_payload(p_queue) >= 8192);
CREATE FUNCTION penstock._tasks_before(p_row penstock.agenda, p_now timestamp with time zone, p_most integer, p_step interval) RETURNS TABLE(tasks bigint, exact boolean)
    LANGUAGE sql STABLE SECURITY DEFINER ROWS 1
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
    with watermark as materialized (    -- the search begins at the bounds, as a claim does
        select w.priorities, w.first_due, w.first_planned, (
            select min(y.due) from penstock.early as y
            where y.queue_id = w.queue_id and y.xid >= coalesce(w.running[1], w.xid)) as early
        from penstock._watermark((p_row).queue_id) as w
    ), quarantined as materialized (
        select from penstock.agenda as a
        where (p_row).quarantine < 0 and a.queue_id = (p_row).queue_id and a.pending and a.quarantine < 0
          and (a.priority, a.due, a.task_id) < ((p_row).priority, (p_row).due, (p_row).task_id)
        limit p_most + 1
    ), pending as materialized (
        select from watermark as w
        cross join lateral penstock._priority_ranges(w.priorities, w.first_due) as b
        cross join lateral (    -- where the search ends
            select (case when p_step is null then (p_row).priority when b.many then 32767 else b.first end)::smallint
                       as priority,
                   case when p_step is null then (p_row).due when b.many then 'infinity'
                        else (p_row).due + ((p_row).priority - b.first) * p_step end as due
        ) as u
        cross join lateral (
            select from penstock.agenda as a
            where a.queue_id = (p_row).queue_id and a.pending
              and (a.priority, a.due) >= (b.first, least(b.due, w.early)) and a.priority < b.next
              and (a.priority, a.due, a.task_id) < (u.priority, u.due, (p_row).task_id)
              and (not b.many or penstock._comes_before(a.priority, a.due, a.task_id, p_row, p_step))
            limit p_most + 1
        ) as c
        where (p_row).quarantine >= 0 and (b.first <= (p_row).priority or p_step is not null)
        limit p_most + 1
    ), overdue as materialized (    -- planned tasks that are due: a claim promotes them before it takes any
        select o.priority, o.due, o.task_id from watermark as w
        cross join lateral (
            select a.priority, a.due, a.task_id from penstock.agenda as a
            where (p_row).quarantine >= 0 and a.queue_id = (p_row).queue_id and not a.pending and a.due <= p_now
              and a.due >= least(w.first_planned, w.early)
            order by a.due limit p_most + 1
        ) as o
    ), counted as (
        select (select count(*) from quarantined) + (select count(*) from pending) as waiting,
               (select count(*) from overdue as o
                where penstock._comes_before(o.priority, o.due, o.task_id, p_row, p_step)) as promoted,
               (select count(*) from overdue) as seen
    )
    select least(c.waiting + c.promoted, p_most), c.waiting + c.promoted <= p_most and c.seen <= p_most
    from counted as c
$$;
CREATE FUNCTION penstock._tend(p_queue_id integer, p_limit integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
declare
    v_now  constant timestamptz := penstock.clock();
    v_look record;
begin
    select l.looked_at not between v_now - interval '1 second' and v_now
           and (l.looked_at not between v_now - interval '1 minute' and v_now
                or exists (select from penstock.counter_log as c
                           where c.queue_id = l.queue_id and c.xid >= l.xid)) as old,
           exists (select from penstock.lease as x
                   where x.queue_id = l.queue_id and x.until >= l.until and x.until < v_now) as expired,
           exists (select from penstock.agenda as a
                   where a.queue_id = l.queue_id and not a.pending and a.due <= v_now
                     and a.due >= least(l.first_planned, e.due)) as planned
    into v_look
    from penstock._watermark(p_queue_id) as l, lateral (
        select min(y.due) as due from penstock.early as y
        where y.queue_id = l.queue_id and y.xid >= coalesce(l.running[1], l.xid)) as e;
    if v_look.old then
        perform penstock._squeeze(p_queue_id);    -- it may end leases of another cluster and move the bounds
    end if;
    if v_look.old or v_look.expired then
        perform penstock._expire(p_queue_id, 1000);
    end if;
    if v_look.old or v_look.planned then
        perform penstock._promote(p_queue_id, greatest(2 * p_limit, 1000));
    end if;
end
$$;
CREATE FUNCTION penstock._unread(p_relation regclass) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$ select penstock._written_since(p_relation, penstock._read_up_to()) $$;
CREATE FUNCTION penstock._waits_since(p_queue_id integer, p_before timestamp with time zone) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
    select exists (
        select from penstock._watermark(p_queue_id) as w
        cross join lateral penstock._priority_ranges(w.priorities, w.first_due) as r
        cross join lateral (
            (select a.due from penstock.agenda as a
             where not r.many and a.queue_id = p_queue_id and a.pending and a.priority = r.first
             order by a.due, a.task_id limit 1)
            union all
            (select a.due from penstock.agenda as a
             where r.many and a.queue_id = p_queue_id and a.pending and a.priority >= r.first and a.priority < r.next
               and a.due <= p_before
             limit 1)
        ) as f
        where f.due <= p_before)
$$;
CREATE FUNCTION penstock._wake(p_queue text, p_channels bigint[], p_tasks bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_many constant int := cardinality(p_channels);
    v_from constant int := (random() * 1000)::int;
begin
    if pg_notification_queue_usage() >= 0.5 then
        return;
    end if;
    for n in 1 .. least(p_tasks, v_many, 4) loop
        perform pg_notify('penstock_' || p_channels[1 + (v_from + n) % v_many], p_queue);
    end loop;
end
$$;
CREATE FUNCTION penstock._why_gone(p_queue penstock.queue, p_id bigint) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $$
declare
    v_last penstock.history;
    v_name text;
begin
    select * into v_last from penstock._last_attempts(p_id, null, 1) as h;
    v_name := penstock._queue_name(v_last.queue_id);
    if v_last.task_id is null then
        return jsonb_build_object('reason', 'unknown');
    elsif v_name is distinct from p_queue.name then
        return jsonb_build_object('reason', 'other_queue', 'found_in', v_name);
    elsif v_last.outcome in ('done', 'dead', 'revoked', 'unstarted') then
        return jsonb_build_object(
            'reason', case when v_last.outcome in ('done', 'dead') then v_last.outcome else 'cancelled' end,
            'ended_at', v_last.finished_at, 'worker', v_last.worker, 'attempts', v_last.attempt,
            'cause', case when v_last.outcome = 'unstarted' then 'expired' end, 'error_class', v_last.error_class,
            'error', v_last.error, 'removed', true);
    end if;
    return jsonb_build_object('reason', 'removed', 'last', penstock._in_short(v_last));
end
$$;
CREATE FUNCTION penstock.moment() RETURNS timestamp with time zone
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN penstock.clock();
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
    error_class text,
    error text,
    attempts smallint,
    key text COLLATE pg_catalog."C",
    meta jsonb,
    result jsonb,
    expires timestamp with time zone,
    group_id bigint,
    waits_for integer
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');
COMMENT ON COLUMN penstock.task.due IS 'as pushed; null: at once. Where it waits now is in the agenda';
COMMENT ON COLUMN penstock.task.since IS 'start of its age after a re-open, redrive or success; null: created';
COMMENT ON COLUMN penstock.task.renew IS 'due of the run after this one; null: none';
COMMENT ON COLUMN penstock.task.error IS 'of the last failed attempt: the message, then a traceback';
COMMENT ON COLUMN penstock.task.attempts IS 'of a dead task; while it waits they are in the agenda';
COMMENT ON COLUMN penstock.task.key IS 'whose task it is: a tenant, a customer, a resource';
COMMENT ON COLUMN penstock.task.meta IS 'headers, such as the context of a trace; never arguments';
COMMENT ON COLUMN penstock.task.result IS 'of the last success, if its kind keeps results';
COMMENT ON COLUMN penstock.task.expires IS 'it is not to be started at this moment or later; null: it may always start';
COMMENT ON COLUMN penstock.task.group_id IS 'the group that it is a member of; null: none';
COMMENT ON COLUMN penstock.task.waits_for IS 'how many tasks must end before it may run: above 0 it has no row in the agenda; null: none';
CREATE FUNCTION penstock._why_waiting(p_queue penstock.queue, p_task penstock.task, p_row penstock.agenda, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET "TimeZone" TO 'UTC'
    AS $$
declare
    v_later constant boolean := not p_row.pending and p_row.due > p_now;
    v_last  penstock.history;
    v_line  record;
    v_fleet record;
begin
    if p_queue.paused then
        return jsonb_build_object('reason', 'paused', 'due', p_row.due, 'later', v_later)
            || penstock._pause_of(p_queue);
    elsif v_later then
        select * into v_last from penstock._last_attempts(p_task.id, p_task.created, 1) as h;
        return jsonb_build_object(
            'reason', case when v_last.outcome = 'released' and v_last.error_class = 'UnknownKind' then 'unknown_kind'
                           else 'planned' end,
            'due', p_row.due, 'kind', p_task.kind, 'failures', p_row.attempts,
            'max_attempts', coalesce((select k.max_attempts from penstock.kind as k
                                      where k.queue_id = p_queue.id and k.kind = p_task.kind), p_queue.max_attempts),
            'last', penstock._in_short(v_last));
    end if;
    select * into v_line from penstock._tasks_before(p_row, p_now, 10000, p_queue.priority_step);
    select * into v_fleet from penstock._fleet_of(p_queue.name, p_now);
    return jsonb_build_object(
        'reason', case when v_fleet.workers = 0 then 'no_worker' when p_row.quarantine < 0 then 'quarantined'
                       when v_line.tasks > 0 then 'behind' when v_fleet.free = 0 then 'busy' else 'next' end,
        'due', p_row.due, 'before', v_line.tasks, 'exact', v_line.exact, 'quarantined', p_row.quarantine < 0,
        'crashes', greatest(-1 - p_row.quarantine, 0), 'max_crashes', p_queue.max_crashes)
        || to_jsonb(v_fleet)
        || coalesce((
            select jsonb_build_object('emptying', w.quarantine, 'emptying_until', w.quarantine_until)
            from penstock._watermark(p_queue.id) as w where p_row.quarantine < 0 and w.quarantine_until > p_now), '{}');
end
$$;
CREATE FUNCTION penstock._within_quarantine(p_picks penstock.picks) RETURNS penstock.picks
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_count int;
begin
    select count(*) into v_count
    from (
        select c.n, min(case when c.quarantine < 0 then 1 else nullif(c.quarantine, 0) end) over (order by c.n)
                    as smallest
        from unnest(p_picks.quarantines) with ordinality as c(quarantine, n)
    ) as s
    where s.n <= coalesce(s.smallest, s.n);
    p_picks.places := p_picks.places[:v_count];
    p_picks.ids := p_picks.ids[:v_count];
    p_picks.dues := p_picks.dues[:v_count];
    p_picks.attempts := p_picks.attempts[:v_count];
    p_picks.quarantines := p_picks.quarantines[:v_count];
    p_picks.key_ids := p_picks.key_ids[:v_count];
    return p_picks;
end
$$;
CREATE FUNCTION penstock._without_bounds(p_watermark penstock.watermark) RETURNS penstock.watermark
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    p_watermark.until := '-infinity';
    p_watermark.first_due := array_fill('-infinity'::timestamptz, array[cardinality(p_watermark.priorities)]);
    p_watermark.first_planned := '-infinity';
    p_watermark.next_bound := null;
    p_watermark.next_xid := null;
    return p_watermark;
end
$$;
CREATE FUNCTION penstock._without_unstartable(p_queue_id integer, p_picks penstock.picks, p_now timestamp with time zone) RETURNS penstock.picks
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
declare
    v_all     constant int := cardinality(p_picks.ids);
    v_live    constant bigint[] := array(
        select t.id from penstock.task as t where t.id = any(p_picks.ids) and t.ended is null);
    v_orphans constant int := v_all - cardinality(v_live);
begin
    if v_orphans > 0 then
        delete from penstock.agenda as a
        where a.task_id = any(array(select unnest(p_picks.ids) except select unnest(v_live)));
        insert into penstock.counter_log (queue_id, metric, delta) values (p_queue_id, 'orphaned_total', v_orphans);
    end if;
    select array_agg(h.place), array_agg(h.id), array_agg(h.due), array_agg(h.attempts), array_agg(h.quarantine),
           array_agg(h.key_id)
    into p_picks.places, p_picks.ids, p_picks.dues, p_picks.attempts, p_picks.quarantines, p_picks.key_ids
    from unnest(p_picks.places, p_picks.ids, p_picks.dues, p_picks.attempts, p_picks.quarantines, p_picks.key_ids)
         as h(place, id, due, attempts, quarantine, key_id)
    join (
        select d.id from penstock.task as d
        where d.id = any(v_live) and d.ended is null and (d.expires is null or d.expires > p_now)
    ) as t on t.id = h.id;
    if coalesce(cardinality(p_picks.ids), 0) < cardinality(v_live) then
        perform penstock._end_unstarted(p_queue_id);
    end if;
    return p_picks;
end
$$;
CREATE FUNCTION penstock._written_since(p_relation regclass, p_xid bigint) RETURNS boolean
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_found boolean;
begin
    execute format('select exists (select from %s where xid >= %s)', p_relation, p_xid) into v_found;
    return v_found;
end
$$;
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
    delete from penstock.adopted_failure as f where f.adopted_id = v_id;
    delete from penstock.adopted_pass as p where p.adopted_id = v_id;
    perform penstock._note_audit('abandon', p_name, '{}');
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
        perform penstock.refuse('PS400',
            format('name: %s is not a name', coalesce(quote_literal(left(p_name, 80)), 'null')),
            'A name has 1 to 63 of a-z, 0-9, _ . - and begins with a letter or digit.');
    elsif p_schema is null or p_table is null or p_terms is null or jsonb_typeof(p_terms) <> 'object' then
        perform penstock.refuse('PS400', 'table: schema, table and terms are needed');
    elsif p_mode is null or p_mode not in ('observe', 'sidecar', 'columns') then
        perform penstock.refuse('PS400',
            format('mode: %s is not observe, sidecar or columns', coalesce(quote_literal(left(p_mode, 80)), 'null')));
    elsif p_max_attempts not between 1 and 32767 then
        perform penstock.refuse('PS400', format('max_attempts: %s is not between 1 and 32767', p_max_attempts));
    elsif penstock._in_seconds(p_sla) not between '1 microsecond' and '3650 days' then
        perform penstock.refuse('PS400', format('sla: %s is not more than 0 and at most 3650 days', p_sla));
    end if;
    perform penstock._check_retry(p_retry);
    if exists (select from penstock.queue as q where q.name = p_name) then
        perform penstock.refuse('PS409', format('name: there is a queue %s', quote_literal(p_name)),
            'Give the adopted table another name.');
    end if;
    insert into penstock.adopted as a (name, schema_name, table_name, mode, terms, retry, max_attempts, sla)
    values (p_name, p_schema, p_table, p_mode, p_terms, p_retry, p_max_attempts, penstock._in_seconds(p_sla))
    on conflict (name) do update
    set mode = excluded.mode, terms = excluded.terms, retry = excluded.retry,
        max_attempts = excluded.max_attempts, sla = excluded.sla
    where (a.schema_name, a.table_name) = (excluded.schema_name, excluded.table_name)
    returning a.id into v_id;
    if v_id is null then
        select * into v_known from penstock.adopted as a where a.name = p_name;
        perform penstock.refuse('PS409',
            format('name: %s is the adopted table %I.%I', quote_literal(p_name),
                   v_known.schema_name, v_known.table_name),
            'Give this one another name.');
    end if;
    perform penstock._note_audit('adopt', p_name,
        jsonb_build_object('schema', p_schema, 'table', p_table, 'mode', p_mode));
    return v_id;
end
$_$;
CREATE FUNCTION penstock.at_place(p_priority smallint, p_due timestamp with time zone, p_task_id bigint) RETURNS penstock.place
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (p_task_id IS NOT NULL) THEN ROW(p_priority, p_due, p_task_id)::penstock.place ELSE NULL::penstock.place END;
CREATE FUNCTION penstock.attempts(p_id bigint, p_queue text DEFAULT NULL::text, p_limit integer DEFAULT 10000) RETURNS TABLE(queue text, attempt integer, iteration integer, worker text, due timestamp with time zone, claimed_at timestamp with time zone, finished_at timestamp with time zone, lease_until timestamp with time zone, outcome text, error_class text, error text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_task penstock.task;
begin
    perform penstock._check_id(p_id);
    perform penstock._check_limit(p_limit);
    if p_queue is not null then
        perform penstock.the_queue(p_queue);
    end if;
    select * into v_task from penstock.task as t where t.id = p_id;
    return query
    with found as (
        select h.queue_id, h.attempt, h.iteration, h.worker, h.due, h.claimed_at, h.finished_at,
               null::timestamptz as lease_until, h.outcome, h.error_class, h.error, h.id
        from penstock._last_attempts(p_id, v_task.created, p_limit) as h
        union all
        select v_task.queue_id, l.attempt, v_task.iterations, l.worker, l.due, l.claimed_at, null, l.until, null, null,
               null, null
        from penstock._lease_of(v_task.queue_id, p_id) as l
        where v_task.ended is null
    ), named as (
        select penstock._queue_name(f.queue_id) as queue, f.* from found as f
        order by f.finished_at desc nulls first, f.id desc
        limit p_limit
    )
    select n.queue, n.attempt, n.iteration, n.worker, n.due, n.claimed_at, n.finished_at, n.lease_until, n.outcome,
           n.error_class, n.error
    from named as n
    where p_queue is null or n.queue = p_queue
    order by n.finished_at nulls last, n.id;
    if not found and (v_task.id is null or penstock._queue_name(v_task.queue_id) <> p_queue) then
        perform penstock.refuse('PS404',
            format('id: there is no task %s', p_id) || coalesce(' in queue ' || quote_literal(p_queue), ''),
            case when p_queue is null
                 then 'Nor does history know it; `penstock retention` tells how long history is kept.'
                 else '`app.find_task(id)` finds a task of any queue.' end);
    end if;
end
$$;
CREATE FUNCTION penstock.batch_leases(p_stream integer, p_epoch integer, p_after bigint, p_upto bigint) RETURNS TABLE(token uuid, tasks integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_stream constant penstock.stream := penstock._held_stream(p_stream, p_epoch);
begin
    if v_stream.batch > p_after and v_stream.batch <= p_upto then
        return query
        select l.token, cardinality(l.ids)
        from unnest(v_stream.tokens) with ordinality as o(token, n) join penstock.lease as l on l.token = o.token
        order by o.n;
    end if;
end
$$;
CREATE FUNCTION penstock.beat(p_worker text, p_queues text[], p_slots integer DEFAULT 1, p_busy integer DEFAULT 0, p_host text DEFAULT ''::text, p_pid integer DEFAULT NULL::integer, p_requested_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_started_by text DEFAULT NULL::text, p_leaving boolean DEFAULT false, p_listens boolean DEFAULT true) RETURNS TABLE(queue text, channel text, quarantined boolean, dismissed boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
    v_set       bigint;
    v_dismissed boolean;
begin
    perform penstock._check_beat(p_worker, p_queues, p_slots, p_busy, p_host, p_started_by, p_leaving, p_listens);
    perform penstock.the_queue(q.name) from unnest(p_queues) as q(name);
    v_set := penstock._note_queue_set(
        array(select q.id from penstock.queue as q where q.name = any(p_queues) order by q.id));
    v_dismissed := penstock._note_beat(p_worker, p_queues, v_set, p_slots, p_busy, p_host, p_pid, p_requested_at,
                                       p_started_by, p_leaving, p_listens);
    return query
    select q.name, 'penstock_' || penstock._channel_number(p_worker),
           exists (select from penstock.agenda as a where a.queue_id = q.id and a.pending and a.quarantine < 0),
           v_dismissed
    from penstock.queue as q where q.name = any(p_queues) order by q.name;
end
$$;
CREATE FUNCTION penstock.beat_all(p_workers jsonb, p_queues text[], p_slots integer DEFAULT 1, p_host text DEFAULT ''::text, p_started_by text DEFAULT NULL::text, p_leaving boolean DEFAULT false, p_known bigint DEFAULT NULL::bigint) RETURNS TABLE(channels jsonb, quarantined text[], dismissed text[], known bigint, leases jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_names  text[];
    v_ids    int[];
    v_set    bigint;
    v_worker record;
    v_shall  boolean;
begin
    if p_workers is null or jsonb_typeof(p_workers) <> 'array' then
        perform penstock.refuse('PS400', 'workers: it is not a JSON array');
    end if;
    begin
        perform from jsonb_to_recordset(p_workers)
            as w(name text, pid int, busy int, requested_at timestamptz, listens boolean);
    exception when data_exception then
        perform penstock.refuse('PS400', 'workers: ' || sqlerrm);
    end;
    perform penstock._check_beat('-', p_queues, p_slots, 0, p_host, p_started_by, p_leaving, true);
    select coalesce(array_agg(q.name), '{}'), coalesce(array_agg(q.id), '{}'),
           hashtextextended(string_agg(q.id || ' ' || q.lease, ','), 0),
           array_agg(q.name) filter (where q.has_quarantined)
    into v_names, v_ids, known, quarantined
    from (
        select q.id, q.name, extract(epoch from q.lease) as lease,
               exists (select from penstock.agenda as a
                       where a.queue_id = q.id and a.pending and a.quarantine < 0) as has_quarantined
        from penstock.queue as q where q.name = any(p_queues) order by q.id
    ) as q;
    known := coalesce(known, 0);
    quarantined := coalesce(quarantined, '{}');
    if known is distinct from p_known then
        leases := (select coalesce(jsonb_object_agg(q.name, extract(epoch from q.lease)), '{}')
                   from penstock.queue as q where q.id = any(v_ids));
    end if;
    v_set := penstock._note_queue_set(v_ids);
    channels := '{}';
    dismissed := '{}';
    -- Workers are handled in the order of names, so that sessions never wait in a circle.
    for v_worker in
        select w.name, w.pid, w.busy, w.requested_at, w.listens
        from jsonb_to_recordset(p_workers) as w(name text, pid int, busy int, requested_at timestamptz, listens boolean)
        order by w.name
    loop
        v_shall := penstock._shall_listen(v_worker.name, v_set);
        if penstock._note_beat(v_worker.name, v_names, v_set, p_slots, v_worker.busy, p_host, v_worker.pid,
                               v_worker.requested_at, p_started_by, p_leaving, v_worker.listens and v_shall) then
            dismissed := dismissed || v_worker.name;
        end if;
        if v_shall then
            channels := channels
                || jsonb_build_object(v_worker.name, 'penstock_' || penstock._channel_number(v_worker.name));
        end if;
    end loop;
    return next;
end
$$;
CREATE FUNCTION penstock.begin_pass(p_adopted integer, p_pass integer) RETURNS TABLE(pass integer, key text[])
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return query
    select p.id, p.key from penstock.adopted_pass as p
    where p.adopted_id = p_adopted and penstock._pass_keeper(p.id) is distinct from p.pid;
    insert into penstock.adopted_pass (id, adopted_id, pid) overriding system value
    values (p_pass, p_adopted, penstock._pass_keeper(p_pass));
end
$$;
CREATE FUNCTION penstock.begin_walk(p_pass integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_adopted int;
begin
    select p.adopted_id into v_adopted from penstock.adopted_pass as p where p.id = p_pass;
    perform from penstock.adopted as a where a.id = v_adopted for no key update;    -- one session at a time asks
    if exists (
        select from penstock.adopted_pass as p
        where p.adopted_id = v_adopted and p.id <> p_pass and p.walks and penstock._pass_keeper(p.id) = p.pid) then
        return false;
    end if;
    update penstock.adopted_pass as p set walks = true where p.id = p_pass;
    return found;
end
$$;
CREATE FUNCTION penstock.board(p_queue text DEFAULT NULL::text, p_decisions integer DEFAULT 10, p_samples integer DEFAULT 0) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET extra_float_digits TO '1'
    AS $$
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
CREATE FUNCTION penstock.cancel(p_queue text, p_ids bigint[] DEFAULT NULL::bigint[], p_subjects text[] DEFAULT NULL::text[], p_reason text DEFAULT 'cancelled'::text) RETURNS TABLE(id bigint, result text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_queue   constant penstock.queue := penstock.the_queue(p_queue);
    v_ids     constant bigint[] := penstock._asked_ids(v_queue.id, p_ids, p_subjects);
    v_now     constant timestamptz := penstock.clock();
    v_live    bigint[] := penstock._hold_documents(v_queue.id, v_ids);
    v_waiting bigint[] := penstock._hold_waiting(v_live);
    v_revoked bigint[];
begin
    delete from penstock.agenda as a where a.task_id = any(v_waiting);
    v_waiting := v_waiting || penstock._blocked(v_live);
    v_revoked := penstock._revoke(v_queue.id, array(select unnest(v_live) except select unnest(v_waiting)), v_now);
    update penstock.task as t
    set ended = 'cancelled', ended_at = v_now,
        reason = penstock._safe_text(coalesce(p_reason, 'cancelled')), renew = null
    where t.id = any(v_waiting || v_revoked);
    if v_waiting || v_revoked <> '{}' then
        insert into penstock.counter_log (queue_id, metric, delta)
        values (v_queue.id, 'cancelled_total', cardinality(v_waiting || v_revoked));
        perform penstock._note_audit('cancel', p_queue,
            jsonb_build_object('tasks', cardinality(v_waiting || v_revoked)));
    end if;
    return query
    select w.id, 'cancelled' from unnest(v_waiting) as w(id)
    union all
    select r.id, 'revoked' from unnest(v_revoked) as r(id)
    union all
    select o.id, replace(o.result, 'active', 'busy')
    from penstock._left_out(v_queue.id, v_ids, v_live, v_waiting || v_revoked) as o;
end
$$;
CREATE FUNCTION penstock.check_mark(p_system text, p_database bigint, p_branch text, p_xid bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $$
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
CREATE FUNCTION penstock.check_window(p_from bigint, p_to bigint, p_dropped bigint, p_queue text DEFAULT NULL::text, p_since timestamp with time zone DEFAULT NULL::timestamp with time zone, p_until timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS void
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $$
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
CREATE FUNCTION penstock.claim(p_queue text, p_limit integer DEFAULT 1, p_lease interval DEFAULT NULL::interval, p_worker text DEFAULT ''::text, p_hint penstock.place DEFAULT NULL::penstock.place, p_quarantined boolean DEFAULT true, p_durable boolean DEFAULT true) RETURNS TABLE(token uuid, until timestamp with time zone, id bigint, kind text, subject text, payload jsonb, priority smallint, due timestamp with time zone, attempt integer, iterations integer, created timestamp with time zone, since timestamp with time zone, alone boolean, key text, meta jsonb)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_token constant uuid := gen_random_uuid();
    v_lease constant interval := penstock._in_seconds(coalesce(p_lease, v_queue.lease));
    v_hint  penstock.place := p_hint;
    v_now   timestamptz;
    v_picks penstock.picks;
    v_alone boolean;
    v_count int;
begin
    perform penstock._check_claim(p_limit, v_lease, p_worker, p_quarantined, p_durable);
    if v_queue.paused then
        return;
    end if;
    if not p_durable then
        -- A claim that is lost in a crash is only repeated. The setting is for this transaction alone: behind a pooler,
        -- a session SET would leak into a settle.
        perform set_config('synchronous_commit', 'off', true);
    end if;
    if v_queue.priority_step is not null and v_hint.task_id > 0 then
        v_hint := null;    -- a place is of another order
    end if;
    -- There is a second round only if none of the tasks that were found may start.
    for v_round in 1 .. 10 loop
        loop
            if v_hint is null then
                perform penstock._tend(v_queue.id, p_limit);
                if p_quarantined then
                    v_picks := penstock._pick_quarantined(v_queue.id);
                    exit when v_picks.ids is not null;
                end if;
            end if;
            if v_queue.priority_step is null then
                v_picks := penstock._pick(v_queue.id, v_hint, p_limit, p_quarantined);
            else
                v_picks := penstock._pick_aged(v_queue, p_limit, p_quarantined);
            end if;
            -- Rows can appear before the hint (late commits, releases, higher priority). If the claim found fewer tasks
            -- than it may take, it searches again from the start. A hint with task 0 precedes all rows: a worker that
            -- was just told of a push gives this hint, and takes what there is.
            exit when v_hint is null or cardinality(v_picks.ids) = p_limit
                      or v_hint.task_id = 0 and v_picks.ids is not null;
            v_hint := null;
        end loop;
        if v_picks.ids is null then
            return;
        end if;
        -- The lease begins now, after the row locks gave this transaction its id. _expire relies on this order (see
        -- _move_bounds).
        v_now := penstock.clock();
        if v_picks.tried then
            v_picks := penstock._within_quarantine(v_picks);
        end if;
        -- The lease is alone if its task must be, or if the caller asked for one task only. A caller that asked for
        -- more may still claim others to run beside it.
        v_alone := p_quarantined and cardinality(v_picks.ids) = 1 and (v_picks.quarantines[1] < 0 or p_limit = 1);
        return query
        select v_token, v_now + v_lease, t.id, t.kind, t.subject, t.payload, t.priority, h.due, h.attempts + 1,
               t.iterations, t.created, t.since, v_alone, t.key, t.meta
        from unnest(v_picks.ids, v_picks.dues, v_picks.attempts) with ordinality as h(id, due, attempts, n)
        join (
            select * from penstock.task as d
            where d.id = any(v_picks.ids) and d.ended is null and (d.expires is null or d.expires > v_now)
        ) as t on t.id = h.id
        order by h.n;
        get diagnostics v_count = row_count;
        if v_count < cardinality(v_picks.ids) then
            v_picks := penstock._without_unstartable(v_queue.id, v_picks, v_now);
        end if;
        delete from penstock.agenda as a where a.ctid = any(v_picks.places);
        if v_count > 0 then
            perform penstock._lease_out(v_token, v_queue.id, v_now, v_now + v_lease, p_worker, v_alone, v_picks);
            return;
        end if;
    end loop;
end
$$;
CREATE FUNCTION penstock.contract() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN 6;
CREATE FUNCTION penstock.create_queue(p_name text, p_lease interval DEFAULT '00:00:30'::interval, p_max_attempts integer DEFAULT 20, p_retry jsonb DEFAULT '{"cap": 3600, "base": 5, "type": "exponential", "factor": 2, "jitter": 0.1}'::jsonb, p_sla interval DEFAULT NULL::interval, p_keep_done interval DEFAULT NULL::interval, p_keep_dead interval DEFAULT NULL::interval, p_keep_cancelled interval DEFAULT NULL::interval, p_settings jsonb DEFAULT '{}'::jsonb, p_exist_ok boolean DEFAULT false, p_max_crashes integer DEFAULT 20, p_priority_step interval DEFAULT NULL::interval) RETURNS boolean
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
    v_new.max_crashes := p_max_crashes;
    v_new.priority_step := p_priority_step;
    perform penstock._check_queue(v_new);
    if p_exist_ok is null then
        perform penstock.refuse('PS400', 'exist_ok: it is null');
    end if;
    insert into penstock.queue (name, lease, max_attempts, retry, sla, keep_done, keep_dead, keep_cancelled, settings,
                                max_crashes, priority_step)
    values (p_name, penstock._in_seconds(p_lease), p_max_attempts, p_retry, penstock._in_seconds(p_sla),
            penstock._in_seconds(p_keep_done), penstock._in_seconds(p_keep_dead),
            penstock._in_seconds(p_keep_cancelled), p_settings, p_max_crashes,
            penstock._in_seconds(p_priority_step))
    on conflict (name) do nothing
    returning id into v_id;
    if v_id is not null then
        insert into penstock.watermark (queue_id, xid, system) values (v_id, 0, penstock._system());
        perform penstock._make_history((penstock.clock() at time zone 'UTC')::date + d.n)
        from generate_series(0, 14) as d(n);
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
    perform penstock._check_scaling('{}', p_holder, p_lease);
    -- At rest, not every look is worth a new row or a lock, which is written too. Queues with another holder are
    -- checked again below.
    v_changed := array(
        select d.queue
        from jsonb_to_recordset(p_decisions) as d(
            queue text, epoch int, policy text, workers int, urgency text, bound_by text, reason text, memory jsonb)
        left join penstock.scaling as s on s.queue = d.queue and s.epoch = d.epoch and s.holder = p_holder
        where s.queue is null or s.target is distinct from d.workers or s.policy <> d.policy
           or coalesce(d.memory, 'null') <> 'null'
           or s.decided_at is null or s.decided_at < v_now - penstock._in_seconds(p_lease) / 4
           or (d.reason is not null and not exists (
                select from (
                    select l.workers, l.urgency, l.bound_by, l.at from penstock.decision as l
                    where l.queue = d.queue order by l.at desc limit 1
                ) as last
                where last.at > v_now - interval '1 minute'
                  and (last.workers, last.urgency, last.bound_by)
                      is not distinct from (d.workers, d.urgency, d.bound_by))));
    if v_changed = '{}' then
        return;
    end if;
    -- All sessions lock in the order of names. The statements that follow see what a newer holder committed.
    perform from penstock.scaling as s where s.queue = any(v_changed) order by s.queue for update;
    v_now := penstock.clock();
    select d.queue, s.holder into v_lost
    from jsonb_to_recordset(p_decisions) as d(queue text, epoch int)
    left join penstock.scaling as s on s.queue = d.queue
    where s.epoch is distinct from d.epoch or s.holder is distinct from p_holder
    limit 1;
    if found then
        perform penstock.refuse('PS409',
            format('queue %L is no longer scaled by %s: %s has taken over',
                   v_lost.queue, p_holder, coalesce(v_lost.holder, 'no scaler')),
            'It was silent for longer than its hold, or its queue was dropped. '
            'What it decided meanwhile does not count.');
    end if;
    update penstock.scaling as s
    set until = v_now + penstock._in_seconds(p_lease), target = d.workers, decided_at = v_now, policy = d.policy,
        memory = coalesce(nullif(d.memory, 'null'), s.memory)
    from jsonb_to_recordset(p_decisions) as d(queue text, policy text, workers int, memory jsonb)
    where s.queue = d.queue and s.queue = any(v_changed)
      and (s.target is distinct from d.workers or s.policy <> d.policy or coalesce(d.memory, 'null') <> 'null'
           or s.decided_at is null or s.decided_at < v_now - penstock._in_seconds(p_lease) / 4);
    return query
    insert into penstock.decision (queue, at, epoch, policy, workers, actual, wanted, urgency, bound_by, reason,
                                   time_to_breach, predicted_breach, inputs, rules)
    select d.queue, v_now, d.epoch, d.policy, d.workers, d.actual, d.wanted, d.urgency, d.bound_by, d.reason,
           d.time_to_breach, d.predicted_breach, coalesce(d.inputs, '{}'), coalesce(d.rules, '{}')
    from jsonb_to_recordset(p_decisions) as d(
        queue text, epoch int, policy text, workers int, actual int, wanted int, urgency text, bound_by text,
        reason text, time_to_breach double precision, predicted_breach double precision, inputs jsonb, rules jsonb)
    left join lateral (
        select l.workers, l.urgency, l.bound_by, l.at from penstock.decision as l
        where l.queue = d.queue order by l.at desc limit 1
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
        perform penstock.refuse('PS400',
            format('limit: %s is not between 1 and 10000', coalesce(p_limit::text, 'null')));
    end if;
    perform penstock._check_scaling(array[p_queue], '-', '1 second');
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
    -- The rows are locked in the order of names, as when a supervisor beats for many workers.
    perform from penstock.worker as w
    where w.name = any(p_workers) and w.started_by is not null and not w.dismissed
    order by w.name
    for no key update;
    update penstock.worker as w set dismissed = true
    where w.name = any(p_workers) and w.started_by is not null and not w.dismissed;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
CREATE FUNCTION penstock.drop_queue(p_queue text, p_force boolean DEFAULT false) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    v_queue  penstock.queue := penstock.the_queue(p_queue);
    v_tasks  bigint;
    v_source text;    -- a kind of another queue whose follow-ups go to this one
begin
    if p_force is null then
        perform penstock.refuse('PS400', 'force: it is null');
    end if;
    -- Schedules go first: a session that fires one waits for documents next.
    delete from penstock.schedule as s where s.queue_id = v_queue.id;
    perform penstock._stand_still(v_queue.id);
    v_queue := penstock.the_queue(p_queue);    -- another session may have dropped it meanwhile
    select s.waiting + s.planned + s.pending + s.active + s.done + s.dead + s.cancelled into v_tasks
    from penstock.status(p_queue) as s;
    if v_tasks > 0 and not p_force then
        perform penstock.refuse('PS409', format('queue %L has %s tasks in it', p_queue, v_tasks),
            'Purge it first, or force it.');
    end if;
    select o.name || ':' || k.kind into v_source
    from penstock.kind as k join penstock.queue as o on o.id = k.queue_id
    where k.queue_id <> v_queue.id and p_queue in (split_part(k.on_dead, ':', 1), split_part(k.on_done, ':', 1))
    order by 1 limit 1;
    if v_source is not null and not p_force then
        perform penstock.refuse('PS409', format('queue %L gets the follow-ups of %s', p_queue, v_source),
            'Take on_dead and on_done out of its handler and restart its workers, or force it.');
    end if;
    -- Tasks are deleted place by place, by the indexes of each place: there is no index over all documents of a queue.
    delete from penstock.task as t using penstock.agenda as a
    where a.queue_id = v_queue.id and a.pending and t.id = a.task_id;
    delete from penstock.task as t using penstock.agenda as a
    where a.queue_id = v_queue.id and not a.pending and t.id = a.task_id;
    delete from penstock.task as t
    where t.id in (select unnest(l.ids) from penstock.lease as l where l.queue_id = v_queue.id);
    delete from penstock.task as t where t.queue_id = v_queue.id and t.waits_for > 0 and t.ended is null;
    delete from penstock.task as t where t.queue_id = v_queue.id and t.ended in ('done', 'dead', 'cancelled');
    delete from penstock.agenda as a where a.queue_id = v_queue.id and a.pending;
    delete from penstock.agenda as a where a.queue_id = v_queue.id and not a.pending;
    delete from penstock.lease as l where l.queue_id = v_queue.id;
    delete from penstock.progress as p where p.queue_id = v_queue.id;
    delete from penstock.stream as s where s.queue_id = v_queue.id;
    delete from penstock.scaling as s where s.queue = v_queue.name;
    delete from penstock.throttle as h where h.queue_id = v_queue.id;
    delete from penstock.key as k where k.queue_id = v_queue.id;
    delete from penstock.kind as k where k.queue_id = v_queue.id;
    delete from penstock.counter as c where c.queue_id = v_queue.id;
    delete from penstock.counter_log as l where l.queue_id = v_queue.id;
    delete from penstock.early as e where e.queue_id = v_queue.id;
    delete from penstock.watermark as l where l.queue_id = v_queue.id;
    delete from penstock.queue_set as s where s.queue_id = v_queue.id;
    delete from penstock.sample as s where s.queue_id = v_queue.id;
    delete from penstock.profile as p where p.queue_id = v_queue.id;
    delete from penstock.history_dropped as d where d.queue_id = v_queue.id;
    insert into penstock.queue_gone (id, name) values (v_queue.id, v_queue.name);
    delete from penstock.queue as q where q.id = v_queue.id;
    -- These schedules were set meanwhile. A schedule that is being fired now stays behind without a queue, where it is
    -- no longer visible.
    delete from penstock.schedule as s
    where s.name in (select n.name from penstock.schedule as n where n.queue_id = v_queue.id for update skip locked);
    perform penstock._note_audit('drop', p_queue, jsonb_build_object('tasks', v_tasks));
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
        perform penstock._miss_schedule(p_name);
    end if;
    perform penstock._note_audit('drop schedule', null, jsonb_build_object('schedule', p_name));
end
$$;
CREATE FUNCTION penstock.due_schedules(p_limit integer DEFAULT 1000) RETURNS SETOF text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select s.name
    from penstock.schedule as s
    where not s.paused and s.next_at <= penstock.clock()
      and exists (select from penstock.queue as q where q.id = s.queue_id)
    order by s.next_at, s.name
    limit p_limit
    for update skip locked
$$;
CREATE FUNCTION penstock.end_leases(p_tokens uuid[], OUT failed integer, OUT dead integer) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_leases penstock.lease[];
begin
    if p_tokens is null or array_ndims(p_tokens) > 1 or array_position(p_tokens, null) is not null then
        perform penstock.refuse('PS400', 'tokens: it is null, nested, or has a null in it');
    end if;
    v_leases := array(
        select l from penstock.lease as l where l.token = any(p_tokens) order by l.until for update skip locked);
    select coalesce(sum(b.tasks - b.dead) filter (where b.alone), 0), coalesce(sum(b.dead), 0) into failed, dead
    from penstock._put_back(v_leases, penstock.clock()) as b;
end
$$;
CREATE FUNCTION penstock.end_leases_of(p_worker text, p_queues text[], OUT failed integer, OUT dead integer) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_tokens uuid[];
begin
    if coalesce(p_worker, '') = '' then
        perform penstock.refuse('PS400', 'worker: it is null or empty');
    end if;
    v_tokens := array(
        select l.token from penstock.queue as q join penstock.lease as l on l.queue_id = q.id
        where q.name = any(p_queues) and l.worker = p_worker);
    if v_tokens <> '{}' then
        select e.failed, e.dead into failed, dead from penstock.end_leases(v_tokens) as e;
    end if;
    failed := coalesce(failed, 0);
    dead := coalesce(dead, 0);
end
$$;
CREATE FUNCTION penstock.end_passes(p_passes integer[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    delete from penstock.adopted_pass as p where p.id = any(p_passes)
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
        perform penstock.refuse('PS409',
            format('batch %s, part %s: it was written before with other content', p_batch_id, p_part),
            'Repeat a batch id only with the same tasks in the same order.');
    end if;
    return v_known.report;
end
$$;
CREATE FUNCTION penstock.enter_partition(p_queue text, p_job uuid, p_partition integer, p_batch_id uuid, p_rows bigint, p_checksum text, p_series uuid DEFAULT NULL::uuid) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_known penstock.ledger;
    v_seal  penstock.ledger;
begin
    insert into penstock.ledger (batch_id, part, queue_id, rows, checksum, report, at, job, series)
    values (p_batch_id, 0, v_queue.id, p_rows, p_checksum, '{}', penstock.clock(), p_job, p_series)
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
    perform penstock._check_repeat(format('partition %s: ', p_partition), v_known, v_queue, p_rows, p_checksum);
    return v_known.report;
end
$$;
CREATE FUNCTION penstock.expire_leases(p_queues text[]) RETURNS integer
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select coalesce(sum(penstock._expire(q.id, 1000)), 0)::int from penstock.queue as q where q.name = any(p_queues)
$$;
CREATE FUNCTION penstock.extend(p_token uuid, p_lease interval DEFAULT NULL::interval) RETURNS TABLE(until timestamp with time zone, revoked bigint[], open integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET lock_timeout TO '5s'
    AS $$
#variable_conflict use_column
declare
    v_now timestamptz;
begin
    if p_token is null then
        perform penstock.refuse('PS400', 'token: it is null');
    elsif not penstock._lease_fits(p_lease) then
        perform penstock._refuse_lease(p_lease);
    end if;
    -- The new end is computed after the lock gave this transaction its id. expire relies on this order.
    perform from penstock.lease as l where l.token = p_token for update;
    v_now := penstock.clock();
    return query
    with extended as (
        update penstock.lease as l
        set until = v_now + penstock._in_seconds(
            coalesce(p_lease, (select q.lease from penstock.queue as q where q.id = l.queue_id)))
        where l.token = p_token
        returning l.queue_id, l.until, l.revoked, bit_count(l.open)::int as open
    ), lowered as (
        update penstock.watermark as b set until = e.until
        from extended as e where b.queue_id = e.queue_id and b.until > e.until
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
    v_now  timestamptz;
    v_free uuid[];
begin
    if p_tokens is null or array_ndims(p_tokens) > 1 or array_position(p_tokens, null) is not null then
        perform penstock.refuse('PS400', 'tokens: it is null, nested, or has a null in it');
    elsif not penstock._lease_fits(p_lease) then
        perform penstock._refuse_lease(p_lease);
    end if;
    -- The new ends are computed after the locks gave this transaction its id. expire relies on this order.
    v_free := array(select l.token from penstock.lease as l where l.token = any(p_tokens) for update skip locked);
    v_now := penstock.clock();
    return query
    with extended as (
        update penstock.lease as l
        set until = v_now + penstock._in_seconds(
            coalesce(p_lease, (select q.lease from penstock.queue as q where q.id = l.queue_id)))
        where l.token = any(v_free)
        returning l.token, l.queue_id, l.until, l.revoked
    ), lowered as (
        update penstock.watermark as b set until = e.until
        from (select x.queue_id, min(x.until) as until from extended as x group by x.queue_id) as e
        where b.queue_id = e.queue_id and b.until > e.until
    )
    select l.token, e.until, coalesce(e.revoked, '{}')
    from penstock.lease as l left join extended as e on e.token = l.token
    where l.token = any(p_tokens);
end
$$;
CREATE FUNCTION penstock.failed_ids(p_queue text, p_fingerprint text, p_limit integer, p_look integer DEFAULT 10000) RETURNS SETOF bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
begin
    perform penstock._check_limit(p_limit);
    perform penstock._check_limit(p_look);
    return query
    select t.id
    from (
        select x.id, x.error_class, x.error, x.reason, x.ended_at
        from penstock.task as x
        where x.queue_id = v_queue.id and x.ended = 'dead'
        order by x.ended_at desc limit p_look
    ) as t
    where penstock._error_fingerprint(t.error_class, penstock._error_pattern(t.error, t.reason)) = p_fingerprint
    order by t.ended_at desc
    limit p_limit;
end
$$;
CREATE FUNCTION penstock.failures(p_queue text DEFAULT NULL::text, p_look integer DEFAULT 10000) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    SET enable_seqscan TO 'off'
    AS $$
begin
    perform penstock._check_limit(p_look);
    if p_queue is not null then
        perform penstock.the_queue(p_queue);
    end if;
    return coalesce((
        select jsonb_agg(to_jsonb(g) order by g.last desc)
        from (
            select d.queue, penstock._error_fingerprint(d.error_class, d.pattern) as fingerprint,
                   d.error_class, d.pattern as message, count(*) as tasks,
                   (array_agg(distinct d.kind))[1:10] as kinds, min(d.ended_at) as first, max(d.ended_at) as last,
                   max(d.id) as newest, min(d.complete::int) = 1 as complete
            from (
                select q.name as queue, t.id, t.kind, t.error_class, t.ended_at,
                       penstock._error_pattern(t.error, t.reason) as pattern,
                       count(*) over (partition by q.id) < p_look as complete
                from penstock.queue as q
                cross join lateral (
                    select x.id, x.kind, x.error_class, x.error, x.reason, x.ended_at
                    from penstock.task as x
                    where x.queue_id = q.id and x.ended = 'dead'
                    order by x.ended_at desc limit p_look
                ) as t
                where p_queue is null or q.name = p_queue
            ) as d
            group by d.queue, d.error_class, d.pattern
            order by max(d.ended_at) desc
            limit 500
        ) as g), '[]');
end
$$;
CREATE FUNCTION penstock.find_branch() RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select b.id from penstock.history_branch as b
    where b.timeline = penstock.timeline() and b.started = pg_postmaster_start_time()
      and b.relation = 'penstock.history'::regclass
$$;
CREATE FUNCTION penstock.find_progress(p_id bigint, p_queue text DEFAULT NULL::text) RETURNS TABLE(part double precision, text text, at timestamp with time zone, attempt integer, log jsonb)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
begin
    perform penstock._check_id(p_id);
    if not exists (
        select from penstock.task as t
        where t.id = p_id and (p_queue is null or t.queue_id = (penstock.the_queue(p_queue)).id)
    ) then
        perform penstock.refuse('PS404',
            format('id: there is no task %s', p_id) || coalesce(' in queue ' || quote_literal(p_queue), ''),
            'Progress is removed with its task.');
    end if;
    return query
    select p.part, p.text, p.at, p.attempt,
           (select coalesce(jsonb_agg(e.line - 'n' order by e.o), '[]')
            from jsonb_array_elements(p.log) with ordinality as e(line, o))
    from penstock.progress as p where p.task_id = p_id;
end
$$;
CREATE FUNCTION penstock.find_removed(p_id bigint) RETURNS TABLE(task_id bigint, queue text, kind text, subject text, state text, attempts integer, iterations integer, created timestamp with time zone, last_iteration timestamp with time zone, ended_at timestamp with time zone, error_class text, error text, worker text, claimed_at timestamp with time zone)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select
        h.task_id, penstock._queue_name(h.queue_id), h.kind, h.subject,
        case when h.outcome in ('revoked', 'unstarted') then 'cancelled' else h.outcome end,
        case when h.outcome = 'dead' then h.attempt else 0 end,
        h.iteration + (h.outcome = 'done')::int,
        h.created, case when h.outcome = 'done' then h.finished_at end, h.finished_at,
        h.error_class, h.error, h.worker, h.claimed_at
    from penstock._last_attempts(p_id, null, 1) as h
    where h.outcome in ('done', 'dead', 'revoked', 'unstarted')
$$;
CREATE FUNCTION penstock.find_work(p_queues text[]) RETURNS TABLE(waiting text[], next_due double precision, next_schedule double precision, upkeep boolean)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    v_now constant timestamptz := penstock.clock();
begin
    select coalesce(array_agg(s.name) filter (where s.pending or s.next <= v_now), '{}'),
           extract(epoch from min(s.next) filter (where s.next > v_now) - v_now)::double precision
    into waiting, next_due
    from (
        -- The search begins at the bounds, as a claim does, because it may run every second under a held snapshot.
        select q.name,
               exists (select from penstock._priority_ranges(b.priorities, b.first_due) as f
                       cross join lateral (
                           select from penstock.agenda as a
                           where a.queue_id = q.id and a.pending and a.priority >= f.first and a.priority < f.next
                             and a.due >= least(f.due, e.due)
                           limit 1) as a) as pending,
               least((select a.due from penstock.agenda as a
                      where a.queue_id = q.id and not a.pending and a.due >= least(b.first_planned, e.due)
                      order by a.due limit 1),
                     (select l.until from penstock.lease as l where l.queue_id = q.id and l.until >= b.until
                      order by l.until limit 1)) as next
        from penstock.queue as q
        cross join lateral penstock._watermark(q.id) as b
        left join lateral (
            select min(y.due) as due from penstock.early as y
            where y.queue_id = q.id and y.xid >= coalesce(b.running[1], b.xid)
        ) as e on true
        where q.name = any(p_queues) and not q.paused
    ) as s;
    next_schedule := penstock.next_schedule();
    upkeep := exists (select from penstock.upkeep_parts(true));
    return next;
end
$$;
CREATE FUNCTION penstock.fire(p_name text, p_mark timestamp with time zone, p_ticks timestamp with time zone[], p_decided timestamp with time zone, p_next_at timestamp with time zone, p_expires timestamp with time zone[] DEFAULT NULL::timestamp with time zone[]) RETURNS integer
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
        perform penstock.refuse('PS400',
            format('decided, next_at: %s, %s are not in order after %s', p_decided, p_next_at, p_mark));
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
            perform penstock.refuse('PS400',
                format('ticks: the payloads of %s are more than 16 MiB in one call', v_many));
        end if;
        select count(*) into v_pushed
        from penstock.push_many(
            v_queue,
            array_fill(v_schedule.payload::text, array[v_many]),
            array(
                select p_name || '@' || to_char(t.tick at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
                from unnest(p_ticks) as t(tick)),
            array_fill(v_schedule.kind, array[v_many]),
            p_priorities => array_fill(v_schedule.priority, array[v_many]),
            p_keys => case when v_schedule.key is not null then array_fill(v_schedule.key, array[v_many]) end,
            p_expires => p_expires) as p
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
            'There are: ' || coalesce((select string_agg(r.name, ', ' order by r.name)
                                       from penstock.history_reader as r), 'none') || '.');
    end if;
    perform penstock._note_audit('forget', null, jsonb_build_object('reader', p_name));
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
CREATE FUNCTION penstock.history_between(p_from bigint, p_to bigint) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
    select exists (select from penstock.history as h where h.xid >= p_from and h.xid < p_to)
$$;
CREATE FUNCTION penstock.history_horizon() RETURNS TABLE(system text, database bigint, branch text, xid bigint, dropped bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
            h.iteration, h.attempt, h.outcome, h.kind, h.worker, coalesce(h.subject, E'\x1e'),
            coalesce(h.error_class, E'\x1e'), coalesce(h.error, E'\x1e'))), 15))::bit(60)::bigint end), 0)
    from penstock.history as h
    where h.finished_at >= p_day::timestamptz and h.finished_at < (p_day + 1)::timestamptz and h.xid < p_below
      and h.ctid >= format('(%s,0)', p_first)::tid and h.ctid < format('(%s,0)', p_first + p_pages)::tid
    group by h.queue_id, h.outcome
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
    perform penstock._check_scaling(p_queues, p_holder, p_lease);
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
            perform penstock.refuse('PS409',
                format('queue %L is scaled by %s until %s', v_row.queue, v_row.holder, v_row.until),
                'Stop that scaler, or let this one wait: --standby.');
        end if;
    end loop;
    return query
    update penstock.scaling as s
    set epoch = case when s.holder = p_holder then s.epoch else s.epoch + 1 end, holder = p_holder, policy = p_policy,
        until = v_now + penstock._in_seconds(p_lease)
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
    perform penstock._check_hold(p_lease, p_driver);
    insert into penstock.stream (queue_id, name, epoch, until, driver)
    values (v_queue.id, p_group, p_epoch, '-infinity', p_driver)
    on conflict (queue_id, name) do nothing;
    select * into v_stream from penstock.stream as s where s.queue_id = v_queue.id and s.name = p_group for update;
    v_now := penstock.clock();
    if v_stream.epoch <> p_epoch and v_stream.until > v_now
       and not pg_try_advisory_xact_lock(1346719303, v_stream.epoch) then
        perform penstock.refuse('PS409',
            format('consumerGroup: %L of queue %L is held by driver %s until %s',
                   p_group, p_queue, v_stream.driver, v_stream.until),
            'Stop that driver, wait until its hold has ended, or give this one a consumerGroup of its own.');
    end if;
    update penstock.stream as s
    set epoch = p_epoch, until = v_now + penstock._in_seconds(p_lease), driver = p_driver,
        tokens = case when v_stream.epoch = p_epoch then v_stream.tokens
                      else penstock._renew_tokens(v_stream.tokens, p_driver, p_lease) end
    where s.id = v_stream.id;
    return query select v_stream.id, v_stream.identity, v_stream.batch;
end
$$;
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
    v_stream constant penstock.stream := penstock._held_stream(p_stream, p_epoch);
begin
    perform penstock._check_hold(p_lease);
    perform penstock.extend_many(v_stream.tokens, p_lease);
    update penstock.stream as s set until = penstock.clock() + penstock._in_seconds(p_lease) where s.id = p_stream;
end
$$;
CREATE FUNCTION penstock.leave(p_worker text) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    delete from penstock.idle_worker as i where i.worker = p_worker;
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
CREATE FUNCTION penstock.mark_adopted(p_adopted integer, p_tick timestamp with time zone, p_key text[], p_back boolean DEFAULT false) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    update penstock.adopted as a set tick = p_tick, key = p_key
    where a.id = p_adopted
      and (p_back or a.tick is null or a.tick < p_tick
           or (a.tick = p_tick and a.key is not null and (p_key is null or a.key collate "C" < p_key collate "C")))
$$;
CREATE FUNCTION penstock.mentions(p_class text, p_error text, p_reason text, p_text text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (strpos(lower((((COALESCE((p_class || ': '::text), ''::text) || COALESCE(p_error, ''::text)) || ' '::text) || COALESCE(p_reason, ''::text))), lower(p_text)) > 0);
CREATE FUNCTION penstock.metrics() RETURNS jsonb
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock.next_batch(p_stream integer, p_epoch integer, p_after bigint, p_limit integer, p_slots integer, p_lease interval, p_before timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS TABLE(batch bigint, tasks integer, early integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_stream penstock.stream := penstock._held_stream(p_stream, p_epoch);
    v_queue  penstock.queue;
    v_tasks  int;
    v_early  int := 0;
begin
    if p_after is null or p_after not between 0 and v_stream.batch then
        perform penstock.refuse('PS400', format('after: batch %s is not between 0 and %s, the last of consumerGroup %L',
                                                coalesce(p_after::text, 'null'), v_stream.batch, v_stream.name),
            'After a restore, or a failover to a standby that lagged: begin with a new checkpoint. '
            'What is not settled comes again.');
    elsif p_limit is null or p_limit not between 0 and 10000000 then
        perform penstock.refuse('PS400',
            format('limit: %s is not between 0 and 10000000', coalesce(p_limit::text, 'null')));
    elsif p_slots is null or p_slots not between 1 and 1000 then
        perform penstock.refuse('PS400',
            format('slots: %s is not between 1 and 1000', coalesce(p_slots::text, 'null')));
    end if;
    perform penstock._check_hold(p_lease);
    if v_stream.batch <= p_after then
        perform penstock._settle_batch(v_stream.tokens);
        v_stream.tokens := '{}';
    end if;
    v_tasks := penstock._open_tasks(v_stream.tokens);
    if v_tasks = 0 then
        select * into v_queue from penstock.queue as q where q.id = v_stream.queue_id;
        select c.tokens, c.tasks, c.early into v_stream.tokens, v_tasks, v_early
        from penstock._claim_batch(v_queue, v_stream.driver, p_limit, p_slots, p_lease, p_before) as c;
        v_stream.batch := v_stream.batch + (v_tasks > 0)::int;
    end if;
    update penstock.stream as s
    set batch = v_stream.batch, tokens = v_stream.tokens, until = penstock.clock() + penstock._in_seconds(p_lease)
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
CREATE FUNCTION penstock.next_pass() RETURNS integer
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select nextval('penstock.adopted_pass_id_seq')::int
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
CREATE FUNCTION penstock.note_failures(p_adopted integer, p_failed jsonb, p_succeeded jsonb DEFAULT '[]'::jsonb) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    c_kept constant int := 1000;
    v_over bigint;
begin
    delete from penstock.adopted_failure as f
    using (select array(select jsonb_array_elements_text(k.value)) as key
           from jsonb_array_elements(p_succeeded) as k) as s
    where f.adopted_id = p_adopted and f.key = s.key;
    if p_failed is null or p_failed = '[]' or not exists (select from penstock.adopted as a where a.id = p_adopted) then
        return;
    end if;
    insert into penstock.adopted_failure as f (adopted_id, key, error_class, error, times, dead, unwritten,
                                               first_at, last_at)
    select distinct on (g.key) p_adopted, g.key, left(r.value->>'error_class', 200), left(r.value->>'error', 8192), 1,
           (r.value->>'dead')::boolean, (r.value->>'unwritten')::boolean, penstock.clock(), penstock.clock()
    from jsonb_array_elements(p_failed) as r
    cross join lateral (select array(select jsonb_array_elements_text(r.value->'key')) collate "C" as key) as g
    order by g.key
    on conflict (adopted_id, key) do update
    set error_class = excluded.error_class, error = excluded.error, times = f.times + 1, dead = excluded.dead,
        unwritten = excluded.unwritten, last_at = excluded.last_at;
    -- Two sessions that note failures at the same time do not see each other's rows. The next call deletes the surplus.
    select count(*) - c_kept into v_over from penstock.adopted_failure as f where f.adopted_id = p_adopted;
    if v_over > 0 then
        delete from penstock.adopted_failure as f
        using (
            select o.key from penstock.adopted_failure as o
            where o.adopted_id = p_adopted order by o.last_at limit v_over for update skip locked
        ) as o
        where f.adopted_id = p_adopted and f.key = o.key;
    end if;
end
$$;
CREATE FUNCTION penstock.note_horizon() RETURNS TABLE(system text, database bigint, branch text, xid bigint, dropped bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock.note_pass(p_adopted integer, p_report jsonb) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    update penstock.adopted as a set last_pass = p_report where a.id = p_adopted
$$;
CREATE FUNCTION penstock.note_pass_record(p_pass integer, p_key text[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    update penstock.adopted_pass as p set key = p_key where p.id = p_pass
$$;
CREATE FUNCTION penstock.note_progress(p_token uuid, p_notes jsonb) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET "TimeZone" TO 'UTC'
    AS $$
declare
    v_now   constant timestamptz := penstock.clock();
    v_lease penstock.lease;
    v_count int;
begin
    perform penstock._check_notes(p_token, p_notes);
    -- The lease is not locked: of a task that ends at this moment, upkeep removes the note.
    select * into v_lease from penstock.lease as l where l.token = p_token and l.until >= v_now;
    insert into penstock.progress as p (task_id, queue_id, claimed_at, attempt, at, part, text, lines, log)
    select n.id, v_lease.queue_id, v_lease.claimed_at, coalesce(h.attempts, 0) + 1,
           v_now - make_interval(secs => n.ago), n.part, penstock._note_text(n.text),
           coalesce((n.lines->-1->>0)::int, 0),
           penstock._join_lines('[]', penstock._read_lines(n.lines, coalesce(h.attempts, 0) + 1, v_now), 0)
    from jsonb_to_recordset(p_notes) as n(id bigint, part float8, text text, ago float8, lines jsonb)
    join unnest(v_lease.ids, v_lease.attempts) with ordinality as h(id, attempts, o) on h.id = n.id
    where get_bit(v_lease.open, h.o::int - 1) = 1
    order by n.id
    on conflict (task_id) do update
    set claimed_at = excluded.claimed_at, attempt = excluded.attempt, at = excluded.at,
        part = coalesce(excluded.part, p.part),
        text = case when excluded.part is null then p.text else excluded.text end,
        lines = greatest(excluded.lines, case when p.claimed_at = excluded.claimed_at then p.lines else 0 end),
        log = penstock._join_lines(
            p.log, excluded.log, case when p.claimed_at = excluded.claimed_at then p.lines else 0 end)
    where p.claimed_at <= excluded.claimed_at;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
CREATE FUNCTION penstock.note_reader(p_name text, p_system text, p_database bigint, p_branch text, p_passed bigint DEFAULT 0) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock.note_records(p_adopted integer, p_records jsonb) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    insert into penstock.adopted_record (adopted_id, key, failures, last_failure, due, error)
    select p_adopted, array(select jsonb_array_elements_text(r.value->'key')), (r.value->>'failures')::int,
           penstock.clock(), (r.value->>'due')::timestamptz, left(r.value->>'error', 8192)
    from jsonb_array_elements(p_records) as r
    order by 2
    on conflict (adopted_id, key) do update
    set failures = excluded.failures, last_failure = excluded.last_failure, due = excluded.due, error = excluded.error
$$;
CREATE FUNCTION penstock.note_rejects(p_queue text, p_job uuid, p_partition integer, p_reasons text[], p_payloads text[], p_subjects text[], p_kinds text[], p_dues text[], p_priorities text[], p_keys text[], p_metas text[], p_expires text[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_count bigint;
begin
    insert into penstock.reject (job, partition, queue, reason, payload, subject, kind, due, priority, key, meta,
                                 expires)
    select p_job, p_partition, v_queue.name, r.reason, r.payload, r.subject, r.kind, r.due, r.priority, r.key, r.meta,
           r.expires
    from unnest(p_reasons, p_payloads, p_subjects, p_kinds, p_dues, p_priorities, p_keys, p_metas, p_expires)
         with ordinality as r(reason, payload, subject, kind, due, priority, key, meta, expires, n)
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
CREATE FUNCTION penstock.note_reveal(p_id bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_task penstock.task;
begin
    perform penstock._check_id(p_id);
    select * into v_task from penstock.task as t where t.id = p_id;
    if v_task.id is null then
        perform penstock.refuse('PS404', format('id: there is no task %s', p_id));
    end if;
    perform penstock._note_audit('reveal', penstock._queue_name(v_task.queue_id), jsonb_build_object('task', p_id));
end
$$;
CREATE FUNCTION penstock.oldest_client() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN 6;
CREATE FUNCTION penstock.pass_on(p_worker text, p_queue text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
begin
    delete from penstock.idle_worker as i where i.worker = p_worker;
    perform penstock._wake(q.name, array(
        select i.channel from penstock.queue_set as s join penstock.idle_worker as i on i.queue_set = s.id
        where s.queue_id = q.id), 1)
    from penstock.queue as q
    where q.name = p_queue and q.settings->'notify' is distinct from 'false'
      and exists (select from penstock.agenda as a where a.queue_id = q.id and a.pending);
end
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
        perform penstock._note_audit('pause schedule', null, jsonb_build_object('schedule', p_name));
    elsif not exists (select from penstock.schedule as s where s.name = p_name) then
        perform penstock._miss_schedule(p_name);
    end if;
end
$$;
CREATE FUNCTION penstock.places_of(p_queue_id integer) RETURNS TABLE(id bigint, place text)
    LANGUAGE sql STABLE SECURITY DEFINER ROWS 10000
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
    select a.task_id, 'planned' from penstock.agenda as a where a.queue_id = p_queue_id and not a.pending
    union all
    select a.task_id, 'pending' from penstock.agenda as a where a.queue_id = p_queue_id and a.pending
    union all
    select h.id, 'active' from penstock.lease as l cross join lateral unnest(l.ids) with ordinality as h(id, n)
    where l.queue_id = p_queue_id and substring(l.open from h.n::int for 1) = b'1'
    union all
    select t.id, 'waiting' from penstock.task as t
    where t.queue_id = p_queue_id and t.waits_for > 0 and t.ended is null
    union all
    select t.id, t.ended from penstock.task as t
    where t.queue_id = p_queue_id and t.ended in ('done', 'dead', 'cancelled')
$$;
CREATE FUNCTION penstock.prepare_work(p_queues text[], p_kinds jsonb DEFAULT '{}'::jsonb) RETURNS TABLE(queue text, lease double precision, paused boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
begin
    if p_queues is null or array_ndims(p_queues) > 1 or array_position(p_queues, null) is not null then
        perform penstock.refuse('PS400', 'queues: it is null, nested, or has a null in it');
    elsif p_kinds is null or jsonb_typeof(p_kinds) <> 'object' then
        perform penstock.refuse('PS400', 'kinds: it is not a JSON object');
    end if;
    perform penstock.the_queue(q.name) from unnest(p_queues) as q(name);
    perform penstock.set_kinds(k.queue, k.kinds) from jsonb_each(p_kinds) as k(queue, kinds) order by k.queue;
    return query
    select q.name, extract(epoch from q.lease)::double precision, q.paused
    from penstock.queue as q where q.name = any(p_queues);
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
CREATE FUNCTION penstock.purge(p_queue text, p_states text[], p_ids bigint[] DEFAULT NULL::bigint[], p_kind text DEFAULT NULL::text, p_error text DEFAULT NULL::text, p_before timestamp with time zone DEFAULT NULL::timestamp with time zone, p_limit integer DEFAULT 10000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
declare
    v_queue   constant penstock.queue := penstock.the_queue(p_queue);
    v_bad     text;
    v_active  bigint;
    v_found   bigint[];
    v_ends    timestamptz[];
    v_held    bigint[];
    v_waiting bigint[];
    v_gone    bigint;
begin
    perform penstock._check_limit(p_limit);
    perform penstock._check_filter(p_error);
    if p_states is null or p_states = '{}' or array_position(p_states, null) is not null then
        perform penstock.refuse('PS400', 'states: none is given, or one is null');
    end if;
    select s.state into v_bad from unnest(p_states) as s(state)
    where s.state not in ('waiting', 'planned', 'pending', 'done', 'dead', 'cancelled') limit 1;
    if v_bad = 'active' then
        perform penstock.refuse('PS409', 'state: active tasks are not purged', 'Cancel them first.');
    elsif v_bad is not null then
        perform penstock.refuse('PS400',
            format('state: %L is not waiting, planned, pending, done, dead or cancelled', left(v_bad, 80)));
    end if;
    if p_ids is not null then
        select t.id into v_active from penstock.task as t
        where t.id = any(penstock._asked_ids(v_queue.id, p_ids, null)) and t.queue_id = v_queue.id and t.ended is null
          and coalesce(t.waits_for, 0) = 0
          and not exists (select from penstock.agenda as a where a.task_id = t.id) limit 1;
        if v_active is not null then
            perform penstock.refuse('PS409', format('id: %s is active; active tasks are not purged', v_active),
                'Cancel it first.');
        end if;
    end if;
    select array_agg(c.id), array_agg(c.ended_at) into v_found, v_ends
    from (
        (select t.id, t.ended_at from penstock.task as t
         where t.queue_id = v_queue.id and t.ended = any(p_states)
           and (p_ids is null or t.id = any(p_ids))
           and (p_kind is null or t.kind = p_kind)
           and (p_error is null or penstock.mentions(t.error_class, t.error, t.reason, p_error))
           and (p_before is null or t.ended_at < p_before)
         limit p_limit)
        union all
        (select t.id, null
         from (
             select p.task_id from penstock.agenda as p
             where p.queue_id = v_queue.id and p.pending and 'pending' = any(p_states)
             union all
             select p.task_id from penstock.agenda as p
             where p.queue_id = v_queue.id and not p.pending and 'planned' = any(p_states)
             union all
             select p.id from penstock.task as p
             where p.queue_id = v_queue.id and p.waits_for > 0 and p.ended is null and 'waiting' = any(p_states)
         ) as a
         join penstock.task as t on t.id = a.task_id
         where (p_ids is null or t.id = any(p_ids))
           and (p_kind is null or t.kind = p_kind)
           and (p_error is null or penstock.mentions(t.error_class, t.error, t.reason, p_error))
           and (p_before is null or t.created < p_before)
         limit p_limit)
        limit p_limit
    ) as c;
    v_held := penstock._hold_documents(v_queue.id, v_found, v_ends);
    v_waiting := penstock._hold_waiting(v_held);
    delete from penstock.agenda as a where a.task_id = any(v_waiting);
    v_waiting := v_waiting || penstock._blocked(v_held);
    delete from penstock.task as t where t.id = any(v_held) and (t.ended is not null or t.id = any(v_waiting));
    get diagnostics v_gone = row_count;
    delete from penstock.progress as p
    where p.task_id = any(v_held) and not exists (select from penstock.task as t where t.id = p.task_id);
    if v_gone > 0 then
        perform penstock._note_audit('purge', p_queue, jsonb_build_object('tasks', v_gone, 'states', p_states));
    end if;
    return v_gone;
end
$$;
CREATE FUNCTION penstock.push(p_queue text, p_payload json, p_subject text DEFAULT NULL::text, p_kind text DEFAULT NULL::text, p_due timestamp with time zone DEFAULT NULL::timestamp with time zone, p_priority smallint DEFAULT 5, p_on_conflict text DEFAULT 'skip'::text, p_key text DEFAULT NULL::text, p_meta jsonb DEFAULT NULL::jsonb, p_expires timestamp with time zone DEFAULT NULL::timestamp with time zone, p_debounce interval DEFAULT NULL::interval, p_at_most interval DEFAULT NULL::interval, p_throttle interval DEFAULT NULL::interval) RETURNS TABLE(id bigint, result text, state text)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select r.id, r.result, r.state
    from penstock.push_many(p_queue, array[p_payload::text], array[p_subject], array[p_kind], array[p_due],
                            array[p_priority], p_on_conflict, penstock._given(p_key), penstock._given(p_meta::text),
                            case when p_expires is not null then array[p_expires] end,
                            p_debounce, p_at_most, p_throttle) as r
$$;
CREATE FUNCTION penstock.push(p_queue text, p_payload jsonb DEFAULT '{}'::jsonb, p_subject text DEFAULT NULL::text, p_kind text DEFAULT NULL::text, p_due timestamp with time zone DEFAULT NULL::timestamp with time zone, p_priority smallint DEFAULT 5, p_on_conflict text DEFAULT 'skip'::text, p_key text DEFAULT NULL::text, p_meta jsonb DEFAULT NULL::jsonb, p_expires timestamp with time zone DEFAULT NULL::timestamp with time zone, p_debounce interval DEFAULT NULL::interval, p_at_most interval DEFAULT NULL::interval, p_throttle interval DEFAULT NULL::interval) RETURNS TABLE(id bigint, result text, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return query
    select r.id, r.result, r.state
    from penstock.push_many(p_queue, array[p_payload::text], array[p_subject], array[p_kind], array[p_due],
                            array[p_priority], p_on_conflict, penstock._given(p_key), penstock._given(p_meta::text),
                            case when p_expires is not null then array[p_expires] end,
                            p_debounce, p_at_most, p_throttle) as r;
end
$$;
CREATE FUNCTION penstock.push(p_queue text, p_payload text, p_subject text DEFAULT NULL::text, p_kind text DEFAULT NULL::text, p_due timestamp with time zone DEFAULT NULL::timestamp with time zone, p_priority smallint DEFAULT 5, p_on_conflict text DEFAULT 'skip'::text, p_key text DEFAULT NULL::text, p_meta jsonb DEFAULT NULL::jsonb, p_expires timestamp with time zone DEFAULT NULL::timestamp with time zone, p_debounce interval DEFAULT NULL::interval, p_at_most interval DEFAULT NULL::interval, p_throttle interval DEFAULT NULL::interval) RETURNS TABLE(id bigint, result text, state text)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select r.id, r.result, r.state
    from penstock.push_many(p_queue, array[p_payload], array[p_subject], array[p_kind], array[p_due],
                            array[p_priority], p_on_conflict, penstock._given(p_key), penstock._given(p_meta::text),
                            case when p_expires is not null then array[p_expires] end,
                            p_debounce, p_at_most, p_throttle) as r
$$;
CREATE FUNCTION penstock.push_many(p_queue text, p_payloads text[], p_subjects text[] DEFAULT NULL::text[], p_kinds text[] DEFAULT NULL::text[], p_dues timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], p_priorities smallint[] DEFAULT NULL::smallint[], p_on_conflict text DEFAULT 'skip'::text, p_keys text[] DEFAULT NULL::text[], p_metas text[] DEFAULT NULL::text[], p_expires timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], p_debounce interval DEFAULT NULL::interval, p_at_most interval DEFAULT NULL::interval, p_throttle interval DEFAULT NULL::interval) RETURNS TABLE(n integer, id bigint, result text, state text)
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
    v_ns      int[];       -- positions whose subject exists, and its document
    v_ids     bigint[];
    v_ended   text[];
    v_dues    timestamptz[];
    v_ranks   smallint[];
    v_keys    text[];
    v_firsts  timestamptz[];    -- when the age of these documents began
    v_left    int[];       -- positions whose subject exists, when nothing is to be updated
    v_later   timestamptz;      -- the due by debounce
begin
    perform penstock._check_arrays(p_payloads, p_subjects, p_kinds, p_dues, p_priorities, p_on_conflict);
    perform penstock._check_push(p_payloads, p_subjects, p_kinds, p_dues, p_priorities,
                                 penstock.largest_payload(v_queue));
    if num_nonnulls(p_keys, p_metas, p_expires) > 0 then
        perform penstock._check_extras(cardinality(p_payloads), p_keys, p_metas, p_expires, p_dues);
    end if;
    if num_nonnulls(p_debounce, p_at_most, p_throttle) > 0 then
        perform penstock._check_pace(p_subjects, p_dues, p_on_conflict, p_debounce, p_at_most, p_throttle);
        v_later := penstock.clock() + penstock._in_seconds(p_debounce);
        if p_throttle is not null then
            return query
            select r.n, r.id, r.result, r.state
            from penstock._push_throttled(p_queue, p_payloads, p_subjects, p_kinds, p_dues, p_priorities, p_on_conflict,
                                          p_keys, p_metas, p_expires, p_throttle) as r;
            return;
        end if;
    end if;
    if v_updates then
        perform penstock._check_texts(p_payloads, penstock._largest_text(v_queue));
    end if;
    if cardinality(p_payloads) = 1 and p_subjects[1] is null then
        -- A task without a subject cannot conflict with another task, which halves the work.
        return query
        insert into penstock.task as t (queue_id, priority, kind, payload, due, key, meta, expires)
        values (v_queue.id, coalesce(p_priorities[1], 5::smallint), coalesce(p_kinds[1], 'default'),
                p_payloads[1]::jsonb, p_dues[1], p_keys[1], p_metas[1]::jsonb, p_expires[1])
        returning 1, t.id, 'created', case when t.due is null then 'pending' else 'planned' end;
        return;
    end if;
    -- The last of several equal subjects wins.
    select array_agg(s.n) into v_twice
    from (
        select i.n::int, lead(i.subject) over (order by i.subject collate "C", i.n) = i.subject as again
        from unnest(p_subjects) with ordinality as i(subject, n)
    ) as s
    where s.again;
    -- Ids follow the given order, so that the first task runs first. A conflict locks the document even if nothing is
    -- updated.
    with asked as materialized (
        select i.n::int, nextval('penstock.task_id_seq') as id, i.payload, i.subject, i.kind,
               coalesce(i.due, v_later) as due, i.priority, i.key, i.meta, i.expires
        from unnest(p_payloads, p_subjects, p_kinds, p_dues, p_priorities, p_keys, p_metas, p_expires)
             with ordinality as i(payload, subject, kind, due, priority, key, meta, expires, n)
        where v_twice is null or i.n not in (select unnest(v_twice))
    ), written as (
        insert into penstock.task as t (id, queue_id, priority, kind, subject, payload, due, key, meta, expires)
        select a.id, v_queue.id, coalesce(a.priority, 5::smallint), coalesce(a.kind, 'default'),
               a.subject, a.payload::jsonb, a.due, a.key, a.meta::jsonb, a.expires
        from asked as a
        order by a.subject collate "C", a.id
        on conflict (queue_id, subject) where subject is not null do update
        set payload = excluded.payload, kind = excluded.kind, priority = excluded.priority,
            due = coalesce(excluded.due, t.due), key = excluded.key, meta = excluded.meta, expires = excluded.expires
        where v_updates
        returning t.id, t.subject, coalesce(t.ended, case when t.waits_for > 0 then 'waiting' end) as ended,
                  coalesce(t.since, t.created) as first
    ), matched as materialized (
        select a.n, a.due, coalesce(a.priority, 5::smallint) as priority, a.key, c.id as made, e.id, e.ended,
               e.first
        from asked as a
        left join written as c on c.id = a.id
        left join written as e on e.subject = a.subject and c.id is null
    )
    select array_agg(m.n) filter (where m.made is not null), array_agg(m.made) filter (where m.made is not null),
           array_agg(m.due is not null) filter (where m.made is not null),
           array_agg(m.n) filter (where m.id is not null), array_agg(m.id) filter (where m.id is not null),
           array_agg(m.ended) filter (where m.id is not null), array_agg(m.due) filter (where m.id is not null),
           array_agg(m.priority) filter (where m.id is not null), array_agg(m.key) filter (where m.id is not null),
           array_agg(m.first) filter (where m.id is not null),
           array_agg(m.n order by m.n) filter (where m.made is null and m.id is null)
    into v_new, v_made, v_planned, v_ns, v_ids, v_ended, v_dues, v_ranks, v_keys, v_firsts, v_left
    from matched as m;
    if v_left is not null and p_on_conflict = 'error' then
        perform penstock.refuse('PS409',
            format('item %s: subject %L is taken in queue %L', v_left[1] - 1,
                   left(p_subjects[v_left[1]], 80), p_queue));
    end if;
    return query
    select c.n, c.id, 'created', case when c.planned then 'planned' else 'pending' end
    from unnest(v_new, v_made, v_planned) as c(n, id, planned);
    if v_ids is not null then
        return query
        select r.n, r.id, r.result, r.state
        from penstock._refresh(v_ns, v_ids, v_ended, v_dues, v_ranks,
                               case when p_keys is not null then penstock._number_keys(v_queue.id, v_keys) end,
                               case when p_at_most is not null then v_firsts end, penstock._in_seconds(p_at_most)) as r;
    end if;
    -- These are new statements, so that they see the documents that the insert met.
    if v_left is not null then
        return query
        select f.n, f.id, 'skipped', f.state from penstock._find_subjects(v_queue.id, p_subjects, v_left) as f;
    end if;
    if v_twice is not null then
        return query
        select f.n, f.id, 'superseded', f.state from penstock._find_subjects(v_queue.id, p_subjects, v_twice) as f;
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
        perform penstock.the_queue(p_queue);    -- the error names a similar queue
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
    select t.id, t.kind, t.subject, t.payload::text, t.priority, h.due, coalesce(h.attempts, 0) + 1, t.iterations,
           t.created, coalesce(t.since, t.created)
    from unnest(v_ids, v_lease.dues[p_first + 1 : p_first + p_count], v_lease.attempts[p_first + 1 : p_first + p_count])
         with ordinality as h(id, due, attempts, n)
    join (select * from penstock.task as d where d.id = any(v_ids) and d.ended is null) as t on t.id = h.id
    where get_bit(v_lease.open, p_first + h.n::int - 1) = 1
    order by h.n;
end
$$;
CREATE FUNCTION penstock.rebase_history() RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock.recent_times(p_queue text, p_span interval DEFAULT '01:00:00'::interval, p_pages integer DEFAULT 1000) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $_$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_now   constant timestamptz := penstock.clock();
    v_from  timestamptz := v_now - least(penstock._in_seconds(p_span), '1 day');
    v_left  bigint := p_pages;
    v_parts text[] := '{}';
    v_day   date := (v_now at time zone 'UTC')::date;
    v_name  text;
    v_pages bigint;
    v_oldest timestamptz;
    v_found jsonb;
begin
    if p_span is null or p_span <= '0' or p_pages is null or p_pages not between 1 and 100000 then
        perform penstock.refuse('PS400', 'span, pages: span is not positive, or pages is not between 1 and 100000');
    end if;
    while v_left > 0 and v_day >= (v_from at time zone 'UTC')::date loop
        v_name := 'penstock.history_' || to_char(v_day, 'YYYYMMDD');
        v_pages := coalesce(pg_relation_size(to_regclass(v_name)) / current_setting('block_size')::bigint, 0);
        if v_pages > 0 then
            v_parts := v_parts || format(
                'select h.kind, h.outcome, h.due, h.claimed_at, h.finished_at, h.queue_id from %s as h '
                'where h.ctid >= ''(%s,0)''::tid', v_name, greatest(v_pages - v_left, 0));
            if v_pages > v_left then
                -- Rows of one moment may be on neighbouring pages, so the first pages that are read are not complete.
                execute format('select max(h.finished_at) from %s as h where h.ctid >= ''(%s,0)''::tid '
                               'and h.ctid < ''(%s,0)''::tid', v_name, v_pages - v_left, v_pages - v_left + 8)
                into v_oldest;
                v_from := greatest(v_from, v_oldest);
            end if;
        end if;
        v_left := v_left - v_pages;
        v_day := v_day - 1;
    end loop;
    if v_parts <> '{}' then
        execute 'select jsonb_agg(to_jsonb(g) order by g.kind nulls first, g.attempts desc) from (
            select case when grouping(h.kind) = 0 then h.kind end as kind, count(*) as attempts,
                   count(*) filter (where h.outcome in (''failed'', ''dead'')) as failed,
                   percentile_cont(array[0.5, 0.9, 0.99, 1]) within group (order by
                       greatest(extract(epoch from h.claimed_at - h.due), 0)::float8) as wait,
                   percentile_cont(array[0.5, 0.9, 0.99, 1]) within group (order by
                       greatest(extract(epoch from h.finished_at - h.claimed_at), 0)::float8) as run
            from (' || array_to_string(v_parts, ' union all ') || ') as h
            where h.queue_id = $1 and h.finished_at >= $2 and h.outcome in (''done'', ''again'', ''failed'', ''dead'')
            group by grouping sets ((), (h.kind))
            order by count(*) desc limit 51) as g
            where g.attempts > 0'
        into v_found using v_queue.id, v_from;
    end if;
    return jsonb_build_object('from', v_from, 'at', v_now, 'kinds', coalesce(v_found, '[]'));
end
$_$;
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
    v_found bigint[];
    v_ends  timestamptz[];
    v_free  bigint[];
    v_done  bigint;
begin
    perform penstock._check_limit(p_limit);
    perform penstock._check_filter(p_error);
    if v_named and num_nonnulls(p_kind, p_error, p_since) > 0 then
        perform penstock.refuse('PS400',
            'kind, error, since: they choose among all dead tasks; with ids or subjects there is nothing to choose');
    end if;
    if v_named then
        v_ids := penstock._asked_ids(v_queue.id, p_ids, p_subjects);
        select t.id into v_done from penstock.task as t
        where t.id = any(v_ids) and t.queue_id = v_queue.id and t.ended = 'done' limit 1;
        if v_done is not null then
            perform penstock.refuse('PS409',
                format('id: %s is done; only dead and cancelled tasks are redriven', v_done));
        end if;
    end if;
    select array_agg(c.id), array_agg(c.ended_at) into v_found, v_ends
    from (
        select t.id, t.ended_at from penstock.task as t
        where t.queue_id = v_queue.id
          and (case when v_named then t.id = any(v_ids) and t.ended in ('dead', 'cancelled') else t.ended = 'dead' end)
          and (p_kind is null or t.kind = p_kind)
          and (p_error is null or penstock.mentions(t.error_class, t.error, t.reason, p_error))
          and (p_since is null or t.ended_at >= p_since)
        order by t.ended_at, t.id
        limit p_limit
    ) as c;
    v_free := penstock._hold_documents(v_queue.id, v_found, v_ends);
    perform penstock._reopen(v_free, null, v_now, p_lasting => true);
    if v_free <> '{}' then
        insert into penstock.counter_log (queue_id, metric, delta)
        values (v_queue.id, 'redriven_total', cardinality(v_free));
        perform penstock._note_audit('redrive', p_queue, jsonb_build_object('tasks', cardinality(v_free)));
    end if;
    return query
    select f.id, 'redriven' from unnest(v_free) as f(id)
    union all
    select g.id, case when t.id is null then 'unknown' when t.ended is null then 'live' else 'busy' end
    from (select unnest(coalesce(v_ids, v_found)) except select unnest(v_free)) as g(id)
    left join (
        select d.id, d.ended from penstock.task as d
        where d.id = any(coalesce(v_ids, v_found)) and d.queue_id = v_queue.id
    ) as t on t.id = g.id;
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
CREATE FUNCTION penstock.release(p_token uuid, p_ids bigint[] DEFAULT NULL::bigint[], p_delay interval DEFAULT NULL::interval, p_wait boolean DEFAULT true) RETURNS TABLE(id bigint, result text)
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
    from penstock.settle(p_token, coalesce(v_ids, '{}'),
                         array_fill('release'::text, array[coalesce(cardinality(v_ids), 0)]),
                         p_delays => array_fill(p_delay, array[coalesce(cardinality(v_ids), 0)]),
                         p_wait => p_wait) as s;
end
$$;
CREATE FUNCTION penstock.release_day(p_day date, p_rows bigint, p_below bigint) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $$
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
CREATE FUNCTION penstock.repair(p_queue text DEFAULT NULL::text) RETURNS TABLE(queue text, what text, rows bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
    v_now   constant timestamptz := penstock.clock();
    v_lease record;
begin
    perform penstock._stand_still(case when p_queue is not null then (penstock.the_queue(p_queue)).id end);
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
        return query
        with records as (
            delete from penstock.adopted_record as r
            where not exists (select from penstock.adopted as a where a.id = r.adopted_id) returning r.adopted_id
        ), failures as (
            delete from penstock.adopted_failure as f
            where not exists (select from penstock.adopted as a where a.id = f.adopted_id) returning f.adopted_id
        )
        select '', 'of no adopted table, removed', count(*)
        from (select r.adopted_id from records as r union all select f.adopted_id from failures as f) as n
        having count(*) > 0;
    end if;
    return query
    with behind as (
        select v.queue, v.found from penstock._recount(p_queue) as v
        where v.what = 'waiting before a bound, where no claim looks'
    ), reset as (
        update penstock.watermark as l
        set (priorities, first_due, first_planned, next_bound, next_xid) = (
            select b.priorities, b.first_due, b.first_planned, b.next_bound, b.next_xid
            from penstock._without_bounds(l) as b)
        from behind as b join penstock.queue as q on q.name = b.queue
        where l.queue_id = q.id
    )
    select b.queue, 'found before a bound', b.found from behind as b;
    -- If a task is leased twice, the later lease counts. A task without a live document is removed from its lease.
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
        select h.id from penstock.lease as l, unnest(l.ids) with ordinality as h(id, n)
        where get_bit(l.open, h.n::int - 1) = 1
    ), stray as (
        delete from penstock.agenda as a
        using penstock.queue as q
        where q.id = a.queue_id and (p_queue is null or q.name = p_queue)
          and (not exists (select from penstock.task as t
                           where t.id = a.task_id and t.ended is null and coalesce(t.waits_for, 0) = 0)
               or a.task_id in (select o.id from opened as o))
        returning q.name
    )
    select s.name, 'taken out of the agenda', count(*) from stray as s group by s.name;
    return query
    with opened as materialized (
        select h.id from penstock.lease as l, unnest(l.ids) with ordinality as h(id, n)
        where get_bit(l.open, h.n::int - 1) = 1
    ), lost as (
        insert into penstock.agenda (task_id, due, queue_id, key_id, priority, pending, named)
        select t.id, v_now, t.queue_id, penstock._key_id(t.queue_id, t.key), t.priority, true, t.subject is not null
        from penstock.task as t join penstock.queue as q on q.id = t.queue_id
        where (p_queue is null or q.name = p_queue) and t.ended is null and coalesce(t.waits_for, 0) = 0
          and not exists (select from penstock.agenda as a where a.task_id = t.id)
          and t.id not in (select o.id from opened as o)
        returning queue_id
    )
    select q.name, 'put back into the agenda', count(*)
    from lost as l join penstock.queue as q on q.id = l.queue_id group by q.name;
    -- The counters come last: gauges and outcomes follow what exists, and then pushed follows what exists and what was
    -- removed.
    return query
    with off as (
        select v.queue, v.area, v.what, v.expected - v.found as delta
        from penstock.verify(p_queue) as v where v.area in ('drift', 'history')
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
    perform penstock._note_audit('repair', p_queue, '{}');
end
$$;
CREATE FUNCTION penstock.reprioritise(p_queue text, p_priority smallint, p_ids bigint[] DEFAULT NULL::bigint[], p_subjects text[] DEFAULT NULL::text[]) RETURNS TABLE(id bigint, result text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_queue   constant penstock.queue := penstock.the_queue(p_queue);
    v_ids     constant bigint[] := penstock._asked_ids(v_queue.id, p_ids, p_subjects);
    v_live    bigint[];
    v_waiting bigint[];
    v_taken   bigint[];
begin
    if p_priority is null or p_priority not between -100 and 100 then
        perform penstock.refuse('PS400',
            format('priority: %s is not between -100 and 100', coalesce(p_priority::text, 'null')));
    end if;
    v_live := penstock._hold_documents(v_queue.id, v_ids);
    v_waiting := penstock._hold_waiting(v_live);
    v_taken := v_waiting;
    if cardinality(v_waiting) < cardinality(v_live) then
        v_taken := v_waiting || penstock._blocked(v_live)
            || penstock._hold_leased(v_queue.id, array(select unnest(v_live) except select unnest(v_waiting)));
    end if;
    perform penstock._replace_waiting(v_waiting, v_waiting, null,
                                      array_fill(p_priority, array[cardinality(v_waiting)]), null);
    update penstock.task as t set priority = p_priority where t.id = any(v_taken);
    if v_taken <> '{}' then
        perform penstock._note_audit('reprioritise', p_queue,
            jsonb_build_object('tasks', cardinality(v_taken), 'priority', p_priority));
    end if;
    return query
    select w.id, 'reprioritised' from unnest(v_taken) as w(id)
    union all
    -- A task that is in neither place is moving from one to the other.
    select o.id, replace(o.result, 'active', 'busy') from penstock._left_out(v_queue.id, v_ids, v_live, v_taken) as o;
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
    v_ids     constant bigint[] := penstock._asked_ids(v_queue.id, p_ids, p_subjects);
    v_live    bigint[];
    v_waiting bigint[];
begin
    if p_due is null then
        perform penstock.refuse('PS400', 'due: it is null');
    end if;
    perform penstock._check_push(array['{}'], null, null, array[p_due], null, 2);
    v_live := penstock._hold_documents(v_queue.id, v_ids);
    v_waiting := penstock._hold_waiting(v_live);
    perform penstock._replace_waiting(v_waiting, v_waiting, array_fill(p_due, array[cardinality(v_waiting)]), null,
                                      null);
    v_waiting := v_waiting || penstock._blocked(v_live);
    update penstock.task as t set due = p_due where t.id = any(v_waiting);
    if v_waiting <> '{}' then
        perform penstock._note_audit('reschedule', p_queue,
            jsonb_build_object('tasks', cardinality(v_waiting), 'due', p_due));
    end if;
    return query
    select w.id, 'rescheduled' from unnest(v_waiting) as w(id)
    union all
    select o.id, o.result from penstock._left_out(v_queue.id, v_ids, v_live, v_waiting) as o;
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
        perform penstock._note_audit('resume schedule', null, jsonb_build_object('schedule', p_name));
    elsif not exists (select from penstock.schedule as s where s.name = p_name) then
        perform penstock._miss_schedule(p_name);
    end if;
end
$$;
CREATE FUNCTION penstock.retry_delay(p_strategy jsonb, p_failures integer, p_age interval DEFAULT '00:00:00'::interval, p_seed bigint DEFAULT 0) RETURNS interval
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_longest constant double precision := 10 * 365 * 86400.0;
    v_age     constant double precision := greatest(extract(epoch from p_age), 0);
    v_cap     constant double precision :=
        least(coalesce((p_strategy->>'cap')::double precision, v_longest), v_longest);
    v_seconds double precision;
    v_before  double precision := 0;
    v_swap    double precision;
    v_power   double precision;
begin
    if p_strategy is null or p_failures is null or p_failures < 1 then
        perform penstock.refuse('PS400',
            format('failures: %s is not a count of at least 1', coalesce(p_failures::text, 'null')));
    end if;
    case p_strategy->>'type'
    when 'fibonacci' then
        -- The delays are 1, 1, 2, 3, 5, 8, … units.
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
        -- Logarithms are compared first: the power itself would overflow long before failures run out.
        if v_seconds > 0 and (p_failures - 1) * ln(v_power) >= ln(v_cap / v_seconds) then
            v_seconds := v_cap;
        else
            v_seconds := v_seconds * power(v_power, p_failures - 1);
        end if;
    when 'fixed' then
        v_seconds := (p_strategy->>'delay')::double precision;
    when 'delays' then
        v_seconds := (p_strategy->'delays'->>(p_failures - 1))::double precision;
    when 'progressive' then
        select (t.tier->>1)::double precision into v_seconds
        from jsonb_array_elements(p_strategy->'tiers') with ordinality as t(tier, n)
        where v_age < (t.tier->>0)::double precision
        order by t.n limit 1;
    else
        perform penstock.refuse('PS400', format('retry: type %s is not known', coalesce(p_strategy->>'type', 'null')),
            'Types are fibonacci, progressive, exponential, fixed and delays.');
    end case;
    if v_seconds is null then
        return null;    -- the delays have ended, or the task is older than every tier
    end if;
    v_seconds := least(v_seconds, v_cap);
    -- A smaller jitter adds nothing to 1, and may underflow.
    if v_seconds > 0 and (p_strategy->>'jitter')::double precision > 1e-100 then
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
CREATE FUNCTION penstock.revision() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN 14;
CREATE FUNCTION penstock.running_times() RETURNS TABLE(queue text, kind text, bucket integer, tasks bigint, seconds double precision)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    with opened as (
        select l.queue_id, h.id,
               greatest(0.001, extract(epoch from penstock.clock() - l.claimed_at)::double precision) as seconds
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
CREATE FUNCTION penstock.sample_days(p_from bigint, p_to bigint) RETURNS TABLE(day date)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    SET enable_seqscan TO 'off'
    AS $$
    select distinct s.at::date from penstock.sample as s where s.xid >= p_from and s.xid < p_to order by 1
$$;
CREATE FUNCTION penstock.sample_series(p_queue text, p_from timestamp with time zone, p_to timestamp with time zone, p_points integer DEFAULT 180) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET extra_float_digits TO '1'
    AS $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_step  constant interval := (p_to - p_from) / greatest(p_points, 1);
begin
    if p_from is null or p_to is null or p_from >= p_to or p_to - p_from > '400 days'
       or p_points is null or p_points not between 1 and 1000 then
        perform penstock.refuse('PS400', 'from, to, points: the time is empty or longer than 400 days, '
                                         'or points is not between 1 and 1000');
    end if;
    if p_to - p_from <= '25 hours' then
        return coalesce((
            select jsonb_agg(jsonb_build_array(
                extract(epoch from g.at)::float8, g.pending, g.active, g.age, g.workers, g.totals, g.sla) order by g.at)
            from (
                select max(s.at) as at, max(s.pending) as pending, max(s.active) as active,
                       extract(epoch from max(s.oldest_age))::float8 as age, max(s.workers) as workers,
                       (array_agg(s.totals order by s.at desc))[1] as totals,
                       extract(epoch from min(s.sla))::float8 as sla
                from penstock.sample as s
                where s.queue_id = v_queue.id and s.at >= p_from and s.at < p_to
                group by floor(extract(epoch from s.at - p_from) / extract(epoch from v_step))
            ) as g), '[]');
    end if;
    return coalesce((
        select jsonb_agg(jsonb_build_array(
            extract(epoch from s.at)::float8, s.pending, s.active, extract(epoch from s.oldest_age)::float8, s.workers,
            s.totals, extract(epoch from s.sla)::float8) order by s.at)
        from generate_series(0, p_points - 1) as n
        cross join lateral (
            select x.* from penstock.sample as x
            where x.queue_id = v_queue.id and x.at >= p_from + n * v_step and x.at < p_from + (n + 1) * v_step
            order by x.at desc limit 1
        ) as s), '[]');
end
$$;
CREATE FUNCTION penstock.scaler_snapshot(p_queues text[], p_horizons double precision[], p_rows integer[], p_bins double precision[]) RETURNS jsonb
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
        perform penstock.refuse('PS400',
            'horizons, bins: one is negative, more than a year, or less than a millisecond');
    end if;
    perform penstock._promote(q.id)
    from unnest(p_queues) as n(name)
    join penstock.queue as q on q.name = n.name
    cross join lateral (
        select from penstock.agenda as a where a.queue_id = q.id and not a.pending and a.due <= v_now limit 1
    ) as due;
    return penstock._scaler_snapshot(p_queues, p_horizons, p_rows, p_bins);
end
$$;
CREATE FUNCTION penstock.scalers(p_queues text[] DEFAULT NULL::text[]) RETURNS TABLE(queue text, holder text, policy text, until timestamp with time zone, target integer, decided_at timestamp with time zone)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select s.queue, s.holder, s.policy, s.until, s.target, s.decided_at
    from penstock.scaling as s
    where s.until > penstock.clock() and (p_queues is null or s.queue = any(p_queues)) order by s.queue
$$;
CREATE FUNCTION penstock.schedules(p_name text DEFAULT NULL::text) RETURNS TABLE(name text, queue text, kind text, payload text, priority smallint, cron text, tz text, backfill text, paused boolean, mark timestamp with time zone, next_at timestamp with time zone, last_tick timestamp with time zone, created timestamp with time zone, updated timestamp with time zone, who text, size integer, at timestamp with time zone, key text, expires interval, until_next boolean)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select s.name, q.name, s.kind, s.payload::text, s.priority, s.cron, s.tz, s.backfill, s.paused, s.mark,
           s.next_at, s.last_tick, s.created, s.updated, s.who, octet_length(s.payload::text), c.at, s.key, s.expires,
           s.until_next
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
            format('job: it was sealed with %s partitions, now there are %s',
                   v_known.report->>'partitions', p_partitions),
            'The same job has the same rows in the same partitions. Other rows are another txnVersion.');
    end if;
    perform penstock._check_repeat('job: ', v_known, v_queue, p_rows, p_checksum);
    return v_known.report;
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
        perform from jsonb_to_recordset(p_kinds)
            as k(kind text, retry jsonb, max_attempts int, timeout interval, on_dead text, on_done text);
    exception when data_exception then
        perform penstock.refuse('PS400', 'kinds: ' || sqlerrm);
    end;
    for v_kind in
        select k.kind, nullif(k.retry, 'null') as retry, k.max_attempts, penstock._in_seconds(k.timeout) as timeout,
               k.on_dead, k.on_done
        from jsonb_to_recordset(p_kinds)
             as k(kind text, retry jsonb, max_attempts int, timeout interval, on_dead text, on_done text)
        order by k.kind collate "C"
    loop
        if v_kind.kind is null or octet_length(v_kind.kind) not between 1 and 128 then
            perform penstock.refuse('PS400', 'kind: it is null, or not 1 to 128 bytes long');
        elsif v_kind.max_attempts not between 1 and 32767 then
            perform penstock.refuse('PS400',
                format('max_attempts: %s is not between 1 and 32767', v_kind.max_attempts));
        elsif v_kind.timeout not between '1 millisecond' and '3650 days' then
            perform penstock.refuse('PS400',
                format('timeout: %s is not more than 0 and at most 3650 days', v_kind.timeout));
        elsif v_kind.retry is not null then
            perform penstock._check_retry(v_kind.retry);
        end if;
        perform penstock._check_follow_up('on_dead', v_kind.on_dead, p_queue, v_kind.kind);
        perform penstock._check_follow_up('on_done', v_kind.on_done, p_queue, v_kind.kind);
        insert into penstock.kind as k (queue_id, kind, retry, max_attempts, timeout, on_dead, on_done)
        values (v_queue.id, v_kind.kind, v_kind.retry, v_kind.max_attempts, v_kind.timeout, v_kind.on_dead,
                v_kind.on_done)
        on conflict (queue_id, kind) do update
        set retry = excluded.retry, max_attempts = excluded.max_attempts, timeout = excluded.timeout,
            on_dead = excluded.on_dead, on_done = excluded.on_done
        where (k.retry, k.max_attempts, k.timeout, k.on_dead, k.on_done)
              is distinct from (excluded.retry, excluded.max_attempts, excluded.timeout, excluded.on_dead,
                                excluded.on_done);
        if found then
            v_count := v_count + 1;
        end if;
    end loop;
    if v_count > 0 then
        perform penstock._note_follows_done(v_queue.id);
    end if;
    return v_count;
end
$$;
CREATE FUNCTION penstock.set_paused(p_queue text, p_paused boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if p_paused is null then
        perform penstock.refuse('PS400', 'paused: it is null');
    end if;
    perform penstock.set_queue(p_queue, jsonb_build_object('paused', p_paused));
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
       or jsonb_typeof(e.value->'version') is distinct from 'number'
       or jsonb_typeof(e.value->'data') is distinct from 'object'
       or e.value->>'covers_from' is null or e.value->>'covers_to' is null
    limit 1;
    if found then
        perform penstock.refuse('PS400',
            format('profiles: that of queue %L has no queue, version, covers_from, covers_to or data', v_bad));
    end if;
    insert into penstock.profile as p (queue_id, version, made, covers_from, covers_to, data)
    select distinct on (q.id) q.id, (e.value->>'version')::int, penstock.clock(),
           (e.value->>'covers_from')::timestamptz, (e.value->>'covers_to')::timestamptz, e.value->'data'
    from jsonb_array_elements(p_profiles) with ordinality as e(value, n)
    join penstock.queue as q on q.name = e.value->>'queue'
    order by q.id, e.n desc
    on conflict (queue_id) do update
    set version = excluded.version, made = excluded.made, covers_from = excluded.covers_from,
        covers_to = excluded.covers_to, data = excluded.data;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
CREATE FUNCTION penstock.set_queue(p_name text, p_changes jsonb) RETURNS penstock.queue
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_old penstock.queue;
    v_new penstock.queue;
    v_bad text;
begin
    -- The row is locked before it is read: everything is written again below, which would undo a change that commits
    -- meanwhile.
    select * into v_old from penstock.queue as q where q.name = p_name for no key update;
    if not found then
        perform penstock.the_queue(p_name);    -- raises the error
    end if;
    if p_changes is null or jsonb_typeof(p_changes) <> 'object' then
        perform penstock.refuse('PS400', 'changes: it is not a JSON object');
    end if;
    select k.key into v_bad from jsonb_object_keys(p_changes) as k(key)
    where k.key not in ('lease', 'max_attempts', 'max_crashes', 'retry', 'sla', 'paused', 'keep_done', 'keep_dead',
                        'keep_cancelled', 'priority_step', 'max_payload', 'notify');
    if v_bad is not null then
        perform penstock.refuse('PS400', format('changes: %L is not a setting', left(v_bad, 80)),
            'Settings are lease, max_attempts, max_crashes, retry, sla, paused, keep_done, keep_dead, '
            'keep_cancelled, priority_step, max_payload and notify.');
    end if;
    begin
        v_new := jsonb_populate_record(v_old, p_changes - array['max_payload', 'notify']);
    exception when others then
        perform penstock.refuse('PS400', 'changes: ' || sqlerrm);
    end;
    v_new.settings := v_old.settings || (
        select coalesce(jsonb_object_agg(c.key, c.value), '{}')
        from jsonb_each(p_changes) as c where c.key in ('max_payload', 'notify'));
    perform penstock._check_queue(v_new);
    update penstock.queue as q
    set lease = penstock._in_seconds(v_new.lease), max_attempts = v_new.max_attempts, retry = v_new.retry,
        sla = penstock._in_seconds(v_new.sla), paused = v_new.paused, keep_done = penstock._in_seconds(v_new.keep_done),
        keep_dead = penstock._in_seconds(v_new.keep_dead), keep_cancelled = penstock._in_seconds(v_new.keep_cancelled),
        priority_step = penstock._in_seconds(v_new.priority_step), settings = v_new.settings,
        max_crashes = v_new.max_crashes
    where q.id = v_old.id
    returning * into v_new;
    perform penstock._note_audit('set', p_name, p_changes);
    return v_new;
end
$$;
CREATE FUNCTION penstock.set_retention(p_what text, p_keep interval) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock.set_schedule(p_name text, p_queue text, p_cron text, p_tz text DEFAULT 'UTC'::text, p_kind text DEFAULT 'default'::text, p_payload jsonb DEFAULT '{}'::jsonb, p_priority smallint DEFAULT 5, p_backfill text DEFAULT 'last'::text, p_key text DEFAULT NULL::text, p_expires interval DEFAULT NULL::interval, p_until_next boolean DEFAULT false) RETURNS void
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
    v_new.key := p_key;
    v_new.expires := penstock._in_seconds(p_expires);
    v_new.until_next := p_until_next;
    perform penstock._check_schedule(v_new, penstock.largest_payload(v_queue));
    insert into penstock.schedule as s (name, queue_id, kind, payload, priority, cron, tz, backfill,
                                        mark, next_at, created, updated, who, key, expires, until_next)
    values (p_name, v_queue.id, p_kind, p_payload, p_priority, p_cron, p_tz, p_backfill,
            v_now, v_now, v_now, v_now, session_user, p_key, v_new.expires, p_until_next)
    on conflict (name) do update
    set queue_id = excluded.queue_id, kind = excluded.kind, payload = excluded.payload, priority = excluded.priority,
        cron = excluded.cron, tz = excluded.tz, backfill = excluded.backfill, key = excluded.key,
        expires = excluded.expires, until_next = excluded.until_next, updated = v_now, who = session_user,
        mark = case when (s.cron, s.tz) = (excluded.cron, excluded.tz) then s.mark else greatest(s.mark, v_now) end,
        next_at = case when (s.cron, s.tz) = (excluded.cron, excluded.tz) then s.next_at else v_now end
    where (s.queue_id, s.kind, s.payload, s.priority, s.cron, s.tz, s.backfill, s.key, s.expires, s.until_next)
          is distinct from
          (excluded.queue_id, excluded.kind, excluded.payload, excluded.priority,
           excluded.cron, excluded.tz, excluded.backfill, excluded.key, excluded.expires, excluded.until_next);
    if found then
        perform penstock._note_audit('set schedule', p_queue,
            jsonb_build_object('schedule', p_name, 'cron', p_cron, 'tz', p_tz));
    end if;
end
$$;
CREATE FUNCTION penstock.settle(p_token uuid, p_ids bigint[], p_outcomes text[] DEFAULT NULL::text[], p_dues timestamp with time zone[] DEFAULT NULL::timestamp with time zone[], p_delays interval[] DEFAULT NULL::interval[], p_payloads text[] DEFAULT NULL::text[], p_errors text[] DEFAULT NULL::text[], p_classes text[] DEFAULT NULL::text[], p_wait boolean DEFAULT true) RETURNS TABLE(id bigint, result text)
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
    v_open  bigint[];    -- the tasks that this lease may settle
    v_busy  bigint[];
    v_done  bigint[];
    v_gone  bigint[];
begin
    perform penstock._check_settle(p_token, p_ids, p_outcomes, p_dues, p_delays, p_payloads, p_errors, p_classes);
    if p_wait is null then
        perform penstock.refuse('PS400', 'wait: it is null');
    elsif p_wait then
        select * into v_lease from penstock.lease as l where l.token = p_token for update;
    else
        select * into v_lease from penstock.lease as l where l.token = p_token for update skip locked;
        if not found and exists (select from penstock.lease as l where l.token = p_token) then
            return query select s.id, 'busy' from unnest(p_ids) as s(id);
            return;
        end if;
    end if;
    if p_ids is distinct from v_lease.ids then
        perform penstock._check_distinct(p_ids);
    end if;
    if v_lease.token is null then
        return query select s.id, 'refused' from unnest(p_ids) as s(id);
        return;
    end if;
    v_now := penstock.clock();
    perform penstock._make_history((v_now at time zone 'UTC')::date);
    if p_payloads is not null then
        perform penstock._check_sizes(p_payloads, v_lease.queue_id);
    end if;
    if p_ids = v_lease.ids and bit_count(v_lease.open) = v_count then
        v_open := p_ids;
    else
        select array_agg(h.id) filter (where s.id is not null and get_bit(v_lease.open, h.n::int - 1) = 1)
        into v_open
        from unnest(v_lease.ids) with ordinality as h(id, n)
        left join unnest(p_ids) as s(id) on s.id = h.id;
        return query
        select s.id,
               case when s.id = any(v_lease.revoked) then 'revoked' when h.id is null then 'unknown' else 'refused' end
        from unnest(p_ids) as s(id)
        left join unnest(v_lease.ids) as h(id) on h.id = s.id
        left join unnest(v_open) as o(id) on o.id = s.id
        where o.id is null;
        if v_open is null then
            return;
        end if;
    end if;
    if v_lease.named or p_outcomes is not null then
        if p_wait then
            perform penstock._lock_documents(v_open, p_named_only => p_outcomes is null);
        else
            v_busy := penstock._held_elsewhere(v_open, p_named_only => p_outcomes is null);
        end if;
        if v_busy <> '{}' then
            return query select b.id, 'busy' from unnest(v_busy) as b(id);
            v_open := array(select unnest(v_open) except select unnest(v_busy));
            if v_open = '{}' then
                return;
            end if;
        end if;
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
        select from penstock.queue as q
        where q.id = v_lease.queue_id and (q.keep_done is not null or q.follows_done)
    ) then
        v_gone := penstock._finish(v_lease, v_now, v_done);
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
        cross join lateral penstock._conclude(
            v_lease, v_now, r.ids, r.outcomes, r.dues, r.delays, r.payloads, r.errors, r.classes) as c;
    end if;
    perform penstock._close_lease(v_lease, v_open);
end
$$;
CREATE FUNCTION penstock.start_latencies() RETURNS TABLE(queue text, workers bigint, p50 double precision, p90 double precision)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    with started as (
        select n.queue, extract(epoch from w.first_claim_at - coalesce(w.requested_at, w.started_at))::double precision
               as seconds
        from penstock.worker as w, unnest(w.queues) as n(queue)
        where w.first_claim_at >= coalesce(w.requested_at, w.started_at)
    )
    select s.queue, count(*), percentile_cont(0.5) within group (order by s.seconds),
           percentile_cont(0.9) within group (order by s.seconds)
    from started as s group by s.queue order by s.queue
$$;
CREATE FUNCTION penstock.status(p_queue text DEFAULT NULL::text) RETURNS TABLE(queue text, paused boolean, sla interval, waiting bigint, planned bigint, pending bigint, active bigint, done bigint, dead bigint, cancelled bigint, oldest_pending_age interval, totals jsonb, at timestamp with time zone)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
declare
    v_now    constant timestamptz := penstock.clock();
    v_system constant bigint := penstock._system();
begin
    if p_queue is not null then
        perform penstock.the_queue(p_queue);
    end if;
    return query
    with asked as materialized (
        select q.id, q.name, q.paused, q.sla from penstock.queue as q where p_queue is null or q.name = p_queue
    ), summed as (
        select q.id as queue_id, n.metric, sum(n.value)::bigint as value
        from asked as q
        cross join lateral penstock._counter_rows(q.id, v_system) as n
        group by q.id, n.metric
    ), booked as (
        select s.queue_id, jsonb_object_agg(s.metric, s.value) as value from summed as s group by s.queue_id
    )
    select
        q.name, q.paused, q.sla,
        coalesce((b.value->>'waiting')::bigint, 0),
        coalesce((b.value->>'planned')::bigint, 0), coalesce((b.value->>'pending')::bigint, 0),
        coalesce((b.value->>'active')::bigint, 0), coalesce((b.value->>'done')::bigint, 0),
        coalesce((b.value->>'dead')::bigint, 0), coalesce((b.value->>'cancelled')::bigint, 0),
        v_now - least(o.due, p.due),
        (select jsonb_object_agg(t.word, coalesce((b.value->>(t.word || '_total'))::bigint, 0))
         from unnest(array['pushed', 'removed', 'done', 'again', 'failed', 'dead', 'released', 'expired', 'revoked',
                           'unstarted', 'cancelled', 'redriven', 'orphaned']) as t(word)),
        v_now
    from asked as q
    left join booked as b on b.queue_id = q.id
    left join lateral penstock._watermark(q.id) as w on true
    left join lateral (
        select min(y.due) as due from penstock.early as y
        where y.queue_id = q.id and y.xid >= coalesce(w.running[1], w.xid)
    ) as e on true
    -- The oldest task of each priority is the first entry of the pick index: this takes a few probes for a queue of any
    -- length. Priorities that have no bound of their own yet are found one after the other.
    left join lateral (
        select min(f.due) as due
        from penstock._priority_ranges(w.priorities, w.first_due) as g
        cross join lateral (
            (select a.due from penstock.agenda as a
             where not g.many and a.queue_id = q.id and a.pending and a.priority = g.first
               and a.due >= least(g.due, e.due)
             order by a.due, a.task_id limit 1)
            union all
            select x.due from penstock._first_of_each(q.id, g.first, g.next) as x where g.many
        ) as f
    ) as o on true
    -- An overdue task waits, even if it has not been promoted yet.
    left join lateral (
        select a.due from penstock.agenda as a
        where a.queue_id = q.id and not a.pending and a.due <= v_now and a.due >= least(w.first_planned, e.due)
        order by a.due limit 1
    ) as p on true
    order by q.name;
end
$$;
CREATE FUNCTION penstock.take_job_slot(p_job uuid, p_slots integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform from penstock.job_slot as r
    where r.n = any(array(
        select ((hashtext(p_job::text) & 4095) + i.n) % 4096
        from generate_series(0, least(p_slots, 4096) - 1) as i(n)))
    limit 1
    for update skip locked;
    return found;
end
$$;
CREATE FUNCTION penstock.take_quarantine(p_queue text, p_worker text, p_seconds double precision DEFAULT 30) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_now   constant timestamptz := penstock.clock();
begin
    if p_worker is null or octet_length(p_worker) not between 1 and 200 then
        perform penstock.refuse('PS400', 'worker: it is null, or not 1 to 200 bytes long');
    elsif p_seconds is null or p_seconds not between 1 and 3600 then
        perform penstock.refuse('PS400',
            format('seconds: %s is not between 1 and 3600', coalesce(p_seconds::text, 'null')));
    end if;
    if exists (select from penstock.watermark as l
               where l.queue_id = v_queue.id and l.quarantine = p_worker and l.quarantine_until > v_now) then
        return true;
    end if;
    update penstock.watermark as l
    set quarantine = p_worker, quarantine_until = v_now + make_interval(secs => p_seconds)
    where l.ctid = any(array(
        select f.ctid from penstock.watermark as f
        where f.queue_id = v_queue.id and coalesce(f.quarantine_until, '-infinity') <= v_now
        for update skip locked));
    return found;
end
$$;
CREATE FUNCTION penstock.target_age(p_queue text) RETURNS interval
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform penstock._check_scaling(array[p_queue], '-', '1 second');
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
    perform penstock._check_scaling(array[p_queue], '-', '1 second');
    select * into v_row from penstock.scaling as s where s.queue = p_queue;
    if v_row.until > penstock.clock() and v_row.target is not null then
        return v_row.target;
    end if;
    return greatest(coalesce(v_row.target, 1), 1);
end
$$;
CREATE FUNCTION penstock.task_page(p_queue text, p_state text DEFAULT NULL::text, p_kind text DEFAULT NULL::text, p_error text DEFAULT NULL::text, p_subject text DEFAULT NULL::text, p_after jsonb DEFAULT NULL::jsonb, p_limit integer DEFAULT 50, p_look integer DEFAULT 20000) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
declare
    -- A state by which nothing is indexed filters tasks in the order of ids.
    v_by_state constant boolean := p_state in ('pending', 'planned', 'active', 'done', 'dead', 'cancelled');
    v_queue    penstock.queue;
    v_most     int;
    v_ids      bigint[];
    v_places   jsonb[];
    v_page     jsonb;
    v_kept     int;
    v_last     int;
begin
    perform penstock._check_limit(p_limit);
    perform penstock._check_filter(p_error);
    if p_look is null or p_look not between 1 and 1000000 then
        perform penstock.refuse('PS400', 'look: it is null, or not between 1 and 1000000');
    elsif p_queue is null and v_by_state then
        perform penstock.refuse('PS400', 'queue: tasks of one state are listed for one queue');
    end if;
    if p_queue is not null then
        v_queue := penstock.the_queue(p_queue);
    end if;
    if p_subject is not null then
        v_ids := array(select t.id from penstock.task as t
                       where t.subject = p_subject and t.queue_id = any(
                           array(select q.id from penstock.queue as q where p_queue is null or q.id = v_queue.id))
                       limit p_limit);
        v_most := p_limit + 1;
    else
        v_most := case when num_nonnulls(p_kind, p_error) = 0 and (v_by_state or p_queue is null)
                            and (v_by_state or p_state is null) then p_limit
                       else greatest(p_look, p_limit) end;
        select array_agg(c.id order by c.n), array_agg(c.place order by c.n) into v_ids, v_places
        from (
            select x.id, x.place, row_number() over () as n
            from penstock._page_candidates(v_queue.id, p_state, p_after, v_most) as x
        ) as c;
    end if;
    select jsonb_agg(jsonb_build_object(
               'id', m.id, 'queue', m.queue, 'kind', m.kind, 'subject', m.subject, 'state', m.state,
               'priority', m.priority, 'due', m.due, 'attempts', m.attempts, 'iterations', m.iterations,
               'created', m.created, 'ended_at', m.ended_at, 'reason', left(m.reason, 300),
               'error_class', m.error_class, 'error', left(split_part(m.error, E'\n', 1), 300)) order by m.n),
           count(*), max(m.n)
    into v_page, v_kept, v_last
    from (
        select t.*, c.n
        from unnest(v_ids) with ordinality as c(id, n)
        join penstock.tasks as t on t.id = c.id
        where (p_queue is null or t.queue = p_queue)
          and (p_state is null or t.state = p_state)
          and (p_kind is null or t.kind = p_kind)
          and (p_error is null or penstock.mentions(t.error_class, t.error, t.reason, p_error))
        order by c.n limit p_limit
    ) as m;
    return jsonb_build_object(
        'tasks', coalesce(v_page, '[]'), 'looked', coalesce(cardinality(v_ids), 0),
        'next', case when v_kept = p_limit then v_places[v_last]
                     when cardinality(v_ids) >= v_most then v_places[cardinality(v_ids)] end);
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
            coalesce('Did you mean ' || quote_literal(penstock._nearest_queue(p_name)) || '?',
                     'Create it with penstock.create_queue or `penstock queues create`.'));
    end if;
    return v_queue;
end
$$;
CREATE FUNCTION penstock.timeline() RETURNS integer
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int;
exception when object_not_in_prerequisite_state or feature_not_supported or insufficient_privilege then
    return (select c.timeline_id from pg_control_checkpoint() as c);
end
$$;
CREATE PROCEDURE penstock.upkeep()
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION penstock.upkeep_pace() RETURNS TABLE(part text, every interval)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
CREATE FUNCTION penstock.upkeep_part(p_part text, p_due boolean DEFAULT false, OUT rows bigint, OUT more boolean) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $$
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
CREATE FUNCTION penstock.upkeep_parts(p_due boolean DEFAULT false) RETURNS SETOF text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select p.part
    from penstock.upkeep_pace() with ordinality as p(part, every, n)
    left join penstock.chore as c on c.name = p.part
    cross join penstock.clock() as now
    where not p_due or c.done_at is null or c.done_at not between now - p.every and now
    order by c.done_at nulls first, p.n
$$;
CREATE FUNCTION penstock.verify(p_queue text DEFAULT NULL::text) RETURNS TABLE(area text, queue text, what text, expected bigint, found bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    -- A snapshot that is taken while a day of history is being dropped sees the day in neither place. This lock waits
    -- for the drop before the snapshot is taken.
    lock table penstock.history in access share mode;
    return query select r.area, r.queue, r.what, r.expected, r.found from penstock._recount(p_queue) as r;
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
    perform penstock._expire(v_queue.id, 10000000);
    return query
    select greatest(v_now, max(a.due) filter (where a.pending)), count(*)
    from penstock.agenda as a where a.queue_id = v_queue.id and (a.pending or a.due <= v_now);
end
$$;
CREATE FUNCTION penstock.why(p_queue text, p_id bigint) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET "TimeZone" TO 'UTC'
    AS $$
declare
    v_now   constant timestamptz := penstock.clock();
    v_queue constant penstock.queue := penstock.the_queue(p_queue);
    v_task  penstock.task;
    v_row   penstock.agenda;
    v_lease record;
    v_facts jsonb;
begin
    perform penstock._check_id(p_id);
    select * into v_task from penstock.task as t where t.id = p_id;
    if v_task.id is null then
        v_facts := penstock._why_gone(v_queue, p_id);
    elsif v_task.queue_id <> v_queue.id then
        v_facts := jsonb_build_object('reason', 'other_queue', 'found_in', penstock._queue_name(v_task.queue_id));
    elsif v_task.ended is not null then
        v_facts := jsonb_build_object(
            'reason', v_task.ended, 'ended_at', v_task.ended_at, 'attempts', v_task.attempts, 'cause', v_task.reason,
            'error_class', v_task.error_class, 'error', v_task.error, 'removed', false);
    else
        select * into v_row from penstock.agenda as a where a.task_id = p_id;
        if v_task.expires <= v_now and (v_row.task_id is not null or v_task.waits_for > 0) then
            v_facts := jsonb_build_object('reason', 'expired', 'expires', v_task.expires, 'paused', v_queue.paused);
        elsif v_row.task_id is not null then
            v_facts := penstock._why_waiting(v_queue, v_task, v_row, v_now)
                || jsonb_build_object('expires', v_task.expires);
        elsif v_task.waits_for > 0 then
            v_facts := jsonb_build_object('reason', 'waiting', 'waits_for', v_task.waits_for,
                                          'expires', v_task.expires);
        else
            select * into v_lease from penstock._lease_of(v_queue.id, p_id);
            v_facts := case when v_lease.until is null then jsonb_build_object('reason', 'stray')
                else jsonb_build_object(
                    'reason', case when v_lease.until < v_now then 'lease_ended' else 'running' end,
                    'worker', v_lease.worker, 'since', v_lease.claimed_at, 'until', v_lease.until,
                    'attempt', v_lease.attempt, 'renewed_to', v_task.renew, 'paused', v_queue.paused) end;
        end if;
    end if;
    return jsonb_build_object('id', p_id, 'queue', v_queue.name, 'at', v_now) || v_facts;
end
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
COMMENT ON COLUMN penstock.adopted.tick IS 'progressive: ticks up to here, and at it keys up to `key` (null: all), were handled; sidecar: how far records without a row in adopted_record were looked for';
CREATE TABLE penstock.adopted_failure (
    adopted_id integer NOT NULL,
    key text[] NOT NULL COLLATE pg_catalog."C",
    error_class text NOT NULL,
    error text NOT NULL,
    times integer NOT NULL,
    dead boolean NOT NULL,
    unwritten boolean NOT NULL,
    first_at timestamp with time zone NOT NULL,
    last_at timestamp with time zone NOT NULL,
    CONSTRAINT times_positive CHECK ((times > 0))
);
COMMENT ON COLUMN penstock.adopted_failure.error IS 'its message, then a traceback';
COMMENT ON COLUMN penstock.adopted_failure.times IS 'failed tries since the last success, as far as they were kept';
COMMENT ON COLUMN penstock.adopted_failure.unwritten IS 'its new status could not be written, so it keeps the old one';
ALTER TABLE penstock.adopted ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.adopted_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE penstock.adopted_pass (
    id integer NOT NULL,
    adopted_id integer NOT NULL,
    key text[],
    pid integer,
    walks boolean DEFAULT false NOT NULL,
    began timestamp with time zone DEFAULT penstock.clock() NOT NULL
);
COMMENT ON COLUMN penstock.adopted_pass.key IS 'the record that a careful pass handles now';
COMMENT ON COLUMN penstock.adopted_pass.pid IS 'the server process that holds the lock of this pass';
COMMENT ON COLUMN penstock.adopted_pass.walks IS 'it walks the ticks of its table; only one pass at a time does';
ALTER TABLE penstock.adopted_pass ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.adopted_pass_id_seq
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
COMMENT ON COLUMN penstock.adopted_record.due IS 'null: it is not tried again';
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
CREATE TABLE penstock.chore (
    name text NOT NULL COLLATE pg_catalog."C",
    done_at timestamp with time zone,
    upto timestamp with time zone,
    CONSTRAINT name_fits CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 200)))
);
COMMENT ON COLUMN penstock.chore.done_at IS 'when it was last done; null: never; -infinity: it is not finished';
COMMENT ON COLUMN penstock.chore.upto IS 'for a chore that advances through time: how far it got';
ALTER TABLE penstock.decision ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.decision_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE penstock.early (
    queue_id integer NOT NULL,
    xid bigint DEFAULT ((pg_current_xact_id())::text)::bigint NOT NULL,
    due timestamp with time zone NOT NULL,
    priority smallint NOT NULL,
    pending boolean NOT NULL
);
ALTER TABLE penstock.history_branch ALTER COLUMN n ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.history_branch_n_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
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
    branch text NOT NULL COLLATE pg_catalog."C",
    passed bigint NOT NULL,
    seen timestamp with time zone DEFAULT penstock.clock() NOT NULL,
    CONSTRAINT name_fits CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 200)))
)
WITH (fillfactor='50');
COMMENT ON COLUMN penstock.history_reader.branch IS 'the branch on which it last read; on a later one nothing is dropped until it reads again';
COMMENT ON COLUMN penstock.history_reader.passed IS 'every row of a smaller xid has been read';
CREATE TABLE penstock.history_sum (
    day date NOT NULL,
    queue_id integer NOT NULL,
    outcome text NOT NULL COLLATE pg_catalog."C",
    rows bigint NOT NULL,
    first_xid bigint NOT NULL,
    last_xid bigint NOT NULL
);
CREATE TABLE penstock.job_slot (
    n integer NOT NULL
);
ALTER TABLE penstock.key ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.key_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE penstock.kind (
    queue_id integer NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    retry jsonb,
    max_attempts integer,
    timeout interval,
    on_dead text COLLATE pg_catalog."C",
    on_done text COLLATE pg_catalog."C",
    CONSTRAINT max_attempts_in_range CHECK (((max_attempts >= 1) AND (max_attempts <= 32767))),
    CONSTRAINT on_dead_names_a_kind CHECK ((on_dead ~ '^[^:]+:.'::text)),
    CONSTRAINT on_done_names_a_kind CHECK ((on_done ~ '^[^:]+:.'::text)),
    CONSTRAINT retry_has_type CHECK ((retry ? 'type'::text))
);
COMMENT ON COLUMN penstock.kind.on_dead IS 'queue:kind of the follow-up, a task that is pushed when a task of this kind dies';
COMMENT ON COLUMN penstock.kind.on_done IS 'queue:kind of the follow-up of a task that is done';
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
CREATE TABLE penstock.progress (
    task_id bigint NOT NULL,
    queue_id integer NOT NULL,
    claimed_at timestamp with time zone NOT NULL,
    attempt integer NOT NULL,
    at timestamp with time zone NOT NULL,
    part double precision,
    text text,
    lines integer NOT NULL,
    log jsonb NOT NULL,
    CONSTRAINT log_is_array CHECK ((jsonb_typeof(log) = 'array'::text)),
    CONSTRAINT part_in_range CHECK (((part >= (0)::double precision) AND (part <= (1)::double precision)))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='1000');
COMMENT ON COLUMN penstock.progress.claimed_at IS 'the run that said something last';
COMMENT ON COLUMN penstock.progress.lines IS 'the number of the last line of that run';
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
CREATE TABLE penstock.queue_set (
    queue_id integer NOT NULL,
    id bigint NOT NULL
);
COMMENT ON COLUMN penstock.queue_set.id IS 'a hash of the ids of its queues';
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
    priority text,
    key text,
    meta text,
    expires text
);
ALTER TABLE penstock.reject ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME penstock.reject_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
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
COMMENT ON COLUMN penstock.scaling.epoch IS 'grows with each new holder: decisions of an older holder are refused';
COMMENT ON COLUMN penstock.scaling.memory IS 'what the policy stores for its next decision, by any scaler';
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
            WHEN (t.waits_for > 0) THEN 'waiting'::text
            ELSE 'active'::text
        END) AS state,
    COALESCE(a.priority, t.priority) AS priority,
    a.due,
    COALESCE(a.attempts, t.attempts) AS attempts,
    t.iterations,
    t.created,
    t.last_iteration,
    t.ended_at,
    t.reason,
    t.error_class,
    t.error,
    t.payload,
    t.key,
    t.meta,
    t.expires
   FROM ((penstock.task t
     JOIN penstock.queue q ON ((q.id = t.queue_id)))
     LEFT JOIN penstock.agenda a ON ((a.task_id = t.id)));
CREATE TABLE penstock.throttle (
    queue_id integer NOT NULL,
    subject text NOT NULL COLLATE pg_catalog."C",
    until timestamp with time zone NOT NULL,
    task_id bigint
)
WITH (fillfactor='70');
COMMENT ON COLUMN penstock.throttle.task_id IS 'the task of the push that was not skipped';
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
    queue_set bigint,
    CONSTRAINT busy_fits CHECK (((busy >= 0) AND (busy <= slots)))
)
WITH (fillfactor='50');
COMMENT ON COLUMN penstock.worker.started_by IS 'the scaler that started it, and its number there; null: none';
COMMENT ON COLUMN penstock.worker.leaving IS 'it claims nothing more, and stops when its tasks have finished';
COMMENT ON COLUMN penstock.worker.dismissed IS 'a scaler wants it to stop';
COMMENT ON COLUMN penstock.worker.queue_set IS 'the queues it serves, as penstock.queue_set has them';
ALTER TABLE ONLY penstock.history ALTER COLUMN id SET DEFAULT nextval('penstock.history_id_seq'::regclass);
ALTER TABLE ONLY penstock.task ALTER COLUMN id SET DEFAULT nextval('penstock.task_id_seq'::regclass);
ALTER TABLE ONLY penstock.adopted_failure
    ADD CONSTRAINT adopted_failure_pkey PRIMARY KEY (adopted_id, key);
ALTER TABLE ONLY penstock.adopted
    ADD CONSTRAINT adopted_name_key UNIQUE (name);
ALTER TABLE ONLY penstock.adopted_pass
    ADD CONSTRAINT adopted_pass_pkey PRIMARY KEY (id);
ALTER TABLE ONLY penstock.adopted
    ADD CONSTRAINT adopted_pkey PRIMARY KEY (id);
ALTER TABLE ONLY penstock.adopted_record
    ADD CONSTRAINT adopted_record_pkey PRIMARY KEY (adopted_id, key);
ALTER TABLE ONLY penstock.agenda
    ADD CONSTRAINT agenda_pkey PRIMARY KEY (task_id);
ALTER TABLE ONLY penstock.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);
ALTER TABLE ONLY penstock.chore
    ADD CONSTRAINT chore_pkey PRIMARY KEY (name);
ALTER TABLE ONLY penstock.counter
    ADD CONSTRAINT counter_pkey PRIMARY KEY (queue_id, xid, metric);
ALTER TABLE ONLY penstock.decision
    ADD CONSTRAINT decision_pkey PRIMARY KEY (id);
ALTER TABLE ONLY penstock.history_branch
    ADD CONSTRAINT history_branch_id_key UNIQUE (id);
ALTER TABLE ONLY penstock.history_branch
    ADD CONSTRAINT history_branch_pkey PRIMARY KEY (n);
ALTER TABLE ONLY penstock.history_count
    ADD CONSTRAINT history_count_pkey PRIMARY KEY (day);
ALTER TABLE ONLY penstock.history_dropped
    ADD CONSTRAINT history_dropped_pkey PRIMARY KEY (queue_id, outcome);
ALTER TABLE ONLY penstock.history_gone
    ADD CONSTRAINT history_gone_pkey PRIMARY KEY (n);
ALTER TABLE ONLY penstock.history_origin
    ADD CONSTRAINT history_origin_pkey PRIMARY KEY (system);
ALTER TABLE ONLY penstock.history_reader
    ADD CONSTRAINT history_reader_pkey PRIMARY KEY (name);
ALTER TABLE ONLY penstock.history_sum
    ADD CONSTRAINT history_sum_pkey PRIMARY KEY (day, queue_id, outcome);
ALTER TABLE ONLY penstock.idle_worker
    ADD CONSTRAINT idle_worker_pkey PRIMARY KEY (worker);
ALTER TABLE ONLY penstock.job_slot
    ADD CONSTRAINT job_slot_pkey PRIMARY KEY (n);
ALTER TABLE ONLY penstock.key
    ADD CONSTRAINT key_is_taken UNIQUE (queue_id, key);
ALTER TABLE ONLY penstock.key
    ADD CONSTRAINT key_pkey PRIMARY KEY (id);
ALTER TABLE ONLY penstock.kind
    ADD CONSTRAINT kind_pkey PRIMARY KEY (queue_id, kind);
ALTER TABLE ONLY penstock.lease
    ADD CONSTRAINT lease_pkey PRIMARY KEY (token);
ALTER TABLE ONLY penstock.ledger
    ADD CONSTRAINT ledger_pkey PRIMARY KEY (batch_id, part);
ALTER TABLE ONLY penstock.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (number);
ALTER TABLE ONLY penstock.stream
    ADD CONSTRAINT name_is_taken UNIQUE (queue_id, name);
ALTER TABLE ONLY penstock.history_branch
    ADD CONSTRAINT one_branch_per_start UNIQUE (timeline, started, relation);
ALTER TABLE ONLY penstock.profile
    ADD CONSTRAINT profile_pkey PRIMARY KEY (queue_id);
ALTER TABLE ONLY penstock.progress
    ADD CONSTRAINT progress_pkey PRIMARY KEY (task_id);
ALTER TABLE ONLY penstock.queue_gone
    ADD CONSTRAINT queue_gone_pkey PRIMARY KEY (id);
ALTER TABLE ONLY penstock.queue
    ADD CONSTRAINT queue_name_key UNIQUE (name);
ALTER TABLE ONLY penstock.queue
    ADD CONSTRAINT queue_pkey PRIMARY KEY (id);
ALTER TABLE ONLY penstock.queue_set
    ADD CONSTRAINT queue_set_pkey PRIMARY KEY (queue_id, id);
ALTER TABLE ONLY penstock.reject
    ADD CONSTRAINT reject_pkey PRIMARY KEY (id);
ALTER TABLE ONLY penstock.retention
    ADD CONSTRAINT retention_pkey PRIMARY KEY (what);
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
ALTER TABLE ONLY penstock.throttle
    ADD CONSTRAINT throttle_pkey PRIMARY KEY (queue_id, subject);
ALTER TABLE ONLY penstock.watermark
    ADD CONSTRAINT watermark_pkey PRIMARY KEY (queue_id);
ALTER TABLE ONLY penstock.worker
    ADD CONSTRAINT worker_pkey PRIMARY KEY (name);
CREATE INDEX adopted_failure_last ON penstock.adopted_failure USING btree (adopted_id, last_at);
CREATE INDEX adopted_record_due ON penstock.adopted_record USING btree (adopted_id, due, key) WHERE (due IS NOT NULL);
CREATE INDEX agenda_pick ON penstock.agenda USING btree (queue_id, priority, due, task_id) WHERE pending;
CREATE INDEX agenda_planned ON penstock.agenda USING btree (queue_id, due) WHERE (NOT pending);
CREATE INDEX agenda_quarantined ON penstock.agenda USING btree (queue_id, priority, due, task_id) WHERE (pending AND (quarantine < 0));
CREATE INDEX audit_paused ON penstock.audit USING btree (queue, id) WHERE ((verb = 'set'::text) AND (detail ? 'paused'::text));
CREATE INDEX counter_log_xid ON penstock.counter_log USING btree (queue_id, xid);
CREATE INDEX decision_by_queue ON penstock.decision USING btree (queue, at DESC);
CREATE INDEX early_xid ON penstock.early USING btree (queue_id, xid);
CREATE INDEX history_xid_task ON ONLY penstock.history USING brin (xid, task_id int8_minmax_multi_ops) WITH (autosummarize='on');
CREATE INDEX idle_worker_of_set ON penstock.idle_worker USING btree (queue_set, channel);
CREATE INDEX lease_until ON penstock.lease USING btree (queue_id, until);
CREATE INDEX ledger_at ON penstock.ledger USING btree (at);
CREATE INDEX ledger_job ON penstock.ledger USING btree (job) WHERE (job IS NOT NULL);
CREATE INDEX ledger_series ON penstock.ledger USING btree (series, at) WHERE (series IS NOT NULL);
CREATE INDEX queue_set_id ON penstock.queue_set USING btree (id);
CREATE INDEX reject_at ON penstock.reject USING btree (at);
CREATE INDEX reject_job ON penstock.reject USING btree (job);
CREATE INDEX sample_xid ON penstock.sample USING brin (xid) WITH (autosummarize='on');
CREATE INDEX schedule_next ON penstock.schedule USING btree (next_at) WHERE (NOT paused);
CREATE INDEX task_ended ON penstock.task USING btree (queue_id, ended, ended_at) WHERE (ended IS NOT NULL);
CREATE INDEX task_expires ON penstock.task USING btree (queue_id, expires) WHERE ((expires IS NOT NULL) AND (ended IS NULL));
CREATE UNIQUE INDEX task_subject ON penstock.task USING btree (queue_id, subject) WHERE (subject IS NOT NULL);
CREATE INDEX task_waiting ON penstock.task USING btree (queue_id, id) WHERE ((waits_for > 0) AND (ended IS NULL));
CREATE INDEX throttle_until ON penstock.throttle USING btree (until);
CREATE TRIGGER count_delete AFTER DELETE ON penstock.agenda REFERENCING OLD TABLE AS parted FOR EACH STATEMENT EXECUTE FUNCTION penstock._count_agenda();
CREATE TRIGGER count_delete AFTER DELETE ON penstock.lease REFERENCING OLD TABLE AS parted FOR EACH STATEMENT EXECUTE FUNCTION penstock._count_lease();
CREATE TRIGGER count_delete AFTER DELETE ON penstock.task REFERENCING OLD TABLE AS parted FOR EACH STATEMENT EXECUTE FUNCTION penstock._count_task();
CREATE TRIGGER count_insert AFTER INSERT ON penstock.agenda REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION penstock._count_agenda();
CREATE TRIGGER count_insert AFTER INSERT ON penstock.lease REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION penstock._count_lease();
CREATE TRIGGER count_insert AFTER INSERT ON penstock.task REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION penstock._count_task();
CREATE TRIGGER count_update AFTER UPDATE ON penstock.agenda REFERENCING OLD TABLE AS parted NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION penstock._count_agenda();
CREATE TRIGGER count_update AFTER UPDATE ON penstock.lease REFERENCING OLD TABLE AS parted NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION penstock._count_lease();
CREATE TRIGGER count_update AFTER UPDATE ON penstock.task REFERENCING OLD TABLE AS parted NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION penstock._count_task();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON penstock.agenda FOR EACH STATEMENT EXECUTE FUNCTION penstock._refuse_truncate();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON penstock.counter FOR EACH STATEMENT EXECUTE FUNCTION penstock._refuse_truncate();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON penstock.counter_log FOR EACH STATEMENT EXECUTE FUNCTION penstock._refuse_truncate();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON penstock.history FOR EACH STATEMENT EXECUTE FUNCTION penstock._refuse_truncate();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON penstock.lease FOR EACH STATEMENT EXECUTE FUNCTION penstock._refuse_truncate();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON penstock.task FOR EACH STATEMENT EXECUTE FUNCTION penstock._refuse_truncate();
GRANT USAGE ON SCHEMA penstock TO penstock_producer;
GRANT USAGE ON SCHEMA penstock TO penstock_worker;
GRANT USAGE ON SCHEMA penstock TO penstock_reader;
GRANT USAGE ON SCHEMA penstock TO penstock_operator;
GRANT USAGE ON SCHEMA penstock TO penstock_admin;
GRANT SELECT ON TABLE penstock.watermark TO penstock_reader;
REVOKE ALL ON FUNCTION penstock._add_to_sums(p_watermark penstock.watermark, p_metrics text[], p_deltas bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._asked_ids(p_queue_id integer, p_ids bigint[], p_subjects text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._begin_branch() FROM PUBLIC;
GRANT SELECT ON TABLE penstock.history_count TO penstock_reader;
REVOKE ALL ON FUNCTION penstock._begin_count(p_day date, p_relation regclass, p_below bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._blocked(p_ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._cancel_unstarted(p_queue_id integer, p_ids bigint[], p_now timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._channel_number(p_worker text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_arrays(p_payloads text[], p_subjects text[], p_kinds text[], p_dues timestamp with time zone[], p_priorities smallint[], p_on_conflict text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_beat(p_worker text, p_queues text[], p_slots integer, p_busy integer, p_host text, p_started_by text, p_leaving boolean, p_listens boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_claim(p_limit integer, p_lease interval, p_worker text, p_quarantined boolean, p_durable boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_distinct(p_ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_extras(p_count integer, p_keys text[], p_metas text[], p_expires timestamp with time zone[], p_dues timestamp with time zone[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_filter(p_error text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_follow_up(p_field text, p_target text, p_queue text, p_kind text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_hold(p_lease interval, p_driver text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_id(p_id bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_limit(p_limit integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_notes(p_token uuid, p_notes jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_origin() FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_pace(p_subjects text[], p_dues timestamp with time zone[], p_on_conflict text, p_debounce interval, p_at_most interval, p_throttle interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_push(p_payloads text[], p_subjects text[], p_kinds text[], p_dues timestamp with time zone[], p_priorities smallint[], p_largest bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.clock() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.clock() TO penstock_producer;
GRANT ALL ON FUNCTION penstock.clock() TO penstock_worker;
GRANT ALL ON FUNCTION penstock.clock() TO penstock_reader;
GRANT SELECT ON TABLE penstock.queue TO penstock_reader;
REVOKE ALL ON FUNCTION penstock._check_queue(p_queue penstock.queue) FROM PUBLIC;
GRANT SELECT ON TABLE penstock.ledger TO penstock_reader;
REVOKE ALL ON FUNCTION penstock._check_repeat(p_what text, p_known penstock.ledger, p_queue penstock.queue, p_rows bigint, p_checksum text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_retention(p_field text, p_keep interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_retry(p_strategy jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_scaling(p_queues text[], p_holder text, p_lease interval) FROM PUBLIC;
GRANT SELECT ON TABLE penstock.schedule TO penstock_reader;
REVOKE ALL ON FUNCTION penstock._check_schedule(p_schedule penstock.schedule, p_largest bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_settle(p_token uuid, p_ids bigint[], p_outcomes text[], p_dues timestamp with time zone[], p_delays interval[], p_payloads text[], p_errors text[], p_classes text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_sizes(p_payloads text[], p_queue_id integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._check_texts(p_payloads text[], p_most bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._chosen(p_values anyarray, p_positions integer[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._claim_batch(p_queue penstock.queue, p_driver text, p_limit integer, p_slots integer, p_lease interval, p_before timestamp with time zone) FROM PUBLIC;
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
GRANT SELECT(quarantines) ON TABLE penstock.lease TO penstock_reader;
GRANT SELECT(revoked) ON TABLE penstock.lease TO penstock_reader;
GRANT SELECT(key_ids) ON TABLE penstock.lease TO penstock_reader;
REVOKE ALL ON FUNCTION penstock._close_lease(p_lease penstock.lease, p_ids bigint[]) FROM PUBLIC;
GRANT SELECT ON TABLE penstock.agenda TO penstock_reader;
REVOKE ALL ON FUNCTION penstock._comes_before(p_priority smallint, p_due timestamp with time zone, p_id bigint, p_row penstock.agenda, p_step interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._conclude(p_lease penstock.lease, p_now timestamp with time zone, p_ids bigint[], p_outcomes text[], p_dues timestamp with time zone[], p_delays interval[], p_payloads text[], p_errors text[], p_classes text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._count_agenda() FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._count_history(p_before timestamp with time zone, p_pages bigint, OUT rows bigint, OUT more boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._count_lease() FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._count_pages(p_count penstock.history_count, p_relation regclass, p_pages bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._count_task() FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._watermark(p_queue_id integer) FROM PUBLIC;
GRANT SELECT ON TABLE penstock.counter TO penstock_reader;
GRANT SELECT ON TABLE penstock.counter_log TO penstock_reader;
REVOKE ALL ON FUNCTION penstock._counter_rows(p_queue_id integer, p_system bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._damaged_rows(p_queue_id integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._describe_end(p_id bigint, p_end bigint, p_queue_id integer, p_kind text, p_subject text, p_payload jsonb, p_attempts integer, p_reason text, p_error_class text, p_error text, p_now timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._distance(p_one text, p_other text, p_most integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._document_fault(p_priority smallint, p_kind text, p_subject text, p_payload jsonb, p_due timestamp with time zone, p_ended text, p_ended_at timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._drop_audit(p_before timestamp with time zone, p_limit integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._drop_day(p_relation regclass, p_day date, p_below bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._drop_decisions(p_before timestamp with time zone, p_limit integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._drop_history(p_before timestamp with time zone, OUT rows bigint, OUT more boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._drop_ledger(p_before timestamp with time zone, p_limit integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._drop_rejects(p_before timestamp with time zone, p_limit integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._drop_samples(p_before timestamp with time zone, p_limit integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._drop_throttles(p_before timestamp with time zone, p_limit integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._end_unstarted(p_queue_id integer, p_limit integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._end_unstarted_all(OUT rows bigint, OUT more boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._error_fingerprint(p_class text, p_pattern text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._error_pattern(p_error text, p_reason text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._expire(p_queue_id integer, p_limit integer, p_thorough boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._expire_all(OUT rows bigint, OUT more boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._extras_fault(p_key text, p_meta jsonb, p_expires timestamp with time zone, p_waits_for integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._find_subjects(p_queue_id integer, p_subjects text[], p_which integer[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._finish(p_lease penstock.lease, p_now timestamp with time zone, p_ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._first_of_each(p_queue_id integer, p_first smallint, p_next integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._fleet_of(p_queue text, p_now timestamp with time zone, OUT workers bigint, OUT slots bigint, OUT free bigint, OUT silent bigint, OUT leaving bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._forget_idle(p_before timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._forget_progress(p_limit integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._forget_workers(p_before timestamp with time zone, p_limit integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._given(p_value text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._held_elsewhere(p_ids bigint[], p_named_only boolean) FROM PUBLIC;
GRANT SELECT(id) ON TABLE penstock.stream TO penstock_reader;
GRANT SELECT(identity) ON TABLE penstock.stream TO penstock_reader;
GRANT SELECT(queue_id) ON TABLE penstock.stream TO penstock_reader;
GRANT SELECT(name) ON TABLE penstock.stream TO penstock_reader;
GRANT SELECT(epoch) ON TABLE penstock.stream TO penstock_reader;
GRANT SELECT(until) ON TABLE penstock.stream TO penstock_reader;
GRANT SELECT(driver) ON TABLE penstock.stream TO penstock_reader;
GRANT SELECT(batch) ON TABLE penstock.stream TO penstock_reader;
GRANT SELECT(created) ON TABLE penstock.stream TO penstock_reader;
REVOKE ALL ON FUNCTION penstock._held_stream(p_stream integer, p_epoch integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._hidden_tasks(p_queue_id integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._history_days(p_before timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._hold_documents(p_queue_id integer, p_ids bigint[], p_ended_at timestamp with time zone[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._hold_leased(p_queue_id integer, p_ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._hold_waiting(p_ids bigint[]) FROM PUBLIC;
GRANT SELECT ON TABLE penstock.sample TO penstock_reader;
REVOKE ALL ON FUNCTION penstock._idle_between(p_one penstock.sample, p_next penstock.sample) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._in_seconds(p_length interval) FROM PUBLIC;
GRANT SELECT ON TABLE penstock.history TO penstock_reader;
REVOKE ALL ON FUNCTION penstock._in_short(p_attempt penstock.history) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._is_number(p_value jsonb, p_least numeric, p_most numeric) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._join_lines(p_old jsonb, p_new jsonb, p_known integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._keep_branch() FROM PUBLIC;
GRANT SELECT ON TABLE penstock.retention TO penstock_reader;
REVOKE ALL ON FUNCTION penstock._keeps(p_what text) FROM PUBLIC;
GRANT SELECT ON TABLE penstock.key TO penstock_reader;
REVOKE ALL ON FUNCTION penstock._key_id(p_queue_id integer, p_key text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.largest_payload(p_queue penstock.queue) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.largest_payload(p_queue penstock.queue) TO penstock_producer;
GRANT ALL ON FUNCTION penstock.largest_payload(p_queue penstock.queue) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.largest_payload(p_queue penstock.queue) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock._largest_text(p_queue penstock.queue) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._last_attempts(p_id bigint, p_since timestamp with time zone, p_limit integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._lease_fits(p_lease interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._lease_of(p_queue_id integer, p_id bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._lease_out(p_token uuid, p_queue_id integer, p_now timestamp with time zone, p_until timestamp with time zone, p_worker text, p_alone boolean, p_picks penstock.picks) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._least_size(p_payload jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._left_out(p_queue_id integer, p_ids bigint[], p_held bigint[], p_taken bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._lock_documents(p_ids bigint[], p_named_only boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._make_history(p_day date) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._miss_schedule(p_name text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._move_bounds(p_watermark penstock.watermark, p_snapshot pg_snapshot, p_now timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._nearest(p_name text, p_names text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._nearest_queue(p_name text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._nearest_schedule(p_name text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._note_audit(p_verb text, p_queue text, p_detail jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._note_beat(p_worker text, p_queues text[], p_queue_set bigint, p_slots integer, p_busy integer, p_host text, p_pid integer, p_requested_at timestamp with time zone, p_started_by text, p_leaving boolean, p_listens boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._note_follows_done(p_queue_id integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._note_keys(p_queue_ids integer[], p_keys text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._note_queue_set(p_ids integer[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._safe_text(p_text text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._note_text(p_text text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._number_keys(p_queue_id integer, p_keys text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._open_tasks(p_tokens uuid[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._page_candidates(p_queue_id integer, p_state text, p_after jsonb, p_most integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._part_ends() FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._pass_keeper(p_pass integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._pause_of(p_queue penstock.queue) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._pick(p_queue_id integer, p_hint penstock.place, p_limit integer, p_quarantined boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._pick_aged(p_queue penstock.queue, p_limit integer, p_quarantined boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._pick_quarantined(p_queue_id integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._priority_ranges(p_priorities smallint[], p_first_due timestamp with time zone[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._promote(p_queue_id integer, p_limit integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._promote_all(OUT rows bigint, OUT more boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._push_follow_ups(p_targets text[], p_ends jsonb[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._push_throttled(p_queue text, p_payloads text[], p_subjects text[], p_kinds text[], p_dues timestamp with time zone[], p_priorities smallint[], p_on_conflict text, p_keys text[], p_metas text[], p_expires timestamp with time zone[], p_throttle interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._put_back(p_leases penstock.lease[], p_now timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._queue_name(p_queue_id integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._read_lines(p_lines jsonb, p_attempt integer, p_now timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._read_up_to() FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._recount(p_queue text) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._refresh(p_ns integer[], p_ids bigint[], p_ended text[], p_dues timestamp with time zone[], p_priorities smallint[], p_key_ids integer[], p_firsts timestamp with time zone[], p_at_most interval) FROM PUBLIC;
GRANT SELECT ON TABLE penstock.history_branch TO penstock_reader;
REVOKE ALL ON FUNCTION penstock._refuse_branch(p_branch text, p_xid bigint, p_known penstock.history_branch) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._refuse_lease(p_lease interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._refuse_text(p_which text, p_size text, p_most bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._refuse_truncate() FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._renew_tokens(p_tokens uuid[], p_driver text, p_lease interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._reopen(p_ids bigint[], p_dues timestamp with time zone[], p_now timestamp with time zone, p_lasting boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._replace_waiting(p_which bigint[], p_ids bigint[], p_dues timestamp with time zone[], p_priorities smallint[], p_key_ids integer[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._retire(p_limit integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._revoke(p_queue_id integer, p_ids bigint[], p_now timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._scaler_snapshot(p_queues text[], p_horizons double precision[], p_rows integer[], p_bins double precision[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._settle_batch(p_tokens uuid[]) FROM PUBLIC;
GRANT SELECT ON TABLE penstock.idle_worker TO penstock_reader;
REVOKE ALL ON FUNCTION penstock._shall_listen(p_worker text, p_queue_set bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._split_ranges(p_watermark penstock.watermark) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._squeeze(p_queue_id integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._squeeze_all(OUT rows bigint, OUT more boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._stand_still(p_queue_id integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._system() FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._take_chore(p_name text, p_every interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._take_samples() FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._takes_follow_ups(p_queue penstock.queue) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._tasks_before(p_row penstock.agenda, p_now timestamp with time zone, p_most integer, p_step interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._tend(p_queue_id integer, p_limit integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._unread(p_relation regclass) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._waits_since(p_queue_id integer, p_before timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._wake(p_queue text, p_channels bigint[], p_tasks bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._why_gone(p_queue penstock.queue, p_id bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.moment() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.moment() TO penstock_producer;
GRANT SELECT ON TABLE penstock.task TO penstock_reader;
GRANT INSERT(id) ON TABLE penstock.task TO penstock_producer;
GRANT INSERT(queue_id) ON TABLE penstock.task TO penstock_producer;
GRANT INSERT(priority) ON TABLE penstock.task TO penstock_producer;
GRANT INSERT(kind) ON TABLE penstock.task TO penstock_producer;
GRANT INSERT(subject) ON TABLE penstock.task TO penstock_producer;
GRANT INSERT(payload) ON TABLE penstock.task TO penstock_producer;
GRANT INSERT(due) ON TABLE penstock.task TO penstock_producer;
GRANT INSERT(key) ON TABLE penstock.task TO penstock_producer;
GRANT INSERT(meta) ON TABLE penstock.task TO penstock_producer;
GRANT INSERT(expires) ON TABLE penstock.task TO penstock_producer;
REVOKE ALL ON FUNCTION penstock._why_waiting(p_queue penstock.queue, p_task penstock.task, p_row penstock.agenda, p_now timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._within_quarantine(p_picks penstock.picks) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._without_bounds(p_watermark penstock.watermark) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._without_unstartable(p_queue_id integer, p_picks penstock.picks, p_now timestamp with time zone) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock._written_since(p_relation regclass, p_xid bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION penstock.abandon(p_name text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.abandon(p_name text) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.adopt(p_name text, p_schema text, p_table text, p_mode text, p_terms jsonb, p_retry jsonb, p_max_attempts integer, p_sla interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.adopt(p_name text, p_schema text, p_table text, p_mode text, p_terms jsonb, p_retry jsonb, p_max_attempts integer, p_sla interval) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.at_place(p_priority smallint, p_due timestamp with time zone, p_task_id bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.at_place(p_priority smallint, p_due timestamp with time zone, p_task_id bigint) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.attempts(p_id bigint, p_queue text, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.attempts(p_id bigint, p_queue text, p_limit integer) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.batch_leases(p_stream integer, p_epoch integer, p_after bigint, p_upto bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.batch_leases(p_stream integer, p_epoch integer, p_after bigint, p_upto bigint) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.beat(p_worker text, p_queues text[], p_slots integer, p_busy integer, p_host text, p_pid integer, p_requested_at timestamp with time zone, p_started_by text, p_leaving boolean, p_listens boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.beat(p_worker text, p_queues text[], p_slots integer, p_busy integer, p_host text, p_pid integer, p_requested_at timestamp with time zone, p_started_by text, p_leaving boolean, p_listens boolean) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.beat_all(p_workers jsonb, p_queues text[], p_slots integer, p_host text, p_started_by text, p_leaving boolean, p_known bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.beat_all(p_workers jsonb, p_queues text[], p_slots integer, p_host text, p_started_by text, p_leaving boolean, p_known bigint) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.begin_pass(p_adopted integer, p_pass integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.begin_pass(p_adopted integer, p_pass integer) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.begin_walk(p_pass integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.begin_walk(p_pass integer) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.board(p_queue text, p_decisions integer, p_samples integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.board(p_queue text, p_decisions integer, p_samples integer) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.board(p_queue text, p_decisions integer, p_samples integer) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.cancel(p_queue text, p_ids bigint[], p_subjects text[], p_reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.cancel(p_queue text, p_ids bigint[], p_subjects text[], p_reason text) TO penstock_operator;
REVOKE ALL ON FUNCTION penstock.check_mark(p_system text, p_database bigint, p_branch text, p_xid bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.check_mark(p_system text, p_database bigint, p_branch text, p_xid bigint) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.check_window(p_from bigint, p_to bigint, p_dropped bigint, p_queue text, p_since timestamp with time zone, p_until timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.check_window(p_from bigint, p_to bigint, p_dropped bigint, p_queue text, p_since timestamp with time zone, p_until timestamp with time zone) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.claim(p_queue text, p_limit integer, p_lease interval, p_worker text, p_hint penstock.place, p_quarantined boolean, p_durable boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.claim(p_queue text, p_limit integer, p_lease interval, p_worker text, p_hint penstock.place, p_quarantined boolean, p_durable boolean) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.contract() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.contract() TO penstock_producer;
GRANT ALL ON FUNCTION penstock.contract() TO penstock_worker;
GRANT ALL ON FUNCTION penstock.contract() TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.create_queue(p_name text, p_lease interval, p_max_attempts integer, p_retry jsonb, p_sla interval, p_keep_done interval, p_keep_dead interval, p_keep_cancelled interval, p_settings jsonb, p_exist_ok boolean, p_max_crashes integer, p_priority_step interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.create_queue(p_name text, p_lease interval, p_max_attempts integer, p_retry jsonb, p_sla interval, p_keep_done interval, p_keep_dead interval, p_keep_cancelled interval, p_settings jsonb, p_exist_ok boolean, p_max_crashes integer, p_priority_step interval) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.decide(p_holder text, p_lease interval, p_decisions jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.decide(p_holder text, p_lease interval, p_decisions jsonb) TO penstock_worker;
GRANT SELECT ON TABLE penstock.decision TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.decisions(p_queue text, p_at timestamp with time zone, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.decisions(p_queue text, p_at timestamp with time zone, p_limit integer) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.decisions(p_queue text, p_at timestamp with time zone, p_limit integer) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.dismiss(p_workers text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.dismiss(p_workers text[]) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.drop_queue(p_queue text, p_force boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.drop_queue(p_queue text, p_force boolean) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.drop_schedule(p_name text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.drop_schedule(p_name text) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.due_schedules(p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.due_schedules(p_limit integer) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.end_leases(p_tokens uuid[], OUT failed integer, OUT dead integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.end_leases(p_tokens uuid[], OUT failed integer, OUT dead integer) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.end_leases_of(p_worker text, p_queues text[], OUT failed integer, OUT dead integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.end_leases_of(p_worker text, p_queues text[], OUT failed integer, OUT dead integer) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.end_passes(p_passes integer[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.end_passes(p_passes integer[]) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.enter_part(p_queue text, p_batch_id uuid, p_part integer, p_rows bigint, p_checksum text, p_report jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.enter_part(p_queue text, p_batch_id uuid, p_part integer, p_rows bigint, p_checksum text, p_report jsonb) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.enter_partition(p_queue text, p_job uuid, p_partition integer, p_batch_id uuid, p_rows bigint, p_checksum text, p_series uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.enter_partition(p_queue text, p_job uuid, p_partition integer, p_batch_id uuid, p_rows bigint, p_checksum text, p_series uuid) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.expire_leases(p_queues text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.expire_leases(p_queues text[]) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.extend(p_token uuid, p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.extend(p_token uuid, p_lease interval) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.extend_many(p_tokens uuid[], p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.extend_many(p_tokens uuid[], p_lease interval) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.failed_ids(p_queue text, p_fingerprint text, p_limit integer, p_look integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.failed_ids(p_queue text, p_fingerprint text, p_limit integer, p_look integer) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.failures(p_queue text, p_look integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.failures(p_queue text, p_look integer) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.find_branch() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.find_branch() TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.find_progress(p_id bigint, p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.find_progress(p_id bigint, p_queue text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.find_removed(p_id bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.find_removed(p_id bigint) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.find_work(p_queues text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.find_work(p_queues text[]) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.fire(p_name text, p_mark timestamp with time zone, p_ticks timestamp with time zone[], p_decided timestamp with time zone, p_next_at timestamp with time zone, p_expires timestamp with time zone[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.fire(p_name text, p_mark timestamp with time zone, p_ticks timestamp with time zone[], p_decided timestamp with time zone, p_next_at timestamp with time zone, p_expires timestamp with time zone[]) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.forget_reader(p_name text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.forget_reader(p_name text) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.forget_records(p_adopted integer, p_keys jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.forget_records(p_adopted integer, p_keys jsonb) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.history_between(p_from bigint, p_to bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.history_between(p_from bigint, p_to bigint) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.history_horizon() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.history_horizon() TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.history_spans(p_from bigint, p_to bigint, p_since timestamp with time zone, p_until timestamp with time zone, p_roughly boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.history_spans(p_from bigint, p_to bigint, p_since timestamp with time zone, p_until timestamp with time zone, p_roughly boolean) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.history_sums(p_day date, p_first bigint, p_pages bigint, p_below bigint, p_thorough boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.history_sums(p_day date, p_first bigint, p_pages bigint, p_below bigint, p_thorough boolean) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.hold_scaling(p_queues text[], p_holder text, p_policy text, p_lease interval, p_instead_of text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.hold_scaling(p_queues text[], p_holder text, p_policy text, p_lease interval, p_instead_of text[]) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.hold_stream(p_queue text, p_group text, p_epoch integer, p_driver text, p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.hold_stream(p_queue text, p_group text, p_epoch integer, p_driver text, p_lease interval) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.job_report(p_job uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.job_report(p_job uuid) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.judge_payloads(p_payloads text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.judge_payloads(p_payloads text[]) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.keep_stream(p_stream integer, p_epoch integer, p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.keep_stream(p_stream integer, p_epoch integer, p_lease interval) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.leave(p_worker text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.leave(p_worker text) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.leave_scaling(p_holder text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.leave_scaling(p_holder text) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.leave_stream(p_stream integer, p_epoch integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.leave_stream(p_stream integer, p_epoch integer) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.mark_adopted(p_adopted integer, p_tick timestamp with time zone, p_key text[], p_back boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.mark_adopted(p_adopted integer, p_tick timestamp with time zone, p_key text[], p_back boolean) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.mentions(p_class text, p_error text, p_reason text, p_text text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.mentions(p_class text, p_error text, p_reason text, p_text text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.metrics() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.metrics() TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.next_batch(p_stream integer, p_epoch integer, p_after bigint, p_limit integer, p_slots integer, p_lease interval, p_before timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.next_batch(p_stream integer, p_epoch integer, p_after bigint, p_limit integer, p_slots integer, p_lease interval, p_before timestamp with time zone) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.next_epoch() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.next_epoch() TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.next_pass() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.next_pass() TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.next_schedule() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.next_schedule() TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.note_failures(p_adopted integer, p_failed jsonb, p_succeeded jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.note_failures(p_adopted integer, p_failed jsonb, p_succeeded jsonb) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.note_horizon() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.note_horizon() TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.note_pass(p_adopted integer, p_report jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.note_pass(p_adopted integer, p_report jsonb) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.note_pass_record(p_pass integer, p_key text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.note_pass_record(p_pass integer, p_key text[]) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.note_progress(p_token uuid, p_notes jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.note_progress(p_token uuid, p_notes jsonb) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.note_reader(p_name text, p_system text, p_database bigint, p_branch text, p_passed bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.note_reader(p_name text, p_system text, p_database bigint, p_branch text, p_passed bigint) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.note_records(p_adopted integer, p_records jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.note_records(p_adopted integer, p_records jsonb) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.note_rejects(p_queue text, p_job uuid, p_partition integer, p_reasons text[], p_payloads text[], p_subjects text[], p_kinds text[], p_dues text[], p_priorities text[], p_keys text[], p_metas text[], p_expires text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.note_rejects(p_queue text, p_job uuid, p_partition integer, p_reasons text[], p_payloads text[], p_subjects text[], p_kinds text[], p_dues text[], p_priorities text[], p_keys text[], p_metas text[], p_expires text[]) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.note_report(p_batch_id uuid, p_part integer, p_report jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.note_report(p_batch_id uuid, p_part integer, p_report jsonb) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.note_reveal(p_id bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.note_reveal(p_id bigint) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.oldest_client() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.oldest_client() TO penstock_producer;
GRANT ALL ON FUNCTION penstock.oldest_client() TO penstock_worker;
GRANT ALL ON FUNCTION penstock.oldest_client() TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.pass_on(p_worker text, p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.pass_on(p_worker text, p_queue text) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.pause_schedule(p_name text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.pause_schedule(p_name text) TO penstock_operator;
REVOKE ALL ON FUNCTION penstock.places_of(p_queue_id integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.places_of(p_queue_id integer) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.prepare_work(p_queues text[], p_kinds jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.prepare_work(p_queues text[], p_kinds jsonb) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.profiles(p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.profiles(p_queue text) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.profiles(p_queue text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.purge(p_queue text, p_states text[], p_ids bigint[], p_kind text, p_error text, p_before timestamp with time zone, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.purge(p_queue text, p_states text[], p_ids bigint[], p_kind text, p_error text, p_before timestamp with time zone, p_limit integer) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.push(p_queue text, p_payload json, p_subject text, p_kind text, p_due timestamp with time zone, p_priority smallint, p_on_conflict text, p_key text, p_meta jsonb, p_expires timestamp with time zone, p_debounce interval, p_at_most interval, p_throttle interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.push(p_queue text, p_payload json, p_subject text, p_kind text, p_due timestamp with time zone, p_priority smallint, p_on_conflict text, p_key text, p_meta jsonb, p_expires timestamp with time zone, p_debounce interval, p_at_most interval, p_throttle interval) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.push(p_queue text, p_payload jsonb, p_subject text, p_kind text, p_due timestamp with time zone, p_priority smallint, p_on_conflict text, p_key text, p_meta jsonb, p_expires timestamp with time zone, p_debounce interval, p_at_most interval, p_throttle interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.push(p_queue text, p_payload jsonb, p_subject text, p_kind text, p_due timestamp with time zone, p_priority smallint, p_on_conflict text, p_key text, p_meta jsonb, p_expires timestamp with time zone, p_debounce interval, p_at_most interval, p_throttle interval) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.push(p_queue text, p_payload text, p_subject text, p_kind text, p_due timestamp with time zone, p_priority smallint, p_on_conflict text, p_key text, p_meta jsonb, p_expires timestamp with time zone, p_debounce interval, p_at_most interval, p_throttle interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.push(p_queue text, p_payload text, p_subject text, p_kind text, p_due timestamp with time zone, p_priority smallint, p_on_conflict text, p_key text, p_meta jsonb, p_expires timestamp with time zone, p_debounce interval, p_at_most interval, p_throttle interval) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.push_many(p_queue text, p_payloads text[], p_subjects text[], p_kinds text[], p_dues timestamp with time zone[], p_priorities smallint[], p_on_conflict text, p_keys text[], p_metas text[], p_expires timestamp with time zone[], p_debounce interval, p_at_most interval, p_throttle interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.push_many(p_queue text, p_payloads text[], p_subjects text[], p_kinds text[], p_dues timestamp with time zone[], p_priorities smallint[], p_on_conflict text, p_keys text[], p_metas text[], p_expires timestamp with time zone[], p_debounce interval, p_at_most interval, p_throttle interval) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.queues_named(p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.queues_named(p_queue text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.read_lease(p_token uuid, p_first integer, p_count integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.read_lease(p_token uuid, p_first integer, p_count integer) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.rebase_history() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.rebase_history() TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.recent_times(p_queue text, p_span interval, p_pages integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.recent_times(p_queue text, p_span interval, p_pages integer) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.redrive(p_queue text, p_ids bigint[], p_subjects text[], p_kind text, p_error text, p_since timestamp with time zone, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.redrive(p_queue text, p_ids bigint[], p_subjects text[], p_kind text, p_error text, p_since timestamp with time zone, p_limit integer) TO penstock_operator;
REVOKE ALL ON FUNCTION penstock.refuse(p_code text, p_message text, p_hint text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.refuse(p_code text, p_message text, p_hint text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.release(p_token uuid, p_ids bigint[], p_delay interval, p_wait boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.release(p_token uuid, p_ids bigint[], p_delay interval, p_wait boolean) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.release_day(p_day date, p_rows bigint, p_below bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.release_day(p_day date, p_rows bigint, p_below bigint) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.repair(p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.repair(p_queue text) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.reprioritise(p_queue text, p_priority smallint, p_ids bigint[], p_subjects text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.reprioritise(p_queue text, p_priority smallint, p_ids bigint[], p_subjects text[]) TO penstock_operator;
REVOKE ALL ON FUNCTION penstock.reschedule(p_queue text, p_due timestamp with time zone, p_ids bigint[], p_subjects text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.reschedule(p_queue text, p_due timestamp with time zone, p_ids bigint[], p_subjects text[]) TO penstock_operator;
REVOKE ALL ON FUNCTION penstock.resume_schedule(p_name text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.resume_schedule(p_name text) TO penstock_operator;
REVOKE ALL ON FUNCTION penstock.retry_delay(p_strategy jsonb, p_failures integer, p_age interval, p_seed bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.retry_delay(p_strategy jsonb, p_failures integer, p_age interval, p_seed bigint) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.retry_spread(p_seed bigint, p_failures integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.retry_spread(p_seed bigint, p_failures integer) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.revision() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.revision() TO penstock_producer;
GRANT ALL ON FUNCTION penstock.revision() TO penstock_worker;
GRANT ALL ON FUNCTION penstock.revision() TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.running_times() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.running_times() TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.sample_days(p_from bigint, p_to bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.sample_days(p_from bigint, p_to bigint) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.sample_series(p_queue text, p_from timestamp with time zone, p_to timestamp with time zone, p_points integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.sample_series(p_queue text, p_from timestamp with time zone, p_to timestamp with time zone, p_points integer) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.scaler_snapshot(p_queues text[], p_horizons double precision[], p_rows integer[], p_bins double precision[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.scaler_snapshot(p_queues text[], p_horizons double precision[], p_rows integer[], p_bins double precision[]) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.scalers(p_queues text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.scalers(p_queues text[]) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.scalers(p_queues text[]) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.schedules(p_name text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.schedules(p_name text) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.schedules(p_name text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.seal_job(p_queue text, p_job uuid, p_partitions integer, p_rows bigint, p_checksum text, p_report jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.seal_job(p_queue text, p_job uuid, p_partitions integer, p_rows bigint, p_checksum text, p_report jsonb) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.set_kinds(p_queue text, p_kinds jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.set_kinds(p_queue text, p_kinds jsonb) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.set_paused(p_queue text, p_paused boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.set_paused(p_queue text, p_paused boolean) TO penstock_operator;
REVOKE ALL ON FUNCTION penstock.set_profiles(p_profiles jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.set_profiles(p_profiles jsonb) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.set_profiles(p_profiles jsonb) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.set_queue(p_name text, p_changes jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.set_queue(p_name text, p_changes jsonb) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.set_retention(p_what text, p_keep interval) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.set_retention(p_what text, p_keep interval) TO penstock_admin;
REVOKE ALL ON FUNCTION penstock.set_schedule(p_name text, p_queue text, p_cron text, p_tz text, p_kind text, p_payload jsonb, p_priority smallint, p_backfill text, p_key text, p_expires interval, p_until_next boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.set_schedule(p_name text, p_queue text, p_cron text, p_tz text, p_kind text, p_payload jsonb, p_priority smallint, p_backfill text, p_key text, p_expires interval, p_until_next boolean) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.settle(p_token uuid, p_ids bigint[], p_outcomes text[], p_dues timestamp with time zone[], p_delays interval[], p_payloads text[], p_errors text[], p_classes text[], p_wait boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.settle(p_token uuid, p_ids bigint[], p_outcomes text[], p_dues timestamp with time zone[], p_delays interval[], p_payloads text[], p_errors text[], p_classes text[], p_wait boolean) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.start_latencies() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.start_latencies() TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.status(p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.status(p_queue text) TO penstock_producer;
GRANT ALL ON FUNCTION penstock.status(p_queue text) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.status(p_queue text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.take_job_slot(p_job uuid, p_slots integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.take_job_slot(p_job uuid, p_slots integer) TO penstock_producer;
REVOKE ALL ON FUNCTION penstock.take_quarantine(p_queue text, p_worker text, p_seconds double precision) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.take_quarantine(p_queue text, p_worker text, p_seconds double precision) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.target_age(p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.target_age(p_queue text) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.target_age(p_queue text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.target_workers(p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.target_workers(p_queue text) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.target_workers(p_queue text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.task_page(p_queue text, p_state text, p_kind text, p_error text, p_subject text, p_after jsonb, p_limit integer, p_look integer) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.task_page(p_queue text, p_state text, p_kind text, p_error text, p_subject text, p_after jsonb, p_limit integer, p_look integer) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.the_queue(p_name text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.the_queue(p_name text) TO penstock_producer;
GRANT ALL ON FUNCTION penstock.the_queue(p_name text) TO penstock_worker;
GRANT ALL ON FUNCTION penstock.the_queue(p_name text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.timeline() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.timeline() TO penstock_reader;
REVOKE ALL ON PROCEDURE penstock.upkeep() FROM PUBLIC;
GRANT ALL ON PROCEDURE penstock.upkeep() TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.upkeep_pace() FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.upkeep_pace() TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.upkeep_part(p_part text, p_due boolean, OUT rows bigint, OUT more boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.upkeep_part(p_part text, p_due boolean, OUT rows bigint, OUT more boolean) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.upkeep_parts(p_due boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.upkeep_parts(p_due boolean) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.verify(p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.verify(p_queue text) TO penstock_reader;
REVOKE ALL ON FUNCTION penstock.waiting_now(p_queue text) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.waiting_now(p_queue text) TO penstock_worker;
REVOKE ALL ON FUNCTION penstock.why(p_queue text, p_id bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION penstock.why(p_queue text, p_id bigint) TO penstock_reader;
GRANT SELECT ON TABLE penstock.adopted TO penstock_reader;
GRANT SELECT ON TABLE penstock.adopted TO penstock_worker;
GRANT SELECT ON TABLE penstock.adopted_failure TO penstock_reader;
GRANT SELECT ON TABLE penstock.adopted_failure TO penstock_worker;
GRANT SELECT ON TABLE penstock.adopted_pass TO penstock_reader;
GRANT SELECT ON TABLE penstock.adopted_record TO penstock_reader;
GRANT SELECT ON TABLE penstock.adopted_record TO penstock_worker;
GRANT SELECT ON TABLE penstock.audit TO penstock_reader;
GRANT SELECT ON TABLE penstock.chore TO penstock_reader;
GRANT SELECT ON TABLE penstock.early TO penstock_reader;
GRANT SELECT ON TABLE penstock.history_dropped TO penstock_reader;
GRANT SELECT ON TABLE penstock.history_gone TO penstock_reader;
GRANT SELECT ON TABLE penstock.history_origin TO penstock_reader;
GRANT SELECT ON TABLE penstock.history_reader TO penstock_reader;
GRANT SELECT ON TABLE penstock.history_sum TO penstock_reader;
GRANT SELECT ON TABLE penstock.job_slot TO penstock_reader;
GRANT SELECT ON TABLE penstock.kind TO penstock_reader;
GRANT SELECT ON TABLE penstock.migration TO penstock_reader;
GRANT SELECT ON TABLE penstock.profile TO penstock_reader;
GRANT SELECT ON TABLE penstock.progress TO penstock_reader;
GRANT SELECT ON TABLE penstock.queue_gone TO penstock_reader;
GRANT SELECT ON TABLE penstock.queue_set TO penstock_reader;
GRANT SELECT ON TABLE penstock.reject TO penstock_reader;
GRANT SELECT ON TABLE penstock.scaling TO penstock_reader;
GRANT USAGE ON SEQUENCE penstock.task_id_seq TO penstock_producer;
GRANT SELECT ON TABLE penstock.tasks TO penstock_reader;
GRANT SELECT ON TABLE penstock.throttle TO penstock_reader;
GRANT SELECT ON TABLE penstock.worker TO penstock_reader;
