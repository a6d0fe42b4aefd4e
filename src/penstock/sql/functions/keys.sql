-- Keys: whose a task is. The agenda has the number of a key, and the document its text.

-- Returns the numbers of these keys of these queues, and gives numbers to new ones, in one order. A new key that
-- another open transaction is adding makes this one wait for that transaction, like a subject that both push.
create or replace function penstock._note_keys(p_queue_ids int[], p_keys text[])
returns table (queue_id int, key text, id int)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off as $$
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

-- Returns the numbers of these keys of a queue, in their order; 0 stands for none.
create or replace function penstock._number_keys(p_queue_id int, p_keys text[]) returns int[]
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select array_agg(coalesce(k.id, 0) order by g.n)
    from unnest(p_keys) with ordinality as g(key, n)
    left join penstock._note_keys(array_fill(p_queue_id, array[cardinality(p_keys)]), p_keys) as k on k.key = g.key
$$;

-- Returns the number of a key that a task has had; 0 stands for none.
create or replace function penstock._key_id(p_queue_id int, p_key text) returns int
language sql stable parallel safe
return case when p_key is null then 0 else coalesce(
    (select k.id from penstock.key as k where k.queue_id = p_queue_id and k.key = p_key), 0) end;
