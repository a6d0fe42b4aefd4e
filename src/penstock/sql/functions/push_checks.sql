-- The checks of a push.

-- Refuses the first invalid item of a batch, named by its position from 0, before anything is written.
create or replace function penstock._check_push(
    p_payloads text[], p_subjects text[], p_kinds text[], p_dues timestamptz[],
    p_priorities smallint[], p_largest bigint
) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
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

-- Refuses the first invalid key, meta or end of a batch.
create or replace function penstock._check_extras(
    p_count int, p_keys text[], p_metas text[], p_expires timestamptz[], p_dues timestamptz[]
) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
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

create or replace function penstock._check_arrays(
    p_payloads text[], p_subjects text[], p_kinds text[], p_dues timestamptz[],
    p_priorities smallint[], p_on_conflict text
) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
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

-- Refuses payloads whose text is too long, for updates of documents that exist: the trigger of the document checks only
-- new ones. Only a text with an exponent of three digits or more can become much longer; a number of 131,075 bytes as
-- text was sent in at least 8.
create or replace function penstock._check_texts(p_payloads text[], p_most bigint) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
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

create or replace function penstock._refuse_text(p_which text, p_size text, p_most bigint) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    perform penstock.refuse('PS413', format('%s: payload: %s bytes as text are more than %s', p_which, p_size, p_most),
        'PostgreSQL writes numbers like 1e100000 out. Send them as JSON strings.');
end
$$;
