"""Where Spark finds `format("penstock")`: it looks for packages called pyspark_… and asks each for its DefaultSource.
Every session pays for this import, so it brings nothing but names."""

from penstock.spark.door import DefaultSource

__all__ = ["DefaultSource"]
