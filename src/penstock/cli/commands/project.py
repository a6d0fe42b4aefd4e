"""`penstock init-project` writes the first files of a project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.terminal.options import AsJson, Debug, Quiet
from penstock.cli.terminal.output import print_json, print_line
from penstock.errors import Conflict, ValidationError, shown

TASKS_FILE = '''\
"""The tasks of this project."""

from penstock import Fibonacci, Penstock

app = Penstock()  # connects to PENSTOCK_DSN, DATABASE_URL, PG*, or the server of `penstock up`


@app.task(queue="default", retry=Fibonacci("1m"), max_attempts=5)
def greet(name: str) -> None:
    print(f"hello, {name}")


if __name__ == "__main__":
    app.init()
    app.create_queue("default", exist_ok=True)
    greet.push("world")
'''
TEST_FILE = '''\
"""Tests of tasks.py. They start a PostgreSQL of their own, so they never run the tasks of a real queue."""

import os

import pytest

from penstock.embedded import Server


@pytest.fixture(scope="session")
def tasks(tmp_path_factory):
    server = Server.start(tmp_path_factory.mktemp("postgresql"), environ=os.environ)
    os.environ["PENSTOCK_DSN"] = server.dsn
    import tasks  # its app connects to that server

    tasks.app.init()
    tasks.app.create_queue("default")
    yield tasks
    tasks.app.close()
    server.stop()


def test_greet(tasks, capsys):
    tasks.greet.push("Ann")
    assert tasks.app.drain_inline() == {"done": 1}  # runs due tasks in this process; raises what a handler raises
    assert capsys.readouterr().out == "hello, Ann\\n"
'''
MAKEFILE = """\
.PHONY: work test

work:  # runs tasks, prints whole tracebacks, and reloads the code when a file changes
\tpenstock work tasks:app --dev

test:
\tpython -m pytest
"""
FILES = {"tasks.py": TASKS_FILE, "test_tasks.py": TEST_FILE, "Makefile": MAKEFILE}


def init_project(
    directory: Annotated[Path, typer.Argument(help="The directory. It is created if it does not exist.")] = Path(),
    *,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Write the first files of a project: tasks.py, test_tasks.py and a Makefile.

    Files that exist are never changed: a tasks.py or test_tasks.py is an error, and a Makefile is left as it is.

    Example: penstock init-project mail
    """
    if directory.exists() and not directory.is_dir():
        raise ValidationError(f"directory: {shown(str(directory))} is not a directory", field="directory")
    written = {name: text for name, text in FILES.items() if name != "Makefile" or not (directory / name).exists()}
    for name in written:
        if (directory / name).exists():
            raise Conflict(f"{directory / name} exists already", hint="Name another directory.")
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in written.items():
        with (directory / name).open("x", encoding="utf-8") as file:
            file.write(text)
    if json:
        print_json({"directory": str(directory), "written": [*written]})
        return
    print_line(f"written: {', '.join(str(directory / name) for name in written)}", quiet=quiet)
    if "Makefile" not in written:
        print_line(f"{directory / 'Makefile'} is left as it is; you can add these lines:\n\n{MAKEFILE}", quiet=quiet)
    enter = "" if directory == Path() else f"cd {directory}\n  "
    steps = list_steps(own_makefile="Makefile" in written)
    print_line(f"next:\n  {enter}" + "\n  ".join(steps), quiet=quiet)


def list_steps(*, own_makefile: bool) -> list[str]:
    """Returns what to do next, a command and its meaning in each line. The Makefile of another program has no targets
    of ours: then these are the commands of our targets."""
    work, test = ("make work", "make test") if own_makefile else ("penstock work tasks:app --dev", "python -m pytest")
    steps = {
        "penstock up": "starts a PostgreSQL for this directory",
        "python tasks.py": "pushes a task",
        work: "runs it",
        test: "runs the test, on a PostgreSQL of its own",
    }
    width = max(map(len, steps))
    return [f"{command:<{width}}    # {meaning}" for command, meaning in steps.items()]
