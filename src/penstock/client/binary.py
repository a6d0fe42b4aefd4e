"""Values in PostgreSQL's binary form."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, cast

import psycopg
from psycopg import pq
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.types.numeric import Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader


def raw_loaders(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> None:
    """Makes a cursor return moments as microseconds since 2000, and uuid and jsonb as bytes: a claim reads half a
    million of them a second, and psycopg's objects for them cost more than PostgreSQL's whole work."""
    cursor.adapters.register_loader("timestamptz", Int8BinaryLoader)
    cursor.adapters.register_loader("uuid", ByteaBinaryLoader)
    cursor.adapters.register_loader("jsonb", ByteaBinaryLoader)


class TextArray:
    """Texts for PostgreSQL as one binary array. It costs a third of psycopg's own list, which is written element by
    element."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[bytes | None]) -> None:
        self.values = values


class IdArray:
    """Ids for PostgreSQL as one binary array."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[int]) -> None:
        self.values = values


class TextArrayDumper(Dumper):
    """Writes a TextArray in PostgreSQL's binary form."""

    format = pq.Format.BINARY
    oid = 1009  # text[]

    def dump(self, obj: TextArray) -> Buffer:
        """Returns the binary form of the array."""
        pack = struct.Struct("!i").pack
        if None in obj.values:
            body = [b"\xff\xff\xff\xff" if one is None else pack(len(one)) + one for one in obj.values]
            return array_head(len(body), 25, nulls=1) + b"".join(body)
        values = cast("Sequence[bytes]", obj.values)
        return array_head(len(values), 25) + b"".join([pack(len(one)) + one for one in values])


class IdArrayDumper(Dumper):
    """Writes an IdArray in PostgreSQL's binary form."""

    format = pq.Format.BINARY
    oid = 1016  # bigint[]

    def dump(self, obj: IdArray) -> Buffer:
        """Returns the binary form of the array."""
        pack = struct.Struct("!iq").pack
        return array_head(len(obj.values), 20) + b"".join([pack(8, one) for one in obj.values])


def array_head(length: int, element: int, nulls: int = 0) -> bytes:
    """Returns the head of PostgreSQL's binary form of an array with one dimension; an empty array has no dimension."""
    return struct.pack("!iiIii", 1, nulls, element, length, 1) if length else struct.pack("!iiI", 0, 0, element)
