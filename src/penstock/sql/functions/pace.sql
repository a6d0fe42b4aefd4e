-- The pace of pushes of one subject: debounce waits until no push has come for a while, and throttle skips pushes for a
-- while after the first.

-- Refuses a pace that cannot be kept. The first push of a debounced task is the start of its age (see push_many), so at
-- most one of the two kinds is possible.
create or replace function penstock._check_pace(
    p_subjects text[], p_dues timestamptz[], p_on_conflict text, p_debounce interval, p_at_most interval,
    p_throttle interval
) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
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

-- Pushes the tasks whose subjects were not pushed with a throttle lately, and skips the others. Rows of `throttle` are
-- locked in the order of subjects, and before any document, as each push of these subjects does.
create or replace function penstock._push_throttled(
    p_queue text, p_payloads text[], p_subjects text[], p_kinds text[], p_dues timestamptz[], p_priorities smallint[],
    p_on_conflict text, p_keys text[], p_metas text[], p_expires timestamptz[], p_throttle interval
) returns table (n int, id bigint, result text, state text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
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

-- Returns the elements of an array at these positions, or null without an array.
create or replace function penstock._chosen(p_values anyarray, p_positions int[]) returns anyarray
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when p_values is not null then
        array(select p_values[i.at] from unnest(p_positions) with ordinality as i(at, n) order by i.n) end
$$;

-- Forgets throttles that are over.
create or replace function penstock._drop_throttles(p_before timestamptz, p_limit int) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
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
