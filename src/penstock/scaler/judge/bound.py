"""The lower bound of the cost of every policy: what a clairvoyant would pay, which knows all arrivals in advance.

Work is treated as a fluid and time is divided into steps. `possible` is the work that can have been done by the end of
a step, if each task runs from its due time on. `needed` is the work that must have been done, if each task starts at
its deadline. A fleet is sufficient if the work done stays between the two. That is less than whole tasks in whole slots
of whole workers require, so no real schedule that keeps the promise is cheaper:

minimum of   Σ c·dt + L·Σ (c − c before)⁺      workers are paid while they are up, and for L seconds of starting where
needed ≤ done ≤ possible,   done − done before ≤ c·dt·slots,   min ≤ c ≤ max

`min_workers` are up before the first step, without a cost: a policy that has to start them pays more. They are paid
until the duration of the trace, and not while its last tasks finish, because a simulation may end when these have
ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, PenstockError
from penstock.scaler.judge.traces import Trace
from penstock.scaler.policy.signals import LONGEST, MAX_WORKERS, check_number, check_whole

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

MAX_STEPS = 200_000
LATE_PENALTY = 10.0  # times the highest cost of a second of timely work, so that lateness never pays


@dataclass(frozen=True, slots=True)
class Bound:
    """The lowest possible cost of a trace."""

    worker_seconds: float
    peak: float  # workers
    capacity: tuple[float, ...]  # workers in each step
    feasible: bool  # False: max_workers are too few; worker_seconds are those of the least late fleet
    step: float
    late_share: float = 0.0  # at least this share of the work belongs to tasks that start late


@dataclass(frozen=True, slots=True)
class BoundTerms:
    """The limits for which the bound is computed."""

    sla: float
    start_latency: float
    step: float
    min_workers: int
    max_workers: int | None
    slots: int

    def __post_init__(self) -> None:
        for name, least in (("sla", 0.0), ("start_latency", 0.0), ("step", 0.001)):
            check_number(name, getattr(self, name), least, LONGEST)
        check_whole("min_workers", self.min_workers, 0, MAX_WORKERS)
        check_whole("slots", self.slots, 1, MAX_WORKERS)
        if self.max_workers is None:
            return
        check_whole("max_workers", self.max_workers, 1, MAX_WORKERS)
        if self.min_workers > self.max_workers:
            raise ConfigError(f"min_workers: {self.min_workers} is more than max_workers, {self.max_workers}")

    @property
    def work(self) -> float:
        """The seconds of work that a worker does in a step."""
        return self.step * self.slots

    @property
    def most(self) -> float:
        return math.inf if self.max_workers is None else float(self.max_workers)


@dataclass(frozen=True, slots=True)
class Problem:
    """The linear program: one value for each step. Cumulative values are those at its end."""

    terms: BoundTerms
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
    """Computes the bound of a trace. Shorter steps never lower it, but take longer."""
    terms = BoundTerms(sla, start_latency, step, min_workers, max_workers, slots)
    problem = pose_problem(trace, terms)
    if not len(problem.needed):
        return Bound(0.0, 0.0, (), True, step)
    return solve_problem(problem, late=not is_feasible(problem))


def load_tools() -> tuple[Any, Any, Any]:
    """Returns numpy, scipy.sparse and linprog. Only the judge needs them, so they are not a dependency."""
    try:
        import numpy as np  # noqa: PLC0415 - optional
        from scipy import optimize, sparse  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ConfigError(
            f"bound: {error.name} is not installed", hint="The bound is a linear program: pip install scipy."
        ) from None
    return np, sparse, optimize.linprog


def pose_problem(trace: Trace, terms: BoundTerms) -> Problem:
    """Makes the linear program of a trace."""
    np, _, _ = load_tools()
    due, service, step = np.asarray(trace.due, dtype=float), np.asarray(trace.service, dtype=float), terms.step
    end = max(trace.duration, float((due + service).max()) + terms.sla) if len(due) else trace.duration
    if end / step > MAX_STEPS:
        raise ConfigError(
            f"step: {end:.0f} seconds are more than {MAX_STEPS:,} steps of {step:g}",
            hint="Take longer steps, or a shorter part of the trace.",
        )
    steps = math.ceil(end / step)
    possible = accumulate_work(due, service, step, steps)
    needed = np.minimum(accumulate_work(due + terms.sla, service, step, steps), possible)
    before_end = np.clip((trace.duration - step * np.arange(steps)) / step, 0.0, 1.0)  # shares of each step
    return Problem(terms, possible, needed, terms.min_workers * before_end)


def accumulate_work(begin: Floats, service: Floats, step: float, steps: int) -> Floats:
    """Returns the exact work done by the end of each step, if tasks begin at these moments and are never delayed."""
    np, _, _ = load_tools()
    began, begun_in = count_per_step(begin, step, steps)
    ended, ended_in = count_per_step(begin + service, step, steps)
    running = np.cumsum(began - ended) - (began - ended)  # tasks that run from the beginning of the step
    grown: Floats = np.cumsum(np.maximum(running * step + begun_in - ended_in, 0.0))
    return grown


def count_per_step(moments: Floats, step: float, steps: int) -> tuple[NDArray[numpy.int64], Floats]:
    """Returns the number of moments in each step, and the sum of the seconds from them to its end."""
    np, _, _ = load_tools()
    index = np.minimum((moments / step).astype(np.int64), steps)  # the last index is for moments after the last step
    rest = (index + 1) * step - moments
    return np.bincount(index, minlength=steps + 1)[:steps], np.bincount(index, rest, minlength=steps + 1)[:steps]


def is_feasible(problem: Problem) -> bool:
    """Whether the largest fleet can keep the promise, if it works as early as possible."""
    done, slack = 0.0, 1e-9 * float(problem.needed[-1])
    for possible, needed in zip(problem.possible.tolist(), problem.needed.tolist(), strict=True):
        done = min(possible, done + problem.terms.most * problem.terms.work)
        if done < needed - slack:
            return False
    return True


def solve_problem(problem: Problem, *, late: bool) -> Bound:
    """Solves the linear program; with `late`, some work may be late."""
    np, sparse, linprog = load_tools()
    cost, rows, limits, bounds = late_program(problem) if late else timely_program(problem)
    found = linprog(cost, A_ub=sparse.block_array(rows, format="csr"), b_ub=limits, bounds=bounds, method="highs")
    if found.status != 0:
        raise PenstockError(f"bound: the solver failed: {found.message}")
    terms, steps = problem.terms, len(problem.needed)
    capacity, starts, _, *more = np.split(found.x, len(cost) // steps)
    seconds = terms.step * float(capacity.sum()) + terms.start_latency * float(starts.sum())
    share = 0.0
    if more:
        left, lost = more
        seconds += float(left[-1]) / terms.slots
        share = float(lost.sum()) / float(problem.needed[-1])
    return Bound(seconds, float(capacity.max()), tuple(capacity.tolist()), not late, terms.step, share)


Program = tuple["Floats", list[list[Any]], "Floats", "Floats"]  # costs, blocks of rows, their limits, variables' bounds


def timely_program(problem: Problem) -> Program:
    """Returns the program without late work. Its variables, for every step: workers, starts, and work beyond the
    needed."""
    np, sparse, _ = load_tools()
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


def late_program(problem: Problem) -> Program:
    """Returns the program with two more variables: late work that is not done yet, and work that becomes late at its
    deadline. It admits every schedule: the work of late tasks is done after the deadline or at the end."""
    np, sparse, _ = load_tools()
    cost, (doing, starting), limits, bounds = timely_program(problem)
    terms, steps = problem.terms, len(problem.needed)
    one, change, falling_due = sparse.eye_array(steps), doing[-1], np.diff(problem.needed, prepend=0.0)
    undone = np.zeros(steps)
    undone[-1] = 1 / terms.slots  # it costs the same whenever it is done
    penalty = LATE_PENALTY * (terms.step + terms.start_latency) / terms.work
    rows = [
        [*doing, -change, None],
        [*starting, None, None],
        [None, None, None, change, -one],  # late work grows only by work that becomes late
    ]
    zero, endless = np.zeros(steps), np.full(steps, np.inf)
    more = np.concatenate([np.column_stack([zero, endless]), np.column_stack([zero, falling_due])])
    return (
        np.concatenate([cost, undone, np.full(steps, penalty)]),
        rows,
        np.concatenate([limits, zero]),
        np.concatenate([bounds, more]),
    )
