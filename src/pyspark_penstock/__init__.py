"""Registers `format("penstock")`: Spark imports the packages called pyspark_… and asks each for its DefaultSource.
Every session imports this package, so it imports little itself."""

from penstock.spark.datasource import DefaultSource

__all__ = ["DefaultSource"]
