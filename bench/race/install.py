"""The peers, by name and by the ordinary clients, in an environment of their own: bench/.peers."""

from __future__ import annotations

import json
import os
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
NODE = PLACE / "node_modules" / ".bin" / "node"
REDIS = PLACE / "redis"
DEBIAN = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")
NO_NPM = "npm is not here: install the Debian packages nodejs and npm"


def install(peers: Iterable[Peer]) -> dict[str, str]:
    """What cannot run, and why."""
    wanted = [*peers]
    PLACE.mkdir(exist_ok=True)
    if any(peer.home == "python" for peer in wanted):
        with_pip()
    if any(peer.home == "node" for peer in wanted):
        with_npm()
    if any(peer.redis for peer in wanted):
        with_apt()
    return {peer.name: why for peer in wanted if (why := missing(peer))}


def said(command: Sequence[str | Path], place: Path = PLACE) -> str | None:
    """None: it went well. Else the last thing it said."""
    try:
        done = subprocess.run([*map(str, command)], cwd=place, capture_output=True, text=True, check=False, timeout=900)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (done.stderr or done.stdout).strip().splitlines()
    return None if done.returncode == 0 else (lines[-1] if lines else f"exit code {done.returncode}")


def unchanged(source: Path, copy: Path) -> bool:
    return copy.exists() and copy.read_bytes() == source.read_bytes()


def with_pip() -> None:
    asked, stamp = SCRIPTS / "requirements.txt", PLACE / "venv" / "requirements.txt"
    if unchanged(asked, stamp):
        return
    print("installing peers with pip", flush=True)
    if not PYTHON.exists():
        said([sys.executable, "-m", "venv", PLACE / "venv"])
    pip: list[str | Path] = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if said([*pip, "-r", asked]) is None:
        shutil.copy(asked, stamp)
        return
    for line in asked.read_text().splitlines():  # one by one: one that cannot be had must not keep the others away
        if line and not line.startswith("#") and (why := said([*pip, line])):
            print(f"  {line}: {why}", flush=True)


def with_npm() -> None:
    asked, stamp = SCRIPTS / "package.json", PLACE / "package.json"
    for script in SCRIPTS.glob("*.mjs"):  # modules are looked for beside the script
        shutil.copy(script, PLACE)
    if unchanged(asked, stamp) and NODE.exists():
        return
    if not shutil.which("npm"):
        return
    print("installing peers with npm", flush=True)
    shutil.copy(asked, stamp)
    # Their Node.js is a package too; what it asks of the one that runs npm does not count.
    npm = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--engine-strict=false", "--silent"]
    if said(npm) is None:
        return
    wanted = json.loads(asked.read_text())["dependencies"]
    stamp.write_text('{"private": true, "type": "module"}\n')
    for name, versions in wanted.items():
        if why := said([*npm, f"{name}@{versions}"]):
            print(f"  {name}: {why}", flush=True)


def with_apt() -> None:
    """Unpacked, not installed: no service starts."""
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
    if peer.home == "python" and said([PYTHON, "-c", f"import {peer.module or peer.package}"]):
        return "pip could not install it"
    if peer.redis and not redis_server():
        return "redis-server is not here: it is a Debian package"
    return None


def versions(peers: Iterable[Peer]) -> dict[str, str]:
    return {peer.name: version_of(peer) for peer in peers if peer.package}


def version_of(peer: Peer) -> str:
    if peer.home == "ours":
        return version(peer.package)
    if peer.home == "node":
        return str(json.loads((PLACE / "node_modules" / peer.package / "package.json").read_text())["version"])
    ask = f"from importlib.metadata import version; print(version({peer.package!r}))"
    found = subprocess.run([PYTHON, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    return f"{found}, Redis {redis_version()}" if peer.redis else found


def redis_version() -> str:
    command = [str(redis_server()), "--version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=redis_environment()).stdout
    return next(word.removeprefix("v=") for word in told.split() if word.startswith("v="))
