"""The handlers of bench/worker.py that run inside a middleware.

They have a module of their own, because bench/before.py runs the other ones with older code.
"""

from __future__ import annotations

from bench.support.handlers import app
from penstock import AsyncRunHandler, Outcome, RunHandler, Task

__all__ = ["app"]
WRAPPED = ("sync in middleware", "async in middleware")


@app.middleware(kind=WRAPPED)
def through(task: Task, run: RunHandler) -> Outcome:  # noqa: ARG001 - middleware gets it
    return run()


@app.middleware(form_of=through)
async def through_async(task: Task, run: AsyncRunHandler) -> Outcome:  # noqa: ARG001 - middleware gets it
    return await run()


@app.task(queue="bench", kind=WRAPPED[0])
def nothing_inside(invoice: int, to: str, note: str) -> None:
    pass


@app.task(queue="bench", kind=WRAPPED[1])
async def nothing_inside_async(invoice: int, to: str, note: str) -> None:
    pass
