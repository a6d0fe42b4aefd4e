"""Policies, which decide how many workers a queue needs. They do no I/O."""
