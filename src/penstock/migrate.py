"""Applies sql/: migrations once, functions whenever their text changed. Under an advisory lock, so that any number of
processes may start at once."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from importlib.resources import files

from penstock.database import Connection, Database
from penstock.errors import AuthError, SchemaVersionError, Unavailable
from penstock.wire import translated

LOCK = 0x50454E53  # "PENS"
LOCK_SECONDS = 2
PAUSES = (0.5, 1, 2, 4, 8, 8, 8, 8, 8, 8)  # seconds between tries
FUNCTIONS = 0  # the row in penstock.migration that remembers which text the functions came from
ROLES = -1  # not in penstock.migration: roles belong to the cluster
ROLE_NAMES = ("penstock_producer", "penstock_worker", "penstock_reader", "penstock_admin")
SQL = files("penstock") / "sql"


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations() -> list[Step]:
    found = sorted((SQL / "migrations").iterdir(), key=lambda file: file.name)
    texts = [(file.name, file.read_text("utf-8")) for file in found if file.name.endswith(".sql")]
    return [Step(int(name[:4]), name, text) for name, text in texts]


def functions() -> Step:
    """All functions, and who may call them."""
    found = sorted((SQL / "functions").iterdir(), key=lambda file: file.name)
    parts = [file.read_text("utf-8") for file in found if file.name.endswith(".sql")]
    return Step(FUNCTIONS, "functions", "\n".join([*parts, (SQL / "grants.sql").read_text("utf-8")]))


def roles_step() -> Step:
    return Step(ROLES, "roles", (SQL / "roles.sql").read_text("utf-8"))


def plan(dsn: str, source: str = "dsn", *, roles: bool = True) -> list[str]:
    """What `init` would apply, in order; nothing: the schema is up to date."""
    with Database(dsn, source=source).session() as connection:
        return [step.name for step in missing(connection, roles)]


def init(dsn: str, source: str = "dsn", *, roles: bool = True) -> list[str]:
    """Brings the schema up to date. Each step is a transaction of its own."""
    with Database(dsn, source=source).session() as connection:
        connection.execute("select pg_advisory_lock(%s)", (LOCK,))
        steps = missing(connection, roles)
        for step in steps:
            patiently(connection, step)
        return [step.name for step in steps]


def script(*, roles: bool = True) -> str:
    """All of it as one text, for people who apply their own migrations."""
    steps = [*([roles_step()] if roles else []), *migrations(), functions()]
    parts = [*(step.text for step in steps), *(note(step) for step in steps if step.number != ROLES)]
    return "begin;\nset local check_function_bodies = off;\n\n" + "\n".join(parts) + "\ncommit;\n"


def missing(connection: Connection, roles: bool) -> list[Step]:
    applied = recorded(connection)
    known = migrations()
    unknown = [number for number in applied if number > known[-1].number]
    if unknown:
        raise SchemaVersionError(
            f"the schema is at migration {max(unknown)}, this Penstock knows {known[-1].number}",
            hint="Upgrade Penstock: pip install -U penstock.",
        )
    for step in known:
        if step.number in applied and applied[step.number] != step.checksum:
            raise SchemaVersionError(
                f"migration {step.name} was edited after it was applied",
                hint="Recreate the schema (drop schema penstock cascade; penstock init), or restore the file.",
            )
    steps = [roles_step()] if roles and not has_roles(connection) else []
    steps += [step for step in known if step.number not in applied]
    if steps or applied.get(FUNCTIONS) != functions().checksum:
        steps.append(functions())
    return steps


def has_roles(connection: Connection) -> bool:
    row = connection.execute("select count(*) from pg_roles where rolname = any(%s)", (list(ROLE_NAMES),)).fetchone()
    return row == (len(ROLE_NAMES),)


def recorded(connection: Connection) -> dict[int, str]:
    present = connection.execute("select to_regclass('penstock.migration') is not null").fetchone()
    if not present or not present[0]:
        return {}
    rows = connection.execute("select number, checksum from penstock.migration")
    return {int(number): str(checksum) for number, checksum in rows}


def patiently(connection: Connection, step: Step) -> None:
    """A step makes nobody wait for long: when it gets no lock in time, it lets all others pass and tries again."""
    for pause in (*PAUSES, None):
        try:
            with translated():
                apply(connection, step)
        except Unavailable as error:
            if error.reason != "retry" or pause is None:
                raise
            time.sleep(pause)
        except AuthError as error:
            if step.number != ROLES:
                raise
            raise AuthError(error.message, hint="Let an administrator run it once, or use init --no-roles.") from error
        else:
            return


def apply(connection: Connection, step: Step) -> None:
    with connection.transaction():
        connection.execute("set local check_function_bodies = off")
        connection.execute("set local client_min_messages = warning")
        connection.execute(f"set local lock_timeout = '{LOCK_SECONDS}s'".encode())
        connection.execute(step.text.encode())
        if step.number != ROLES:
            connection.execute(note(step).encode())


def note(step: Step) -> str:
    name = step.name.replace("'", "''")
    values = f"{step.number}, '{name}', '{step.checksum}'"
    return (
        f"insert into penstock.migration (number, name, checksum) values ({values})"  # noqa: S608 - our own file
        " on conflict (number) do update set checksum = excluded.checksum, applied_at = clock_timestamp();"
    )
