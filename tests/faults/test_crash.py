"""PostgreSQL is killed, or the network is cut at the worst moment: no task is lost or doubled, no token is reused."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from penstock import CommitUnknown, LeaseLost, NewTask, PartialPush, Penstock, Queue, Unavailable
from penstock.client import database
from penstock.embedded import Server
from proxy import Lane, Proxy

# The server flushes asynchronous commits only when it must, so a crash surely loses what a claim wrote.
LAZY = {"wal_writer_delay": "10s", "shared_buffers": "128MB"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server.start(tmp_path / "pg", environ=os.environ, settings=LAZY)
    yield server
    running = Server.running(tmp_path / "pg")
    if running is not None:
        running.stop("immediate")


def crashed(server: Server) -> Server:
    server.kill()
    return Server.start(server.home, environ=os.environ, settings=LAZY)


def test_a_claim_lost_in_a_crash_is_claimed_again_and_its_token_is_dead(server: Server) -> None:
    with Penstock(server.dsn) as penstock:
        penstock.init()
        queue = penstock.create_queue("work")
        queue.push_many([{"n": n} for n in range(10)])
        tokens = set()
        for _ in range(4):
            queue.push()  # durable: it flushes everything before it
            lost = queue.claim(20)
            tokens.add(lost.token)
            crashed(server := Server.running(server.home) or server)
            assert queue.status().active == 0, "the claim was not flushed, so it never happened"
            with pytest.raises(LeaseLost):
                queue.settle(lost)
            again = queue.claim(20)
            assert again.token not in tokens
            assert set(lost.ids) <= set(again.ids)
            tokens.add(again.token)
            with pytest.raises(LeaseLost):
                queue.extend(lost)
            queue.release(again)
        assert penstock.verify().ok


def test_a_crash_can_undo_an_expiry_but_never_a_fence(server: Server) -> None:
    """Expiry runs inside an asynchronous claim. If both are lost, the old lease is back, and only it is valid."""
    with Penstock(server.dsn) as penstock:
        penstock.init()
        queue = penstock.create_queue("work", lease="100ms")
        queue.push()
        old = queue.claim()
        queue.push(due=None, priority=9)  # durable: now the old claim is on disk
        threading.Event().wait(0.2)
        new = queue.claim(2)
        assert new.ids == old.ids
        crashed(server)
        with pytest.raises(LeaseLost):
            queue.settle(new)
        assert queue.settle(old) == {old.ids[0]: "done"}
        assert penstock.verify().ok


def test_what_was_pushed_and_settled_survives(server: Server) -> None:
    with Penstock(server.dsn) as penstock:
        penstock.init()
        queue = penstock.create_queue("work")
        queue.push_many({"n": n} for n in range(5_000))
        queue.push_many(NewTask({}, f"s{n}") for n in range(5_000))
        queue.settle(queue.claim(1_000))
        crashed(server)
        status = queue.status()
        assert (status.pending, status.totals["done"], status.totals["pushed"]) == (9_000, 1_000, 10_000)
        assert penstock.verify().ok


# --- a cut at COMMIT --------------------------------------------------------------------------------------------------


@contextmanager
def through_proxy(dsn: str) -> Iterator[tuple[Lane, Queue]]:
    with Proxy(int(str(psycopg.conninfo.conninfo_to_dict(dsn)["port"]))) as proxy:
        lane = proxy.add_lane()
        with Penstock(lane.dsn(dsn)) as penstock:
            yield lane, penstock.queue("work")


@pytest.mark.parametrize("subjects", [False, True], ids=["plain", "subjects"])
def test_a_bulk_push_whose_commit_was_not_heard_doubles_nothing(queue: Queue, dsn: str, subjects: bool) -> None:
    items = [NewTask({"n": n}, f"s{n}" if subjects else None) for n in range(25_000)]
    with through_proxy(dsn) as (lane, cut_off):
        lane.cuts = 2
        report = cut_off.push_many(items)
    assert lane.cuts == 0
    assert report.created == 25_000
    assert queue.status().totals["pushed"] == 25_000


def test_a_single_push_says_that_it_does_not_know(queue: Queue, dsn: str) -> None:
    with through_proxy(dsn) as (lane, cut_off):
        cut_off.status()
        lane.cuts = 1
        with pytest.raises(CommitUnknown):
            cut_off.push({})
    assert queue.status().pending == 1, "this time the push was written"


def test_a_settle_whose_commit_was_not_heard_is_refused_when_repeated(queue: Queue, dsn: str) -> None:
    queue.push()
    with through_proxy(dsn) as (lane, cut_off):
        claim = cut_off.claim()
        lane.cuts = 1
        with pytest.raises(CommitUnknown):
            cut_off.settle(claim)
        with pytest.raises(LeaseLost):
            cut_off.settle(claim)
    assert queue.status().totals["done"] == 1


def test_a_bulk_push_that_fails_between_chunks_can_be_completed(
    queue: Queue, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "RETRIES", 1)
    items = [NewTask({"n": n}, f"s{n:05}") for n in range(25_000)]
    with through_proxy(dsn) as (lane, cut_off):

        def cut_after_first(written: int) -> None:
            lane.cuts = 1 if written == 10_000 else 0

        with pytest.raises(PartialPush) as partial:
            cut_off.push_many(items, progress=cut_after_first)
        assert isinstance(partial.value, Unavailable)
        assert partial.value.written == 10_000
        report = cut_off.push_many(items, batch_id=partial.value.batch_id)
    assert report.created == 25_000
    assert queue.status().totals["pushed"] == 25_000
