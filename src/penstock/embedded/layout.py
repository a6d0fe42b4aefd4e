"""What lies where.

home/            ours alone: 0700 when we make it, never touched when it was there
├── lock         held while somebody starts the server
├── state.json   port, and the directories outside of home, if any
├── pgpass       the password, 0600
├── log          what PostgreSQL says
└── the place    home itself; a temporary directory when the server's user cannot reach home
    ├── data     the cluster, 0700
    ├── run      the socket; a temporary directory when the path would be too long for one
    ├── pg       a copy of the binaries, only when the server's user cannot reach the originals
    └── penstock.conf
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from penstock.embedded.identity import Identity
from penstock.errors import ConfigError, Unavailable

LOCK_SECONDS = 120
SOCKET_BYTES = 100  # the kernel takes 107, macOS 103
LOG_BYTES = 16 * 1024 * 1024
LOG_LINES = 12
LONGEST_SOCKET = ".s.PGSQL.65535"


def home(environ: Mapping[str, str]) -> Path:
    """`$PENSTOCK_HOME`, else `./.penstock`. There is no search upwards."""
    return Path(environ.get("PENSTOCK_HOME") or ".penstock").absolute()


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """All or nothing, never through somebody's symlink."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(os.fsencode(text))
        file.flush()
        os.fsync(descriptor)
    Path(name).replace(path)


def make_home(home: Path, who: Identity) -> None:
    """A borrowed user may walk through a home that we make, not look around in it."""
    home.mkdir(0o711 if who.borrowed else 0o700, parents=True, exist_ok=True)
    if not (home / ".gitignore").exists():
        write(home / ".gitignore", "*\n", 0o644)


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """One starter at a time. flock, not lockf: it holds between threads too, and dies with the process."""
    deadline = time.monotonic() + LOCK_SECONDS
    with appending(home / "lock") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unavailable(f"another process holds {file.name} for {LOCK_SECONDS} s") from None
                time.sleep(0.02)
            else:
                break
        yield


def appending(path: Path) -> IO[bytes]:
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600))


def load_state(home: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((home / "state.json").read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except PermissionError as error:
        raise ConfigError(f"{home} belongs to another user") from error
    except ValueError as error:
        raise ConfigError(f"{home / 'state.json'} is damaged", hint="remove it: it will be written anew") from error


def save_state(home: Path, state: Mapping[str, Any]) -> None:
    write(home / "state.json", json.dumps(state) + "\n")


def place_of(home: Path, state: Mapping[str, Any]) -> Path:
    return Path(state.get("place", home))


def data_of(home: Path) -> Path:
    return place_of(home, load_state(home)) / "data"


def owner(home: Path) -> int | None:
    """Whose the cluster is; None before there is one."""
    data = data_of(home)
    return data.stat().st_uid if data.exists() else None


def find_place(home: Path, state: dict[str, Any], who: Identity) -> Path:
    place = place_of(home, state)
    if place != home and not is_ours(place, os.geteuid()):
        # Never a fresh and empty database in silence.
        raise ConfigError(f"the data directory in {place} has disappeared", hint=f"to begin anew, remove {home}")
    if place == home and not who.reaches(home):
        if (home / "data").exists():
            raise ConfigError(f"{home} cannot be reached by {who.name}")
        place = temporary(who, 0o711)
        state["place"] = str(place)
    return place


def find_socket_dir(place: Path, state: dict[str, Any], who: Identity) -> Path:
    """The remembered one if it is still there, so that DSNs given out keep working."""
    inside = place / "run"
    if fits(inside):
        inside.mkdir(0o700, exist_ok=True)
        who.own(inside)
        return inside
    remembered = Path(state.get("socket_dir", ""))
    if "socket_dir" in state and is_ours(remembered, who.uid):
        return remembered
    outside = temporary(who, 0o700)
    who.own(outside)
    state["socket_dir"] = str(outside)
    return outside


def fits(directory: Path) -> bool:
    """Short enough for a socket; and a comma would be the end of the name to PostgreSQL and to libpq."""
    path = os.fsencode(directory / LONGEST_SOCKET)
    return len(path) <= SOCKET_BYTES and b"," not in path


def is_ours(directory: Path, uid: int) -> bool:
    """Anybody may make a directory of this name in /tmp after ours has gone."""
    try:
        info = directory.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == uid and not info.st_mode & 0o022


def temporary(who: Identity, mode: int) -> Path:
    for base in map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp")):  # noqa: S108 - mkdtemp makes it private
        if fits(base / "penstock-12345678") and who.reaches(base):
            directory = Path(tempfile.mkdtemp(prefix="penstock-", dir=base))
            directory.chmod(mode)
            return directory
    raise ConfigError(f"no temporary directory that {who.name} can reach")


def open_log(home: Path) -> IO[bytes]:
    log = home / "log"
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(home / "log.1")
    return appending(log)


def said_since(log: IO[bytes], mark: int) -> str:
    """The last lines that the server wrote after `mark`."""
    with Path(log.name).open("rb") as file:
        file.seek(max(mark, file.seek(0, os.SEEK_END) - 8192))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-LOG_LINES:])
