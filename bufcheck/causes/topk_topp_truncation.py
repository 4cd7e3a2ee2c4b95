"""Actions were drawn from the most likely ones only: top-k or top-p sampling."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import LEAST, Hypothesis, predicting
from bufcheck.offer import pick
from bufcheck.vectors import Array

FIX = (
    "Sample training data from the whole distribution (top_k off, top_p = 1), or score the update with"
    " the same truncated one."
)
RANK = 1
APPLIES = "categorical"
WRONG = "either"


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    values, mass = _truncated(case)
    fits = np.abs(values - case.stored[:, None]) <= case.near(case.stored)[:, None]
    fits &= (unexplained & (case.choices > 1))[:, None] & (
        np.arange(fits.shape[1]) + 1 < case.choices[:, None]
    )
    rows, kept = np.nonzero(fits)
    if len(rows) < LEAST:
        return
    sizes = np.bincount(kept, minlength=fits.shape[1])
    sizes[0] = 0  # of one action, the log-prob is 0: that is a placeholder
    k = int(sizes.argmax()) + 1
    if k > 1:
        yield Hypothesis(
            {"k": k},
            predicting(partial(_top_k, k=k)),
            f"a softmax over the {k} most likely actions gives the stored value",
        )
    # A nucleus of m actions was kept for every p between the mass of m - 1 and of m.
    rows, kept = rows[kept > 0], kept[kept > 0]
    if len(rows) < LEAST:
        return
    p = _most_overlap(mass[rows, kept - 1], mass[rows, kept])
    if 0.01 < p < 0.9999:
        yield Hypothesis(
            {"p": round(p, 3)},
            predicting(partial(_top_p, p=p)),
            f"a softmax over the most likely actions that hold {p:.3g} of the chance gives the stored"
            " value",
        )


def _truncated(case: Case) -> tuple[Array, Array]:
    """[failing, m]: the log-prob of the action among the m + 1 most likely, and their chance."""
    log_chances = np.where(np.isfinite(case.log_chances), case.log_chances, -np.inf)
    order = -np.sort(-log_chances, axis=1)
    own = pick(log_chances, case.chosen)
    with np.errstate(all="ignore"):
        sums = np.logaddexp.accumulate(order, axis=1)
        rank = (log_chances > own[:, None]).sum(1)
        inside = np.arange(order.shape[1]) >= rank[:, None]
        return np.where(inside, own[:, None] - sums, np.inf), np.exp(sums)


def _top_k(case: Case, k: int) -> Array:
    values, _ = _truncated(case)
    return pick(values, np.minimum(k, case.choices) - 1)


def _top_p(case: Case, p: float) -> Array:
    values, mass = _truncated(case)
    return pick(values, np.minimum((mass < p).sum(1), np.maximum(case.choices, 1) - 1))


def _most_overlap(low: Array, high: Array) -> float:
    """The middle of the stretch that the most intervals share."""
    ends = np.concatenate([low, high])
    step = np.concatenate([np.ones(len(low)), -np.ones(len(high))])
    order = np.lexsort((step, ends))
    ends, depth = ends[order], np.cumsum(step[order])
    best = int(depth.argmax())
    return float((ends[best] + ends[min(best + 1, len(ends) - 1)]) / 2)
