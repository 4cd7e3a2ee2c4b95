"""The stored state is that of a neighbouring step: the observation buffer was overwritten in place, or
the wrong one of (obs, next_obs) was stored."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from bufcheck import vectors
from bufcheck.case import Case
from bufcheck.cause import Hypothesis, predicting
from bufcheck.causes import _neighbours
from bufcheck.vectors import Array

FIX = (
    "Copy the observation when it is stored (obs.copy(), tensor.clone()), before env.step can overwrite"
    " it, and store the one the action was sampled for."
)
RANK = 1
APPLIES = None
WRONG = "state"


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    for steps in (-1, 1, -2, 2):
        yield Hypothesis(
            {"offset": -steps},
            predicting(
                partial(_with_state_of, steps=steps),
                edges=partial(_neighbours.lost, steps=steps),
                copied=partial(_copied, steps=-steps),
            ),
            f"with the state that stands {_neighbours.where(steps)}, the actor gives the stored value",
        )


def _copied(case: Case, steps: int) -> tuple[Array, Array, Array]:
    """Rows that hold the neighbour's state, number by number."""

    def found() -> Array:
        states = vectors.open_rows(case.rows.column("state_embed"))
        source = case.all_along(steps)
        if not states.width:
            return np.zeros(len(source), bool)
        table = states.values.reshape(-1, states.width)
        made: Array = (source >= 0) & (table == table[source]).all(1)
        return made

    return case.once(("copied state", steps), found), case.all_along(steps), ~case.wrong


def _with_state_of(case: Case, steps: int) -> Array:
    return case.once(("state", steps), lambda: case.replayed_with({"state_embed": case.along(steps)}))
