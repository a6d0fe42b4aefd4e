"""`format("penstock")`: maps each request of Spark to its reader or writer. Options are checked here, before a
connection is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from penstock.spark import options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """The data source. Write: DataFrames into a queue. Read: history. Read as a stream: a queue's tasks, or history."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        """Returns the schema for reading. Spark asks for it before it says whether the read is a stream."""
        if self.options.get(options.READ) == "history":
            from penstock.spark.history import SCHEMA  # noqa: PLC0415 - what is not used is not loaded

            return SCHEMA
        from penstock.spark.source import SCHEMA as TASKS  # noqa: PLC0415 - what is not used is not loaded

        return TASKS

    def reader(self, schema: StructType) -> Any:  # noqa: ARG002 - ours is the only one
        options.reads_history(self.options, stream=False)
        asked = options.parse_history_options(self.options)
        from penstock.spark.history import HistoryReader  # noqa: PLC0415 - what is not used is not loaded

        return HistoryReader(asked)

    def streamReader(self, schema: StructType) -> Any:  # noqa: ARG002, N802 - Spark's
        if options.reads_history(self.options, stream=True):
            from penstock.spark.history import HistoryStream  # noqa: PLC0415 - what is not used is not loaded

            return HistoryStream(options.parse_history_stream_options(self.options))
        asked = options.parse_stream_options(self.options)
        from penstock.spark.source import TaskStream  # noqa: PLC0415 - what is not used is not loaded

        return TaskStream(asked)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        asked = options.parse_write_options(self.options)
        from penstock.spark.writer import BatchWriter  # noqa: PLC0415 - what is not used is not loaded

        return BatchWriter(asked, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's
        asked = options.parse_stream_write_options(self.options)
        from penstock.spark.writer import StreamWriter  # noqa: PLC0415 - what is not used is not loaded

        return StreamWriter(asked, schema, overwrite=overwrite)
