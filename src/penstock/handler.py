# Made from src/penstock/handler_async.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""A handler: a function that a worker calls, and with which tasks are pushed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from penstock.client.concurrency import Items, each
from penstock.client.queue import Queue
from penstock.errors import ValidationError, shown
from penstock.handlers import Registry, Spec
from penstock.model import Duration, Json, NewTask, OnConflict, Pushed, PushReport
from penstock.validate import at


class Application(Protocol):
    """What a handler needs of its application."""

    registry: Registry

    @property
    def dsn(self) -> str:
        """The DSN of the database."""

    def queue(self, name: str) -> Queue:
        """Returns a queue by name."""


class Handler:
    """A decorated function. A call runs it here and now; `push` makes a task of it for a worker."""

    def __init__(self, app: Application, spec: Spec) -> None:
        functools.update_wrapper(self, spec.function)
        self.spec = spec
        self.app = app

    def __repr__(self) -> str:
        return f"<Handler {self.spec.name}>"

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.spec.function(*arguments, **named)

    def push(
        self,
        *arguments: Any,
        subject: str | None = None,
        due: datetime | None = None,
        delay: Duration | None = None,
        priority: int | None = None,
        on_conflict: OnConflict = "skip",
        key: str | None = None,
        meta: Json | None = None,
        expires: datetime | Duration | None = None,
        debounce: Duration | None = None,
        at_most: Duration | None = None,
        throttle: Duration | None = None,
        connection: object | None = None,
        **named: Any,
    ) -> Pushed:
        """Pushes one task with the arguments of a call, and refuses arguments that the handler would not accept. The
        task may run at once, from `due` on, or after `delay`. `key` and `expires` have their defaults from the
        decorator."""
        payload = self.spec.payload(arguments, named)
        return self.app.queue(self.spec.queue).push(
            payload,
            subject=subject,
            kind=self.spec.kind,
            due=due,
            delay=delay,
            priority=self.spec.priority if priority is None else priority,
            on_conflict=on_conflict,
            key=self.spec.key_of(payload) if key is None else key,
            meta=meta,
            expires=self.spec.expires if expires is None else expires,
            debounce=debounce,
            at_most=at_most,
            throttle=throttle,
            connection=connection,
        )

    def push_many(
        self,
        items: Items[Json | NewTask],
        *,
        on_conflict: OnConflict = "skip",
        debounce: Duration | None = None,
        at_most: Duration | None = None,
        throttle: Duration | None = None,
        batch_id: UUID | None = None,
        progress: Callable[[int], None] | None = None,
        connection: object | None = None,
    ) -> PushReport:
        """Pushes many tasks. Each item is a dict of arguments, or a NewTask with them as its payload. One item that the
        handler would not accept refuses the whole call."""
        return self.app.queue(self.spec.queue).push_many(
            each(items, self._one),
            on_conflict=on_conflict,
            debounce=debounce,
            at_most=at_most,
            throttle=throttle,
            batch_id=batch_id,
            progress=progress,
            connection=connection,
        )

    def _one(self, n: int, item: Json | NewTask) -> NewTask:
        return at(n, self._new_task, item)

    def _new_task(self, item: Json | NewTask) -> NewTask:
        task = item if isinstance(item, NewTask) else NewTask(item, priority=self.spec.priority)
        payload = {} if task.payload is None else task.payload
        if type(payload) is not dict:
            raise ValidationError(f"arguments: {shown(payload)} is not a dict of arguments", field="arguments")
        if self.spec.arguments is not None:
            payload = self.spec.arguments.encoded(payload)
        return task._replace(
            payload=payload,
            kind=self.spec.kind,
            key=self.spec.key_of(payload) if task.key is None else task.key,
            expires=self.spec.expires if task.expires is None else task.expires,
        )
