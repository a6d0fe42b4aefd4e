"""Validation of all input. Every refusal names the field, the value and the limit, before anything is written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from types import NoneType
from typing import TypeVar
from uuid import UUID

import orjson

from penstock.errors import PayloadError, PayloadTooLarge, ValidationError, shown
from penstock.model import Duration, Json, NewTask

NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s|m|h|d|w)")
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}

MAX_CONCURRENCY = 10_000  # tasks at once in a worker process
LONGEST_DELAY = timedelta(days=3650)
EARLIEST = datetime(1, 1, 2, tzinfo=UTC)  # in some time zone Python cannot read an earlier moment
SHORTEST_LEASE, LONGEST_LEASE = timedelta(milliseconds=100), timedelta(hours=24)
MAX_CLAIM = 10_000
MAX_SUBJECT = 512
MAX_KIND = 128
MAX_PRIORITY = 100  # the smallest is the same below zero
MAX_KEY = 128
MAX_META = 8192
DEFAULT_MAX_PAYLOAD = 1 << 20  # what a queue accepts unless its max_payload says otherwise
MAX_PAYLOAD = 16 << 20
MAX_WORKER_NAME = 200
MAX_DEPTH = 100

T = TypeVar("T")


def queue_name(value: object) -> str:
    """Checks the name of a queue."""
    if isinstance(value, str) and NAME.fullmatch(value):
        return value
    raise ValidationError(
        f"queue: {shown(value)} is not a name",
        hint="A name has 1 to 63 of a-z, 0-9, _ . - and begins with a letter or digit.",
        field="queue",
    )


def duration(value: Duration, field: str) -> timedelta:
    """Parses a duration: `"1m30s"`, seconds as a number, or a timedelta."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValidationError(f"{field}: {shown(value)} is not a duration", hint=DURATION_HINT, field=field)
    if isinstance(value, str):
        parts = DURATION.findall(value.strip())
        if not parts or "".join(number + unit for number, unit in parts) != value.strip().replace(" ", ""):
            raise ValidationError(f"{field}: {shown(value)} is not a duration", hint=DURATION_HINT, field=field)
        value = sum(float(number) * SECONDS[unit] for number, unit in parts)
    if not -1e11 <= value <= 1e11:
        raise ValidationError(f"{field}: {shown(value)} is not a length of time", hint=DURATION_HINT, field=field)
    return timedelta(seconds=value)


DURATION_HINT = "Write 250ms, 30s, 5m, 1h30m, 7d, or a number of seconds."


def positive(value: Duration, field: str, *, most: timedelta = LONGEST_DELAY) -> timedelta:
    """Checks a duration that is more than 0 and at most `most`."""
    length = duration(value, field)
    if not timedelta() < length <= most:
        raise ValidationError(f"{field}: {shown(value)} is not more than 0 and at most {most}", field=field)
    return length


def lease(value: Duration | None) -> timedelta | None:
    """Checks the length of a lease, from 100ms to 24h."""
    if value is None:
        return None
    length = duration(value, "lease")
    if not SHORTEST_LEASE <= length <= LONGEST_LEASE:
        raise ValidationError(f"lease: {shown(value)} is not between 100ms and 24h", field="lease")
    return length


def delay(value: Duration | None) -> timedelta | None:
    """Checks a delay, from 0 to 10 years."""
    if value is None:
        return None
    length = duration(value, "delay")
    if not timedelta() <= length <= LONGEST_DELAY:
        raise ValidationError(f"delay: {shown(value)} is not between 0 and 10 years", field="delay")
    return length


def grace(value: Duration) -> float:
    """Returns the seconds that running tasks may take to finish when a worker stops."""
    length = duration(value, "grace")
    if not timedelta() <= length <= LONGEST_DELAY:
        raise ValidationError(f"grace: {shown(value)} is not between 0 and 10 years", field="grace")
    return length.total_seconds()


def whole(value: object, field: str, least: int, most: int) -> int:
    """Checks a whole number from `least` to `most`."""
    if type(value) is int and least <= value <= most:
        return value
    raise ValidationError(f"{field}: {shown(value)} is not a whole number from {least} to {most}", field=field)


def check_priority(value: object) -> int:
    """Checks a priority; smaller ones run first."""
    return whole(value, "priority", -MAX_PRIORITY, MAX_PRIORITY)


def byte_size(value: int | str, field: str) -> int:
    """Returns a size in bytes, from 1M on: a whole number, or text such as 500M or 4G."""
    found = SIZE.fullmatch(str(value).strip())
    count = 0 if found is None or isinstance(value, bool) else int(found[1]) * SIZE_UNITS[found[2].upper()]
    if not 1 << 20 <= count <= 1 << 50:
        message = f"{field}: {shown(value)} is not a size of at least 1M"
        raise ValidationError(message, hint="Write 500M or 4G.", field=field)
    return count


SIZE = re.compile(r"([0-9]{1,18})\s*([KMGT]?)i?B?", re.IGNORECASE)
SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def text(value: object, field: str, most: int) -> str:
    """Checks a text of 1 to `most` bytes, without NUL and lone surrogates."""
    if not isinstance(value, str):
        raise ValidationError(f"{field}: {shown(value)} is not text", field=field)
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise ValidationError(f"{field}: {shown(value)} has a lone surrogate in it", field=field) from None
    if not 1 <= size <= most:
        raise ValidationError(f"{field}: {size} bytes are not between 1 and {most}", field=field)
    if "\x00" in value:
        raise ValidationError(f"{field}: {shown(value)} has a NUL in it", field=field)
    return value


def worker(value: object) -> str:
    """Checks the name of a worker, which may be empty."""
    return "" if value == "" else text(value, "worker", MAX_WORKER_NAME)


MOMENT_HINT = "Say its zone too: 2030-01-31T06:00:00Z, or datetime.now(UTC)."


def moment(value: object, field: str = "due") -> datetime:
    """Checks a moment with a time zone, or parses its ISO 8601 text."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValidationError(f"{field}: {shown(value)} is not a moment", hint=MOMENT_HINT, field=field) from None
    if not isinstance(value, datetime):
        raise ValidationError(f"{field}: {shown(value)} is not a moment", field=field)
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValidationError(f"{field}: {shown(value.isoformat())} has no time zone", hint=MOMENT_HINT, field=field)
    if value < EARLIEST:
        raise ValidationError(f"{field}: {shown(value.isoformat())} is before 0001-01-02", field=field)
    if value > datetime.now(UTC) + LONGEST_DELAY:
        raise ValidationError(f"{field}: {shown(value.isoformat())} is more than ten years ahead", field=field)
    return value


def due_after(wait: Duration, due: object = None) -> datetime:
    """Returns the moment after a delay, counted from now by the clock of this machine. It refuses a delay together with
    a due."""
    if due is not None:
        raise ValidationError("delay: there is a due too", hint="Give one of them.", field="delay")
    length = delay(wait)
    assert length is not None
    return datetime.now(UTC) + min(length, LONGEST_DELAY - timedelta(seconds=1))


def expires(value: object) -> datetime | timedelta:
    """Checks until when a task may start: a moment with a time zone, or a length of time."""
    if isinstance(value, datetime):
        return moment(value, "expires")
    if isinstance(value, str) and not DURATION.match(value.strip()):
        try:
            return moment(value, "expires")
        except ValidationError as error:
            raise ValidationError(error.bare, hint=f"{DURATION_HINT} {MOMENT_HINT}", field="expires") from None
    return positive(value, "expires")  # type: ignore[arg-type]


def expires_at(value: object, due: datetime | None = None) -> datetime:
    """Returns the moment at which a task expires. A length of time counts from its due or, without one, from now by the
    clock of this machine."""
    found = expires(value)
    if isinstance(found, timedelta):
        return (due or datetime.now(UTC)) + found
    if due is not None and found <= due:
        said = f"expires: {shown(found.isoformat())} is not after the due, {due.isoformat()}"
        raise ValidationError(said, field="expires")
    return found


def token(value: object, field: str = "token") -> UUID:
    """Checks a UUID, or parses its text."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)  # type: ignore[arg-type]
    except (ValueError, AttributeError, TypeError):
        raise ValidationError(f"{field}: {shown(value)} is not a UUID", field=field) from None


def ids(values: Iterable[object]) -> list[int]:
    """Checks ids of tasks, none of them twice."""
    found = [whole(value, "id", 1, 2**63 - 1) for value in values]
    if len(set(found)) != len(found):
        twice = next(i for i in found if found.count(i) > 1)
        raise ValidationError(f"id: {twice} is given twice", field="id")
    return found


def new_task(item: object) -> NewTask:
    """Checks an item of a push; a dict is a payload. The payload itself is checked when it is encoded."""
    if isinstance(item, NewTask):
        _, subject, due, priority, kind, wait, whose, headers, until = item
        if subject is not None:
            text(subject, "subject", MAX_SUBJECT)
        if due is not None and type(due) is not datetime:
            item = item._replace(due=moment(due))
        elif due is not None:
            moment(due)
        if wait is not None:
            due_after(wait, due)
        if priority != 5 or type(priority) is not int:
            check_priority(priority)
        if kind != "default":
            text(kind, "kind", MAX_KIND)
        if whose is not None:
            text(whose, "key", MAX_KEY)
        if headers is not None:
            meta(headers)
        if until is not None:
            expires_at(until, item.due)
        return item
    if isinstance(item, dict) or item is None:
        return NewTask(item)
    raise PayloadError(
        f"payload: {shown(item)} is not a JSON object", hint="Push a dict, or a NewTask around one.", field="payload"
    )


# --- payloads ---------------------------------------------------------------------------------------------------------

STRICT = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS


def payload(value: Json | None, largest: int = DEFAULT_MAX_PAYLOAD) -> bytes:
    """Checks a payload and returns it as JSON."""
    if value is None:
        return b"{}"
    if type(value) is not dict:
        raise PayloadError(f"payload: {shown(value)} is not a JSON object", field="payload")
    try:
        raw = orjson.dumps(value, option=STRICT)
    except (TypeError, ValueError, RecursionError) as error:
        walk(value)  # its error names the place; orjson's names only the type
        raise PayloadError(f"payload: {error}", field="payload") from None
    inspect(raw, value, largest)
    return raw


def meta(value: object) -> bytes:
    """Checks the headers of a task and returns them as JSON."""
    if type(value) is not dict:
        raise PayloadError(f"meta: {shown(value)} is not a JSON object", field="meta")
    try:
        raw = payload(value, MAX_PAYLOAD)
    except PayloadError as error:
        said = error.bare.removeprefix("payload")
        raise PayloadError(f"meta{said}", hint=error.hint, field="meta") from None
    if len(raw) > MAX_META:
        raise PayloadTooLarge(f"meta: {len(raw)} bytes are more than {MAX_META}", field="meta")
    return raw


def inspect(raw: bytes, value: Json, largest: int = DEFAULT_MAX_PAYLOAD) -> None:
    """Checks an encoded payload. orjson refuses most values that are not JSON. Those that it accepts (NaN, which
    becomes null, NUL, and depth) leave a trace in its output, and only then the value itself is walked."""
    size(raw, largest)
    if (
        b"null" in raw
        or b"\\u0000" in raw
        or (len(raw) > 2 * MAX_DEPTH and raw.count(b"[") + raw.count(b"{") > MAX_DEPTH)
    ):
        walk(value)


def size(raw: bytes, largest: int) -> None:
    """Checks the size of an encoded payload."""
    if len(raw) > largest:
        raise PayloadTooLarge(f"payload: {len(raw)} bytes are more than {largest}", field="payload")


def payloads(values: Sequence[Json | None], largest: int = DEFAULT_MAX_PAYLOAD) -> list[bytes]:
    """Encodes many payloads like `payload`, but checks them together, at half the cost. The error names the first bad
    one."""
    try:
        raws = [b"{}" if value is None else orjson.dumps(value, option=STRICT) for value in values]
        joined = b"".join(raws)
        plain = {*map(type, values)} <= {dict, NoneType} and max(map(len, raws), default=0) <= 2 * MAX_DEPTH
    except (TypeError, ValueError, RecursionError):
        plain = False
    if plain and b"null" not in joined and b"\\u0000" not in joined:
        return raws
    return [at(n, payload, value, largest) for n, value in enumerate(values)]


def at(index: int, check: Callable[..., T], *arguments: object) -> T:
    """Runs a check of one item of a batch; its error names the item."""
    try:
        return check(*arguments)
    except ValidationError as error:
        raise error.at(index) from None


def walk(value: object) -> None:
    """Refuses a value that is not plain JSON, and names the place. It is iterative, so that depth and cycles end in a
    PayloadError. A UUID counts as its text and an enum as its value, as orjson writes them."""
    stack: list[tuple[object, str, int]] = [(value, "payload", 1)]
    while stack:
        here, path, depth = stack.pop()
        kind = type(here)
        if here is None or kind in (bool, UUID):
            continue
        if depth > MAX_DEPTH and kind in (dict, list, tuple):
            raise PayloadError(
                f"{shown_path(path)}: it is nested deeper than {MAX_DEPTH}, or in itself", field="payload"
            )
        if isinstance(here, Enum):
            stack.append((here.value, path, depth))
        elif kind is dict:
            stack.extend((item, f"{path}.{check_key(key, path)}", depth + 1) for key, item in here.items())  # type: ignore[attr-defined]
        elif kind in (list, tuple):
            stack.extend((item, f"{path}[{n}]", depth + 1) for n, item in enumerate(here))  # type: ignore[arg-type, var-annotated]
        elif kind is str:
            check_text(here, path)  # type: ignore[arg-type]
        elif kind is int:
            if not -(2**63) <= here < 2**64:  # type: ignore[operator]
                raise PayloadError(f"{shown_path(path)}: an integer outside 64 bits", field="payload")
        elif kind is float:
            if not math.isfinite(here):  # type: ignore[arg-type]
                raise PayloadError(f"{shown_path(path)}: {here} is not JSON", field="payload")
        else:
            raise PayloadError(
                f"{shown_path(path)}: {kind.__name__} is not JSON",
                hint="Turn it into text or numbers first, in the way your handler will read it.",
                field="payload",
            )


def check_key(key: object, path: str) -> str:
    """Checks a key of a JSON object."""
    if type(key) is not str:
        raise PayloadError(f"{shown_path(path)}: the key {shown(key)} is not text", field="payload")
    check_text(key, path)
    return key


def check_text(value: str, path: str) -> None:
    """Checks a text in a payload."""
    if "\x00" in value:
        raise PayloadError(f"{shown_path(path)}: there is a NUL in it, which PostgreSQL cannot store", field="payload")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise PayloadError(f"{shown_path(path)}: there is a lone surrogate in it", field="payload") from None


def shown_path(path: str) -> str:
    """Returns the path of a value in a payload as it may appear in a message."""
    return ascii(path if len(path) <= 60 else path[:57] + "…")[1:-1]


DIGITS_ONLY = bytes(0x31 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))
LONG_NUMBER = b"1" * 19


def decode_payloads(stored: Sequence[bytes]) -> list[Json | None]:
    """Decodes payloads as PostgreSQL sends jsonb: a version byte, then JSON. A payload that is nested deeper than
    Python can read, which only hand-written SQL can create, becomes None.

    orjson would turn integers outside 64 bits into floats: if the batch may contain one, json decodes it exactly. One
    look at the whole batch costs 0.1 µs a payload.
    """
    if LONG_NUMBER not in b"".join(stored).translate(DIGITS_ONLY):
        loads = orjson.loads
        with suppress(orjson.JSONDecodeError):
            return [loads(one[1:]) for one in stored]
    return [decoded_slowly(one[1:]) for one in stored]


def decode_text(text: str) -> Json | None:
    """Decodes one payload as PostgreSQL writes it; see `decode_payloads`."""
    return decode_payloads([b"\x01" + text.encode()])[0]


def decoded_slowly(raw: bytes) -> Json | None:
    """Decodes one payload exactly, or returns None if it is nested too deep."""
    try:
        found: Json = json.loads(raw, parse_int=exact_int)
    except RecursionError:
        return None
    return found


def exact_int(digits: str) -> int:
    """Parses an integer of any length: PostgreSQL stores 131,072 digits, and int() alone may refuse a text of more than
    640. A sender can write many final zeros cheaply, as an exponent, so they are cheap to parse, too."""
    if len(digits) <= 640:
        return int(digits)
    head = digits.rstrip("0")
    whole = int(head) if len(head) <= 640 else int(Decimal(head))
    return whole * ten_to(len(digits) - len(head))


@lru_cache(maxsize=4)
def ten_to(power: int) -> int:
    """Returns a power of ten."""
    return int(10**power)
