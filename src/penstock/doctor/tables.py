"""Checks of the tables of Penstock: dead rows, indexes, the log of the counters, and history."""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock import migrate
from penstock.doctor.formatting import format_megabytes
from penstock.doctor.inspection import MAX_FINDINGS, UPKEEP, Finding, Inspection, Thresholds, report_ok
from penstock.errors import shown
from penstock.formatting import format_count, format_duration


class TableRow(NamedTuple):
    name: str
    live: int
    dead: int
    vacuumed: float | None  # seconds ago
    switched_off: bool


def check_dead_rows(inspection: Inspection) -> list[Finding]:
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
    tables = [TableRow(*row) for row in inspection.rows(query)]
    found = [one for table in tables for one in judge_table(inspection.limits, table)]
    said = ", ".join(f"{table.name} {table.dead:,} dead beside {table.live:,} live" for table in tables)
    return found or report_ok("dead_rows", said, dead=sum(table.dead for table in tables))


def judge_table(limits: Thresholds, table: TableRow) -> list[Finding]:
    name, dead = f"penstock.{table.name}", table.dead
    found = []
    if table.switched_off:
        fix = f"alter table {name} reset (autovacuum_enabled);"
        found.append(Finding("dead_rows", "warning", f"autovacuum is switched off for {name}", fix))
    neglected = table.vacuumed is None or table.vacuumed >= limits.vacuum
    if dead >= limits.dead_rows and dead > table.live and neglected:
        last = "never vacuumed" if table.vacuumed is None else f"last vacuumed {format_duration(table.vacuumed)} ago"
        what = f"{name} has {format_count(dead, 'dead row')} beside {table.live:,} live, {last}"
        fix = f"vacuum {name}; and end what holds an old snapshot, or vacuum removes nothing."
        found.append(Finding("dead_rows", "warning", what, fix, {"dead": dead, "live": table.live}))
    return found


def check_invalid_indexes(inspection: Inspection) -> list[Finding]:
    """Finds invalid indexes. An index that is being built now is not one."""
    query = """
        select c.relname, quote_ident(c.relname), exists (select from pg_constraint as k where k.conindid = c.oid)
        from pg_index as i join pg_class as c on c.oid = i.indexrelid
        where c.relnamespace = 'penstock'::regnamespace and not (i.indisvalid and i.indisready)
          and not exists (select from pg_stat_progress_create_index as p where p.index_relid = c.oid)
        order by c.relname
    """
    found = [report_invalid_index(*row) for row in inspection.rows(query)]
    return found or report_ok("invalid_indexes", "all indexes are valid")


def report_invalid_index(name: str, quoted: str, constraint: bool) -> Finding:
    """An index of Penstock is rebuilt. Any other one is what a failed build left behind."""
    ours = constraint or any(re.search(rf"\b{re.escape(name)}\b", step.text) for step in migrate.migrations())
    fix = f"{'reindex' if ours else 'drop'} index concurrently penstock.{quoted};"
    what = f"index penstock.{shown(name)} is invalid: every write maintains it, but no query uses it"
    return Finding("invalid_indexes", "warning", what, fix)


def check_index_size(inspection: Inspection) -> list[Finding]:
    index, table = inspection.row(
        "select pg_relation_size('penstock.agenda_pick'), pg_relation_size('penstock.agenda')"
    )
    what, limits = (
        f"index agenda_pick takes {format_megabytes(index)}, its table {format_megabytes(table)}",
        inspection.limits,
    )
    if index < limits.index_bytes or index < limits.index_ratio * table:
        return report_ok("index_size", what, index=index, table=table)
    fix = "reindex index concurrently penstock.agenda_pick;"
    return [
        Finding("index_size", "info", f"{what}: most of it may be empty space", fix, {"index": index, "table": table})
    ]


def check_counter_log(inspection: Inspection) -> list[Finding]:
    """Counts the rows to be squeezed, which are all rows: squeezed ones are deleted. The count stops at ten times the
    threshold."""
    most = 10 * inspection.limits.log_rows
    (rows,) = inspection.row("select count(*) from (select from penstock.counter_log limit %s) as l", (most,))
    what = (
        f"the log of the counters has {'at least ' if rows >= most else ''}{format_count(rows, 'row')} to be squeezed"
    )
    if rows < inspection.limits.log_rows:
        return report_ok("counter_log", what, rows=rows)
    fix = "Run workers, or run `penstock upkeep` regularly: both fold the log into the counters."
    return [Finding("counter_log", "warning", f"{what}: every status adds them up", fix, {"rows": rows})]


def check_history_days(inspection: Inspection) -> list[Finding]:
    """Checks that partitions exist. If today's is missing, settle creates it, under a lock that upkeep avoids."""
    if not inspection.queues:
        return report_ok("history_days", "there is no queue yet, so there is no history")
    query = """
        with today as materialized (select (penstock.clock() at time zone 'UTC')::date as day)
        select d.n
        from today, generate_series(0, %s) as d(n)
        join pg_class as c on c.relname = 'history_' || to_char((select day from today) + d.n, 'YYYYMMDD')
        join pg_inherits as i on i.inhrelid = c.oid and i.inhparent = 'penstock.history'::regclass
    """
    there = {int(n) for (n,) in inspection.rows(query, (inspection.limits.days_ahead,))}
    wanted = inspection.limits.days_ahead
    ahead = next((n - 1 for n in range(1, wanted + 1) if n not in there), wanted)
    if 0 not in there:
        return [Finding("history_days", "warning", "history has no partition for today", UPKEEP, {"ahead": ahead})]
    if ahead < wanted:
        what = f"history has partitions for {format_count(ahead, 'day')} ahead, not for {wanted}"
        return [Finding("history_days", "warning", what, UPKEEP, {"ahead": ahead})]
    return report_ok(
        "history_days",
        f"history has partitions for today and at least {format_count(wanted, 'day')} ahead",
        ahead=ahead,
    )


class ReaderRow(NamedTuple):
    """A reader of history. `timeline` is that of the branch that it last read; None: a branch of another cluster."""

    name: str
    seconds: float
    day: object
    timeline: int | None
    now: int


def check_readers(inspection: Inspection) -> list[Finding]:
    """Looks for readers of history that do not return: upkeep drops no day that one of them has not read, so the disk
    fills."""
    query = """
        select r.name, extract(epoch from penstock.clock() - r.seen)::float8, (r.seen at time zone 'UTC')::date,
               b.timeline, penstock.timeline()
        from penstock.history_reader as r left join penstock.history_branch as b on b.id = r.branch order by r.seen
    """
    rows = [ReaderRow(*row) for row in inspection.rows(query)]
    if not rows:
        return report_ok("readers", "history has no readers")
    found = [judge_reader(row) for row in rows if row.timeline != row.now or row.seconds > inspection.limits.reader]
    return found[:MAX_FINDINGS] or report_ok(
        "readers", f"{format_count(len(rows), 'reader')} of history, all of which have read recently"
    )


def judge_reader(reader: ReaderRow) -> Finding:
    """Returns what is wrong with a reader that keeps days of history."""
    subject = f"{shown(reader.name)[1:-1]} reads history"
    forget = f"if it will not read again: penstock pipeline forget {shown(reader.name)}"
    if reader.timeline is None:
        fix = f"penstock pipeline rebase --lake DIR; or, {forget}"
        return Finding("readers", "warning", f"{subject}, but of another cluster: no day is dropped", fix)
    if reader.timeline != reader.now:
        what = (
            f"{subject} and last read on timeline {reader.timeline}; after a failover or a restore this server is on "
            f"timeline {reader.now}, and no day is dropped until it reads again"
        )
        fix = f"penstock pipeline run --lake DIR; if that is refused: penstock pipeline rebase --lake DIR; or, {forget}"
        return Finding("readers", "warning", what, fix, {"timeline": reader.timeline, "now": reader.now})
    what = (
        f"{subject} and last read {reader.seconds / 86400:.1f} days ago: everything written since {reader.day} "
        "is kept for it"
    )
    fix = f"Let it read: penstock pipeline run; or, {forget}"
    return Finding("readers", "warning", what, fix, {"days": reader.seconds / 86400})
