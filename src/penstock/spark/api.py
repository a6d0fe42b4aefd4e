"""`penstock.spark.push`: a DataFrame into a queue, with a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID, uuid4

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from penstock.app import Penstock
from penstock.client.bulk import BulkWriter
from penstock.model import OnConflict
from penstock.spark import options
from penstock.spark.connection import open_database
from penstock.spark.error_text import parse_error
from penstock.spark.options import Address
from penstock.spark.rows import plan_columns
from penstock.spark.session import make_ready
from penstock.spark.writer import ONCE, name_job


@dataclass(frozen=True, slots=True)
class SparkReport:
    """The result of a write. The seven counts add up to `rows`."""

    job_id: UUID
    rows: int = 0
    partitions: int = 0
    created: int = 0
    updated: int = 0
    renewed: int = 0
    reopened: int = 0
    skipped: int = 0
    superseded: int = 0
    rejected: int = 0

    @property
    def accepted(self) -> int:
        """The number of rows that were not rejected."""
        return self.rows - self.rejected


def push(
    df: DataFrame,
    queue: str,
    *,
    dsn: str | None = None,
    on_conflict: OnConflict = "skip",
    kind: str | None = None,
    pack_columns: bool = False,
    reject_table: str | None = None,
    txn_app_id: str | None = None,
    txn_version: int | None = None,
    max_connections: int | None = None,
) -> SparkReport:
    """Pushes the rows of a DataFrame as tasks. Columns: payload (JSON text, struct or map); optional are subject, kind,
    due and priority. A call with `txn_app_id` and `txn_version` can be repeated: its rows are written once. At most
    `max_connections` executors write at the same time; by default all that run."""
    settings: dict[str, str | None] = {
        "queue": queue,
        "onConflict": on_conflict,
        "kind": kind,
        "packColumns": str(pack_columns).lower(),
        "rejectTable": reject_table,
        "txnAppId": txn_app_id,
        "txnVersion": None if txn_version is None else str(txn_version),
        "maxConnections": None if max_connections is None else str(max_connections),
    }
    given = {name: value for name, value in settings.items() if value is not None}
    asked = options.parse_write_options(given)
    plan_columns(df.schema, pack=asked.pack_columns, kind=asked.kind)
    if asked.txn_app_id is None:
        given |= {
            "txnAppId": f"{ONCE}{uuid4()}",
            "txnVersion": "0",
        }  # a name, so that we can read the report of this job
    job = name_job(given["txnAppId"], int(given["txnVersion"]))
    with Penstock(dsn, max_connections=2) as app:
        make_ready(df.sparkSession)
        write_rows(df, given | {"url": app.dsn})
        with open_database(Address(app.dsn)) as database:
            found = BulkWriter(database, queue).job_report(job)
    return SparkReport(job, **(found or {}))


def write_rows(df: DataFrame, given: Mapping[str, str]) -> None:
    """Writes a DataFrame. Raises the PenstockError that Spark wrapped in an exception of its own."""
    try:
        df.write.format("penstock").options(**given).mode("append").save()
    except PySparkException as error:
        ours = parse_error(str(error))
        if ours is None:
            raise
        raise ours from error
