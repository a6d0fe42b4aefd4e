"""The types that are written as text in a payload: how, and how they are read."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class TextForm:
    """How a type is written as text in a payload. `write` and `read` raise ValueError for a value that has no form."""

    words: str  # what the type is called in an error message
    write: Callable[[Any], str]
    read: Callable[[str], Any]


def write_moment(moment: datetime) -> str:
    """Writes a moment; without a time zone it would mean something else on another machine."""
    if moment.utcoffset() is None:
        raise ValueError
    return moment.isoformat()


def read_moment(text: str) -> datetime:
    """Reads a moment, which must have a time zone."""
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() is None:
        raise ValueError
    return moment


def write_decimal(number: Decimal) -> str:
    """Writes a number with all of its digits."""
    if not number.is_finite():
        raise ValueError
    return str(number)


def read_decimal(text: str) -> Decimal:
    """Reads a number with all of its digits."""
    try:
        number = Decimal(text)
    except InvalidOperation as error:
        raise ValueError from error
    if not number.is_finite():
        raise ValueError
    return number


LENGTH = re.compile(
    r"(?P<sign>-?)P(?=.)(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)(?:\.(?P<micros>\d{1,6}))?S)?)?",
    re.ASCII,
)


def write_length(length: timedelta) -> str:
    """Writes a length of time as ISO 8601 does, in days and seconds: P1DT5400S."""
    sign, length = ("-", -length) if length < timedelta() else ("", length)
    days = f"{length.days}D" if length.days else ""
    micros = f".{length.microseconds:06}".rstrip("0") if length.microseconds else ""
    seconds = f"T{length.seconds}{micros}S" if length.seconds or micros or not days else ""
    return f"{sign}P{days}{seconds}"


def read_length(text: str) -> timedelta:
    """Reads a length of time in the form of ISO 8601, without months and years, whose lengths differ."""
    found = LENGTH.fullmatch(text)
    if found is None:
        raise ValueError
    parts = {name: int(found[name] or 0) for name in ("weeks", "days", "hours", "minutes", "seconds")}
    try:
        length = timedelta(**parts, microseconds=int((found["micros"] or "0").ljust(6, "0")))
    except OverflowError as error:
        raise ValueError from error
    return -length if found["sign"] else length


def read_bytes(text: str) -> bytes:
    """Reads bytes from base64."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError from error


TEXTS: dict[type, TextForm] = {
    datetime: TextForm("a moment with a time zone, such as 2030-01-31T09:00:00+01:00", write_moment, read_moment),
    date: TextForm("a date, such as 2030-01-31", date.isoformat, date.fromisoformat),
    time: TextForm("a time of day, such as 09:30:00", time.isoformat, time.fromisoformat),
    timedelta: TextForm("a length of time, such as P1DT5400S", write_length, read_length),
    UUID: TextForm("a UUID", str, UUID),
    Decimal: TextForm("a decimal number as text, such as '12.50'", write_decimal, read_decimal),
    bytes: TextForm("bytes in base64, such as 'aGVsbG8='", lambda value: base64.b64encode(value).decode(), read_bytes),
}
