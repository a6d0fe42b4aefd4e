"""The files of the dashboard under names that change with their content, so that browsers may keep them for ever."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

FILES = {
    "style.css": ("penstock.web", "static/style.css", "text/css"),
    "live.js": ("penstock.web", "static/live.js", "text/javascript"),
    "charts.js": ("penstock.charts", "hover.js", "text/javascript"),
    "icon.svg": ("penstock.web", "static/icon.svg", "image/svg+xml"),
}
FOR_EVER = "public, max-age=31536000, immutable"


class Asset(NamedTuple):
    """A file as it is served."""

    served: str
    body: bytes
    type: str


class Assets:
    """All files, read once."""

    def __init__(self) -> None:
        self._by_name = {name: read_asset(name, *where) for name, where in FILES.items()}
        self._by_served = {one.served: one for one in self._by_name.values()}

    def name(self, name: str) -> str:
        """Returns the name under which a file is served."""
        return self._by_name[name].served

    async def serve(self, request: Request) -> Response:
        """Serves a file. Only the exact names are known, so no path leads out of the package."""
        found = self._by_served.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return Response(found.body, media_type=found.type, headers={"Cache-Control": FOR_EVER})


def read_asset(name: str, package: str, path: str, kind: str) -> Asset:
    """Reads a file of a package."""
    body = files(package).joinpath(path).read_bytes()
    stem, _, ending = name.partition(".")
    return Asset(f"{stem}-{sha256(body).hexdigest()[:12]}.{ending}", body, kind)
