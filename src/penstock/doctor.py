"""What a doctor looks at: the way to the database, the server, the schema, its tables, the queues, the books.

Nothing is changed, and nobody waits for us: every look is a READ ONLY transaction that gives up soon. A look that fails
is a finding of its own and stops no other one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from penstock import migrate
from penstock.database import Connection, Database
from penstock.errors import AuthError, PenstockError, SchemaVersionError, shown
from penstock.wire import CONTRACT, OLDEST_SERVER, OUR_CONTRACT, check_contract, check_dsn, translated

Level = Literal["ok", "info", "warning", "error"]
Row = tuple[Any, ...]
NOTHING: Mapping[str, str] = MappingProxyType({})
LONGEST_LOOK = 30  # seconds; 0: as long as it takes
MOST = 10  # findings of one kind
UPKEEP = "Run `penstock upkeep` every ten seconds or so, from cron or a loop."
DSN_VARIABLES = ("PENSTOCK_DSN", "DATABASE_URL")
LIBPQ_VARIABLES = {
    "PGHOST": "host",
    "PGHOSTADDR": "hostaddr",
    "PGPORT": "port",
    "PGDATABASE": "dbname",
    "PGUSER": "user",
    "PGSERVICE": "service",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look found: the facts, and what to type when they are bad."""

    check: str
    level: Level
    what: str
    fix: str | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    group: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """From where on a figure is worth a word. Times are seconds."""

    snapshot_warning: float = 300
    snapshot_error: float = 3600
    idle: float = 60
    clock: float = 1
    connections: float = 0.8
    notify: float = 0.5
    dead_rows: int = 100_000  # a busy queue makes these in seconds, and autovacuum takes them away every minute
    vacuum: float = 600
    index_bytes: int = 64 << 20
    index_ratio: float = 2
    log_rows: int = 100_000
    days_ahead: int = 3
    reader: float = 2 * 86400
    upkeep: float = 120
    lease: float = 60
    overdue: float = 60
    silent: float = 60


USUAL = Limits()


class Queue(NamedTuple):
    """As much of penstock.status() as we judge."""

    name: str
    paused: bool
    waiting: int
    dead: int
    age: float | None
    sla: float | None


class Patient:
    """A session to look through, and what a look needs to know besides."""

    def __init__(
        self,
        connection: Connection,
        database: Database,
        environ: Mapping[str, str] = NOTHING,
        limits: Limits = USUAL,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.connection = connection
        self.database = database
        self.environ = environ
        self.limits = limits
        self.now = now

    @contextmanager
    def looking(self, seconds: int = LONGEST_LOOK) -> Iterator[Connection]:
        """All settings are of this transaction alone: behind a pooler the next one may be somebody else's."""
        with translated(), self.connection.transaction():
            self.connection.execute(
                "set transaction isolation level read committed read only;"
                "set local search_path = pg_catalog, pg_temp;"
                "set local lock_timeout = '2s';"
                f"set local statement_timeout = '{seconds}s'".encode()
            )
            yield self.connection

    def rows(self, query: str, parameters: Sequence[object] = (), *, seconds: int = LONGEST_LOOK) -> list[Row]:
        with self.looking(seconds) as connection:
            return connection.execute(query.encode(), parameters or None).fetchall()

    def row(self, query: str, parameters: Sequence[object] = ()) -> Row:
        return self.rows(query, parameters)[0]

    @cached_property
    def me(self) -> str:
        """Our role, as SQL writes it."""
        return str(self.row("select quote_ident(current_user)")[0])

    @cached_property
    def has_schema(self) -> bool:
        """By the catalog, which everybody may read."""
        query = """
            select exists (
                select from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
                where n.nspname = 'penstock' and c.relname = 'migration')
        """
        return bool(self.row(query)[0])

    @cached_property
    def queues(self) -> list[Queue]:
        query = """
            select queue, paused, planned + pending, dead, extract(epoch from oldest_pending_age)::float8,
                   extract(epoch from sla)::float8
            from penstock.status()
        """
        return [Queue(*row) for row in self.rows(query)]


class Look(NamedTuple):
    group: str
    check: str
    at: Callable[[Patient], list[Finding]]
    ours: bool = False  # it needs our schema
    slow: bool = False  # it reads whole tables


def examine(
    database: Database,
    *,
    environ: Mapping[str, str] = NOTHING,
    quick: bool = False,
    limits: Limits = USUAL,
    now: Callable[[], float] = time.time,
) -> list[Finding]:
    """Everything there is to say, in the order of LOOKS. `quick` leaves out what reads whole tables."""
    with database.session() as connection:
        patient = Patient(connection, database, environ, limits, now)
        looks = [look for look in LOOKS if not (quick and look.slow) and (patient.has_schema or not look.ours)]
        return [replace(found, group=look.group) for look in looks for found in taken(look, patient)]


def taken(look: Look, patient: Patient) -> list[Finding]:
    """What a look finds, or why it could not look. Only when the connection is gone there is nothing left to do."""
    try:
        return look.at(patient)
    except PenstockError as error:
        if patient.connection.closed:
            raise
        fix = error.hint
        if isinstance(error, AuthError):
            fix = f"Let an administrator: grant {'penstock_reader' if look.ours else 'pg_monitor'} to {patient.me};"
        return [Finding(look.check, "warning", f"could not look: {error.message}", fix)]
    except Exception as error:  # noqa: BLE001 - a bug in one look shall not hide what the others see
        what = f"could not look: {type(error).__name__}: {error}"
        return [Finding(look.check, "warning", what, "This is a bug in Penstock; please report it.")]


def ok(check: str, what: str, **numbers: float) -> list[Finding]:
    return [Finding(check, "ok", what, None, numbers)]


# --- the way to the database ------------------------------------------------------------------------------------------


def dsn(patient: Patient) -> list[Finding]:
    """Where we really are: libpq fills in from the environment what a DSN leaves out."""
    info, given = patient.connection.info, check_dsn(patient.database.dsn)
    libpq = {name: part for name, part in LIBPQ_VARIABLES.items() if patient.environ.get(name)}
    beside = [name for name, part in libpq.items() if given and part not in given]
    unused = [name for name in DSN_VARIABLES if patient.environ.get(name) and name != patient.database.source]
    unused += [name for name, part in libpq.items() if part in given]
    what = f"{info.dbname} at {info.host}:{info.port} as {info.user}, from {patient.database.source}"
    if beside:
        what += f", completed by {' and '.join(beside)}"
    if not unused:
        return ok("dsn", what)
    verb = "is" if len(unused) == 1 else "are"
    what += f"; {' and '.join(unused)} {verb} set but not used"
    return [
        Finding("dsn", "info", what, f"If it is the wrong database: unset {patient.database.source}, or give --dsn.")
    ]


def version(patient: Patient) -> list[Finding]:
    return [judged_version(patient.connection.info.server_version)]


def judged_version(number: int) -> Finding:
    major = number // 10000
    what, numbers = f"PostgreSQL {major}.{number % 10000}", {"major": major}
    if number < OLDEST_SERVER:  # `connect` refuses it already
        return Finding("version", "error", f"{what} is too old", "Upgrade PostgreSQL to 15 or newer.", numbers)
    if major > 18:
        what += " is newer than what Penstock was tested with (15 to 18)"
        return Finding(
            "version", "info", what, "Run your own tests against it, and look for a newer Penstock.", numbers
        )
    return Finding("version", "ok", what, None, numbers)


def writable(patient: Patient) -> list[Finding]:
    standby, read_only = patient.row(
        "select pg_is_in_recovery(), current_setting('default_transaction_read_only')::boolean"
    )
    if standby:
        fix = "Connect to the primary, or add target_session_attrs=read-write to a DSN with several hosts."
        return [Finding("writable", "error", "this server is a standby: it takes no writes", fix)]
    if read_only:
        fix = "Take default_transaction_read_only off the server, the database, the role or the DSN."
        return [Finding("writable", "error", "default_transaction_read_only is on: we can not write here", fix)]
    return ok("writable", "this server takes writes")


def pooler(patient: Patient) -> list[Finding]:
    """A pooler shakes hands in its own name: the process it named is not the one that answers."""
    answered = [int(patient.row("select pg_backend_pid()")[0]) for _ in range(5)]
    different = len(set(answered))
    if set(answered) == {patient.connection.info.backend_pid}:
        return ok("pooler", "no pooler stands between")
    mode = "in transaction mode" if different > 1 else "in transaction or session mode"
    what = f"a pooler stands between, {mode} ({different} of its connections answered 5 transactions)"
    fix = "All verbs work through it, but LISTEN does not: workers poll, unless they get a direct DSN to be woken by."
    return [Finding("pooler", "info", what, fix, {"connections": different})]


def clock(patient: Patient) -> list[Finding]:
    with patient.looking() as connection:
        connection.execute("select 1")  # the first answer of a transaction may be slow
        before = patient.now()
        row = connection.execute("select extract(epoch from clock_timestamp())::float8").fetchone()
        after = patient.now()
    assert row is not None
    ahead = row[0] - (before + after) / 2
    sure = max(0.0, abs(ahead) - (after - before) / 2)  # it was read somewhere within the round trip
    what = f"the database's clock is {abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
    if sure > patient.limits.clock:
        fix = "Synchronise both with NTP: only the database's clock decides when a task is due."
        return [Finding("clock", "warning", what, fix, {"seconds": round(ahead, 3)})]
    return ok("clock", what, seconds=round(ahead, 3))


# --- the schema -------------------------------------------------------------------------------------------------------


def schema(patient: Patient) -> list[Finding]:
    if patient.has_schema:
        return ok("schema", "the schema penstock is there")
    return [Finding("schema", "error", "there is no schema penstock in this database", "Run `penstock init`.")]


def migrations(patient: Patient) -> list[Finding]:
    with patient.looking() as connection:
        try:
            missing = [step.name for step in migrate.missing(connection, roles=False)]
        except SchemaVersionError as newer:
            return [Finding("migrations", "error", newer.message, newer.hint)]
    if not missing:
        return ok("migrations", "all migrations are applied, and the functions are this Penstock's")
    *older, _functions = missing
    if older:
        what = f"{many(len(older), 'migration')} not applied: {', '.join(older)}"
        return [Finding("migrations", "error", what, "Run `penstock init`.", {"missing": len(older)})]
    what = "the functions in the database are of another text than this Penstock's"
    return [Finding("functions", "warning", what, "Run `penstock init` with the newest Penstock that you use.")]


def contract(patient: Patient) -> list[Finding]:
    try:
        check_contract(patient.row(CONTRACT))
    except SchemaVersionError as other:
        return [Finding("contract", "error", other.message, other.hint)]
    return ok("contract", f"the functions answer to contract {OUR_CONTRACT}, as we ask", contract=OUR_CONTRACT)


def roles(patient: Patient) -> list[Finding]:
    with patient.looking() as connection:
        there = migrate.has_roles(connection)
        granted = there and (not patient.has_schema or migrate.has_grants(connection))
    if not there:
        what = "the roles of Penstock are not there: everybody has to be the owner"
        return [Finding("roles", "info", what, "Let somebody who may create roles run `penstock init`.")]
    if not granted:  # restored without privileges, or applied before there were roles
        what = "the roles of Penstock have no rights in this database"
        return [Finding("roles", "warning", what, "Let the owner of the schema run `penstock init`.")]
    return ok("roles", "the roles penstock_producer, _worker, _reader and _admin are there")


# --- the server -------------------------------------------------------------------------------------------------------

DANGERS = {
    "fsync": "a crash of the machine can destroy the database",
    "full_page_writes": "a power cut can leave half-written pages behind",
    "synchronous_commit": "a crash can lose pushes that had returned",
    "autovacuum": "dead rows stay, and every claim gets slower",
    "track_counts": "autovacuum does not know what to do, and neither do we",
}
RESETS = {
    "database": "alter database … reset {}; and connect anew.",
    "user": "alter role … reset {}; and connect anew.",
    "database user": "alter role … in database … reset {}; and connect anew.",
    "client": "Take {} out of the DSN's options and PGOPTIONS.",
}


def settings(patient: Patient) -> list[Finding]:
    """As they are for us: a role, a database and a DSN may each bring their own."""
    query = "select name, setting, source from pg_settings where name = any(%s) order by name"
    return [judged_setting(*row) for row in patient.rows(query, (list(DANGERS),))]


def judged_setting(name: str, value: str, source: str) -> Finding:
    if value != "off":
        return Finding(name, "ok", f"{name} is {value}")
    fix = RESETS.get(source, "alter system set {} = on; select pg_reload_conf();").format(name)
    return Finding(name, "error", f"{name} is off: {DANGERS[name]}", fix)


def connections(patient: Patient) -> list[Finding]:
    """What others do is hidden from most roles, the kind of process too; that they are there is not."""
    query = """
        select count(*) filter (where coalesce(backend_type, 'client backend') = 'client backend'),
               current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
               - coalesce(current_setting('reserved_connections', true)::int, 0)
        from pg_stat_activity where datid is not null
    """
    used, most = patient.row(query)
    what = f"{used} of {most} connections are in use"
    if used < patient.limits.connections * most:
        return ok("connections", what, used=used, most=most)
    fix = "Put PgBouncer in transaction mode between, start fewer clients, or raise max_connections and restart."
    return [Finding("connections", "warning", what, fix, {"used": used, "most": most})]


def sessions(patient: Patient) -> list[Finding]:
    """Whether the next two looks see everybody."""
    hidden, everybody = patient.row("""
        select count(*) filter (where query = '<insufficient privilege>'), count(*)
        from pg_stat_activity where datid is not null
    """)
    if not hidden:
        return ok("sessions", f"{many(everybody, 'session')} can be looked into", sessions=everybody)
    what = f"{hidden} of {many(everybody, 'session')} can not be looked into: how long they hold on is not known"
    fix = f"Let an administrator: grant pg_read_all_stats to {patient.me};"
    return [Finding("sessions", "info", what, fix, {"hidden": hidden, "sessions": everybody})]


def idle(patient: Patient) -> list[Finding]:
    query = """
        select pid, usename, application_name, extract(epoch from clock_timestamp() - state_change)::float8 as seconds,
               exists (
                   select from pg_locks as l join pg_class as c on c.oid = l.relation
                   where l.pid = a.pid and c.relnamespace = to_regnamespace('penstock'))
        from pg_stat_activity as a
        where datname = current_database() and state like 'idle in transaction%%' and pid <> pg_backend_pid()
          and state_change <= clock_timestamp() - make_interval(secs => %s)
        order by seconds desc limit %s
    """
    found = [idle_session(*row) for row in patient.rows(query, (patient.limits.idle, MOST))]
    return found or ok("idle", "no session is idle in a transaction")


def idle_session(pid: int, user: str, application: str, seconds: float, locks: bool) -> Finding:
    what = f"{session(pid, user, application)} has been idle in a transaction for {spoken(seconds)}"
    if locks:
        what += ", with locks on our tables: others may wait for it"
    fix = f"select pg_terminate_backend({pid}); and set idle_in_transaction_session_timeout for that application."
    return Finding("idle", "warning", what, fix, {"pid": pid, "seconds": round(seconds, 1)})


# Snapshots of other databases do not matter to us. Transactions that have written do: squeeze waits for all of them.
# VACUUM's own are not counted by anybody.
HOLDERS = """
    with holders as (
        select a.pid, a.pid::text as name, a.usename::text as owner, a.application_name as application, a.state,
               extract(epoch from clock_timestamp() - a.xact_start)::float8 as seconds,
               greatest(age(a.backend_xid), age(a.backend_xmin)) as transactions
        from pg_stat_activity as a
        where (a.backend_xid is not null or a.backend_xmin is not null and a.datname = current_database())
          and a.pid <> pg_backend_pid() and coalesce(a.backend_type, '') <> 'autovacuum worker'
          and not exists (select from pg_stat_progress_vacuum as v where v.pid = a.pid)
        union all
        select null, p.gid, p.owner::text, '', 'prepared',
               extract(epoch from clock_timestamp() - p.prepared)::float8, age(p.transaction)
        from pg_prepared_xacts as p
    )
    select pid, name, owner, application, state, seconds, transactions
    from holders where seconds >= %s order by seconds desc limit %s
"""


class Holder(NamedTuple):
    """Who holds a snapshot: a session, or without a pid a prepared transaction."""

    pid: int | None
    name: str
    owner: str
    application: str
    state: str
    seconds: float
    transactions: int


def snapshots(patient: Patient) -> list[Finding]:
    limits = patient.limits
    rows = patient.rows(HOLDERS, (min(limits.snapshot_warning, limits.snapshot_error), MOST))
    found = [held_snapshot(limits, Holder(*row)) for row in rows] + slots(patient)
    return found or ok("snapshots", f"no snapshot is held for longer than {spoken(limits.snapshot_warning)}")


def held_snapshot(limits: Limits, by: Holder) -> Finding:
    """The oldest of them is the horizon: nothing that died later can be removed."""
    numbers = {"seconds": round(by.seconds, 1), "transactions": by.transactions}
    if by.pid is None:
        who, fix = f"prepared transaction {shown(by.name)} of {by.owner}", f"rollback prepared {literal(by.name)};"
    else:
        who = f"{session(by.pid, by.owner, by.application)} ({by.state})"
        fix, numbers["pid"] = f"select pg_terminate_backend({by.pid}); if nobody needs it.", by.pid
    what = (
        f"{who} holds a snapshot for {spoken(by.seconds)}, {many(by.transactions, 'transaction')} back:"
        " vacuum and squeeze can not remove what died since"
    )
    return Finding("snapshots", "error" if by.seconds >= limits.snapshot_error else "warning", what, fix, numbers)


def slots(patient: Patient) -> list[Finding]:
    """A slot that nobody reads holds its snapshot for ever; since when is not known before PostgreSQL 17."""
    query = """
        select slot_name, age(xmin) from pg_replication_slots where xmin is not null and not active
        order by 2 desc limit %s
    """
    return [
        Finding(
            "snapshots",
            "warning",
            f"replication slot {shown(name)} is not in use and holds a snapshot, {many(age, 'transaction')} back",
            f"select pg_drop_replication_slot('{name}'); if its standby does not come back.",
            {"transactions": age},
        )
        for name, age in patient.rows(query, (MOST,))
    ]


def notifications(patient: Patient) -> list[Finding]:
    (usage,) = patient.row("select pg_notification_queue_usage()")
    what = f"the queue of notifications is {usage:.0%} full"
    if usage < patient.limits.notify:
        return ok("notifications", what, usage=usage)
    fix = "End the session that listens but never reads: the oldest idle in transaction in pg_stat_activity."
    return [Finding("notifications", "warning", f"{what}: from 50% on pushes wake no worker", fix, {"usage": usage})]


# --- our tables -------------------------------------------------------------------------------------------------------


class Table(NamedTuple):
    name: str
    live: int
    dead: int
    vacuumed: float | None  # seconds ago
    switched_off: bool


def dead_rows(patient: Patient) -> list[Finding]:
    query = """
        select s.relname, s.n_live_tup, s.n_dead_tup,
               extract(epoch from clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::float8,
               exists (
                   select from pg_options_to_table(c.reloptions) as o
                   where o.option_name = 'autovacuum_enabled' and not o.option_value::boolean)
        from pg_stat_all_tables as s join pg_class as c on c.oid = s.relid
        where s.schemaname = 'penstock' and s.relname in ('task', 'agenda', 'lease', 'counter_log')
        order by s.relname
    """
    tables = [Table(*row) for row in patient.rows(query)]
    found = [one for table in tables for one in judged_table(patient.limits, table)]
    said = ", ".join(f"{table.name} {table.dead:,} dead beside {table.live:,} live" for table in tables)
    return found or ok("dead_rows", said, dead=sum(table.dead for table in tables))


def judged_table(limits: Limits, table: Table) -> list[Finding]:
    name, dead = f"penstock.{table.name}", table.dead
    found = []
    if table.switched_off:
        fix = f"alter table {name} reset (autovacuum_enabled);"
        found.append(Finding("dead_rows", "warning", f"autovacuum is switched off for {name}", fix))
    neglected = table.vacuumed is None or table.vacuumed >= limits.vacuum
    if dead >= limits.dead_rows and dead > table.live and neglected:
        last = "never vacuumed" if table.vacuumed is None else f"last vacuumed {spoken(table.vacuumed)} ago"
        what = f"{name} has {many(dead, 'dead row')} beside {table.live:,} live, {last}"
        fix = f"vacuum {name}; and end what holds an old snapshot, or vacuum removes nothing."
        found.append(Finding("dead_rows", "warning", what, fix, {"dead": dead, "live": table.live}))
    return found


def invalid_indexes(patient: Patient) -> list[Finding]:
    """What is being built at this moment is not broken."""
    query = """
        select c.relname, quote_ident(c.relname), exists (select from pg_constraint as k where k.conindid = c.oid)
        from pg_index as i join pg_class as c on c.oid = i.indexrelid
        where c.relnamespace = 'penstock'::regnamespace and not (i.indisvalid and i.indisready)
          and not exists (select from pg_stat_progress_create_index as p where p.index_relid = c.oid)
        order by c.relname
    """
    found = [invalid_index(*row) for row in patient.rows(query)]
    return found or ok("invalid_indexes", "all indexes are valid")


def invalid_index(name: str, quoted: str, constraint: bool) -> Finding:
    """One of ours is built anew. What is not ours was left behind by a build that failed."""
    ours = constraint or any(re.search(rf"\b{re.escape(name)}\b", step.text) for step in migrate.migrations())
    fix = f"{'reindex' if ours else 'drop'} index concurrently penstock.{quoted};"
    what = f"index penstock.{shown(name)} is invalid: every write keeps it, no query uses it"
    return Finding("invalid_indexes", "warning", what, fix)


def index_size(patient: Patient) -> list[Finding]:
    index, table = patient.row("select pg_relation_size('penstock.agenda_pick'), pg_relation_size('penstock.agenda')")
    what, limits = f"index agenda_pick takes {megabytes(index)}, its table {megabytes(table)}", patient.limits
    if index < limits.index_bytes or index < limits.index_ratio * table:
        return ok("index_size", what, index=index, table=table)
    fix = "reindex index concurrently penstock.agenda_pick;"
    return [Finding("index_size", "info", f"{what}: most of it may be air", fix, {"index": index, "table": table})]


def counter_log(patient: Patient) -> list[Finding]:
    """What is squeezed is deleted, so all that is there is backlog. Beyond ten times the limit nobody needs to know."""
    most = 10 * patient.limits.log_rows
    (rows,) = patient.row("select count(*) from (select from penstock.counter_log limit %s) as l", (most,))
    what = f"the counters' log has {'at least ' if rows >= most else ''}{many(rows, 'row')} to be squeezed"
    if rows < patient.limits.log_rows:
        return ok("counter_log", what, rows=rows)
    fix = "End what holds an old snapshot, if anything does, then run `penstock upkeep`."
    return [Finding("counter_log", "warning", f"{what}: every status adds them up", fix, {"rows": rows})]


def history_days(patient: Patient) -> list[Finding]:
    """Settle makes today's when it is missing, at the price of a lock that upkeep spares it."""
    if not patient.queues:
        return ok("history_days", "there is no queue yet, and so no history")
    query = """
        with today as materialized (select (penstock.clock() at time zone 'UTC')::date as day)
        select d.n
        from today, generate_series(0, %s) as d(n)
        join pg_class as c on c.relname = 'history_' || to_char((select day from today) + d.n, 'YYYYMMDD')
        join pg_inherits as i on i.inhrelid = c.oid and i.inhparent = 'penstock.history'::regclass
    """
    there = {int(n) for (n,) in patient.rows(query, (patient.limits.days_ahead,))}
    wanted = patient.limits.days_ahead
    ahead = next((n - 1 for n in range(1, wanted + 1) if n not in there), wanted)
    if 0 not in there:
        return [Finding("history_days", "warning", "history has no partition for today", UPKEEP, {"ahead": ahead})]
    if ahead < wanted:
        what = f"history has partitions for {many(ahead, 'day')} ahead, not for {wanted}"
        return [Finding("history_days", "warning", what, UPKEEP, {"ahead": ahead})]
    return ok("history_days", f"history has partitions for today and at least {many(wanted, 'day')} ahead", ahead=ahead)


def readers(patient: Patient) -> list[Finding]:
    """Upkeep drops no day that somebody who reads history has not passed: one that never comes again fills the disk."""
    query = """
        select name, extract(epoch from penstock.clock() - seen)::float8, (seen at time zone 'UTC')::date,
               system = (select system from penstock.history_origin limit 1)
        from penstock.history_reader order by seen
    """
    rows = patient.rows(query)
    if not rows:
        return ok("readers", "nobody reads history by windows")
    found = [late_reader(*row) for row in rows if row[1] > patient.limits.reader or not row[3]]
    return found[:MOST] or ok("readers", f"{many(len(rows), 'reader')} of history, all of them were here lately")


def late_reader(name: str, seconds: float, day: object, ours: bool) -> Finding:
    who = f"{shown(name)[1:-1]} reads history"
    fix = f"Let it read: penstock pipeline run; or, if it will not come again: penstock pipeline forget {shown(name)}"
    if not ours:
        fix = f"penstock pipeline rebase --lake DIR, or penstock pipeline forget {shown(name)}"
        return Finding("readers", "warning", f"{who}, but of another cluster: no day is dropped", fix)
    what = f"{who} and was last here {seconds / 86400:.1f} days ago: what was written since {day} is kept for it"
    return Finding("readers", "warning", what, fix, {"days": seconds / 86400})


# --- the queues -------------------------------------------------------------------------------------------------------


def upkeep(patient: Patient) -> list[Finding]:
    """Every round of upkeep takes samples. One queue at a time: the index is by queue."""
    query = """
        select extract(epoch from penstock.clock() - max(s.at))::float8
        from penstock.queue as q
        cross join lateral (
            select p.at from penstock.sample as p where p.queue_id = q.id order by p.at desc limit 1) as s
    """
    (seconds,) = patient.row(query)
    waiting = sum(queue.waiting for queue in patient.queues)
    last = "no upkeep has ever run" if seconds is None else f"upkeep last ran {spoken(seconds)} ago"
    numbers = {"waiting": waiting} | ({} if seconds is None else {"seconds": round(seconds, 1)})
    if waiting and (seconds is None or seconds >= patient.limits.upkeep):
        what = f"{last}, with {many(waiting, 'task')} waiting: nobody runs upkeep"
        return [Finding("upkeep", "warning", what, UPKEEP, numbers)]
    return ok("upkeep", f"{last}, with {many(waiting, 'task')} waiting", **numbers)


def paused(patient: Patient) -> list[Finding]:
    found = [
        Finding(
            "paused",
            "warning",
            f"queue {queue.name} is paused with {many(queue.waiting, 'task')} waiting",
            f"Run `penstock queues resume {queue.name}` when they may run.",
            {"waiting": queue.waiting},
        )
        for queue in patient.queues
        if queue.paused and queue.waiting
    ]
    return found or ok("paused", "no paused queue has tasks waiting")


def promises(patient: Patient) -> list[Finding]:
    found = [
        Finding(
            "sla",
            "warning",
            f"queue {queue.name} breaks its SLA of {spoken(queue.sla)}: its oldest task waits {spoken(queue.age)}",
            "Start more workers for it, or look why those that run are slow.",
            {"seconds": round(queue.age, 1), "sla": queue.sla},
        )
        for queue in patient.queues
        if queue.sla is not None and queue.age is not None and queue.age > queue.sla
    ]
    return found or ok("sla", "no queue breaks its SLA now")


def dead_tasks(patient: Patient) -> list[Finding]:
    found = [
        Finding(
            "dead_tasks",
            "info",
            f"queue {queue.name} has {many(queue.dead, 'dead task')}",
            f"See why with `penstock dead ls {queue.name}`, then `penstock dead redrive {queue.name} --all`.",
            {"dead": queue.dead},
        )
        for queue in patient.queues
        if queue.dead
    ]
    return found or ok("dead_tasks", "no task is dead")


def leases(patient: Patient) -> list[Finding]:
    query = """
        select q.name, count(*), sum(bit_count(l.open))::bigint,
               extract(epoch from (select penstock.clock()) - min(l.until) filter (where isfinite(l.until)))::float8
        from penstock.lease as l join penstock.queue as q on q.id = l.queue_id
        where l.until <= (select penstock.clock()) - make_interval(secs => %s) and bit_count(l.open) > 0
        group by q.name order by q.name
    """
    found = [expired_leases(*row) for row in patient.rows(query, (patient.limits.lease,))]
    return found or ok("leases", f"no lease is past its end by more than {spoken(patient.limits.lease)}")


def expired_leases(queue: str, count: int, tasks: int, seconds: float | None) -> Finding:
    since = "" if seconds is None else f", the oldest {spoken(seconds)} ago"
    what = f"queue {queue}: {many(count, 'lease')} with {many(tasks, 'task')} ended{since}, and nobody took them back"
    return Finding("leases", "warning", what, UPKEEP, {"leases": count, "tasks": tasks})


def overdue(patient: Patient) -> list[Finding]:
    query = """
        select q.name, count(*), extract(epoch from (select penstock.clock()) - min(a.due))::float8
        from penstock.agenda as a join penstock.queue as q on q.id = a.queue_id
        where not a.pending and a.due <= (select penstock.clock()) - make_interval(secs => %s)
        group by q.name order by q.name
    """
    found = [
        Finding(
            "overdue",
            "warning",
            f"queue {queue}: {many(count, 'planned task')} overdue by up to {spoken(seconds)}: nobody promotes them",
            UPKEEP,
            {"tasks": count, "seconds": round(seconds, 1)},
        )
        for queue, count, seconds in patient.rows(query, (patient.limits.overdue,))
    ]
    return found or ok("overdue", "no planned task is overdue")


def schedules(patient: Patient) -> list[Finding]:
    query = """
        select s.name, extract(epoch from (select penstock.clock()) - s.next_at)::float8 as seconds
        from penstock.schedule as s join penstock.queue as q on q.id = s.queue_id
        where not s.paused and s.next_at <= (select penstock.clock()) - make_interval(secs => %s)
        order by s.next_at, s.name
    """
    found = [
        Finding(
            "schedules",
            "warning",
            f"schedule {shown(name)} is overdue by {spoken(seconds)}: nobody fires it",
            f"{UPKEEP} If one runs, `penstock schedules next NAME` says whether its line can be read.",
            {"seconds": round(seconds, 1)},
        )
        for name, seconds in patient.rows(query, (patient.limits.overdue,))
    ]
    return found or ok("schedules", "no schedule is overdue")


def workers(patient: Patient) -> list[Finding]:
    query = """
        select w.name, w.host, w.busy, extract(epoch from (select penstock.clock()) - w.beat)::float8 as seconds
        from penstock.worker as w
        where w.beat <= (select penstock.clock()) - make_interval(secs => %s)
        order by seconds desc limit %s
    """
    found = [silent_worker(*row) for row in patient.rows(query, (patient.limits.silent, MOST))]
    (count,) = patient.row("select count(*) from penstock.worker")
    return found or ok("workers", f"{many(count, 'worker')} known, none of them silent", workers=count)


def silent_worker(name: str, host: str, busy: int, seconds: float) -> Finding:
    where = f" on {shown(host)}" if host else ""
    what = f"worker {shown(name)}{where} has been silent for {spoken(seconds)} with {many(busy, 'task')} in work"
    fix = "Look whether it lives; its tasks go to others when their leases end, and upkeep forgets it after 5 min."
    return Finding("workers", "warning", what, fix, {"seconds": round(seconds, 1), "busy": busy})


def unknown_kinds(patient: Patient) -> list[Finding]:
    query = """
        select q.name, h.kind, count(*)
        from penstock.history as h join penstock.queue as q on q.id = h.queue_id
        where h.finished_at >= (select date_trunc('day', penstock.clock(), 'UTC')) and h.error_class = 'UnknownKind'
        group by q.name, h.kind order by count(*) desc limit %s
    """
    found = [
        Finding(
            "unknown_kinds",
            "warning",
            f"queue {queue}: {many(count, 'attempt')} today at kind {shown(kind)}, which no worker knew",
            "Start a worker whose code has a handler for it, or correct the kind where it is pushed.",
            {"attempts": count},
        )
        for queue, kind, count in patient.rows(query, (MOST,))
    ]
    return found or ok("unknown_kinds", "workers knew all kinds they met today")


def books(patient: Patient) -> list[Finding]:
    rows = patient.rows("select area, queue, what, expected, found from penstock.verify()", seconds=0)
    found = [
        Finding(
            "books",
            "error",
            f"queue {queue}: {area}: {what}: expected {expected:,}, found {booked:,}",
            f"Run `penstock verify {queue} --repair`, and tell us how it came to this.",
            {"expected": expected, "found": booked},
        )
        for area, queue, what, expected, booked in rows[:MOST]
    ]
    return found or ok("books", "counters, places, history and balance agree")


# --- how it is said ---------------------------------------------------------------------------------------------------


def session(pid: int, user: str, application: str) -> str:
    return f"session {pid} of {user}" + (f" in {shown(application)}" if application else "")


def many(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def literal(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def megabytes(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MB"


def spoken(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}".replace(".0 ", " ")
    return f"{seconds:.1f} s".replace(".0 ", " ")


LOOKS = (
    Look("connection", "dsn", dsn),
    Look("connection", "version", version),
    Look("connection", "writable", writable),
    Look("connection", "pooler", pooler),
    Look("connection", "clock", clock),
    Look("schema", "schema", schema),
    Look("schema", "migrations", migrations, ours=True),
    Look("schema", "contract", contract, ours=True),
    Look("schema", "roles", roles),
    Look("server", "settings", settings),
    Look("server", "connections", connections),
    Look("server", "sessions", sessions),
    Look("server", "idle", idle),
    Look("server", "snapshots", snapshots),
    Look("server", "notifications", notifications),
    Look("tables", "dead_rows", dead_rows, ours=True),
    Look("tables", "invalid_indexes", invalid_indexes, ours=True),
    Look("tables", "index_size", index_size, ours=True),
    Look("tables", "counter_log", counter_log, ours=True),
    Look("tables", "history_days", history_days, ours=True),
    Look("tables", "readers", readers, ours=True),
    Look("queues", "upkeep", upkeep, ours=True),
    Look("queues", "paused", paused, ours=True),
    Look("queues", "sla", promises, ours=True),
    Look("queues", "dead_tasks", dead_tasks, ours=True),
    Look("queues", "leases", leases, ours=True),
    Look("queues", "overdue", overdue, ours=True),
    Look("queues", "schedules", schedules, ours=True),
    Look("queues", "workers", workers, ours=True),
    Look("queues", "unknown_kinds", unknown_kinds, ours=True, slow=True),
    Look("books", "books", books, ours=True, slow=True),
)
