"""A custom retry strategy: the error says how long to wait, or that waiting is useless. The function runs in the
worker. The fallback is stored in the database, and is used if the function cannot be called (after a crash, say).

penstock up
python examples/retry_strategy.py
"""

from datetime import UTC, datetime, timedelta

from penstock import CustomRetry, Fibonacci, Fixed, Penstock

app = Penstock()
usual = Fibonacci("1m", cap="1h")


class TooManyCalls(Exception):
    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many calls, come back in {retry_after} s")
        self.retry_after = retry_after


class NoSuchCustomer(Exception):
    pass


def patience(error: BaseException, attempts: int, age: timedelta) -> timedelta | None:
    """Returns the time until the next attempt, or None for no other attempt."""
    if isinstance(error, NoSuchCustomer) or age > timedelta(days=2):
        return None
    if isinstance(error, TooManyCalls):
        return timedelta(seconds=error.retry_after)
    return usual.delay(attempts)


@app.task(queue="invoices", retry=CustomRetry(patience, fallback=Fixed("5m")), max_attempts=20)
def invoice(customer: str) -> None:
    """Stands for an external service that sometimes fails."""
    match customer:
        case "busy":
            raise TooManyCalls(retry_after=90)
        case "unknown":
            raise NoSuchCustomer(customer)
        case "broken":
            raise ConnectionError("connection reset by peer")


if __name__ == "__main__":
    app.init()
    queue = app.create_queue("invoices", exist_ok=True)
    queue.purge("planned", "dead")  # of an earlier run
    invoice.push_many({"customer": name} for name in ("ann", "busy", "unknown", "broken"))
    print(app.drain_inline(raise_errors=False))
    for task in queue.tasks():
        wait = f"again in {(task.due - datetime.now(UTC)).total_seconds():.0f} s" if task.due else task.reason
        print(f"{task.state}: {str(task.error).splitlines()[0]} ({wait})")
