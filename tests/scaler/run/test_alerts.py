"""When alerts about a promise are sent, and that sending them never holds up the scaler."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Penstock
from penstock.errors import ConfigError
from penstock.scaler.policy.decision import Decision
from penstock.scaler.run.alerts import LEVELS, Alert, Alerts, AlertState, AlertTerms, judge_promise
from penstock.scaler.run.channels import Command, Log, Outbox, Undelivered, Webhook
from shell import COMMAND, environment, is_one_block, penstock
from workers import MODULE, write_app

SLA = 60.0


def decision(age: float | None, predicted: float | None = None) -> Decision:
    left = None if age is None else SLA - age
    return Decision(3, "NORMAL", "3: said", "deadlines", {}, left, predicted, 3)


WELL, NEAR, LATE, FORESEEN = decision(None), decision(55.0), decision(61.0, 0.0), decision(20.0, 30.0)


def played(*said: tuple[float, Decision], terms: AlertTerms | None = None) -> list[tuple[float, str]]:
    """Returns the alerts that follow from decisions at given times."""
    alerts = Alerts(lambda _: True, terms or AlertTerms())
    found = [alerts.note("mail", one, now, sla=SLA) for now, one in said]
    return [(one.at, one.level) for one in found if one is not None]


def every(seconds: float, until: float, one: Decision, since: float = 0.0) -> list[tuple[float, Decision]]:
    return [(since + n * seconds, one) for n in range(int((until - since) / seconds))]


def test_near_is_sent_once_and_again_after_a_while() -> None:
    assert played(*every(1, 299, NEAR)) == [(0.0, "near")]
    assert played(*every(1, 601, NEAR)) == [(0.0, "near"), (300.0, "near"), (600.0, "near")]
    assert played(*every(1, 60, decision(53.9))) == []
    assert played(*every(1, 60, decision(31.0)), terms=AlertTerms(at=0.5)) == [(0.0, "near")]


def test_worse_passes_at_once_and_better_is_no_news() -> None:
    assert played((0, NEAR), (1, LATE), (2, NEAR), (3, LATE)) == [(0, "near"), (1, "breach")]
    assert played((0, LATE), *every(1, 200, NEAR, since=1)) == [(0, "breach")]


def test_recovered_after_calm_and_only_after_an_alert() -> None:
    calm = every(1, 200, WELL, since=10)
    assert played(*calm) == []
    assert played((0, NEAR), (9, NEAR), *calm) == [(0, "near"), (69.0, "recovered")]
    assert played((0, NEAR), (30, WELL), (50, NEAR), (80, WELL), (111, WELL)) == [(0, "near"), (111, "recovered")]


def test_a_queue_that_flaps_is_not_reported_each_time() -> None:
    flaps = [one for n in range(4) for one in ((n * 70.0, NEAR), (n * 70.0 + 5, WELL), (n * 70.0 + 66, WELL))]
    assert played(*flaps) == [(0.0, "near"), (66.0, "recovered")]
    assert played(*flaps, (280.0, LATE)) == [(0.0, "near"), (66.0, "recovered"), (280.0, "breach")]


def test_foreseen_must_be_sure_and_soon() -> None:
    assert played((0, FORESEEN), (5, FORESEEN), (9, WELL), (12, FORESEEN)) == []
    assert played(*every(1, 60, FORESEEN)) == [(10.0, "foreseen")]
    assert played(*every(1, 60, decision(20.0, 121.0))) == []
    assert played(*every(1, 12, FORESEEN), (12, NEAR)) == [(10.0, "foreseen"), (12, "near")]


def test_queues_are_apart_and_without_a_promise_there_is_no_alert() -> None:
    alerts = Alerts(lambda _: True)
    first, second = alerts.note("a", NEAR, 0.0, sla=SLA), alerts.note("b", NEAR, 1.0, sla=SLA)
    assert [one and (one.queue, one.level) for one in (first, second)] == [("a", "near"), ("b", "near")]
    assert alerts.note("c", LATE, 1.0, sla=None) is None


LOOKS = st.sampled_from([WELL, NEAR, LATE, FORESEEN, decision(30.0)])


@settings(max_examples=300)
@given(st.lists(st.tuples(st.floats(0.1, 120), LOOKS), max_size=60))
def test_whatever_happens(looks: list[tuple[float, Decision]]) -> None:
    """No level is sent twice within five minutes, recovered only after another alert, and a breach is always sent."""
    terms, state, now, told = AlertTerms(), AlertState(), 0.0, list[Alert]()
    for seconds, one in looks:
        now += seconds
        state, alert = judge_promise(state, "mail", one, now, sla=SLA, terms=terms)
        told += [alert] if alert else []
        if one is LATE:
            assert any(before.level == "breach" and now - before.at < terms.every + 1e-6 for before in told)
    for level in LEVELS[1:]:
        times = [one.at for one in told if one.level == level]
        assert all(b - a >= terms.every for a, b in pairwise(times))
    levels = [one.level for one in told]
    for before, level in pairwise(["recovered", *levels]):
        assert not before == level == "recovered"


@pytest.mark.parametrize("at", [0.0, 1.1, float("nan"), "much"])
def test_terms_that_are_not_valid(at: Any) -> None:
    with pytest.raises(ConfigError, match="alert_at"):
        AlertTerms(at=at)


# --- in the loop ------------------------------------------------------------------------------------------------------


def test_the_loop_reports_a_promise_that_breaks_and_is_kept_again(dsn: str, app: Penstock, tmp_path: Path) -> None:
    """A real scaler starts no worker: tasks wait, the webhook is told, and nothing else stops."""
    queue = app.create_queue("work", sla="1s", lease="10s")
    queue.push_many([{}] * 5)
    write_app(tmp_path, "@app.task(queue='work')\ndef handle(payload):\n    pass\n")
    with receiving() as (url, bodies):
        told = ("--advise", "--interval", "0.2s", "--alert-webhook", url, "--alert-at", "0.5", "--log-format", "json")
        with subprocess.Popen(
            [*COMMAND, "scale", f"{MODULE}:app", *told],
            cwd=tmp_path,
            env=environment(dsn),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                eventually(lambda: any(one["level"] == "breach" for one in bodies), 40.0)
            finally:
                process.terminate()
            _, err = process.communicate(timeout=40)
    assert process.returncode == 0, err
    assert bodies[-1]["queue"] == "work"
    assert bodies[-1]["usage"] >= 1
    assert bodies[-1]["text"].startswith("work breaks its promise")
    assert [one["level"] for one in bodies].count("breach") == 1, "one alert, not one with every look"
    assert b"alert: work breaks its promise" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--alert-webhook", "example.com"), "alert_webhook"),
        (("--alert-command", "'"), "alert_command"),
        (("--alert-at", "1.5"), "alert_at"),
    ],
)
def test_alerts_that_cannot_be_sent(dsn: str, options: tuple[str, ...], said: str) -> None:
    ran = penstock("scale", "jobs:app", *options, dsn=dsn)
    assert (ran.code, is_one_block(ran.err)) == (3, True), ran.err
    assert said in ran.err


# --- channels ---------------------------------------------------------------------------------------------------------


def an_alert(queue: str = "mail") -> Alert:
    found = Alerts(lambda _: True).note(queue, NEAR, 1_800_000_000.0, sla=SLA)
    assert found is not None
    return found


class Receiver(BaseHTTPRequestHandler):
    answers: list[int]
    bodies: list[dict[str, Any]]
    slow: float = 0.0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Content-Type"] == "application/json"
        self.bodies.append(json.loads(body))
        time.sleep(self.slow)
        self.send_response(self.answers.pop(0) if self.answers else 200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Prints nothing on standard error."""


@contextmanager
def receiving(*answers: int, slow: float = 0.0) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    kind = type("One", (Receiver,), {"answers": [*answers], "bodies": [], "slow": slow})
    server = HTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook?key=secret", kind.bodies  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def eventually(true: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_webhook_gets_json_and_is_tried_again() -> None:
    with receiving(503, 200) as (url, bodies):
        outbox = Outbox([Webhook(url)], between=0.01)
        assert outbox.send(an_alert())
        eventually(lambda: len(bodies) == 2)
        outbox.close()
    assert bodies[0] == bodies[1]
    assert (bodies[0]["queue"], bodies[0]["level"], bodies[0]["at"]) == (
        "mail",
        "near",
        "2027-01-15T08:00:00.000+00:00",
    )
    assert bodies[0]["usage"] == pytest.approx(55 / 60)
    assert bodies[0]["text"].startswith("mail is about to break its promise: the oldest task has used 92 % of its 60 s")


def test_a_refused_alert_is_not_tried_again_and_no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with receiving(404) as (url, bodies), caplog.at_level(logging.WARNING, "penstock.scaler"):
        outbox = Outbox([Webhook(url)], between=0.01)
        outbox.send(an_alert())
        eventually(lambda: "answered 404" in caplog.text)
        outbox.close()
    assert len(bodies) == 1
    assert "secret" not in caplog.text


def test_a_slow_channel_does_not_hold_up_the_scaler() -> None:
    """Its queue fills, alerts that do not fit are counted, and the next alert says how many were dropped."""
    with receiving(slow=1.0) as (url, bodies):
        outbox = Outbox([Webhook(url, timeout=0.3)], most=2, tries=1)
        alerts = Alerts(outbox.send)
        began = time.monotonic()
        for n in range(20):
            alerts.note(f"q{n}", NEAR, float(n), sla=SLA)
        assert time.monotonic() - began < 4.0  # the channel takes six seconds
        assert alerts.dropped >= 10
        eventually(outbox._waiting.empty)
        found = alerts.note("last", NEAR, 0.0, sla=SLA)
        assert found is not None
        assert found.dropped >= 10
        assert alerts.dropped == 0
        outbox.close()
    assert bodies


def test_a_channel_that_fails_does_not_stop_the_next(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def deliver(self, alert: Alert) -> None:
            raise RuntimeError(alert.queue)

    with receiving() as (url, bodies), caplog.at_level(logging.INFO, "penstock.scaler"):
        outbox = Outbox([Broken(), Log(), Webhook("http://127.0.0.1:1/"), Webhook(url)], tries=1)
        outbox.send(an_alert())
        eventually(lambda: len(bodies) == 1)
        outbox.send(an_alert("other"))
        outbox.close()
    assert [one["queue"] for one in bodies] == ["mail", "other"]
    assert "alert: mail is about to break its promise" in caplog.text


def test_a_command_gets_json_and_no_shell(tmp_path: Path) -> None:
    script, out = tmp_path / "note.py", tmp_path / "out with spaces.json"
    script.write_text(
        "import json, os, sys\n"
        "told = {'argv': sys.argv[2:], 'body': json.load(sys.stdin), 'level': os.environ['PENSTOCK_ALERT']}\n"
        "open(sys.argv[1], 'w').write(json.dumps(told))\n"
    )
    command = Command.of(f"{sys.executable} {script} '{out}' '$(touch {tmp_path}/owned)' ';' x")
    command.deliver(replace(an_alert(), reason="3: $(touch owned); `id`"))
    told = json.loads(out.read_text())
    assert told["argv"] == [f"$(touch {tmp_path}/owned)", ";", "x"]
    assert (told["body"]["reason"], told["level"]) == ("3: $(touch owned); `id`", "near")
    assert not (tmp_path / "owned").exists()


def test_commands_that_fail() -> None:
    for text, said in (
        (f"{sys.executable} -c 'import sys; sys.exit(\"no\")'", "ended with 1: no"),
        ("/nonexistent/notify", "No such file"),
    ):
        with pytest.raises(Undelivered, match=said):
            Command.of(text).deliver(an_alert())
    with pytest.raises(Undelivered, match="took longer"):
        replace(Command.of(f"{sys.executable} -c 'import time; time.sleep(60)'"), timeout=0.2).deliver(an_alert())


@pytest.mark.parametrize("text", ["", "  ", "'unclosed"])
def test_commands_that_are_not_valid(text: str) -> None:
    with pytest.raises(ConfigError, match="alert_command"):
        Command.of(text)


@pytest.mark.parametrize("url", ["", "example.com", "ftp://example.com/", "file:///etc/passwd", "http://"])
def test_addresses_that_are_not_valid(url: str) -> None:
    with pytest.raises(ConfigError, match="alert_webhook"):
        Webhook(url)
