"""The shell: parse, one call, print. `main` turns every error into one block and an exit code."""

from __future__ import annotations

import os
import sys
from typing import TextIO

import typer

from penstock.cli import queues, server, tasks
from penstock.cli.demo import demo
from penstock.cli.output import fail
from penstock.errors import PenstockError

app = typer.Typer(
    name="penstock",
    help="Drains backlogs on time: a durable task queue inside PostgreSQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(server.up)
app.command()(server.down)
app.command()(server.init)
app.command()(tasks.push)
app.command()(tasks.status)
app.command()(tasks.verify)
app.add_typer(queues.app, name="queues")


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from penstock import __version__  # noqa: PLC0415 - the package imports us

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        tolerate(stream)
    try:
        app(standalone_mode=True)
    except PenstockError as error:
        fail(error, json="--json" in sys.argv, debug="--debug" in sys.argv)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        sys.exit(130)
    except BrokenPipeError:
        # The reader went away (`| head`): not our error. Nothing more may be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def tolerate(stream: TextIO | None) -> None:
    """A terminal that knows no ü gets \\xfc, not a traceback."""
    if stream is not None and hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
