"""Django handlers: they outlive a restart of PostgreSQL, and Django's own tests can run them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from penstock import Penstock, Queue
from penstock.embedded import Server
from shell import COMMAND, environment
from workers import Worker, eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "django_shop.py"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    home = tmp_path / "pg"
    yield Server.start(home, environ=os.environ, settings={"shared_buffers": "128MB"})
    if running := Server.running(home):
        running.stop("immediate")


def python(home: Path, env: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=home, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def shop(tmp_path: Path, server: Server) -> Iterator[Callable[..., Worker]]:
    """Writes the example application, and returns a function that starts a worker for it."""
    shutil.copy(EXAMPLE, tmp_path / "django_shop.py")
    started: list[Worker] = []

    def start(app: str = "django_shop:app", **env: str) -> Worker:
        with (tmp_path / "stdout").open("wb") as out, (tmp_path / "stderr").open("wb") as err:
            process = subprocess.Popen(
                [*COMMAND, "work", app, "--json", "-c", "2"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment(server.dsn, env), cwd=tmp_path,
            )  # fmt: skip
        started.append(Worker(process, tmp_path))
        return started[0]

    yield start
    for worker in started:
        worker.kill()


# With and without health checks: if connections are kept for ever, a query finds out that one is broken.
@pytest.mark.sample(1)
@pytest.mark.parametrize("env", [{}, {"KEEP_CONNECTIONS": "1"}], ids=["health checks", "kept for ever"])
def test_orders_are_shipped_after_a_restart_of_postgresql(
    server: Server, tmp_path: Path, shop: Callable[..., Worker], env: dict[str, str]
) -> None:
    said = python(tmp_path, environment(server.dsn), "django_shop.py")
    assert said == "orders 1 and 2 wait for a worker\n"
    with Penstock(server.dsn) as penstock:
        queue = penstock.queue("orders")
        worker = shop(**env)
        for _ in range(2):
            python(tmp_path, environment(server.dsn), "django_shop.py")
        eventually(lambda: queue.status().totals["done"] == 6)
        children = worker.slot_processes
        assert children, "a handler with a timeout runs in a process of its own"
        server.stop("fast")
        server = Server.start(server.home, environ=os.environ)
        for _ in range(3):
            python(tmp_path, environment(server.dsn), "django_shop.py")
        eventually(lambda: queue.status().totals["done"] == 12)
        assert queue.status().dead == 0
        assert {*children} <= {*worker.slot_processes}, "this process outlives the restart, as the others do"
        worker.terminate()
        assert worker.process.wait(30) == 0
    with psycopg.connect(server.dsn) as sql:
        assert {one for (one,) in sql.execute("select shipped from django_order")} == {1}


BACKLOG = """
from django_shop import Order, app
from penstock.django import manage_connections

@app.task(queue="imports")
def registered(record: dict) -> None:
    Order.objects.create(item=record["item"])

@manage_connections
def plain(record: dict, transaction) -> None:
    Order.objects.create(item=record["item"])
    transaction.execute("update public.import set runs = runs + 1 where id = %s", (record["id"],))
"""


# Connections are kept for ever: a pass uses one for all its records, and only an error shows that it is broken.
@pytest.mark.sample(1)
@pytest.mark.parametrize("handler", ["registered", "plain"])
def test_records_of_an_adopted_table_are_handled_after_a_restart(server: Server, tmp_path: Path, handler: str) -> None:
    shutil.copy(EXAMPLE, tmp_path / "django_shop.py")
    (tmp_path / "imports.py").write_text(BACKLOG, "utf-8")
    env = environment(server.dsn, {"KEEP_CONNECTIONS": "1"})
    python(tmp_path, env, "django_shop.py")
    with psycopg.connect(server.dsn, autocommit=True) as sql, Penstock(server.dsn) as penstock:
        sql.execute(
            "create table public.import (id int primary key, status text default 'NEW', item text not null,"
            " runs int not null default 0, date_inserted timestamptz default now())"
        )
        sql.execute("insert into public.import (id, item) select n, 'import ' || n from generate_series(1, 3) as n")
        penstock.adopt(
            "public.import", retry="ERROR", done="SUCCESS", failed="ERROR", dead="DEAD", strategy="fixed:100ms"
        )
    command = [*COMMAND, "backlog", "run", "import", "--handler", f"imports:{handler}", "-c", "1", "--json"]
    with (tmp_path / "stderr").open("wb") as err:
        process = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=err)
    try:
        eventually(lambda: count_imported(server) == 3)
        server.stop("fast")
        server = Server.start(server.home, environ=os.environ)
        with psycopg.connect(server.dsn, autocommit=True) as sql:
            sql.execute("insert into public.import (id, item) select n, 'import ' || n from generate_series(4, 9) as n")
        eventually(lambda: count_imported(server) == 9)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    with psycopg.connect(server.dsn) as sql:
        found = sql.execute("select item, count(*) from django_order where item like 'import%' group by 1").fetchall()
        assert {*found} == {(f"import {n}", 1) for n in range(1, 10)}
        runs = {one for (one,) in sql.execute("select runs from public.import")}
        assert runs == {1 if handler == "plain" else 0}


def count_imported(server: Server) -> int:
    """Counts the records of the adopted table that are done."""
    with psycopg.connect(server.dsn) as sql:
        return sql.execute("select 1 from public.import where status = 'SUCCESS'").rowcount


HOOKS = """
import asyncio

from django_shop import Order, app

@app.task(queue="orders", max_attempts=1)
def refuse(n: int) -> None:
    raise LookupError

@app.on_settled_dead
def note_refused(task, error) -> None:
    Order.objects.create(item=f"sync {task.payload['n']}")

@app.on_settled_dead
async def note_refused_async(task, error) -> None:
    await Order.objects.acreate(item=f"async {task.payload['n']}")
"""


def test_hooks_for_dead_tasks_outlive_a_restart_of_postgresql(
    server: Server, tmp_path: Path, shop: Callable[..., Worker]
) -> None:
    python(tmp_path, environment(server.dsn), "django_shop.py")
    (tmp_path / "hooks.py").write_text(HOOKS, "utf-8")
    worker = shop(app="hooks:app")
    with Penstock(server.dsn) as penstock:
        queue = penstock.queue("orders")
        queue.push({"n": 0}, kind="refuse")
        eventually(lambda: count_noted(server) == 2)
        server.stop("fast")
        server = Server.start(server.home, environ=os.environ)
        for n in range(1, 4):
            queue.push({"n": n}, kind="refuse")
        eventually(lambda: queue.status().dead == 4)
        eventually(lambda: count_noted(server) == 8)
        worker.terminate()
        assert worker.process.wait(30) == 0


def count_noted(server: Server) -> int:
    """Counts what the hooks wrote."""
    with psycopg.connect(server.dsn) as sql:
        return sql.execute("select from django_order where item like '%sync %'").rowcount


SETTINGS = """
DATABASES = {{"default": {{
    "ENGINE": "django.db.backends.postgresql", "NAME": {dbname!r}, "OPTIONS": {options!r},
    "TEST": {{"NAME": {test!r}}},
}}}}
INSTALLED_APPS = ["shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
"""
MODELS = """
from django.db import models

class Customer(models.Model):
    name = models.TextField()
    welcomed = models.BooleanField(default=False)
"""
TASKS = """
from penstock import Penstock
from penstock.django import manage_connections

from shop.models import Customer

app = Penstock()
manage_connections(app)

@app.task(queue="mail")
def welcome(customer: int) -> None:
    Customer.objects.filter(pk=customer).update(welcomed=True)

@app.task(queue="mail")
def fail() -> None:
    raise LookupError("boom")
"""
INITIAL = """
from django.db import migrations, models

class Migration(migrations.Migration):
    operations = [migrations.CreateModel("Customer", [
        ("id", models.BigAutoField(primary_key=True)),
        ("name", models.TextField()),
        ("welcomed", models.BooleanField(default=False)),
    ])]
"""
MIGRATION = """
from django.db import migrations

from penstock import Penstock
from penstock.django import dsn

def set_up(apps, editor):
    with Penstock(dsn(editor.connection.alias)) as penstock:
        penstock.init()
        penstock.create_queue("mail", exist_ok=True)

class Migration(migrations.Migration):
    atomic = False
    dependencies = [("shop", "0001_initial")]
    operations = [migrations.RunPython(set_up, migrations.RunPython.noop)]
"""
TESTS = """
from django.test import TestCase, TransactionTestCase

from penstock.django import drain_inline
from shop.models import Customer
from shop.tasks import app, fail, welcome

class WelcomeTest(TransactionTestCase):
    def test_a_customer_is_welcomed(self):
        ann = Customer.objects.create(name="ann")
        welcome.push(ann.pk, connection="default")
        self.assertEqual(drain_inline(app), {"done": 1})
        ann.refresh_from_db()
        self.assertTrue(ann.welcomed)

    def test_what_a_handler_raises_is_raised(self):
        fail.push(connection="default")
        with self.assertRaisesRegex(LookupError, "boom"):
            drain_inline(app, "mail", limit=1)

class FunctionTest(TestCase):
    def test_a_handler_is_a_function(self):
        ann = Customer.objects.create(name="ann")
        welcome(ann.pk)
        ann.refresh_from_db()
        self.assertTrue(ann.welcomed)
"""


def test_the_tests_of_a_project_run_on_its_test_database(dsn: str, queue: Queue, tmp_path: Path) -> None:
    parts = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
    name = parts.pop("dbname")
    files = {
        "settings.py": SETTINGS.format(dbname=name, options=parts, test=f"{name}_django"),
        "shop/__init__.py": "",
        "shop/models.py": MODELS,
        "shop/tasks.py": TASKS,
        "shop/tests.py": TESTS,
        "shop/migrations/__init__.py": "",
        "shop/migrations/0001_initial.py": INITIAL,
        "shop/migrations/0002_penstock.py": MIGRATION,
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, "utf-8")
    env = environment(dsn) | {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(tmp_path)}
    said = python(tmp_path, env, "-m", "django", "test", "--noinput")
    assert "Ran 3 tests" in said
    assert queue.status().totals["pushed"] == 0, "nothing went to the database of the application"
