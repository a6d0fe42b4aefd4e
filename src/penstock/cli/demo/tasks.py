"""The demo's application: what `penstock scale penstock.cli.demo.tasks:app` runs."""

from __future__ import annotations

import time

from penstock.app import Penstock
from penstock.cli.demo.load import QUEUE
from penstock.retry import Fibonacci

SECONDS = 0.004  # that a bill takes; somebody else's service, so to speak

app = Penstock()


@app.task(queue=QUEUE, kind="bill", retry=Fibonacci("1s"), max_attempts=4)
def bill(invoice: int, to: str, cents: int) -> None:
    """Poison: an invoice over less than nothing fails every time, and ends dead after four tries."""
    if cents < 0:
        raise ValueError(f"invoice {invoice} to {to} is over {cents} cents")
    time.sleep(SECONDS)
