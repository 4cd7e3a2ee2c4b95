"""The normaliser of the observations moved between sampling and storing: the stored state is the one
the actor saw, scaled and shifted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import Hypothesis, predicting
from bufcheck.causes import _affine
from bufcheck.vectors import Array

FIX = (
    "Store the observation the actor saw (after normalisation), or freeze the running mean and variance"
    " during a rollout and save them with the checkpoint."
)
RANK = 5
APPLIES = None
WRONG = "state"
LAST_RESORT = True


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    fitted = _affine.fitted(case, unexplained)
    if fitted is None:
        return
    scale, shift = fitted
    told = {"scale": round(float(np.median(scale)), 4), "shift": round(float(np.median(shift)), 4)}
    yield Hypothesis(
        told,
        # The stored state was rounded after it was moved: it cannot be moved back exactly.
        predicting(lambda case: _affine.replayed(case, scale, shift), loosely=True),
        f"with states scaled by about {told['scale']:g} and shifted by {told['shift']:g}, number by"
        " number, the actor gives the stored value, also in rows that the fit did not see",
    )
