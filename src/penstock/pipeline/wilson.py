"""How sure a share is that was seen so often. Pure."""

from __future__ import annotations

import math

SURE = 1.96  # standard deviations: 19 of 20 times it is inside


def wilson(successes: int, tries: int, z: float = SURE) -> tuple[float, float]:
    """The least and the most that the true share surely is (Wilson's interval). None tried: it may be anything."""
    if not tries:
        return 0.0, 1.0
    share = successes / tries
    centre = share + z * z / (2 * tries)
    half = z * math.sqrt(share * (1 - share) / tries + z * z / (4 * tries * tries))
    whole = 1 + z * z / tries
    return max(0.0, (centre - half) / whole), min(1.0, (centre + half) / whole)
