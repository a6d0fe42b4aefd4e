"""Assembles the dashboard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from penstock.app import Penstock
from penstock.app_async import AsyncPenstock
from penstock.client.database_async import AsyncDatabase
from penstock.errors import PenstockError
from penstock.web.access import AccessRule, Visitor, connect_as
from penstock.web.guard import Guard
from penstock.web.live import Sampler
from penstock.web.login import Login, TokenLogin
from penstock.web.pages import (
    acts,
    adopted,
    audit,
    doctor,
    failures,
    promises,
    queue,
    schedules,
    stream,
    task,
    tasks,
    workers,
)
from penstock.web.redact import Hide, Redactor
from penstock.web.sessions import Signer
from penstock.web.site import Site, redirect, screen, site_of

MAX_CONNECTIONS = 8


def application(
    app_or_dsn: Penstock | AsyncPenstock | str | None = None,
    *,
    access: AccessRule,
    hide: Hide | None = None,
    secret: bytes | None = None,
) -> ASGIApp:
    """Returns the dashboard as an ASGI application, to be run by itself or mounted in another one.

    `access` decides what a request may do: it returns none, reader, operator or admin, or a `Visitor`, which has a name
    for the audit; it may be `async`. The login of the DSN has to be a member of the roles that it returns.

    `hide` says which values of payloads are never shown: paths by kind, as in
    {"charge": ["card.number"], "*": ["*.token"]}.

    `secret` signs the sessions. Give it if several processes serve the dashboard; each start makes its own otherwise.
    """
    return assemble(app_or_dsn, access=access, hide=hide, secret=secret)


def assemble(
    app_or_dsn: Penstock | AsyncPenstock | str | None,
    *,
    access: AccessRule | None = None,
    login: Login | None = None,
    hide: Hide | None = None,
    secret: bytes | None = None,
    hosts: Collection[str] = (),
) -> Guard:
    """Returns the application, for `application` and for the standalone server, which logs in by itself."""
    rule = access if access is not None else login.visitor if login is not None else None
    assert rule is not None
    database = open_database(app_or_dsn)
    sampler = Sampler(connect_as(database, Visitor("reader")))
    site = Site(database, sampler, rule, login, Signer(secret), Redactor(hide))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await sampler.close()
        await database.close()

    found = Starlette(routes=list_routes(site), lifespan=lifespan, exception_handlers={HTTPException: show_plain})
    found.state.site = site
    return Guard(found, hosts=hosts)


def open_database(given: Penstock | AsyncPenstock | str | None) -> AsyncDatabase:
    """Opens a pool of connections to the database of an application or a DSN."""
    found = given if isinstance(given, (Penstock, AsyncPenstock)) else AsyncPenstock(given)
    return AsyncDatabase(found.dsn, source=found.dsn_source, max_connections=MAX_CONNECTIONS)


def list_routes(site: Site) -> list[Route]:
    """Returns the routes: screens, and what they need."""
    return [
        Route("/", screen(promises.show), name="promises"),
        Route("/queues/{queue}", screen(queue.show), name="queue"),
        Route("/tasks", screen(tasks.show), name="tasks"),
        Route("/tasks/{id:int}", screen(task.show), name="task"),
        Route("/tasks/{id:int}/reveal", screen(task.reveal), name="reveal", methods=["POST"]),
        Route("/tasks/{id:int}/{act}", screen(acts.change_task), name="change_task", methods=["POST"]),
        Route("/plans", screen(acts.make_plan), name="make_plan", methods=["POST"]),
        Route("/plans/{plan}", screen(acts.show_plan), name="plan"),
        Route("/plans/{plan}/apply", screen(acts.apply_plan), name="apply", methods=["POST"]),
        Route("/queues/{queue}/{change}", screen(acts.pause_queue), name="pause_queue", methods=["POST"]),
        Route("/schedules/{change}", screen(acts.pause_schedule), name="pause_schedule", methods=["POST"]),
        Route("/failures", screen(failures.show), name="failures"),
        Route("/workers", screen(workers.show), name="workers"),
        Route("/schedules", screen(schedules.show), name="schedules"),
        Route("/adopted", screen(adopted.show), name="adopted"),
        Route("/doctor", screen(doctor.show), name="doctor"),
        Route("/audit", screen(audit.show), name="audit"),
        Route("/live", screen(stream.show), name="live"),
        Route("/login", log_in, name="login", methods=["POST"]),
        Route("/static/{name}", site.assets.serve, name="static"),
        Route("/healthz", show_health, name="healthz"),
    ]


async def log_in(request: Request) -> Response:
    """Begins a session for a token in a form."""
    site = site_of(request)
    if not isinstance(site.login, TokenLogin):
        return redirect(str(request.scope.get("root_path", "")) + "/")
    try:
        return await site.login.submit(site, request)
    except PenstockError as error:
        return PlainTextResponse(f"{error.message}\n", 400)


async def show_health(request: Request) -> Response:
    """Answers whether the dashboard works: 200, or 503 if PostgreSQL does not answer."""
    try:
        await site_of(request).sampler.view()
    except PenstockError as error:
        return PlainTextResponse(f"{error.code}\n", 503)
    return PlainTextResponse("ok\n")


async def show_plain(_: Request, error: Exception) -> Response:
    """Answers a path that does not exist, and a method that it does not have."""
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)
