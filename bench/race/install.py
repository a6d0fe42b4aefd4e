"""Installs the peers with their usual package managers into an environment of their own: bench/.peers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from bench.race.contestants import Peer

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = ROOT / "bench" / "peers"
PLACE = ROOT / "bench" / ".peers"
PYTHON = PLACE / "venv" / "bin" / "python"
NEWER = PLACE / "venv-newer" / "bin" / "python"  # for peers that do not run on the Python of the race
OLDEST_NEWER = (3, 12)
NODE = PLACE / "node_modules" / ".bin" / "node"
REDIS = PLACE / "redis"
DEBIAN = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")
NO_NPM = "npm is not here: install the Debian packages nodejs and npm"


def install(peers: Iterable[Peer]) -> dict[str, str]:
    """Installs the peers, and returns those that cannot run, with the reasons."""
    wanted = [*peers]
    PLACE.mkdir(exist_ok=True)
    if any(peer.home == "python" for peer in wanted):
        with_pip(PYTHON, "requirements.txt", sys.executable)
    if any(peer.home == "newer python" for peer in wanted) and (newer := newer_python()):
        with_pip(NEWER, "requirements-newer.txt", newer)
    if any(peer.home == "node" for peer in wanted):
        with_npm()
    if any(peer.redis for peer in wanted):
        with_apt()
    return {peer.name: why for peer in wanted if (why := missing(peer))}


def said(command: Sequence[str | Path], directory: Path = PLACE) -> str | None:
    """Runs a command. Returns None if it succeeds, otherwise its last line of output."""
    try:
        done = subprocess.run(
            [*map(str, command)], cwd=directory, capture_output=True, text=True, check=False, timeout=900
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (done.stderr or done.stdout).strip().splitlines()
    return None if done.returncode == 0 else (lines[-1] if lines else f"exit code {done.returncode}")


def unchanged(source: Path, copy: Path) -> bool:
    return copy.exists() and copy.read_bytes() == source.read_bytes()


def newer_python() -> str | None:
    """Returns a Python that is new enough for all peers: an installed one, one of pyenv, or one that uv gets."""
    if fits(str(NEWER)):
        return str(NEWER)
    versions = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"), key=version_numbers, reverse=True)
    candidates = [sys.executable, "python3.14", "python3.13", "python3.12", *map(str, versions)]
    return next(filter(fits, candidates), None) or from_uv()


def version_numbers(python: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", python.parent.parent.name)]


def fits(python: str) -> bool:
    return said([python, "-c", f"import sys; sys.exit(sys.version_info < {OLDEST_NEWER})"], ROOT) is None


def from_uv() -> str | None:
    if not shutil.which("uv") or said(["uv", "python", "install", "3.13"], ROOT):
        return None
    found = subprocess.run(["uv", "python", "find", "3.13"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def with_pip(python: Path, requirements: str, made_by: str) -> None:
    """Makes an environment for peers with the interpreter `made_by`."""
    place = python.parent.parent
    asked, stamp = SCRIPTS / requirements, place / requirements
    if unchanged(asked, stamp):
        return
    print("installing peers with pip", flush=True)
    if not python.exists():
        said([made_by, "-m", "venv", place])
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if said([*pip, "-r", asked]) is None:
        shutil.copy(asked, stamp)
        return
    for line in asked.read_text().splitlines():  # one by one, so that one that fails does not prevent the others
        if line and not line.startswith("#") and (why := said([*pip, line])):
            print(f"  {line}: {why}", flush=True)


def with_npm() -> None:
    asked, stamp = SCRIPTS / "package.json", PLACE / "package.json"
    for script in SCRIPTS.glob("*.mjs"):  # because Node.js looks for modules beside the script
        shutil.copy(script, PLACE)
    if unchanged(asked, stamp) and NODE.exists():
        return
    if not shutil.which("npm"):
        return
    print("installing peers with npm", flush=True)
    shutil.copy(asked, stamp)
    # The peers' Node.js is a package too, so the version of the one that runs npm does not matter.
    npm = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--engine-strict=false", "--silent"]
    if said(npm) is None:
        return
    wanted = json.loads(asked.read_text())["dependencies"]
    stamp.write_text('{"private": true, "type": "module"}\n')
    for name, versions in wanted.items():
        if why := said([*npm, f"{name}@{versions}"]):
            print(f"  {name}: {why}", flush=True)


def with_apt() -> None:
    """Unpacks the packages without installing them, so that no service starts."""
    if redis_server():
        return
    print("unpacking redis-server", flush=True)
    REDIS.mkdir(exist_ok=True)
    if why := said(["apt-get", "download", *DEBIAN], REDIS):
        print(f"  redis-server: {why}", flush=True)
    for package in REDIS.glob("*.deb"):
        said(["dpkg", "-x", package, REDIS])


def redis_server() -> str | None:
    unpacked = REDIS / "usr" / "bin" / "redis-server"
    return str(unpacked) if unpacked.exists() else shutil.which("redis-server")


def redis_environment() -> dict[str, str]:
    libraries = [str(one) for one in (REDIS / "usr" / "lib").glob("*-linux-gnu")]
    return {**os.environ, **({"LD_LIBRARY_PATH": ":".join(libraries)} if libraries else {})}


def missing(peer: Peer) -> str | None:
    if peer.home == "node":
        if not shutil.which("npm") and not NODE.exists():
            return NO_NPM
        return None if (PLACE / "node_modules" / peer.package).exists() else "npm could not install it"
    if peer.home == "newer python" and not NEWER.exists():
        return f"it needs Python {'.'.join(map(str, OLDEST_NEWER))}, and neither pyenv nor uv has one here"
    if peer.in_python and said([python_of(peer), "-c", f"import {peer.module or peer.package}"]):
        return "pip could not install it"
    if peer.redis and not redis_server():
        return "redis-server is not here: it is a Debian package"
    return None


def python_of(peer: Peer) -> Path:
    return NEWER if peer.home == "newer python" else PYTHON


def versions(peers: Iterable[Peer]) -> dict[str, str]:
    return {peer.name: version_of(peer) for peer in peers if peer.package}


def version_of(peer: Peer) -> str:
    if peer.home == "ours":
        return version(peer.package)
    if peer.home == "node":
        return str(json.loads((PLACE / "node_modules" / peer.package / "package.json").read_text())["version"])
    ask = f"from importlib.metadata import version; print(version({peer.package!r}))"
    found = subprocess.run([python_of(peer), "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    return f"{found}, Redis {redis_version()}" if peer.redis else found


def redis_version() -> str:
    command = [str(redis_server()), "--version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=redis_environment()).stdout
    return next(word.removeprefix("v=") for word in told.split() if word.startswith("v="))
