"""The pipeline as an ordered list of stages. Each stage can run alone and repeatedly: it skips what is already made."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.pipeline import report
from penstock.pipeline.learn import profile
from penstock.pipeline.stages.bronze import bronze
from penstock.pipeline.stages.gold import gold
from penstock.pipeline.stages.reconcile import reconcile
from penstock.pipeline.stages.silver import silver
from penstock.pipeline.work import Work


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the pipeline. `run` returns what it did, as JSON. A stage that finds a problem returns `ok: false`;
    the other stages still run."""

    name: str
    run: Callable[[Work], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """What a stage returned, and how long it took."""

    stage: str
    seconds: float
    answer: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """Whether the stage found no problem."""
        return bool(self.answer.get("ok", True))


def reconciled(work: Work) -> Mapping[str, Any]:
    return reconcile(work).to_json()


def profiled(work: Work) -> Mapping[str, Any]:
    if profile.up_to_date(work.lake, work.database):
        return {}
    learnt = profile.make_profiles(work.spark, work.lake, work.database)
    return {"profiles": learnt.written, "without": learnt.without}


def reported(work: Work) -> Mapping[str, Any]:
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
# All stages, in order: stages that read the lake come after those that write it, and the report is last.
STAGES: tuple[Stage, ...] = (*LAKE[:-1], Stage("profile", profiled), LAKE[-1], Stage("report", reported))

Watch = Callable[[str], None]


def run(
    work: Work,
    stages: Sequence[Stage] = LAKE,
    *,
    begins: Watch = lambda _: None,
    ends: Callable[[StageOutcome], None] = lambda _: None,
) -> list[StageOutcome]:
    """Runs stages in order; by default those that make the lake. `begins` is called when a stage begins, `ends` with
    its outcome."""
    found: list[StageOutcome] = []
    for stage in stages:
        begins(stage.name)
        began = time.perf_counter()
        answer = stage.run(work)
        found.append(StageOutcome(stage.name, time.perf_counter() - began, answer))
        ends(found[-1])
    return found
