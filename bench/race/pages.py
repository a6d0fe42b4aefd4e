"""The results of the race as tables, and as a page and a picture for the docs."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.race.contestants import OURS, Peer
from bench.race.figures import BARS, Bar, Figures, Found, Judgement, Series, against, drain_1, drain_2, p50, push, wal
from penstock.charts.axes import Axis, format_axis_value
from penstock.scaler.judge.chart import LINE, RIGHT, TOP, WIDTH, draw_text, make_document

NOTHING = "–"
Rows = list[list[str]]


# --- cells ------------------------------------------------------------------------------------------------------------


def cell(found: Found, name: str, series: Series, form: str = ",.0f") -> str:
    """Returns the median, the largest deviation of a round, and Penstock's figure divided by it."""
    values = series(found[name])
    if not values:
        return NOTHING
    middle = statistics.median(values)
    far = max(abs(value / middle - 1) for value in values) if middle else 0.0
    ours = "" if name == OURS or not series(found[OURS]) else f" · {against(found, name, series):.2f} ×"
    return f"{middle:{form}} ± {100 * far:.0f} %{ours}"


def pair(first: Sequence[float], second: Sequence[float], form: str = ",.0f") -> str:
    if not first or not second:
        return NOTHING
    return f"{statistics.median(first):{form}} + {statistics.median(second):{form}}"


def killed(peer: Peer, one: Figures) -> str:
    if one.killed:
        return f"{statistics.median(one.killed):.0f} s"
    return f"{peer.returns_said} (not measured)" if peer.returns_said else NOTHING


def whole(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


# --- tables -----------------------------------------------------------------------------------------------------------

SPEED = ["system", "bulk push, tasks/s", "drain, 1 process", "drain, 2 processes", "push → start, p50 ms", "p99 ms"]
COST = [
    "system",
    "WAL bytes a task, push + drain",
    "all its WAL",
    "commits a task, push + drain",
    "tasks a statement, push / drain",
    "held snapshot: first → last tasks/s",
]
SAFETY = ["system", "a killed worker's task runs again after", "a frozen worker's late completion is"]


def speed(found: Found, peers: Sequence[Peer]) -> Rows:
    return [
        [
            peer.name,
            *(cell(found, peer.name, series) for series in (push, drain_1, drain_2)),
            cell(found, peer.name, p50, ".1f"),
            f"{statistics.median(found[peer.name].p99):.1f}" if found[peer.name].p99 else NOTHING,
        ]
        for peer in peers
    ]


def cost(found: Found, peers: Sequence[Peer]) -> Rows:
    rows = []
    for peer in peers:
        one = found[peer.name]
        batch = f"{whole(one.push_batch)} / {whole(one.drain_batch)}" if one.push_batch else NOTHING
        written = [
            pair(one.push_wal, one.drain_wal),
            cell(found, peer.name, wal),
            pair(one.push_commits, one.drain_commits, ".4f"),
            batch,
        ]
        rows.append([peer.name, *(written if peer.postgres else [NOTHING] * 4), held(one)])
    return rows


def held(one: Figures) -> str:
    if not one.kept:
        return NOTHING
    first, last = statistics.median(one.held_first), statistics.median(one.held_last)
    return f"{first:,.0f} → {last:,.0f} ({statistics.median(one.kept):.2f})"


def safety(found: Found, peers: Sequence[Peer]) -> Rows:
    return [
        [peer.name, killed(peer, found[peer.name]), ", ".join(dict.fromkeys(found[peer.name].late)) or NOTHING]
        for peer in peers
        if not peer.limit and not peer.variant
    ]


def show(head: Sequence[str], rows: Rows) -> None:
    widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    print(flush=True)


def tables(found: Found, peers: Sequence[Peer]) -> list[tuple[list[str], Rows]]:
    """Returns the tables that have figures."""
    made = [(SPEED, speed(found, peers)), (COST, cost(found, peers)), (SAFETY, safety(found, peers))]
    return [(head, rows) for head, rows in made if any(text != NOTHING for row in rows for text in row[1:])]


def markdown(head: Sequence[str], rows: Rows) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


# --- advantages of the peers ------------------------------------------------------------------------------------------


def ahead(found: Found, peer: Peer) -> list[str]:
    """Returns the figures in which a peer is better than Penstock, by the medians."""
    columns: list[tuple[str, Series, bool]] = [
        ("bulk push", push, True),
        ("drain with one process", drain_1, True),
        ("drain with two", drain_2, True),
        ("push → start", p50, False),
        ("WAL bytes", wal, False),
    ]
    said = []
    for label, series, more in columns:
        theirs, ours = series(found[peer.name]), series(found[OURS])
        if not theirs or not ours or (series is wal and peer.redis):
            continue
        them, us = statistics.median(theirs), statistics.median(ours)
        if (them > us) if more else (them < us):
            said.append(f"{label} ({format_axis_value(them)} against {format_axis_value(us)})")
    return said


def better(found: Found, peers: Sequence[Peer]) -> str:
    lines = []
    for peer in peers:
        if peer.other_tool:
            figures = ahead(found, peer)
            measured = f"It is faster or leaner here: {', '.join(figures)}. " if figures else ""
            lines.append(f"- **{peer.name}**: {measured}It has what Penstock lacks: {peer.better}.")
    return "\n".join(lines)


# --- the picture ------------------------------------------------------------------------------------------------------

BAR, ROW, NAMES = 9.0, 34.0, 122.0


def chart(found: Found, peers: Sequence[Peer]) -> str:
    """Draws two bars for each peer: a push, and a drain by two processes."""
    shown = [peer for peer in peers if found[peer.name].push and found[peer.name].drain_2]
    values = {peer.name: [statistics.median(one) for one in rates(found[peer.name])] for peer in shown}
    across = Axis(0.0, max((max(pairs) for pairs in values.values()), default=1.0), NAMES, RIGHT - 44)
    parts = [draw_text(14, TOP, "above: bulk push · below: drain with two processes", "soft")]
    for n, peer in enumerate(shown):
        top = TOP + 14 + n * ROW
        parts.append(draw_text(14, top + BAR + 5, short(peer.name), "ours-text" if peer.ours else "ink"))
        for index, value in enumerate(values[peer.name]):
            y = top + index * (BAR + 3)
            parts.append(bar(across, y, value, kind(peer)))
            parts.append(draw_text(across(value) + 5, y + BAR, format_axis_value(float(f"{value:.3g}"))))
    said = "; ".join(f"{name}: push {pushed:.0f}, drain {drained:.0f}" for name, (pushed, drained) in values.items())
    return make_document("Tasks a second, side by side", f"{said}.", TOP + 20 + len(shown) * ROW + LINE, parts)


def rates(one: Figures) -> tuple[list[float], list[float]]:
    return one.push, one.drain_2


def kind(peer: Peer) -> str:
    return "ours" if peer.ours else "beaten" if peer.limit else "unbeaten"


def short(name: str) -> str:
    return name.removeprefix("limit: ").removesuffix(" handler")[:18]


def bar(across: Axis, y: float, value: float, style: str) -> str:
    width = max(1.0, min(across(value), WIDTH) - across(0.0))
    return f'<rect class="{style}" x="{across(0.0):.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR:g}"/>'


# --- the page ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts for the page: versions, machine and sizes; the settings of each peer; which peers do not run, and why; and
    whether the run may replace the correction of an earlier page."""

    told: dict[str, str]
    settings: dict[str, str]
    out: dict[str, str]
    fair: bool


def write(directory: Path, found: Found, peers: Sequence[Peer], texts: Texts, said: Sequence[Judgement]) -> None:
    """Writes docs/race.md and its picture."""
    kept = "" if texts.fair else correction(directory / "race.md")
    (directory / "race.svg").write_text(chart(found, peers), "utf-8")
    page = PAGE.format(
        tables="\n\n".join(markdown(head, rows) for head, rows in tables(found, peers)),
        correction=kept,
        settings="\n".join(
            f"| {peer.name} | {texts.told.get(peer.name, NOTHING)} | {texts.settings[peer.name]} |" for peer in peers
        ),
        better=better(found, peers),
        left_out="".join(f"\nThis run lacks **{name}**: {why}.\n" for name, why in texts.out.items()),
        bars="\n".join([*map(bar_row, said), *map(unmeasured_row, unmeasured(said))]),
        **{word: texts.told[word] for word in ("machine", "postgres", "sizes")},
    )
    (directory / "race.md").write_text(page, "utf-8")


def bar_row(one: Judgement) -> str:
    sign = "≥" if one.bar.at_least else "≤"
    goal = NOTHING
    if one.bar.goal is not None:
        goal = f"{sign} {one.bar.goal:g}, {'reached' if one.bar.is_goal(one.value) else 'not reached'}"
    kept = "kept" if one.kept else "**missed**"
    return f"| {one.label} | {one.value:.2f} | {sign} {one.bar.bar:g} | {kept} | {goal} |"


def unmeasured(said: Sequence[Judgement]) -> list[Bar]:
    return [bar for bar in BARS if bar not in [one.bar for one in said]]


def unmeasured_row(bar: Bar) -> str:
    return f"| {bar.label} | {NOTHING} | {'≥' if bar.at_least else '≤'} {bar.bar:g} | **not measured** | {NOTHING} |"


CORRECTION = re.compile(r"^## Correction\n.*?(?=^## )", re.MULTILINE | re.DOTALL)


def correction(page: Path) -> str:
    """Returns the correction in an earlier page, which stays until a run has all peers at their best settings."""
    found = CORRECTION.search(page.read_text("utf-8")) if page.exists() else None
    return f"{found[0]}## The last run\n\n" if found else ""


PAGE = """# The race

`make bench-peers` writes this page. It compares Penstock with well-known queues on one machine in one run. Tasks do
nothing and have 100 bytes of payload. Each system has the fastest fair settings that we found, and a new database of
the same server.

{correction}![tasks a second](race.svg)

A cell has the median of the rounds, the largest deviation of a round from it, and Penstock's figure divided by it.
Above 1 × Penstock is faster; for latency it is slower, and for WAL it writes more.

{tables}
{left_out}
## The bars

| | measured | bar | | goal |
| --- | --- | --- | --- | --- |
{bars}

## How it was measured

{machine}. {postgres}, with the same settings for all: fsync, full_page_writes and synchronous_commit are on. Redis
keeps an append-only log that it syncs once a second, so it can lose up to a second of tasks; no other system here can.
{sizes}

- `bench/peers.py` starts a new process for every push and every worker; the scripts are in `bench/peers/`. Systems
  take turns, and the order rotates each round.
- **Bulk push** is the time from the first call to the return of the last one. It includes encoding, but not connecting.
- **Drain** is the time from the start of the first handler until the end of the last task is *recorded* in the queue's
  own tables; it does not end when handlers return. The database is vacuumed and checkpointed first. A run counts only
  if every task has run exactly once.
- **Push → start** is measured with one push at a time, 50 a second, one idle worker, and the clock of one machine.
- **WAL and commits** come from PostgreSQL's own counters around each push and drain. **Tasks a statement** come from
  its log of statements, in a separate run with two processes; BEGIN, COMMIT and the like do not count.
- **Held snapshot**: a transaction with an old snapshot stays open while two processes drain. The cell compares the
  first sixth of the tasks with the last sixth. Penstock drains five times as many tasks as elsewhere, the others one
  and a half times as many.
- **Killed**: the time from `kill -9` of a worker until another worker starts its task, at default settings. We did not
  wait for systems that take many minutes by default.
- **Frozen**: a worker is stopped (SIGSTOP) until its task is given to another worker, and then continued. Leases are
  short for this test where a setting allows it; elsewhere the test sets back the clock in the row or makes the
  documented call. "Accepted" means that the late end was recorded while the other worker still ran the task.

`bench/peers.py sweep` runs several settings of each peer and records their figures in `bench/race/sweep.json`. The race
runs each peer with the best of them in each measure, and Penstock with its defaults. A peer without a sweep runs with
the first.

| system | version | settings |
| --- | --- | --- |
{settings}

## What others do better

{better}

The limit is not a queue: it is a COPY and two statements, with nothing that can fail, retry or count.
"""
