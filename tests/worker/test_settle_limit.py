"""How many settles run at the same time, and that one at a time tries again when they get no answer."""

from __future__ import annotations

import asyncio

import pytest

from penstock.worker import settle_limit
from penstock.worker.settle_limit import SettleLimit


class Settles:
    """Settles that wait for an answer, and the order in which they began."""

    def __init__(self, limit: SettleLimit) -> None:
        self.begun: list[int] = []
        self.answer = asyncio.Event()
        self._limit = limit

    async def run(self, number: int, *, repeats: bool = False) -> None:
        async with self._limit.place(repeats=repeats):
            self.begun.append(number)
            await self.answer.wait()


def test_a_few_run_at_the_same_time() -> None:
    async def run() -> None:
        settles = Settles(SettleLimit(4))
        async with asyncio.TaskGroup() as tasks:
            for n in range(10):
                tasks.create_task(settles.run(n))
            await asyncio.sleep(0.05)
            assert settles.begun == [0, 1, 2, 3]
            settles.answer.set()
        assert sorted(settles.begun) == [*range(10)]

    asyncio.run(run())


def test_without_answers_one_tries_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A settle that repeats one without an answer need not wait. After an answer, all go on."""
    monkeypatch.setattr(settle_limit, "FIRST_PAUSE", 0.2)

    async def run() -> None:
        limit = SettleLimit(4)
        settles = Settles(limit)
        limit.note_no_answer()
        async with asyncio.TaskGroup() as tasks:
            for n in range(10):
                tasks.create_task(settles.run(n))
            tasks.create_task(settles.run(10, repeats=True))
            await asyncio.sleep(0.05)
            assert settles.begun == [10]
            await asyncio.sleep(1.0)
            assert settles.begun == [10, 0], "the others wait for this one"
            limit.note_answer()
            settles.answer.set()
        assert sorted(settles.begun) == [*range(11)]

    asyncio.run(run())


def test_an_answer_ends_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle_limit, "FIRST_PAUSE", 3600.0)

    async def run() -> None:
        limit = SettleLimit(4)
        settles = Settles(limit)
        settles.answer.set()
        limit.note_no_answer()
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            for n in range(10):
                tasks.create_task(settles.run(n))
            await asyncio.sleep(0.05)
            assert settles.begun == []
            limit.note_answer()
        assert sorted(settles.begun) == [*range(10)]

    asyncio.run(run())
