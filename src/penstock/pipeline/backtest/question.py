"""The question and the answer of a backtest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.pipeline.backtest.stratified import Recording
from penstock.scaler.judge.judge import Score
from penstock.scaler.policy.decision import Policy
from penstock.scaler.policy.signals import Limits

MAX_TASKS = 1_200_000  # of one run; longer recordings are sampled
MAX_LATE_SHARE = 0.005  # with which a promise still counts as kept


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy, perhaps with knobs that differ from its defaults."""

    policy: Policy
    label: str
    knobs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """What a backtest is to find out. `recordings` with the same name are seeds of one recording."""

    recordings: tuple[Recording, ...]
    contenders: tuple[Contender, ...]
    slas: tuple[float, ...]
    limits: Limits  # their SLA and maximum are not used
    max_workers: int | None = None
    solve: bool = True
    most_tasks: int = MAX_TASKS
    seed: int = 0

    @property
    def runs(self) -> int:
        """The number of simulations."""
        return len(self.recordings) * len(self.slas) * len(self.contenders)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one contender on one recording under one promise: means over the seeds. Margins are 95 % intervals;
    0: nothing was sampled, so only the seeds differ."""

    score: Score
    sla: float
    policy: str
    knobs: Mapping[str, Any]
    workers: float  # on average
    workers_margin: float
    late_margin: float

    @property
    def kept(self) -> bool:
        """Whether the promise was kept."""
        return self.score.excess_breach_rate <= MAX_LATE_SHARE

    def to_json(self) -> dict[str, Any]:
        """Returns the verdict as JSON."""
        facts = {"sla": self.sla, **self.score.to_json(), "label": self.score.policy, "policy": self.policy}
        return {
            **facts,
            "knobs": dict(self.knobs),
            "workers": self.workers,
            "workers_margin": self.workers_margin,
            "breach_rate_margin": self.late_margin,
            "kept": self.kept,
        }


@dataclass(frozen=True, slots=True)
class Promise:
    """The cheapest contender that kept a promise. None: no contender kept it, and `best` came nearest."""

    trace: str
    sla: float
    cheapest: Verdict | None
    best: Verdict
    contenders: int

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        one, best = self.cheapest, self.best
        if one is None:
            return (
                f"a {self.sla:g} s promise would have been kept by none of {self.contenders}; "
                f"{best.score.policy} came nearest, {format_late(best)} late with {format_cost(best)} workers"
            )
        return (
            f"a {self.sla:g} s promise would have cost {format_cost(one)} workers"
            f" ({one.score.policy}, {format_late(one)} late)"
        )


def format_cost(one: Verdict) -> str:
    return f"{one.workers:.1f}" + (f" ± {one.workers_margin:.1f}" if one.workers_margin >= 0.05 else "")


def format_late(one: Verdict) -> str:
    margin = f" ± {100 * one.late_margin:.2f}" if one.late_margin >= 0.00005 else ""
    return f"{100 * one.score.breach_rate:.2f}{margin} %"


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a recording was played."""

    trace: str
    tasks: int
    duration: float
    played: int  # tasks, including those of warm-ups
    windows: int
    of_windows: int
    notes: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether the recording was played as a whole, not by some of its windows."""
        return self.of_windows == 1

    def to_json(self) -> dict[str, Any]:
        """Returns the coverage as JSON."""
        return {**asdict(self), "whole": self.whole, "notes": [*self.notes]}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a backtest."""

    verdicts: tuple[Verdict, ...]
    promises: tuple[Promise, ...]
    coverage: tuple[Coverage, ...]
    warnings: tuple[str, ...] = ()
