"""`penstock adopt` proposes how to drain a table that you have."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Annotated, Any

import typer

from penstock import validate
from penstock.backlog.indexes import Index
from penstock.backlog.propose import QueryPlan, TableInspection, inspect
from penstock.backlog.terms import explain_unused_zone
from penstock.cli.terminal.formatting import escape, format_cell
from penstock.cli.terminal.options import Shell, with_shell
from penstock.cli.terminal.output import print_interrupted, print_json, print_line, print_table
from penstock.errors import ValidationError, shown
from penstock.formatting import format_age, format_count, format_length

RepeatedText = list[str] | None


def make_option(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, show_default=False)


@with_shell
def adopt(
    shell: Shell,
    table: Annotated[str, typer.Argument(help="The table, as table, schema.table, or quoted as in SQL.")],
    *,
    key: Annotated[
        RepeatedText, make_option("A column of the key; you can repeat the option; default: the primary key.")
    ] = None,
    count_key: Annotated[
        bool, typer.Option("--count-key", help="Accept a key without a unique index if no two records share it.")
    ] = False,
    status: Annotated[str | None, make_option("The column with the status.")] = None,
    inserted: Annotated[
        str | None, make_option("The column with the insertion time of a record, or an index over an expression of it.")
    ] = None,
    ready: Annotated[RepeatedText, make_option("A status of records to handle; you can repeat the option.")] = None,
    ready_null: Annotated[
        bool, typer.Option("--ready-null", help="Handle records without a status (NULL), too.")
    ] = False,
    retry: Annotated[
        RepeatedText, make_option("A status of records to handle again later; you can repeat the option.")
    ] = None,
    done: Annotated[str | None, make_option("The status after a success.")] = None,
    failed: Annotated[str | None, make_option("The status after a failure; default: the first --retry.")] = None,
    dead: Annotated[str | None, make_option("The status after the last failure.")] = None,
    no_dead: Annotated[bool, typer.Option("--no-dead", help="Keep the failed status after the last failure.")] = False,
    strategy: Annotated[
        str, typer.Option(help="When failed records are tried again: progressive, fibonacci:1m, …")
    ] = "",
    failures: Annotated[str | None, make_option("A column that counts failures.")] = None,
    last_failure: Annotated[str | None, make_option("A column with the moment of the last failure.")] = None,
    max_attempts: Annotated[
        str | None, make_option("Attempts before a record is dead; none: the strategy decides.")
    ] = None,
    mode: Annotated[str | None, make_option("observe, sidecar or columns; default: what the table allows.")] = None,
    sla: Annotated[str | None, make_option("The promise: no record waits longer than this; none: no promise.")] = None,
    name: Annotated[str | None, make_option("The name of the backlog; default: the table's name.")] = None,
    tz: Annotated[
        str | None,
        make_option(
            "The time zone of moments without one, as Europe/Rome; default: the agreed one, else the session's."
        ),
    ] = None,
    takes: Annotated[str, typer.Option(help="How long one record takes, for the estimate.")] = "100ms",
    apply: Annotated[bool, typer.Option("--apply", help="Adopt the table and make the indexes.")] = False,
    index: Annotated[bool, typer.Option("--index/--no-index", help="Whether to propose and make indexes.")] = True,
) -> None:
    """Inspect a table that you have, and propose how to drain it where it is.

    It guesses the columns and the meaning of the statuses, counts records, and proposes indexes, with the query plans
    before and after. Nothing changes without --apply, which tries the statuses, stores the terms and makes the indexes.

    A second run keeps the stored terms, except those you give; `penstock backlog forget` starts again.

    Example: penstock adopt public.backlog --strategy fibonacci:1m --apply
    """
    terms = check_terms(
        key=key,
        count_key=count_key or None,
        status=status,
        inserted=inserted,
        ready=[*(ready or []), *([None] if ready_null else [])],
        retry=retry,
        done=done,
        failed=failed,
        dead=dead,
        no_dead=no_dead,
        strategy=strategy or None,
        failures=failures,
        last_failure=last_failure,
        max_attempts=max_attempts,
        mode=mode,
        sla=sla,
        name=name,
        tz=tz,
    )
    seconds = validate.positive(takes, "takes").total_seconds()
    found = inspect_table(shell, table, terms, apply=apply, index=index)
    if tz is not None and not found.terms.naive:
        sys.stderr.write(f"{explain_unused_zone(found.terms)}\n")
    if shell.json:
        print_json(inspection_json(found, seconds))
    elif not shell.quiet:
        print_inspection(found, seconds)


def check_terms(*, no_dead: bool, sla: str | None, max_attempts: str | None, **options: Any) -> dict[str, Any]:
    """Returns the terms that are given. A term that is None is given as `none`; the others are guessed."""
    terms = {name: value for name, value in options.items() if value not in (None, [])}
    if sla is not None:
        terms["sla"] = None if sla == "none" else sla
    if max_attempts is not None:
        terms["max_attempts"] = None if max_attempts == "none" else parse_max_attempts(max_attempts)
    if no_dead and options["dead"] is not None:
        raise ValidationError("dead: --dead and --no-dead contradict each other", field="dead")
    return terms | ({"dead": None} if no_dead else {})


def inspect_table(shell: Shell, table: str, terms: dict[str, Any], *, apply: bool, index: bool) -> TableInspection:
    try:
        with shell.connect() as penstock:
            return inspect(penstock.dsn, penstock.dsn_source, table, terms, apply=apply, index=index)[0]
    except KeyboardInterrupt:
        print_interrupted("run it again to make the missing indexes" if apply else "nothing was changed")
        raise


def inspection_json(found: TableInspection, takes: float) -> dict[str, Any]:
    terms = found.terms
    return {
        "table": str(terms.table),
        "name": terms.name,
        "mode": terms.mode,
        "terms": terms.to_json(),
        "strategy": terms.strategy.to_json(),
        "guessed": sorted(found.guessed),
        "statuses": dict(found.statuses),
        "undeclared": dict(found.undeclared),
        "ready": found.ready,
        "due": found.due,
        "later": found.later,
        "oldest_age": found.oldest_age,
        "undated": found.undated,
        "writable": found.writable,
        "drain_seconds": {str(n): found.drain_seconds(takes, n) for n in (1, 8)},
        "kept": sorted(found.kept),
        "indexes": [index_json(one) for one in found.indexes],
        "plans": [plan_json(one) for one in found.plans],
        "applied": found.applied,
    }


def index_json(one: Index) -> dict[str, Any]:
    return {
        "name": one.name,
        "statement": one.statement,
        "exists": one.exists,
        "state": one.state,
        "replaces": one.replaces,
        "partitions": one.partitions,
        "steps": list(one.steps),
    }


def plan_json(one: QueryPlan) -> dict[str, Any]:
    return {"what": one.what, "before": list(one.before), "after": None if one.after is None else list(one.after)}


def print_inspection(found: TableInspection, takes: float) -> None:
    terms = found.terms
    stands = "adopted" if found.applied or found.adopted else "to be adopted"
    print_line(f"table {escape(str(terms.table))}, {stands} as {terms.name}")
    print_terms(found)
    print_line("")
    roles = {"null" if one is None else one: word for word in ("ready", "retry") for one in getattr(terms, word)}
    roles |= {terms.done: "done", **({terms.dead: "dead"} if terms.dead is not None else {})}
    print_table(
        ("status", "records", "means"),
        [
            (format_cell(one), f"{count:,}", roles.get(one, "undeclared: left alone"))
            for one, count in found.statuses.items()
        ],
        words=("means",),
    )
    print_line("")
    oldest = format_age(found.oldest_age)
    print_line(f"to do now: {format_count(found.waiting, 'record')}, the oldest {oldest}; later: {found.later:,}")
    if found.undated:
        print_line(f"left alone, as {terms.inserted.name} is NULL: {format_count(found.undated, 'record')}")
    one, eight = (format_age(found.drain_seconds(takes, n)) for n in (1, 8))
    print_line(f"a drain at {format_age(takes)} a record: {one}, with 8 at once {eight}")
    print_indexes(found)
    if not found.writable and terms.mode != "observe":
        print_line(
            f"this role may not update {', '.join(one.name for one in terms.written)}: only --mode observe will do"
        )
    if not found.applied:
        makes = " and makes the indexes" if any(not one.exists for one in found.indexes) else ""
        print_line(f"nothing is changed; --apply {'keeps these terms' if found.adopted else 'adopts it'}{makes}")


def print_terms(found: TableInspection) -> None:
    terms = found.terms
    for name, value in terms.to_json().items():
        if value is None or name in ("count_key", "inserted_expression") or (name == "tz" and not terms.naive):
            continue
        shown = ", ".join("NULL" if one is None else one for one in value) if isinstance(value, list) else value
        if name == "inserted" and terms.inserted.expression is not None:
            shown = f"{value}: {terms.inserted.expression}"
        print_line(f"  {name:<13}{escape(shown)}{format_origin(name, found)}")
    kept = "  (agreed)" if "strategy" in found.kept else ""
    print_line(f"  {'strategy':<13}{terms.strategy.to_json()['type']}, {terms.mode}{kept}")
    for name, number in (("max_attempts", terms.max_attempts), ("sla", terms.sla)):
        if number is not None:
            value = format_length(number) if isinstance(number, timedelta) else str(number)
            print_line(f"  {name:<13}{value}{format_origin(name, found)}")


def format_origin(name: str, found: TableInspection) -> str:
    """Writes where a term comes from, if it is not given."""
    if name == "key" and found.terms.counted:
        return "  (counted)"
    if name == "tz" and name in found.guessed:
        return "  (guessed: the session's; moments without a zone are read in it, --tz sets another)"
    return "  (guessed)" if name in found.guessed else "  (agreed)" if name in found.kept else ""


def print_indexes(found: TableInspection) -> None:
    for one in found.indexes:
        instead = ", instead of one for other terms" if one.replaces else ""
        print_line(f"index {one.state}{instead}: {escape(one.statement)};")
        if one.partitions:
            parts = "partition" if one.partitions == 1 else "partitions"
            print_line(f"  then on {one.partitions:,} {parts}, concurrently, one after the other, and attached to it")
    for plan in found.plans:
        print_line(f"  {plan.what}, before: {escape('; '.join(plan.before))}")
        if plan.after is not None:
            where = " (on a sample)" if found.sampled else ""
            print_line(f"  {plan.what}, after{where}: {escape('; '.join(plan.after))}")


def parse_max_attempts(value: str) -> int:
    if not value.isdecimal():
        raise ValidationError(f"max_attempts: {shown(value)} is not a whole number or none", field="max_attempts")
    return int(value)
