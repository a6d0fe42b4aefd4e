"""A real `penstock web` process, and a client that keeps cookies as a browser does, by plain HTTP."""

from __future__ import annotations

import html
import http.client
import json
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from shell import COMMAND, environment

PATIENCE = 60.0  # seconds, on a machine with much to do


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as it is written."""
        return self.body.decode()

    @property
    def words(self) -> str:
        """The text of a page, without its markup."""
        bare = re.sub(r"<(style|script|title)\b.*?</\1>|<[^>]*>", " ", self.text, flags=re.DOTALL)
        return " ".join(html.unescape(bare).split())

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Visitor:
    """Sends requests from the origin of the dashboard, with the cookies that it got."""

    host: str
    port: int
    cookies: dict[str, str] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        return f"http://{self.host}:{self.port}"

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        cookie = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        try:
            connection.request(method, path, body, {**(cookie if self.cookies else {}), **(headers or {})})
            answer = connection.getresponse()
            found = Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()
        if "set-cookie" in found.headers:
            name, _, value = found.headers["set-cookie"].partition(";")[0].partition("=")
            self.cookies[name] = value
        return found

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask("GET", path, headers=headers)

    def post(
        self, path: str, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Sends a form as a browser does from a page of this origin."""
        own = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
        return self.ask("POST", path, urlencode(form or {}).encode(), {**own, **(headers or {})})

    def form_token(self, path: str) -> str:
        """Returns the token in the forms of a page."""
        found = re.search(r'name="form_token" value="([^"]+)"', self.get(path).text)
        assert found, f"{path} has no form"
        return found[1]


@contextmanager
def serving(dsn: str, *options: str, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """Runs `penstock web` on a free port, and returns its address."""
    process = subprocess.Popen(
        [*COMMAND, "web", "--port", "0", *options],
        env=environment(dsn, env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1].decode()
        yield line.decode().removeprefix("dashboard: ").strip()
    finally:
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert b"Traceback" not in errors, errors.decode()


def visit(address: str) -> Visitor:
    """Opens the address that the server printed, as a browser does."""
    parts = urlsplit(address)
    assert parts.hostname
    assert parts.port
    visitor = Visitor(parts.hostname, parts.port)
    answer = visitor.get(f"{parts.path}?{parts.query}")
    assert answer.status == 303, answer.text
    assert "token" not in answer.headers["location"]
    return visitor
