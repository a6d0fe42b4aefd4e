"""A web shop. An order, the item that it takes from the stock and the task that sends its receipt are one transaction:
whatever fails, there is never one without the others.

penstock up
python examples/webapp.py 8000 &
curl -d '{"item": "lamp"}' localhost:8000     # order 1
curl -d '{"item": "lamp"}' localhost:8000     # sold out: no order, no receipt
penstock work examples.webapp:app --until-empty
"""

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import make_server

import psycopg

from penstock import Penstock

app = Penstock()


@app.task(queue="receipts", max_attempts=5)
def send_receipt(order: int) -> None:
    print(f"receipt for order {order}")


def take_order(item: str) -> int:
    """Returns the number of the order when all of it is committed."""
    with psycopg.connect(app.dsn) as connection:  # commits when the block ends, rolls back when it raises
        insert = "insert into shop_order (item) values (%s) returning id"
        (order,) = connection.execute(insert, (item,)).fetchone() or (0,)
        send_receipt.push(order, subject=f"receipt:{order}", connection=connection)
        connection.execute("update shop_stock set pieces = pieces - 1 where item = %s", (item,))
        return int(order)


def serve(request: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
    """Serves a request. Any framework will do; this one is part of Python."""
    item = json.loads(request["wsgi.input"].read(int(request["CONTENT_LENGTH"])))["item"]
    try:
        status, answer = "201 Created", {"order": take_order(item)}
    except psycopg.errors.CheckViolation:  # the stock may not become negative
        status, answer = "409 Conflict", {"error": f"{item} is sold out"}
    respond(status, [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]


def open_shop() -> None:
    app.init()
    app.create_queue("receipts", sla="30s", exist_ok=True)
    with psycopg.connect(app.dsn) as connection:
        connection.execute("create table if not exists shop_order (id bigserial primary key, item text not null)")
        connection.execute(
            "create table if not exists shop_stock (item text primary key, pieces int not null check (pieces >= 0))"
        )
        connection.execute("insert into shop_stock values ('lamp', 1), ('chair', 100) on conflict do nothing")


if __name__ == "__main__":
    open_shop()
    with make_server("127.0.0.1", int(sys.argv[1]), serve) as server:
        print(f"open at http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
