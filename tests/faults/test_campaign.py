"""The campaign of `make faults` on a small scale: each of its stages, with the same checker."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from campaign import Options, Result, find_unmeasured, has_passed, run_stage, table
from checker import Recovery, Verdict

SEED = int(os.environ.get("PENSTOCK_FAULT_SEED", random.SystemRandom().randrange(2**32)))
SLACK = 6.0  # seconds beyond each promise, because these tests share a busy machine; `make faults` allows none


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "stage",
    [
        "storm",  # most kinds of harm; those of test_workers.py that it has too are in the slow tier there
        pytest.param("frozen", marks=pytest.mark.slow),  # test_failover.py has its faults too
        pytest.param("standby", marks=pytest.mark.slow),
        pytest.param("async", marks=pytest.mark.slow),
        pytest.param("disk", marks=pytest.mark.slow),
    ],
)
def test_a_stage_of_the_campaign(tmp_path: Path, stage: str) -> None:
    print(f"\nseed {SEED} (PENSTOCK_FAULT_SEED={SEED} runs it again)")
    result = run_stage(Options(SEED, 0.005, tmp_path), stage)
    print(table([result]))
    if result.skipped:
        pytest.skip(result.skipped)
    assert result.verdict.ok, result.verdict
    assert result.drained is not None, "stuck"
    for one in filter(lambda recovery: recovery.seconds, result.recoveries):
        slack = Recovery(one.name, one.bar + SLACK, one.seconds)
        assert slack.kept, f"{one.name}: {one.seconds} (≤ {one.bar} s, and {SLACK} s for a busy machine)"


def make_results(first_claim: tuple[float, ...]) -> list[Result]:
    """Two stages, of which the first measured no promotion."""
    killed = Recovery("a killed process, beyond the lease", 1.0, (0.2,))
    storm = Result("storm", recoveries=[killed, Recovery("promoted to first claim", 3.0, ())])
    return [storm, Result("standby", recoveries=[Recovery("promoted to first claim", 3.0, first_claim)])]


def test_a_whole_campaign_fails_if_a_recovery_was_not_measured() -> None:
    unmeasured = make_results(())
    assert find_unmeasured(unmeasured) == ["promoted to first claim"]
    assert "promoted to first claim: not measured (≤ 3 s)" in table(unmeasured)
    assert not has_passed(unmeasured, whole=True)
    assert has_passed(unmeasured, whole=False)


def test_a_recovery_that_one_stage_measured_counts_for_all() -> None:
    measured = make_results((0.5,))
    assert find_unmeasured(measured) == []
    assert has_passed(measured, whole=True)


@pytest.mark.parametrize("whole", [True, False])
def test_a_campaign_fails_if_a_recovery_is_slow_or_the_checker_found_something(whole: bool) -> None:
    assert not has_passed(make_results((0.5, 3.1)), whole=whole)
    found = Result("async", verdict=Verdict(lost=1))
    assert not has_passed([*make_results((0.5,)), found], whole=whole)
