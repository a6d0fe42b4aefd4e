"""Finds the DSN. A new server is started only for the explicit DSN "embedded": a forgotten variable in production must
be an error, never an empty database."""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock import embedded
from penstock.errors import ConfigError

LIBPQ = ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE")


def find_dsn(given: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """Returns the DSN and where it came from."""
    if given == "embedded":
        server = embedded.Server.start(embedded.home(environ), environ=environ)
        return server.dsn, "the embedded server"
    if given:
        # SQLAlchemy's URLs also name the driver, which libpq does not understand.
        return re.sub(r"^(postgres(?:ql)?)\+\w+://", r"\1://", given), "the dsn given"
    for name in ("PENSTOCK_DSN", "DATABASE_URL"):
        if environ.get(name):
            return find_dsn(environ[name], environ)[0], name
    named = [name for name in LIBPQ if environ.get(name)]
    if named:
        return "", f"libpq's {', '.join(named)}"
    home = embedded.home(environ)
    running = embedded.Server.running(home)
    if running is not None:
        return running.dsn, f"the embedded server in {running.home}"
    stopped = f"the embedded server in {home} is stopped" if home.is_dir() else f"no embedded server runs in {home}"
    raise ConfigError(
        f"no database is named, and {stopped}",
        hint="Give --dsn, set PENSTOCK_DSN, DATABASE_URL or PGHOST, or start a server with `penstock up`.",
    )
