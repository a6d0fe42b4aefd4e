"""Workers of a scaler: processes, commands and advice, and how many there may be."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg import Connection

from penstock import Penstock, Queue
from penstock.client import scaling
from penstock.client.database import Database
from penstock.errors import ConfigError
from penstock.model import QueueQuestion, ScalerSnapshot, SeenWorker
from penstock.scaler.run.budget import CONNECTIONS, SPARE, Budget, bytes_of
from penstock.scaler.run.fleet import AdvisedWorkers, CommandedWorkers, LocalWorkers, Recipe, command_words
from penstock.scaler.run.hold import is_dead, new_holder
from scalers import JOBS, registered
from workers import alive, eventually, noted, write_app

LOOK = ScalerSnapshot(at=1000.0, queues=(), workers=(), connections=3, most_connections=100)
WORKER = SeenWorker("w", ("work",), 10, 0, None, leaving=False, silent=0.5, began=990.0, latency=1.0)


# --- processes of this machine ----------------------------------------------------------------------------------------


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.create_queue("work", sla="30s", lease="5s")


class Yard:
    """Local workers and the counts that a scaler sees."""

    def __init__(self, dsn: str, home: Path, holder: str = "here:1") -> None:
        self.database = Database(dsn)
        recipe = Recipe("jobs:app", dsn, 1, quiet=True)
        self.workers = LocalWorkers("work", holder, recipe, self.dismissed)
        self.home = home

    def dismissed(self, names: Sequence[str]) -> None:
        scaling.dismiss(self.database, names)

    def look(self) -> tuple[int, int, int]:
        fleet = self.workers.current(scaling.scaler_snapshot(self.database, [QueueQuestion("work")]), 5.0)
        return fleet.ready, len(fleet.starting), fleet.draining

    def end(self) -> None:
        for child in self.workers.children:
            for pid in (child.process.pid, *runners(child.process.pid)):
                os.kill(pid, signal.SIGKILL)
            child.process.wait()
        self.database.close()


def runners(pid: int) -> list[int]:
    try:
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split())]
    except OSError:
        return []


@pytest.fixture
def yard(tmp_path: Path, dsn: str, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    write_app(tmp_path, JOBS)
    monkeypatch.chdir(tmp_path)
    found = Yard(dsn, tmp_path)
    yield found
    found.end()


def test_workers_come_are_replaced_and_go_when_their_task_is_done(yard: Yard, queue: Queue, sql: Connection) -> None:
    assert yard.look() == (0, 0, 0)
    yard.workers.resize(2, "")
    assert yard.look()[:2] in {(0, 2), (1, 1)}
    eventually(lambda: yard.look() == (2, 0, 0))
    rows = sql.execute("select started_by, started_at > requested_at from penstock.worker order by 1").fetchall()
    assert rows == [("here:1#1", True), ("here:1#2", True)]

    # If one dies another is started, but not at once.
    victim = yard.workers.children[0].process.pid
    for pid in (victim, *runners(victim)):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: yard.look()[0] == 1)
    yard.workers.resize(2, "")
    assert len(yard.workers.children) == 1
    time.sleep(0.6)
    yard.workers.resize(2, "")
    eventually(lambda: yard.look()[0] >= 2)

    # On the way down the idle worker goes first, and no running task is interrupted.
    queue.push({"name": "go"}, kind="wait")
    eventually(lambda: noted(yard.home))
    eventually(lambda: yard.look()[0] >= 2 and any(child.busy for child in yard.workers.children))
    (busy,) = [child for child in yard.workers.children if child.busy]
    yard.workers.resize(1, "")
    assert [child.stopping for child in yard.workers.children if child is busy] == [False]
    yard.workers.resize(0, "")
    eventually(lambda: yard.workers.children == [busy] or yard.look() is None)
    time.sleep(1)
    assert alive(busy.process.pid)
    assert yard.look()[2] >= 1
    (yard.home / "go").touch()
    eventually(lambda: yard.look() == (0, 0, 0) or not yard.workers.children)
    assert noted(yard.home) == ["began go", "ended go"]
    assert sql.execute("select outcome, attempt from penstock.history").fetchall() == [("done", 1)]


def test_a_new_scaler_takes_over_and_sends_away_through_postgresql(
    yard: Yard, tmp_path: Path, dsn: str, sql: Connection
) -> None:
    yard.workers.resize(2, "")
    eventually(lambda: yard.look() == (2, 0, 0))
    heir = Yard(dsn, tmp_path, "here:2")
    assert heir.look() == (2, 0, 0)
    heir.workers.resize(2, "")
    assert heir.workers.children == []
    heir.workers.resize(1, "")
    eventually(lambda: len(registered(sql)) == 1)
    assert heir.look()[0] == 1
    heir.end()


def test_other_workers_of_the_queue_count_and_are_never_dismissed() -> None:
    asked: list[str] = []
    workers = LocalWorkers("work", "h", Recipe("a:b", "", 10), asked.extend)
    two = (WORKER, replace(WORKER, name="v", queues=("work", "other"), slots=20))
    gone = replace(WORKER, name="u", silent=60.0)
    leaving = replace(WORKER, name="t", leaving=True)
    assert workers.current(replace(LOOK, workers=(*two, gone, leaving)), 5.0).ready == 2
    workers.resize(0, "")
    assert asked == []
    inherited = replace(WORKER, name="s", started_by="other:1#1", busy=3)
    idle = replace(WORKER, name="r", started_by="other:1#2")
    assert workers.current(replace(LOOK, workers=(*two, inherited, idle)), 5.0).ready == 4
    workers.resize(3, "")
    assert asked == ["r"]


# --- commands and advice ----------------------------------------------------------------------------------------------


def test_a_command_is_run_word_by_word_until_it_succeeds(tmp_path: Path) -> None:
    """No shell reads it, so a reason is one word."""
    script = tmp_path / "scale.py"
    script.write_text(
        "import os, sys\nfrom pathlib import Path\n"
        "words = [*sys.argv[1:], os.environ['PENSTOCK_WORKERS']]\n"
        "with Path('said').open('a') as file: file.write('|'.join(words) + '\\n')\n"
        "sys.exit(not Path('allowed').exists())\n"
    )
    words = command_words(f"{sys.executable} {script} deploy/{{queue}} --replicas={{workers}} '{{reason}}'")
    workers = CommandedWorkers("work", 10, words)
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        reason = "3: $(touch evil) `x` ; 'quoted'"
        workers.resize(3, reason)
        eventually(lambda: over(workers))
        line = f"deploy/work|--replicas=3|{reason}|3"
        assert (tmp_path / "said").read_text("utf-8").splitlines() == [line]
        (tmp_path / "allowed").touch()
        eventually(lambda: over(workers) and (tmp_path / "said").read_text("utf-8").count(line) == 2)
        eventually(lambda: over(workers))
        workers.resize(3, "the same: nothing is run")
        assert not workers.running
        workers.resize(4, "more")
        eventually(lambda: over(workers))
        assert (tmp_path / "said").read_text("utf-8").splitlines()[2:] == ["deploy/work|--replicas=4|more|4"]
        assert not (tmp_path / "evil").exists()
    finally:
        os.chdir(before)


def over(workers: CommandedWorkers) -> bool:
    workers.supervise()
    return not workers.running


def test_requested_workers_count_as_starting_until_they_are_there() -> None:
    workers = AdvisedWorkers("work", 10)
    assert workers.current(LOOK, 5.0).workers == 0
    workers.resize(2, "")
    fleet = workers.current(LOOK, 5.0)
    assert (fleet.ready, len(fleet.starting)) == (0, 2)
    assert 4.0 < fleet.starting[0] <= 5.0
    fleet = workers.current(replace(LOOK, workers=(WORKER,)), 5.0)
    assert (fleet.ready, len(fleet.starting)) == (1, 1)
    workers.resize(1, "")
    assert workers.current(replace(LOOK, workers=(WORKER,)), 5.0).starting == ()


@pytest.mark.parametrize("text", ["", "x {nothing}", "x {}", "x {queue.name}", "x '", "x {"])
def test_a_command_that_cannot_be_run_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="command: "):
        command_words(text)


# --- how many there may be --------------------------------------------------------------------------------------------


def test_the_least_of_all_limits_counts() -> None:
    assert Budget(max_workers=7).allowed(LOOK, 0, None) == (7, "max")
    assert Budget(max_workers=7, max_connections=35).allowed(LOOK, 0, None) == (3, "connections")
    assert Budget(max_workers=7, max_memory=600 << 20).allowed(LOOK, 0, 200 << 20) == (3, "memory")
    crowded = replace(LOOK, connections=70)
    assert Budget(max_workers=7).allowed(crowded, 0, None) == (2, "server connections")
    full = replace(LOOK, connections=100)
    assert Budget(max_workers=7).allowed(full, 0, None) == (0, "server connections")


def test_however_many_connections_workers_have_it_is_never_above_the_server() -> None:
    """This holds however many of its connections each worker has opened."""
    for others in (0, 10, 40):
        for opened in (2, 5, CONNECTIONS):
            ready = 0
            for _ in range(20):
                look = replace(LOOK, connections=others + ready * opened)
                ready, _ = Budget(max_workers=50).allowed(look, ready, None)
                assert others + ready * CONNECTIONS <= LOOK.most_connections - SPARE + CONNECTIONS * (opened > 2)
            assert others + ready * opened <= LOOK.most_connections


def test_bad_limits_are_named() -> None:
    with pytest.raises(ConfigError, match="max_connections: 3 is not enough for one worker, which may need 11"):
        Budget(max_connections=3)


def test_the_memory_of_a_process_is_measured() -> None:
    assert (bytes_of([os.getpid()]) or 0) > 1 << 20
    assert bytes_of([]) is None


def test_a_dead_holder_is_distinguished_from_one_that_may_live() -> None:
    ours = new_holder()
    host, place, pid, word = ours.split(":")
    assert not is_dead(ours)
    assert is_dead(f"{host}:{place}:{2**22 + 1}:{word}")
    assert not is_dead(f"elsewhere:{place}:{2**22 + 1}:{word}")
    assert not is_dead(f"{host}:1:{2**22 + 1}:{word}")
    assert not is_dead("unknown")
    assert int(pid) == os.getpid()
    assert len(word) >= 16, "eight random bytes"
