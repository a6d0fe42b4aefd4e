"""Texts and numbers as parameters of statements."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client.binary import TextArray


def encode(text: str | None) -> bytes | None:
    """Encodes a text that may be None."""
    return None if text is None else text.encode()


def text_array(column: Sequence[bytes | None]) -> TextArray | None:
    """Returns texts for PostgreSQL in binary, or None if all of them are None."""
    return None if column.count(None) == len(column) else TextArray(column)


def to_storable(text: str | None, longest: int = 20_000) -> str | None:
    """Makes an error text storable, so that it never prevents a settle: characters that PostgreSQL cannot store are
    escaped, and a text that is too long is cut (SQL cuts it again, exactly)."""
    if text is None:
        return None
    cut = str(text)[:longest]
    return cut.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def number_array(values: Sequence[float]) -> str:
    """Returns an array as PostgreSQL reads it: psycopg's own conversion, number by number, costs as much as a tenth of
    a look."""
    return f"{{{','.join(map(repr, values))}}}"
