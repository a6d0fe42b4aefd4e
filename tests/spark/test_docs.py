"""Runs the pages of the docs that need Spark as they are written; the other pages are in tests/test_docs.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import ROOT, Reading
from stages import SPARK, stage_of


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(SPARK))
def test_the_page_runs(page: str, tmp_path: Path, dsn: str) -> None:
    reading = Reading(ROOT / page, stage_of(page), tmp_path, dsn)
    try:
        reading.run()
    finally:
        reading.close()
