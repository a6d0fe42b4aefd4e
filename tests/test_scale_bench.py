"""The verdicts of the bench of fleets, from made-up figures. `make bench` measures them."""

from __future__ import annotations

import pytest

from bench.scale import FLEET, SPARE_BYTES, WORKER_BYTES, fit_in_memory, judge

QUEUES = {
    "transactions_a_second": 3.0,
    "start_seconds": 2.0,
    "push_to_claim": {"max_ms": 900.0},
    "fleet": {"upkeep_share_of_a_core": 0.01},
}


def test_a_fleet_that_does_not_fit_into_memory_is_lowered_and_the_verdict_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    count = fit_in_memory(FLEET, SPARE_BYTES + 40 * WORKER_BYTES)
    assert count == 40
    assert "memory is enough for 40 workers of 100" in capsys.readouterr().out
    figures = {"workers": count, "workers_asked_for": FLEET, "statements_a_second_of_a_worker": 0.98}
    assert judge({"fleet": figures})
    assert "among 40 (lowered from 100, because memory is short): 0.98" in capsys.readouterr().out


def test_a_fleet_that_fits_is_not_lowered(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit_in_memory(FLEET, SPARE_BYTES + FLEET * WORKER_BYTES) == FLEET
    figures = {"workers": FLEET, "workers_asked_for": FLEET, "statements_a_second_of_a_worker": 1.2}
    assert not judge({"fleet": figures})
    said = capsys.readouterr().out
    assert "lowered" not in said
    assert "MISSED  statements a second of an idle worker among 100: 1.20" in said


@pytest.mark.parametrize(
    "missed",
    [
        {"transactions_a_second": 20.5},
        {"start_seconds": 5.1},
        {"fleet": {"upkeep_share_of_a_core": 0.06}},
        {"push_to_claim": {"max_ms": 2600.0}},
    ],
)
def test_each_bar_of_a_thousand_queues_counts(missed: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    assert judge({"queues": QUEUES})
    assert not judge({"queues": {**QUEUES, **missed}})
    assert capsys.readouterr().out.count("MISSED") == 1
