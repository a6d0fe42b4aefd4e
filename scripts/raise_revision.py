"""Raises the revision of the functions if their text, or the number of migrations, differs from the last commit, and
writes src/penstock/sql/revisions.txt. `make schema` runs it. Several runs between two commits raise it once."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import penstock
from penstock import migrate
from penstock.revisions import Revision, parse_revisions

ROOT = Path(__file__).parent.parent
VERSIONS = ROOT / "src" / "penstock" / "sql" / "functions" / "versions.sql"
TARGET = ROOT / "src" / "penstock" / "sql" / "revisions.txt"
NUMBER = re.compile(r"(?<=\nreturn )\d+(?=;\n$)")  # the last function of the file
HEADER = """\
# The revisions of the functions in this directory, oldest first; the last one is that of this Penstock. `make schema`
# writes this list. Columns: the revision, the last migration, the SHA-256 of the functions, and the releases with it.
"""


def main() -> None:
    known = find_committed()
    revision = make_revision(known)
    lines = [*(one for one in known if one.number != revision.number), revision]
    TARGET.write_text(HEADER + "".join(f"{line}\n" for line in lines), "utf-8")
    sys.stdout.write(f"{TARGET} written: revision {revision.number}\n")


def find_committed() -> list[Revision]:
    """Returns the list of the last commit. In a merge it is the longer one of both sides."""
    if not ask_git("rev-parse", "HEAD"):
        raise SystemExit("error: the revision is compared with the last commit, and there is no git repository here")
    return max((read_committed(commit) for commit in ("HEAD", "MERGE_HEAD")), key=find_last_number)


def find_last_number(known: list[Revision]) -> int:
    """Returns the number of the last revision, or 0."""
    return known[-1].number if known else 0


def read_committed(commit: str) -> list[Revision]:
    """Returns the list of a commit, which is empty if the commit has none."""
    return parse_revisions(ask_git("show", f"{commit}:{TARGET.relative_to(ROOT)}"))


def ask_git(*words: str) -> str:
    """Returns what git prints, or nothing if it fails."""
    command = ["git", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    return done.stdout if done.returncode == 0 else ""


def make_revision(known: list[Revision]) -> Revision:
    """Returns the revision of the present text, and writes its number into the functions: the number of the last commit
    if nothing has changed since, and otherwise the next one."""
    last = known[-1] if known else Revision(0, 0, "")
    present = number_text(last.number)
    if (present.migration, present.checksum) == (last.migration, last.checksum):
        return replace(last, releases=add_release(last.releases))
    return replace(number_text(last.number + 1), releases=add_release(()))


def number_text(number: int) -> Revision:
    """Writes a number into the functions, and returns them as a revision."""
    VERSIONS.write_text(NUMBER.sub(str(number), VERSIONS.read_text("utf-8")), "utf-8")
    return Revision(number, migrate.migrations()[-1].number, migrate.functions().checksum)


def add_release(releases: tuple[str, ...]) -> tuple[str, ...]:
    """Adds the present version of Penstock, unless it is one of development."""
    version = penstock.__version__
    return releases if ".dev" in version or version in releases else (*releases, version)


if __name__ == "__main__":
    main()
