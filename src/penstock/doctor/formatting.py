"""Formats sizes, names and SQL for findings."""

from __future__ import annotations

from penstock.errors import shown


def describe_session(pid: int, user: str, application: str) -> str:
    return f"session {pid} of {user}" + (f" in {shown(application)}" if application else "")


def quote_literal(text: str) -> str:
    """Quotes a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def format_megabytes(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MB"
