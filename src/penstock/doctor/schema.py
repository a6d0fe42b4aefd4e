"""Checks of the schema: its migrations, its functions and its roles."""

from __future__ import annotations

from penstock import migrate
from penstock.client.session import CONTRACT, OUR_CONTRACT
from penstock.client.session import check_contract as require_contract
from penstock.doctor.inspection import Finding, Inspection, report_ok
from penstock.errors import SchemaVersionError
from penstock.formatting import format_count


def check_schema(inspection: Inspection) -> list[Finding]:
    if inspection.has_schema:
        return report_ok("schema", "the schema penstock exists")
    return [Finding("schema", "error", "there is no schema penstock in this database", "Run `penstock init`.")]


def check_migrations(inspection: Inspection) -> list[Finding]:
    with inspection.reading() as connection:
        try:
            missing = [step.name for step in migrate.list_missing(connection, roles=False)]
        except SchemaVersionError as newer:
            return [Finding("migrations", "error", newer.message, newer.hint)]
    if not missing:
        return report_ok("migrations", "all migrations are applied, and the functions are those of this Penstock")
    *older, _functions = missing
    if older:
        what = f"{format_count(len(older), 'migration')} not applied: {', '.join(older)}"
        return [Finding("migrations", "error", what, "Run `penstock init`.", {"missing": len(older)})]
    what = "the text of the functions in the database differs from this Penstock's"
    return [Finding("functions", "warning", what, "Run `penstock init` with the newest Penstock that you use.")]


def check_contract(inspection: Inspection) -> list[Finding]:
    try:
        require_contract(inspection.row(CONTRACT))
    except SchemaVersionError as other:
        return [Finding("contract", "error", other.message, other.hint)]
    return report_ok(
        "contract", f"the functions have contract {OUR_CONTRACT}, which this Penstock expects", contract=OUR_CONTRACT
    )


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
