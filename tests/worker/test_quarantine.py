"""A task whose worker died is tried alone, even by workers that always have other tasks."""

from __future__ import annotations

from pathlib import Path

from psycopg import Connection

from conftest import Clock
from penstock import NewTask, Penstock, Queue
from workers import eventually, working

CODE = """
@app.task(queue="work")
def busy() -> None:
    time.sleep(0.1)

@app.task(queue="work")
def suspect() -> None:
    note("suspect")
"""


DONE = "select count(*) from penstock.history where task_id = %s and outcome = 'done'"


def test_a_beat_tells_of_it_and_a_claim_says_so(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    app.beat("w", ["work"])
    asked = "select quarantined from penstock.beat('w', '{work}')"
    queue.push_many([{"n": n} for n in range(3)])
    for _ in range(2):
        assert not queue.claim(3).alone
        assert sql.execute(asked).fetchone() == (False,)
        clock.advance(11)
        app.upkeep()
    assert sql.execute(asked).fetchone() == (True,)
    assert len(queue.claim(10, quarantined=False)) == 0
    one = queue.claim(10)
    assert (len(one), one.alone) == (1, True)
    queue.push_many([{}] * 5)
    assert len(queue.claim(10, quarantined=False)) == 5, "tasks that may share a lease go to a busy worker"
    assert queue.claim(10).alone, "a task that must run alone comes first"


def test_asking_for_one_is_being_alone(queue: Queue) -> None:
    queue.push_many([{}, {}])
    assert queue.claim().alone
    assert not queue.claim(quarantined=False).alone


def test_a_busy_worker_lets_go_of_everything_for_it(
    queue: Queue, app: Penstock, clock: Clock, sql: Connection, dsn: str, tmp_path: Path
) -> None:
    suspect = queue.push(kind="suspect").id
    for _ in range(2):
        queue.claim(2)
        clock.advance(11)
        app.upkeep()
    sql.execute("update penstock_test.clock set fixed = null")
    queue.push_many([NewTask({}, priority=0, kind="busy") for _ in range(300)])
    with working(tmp_path, dsn, CODE, "--concurrency", "4") as worker:
        eventually(lambda: worker.noted)
        status = queue.status()
        assert status.pending + status.active > 20, "long before all the others were done"
        eventually(lambda: sql.execute(DONE, (suspect,)).fetchone() == (1,))
