-- The heart: the document, the agenda, the lease; counters, history, and who may run.
-- A live task is always in exactly one of two places: the agenda (it waits) or one lease (somebody works on it).

create schema if not exists penstock;
comment on schema penstock is 'Penstock: a task queue. All behaviour is in functions; tables are written by them.';

-- Time has one source, so that tests can own it. Production: the database''s clock, never a client''s.
create function penstock.clock() returns timestamptz
    language sql volatile parallel safe
    return pg_catalog.clock_timestamp();

-- The same for COPY, which writes row by row where a default is volatile. Each row gets a moment of its own all the same.
create function penstock.moment() returns timestamptz
    language sql stable parallel safe
    return penstock.clock();

-- What was applied, and from which text.
create table penstock.migration (
    number     int primary key,
    name       text not null,
    checksum   text not null,
    applied_at timestamptz not null default pg_catalog.clock_timestamp()
);

create table penstock.queue (
    id             int generated always as identity primary key,
    name           text collate "C" not null unique,
    lease          interval not null default '30 seconds',
    max_attempts   int default 20,
    retry          jsonb not null default '{"type": "exponential", "base": 5, "factor": 2, "cap": 3600, "jitter": 0.1}',
    sla            interval,
    paused         boolean not null default false,
    keep_done      interval,
    keep_dead      interval,
    keep_cancelled interval,
    settings       jsonb not null default '{}',
    created        timestamptz not null default penstock.clock(),
    constraint name_is_plain check (name ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'),
    constraint lease_in_range check (lease between '100 milliseconds' and '24 hours'),
    constraint max_attempts_in_range check (max_attempts between 1 and 32767),
    constraint sla_is_positive check (sla > '0'),
    constraint retry_has_type check (retry ? 'type')
);
comment on column penstock.queue.max_attempts is 'null: the retry strategy alone decides when to stop';
comment on column penstock.queue.keep_done is 'null: a done task is deleted at settle';

-- What workers know of a kind, so that settle and expiry agree with the code.
create table penstock.kind (
    queue_id     int not null,
    kind         text collate "C" not null,
    retry        jsonb,
    max_attempts int,
    timeout      interval,
    primary key (queue_id, kind),
    constraint max_attempts_in_range check (max_attempts between 1 and 32767),
    constraint retry_has_type check (retry ? 'type')
);

create sequence penstock.task_id_seq;

-- The document. Written at push, at a failure, at the end; never at a claim. No foreign keys: they would lock queues.
create table penstock.task (
    id             bigint primary key default nextval('penstock.task_id_seq'),
    created        timestamptz not null default penstock.moment(),
    queue_id       int not null,
    iterations     int not null default 0,
    priority       smallint not null default 5,
    kind           text collate "C" not null default 'default',
    subject        text collate "C",
    payload        jsonb not null default '{}',
    due            timestamptz,
    since          timestamptz,
    last_iteration timestamptz,
    renew          timestamptz,
    ended          text collate "C",
    ended_at       timestamptz,
    reason         text,
    error          text,
    constraint payload_is_object check (jsonb_typeof(payload) = 'object'),
    constraint priority_in_range check (priority between 0 and 9),
    constraint subject_fits check (octet_length(subject) between 1 and 512),
    constraint kind_fits check (octet_length(kind) between 1 and 128),
    -- What Python can read: a producer may COPY past the verbs, and one such task would stop every claim.
    constraint due_in_range check (due between '0001-01-02 00:00:00+00' and '9999-12-30 00:00:00+00'),
    constraint ended_is_known check (ended in ('done', 'dead', 'cancelled')),
    constraint ended_has_time check ((ended is null) = (ended_at is null))
);
alter sequence penstock.task_id_seq owned by penstock.task.id;
comment on column penstock.task.due is 'as pushed; null: at once. Where it waits now is in the agenda';
comment on column penstock.task.since is 'start of its age after a re-open, redrive or success; null: created';
comment on column penstock.task.renew is 'due of the run after this one; null: none';

create unique index task_subject on penstock.task (queue_id, subject) where subject is not null;
create index task_ended on penstock.task (queue_id, ended, ended_at) where ended is not null;

-- What waits, and when. One narrow row per waiting task; a claim deletes it.
create table penstock.agenda (
    task_id  bigint primary key,
    due      timestamptz not null,
    queue_id int not null,
    priority smallint not null,
    attempts smallint not null default 0,
    company  smallint not null default 0,
    crashes  smallint not null default 0,
    pending  boolean not null,
    named    boolean not null default false,
    constraint priority_in_range check (priority between 0 and 9),
    constraint attempts_not_negative check (attempts >= 0 and crashes >= 0 and company >= 0)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
comment on column penstock.agenda.company is 'the largest lease it may share after a crash; 1: alone; 0: any';
comment on column penstock.agenda.crashes is 'lone expiries since the last settled outcome';
comment on column penstock.agenda.named is 'its document has a subject, so somebody else may be waiting for that document';

create index agenda_pick on penstock.agenda (queue_id, priority, due, task_id) where pending;
create index agenda_planned on penstock.agenda (queue_id, due) where not pending;
create index agenda_alone on penstock.agenda (queue_id, priority, due, task_id) where pending and company = 1;

-- Where in the agenda a claim shall begin to look.
create type penstock.place as (priority smallint, due timestamptz, task_id bigint);

-- What is being worked on. One row per claim; the arrays are written once, only the bits of `open` change.
create table penstock.lease (
    token      uuid primary key default gen_random_uuid(),
    claimed_at timestamptz not null,
    until      timestamptz not null,
    queue_id   int not null,
    alone      boolean not null,
    named      boolean not null,
    worker     text not null default '',
    open       varbit not null,
    ids        bigint[] not null,
    dues       timestamptz[] not null,
    attempts   smallint[],
    companies  smallint[],
    crashes    smallint[],
    revoked    bigint[] not null default '{}',
    constraint a_bit_per_task check (length(open) = cardinality(ids)),
    constraint arrays_are_parallel check (
        cardinality(dues) = cardinality(ids)
        and coalesce(cardinality(attempts), cardinality(ids)) = cardinality(ids)
        and coalesce(cardinality(companies), cardinality(ids)) = cardinality(ids)
        and coalesce(cardinality(crashes), cardinality(ids)) = cardinality(ids))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
comment on table penstock.lease is 'attempts, companies and crashes are null when all are zero, as they mostly are';

-- Compressing the arrays cost six times the rest of the insert (0.7 ms against 0.12 ms for 500 tasks).
alter table penstock.lease
    alter column ids set storage external,
    alter column dues set storage external,
    alter column attempts set storage external,
    alter column companies set storage external,
    alter column crashes set storage external;

create index lease_until on penstock.lease (queue_id, until);

-- One row per finished attempt, append-only, a partition per UTC day. The id is never a cursor: ids commit out of order.
create sequence penstock.history_id_seq cache 100;
create table penstock.history (
    id          bigint not null default nextval('penstock.history_id_seq'),
    xid         bigint not null default pg_current_xact_id()::text::bigint,
    task_id     bigint not null,
    created     timestamptz not null,
    due         timestamptz not null,
    claimed_at  timestamptz not null,
    finished_at timestamptz not null,
    queue_id    int not null,
    iteration   int not null,
    attempt     int not null,
    outcome     text collate "C" not null,
    kind        text collate "C" not null,
    worker      text not null,
    subject     text collate "C",
    error_class text,
    error       text,
    constraint outcome_is_known check (outcome in ('done', 'again', 'failed', 'dead', 'released', 'expired', 'revoked'))
) partition by range (finished_at);
alter sequence penstock.history_id_seq owned by penstock.history.id;
create index history_xid on penstock.history using brin (xid) with (autosummarize = on);

-- What dropped partitions held, so that the books still balance.
create table penstock.history_dropped (
    queue_id int not null,
    outcome  text collate "C" not null,
    rows     bigint not null,
    primary key (queue_id, outcome)
);

-- Which transactions had written there, so that a reader who comes too late is told.
create table penstock.history_gone (
    n         bigint generated always as identity primary key,
    day       date not null,
    queue_id  int not null,
    rows      bigint not null,
    first_xid bigint not null,
    last_xid  bigint not null
);
comment on column penstock.history_gone.n is 'the order in which days were dropped: one at a time, under a lock';

-- The cluster whose transactions history's xids are. Restored elsewhere they mean nothing, until rebase_history().
create table penstock.history_origin (
    system bigint primary key
);
insert into penstock.history_origin select system_identifier from pg_control_system();

-- Queues that are no more: what they did is still in history, under their name.
create table penstock.queue_gone (
    id   int primary key,
    name text collate "C" not null
);

-- Counters: a log that every statement appends to, and the sums it was squeezed into.
create table penstock.counter (
    queue_id int not null,
    metric   text collate "C" not null,
    value    bigint not null,
    primary key (queue_id, metric)
) with (fillfactor = 50);

create table penstock.counter_log (
    queue_id int not null,
    metric   text collate "C" not null,
    delta    bigint not null,
    xid      bigint not null default pg_current_xact_id()::text::bigint
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
create index counter_log_xid on penstock.counter_log (queue_id, xid);

-- Lower bounds, so that nobody walks over what is dead already: the log from `xid` on is not yet in `counter`
-- (of the cluster `system`); no lease ends before `until`.
create table penstock.low (
    queue_id int primary key,
    xid      bigint not null,
    system   bigint not null,
    until    timestamptz not null default '-infinity'
) with (fillfactor = 50);

create table penstock.sample (
    queue_id   int not null,
    at         timestamptz not null,
    planned    bigint not null,
    pending    bigint not null,
    active     bigint not null,
    done       bigint not null,
    dead       bigint not null,
    cancelled  bigint not null,
    oldest_age interval,
    sla        interval,
    workers    int not null,
    totals     jsonb not null,
    xid        bigint not null default pg_current_xact_id()::text::bigint,
    primary key (queue_id, at)
);
comment on column penstock.sample.at is 'start of the ten-second bucket';
create index sample_xid on penstock.sample using brin (xid) with (autosummarize = on);

create table penstock.worker (
    name           text primary key,
    host           text not null default '',
    pid            int,
    queues         text[] not null default '{}',
    slots          int not null default 1,
    busy           int not null default 0,
    requested_at   timestamptz,
    started_at     timestamptz,
    first_claim_at timestamptz,
    beat           timestamptz not null,
    started_by     text,
    leaving        boolean not null default false,
    dismissed      boolean not null default false,
    constraint busy_fits check (busy between 0 and slots)
) with (fillfactor = 50);
comment on column penstock.worker.started_by is 'the scaler that started it, and its number there; null: somebody else did';
comment on column penstock.worker.leaving is 'it takes nothing new, and goes when it has finished';
comment on column penstock.worker.dismissed is 'a scaler wants it to go';

-- Bulk writers note here what they wrote, so that a retry after a lost COMMIT doubles nothing.
create table penstock.ledger (
    batch_id uuid not null,
    part     int not null,
    queue_id int not null,
    rows     bigint not null,
    checksum text not null,
    report   jsonb not null,
    at       timestamptz not null,
    primary key (batch_id, part)
);
create index ledger_at on penstock.ledger (at);

-- Rows of a bulk writer that can not be tasks, as they came, and why. Everything is text: nothing may be too odd for it.
create table penstock.reject (
    id        bigint generated always as identity primary key,
    at        timestamptz not null default penstock.clock(),
    job       uuid not null,
    partition int not null,
    queue     text collate "C" not null,
    reason    text not null,
    payload   text,
    subject   text,
    kind      text,
    due       text,
    priority  text
);
create index reject_at on penstock.reject (at);
create index reject_job on penstock.reject (job);

-- When tasks shall be pushed. Cron lines are read by clients: PostgreSQL keeps what was decided, and pushes each tick once.
create table penstock.schedule (
    name      text collate "C" primary key,
    queue_id  int not null,
    kind      text collate "C" not null,
    payload   jsonb not null,
    priority  smallint not null,
    cron      text not null,
    tz        text not null,
    backfill  text collate "C" not null,
    paused    boolean not null default false,
    mark      timestamptz not null,
    next_at   timestamptz not null,
    last_tick timestamptz,
    created   timestamptz not null,
    updated   timestamptz not null,
    who       text not null,
    constraint name_fits check (octet_length(name) between 1 and 200),
    constraint payload_is_object check (jsonb_typeof(payload) = 'object'),
    constraint backfill_is_known check (backfill in ('none', 'last', 'all'))
) with (fillfactor = 50);
comment on column penstock.schedule.mark is 'every tick up to here is decided: pushed, or left out';
comment on column penstock.schedule.next_at is 'when somebody has to look: its next tick, or sooner';
comment on column penstock.schedule.last_tick is 'the last one that was pushed';
create index schedule_next on penstock.schedule (next_at) where not paused;

create table penstock.audit (
    id     bigint generated always as identity primary key,
    at     timestamptz not null default penstock.clock(),
    actor  text not null default current_user,
    verb   text not null,
    queue  text,
    detail jsonb not null default '{}'
);

-- Tables of other people that we drain where they are: what we know of each, and how far its ticks were walked.
create table penstock.adopted (
    id           int generated always as identity primary key,
    name         text collate "C" not null unique,
    schema_name  text not null,
    table_name   text not null,
    mode         text collate "C" not null,
    terms        jsonb not null,
    retry        jsonb not null,
    max_attempts int,
    sla          interval,
    tick         timestamptz,
    key          text[],
    last_pass    jsonb not null default '{}',
    created      timestamptz not null default penstock.clock(),
    constraint name_is_plain check (name ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'),
    constraint mode_is_known check (mode in ('observe', 'sidecar', 'columns')),
    constraint max_attempts_in_range check (max_attempts between 1 and 32767),
    constraint sla_is_positive check (sla > '0'),
    constraint retry_has_type check (retry ? 'type')
) with (fillfactor = 50);
comment on column penstock.adopted.tick is
    'progressive: ticks up to here, and at it keys up to `key` (null: all), were handled; sidecar: how far strangers were looked for';

-- What we must remember of a record whose table has no room for it.
create table penstock.adopted_record (
    adopted_id   int not null,
    key          text[] collate "C" not null,
    failures     int not null,
    last_failure timestamptz not null,
    due          timestamptz,
    error        text,
    primary key (adopted_id, key),
    constraint failures_not_negative check (failures >= 0)
);
comment on column penstock.adopted_record.due is 'null: it was given up';
create index adopted_record_due on penstock.adopted_record (adopted_id, due, key) where due is not null;

-- Passes over adopted tables that have begun. One that nobody holds the lock of did not end.
create table penstock.adopted_hand (
    id         int generated always as identity primary key,
    adopted_id int not null,
    key        text[],
    began      timestamptz not null default penstock.clock()
);
comment on column penstock.adopted_hand.key is 'the record in hand, where a pass is careful';

-- Consumer groups: a queue read as a stream, batch by batch. One driver holds a group at a time, known by its epoch.
create sequence penstock.stream_epoch_seq as int;
create table penstock.stream (
    id       int generated always as identity primary key,
    identity uuid not null default gen_random_uuid(),
    queue_id int not null,
    name     text collate "C" not null,
    epoch    int not null,
    until    timestamptz not null,
    driver   text not null,
    batch    bigint not null default 0,
    tokens   uuid[] not null default '{}',
    created  timestamptz not null default penstock.clock(),
    constraint name_is_taken unique (queue_id, name),
    constraint name_fits check (octet_length(name) between 1 and 200)
) with (fillfactor = 50);
comment on column penstock.stream.identity is 'every checkpoint has it: one of another group, or of a queue that was dropped, is told by it';
comment on column penstock.stream.until is 'how long the driver holds the group, if it does not say that it lives';
comment on column penstock.stream.tokens is 'the leases of the last batch; none: it is settled';

-- Who reads history by windows and will come again: upkeep keeps the days that one of them has not passed.
create table penstock.history_reader (
    name   text collate "C" primary key,
    system bigint not null,
    passed bigint not null,
    seen   timestamptz not null default penstock.clock(),
    constraint name_fits check (octet_length(name) between 1 and 200)
) with (fillfactor = 50);
comment on column penstock.history_reader.passed is 'every row of a smaller xid has been read';

-- What the pipeline learnt from history about a queue, for the scaler.
create table penstock.profile (
    queue_id    int primary key,
    version     int not null,
    made        timestamptz not null default penstock.clock(),
    covers_from timestamptz not null,
    covers_to   timestamptz not null,
    data        jsonb not null,
    constraint covers_something check (covers_from <= covers_to)
);

-- The one who scales a queue, or an adopted table, and what he wants; by name, since both have one.
create table penstock.scaling (
    queue      text collate "C" primary key,
    epoch      int not null,
    holder     text not null,
    until      timestamptz not null,
    policy     text not null,
    target     int,
    decided_at timestamptz,
    memory     jsonb,
    constraint target_not_negative check (target >= 0)
) with (fillfactor = 50);
comment on column penstock.scaling.epoch is 'grows with each new holder: what an older one still decides is refused';
comment on column penstock.scaling.memory is 'what the policy wants to be told next time, whoever asks';

create table penstock.decision (
    id               bigint generated always as identity primary key,
    queue            text collate "C" not null,
    at               timestamptz not null,
    epoch            int not null,
    policy           text not null,
    workers          int not null,
    actual           int not null,
    wanted           int not null,
    urgency          text not null,
    bound_by         text not null,
    reason           text not null,
    time_to_breach   double precision,
    predicted_breach double precision,
    inputs           jsonb not null,
    rules            jsonb not null
);
create index decision_by_queue on penstock.decision (queue, at desc);
comment on column penstock.decision.workers is 'the target';

-- Tasks as people see them.
create view penstock.tasks as
select
    t.id,
    q.name as queue,
    t.kind,
    t.subject,
    coalesce(t.ended, case when a.pending then 'pending' when not a.pending then 'planned' else 'active' end) as state,
    coalesce(a.priority, t.priority) as priority,
    a.due,
    a.attempts,
    t.iterations,
    t.created,
    t.last_iteration,
    t.ended_at,
    t.reason,
    t.error,
    t.payload
from penstock.task as t
join penstock.queue as q on q.id = t.queue_id
left join penstock.agenda as a on a.task_id = t.id;
