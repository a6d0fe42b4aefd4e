"""Applies the files of sql/: migrations once, functions whenever their text changed, unless the schema is newer than
these files. Each step is a transaction of its own, under a lock on the schema's own table, so that any number of
processes may start at once. It uses no session state, so that a pooler may stand between."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import NamedTuple

from penstock.client.connections import Connection
from penstock.client.database import Database
from penstock.client.session import OUR_CONTRACT, check_contract
from penstock.client.sqlstate import translate_errors
from penstock.errors import AuthError, ConfigError, SchemaVersionError, Unavailable
from penstock.revisions import Revision, our_revision

LOG = logging.getLogger("penstock.migrate")
LOCK_SECONDS: float = 2
PAUSES = (0.5, 1, 2, 4, 8, 8, 8, 8, 8, 8)  # seconds between tries
FUNCTIONS = 0  # the row in penstock.migration with the checksum of the functions
ROLES = -1  # it is not in penstock.migration, because roles belong to the cluster
ROLE_NAMES = ("penstock_producer", "penstock_worker", "penstock_reader", "penstock_operator", "penstock_admin")
SQL = files("penstock") / "sql"
# Names resolve to PostgreSQL's own, and texts are read as written, whatever the installer's session has set. That the
# functions of former versions do not exist is not worth a notice.
SAFELY = (
    "set local search_path = pg_catalog, pg_temp; set local check_function_bodies = off; "
    "set local client_encoding = 'UTF8'; set local standard_conforming_strings = on; "
    "set local quote_all_identifiers = off; set local array_nulls = on; set local client_min_messages = warning;"
)
# This runs before anything is written: otherwise half of the schema would exist in another encoding when the first text
# fails.
REFUSE_ENCODING = """do $$
begin
    if pg_catalog.current_setting('server_encoding') operator(pg_catalog.<>) 'UTF8' then
        raise exception 'the encoding of this database is %, and Penstock needs UTF8',
            pg_catalog.current_setting('server_encoding')
            using hint = 'Create a database with: create database name encoding ''UTF8'' template template0;';
    end if;
end
$$;"""
# It locks the table as `init` does, so that no other upgrade comes between the check and the steps. A step that cannot
# get a lock fails soon, because clients would queue behind it.
REFUSE_OTHERS = """set local lock_timeout = '{seconds}s';
do $$
declare
    v_revision int := 0;
    v_other    text;
begin
    if to_regclass('penstock.migration') is null then
        raise exception 'this script upgrades Penstock from revision {revision}, and this database has no Penstock'
            using hint = 'Apply the whole schema: penstock init --sql';
    end if;
    lock table penstock.migration in share row exclusive mode;
    if to_regprocedure('penstock.revision()') is not null then
        v_revision := penstock.revision();
    end if;
    if v_revision <> {revision} then
        raise exception 'this script upgrades Penstock from revision {revision} to {ours}, and this database is at '
            'revision %', v_revision
            using hint = case
                when v_revision = {ours} then 'It has been upgraded already: there is nothing to do.'
                when v_revision > {ours} then 'It is newer than this script: there is nothing to do.'
                when v_revision = 0 then 'It is older than all revisions: run penstock init.'
                else 'Print the script for it: penstock init --sql --from ' || v_revision
            end;
    end if;
    select string_agg(number::text, ', ' order by number) into v_other
    from (values {rows}) as ours(number, checksum)
    full join (select number, checksum from penstock.migration where number > 0) as theirs using (number)
    where ours.checksum is distinct from theirs.checksum;
    if v_other is not null then
        raise exception 'migration % of this database differs from that of revision {revision}', v_other
            using hint = 'penstock doctor says what is wrong.';
    end if;
end
$$;"""


@dataclass(frozen=True, slots=True)
class Step:
    """One file of SQL to apply, or all functions together."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """The SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations() -> list[Step]:
    """Returns all migrations in their order."""
    found = sorted((SQL / "migrations").iterdir(), key=lambda file: file.name)
    texts = [(file.name, file.read_text("utf-8")) for file in found if file.name.endswith(".sql")]
    return [Step(int(name[:4]), name, text) for name, text in texts]


def functions() -> Step:
    """Returns the step that contains all functions and their grants."""
    found = sorted((SQL / "functions").iterdir(), key=lambda file: file.name)
    parts = [file.read_text("utf-8") for file in found if file.name.endswith(".sql")]
    return Step(FUNCTIONS, "functions", "\n".join([*parts, (SQL / "grants.sql").read_text("utf-8")]))


def roles_step() -> Step:
    """Returns the step that creates the roles."""
    return Step(ROLES, "roles", (SQL / "roles.sql").read_text("utf-8"))


class Upgrade(NamedTuple):
    """What `init` applies, or would apply: the names of the steps in order. `newer` says in which way the schema is
    newer than this Penstock; in that case there are no steps."""

    steps: list[str]
    newer: str | None


def plan(dsn: str, source: str = "dsn", *, roles: bool = True) -> list[str]:
    """Returns the names of the steps that `init` would apply, in order; an empty list means that the schema is up to
    date, or newer than this Penstock."""
    return find_upgrade(dsn, source, roles=roles).steps


def init(dsn: str, source: str = "dsn", *, roles: bool = True) -> list[str]:
    """Brings the schema up to date and returns the names of the steps that it applied. It logs a warning if the schema
    is newer than this Penstock."""
    done = upgrade(dsn, source, roles=roles)
    if done.newer:
        LOG.warning("init leaves the schema as it is: it %s", done.newer)
    return done.steps


def find_upgrade(dsn: str, source: str = "dsn", *, roles: bool = True) -> Upgrade:
    """Returns what `upgrade` would apply."""
    with Database(dsn, source=source).session() as connection:
        check_encoding(connection)
        with reading(connection):
            return Upgrade([step.name for step in list_missing(connection, roles)], find_newer(connection))


def upgrade(dsn: str, source: str = "dsn", *, roles: bool = True) -> Upgrade:
    """Brings the schema up to date, unless it is newer than this Penstock."""
    applied: list[str] = []
    with Database(dsn, source=source).session() as connection:
        check_encoding(connection)
        while (name := apply_patiently(connection, roles)) is not None:
            applied.append(name)
        with reading(connection):
            return Upgrade(applied, find_newer(connection))


@contextmanager
def reading(connection: Connection) -> Iterator[None]:
    """A transaction in which names resolve to PostgreSQL's own."""
    with connection.transaction():
        connection.execute("set local search_path = pg_catalog, pg_temp")
        yield


def script(*, roles: bool = True, since: Revision | None = None) -> str:
    """Returns all steps as one text, for projects that apply their own migrations. With `since` it returns only those
    that a schema of that revision lacks, behind a check that the database has such a schema."""
    guards, steps = [REFUSE_ENCODING], [*migrations(), functions()]
    if since is not None:
        guards, steps = [REFUSE_ENCODING, make_guard(since)], list_since(since)
    steps = [*([roles_step()] if roles and steps else []), *steps]
    parts = [*(step.text for step in steps), *(note(step) for step in steps if step.number != ROLES)]
    return "\n".join(["begin isolation level read committed;", SAFELY, *guards, "", *parts, "commit;", ""])


def list_since(since: Revision) -> list[Step]:
    """Returns the steps that a schema of that revision lacks."""
    if since.number == our_revision():
        return []
    return [*(step for step in migrations() if step.number > since.migration), functions()]


def make_guard(since: Revision) -> str:
    """Returns the statement that refuses a database that does not have the schema of that revision."""
    applied = [step for step in migrations() if step.number <= since.migration]
    rows = ", ".join(f"({step.number}, '{step.checksum}')" for step in applied)
    return REFUSE_OTHERS.format(revision=since.number, ours=our_revision(), rows=rows, seconds=LOCK_SECONDS)


def check_encoding(connection: Connection) -> None:
    """Refuses a database that cannot hold every text. PostgreSQL reports its encoding when a connection begins."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise ConfigError(
            f"the encoding of database {connection.info.dbname} is {encoding}, and Penstock needs UTF8",
            hint="Create another one: create database … encoding 'UTF8' template template0.",
        )


def list_missing(connection: Connection, roles: bool) -> list[Step]:
    """Returns the steps that are not applied yet: none if the schema is newer. It raises SchemaVersionError if the
    schema is too new for this Penstock, or was edited."""
    newer = find_newer(connection)
    applied = read_checksums(connection)
    known = migrations()
    check_unedited(known, applied)
    if newer:
        return []
    steps = [roles_step()] if roles and not has_roles(connection) else []
    steps += [step for step in known if step.number not in applied]
    if steps or applied.get(FUNCTIONS) != functions().checksum or (roles and not has_grants(connection)):
        steps.append(functions())
    return steps


def check_unedited(known: list[Step], applied: dict[int, str]) -> None:
    """Refuses a schema in which a migration was applied with another text."""
    for step in known:
        if step.number in applied and applied[step.number] != step.checksum:
            raise SchemaVersionError(
                f"migration {step.name} was edited after it was applied",
                hint="Recreate the schema (drop schema penstock cascade; penstock init), or restore the file.",
            )


def find_newer(connection: Connection) -> str | None:
    """Returns in which way the schema is newer than this Penstock, or None if it is not. It raises SchemaVersionError
    if the schema no longer serves clients of this contract.

    Functions of a newer schema are never replaced: an old program that runs `init` when it starts would otherwise put
    back its own functions under all others."""
    theirs = read_number(connection, "contract")
    if theirs > OUR_CONTRACT:
        check_contract((theirs, read_number(connection, "oldest_client")))
    pairs = (
        ("migration", max(read_checksums(connection), default=0), migrations()[-1].number),
        ("revision", read_number(connection, "revision"), our_revision()),
        ("contract", theirs, OUR_CONTRACT),
    )
    newer = [f"is at {what} {found}, and this Penstock has {ours}" for what, found, ours in pairs if found > ours]
    return newer[0] if newer else None


def has_roles(connection: Connection) -> bool:
    """Returns whether the cluster has all roles of Penstock."""
    row = connection.execute("select count(*) from pg_roles where rolname = any(%s)", (list(ROLE_NAMES),)).fetchone()
    return row == (len(ROLE_NAMES),)


def has_grants(connection: Connection) -> bool:
    """Returns whether the roles have their grants. They are missing if the schema was applied before the roles existed,
    or was restored with --no-privileges."""
    usage = "select has_schema_privilege(oid, 'penstock', 'usage') from pg_roles where rolname = %s"
    return connection.execute(usage, (ROLE_NAMES[0],)).fetchone() == (True,)


def read_checksums(connection: Connection) -> dict[int, str]:
    """Returns the checksums of the applied steps, by number."""
    present = connection.execute("select to_regclass('penstock.migration') is not null").fetchone()
    if not present or not present[0]:
        return {}
    rows = connection.execute("select number, checksum from penstock.migration")
    return {int(number): str(checksum) for number, checksum in rows}


def read_number(connection: Connection, name: str) -> int:
    """Returns what the installed functions say of their version: their contract, oldest_client or revision. It is 0 if
    they do not have that function."""
    present = connection.execute("select to_regprocedure(%s) is not null", (f"penstock.{name}()",)).fetchone()
    row = connection.execute(f"select penstock.{name}()".encode()).fetchone() if present and present[0] else None
    return int(row[0]) if row else 0


def apply_patiently(connection: Connection, roles: bool) -> str | None:
    """Applies the next step without blocking others for long: if it gets no lock in time, it lets all others pass and
    tries again."""
    for pause in (*PAUSES, None):
        try:
            with translate_errors():
                return advance(connection, roles)
        except Unavailable as error:
            if error.reason != "retry":
                raise
            if pause is None:
                raise make_blocked_error(connection, error) from error
            time.sleep(pause)
    raise AssertionError


HOLDER = """
    select l.pid, a.usename, a.application_name, c.relname
    from pg_catalog.pg_locks as l
    join pg_catalog.pg_class as c on c.oid operator(pg_catalog.=) l.relation
    join pg_catalog.pg_stat_activity as a on a.pid operator(pg_catalog.=) l.pid
    where c.relnamespace operator(pg_catalog.=) pg_catalog.to_regnamespace('penstock') and c.relkind in ('r', 'p')
      and l.granted and a.datname operator(pg_catalog.=) pg_catalog.current_database()
      and l.pid operator(pg_catalog.<>) pg_catalog.pg_backend_pid()
    order by a.xact_start, l.pid
    limit 1
"""


def make_blocked_error(connection: Connection, error: Unavailable) -> Unavailable:
    """Returns an error that names the session that blocked `init`, if it can be seen."""
    row = connection.execute(HOLDER).fetchone()
    if row is None:
        return error
    pid, role, program, table = row
    return Unavailable(
        f"init could not get its locks: process {pid} of role {role} ({program!r}) holds penstock.{table}",
        hint=f"Let its transaction end, or end it with `select pg_terminate_backend({pid})`; then run init again.",
        reason="retry",
    )


def advance(connection: Connection, roles: bool) -> str | None:
    """Applies the first missing step and returns its name, or None if no step is missing."""
    with connection.transaction():
        # This transaction must see what another init did while it waited for that one.
        connection.execute("set transaction isolation level read committed")
        connection.execute("set local search_path = pg_catalog, pg_temp")
        connection.execute(f"set local lock_timeout = '{LOCK_SECONDS}s'".encode())
        if not list_missing(connection, roles):
            return None
        exclude_others(connection)
        steps = list_missing(connection, roles)
        if not steps:
            return None
        try:
            with translate_errors():
                apply(connection, steps[0])
        except AuthError as error:
            if steps[0].number != ROLES:
                raise
            raise AuthError(error.message, hint="Let an administrator run it once, or use init --no-roles.") from error
        return steps[0].name


def exclude_others(connection: Connection) -> None:
    """Waits for any other init, and makes later ones wait until this transaction ends. It locks a table that only the
    owner may lock: any login could take, and keep, an advisory lock."""
    if not read_checksums(connection):
        connection.execute("create schema if not exists penstock")
    if read_checksums(connection):  # another init may have created it since the first look, when nothing was locked
        connection.execute("lock table penstock.migration in share row exclusive mode")


def apply(connection: Connection, step: Step) -> None:
    """Applies one step and records it."""
    with connection.transaction():
        connection.execute(SAFELY.encode())
        connection.execute(f"set local lock_timeout = '{LOCK_SECONDS}s'".encode())
        connection.execute(step.text.encode())
        if step.number > FUNCTIONS:
            # After a migration the functions and grants are applied again, changed or not.
            connection.execute("delete from penstock.migration where number = %s", (FUNCTIONS,))
        if step.number != ROLES:
            connection.execute(note(step).encode())


def note(step: Step) -> str:
    """Returns the statement that records a step."""
    name = step.name.replace("'", "''")
    values = f"{step.number}, '{name}', '{step.checksum}'"
    return (
        f"insert into penstock.migration (number, name, checksum) values ({values})"  # noqa: S608 - the values come from the package's own file
        " on conflict (number) do update set checksum = excluded.checksum, applied_at = clock_timestamp();"
    )
