"""Log-probs went through a 16-bit float on their way into the buffer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import Hypothesis, Verdict
from bufcheck.vectors import Array

FIX = (
    "Keep log-probs in float32 from the softmax to the buffer; or declare policy.precision, so that"
    " their rounding is allowed for."
)
RANK = 0
APPLIES = None
WRONG = "log_prob"
BITS = {"bfloat16": (8, 2.0**-16), "float16": (11, 2.0**-13)}
"""Significant bits, and how often any other float32 lies on the grid."""


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    for kind in BITS:
        yield Hypothesis(
            {"precision": kind},
            partial(_rounded, kind=kind),
            f"the stored values are {kind} numbers, within one rounding of the replayed log-prob",
        )


def _rounded(case: Case, kind: str) -> Verdict:
    bits, chance = BITS[kind]
    stored = case.stored.astype(np.float32)
    if kind == "float16":
        with np.errstate(over="ignore"):
            on_grid = stored.astype(np.float16).astype(np.float32) == stored
    else:
        on_grid = stored.view(np.uint32) & 0xFFFF == 0
    with np.errstate(all="ignore"):
        step = 2.0 ** (np.floor(np.log2(np.abs(case.replayed))) + 1 - bits)
        near = np.abs(case.stored - case.replayed) <= 0.51 * step + case.near(case.replayed)
    # 0 lies on every grid, and stands for other things too.
    return Verdict(on_grid & near & (case.stored != 0), np.zeros(len(case), bool), chance)
