"""Makes docs/top.svg: `penstock top` on a real run, with a PostgreSQL, a backlog, a scaler and its workers."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import DEVNULL, Popen
from tempfile import TemporaryDirectory

from rich.console import Console

from penstock import NewTask, Penstock, embedded
from penstock.cli.commands.top import MAX_DECISIONS, BoardPoller, draw_screen
from penstock.scaler.standing import SAMPLES

ROOT = Path(__file__).parent.parent
WIDTH, HEIGHT = 118, 22
QUEUES = {"mail": "30s", "invoices": "1m", "reports": "5m"}
LOOKS = 21  # a second apart, because rates are over the last twenty seconds

# Rich's template without its fonts, which would be fetched. Each piece of text has its length, so any font will do.
SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{
font: {char_height}px/{line_height}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace
}}
.{unique_id}-title {{ font: bold 18px sans-serif }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""

SHOP = """
import time
from penstock import Fibonacci, Penstock

app = Penstock()

@app.task(queue="mail", retry=Fibonacci("1s"), max_attempts=2)
def welcome(to: int) -> None:
    time.sleep(0.04)
    if to % 500 == 7:
        raise LookupError("no such mailbox")

@app.task(queue="invoices")
def bill(order: int) -> None:
    time.sleep(0.15)

@app.task(queue="reports")
def report(day: int) -> None:
    time.sleep(1)
"""


def main() -> None:
    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory()))
        server = embedded.Server.start(home, environ=os.environ)
        stack.callback(server.stop)
        penstock = stack.enter_context(Penstock(server.dsn))
        penstock.init()
        for name, sla in QUEUES.items():
            penstock.create_queue(name, sla=sla)
        (home / "shop.py").write_text(SHOP, "utf-8")
        stack.enter_context(scaler(server.dsn, home))
        while len(penstock.board().workers) < len(QUEUES):
            time.sleep(0.2)
        load(penstock)
        (ROOT / "docs" / "top.svg").write_text(drawn(watched(penstock)), "utf-8")


@contextmanager
def scaler(dsn: str, home: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "penstock.cli", "scale", "shop:app"]
    command += ["--concurrency", "5", "--max-workers", "6", "--grace", "2s"]
    environment = {**os.environ, "PENSTOCK_DSN": dsn, "PYTHONPATH": f"{home}:{os.environ.get('PYTHONPATH', '')}"}
    process = Popen(command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, env=environment)  # noqa: S603 - ours
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def load(penstock: Penstock) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    penstock.queue("mail").push_many(NewTask({"to": n}, kind="welcome") for n in range(9_000))
    penstock.queue("invoices").push_many(NewTask({"order": n}, kind="bill") for n in range(1_500))
    penstock.queue("reports").push_many(NewTask({"day": n}, kind="report", due=later) for n in range(7))
    penstock.queue("reports").push_many(NewTask({"day": n}, kind="report") for n in range(200))


def watched(penstock: Penstock) -> BoardPoller:
    """Watches the queue while more tasks arrive."""
    poller = BoardPoller(lambda: penstock.board(decisions=MAX_DECISIONS, samples=SAMPLES), 1.0)
    for second in range(LOOKS):
        poller.poll()
        penstock.queue("mail").push_many(NewTask({"to": second * 100 + n}, kind="welcome") for n in range(50))
        penstock.queue("invoices").push_many(NewTask({"order": n}, kind="bill") for n in range(10))
        time.sleep(1)
    poller.poll()
    return poller


def drawn(poller: BoardPoller) -> str:
    console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), force_terminal=True)
    console.print(draw_screen(poller.view, "app at localhost", width=WIDTH, height=HEIGHT))
    svg = console.export_svg(title="penstock top", code_format=SVG, unique_id="top")
    return "".join(f"{line.strip()}\n" for line in svg.splitlines() if line.strip())


if __name__ == "__main__":
    main()
