"""What the columns and statuses of a table probably mean. Pure; people correct it."""

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


class Seen(NamedTuple):
    """A column, as far as a guess needs it."""

    name: str
    kind: str


def columns(seen: Sequence[Seen], primary: Sequence[str]) -> dict[str, Any]:
    """Which column is which, as far as names and types tell."""
    found: dict[str, Any] = {
        "key": list(primary) or None,
        "status": named(seen, STATUS, but=(*MOMENTS,)) or only(seen, ("enum",)),
        "inserted": named(seen, INSERTED, of=MOMENTS) or only(seen, MOMENTS),
    }
    pair = named(seen, FAILURES, of=WHOLE), named(seen, LAST_FAILURE, of=MOMENTS[:2])
    if all(pair):
        found["failures"], found["last_failure"] = pair
    return {name: value for name, value in found.items() if value is not None}


def named(
    seen: Sequence[Seen], names: Sequence[str], *, of: Collection[str] = (), but: Collection[str] = ()
) -> str | None:
    """The first of these names that there is."""
    fits = {one.name.lower(): one.name for one in seen if (not of or one.kind in of) and one.kind not in but}
    flat = {name.replace(" ", "_"): original for name, original in fits.items()}
    return next((flat[name] for name in names if name in flat), None)


def only(seen: Sequence[Seen], kinds: Collection[str]) -> str | None:
    fits = [one.name for one in seen if one.kind in kinds]
    return fits[0] if len(fits) == 1 else None


def statuses(kind: str, values: Collection[str]) -> dict[str, Any]:
    """What the statuses mean, by their words; `values` are those in use and those an enum has."""
    by_word = {value.strip().lower().replace(" ", "_").replace("-", "_"): value for value in sorted(values)}
    ready = [by_word[word] for word in READY if word in by_word]
    retry = [by_word[word] for word in RETRY if word in by_word]
    found: dict[str, Any] = {"ready": ready[:1], "retry": retry[:1]}
    found["done"] = first(by_word, DONE)
    found["failed"] = retry[0] if retry else None
    found["dead"] = first(by_word, DEAD)
    if kind in TEXTS and ready:
        alike = ready[0].isupper()
        made = {"done": "SUCCESS", "failed": "ERROR", "dead": "DEAD"}
        for name, word in made.items():
            found[name] = found[name] or (word if alike else word.lower())
        found["retry"] = found["retry"] or [found["failed"]]
    return {name: value for name, value in found.items() if value}


def first(by_word: Mapping[str, str], words: Sequence[str]) -> str | None:
    return next((by_word[word] for word in words if word in by_word), None)
