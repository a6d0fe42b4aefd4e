"""`penstock retry plan` shows what a strategy means before a queue uses it. It needs no database."""

from __future__ import annotations

import pytest

from shell import each, penstock


@pytest.mark.parametrize(
    ("arguments", "waits"),
    [
        ("fibonacci --unit 1m --failures 8", [60, 60, 120, 180, 300, 480, 780, 1260]),
        ("fibonacci --unit 1m --cap 5m --failures 8", [60, 60, 120, 180, 300, 300, 300, 300]),
        ("exponential --base 5s --failures 4", [5, 10, 20, 40]),
        ("exponential:5s,factor=3,cap=1m,jitter=0.5 --failures 4", [5, 15, 45, 60]),
        ("fixed --delay 250ms --failures 2", [0.25, 0.25]),
        ("delays:1m,5m,1h", [60, 300, 3600]),
    ],
)
def test_waits(arguments: str, waits: list[float]) -> None:
    """A strategy of fixed delays ends after the last one, however many failures are asked for."""
    assert penstock("retry", "plan", *arguments.split(), "--json").json == waits


def test_the_tiers_of_progressive() -> None:
    value, shown = each(("retry", "plan", "progressive", "--json"), ("retry", "plan", "progressive"))
    assert value.json[0] == {"from": 0, "until": 86400, "every": 300, "tries": 288}
    assert [tier["every"] for tier in value.json] == [300, 3600, 43200, 86400, 345600, 691200]
    assert [tier["tries"] for tier in value.json] == [288, 144, 14, 16, 37, 22]
    assert shown.out.splitlines()[-1] == "older: dead, after 521 tries at most"


def test_for_people() -> None:
    ran = penstock("retry", "plan", "fibonacci", "--failures", "3")
    assert [line.split() for line in ran.out.splitlines()] == [
        ["failures", "waits", "in", "all"],
        ["1", "1m", "1m"],
        ["2", "1m", "2m"],
        ["3", "2m", "4m"],
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        "linear",
        "fixed",
        "fibonacci --unit 0",
        "fibonacci:1m --cap 1h",
        "exponential --jitter 2",
        "fixed:1s --failures 0",
    ],
)
def test_what_is_not_a_strategy(arguments: str) -> None:
    ran = penstock("retry", "plan", *arguments.split())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error PS1001: ")
