"""Writes docs/reference/ from the code (`make reference`): the shell, Python, the scaler, Spark, the pipeline, SQL,
errors and settings. A test compares the files."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any, ForwardRef, NamedTuple, is_typeddict

import typer.main

import penstock
import penstock.pipeline
import penstock.scaler
import penstock.spark
from penstock import dsn, errors, validate
from penstock.cli import tree as shell
from penstock.cli.commands.work import SUPERVISORS
from penstock.client import spool
from penstock.spark import options as spark_options

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "penstock"
PLACE = ROOT / "docs" / "reference"
HEADER = "<!-- Written by scripts/make_reference.py (`make reference`): edit the code, never this. -->\n\n"
SHARED = ("--json", "--quiet", "--dsn", "--verbose", "--debug", "--help")  # described once, for all commands


def cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def table(head: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> str:
    lines: list[tuple[object, ...]] = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell(one) for one in line) + " |\n" for line in lines)


def words(text: str | None) -> str:
    """Returns a docstring or a help text as paragraphs."""
    return dedent(inspect.cleandoc(text or "")).strip()


# --- the shell --------------------------------------------------------------------------------------------------------


SHELL = """\
All commands have `--help` and `--debug`; where they apply `--json` (one JSON value), `-q`, `--dsn` and `-v`.
Exit codes: 0 ok, 1 failed, 2 usage, 3 configuration, 4 unavailable, 130 Ctrl-C. Commands that cannot be undone ask on
a terminal, and need `--yes` elsewhere.
"""


def cli() -> str:
    root: Any = typer.main.get_command(shell())
    parts = [f"# The shell\n\n{words(root.help)}\n\n{SHELL}"]
    return "".join([*parts, *commands(root, "penstock")])


def commands(command: Any, path: str) -> Iterator[str]:
    children = getattr(command, "commands", {})
    if path != "penstock":
        yield f"\n## {path}\n\n{paragraphs(command.help)}\n"
    if path != "penstock" and (not children or command.invoke_without_command):
        yield parameters(command)
    for name, child in children.items():
        yield from commands(child, f"{path} {name}")


def paragraphs(help_text: str | None) -> str:
    text = words(help_text).replace("<", "&lt;")
    return re.sub(r"^Example: (.*)$", r"Example: `\1`", text, flags=re.MULTILINE)


def parameters(command: Any) -> str:
    rows = [
        (f"`{spelt(one)}`", one.help or "", default_of(one))
        for one in command.params
        if not set(one.opts) & set(SHARED) and not getattr(one, "hidden", False)
    ]
    return "\n" + table(("", "means", "default"), rows) if rows else ""


def spelt(parameter: Any) -> str:
    if not parameter.opts[0].startswith("-"):
        return str(parameter.metavar or parameter.name).upper() + ("" if parameter.required else "?")
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def default_of(parameter: Any) -> str:
    if parameter.required:
        return "required"
    shown = parameter.default is not None and parameter.default is not False and parameter.show_default
    return f"`{parameter.default}`" if shown and not callable(parameter.default) else ""


# --- Python -----------------------------------------------------------------------------------------------------------

# The classes that users call come first.
FIRST = ("Penstock", "Queue", "Handler", "Context", "Outcome", "NewTask", "Backlog")
# Classes that users make. For all others, which users only receive, no constructor is shown.
MADE = {
    "Penstock",
    "NewTask",
    "CustomRetry",
    "Delays",
    "Exponential",
    "Fibonacci",
    "Fixed",
    "Progressive",
    "Deadline",
    "Decision",
    "Fleet",
    "Limits",
    "Profile",
    "Sample",
    "Signals",
    "Trace",
    "Want",
    "Contender",
    "Lake",
    "Question",
    "Recording",
    "RetryPlan",
    "Stage",
}
# The commands whose options have the names and meanings of a TypedDict's keys.
OPTIONS_OF = {"WorkerOptions": "work", "ScalerOptions": "scale run", "QueueChanges": "queues create"}
SWITCHES = {
    "notify": "Pushes wake idle workers; off for two-phase commit, which refuses it. By `queue.set`.",
    "paused": "Claims answer nothing; pushes go on, what runs may settle. By `pause` and `resume`.",
}
PYTHON = """\
# Python

`from penstock import …`. `AsyncPenstock`, `AsyncQueue`, `AsyncHandler`, `AsyncContext`, `AsyncItems` and
`AsyncRunHandler` are like `Penstock`, `Queue`, `Handler`, `Context`, `Items` and `RunHandler`, and they or their
methods are awaited.
[Errors](errors.md) have a page of their own.
"""
SCALER = """\
# The scaler

`from penstock.scaler import …`: policies, what they decide from, and the simulator that judges them. How they are
used: [the scaler](../scaler.md) and [scaling](../scaling.md).
"""
PIPELINE = """\
# The pipeline

`from penstock.pipeline import …`: the lake, its stages, reports, evidence and backtests. How they are used:
[pipeline](../pipeline.md), [report](../report.md) and [backtest](../backtest.md).
"""


def python() -> str:
    names = [name for name in penstock.__all__ if not is_error(name)]
    ordered = [*FIRST, *(name for name in names if name not in FIRST)]
    return "".join([PYTHON, *(described(penstock, name) for name in ordered if not name.startswith("Async"))])


def scaler() -> str:
    return "".join([SCALER, *(described(penstock.scaler, name) for name in penstock.scaler.__all__)])


def pipeline() -> str:
    return "".join([PIPELINE, *(described(penstock.pipeline, name) for name in penstock.pipeline.__all__)])


def is_error(name: str) -> bool:
    found = getattr(penstock, name)
    return isinstance(found, type) and issubclass(found, Exception)


def described(package: ModuleType, name: str, level: str = "##") -> str:
    """Returns the section of a public name."""
    found = getattr(package, name)
    if inspect.ismodule(found):
        body = [words(found.__doc__), *(signed(f"{name}.{one}", value) for one, value in functions_of(found))]
    elif inspect.isclass(found) and found.__module__.startswith("penstock"):
        body = [*shape(name, found), *(member_section(one, value) for one, value in public(found))]
    elif inspect.isfunction(found):
        body = [signed(name, found)]
    else:
        body = [*alias(package, name)]
    return re.sub(
        r"\n{3,}", "\n\n", "\n\n".join([f"\n{level} {name}", *(part.rstrip() for part in body if part)]) + "\n"
    )


def signed(name: str, found: Any) -> str:
    return f"```python\n{call(name, found)}\n```\n\n{words(found.__doc__)}"


def member_section(name: str, found: Any) -> str:
    return f"**`{name}`** {words(found.fget.__doc__)}" if isinstance(found, property) else signed(name, found)


def functions_of(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
            yield name, value


def shape(name: str, found: Any) -> Iterator[str]:
    """Yields how a class is made, or, if users only receive it, its fields; and its docstring."""
    fields = not is_typeddict(found) and (dataclasses.is_dataclass(found) or issubclass(found, tuple))
    if name in MADE:
        yield f"```python\n{call(name, found)}\n```"
    yield own_words(found)
    if is_typeddict(found):
        told = SWITCHES | options_of(OPTIONS_OF[name])
        rows = [(f"`{key}`", f"`{typed(kind)}`", told[key]) for key, kind in found.__annotations__.items()]
        yield table(("name", "type", "meaning"), rows)
    elif fields and name not in MADE:
        told = comments(found)
        rows = [(f"`{key}`", f"`{typed(kind)}`", told.get(key, "")) for key, kind in fields_of(found).items()]
        columns = 3 if told else 2
        yield table(("field", "type", "meaning")[:columns], [row[:columns] for row in rows])


def options_of(command: str) -> dict[str, str]:
    """Returns the help texts of a command's options, by name."""
    found: Any = typer.main.get_command(shell())
    for word in command.split():
        found = found.commands[word]
    return {one.name: one.help or "" for one in found.params}


def fields_of(found: Any) -> dict[str, Any]:
    """Returns the types of a dataclass's or a named tuple's public fields."""
    if dataclasses.is_dataclass(found):
        return {one.name: one.type for one in dataclasses.fields(found) if not one.name.startswith("_")}
    return {key: kind for key, kind in found.__annotations__.items() if not key.startswith("_")}


def comments(found: Any) -> dict[str, str]:
    """Returns the comments behind the fields in the code."""
    return dict(re.findall(r"^    (\w+): [^\n#]*#  ?([^\n]*)$", inspect.getsource(found), re.MULTILINE))


def alias(package: ModuleType, name: str) -> Iterator[str]:
    """Yields the definition of a type alias, and the docstring below it."""
    found = find_alias(package, name)
    yield f"```python\n{name} = {found.text}\n```"
    yield found.meaning


class Alias(NamedTuple):
    """A type alias as it is written, the docstring below it, and the module that defines it."""

    text: str
    meaning: str
    module: str


def find_alias(package: ModuleType, name: str) -> Alias:
    """Finds where an alias is assigned, by following the imports from the package on."""
    body = ast.parse(inspect.getsource(package)).body
    for one, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and one.targets[0].id == name:
            told = below.value if isinstance(below, ast.Expr) else None
            meaning = words(str(told.value)) if isinstance(told, ast.Constant) else ""
            return Alias(ast.unparse(one.value), meaning, package.__name__)
    for node in ast.walk(ast.Module(body, [])):
        if isinstance(node, ast.ImportFrom) and node.module and name in {one.name for one in node.names}:
            return find_alias(import_module(node.module), name)
    raise SystemExit(f"{package.__name__}.{name}: no assignment")


def own_words(found: Any) -> str:
    """Returns the docstring, unless a dataclass or a named tuple has generated it."""
    text = words(found.__doc__)
    return "" if re.match(rf"{found.__name__}\(", text) else text


def public(found: Any) -> Iterator[tuple[str, Any]]:
    """Yields methods and properties in the order of the code: its own, and then those of its base classes."""
    kinds = (property, classmethod, staticmethod)
    members: dict[str, Any] = {}
    for base in found.__mro__:
        if base.__module__.startswith("penstock"):
            members = members | {name: value for name, value in vars(base).items() if name not in members}
    for name, value in members.items():
        if name.startswith("_") or not (inspect.isfunction(value) or isinstance(value, kinds)):
            continue
        yield name, value if isinstance(value, property) else getattr(found, name)


def call(name: str, found: Callable[..., Any]) -> str:
    signature = inspect.signature(found)
    given = [one for one in signature.parameters.values() if one.name != "self"]
    parts: list[str] = []
    for one in given:
        if one.kind is one.KEYWORD_ONLY and not any(p == "*" or p.startswith("*") for p in parts):
            parts.append("*")
        stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        parts.append(stars + one.name + annotation(one.annotation) + value(one))
    answer = signature.return_annotation
    answer = "" if answer in (inspect.Signature.empty, "None", None) else answer
    flat = f"{name}({', '.join(parts)})"
    if len(flat) > 110:
        flat = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + ")"
    return flat + (f" -> {typed(answer)}" if answer else "")


def typed(given: object) -> str:
    if isinstance(given, ForwardRef):  # the field of a named tuple
        return given.__forward_arg__
    return given if isinstance(given, str) else getattr(given, "__name__", str(given))


def annotation(given: object) -> str:
    return "" if given is inspect.Parameter.empty else f": {typed(given)}"


def value(one: inspect.Parameter) -> str:
    if one.default is one.empty:
        return ""
    plain = one.default is None or isinstance(one.default, str | int | float | bool | tuple)
    return f" = {one.default!r}" if plain else " = …"


# --- SQL --------------------------------------------------------------------------------------------------------------

FUNCTION = re.compile(
    r"(?P<comment>(?:^--[^\n]*\n)*)^create or replace function penstock\.(?P<name>\w+)\((?P<given>.*?)\)\s+"
    r"(?:returns (?P<answer>table \(.*?\)|[^\n]+?)(?:\s+as \$\$|\s*\n?\s*language)|(?=language))",
    re.MULTILINE | re.DOTALL,
)
SQL = """\
# SQL

All behaviour is functions of the schema `penstock`; any language that speaks to PostgreSQL can call them. Below
are the public functions, each with the roles that may call it; `penstock_admin` may call all of them. Other
functions are internal. Errors have the SQLSTATEs PS400 (validation), PS404, PS409, PS413 and PS422 (payload).
"""


def sql() -> str:
    roles = grants()
    parts = [SQL]
    for path in sorted((SOURCE / "sql" / "functions").glob("*.sql")):
        text = path.read_text("utf-8")
        found = [one for one in FUNCTION.finditer(text) if one["name"] in roles]
        if found:
            first = re.match(r"(?:--[^\n]*\n)+", text)
            parts.append(f"\n## {path.stem}\n\n{uncommented(first[0] if first else '')}\n")
            parts += [function(one, roles[one["name"]], first[0] if first else "") for one in found]
    return "".join(parts)


def grants() -> dict[str, list[str]]:
    text = (SOURCE / "sql" / "grants.sql").read_text("utf-8")
    found: dict[str, list[str]] = {}
    for role, names in re.findall(r"\('penstock_(\w+)', array\[(.*?)\]\)", text, re.DOTALL):
        for name in re.findall(r"'(\w+)'", names):
            found.setdefault(name, []).append(role)
    return found


def uncommented(text: str) -> str:
    return "\n".join(line.removeprefix("--").strip() for line in text.splitlines())


def function(found: re.Match[str], roles: list[str], of_file: str) -> str:
    given, *out = re.split(r",? \bout (?=\w+ )", " ".join(found["given"].split()))
    if len(given) > 80:
        given = "\n    " + ",\n    ".join(re.split(r", (?=p_)", given)) + "\n"
    body = f"penstock.{found['name']}({given})"
    said = "" if found["comment"] == of_file else uncommented(found["comment"])
    same = getattr(penstock.Queue, found["name"], None) or getattr(penstock.Penstock, found["name"], None)
    meant = words(same.__doc__).split("\n\n")[0] if same is not None else ""
    told = "\n\n".join(part for part in (meant, said) if part)
    answer = " ".join(found["answer"].split()) if found["answer"] else f"record ({', '.join(out)})"
    may = f"May call it: {', '.join(roles)}."
    return f"\n### {found['name']}\n\n```sql\n{body} returns {answer}\n```\n\n{told}\n\n{may}\n"


# --- Spark ------------------------------------------------------------------------------------------------------------

SPARK = """\
# Spark

Options of `format("penstock")`, and the functions of `penstock.spark`. How they are used: [Spark on both
ends](../spark.md). Where PostgreSQL is: `url`, `service` or `dsn` (without a password), else as everywhere.
"""


def spark() -> str:
    uses: tuple[tuple[str, Any, Any], ...] = (
        ("Writing, `df.write` and `df.writeStream`", spark_options.WRITE, spark_options.WriteOptions),
        ("Reading a queue, `spark.readStream`", spark_options.STREAM, spark_options.StreamOptions),
        (
            'Reading history, `.option("read", "history")`',
            spark_options.HISTORY,
            spark_options.HistoryOptions,
        ),
    )
    parts = [SPARK]
    for title, known, kind in uses:
        defaults = {one.name: one for one in dataclasses.fields(kind)}
        rows = [(f"`{name}`", f"`{field}`", spark_default(defaults.get(field))) for name, (field, _) in known.items()]
        parts.append(f"\n## {title}\n\n{own_words(kind)}\n\n{table(('option', 'in Python', 'default'), rows)}")
    parts.append("\n## Functions\n")
    parts += [described(penstock.spark, name, "###") for name in penstock.spark.__all__]
    return re.sub(r"\n{3,}", "\n\n", "".join(parts))


def spark_default(field: dataclasses.Field[Any] | None) -> str:
    if field is None or field.default is None:
        return ""
    return "required" if field.default is dataclasses.MISSING else f"`{field.default}`"


# --- errors -----------------------------------------------------------------------------------------------------------

ERRORS = """\
# Errors

Each error has a code that never changes its meaning, the exit code of the shell, a message that names the
field, the value and the limit, and often a hint that says what to do next.

"""
SQLSTATES = """
SQL raises SQLSTATE PS400 (`ValidationError`), PS404 (`NotFound`), PS409 (`Conflict`), PS413 (`PayloadTooLarge`)
and PS422 (`PayloadError`).
"""
INDENT = "&nbsp;&nbsp;"


def error_page() -> str:
    drawing = words(errors.__doc__)
    drawn = re.findall(r"─ (\w+) +PS\d+  (.*?)(?: +exit \d)?$", drawing, re.MULTILINE)
    told = {name: meaning.strip() for name, meaning in drawn}
    rows = [
        (INDENT * depth + f"`{kind.__name__}`", kind.code, kind.exit_code, told.get(kind.__name__) or own_words(kind))
        for depth, kind in tree(errors.PenstockError, 0)
    ]
    return ERRORS + table(("class", "code", "exit", "meaning"), rows) + SQLSTATES


def tree(kind: type[errors.PenstockError], depth: int) -> Iterator[tuple[int, type[errors.PenstockError]]]:
    yield depth, kind
    for child in kind.__subclasses__():
        yield from tree(child, depth + 1)


# --- settings ---------------------------------------------------------------------------------------------------------

VARIABLES = {
    "PENSTOCK_DSN": "where PostgreSQL is",
    "DATABASE_URL": "the same, if there is no PENSTOCK_DSN",
    "PENSTOCK_HOME": "the directory of the embedded server; default `./.penstock`",
    "PENSTOCK_PG_BIN": "programs of another PostgreSQL for the embedded server",
    "PENSTOCK_WEB_SECRET": "signs the sessions of `penstock web`; at least 16 bytes",
    "JAVA_HOME": "which Java Spark runs on",
}
GIVEN = {
    "PENSTOCK_QUEUE": ("`scale --command`, alerts", "the queue"),
    "PENSTOCK_WORKERS": ("`scale --command`, alerts", "how many workers the scaler wants"),
    "PENSTOCK_REASON": ("`scale --command`", "why it wants so many, in words"),
    "PENSTOCK_ALERT": ("alerts", "the level of the alert"),
    "PENSTOCK_TEXT": ("alerts", "what the alert says"),
}
BY_SUPERVISORS = {
    "INVOCATION_ID": "systemd, for each service",
    "NOTIFY_SOCKET": "systemd, for a service of type `notify`",
    "KUBERNETES_SERVICE_HOST": "Kubernetes, in each pod",
}
OF_QUEUES = """\
# Settings

## Of a queue

Given to `penstock queues create` and `queues set` as options, to `app.create_queue` and `queue.set` by name, in
SQL to `penstock.create_queue` and `penstock.set_queue`. Durations are `250ms`, `30s`, `5m`, `1h30m`, `7d`, or
seconds as a number.

"""
OF_THE_ENVIRONMENT = """
## Of the environment

The shell and `Penstock()` read these variables. The first of `--dsn` (or `Penstock(dsn)`), `PENSTOCK_DSN`,
`DATABASE_URL`, libpq's {libpq} and the running embedded server that is there is taken.

"""
FOR_COMMANDS = """
Penstock sets these variables for the commands that it starts:

"""
OF_SUPERVISORS = """
If one of these variables is set and standard error is not a terminal, `penstock work`, `drain` and `scale` wait for
PostgreSQL at their start. This is the default only: `--wait` and `--no-wait` override it.

"""
LIMITS = """
## Limits

What is beyond is refused before anything is written, naming the field, the value and the limit.

"""


def settings() -> str:
    create: Any = typer.main.get_command(shell()).commands["queues"].commands["create"]  # type: ignore[attr-defined]  # groups
    rows = [
        (f"`{one.name}`", one.help, default_of(one))
        for one in create.params
        if one.opts[0].startswith("--") and not {*one.opts} & {*SHARED, "--dry-run", "--exist-ok"}
    ]
    rows += [("`notify`", SWITCHES["notify"], "`True`"), ("`paused`", SWITCHES["paused"], "`False`")]
    limits = [
        ("tasks of one claim", f"{validate.MAX_CLAIM:,}"),
        ("bytes of a subject", validate.MAX_SUBJECT),
        ("bytes of a kind", validate.MAX_KIND),
        ("bytes of a worker's name", validate.MAX_WORKER_NAME),
        ("bytes of a payload, unless its queue says otherwise", f"{validate.DEFAULT_MAX_PAYLOAD:,}"),
        ("bytes of any payload", f"{validate.MAX_PAYLOAD:,}"),
        ("how deep a payload is nested", validate.MAX_DEPTH),
        ("delays and dues ahead", f"{validate.LONGEST_DELAY.days:,} days"),
        ("a queue's name", f"`{validate.NAME.pattern}`"),
        ("tasks of one transaction of a bulk push with subjects", f"{spool.CHUNK:,}"),
    ]
    libpq = ", ".join(f"`{name}`" for name in dsn.LIBPQ)
    return (
        OF_QUEUES
        + table(("setting", "means", "default"), rows)
        + OF_THE_ENVIRONMENT.format(libpq=libpq)
        + table(("variable", "means"), [(f"`{name}`", VARIABLES[name]) for name in variables()])
        + FOR_COMMANDS
        + table(("variable", "for", "means"), [(f"`{name}`", *told) for name, told in GIVEN.items()])
        + OF_SUPERVISORS
        + table(("variable", "set by"), [(f"`{name}`", BY_SUPERVISORS[name]) for name in SUPERVISORS])
        + LIMITS
        + table(("", "at most"), limits)
    )


def variables() -> list[str]:
    """Returns the variables that the code reads. One that this page does not explain is an error."""
    text = "".join(path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py")))
    found = set(re.findall(r"[\"'](PENSTOCK_[A-Z_]+)[\"']", text))
    unknown = found - {*VARIABLES, *GIVEN}
    if unknown or {*GIVEN} - found:
        raise SystemExit(f"VARIABLES and GIVEN do not say what {', '.join(sorted(unknown or {*GIVEN} - found))} means")
    return [*VARIABLES]


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli,
    "python.md": python,
    "sql.md": sql,
    "scaler.md": scaler,
    "spark.md": spark,
    "pipeline.md": pipeline,
    "errors.md": error_page,
    "settings.md": settings,
}


def main(place: Path = PLACE) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (place / name).write_text(HEADER + page().strip() + "\n", "utf-8")
        sys.stdout.write(f"{place.name}/{name} written\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
