"""What causes about a neighbouring step, or another row's action, have in common."""

from __future__ import annotations

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import LEAST
from bufcheck.causes import _support
from bufcheck.offer import pick
from bufcheck.vectors import Array

ENOUGH = 0.05
"""Healthy rows that show what is usual, for every failing one: the last few are not like the others."""


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


def same_action(case: Case, source: Array) -> Array:
    """The chance of each failing row that the action scored is the one that stands in another row, as
    healthy rows show it: a policy may well do the same in two steps, or two agents in one."""
    if not case.facts.is_categorical:
        return np.zeros(len(case))
    there = case.telling & (source >= 0) & case.mostly_right
    there &= case.telling[source]
    alike = (case.all_actions == case.all_actions[source])[there]
    usual = float(alike.mean()) if len(alike) >= max(LEAST, ENOUGH * len(case)) else 0.0
    return np.where(_support.member(case) >= 0, usual, 0.0)
