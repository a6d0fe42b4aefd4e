"""Converts DataFrame rows to tasks. The schema determines which column is what; then Arrow batches become encoded
columns, and rows that cannot be tasks are set aside.

Payload text is stored as it is: numbers of 40 digits, 1.0 and 1e400 stay the same in PostgreSQL. A struct or map
becomes JSON: timestamps and dates in ISO 8601 (UTC), decimals exact, binary in base64, like Spark's own `to_json`.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, NamedTuple, cast

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from penstock import validate
from penstock.client.spool import CHUNK, CHUNK_BYTES, Columns
from penstock.client.statements.jobs import Reject
from penstock.errors import PayloadError, ValidationError

Judge = Callable[[list[bytes]], dict[int, str]]

OURS = ("payload", "subject", "kind", "due", "priority", "key", "meta", "expires")
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


class ColumnPlan(NamedTuple):
    """Which column is what. The driver makes it before a task runs."""

    columns: frozenset[str]  # the columns of a task that exist
    packed: tuple[str, ...]  # the other columns
    text: bool  # the payload is text
    kind: str | None


class CheckedBatch(NamedTuple):
    """Checked rows. `checksum` is of all of them, in any order."""

    rows: int
    checksum: int
    plain: Columns | None
    named: Columns | None
    rejects: list[Reject]


# --- the plan ---------------------------------------------------------------------------------------------------------


def plan_columns(schema: spark.StructType, *, pack: bool, kind: str | None) -> ColumnPlan:
    """Raises ValidationError for columns of a wrong name or type, before a row is read."""
    names = schema.fieldNames()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValidationError(f"{twice[0]}: the column is given twice", field=twice[0])
    others = tuple(name for name in names if name not in OURS)
    if others and not pack:
        raise ValidationError(
            f"{', '.join(others)}: no column of a task",
            hint=f'{suggest(others)}A task has {", ".join(OURS)}; .option("packColumns", "true") packs the others into'
            " its payload.",
            field=others[0],
        )
    if "payload" not in names and not others:
        hint = "It is JSON text, a struct or a map."
        raise ValidationError("payload: there is no such column", hint=hint, field="payload")
    for field in schema.fields:
        check_type(field)
    text = "payload" in names and isinstance(schema["payload"].dataType, TEXTS)
    return ColumnPlan(frozenset(names).intersection(OURS), others, text, kind)


def suggest(others: Sequence[str]) -> str:
    near = get_close_matches(others[0].lower(), OURS, 1)
    return f"Did you mean {near[0]}? " if near else ""


def check_type(field: spark.StructField) -> None:
    kind, name = field.dataType, field.name
    if name in ("payload", "meta"):
        if not isinstance(kind, (*TEXTS, spark.StructType, spark.MapType)):
            raise make_type_error(name, kind, "JSON text, a struct or a map")
        check_json(kind, name)
    elif name in ("subject", "kind", "key"):
        if not isinstance(kind, TEXTS):
            raise make_type_error(name, kind, "text")
    elif name in ("due", "expires"):
        if not isinstance(kind, spark.TimestampType):
            raise make_type_error(name, kind, "a timestamp (with its zone, not timestamp_ntz)")
    elif name == "priority":
        if not isinstance(kind, WHOLE):
            raise make_type_error(name, kind, "a whole number")
    else:
        check_json(kind, name)


def check_json(kind: spark.DataType, path: str) -> None:
    """Raises ValidationError if a type has no form in JSON."""
    if isinstance(kind, spark.StructType):
        for field in kind.fields:
            check_json(field.dataType, f"{path}.{field.name}")
    elif isinstance(kind, spark.ArrayType):
        check_json(kind.elementType, f"{path}[]")
    elif isinstance(kind, spark.MapType):
        if not isinstance(kind.keyType, TEXTS):
            raise make_type_error(f"{path}: its key", kind.keyType, "text")
        check_json(kind.valueType, f"{path}[]")
    elif not isinstance(kind, PLAIN):
        hint = "Cast it to string, or take it apart first."
        raise ValidationError(f"{path}: {kind.simpleString()} has no form in JSON", hint=hint, field=path)


def make_type_error(name: str, kind: spark.DataType, wanted: str) -> ValidationError:
    said = f"{name}: {kind.simpleString()} is not {wanted}"
    return ValidationError(said, hint=f"Cast {name} before writing.", field=name)


# --- rows -------------------------------------------------------------------------------------------------------------


def read_batch(plan: ColumnPlan, batch: pa.RecordBatch, largest: int, judge: Judge) -> list[CheckedBatch]:
    """Checks an Arrow batch, at most CHUNK rows at a time."""
    step = max(1, min(CHUNK, CHUNK_BYTES * batch.num_rows // max(batch.nbytes, 1)))
    return [read_chunk(plan, batch.slice(n, step), largest, judge) for n in range(0, batch.num_rows, step)]


def read_chunk(plan: ColumnPlan, batch: pa.RecordBatch, largest: int, judge: Judge) -> CheckedBatch:
    """Checks some rows: those that are accepted become columns, the others rejects that say why."""
    bad: dict[int, str] = {}
    payloads = read_payloads(plan, batch, bad)
    subjects = read_texts(plan, batch, "subject", validate.MAX_SUBJECT, bad)
    kinds = read_kinds(plan, batch, bad)
    dues = read_moments(plan, batch, "due", validate.LONGEST_DELAY, bad)
    priorities = read_priorities(plan, batch, bad)
    keys = read_texts(plan, batch, "key", validate.MAX_KEY, bad)
    metas = read_metas(plan, batch, bad)
    expires = read_moments(plan, batch, "expires", 2 * validate.LONGEST_DELAY, bad)
    check_ends(plan, batch, bad)
    others = (subjects, kinds, dues, priorities, keys, metas, expires)
    checksum = compute_checksum(payloads, *others)
    check_payloads(payloads, largest, judge, bad)
    rejects = [make_reject(bad[n], payloads[n], *(c and c[n] for c in others)) for n in sorted(bad)]
    columns: list[Any] = [payloads, *others]
    if bad:
        columns = [c and [one for n, one in enumerate(c) if n not in bad] for c in columns]
    kept = drop_defaults(columns)
    plain, named = split_by_subject(kept)
    return CheckedBatch(batch.num_rows, checksum, plain, named, rejects)


def read_payloads(plan: ColumnPlan, batch: pa.RecordBatch, bad: dict[int, str]) -> list[bytes | None]:
    given: list[bytes | None] = [b"{}"] * batch.num_rows
    if "payload" in plan.columns:
        column = batch.column("payload")
        given = read_bytes(column, "payload", bad) if plan.text else encode_column(column, bad)
        for n in find_nulls(column):
            bad[n] = "payload: null is not a JSON object"
    if not plan.packed:
        return given
    others = pa.StructArray.from_arrays([batch.column(name) for name in plan.packed], list(plan.packed))
    return [add_fields(one, more) for one, more in zip(given, encode_column(others, bad), strict=True)]


def add_fields(payload: bytes | None, more: bytes | None) -> bytes | None:
    """Puts the other columns before the fields of the payload, as text. If two fields have one name, that of the
    payload is used."""
    if payload is None or more is None:
        return None
    own = payload.strip()
    if not own.startswith(b"{"):
        return payload  # it is not an object, and is rejected later
    return more if own[1:].strip() == b"}" else more[:-1] + b"," + own[1:]


def read_bytes(column: pa.Array, name: str, bad: dict[int, str]) -> list[bytes | None]:
    """Returns texts as UTF-8, and marks rows that are not UTF-8 as bad. Spark allows any bytes in a text."""
    found: list[bytes | None] = to_binary(column).to_pylist()
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        for n, one in enumerate(found):
            if one is not None and not is_text(one):
                bad.setdefault(n, f"{name}: it is not UTF-8")
    return found


def to_binary(column: pa.Array) -> pa.Array:
    return column.cast(pa.large_binary())


def is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_texts(
    plan: ColumnPlan, batch: pa.RecordBatch, name: str, most: int, bad: dict[int, str]
) -> list[bytes | None] | None:
    if name not in plan.columns:
        return None
    column = batch.column(name)
    found = read_bytes(column, name, bad)
    lengths = pc.binary_length(column)
    for n in find_true(pc.or_(pc.less(lengths, 1), pc.greater(lengths, most))):
        bad.setdefault(n, f"{name}: {len(found[n] or b'')} bytes are not between 1 and {most}")
    for n in find_true(pc.match_substring(to_binary(column), b"\x00")):
        bad.setdefault(n, f"{name}: there is a NUL in it")
    return found


def read_kinds(plan: ColumnPlan, batch: pa.RecordBatch, bad: dict[int, str]) -> list[bytes | None] | None:
    """Returns the kinds. A row without one has the kind of the option."""
    default = (plan.kind or "default").encode()
    found = read_texts(plan, batch, "kind", validate.MAX_KIND, bad)
    if found is None:
        return None if plan.kind is None else [default] * batch.num_rows
    return [default if one is None else one for one in found]


def read_moments(
    plan: ColumnPlan, batch: pa.RecordBatch, name: str, most: timedelta, bad: dict[int, str]
) -> list[bytes | None] | None:
    """Returns a column of moments, and marks those as bad that are further ahead than `most`."""
    if name not in plan.columns:
        return None
    column = batch.column(name).cast(pa.timestamp("us", "UTC"))
    micros = column.cast(pa.int64())
    for n in find_true(pc.less(micros, to_micros(validate.EARLIEST))):
        bad.setdefault(n, f"{name}: it is before 0001-01-02")
    for n in find_true(pc.greater(micros, to_micros(datetime.now(UTC) + most))):
        bad.setdefault(
            n, f"{name}: it is more than {'ten' if most == validate.LONGEST_DELAY else 'twenty'} years ahead"
        )
    found: list[bytes | None] = column.cast(pa.string()).cast(pa.binary()).to_pylist()
    return found


def check_ends(plan: ColumnPlan, batch: pa.RecordBatch, bad: dict[int, str]) -> None:
    """Marks rows as bad that expire before they are due."""
    if {"due", "expires"} <= plan.columns:
        for n in find_true(pc.less_equal(batch.column("expires"), batch.column("due"))):
            bad.setdefault(n, "expires: it is not after the due")


def read_metas(plan: ColumnPlan, batch: pa.RecordBatch, bad: dict[int, str]) -> list[bytes | None] | None:
    """Returns the headers of tasks as JSON, and marks those as bad that are no JSON object, or too large."""
    if "meta" not in plan.columns:
        return None
    column = batch.column("meta")
    odd: dict[int, str] = {}
    texts = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    found = read_bytes(column, "meta", odd) if texts else encode_column(column, odd)
    nulls = {*find_nulls(column)}
    found = [None if n in nulls else one for n, one in enumerate(found)]
    for n, one in enumerate(found):
        said = odd.get(n) or (None if one is None else find_bad_meta(one))
        if said is not None:
            bad.setdefault(n, said.replace("payload:", "meta:"))
    return found


def find_bad_meta(raw: bytes) -> str | None:
    if len(raw) > validate.MAX_META:
        return f"meta: {len(raw)} bytes are more than {validate.MAX_META}"
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return f"meta: it is not JSON: {error}"
    if type(found) is not dict:
        return "meta: it is not a JSON object"
    return "meta: there is a NUL in it, which PostgreSQL cannot store" if b"\\u0000" in raw else None


def to_micros(moment: datetime) -> int:
    apart = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (apart.days * 86400 + apart.seconds) * 1_000_000 + apart.microseconds


def read_priorities(plan: ColumnPlan, batch: pa.RecordBatch, bad: dict[int, str]) -> list[int] | None:
    if "priority" not in plan.columns:
        return None
    column = pc.fill_null(batch.column("priority").cast(pa.int64()), 5)
    found: list[int] = column.to_pylist()
    most = validate.MAX_PRIORITY
    for n in find_true(pc.or_(pc.less(column, -most), pc.greater(column, most))):
        bad.setdefault(n, f"priority: {found[n]} is not a whole number from {-most} to {most}")
    return found


def find_true(mask: pa.Array) -> list[int]:
    return [] if not pc.any(mask).as_py() else pc.indices_nonzero(mask.fill_null(False)).to_pylist()


def find_nulls(column: pa.Array) -> list[int]:
    return find_true(column.is_null()) if column.null_count else []


# --- payloads ---------------------------------------------------------------------------------------------------------

STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
BREAKS = bytes.maketrans(b"\t\r\n", b"   ")


def check_payloads(payloads: list[bytes | None], largest: int, judge: Judge, bad: dict[int, str]) -> None:
    """Checks size and depth here. PostgreSQL decides whether a payload is JSON that it can store; it is asked only
    about payloads that look suspicious here. Then line breaks between tokens are replaced, so that each task is one
    line."""
    if not bad and are_all_plain(payloads, largest):
        return
    odd: list[int] = []
    for n, raw in enumerate(payloads):
        if n in bad or raw is None:
            continue
        try:
            plain = type(orjson.loads(raw)) is dict and b"\\u0000" not in raw
        except orjson.JSONDecodeError:
            plain = False
        if len(raw) > 2 * validate.MAX_DEPTH:
            said = too_large(raw, largest) or too_deep(raw)
            if said:
                bad[n] = said
                continue
        elif len(raw) > largest:
            bad[n] = str(too_large(raw, largest))
            continue
        if not plain:
            odd.append(n)
    asked = [n for n in odd if is_sendable(n, payloads[n], bad)]
    if asked:
        said_of = judge([payloads[n] or b"" for n in asked])
        bad.update({asked[at]: said for at, said in said_of.items()})
    for n, raw in enumerate(payloads):
        if raw is not None and n not in bad and (b"\n" in raw or b"\t" in raw or b"\r" in raw):
            payloads[n] = raw.translate(BREAKS)


def are_all_plain(payloads: Sequence[bytes | None], largest: int) -> bool:
    """Checks all payloads at once, at half the cost. Two halves of an object may pass here, but PostgreSQL refuses
    them, and then they are checked one by one."""
    if None in payloads:
        return False
    texts = cast("Sequence[bytes]", payloads)
    joined = b",".join(texts)
    if max(map(len, texts), default=0) > min(2 * validate.MAX_DEPTH, largest):
        return False
    if b"\\u0000" in joined or b"\n" in joined or b"\t" in joined or b"\r" in joined:
        return False
    try:
        found = orjson.loads(b"[" + joined + b"]")
    except orjson.JSONDecodeError:
        return False
    return len(found) == len(texts) and {*map(type, found)} <= {dict}


def is_sendable(n: int, raw: bytes | None, bad: dict[int, str]) -> bool:
    """Returns whether PostgreSQL can be asked about a payload: not if it contains a NUL."""
    if raw is None or b"\x00" in raw:
        bad[n] = "payload: there is a NUL in it, which PostgreSQL cannot store"
        return False
    return True


def too_large(raw: bytes, largest: int) -> str | None:
    return f"payload: {len(raw)} bytes are more than {largest}" if len(raw) > largest else None


def too_deep(raw: bytes) -> str | None:
    if raw.count(b"[") + raw.count(b"{") <= validate.MAX_DEPTH:
        return None
    depth = 0
    for byte in STRING.sub(b"", raw):
        depth += (byte in b"[{") - (byte in b"]}")
        if depth > validate.MAX_DEPTH:
            return f"payload: it is nested deeper than {validate.MAX_DEPTH}"
    return None


# --- structs and maps as JSON -----------------------------------------------------------------------------------------

FORM = orjson.OPT_UTC_Z


def encode_column(column: pa.Array, bad: dict[int, str]) -> list[bytes | None]:
    column = column.cast(to_utc(column.type))
    try:
        values = column.to_pylist(maps_as_pydicts="strict")
    except (ValueError, OverflowError, UnicodeDecodeError, KeyError):
        values = [read_value(column, n, bad) for n in range(len(column))]
    return [None if value is None else encode(n, value, bad) for n, value in enumerate(values)]


def read_value(column: pa.Array, n: int, bad: dict[int, str]) -> Any:
    """Reads one value. A timestamp that Python cannot represent, or bytes that are not text, affect only their row."""
    try:
        return column[n].as_py(maps_as_pydicts="strict")
    except (ValueError, OverflowError, UnicodeDecodeError, KeyError) as error:
        bad.setdefault(n, f"payload: {str(error)[:200]}")
        return {}


def encode(n: int, value: Any, bad: dict[int, str]) -> bytes:
    try:
        raw = orjson.dumps(value, default=encode_value, option=FORM)
        if b"null" in raw:
            refuse_odd_numbers(value)  # orjson writes null for them
    except (PayloadError, TypeError, ValueError, RecursionError) as error:
        bad.setdefault(n, error.message if isinstance(error, PayloadError) else f"payload: {error}")
        return json.dumps(value, default=str).encode()
    return raw


def encode_value(value: object) -> object:
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


def to_utc(kind: pa.DataType) -> pa.DataType:
    """Returns the same type with every timestamp in UTC, whatever the session's time zone is."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, to_utc(f.type), f.nullable) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, to_utc(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(to_utc(kind.value_type))
    return kind


# --- kept and rejected rows -------------------------------------------------------------------------------------------


def compute_checksum(payloads: list[bytes | None], *others: Sequence[object] | None) -> int:
    """Returns the sum over all rows: it does not depend on their order, and duplicates count twice."""
    crc = zlib.crc32
    more = [column for column in others if column is not None]
    if not more:
        return sum([crc(one) if one is not None else 1 for one in payloads])
    return sum(crc(payload or b"", crc(repr(rest).encode())) for payload, *rest in zip(payloads, *more, strict=True))


def drop_defaults(columns: list[Any]) -> Columns:
    """Leaves out columns that contain only defaults."""
    payloads, subjects, kinds, dues, priorities, *others = columns
    return Columns(
        payloads,
        None if subjects is None or {*subjects} == {None} else subjects,
        None if kinds is None or {*kinds} == {b"default"} else kinds,
        None if dues is None or {*dues} == {None} else dues,
        None if priorities is None or {*priorities} == {5} else priorities,
        *(None if one is None or one.count(None) == len(one) else one for one in others),
    )


def split_by_subject(columns: Columns) -> tuple[Columns | None, Columns | None]:
    """Separates the rows without a subject from those with one."""
    if not columns.payloads:
        return None, None
    if columns.subjects is None:
        return columns, None
    if None not in columns.subjects:
        return None, columns
    named = [one is not None for one in columns.subjects]
    return select_rows(columns, [not one for one in named]), select_rows(columns, named)


def select_rows(columns: Columns, mask: list[bool]) -> Columns:
    return drop_defaults([column and [one for one, yes in zip(column, mask, strict=True) if yes] for column in columns])


def make_reject(reason: str, payload: bytes | None, *others: object) -> Reject:
    return Reject(reason, to_text(payload), *(None if one is None else to_text(one) for one in others))


def to_text(value: object) -> str | None:
    """Returns a value as text, as far as it is text."""
    if value is None:
        return None
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
