"""The settings of each peer that a sweep tries: of its push, and of its workers. The first of each is used until a
sweep has recorded a faster one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings that a script in bench/peers reads with `setting`, and a name for them in words."""

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Variants:
    push: tuple[Variant, ...]
    work: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The variant of the push and that of the workers in one run."""

    push: Variant
    work: Variant


ONLY = Variant("", {})
SINGLE = Variants((ONLY,), (ONLY,))


def local_queue(size: int, jobs: int) -> Variant:
    name = f"local queue {size:,}, refetch delay 10 ms, {jobs} jobs at once"
    return Variant(name, {"size": size, "delay": 10, "jobs": jobs})


def batches(word: str, *sizes: int) -> tuple[Variant, ...]:
    return tuple(Variant(f"{word} {size:,}", {"chunk": size}) for size in sizes)


def each(word: str, name: str, *values: float) -> tuple[Variant, ...]:
    return tuple(Variant(f"{word} {value:,}", {name: value}) for value in values)


VARIANTS: dict[str, Variants] = {
    "graphile-worker": Variants(
        push=(
            *batches("addJobs of", 10_000, 5_000),
            Variant("SQL's add_jobs of 10,000", {"sql": True, "chunk": 10_000}),
            Variant("SQL's add_jobs of 5,000", {"sql": True, "chunk": 5_000}),
        ),
        work=(
            Variant("local queue 500, 24 jobs at once", {"size": 500, "jobs": 24}),
            *(local_queue(size, jobs) for size in (500, 1_000, 2_000) for jobs in (24, 50)),
        ),
    ),
    "pg-boss": Variants(
        push=batches("insert of", 5_000, 1_000, 10_000),
        work=(
            *each("batches of", "batch", 5_000, 1_000, 2_000, 10_000),
            Variant("two fetch loops of 2,000", {"batch": 2_000, "loops": 2}),
        ),
    ),
    "pgqueuer": Variants(
        push=batches("enqueue of", 10_000, 5_000, 20_000),
        work=each("batches of", "batch", 500, 100, 1_000, 2_000),
    ),
    "procrastinate": Variants(
        push=batches("batch_defer of", 5_000, 1_000, 10_000),
        work=(
            Variant("20 jobs at once, at most 8 connections", {"concurrency": 20, "pool": 8}),
            Variant("20 jobs at once, at most 4 connections", {"concurrency": 20, "pool": 4}),
            Variant("5 jobs at once, at most 8 connections", {"concurrency": 5, "pool": 8}),
            Variant("50 jobs at once, at most 16 connections", {"concurrency": 50, "pool": 16}),
        ),
    ),
    "chancy": Variants(
        push=batches("push_many of", 5_000, 1_000),
        work=tuple(
            Variant(
                f"{concurrency:,} jobs at once, {'with' if plugins else 'without'} its default plugins",
                {"concurrency": concurrency, "plugins": plugins},
            )
            for plugins in (True, False)
            for concurrency in (1_000, 100)
        ),
    ),
    "awa": Variants(
        push=batches("enqueue_many_copy of", 5_000, 1_000, 10_000),
        work=each("workers in a process:", "workers", 512, 128, 1_024),
    ),
    "oban": Variants(
        push=batches("transactions of", 5_000, 1_000),
        work=(
            Variant("500 jobs at once", {"limit": 500}),
            Variant("100 jobs at once", {"limit": 100}),
            Variant("1,000 jobs at once", {"limit": 1_000}),
            Variant("500 jobs at once, debounced by 1 ms", {"limit": 500, "debounce": 0.001}),
        ),
    ),
    "absurd": Variants(
        push=batches("transactions of", 1_000, 100, 5_000),
        work=(
            Variant("8 async clients in a process, claims of 50", {"clients": 8, "batch": 50}),
            Variant("8 async clients in a process, claims of 200", {"clients": 8, "batch": 200}),
            Variant("16 async clients in a process, claims of 50", {"clients": 16, "batch": 50}),
            Variant("one async client, claims of 500", {"clients": 1, "batch": 500}),
            Variant(
                "one sync client, claims of 500, one task at a time", {"clients": 0, "batch": 500, "concurrency": 1}
            ),
        ),
    ),
    "dbos": Variants(
        push=batches("transactions of", 1_000, 100, 5_000),
        work=(
            Variant("1,000 workflows at once", {"concurrency": 1_000}),
            Variant("100 workflows at once", {"concurrency": 100}),
            Variant("1,000 async workflows at once", {"concurrency": 1_000, "async": True}),
            Variant("100 async workflows at once", {"concurrency": 100, "async": True}),
        ),
    ),
    "celery + redis": Variants(
        push=(ONLY,),
        work=(
            Variant("1,000 prefetched", {"prefetch": 1_000}),
            Variant("100 prefetched", {"prefetch": 100}),
            Variant("4 prefetched, its default", {"prefetch": 4}),
        ),
    ),
    "dramatiq + redis": Variants(
        push=(ONLY,),
        work=tuple(
            Variant(f"{threads} threads, {words}", {"threads": threads, "prefetch": prefetch})
            for threads in (2, 8)
            for prefetch, words in ((1_000, "1,000 prefetched"), (0, "prefetching its default"))
        ),
    ),
}


def variants_of(peer: str) -> Variants:
    return VARIANTS.get(peer, SINGLE)
