"""Checks of the server: its settings, its connections, and sessions that hold back vacuum."""

from __future__ import annotations

from typing import NamedTuple

from penstock.doctor.formatting import describe_session, quote_literal
from penstock.doctor.inspection import MAX_FINDINGS, Finding, Inspection, Thresholds, report_ok
from penstock.errors import shown
from penstock.formatting import format_count, format_duration

DANGERS = {
    "fsync": "a crash of the machine can destroy the database",
    "full_page_writes": "a power cut can leave half-written pages behind",
    "synchronous_commit": "a crash can lose pushes that had returned",
    "autovacuum": "dead rows stay, and every claim gets slower",
    "track_counts": "autovacuum does not know which tables to clean, and the doctor does not see dead rows",
}
RESETS = {
    "database": "alter database … reset {}; and connect anew.",
    "user": "alter role … reset {}; and connect anew.",
    "database user": "alter role … in database … reset {}; and connect anew.",
    "client": "Remove {} from the options of the DSN and from PGOPTIONS.",
}


def check_settings(inspection: Inspection) -> list[Finding]:
    """Checks the settings of this session: a role, a database and a DSN can each change them."""
    query = "select name, setting, source from pg_settings where name = any(%s) order by name"
    return [judge_setting(*row) for row in inspection.rows(query, (list(DANGERS),))]


def judge_setting(name: str, value: str, source: str) -> Finding:
    if value != "off":
        return Finding(name, "ok", f"{name} is {value}")
    fix = RESETS.get(source, "alter system set {} = on; select pg_reload_conf();").format(name)
    return Finding(name, "error", f"{name} is off: {DANGERS[name]}", fix)


def check_connections(inspection: Inspection) -> list[Finding]:
    """Counts the connections. Most roles cannot see what other sessions do, nor their backend_type, only that they
    exist."""
    query = """
        select count(*) filter (where coalesce(backend_type, 'client backend') = 'client backend'),
               current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
               - coalesce(current_setting('reserved_connections', true)::int, 0)
        from pg_stat_activity where datid is not null
    """
    used, most = inspection.row(query)
    what = f"{used} of {most} connections are in use"
    if used < inspection.limits.connections * most:
        return report_ok("connections", what, used=used, most=most)
    fix = "Use PgBouncer in transaction mode, start fewer clients, or raise max_connections and restart."
    return [Finding("connections", "warning", what, fix, {"used": used, "most": most})]


def check_sessions(inspection: Inspection) -> list[Finding]:
    """Says whether the next two checks see every session."""
    hidden, total = inspection.row("""
        select count(*) filter (where query = '<insufficient privilege>'), count(*)
        from pg_stat_activity where datid is not null
    """)
    if not hidden:
        return report_ok("sessions", f"{format_count(total, 'session')} can be inspected", sessions=total)
    what = f"{hidden} of {format_count(total, 'session')} cannot be inspected: their transactions are not visible"
    fix = f"Let an administrator: grant pg_read_all_stats to {inspection.me};"
    return [Finding("sessions", "info", what, fix, {"hidden": hidden, "sessions": total})]


def check_idle(inspection: Inspection) -> list[Finding]:
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
    found = [report_idle_session(*row) for row in inspection.rows(query, (inspection.limits.idle, MAX_FINDINGS))]
    return found or report_ok("idle", "no session is idle in a transaction")


def report_idle_session(pid: int, user: str, application: str, seconds: float, locks: bool) -> Finding:
    what = f"{describe_session(pid, user, application)} has been idle in a transaction for {format_duration(seconds)}"
    if locks:
        what += ", with locks on tables of Penstock: other sessions may wait for it"
    fix = f"select pg_terminate_backend({pid}); and set idle_in_transaction_session_timeout for that application."
    return Finding("idle", "warning", what, fix, {"pid": pid, "seconds": round(seconds, 1)})


# Snapshots of other databases do not matter here. Transactions that have written do: vacuum and the bounds of claims
# wait for all of them. The snapshots of VACUUM itself do not hold back other vacuums.
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


class SnapshotHolder(NamedTuple):
    """A session that holds a snapshot, or, without a pid, a prepared transaction."""

    pid: int | None
    name: str
    owner: str
    application: str
    state: str
    seconds: float
    transactions: int


def check_snapshots(inspection: Inspection) -> list[Finding]:
    limits = inspection.limits
    rows = inspection.rows(HOLDERS, (min(limits.snapshot_warning, limits.snapshot_error), MAX_FINDINGS))
    found = [report_snapshot(limits, SnapshotHolder(*row)) for row in rows] + find_unused_slots(inspection)
    return found or report_ok(
        "snapshots", f"no snapshot is held for longer than {format_duration(limits.snapshot_warning)}"
    )


def report_snapshot(limits: Thresholds, by: SnapshotHolder) -> Finding:
    """The oldest snapshot is the horizon: no row that died later can be removed."""
    numbers = {"seconds": round(by.seconds, 1), "transactions": by.transactions}
    if by.pid is None:
        subject, fix = (
            f"prepared transaction {shown(by.name)} of {by.owner}",
            f"rollback prepared {quote_literal(by.name)};",
        )
    else:
        subject = f"{describe_session(by.pid, by.owner, by.application)} ({by.state})"
        fix, numbers["pid"] = f"select pg_terminate_backend({by.pid}); if it is not needed.", by.pid
    what = (
        f"{subject} holds a snapshot for {format_duration(by.seconds)}, "
        f"{format_count(by.transactions, 'transaction')} back: vacuum cannot remove rows that died since"
    )
    return Finding("snapshots", "error" if by.seconds >= limits.snapshot_error else "warning", what, fix, numbers)


def find_unused_slots(inspection: Inspection) -> list[Finding]:
    """An unused slot holds its snapshot for ever. PostgreSQL before 17 does not say since when."""
    query = """
        select slot_name, age(xmin) from pg_replication_slots where xmin is not null and not active
        order by 2 desc limit %s
    """
    return [
        Finding(
            "snapshots",
            "warning",
            f"replication slot {shown(name)} is not in use and holds a snapshot, "
            f"{format_count(age, 'transaction')} back",
            f"select pg_drop_replication_slot('{name}'); if its standby does not come back.",
            {"transactions": age},
        )
        for name, age in inspection.rows(query, (MAX_FINDINGS,))
    ]


def check_notifications(inspection: Inspection) -> list[Finding]:
    (usage,) = inspection.row("select pg_notification_queue_usage()")
    what = f"the notification queue is {usage:.0%} full"
    if usage < inspection.limits.notify:
        return report_ok("notifications", what, usage=usage)
    fix = "End the session that listens but never reads: the oldest idle in transaction in pg_stat_activity."
    return [Finding("notifications", "warning", f"{what}: from 50% on pushes wake no worker", fix, {"usage": usage})]
