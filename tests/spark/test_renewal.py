"""The thread that renews leases and groups."""

from __future__ import annotations

import threading

from penstock.spark.renewal import RenewalThread

PATIENCE = 20.0
HOURS = 10_000.0


def test_it_calls_again_after_the_seconds_that_the_call_returned_and_ends_with_none() -> None:
    answers = iter([0.0, 0.01, 0.0, None])
    calls: list[str] = []

    def renew() -> float | None:
        calls.append(threading.current_thread().name)
        return next(answers)

    thread = RenewalThread("renewal", renew, 0.0)
    thread.start()
    thread._thread.join(PATIENCE)
    assert not thread.alive
    assert calls == ["renewal"] * 4


def test_what_is_set_next_replaces_what_was_due() -> None:
    called = threading.Event()

    def renew() -> float:
        called.set()
        return HOURS

    thread = RenewalThread("renewal", renew, HOURS)
    thread.start()
    thread.set_next(0.0)
    assert called.wait(PATIENCE)
    called.clear()
    thread.stop()
    assert not thread.alive
    assert not called.is_set()


def test_a_thread_that_is_stopped_while_it_waits_calls_nothing() -> None:
    calls: list[None] = []
    thread = RenewalThread("renewal", lambda: calls.append(None), HOURS)
    thread.start()
    thread.stop()
    assert not thread.alive
    assert calls == []


def test_a_call_that_ends_late_does_not_postpone_the_next() -> None:
    """A new lease begins while the last extension of the old one waits for PostgreSQL."""
    begun, may_end, again = threading.Event(), threading.Event(), threading.Event()

    def renew() -> float:
        if begun.is_set():
            again.set()
        begun.set()
        may_end.wait(30)
        return 3600.0

    thread = RenewalThread("renewal", renew, 0.0)
    thread.start()
    assert begun.wait(30)
    thread.set_next(0.01)
    may_end.set()
    assert again.wait(30)
    thread.stop()
