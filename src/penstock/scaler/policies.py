"""The policies by name: ours first, then the rules of part A, then how others do it."""

from __future__ import annotations

from difflib import get_close_matches

from penstock.errors import ConfigError, shown
from penstock.scaler.deadline import Deadline
from penstock.scaler.decision import Policy
from penstock.scaler.rivals import RIVALS
from penstock.scaler.rules import RULES

DEFAULT = "deadline"
POLICIES: dict[str, Policy] = {DEFAULT: Deadline(), **RULES, **RIVALS}


def find(name: str) -> Policy:
    if name not in POLICIES:
        near = get_close_matches(name, POLICIES, n=1, cutoff=0.4)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise ConfigError(f"policy: {shown(name)} is not known", hint=f"{meant}There are {', '.join(POLICIES)}.")
    return POLICIES[name]
