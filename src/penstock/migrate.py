"""Applies sql/: migrations once, functions whenever their text changed. Under an advisory lock, so that any number of
processes may start at once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from penstock.database import Connection, Database
from penstock.errors import SchemaVersionError

LOCK = 0x50454E53  # "PENS"
FUNCTIONS = 0  # the row in penstock.migration that remembers which text the functions came from


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations() -> list[Step]:
    found = sorted((files("penstock") / "sql" / "migrations").iterdir(), key=lambda file: file.name)
    texts = [(file.name, file.read_text("utf-8")) for file in found if file.name.endswith(".sql")]
    return [Step(int(name[:4]), name, text) for name, text in texts]


def functions() -> Step:
    found = sorted((files("penstock") / "sql" / "functions").iterdir(), key=lambda file: file.name)
    text = "\n".join(file.read_text("utf-8") for file in found if file.name.endswith(".sql"))
    return Step(FUNCTIONS, "functions", text)


def plan(database: Database) -> list[Step]:
    """What `init` would apply, in order; nothing: the schema is up to date."""
    with database.session() as connection:
        return missing(connection)


def init(database: Database) -> list[Step]:
    """Brings the schema up to date. Each step is a transaction of its own."""
    with database.session() as connection:
        connection.execute("select pg_advisory_lock(%s)", (LOCK,))
        steps = missing(connection)
        for step in steps:
            apply(connection, step)
        return steps


def script() -> str:
    """All of it as one text, for people who apply their own migrations."""
    notes = "\n".join(note(step) for step in [*migrations(), functions()])
    parts = [*(step.text for step in migrations()), functions().text, notes]
    return "begin;\nset local check_function_bodies = off;\n\n" + "\n".join(parts) + "\ncommit;\n"


def missing(connection: Connection) -> list[Step]:
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
    steps = [step for step in known if step.number not in applied]
    if applied.get(FUNCTIONS) != functions().checksum:
        steps.append(functions())
    return steps


def recorded(connection: Connection) -> dict[int, str]:
    present = connection.execute("select to_regclass('penstock.migration') is not null").fetchone()
    if not present or not present[0]:
        return {}
    rows = connection.execute("select number, checksum from penstock.migration")
    return {int(number): str(checksum) for number, checksum in rows}


def apply(connection: Connection, step: Step) -> None:
    with connection.transaction():
        connection.execute("set local check_function_bodies = off")
        connection.execute("set local client_min_messages = warning")
        connection.execute(step.text.encode())
        connection.execute(note(step).encode())


def note(step: Step) -> str:
    name = step.name.replace("'", "''")
    values = f"{step.number}, '{name}', '{step.checksum}'"
    return (
        f"insert into penstock.migration (number, name, checksum) values ({values})"  # noqa: S608 - our own file
        " on conflict (number) do update set checksum = excluded.checksum, applied_at = clock_timestamp();"
    )
