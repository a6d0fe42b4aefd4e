"""The page of the soak, with a picture for each run, from the results in bench/results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from bench.support.harness import RESULTS
from penstock.charts.axes import Axis
from penstock.scaler.judge.chart import (
    GAP,
    LEFT,
    PANEL,
    RIGHT,
    TOP,
    Curve,
    Panel,
    Points,
    list_round_times,
    make_document,
)
from penstock.scaler.judge.chart import (
    draw_panel as panel,
)
from penstock.scaler.judge.chart import (
    draw_time_label as clock,
)

RUNS = {
    "soak": "An analytic query of 60 s, again and again",
    "soak_held": "One snapshot, held for the whole time",
}
MB = 1e6
TABLES = 6  # the largest that are listed

PAGE = """# The soak

`make soak` and `make soak-held` write this page, each its own section. They push tasks at a steady rate in batches
of {batch}, and `penstock work` drains them with {processes} processes, on one machine with an embedded PostgreSQL at
its defaults (fsync on). A probe claims from the same queue and reads its status ten times a second. Meanwhile a
transaction reads history and stays open: until it ends, PostgreSQL cannot remove rows that die after its snapshot.

**The bar:** the median of push, claim and status in every part of a run is at most {bar:g} times that of the first
minute.
"""

SECTION = """
## {title}

The run took {minutes:g} minutes and pushed {pushed:,} tasks (target: {rate:,.0f} a second).
Queries over history: {queries}.

![latency, disk, dead rows and memory over {minutes:g} minutes]({picture})

| | first minute, p50 (p99) ms | worst part of {part:.0f} s, p50 ms | ratio | bar |
| --- | --- | --- | --- | --- |
{verbs}

| | first sample | last sample |
| --- | --- | --- |
{growth}

The largest tables and indexes at the end: {largest}. Measured {at}, {cores} cores, {system}.
"""

HEADED = "\n## {title}\n\n{text}\n"
SECTIONS = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)

Sample = dict[str, Any]


def write_page(directory: Path, results: Path = RESULTS, *, renewed: Collection[str] = tuple(RUNS)) -> None:
    """Writes soak.md, and a picture for each run that is renewed. Any other run keeps its section of the page that is
    there, which can have notes written by hand; if it has none, its result is used."""
    page = directory / "soak.md"
    kept = read_sections(page.read_text("utf-8") if page.exists() else "")
    found = {name: json.loads((results / f"{name}.json").read_text("utf-8")) for name in RUNS if has(results, name)}
    if not found:
        raise FileNotFoundError(f"{results} has no result of a soak: run `make soak` first")
    sections = []
    for name, title in RUNS.items():
        if name in found and (name in renewed or title not in kept):
            picture = f"{name.replace('_', '-')}.svg"
            (directory / picture).write_text(draw(found[name], title), "utf-8")
            sections.append(section(title, picture, found[name]))
        elif title in kept:
            sections.append(kept[title])
    first = next(iter(found.values()))
    page.write_text(PAGE.format(**first["settings"]) + "".join(sections), "utf-8")


def read_sections(page: str) -> dict[str, str]:
    """Returns each section of a page by its title, with its heading."""
    return {title: HEADED.format(title=title, text=text.strip()) for title, text in SECTIONS.findall(page)}


def has(results: Path, name: str) -> bool:
    return (results / f"{name}.json").exists()


# --- text -------------------------------------------------------------------------------------------------------------


def section(title: str, picture: str, run: dict[str, Any]) -> str:
    samples = run["samples"]
    largest = sorted(samples[-1]["bytes"].items(), key=lambda one: -one[1])[:TABLES]
    return SECTION.format(
        title=title,
        picture=picture,
        minutes=run["minutes"],
        pushed=run["pushed"],
        rate=run["rate"],
        queries=run["queries"],
        part=run["verbs"]["claim"]["part_seconds"],
        verbs="\n".join(verb_row(verb, one, run["settings"]["bar"]) for verb, one in run["verbs"].items()),
        growth="\n".join(growth_rows(samples[0], samples[-1])),
        largest=", ".join(f"`{name}` {size / MB:.1f} MB" for name, size in largest),
        at=run["at"][:10],
        cores=run["machine"]["cores"],
        system=run["machine"]["system"].partition("-")[0],
    )


def verb_row(verb: str, one: dict[str, Any], bar: float) -> str:
    first, ratio = one["first"], one["ratio"]
    if first is None or ratio is None:
        return f"| {verb} | – | – | – | – |"
    verdict = f"≤ {bar:g}, kept" if ratio <= bar else f"≤ {bar:g}, **missed**"
    return f"| {verb} | {first['p50']:.2f} ({first['p99']:.2f}) | {one['worst_p50']:.2f} | {ratio:.2f} | {verdict} |"


def growth_rows(first: Sample, last: Sample) -> list[str]:
    rows: list[tuple[str, Callable[[Sample], str]]] = [
        ("from push to the start of the handler, p50 (p99) ms", lambda one: latency(one, "start")),
        ("tasks that wait or run", lambda one: f"{one['left']:,}"),
        ("tables and indexes", lambda one: f"{sum(one['bytes'].values()) / MB:,.0f} MB"),
        ("of that without history", lambda one: f"{without_history(one) / MB:,.1f} MB"),
        ("dead rows", lambda one: f"{sum(one['dead_rows'].values()):,}"),
        ("memory of the worker's processes", lambda one: f"{workers(one) / MB:,.0f} MB"),
        ("memory of all backends, the largest", backends),
        ("WAL a second", lambda one: f"{one['wal_per_second'] / MB:.2f} MB"),
    ]
    return [f"| {name} | {say(first)} | {say(last)} |" for name, say in rows]


def latency(sample: Sample, verb: str) -> str:
    one = sample["latency_ms"][verb]
    return "–" if one is None else f"{one['p50']:.1f} ({one['p99']:.1f})"


def backends(sample: Sample) -> str:
    memory = sample["memory"]
    return f"{memory['backends'] / MB:,.0f} MB, {memory['largest_backend'] / MB:,.0f} MB"


def without_history(sample: Sample) -> int:
    return sum(size for name, size in sample["bytes"].items() if not name.startswith("history"))


def workers(sample: Sample) -> int:
    return int(sample["memory"]["supervisor"] + sample["memory"]["runners"])


# --- the picture ------------------------------------------------------------------------------------------------------


def draw(run: dict[str, Any], title: str) -> str:
    """Draws panels one below the other, over the same minutes."""
    samples: Sequence[Sample] = run["samples"]
    until = max(one["at"] for one in samples)
    across = Axis(0.0, until, LEFT, RIGHT)
    panels = [*panels_of(samples)]
    parts = [part for n, one in enumerate(panels) for part in panel(one, across, TOP + 22 + n * (PANEL + GAP))]
    bottom = TOP + 22 + len(panels) * (PANEL + GAP) - GAP
    parts += [clock(across(at), bottom + 16, said) for at, said in list_round_times(until)]
    about = "Panels: latency in milliseconds, the size of tables and indexes, dead rows, memory."
    return make_document(f"{run['rate']:,.0f} tasks a second: {title[0].lower()}{title[1:]}", about, bottom + 28, parts)


def panels_of(samples: Sequence[Sample]) -> list[Panel]:
    return [
        Panel(
            "median ms",
            (
                Curve("push", points(samples, lambda one: milliseconds(one, "push", "p50")), "orange"),
                Curve("claim", points(samples, lambda one: milliseconds(one, "claim", "p50")), "blue"),
                Curve("status", points(samples, lambda one: milliseconds(one, "status", "p50")), "red"),
            ),
        ),
        Panel(
            "99th percentile, ms",
            (
                Curve("push", points(samples, lambda one: milliseconds(one, "push", "p99")), "orange"),
                Curve("claim", points(samples, lambda one: milliseconds(one, "claim", "p99")), "blue"),
                Curve("status", points(samples, lambda one: milliseconds(one, "status", "p99")), "red"),
            ),
        ),
        Panel(
            "MB of tables and indexes",
            (
                Curve("all", points(samples, lambda one: sum(one["bytes"].values()) / MB), "orange"),
                Curve("without history", points(samples, lambda one: without_history(one) / MB), "blue"),
            ),
        ),
        Panel("dead rows", (Curve("", points(samples, lambda one: sum(one["dead_rows"].values())), "blue"),)),
        Panel(
            "MB of memory",
            (
                Curve("worker", points(samples, lambda one: workers(one) / MB), "orange"),
                Curve("backends", points(samples, lambda one: one["memory"]["backends"] / MB), "blue"),
            ),
        ),
    ]


def points(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> Points:
    found = [(one["at"], value(one)) for one in samples]
    return [(at, float(one)) for at, one in found if one is not None]


def milliseconds(sample: Sample, verb: str, word: str) -> float | None:
    one = sample["latency_ms"][verb]
    return None if one is None else float(one[word])
