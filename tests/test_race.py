"""The sweep of the race and its page, mostly from made-up figures. The race itself is long: `make bench-peers`."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.race import pages, sweep
from bench.race.contestants import CONTESTANTS, OURS, Peer
from bench.race.figures import Figures, Found, judge
from bench.race.lane import PeerFailed
from bench.race.sweep import Trials
from bench.race.variants import VARIANTS, Chosen, Variant, Variants, variants_of
from bench.support.harness import bench

ROOT = Path(__file__).parent.parent
PEERS = {peer.name: peer for peer in CONTESTANTS}
GRAPHILE = PEERS["graphile-worker"]


def measured(peer: Peer, measure: sweep.Measure, *medians: float) -> Trials:
    """Returns the trials of a peer's first variants, with one round each; a negative median is a failure."""
    trials = Trials(peer, measure)
    for variant, median in zip(trials.variants, medians, strict=False):
        sweep.attempt(trials, variant, lambda median=median: fail() if median < 0 else median)  # type: ignore[misc]
    return trials


def fail() -> float:
    raise PeerFailed("a worker ended: no such function")


def recorded(tmp_path: Path, *found: Trials) -> sweep.Peers:
    for trials in found:
        sweep.write(trials.peer.name, trials.measure, {"variants": trials.to_json()}, tmp_path / "sweep.json")
    return sweep.read(tmp_path / "sweep.json")


# --- the sweep --------------------------------------------------------------------------------------------------------


def test_the_fastest_variant_of_each_measure_is_chosen(tmp_path: Path) -> None:
    found = recorded(
        tmp_path,
        measured(GRAPHILE, "push", 70_000, 60_000, 103_000, 90_000),
        measured(GRAPHILE, "drain_1", 43_000, 54_600, 50_000),
        measured(GRAPHILE, "drain_2", 60_000, 61_000, 73_100),
        measured(GRAPHILE, "latency", 3.0, 2.5, 4.0),
    )
    variants = variants_of(GRAPHILE.name)
    assert sweep.choose(found, GRAPHILE.name, "push").push == variants.push[2]
    assert sweep.choose(found, GRAPHILE.name, "drain_1") == Chosen(variants.push[2], variants.work[1])
    assert sweep.choose(found, GRAPHILE.name, "drain_2") == Chosen(variants.push[2], variants.work[2])
    assert sweep.choose(found, GRAPHILE.name, "latency").work == variants.work[1]


def test_without_a_sweep_the_first_variant_runs() -> None:
    variants = variants_of(GRAPHILE.name)
    assert sweep.choose({}, GRAPHILE.name, "drain_2") == Chosen(variants.push[0], variants.work[0])


def test_a_variant_that_fails_is_recorded_with_its_reason_and_is_not_chosen(tmp_path: Path) -> None:
    trials = measured(GRAPHILE, "drain_2", 60_000, -1, 50_000)
    found = recorded(tmp_path, trials)
    assert sweep.find_best(found, GRAPHILE.name, "drain_2") == variants_of(GRAPHILE.name).work[0]
    failed = found[GRAPHILE.name]["drain_2"]["variants"][-1]
    assert failed["variant"] == variants_of(GRAPHILE.name).work[1].name
    assert failed["failed"] == "a worker ended: no such function"
    assert [one.name for one in sweep.turns(trials, 0)] == [
        one.name for one in trials.variants if one.name != failed["variant"]
    ]


def test_figures_of_settings_that_are_no_longer_declared_are_ignored(tmp_path: Path) -> None:
    found = recorded(tmp_path, measured(GRAPHILE, "push", 1, 2))
    found[GRAPHILE.name]["push"]["variants"].append({"variant": "old", "settings": {"chunk": 7}, "median": 1e9})
    assert sweep.find_best(found, GRAPHILE.name, "push") == variants_of(GRAPHILE.name).push[1]


def test_a_second_sweep_keeps_what_it_did_not_measure(tmp_path: Path) -> None:
    recorded(tmp_path, measured(GRAPHILE, "push", 1, 2), measured(PEERS["chancy"], "push", 1, 2))
    found = recorded(tmp_path, measured(GRAPHILE, "drain_2", 5))
    assert {*found} == {"chancy", "graphile-worker"}
    assert {*found["graphile-worker"]} == {"push", "drain_2"}


def test_the_order_of_the_variants_rotates() -> None:
    trials = Trials(GRAPHILE, "push")
    assert [one.name for one in sweep.turns(trials, 1)][-1] == trials.variants[0].name


def test_the_settings_in_words_name_each_variant_that_the_race_uses(tmp_path: Path) -> None:
    found = recorded(
        tmp_path,
        measured(GRAPHILE, "push", 1, 1, 2),
        measured(GRAPHILE, "drain_1", 2, 1),
        measured(GRAPHILE, "drain_2", 1, 2),
    )
    assert sweep.describe(found, GRAPHILE) == (
        "SQL's add_jobs of 10,000; local queue 500, refetch delay 10 ms, 24 jobs at once; with one process local queue"
        f" 500, 24 jobs at once; with single pushes local queue 500, 24 jobs at once; {GRAPHILE.settings}"
    )


def test_each_variant_has_a_peer_and_a_name_and_settings_of_its_own() -> None:
    assert {*VARIANTS} <= {*PEERS}
    for variants in VARIANTS.values():
        for some in (variants.push, variants.work):
            assert len({one.name for one in some}) == len(some)
            assert len({str(one.settings) for one in some}) == len(some)


@pytest.mark.slow
def test_a_sweep_runs_real_workers_and_goes_on_after_a_variant_that_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loop = replace(PEERS["limit: COPY, bare loop"], name="loop")
    works = (Variant("batches of 50", {"batch": 50}), Variant("no batches", {"batch": "x"}), Variant("3", {"batch": 3}))
    monkeypatch.setitem(VARIANTS, "loop", Variants((Variant("COPY", {}),), works))

    def keep(trials: Trials) -> None:
        sweep.write(trials.peer.name, trials.measure, {"variants": trials.to_json()}, tmp_path / "sweep.json")

    with bench() as server:
        sweep.sweep(server, [loop], ["push", "drain_2"], 1, lambda _: 600, keep)
    found = sweep.read(tmp_path / "sweep.json")["loop"]
    assert {*found} == {"drain_2"}  # there is nothing to choose for the push
    rows: list[dict[str, Any]] = found["drain_2"]["variants"]
    assert {row["variant"] for row in rows[:2]} == {"batches of 50", "3"}
    assert rows[2]["variant"] == "no batches"
    assert "a worker ended" in rows[2]["failed"]


def test_help_says_what_a_sweep_does() -> None:
    told = subprocess.run(
        [sys.executable, "bench/peers.py", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "sweep runs the declared variants" in told
    assert "bench/race/sweep.json" in told


# --- the bars and the page --------------------------------------------------------------------------------------------


def figures() -> Found:
    found = {peer.name: Figures() for peer in CONTESTANTS}
    ours, theirs, python = found[OURS], found["graphile-worker"], found["pgqueuer"]
    for one, push, drain, wait, size in (
        (ours, 120.0, 200.0, 2.0, 400.0),
        (theirs, 100.0, 100.0, 3.0, 600.0),
        (python, 60.0, 30.0, 4.0, 900.0),
    ):
        one.push, one.drain_1, one.drain_2, one.p50 = [push], [drain], [drain], [wait]
        one.push_wal, one.drain_wal = [size], [size]
    found["celery + redis"].p50 = [2.0]
    ours.held_first, ours.held_last = [100.0], [96.0]
    return found


def test_the_bars_are_those_of_the_race() -> None:
    said = {one.label: (round(one.value, 2), one.kept) for one in judge(figures(), [*CONTESTANTS])}
    assert said == {
        "drain, 2 processes / fastest peer of any language (graphile-worker)": (2.0, True),
        "drain, 2 processes / fastest Python peer (pgqueuer)": (6.67, True),
        "drain, 1 process / fastest peer (graphile-worker)": (2.0, True),
        "bulk push / fastest peer (graphile-worker)": (1.2, False),
        "WAL bytes a task / lowest peer (graphile-worker)": (0.67, True),
        "p50 push → start / best PostgreSQL peer (graphile-worker)": (0.67, True),
        "p50 push → start / Celery on Redis (celery + redis)": (1.0, False),
        "last / first under a held snapshot": (0.96, True),
    }


def write_page(directory: Path, *, fair: bool) -> str:
    told = {"machine": "2 cores", "postgres": "PostgreSQL 18", "sizes": "1 round."}
    texts = pages.Texts(told, {peer.name: sweep.describe({}, peer) for peer in CONTESTANTS}, {}, fair)
    found = figures()
    pages.write(directory, found, CONTESTANTS, texts, judge(found, [*CONTESTANTS]))
    return (directory / "race.md").read_text("utf-8")


def test_the_page_marks_bars_that_are_missed_and_goals_that_are_not_reached(tmp_path: Path) -> None:
    page = write_page(tmp_path, fair=True)
    assert "| bulk push / fastest peer (graphile-worker) | 1.20 | ≥ 1.3 | **missed** | ≥ 1.5, not reached |" in page
    assert "| WAL bytes a task / lowest peer (graphile-worker) | 0.67 | ≤ 0.85 | kept | ≤ 0.75, reached |" in page
    assert "not measured** |" not in page


def test_the_page_names_bars_that_were_not_measured() -> None:
    row = pages.unmeasured_row(pages.unmeasured(judge({OURS: Figures()}, [PEERS[OURS]]))[-1])
    assert row == "| last / first under a held snapshot | – | ≥ 0.95 | **not measured** | – |"
    assert len(pages.unmeasured([])) == 8


def test_the_correction_stays_until_a_fair_run(tmp_path: Path) -> None:
    correction = "## Correction\n\nSeveral peers ran below their best settings.\n\n| a | b |\n"
    (tmp_path / "race.md").write_text(
        f"# The race\n\nText.\n\n{correction}\n## The first run\n\n![p](race.svg)\n", "utf-8"
    )
    for _ in range(2):
        page = write_page(tmp_path, fair=False)
        assert f"the same server.\n\n{correction}\n## The last run\n\n![" in page
        assert page.count("## The bars") == 1
    assert "## Correction" not in write_page(tmp_path, fair=True)
