"""Django: an order and its task in one transaction, and a handler that uses the ORM, in one file that runs by itself:

    PENSTOCK_DSN=postgresql://… python examples/django_shop.py
    PENSTOCK_DSN=postgresql://… penstock work examples.django_shop:app

PostgreSQL may be restarted while the worker runs: `manage_connections` closes broken connections.
"""

import os

import django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

from penstock import Penstock
from penstock.django import manage_connections

app = Penstock()
manage_connections(app)

where = conninfo_to_dict(app.dsn)  # in your project, settings.py has it; here it is Penstock's database
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": where.pop("dbname"),
            "CONN_MAX_AGE": None if os.environ.get("KEEP_CONNECTIONS") else 60,
            "CONN_HEALTH_CHECKS": not os.environ.get("KEEP_CONNECTIONS"),
            "OPTIONS": where,
        }
    },
    INSTALLED_APPS=[],
    USE_TZ=True,
)
django.setup()

from django.db import connection, models, transaction  # noqa: E402 - after setup()


class Order(models.Model):
    item = models.TextField()
    shipped = models.IntegerField(default=0)

    class Meta:
        app_label, db_table = "shop", "django_order"


@app.task(queue="orders", retry="fixed:100ms", max_attempts=20)
def ship(order: int) -> None:
    Order.objects.filter(pk=order).update(shipped=models.F("shipped") + 1)


@app.task(queue="orders", retry="fixed:100ms", max_attempts=20)
async def ship_async(order: int) -> None:
    await Order.objects.filter(pk=order).aupdate(shipped=models.F("shipped") + 1)


@app.task(queue="orders", retry="fixed:100ms", max_attempts=20, timeout="30s")  # in a process of its own
def ship_in_time(order: int) -> None:
    Order.objects.filter(pk=order).update(shipped=models.F("shipped") + 1)


def buy(item: str) -> int:
    with transaction.atomic():
        order = Order.objects.create(item=item)
        handler = (ship_in_time, ship, ship_async)[order.pk % 3]
        handler.push(order.pk, subject=f"ship:{order.pk}", connection="default")  # committed with the order
    return int(order.pk)


if __name__ == "__main__":
    app.init()
    app.create_queue("orders", exist_ok=True)
    if "django_order" not in connection.introspection.table_names():
        with connection.schema_editor() as editor:
            editor.create_model(Order)
    bought = [buy("lamp"), buy("chair")]
    print(f"orders {bought[0]} and {bought[1]} wait for a worker")
