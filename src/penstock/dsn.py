"""Where the DSN comes from. A fresh server is started only when somebody says "embedded": a forgotten variable in
production must be an error, never an empty database."""

from __future__ import annotations

from collections.abc import Mapping

from penstock import embedded
from penstock.errors import ConfigError

LIBPQ = ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE")


def find_dsn(given: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """The DSN and where it came from."""
    if given == "embedded":
        server = embedded.Server.start(embedded.home(environ), environ=environ)
        return server.dsn, "the embedded server"
    if given:
        return given, "the dsn given"
    for name in ("PENSTOCK_DSN", "DATABASE_URL"):
        if environ.get(name):
            return find_dsn(environ[name], environ)[0], name
    named = [name for name in LIBPQ if environ.get(name)]
    if named:
        return "", f"libpq's {', '.join(named)}"
    running = embedded.Server.running(embedded.home(environ))
    if running is not None:
        return running.dsn, f"the embedded server in {running.home}"
    raise ConfigError(
        "no database is named, and no embedded server runs in this directory",
        hint="Give --dsn, set PENSTOCK_DSN, DATABASE_URL or PGHOST, or start a server with `penstock up`.",
    )
