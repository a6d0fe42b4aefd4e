"""Real servers, each in its own home, which are all stopped at the end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.embedded import Server
from penstock.embedded.layout import load_state

Start = Callable[..., Server]


@pytest.fixture
def tidy() -> Iterator[Callable[[Path], Path]]:
    """Registers a home whose server is stopped at the end."""
    homes: list[Path] = []

    def tidy(home: Path) -> Path:
        homes.append(home)
        return home

    yield tidy
    for home in homes:
        leave_nothing(home)


@pytest.fixture
def home(tmp_path: Path, tidy: Callable[[Path], Path]) -> Path:
    return tidy(tmp_path / "home")


@pytest.fixture(scope="session")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a cluster, which is made once because initdb takes most of the time of a first start."""
    home = tmp_path_factory.mktemp("pattern") / "home"
    Server.start(home).stop()
    (home / "state.json").unlink()  # so that no two copies use the same port
    return home


@pytest.fixture
def used(home: Path, pattern: Path) -> Path:
    """A home that had a server before."""
    return Path(shutil.copytree(pattern, home))


@pytest.fixture
def start(home: Path) -> Start:
    """Starts the server of `home`, with little memory so that many can run at once."""

    def start(**options: object) -> Server:
        return Server.start(home, settings={"shared_buffers": "16MB"}, **options)  # type: ignore[arg-type]

    return start


def leave_nothing(home: Path) -> None:
    if server := Server.running(home):
        server.stop("immediate")
    state = load_state(home)
    for outside in ("place", "socket_dir"):
        if outside in state:
            shutil.rmtree(state[outside], ignore_errors=True)
