"""Where alerts go: the log, a webhook, a command. In a thread of their own, behind a short line: whoever hands one over
never waits, and whatever a channel does, the loop goes on."""

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
from penstock.scaler.alerts import Alert

log = logging.getLogger("penstock.scaler")

MOST_WAITING = 100
TRIES = 3
BETWEEN = 1.0  # seconds before the second try, twice as many before the third
TIMEOUT = 5.0  # seconds that a webhook may take to answer
COMMAND_TIMEOUT = 30.0  # seconds after which a command is killed
SERIOUS = {"recovered": logging.INFO, "foreseen": logging.WARNING, "near": logging.WARNING, "breach": logging.ERROR}
REFUSED = (400, 500)  # from 400 on the same request would be refused again; from 500 on it is worth another try
WORTH_A_TRY = (408, 425, 429)


class Channel(Protocol):
    """Raises Undelivered when it could not, and says whether trying again may help."""

    def deliver(self, alert: Alert) -> None: ...


class Undelivered(Exception):
    def __init__(self, why: str, *, again: bool) -> None:
        super().__init__(why)
        self.again = again


@dataclass(frozen=True, slots=True)
class Log:
    """Beside the loop's own lines."""

    def deliver(self, alert: Alert) -> None:
        log.log(SERIOUS[alert.level], "alert: %s", alert.sentence, extra={"queue": alert.queue, "alert": alert.level})


@dataclass(frozen=True, slots=True)
class Webhook:
    """A POST of JSON."""

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
    def place(self) -> str:
        """Without user, password, path and query, which may be secrets."""
        return urlsplit(self.url).hostname or ""

    def deliver(self, alert: Alert) -> None:
        body = json.dumps(alert.to_json()).encode()
        request = Request(self.url, body, {"Content-Type": "application/json", "User-Agent": "penstock"})  # noqa: S310 - checked above
        try:
            with urlopen(request, timeout=self.timeout) as answer:  # noqa: S310 - checked above
                answer.read(1)
        except HTTPError as error:
            error.close()
            again = error.code in WORTH_A_TRY or not REFUSED[0] <= error.code < REFUSED[1]
            raise Undelivered(f"{self.place} answered {error.code}", again=again) from None
        except (URLError, OSError, ValueError) as error:
            why = getattr(error, "reason", None) or error
            raise Undelivered(f"{self.place}: {why}", again=True) from None


@dataclass(frozen=True, slots=True)
class Command:
    """A program with the alert as JSON on its standard input, and its parts in the environment. Never through a shell:
    nothing in a queue's name or a reason can become a command."""

    words: tuple[str, ...]
    timeout: float = COMMAND_TIMEOUT

    @classmethod
    def of(cls, text: str) -> Command:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise ConfigError(f"alert_command: {shown(text)}: {error}") from None
        if not words:
            raise ConfigError("alert_command: it is empty", hint="Write --alert-command 'notify --urgent'.")
        return cls(tuple(words))

    def deliver(self, alert: Alert) -> None:
        told = {
            "PENSTOCK_QUEUE": alert.queue,
            "PENSTOCK_ALERT": alert.level,
            "PENSTOCK_WORKERS": str(alert.workers),
            "PENSTOCK_TEXT": alert.sentence.replace("\0", ""),
        }
        try:
            done = subprocess.run(  # noqa: S603 - the operator's own command
                self.words,
                input=json.dumps(alert.to_json()).encode(),
                env={**os.environ, **told},
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
            said = done.stderr.decode(errors="replace").strip()[-200:]
            raise Undelivered(f"{self.words[0]} ended with {done.returncode}: {said}", again=False)


class Outbox:
    """Takes alerts and delivers them, one after the other, to all channels."""

    def __init__(
        self, channels: Sequence[Channel], *, most: int = MOST_WAITING, tries: int = TRIES, between: float = BETWEEN
    ) -> None:
        self._channels = tuple(channels)
        self._line: queue.Queue[Alert | None] = queue.Queue(most)
        self._tries, self._between = tries, between
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._deliver_all, name="penstock-alerts", daemon=True)
        self._thread.start()

    def send(self, alert: Alert) -> bool:
        """False: the line is full, because a channel is slow or away."""
        try:
            self._line.put_nowait(alert)
        except queue.Full:
            log.warning("alert dropped", extra={"queue": alert.queue, "alert": alert.level})
            return False
        return True

    def close(self, timeout: float = 5.0) -> None:
        """What waits is still tried, once, for so long."""
        self._over.set()
        until = time.monotonic() + timeout
        with suppress(queue.Full):
            self._line.put(None, timeout=timeout)
        self._thread.join(max(0.0, until - time.monotonic()))

    def _deliver_all(self) -> None:
        while (alert := self._line.get()) is not None:
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
