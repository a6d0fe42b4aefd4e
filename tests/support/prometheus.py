"""A real Prometheus on loopback, with its own directory, and promtool: `scripts/setup-prometheus` finds them."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from workers import eventually, free_port

T = TypeVar("T")
SETUP = Path(__file__).parents[2] / "scripts/setup-prometheus"
LINE = re.compile(r"([a-z_:]+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
Labels = frozenset[tuple[str, str]]


@functools.cache
def directory() -> Path:
    """The directory of prometheus and promtool. A test is skipped only where neither is there nor can be fetched."""
    done = subprocess.run([SETUP], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(done.stderr.splitlines()[0])
    return Path(done.stdout.strip())


def promtool(*words: str, stdin: str = "") -> None:
    """Runs promtool, which must find nothing wrong."""
    done = subprocess.run(
        [directory() / "promtool", *words], input=stdin, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr.strip()) == (0, ""), done.stdout + done.stderr


def read(text: str) -> dict[str, dict[Labels, float]]:
    """Reads the text of Prometheus: the samples of each metric by their labels. A line of another form fails."""
    found: dict[str, dict[Labels, float]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        assert match, line
        labels = frozenset((name, value) for name, value in LABEL.findall(match[2] or ""))
        samples = found.setdefault(match[1], {})
        assert labels not in samples, f"twice: {line}"
        samples[labels] = float(match[3])
    return found


def labels(**words: str) -> Labels:
    return frozenset(words.items())


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=15) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=15) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Evaluates an expression now."""
        return list(self.ask("query", query=expression)["result"])

    def alerts(self) -> dict[str, str]:
        """The alerts that are pending or firing, by name."""
        return {one["labels"]["alertname"]: one["state"] for one in self.ask("alerts")["alerts"]}

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                return True
        except OSError:
            return False


@contextmanager
def running(home: Path, targets: Mapping[str, int], rules: str = "") -> Iterator[Prometheus]:
    """Starts a Prometheus that scrapes these ports of loopback every second, by job, and ends it by its id."""
    home.mkdir(exist_ok=True)
    (home / "rules.yml").write_text(rules or "groups: []\n", "utf-8")
    jobs = [{"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{at}"]}]} for name, at in targets.items()]
    intervals = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config = {"global": intervals, "scrape_configs": jobs, "rule_files": ["rules.yml"]}
    (home / "prometheus.yml").write_text(json.dumps(config), "utf-8")  # JSON is YAML too
    port = free_port()
    options = ("--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}")
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [directory() / "prometheus", *options], cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    found = Prometheus(port)
    try:
        eventually(lambda: process.poll() is not None or found.ready())
        assert process.poll() is None, (home / "log").read_text("utf-8")
        yield found
    finally:
        process.terminate()
        process.wait(30)


def settle(found: Callable[[], T], *, within: float = 30.0) -> T:
    """Calls `found` twice a second until its answer is true, and returns the answer."""
    deadline = time.monotonic() + within
    while not (answer := found()):
        assert time.monotonic() < deadline, f"not within {within:g} s"
        time.sleep(0.5)
    return answer
