"""What all screens share: the database, the sampler, the templates, and how a request becomes a page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from penstock.client.conninfo import describe_dsn
from penstock.client.database_async import AsyncDatabase
from penstock.errors import AuthError, Conflict, NotFound, PayloadTooLarge, PenstockError, Unavailable, ValidationError
from penstock.web.access import AccessRule, Level, Visitor, connect_as, find_visitor
from penstock.web.assets import Assets
from penstock.web.guard import is_same_origin, read_form
from penstock.web.live import Sampler, View
from penstock.web.login import Login
from penstock.web.plans import Plans
from penstock.web.redact import Redactor
from penstock.web.sessions import Session, Signer, make_cookie, new_session, read_session
from penstock.web.templating import Templates

Handler = Callable[["Page"], Awaitable[Response]]

NAVIGATION = (
    ("promises", "Promises"),
    ("tasks", "Tasks"),
    ("failures", "Failures"),
    ("workers", "Workers"),
    ("schedules", "Schedules"),
    ("adopted", "Adopted tables"),
    ("doctor", "Doctor"),
    ("audit", "Audit"),
)
STATUS_OF: tuple[tuple[type[PenstockError], int], ...] = (
    (NotFound, 404),
    (PayloadTooLarge, 413),
    (ValidationError, 400),
    (Conflict, 409),
    (AuthError, 403),
    (Unavailable, 503),
)


@dataclass(frozen=True, slots=True)
class Site:
    """One dashboard: everything that lives as long as its process."""

    database: AsyncDatabase
    sampler: Sampler
    access: AccessRule
    login: Login | None
    signer: Signer
    redactor: Redactor
    assets: Assets = field(default_factory=Assets)
    templates: Templates = field(default_factory=Templates)
    times: dict[str, tuple[float, Any]] = field(default_factory=dict)
    plans: Plans = field(default_factory=Plans)

    @property
    def name(self) -> str:
        """The database, without its password."""
        return describe_dsn(self.database.dsn)


def site_of(request: HTTPConnection) -> Site:
    """Returns the site that a request is for."""
    return cast("Site", request.app.state.site)


class Page:
    """One request: who sends it, and what it may see."""

    def __init__(self, site: Site, request: Request, visitor: Visitor, session: Session) -> None:
        self.site, self.request, self.visitor, self.session = site, request, visitor, session
        self.database = connect_as(site.database, visitor)
        self.form: dict[str, str] = {}

    @property
    def root(self) -> str:
        """The path at which the dashboard is mounted."""
        return str(self.request.scope.get("root_path", ""))

    def url(self, screen_name: str, /, **parameters: Any) -> str:
        """Returns the path of a screen, below the path at which the dashboard is mounted."""
        return self.root + str(self.request.app.url_path_for(screen_name, **parameters))

    async def view(self) -> View:
        """Returns the board of this moment."""
        return await self.site.sampler.view()

    def render(self, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
        """Renders a screen."""
        shared = {
            "page": self,
            "url": self.url,
            "static": lambda name: self.url("static", name=self.site.assets.name(name)),
            "visitor": self.visitor,
            "form_token": self.site.signer.form_token(self.session),
            "navigation": NAVIGATION,
            "database_name": self.site.name,
            "here": template.partition(".")[0],
            "live": None,
        }
        return HTMLResponse(self.site.templates.render(template, {**shared, **context}), status)

    def render_error(self, error: PenstockError) -> HTMLResponse:
        """Renders an error as a screen that says what to do next."""
        return self.render("error.html", status=status_of(error), error=error)


def status_of(error: PenstockError) -> int:
    """Returns the HTTP status for an error."""
    return next((status for kind, status in STATUS_OF if isinstance(error, kind)), 500)


def screen(handler: Handler, *, needs: Level = "reader") -> Callable[[Request], Awaitable[Response]]:
    """Makes an endpoint of a screen: it finds the visitor, refuses requests from other origins that would change
    something, and turns errors into screens."""

    async def endpoint(request: Request) -> Response:
        site = site_of(request)
        if site.login is not None and (answer := await site.login.enter(site.signer, request)) is not None:
            return answer
        visitor = await find_visitor(site.access, request)
        session = read_session(site.signer, request)
        if session is None:
            session = new_session()
            request.state.set_cookie = make_cookie(site.signer, session, request)
        if visitor.level == "none":
            return refuse_visitor(site, request)
        page = Page(site, request, visitor, session)
        try:
            if request.method == "POST":
                await check_form(page)
            if not visitor.may(needs):
                raise AuthError(f"this needs the level {needs}", hint=f"You are a {visitor.level} here.")
            return await handler(page)
        except PenstockError as error:
            return page.render_error(error)

    return endpoint


async def check_form(page: Page) -> None:
    """Refuses a form that a page of another origin sent, or that lacks the token of the session."""
    if not is_same_origin(page.request):
        raise AuthError("the request comes from another origin", hint="Use the forms of this dashboard.")
    page.form = await read_form(page.request)
    if not page.site.signer.is_form_token(page.session, page.form.get("form_token", "")):
        raise AuthError("the form is not of this session", hint="Load the page again, and repeat what you did.")


def refuse_visitor(site: Site, request: Request) -> Response:
    """Answers a visitor without access: with the way to log in, if there is one."""
    if site.login is not None:
        return site.login.challenge(request, site)
    return Response("You have no access to this dashboard.\n", 403, media_type="text/plain")


def redirect(target: str) -> Response:
    """Redirects a browser after a form."""
    return RedirectResponse(target, 303)
