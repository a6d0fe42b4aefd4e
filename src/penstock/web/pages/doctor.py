"""What the doctor finds, with the fix of each problem."""

from __future__ import annotations

from itertools import groupby

from starlette.responses import Response

from penstock.client.concurrency_async import in_thread
from penstock.client.database import Database
from penstock.doctor import Finding, examine
from penstock.web.site import Page

SIGNS = {"ok": "✓", "info": "i", "warning": "!", "error": "✗"}
WORST_FIRST = ("error", "warning", "info", "ok")


async def show(page: Page) -> Response:
    """Runs the quick checks with the rights of the visitor, and shows what they find."""
    findings = await in_thread(run_checks, page.database.dsn, page.database.source, page.database.local_settings)
    problems = [one for level in ("error", "warning") for one in findings if one.level == level]
    groups = [(name, list(members)) for name, members in groupby(findings, key=lambda one: one.group)]
    return page.render("doctor.html", problems=problems, groups=groups, signs=SIGNS, total=len(findings))


def run_checks(dsn: str, source: str, settings: tuple[str, ...]) -> list[Finding]:
    """Runs the checks that do not read whole tables."""
    return examine(Database(dsn, source=source).with_settings(*settings), quick=True)
