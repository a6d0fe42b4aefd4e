"""The channels of alerts: the log, webhooks and commands. A thread delivers alerts from a bounded queue, so that the
loop never waits for a channel."""

from __future__ import annotations

import json
import logging
import os
import queue
import shlex
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from penstock.errors import ConfigError, shown
from penstock.scaler.run.alerts import Alert

log = logging.getLogger("penstock.scaler")

MAX_WAITING = 100  # alerts
TRIES = 3
BETWEEN = 1.0  # seconds before the second try; twice as many before the third
TIMEOUT = 5.0  # seconds that a webhook may take to answer
COMMAND_TIMEOUT = 30.0  # seconds after which a command is killed
SERIOUS = {"recovered": logging.INFO, "foreseen": logging.WARNING, "near": logging.WARNING, "breach": logging.ERROR}
REFUSED = (400, 500)  # statuses from 400 to below 500 would be the same again; others are worth another try
RETRYABLE = (408, 425, 429)  # statuses below 500 that are worth another try


class Channel(Protocol):
    """Delivers an alert, or raises Undelivered, which says whether another try may help."""

    def deliver(self, alert: Alert) -> None: ...


class Undelivered(Exception):
    """A channel could not deliver an alert."""

    def __init__(self, why: str, *, again: bool) -> None:
        super().__init__(why)
        self.again = again


@dataclass(frozen=True, slots=True)
class Log:
    """Writes alerts to the log of the scaler."""

    def deliver(self, alert: Alert) -> None:
        log.log(SERIOUS[alert.level], "alert: %s", alert.sentence, extra={"queue": alert.queue, "alert": alert.level})


@dataclass(frozen=True, slots=True)
class Webhook:
    """Sends alerts as JSON in a POST request."""

    url: str
    timeout: float = TIMEOUT

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"alert_webhook: {shown(self.url)} is not an http or https address",
                hint="Write --alert-webhook https://example.com/hook.",
            )

    @property
    def host(self) -> str:
        """The host name. User, password, path and query may be secrets."""
        return urlsplit(self.url).hostname or ""

    def deliver(self, alert: Alert) -> None:
        body = json.dumps(alert.to_json()).encode()
        request = Request(self.url, body, {"Content-Type": "application/json", "User-Agent": "penstock"})  # noqa: S310 - checked above
        try:
            with urlopen(request, timeout=self.timeout) as answer:  # noqa: S310 - checked above
                answer.read(1)
        except HTTPError as error:
            error.close()
            again = error.code in RETRYABLE or not REFUSED[0] <= error.code < REFUSED[1]
            raise Undelivered(f"{self.host} answered {error.code}", again=again) from None
        except (URLError, OSError, ValueError) as error:
            why = getattr(error, "reason", None) or error
            raise Undelivered(f"{self.host}: {why}", again=True) from None


@dataclass(frozen=True, slots=True)
class Command:
    """Runs a program with the alert as JSON on its standard input and its parts in the environment. It uses no
    shell, so that nothing in a queue's name or a reason can become a command."""

    words: tuple[str, ...]
    timeout: float = COMMAND_TIMEOUT

    @classmethod
    def of(cls, text: str) -> Command:
        """Splits a command line as a shell does."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise ConfigError(f"alert_command: {shown(text)}: {error}") from None
        if not words:
            raise ConfigError("alert_command: it is empty", hint="Write --alert-command 'notify --urgent'.")
        return cls(tuple(words))

    def deliver(self, alert: Alert) -> None:
        """Runs the command, with the alert in its environment and as JSON on its standard input."""
        variables = {
            "PENSTOCK_QUEUE": alert.queue,
            "PENSTOCK_ALERT": alert.level,
            "PENSTOCK_WORKERS": str(alert.workers),
            "PENSTOCK_TEXT": alert.sentence.replace("\0", ""),
        }
        try:
            done = subprocess.run(  # noqa: S603 - the command of the operator
                self.words,
                input=json.dumps(alert.to_json()).encode(),
                env={**os.environ, **variables},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=self.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Undelivered(f"{self.words[0]} took longer than {self.timeout:g} s", again=False) from None
        except (OSError, ValueError) as error:
            raise Undelivered(f"{self.words[0]}: {error}", again=False) from None
        if done.returncode:
            output = done.stderr.decode(errors="replace").strip()[-200:]
            raise Undelivered(f"{self.words[0]} ended with {done.returncode}: {output}", again=False)


class Outbox:
    """Accepts alerts and delivers them, one after the other, to all channels."""

    def __init__(
        self, channels: Sequence[Channel], *, most: int = MAX_WAITING, tries: int = TRIES, between: float = BETWEEN
    ) -> None:
        self._channels = tuple(channels)
        self._waiting: queue.Queue[Alert | None] = queue.Queue(most)
        self._tries, self._between = tries, between
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._deliver_all, name="penstock-alerts", daemon=True)
        self._thread.start()

    def send(self, alert: Alert) -> bool:
        """Accepts an alert. Returns False if too many wait, because a channel is slow or away."""
        try:
            self._waiting.put_nowait(alert)
        except queue.Full:
            log.warning("alert dropped", extra={"queue": alert.queue, "alert": alert.level})
            return False
        return True

    def close(self, timeout: float = 5.0) -> None:
        """Tries each waiting alert once more, within the timeout."""
        self._over.set()
        until = time.monotonic() + timeout
        with suppress(queue.Full):
            self._waiting.put(None, timeout=timeout)
        self._thread.join(max(0.0, until - time.monotonic()))

    def _deliver_all(self) -> None:
        while (alert := self._waiting.get()) is not None:
            for channel in self._channels:
                self._deliver(channel, alert)

    def _deliver(self, channel: Channel, alert: Alert) -> None:
        for n in range(self._tries):
            try:
                channel.deliver(alert)
            except Undelivered as error:
                if error.again and n + 1 < self._tries and not self._over.wait(self._between * 2**n):
                    continue
                log.warning("alert not delivered: %s", error, extra={"queue": alert.queue, "alert": alert.level})
            except Exception:
                log.exception("alert not delivered", extra={"queue": alert.queue, "alert": alert.level})
            return
