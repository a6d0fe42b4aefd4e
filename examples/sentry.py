"""Middleware that reports errors of handlers to Sentry, each with its task. It needs sentry-sdk, and SENTRY_DSN.

penstock up
penstock queues create shop
python examples/sentry.py                                  # pushes three tasks
penstock work examples.sentry:app --until-empty            # runs them; two fail, and are reported
"""

import sentry_sdk

from penstock import AsyncRunHandler, Outcome, Penstock, RunHandler, Task

app = Penstock()


@app.on_start
def begin() -> None:
    """Runs in each process. Local variables stay here, because the arguments of a handler are among them."""
    sentry_sdk.init(include_local_variables=False)


@app.on_stop
def finish() -> None:
    sentry_sdk.flush(timeout=2)


def describe(scope: sentry_sdk.Scope, task: Task) -> None:
    """Says which task it is: never its payload or its subject, which may be personal."""
    scope.set_tag("penstock.kind", task.kind)
    scope.set_tag("penstock.attempt", task.attempt)
    scope.set_context("penstock", {"task": task.id, "due": task.due.isoformat()})
    scope.set_transaction_name(task.kind)


@app.middleware
def report(task: Task, run: RunHandler) -> Outcome:
    with sentry_sdk.isolation_scope() as scope:
        describe(scope, task)
        try:
            return run()
        except Exception:
            sentry_sdk.capture_exception()
            raise  # the attempt has failed, as without Sentry


@app.middleware(form_of=report)
async def report_async(task: Task, run: AsyncRunHandler) -> Outcome:
    with sentry_sdk.isolation_scope() as scope:
        describe(scope, task)
        try:
            return await run()
        except Exception:
            sentry_sdk.capture_exception()
            raise


@app.task(queue="shop", retry="fixed:1h")
def charge(order: int, card: str) -> None:
    if card.startswith("4222"):
        raise LookupError(f"order {order} cannot be paid with this card")


@app.task(queue="shop", retry="fixed:1h")
async def ask_the_bank(order: int) -> None:
    raise ConnectionError(f"the bank does not answer for order {order}")


if __name__ == "__main__":
    app.create_queue("shop", exist_ok=True)
    charge.push(order=12, card="4111 1111")
    charge.push(order=13, card="4222 2222")
    ask_the_bank.push(order=14)
