"""`app.scale()`: a scaler from a script, with a policy of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from psycopg import Connection

from penstock import ConfigError, NewTask, NotFound, Penstock, Queue, ValidationError
from penstock.scaler import Decision, Memory, QueueDecision, Signals, conclude
from scalers import JOBS, end_workers, registered, targets
from shell import environment
from workers import PRELUDE, eventually, noted

SCRIPT = """
if __name__ == "__main__":
    from penstock.scaler import Decision, Memory, Signals, conclude

    class OneForEachTask:
        name = "one-for-each"

        def decide(self, signals: Signals, memory: Memory = None) -> Decision:
            return conclude(signals, signals.pending + signals.active, "each", {}, "one for each task")

    ended = app.scale(
        policy=OneForEachTask(), interval="100ms", min_workers=0, max_workers=2, concurrency=1,
        on_decision=lambda one: note("decided", one.queue, one.decision.workers),
    )
    print(ended)
"""


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.create_queue("work", sla="30s", lease="5s")


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ends the workers of a scaler after each test."""
    sql = request.getfixturevalue("sql")
    yield
    end_workers(sql)


def test_a_script_scales_by_its_own_policy(tmp_path: Path, dsn: str, queue: Queue, sql: Connection) -> None:
    (tmp_path / "jobs.py").write_text(PRELUDE + JOBS + SCRIPT, "utf-8")
    queue.push_many([NewTask({"name": "go"}, kind="wait")] * 2)
    running = subprocess.Popen(
        [sys.executable, "jobs.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(dsn), cwd=tmp_path
    )
    eventually(lambda: noted(tmp_path).count("began go") == 2)
    assert "decided work 2" in noted(tmp_path)
    (tmp_path / "go").touch()
    eventually(lambda: "decided work 0" in noted(tmp_path))
    os.kill(running.pid, signal.SIGTERM)
    out, err = running.communicate(timeout=30)
    assert (running.returncode, out.decode().strip()) == (0, str(int(signal.SIGTERM))), err
    assert registered(sql) == []
    assert queue.status().totals["done"] == 2
    assert sql.execute("select distinct policy from penstock.decision").fetchall() == [("one-for-each",)]


@dataclass
class Three:
    """A policy that always wants three."""

    name: str = "three"

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        return conclude(signals, 3, "three", {}, "three")


def test_one_decision_without_workers(dsn: str, queue: Queue, sql: Connection) -> None:
    app = Penstock(dsn)

    @app.task(queue="work")
    def wait(name: str) -> None: ...

    queue.push({"name": "x"}, kind="wait")
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    decided: list[QueueDecision] = []

    def note(one: QueueDecision) -> None:
        decided.append(one)
        raise ZeroDivisionError  # an error of the callback does not stop the scaler

    ended = app.scale("work", target="jobs:app", policy=Three(), advise=True, once=True, on_decision=note)
    assert ended is None
    assert [(one.queue, one.before, one.decision.workers) for one in decided] == [("work", None, 3)]
    assert targets(sql) == [3]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    app.close()


def test_wrong_options_are_refused(dsn: str, queue: Queue, sql: Connection) -> None:
    app = Penstock(dsn)

    @app.task(queue="work")
    def wait(name: str) -> None: ...

    for options, said in (
        ({"interval": 0}, "interval: 0"),
        ({"policy": "dedline"}, "policy: 'dedline'"),
        ({"max_memory": "some"}, "max_memory: 'some'"),
        ({"concurrency": 0}, "concurrency: 0"),
        ({"once": True}, "once: it cannot start workers"),
        ({"advise": True, "command": "x"}, "give only one of them"),
        ({"alert_webhook": ["ftp://x"]}, "alert_webhook: 'ftp://x'"),
        ({"sla": "soon"}, "sla: 'soon'"),
    ):
        with pytest.raises(ConfigError, match=said):
            app.scale(target="jobs:app", **options)
    with pytest.raises(ConfigError, match="no handler of the application is for 'wrok'"):
        app.scale("wrok", target="jobs:app", advise=True, once=True)
    queue.drop()
    with pytest.raises(NotFound, match="'work' does not exist"):
        app.scale("work", target="jobs:app", advise=True, once=True)
    with pytest.raises(ValidationError, match="rehearse: scale"):
        Penstock(dsn, rehearse=True).scale()
    assert targets(sql) == []
    app.close()
