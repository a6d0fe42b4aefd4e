"""Checks of the queues: upkeep, promises, leases, schedules and workers."""

from __future__ import annotations

from penstock.doctor.inspection import MAX_FINDINGS, UPKEEP, Finding, Inspection, report_ok
from penstock.errors import shown
from penstock.formatting import format_count, format_duration


def check_upkeep(inspection: Inspection) -> list[Finding]:
    """Checks that upkeep runs, and that no part of it keeps failing while the others succeed."""
    query = """
        select p.part, extract(epoch from penstock.clock() - nullif(c.done_at, '-infinity'))::float8,
               c.done_at is not distinct from '-infinity'
        from penstock.upkeep_pace() as p left join penstock.chore as c on c.name = p.part
    """
    parts = inspection.rows(query)
    seconds = min((age for _, age, _ in parts if age is not None), default=None)
    waiting = sum(queue.waiting for queue in inspection.queues)
    last = "no upkeep has ever run" if seconds is None else f"upkeep last ran {format_duration(seconds)} ago"
    numbers = {"waiting": waiting} | ({} if seconds is None else {"seconds": round(seconds, 1)})
    if waiting and (seconds is None or seconds >= inspection.limits.upkeep):
        what = f"{last}, with {format_count(waiting, 'task')} waiting: nothing runs upkeep"
        return [Finding("upkeep", "warning", what, UPKEEP, numbers)]
    late = inspection.limits.upkeep_part
    failing = [part for part, age, unfinished in parts if not unfinished and (age is None or age >= late)]
    if failing and seconds is not None and seconds < inspection.limits.upkeep:
        what = f"upkeep runs, but not all of it: no run has done {', '.join(failing)} for {format_duration(late)}"
        fix = "Run `penstock upkeep`: it says what fails."
        return [Finding("upkeep", "warning", what, fix, {**numbers, "failing": len(failing)})]
    return report_ok("upkeep", f"{last}, with {format_count(waiting, 'task')} waiting", **numbers)


def check_paused(inspection: Inspection) -> list[Finding]:
    found = [
        Finding(
            "paused",
            "warning",
            f"queue {queue.name} is paused with {format_count(queue.waiting, 'task')} waiting",
            f"Run `penstock queues resume {queue.name}` when they may run.",
            {"waiting": queue.waiting},
        )
        for queue in inspection.queues
        if queue.paused and queue.waiting
    ]
    return found or report_ok("paused", "no paused queue has tasks waiting")


def check_promises(inspection: Inspection) -> list[Finding]:
    found = [
        Finding(
            "sla",
            "warning",
            f"queue {queue.name} breaks its SLA of {format_duration(queue.sla)}: "
            f"its oldest task waits {format_duration(queue.age)}",
            "Start more workers for it, or find out why the running ones are slow.",
            {"seconds": round(queue.age, 1), "sla": queue.sla},
        )
        for queue in inspection.queues
        if queue.sla is not None and queue.age is not None and queue.age > queue.sla
    ]
    return found or report_ok("sla", "no queue breaks its SLA now")


def check_dead_tasks(inspection: Inspection) -> list[Finding]:
    found = [
        Finding(
            "dead_tasks",
            "info",
            f"queue {queue.name} has {format_count(queue.dead, 'dead task')}",
            f"See why with `penstock dead ls {queue.name}`, then `penstock dead redrive {queue.name} --all`.",
            {"dead": queue.dead},
        )
        for queue in inspection.queues
        if queue.dead
    ]
    return found or report_ok("dead_tasks", "no task is dead")


def check_leases(inspection: Inspection) -> list[Finding]:
    query = """
        select q.name, count(*), sum(bit_count(l.open))::bigint,
               extract(epoch from (select penstock.clock()) - min(l.until) filter (where isfinite(l.until)))::float8
        from penstock.lease as l join penstock.queue as q on q.id = l.queue_id
        where l.until <= (select penstock.clock()) - make_interval(secs => %s) and bit_count(l.open) > 0
        group by q.name order by q.name
    """
    found = [report_expired_leases(*row) for row in inspection.rows(query, (inspection.limits.lease,))]
    return found or report_ok(
        "leases", f"no lease is past its end by more than {format_duration(inspection.limits.lease)}"
    )


def report_expired_leases(queue: str, count: int, tasks: int, seconds: float | None) -> Finding:
    since = "" if seconds is None else f", the oldest {format_duration(seconds)} ago"
    leases = f"{format_count(count, 'lease')} with {format_count(tasks, 'task')}"
    what = f"queue {queue}: {leases} ended{since}, and nothing has taken them back"
    return Finding("leases", "warning", what, UPKEEP, {"leases": count, "tasks": tasks})


def check_overdue(inspection: Inspection) -> list[Finding]:
    """Looks for planned tasks that are due and not promoted."""
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
            f"queue {queue}: {format_count(count, 'planned task')} overdue by up to {format_duration(seconds)}: "
            "nothing promotes them",
            UPKEEP,
            {"tasks": count, "seconds": round(seconds, 1)},
        )
        for queue, count, seconds in inspection.rows(query, (inspection.limits.overdue,))
    ]
    return found or report_ok("overdue", "no planned task is overdue")


def check_schedules(inspection: Inspection) -> list[Finding]:
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
            f"schedule {shown(name)} is overdue by {format_duration(seconds)}: nothing fires it",
            f"{UPKEEP} If upkeep runs, `penstock schedules next NAME` says whether its line can be read.",
            {"seconds": round(seconds, 1)},
        )
        for name, seconds in inspection.rows(query, (inspection.limits.overdue,))
    ]
    return found or report_ok("schedules", "no schedule is overdue")


def check_workers(inspection: Inspection) -> list[Finding]:
    query = """
        select w.name, w.host, w.busy, extract(epoch from (select penstock.clock()) - w.beat)::float8 as seconds
        from penstock.worker as w
        where w.beat <= (select penstock.clock()) - make_interval(secs => %s)
        order by seconds desc limit %s
    """
    found = [report_silent_worker(*row) for row in inspection.rows(query, (inspection.limits.silent, MAX_FINDINGS))]
    (count,) = inspection.row("select count(*) from penstock.worker")
    return found or report_ok("workers", f"{format_count(count, 'worker')} known, none of them silent", workers=count)


def report_silent_worker(name: str, host: str, busy: int, seconds: float) -> Finding:
    where = f" on {shown(host)}" if host else ""
    silence = f"has been silent for {format_duration(seconds)} with {format_count(busy, 'task')} in work"
    what = f"worker {shown(name)}{where} {silence}"
    fix = "Check whether it is alive; others get its tasks when their leases end, and upkeep forgets it after 5 min."
    return Finding("workers", "warning", what, fix, {"seconds": round(seconds, 1), "busy": busy})


def check_unknown_kinds(inspection: Inspection) -> list[Finding]:
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
            f"queue {queue}: {format_count(count, 'attempt')} today at kind {shown(kind)}, which no worker knew",
            "Start a worker whose code has a handler for it, or correct the kind where it is pushed.",
            {"attempts": count},
        )
        for queue, kind, count in inspection.rows(query, (MAX_FINDINGS,))
    ]
    return found or report_ok("unknown_kinds", "workers knew every kind that they met today")


def check_follow_ups(inspection: Inspection) -> list[Finding]:
    query = """
        select o.name || '/' || k.kind, f.field, split_part(f.target, ':', 1), q.id is not null
        from penstock.kind as k
        join penstock.queue as o on o.id = k.queue_id
        cross join lateral (values ('on_dead', k.on_dead), ('on_done', k.on_done)) as f(field, target)
        left join penstock.queue as q on q.name = split_part(f.target, ':', 1)
        where f.target is not null and (q.id is null or penstock.largest_payload(q) < 8192)
        order by 1, 2 limit %s
    """
    found = [report_lost_follow_up(*row) for row in inspection.rows(query, (MAX_FINDINGS,))]
    return found or report_ok("follow_ups", "every follow-up has its queue")


def report_lost_follow_up(kind: str, field: str, queue: str, exists: bool) -> Finding:
    why, fix = f"there is no queue {shown(queue)}", f"Run `penstock queues create {queue}`."
    if exists:
        why = f"queue {shown(queue)} takes no payload of 8192 bytes"
        fix = f"Run `penstock queues set {queue} --max-payload 1048576`."
    return Finding("follow_ups", "warning", f"{field} of {shown(kind)} pushes nothing: {why}", fix)


def check_crashes(inspection: Inspection) -> list[Finding]:
    """Tasks that ended their workers while they ran alone."""
    query = """
        select q.name, count(*), -1 - min(a.quarantine), q.max_crashes
        from penstock.agenda as a join penstock.queue as q on q.id = a.queue_id
        where a.quarantine < -1 group by q.id order by q.name limit %s
    """
    found = [
        Finding(
            "crashes",
            "info",
            f"queue {queue}: {format_count(count, 'waiting task')} ended workers, up to {format_count(most, 'time')}; "
            f"at {limit} such a task is dead",
            f"See which with `penstock tasks ls {queue}`; `penstock queues set {queue} --max-crashes` sets the limit.",
            {"tasks": count, "crashes": most, "max_crashes": limit},
        )
        for queue, count, most, limit in inspection.rows(query, (MAX_FINDINGS,))
    ]
    return found or report_ok("crashes", "no waiting task has ended a worker")
