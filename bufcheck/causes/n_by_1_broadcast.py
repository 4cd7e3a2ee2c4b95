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
LEAST_RUN = 8


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
    new = np.ones(len(stored), bool)
    new[1:] = stored[1:] != stored[:-1]
    start = np.flatnonzero(new)
    length = np.diff(np.append(start, len(stored)))
    # 0 and other constants that recur from stretch to stretch are placeholders.
    value = stored[start]
    _, which, times = np.unique(value[length >= least], return_inverse=True, return_counts=True)
    good = np.zeros(len(start), bool)
    long = np.flatnonzero(length >= least)
    good[long] = (
        np.isfinite(value[long]) & (value[long] < -1e-3) & ((times[which] == 1) | (len(long) < 3))
    )
    number = np.where(good, np.cumsum(good) - 1, -1)
    return np.repeat(number, length), length[good]


def _no_moves(failing: Failing) -> _permutation.Moves:
    none = np.zeros(0, np.int64)
    return _permutation.Moves(failing, none, none, none, none, 1e-6)
