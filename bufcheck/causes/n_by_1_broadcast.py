"""One value stands in a whole batch: a [N, 1] and a [N] tensor were broadcast against each other, and
the mean of what came out was stored for every row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bufcheck.case import Case, Failing
from bufcheck.cause import LEAST, LIKELY, PROVEN, Hypothesis
from bufcheck.causes import _permutation
from bufcheck.vectors import Array

FIX = "Give both tensors one shape before they meet (squeeze(-1) the [N, 1]), and assert it."
RANK = 2
APPLIES = None
WRONG = "log_prob"
LEAST_RUN = 8
DENSE = 0.3
"""How much of a stretch of failing rows holds its value."""


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    failing = case.facts.failing
    if failing is None:
        return
    some = np.flatnonzero(_permutation.open_rows(case, failing, unexplained))
    of_some, lengths = _runs(failing.stored[some], max(LEAST_RUN, 2 * case.most_agents))
    run = np.full(len(failing.row_id), -1)
    run[some] = of_some
    rows = np.flatnonzero(run >= 0)
    if len(rows) < LEAST:
        return
    means = np.bincount(run[rows], np.nan_to_num(failing.replayed[rows])) / lengths
    value = np.zeros(len(lengths))
    value[run[rows]] = failing.stored[rows]
    # Nearly: the first and last rows of a batch may hold the right value by accident and not fail.
    is_mean = np.abs(value - means) <= 0.02 + 3 / lengths
    # A value that all of its rows' own lie on one side of is a bound, not what was broadcast.
    above = np.bincount(run[rows], failing.replayed[rows] > value[run[rows]]) / lengths
    kept = is_mean | (np.abs(above - 0.5) < 0.49)
    if not kept.any():
        return
    rows, lengths, is_mean = rows[kept[run[rows]]], lengths[kept], is_mean[kept]
    block = int(np.median(lengths))
    yield Hypothesis(
        {"block": block, "blocks": len(lengths)},
        lambda case: _permutation.verdict(case, _no_moves(failing), rows),
        f"{len(lengths):,} stretches of about {block} failing rows hold one value each"
        + (", the mean of their replayed log-probs" if is_mean.mean() > 0.9 else ""),
        most=PROVEN if is_mean.mean() > 0.9 else LIKELY,
    )


def _runs(stored: Array, least: int) -> tuple[Array, Array]:
    """The number of the stretch of equal values each row is in (−1: none), and their lengths."""
    values, which, count = np.unique(stored, return_inverse=True, return_counts=True)
    place = np.arange(len(stored))
    first, last = np.full(len(values), len(stored)), np.full(len(values), -1)
    np.minimum.at(first, which, place)
    np.maximum.at(last, which, place)
    # Rows of another bug may lie in between; 0 and other constants that recur everywhere do not count.
    dense = count >= DENSE * (last - first + 1)
    good = (count >= least) & dense & np.isfinite(values) & (values < -1e-3)
    number = np.where(good, np.cumsum(good) - 1, -1)
    return number[which], count[good]


def _no_moves(failing: Failing) -> _permutation.Moves:
    none = np.zeros(0, np.int64)
    return _permutation.Moves(failing, none, none, none, none, 1e-6)
