"""Makes docs/report.png: the top of a report on a made-up day, in a real browser."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests/support"))

from browser import browsing  # noqa: E402 - found only now that the path is set
from made_lake import World, make_lake, usual  # noqa: E402 - found only now that the path is set
from penstock.pipeline.report import make_report  # noqa: E402 - below what it is shown with
from penstock.spark import session  # noqa: E402 - below what it is shown with

WIDTH, HEIGHT = 1100, 860


def main() -> None:
    spark = session("picture", master="local[2]", **{"spark.ui.enabled": False, "spark.log.level": "OFF"})
    with TemporaryDirectory() as room:
        lake = make_lake(spark, Path(room) / "lake", World(24.0, usual()[:2]))
        made = make_report(spark, lake)
        with browsing() as tab:
            tab.resize(WIDTH, HEIGHT)
            tab.tell("Emulation.setScrollbarsHidden", hidden=True)
            tab.open(made.path)
            tab.picture(ROOT / "docs" / "report.png", whole=False)
    spark.stop()


if __name__ == "__main__":
    main()
