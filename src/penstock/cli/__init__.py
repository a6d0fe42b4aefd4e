"""The shell: parse, one call, print. `main` turns every error into one block and an exit code."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Literal, NoReturn, TextIO

import typer

from penstock.cli.output import fail
from penstock.errors import PenstockError, ValidationError, shown

# In the order of the help: where each is.
COMMANDS = {
    "demo": "demo:demo",
    "up": "server:up",
    "down": "server:down",
    "init": "server:init",
    "psql": "psql:psql",
    "status": "status:status",
    "top": "top:top",
    "why": "why:why",
    "verify": "status:verify",
    "upkeep": "status:upkeep",
    "push": "push:push",
    "work": "work:work",
    "drain": "work:drain",
    "adopt": "adopt:adopt",
    "claim": "leases:claim",
    "settle": "leases:settle",
    "doctor": "doctor:doctor",
    "backlog": "adopt:app",
    "queues": "queues:app",
    "tasks": "tasks:app",
    "dead": "dead:app",
    "retry": "retry:app",
    "schedules": "schedules:app",
    "scale": "scale:app",
    "simulate": "simulate:app",
    "export": "export:app",
    "pipeline": "learnt:app",  # pipeline's, with more commands
}


def tree(*names: str) -> typer.Typer:
    """All commands, or those that are named: to import all of them takes longer than most of them run."""
    found = typer.Typer(
        name="penstock",
        help="Drains backlogs on time: a durable task queue inside PostgreSQL.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    found.callback(invoke_without_command=True)(root)
    for name in names or COMMANDS:
        module, _, attribute = COMMANDS[name].partition(":")
        one = getattr(import_module(f"penstock.cli.{module}"), attribute)
        if isinstance(one, typer.Typer):
            found.add_typer(one, name=name)
        else:
            found.command(name)(one)
    return found


def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from penstock import __version__  # noqa: PLC0415 - the package imports us

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    prepare()
    asked = [name for name in sys.argv[1:2] if name in COMMANDS]
    try:
        sys.exit(tree(*asked)(prog_name="penstock", standalone_mode=False))
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            # The reader went away (`| head`), which typer and rich call exit 1. It is not our error.
            give_up_stdout()
            sys.exit(141)
        raise
    except KeyboardInterrupt:
        sys.exit(130)
    except PenstockError as error:
        report(error)
    except OSError as error:
        give_up_stdout()
        report(caused_by(error, f"the system refused: {error}"))
    except Exception as error:  # noqa: BLE001 - one block, whatever it is
        if hasattr(error, "format_message"):
            misused(error)
        hint = "This is a bug in Penstock. --debug shows where."
        report(caused_by(error, f"{type(error).__name__}: {error}", hint))


def report(error: PenstockError) -> NoReturn:
    fail(error, json="--json" in sys.argv, debug="--debug" in sys.argv)


def misused(error: Any) -> NoReturn:
    """What typer says of a command line, in our form. Told by its method: its class moves with typer's versions."""
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.exit(2)  # the help is printed by now
    command = error.ctx.command_path if getattr(error, "ctx", None) else "penstock"
    told: list[Any] = getattr(error.__cause__, "errors", list)()  # pydantic's, behind typer's
    if told and told[0]["type"] in ("int_parsing", "int_type", "int_from_float"):
        error.message = f"{shown(told[0]['input'])} is not a whole number"
    report(ValidationError(error.format_message(), hint=f"See `{command} --help`."))


def caused_by(cause: Exception, message: str, hint: str | None = None) -> PenstockError:
    error = PenstockError(message, hint=hint)
    error.__cause__ = cause
    return error


def prepare() -> None:
    """A closed stream is an empty one, and a terminal that knows no ü gets \\xfc, not a traceback."""
    sys.stdin = sys.stdin or nowhere("r")
    sys.stdout = sys.stdout or nowhere("w")
    sys.stderr = sys.stderr or nowhere("w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def nowhere(mode: Literal["r", "w"]) -> TextIO:
    return Path(os.devnull).open(mode, encoding="utf-8")


def give_up_stdout() -> None:
    """What it could not take would be tried again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
