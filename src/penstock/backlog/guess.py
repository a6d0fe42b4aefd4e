"""Guesses what the columns and statuses of a table mean. Pure; the user corrects it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

STATUS = ("status", "state", "processing_status", "record_status", "stage")
INSERTED = (
    "date_inserted", "inserted_at", "inserted", "insert_date", "created_at", "created", "date_created", "created_on",
    "creation_date", "enqueued_at", "queued_at", "received_at", "timestamp", "ts", "date",
)  # fmt: skip
FAILURES = ("failures", "failure_count", "fail_count", "error_count", "errors", "attempts", "retries", "tries")
LAST_FAILURE = ("last_failure", "last_failure_at", "last_failed_at", "failed_at", "last_error_at", "last_attempt_at")
READY = (
    "new",
    "ready",
    "pending",
    "queued",
    "open",
    "todo",
    "waiting",
    "created",
    "unprocessed",
    "received",
    "inserted",
)
RETRY = ("error", "failed", "failure", "retry", "errored")
DONE = ("success", "done", "processed", "completed", "complete", "finished", "ok", "succeeded", "sent", "closed")
DEAD = ("dead", "abandoned", "given_up", "gave_up", "giveup", "rejected", "permanent_error")
WHOLE = ("smallint", "integer", "bigint", "numeric")
MOMENTS = ("timestamp with time zone", "timestamp without time zone", "date")
TEXTS = ("text", "character varying", "bpchar", "character")


class SeenColumn(NamedTuple):
    """What a guess needs to know of a column."""

    name: str
    kind: str


def guess_columns(seen: Sequence[SeenColumn], primary: Sequence[str]) -> dict[str, Any]:
    """Guesses which column is which, by names and types."""
    found: dict[str, Any] = {
        "key": list(primary) or None,
        "status": find_name(seen, STATUS, but=(*MOMENTS,)) or find_only(seen, ("enum",)),
        "inserted": find_name(seen, INSERTED, of=MOMENTS) or find_only(seen, MOMENTS) or find_name(seen, INSERTED),
    }
    pair = find_name(seen, FAILURES, of=WHOLE), find_name(seen, LAST_FAILURE, of=MOMENTS[:2])
    if all(pair):
        found["failures"], found["last_failure"] = pair
    return {name: value for name, value in found.items() if value is not None}


def find_name(
    seen: Sequence[SeenColumn], names: Sequence[str], *, of: Collection[str] = (), but: Collection[str] = ()
) -> str | None:
    """Returns the first of these names that exists."""
    fits = {one.name.lower(): one.name for one in seen if (not of or one.kind in of) and one.kind not in but}
    flat = {name.replace(" ", "_"): original for name, original in fits.items()}
    return next((flat[name] for name in names if name in flat), None)


def find_only(seen: Sequence[SeenColumn], kinds: Collection[str]) -> str | None:
    fits = [one.name for one in seen if one.kind in kinds]
    return fits[0] if len(fits) == 1 else None


def guess_statuses(kind: str, values: Collection[str], *, nulls: bool = False) -> dict[str, Any]:
    """Guesses what statuses mean, by their words. `values` are those in use and the labels of an enum. `nulls`: some
    records have no status; if no word means ready, NULL does."""
    by_word = {value.strip().lower().replace(" ", "_").replace("-", "_"): value for value in sorted(values)}
    ready = [by_word[word] for word in READY if word in by_word]
    retry = [by_word[word] for word in RETRY if word in by_word]
    found: dict[str, Any] = {"ready": ready[:1] or ([None] if nulls else []), "retry": retry[:1]}
    found["done"] = find_first(by_word, DONE)
    found["failed"] = retry[0] if retry else None
    found["dead"] = find_first(by_word, DEAD)
    if kind in TEXTS and found["ready"]:
        alike = next(iter([*ready, *sorted(values)]), "NEW").isupper()
        made = {"done": "SUCCESS", "failed": "ERROR", "dead": "DEAD"}
        for name, word in made.items():
            found[name] = found[name] or (word if alike else word.lower())
        found["retry"] = found["retry"] or [found["failed"]]
    return {name: value for name, value in found.items() if value}


def find_first(by_word: Mapping[str, str], words: Sequence[str]) -> str | None:
    return next((by_word[word] for word in words if word in by_word), None)
