"""Stretches of failing rows: where one begins tells a filter from a shift."""

from __future__ import annotations

import numpy as np

from bufcheck.case import Case
from bufcheck.vectors import Array

GAP = 4
"""Healthy rows in a row that may lie within a stretch, or beside it: a single choice has log-prob 0
anywhere."""
LONG, MOSTLY = 3, 0.7
"""Rows that are no longer single ones; and how many of all stretches are most of them."""


def numbered(row_id: Array) -> Array:
    """The number of the stretch each row is in."""
    return np.concatenate([[0], np.cumsum(np.diff(row_id) > GAP)])


def inside(case: Case, first: Array) -> float:
    """How many stretches start within an episode, by their first rows: behind a row that is right. One
    behind another failing row may start there or not."""
    told = case.wrong | case.telling
    before = np.concatenate([[0], last_told(told)[:-1]])[case.at[first]]
    there = told[before] & (before < case.at[first])
    there &= case.scalars["episode"][before] == case.of("episode")[first]
    clear = ~(there & case.wrong[before])
    return float(there[clear].mean()) if clear.any() else 0.0


def long_ones(case: Case, rows: Array) -> tuple[Array, Array, Array] | None:
    """The number of each row's stretch; and of the long ones the size and the place of the first row.
    None where most of these failing rows stand alone."""
    if not len(rows):
        return None
    stretch = numbered(case.of("row_id")[rows])
    sizes = np.bincount(stretch)
    long = sizes >= LONG
    if sizes[long].sum() < 0.6 * len(rows):
        return None
    return stretch, sizes[long], np.searchsorted(stretch, np.arange(len(sizes)))[long]


def begin_inside(case: Case, rows: Array) -> bool:
    """Whether these failing rows are stretches that mostly begin within an episode."""
    found = long_ones(case, rows)
    return found is not None and inside(case, rows[found[2]]) >= MOSTLY


def last_told(told: Array) -> Array:
    """For every row the place of the last one told, itself or before it; the first row's if none is."""
    found: Array = np.maximum.accumulate(np.where(told, np.arange(len(told)), 0))
    return found
