"""The `penstock` command. Each command parses its options, makes one call and prints the answer.

`main` prints every error as one block and turns it into an exit code.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Literal, NoReturn, TextIO

import typer

from penstock.cli.terminal.output import exit_with_error
from penstock.errors import PenstockError, ValidationError

# Module and attribute of each command, in the order of the help.
COMMANDS = {
    "demo": "demo:demo",
    "up": "server:up",
    "down": "server:down",
    "init": "server:init",
    "init-project": "project:init_project",
    "psql": "psql:psql",
    "status": "status:status",
    "top": "top:top",
    "web": "web:web",
    "why": "why:why",
    "verify": "status:verify",
    "upkeep": "status:upkeep",
    "retention": "retention:retention",
    "push": "push:push",
    "work": "work:work",
    "drain": "work:drain",
    "adopt": "adopt:adopt",
    "claim": "leases:claim",
    "settle": "leases:settle",
    "doctor": "doctor:doctor",
    "backlog": "backlog:app",
    "queues": "queues:app",
    "tasks": "tasks:app",
    "dead": "dead:app",
    "retry": "retry:app",
    "schedules": "schedules:app",
    "scale": "scale:app",
    "simulate": "simulate:app",
    "export": "export_metrics:app",  # it adds commands to the group of export.py
    "pipeline": "pipeline_learn:app",  # it adds commands to the group of pipeline.py
}
PASS_THROUGH = ("psql",)  # unknown options, and -h, go to the program that the command starts
PASS_THROUGH_SETTINGS = {"ignore_unknown_options": True, "help_option_names": ["--help"]}


def tree(*names: str) -> typer.Typer:
    """Builds the command tree, of all commands or of the named ones only.

    `main` asks for one command: to import all of them takes longer than most of them run.
    """
    found = typer.Typer(
        name="penstock",
        help="Drains backlogs on time: a durable task queue inside PostgreSQL.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    found.callback(invoke_without_command=True)(print_version)
    for name in names or COMMANDS:
        module, _, attribute = COMMANDS[name].partition(":")
        one = getattr(import_module(f"penstock.cli.commands.{module}"), attribute)
        if isinstance(one, typer.Typer):
            found.add_typer(one, name=name)
        else:
            found.command(name, context_settings=PASS_THROUGH_SETTINGS if name in PASS_THROUGH else {})(one)
    return found


def print_version(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from penstock import __version__  # noqa: PLC0415 - the package imports us

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    asked = [name for name in sys.argv[1:2] if name in COMMANDS]
    try:
        prepare_streams()
        sys.exit(tree(*asked)(prog_name="penstock", standalone_mode=False))
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            # The reader has closed the pipe (`| head`). typer and rich exit with 1, but this is no error of ours.
            discard_stdout()
            sys.exit(141)
        raise
    except KeyboardInterrupt:
        sys.exit(130)
    except PenstockError as error:
        report_error(error)
    except OSError as error:
        discard_stdout()
        report_error(wrap_error(error, f"the system refused: {error}"))
    except Exception as error:  # noqa: BLE001 - every error becomes one block
        if hasattr(error, "format_message"):
            report_misuse(error)
        hint = "This is a bug in Penstock. --debug shows where."
        report_error(wrap_error(error, f"{type(error).__name__}: {error}", hint))


def report_error(error: PenstockError) -> NoReturn:
    exit_with_error(error, json="--json" in sys.argv, debug="--debug" in sys.argv)


def report_misuse(error: Any) -> NoReturn:
    """Reports in our form what typer says about a command line.

    `main` recognises such an error by its method, since its class moves between versions of typer.
    """
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.exit(2)  # typer has printed the help
    command = error.ctx.command_path if getattr(error, "ctx", None) else "penstock"
    message = re.sub(r"is not a valid int(eger)?\.$", "is not a whole number", error.format_message())
    report_error(ValidationError(message, hint=f"See `{command} --help`."))


def wrap_error(cause: Exception, message: str, hint: str | None = None) -> PenstockError:
    error = PenstockError(message, hint=hint)
    error.__cause__ = cause
    return error


def prepare_streams() -> None:
    """Replaces closed streams by empty ones, and escapes characters that the terminal cannot encode."""
    sys.stdin = sys.stdin or open_null("r")
    sys.stdout = sys.stdout or open_null("w")
    sys.stderr = sys.stderr or open_null("w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def open_null(mode: Literal["r", "w"]) -> TextIO:
    return Path(os.devnull).open(mode, encoding="utf-8")


def discard_stdout() -> None:
    """Sends standard output to /dev/null: otherwise Python writes the rest of its buffer again at exit, and fails."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
