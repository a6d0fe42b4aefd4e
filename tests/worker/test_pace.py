"""How many tasks a worker claims at once, and from which queue."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from penstock.worker import pace as pace_module
from penstock.worker.pace import LARGEST_BATCH, SLOWEST, Pace, Turns


def paced(slots: int, seconds: float) -> Pace:
    pace = Pace(slots)
    pace.note(1000, 1000 * seconds)
    return pace


def test_before_anything_is_known_each_slot_gets_one() -> None:
    assert Pace(10).room(0) == 10
    assert Pace(10).room(7) == 3
    assert Pace(10).room(10) == 0


def test_one_tiny_task_says_little_of_the_others() -> None:
    pace = Pace(4)
    pace.note(1, 1e-6)
    assert pace.target == 4
    pace.note(9, 9e-6)
    assert pace.target == 40


@pytest.mark.parametrize(
    ("seconds", "target"),
    [(1e-6, LARGEST_BATCH), (0.001, LARGEST_BATCH), (0.01, 100), (0.05, 20), (0.1, 10), (10.0, 10)],
)
def test_a_tenth_of_a_second_of_work_is_in_hand(seconds: float, target: int) -> None:
    assert paced(10, seconds).target == pytest.approx(target, abs=1)


def test_ahead_of_the_slots_it_goes_by_half_batches() -> None:
    pace = paced(10, 0.01)
    assert [pace.room(in_hand) for in_hand in (0, 40, 60, 100)] == [100, 60, 0, 0]


def test_long_tasks_are_never_taken_ahead() -> None:
    pace = paced(4, 30.0)
    assert [pace.room(in_hand) for in_hand in (0, 3, 4, 9)] == [4, 1, 0, 0]


def test_what_waited_too_long_teaches_it_to_take_less() -> None:
    pace = paced(10, 1e-6)
    before = pace.tiny
    pace.note_stall()
    assert (before, pace.tiny, pace.target) == (True, False, 10)


def test_it_follows_what_changes() -> None:
    pace = paced(10, 1e-6)
    for _ in range(20):
        pace.note(10, 10 * 2.0)
    assert pace.target == 10
    for _ in range(60):
        pace.note(50, 50 * 1e-6)
    assert pace.tiny


def turns_of(**weights: int) -> Turns:
    """Turns in which all queues have tasks."""
    turns = Turns(weights)
    for name in weights:
        turns.wake(name)
    return turns


def test_turns_go_by_weight() -> None:
    turns = turns_of(a=1, b=3)
    asked: Counter[str | None] = Counter()
    for _ in range(400):
        name = turns.next()
        asked[name] += 1
        turns.note(str(name), 10, 10)
    assert asked == {"a": 100, "b": 300}


def test_no_queue_is_asked_before_a_task_arrives() -> None:
    turns = Turns({"a": 1})
    assert (turns.next(), turns.rest()) == (None, None)


def test_an_empty_queue_rests_longer_and_longer_until_it_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        pace_module, "time", SimpleNamespace(monotonic=lambda: 100.0)
    )  # a busy machine stretches no rest
    turns = turns_of(a=1, b=1)
    assert {turns.next(), turns.next()} == {"a", "b"}
    turns.note("a", 0, 10)
    rests = [turns.rest() or 0.0]
    while (rest := turns.rest()) is not None:
        rests.append(rest)
        turns.note("a", 0, 10)
        turns.note("b", 0, 10)
    assert rests[0] < 0.03
    assert 0.25 * SLOWEST < max(rests) <= 1.3 * SLOWEST, "the last pause within the limit, with its spread"
    assert turns.next() is None
    turns.wake("b")
    assert turns.rest() == 0.0
    assert turns.next() == "b"
    turns.note("b", 3, 10)
    assert 0.0 < (turns.rest() or 0.0) < 0.03, "a queue that had tasks is asked again soon"


def test_a_task_that_arrives_during_a_claim_is_not_forgotten() -> None:
    turns = turns_of(a=1)
    for _ in range(30):
        turns.note("a", 0, 10)
    assert turns.next() == "a"
    turns.wake("a")
    turns.note("a", 0, 10)
    assert turns.next() == "a"


def test_a_queue_that_refuses_claims_is_reported_once() -> None:
    turns = turns_of(a=1)
    assert turns.note_refused("a")
    assert turns.next() is None
    turns.wake("a")
    assert turns.next() == "a"
    assert not turns.note_refused("a")
    turns.wake("a")
    turns.note("a", 1, 1)
    assert turns.note_refused("a")
