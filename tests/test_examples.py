"""Each example runs by itself. Those of the queue are tested in test_walks.py, those with Spark in tests/spark."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest

from penstock import Penstock

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def run(dsn: str, *words: str, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PENSTOCK_DSN": dsn} | dict(env or {}),
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_it_says_what_it_shows_in_eighty_lines(example: Path) -> None:
    text = example.read_text("utf-8")
    assert text.startswith('"""')
    assert f"examples/{example.name}" in text or example.name == "quickstart.py"
    assert text.count("\n") <= 80


@contextmanager
def shop(dsn: str) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "webapp.py"), "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PENSTOCK_DSN": dsn},
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.communicate()


def order(url: str, item: str) -> tuple[int, dict[str, object]]:
    request = urllib.request.Request(url, json.dumps({"item": item}).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_web_app_has_an_order_and_its_task_or_neither(app: Penstock, dsn: str, sql: psycopg.Connection) -> None:
    with shop(dsn) as url:
        assert order(url, "lamp") == (201, {"order": 1})
        assert order(url, "lamp") == (409, {"error": "lamp is sold out"})
    assert sql.execute("select id, item from shop_order").fetchall() == [(1, "lamp")]
    assert sql.execute("select subject from penstock.tasks").fetchall() == [("receipt:1",)]
    said = run(dsn, "-m", "penstock.cli", "work", "examples.webapp:app", "--until-empty")
    assert "receipt for order 1\n" in said


class Sentry(BaseHTTPRequestHandler):
    """The part of Sentry that receives what its SDK sends: the events of each envelope."""

    events: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        text = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        Sentry.events += [one for one in map(json.loads, text.splitlines()) if "exception" in one]
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None: ...


def test_errors_of_handlers_come_to_sentry_with_their_task(app: Penstock, dsn: str) -> None:
    Sentry.events.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Sentry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        run(dsn, str(EXAMPLES / "sentry.py"))
        ids = {task.kind: task.id for task in app.queue("shop").tasks()}
        there = {"SENTRY_DSN": f"http://key@127.0.0.1:{server.server_port}/1", "SENTRY_ENVIRONMENT": "tests"}
        run(dsn, "-m", "penstock.cli", "work", "examples.sentry:app", "--until-empty", env=there)
        server.shutdown()
    found = {one["exception"]["values"][-1]["type"]: one for one in Sentry.events}
    assert len(Sentry.events) == len(found) == 2, "the task that succeeded is not reported"
    for error, kind in (("LookupError", "charge"), ("ConnectionError", "ask_the_bank")):
        event = found[error]
        assert event["tags"] == {"penstock.kind": kind, "penstock.attempt": 1} | event["tags"]
        assert event["transaction"] == kind
        assert event["contexts"]["penstock"]["task"] == ids[kind]
    assert "4222 2222" not in json.dumps(Sentry.events), "no payload leaves the machine"
    status = app.queue("shop").status()
    assert (status.totals["done"], status.totals["failed"], status.planned) == (1, 2, 2)


def test_the_crawler_comes_to_each_address_once(app: Penstock, dsn: str) -> None:
    said = run(dsn, str(EXAMPLES / "crawler.py"))
    fetched = re.findall(r"from (\S+)", said)
    assert len(fetched) == len(set(fetched)) == 5
    assert "40 pages visited, 5 pictures downloaded" in said


def test_a_custom_strategy(app: Penstock, dsn: str, sql: psycopg.Connection) -> None:
    said = run(dsn, str(EXAMPLES / "retry_strategy.py"))
    assert all(part in said for part in ("'done': 1", "'planned': 2", "'dead': 1")), said
    assert re.search(r"planned: .*too many calls.* \(again in (89|90) s\)", said)
    assert re.search(r"planned: .*connection reset.* \(again in (59|60) s\)", said)
    assert re.search(r"dead: .*unknown", said)
    stored = sql.execute("select retry from penstock.kind where kind = 'invoice'").fetchone()
    assert stored == ({"type": "fixed", "delay": 300},)


def test_a_custom_policy_is_judged(dsn: str) -> None:
    said = run(dsn, str(EXAMPLES / "policy.py"))
    rows = re.findall(r"^(\S+) +([\d.]+)% +([\d.]+)", said, re.MULTILINE)
    assert {name for name, _, _ in rows} == {"half-the-time", "a-fifth", "deadline"}
    assert min(rows, key=lambda row: (float(row[1]), float(row[2])))[0] == "deadline"
