"""Spark on both ends: DataFrames into queues, queues out as streams, heavy drains on executors, history as DataFrames."""
