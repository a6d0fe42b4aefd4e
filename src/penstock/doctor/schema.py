"""Checks of the schema: its migrations, its functions and its roles."""

from __future__ import annotations

from penstock import migrate
from penstock.client.session import CONTRACT, OUR_CONTRACT
from penstock.client.session import check_contract as require_contract
from penstock.doctor.inspection import Finding, Inspection, report_ok
from penstock.errors import SchemaVersionError
from penstock.formatting import format_count
from penstock.revisions import our_revision


def check_schema(inspection: Inspection) -> list[Finding]:
    if inspection.has_schema:
        return report_ok("schema", "the schema penstock exists")
    return [Finding("schema", "error", "there is no schema penstock in this database", "Run `penstock init`.")]


def check_migrations(inspection: Inspection) -> list[Finding]:
    with inspection.reading() as connection:
        try:
            missing = [step.name for step in migrate.list_missing(connection, roles=False)]
            newer = migrate.find_newer(connection)
            revision = migrate.read_number(connection, "revision")
        except SchemaVersionError as other:
            return [Finding("migrations", "error", other.message, other.hint)]
    numbers = {"revision": revision}
    if newer:
        fix = "Upgrade this Penstock before the schema is upgraded again."
        return [
            Finding("functions", "info", f"the schema is newer, and serves this Penstock: it {newer}", fix, numbers)
        ]
    if not missing:
        what = f"all migrations are applied, and the functions are those of this Penstock (revision {revision})"
        return report_ok("migrations", what, **numbers)
    *older, _functions = missing
    if older:
        what = f"{format_count(len(older), 'migration')} not applied: {', '.join(older)}"
        return [Finding("migrations", "error", what, "Run `penstock init`.", numbers | {"missing": len(older)})]
    what = (
        f"the functions in the database (revision {revision}) differ from this Penstock's (revision {our_revision()})"
    )
    return [
        Finding("functions", "warning", what, "Run `penstock init` with the newest Penstock that you use.", numbers)
    ]


def check_contract(inspection: Inspection) -> list[Finding]:
    try:
        contract, oldest = inspection.row(CONTRACT)
        require_contract((contract, oldest))
    except SchemaVersionError as other:
        return [Finding("contract", "error", other.message, other.hint)]
    what = (
        f"the functions have contract {contract} and serve clients from {oldest} on; this Penstock has {OUR_CONTRACT}"
    )
    return report_ok("contract", what, contract=contract, oldest_client=oldest)


def check_roles(inspection: Inspection) -> list[Finding]:
    with inspection.reading() as connection:
        there = migrate.has_roles(connection)
        granted = there and (not inspection.has_schema or migrate.has_grants(connection))
    if not there:
        what = "the roles of Penstock do not exist: every program has to connect as the owner"
        return [Finding("roles", "info", what, "Let a user that can create roles run `penstock init`.")]
    if not granted:  # the schema was restored without privileges, or applied before the roles existed
        what = "the roles of Penstock have no rights in this database"
        return [Finding("roles", "warning", what, "Let the owner of the schema run `penstock init`.")]
    return report_ok("roles", "the roles penstock_producer, _worker, _reader and _admin exist")
