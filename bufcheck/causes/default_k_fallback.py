"""A default number of actions stood in for the sample's own K when its log-prob was computed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import LEAST, Hypothesis, predicting
from bufcheck.offer import pick
from bufcheck.vectors import Array

FIX = (
    "Pass each sample's own num_actions to the log-prob; let a missing one be an error instead of a"
    " default."
)
RANK = 1
APPLIES = "categorical"
WRONG = "either"
MOST = 64


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    for of in ("prefix", "subset"):
        width = case.logits.shape[1] if of == "prefix" else case.local.shape[1]
        # Of one action the log-prob is 0: that is a placeholder.
        rated = [(_distinct(case, unexplained, of, k), k) for k in range(2, min(MOST, width - 1) + 1)]
        count, k = max(rated, default=(0, 0))
        if count >= LEAST:
            which = "logits" if of == "prefix" else "members of the subset"
            yield Hypothesis(
                {"k": k, "of": of},
                predicting(partial(_with_k, of=of, k=k)),
                f"a softmax over the first {k} {which}, whatever the sample's own K, gives the"
                " stored value",
            )


def _distinct(case: Case, unexplained: Array, of: str, k: int) -> int:
    """Rows that speak for this k and for nothing else: their own K differs.

    Where they are few against those with K = k, it is the slice that fits, not the default.
    """
    values = _with_k(case, of, k)
    explained = case.hits(values) & unexplained
    same = case.offer.sizes == k
    told = np.isfinite(values) & unexplained
    if (
        explained[~same].sum() * max(told[same].sum(), 1)
        < explained[same].sum() * told[~same].sum() / 3
    ):
        return 0
    return int(explained[~same].sum())


def _with_k(case: Case, of: str, k: int) -> Array:
    logits = case.tempered if of == "prefix" else case.local
    with np.errstate(all="ignore"):
        sums = case.once(("running sums", of), lambda: np.logaddexp.accumulate(logits, axis=1))
    total = sums[:, min(k, logits.shape[1]) - 1]
    return pick(logits, np.where(case.chosen < k, case.chosen, -1)) - total
