"""The pipeline as a list of stages, in their order. Each can be run alone, and again: what is made already is left as
it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.pipeline import profile, report
from penstock.pipeline.bronze import bronze
from penstock.pipeline.gold import gold
from penstock.pipeline.reconcile import reconcile
from penstock.pipeline.silver import silver
from penstock.pipeline.work import Work

Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """`run` answers what it did, as JSON has it. A stage that finds something wrong says `ok: false`; the others run
    all the same."""

    name: str
    run: Callable[[Work], Answer]


@dataclass(frozen=True, slots=True)
class Outcome:
    stage: str
    seconds: float
    answer: Answer

    @property
    def ok(self) -> bool:
        return bool(self.answer.get("ok", True))


def reconciled(work: Work) -> Answer:
    return reconcile(work).as_json()


def profiled(work: Work) -> Answer:
    if profile.up_to_date(work.lake, work.database):
        return {}
    learnt = profile.make_profiles(work.spark, work.lake, work.database)
    return {"profiles": learnt.written, "without": learnt.without}


def reported(work: Work) -> Answer:
    if report.up_to_date(work.lake):
        return {}
    made = report.make_report(work.spark, work.lake)
    return {"queues": len(made.figures.queues), "path": str(made.path), "verdict": made.verdict}


LAKE: tuple[Stage, ...] = (
    Stage("bronze", bronze),
    Stage("silver", silver),
    Stage("gold", gold),
    Stage("reconcile", reconciled),
)
# All of them, in order: what tells of the lake stands behind what makes it, and the page behind everything.
STAGES: tuple[Stage, ...] = (*LAKE[:-1], Stage("profile", profiled), LAKE[-1], Stage("report", reported))

Watch = Callable[[str], None]


def run(
    work: Work,
    stages: Sequence[Stage] = LAKE,
    *,
    begins: Watch = lambda _: None,
    ends: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Those that make the lake, or others. Whoever watches is told when one begins and what came of it."""
    found: list[Outcome] = []
    for stage in stages:
        begins(stage.name)
        began = time.perf_counter()
        answer = stage.run(work)
        found.append(Outcome(stage.name, time.perf_counter() - began, answer))
        ends(found[-1])
    return found
