"""Mistakes that `penstock work` and `penstock drain` refuse before a task runs: one block and the right exit code."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock import Penstock, Queue
from penstock.cli import main
from shell import Ran, is_one_block, penstock
from workers import PRELUDE, write_app

HANDLER = """
@app.task(queue="work")
def plain() -> None:
    note("run")

handler = plain
number = 5
"""
MODULES = {
    "broken.py": 'raise RuntimeError("first line\\nsecond line")',
    "leaves.py": "import sys; sys.exit(7)",
    "garbled.py": "def (",
    "needy.py": "import nosuchthing",
    "empty.py": PRELUDE,
    "twofold.py": PRELUDE
    + """
@app.task(queue="work", kind="one")
def first() -> None: ...
@app.task(queue="work", kind="one")
def second() -> None: ...
""",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_app(tmp_path, HANDLER)
    for name, code in MODULES.items():
        (tmp_path / name).write_text(code, "utf-8")
    return tmp_path


def all_of(home: Path, dsn: str, *commands: str) -> list[Ran]:
    """Runs the commands, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda words: penstock(*words.split(), dsn=dsn, cwd=home), commands))


Table = dict[str, tuple[int, str, str]]  # by command: its exit code, words of the message, words of the hint


def check(home: Path, dsn: str, table: Table) -> None:
    compare(home, table, all_of(home, dsn, *table))


def compare(home: Path, table: Table, found: list[Ran]) -> None:
    for (command, (code, message, hint)), ran in zip(table.items(), found, strict=True):
        assert ran.code == code, (command, ran.err)
        assert is_one_block(ran.err), (command, ran.err)
        assert message in ran.err, command
        assert hint in ran.err, command
    assert not (home / "effects").exists()


NOWHERE = "postgresql://u@127.0.0.1:1/x"  # no command gets as far as connecting


@pytest.fixture
def said(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[str], Ran]]:
    """Runs a command in this process, because a new Python would take most of the time."""
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PENSTOCK_DSN", NOWHERE)

    def run(words: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["penstock", *words.split()])
        with pytest.raises(SystemExit) as end:
            main()
        return Ran(int(end.value.code or 0), *capsys.readouterr())

    yield run
    for path in home.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_applications_that_cannot_be_loaded(home: Path, said: Callable[[str], Ran]) -> None:
    check(
        home,
        NOWHERE,
        {
            "work nosuch:app": (3, "module 'nosuch' cannot be found", "Penstock searches"),
            "work broken:app": (3, "'broken' cannot be imported: RuntimeError: first line second line", "--debug"),
            "work leaves:app": (3, "'leaves' cannot be imported: SystemExit: 7", "--debug"),
        },
    )
    table = {
        "work nosuch.deep:app": (3, "module 'nosuch.deep' cannot be found", "Penstock searches"),
        "work garbled:app": (3, "'garbled' cannot be imported: SyntaxError", "--debug"),
        "work needy:app": (3, "'needy' cannot be imported: ModuleNotFoundError: No module named 'nosuch", ""),
        "work twofold:app": (3, "ConfigError: work/one: first handles it already", "another kind="),
        "work jobs:ap": (3, "module 'jobs' has no attribute 'ap'", "Check its name"),
        "work jobs": (3, "'jobs' is not module:name", "myproject.tasks:app"),
        "work jobs:number": (3, "'jobs:number' is int, not a Penstock", "myproject.tasks:app"),
        "work empty:app": (3, "'empty:app' has no handlers", "@app.task"),
        "drain work --handler jobs:number": (3, "5 cannot be called", ""),
        "drain work --handler jobs:nosuch": (3, "module 'jobs' has no attribute 'nosuch'", "Check its name"),
    }
    compare(home, table, [said(words) for words in table])


def test_numbers_and_words_that_make_no_sense(home: Path, said: Callable[[str], Ran]) -> None:
    work = "work jobs:app"
    table = {
        f"{work} --queues work:0": (2, "queues: 'work:0': a weight is a whole number from 1 to 1000", ":3"),
        f"{work} --queues work:x": (2, "queues: 'work:x'", ""),
        f"{work} --queues work,work:2": (2, "queues: 'work' is named twice", ""),
        f"{work} --queues ,": (2, "queue", ""),
        f"{work} -c 0": (2, "concurrency: 0 is not a whole number from 1 to", ""),
        f"{work} -p 0": (2, "processes: 0 is not a whole number from 1 to", ""),
        f"{work} --max-tasks 0": (2, "max_tasks: 0", ""),
        f"{work} --max-rss much": (2, "max_rss: 'much' is not a size of at least 1M", "500M"),
        f"{work} --max-rss 10K": (2, "max_rss: '10K'", ""),
        f"{work} --grace soon": (2, "grace: 'soon'", ""),
        f"{work} --grace -1s": (2, "grace: '-1s'", ""),
        f"{work} --log-format xml": (2, "log_format: 'xml' is not one of text, json", ""),
        "drain work": (2, "--handler", "penstock drain --help"),
        "drain Work! --handler jobs:handler": (2, "queue: 'Work!'", ""),
    }
    compare(home, table, [said(words) for words in table])


def test_queues_and_databases_that_are_not_there(home: Path, app: Penstock, queue: Queue, dsn: str) -> None:
    app.create_queue("mail")
    (home / "later.py").write_text(HANDLER.replace('"work"', '"wrok"').join((PRELUDE, "")), "utf-8")
    queue.push(kind="plain")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        check(
            home,
            dsn,
            {
                "work jobs:app --queues wrk": (3, "no handler of the application is for 'wrk'", "you mean 'work'"),
                "work jobs:app --queues mail": (3, "no handler of the application is for 'mail'", "handlers for work"),
                "work later:app": (1, "queue 'wrok' does not exist", "Did you mean 'work'?"),
                "drain wrok --handler jobs:handler": (1, "queue 'wrok' does not exist", "Did you mean 'work'?"),
            },
        )
        busy = penstock("work", "jobs:app", "--health", str(port), "-q", dsn=dsn, cwd=home)
    assert (busy.code, busy.out) == (3, "")
    assert is_one_block(busy.err)
    assert f"health: '127.0.0.1:{port}' cannot be listened on" in busy.err


def test_a_database_that_cannot_be_reached(home: Path) -> None:
    """The command does not wait, and shows no password."""
    (home / "own.py").write_text(
        PRELUDE.replace("Penstock()", 'Penstock("postgresql://u:canary@127.0.0.1:1/x")') + HANDLER, "utf-8"
    )
    with ThreadPoolExecutor(2) as pool:
        given = pool.submit(penstock, "work", "jobs:app", dsn="postgresql://u:canary@127.0.0.1:1/x", cwd=home)
        own = pool.submit(penstock, "work", "own:app", "--log-format", "json", cwd=home)
    for ran in (given.result(), own.result()):
        assert ran.code == 4
        assert is_one_block(ran.err)
        assert "canary" not in ran.out + ran.err
