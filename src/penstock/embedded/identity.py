"""Chooses the user that runs the server.

PostgreSQL refuses to run as root; Penstock creates no users and opens no directories for that.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from penstock.errors import ConfigError

# Root takes another user id inside its own user namespace, and has no capability outside of it. Its files still belong
# to root and its pid stays the same. This does not use util-linux's `unshare`, because old and small versions cannot
# map to a user id.
NAMESPACE = """
import ctypes, os, sys
from pathlib import Path
uid, gid = os.geteuid(), os.getegid()
if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):  # CLONE_NEWUSER
    sys.exit(os.strerror(ctypes.get_errno()))
Path("/proc/self/setgroups").write_text("deny")
Path("/proc/self/uid_map").write_text(f"1000 {uid} 1")
Path("/proc/self/gid_map").write_text(f"1000 {gid} 1")
os.execvp(sys.argv[1], sys.argv[1:])
"""
# The server's processes inherit none of the variables of the starting process, neither PG* variables nor secrets.
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.defpath}


@dataclass(frozen=True, slots=True)
class Identity:
    """A user that can run the server, and how to run a command as that user."""

    name: str
    uid: int  # the owner of the files, as seen from this process
    gid: int
    prefix: tuple[str, ...] = ()
    borrowed: bool = False

    def run(
        self, *command: str, text: str | None = None, log: IO[bytes] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end.

        The command runs in its own session, so that Ctrl-C in the terminal does not reach it.
        """
        return subprocess.run(  # noqa: S603 - the command is a list, without a shell
            [*self.prefix, *command],
            input=text or "",
            stdout=subprocess.PIPE,
            stderr=log or subprocess.DEVNULL,
            text=True,
            check=False,
            cwd="/",
            env=ENVIRONMENT,
            start_new_session=True,
            user=self.uid if self.borrowed else None,
            group=self.gid if self.borrowed else None,
            extra_groups=[] if self.borrowed else None,
        )

    def can(self, *command: str) -> bool:
        """Returns whether a command succeeds."""
        try:
            return self.run(*command).returncode == 0
        except OSError:
            return False

    def reaches(self, directory: Path) -> bool:
        """Returns whether this user can enter a directory."""
        return self.can("test", "-x", str(directory))

    def usable(self) -> bool:
        """Returns whether this identity works here.

        It runs a command to find out, because containers forbid namespaces in many ways.
        """
        try:
            return self.run("id", "-u").stdout.strip() not in ("", "0")
        except OSError:
            return False

    def own(self, path: Path) -> None:
        """Gives a file to this user, if the user is not the one of this process."""
        if self.borrowed:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def candidates() -> Iterator[Identity]:
    """Yields the identities to try, in order of preference."""
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        yield Identity("this user", uid, gid)
        return
    if sys.platform == "linux":
        yield Identity("a user namespace", uid, gid, prefix=(sys.executable, "-I", "-S", "-c", NAMESPACE))
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            yield borrow(name)


def borrow(name: str) -> Identity:
    """Returns the identity of a system user."""
    entry = pwd.getpwnam(name)
    return Identity(f"the user {name}", entry.pw_uid, entry.pw_gid, borrowed=True)


def choose(identities: Iterable[Identity], owner: int | None) -> Identity:
    """Returns the first identity that works here.

    An existing cluster keeps its owner, because no other user can run it.
    """
    tried = []
    for identity in identities:
        if owner in (None, identity.uid) and identity.usable():
            return identity
        tried.append(identity.name)
    raise ConfigError(
        f"PostgreSQL cannot be run here as {' or '.join(tried) or 'anybody'}"
        + (f": its data belong to the user id {owner}" if owner is not None else ""),
        hint="run penstock as an ordinary user, the one that owns the data" + ("" if os.geteuid() else ", not as root"),
    )
