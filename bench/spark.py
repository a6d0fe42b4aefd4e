"""Spark's bars, as ratios side by side in one run: python bench/spark.py write|read|beside|stream|pipeline|all"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    # If this runs as a script, this directory's `queue` would hide the standard library's.
    sys.path[0] = str(Path(__file__).parent.parent)

from bench.spark_read import beside, read
from bench.spark_stream import stream
from bench.spark_write import write
from bench.support.harness import bench
from bench.support.spark_bench import SparkBench

HERE = Path(__file__).parent


def pipeline(_: SparkBench, rows: int | None = None, rounds: int | None = None) -> bool:
    """History to a lake: stages, a second run, and a queue beside it, in a process whose Java has a low priority."""
    told = {"--rows": rows, "--rounds": rounds}
    more = [str(word) for name, value in told.items() if value for word in (name, value)]
    return subprocess.run([sys.executable, HERE / "pipeline.py", "all", *more], check=False).returncode == 0


BENCHES: dict[str, Callable[..., bool]] = {
    "write": write,
    "read": read,
    "beside": beside,
    "stream": stream,
    "pipeline": pipeline,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=[*BENCHES, "all"])
    parser.add_argument("--rows", type=int, help="fewer rows, for a quick look; the bars are meant for the default")
    parser.add_argument("--rounds", type=int)
    given = parser.parse_args()
    options = {name: value for name, value in (("rows", given.rows), ("rounds", given.rounds)) if value}
    kept = []
    with bench() as server:
        spark_bench = SparkBench(server)
        for name in BENCHES if given.which == "all" else [given.which]:
            print(f"\n== {name}: {(BENCHES[name].__doc__ or '').strip()}", flush=True)
            kept.append(BENCHES[name](spark_bench, **options))
        if "spark" in vars(spark_bench):
            spark_bench.spark.stop()
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
