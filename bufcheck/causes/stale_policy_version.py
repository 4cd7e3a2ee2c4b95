"""Rows were sampled by an earlier version of the policy than the one they are stamped with: weights
reached the workers late, or the version was read at another moment than the weights."""

from __future__ import annotations

from collections.abc import Iterator

from bufcheck.case import Case
from bufcheck.cause import Hypothesis
from bufcheck.causes import _versions
from bufcheck.vectors import Array

FIX = (
    "Stamp each row with the version of the weights that sampled it, read once per rollout together"
    " with them; or drop rows whose version is behind."
)
RANK = 1
APPLIES = None
WRONG = "version"


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    return _versions.suppose(case, unexplained, -1)
