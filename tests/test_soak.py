"""The figures and the page of the soak, from made-up samples. The soak itself runs for an hour: `make soak`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.soak import VERBS, Latencies, summary
from bench.support.soak_page import RUNS, write_page

MINUTES = 13


def latencies(first: float, last: float) -> Latencies:
    """Ten calls a second that take `first` milliseconds in the first minute, and `last` in the last one."""
    found = Latencies()
    moments = [n / 10 for n in range(MINUTES * 600)]
    slow = 60.0 * (MINUTES - 1)
    for verb in VERBS:
        found.all[verb] = [(at, (last if at >= slow else first) / 1000) for at in moments]
    return found


def sample(at: float) -> dict[str, Any]:
    figures = {"p50": 1.0 + at / 100, "p99": 5.0}
    return {
        "at": at,
        "latency_ms": {**dict.fromkeys((*VERBS, "settle"), figures), "start": None},
        "done": round(1000 * at),
        "left": 10,
        "bytes": {"history": 5_000_000 + round(1e5 * at), "task": 1_000_000},
        "dead_rows": {"agenda": round(1000 * at)},
        "memory": {
            "supervisor": 40_000_000,
            "runners": 90_000_000,
            "backends": 70_000_000,
            "largest_backend": 8_000_000,
        },
        "wal_per_second": 1_000_000,
    }


def test_the_worst_part_is_compared_with_the_first_minute() -> None:
    found = summary(latencies(first=4.0, last=12.0), "claim", 60.0 * MINUTES)
    assert found["first"]["p50"] == 4.0
    assert len(found["parts"]) == 12
    assert (found["worst_p50"], found["ratio"]) == (12.0, 3.0)


def test_a_run_without_a_second_minute_has_no_ratio() -> None:
    assert summary(latencies(first=4.0, last=4.0), "push", 60.0)["ratio"] is None


def measure_run(*, held: bool = False, last: float = 12.0) -> dict[str, Any]:
    measured = latencies(first=4.0, last=last)
    return {
        "at": "2026-01-02T03:04:05+00:00",
        "machine": {"cores": 2, "system": "Linux-6"},
        "minutes": MINUTES,
        "rate": 1000.0,
        "held": held,
        "pushed": 780_000,
        "queries": 13,
        "settings": {"batch": 20, "processes": 2, "query_seconds": 60.0, "bar": 2.0},
        "verbs": {verb: summary(measured, verb, 60.0 * MINUTES) for verb in VERBS},
        "samples": [sample(10.0 * n) for n in range(1, 6 * MINUTES)],
    }


def store_result(results: Path, name: str, run: dict[str, Any]) -> None:
    results.mkdir(exist_ok=True)
    (results / f"{name}.json").write_text(json.dumps(run))


def test_the_page_and_its_picture(tmp_path: Path) -> None:
    store_result(tmp_path, "soak", measure_run())
    write_page(tmp_path, results=tmp_path)
    page = (tmp_path / "soak.md").read_text("utf-8")
    assert "| claim | 4.00 (4.00) | 12.00 | 3.00 | ≤ 2, **missed** |" in page
    assert "](soak.svg)" in page
    picture = ElementTree.parse(tmp_path / "soak.svg").getroot()
    paths = [one for one in picture.iter() if one.tag.endswith("path")]
    assert len(paths) == 3 + 3 + 2 + 1 + 2


@pytest.mark.parametrize("order", [("soak", "soak_held"), ("soak_held", "soak")], ids=["held last", "held first"])
def test_each_soak_keeps_the_section_of_the_other(order: tuple[str, str], tmp_path: Path) -> None:
    """The two run on different machines, or after `bench/results` was removed."""
    pages = []
    for name in order:
        store_result(tmp_path / name, name, measure_run(held=name == "soak_held"))
        write_page(tmp_path, results=tmp_path / name, renewed=(name,))
        pages.append((tmp_path / "soak.md").read_text("utf-8"))
    for title in RUNS.values():
        assert pages[-1].count(f"\n## {title}\n") == 1
    assert pages[-1].index("](soak.svg)") < pages[-1].index("](soak-held.svg)")
    assert (tmp_path / "soak.svg").exists()
    assert (tmp_path / "soak-held.svg").exists()
    store_result(tmp_path / "both", "soak", measure_run())
    store_result(tmp_path / "both", "soak_held", measure_run(held=True))
    (tmp_path / "whole").mkdir()
    write_page(tmp_path / "whole", results=tmp_path / "both")
    assert pages[-1] == (tmp_path / "whole" / "soak.md").read_text("utf-8")


def test_a_soak_keeps_a_note_in_the_section_of_the_other(tmp_path: Path) -> None:
    for name in RUNS:
        store_result(tmp_path, name, measure_run(held=name == "soak_held"))
    write_page(tmp_path, results=tmp_path)
    page = tmp_path / "soak.md"
    page.write_text(page.read_text("utf-8") + "\nBeside it a campaign ran.\n", "utf-8")
    noted = page.read_text("utf-8")
    write_page(tmp_path, results=tmp_path, renewed=("soak",))
    assert page.read_text("utf-8") == noted
    store_result(tmp_path, "soak", measure_run(last=6.0))
    write_page(tmp_path, results=tmp_path, renewed=("soak",))
    assert "| claim | 4.00 (4.00) | 6.00 | 1.50 | ≤ 2, kept |" in page.read_text("utf-8")
    write_page(tmp_path, results=tmp_path, renewed=("soak_held",))
    assert "Beside it a campaign ran." not in page.read_text("utf-8")


def test_a_page_without_results_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "soak.md").write_text("as it was", "utf-8")
    with pytest.raises(FileNotFoundError, match="make soak"):
        write_page(tmp_path, results=tmp_path / "none")
    assert (tmp_path / "soak.md").read_text("utf-8") == "as it was"
