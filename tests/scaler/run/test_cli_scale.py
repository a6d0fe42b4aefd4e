"""`penstock scale` with given numbers: one decision and its sentence, without a database."""

from __future__ import annotations

import re

import pytest

from penstock.cli import tree
from penstock.cli.commands.scale import NOW, make_samples, parse_planned, take_first_sentence
from penstock.cli.terminal.options import parse_seconds
from penstock.errors import PenstockError, ValidationError
from penstock.scaler.policy.policies import POLICIES
from penstock.scaler.policy.signals import Sample, rate_between
from shell import each, is_one_block, penstock

PAGE = "--pending 500 --oldest-age 55 --sla 60 --rate 8 --workers 5 --min-workers 1 --max-workers 20"


def decide(arguments: str) -> tuple[str, ...]:
    return ("scale", "decide", *arguments.split())


def test_the_example_of_the_article() -> None:
    value, shown = each(
        decide(f"--policy backlog-drain {PAGE} --json"),
        decide(f"--policy backlog-drain {PAGE}"),
    )
    found = value.json
    assert (found["workers"], found["urgency"], found["bound_by"]) == (17, "CRITICAL", "backlog-drain")
    assert found["reason"].startswith("17: 500 pending / 5 s left / 8 per s = 13, × 1.23 at 92 % of the SLA")
    assert (found["time_to_breach"], found["predicted_breach"], found["policy"]) == (5.0, None, "backlog-drain")
    assert (found["wanted"], found["capacity_short"]) == (17, 0)
    assert found["rules"] == {"littles-law": 2, "backlog-drain": 17, "running": 5}
    assert list(found)[:4] == ["workers", "urgency", "reason", "bound_by"]
    lines = shown.out.splitlines()
    assert lines[0] == "17 workers, CRITICAL"
    assert lines[1].startswith("500 pending / 5 s left")
    assert lines[2] == "decided by backlog-drain; the oldest task is late in 5s"
    assert [line.split() for line in lines[4:]] == [
        ["rule", "workers"],
        ["backlog-drain", "17"],
        ["running", "5"],
        ["littles-law", "2"],
    ]


def test_arrivals_and_planned_tasks_are_used() -> None:
    """Arrivals raise Little's law, and planned tasks the deadline policy. A low maximum leaves some workers missing."""
    quiet = "--pending 0 --sla 1m --rate 0.5 --workers 1 --max-workers 200"
    arriving, planned, short, late = each(
        decide(f"--policy littles-law {quiet} --arrivals 30 --json"),
        decide(f"--policy deadline {quiet} --planned 3000@10s --planned 600@20 --start-latency 5s --json"),
        decide(f"--policy backlog-drain {PAGE} --max-workers 10 --json"),
        decide(f"--policy backlog-drain {PAGE} --oldest-age 90s"),
    )
    assert (arriving.json["workers"], arriving.json["time_to_breach"]) == (60, None)
    assert planned.json["workers"] > 50
    assert (short.json["workers"], short.json["bound_by"], short.json["capacity_short"]) == (10, "max", 7)
    assert late.out.startswith("20 workers, BREACH\n")
    assert "the oldest task is 30s late" in late.out


def test_without_a_rate_the_service_time_is_unknown() -> None:
    ran = penstock(*decide("--policy backlog-drain --pending 9 --sla 60 --max-workers 20"))
    assert "the service time is not known yet" in ran.out


def test_every_policy_has_an_answer_and_a_sentence_about_it() -> None:
    listed, shown, *decided = each(
        ("scale", "policies", "--json"),
        ("scale", "policies"),
        *(decide(f"--policy {name} {PAGE} --arrivals 30 --json") for name in ("deadline", "cboxdk", "flink", "static")),
    )
    assert [one["name"] for one in listed.json] == list(POLICIES)
    assert all(one["about"].endswith(".") and "\n" not in one["about"] for one in listed.json)
    assert [line.split()[0] for line in shown.out.splitlines()] == ["policy", *POLICIES]
    for ran in decided:
        assert 1 <= ran.json["workers"] <= 20
        assert ran.json["reason"].startswith(f"{ran.json['workers']}: ")


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        ("--sla 0", 3, "sla: 0.0"),
        ("--sla -1", 3, "sla: -1.0"),
        ("--sla nan", 2, "sla: nan"),
        ("--sla soon", 2, "sla: 'soon'"),
        ("--min-workers 21", 3, "min_workers: 21 is more than max_workers, 20"),
        ("--rate 0", 2, "rate: 0.0"),
        ("--rate -8", 2, "rate: -8.0"),
        ("--rate nan", 2, "rate: nan"),
        ("--arrivals inf", 2, "arrivals: inf"),
        ("--pending -1", 3, "pending: -1"),
        ("--workers -1", 2, "workers: -1"),
        ("--slots 0", 3, "slots: 0"),
        ("--planned 300@", 2, "planned: '300@'"),
        ("--planned 300@-5", 3, "planned: -5.0"),
        ("--policy backlogdrain", 3, "policy: 'backlogdrain'"),
    ],
)
def test_what_is_refused(arguments: str, code: int, field: str) -> None:
    """The error has field, value and limit. A later option on the command line wins."""
    with pytest.raises(PenstockError, match=re.escape(field)) as refused:
        tree()([*decide(f"{PAGE} {arguments}")], standalone_mode=False)
    assert (refused.value.exit_code, refused.value.message.startswith(field)) == (code, True)


def test_refused_in_one_block_and_with_the_nearest_name() -> None:
    zero, words, missing, near = each(
        decide(f"{PAGE} --sla 0"),
        decide(f"{PAGE} --pending many"),
        decide("--sla 60"),
        decide(f"{PAGE} --policy dedline --json"),
    )
    assert (zero.code, zero.err) == (3, "error PS3001: sla: 0.0 is not a number of seconds at least 0.001\n")
    assert (words.code, "Invalid value for '--pending'" in words.err) == (2, True)
    assert (missing.code, "'--pending'" in missing.err) == (2, True)
    assert '"hint": "Did you mean deadline? ' in near.err
    assert all(is_one_block(ran.err) for ran in (zero, words, missing))
    assert not any(ran.out for ran in (zero, words, missing, near))


def test_help() -> None:
    top, helped = each(("scale", "--help"), ("scale", "decide", "--help"))
    assert "decide" in top.out
    assert "policies" in top.out
    assert "Example: penstock scale decide" in helped.out


# -- Functions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"), [("55", 55), ("55s", 55), ("1m30s", 90), ("250ms", 0.25), ("0", 0), ("-1", -1), ("1e2", 100)]
)
def test_durations_are_words_or_seconds(text: str, expected: float) -> None:
    assert parse_seconds(text, "sla") == expected


@pytest.mark.parametrize("text", ["", "nan", "inf", "1e400", "5 parsecs"])
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(ValidationError, match="sla: "):
        parse_seconds(text, "sla")


def test_arrivals_are_seen_in_the_last_minute() -> None:
    latest = Sample(NOW, pending=7, active=3, oldest_age=4.0, workers=5)
    assert make_samples(latest, None, 2.0) == (latest,)
    seen = make_samples(latest, 2.5, 2.0)
    assert seen[-1].at == NOW
    assert rate_between(seen, "arrived", 60) == rate_between(seen, "finished", 60) == 2.5
    assert rate_between(seen, "busy_seconds", 60) == 5.0
    assert {(one.pending, one.active, one.oldest_age, one.workers) for one in seen} == {(7, 3, 4.0, 5)}


def test_planned_tasks() -> None:
    assert parse_planned("300@10m") == (600.0, 300)
    assert parse_planned("1@0") == (0.0, 1)
    with pytest.raises(ValidationError, match="tasks@time"):
        parse_planned("9999999999@1m")


def test_the_first_sentence_goes_over_lines() -> None:
    assert take_first_sentence("1.2 from 80 %\n    on. More.") == "1.2 from 80 % on."
    assert take_first_sentence("No dot") == "No dot"
