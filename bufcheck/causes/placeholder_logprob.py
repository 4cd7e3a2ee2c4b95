"""A missing log-prob was filled with a constant: 0, 1, −inf, NaN, or that of a uniform choice."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import LEAST, LIKELY, PROVEN, Hypothesis, Verdict
from bufcheck.vectors import Array

FIX = (
    "Find the code path that appends rows without a log-prob (random warm-up, padding, a default of the"
    " buffer's constructor) and store the real one, or drop those rows."
)
RANK = 0
APPLIES = None
WRONG = "log_prob"
USUAL = (0.0, 1.0, float("-inf"), float("nan"))


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    for value in USUAL:
        yield Hypothesis(
            {"value": str(value) if not np.isfinite(value) else value},
            partial(_is, value=value),
            f"the stored value is {value:g}, whatever the state and action",
            most=LIKELY if np.isnan(value) else PROVEN,
        )
    if case.facts.is_categorical:
        for over in ("offered", "all"):
            yield Hypothesis(
                {"value": "uniform", "over": over},
                partial(_uniform, over=over),
                "the stored value is that of a uniform choice, whatever the state",
            )
    if (constant := _constant(case, unexplained)) is not None:
        yield Hypothesis(
            {"value": constant},
            partial(_is, value=constant),
            f"the stored value is {constant:g}, whatever the state and action",
            most=PROVEN if round(constant, 3) == constant else LIKELY,
        )


def _is(case: Case, value: float) -> Verdict:
    same = np.isnan(case.stored) if np.isnan(value) else case.stored == value
    if value == 0 and case.facts.is_categorical:
        same &= case.choices > 1  # of a single choice 0 is the log-prob
    # A value that healthy rows have may have come to others with a bug that moved it.
    healthy = case.scalars["stored"][~case.wrong] == value
    usual = float(healthy.mean()) if len(healthy) >= LEAST else 0.0
    return Verdict(same, np.zeros(len(case), bool), max(1e-5, usual))


def _uniform(case: Case, over: str) -> Verdict:
    size = np.maximum(case.choices if over == "offered" else case.logits.shape[1], 1)
    same = np.abs(case.stored + np.log(size)) <= 1e-6
    return Verdict(same & (size > 1), np.zeros(len(case), bool), 1e-5)


def _constant(case: Case, unexplained: Array) -> float | None:
    """One number that stands for log-probs far below and far above it."""
    told = unexplained & np.isfinite(case.stored) & np.isfinite(case.replayed)
    values, times = np.unique(case.stored[told], return_counts=True)
    if not len(values) or times.max() < 2 * LEAST:
        return None
    value = float(values[times.argmax()])
    lower = (case.replayed < value)[told & (case.stored == value)].mean()
    mean = case.replayed[told & (case.stored == value)].mean()
    of_both = value > 0 or (0.02 < lower < 0.98 and abs(mean - value) > 0.05)
    return value if of_both and value not in USUAL else None
