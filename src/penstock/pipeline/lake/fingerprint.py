"""Fingerprints of the lake: they tell whether a day, a report or a profile must be made again."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b

from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.schemas import ATTEMPTS, BREACHES, CHANCES, ERRORS, KINDS, MINUTES
from penstock.pipeline.lake.state import LakeState

TABLES_READ = (ATTEMPTS, MINUTES, BREACHES, KINDS, ERRORS, CHANCES)
VERSION = 1  # increase it when a report or a profile contains something new


def fingerprint_lake(lake: Lake) -> str:
    """Returns the fingerprint of everything that reports and profiles read. An equal fingerprint means an equal
    report."""
    return make_signature(VERSION, *([file.digest for file in lake.state.files(table.name)] for table in TABLES_READ))


def make_signature(*parts: Collection[str] | int) -> str:
    """Returns the signature of what a day is made of: the same files in the same version make the same day."""
    text = "\n".join(str(part) if isinstance(part, int) else " ".join(sorted(part)) for part in parts)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def list_paths(state: LakeState, table: str, days: Collection[str]) -> list[str]:
    """Returns the paths of the files of some days of a table."""
    return [file.path for file in state.files(table, days)]
