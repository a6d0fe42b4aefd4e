"""What a table's columns and statuses probably mean."""

from __future__ import annotations

import pytest

from penstock.backlog.guess import Seen, columns, statuses

ZONED = "timestamp with time zone"


def test_the_first_reader() -> None:
    seen = [Seen("id", "bigint"), Seen("status", "text"), Seen("date_inserted", ZONED)]
    assert columns(seen, ["id"]) == {"key": ["id"], "status": "status", "inserted": "date_inserted"}
    more = [*seen, Seen("failures", "integer"), Seen("last_failure", ZONED)]
    assert columns(more, ["id"])["failures"] == "failures"
    assert columns(more, ["id"])["last_failure"] == "last_failure"


def test_case_types_and_the_only_one() -> None:
    seen = [Seen("ID", "uuid"), Seen("State", "enum"), Seen("Created At", ZONED), Seen("status", ZONED)]
    assert columns(seen, []) == {"status": "State", "inserted": "Created At"}
    seen = [Seen("x", "enum"), Seen("born", "date"), Seen("failures", "integer")]
    assert columns(seen, ["x"]) == {"key": ["x"], "status": "x", "inserted": "born"}, "half a pair is none"
    assert columns([Seen("a", ZONED), Seen("b", ZONED)], []) == {}


@pytest.mark.parametrize(
    ("kind", "values", "wanted"),
    [
        ("text", {"NEW"}, {"ready": ["NEW"], "retry": ["ERROR"], "done": "SUCCESS", "failed": "ERROR", "dead": "DEAD"}),
        (
            "text",
            {"pending", "failed", "done"},
            {"ready": ["pending"], "retry": ["failed"], "done": "done", "failed": "failed", "dead": "dead"},
        ),
        ("enum", {"NEW", "DONE"}, {"ready": ["NEW"], "done": "DONE"}),
        ("integer", {"0", "1"}, {}),
        ("text", set(), {}),
    ],
)
def test_statuses(kind: str, values: set[str], wanted: dict[str, object]) -> None:
    assert statuses(kind, values) == wanted
