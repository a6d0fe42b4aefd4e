"""`format("penstock")`: who answers which request. Options are checked here, before anybody connects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from penstock.spark import options
from penstock.spark.hints import hinted

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Write: DataFrames into a queue. Read: history. As a stream: a queue's tasks, or history."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        """Of what is read. It is asked before we know whether that is a stream."""
        if self.options.get(options.READ) == "history":
            from penstock.spark.history import SCHEMA  # noqa: PLC0415 - what is not used is not loaded

            return SCHEMA
        from penstock.spark.source import SCHEMA as TASKS  # noqa: PLC0415 - what is not used is not loaded

        return TASKS

    def reader(self, schema: StructType) -> Any:  # noqa: ARG002 - ours is the only one
        with hinted():
            options.reads_history(self.options, stream=False)
            asked = options.for_history(self.options)
            from penstock.spark.history import HistoryReader  # noqa: PLC0415 - what is not used is not loaded

            return HistoryReader(asked)

    def streamReader(self, schema: StructType) -> Any:  # noqa: ARG002, N802 - Spark's
        with hinted():
            if options.reads_history(self.options, stream=True):
                from penstock.spark.history import HistoryStream  # noqa: PLC0415 - what is not used is not loaded

                return HistoryStream(options.for_history_stream(self.options))
            asked = options.for_streaming(self.options)
            from penstock.spark.source import TaskStream  # noqa: PLC0415 - what is not used is not loaded

            return TaskStream(asked)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        with hinted():
            asked = options.for_writing(self.options)
            from penstock.spark.writer import BatchWriter  # noqa: PLC0415 - what is not used is not loaded

            return BatchWriter(asked, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's
        with hinted():
            asked = options.for_stream_writing(self.options)
            from penstock.spark.writer import StreamWriter  # noqa: PLC0415 - what is not used is not loaded

            return StreamWriter(asked, schema, overwrite=overwrite)
