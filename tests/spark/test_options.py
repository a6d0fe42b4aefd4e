"""Options of `format("penstock")` are refused by name before a connection is made (B98 to B103). No Java, no server."""

from __future__ import annotations

import json

import pytest

from penstock import ValidationError
from penstock.model import Horizon
from penstock.spark import options

NOWHERE = "postgresql://user:canary@127.0.0.1:1/nothing"


def refused(use: object, **given: str) -> ValidationError:
    with pytest.raises(ValidationError) as found:
        use(given)  # type: ignore[operator]
    assert "canary" not in f"{found.value} {found.value.hint}"
    return found.value


def test_a_write_knows_its_options() -> None:
    given = {"URL": NOWHERE, "queue": "work", "onconflict": "update", "packColumns": "TRUE", "txnAppId": "a"}
    asked = options.parse_write_options(given | {"txnVersion": "7", "rejectTable": "own.rejects", "kind": "mail"})
    assert (asked.queue, asked.on_conflict, asked.pack_columns, asked.kind) == ("work", "update", True, "mail")
    assert (asked.txn_app_id, asked.txn_version, asked.reject_table) == ("a", 7, "own.rejects")
    assert asked.address.dsn == NOWHERE
    assert "canary" not in repr(asked)
    assert options.parse_write_options({"queue": "work", "service": "prod"}).address.service == "prod"


@pytest.mark.parametrize(
    "use", [options.parse_write_options, options.parse_stream_write_options, options.parse_stream_options]
)
def test_a_missing_queue_is_named(use: object) -> None:
    assert refused(use, dsn=NOWHERE).field == "queue"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("queu", "queue"),
        ("onConflit", "onConflict"),
        ("txnappid2", "txnAppId"),
        ("reject_table", "rejectTable"),
        ("packcolumn", "packColumns"),
    ],
)
def test_an_unknown_option_is_refused_by_its_nearest_name(name: str, near: str) -> None:
    error = refused(options.parse_write_options, **{"queue": "work", name: "x"})
    assert error.message.startswith(f"{name}: ")
    assert error.hint == f"Did you mean {near}?"


@pytest.mark.parametrize("name", ["dbtable", "query", "socketFactory", "loggerFile", "preferQueryMode"])
def test_options_of_other_connectors_are_refused(name: str) -> None:
    assert refused(options.parse_write_options, **{"queue": "work", name: "select 1; drop table x"}).field == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("queue", "Work"),
        ("queue", "work; drop"),
        ("onConflict", "replace"),
        ("packColumns", "yes"),
        ("rejectTable", "own.rejects; drop table x"),
        ("rejectTable", "(select 1) as x"),
        ("rejectTable", 'a"b'),
        ("rejectTable", "a.b.c"),
        ("rejectTable", ""),
        ("rejectTable", "x" * 64),
        ("txnVersion", "-1"),
        ("txnVersion", "x"),
        ("txnVersion", str(2**63)),
        ("kind", ""),
        ("kind", "x" * 129),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: str) -> None:
    given = {"queue": "work", "txnAppId": "a", "txnVersion": "1", name: value}
    error = refused(options.parse_write_options, **given)
    assert error.message.lower().replace("_", "").startswith(name.lower())


@pytest.mark.parametrize("value", ["0", "-1", "x", "1000000", "1.5", ""])
def test_partitions_are_a_sensible_number(value: str) -> None:
    for use in (options.parse_stream_options, options.parse_history_options):
        assert refused(use, queue="work", numPartitions=value).field == "numPartitions"


def test_connections_are_a_sensible_number_and_cap_what_is_read() -> None:
    assert options.parse_write_options({"queue": "work", "maxConnections": "3"}).max_connections == 3
    assert options.parse_history_options({"numPartitions": "9", "maxConnections": "3"}).partitions == 3
    assert options.parse_history_options({"maxConnections": "30"}).partitions == 4
    assert options.parse_stream_options({"queue": "work", "maxConnections": "1"}).partitions == 1
    for use in (options.parse_write_options, options.parse_stream_options, options.parse_history_options):
        assert refused(use, queue="work", maxConnections="0").field == "maxConnections"


def test_a_pace_is_a_word() -> None:
    assert options.parse_history_options({"pace": "full"}).pace == "full"
    assert refused(options.parse_history_options, pace="slow").field == "pace"


def test_bounds_are_in_order() -> None:
    assert (
        refused(options.parse_history_options, since="2030-01-02T00:00:00Z", until="2030-01-01T00:00:00Z").field
        == "since"
    )


def test_a_window_is_two_horizons() -> None:
    start, end = Horizon("1", 2, "1-a", 3, 0), Horizon("1", 2, "2-b", 9, 0)

    def told(*ends: Horizon) -> str:
        return json.dumps([at._asdict() for at in ends])

    assert options.parse_history_options({"window": told(start, end)}).window == (start, end)
    for text in ("", "[]", "{}", "null", "[1, 2]", told(start), told(end, start), told(start, end, end)):
        assert refused(options.parse_history_options, window=text).field == "window"
    assert refused(options.parse_history_stream_options, window=told(start, end)).field == "window"


def test_options_that_exclude_each_other() -> None:
    assert refused(options.parse_write_options, queue="work", txnAppId="a").field == "txnVersion"
    assert refused(options.parse_write_options, queue="work", txnVersion="1").field == "txnAppId"
    assert refused(options.parse_stream_write_options, queue="work", txnAppId="a", txnVersion="1").field == "txnVersion"
    assert refused(options.parse_write_options, queue="work", dsn=NOWHERE, service="x").field == "service"
    for theirs in ("jdbc:postgresql://db/app?socketFactory=x", "JDBC:postgresql://db/app?preferQueryMode=simple"):
        assert refused(options.parse_write_options, queue="work", url=theirs).field == "url"
    for secret in ("host=db password=secret", "postgresql://ann:secret@db/app"):
        error = refused(options.parse_write_options, queue="work", dsn=secret)
        assert error.field == "dsn"
        assert "secret" not in f"{error}{error.hint}"
        assert options.parse_write_options({"queue": "work", "url": secret}).address.dsn == secret
