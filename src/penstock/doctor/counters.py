"""The check of the counters: a recount of all counters."""

from __future__ import annotations

from penstock.doctor.inspection import MAX_FINDINGS, Finding, Inspection, report_ok


def check_counters(inspection: Inspection) -> list[Finding]:
    rows = inspection.rows("select area, queue, what, expected, found from penstock.verify()", seconds=0)
    found = [
        Finding(
            "counters",
            "error",
            f"queue {queue}: {area}: {what}: expected {expected:,}, found {booked:,}",
            f"Run `penstock verify {queue} --repair`, and report how it happened.",
            {"expected": expected, "found": booked},
        )
        for area, queue, what, expected, booked in rows[:MAX_FINDINGS]
    ]
    return found or report_ok("counters", "counters, places, history and balance agree")
