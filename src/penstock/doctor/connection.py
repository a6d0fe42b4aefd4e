"""Checks of the connection: where it leads, and whether Penstock can work through it."""

from __future__ import annotations

from penstock.client.conninfo import check_dsn as parse_dsn
from penstock.client.session import OLDEST_SERVER
from penstock.doctor.inspection import Finding, Inspection, report_ok

DSN_VARIABLES = ("PENSTOCK_DSN", "DATABASE_URL")
LIBPQ_VARIABLES = {
    "PGHOST": "host",
    "PGHOSTADDR": "hostaddr",
    "PGPORT": "port",
    "PGDATABASE": "dbname",
    "PGUSER": "user",
    "PGSERVICE": "service",
}


def check_dsn(inspection: Inspection) -> list[Finding]:
    """Checks which database this is: libpq takes from the environment what a DSN leaves out."""
    info, given = inspection.connection.info, parse_dsn(inspection.database.dsn)
    libpq = {name: part for name, part in LIBPQ_VARIABLES.items() if inspection.environ.get(name)}
    beside = [name for name, part in libpq.items() if given and part not in given]
    unused = [name for name in DSN_VARIABLES if inspection.environ.get(name) and name != inspection.database.source]
    unused += [name for name, part in libpq.items() if part in given]
    what = f"{info.dbname} at {info.host}:{info.port} as {info.user}, from {inspection.database.source}"
    if beside:
        what += f", completed by {' and '.join(beside)}"
    if not unused:
        return report_ok("dsn", what)
    verb = "is" if len(unused) == 1 else "are"
    what += f"; {' and '.join(unused)} {verb} set but not used"
    return [
        Finding("dsn", "info", what, f"If it is the wrong database: unset {inspection.database.source}, or use --dsn.")
    ]


def check_version(inspection: Inspection) -> list[Finding]:
    return [judge_version(inspection.connection.info.server_version)]


def judge_version(number: int) -> Finding:
    """Judges a server version as libpq gives it: 150004 is 15.4."""
    major = number // 10000
    what, numbers = f"PostgreSQL {major}.{number % 10000}", {"major": major}
    if number < OLDEST_SERVER:  # `connect` already refuses it
        return Finding("version", "error", f"{what} is too old", "Upgrade PostgreSQL to 15 or newer.", numbers)
    if major > 18:
        what += " is newer than what Penstock was tested with (15 to 18)"
        return Finding(
            "version", "info", what, "Run your own tests against it, and look for a newer Penstock.", numbers
        )
    return Finding("version", "ok", what, None, numbers)


def check_encoding(inspection: Inspection) -> list[Finding]:
    found = inspection.connection.info.parameter_status("server_encoding")
    if found == "UTF8":
        return report_ok("encoding", "this database holds every text (UTF8)")
    fix = "Create a database with: create database … encoding 'UTF8' template template0; and move to it with pg_dump."
    what = f"the encoding of this database is {found}: a text that it cannot hold is refused or misread"
    return [Finding("encoding", "error", what, fix)]


def check_writable(inspection: Inspection) -> list[Finding]:
    standby, read_only = inspection.row(
        "select pg_is_in_recovery(), current_setting('default_transaction_read_only')::boolean"
    )
    if standby:
        fix = "Connect to the primary, or add target_session_attrs=read-write to a DSN with several hosts."
        return [Finding("writable", "error", "this server is a standby: it accepts no writes", fix)]
    if read_only:
        fix = "Remove default_transaction_read_only from the server, the database, the role or the DSN."
        return [Finding("writable", "error", "default_transaction_read_only is on: Penstock cannot write here", fix)]
    return report_ok("writable", "this server accepts writes")


def check_pooler(inspection: Inspection) -> list[Finding]:
    """Detects a pooler: the process that it named at connect is not the one that answers."""
    answered = [int(inspection.row("select pg_backend_pid()")[0]) for _ in range(5)]
    different = len(set(answered))
    if set(answered) == {inspection.connection.info.backend_pid}:
        return report_ok("pooler", "there is no pooler in between")
    mode = "in transaction mode" if different > 1 else "in transaction or session mode"
    what = f"there is a pooler in between, {mode} ({different} of its connections answered 5 transactions)"
    fix = "All verbs work through it, but LISTEN does not: workers poll, unless they have a direct DSN."
    return [Finding("pooler", "info", what, fix, {"connections": different})]


def check_clock(inspection: Inspection) -> list[Finding]:
    """Compares the clock of the database with the clock of this machine."""
    with inspection.reading() as connection:
        connection.execute("select 1")  # the first answer of a transaction may be slow
        before = inspection.now()
        row = connection.execute("select extract(epoch from clock_timestamp())::float8").fetchone()
        after = inspection.now()
    assert row is not None
    ahead = row[0] - (before + after) / 2
    sure = max(0.0, abs(ahead) - (after - before) / 2)  # the clock was read at some moment within the round trip
    what = f"the database's clock is {abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
    if sure > inspection.limits.clock:
        fix = "Synchronise both with NTP: only the database's clock decides when a task is due."
        return [Finding("clock", "warning", what, fix, {"seconds": round(ahead, 3)})]
    return report_ok("clock", what, seconds=round(ahead, 3))
