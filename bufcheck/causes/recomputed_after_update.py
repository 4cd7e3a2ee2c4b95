"""The log-probs were computed anew with weights of a later version, so that the first ratio is
always 1."""

from __future__ import annotations

from collections.abc import Iterator

from bufcheck.case import Case
from bufcheck.cause import Hypothesis
from bufcheck.causes import _versions
from bufcheck.vectors import Array

FIX = (
    "Compute old_log_prob once, when the action is sampled, and carry it through the update unchanged;"
    " never recompute it after an optimiser step."
)
RANK = 1
APPLIES = None
WRONG = "log_prob"


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    return _versions.suppose(case, unexplained, 1)
