"""The policies by name: the default, the rules of the article, and the policies of other tools."""

from __future__ import annotations

from difflib import get_close_matches

from penstock.errors import ConfigError, shown
from penstock.scaler.policy.deadline import Deadline
from penstock.scaler.policy.decision import Policy
from penstock.scaler.policy.other_tools import OTHER_TOOLS
from penstock.scaler.policy.rules import RULES

DEFAULT = "deadline"
POLICIES: dict[str, Policy] = {DEFAULT: Deadline(), **RULES, **OTHER_TOOLS}


def find(name: str) -> Policy:
    """Returns the policy of that name, with its default settings."""
    if name not in POLICIES:
        near = get_close_matches(name, POLICIES, n=1, cutoff=0.4)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise ConfigError(f"policy: {shown(name)} is not known", hint=f"{meant}There are {', '.join(POLICIES)}.")
    return POLICIES[name]
