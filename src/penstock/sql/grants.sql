-- Every right is granted by name. Verbs are SECURITY DEFINER: a worker with rights on the tables could bypass the check
-- of the token. Functions that are not listed here are internal.
revoke all on schema penstock from public;
revoke all on all routines in schema penstock from public;
revoke all on all sequences in schema penstock from public;

do $$
declare
    v_roles constant boolean := exists (select from pg_catalog.pg_roles as r where r.rolname = 'penstock_admin');
    v_name  text;
    v_grant record;
begin
    if v_roles then
        -- Rights are granted again each time: a right that an earlier version granted, and this one does not, is
        -- revoked.
        revoke all on schema penstock
            from penstock_producer, penstock_worker, penstock_reader, penstock_operator, penstock_admin;
        revoke all on all routines in schema penstock
            from penstock_producer, penstock_worker, penstock_reader, penstock_operator, penstock_admin;
        revoke all on all sequences in schema penstock
            from penstock_producer, penstock_worker, penstock_reader, penstock_operator, penstock_admin;
    end if;

    -- These are tables and views, but not the days of history, which are read through history and come and go
    -- meanwhile.
    for v_name in
        select c.relname from pg_catalog.pg_class as c    -- these are names of Penstock: none needs quotes
        where c.relnamespace = 'penstock'::pg_catalog.regnamespace and c.relkind in ('r', 'p', 'v')
          and not c.relispartition
    loop
        execute 'revoke all on penstock.' || v_name || ' from public';
        if v_roles then
            execute 'revoke all on penstock.' || v_name
                || ' from penstock_producer, penstock_worker, penstock_reader, penstock_operator, penstock_admin';
            if v_name not in ('lease', 'stream') then
                execute 'grant select on penstock.' || v_name || ' to penstock_reader';
            end if;
        end if;
    end loop;
    if not v_roles then
        return;    -- the roles do not exist: init --no-roles
    end if;

    -- Readers may read every column of a lease but its token: the token gives the right to settle.
    grant select (claimed_at, until, queue_id, alone, named, worker, open, ids, dues, attempts,
                  quarantines, revoked, key_ids)
        on penstock.lease to penstock_reader;
    grant select (id, identity, queue_id, name, epoch, until, driver, batch, created)
        on penstock.stream to penstock_reader;
    grant usage on schema penstock
        to penstock_producer, penstock_worker, penstock_reader, penstock_operator, penstock_admin;

    for v_grant in
        select p.oid::pg_catalog.regprocedure as function, g.role
        from pg_catalog.pg_proc as p
        join (values
            ('penstock_producer', array['contract', 'oldest_client', 'revision',
                                        'clock', 'moment', 'push', 'push_many', 'enter_part', 'note_report',
                                        'the_queue', 'largest_payload', 'status', 'enter_partition', 'take_job_slot',
                                        'seal_job', 'job_report', 'judge_payloads', 'note_rejects']),
            ('penstock_worker', array['contract', 'oldest_client', 'revision',
                                      'clock', 'claim', 'extend', 'extend_many', 'settle', 'release',
                                      'at_place', 'the_queue', 'largest_payload', 'status', 'upkeep', 'upkeep_parts',
                                      'upkeep_part', 'beat', 'beat_all', 'leave', 'find_work', 'pass_on',
                                      'prepare_work', 'take_quarantine', 'expire_leases', 'end_leases',
                                      'end_leases_of', 'set_kinds', 'note_progress',
                                      'schedules', 'next_schedule', 'due_schedules', 'set_schedule', 'fire',
                                      'note_records', 'forget_records', 'note_failures', 'mark_adopted', 'note_pass',
                                      'next_pass', 'begin_pass', 'begin_walk', 'note_pass_record', 'end_passes',
                                      'next_epoch', 'hold_stream', 'keep_stream', 'leave_stream', 'next_batch',
                                      'batch_leases', 'read_lease', 'waiting_now', 'hold_scaling', 'decide',
                                      'leave_scaling', 'scaler_snapshot', 'dismiss', 'scalers', 'decisions',
                                      'target_workers', 'target_age', 'board', 'profiles', 'set_profiles',
                                      -- A noted reader keeps history: read-only roles must not make it grow.
                                      'note_reader']),
            ('penstock_reader', array['contract', 'oldest_client', 'revision',
                                      'clock', 'the_queue', 'largest_payload', 'status', 'verify',
                                      'mentions', 'retry_delay', 'retry_spread', 'refuse', 'schedules',
                                      'history_horizon', 'note_horizon', 'check_mark', 'check_window', 'timeline',
                                      'find_branch', 'history_between', 'history_spans', 'queues_named', 'history_sums',
                                      'sample_days', 'decisions', 'places_of', 'find_removed', 'attempts', 'why',
                                      'find_progress',
                                      'target_workers', 'target_age', 'scalers', 'board', 'profiles', 'running_times',
                                      -- A reader needs retry_spread and refuse, because retry_delay runs as its caller.
                                      'start_latencies', 'upkeep_pace', 'task_page', 'failures', 'failed_ids',
                                      'recent_times', 'sample_series', 'note_reveal', 'metrics']),
            -- An operator ends tasks or lets them run, and pauses; it removes nothing and changes no setting.
            ('penstock_operator', array['cancel', 'redrive', 'reschedule', 'reprioritise', 'set_paused',
                                        'pause_schedule', 'resume_schedule']),
            ('penstock_admin', array['create_queue', 'set_queue', 'drop_queue', 'purge', 'repair', 'drop_schedule',
                                     'adopt', 'abandon', 'rebase_history', 'forget_reader', 'release_day',
                                     'set_profiles', 'set_retention'])
        ) as g(role, functions) on p.proname = any(g.functions)
        where p.pronamespace = 'penstock'::pg_catalog.regnamespace
    loop
        execute pg_catalog.format('grant execute on routine %s to %I', v_grant.function, v_grant.role);
    end loop;

    -- A worker that drains an adopted table joins it with what Penstock remembers of its records.
    grant select on penstock.adopted, penstock.adopted_record, penstock.adopted_failure to penstock_worker;

    -- A producer may COPY documents in: it may write these columns, and none that says what became of a task. The
    -- agenda row and the counters come from the trigger, which runs as the owner.
    grant insert (id, queue_id, priority, kind, subject, payload, due, key, meta, expires)
        on penstock.task to penstock_producer;
    grant usage on sequence penstock.task_id_seq to penstock_producer;
end
$$;
