"""Pushes: the statements, their parameters and their answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

from penstock import validate
from penstock.client.binary import TextArray
from penstock.client.spool import Chunk
from penstock.errors import Conflict, ValidationError, shown
from penstock.model import Duration, NewTask, Pushed

LIMIT = "select q.id, penstock.largest_payload(q) from penstock.the_queue(%s) as q"
PUSH = """
    select id, result, state
    from penstock.push_many(%s, array[%s::text], array[%s::text], array[%s::text], array[%s::timestamptz],
                            array[%s::smallint], %s)
"""
PUSH_MORE = """
    select id, result, state
    from penstock.push_many(%s, array[%s::text], array[%s::text], array[%s::text], array[%s::timestamptz],
                            array[%s::smallint], %s, array[%s::text], array[%s::text], array[%s::timestamptz],
                            %s, %s, %s)
"""
PUSH_MANY = """
    select result, pg_catalog.count(*),
           pg_catalog.count(*) filter (where result = 'skipped' and state = 'dead')
    from penstock.push_many(%s, %s, %s, %s, (%s::text[])::timestamptz[], %s::smallint[], %s,
                            %s, %s, (%s::text[])::timestamptz[], %s, %s, %s)
    group by result
"""
RESERVE = "select pg_catalog.nextval('penstock.task_id_seq') from pg_catalog.generate_series(1, %s)"
ENTER_PART = "select penstock.enter_part(%s, %s, %s, %s, %s::text, %s::jsonb)::text"
NOTE_REPORT = "select penstock.note_report(%s, %s, %s::jsonb)"
# This statement runs in the caller's transaction, with any driver and any settings: every parameter is text, and arrays
# are array literals. A missing value is an empty text there, which no subject, due or kind can be: under array_nulls =
# off, NULL would be read as a word. Names resolve to PostgreSQL's own, whatever the caller's search_path contains.
PUSH_AS_TEXT = """
    select n, id, result, state
    from penstock.push_many(
        cast($1 as pg_catalog.text),
        cast(cast($2 as pg_catalog.text) as pg_catalog.text[]),
        pg_catalog.array_replace(cast(cast($3 as pg_catalog.text) as pg_catalog.text[]), '', null),
        cast(cast($4 as pg_catalog.text) as pg_catalog.text[]),
        cast(pg_catalog.array_replace(cast(cast($5 as pg_catalog.text) as pg_catalog.text[]), '', null)
             as pg_catalog.timestamptz[]),
        cast(cast($6 as pg_catalog.text) as pg_catalog.int2[]),
        cast($7 as pg_catalog.text),
        pg_catalog.array_replace(cast(cast($8 as pg_catalog.text) as pg_catalog.text[]), '', null),
        pg_catalog.array_replace(cast(cast($9 as pg_catalog.text) as pg_catalog.text[]), '', null),
        cast(pg_catalog.array_replace(cast(cast($10 as pg_catalog.text) as pg_catalog.text[]), '', null)
             as pg_catalog.timestamptz[]),
        cast(cast($11 as pg_catalog.text) as pg_catalog.interval),
        cast(cast($12 as pg_catalog.text) as pg_catalog.interval),
        cast(cast($13 as pg_catalog.text) as pg_catalog.interval))
    order by n
"""
LIMIT_AS_TEXT = "select q.id, penstock.largest_payload(q) from penstock.the_queue(cast($1 as pg_catalog.text)) as q"
ENTER_AS_TEXT = """
    select cast(penstock.enter_part(
        cast($1 as pg_catalog.text), cast(cast($2 as pg_catalog.text) as pg_catalog.uuid),
        cast(cast($3 as pg_catalog.text) as pg_catalog.int4), cast(cast($4 as pg_catalog.text) as pg_catalog.int8),
        cast($5 as pg_catalog.text), '{}') as pg_catalog.text)
"""
NOTE_AS_TEXT = """
    select cast(penstock.note_report(
        cast(cast($1 as pg_catalog.text) as pg_catalog.uuid), cast(cast($2 as pg_catalog.text) as pg_catalog.int4),
        cast(cast($3 as pg_catalog.text) as pg_catalog.jsonb)) as pg_catalog.text)
"""


def check_conflict(value: object) -> str:
    """Checks `on_conflict`."""
    if value not in ("skip", "update", "error"):
        raise ValidationError(f"on_conflict: {shown(value)} is not skip, update or error", field="on_conflict")
    return str(value)


class Rules(NamedTuple):
    """What a push does with a subject that exists, or that was pushed lately."""

    on_conflict: str = "skip"
    debounce: timedelta | None = None
    at_most: timedelta | None = None
    throttle: timedelta | None = None

    @property
    def paced(self) -> bool:
        """Whether the push depends on when its subjects were pushed before."""
        return self.debounce is not None or self.throttle is not None


def check_rules(
    on_conflict: object,
    debounce: Duration | None = None,
    at_most: Duration | None = None,
    throttle: Duration | None = None,
) -> Rules:
    """Checks what a push does with subjects that exist."""
    rules = Rules(
        check_conflict(on_conflict),
        None if debounce is None else validate.positive(debounce, "debounce"),
        None if at_most is None else validate.positive(at_most, "at_most"),
        None if throttle is None else validate.positive(throttle, "throttle"),
    )
    if rules.debounce is not None and rules.throttle is not None:
        raise ValidationError("throttle: there is a debounce too", hint="Give one of them.", field="throttle")
    if rules.at_most is not None and rules.debounce is None:
        raise ValidationError("at_most: it limits a debounce, and there is none", field="at_most")
    if rules.at_most is not None and rules.debounce is not None and rules.at_most < rules.debounce:
        said = f"at_most: {shown(at_most)} is less than the debounce, {shown(debounce)}"
        raise ValidationError(said, field="at_most")
    if rules.debounce is not None and rules.on_conflict != "update":
        hint = 'Say on_conflict="update".'
        raise ValidationError("debounce: it updates the task of the subject", hint=hint, field="debounce")
    if rules.throttle is not None and rules.on_conflict == "error":
        raise ValidationError("throttle: it skips tasks, so on_conflict cannot be error", field="throttle")
    return rules


def check_paced(rules: Rules, tasks: Iterable[NewTask]) -> None:
    """Checks the tasks of a push with a debounce or a throttle."""
    word = "debounce" if rules.debounce is not None else "throttle"
    for task in tasks if rules.paced else ():
        if task.subject is None:
            raise ValidationError(f"{word}: the task has no subject", field=word)
        if rules.debounce is not None and (task.due is not None or task.delay is not None):
            raise ValidationError("due: there is a debounce too", hint="Give one of them.", field="due")


def push_one(queue: str, raw: bytes, task: NewTask, rules: Rules) -> tuple[str, tuple[Any, ...]]:
    """Returns the statement and the parameters that push one checked task."""
    plain = (queue, raw.decode(), task.subject, task.kind, task.due, task.priority, rules.on_conflict)
    if task.key is None and task.meta is None and task.expires is None and not rules.paced:
        return PUSH, plain
    meta = None if task.meta is None else validate.meta(task.meta).decode()
    return PUSH_MORE, (*plain, task.key, meta, task.expires, *rules[1:])


def merge_parameters(queue: str, chunk: Chunk, rules: Rules) -> tuple[Any, ...]:
    """Returns the parameters of PUSH_MANY."""
    return (
        queue,
        TextArray(chunk.payloads),
        chunk.subjects and TextArray(chunk.subjects),
        chunk.kinds and TextArray(chunk.kinds),
        chunk.dues and TextArray(chunk.dues),
        chunk.priorities,
        rules.on_conflict,
        chunk.keys and TextArray(chunk.keys),
        chunk.metas and TextArray(chunk.metas),
        chunk.expires and TextArray(chunk.expires),
        *rules[1:],
    )


def text_columns(queue: str, chunk: Chunk, rules: Rules) -> list[str | None]:
    """Returns the parameters of PUSH_AS_TEXT."""
    return [
        queue,
        array_literal(chunk.payloads),
        array_literal(chunk.subjects),
        array_literal(chunk.kinds),
        array_literal(chunk.dues),
        None if chunk.priorities is None else "{" + ",".join(map(str, chunk.priorities)) + "}",
        rules.on_conflict,
        array_literal(chunk.keys),
        array_literal(chunk.metas),
        array_literal(chunk.expires),
        *(None if one is None else f"{one.total_seconds():f} seconds" for one in rules[1:]),
    ]


def array_literal(values: Sequence[bytes | None] | None) -> str | None:
    """Returns an array as PostgreSQL reads it; None becomes an empty text in it (see PUSH_AS_TEXT)."""
    if values is None:
        return None
    quoted = ('"' + escape_element((one or b"").decode()) + '"' for one in values)
    return "{" + ",".join(quoted) + "}"


def read_pushed(rows: Sequence[tuple[Any, ...]]) -> list[Pushed]:
    """Reads the answer of PUSH_AS_TEXT. Under client_encoding = SQL_ASCII psycopg returns texts as bytes."""
    return [Pushed(id_, *(one.decode() if isinstance(one, bytes) else one for one in words)) for _, id_, *words in rows]


def escape_element(text: str) -> str:
    """Escapes a text for an array literal."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def copy_text(queue_id: int, chunk: Chunk, ids: list[int] | None = None) -> tuple[str, bytes]:
    """Returns the columns and the rows of a chunk in COPY's text format, in the order of subjects. JSON contains no raw
    tabs or newlines."""
    head = b"%d\t" % queue_id
    columns: dict[str, list[bytes]] = {}
    if ids is not None:
        columns["id"] = [b"%d" % one for one in ids]
    if chunk.subjects is not None:
        columns["subject"] = [b"\\N" if one is None else escape_copy(one) for one in chunk.subjects]
    if chunk.kinds is not None:
        columns["kind"] = [escape_copy(one) for one in chunk.kinds]
    if chunk.priorities is not None:
        columns["priority"] = [b"%d" % one for one in chunk.priorities]
    if chunk.dues is not None:
        columns["due"] = [b"\\N" if one is None else one for one in chunk.dues]
    for name, values in (("key", chunk.keys), ("meta", chunk.metas), ("expires", chunk.expires)):
        if values is not None:
            columns[name] = [b"\\N" if one is None else escape_copy(one) for one in values]
    if not columns:
        joined = (b"\n" + head).join(chunk.payloads)
        return "queue_id, payload", head + joined.replace(b"\\", b"\\\\") + b"\n"
    columns["payload"] = [one.replace(b"\\", b"\\\\") for one in chunk.payloads]
    lines = [head + b"\t".join(row) for row in zip(*columns.values(), strict=True)]
    if chunk.subjects is not None:
        # Subjects are compared byte by byte, as PostgreSQL's collation "C" does.
        order = sorted(range(len(lines)), key=[one or b"" for one in chunk.subjects].__getitem__)
        lines = [lines[n] for n in order]
    return ", ".join(("queue_id", *columns)), b"\n".join(lines) + b"\n"


def escape_copy(value: bytes) -> bytes:
    """Escapes a text for COPY."""
    return value.replace(b"\\", b"\\\\").replace(b"\t", b"\\t").replace(b"\n", b"\\n").replace(b"\r", b"\\r")


def are_distinct(subjects: list[bytes | None] | None) -> bool:
    """Returns whether no subject is given twice."""
    named = [one for one in subjects or () if one is not None]
    return len({*named}) == len(named)


@contextmanager
def renumber_items(first: int) -> Iterator[None]:
    """Renumbers items in errors: SQL counts an item from the start of a statement, and the error counts it from the
    start of the push."""
    try:
        yield
    except (Conflict, ValidationError) as error:
        message = ITEM.sub(lambda at: f"item {int(at[1]) + first}:", error.message)
        raise type(error)(message, hint=error.hint) from error.__cause__


ITEM = re.compile(r"^item (\d+):")


def count_results(written: Sequence[Pushed]) -> dict[str, int]:
    """Counts the results of pushed tasks, in the same form as `merged`."""
    dead = sum(one.result == "skipped" and one.state == "dead" for one in written)
    return {**Counter(one.result for one in written)} | ({"skipped_dead": dead} if dead else {})


def read_counts(rows: Iterable[tuple[str, int, int]]) -> dict[str, int]:
    """Reads the answer of PUSH_MANY, by result; `skipped_dead` counts the skipped ones whose task is dead."""
    found = [*rows]
    dead = sum(dead for _, _, dead in found)
    return {str(word): int(count) for word, count, _ in found} | ({"skipped_dead": dead} if dead else {})
