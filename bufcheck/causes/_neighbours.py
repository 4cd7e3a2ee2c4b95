"""What causes about a neighbouring step, or another row's action, have in common."""

from __future__ import annotations

import numpy as np

from bufcheck.case import Case
from bufcheck.offer import pick
from bufcheck.vectors import Array


def where(steps: int) -> str:
    return f"{abs(steps)} step{'s' * (abs(steps) > 1)} {'later' if steps > 0 else 'earlier'}"


def lost(case: Case, steps: int) -> Array:
    """Rows at an episode's edge, without such a neighbour."""
    return case.along(steps) < 0


def any_action(case: Case) -> Array:
    """Log-probs, had it been the action of some other row: how often two actions coincide."""
    if not case.facts.is_categorical:
        return np.full(len(case), np.nan)
    return pick(case.log_chances, case.any_action)
