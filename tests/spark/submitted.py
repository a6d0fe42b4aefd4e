"""The script that tests submit: it writes rows into the queue `work`, as its environment says. It is not a test."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock import spark as ours
from penstock.spark.datasource import DefaultSource
from penstock.spark.writer import BatchWriter


class Deadly(DefaultSource):
    """The data source, but the executor of partition 0 is killed when it has written everything, and that of partition
    1 when it has read all of its rows and written nothing. The directory `marks` records which kills were done."""

    @classmethod
    def name(cls) -> str:
        return "deadly"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        marks = self.options.pop("marks")
        found = DefaultSource.writer(self, schema, overwrite)
        found.__class__ = DeadlyWriter
        found.marks = marks
        return found


class DeadlyWriter(BatchWriter):
    marks: str

    def write(self, iterator: Iterator[Any]) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        if number == 1:
            rows = list(iterator)
            self.kill_once(number)
            return super().write(iter(rows))
        done = super().write(iterator)
        if number == 0:
            self.kill_once(number)
        return done

    def kill_once(self, number: int) -> None:
        mark = Path(self.marks) / str(number)
        if not mark.exists():
            mark.touch()
            os.kill(executor(), signal.SIGKILL)


def executor() -> int:
    """Returns the process id of the executor's Java, above this process."""
    process = os.getppid()
    while "java" not in Path(f"/proc/{process}/comm").read_text("utf-8"):
        process = int(Path(f"/proc/{process}/stat").read_text("utf-8").rsplit(")", 1)[1].split()[1])
    return process


def main() -> None:
    master = os.environ.get("TEST_MASTER")
    session = ours.session("submitted", master=master)
    df = session.range(0, 4000, 1, 4).selectExpr("to_json(named_struct('n', id)) as payload")
    if "TEST_MARKS" in os.environ:
        session.dataSource.register(Deadly)
        options = {"queue": "work", "marks": os.environ["TEST_MARKS"]}
        df.write.format("deadly").options(**options).mode("append").save()
    else:
        print("pushed", ours.push(df, "work", dsn=os.environ["PENSTOCK_DSN"]).created)
        df.write.format("penstock").option("queue", "work").mode("append").save()
    print("on", session.sparkContext.master, session.conf.get("spark.sql.session.timeZone"))
    sys.stdout.flush()
    session.stop()


if __name__ == "__main__":
    main()
