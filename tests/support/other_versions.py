"""Other versions of Penstock, each in a directory for PYTHONPATH: that of an earlier commit, and one that comes after
this version."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from penstock.client.session import OUR_CONTRACT
from penstock.revisions import our_revision, revisions

ROOT = Path(__file__).parent.parent.parent
FUNCTIONS = ("src/penstock/sql/functions", "src/penstock/sql/grants.sql")
LATER = "create table penstock.later (n int);\n"


class NoHistoryError(Exception):
    """Git, or the history of this directory, is not there."""


def find_commit_before() -> str:
    """Returns the commit before the last change of the functions, so that an upgrade from it replaces them."""
    if git("status", "--porcelain", "--", *FUNCTIONS):
        return git("rev-parse", "HEAD").strip()
    last = git("log", "-1", "--format=%H", "--", *FUNCTIONS).strip()
    return git("rev-parse", f"{last}~1").strip()


def check_out(commit: str, home: Path) -> Path:
    """Writes the sources of a commit into a directory, and returns the entry for PYTHONPATH."""
    archive = home / "sources.tar"
    git("archive", f"--output={archive}", commit, "src")
    shutil.unpack_archive(archive, home, filter="data")
    return home / "src"


def git(*words: str) -> str:
    """Returns what git prints."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise NoHistoryError("git is not installed") from None
    except subprocess.CalledProcessError as error:
        raise NoHistoryError(f"git {words[0]}: {error.stderr.strip()}") from None
    return done.stdout


def make_later(home: Path, *, contracts: int = 1) -> Path:
    """Writes a later version of Penstock: with one more migration, the next revision, and a contract that is later by
    `contracts` and serves the one before it. Returns the entry for PYTHONPATH."""
    source = home / "src"
    shutil.copytree(ROOT / "src/penstock", source / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    sql, session = source / "penstock/sql", source / "penstock/client/session.py"
    contract, revision = OUR_CONTRACT + contracts, our_revision() + 1
    (sql / "migrations/0002_later.sql").write_text(LATER)
    rewrite(session, r"(?m)^OUR_CONTRACT = \d+", f"OUR_CONTRACT = {contract}")
    for name, number in (("contract", contract), ("oldest_client", contract - 1), ("revision", revision)):
        rewrite(sql / "functions/versions.sql", rf"(function penstock\.{name}\(\)[^;]*return )\d+", rf"\g<1>{number}")
    with (sql / "revisions.txt").open("a") as file:
        file.write(f"{revision} 2 {revisions()[-1].checksum}\n")
    return source


def rewrite(path: Path, pattern: str, replacement: str) -> None:
    """Replaces the one place of a file that the pattern matches."""
    text, count = re.subn(pattern, replacement, path.read_text("utf-8"))
    assert count == 1, f"{path}: {count} places match {pattern}"
    path.write_text(text, "utf-8")
