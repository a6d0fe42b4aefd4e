"""Plans: what an act on many tasks would change. A plan has the tasks themselves, so what is applied is what was shown;
the answer for each task then says what has changed meanwhile.
"""

from __future__ import annotations

import secrets
import time
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from penstock import validate
from penstock.client.database_async import AsyncDatabase
from penstock.client.queue_async import AsyncQueue
from penstock.errors import Conflict, NotFound, ValidationError, shown

ACTS = ("cancel", "redrive", "reschedule", "reprioritise")
MAX_TASKS = 10_000  # of one plan
VALID_SECONDS = 300.0
CANARY_SECONDS = 3600.0  # a plan whose first tasks run is kept longer
MAX_PLANS = 200
SUCCESS = {"cancel": ("cancelled", "revoked"), "redrive": ("redriven",), "reschedule": ("rescheduled",)}
SUCCESS |= {"reprioritise": ("reprioritised",)}


@dataclass(slots=True)
class Plan:
    """An act on tasks of a queue that a person has seen and may apply."""

    id: str
    session: str
    queue: str
    act: str
    argument: str  # a due or a priority, as it was typed
    what: str  # the selection, in words
    is_all: bool  # the selection has no filter: the name of the queue has to be typed
    ids: array[int]
    more: bool  # other tasks match too
    until: float  # by the monotonic clock
    results: Counter[str] = field(default_factory=Counter)
    canary: tuple[int, ...] = ()  # tasks that were redriven first

    @property
    def is_applied(self) -> bool:
        """Whether nothing is left to apply."""
        return not self.ids

    @property
    def seconds_left(self) -> float:
        """How long the plan may still be applied."""
        return max(0.0, self.until - time.monotonic())

    @property
    def changed(self) -> int:
        """How many tasks the act has changed."""
        return sum(count for result, count in self.results.items() if result in SUCCESS[self.act])

    @property
    def left_out(self) -> dict[str, int]:
        """The other answers: what has changed since the plan was made."""
        return {result: count for result, count in self.results.items() if result not in SUCCESS[self.act]}


class Plans:
    """The plans of this process."""

    def __init__(self) -> None:
        self._plans: dict[str, Plan] = {}

    def add(self, session: str, ids: list[int], **about: Any) -> Plan:
        """Keeps a plan for five minutes."""
        now = time.monotonic()
        self._plans = {id_: one for id_, one in self._plans.items() if one.until > now}
        while len(self._plans) >= MAX_PLANS:
            self._plans.pop(next(iter(self._plans)))
        plan = Plan(secrets.token_urlsafe(12), session, ids=array("q", ids), until=now + VALID_SECONDS, **about)
        self._plans[plan.id] = plan
        return plan

    def find(self, id_: str, session: str) -> Plan:
        """Returns a plan of this session that is still valid."""
        plan = self._plans.get(id_)
        if plan is None or plan.session != session or plan.until <= time.monotonic():
            raise NotFound("plan: there is no such plan", hint="A plan is valid for five minutes; make it again.")
        return plan


def check_act(value: str, argument: str) -> None:
    """Checks an act and its argument before a plan is made."""
    if value not in ACTS:
        raise ValidationError(f"act: {shown(value)} is not one of {', '.join(ACTS)}", field="act")
    if value == "reschedule":
        parse_due(argument)
    elif value == "reprioritise":
        parse_priority(argument)


def parse_due(text: str) -> datetime:
    """Reads when tasks are to be due: `now`, a length of time from now such as 10m, or a moment."""
    if text in ("", "now"):
        return datetime.now(UTC)
    try:
        return datetime.now(UTC) + validate.duration(text, "when")
    except ValidationError:
        return validate.moment(text, "when")


def parse_priority(text: str) -> int:
    """Reads a priority."""
    if len(text) != 1 or text not in "0123456789":
        raise ValidationError(f"priority: {shown(text)} is not between 0 and 9", field="priority")
    return int(text)


async def act(database: AsyncDatabase, queue: str, verb: str, argument: str, ids: list[int]) -> dict[int, str]:
    """Applies an act to tasks, in one transaction, and returns the answer for each."""
    found = AsyncQueue(database, queue)
    if verb == "cancel":
        return await found.cancel(ids, reason="cancelled in the dashboard")
    if verb == "redrive":
        return await found.redrive(ids)
    if verb == "reschedule":
        return await found.reschedule(parse_due(argument), ids)
    return await found.reprioritise(parse_priority(argument), ids)


async def apply(database: AsyncDatabase, plan: Plan, form: Mapping[str, str]) -> None:
    """Applies a plan, or the first tasks of it, which then show whether the rest would succeed."""
    if plan.is_applied:
        raise Conflict("plan: it was applied already", hint="Make another one.")
    if plan.is_all and form.get("typed", "").strip() != plan.queue:
        raise ValidationError(
            f"queue: type its name, {plan.queue}, because the plan is about all of these tasks", field="queue"
        )
    first = parse_first(form.get("first", "")) if plan.act == "redrive" and not plan.canary else 0
    chosen = plan.ids[: first or None]
    plan.ids = plan.ids[len(chosen) :]
    try:
        answers = await act(database, plan.queue, plan.act, plan.argument, list(chosen))
    except BaseException:
        plan.ids = chosen + plan.ids
        raise
    plan.results.update(answers.values())
    if first and plan.ids:
        plan.canary = tuple(id_ for id_, answer in answers.items() if answer in SUCCESS[plan.act])
        plan.until = time.monotonic() + CANARY_SECONDS


def parse_first(text: str) -> int:
    """Reads how many tasks are to run first; 0: all at once."""
    if text and (not text.isascii() or not text.isdecimal() or len(text) > 4):
        raise ValidationError(f"first: {shown(text)} is not a number of tasks", field="first")
    return int(text or 0)
