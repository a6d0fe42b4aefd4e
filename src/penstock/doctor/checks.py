"""The list of all checks, and the function that runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from penstock.client.database import Database
from penstock.doctor import connection, counters, queues, schema, server, tables
from penstock.doctor.inspection import DEFAULT_THRESHOLDS, NOTHING, Check, Finding, Inspection, Thresholds
from penstock.errors import AuthError, PenstockError

CHECKS = (
    Check("connection", "dsn", connection.check_dsn),
    Check("connection", "version", connection.check_version),
    Check("connection", "encoding", connection.check_encoding),
    Check("connection", "writable", connection.check_writable),
    Check("connection", "pooler", connection.check_pooler),
    Check("connection", "clock", connection.check_clock),
    Check("schema", "schema", schema.check_schema),
    Check("schema", "migrations", schema.check_migrations, ours=True),
    Check("schema", "contract", schema.check_contract, ours=True),
    Check("schema", "roles", schema.check_roles),
    Check("server", "settings", server.check_settings),
    Check("server", "connections", server.check_connections),
    Check("server", "sessions", server.check_sessions),
    Check("server", "idle", server.check_idle),
    Check("server", "snapshots", server.check_snapshots),
    Check("server", "notifications", server.check_notifications),
    Check("tables", "dead_rows", tables.check_dead_rows, ours=True),
    Check("tables", "invalid_indexes", tables.check_invalid_indexes, ours=True),
    Check("tables", "index_size", tables.check_index_size, ours=True),
    Check("tables", "counter_log", tables.check_counter_log, ours=True),
    Check("tables", "history_days", tables.check_history_days, ours=True),
    Check("tables", "readers", tables.check_readers, ours=True),
    Check("queues", "upkeep", queues.check_upkeep, ours=True),
    Check("queues", "paused", queues.check_paused, ours=True),
    Check("queues", "sla", queues.check_promises, ours=True),
    Check("queues", "dead_tasks", queues.check_dead_tasks, ours=True),
    Check("queues", "leases", queues.check_leases, ours=True),
    Check("queues", "overdue", queues.check_overdue, ours=True),
    Check("queues", "schedules", queues.check_schedules, ours=True),
    Check("queues", "workers", queues.check_workers, ours=True),
    Check("queues", "follow_ups", queues.check_follow_ups, ours=True),
    Check("queues", "unknown_kinds", queues.check_unknown_kinds, ours=True, slow=True),
    Check("queues", "crashes", queues.check_crashes, ours=True, slow=True),
    Check("counters", "counters", counters.check_counters, ours=True, slow=True),
)


def examine(
    database: Database,
    *,
    environ: Mapping[str, str] = NOTHING,
    quick: bool = False,
    limits: Thresholds = DEFAULT_THRESHOLDS,
    now: Callable[[], float] = time.time,
) -> list[Finding]:
    """Runs the checks and returns their findings, in the order of CHECKS. `quick` leaves out checks that read whole
    tables."""
    with database.session() as connection:
        inspection = Inspection(connection, database, environ, limits, now)
        checks = [check for check in CHECKS if not (quick and check.slow) and (inspection.has_schema or not check.ours)]
        return [replace(found, group=check.group) for check in checks for found in run_check(check, inspection)]


def run_check(check: Check, inspection: Inspection) -> list[Finding]:
    """Returns the findings of a check, or a warning that says why it failed. Raises only if the connection is lost."""
    try:
        return check.run(inspection)
    except PenstockError as error:
        if inspection.connection.closed:
            raise
        fix = error.hint
        if isinstance(error, AuthError):
            fix = f"Let an administrator: grant {'penstock_reader' if check.ours else 'pg_monitor'} to {inspection.me};"
        return [Finding(check.name, "warning", f"could not look: {error.message}", fix)]
    except Exception as error:  # noqa: BLE001 - a bug in one check must not hide the findings of the others
        what = f"could not look: {type(error).__name__}: {error}"
        return [Finding(check.name, "warning", what, "This is a bug in Penstock; please report it.")]
