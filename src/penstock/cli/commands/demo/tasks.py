"""The application of the demo, which `penstock scale` runs."""

from __future__ import annotations

import time

from penstock.app import Penstock
from penstock.cli.commands.demo.load import QUEUE
from penstock.retry import Fibonacci

TASK_SECONDS = 0.004  # the run time of a bill, as if it called a service

app = Penstock()


@app.task(queue=QUEUE, kind="bill", retry=Fibonacci("1s"), max_attempts=4)
def bill(invoice: int, to: str, cents: int) -> None:
    """Bills an invoice. One with a negative amount fails every time, and is dead after four attempts."""
    if cents < 0:
        raise ValueError(f"invoice {invoice} to {to} is over {cents} cents")
    time.sleep(TASK_SECONDS)
