"""What is stored is a function of the right log-prob: the probability, the negative, another base, a
multiple, a clamp, or log(p + e)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import LEAST, Hypothesis, Verdict, most_common, predicting
from bufcheck.vectors import Array

FIX = (
    "Store the plain natural log-prob of the sampled action, and apply any transform where it is used."
)
RANK = 1
APPLIES = None
WRONG = "log_prob"
PILES = 4
"""Values that many rows share, which may be a bound."""
FIXED: dict[str, Callable[[Array], Array]] = {
    "prob": np.exp,
    "negative": np.negative,
    "log10": lambda lp: lp / math.log(10),
    "log2": lambda lp: lp / math.log(2),
}


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    for kind, function in FIXED.items():
        yield Hypothesis(
            {"kind": kind},
            predicting(partial(_of, function=function)),
            f"the stored value is the {kind} of the replayed log-prob",
        )
    lp, stored = case.replayed, case.stored
    with np.errstate(all="ignore"):
        told = unexplained & np.isfinite(lp) & np.isfinite(stored)
        ratios = (stored / lp)[told & (np.abs(lp) > 0.05)]
        added = (np.exp(stored) - np.exp(lp))[told]
    known = [1.0, 0.0, -1.0, 1 / math.log(10), 1 / math.log(2)]
    fitted = most_common(ratios, 2e-5, int(told.sum()))
    if fitted is not None and all(abs(fitted.value - k) > 1e-3 for k in known):
        scale = fitted.value
        yield Hypothesis(
            {"kind": "scale", "scale": round(scale, 5)},
            predicting(lambda case: case.replayed * scale, background=fitted.background),
            f"the stored value is {scale:.5g} times the replayed log-prob",
        )
    fitted = most_common(added[added > 1e-5], 1e-6, int(told.sum()))
    if fitted is not None:
        eps = fitted.value
        yield Hypothesis(
            {"kind": "log(p + eps)", "eps": float(f"{eps:.3g}")},
            predicting(lambda case: np.log(np.exp(case.replayed) + eps), background=fitted.background),
            f"the stored value is log(p + {eps:.3g})",
        )
    yield from _clamps(case, told)


def _of(case: Case, function: Callable[[Array], Array]) -> Array:
    return function(case.replayed)


def _clamps(case: Case, told: Array) -> Iterator[Hypothesis]:
    values, times = np.unique(case.stored[told], return_counts=True)
    values, times = values[times >= LEAST], times[times >= LEAST]
    # The most common value may be another bug's.
    for bound in values[np.argsort(-times, kind="stable")][:PILES].tolist():
        piled = told & (case.stored == bound)
        for below, name in ((True, "from below"), (False, "from above")):
            beyond = case.replayed < bound if below else case.replayed > bound
            # A constant that stands for log-probs on both sides of it is no bound.
            if (beyond & piled).sum() >= 0.99 * piled.sum() and bound < -1e-6:
                yield Hypothesis(
                    {"kind": "clamp", "bound": round(bound, 6), "side": name},
                    partial(_clamped, bound=bound, below=below),
                    f"log-probs are cut off at {bound:.6g} {name}",
                )


def _clamped(case: Case, bound: float, below: bool) -> Verdict:
    with np.errstate(invalid="ignore"):
        beyond = case.replayed < bound if below else case.replayed > bound
    return Verdict((case.stored == bound) & beyond, np.zeros(len(case), bool), 1e-4)
