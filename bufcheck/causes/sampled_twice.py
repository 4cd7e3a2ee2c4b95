"""The action that was stored and the one that was scored are two draws from the same policy."""

from __future__ import annotations

from collections.abc import Iterator

from bufcheck.case import Case
from bufcheck.cause import LEAST, Hypothesis
from bufcheck.causes import _support
from bufcheck.vectors import Array

FIX = "Call sample() once; pass that action to the environment, to log_prob() and to the buffer."
RANK = 3
APPLIES = "categorical"
WRONG = "action"


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    rows, margin = _support.explained_by(case, unexplained, "sampled-twice")
    if rows.sum() >= LEAST:
        yield Hypothesis(
            {},
            _support.taking("sampled-twice", unexplained),
            "the stored value is that of another action on offer, and both are drawn as the policy"
            " draws",
            most=_support.confidence(margin),
        )
