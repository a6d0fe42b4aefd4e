-- Jobs of bulk writers that run in many places at once (Spark). The ledger notes each partition, a seal ends the job,
-- and rows that cannot be tasks are set aside with the reason. The seal is part 0 of the job itself in the ledger.

-- Enters a partition in the ledger before it writes anything. Returns null if the partition is new and may be written;
-- otherwise it returns what was reported when the partition was written. A sealed job accepts no new partitions.
-- p_series is the streaming query or txnAppId whose jobs follow one another, or null if there is none.
drop function if exists penstock.enter_partition(text, uuid, int, uuid, bigint, text);
create or replace function penstock.enter_partition(
    p_queue text, p_job uuid, p_partition int, p_batch_id uuid, p_rows bigint, p_checksum text,
    p_series uuid default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
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

-- Takes one of the slots for concurrent writers of a job until the transaction ends. Returns false if all are taken.
-- The slots are locks on rows of penstock.job_slot, from a row on that is derived from the job. Two jobs that share
-- some rows may each have fewer writers at once. Unlike an advisory lock, a slot cannot be taken by a login without
-- rights.
create or replace function penstock.take_job_slot(p_job uuid, p_slots int) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
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

-- Seals a job with its number of partitions, its number of rows and the checksum of its content. Returns the report of
-- the job; a repeat returns the report of the first call.
create or replace function penstock.seal_job(
    p_queue text, p_job uuid, p_partitions int, p_rows bigint, p_checksum text, p_report jsonb
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
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

-- Returns the report of a job, or null if the job is not sealed.
create or replace function penstock.job_report(p_job uuid) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
return (select l.report from penstock.ledger as l where l.batch_id = p_job and l.part = 0);

-- Returns what is wrong with payloads, by position from 0. The type that has to hold a payload decides whether a text
-- is valid.
create or replace function penstock.judge_payloads(p_payloads text[]) returns table (n int, reason text)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
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

-- Notes rows that cannot be tasks.
drop function if exists penstock.note_rejects(text, uuid, int, text[], text[], text[], text[], text[], text[]);
create or replace function penstock.note_rejects(
    p_queue text, p_job uuid, p_partition int, p_reasons text[], p_payloads text[], p_subjects text[], p_kinds text[],
    p_dues text[], p_priorities text[], p_keys text[], p_metas text[], p_expires text[]
) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
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

-- Refuses a repeat whose content differs, and says how it differs. It never skips such a repeat.
create or replace function penstock._check_repeat(
    p_what text, p_known penstock.ledger, p_queue penstock.queue, p_rows bigint, p_checksum text
) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
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
