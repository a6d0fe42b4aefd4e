"""Who visits, and with which rights. A level is a role of PostgreSQL: what it may do is PostgreSQL's decision."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, get_args

from starlette.requests import HTTPConnection

from penstock.client.database_async import AsyncDatabase
from penstock.errors import AuthError, ConfigError, PenstockError, ValidationError, shown

Level = Literal["none", "reader", "operator", "admin"]
LEVELS: tuple[Level, ...] = get_args(Level)
MAX_NAME = 200  # characters of a visitor's name in the audit
PAGE_TIMEOUT = "5s"  # for a statement of a page
ACT_TIMEOUT = "60s"


@dataclass(frozen=True, slots=True)
class Visitor:
    """A person or a program that sends requests: its level, and the name that the audit gets."""

    level: Level
    name: str = ""

    def may(self, level: Level) -> bool:
        """Returns whether the visitor has at least this level."""
        return LEVELS.index(self.level) >= LEVELS.index(level)

    @property
    def sees_payloads(self) -> bool:
        """Whether payloads are shown without asking; a reader has to reveal each of them."""
        return self.may("operator")


AccessRule = Callable[[HTTPConnection], Level | Visitor | Awaitable[Level | Visitor]]
"""Returns the level of a request, or a Visitor, which has a name for the audit too."""


async def find_visitor(rule: AccessRule, request: HTTPConnection) -> Visitor:
    """Asks the rule about a request."""
    found = rule(request)
    if inspect.isawaitable(found):
        found = await found
    visitor = found if isinstance(found, Visitor) else Visitor(found)
    if visitor.level not in LEVELS:
        raise ConfigError(f"access: it returned {shown(found)}", hint=f"It has to return one of {', '.join(LEVELS)}.")
    return visitor


def check_level(value: str, field: str) -> Level:
    """Checks the name of a level."""
    if value not in LEVELS:
        raise ValidationError(f"{field}: {shown(value)} is not one of {', '.join(LEVELS)}", field=field)
    return value


def connect_as(database: AsyncDatabase, visitor: Visitor, *, timeout: str = PAGE_TIMEOUT) -> AsyncDatabase:
    """Returns a client whose transactions have the rights of the visitor, and whose changes are noted in its name."""
    return database.with_settings(
        f"set local role penstock_{visitor.level}",
        "set local penstock.via = 'web'",
        f"set local penstock.actor = {quote(visitor.name)}",
        f"set local statement_timeout = '{timeout}'",
    )


def quote(text: str) -> str:
    """Quotes a text for SQL; sessions of Penstock have standard_conforming_strings on."""
    cut = "".join(one if one.isprintable() else "�" for one in text[:MAX_NAME])
    return "'" + cut.replace("'", "''") + "'"


async def check_roles(database: AsyncDatabase, level: Level) -> None:
    """Raises ConfigError if the login cannot act with the rights of this level."""
    try:
        await connect_as(database, Visitor(level)).value("select penstock.contract()")
    except AuthError as error:
        raise ConfigError(
            f"the login may not act as penstock_{level}: {error.message}",
            hint=f"Let an administrator: grant penstock_{level} to that login;",
        ) from error
    except PenstockError as error:
        if "role" not in error.message:
            raise
        raise ConfigError(
            f"this cluster has no role penstock_{level}",
            hint="`penstock init` creates the roles; a dashboard does not work without them.",
        ) from error
