"""DataFrame rows as tasks: which column is what, known from the schema alone; then Arrow batches as encoded columns,
with what can not be a task set aside.

Payload text crosses as it is: numbers of 40 digits, 1.0 and 1e400 are the same in PostgreSQL. A struct or map becomes
JSON: timestamps and dates ISO 8601 (UTC), decimals exact, binary base64, as Spark's own `to_json` has it.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, NamedTuple, cast

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from penstock import validate
from penstock.errors import PayloadError, ValidationError
from penstock.spool import CHUNK, CHUNK_BYTES, Columns
from penstock.statements import Reject

Judge = Callable[[list[bytes]], dict[int, str]]

OURS = ("payload", "subject", "kind", "due", "priority")
TEXTS = (spark.StringType,)
WHOLE = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)
PLAIN = (
    *TEXTS,
    *WHOLE,
    spark.BooleanType,
    spark.FloatType,
    spark.DoubleType,
    spark.DecimalType,
    spark.DateType,
    spark.TimestampType,
    spark.TimestampNTZType,
    spark.BinaryType,
    spark.NullType,
)


class Plan(NamedTuple):
    """Which column is what. Made on the driver, before anything runs."""

    columns: frozenset[str]  # of ours, those that are there
    packed: tuple[str, ...]  # the others
    text: bool  # the payload is text
    kind: str | None


class Batch(NamedTuple):
    """What became of some rows. `checksum` is of all of them, whatever their order."""

    rows: int
    checksum: int
    plain: Columns | None
    named: Columns | None
    rejects: list[Reject]


# --- the plan ---------------------------------------------------------------------------------------------------------


def planned(schema: spark.StructType, *, pack: bool, kind: str | None) -> Plan:
    """Columns of a wrong name or type are an error here, before a row is read."""
    names = schema.fieldNames()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValidationError(f"{twice[0]}: the column is there twice", field=twice[0])
    others = tuple(name for name in names if name not in OURS)
    if others and not pack:
        raise ValidationError(
            f"{', '.join(others)}: no column of a task",
            hint=f'{nearest(others)}A task has {", ".join(OURS)}; .option("packColumns", "true") packs the others into'
            " its payload.",
            field=others[0],
        )
    if "payload" not in names and not others:
        hint = "It is JSON text, a struct or a map."
        raise ValidationError("payload: there is no such column", hint=hint, field="payload")
    for field in schema.fields:
        check_type(field)
    text = "payload" in names and isinstance(schema["payload"].dataType, TEXTS)
    return Plan(frozenset(names).intersection(OURS), others, text, kind)


def nearest(others: Sequence[str]) -> str:
    near = get_close_matches(others[0].lower(), OURS, 1)
    return f"Did you mean {near[0]}? " if near else ""


def check_type(field: spark.StructField) -> None:
    kind, name = field.dataType, field.name
    if name == "payload":
        if not isinstance(kind, (*TEXTS, spark.StructType, spark.MapType)):
            raise wrong(name, kind, "JSON text, a struct or a map")
        check_json(kind, name)
    elif name in ("subject", "kind"):
        if not isinstance(kind, TEXTS):
            raise wrong(name, kind, "text")
    elif name == "due":
        if not isinstance(kind, spark.TimestampType):
            raise wrong(name, kind, "a timestamp (with its zone, not timestamp_ntz)")
    elif name == "priority":
        if not isinstance(kind, WHOLE):
            raise wrong(name, kind, "a whole number")
    else:
        check_json(kind, name)


def check_json(kind: spark.DataType, path: str) -> None:
    """Everything in it can be JSON."""
    if isinstance(kind, spark.StructType):
        for field in kind.fields:
            check_json(field.dataType, f"{path}.{field.name}")
    elif isinstance(kind, spark.ArrayType):
        check_json(kind.elementType, f"{path}[]")
    elif isinstance(kind, spark.MapType):
        if not isinstance(kind.keyType, TEXTS):
            raise wrong(f"{path}: its key", kind.keyType, "text")
        check_json(kind.valueType, f"{path}[]")
    elif not isinstance(kind, PLAIN):
        hint = "Cast it to string, or take it apart first."
        raise ValidationError(f"{path}: {kind.simpleString()} has no form in JSON", hint=hint, field=path)


def wrong(name: str, kind: spark.DataType, wanted: str) -> ValidationError:
    said = f"{name}: {kind.simpleString()} is not {wanted}"
    return ValidationError(said, hint=f"Cast {name} before writing.", field=name)


# --- rows -------------------------------------------------------------------------------------------------------------


def read(plan: Plan, batch: pa.RecordBatch, largest: int, judge: Judge) -> list[Batch]:
    """An Arrow batch, CHUNK rows at most at a time."""
    step = max(1, min(CHUNK, CHUNK_BYTES * batch.num_rows // max(batch.nbytes, 1)))
    return [read_some(plan, batch.slice(n, step), largest, judge) for n in range(0, batch.num_rows, step)]


def read_some(plan: Plan, batch: pa.RecordBatch, largest: int, judge: Judge) -> Batch:
    bad: dict[int, str] = {}
    payloads = payloads_of(plan, batch, bad)
    subjects = texts_of(plan, batch, "subject", validate.LARGEST_SUBJECT, bad)
    kinds = kinds_of(plan, batch, bad)
    dues = dues_of(plan, batch, bad)
    priorities = priorities_of(plan, batch, bad)
    checksum = checksum_of(payloads, subjects, kinds, dues, priorities)
    check_payloads(payloads, largest, judge, bad)
    rejects = [
        reject(bad[n], payloads[n], *(c and c[n] for c in (subjects, kinds, dues, priorities))) for n in sorted(bad)
    ]
    columns: list[Any] = [payloads, subjects, kinds, dues, priorities]
    if bad:
        columns = [c and [one for n, one in enumerate(c) if n not in bad] for c in columns]
    kept = whole(columns)
    plain, named = split(kept)
    return Batch(batch.num_rows, checksum, plain, named, rejects)


def payloads_of(plan: Plan, batch: pa.RecordBatch, bad: dict[int, str]) -> list[bytes | None]:
    given: list[bytes | None] = [b"{}"] * batch.num_rows
    if "payload" in plan.columns:
        column = batch.column("payload")
        given = bytes_of(column, "payload", bad) if plan.text else encoded(column, bad)
        for n in nulls(column):
            bad[n] = "payload: null is not a JSON object"
    if not plan.packed:
        return given
    others = pa.StructArray.from_arrays([batch.column(name) for name in plan.packed], list(plan.packed))
    return [with_fields(one, more) for one, more in zip(given, encoded(others, bad), strict=True)]


def with_fields(payload: bytes | None, more: bytes | None) -> bytes | None:
    """The other columns before its own, as text: of two with one name its own is the one that stays."""
    if payload is None or more is None:
        return None
    own = payload.strip()
    if not own.startswith(b"{"):
        return payload  # it is no object, and will be told so
    return more if own[1:].strip() == b"}" else more[:-1] + b"," + own[1:]


def bytes_of(column: pa.Array, name: str, bad: dict[int, str]) -> list[bytes | None]:
    """Texts as UTF-8; what is none is bad. Spark lets any bytes be text."""
    found: list[bytes | None] = raw_of(column).to_pylist()
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        for n, one in enumerate(found):
            if one is not None and not is_text(one):
                bad.setdefault(n, f"{name}: it is not UTF-8")
    return found


def raw_of(column: pa.Array) -> pa.Array:
    return column.cast(pa.large_binary())


def is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def texts_of(plan: Plan, batch: pa.RecordBatch, name: str, most: int, bad: dict[int, str]) -> list[bytes | None] | None:
    if name not in plan.columns:
        return None
    column = batch.column(name)
    found = bytes_of(column, name, bad)
    lengths = pc.binary_length(column)
    for n in where(pc.or_(pc.less(lengths, 1), pc.greater(lengths, most))):
        bad.setdefault(n, f"{name}: {len(found[n] or b'')} bytes are not between 1 and {most}")
    for n in where(pc.match_substring(raw_of(column), b"\x00")):
        bad.setdefault(n, f"{name}: there is a NUL in it")
    return found


def kinds_of(plan: Plan, batch: pa.RecordBatch, bad: dict[int, str]) -> list[bytes | None] | None:
    """A row without one has that of the option."""
    default = (plan.kind or "default").encode()
    found = texts_of(plan, batch, "kind", validate.LARGEST_KIND, bad)
    if found is None:
        return None if plan.kind is None else [default] * batch.num_rows
    return [default if one is None else one for one in found]


def dues_of(plan: Plan, batch: pa.RecordBatch, bad: dict[int, str]) -> list[bytes | None] | None:
    if "due" not in plan.columns:
        return None
    column = batch.column("due").cast(pa.timestamp("us", "UTC"))
    micros = column.cast(pa.int64())
    latest = datetime.now(UTC) + validate.LONGEST_DELAY
    for n in where(pc.less(micros, in_micros(validate.EARLIEST))):
        bad.setdefault(n, "due: it is before 0001-01-02")
    for n in where(pc.greater(micros, in_micros(latest))):
        bad.setdefault(n, "due: it is more than ten years ahead")
    found: list[bytes | None] = column.cast(pa.string()).cast(pa.binary()).to_pylist()
    return found


def in_micros(moment: datetime) -> int:
    apart = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (apart.days * 86400 + apart.seconds) * 1_000_000 + apart.microseconds


def priorities_of(plan: Plan, batch: pa.RecordBatch, bad: dict[int, str]) -> list[int] | None:
    if "priority" not in plan.columns:
        return None
    column = pc.fill_null(batch.column("priority").cast(pa.int64()), 5)
    found: list[int] = column.to_pylist()
    for n in where(pc.or_(pc.less(column, 0), pc.greater(column, 9))):
        bad.setdefault(n, f"priority: {found[n]} is not a whole number from 0 to 9")
    return found


def where(mask: pa.Array) -> list[int]:
    return [] if not pc.any(mask).as_py() else pc.indices_nonzero(mask.fill_null(False)).to_pylist()


def nulls(column: pa.Array) -> list[int]:
    return where(column.is_null()) if column.null_count else []


# --- payloads ---------------------------------------------------------------------------------------------------------

STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
BREAKS = bytes.maketrans(b"\t\r\n", b"   ")


def check_payloads(payloads: list[bytes | None], largest: int, judge: Judge, bad: dict[int, str]) -> None:
    """What is too large or too deep is ours to say. Whether the rest is JSON that PostgreSQL can hold, PostgreSQL says:
    it is asked about what looks odd from here. Then white space between tokens is made such that a line is a task."""
    if not bad and all_plain(payloads, largest):
        return
    odd: list[int] = []
    for n, raw in enumerate(payloads):
        if n in bad or raw is None:
            continue
        try:
            plain = type(orjson.loads(raw)) is dict and b"\\u0000" not in raw
        except orjson.JSONDecodeError:
            plain = False
        if len(raw) > 2 * validate.DEEPEST:
            said = too_large(raw, largest) or too_deep(raw)
            if said:
                bad[n] = said
                continue
        elif len(raw) > largest:
            bad[n] = str(too_large(raw, largest))
            continue
        if not plain:
            odd.append(n)
    asked = [n for n in odd if sendable(n, payloads[n], bad)]
    if asked:
        said_of = judge([payloads[n] or b"" for n in asked])
        bad.update({asked[at]: said for at, said in said_of.items()})
    for n, raw in enumerate(payloads):
        if raw is not None and n not in bad and (b"\n" in raw or b"\t" in raw or b"\r" in raw):
            payloads[n] = raw.translate(BREAKS)


def all_plain(payloads: Sequence[bytes | None], largest: int) -> bool:
    """One look at all of them, at half the cost. Two halves of an object may pass for one here, but not in PostgreSQL,
    whose refusal makes us look again."""
    if None in payloads:
        return False
    texts = cast("Sequence[bytes]", payloads)
    joined = b",".join(texts)
    if max(map(len, texts), default=0) > min(2 * validate.DEEPEST, largest):
        return False
    if b"\\u0000" in joined or b"\n" in joined or b"\t" in joined or b"\r" in joined:
        return False
    try:
        found = orjson.loads(b"[" + joined + b"]")
    except orjson.JSONDecodeError:
        return False
    return len(found) == len(texts) and {*map(type, found)} <= {dict}


def sendable(n: int, raw: bytes | None, bad: dict[int, str]) -> bool:
    """PostgreSQL can not even be asked about a NUL."""
    if raw is None or b"\x00" in raw:
        bad[n] = "payload: there is a NUL in it, which PostgreSQL can not store"
        return False
    return True


def too_large(raw: bytes, largest: int) -> str | None:
    return f"payload: {len(raw)} bytes are more than {largest}" if len(raw) > largest else None


def too_deep(raw: bytes) -> str | None:
    if raw.count(b"[") + raw.count(b"{") <= validate.DEEPEST:
        return None
    depth = 0
    for byte in STRING.sub(b"", raw):
        depth += (byte in b"[{") - (byte in b"]}")
        if depth > validate.DEEPEST:
            return f"payload: it is nested deeper than {validate.DEEPEST}"
    return None


# --- structs and maps as JSON -----------------------------------------------------------------------------------------

FORM = orjson.OPT_UTC_Z


def encoded(column: pa.Array, bad: dict[int, str]) -> list[bytes | None]:
    column = column.cast(in_utc(column.type))
    try:
        values = column.to_pylist(maps_as_pydicts="strict")
    except (ValueError, OverflowError, UnicodeDecodeError, KeyError):
        values = [one_value(column, n, bad) for n in range(len(column))]
    return [None if value is None else encode(n, value, bad) for n, value in enumerate(values)]


def one_value(column: pa.Array, n: int, bad: dict[int, str]) -> Any:
    """A moment that Python has no name for, or bytes that are no text, are one row's trouble."""
    try:
        return column[n].as_py(maps_as_pydicts="strict")
    except (ValueError, OverflowError, UnicodeDecodeError, KeyError) as error:
        bad.setdefault(n, f"payload: {str(error)[:200]}")
        return {}


def encode(n: int, value: Any, bad: dict[int, str]) -> bytes:
    try:
        raw = orjson.dumps(value, default=as_json, option=FORM)
        if b"null" in raw:
            refuse_odd_numbers(value)  # orjson writes null for them
    except (PayloadError, TypeError, ValueError, RecursionError) as error:
        bad.setdefault(n, error.message if isinstance(error, PayloadError) else f"payload: {error}")
        return json.dumps(value, default=str).encode()
    return raw


def as_json(value: object) -> object:
    if isinstance(value, Decimal):
        return orjson.Fragment(format(value, "f"))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} is not JSON")


def refuse_odd_numbers(value: object, path: str = "payload") -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise PayloadError(f"{path}: {value} is not JSON", field="payload")
    inner: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        inner = ((f".{key}", one) for key, one in value.items())
    elif isinstance(value, list):
        inner = ((f"[{n}]", one) for n, one in enumerate(value))
    for step, one in inner:
        refuse_odd_numbers(one, f"{path}{step}")


def in_utc(kind: pa.DataType) -> pa.DataType:
    """The same type with every moment in UTC, whatever the session's time zone."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, in_utc(f.type), f.nullable) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, in_utc(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(in_utc(kind.value_type))
    return kind


# --- what is kept and what is not -------------------------------------------------------------------------------------


def checksum_of(payloads: list[bytes | None], *others: Sequence[object] | None) -> int:
    """The sum of what each row has: the same whatever their order, and rows that are there twice count twice."""
    crc = zlib.crc32
    more = [column for column in others if column is not None]
    if not more:
        return sum([crc(one) if one is not None else 1 for one in payloads])
    return sum(crc(payload or b"", crc(repr(rest).encode())) for payload, *rest in zip(payloads, *more, strict=True))


def whole(columns: list[Any]) -> Columns:
    """Without columns that are all default."""
    payloads, subjects, kinds, dues, priorities = columns
    return Columns(
        payloads,
        None if subjects is None or {*subjects} == {None} else subjects,
        None if kinds is None or {*kinds} == {b"default"} else kinds,
        None if dues is None or {*dues} == {None} else dues,
        None if priorities is None or {*priorities} == {5} else priorities,
    )


def split(columns: Columns) -> tuple[Columns | None, Columns | None]:
    """Those without a subject, and those with one."""
    if not columns.payloads:
        return None, None
    if columns.subjects is None:
        return columns, None
    if None not in columns.subjects:
        return None, columns
    named = [one is not None for one in columns.subjects]
    return chosen(columns, [not one for one in named]), chosen(columns, named)


def chosen(columns: Columns, mask: list[bool]) -> Columns:
    return whole([column and [one for one, yes in zip(column, mask, strict=True) if yes] for column in columns])


def reject(reason: str, payload: bytes | None, *others: object) -> Reject:
    return Reject(reason, shown(payload), *(None if one is None else shown(one) for one in others))


def shown(value: object) -> str | None:
    """As it came, as far as it is text."""
    if value is None:
        return None
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
