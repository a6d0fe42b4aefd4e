"""Each end of a task has exactly one follow-up, while its workers are killed, frozen and told to stop."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from psycopg import Connection

from penstock import NewTask, Penstock, Queue
from workers import Worker, eventually, working

SEED = int(os.environ.get("PENSTOCK_FAULT_SEED", random.SystemRandom().randrange(2**32)))
APP = """
@app.task(queue="work", max_attempts=3, retry=Fixed("50ms"), on_done="after:done", on_dead="after:dead")
def ship(n: int, context: Context) -> None:
    time.sleep(0.02)
    if n % 100 == 99:
        os._exit(9)
    if n % 5 == 1:
        context.dead("no")
    elif n % 5 == 2:
        raise LookupError(n)
    elif n % 5 == 3:
        with context.transaction():
            pass

@app.task(queue="work", on_done="after:tiny")
def tiny(n: int) -> None:
    pass
"""
DIFFERENCE = """
    with ended as (
        select outcome || ':' || task_id || ':' || id as subject, 1 as ends from penstock.history
        where outcome in ('done', 'dead')
    ), followed as (
        select subject, count(*) as tasks from penstock.tasks where queue = 'after' group by subject
    )
    select coalesce(e.subject, f.subject), e.ends, f.tasks from ended as e full join followed as f using (subject)
    where e.ends is distinct from f.tasks
"""


def harm(worker: Worker, dice: random.Random) -> None:
    """Kills a process, or freezes one for longer than its lease."""
    runners = worker.runners
    if not runners:
        return
    pid = dice.choice(runners)
    with suppress(ProcessLookupError):
        if dice.random() < 0.7:
            os.kill(pid, signal.SIGKILL)
            return
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("tasks", "kills"),
    [
        pytest.param(300, 3, id="quick"),
        pytest.param(6000, 60, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_each_end_has_exactly_one_follow_up(
    app: Penstock, queue: Queue, dsn: str, sql: Connection, tmp_path: Path, tasks: int, kills: int
) -> None:
    print(f"\nseed {SEED} (PENSTOCK_FAULT_SEED={SEED} runs it again)")
    dice = random.Random(SEED)
    after = app.create_queue("after")
    queue.set(lease="1s")
    kinds = ("ship", "ship", "tiny")
    with working(tmp_path, dsn, APP, "--concurrency", "4", processes=2) as worker:
        queue.push_many(NewTask({"n": n}, kind=kinds[n % 3], subject=f"s{n}" if n % 2 else None) for n in range(tasks))
        for _ in range(kills):
            time.sleep(dice.uniform(0.2, 0.8))
            harm(worker, dice)

        def over() -> bool:
            status = queue.status()
            return not status.queued and not status.active

        eventually(over, within=60 + tasks / 20)
    assert sql.execute(DIFFERENCE).fetchall() == []
    assert after.status().pending == tasks
    assert queue.status().dead >= tasks * 2 // 3 * 2 // 5
