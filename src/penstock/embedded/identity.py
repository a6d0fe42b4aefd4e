"""Who runs the server. PostgreSQL refuses root; we create no users and open no directories for that."""

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

# Root goes under another number inside a user namespace of its own, without any capability outside of it; its
# files stay root's and its pid stays the same. Not util-linux's `unshare`: old and small ones cannot map to a number.
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
# What the server's processes inherit: nothing of the starter's variables, be they PG* or secrets.
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.defpath}


@dataclass(frozen=True, slots=True)
class Identity:
    name: str
    uid: int  # who owns the files, as seen from here
    gid: int
    prefix: tuple[str, ...] = ()
    borrowed: bool = False

    def run(
        self, *command: str, text: str | None = None, log: IO[bytes] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. A session of its own keeps the terminal's Ctrl-C away from it."""
        return subprocess.run(  # noqa: S603 - a list, no shell in between
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
        try:
            return self.run(*command).returncode == 0
        except OSError:
            return False

    def reaches(self, directory: Path) -> bool:
        return self.can("test", "-x", str(directory))

    def usable(self) -> bool:
        """Whether it works here is tried, not guessed: containers forbid namespaces in many ways."""
        try:
            return self.run("id", "-u").stdout.strip() not in ("", "0")
        except OSError:
            return False

    def own(self, path: Path) -> None:
        if self.borrowed:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def candidates() -> Iterator[Identity]:
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
    entry = pwd.getpwnam(name)
    return Identity(f"the user {name}", entry.pw_uid, entry.pw_gid, borrowed=True)


def choose(identities: Iterable[Identity], owner: int | None) -> Identity:
    """The first that works here. A cluster that exists keeps its owner: nobody else can run it."""
    tried = []
    for who in identities:
        if owner in (None, who.uid) and who.usable():
            return who
        tried.append(who.name)
    raise ConfigError(
        f"PostgreSQL cannot be run here as {' or '.join(tried) or 'anybody'}"
        + (f": its data belong to the user id {owner}" if owner is not None else ""),
        hint="run penstock as an ordinary user, the one that owns the data" + ("" if os.geteuid() else ", not as root"),
    )
