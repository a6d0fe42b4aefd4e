-- Follow-ups: tasks that the settling transaction pushes for a task that dies or is done, as its kind declares.

-- Returns the payload of a follow-up: what is known of the end of a task. `end` is the id of the last attempt in
-- history, which no other end has.
create or replace function penstock._describe_end(
    p_id bigint, p_end bigint, p_queue_id int, p_kind text, p_subject text, p_payload jsonb, p_attempts int,
    p_reason text, p_error_class text, p_error text, p_now timestamptz
) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set timezone = 'UTC' as $$
    select jsonb_build_object(
        'id', p_id, 'end', p_end, 'queue', q.name, 'kind', p_kind, 'subject', p_subject, 'payload', p_payload,
        'outcome', case when p_reason is null then 'done' else 'dead' end, 'attempts', p_attempts,
        'reason', left(p_reason, 200), 'error_class', p_error_class, 'error', p_error, 'ended_at', p_now)
    from penstock.queue as q where q.id = p_queue_id
$$;

-- Pushes a follow-up for each of these ends. The subject names the end, so no other task has it, and the insert waits
-- for nothing. A settle never fails because of its follow-ups: what is too large for their queue is left out, first the
-- payload, then the text of the error. A queue that was dropped, or takes only tiny payloads, gets no follow-up:
-- set_kinds refuses it, and the doctor reports it.
create or replace function penstock._push_follow_ups(p_targets text[], p_ends jsonb[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off as $$
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

-- Refuses a follow-up that could not be pushed. p_field is on_dead or on_done of a kind.
create or replace function penstock._check_follow_up(p_field text, p_target text, p_queue text, p_kind text)
returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
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

-- Notes in the queue whether one of its kinds has on_done, so that other queues settle done tasks without reading their
-- kinds. The queue is locked before the kinds are read: two sessions may declare different kinds.
create or replace function penstock._note_follows_done(p_queue_id int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    perform from penstock.queue as q where q.id = p_queue_id for no key update;
    update penstock.queue as q
    set follows_done = not q.follows_done
    where q.id = p_queue_id
      and q.follows_done <> exists (
          select from penstock.kind as k where k.queue_id = p_queue_id and k.on_done is not null);
end
$$;
