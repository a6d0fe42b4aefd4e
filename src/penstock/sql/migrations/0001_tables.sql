-- The tables: the document, the agenda and the lease; counters, history, and the workers. A live task is always in
-- exactly one of two places: the agenda (it waits) or one lease (a worker runs it).

create schema if not exists penstock;
comment on schema penstock is 'Penstock: a task queue. All behaviour is in functions; tables are written by them.';

-- Returns the current time. Time has this one source, so that tests can control it. In production it is the clock of
-- the database, never the clock of a client.
create function penstock.clock() returns timestamptz
    language sql volatile parallel safe
    return pg_catalog.clock_timestamp();

-- Returns the current time as a stable function, for COPY, which writes row by row where a default is volatile. Each
-- row still gets a moment of its own.
create function penstock.moment() returns timestamptz
    language sql stable parallel safe
    return penstock.clock();

-- The migrations that were applied, and the checksum of each text.
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
    priority_step  interval,
    keep_done      interval,
    keep_dead      interval,
    keep_cancelled interval,
    settings       jsonb not null default '{}',
    created        timestamptz not null default penstock.clock(),
    follows_done   boolean not null default false,
    max_crashes    int not null default 20,
    constraint name_is_plain check (name ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'),
    constraint lease_in_range check (lease between '100 milliseconds' and '24 hours'),
    constraint max_attempts_in_range check (max_attempts between 1 and 32767),
    constraint max_crashes_in_range check (max_crashes between 1 and 32767),
    constraint sla_is_positive check (sla > '0'),
    constraint retry_has_type check (retry ? 'type')
);
comment on column penstock.queue.max_attempts is 'null: the retry strategy alone decides when to stop';
comment on column penstock.queue.max_crashes is
    'a task that ended its worker so often while it ran alone is dead, whatever max_attempts says';
comment on column penstock.queue.priority_step is
    'how much earlier a task is taken for each step of its priority; null: a smaller priority always comes first';
comment on column penstock.queue.keep_done is 'null: a done task is deleted at settle';
comment on column penstock.queue.follows_done is
    'a kind of the queue has on_done, so settle has to read the kinds of its tasks; set_kinds keeps it';

-- The settings that workers declare for a kind, so that settle and expiry agree with the code.
create table penstock.kind (
    queue_id     int not null,
    kind         text collate "C" not null,
    retry        jsonb,
    max_attempts int,
    timeout      interval,
    on_dead      text collate "C",
    on_done      text collate "C",
    primary key (queue_id, kind),
    constraint max_attempts_in_range check (max_attempts between 1 and 32767),
    constraint retry_has_type check (retry ? 'type'),
    constraint on_dead_names_a_kind check (on_dead ~ '^[^:]+:.'),
    constraint on_done_names_a_kind check (on_done ~ '^[^:]+:.')
);
comment on column penstock.kind.on_dead is
    'queue:kind of the follow-up, a task that is pushed when a task of this kind dies';
comment on column penstock.kind.on_done is 'queue:kind of the follow-up of a task that is done';

create sequence penstock.task_id_seq;

-- The document. It is written at push, at a failure and at the end, never at a claim. It has no foreign keys, because
-- they would lock queues.
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
    error_class    text,
    error          text,
    attempts       smallint,
    key            text collate "C",
    meta           jsonb,
    result         jsonb,
    expires        timestamptz,
    group_id       bigint,
    waits_for      int
)
-- The trigger that counts checks the values of a document (_document_fault). PostgreSQL parses every check constraint
-- of a table again for every statement that writes to it, and the seven that were here took a fifth of a push of one
-- task. For the same reason agenda, lease and history have no check constraints; only Penstock functions write to them,
-- and verify checks them.
--
-- Every task that is done leaves a dead document. With the defaults, a table that holds ten million documents is
-- vacuumed after two million more are dead, and analyzed after a million changes; until then new documents find no free
-- space. The same settings hold for the payloads in its TOAST table. The cost delay stays at its default: payloads can
-- be large, and a vacuum at full speed would compete with claims for the disk.
--
-- The tables of a few rows that change all the time (counter, watermark, worker, scaling, chore) need no settings: a
-- fillfactor or an empty page leaves room for HOT updates, which need no vacuum. The partitions of history are only
-- inserted into, and dropped as a whole.
with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
      autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
alter sequence penstock.task_id_seq owned by penstock.task.id;
comment on column penstock.task.due is 'as pushed; null: at once. Where it waits now is in the agenda';
comment on column penstock.task.since is 'start of its age after a re-open, redrive or success; null: created';
comment on column penstock.task.error is 'of the last failed attempt: the message, then a traceback';
comment on column penstock.task.attempts is 'of a dead task; while it waits they are in the agenda';
comment on column penstock.task.renew is 'due of the run after this one; null: none';
comment on column penstock.task.key is 'whose task it is: a tenant, a customer, a resource';
comment on column penstock.task.meta is 'headers, such as the context of a trace; never arguments';
comment on column penstock.task.result is 'of the last success, if its kind keeps results';
comment on column penstock.task.expires is 'it is not to be started at this moment or later; null: it may always start';
comment on column penstock.task.group_id is 'the group that it is a member of; null: none';
comment on column penstock.task.waits_for is
    'how many tasks must end before it may run: above 0 it has no row in the agenda; null: none';

create unique index task_subject on penstock.task (queue_id, subject) where subject is not null;
create index task_ended on penstock.task (queue_id, ended, ended_at) where ended is not null;
create index task_expires on penstock.task (queue_id, expires) where expires is not null and ended is null;
create index task_waiting on penstock.task (queue_id, id) where waits_for > 0 and ended is null;

-- The keys of tasks, each with a number, so that the agenda stays narrow. A push adds its keys, and they stay until the
-- queue is dropped: whether any task still has a key could only be told by an index over the keys of all tasks, which
-- each task with a key would pay for.
create table penstock.key (
    id       int generated always as identity primary key,
    queue_id int not null,
    key      text collate "C" not null,
    constraint key_is_taken unique (queue_id, key),
    constraint key_fits check (octet_length(key) between 1 and 128)
);

-- The subjects that were pushed with a throttle, and until when further pushes of them are skipped. The document may be
-- gone by then, so it cannot tell.
create table penstock.throttle (
    queue_id int not null,
    subject  text collate "C" not null,
    until    timestamptz not null,
    task_id  bigint,
    primary key (queue_id, subject)
) with (fillfactor = 70);
comment on column penstock.throttle.task_id is 'the task of the push that was not skipped';
create index throttle_until on penstock.throttle (until);

-- The waiting tasks, and when they are due. There is one narrow row per waiting task; a claim deletes it.
create table penstock.agenda (
    task_id  bigint primary key,
    due      timestamptz not null,
    queue_id int not null,
    key_id   int not null default 0,
    priority smallint not null,
    attempts smallint not null default 0,
    quarantine  smallint not null default 0,
    pending  boolean not null,
    named    boolean not null default false
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
-- A row has 32 bytes of values. The record of an insert in the WAL is padded to a multiple of 8: with two bytes more
-- each task would cost 8.
comment on column penstock.agenda.key_id is 'of its key in penstock.key; 0: it has none';
comment on column penstock.agenda.quarantine is
    '0: it may share a lease with any tasks; above 0: the size of the largest lease that it may be in after a crash; '
    'below 0: it is quarantined and runs alone, and -1 - quarantine is how often its lease expired while it was alone, '
    'since the last settled outcome';
comment on column penstock.agenda.named is
    'its document has a subject, so another session may be waiting for that document';

create index agenda_pick on penstock.agenda (queue_id, priority, due, task_id) where pending;
create index agenda_planned on penstock.agenda (queue_id, due) where not pending;
create index agenda_quarantined on penstock.agenda (queue_id, priority, due, task_id) where pending and quarantine < 0;

-- The place in the agenda where a claim begins to look.
create type penstock.place as (priority smallint, due timestamptz, task_id bigint);

-- The rows of the agenda that a claim takes, in the order in which the tasks run. `tried` says that some of them failed
-- or crashed before, and `keyed` that some have a key.
create type penstock.picks as (
    places    tid[],
    ids       bigint[],
    dues      timestamptz[],
    attempts  smallint[],
    quarantines smallint[],
    key_ids   int[],
    named     boolean,
    tried     boolean,
    keyed     boolean
);

-- The active tasks. There is one row per claim; its arrays are written once, and only the bits of `open` change.
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
    quarantines  smallint[],
    revoked    bigint[] not null default '{}',
    key_ids    int[]
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
comment on table penstock.lease is 'attempts, quarantines and key_ids are null when all are zero, as they mostly are';

-- Compressing the arrays cost six times the rest of the insert (0.7 ms against 0.12 ms for 500 tasks).
alter table penstock.lease
    alter column ids set storage external,
    alter column dues set storage external,
    alter column attempts set storage external,
    alter column quarantines set storage external,
    alter column key_ids set storage external;

create index lease_until on penstock.lease (queue_id, until);

-- What handlers said of their tasks. A row is written while a task runs, at most as often as its lease is extended, and
-- only if its handler said something. Upkeep removes it after its task is gone.
create table penstock.progress (
    task_id    bigint primary key,
    queue_id   int not null,
    claimed_at timestamptz not null,
    attempt    int not null,
    at         timestamptz not null,
    part       double precision,
    text       text,
    lines      int not null,
    log        jsonb not null,
    constraint part_in_range check (part between 0 and 1),
    constraint log_is_array check (jsonb_typeof(log) = 'array')
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
comment on column penstock.progress.claimed_at is 'the run that said something last';
comment on column penstock.progress.lines is 'the number of the last line of that run';

-- Finished attempts, one row each: append-only, with a partition per UTC day. The id is never a cursor, because ids
-- commit out of order.
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
    error       text
) partition by range (finished_at);
alter sequence penstock.history_id_seq owned by penstock.history.id;
-- The index is by xid for the readers of history, and by task_id to find what became of a task whose document is gone
-- (decision 36). One index serves both: an insert pays for each index, but hardly for its columns.
create index history_xid_task on penstock.history
    using brin (xid, task_id int8_minmax_multi_ops) with (autosummarize = on);

-- The counts of the dropped partitions, so that verify can still compare totals with history.
create table penstock.history_dropped (
    queue_id int not null,
    outcome  text collate "C" not null,
    rows     bigint not null,
    primary key (queue_id, outcome)
);

-- The transactions that had written to dropped partitions, so that a reader that comes too late gets an error.
create table penstock.history_gone (
    n         bigint generated always as identity primary key,
    day       date not null,
    queue_id  int not null,
    rows      bigint not null,
    first_xid bigint not null,
    last_xid  bigint not null
);
comment on column penstock.history_gone.n is 'the order in which days were dropped: one at a time, under a lock';

-- Days of history that are counted before they are dropped, a few pages at a time, so that no lock is held meanwhile.
create table penstock.history_count (
    day       date primary key,
    system    bigint not null,
    below     bigint not null,
    next_page bigint not null,
    pages     bigint not null
);
comment on column penstock.history_count.below is
    'rows of smaller xids are counted: all of them existed when the count began';
comment on column penstock.history_count.pages is
    'the number of pages when the count began; it is complete when next_page is equal';
create table penstock.history_sum (
    day       date not null,
    queue_id  int not null,
    outcome   text collate "C" not null,
    rows      bigint not null,
    first_xid bigint not null,
    last_xid  bigint not null,
    primary key (day, queue_id, outcome)
);

-- The cluster to which the xids of history belong. After a restore elsewhere the xids mean nothing, until
-- rebase_history() is called.
create table penstock.history_origin (
    system bigint primary key
);
insert into penstock.history_origin select system_identifier from pg_control_system();

-- The branches of history. A branch is an unbroken stretch of writing: one begins with every start of the server, every
-- promotion and every restore. `noted` is a horizon that was committed here before a reader got it. A server that has
-- this row has every row of history below that horizon, and does not give those transaction ids again (decision 31).
create table penstock.history_branch (
    n        bigint generated always as identity primary key,
    id       text collate "C" not null unique,
    timeline int not null,
    started  timestamptz not null,
    relation oid not null,
    noted    bigint not null default 0,
    noted_at timestamptz not null default penstock.clock(),
    constraint one_branch_per_start unique (timeline, started, relation)
) with (fillfactor = 50);
comment on column penstock.history_branch.id is
    'the timeline and random digits, because two servers may have the same timeline';
comment on column penstock.history_branch.started is
    'when the server started, because a restored copy of the disk has to be started too';
comment on column penstock.history_branch.relation is
    'the oid of the table history: a restored dump has another one';

-- Queues that were dropped. Their attempts are still in history, under their name.
create table penstock.queue_gone (
    id   int primary key,
    name text collate "C" not null
);

-- Counters: a log that every statement appends to, and the sums that it is squeezed into. Each squeeze writes new sums
-- and deletes the old ones: an update in place would leave dead rows where every status looks, for as long as any
-- session holds a snapshot.
create table penstock.counter (
    queue_id int not null,
    xid      bigint not null default 0,
    metric   text collate "C" not null,
    value    bigint not null,
    primary key (queue_id, xid, metric)
);
comment on column penstock.counter.xid is 'the transaction that wrote it; watermark.sums says which sums are valid';

create table penstock.counter_log (
    queue_id int not null,
    metric   text collate "C" not null,
    delta    bigint not null,
    xid      bigint not null default pg_current_xact_id()::text::bigint
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
create index counter_log_xid on penstock.counter_log (queue_id, xid);

-- Lower bounds, so that no query walks over rows that are already dead: vacuum cannot remove them while any session
-- holds a snapshot. `squeeze` moves the bounds once a second. They hold for all rows that are committed now or later.
create table penstock.watermark (
    queue_id         int primary key,
    sums             bigint not null default 0,
    xid              bigint not null,
    running          bigint[] not null default '{}',
    system           bigint not null,
    until            timestamptz not null default '-infinity',
    priorities       smallint[] not null default '{-32768, 5, 6}',
    first_due        timestamptz[] not null default '{-infinity, -infinity, -infinity}',
    first_planned    timestamptz not null default '-infinity',
    next_bound       timestamptz,
    next_xid         bigint,
    looked_at        timestamptz not null default '-infinity',
    quarantine       text,
    quarantine_until timestamptz,
    constraint a_bound_per_range check (cardinality(first_due) = cardinality(priorities))
) with (fillfactor = 50);
comment on column penstock.watermark.sums is 'the rows of `counter` with this xid are valid';
comment on column penstock.watermark.xid is
    'rows of counter_log and `early` with this xid or a later one are not folded yet';
comment on column penstock.watermark.running is
    'rows of these earlier transactions are not folded either: they ran when the others were folded';
comment on column penstock.watermark.system is 'the cluster whose transactions these are';
comment on column penstock.watermark.until is 'no lease ends earlier';
comment on column penstock.watermark.priorities is
    'ranges of priorities, each by its first one and up to the next: one range for each priority that was seen, and '
    'ranges of all others between them';
comment on column penstock.watermark.first_due is
    'by range: no pending task is due earlier, except those in `early`; '
    '-infinity where the range has several priorities';
comment on column penstock.watermark.first_planned is 'no planned task is due earlier, except those in `early`';
comment on column penstock.watermark.next_bound is
    'becomes the bound when every transaction below next_xid has ended: one of them may commit a row before it';
comment on column penstock.watermark.looked_at is 'when the bounds were last moved; at most once a second';
comment on column penstock.watermark.quarantine is
    'the worker that claims nothing else until quarantine_until, to run a quarantined task alone';

-- Tasks that started to wait with a due in the past. The bounds in `watermark` do not hold for such a task until it is
-- folded into them.
create table penstock.early (
    queue_id int not null,
    xid      bigint not null default pg_current_xact_id()::text::bigint,
    due      timestamptz not null,
    priority smallint not null,
    pending  boolean not null
);
create index early_xid on penstock.early (queue_id, xid);

create table penstock.sample (
    queue_id   int not null,
    at         timestamptz not null,
    waiting    bigint not null default 0,
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
comment on table penstock.sample is
    'every ten seconds; of an idle queue every ten minutes, and before and after each change';
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
    queue_set      bigint,
    constraint busy_fits check (busy between 0 and slots)
) with (fillfactor = 50);
comment on column penstock.worker.started_by is
    'the scaler that started it, and its number there; null: none';
comment on column penstock.worker.leaving is 'it claims nothing more, and stops when its tasks have finished';
comment on column penstock.worker.dismissed is 'a scaler wants it to stop';
comment on column penstock.worker.queue_set is 'the queues it serves, as penstock.queue_set has them';

-- The workers that a push wakes: they have a free slot and listen. A row comes and goes when that changes, not with
-- each beat, so a push reads only a few rows, however long a snapshot is held. Workers of the same queues share a queue
-- set.
create table penstock.queue_set (
    queue_id int not null,
    id       bigint not null,
    primary key (queue_id, id)
);
comment on column penstock.queue_set.id is 'a hash of the ids of its queues';
create index queue_set_id on penstock.queue_set (id);

create table penstock.idle_worker (
    worker    text primary key,
    queue_set bigint not null,
    channel   bigint not null
);
comment on column penstock.idle_worker.channel is 'it listens on penstock_ and this number';
create index idle_worker_of_set on penstock.idle_worker (queue_set, channel);

-- Bulk writers note here what they wrote, so that a retry after a lost COMMIT duplicates nothing.
create table penstock.ledger (
    batch_id uuid not null,
    part     int not null,
    queue_id int not null,
    rows     bigint not null,
    checksum text not null,
    report   jsonb not null,
    at       timestamptz not null,
    job      uuid,
    series   uuid,
    primary key (batch_id, part)
);
comment on column penstock.ledger.job is 'of a partition: the job it belongs to';
comment on column penstock.ledger.series is
    'of a partition: the streaming query or txnAppId that its job belongs to; '
    'the newest job of a series is kept whatever its age';
create index ledger_at on penstock.ledger (at);
create index ledger_job on penstock.ledger (job) where job is not null;
create index ledger_series on penstock.ledger (series, at) where series is not null;

-- Rows of a bulk writer that cannot be tasks, as they came, with the reason. Every column is text, so that any value
-- can be stored.
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
    priority  text,
    key       text,
    meta      text,
    expires   text
);
create index reject_at on penstock.reject (at);
create index reject_job on penstock.reject (job);

-- Schedules: when tasks are to be pushed. Clients read cron expressions; PostgreSQL keeps what was decided, and pushes
-- each tick once.
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
    key       text collate "C",
    expires   interval,
    until_next boolean not null default false,
    constraint name_fits check (octet_length(name) between 1 and 200),
    constraint payload_is_object check (jsonb_typeof(payload) = 'object'),
    constraint backfill_is_known check (backfill in ('none', 'last', 'all'))
) with (fillfactor = 50);
comment on column penstock.schedule.mark is 'every tick up to here is decided: pushed, or left out';
comment on column penstock.schedule.next_at is 'when a worker has to look at it: its next tick, or sooner';
comment on column penstock.schedule.expires is
    'tasks are cancelled that have not started so long after their tick; null: they may always start';
comment on column penstock.schedule.until_next is 'tasks are cancelled that have not started at the next tick';
comment on column penstock.schedule.last_tick is 'the last tick that was pushed';
create index schedule_next on penstock.schedule (next_at) where not paused;

create table penstock.audit (
    id     bigint generated always as identity primary key,
    at     timestamptz not null default penstock.clock(),
    actor  text not null default current_user,
    verb   text not null,
    queue  text,
    detail jsonb not null default '{}'
);
create index audit_paused on penstock.audit (queue, id) where verb = 'set' and detail ? 'paused';

-- Adopted tables: tables of other programs that Penstock drains in place, with their terms and how far their ticks were
-- walked.
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
    'progressive: ticks up to here, and at it keys up to `key` (null: all), were handled; '
    'sidecar: how far records without a row in adopted_record were looked for';

-- What Penstock must remember of a record whose table has no room for it.
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
comment on column penstock.adopted_record.due is 'null: it is not tried again';
create index adopted_record_due on penstock.adopted_record (adopted_id, due, key) where due is not null;

-- Failures of records of adopted tables: one row for each record whose last try failed. The newest 1,000 of each table
-- are kept.
create table penstock.adopted_failure (
    adopted_id  int not null,
    key         text[] collate "C" not null,
    error_class text not null,
    error       text not null,
    times       int not null,
    dead        boolean not null,
    unwritten   boolean not null,
    first_at    timestamptz not null,
    last_at     timestamptz not null,
    primary key (adopted_id, key),
    constraint times_positive check (times > 0)
);
comment on column penstock.adopted_failure.error is 'its message, then a traceback';
comment on column penstock.adopted_failure.times is 'failed tries since the last success, as far as they were kept';
comment on column penstock.adopted_failure.unwritten is
    'its new status could not be written, so it keeps the old one';
create index adopted_failure_last on penstock.adopted_failure (adopted_id, last_at);

-- Passes over adopted tables that have begun. A pass whose process no longer holds its lock did not end.
create table penstock.adopted_pass (
    id         int generated always as identity primary key,
    adopted_id int not null,
    key        text[],
    pid        int,
    walks      boolean not null default false,
    began      timestamptz not null default penstock.clock()
);
comment on column penstock.adopted_pass.key is 'the record that a careful pass handles now';
comment on column penstock.adopted_pass.pid is 'the server process that holds the lock of this pass';
comment on column penstock.adopted_pass.walks is 'it walks the ticks of its table; only one pass at a time does';

-- Consumer groups: a queue read as a stream, batch by batch. One driver, known by its epoch, holds a group at a time.
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
comment on column penstock.stream.identity is
    'every checkpoint has it, so that one of another group or of a dropped queue is recognised';
comment on column penstock.stream.until is 'when the driver loses the group, unless it extends its hold';
comment on column penstock.stream.tokens is 'the leases of the last batch; empty: it is settled';

-- Readers that read history by windows and come again. Upkeep keeps the days that one of them has not passed.
create table penstock.history_reader (
    name   text collate "C" primary key,
    branch text collate "C" not null,
    passed bigint not null,
    seen   timestamptz not null default penstock.clock(),
    constraint name_fits check (octet_length(name) between 1 and 200)
) with (fillfactor = 50);
comment on column penstock.history_reader.branch is
    'the branch on which it last read; on a later one nothing is dropped until it reads again';
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

-- The scaler that holds a queue or an adopted table, and what it wants. The key is the name, since both have one.
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
comment on column penstock.scaling.epoch is 'grows with each new holder: decisions of an older holder are refused';
comment on column penstock.scaling.memory is 'what the policy stores for its next decision, by any scaler';

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

-- Work that only one session does at a time. A session takes a chore by locking its row until its transaction ends: any
-- login of the database could take and keep an advisory lock.
create table penstock.chore (
    name    text collate "C" primary key,
    done_at timestamptz,
    upto    timestamptz,
    constraint name_fits check (octet_length(name) between 1 and 200)
);
comment on column penstock.chore.done_at is 'when it was last done; null: never; -infinity: it is not finished';
comment on column penstock.chore.upto is 'for a chore that advances through time: how far it got';

-- How long upkeep keeps things. Null means for ever.
create table penstock.retention (
    what text collate "C" primary key,
    keep interval,
    constraint keep_is_long_enough check (keep >= '1 day')
);
insert into penstock.retention (what, keep) values
    ('history', '30 days'), ('samples', '90 days'), ('decisions', '90 days'), ('ledger', '30 days'),
    ('rejects', '30 days'), ('audit', '365 days');

-- Slots for concurrent writers of a job of a bulk writer: a writer locks one of the slots of its job until its
-- transaction ends.
create table penstock.job_slot (
    n int primary key
);
insert into penstock.job_slot select generate_series(0, 4095);

-- Tasks in readable form.
create view penstock.tasks as
select
    t.id,
    q.name as queue,
    t.kind,
    t.subject,
    coalesce(t.ended, case when a.pending then 'pending' when not a.pending then 'planned'
                              when t.waits_for > 0 then 'waiting' else 'active' end) as state,
    coalesce(a.priority, t.priority) as priority,
    a.due,
    coalesce(a.attempts, t.attempts) as attempts,
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
from penstock.task as t
join penstock.queue as q on q.id = t.queue_id
left join penstock.agenda as a on a.task_id = t.id;
