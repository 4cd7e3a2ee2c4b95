"""Probabilities were passed where logits belong, so that the softmax was taken twice."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import Hypothesis, predicting
from bufcheck.offer import log_softmax, pick
from bufcheck.vectors import Array

FIX = (
    "Pass logits as Categorical(logits=…), probabilities as Categorical(probs=…); drop the extra"
    " softmax."
)
RANK = 0
APPLIES = "categorical"
WRONG = "either"


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    yield Hypothesis(
        {}, predicting(_twice), "the softmax of the actor's probabilities gives the stored value"
    )


def _twice(case: Case) -> Array:
    chances = np.where(np.isfinite(case.local), np.exp(case.log_chances), -np.inf)
    return pick(log_softmax(chances), case.chosen)
