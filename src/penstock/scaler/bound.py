"""The least that anybody could pay who knew everything in advance: a floor under the cost of every policy.

Work is made liquid and time is cut into steps. `possible` is the work that can have been done by an edge between two
steps: each task from its due time on, a second of it a second. `needed` is the work that must have been done: each task
started at its deadline. A fleet is good enough when the work done stays between the two. That asks less than whole
tasks in whole slots of whole workers do, so no real schedule that keeps the promise is cheaper:

    least   Σ c·dt + L·Σ (c − c before)⁺      workers are paid while they are there, and for L seconds of starting
    where   needed ≤ done ≤ possible,   done − done before ≤ c·dt·slots,   min ≤ c ≤ max

`min_workers` are there before the first step, for nothing: a policy that has to start them pays more. They are paid
until the trace's duration, not while its last tasks run out: a simulation may end when these have ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, PenstockError
from penstock.scaler.signals import LONGEST, MOST_WORKERS, number, whole
from penstock.scaler.traces import Trace

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

MOST_STEPS = 200_000
DEARER = 10.0  # a second of late work costs so many times what a second of work on time can cost: it never pays


@dataclass(frozen=True, slots=True)
class Bound:
    worker_seconds: float
    peak: float  # workers
    capacity: tuple[float, ...]  # workers in each step
    feasible: bool  # False: max_workers are too few, whoever decides; worker_seconds are those of the least late fleet
    step: float
    late_share: float = 0.0  # at least this share of the work belongs to tasks that start late


@dataclass(frozen=True, slots=True)
class Terms:
    sla: float
    start_latency: float
    step: float
    min_workers: int
    max_workers: int | None
    slots: int

    def __post_init__(self) -> None:
        for name, least in (("sla", 0.0), ("start_latency", 0.0), ("step", 0.001)):
            number(name, getattr(self, name), least, LONGEST)
        whole("min_workers", self.min_workers, 0, MOST_WORKERS)
        whole("slots", self.slots, 1, MOST_WORKERS)
        if self.max_workers is None:
            return
        whole("max_workers", self.max_workers, 1, MOST_WORKERS)
        if self.min_workers > self.max_workers:
            raise ConfigError(f"min_workers: {self.min_workers} is more than max_workers, {self.max_workers}")

    @property
    def work(self) -> float:
        """Seconds of it that a worker does in a step."""
        return self.step * self.slots

    @property
    def most(self) -> float:
        return math.inf if self.max_workers is None else float(self.max_workers)


@dataclass(frozen=True, slots=True)
class Problem:
    """One value for each step; what is cumulative is meant at its end."""

    terms: Terms
    possible: Floats
    needed: Floats
    least: Floats  # workers


def bound(
    trace: Trace,
    sla: float,
    start_latency: float,
    *,
    step: float = 5.0,
    min_workers: int = 0,
    slots: int = 1,
    max_workers: int | None = None,
) -> Bound:
    """The floor for this trace. Steps cut into equal parts never lower it; they take longer."""
    terms = Terms(sla, start_latency, step, min_workers, max_workers, slots)
    problem = posed(trace, terms)
    if not len(problem.needed):
        return Bound(0.0, 0.0, (), True, step)
    return solved(problem, late=not enough(problem))


def tools() -> tuple[Any, Any, Any]:
    """numpy, scipy.sparse and linprog. Judging policies needs them, running one does not: they are no dependency."""
    try:
        import numpy as np  # noqa: PLC0415 - not for everybody
        from scipy import optimize, sparse  # noqa: PLC0415 - not for everybody
    except ImportError as error:
        raise ConfigError(
            f"bound: {error.name} is not installed", hint="The bound is a linear program: pip install scipy."
        ) from None
    return np, sparse, optimize.linprog


def posed(trace: Trace, terms: Terms) -> Problem:
    np, _, _ = tools()
    due, service, step = np.asarray(trace.due, dtype=float), np.asarray(trace.service, dtype=float), terms.step
    end = max(trace.duration, float((due + service).max()) + terms.sla) if len(due) else trace.duration
    if end / step > MOST_STEPS:
        raise ConfigError(
            f"step: {end:.0f} seconds are more than {MOST_STEPS:,} steps of {step:g}",
            hint="Take longer steps, or a shorter part of the trace.",
        )
    steps = math.ceil(end / step)
    possible = worked(due, service, step, steps)
    needed = np.minimum(worked(due + terms.sla, service, step, steps), possible)
    before_end = np.clip((trace.duration - step * np.arange(steps)) / step, 0.0, 1.0)  # shares of each step
    return Problem(terms, possible, needed, terms.min_workers * before_end)


def worked(begin: Floats, service: Floats, step: float, steps: int) -> Floats:
    """The work done at the end of each step, exactly, when tasks begin at these moments and are never held up."""
    np, _, _ = tools()
    began, begun_in = rising(begin, step, steps)
    ended, ended_in = rising(begin + service, step, steps)
    running = np.cumsum(began - ended) - (began - ended)  # through the whole step, from its very beginning
    grown: Floats = np.cumsum(np.maximum(running * step + begun_in - ended_in, 0.0))
    return grown


def rising(moments: Floats, step: float, steps: int) -> tuple[NDArray[numpy.int64], Floats]:
    """How many moments lie in each step, and the seconds from them to its end, added up."""
    np, _, _ = tools()
    place = np.minimum((moments / step).astype(np.int64), steps)  # one more step, for what lies behind the last
    rest = (place + 1) * step - moments
    return np.bincount(place, minlength=steps + 1)[:steps], np.bincount(place, rest, minlength=steps + 1)[:steps]


def enough(problem: Problem) -> bool:
    """Can the largest fleet keep the promise? It can when it does by working as early as there is work."""
    done, slack = 0.0, 1e-9 * float(problem.needed[-1])
    for possible, needed in zip(problem.possible.tolist(), problem.needed.tolist(), strict=True):
        done = min(possible, done + problem.terms.most * problem.terms.work)
        if done < needed - slack:
            return False
    return True


def solved(problem: Problem, *, late: bool) -> Bound:
    np, sparse, linprog = tools()
    cost, rows, limits, bounds = with_late_work(problem) if late else on_time(problem)
    found = linprog(cost, A_ub=sparse.block_array(rows, format="csr"), b_ub=limits, bounds=bounds, method="highs")
    if found.status != 0:
        raise PenstockError(f"bound: the solver gave up: {found.message}")
    terms, steps = problem.terms, len(problem.needed)
    capacity, starts, _, *more = np.split(found.x, len(cost) // steps)
    seconds = terms.step * float(capacity.sum()) + terms.start_latency * float(starts.sum())
    share = 0.0
    if more:
        left, given_up = more
        seconds += float(left[-1]) / terms.slots
        share = float(given_up.sum()) / float(problem.needed[-1])
    return Bound(seconds, float(capacity.max()), tuple(capacity.tolist()), not late, terms.step, share)


Program = tuple["Floats", list[list[Any]], "Floats", "Floats"]  # costs, blocks of rows, their limits, variables' bounds


def on_time(problem: Problem) -> Program:
    """Variables, each for every step: workers; those started; the work done beyond what is needed."""
    np, sparse, _ = tools()
    terms, steps = problem.terms, len(problem.needed)
    one = sparse.eye_array(steps)
    change = one - sparse.eye_array(steps, k=-1)  # from the step before to this one
    falling_due = np.diff(problem.needed, prepend=0.0)
    first = np.zeros(steps)
    first[0] = terms.min_workers
    cost = np.concatenate([np.full(steps, terms.step), np.full(steps, terms.start_latency), np.zeros(steps)])
    rows = [[-terms.work * one, None, change], [change, -one, None]]
    zero, endless = np.zeros(steps), np.full(steps, np.inf)
    bounds = np.concatenate(
        [
            np.column_stack([problem.least, np.full(steps, terms.most)]),
            np.column_stack([zero, endless]),
            np.column_stack([zero, problem.possible - problem.needed]),
        ]
    )
    return cost, rows, np.concatenate([-falling_due, first]), bounds


def with_late_work(problem: Problem) -> Program:
    """Two more variables: late work that is still to be done, and work that is given up as late when its deadline
    comes. Any schedule fits in: the work of its late tasks is given up, and done after its deadline or in the end."""
    np, sparse, _ = tools()
    cost, (doing, starting), limits, bounds = on_time(problem)
    terms, steps = problem.terms, len(problem.needed)
    one, change, falling_due = sparse.eye_array(steps), doing[-1], np.diff(problem.needed, prepend=0.0)
    undone = np.zeros(steps)
    undone[-1] = 1 / terms.slots  # whenever it is done, somebody is paid for it
    penalty = DEARER * (terms.step + terms.start_latency) / terms.work
    rows = [
        [*doing, -change, None],
        [*starting, None, None],
        [None, None, None, change, -one],  # late work grows only by what is given up
    ]
    zero, endless = np.zeros(steps), np.full(steps, np.inf)
    more = np.concatenate([np.column_stack([zero, endless]), np.column_stack([zero, falling_due])])
    return (
        np.concatenate([cost, undone, np.full(steps, penalty)]),
        rows,
        np.concatenate([limits, zero]),
        np.concatenate([bounds, more]),
    )
