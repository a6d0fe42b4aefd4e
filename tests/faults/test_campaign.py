"""The campaign of `make faults`, scaled down: each of its stages, with the same checker."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from campaign import Options, run_stage, table
from checker import Recovery

SEED = int(os.environ.get("PENSTOCK_FAULT_SEED", random.SystemRandom().randrange(2**32)))
SLACK = 6.0  # seconds beyond each promise: these tests share a busy machine; `make faults` gives none


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "stage",
    [
        "storm",  # the network, upserts, cancels and zombies, which the quick tier of test_workers.py does not have
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
    for one in result.recoveries:
        slack = Recovery(one.name, one.bar + SLACK, one.seconds)
        assert slack.kept, f"{one.name}: {one.seconds} (≤ {one.bar} s, and {SLACK} s for a busy machine)"
