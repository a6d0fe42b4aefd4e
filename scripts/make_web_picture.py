"""Makes docs/web.png: the first screen of the dashboard on a real run, in a real browser."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock import NewTask, Penstock, embedded

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / name) for name in ("support", "cli"))]

from browser import browsing  # noqa: E402 - after the path
from dashboard import serving  # noqa: E402
from scripts.make_top_picture import QUEUES, SHOP, load, scaler  # noqa: E402

WIDTH, HEIGHT = 1280, 590
WATCHED, REFILLED = 25, 12  # seconds, because the small charts have a sample every ten
RENAME = "document.querySelector('.place .soft').textContent = 'app at localhost'"  # instead of the path of a socket


def main() -> None:
    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory()))
        server = embedded.Server.start(home, environ=os.environ)
        stack.callback(server.stop)
        penstock = stack.enter_context(Penstock(server.dsn))
        penstock.init()
        for name, sla in {**QUEUES, "exports": "20s"}.items():
            penstock.create_queue(name, sla=sla)
        (home / "shop.py").write_text(SHOP, "utf-8")
        stack.enter_context(scaler(server.dsn, home))
        while len(penstock.board().workers) < len(QUEUES):
            time.sleep(0.2)
        load(penstock)
        penstock.queue("exports").push_many(NewTask({"n": n}, kind="export") for n in range(40))
        time.sleep(WATCHED)
        load(penstock)
        time.sleep(REFILLED)
        address = stack.enter_context(serving(server.dsn))
        tab = stack.enter_context(browsing())
        tab.resize(WIDTH, HEIGHT)
        tab.dress("light")
        tab.visit(address)
        time.sleep(3)
        tab.ask(RENAME)
        tab.ask("document.documentElement.style.overflow = 'hidden'")  # no scroll bar
        tab.picture(ROOT / "docs" / "web.png", whole=False)


if __name__ == "__main__":
    main()
