"""Actions were drawn from a mix with uniform exploration; the dump knows only the policy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import LEAST, Hypothesis, most_common, predicting
from bufcheck.offer import pick
from bufcheck.vectors import Array

FIX = (
    "On-policy methods need the log-prob of the distribution that was sampled: store log((1-ε)π + ε/K)"
    " and score with the same mix in the update, or explore through the entropy bonus instead."
)
RANK = 1
APPLIES = "categorical"
WRONG = "either"


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    for greedy in (False, True):
        fitted = _fitted(case, unexplained, greedy)
        # At 1 the policy has no say: that is a uniform placeholder.
        if fitted is not None and 1e-4 < fitted[0] < 0.95:
            epsilon, background = fitted
            mix = "the greedy action" if greedy else "the policy"
            yield Hypothesis(
                {"epsilon": round(epsilon, 4), "greedy": greedy},
                predicting(partial(_mixed, epsilon=epsilon, greedy=greedy), background=background),
                f"a mix of {mix} with {epsilon:.4g} of uniform choice gives the stored value",
            )


def _base(case: Case, greedy: bool) -> Array:
    own = pick(case.log_chances, case.chosen)
    if greedy:
        return np.where(own >= case.log_chances.max(1), 1.0, np.where(np.isnan(own), np.nan, 0.0))
    return np.exp(own)


def _mixed(case: Case, epsilon: float, greedy: bool) -> Array:
    return np.log((1 - epsilon) * _base(case, greedy) + epsilon / np.maximum(case.choices, 1))


def _fitted(case: Case, unexplained: Array, greedy: bool) -> tuple[float, float] | None:
    """The share that most rows ask for, each on its own; and how often any other would do."""
    base, uniform = _base(case, greedy), 1 / np.maximum(case.choices, 1)
    rows = unexplained & (case.choices > 1) & np.isfinite(case.stored) & (np.abs(uniform - base) > 1e-3)
    if rows.sum() < LEAST:
        return None
    with np.errstate(all="ignore"):
        asked = ((np.exp(case.stored) - base) / (uniform - base))[rows]
    guess = most_common(asked[(asked > 0) & (asked < 1)], 2e-4, int(rows.sum()))
    if guess is None:
        return None
    weight = np.abs(uniform - base)[rows]
    near = np.abs(asked - guess.value) <= 1e-3
    return float((asked * weight)[near].sum() / weight[near].sum()), guess.background
