"""A retry strategy of one's own: the error says how long to wait, or that waiting is no use. It runs in the worker; the
fallback is data, stored in the database, for when nobody can ask the function (a killed worker, another's settle).

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
    """How long until the next attempt; None: there will be none."""
    if isinstance(error, NoSuchCustomer) or age > timedelta(days=2):
        return None
    if isinstance(error, TooManyCalls):
        return timedelta(seconds=error.retry_after)
    return usual.delay(attempts)


@app.task(queue="invoices", retry=CustomRetry(patience, fallback=Fixed("5m")), max_attempts=20)
def invoice(customer: str) -> None:
    """Somebody else's service, and its moods."""
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
