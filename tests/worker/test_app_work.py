"""`app.work()`: worker processes from a script, without the shell."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock import AsyncPenstock, ConfigError, NewTask, Penstock, Queue, ValidationError
from shell import environment
from workers import MODULE, PRELUDE, effects, eventually, noted

HANDLER = """
@app.task(queue="work")
def step(n: int) -> None:
    note("did", n)
"""
# A script ends with the report of its workers, as JSON.
TO_THE_END = """
if __name__ == "__main__":
    report = app.work("work", until_empty=True, processes=2, concurrency=3, log_format="json")
    print(__import__("json").dumps([report.done, report.failed, report.signal]))
"""


def script(home: Path, dsn: str, code: str, *arguments: str, name: str = f"{MODULE}.py") -> subprocess.Popen[bytes]:
    """Starts a script in its directory."""
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    (home / name).write_text(PRELUDE + code, "utf-8")
    return subprocess.Popen(
        [sys.executable, *(arguments or (name,))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(dsn),
        cwd=home,
    )


def test_a_script_drains_a_queue_with_processes(tmp_path: Path, dsn: str, queue: Queue) -> None:
    queue.push_many([NewTask({"n": n}, kind="step") for n in range(50)])
    running = script(tmp_path, dsn, HANDLER + TO_THE_END)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert json.loads(out) == [50, 0, None]
    assert sorted(noted(tmp_path)) == sorted(f"did {n}" for n in range(50))
    assert running.pid not in {one.pid for one in effects(tmp_path)}
    assert queue.status().totals["done"] == 50


def test_a_script_below_the_current_directory_and_a_module_are_found(tmp_path: Path, dsn: str, queue: Queue) -> None:
    """`python shop/jobs.py`, and `python -m shop.main` where the handlers are in another module."""
    queue.push({"n": 1}, kind="step")
    running = script(tmp_path, dsn, HANDLER + TO_THE_END, name="shop/jobs.py")
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert json.loads(out) == [1, 0, None]

    queue.push({"n": 2}, kind="step")
    main = "from shop.base import app\nimport shop.handlers\n" + TO_THE_END
    (tmp_path / "shop" / "base.py").write_text(PRELUDE, "utf-8")
    (tmp_path / "shop" / "handlers.py").write_text("from shop.base import *\n" + HANDLER, "utf-8")
    (tmp_path / "shop" / "main.py").write_text(main, "utf-8")
    running = subprocess.Popen(
        [sys.executable, "-m", "shop.main"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(dsn),
        cwd=tmp_path,
    )
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert json.loads(out) == [1, 0, None]
    assert noted(tmp_path) == ["did 1", "did 2"]


def test_ctrl_c_ends_the_call_and_the_script_goes_on(tmp_path: Path, dsn: str, queue: Queue) -> None:
    waits = '\n@app.task(queue="work")\ndef wait() -> None:\n    note("began")\n    wait_for("go")\n'
    queue.push({}, kind="wait")
    running = script(tmp_path, dsn, waits + TO_THE_END.replace("until_empty=True", "grace=20"))
    eventually(lambda: noted(tmp_path) == ["began"])
    os.kill(running.pid, signal.SIGINT)
    (tmp_path / "go").touch()
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert json.loads(out) == [1, 0, signal.SIGINT]


def test_without_a_guard_the_error_says_what_to_write(tmp_path: Path, dsn: str, queue: Queue) -> None:
    running = script(tmp_path, dsn, HANDLER + 'app.work("work", until_empty=True)\n')
    _, err = running.communicate(timeout=60)
    assert running.returncode == 1
    last = err.decode().splitlines()[-2:]
    assert "its module starts workers when it is imported" in last[0]
    assert 'if __name__ == "__main__":' in last[1]


def test_what_cannot_run_here_is_refused_before_anything_starts(dsn: str, queue: Queue) -> None:
    app = Penstock(dsn)
    with pytest.raises(ConfigError, match="it has no handlers"):
        app.work()

    @app.task(queue="work")
    def local() -> None: ...

    with pytest.raises(ConfigError, match="other processes cannot import this application") as refused:
        app.work()
    assert 'target="myproject.tasks:app"' in str(refused.value.hint)
    with pytest.raises(ValidationError, match="processes: 0"):
        app.work(target="jobs:app", processes=0)
    with pytest.raises(ValidationError, match="max_rss: 'much'"):
        app.work(target="jobs:app", max_rss="much")
    with pytest.raises(ValidationError, match="log_format: 'xml'"):
        app.work(target="jobs:app", log_format="xml")
    with pytest.raises(ValidationError, match="'work:0': a weight"):
        app.work("work:0", target="jobs:app")
    with pytest.raises(ConfigError, match="no handler of the application is for 'other'"):
        app.work("other", target="jobs:app")
    with pytest.raises(ValidationError, match="rehearse: work"):
        Penstock(dsn, rehearse=True).work()
    app.close()


def test_it_needs_the_main_thread_and_no_event_loop(dsn: str) -> None:
    raised: list[BaseException] = []

    def call() -> None:
        try:
            Penstock(dsn).work()
        except ConfigError as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(10)

    async def main() -> None:
        for verb in ("work", "scale"):
            with pytest.raises(ConfigError, match=f"{verb}: it handles signals") as refused:
                getattr(AsyncPenstock(dsn), verb)()
            raised.append(refused.value)

    asyncio.run(main())
    assert [str(one).split(":")[0] for one in raised] == ["work", "work", "scale"]
