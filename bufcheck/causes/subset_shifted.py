"""The subset stored with a sample is that of a neighbouring step: it was fetched after env.step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from bufcheck.case import ALONE, CONTEXT, Case
from bufcheck.cause import Hypothesis, predicting
from bufcheck.causes import _neighbours
from bufcheck.vectors import Array

FIX = (
    "Read the mask or subset before env.step, together with the observation the action is sampled for,"
    " and store that one."
)
RANK = 1
APPLIES = "categorical"
WRONG = "offer"


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    if not set(CONTEXT) & set(case.rows.schema.names):
        return
    for steps in (-1, 1, -2, 2):
        yield Hypothesis(
            {"offset": -steps},
            predicting(
                partial(_with_context_of, steps=steps),
                edges=partial(_neighbours.lost, steps=steps),
                copied=partial(_copied, steps=-steps),
            ),
            f"with the subset that stands {_neighbours.where(steps)}, the actor gives the stored value",
        )


def _copied(case: Case, steps: int) -> tuple[Array, Array, Array]:
    """Rows that hold the neighbour's subset."""
    source, offered = case.all_along(steps), case.all_offered
    return (source >= 0) & (offered == offered[source]), source, ~case.wrong


def _with_context_of(case: Case, steps: int) -> Array:
    def replayed() -> Array:
        return case.replayed_with({name: case.along(steps) for name in CONTEXT})

    values = case.once(("context", steps), replayed)
    # Where the neighbour is there, but its subset has no such index, the bug is ruled out.
    values = np.where(np.isnan(values) & (case.along(steps) >= 0), np.inf, values)
    # And where this subset would be that of a row which had a single choice, and offers more.
    source = case.along(-steps)
    single = ~case.wrong & (np.abs(case.scalars["stored"]) <= ALONE)
    return np.where((source >= 0) & single[source] & (case.choices > 1), np.inf, values)
