"""Spark's bars, as ratios side by side in one run: python bench/spark.py write|all"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    # Run as a script, this directory's `queue` would stand before the standard library's.
    sys.path[0] = str(Path(__file__).parent.parent)

from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession

from bench.harness import Bench, alternate, bench, judged, ratio, report, spread
from penstock import NewTask, Penstock
from penstock import spark as ours
from penstock.model import Json

ROUNDS = 3
SETTINGS = {"spark.ui.enabled": False, "spark.log.level": "ERROR", "spark.driver.memory": "2g"}


@dataclass(frozen=True)
class Ground:
    """A server, and a warm session beside it."""

    server: Bench

    @cached_property
    def spark(self) -> SparkSession:
        jar = subprocess.run(["scripts/setup-jdbc"], capture_output=True, text=True, check=True).stdout.strip()
        return ours.session("bench", master="local[2]", **SETTINGS, **{"spark.jars": jar})

    def jdbc(self, dsn: str) -> dict[str, str]:
        """The same database for Spark's own writer. `stringtype`: text into jsonb is for the server to read."""
        parts = conninfo_to_dict(dsn)
        password = (self.server.server.home / "pgpass").read_text("utf-8").strip().rsplit(":", 1)[1]
        url = f"jdbc:postgresql://127.0.0.1:{parts['port']}/{parts['dbname']}?stringtype=unspecified"
        return {"url": url, "user": str(parts["user"]), "password": password, "driver": "org.postgresql.Driver"}


# --- write ------------------------------------------------------------------------------------------------------------


def write(ground: Ground, rows: int = 1_000_000, rounds: int = ROUNDS) -> bool:
    """df.write against push_many by one plain process, and against Spark's JDBC writer, into the real task table."""
    frame = frame_of(ground.spark, rows)
    items, names = payloads(rows), [f"customer-{n:09d}" for n in range(rows)]
    plain, named = frame.select("payload"), frame.select("payload", "subject")
    print(f"warming up: {written(ground, plain.limit(rows // 10), rows // 10):,.0f} tasks/s", flush=True)
    found = alternate(
        rounds,
        {
            "push_many": lambda: pushed(ground, items, None),
            "spark": lambda: written(ground, plain, rows),
            "jdbc": lambda: through_jdbc(ground, plain.limit(rows // 5).repartition(2), rows // 5),
            "push_many, subjects": lambda: pushed(ground, items, names),
            "spark, subjects": lambda: written(ground, named, rows),
        },
    )
    for name, rates in found.items():
        print(f"{name:<24} {spread(rates)} tasks/s")
    ratios = {
        "plain": ratio(found["spark"], found["push_many"]),
        "subjects": ratio(found["spark, subjects"], found["push_many, subjects"]),
        "jdbc": ratio(found["spark"], found["jdbc"]),
    }
    report("spark_write", {"rows": rows, "rates": found, "ratios": ratios})
    return all(
        [
            judged("Spark write / push_many", ratios["plain"], 0.9, at_least=True),
            judged("Spark write / push_many, with subjects", ratios["subjects"], 0.9, at_least=True),
            judged("Spark write / Spark's JDBC writer", ratios["jdbc"], 3.0, at_least=True),
        ]
    )


def payloads(count: int) -> list[Json]:
    """About 100 bytes of JSON each; `frame_of` has the same."""
    return [{"invoice": n, "to": f"customer-{n}@example.com", "note": "x" * 50} for n in range(count)]


def frame_of(spark: SparkSession, count: int) -> DataFrame:
    """In memory, as the other side's list is."""
    note = "x" * 50
    frame = spark.range(0, count, 1, 2).selectExpr(
        f"""concat('{{"invoice":', id, ',"to":"customer-', id, '@example.com","note":"{note}"}}') as payload""",
        "concat('customer-', lpad(id, 9, '0')) as subject",
    )
    frame.cache().count()
    return frame


def pushed(ground: Ground, items: list[Json], names: list[str] | None) -> float:
    with ground.server.database() as dsn, Penstock(dsn) as penstock:
        queue = penstock.queue("bench")
        queue.status()
        began = time.perf_counter()
        if names is None:
            done = queue.push_many(items)
        else:
            done = queue.push_many(NewTask(row, name) for row, name in zip(items, names, strict=True))
        seconds = time.perf_counter() - began
        assert done.created == len(items)
        return len(items) / seconds


def written(ground: Ground, frame: DataFrame, rows: int) -> float:
    with ground.server.database() as dsn, Penstock(dsn) as penstock:
        began = time.perf_counter()
        frame.write.format("penstock").options(queue="bench", dsn=dsn).mode("append").save()
        seconds = time.perf_counter() - began
        assert penstock.queue("bench").status().pending == rows
        return rows / seconds


def through_jdbc(ground: Ground, frame: DataFrame, rows: int) -> float:
    """A fifth of the rows: it is that much slower, and as fast with all of them."""
    with ground.server.database() as dsn, Penstock(dsn) as penstock:
        found = frame.selectExpr("1 as queue_id", "payload")
        found.cache().count()
        began = time.perf_counter()
        found.write.format("jdbc").options(dbtable="penstock.task", **ground.jdbc(dsn)).mode("append").save()
        seconds = time.perf_counter() - began
        found.unpersist()
        assert penstock.queue("bench").status().pending == rows
        return rows / seconds


BENCHES: dict[str, Callable[..., bool]] = {"write": write}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=[*BENCHES, "all"])
    parser.add_argument("--rows", type=int, help="fewer rows, for a quick look; the bars are meant for the default")
    parser.add_argument("--rounds", type=int)
    given = parser.parse_args()
    options = {name: value for name, value in (("rows", given.rows), ("rounds", given.rounds)) if value}
    kept = []
    with bench() as server:
        ground = Ground(server)
        for name in BENCHES if given.which == "all" else [given.which]:
            print(f"\n== {name}: {(BENCHES[name].__doc__ or '').strip()}", flush=True)
            kept.append(BENCHES[name](ground, **options))
        ground.spark.stop()
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
