"""The Wilson score interval of a share. Pure."""

from __future__ import annotations

import math

Z_95 = 1.96  # standard deviations of a 95 % interval


def wilson_interval(successes: int, tries: int, z: float = Z_95) -> tuple[float, float]:
    """Returns the bounds within which the true share lies. Without tries it returns 0 and 1."""
    if not tries:
        return 0.0, 1.0
    share = successes / tries
    centre = share + z * z / (2 * tries)
    half = z * math.sqrt(share * (1 - share) / tries + z * z / (4 * tries * tries))
    whole = 1 + z * z / tries
    return max(0.0, (centre - half) / whole), min(1.0, (centre + half) / whole)
