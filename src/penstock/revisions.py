"""The revisions of the functions in sql/, from the list that `make schema` writes. A revision stands for a whole
schema: these functions, and all migrations up to one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from penstock.errors import ValidationError, shown

LIST = files("penstock") / "sql" / "revisions.txt"


@dataclass(frozen=True, slots=True)
class Revision:
    """One line of the list."""

    number: int
    migration: int  # the last one
    checksum: str  # of the functions
    releases: tuple[str, ...] = ()  # the versions of Penstock that contain it

    def __str__(self) -> str:
        return f"{self.number:>8} {self.migration:>9}  {self.checksum}  {' '.join(self.releases)}".rstrip()


def parse_revisions(text: str) -> list[Revision]:
    """Returns the revisions of a list. Lines that do not begin with a number are comments."""
    lines = [words for words in map(str.split, text.splitlines()) if words and words[0].isdecimal()]
    return [Revision(int(words[0]), int(words[1]), words[2], tuple(words[3:])) for words in lines]


@cache
def revisions() -> tuple[Revision, ...]:
    """Returns all revisions up to that of this Penstock, which is the last."""
    return tuple(parse_revisions(LIST.read_text("utf-8")))


def our_revision() -> int:
    """Returns the number of the revision of this Penstock's own functions."""
    return revisions()[-1].number


def find_revision(version: str) -> Revision:
    """Returns the revision that a person names, by its number or by a release of Penstock."""
    for revision in reversed(revisions()):
        if version.strip().removeprefix("v") in (str(revision.number), *revision.releases):
            return revision
    raise ValidationError(
        f"from: {shown(version)} is not known; known are {describe_known()}",
        hint="`penstock doctor` and `select penstock.revision()` tell the revision of a database. "
        "For a later one, upgrade Penstock.",
        field="from",
    )


def describe_known() -> str:
    """Returns what `find_revision` accepts, in words."""
    known = revisions()
    releases = [release for revision in known for release in revision.releases]
    return (
        f"the revisions {known[0].number} to {known[-1].number} and the releases {', '.join(releases) or '(none yet)'}"
    )
