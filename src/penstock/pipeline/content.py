"""What a page or a profile was made of: the same files, read in the same way, say the same again."""

from __future__ import annotations

from penstock.pipeline.lake import Lake
from penstock.pipeline.schemas import ATTEMPTS, BREACHES, CHANCES, ERRORS, KINDS, MINUTES
from penstock.pipeline.work import signature

READ = (ATTEMPTS, MINUTES, BREACHES, KINDS, ERRORS, CHANCES)
VERSION = 1  # of what is made of them: grows when a page or a profile says something new


def content(lake: Lake) -> str:
    return signature(VERSION, *([file.digest for file in lake.state.files(table.name)] for table in READ))
