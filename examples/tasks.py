"""An application with handlers that are sync, async, transactional, recurring and scheduled, and one that takes many
tasks at once.

penstock up
penstock queues create shop --sla 30s
python examples/tasks.py                                   # pushes some tasks
penstock work examples.tasks:app --until-empty             # runs them
"""

from datetime import UTC, datetime, timedelta

from penstock import AsyncContext, Context, Fibonacci, Penstock, Task

app = Penstock()


@app.task(queue="shop", retry=Fibonacci("1m"), max_attempts=8)
def send_invoice(order_id: int, copy_to: str | None = None) -> None:
    """The arguments are the payload. They are checked at the push, and again before this runs."""
    print(f"invoice for order {order_id}" + (f", copy to {copy_to}" if copy_to else ""))


@app.task(queue="shop", timeout="30s")
async def ask_the_bank(order_id: int, context: AsyncContext) -> None:
    """Runs on the worker's event loop, and is cancelled after 30 seconds."""
    print(f"asked the bank about order {order_id}, attempt {context.attempt}")


@app.task(queue="shop")
def book(order_id: int, cents: int, context: Context) -> None:
    """Its write and the end of the task are one transaction: exactly once, whatever is killed."""
    with context.transaction() as connection:
        connection.execute("create table if not exists booking (order_id bigint, cents bigint)")
        connection.execute("insert into booking values (%s, %s)", (order_id, cents))


@app.task(queue="shop")
def count_stock(context: Context) -> None:
    """Keeps its task in the queue and runs again tomorrow."""
    context.again(datetime.now(UTC) + timedelta(days=1))


@app.schedule("0 6 * * 1-5", tz="Europe/Rome")
@app.task(queue="shop")
def morning_report() -> None:
    """Runs at six in Rome on working days, once for all workers. `penstock schedules ls` shows the next run."""
    print("the report of this morning")


@app.task(queue="shop", batch=100)
def index(tasks: list[Task]) -> None:
    """Takes up to a hundred tasks at once. An error fails all; it may return {task.id: Outcome, …} instead."""
    print(f"indexed {len(tasks)} products")


if __name__ == "__main__":
    send_invoice.push(42, subject="order:42")  # send_invoice.push("42") is an error, here and now
    ask_the_bank.push(order_id=42)
    book.push(42, cents=1999)
    count_stock.push(subject="stock")
    print(index.push_many({"product": n} for n in range(250)).counts)
