"""Guesses of what the columns and statuses of a table mean."""

from __future__ import annotations

import pytest

from penstock.backlog.guess import SeenColumn, guess_columns, guess_statuses

ZONED = "timestamp with time zone"


def test_the_first_reader() -> None:
    seen = [SeenColumn("id", "bigint"), SeenColumn("status", "text"), SeenColumn("date_inserted", ZONED)]
    assert guess_columns(seen, ["id"]) == {"key": ["id"], "status": "status", "inserted": "date_inserted"}
    more = [*seen, SeenColumn("failures", "integer"), SeenColumn("last_failure", ZONED)]
    assert guess_columns(more, ["id"])["failures"] == "failures"
    assert guess_columns(more, ["id"])["last_failure"] == "last_failure"


def test_case_types_and_the_only_one() -> None:
    seen = [
        SeenColumn("ID", "uuid"),
        SeenColumn("State", "enum"),
        SeenColumn("Created At", ZONED),
        SeenColumn("status", ZONED),
    ]
    assert guess_columns(seen, []) == {"status": "State", "inserted": "Created At"}
    seen = [SeenColumn("x", "enum"), SeenColumn("born", "date"), SeenColumn("failures", "integer")]
    assert guess_columns(seen, ["x"]) == {"key": ["x"], "status": "x", "inserted": "born"}, (
        "one column of a pair is not used alone"
    )
    assert guess_columns([SeenColumn("a", ZONED), SeenColumn("b", ZONED)], []) == {}
    assert guess_columns([SeenColumn("created_at", "text")], []) == {"inserted": "created_at"}, (
        "it is guessed, so that the error says why it cannot be used"
    )


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
    assert guess_statuses(kind, values) == wanted


def test_null_means_ready_if_no_status_does() -> None:
    made = {"ready": [None], "retry": ["ERROR"], "done": "DONE", "failed": "ERROR", "dead": "DEAD"}
    assert guess_statuses("text", {"DONE"}, nulls=True) == made
    assert guess_statuses("text", {"done"}, nulls=True)["dead"] == "dead"
    assert guess_statuses("text", {"NEW"}, nulls=True)["ready"] == ["NEW"]
    assert guess_statuses("boolean", set(), nulls=True) == {"ready": [None]}
