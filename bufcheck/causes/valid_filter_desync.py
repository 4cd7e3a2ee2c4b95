"""Rows were dropped from one tensor only: from there on its values stand one row too early, and one
more for every row dropped."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import Hypothesis, Verdict
from bufcheck.causes import _permutation
from bufcheck.vectors import Array

FIX = (
    "Filter every tensor of the batch with the same mask, in one place; compare their lengths after it."
)
RANK = 3
APPLIES = None


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    kind = _permutation.classified(case, unexplained)
    if kind is None or kind.name != "growing":
        return
    f, moves = kind.moves.failing, kind.moves
    ahead = f.row_id[moves.source] - f.row_id[moves.target]
    most = int(np.quantile(ahead[ahead > 0], 0.99))
    yield Hypothesis(
        {"rows_dropped": most},
        lambda case: _desynced(case, most),
        f"the stored value is the replayed one of a row further on, by an offset that grows to {most}",
    )


def _desynced(case: Case, most: int) -> Verdict:
    """Follows the offset row by row: the smallest not below the last that fits."""
    ids, replayed = case.scalars["row_id"], case.scalars["replayed"]
    at, stored = case.of("row_id"), case.stored
    near = case.near(stored)
    offsets = np.full(len(case), -1)
    place = np.searchsorted(ids, at)
    for offset in range(most + 1, 0, -1):
        there = np.minimum(place + offset, len(ids) - 1)
        with np.errstate(invalid="ignore"):
            fits = (ids[there] == at + offset) & (np.abs(replayed[there] - stored) <= near)
        offsets[fits] = offset
    explained = offsets > 0
    sources = np.where(explained, at + offsets, -1)
    # What stands at the end of the stretch is padding.
    return Verdict(explained, ~explained, 1e-5 * (most + 1), sources)
