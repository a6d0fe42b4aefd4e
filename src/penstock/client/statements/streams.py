"""Streams: the consumer groups of Spark."""

from __future__ import annotations

STREAM = 0x50454E47  # "PENG": the advisory locks of the drivers of consumer groups
LOCK_EPOCH = "select pg_catalog.pg_try_advisory_xact_lock(%s, %s)"
NEXT_EPOCH = "select penstock.next_epoch()"
HOLD_STREAM = "select stream, identity::text, batch from penstock.hold_stream(%s, %s, %s, %s, %s)"
KEEP_STREAM = "select penstock.keep_stream(%s, %s, %s)"
LEAVE_STREAM = "select penstock.leave_stream(%s, %s)"
NEXT_BATCH = "select batch, tasks, early from penstock.next_batch(%s, %s, %s, %s, %s, %s, %s)"
BATCH_LEASES = "select token::text, tasks from penstock.batch_leases(%s, %s, %s, %s)"
READ_LEASE = """
    select id, kind, subject, payload, priority, due, attempt, iterations, created, since
    from penstock.read_lease(%s, %s, %s)
"""
WAITING_NOW = "select at, tasks from penstock.waiting_now(%s)"
