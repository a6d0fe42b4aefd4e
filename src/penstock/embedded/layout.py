"""The files of the embedded server and where they are.

home/            private: 0700 if Penstock creates it, never changed if it existed before
├── lock         held while a process starts the server
├── state.json   port, and the directories outside of home, if any
├── pgpass       the password, 0600
├── log          the log of PostgreSQL
└── server dir   home itself; a temporary directory when the server's user cannot reach home
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
SOCKET_BYTES = 100  # Linux allows 107, macOS 103
LOG_BYTES = 16 * 1024 * 1024
LOG_LINES = 12
LONGEST_SOCKET = ".s.PGSQL.65535"


def home(environ: Mapping[str, str]) -> Path:
    """Returns `$PENSTOCK_HOME`, or else `./.penstock`. It does not search parent directories."""
    return Path(environ.get("PENSTOCK_HOME") or ".penstock").absolute()


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """Writes a file completely or not at all, and never through a symlink of another user."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(os.fsencode(text))
        file.flush()
        os.fsync(descriptor)
    Path(name).replace(path)


def make_home(home: Path, identity: Identity) -> None:
    """Creates the home. A borrowed user can pass through a home that Penstock creates, but cannot list it."""
    home.mkdir(0o711 if identity.borrowed else 0o700, parents=True, exist_ok=True)
    if not (home / ".gitignore").exists():
        write(home / ".gitignore", "*\n", 0o644)


@contextmanager
def hold_lock(home: Path) -> Iterator[None]:
    """Holds the lock of the home, so that one process at a time starts the server.

    It uses flock and not lockf, because flock also works between threads and ends with the process.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    with open_to_append(home / "lock") as file:
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


def open_to_append(path: Path) -> IO[bytes]:
    """Opens a file to append to it, and does not follow a symlink."""
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600))


def load_state(home: Path) -> dict[str, Any]:
    """Returns the content of state.json, or an empty dict if there is none."""
    try:
        return dict(json.loads((home / "state.json").read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except PermissionError as error:
        raise ConfigError(f"{home} belongs to another user") from error
    except ValueError as error:
        raise ConfigError(f"{home / 'state.json'} is damaged", hint="remove it: it will be written anew") from error


def save_state(home: Path, state: Mapping[str, Any]) -> None:
    """Writes state.json."""
    write(home / "state.json", json.dumps(state) + "\n")


def server_dir_of(home: Path, state: Mapping[str, Any]) -> Path:
    """Returns the directory that holds the cluster."""
    return Path(state.get("place", home))


def data_of(home: Path) -> Path:
    """Returns the data directory of a home."""
    return server_dir_of(home, load_state(home)) / "data"


def owner(home: Path) -> int | None:
    """Returns the user id that owns the cluster, or None if there is no cluster yet."""
    data = data_of(home)
    return data.stat().st_uid if data.exists() else None


def find_server_dir(home: Path, state: dict[str, Any], identity: Identity) -> Path:
    """Returns a directory for the cluster that the server's user can reach, and records it in `state`."""
    server_dir = server_dir_of(home, state)
    if server_dir != home and not is_ours(server_dir, os.geteuid()):
        # A lost data directory is an error; a new, empty database must not silently replace it.
        raise ConfigError(f"the data directory in {server_dir} has disappeared", hint=f"to begin anew, remove {home}")
    if server_dir == home and not identity.reaches(home):
        if (home / "data").exists():
            raise ConfigError(f"{home} cannot be reached by {identity.name}")
        server_dir = temporary(identity, 0o711)
        state["place"] = str(server_dir)
    return server_dir


def find_socket_dir(server_dir: Path, state: dict[str, Any], identity: Identity) -> Path:
    """Returns a directory for the socket.

    A recorded directory is used again if it still exists, so that existing DSNs keep working.
    """
    inside = server_dir / "run"
    if fits(inside):
        inside.mkdir(0o700, exist_ok=True)
        identity.own(inside)
        return inside
    remembered = Path(state.get("socket_dir", ""))
    if "socket_dir" in state and is_ours(remembered, identity.uid):
        return remembered
    outside = temporary(identity, 0o700)
    identity.own(outside)
    state["socket_dir"] = str(outside)
    return outside


def fits(directory: Path) -> bool:
    """Returns whether the path is short enough for a socket and has no comma.

    PostgreSQL and libpq would end the name at a comma.
    """
    path = os.fsencode(directory / LONGEST_SOCKET)
    return len(path) <= SOCKET_BYTES and b"," not in path


def is_ours(directory: Path, uid: int) -> bool:
    """Returns whether a directory belongs to this user and only this user can write to it.

    Any user can create a directory of this name in /tmp after the original is gone.
    """
    try:
        info = directory.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == uid and not info.st_mode & 0o022


def temporary(identity: Identity, mode: int) -> Path:
    """Creates a private temporary directory that this user can reach."""
    for base in map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp")):  # noqa: S108 - mkdtemp makes it private
        if fits(base / "penstock-12345678") and identity.reaches(base):
            directory = Path(tempfile.mkdtemp(prefix="penstock-", dir=base))
            directory.chmod(mode)
            return directory
    raise ConfigError(f"no temporary directory that {identity.name} can reach")


def open_log(home: Path) -> IO[bytes]:
    """Opens the log to append to it. A log of more than 16 MiB is renamed first."""
    log = home / "log"
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(home / "log.1")
    return open_to_append(log)


def read_log_since(log: IO[bytes], mark: int) -> str:
    """Returns the last lines that the server wrote after `mark`."""
    with Path(log.name).open("rb") as file:
        file.seek(max(mark, file.seek(0, os.SEEK_END) - 8192))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-LOG_LINES:])
