"""The clock of a worker's machine is a day off. The clock of PostgreSQL decides about leases and dues."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from psycopg import Connection

from penstock import NewTask, Penstock
from workers import eventually, working

# A library that the worker loads before all others, and that changes what its machine says about the time of day.
SHIFT = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && clock == CLOCK_REALTIME)
        now->tv_sec += atol(getenv("SECONDS_OFF"));
    return result;
}
"""
APP = """
@app.task(queue="work")
def note_time(n: int) -> None:
    note("clock", int(time.time()))

@app.task(queue="work")
def takes_longer_than_its_lease(n: int) -> None:
    time.sleep(3)

@app.task(queue="work", retry=Fixed("500ms"))
def fails_once(task: Task) -> None:
    if task.attempt == 1:
        raise ValueError

@app.task(queue="work")
def comes_again(n: int, context: Context) -> None:
    if context.task.iterations == 0:
        context.again(delay="500ms")
"""
KINDS = ("note_time", "takes_longer_than_its_lease", "comes_again")


@pytest.fixture(scope="module")
def shifted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[timedelta], dict[str, str]]:
    """Returns a function that returns the environment of a process whose clock is so much off."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = tmp_path_factory.mktemp("clock") / "shift.c"
    source.write_text(SHIFT, "ascii")
    library = source.with_suffix(".so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return lambda off: {"LD_PRELOAD": str(library), "SECONDS_OFF": str(int(off.total_seconds()))}


@pytest.mark.parametrize("off", [timedelta(days=1), timedelta(days=-1)], ids=["ahead", "behind"])
def test_a_worker_whose_clock_is_a_day_off(
    app: Penstock,
    dsn: str,
    sql: Connection,
    tmp_path: Path,
    shifted: Callable[[timedelta], dict[str, str]],
    off: timedelta,
) -> None:
    queue = app.create_queue("work", lease="2s", max_attempts=3)
    began = datetime.now(UTC)
    queue.push_many([*(NewTask({"n": 1}, kind=kind) for kind in KINDS), NewTask({}, kind="fails_once")])
    planned = queue.push({"n": 2}, kind="note_time", due=began + timedelta(seconds=4)).id
    tomorrow = queue.push({"n": 3}, kind="note_time", due=began + timedelta(hours=20)).id
    with working(tmp_path, dsn, APP, "-c", "4", env=shifted(off)) as worker:
        eventually(lambda: queue.status().totals["done"] == 5)
        assert worker.stop() == 0
        assert worker.report["failed"] == 1
    told = [datetime.fromtimestamp(int(words.split()[1]), UTC) for words in worker.noted]
    assert all(abs(one - off - began) < timedelta(minutes=5) for one in told), "the clock of the worker is off"
    found = sql.execute("select kind, outcome, finished_at from penstock.history").fetchall()
    assert Counter((kind, outcome) for kind, outcome, _ in found) == {
        ("note_time", "done"): 2,
        ("takes_longer_than_its_lease", "done"): 1,
        ("fails_once", "failed"): 1,
        ("fails_once", "done"): 1,
        ("comes_again", "again"): 1,
        ("comes_again", "done"): 1,
    }
    assert all(began <= at <= datetime.now(UTC) for _, _, at in found)
    due = "select min(claimed_at) from penstock.history where task_id = %s"
    assert sql.execute(due, (planned,)).fetchall()[0][0] >= began + timedelta(seconds=4)
    assert [task.id for task in queue.tasks()] == [tomorrow]
