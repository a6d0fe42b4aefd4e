"""Runs the flows on a lake: python examples/declarative/run.py LAKE WAREHOUSE

It makes the tables of the flows anew in WAREHOUSE, and needs `pip install "pyspark[pipelines]==4.3.*"`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from penstock.pipeline.lake import Lake
from penstock.spark.java import find_java

HERE = Path(__file__).parent
TABLES = ("promises_by_day", "costs_of_errors", "dear_promises")


def filled_in(lake: Path, warehouse: Path) -> Path:
    """Writes the pipeline file with the two paths, because Spark has no other way to pass them."""
    room = warehouse / "_pipeline"
    shutil.rmtree(room, ignore_errors=True)
    for source in (HERE / "spark-pipeline.yml", *sorted((HERE / "flows").glob("*.sql"))):
        target = room / source.relative_to(HERE)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text("utf-8")
        target.write_text(
            text.replace("LAKE/", f"file://{lake}/").replace(": STORAGE", f": file://{room}/storage"), "utf-8"
        )
    return room / "spark-pipeline.yml"


def main(lake: Path, warehouse: Path) -> int:
    for table in TABLES:
        shutil.rmtree(warehouse / table, ignore_errors=True)  # of the last run, which this Spark session does not know
    spec = filled_in(lake, warehouse)
    java = find_java(os.environ)
    homes = {} if java.home is None else {"JAVA_HOME": java.home}
    environ = os.environ | homes | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = Path(sys.executable).parent / "spark-pipelines"
    settings = [
        f"spark.sql.warehouse.dir={warehouse}",
        "spark.ui.enabled=false",
        "spark.sql.catalogImplementation=in-memory",
    ]
    told = [word for one in settings for word in ("--conf", one)]
    with Lake(lake).writing():  # so that no run changes it meanwhile
        return subprocess.run([command, "run", *told, "--spec", spec], env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()))
