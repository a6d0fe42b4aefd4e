"""Applies sql/: migrations once, functions whenever their text changed. Each step in a transaction of its own, under an
advisory lock, so that any number of processes may start at once; nothing belongs to the session, so that a pooler may
stand between."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from importlib.resources import files

from penstock.database import Connection, Database
from penstock.errors import AuthError, SchemaVersionError, Unavailable
from penstock.wire import CONTRACT, OUR_CONTRACT, check_contract, translated

LOCK = 0x50454E53  # "PENS"
LOCK_SECONDS = 2
PAUSES = (0.5, 1, 2, 4, 8, 8, 8, 8, 8, 8)  # seconds between tries
FUNCTIONS = 0  # the row in penstock.migration that remembers which text the functions came from
ROLES = -1  # not in penstock.migration: roles belong to the cluster
ROLE_NAMES = ("penstock_producer", "penstock_worker", "penstock_reader", "penstock_admin")
SQL = files("penstock") / "sql"
# Names mean PostgreSQL's own, whatever else the installer's search_path offers.
SAFELY = "set local search_path = pg_catalog, pg_temp; set local check_function_bodies = off;"


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
    """Brings the schema up to date; answers the names of what it applied."""
    applied: list[str] = []
    with Database(dsn, source=source).session() as connection:
        while (name := patiently(connection, roles)) is not None:
            applied.append(name)
    return applied


def script(*, roles: bool = True) -> str:
    """All of it as one text, for people who apply their own migrations."""
    steps = [*([roles_step()] if roles else []), *migrations(), functions()]
    parts = [*(step.text for step in steps), *(note(step) for step in steps if step.number != ROLES)]
    return f"begin;\n{SAFELY}\n\n" + "\n".join(parts) + "\ncommit;\n"


def missing(connection: Connection, roles: bool) -> list[Step]:
    applied = recorded(connection)
    known = migrations()
    unknown = [number for number in applied if number > known[-1].number]
    if unknown:
        raise SchemaVersionError(
            f"the schema is at migration {max(unknown)}, this Penstock knows {known[-1].number}",
            hint="Upgrade Penstock: pip install -U penstock.",
        )
    if (theirs := contract(connection)) > OUR_CONTRACT:
        check_contract((theirs,))  # or an old client's init would take new functions back to old ones
    for step in known:
        if step.number in applied and applied[step.number] != step.checksum:
            raise SchemaVersionError(
                f"migration {step.name} was edited after it was applied",
                hint="Recreate the schema (drop schema penstock cascade; penstock init), or restore the file.",
            )
    steps = [roles_step()] if roles and not has_roles(connection) else []
    steps += [step for step in known if step.number not in applied]
    if steps or applied.get(FUNCTIONS) != functions().checksum or (roles and not has_grants(connection)):
        steps.append(functions())
    return steps


def has_roles(connection: Connection) -> bool:
    row = connection.execute("select count(*) from pg_roles where rolname = any(%s)", (list(ROLE_NAMES),)).fetchone()
    return row == (len(ROLE_NAMES),)


def has_grants(connection: Connection) -> bool:
    """Without them: applied before there were roles, or restored with --no-privileges."""
    usage = "select has_schema_privilege(oid, 'penstock', 'usage') from pg_roles where rolname = %s"
    return connection.execute(usage, (ROLE_NAMES[0],)).fetchone() == (True,)


def recorded(connection: Connection) -> dict[int, str]:
    present = connection.execute("select to_regclass('penstock.migration') is not null").fetchone()
    if not present or not present[0]:
        return {}
    rows = connection.execute("select number, checksum from penstock.migration")
    return {int(number): str(checksum) for number, checksum in rows}


def contract(connection: Connection) -> int:
    """Of the functions that are there; 0: none are."""
    present = connection.execute("select to_regprocedure('penstock.contract()') is not null").fetchone()
    row = connection.execute(CONTRACT).fetchone() if present and present[0] else None
    return int(row[0]) if row else 0


def patiently(connection: Connection, roles: bool) -> str | None:
    """A step makes nobody wait for long: when it gets no lock in time, it lets all others pass and tries again."""
    for pause in (*PAUSES, None):
        try:
            with translated():
                return advance(connection, roles)
        except Unavailable as error:
            if error.reason != "retry" or pause is None:
                raise
            time.sleep(pause)
    raise AssertionError


def advance(connection: Connection, roles: bool) -> str | None:
    """Applies the first of the steps that are missing, and answers its name; None: there is none."""
    with connection.transaction():
        # What another init did while we waited for it must be seen.
        connection.execute("set transaction isolation level read committed")
        connection.execute("set local search_path = pg_catalog, pg_temp")
        connection.execute("select pg_advisory_xact_lock(%s)", (LOCK,))
        steps = missing(connection, roles)
        if not steps:
            return None
        try:
            with translated():
                apply(connection, steps[0])
        except AuthError as error:
            if steps[0].number != ROLES:
                raise
            raise AuthError(error.message, hint="Let an administrator run it once, or use init --no-roles.") from error
        return steps[0].name


def apply(connection: Connection, step: Step) -> None:
    with connection.transaction():
        connection.execute(SAFELY.encode())
        connection.execute("set local client_min_messages = warning")
        connection.execute(f"set local lock_timeout = '{LOCK_SECONDS}s'".encode())
        connection.execute(step.text.encode())
        if step.number > FUNCTIONS:
            # After a migration the functions and grants come anew, changed or not.
            connection.execute("delete from penstock.migration where number = %s", (FUNCTIONS,))
        if step.number != ROLES:
            connection.execute(note(step).encode())


def note(step: Step) -> str:
    name = step.name.replace("'", "''")
    values = f"{step.number}, '{name}', '{step.checksum}'"
    return (
        f"insert into penstock.migration (number, name, checksum) values ({values})"  # noqa: S608 - our own file
        " on conflict (number) do update set checksum = excluded.checksum, applied_at = clock_timestamp();"
    )
