"""What `penstock work` and `penstock drain` refuse: one block, the right exit code, before anything runs."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock import Penstock, Queue
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
    """Two at a time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda words: penstock(*words.split(), dsn=dsn, cwd=home), commands))


def check(home: Path, dsn: str, table: dict[str, tuple[int, str, str]]) -> None:
    for command, ran in zip(table, all_of(home, dsn, *table), strict=True):
        code, message, hint = table[command]
        assert ran.code == code, (command, ran.err)
        assert is_one_block(ran.err), (command, ran.err)
        assert message in ran.err, command
        assert hint in ran.err, command
    assert not (home / "effects").exists()


NOWHERE = "postgresql://u@127.0.0.1:1/x"  # nobody gets as far as that


def test_applications_that_can_not_be_had(home: Path) -> None:
    check(
        home,
        NOWHERE,
        {
            "work nosuch:app": (3, "there is no module 'nosuch'", "It is looked for in"),
            "work nosuch.deep:app": (3, "there is no module 'nosuch.deep'", "It is looked for in"),
            "work broken:app": (3, "'broken' can not be imported: RuntimeError: first line", "--debug"),
            "work leaves:app": (3, "'leaves' can not be imported: SystemExit: 7", "--debug"),
            "work garbled:app": (3, "'garbled' can not be imported: SyntaxError", "--debug"),
            "work needy:app": (3, "'needy' can not be imported: ModuleNotFoundError: No module named 'nosuch", ""),
            "work twofold:app": (3, "ConfigError: work/one: first handles it already", "another kind="),
            "work jobs:ap": (3, "module 'jobs' has no 'ap'", "spelt"),
            "work jobs": (3, "'jobs' is not module:name", "myproject.tasks:app"),
            "work jobs:number": (3, "'jobs:number' is int, not a Penstock", "myproject.tasks:app"),
            "work empty:app": (3, "'empty:app' has no handlers", "@app.task"),
            "drain work --handler jobs:number": (3, "5 can not be called", ""),
            "drain work --handler jobs:nosuch": (3, "module 'jobs' has no 'nosuch'", "spelt"),
        },
    )


def test_numbers_and_words_that_make_no_sense(home: Path) -> None:
    work = "work jobs:app"
    check(
        home,
        NOWHERE,
        {
            f"{work} --queues work:0": (2, "queues: 'work:0': a weight is a whole number from 1 to 1000", ":3"),
            f"{work} --queues work:x": (2, "queues: 'work:x'", ""),
            f"{work} --queues work,work:2": (2, "queues: 'work' is there twice", ""),
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
        },
    )


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
                "work later:app": (1, "there is no queue 'wrok'", "Did you mean 'work'?"),
                "drain wrok --handler jobs:handler": (1, "there is no queue 'wrok'", "Did you mean 'work'?"),
            },
        )
        busy = penstock("work", "jobs:app", "--health", str(port), "-q", dsn=dsn, cwd=home)
    assert (busy.code, busy.out) == (3, "")
    assert is_one_block(busy.err)
    assert f"health: '127.0.0.1:{port}' can not be listened on" in busy.err


def test_a_database_that_can_not_be_reached(home: Path) -> None:
    """Nothing is waited for, and no password is told."""
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
