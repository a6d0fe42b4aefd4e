"""Everything that can go wrong, as one tree.

    PenstockError
    ├── ValidationError      PS1001  a name, number or time we do not accept           exit 2
    │   └── PayloadError     PS1002  a payload that is not plain JSON                  exit 2
    │       └── PayloadTooLarge  PS1003
    ├── NotFound             PS2001  no such queue or task                             exit 1
    ├── Conflict             PS2002  the present state does not allow it               exit 1
    │   ├── Taken                    a subject exists already
    │   ├── LeaseLost        PS2003  the lease is no longer ours; nothing was changed  exit 1
    │   └── HandlerMisuse    PS2004  a handler ended a transaction that was lent to it exit 1
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
    """A value as it may appear in a message: one line, at most 80 characters, safe for any terminal."""
    try:
        text = ascii(value)
    except Exception:  # noqa: BLE001 - somebody's broken __repr__ must not hide the real error
        text = f"<{type(value).__name__}>"
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


class PenstockError(Exception):
    code: ClassVar[str] = "PS1000"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ValidationError(PenstockError, ValueError):
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
        """The same error, naming the item of a batch it belongs to."""
        return type(self)(self.bare, hint=self.hint, field=self.field, index=index)


class PayloadError(ValidationError):
    code = "PS1002"


class PayloadTooLarge(PayloadError):
    code = "PS1003"


class NotFound(PenstockError, LookupError):
    code = "PS2001"


class Conflict(PenstockError):
    code = "PS2002"


class Taken(Conflict):
    """A subject exists already."""


class NoPlace(Conflict):
    """As many write at once as were allowed to."""


class LeaseLost(Conflict):
    """Somebody else may have these tasks by now. What was refused changed nothing."""

    code = "PS2003"

    def __init__(
        self,
        message: str,
        *,
        refused: Collection[int] = (),
        revoked: Collection[int] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.refused = tuple(refused)
        self.revoked = tuple(revoked)

    @property
    def reason(self) -> str:
        return "cancelled" if self.revoked and not self.refused else "lost"


class HandlerMisuse(Conflict):
    """The connection of `transaction()` was closed, or its transaction ended, by the handler it was lent to."""

    code = "PS2004"


class ConfigError(PenstockError):
    code = "PS3001"
    exit_code = 3


class AuthError(ConfigError):
    code = "PS3002"


class SchemaVersionError(ConfigError):
    code = "PS3003"


class Unavailable(PenstockError):
    code = "PS4001"
    exit_code = 4

    def __init__(self, message: str, *, hint: str | None = None, reason: str = "unreachable") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class CommitUnknown(Unavailable):
    """The connection broke while COMMIT was under way: it happened or it did not."""

    code = "PS4002"


class PartialPush(Unavailable):
    """A bulk push with subjects stopped between chunks. Repeating it with `batch_id` completes it, doubling nothing."""

    code = "PS4003"

    def __init__(self, message: str, *, batch_id: UUID, written: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.batch_id = batch_id
        self.written = written
