"""Minimums go first, then each worker to the queue where it saves most. No queue gets more than it wants, and no worker
is left over."""

from __future__ import annotations

from functools import partial
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.scaler.policy.share import Shares, Want, share


def late(tasks: float, each: float, workers: int) -> float:
    """Returns how many tasks are late if each worker saves `each` of them."""
    return max(0.0, tasks - each * workers)


def test_there_is_enough_for_all() -> None:
    assert share([Want("a", 3), Want("b", 0), Want("c", 5, min_workers=2)], 8) == Shares({"a": 3, "b": 0, "c": 5}, {})


def test_no_queue_gets_more_than_it_wants() -> None:
    assert share([Want("a", 3), Want("b", 1, min_workers=4)], 99).given == {"a": 3, "b": 4}


def test_minimums_go_first_one_after_the_other() -> None:
    greedy = Want("a", 90, late=partial(late, 1000.0, 10.0))
    modest = Want("b", 2, min_workers=2, late=partial(late, 0.0, 1.0))
    assert share([greedy, modest], 10) == Shares({"a": 8, "b": 2}, {"a": 82})
    wants = [Want("a", 5, min_workers=5), Want("b", 5, min_workers=1), Want("c", 5, min_workers=5)]
    assert share(wants, 6).given == {"a": 3, "b": 1, "c": 2}


def test_the_next_worker_goes_where_it_saves_most_late_starts() -> None:
    wants = [Want("slow", 10, late=partial(late, 50.0, 5.0)), Want("quick", 10, late=partial(late, 90.0, 30.0))]
    assert share(wants, 1).given == {"slow": 0, "quick": 1}
    assert share(wants, 3).given == {"slow": 0, "quick": 3}
    assert share(wants, 5) == Shares({"slow": 2, "quick": 3}, {"slow": 8, "quick": 7})
    assert share(wants, 13).given == {"slow": 10, "quick": 3}, "three workers save all of its tasks"
    assert share(wants, 15).given == {"slow": 10, "quick": 5}


def test_among_equals_the_queue_with_the_smallest_part_goes_first() -> None:
    assert share([Want("a", 2), Want("b", 4), Want("c", 4)], 5).given == {"a": 1, "b": 2, "c": 2}


def test_nothing_to_share() -> None:
    assert share([], 5) == Shares({}, {})
    assert share([Want("a", 2, min_workers=1)], 0) == Shares({"a": 0}, {"a": 2})


SAVED = st.lists(st.integers(0, 20), max_size=5)  # tasks saved by each worker


def saves(saved: list[int]) -> Want:
    """A want in which each worker saves no more than the one before."""
    falling = sorted(saved, reverse=True)
    return Want("", len(falling), late=lambda workers: float(sum(falling[workers:])))


@st.composite
def wants(draw: st.DrawFn) -> list[Want]:
    found = []
    for n in range(draw(st.integers(0, 5))):
        wanted = saves(draw(SAVED))
        found.append(Want(f"q{n}", wanted.wanted, draw(st.integers(0, 6)), draw(st.sampled_from([wanted.late, None]))))
    return found


@settings(max_examples=200, deadline=None)
@given(wants(), st.integers(0, 40))
def test_all_are_given_away_and_the_rest_is_reported(wanted: list[Want], capacity: int) -> None:
    shares = share(wanted, capacity)
    assert sum(shares.given.values()) == min(capacity, sum(max(one.wanted, one.min_workers) for one in wanted))
    assert all(0 <= shares.given[one.queue] <= max(one.wanted, one.min_workers) for one in wanted)
    assert shares.short == {
        one.queue: one.wanted - shares.given[one.queue] for one in wanted if shares.given[one.queue] < one.wanted
    }
    if capacity >= sum(one.min_workers for one in wanted):
        assert all(shares.given[one.queue] >= one.min_workers for one in wanted)
    else:
        assert all(shares.given[one.queue] <= one.min_workers for one in wanted)


@settings(max_examples=100, deadline=None)
@given(st.lists(SAVED, min_size=1, max_size=4), st.integers(0, 12))
def test_no_other_way_to_share_saves_more(saved: list[list[int]], capacity: int) -> None:
    line = [Want(f"q{n}", one.wanted, late=one.late) for n, one in enumerate(map(saves, saved))]

    def lost(workers: tuple[int, ...]) -> float:
        return sum(one.late(n) for one, n in zip(line, workers, strict=True) if one.late is not None)

    ways = product(*(range(one.wanted + 1) for one in line))
    best = min(lost(way) for way in ways if sum(way) <= capacity)
    assert lost(tuple(share(line, capacity).given.values())) == best


@given(wants(), st.integers(0, 30))
def test_one_worker_more_takes_nothing_from_any_queue(wanted: list[Want], capacity: int) -> None:
    few, more = share(wanted, capacity).given, share(wanted, capacity + 1).given
    assert all(few[queue] <= more[queue] for queue in few)
