"""A real Chromium without a window, controlled through a pipe: without a port, a package or a driver.

`scripts/setup-browser` installs one if there is none.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 60.0  # seconds for an answer, on a machine with much to do


def find_browser() -> str | None:
    """Returns the path of the browser: CHROMIUM, or one on the search path."""
    given = os.environ.get("CHROMIUM")
    return given or next((found for name in NAMES if (found := shutil.which(name))), None)


@dataclass
class Tab:
    """A page: it answers scripts, and keeps its errors and what it fetched."""

    browser: Browser
    session: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def tell(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.tell(method, self.session, **parameters)

    def ask(self, script: str) -> Any:
        """Returns the value of an expression in the page."""
        answer = self.tell("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def resize(self, width: int, height: int = 900) -> None:
        self.tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    def dress(self, scheme: str) -> None:
        """Sets the colour scheme: light or dark."""
        self.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, path: Path) -> None:
        self.visit(path.as_uri())

    def visit(self, address: str) -> None:
        """Opens a page, and waits until it is loaded."""
        self.browser.seen.clear()
        self.tell("Page.navigate", url=address)
        self.browser.until(lambda one: one["method"] == "Page.loadEventFired")

    def point(self, x: float, y: float) -> None:
        self.tell("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.tell("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        answer = self.tell("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))


class Browser:
    def __init__(self, process: subprocess.Popen[bytes], tells: int, reads: int) -> None:
        self._process, self._tells, self._reads = process, tells, reads
        self._number, self._rest = 0, b""
        self.seen: list[dict[str, Any]] = []
        self.tab: Tab | None = None

    def tell(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self._tells, json.dumps(message).encode() + b"\0")
        while True:
            received = self._receive()
            if received.get("id") == number:
                assert "error" not in received, received["error"]
                return dict(received["result"])

    def until(self, matches: Any) -> None:
        while not any(matches(one) for one in self.seen):
            self._receive()

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select([self._reads], [], [], PATIENCE)[0]:
                raise TimeoutError(f"the browser has said nothing for {PATIENCE:g} s")
            more = os.read(self._reads, 1 << 20)
            assert more, f"the browser has ended: {self._process.poll()}"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        received: dict[str, Any] = json.loads(line)
        self._note(received)
        return received

    def _note(self, received: dict[str, Any]) -> None:
        if "method" not in received:
            return
        self.seen.append(received)
        if self.tab is None:
            return
        match received["method"]:
            case "Network.requestWillBeSent":
                self.tab.requests.append(received["params"]["request"]["url"])
            case "Runtime.exceptionThrown" | "Log.entryAdded":
                self.tab.complaints.append(json.dumps(received["params"]))
            case "Runtime.consoleAPICalled" if received["params"]["type"] in ("error", "warning", "assert"):
                self.tab.complaints.append(json.dumps(received["params"]))

    def new_tab(self) -> Tab:
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.tab.tell(f"{domain}.enable")
        return self.tab


@contextmanager
def browsing() -> Iterator[Tab]:
    """Starts a browser, and ends it with everything that it started."""
    found = find_browser()
    assert found, "there is no Chromium: scripts/setup-browser installs one"
    home = tempfile.mkdtemp(prefix="penstock-browser-")
    hears_there, tells = os.pipe()
    reads, tells_there = os.pipe()
    # The browser looks for its pipe at the numbers 3 and 4, which may be taken here: a shell moves it there.
    moved = f'exec "$0" "$@" 3<&{hears_there} 4>&{tells_there}'
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
    process = subprocess.Popen(
        ["/bin/bash", "-c", moved, found, *flags, *quiet, f"--user-data-dir={home}", "about:blank"],
        pass_fds=(hears_there, tells_there),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    os.close(hears_there)
    os.close(tells_there)
    browser = Browser(process, tells, reads)
    try:
        yield browser.new_tab()
        browser.tell("Browser.close")
    finally:
        os.close(tells)
        os.close(reads)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(home, ignore_errors=True)
