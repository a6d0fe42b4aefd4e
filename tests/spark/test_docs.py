"""The pages that need Spark, run as they stand; the others are in tests/test_docs.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import ROOT, Reading
from stages import SPARK, stage_of

LONG = ("docs/pipeline.md",)  # a minute and more
PAGES = [pytest.param(page, marks=pytest.mark.slow if page in LONG else ()) for page in sorted(SPARK)]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs(page: str, tmp_path: Path, dsn: str) -> None:
    reading = Reading(ROOT / page, stage_of(page), tmp_path, dsn)
    try:
        reading.run()
    finally:
        reading.close()
