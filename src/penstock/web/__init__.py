"""The dashboard and the HTTP API, as one ASGI application.

    uvicorn.run(penstock.web.application(app, access=lambda request: "reader"))

`application` assembles it; `access` decides the level of a visitor, and PostgreSQL enforces it: every transaction of a
request runs as penstock_reader, penstock_operator or penstock_admin. `live` reads the board once a second for all
visitors; `pages` has a file for each screen.
"""

from __future__ import annotations

from importlib.util import find_spec

from penstock.errors import ConfigError

if missing := [name for name in ("starlette", "jinja2") if find_spec(name) is None]:
    raise ConfigError(f"the dashboard needs {' and '.join(missing)}", hint="Install it: pip install 'penstock[web]'.")

from penstock.web.access import AccessRule, Level, Visitor
from penstock.web.application import application

__all__ = ["AccessRule", "Level", "Visitor", "application"]
