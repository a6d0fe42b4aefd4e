"""All errors of Penstock, in one tree.

    PenstockError
    ├── ValidationError      PS1001  a name, number or time we do not accept           exit 2
    │   └── PayloadError     PS1002  a payload that is not plain JSON                  exit 2
    │       └── PayloadTooLarge  PS1003
    ├── NotFound             PS2001  no such queue or task                             exit 1
    ├── Conflict             PS2002  the present state does not allow it               exit 1
    │   ├── Taken                    a subject exists already
    │   ├── LeaseLost        PS2003  the lease is no longer ours; nothing was changed  exit 1
    │   └── HandlerMisuse    PS2004  a handler used its transaction() in a wrong way   exit 1
    ├── ConfigError          PS3001  where to connect, or how, is not known            exit 3
    │   ├── AuthError        PS3002  PostgreSQL refused the user or password           exit 3
    │   └── SchemaVersionError  PS3003  the schema is missing, older or newer          exit 3
    └── Unavailable          PS4001  PostgreSQL cannot be reached now; may be retried  exit 4
        ├── CommitUnknown    PS4002  the reply to COMMIT was lost
        └── PartialPush      PS4003  some chunks are in; repeat with the same batch id

Codes are stable: they never change their meaning. A message names the field, the value (cut to 80 characters)
and the limit; a hint says what to do next.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar
from uuid import UUID

SHOWN = 80


def shown(value: object) -> str:
    """Returns a value as it may appear in a message: one line, at most 80 characters, safe for any terminal."""
    try:
        text = ascii(value)
    except Exception:  # noqa: BLE001 - a broken __repr__ must not hide the real error
        text = f"<{type(value).__name__}>"
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def printable(text: str) -> str:
    """Returns a text that fits on one line of a terminal and contains no control characters."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def printable_lines(text: str) -> str:
    """Returns a text of several lines without control characters."""
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)


class PenstockError(Exception):
    """The base class of all errors of Penstock."""

    code: ClassVar[str] = "PS1000"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self._hint: str | None = None
        self.hint = hint

    @property
    def hint(self) -> str | None:
        """What to do next. It is a note of the exception too, so that a traceback shows it."""
        return self._hint

    @hint.setter
    def hint(self, hint: str | None) -> None:
        """What to do next. The hint is also a note of the exception, so that a traceback shows it."""
        notes: list[str] = getattr(self, "__notes__", [])
        if f"Hint: {self._hint}" in notes:
            notes.remove(f"Hint: {self._hint}")
        self._hint = hint
        if hint:
            self.add_note(f"Hint: {hint}")


class ValidationError(PenstockError, ValueError):
    """A name, number or time is not accepted."""

    code = "PS1001"
    exit_code = 2

    def __init__(
        self, message: str, *, hint: str | None = None, field: str | None = None, index: int | None = None
    ) -> None:
        super().__init__(message if index is None else f"item {index}: {message}", hint=hint)
        self.bare = message
        self.field = field
        self.index = index

    def at(self, index: int) -> ValidationError:
        """Returns the same error with the number of the item in a batch that it belongs to."""
        return type(self)(self.bare, hint=self.hint, field=self.field, index=index)


class PayloadError(ValidationError):
    """A payload is not plain JSON."""

    code = "PS1002"


class PayloadTooLarge(PayloadError):
    """A payload is larger than its queue accepts."""

    code = "PS1003"


class NotFound(PenstockError, LookupError):
    """A queue or task does not exist."""

    code = "PS2001"


class Conflict(PenstockError):
    """The present state does not allow the operation."""

    code = "PS2002"


class Taken(Conflict):
    """A subject exists already."""


class LeaseLost(Conflict):
    """The lease is lost, and another worker may have its tasks by now. Refused settles changed nothing."""

    code = "PS2003"

    def __init__(
        self,
        message: str,
        *,
        refused: Collection[int] = (),
        revoked: Collection[int] = (),
        busy: Collection[int] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.refused = tuple(refused)
        self.revoked = tuple(revoked)
        self.busy = tuple(busy)  # still leased and not settled: another transaction holds them

    @property
    def reason(self) -> str:
        """Why the tasks were lost: `cancelled` or `lost`."""
        return "cancelled" if self.revoked and not self.refused else "lost"


class HandlerMisuse(Conflict):
    """A handler closed the connection of `transaction()` or ended its transaction, or it gave an outcome for its task
    after the end of the block had settled it."""

    code = "PS2004"


class ConfigError(PenstockError):
    """The configuration does not say where or how to connect."""

    code = "PS3001"
    exit_code = 3


class AuthError(ConfigError):
    """PostgreSQL refused the user, the password, or a right."""

    code = "PS3002"


class SchemaVersionError(ConfigError):
    """The schema is missing, older or newer than this Penstock."""

    code = "PS3003"


class Unavailable(PenstockError):
    """PostgreSQL cannot be reached now; the call may be retried."""

    code = "PS4001"
    exit_code = 4

    def __init__(self, message: str, *, hint: str | None = None, reason: str = "unreachable") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class CommitUnknown(Unavailable):
    """The connection broke during COMMIT, so the transaction may or may not have happened."""

    code = "PS4002"


class PartialPush(Unavailable):
    """A bulk push with subjects stopped between chunks. Repeat it with `batch_id` to complete it without writing any
    task twice."""

    code = "PS4003"

    def __init__(self, message: str, *, batch_id: UUID, written: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.batch_id = batch_id
        self.written = written
