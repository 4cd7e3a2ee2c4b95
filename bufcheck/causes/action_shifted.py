"""The stored action is that of a neighbouring step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from bufcheck.case import ACTION, Case
from bufcheck.cause import Hypothesis, predicting
from bufcheck.causes import _neighbours, _support
from bufcheck.vectors import Array

FIX = "Store the action with the observation it was sampled for: both before env.step, under one index."
RANK = 1
APPLIES = None
WRONG = "action"


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    for steps in (1, -1, 2, -2):
        yield Hypothesis(
            {"offset": steps},
            predicting(
                partial(_with_action_of, steps=steps),
                edges=partial(_neighbours.lost, steps=steps),
                null=_neighbours.any_action,
                habit=partial(_as_usual, steps=steps),
                copied=partial(_copied, steps=-steps) if case.facts.is_categorical else None,
            ),
            f"with the action that stands {_neighbours.where(steps)}, the actor gives the stored value",
        )


def _as_usual(case: Case, steps: int) -> Array:
    return _neighbours.same_action(case, case.all_along(steps))


def _copied(case: Case, steps: int) -> tuple[Array, Array, Array]:
    """Rows that hold the neighbour's action; of those that fail, where another one was scored, which
    tells what was their own."""
    source = case.all_along(steps)
    same = (source >= 0) & (case.all_actions == case.all_actions[source])
    other = _support.member(case) >= 0
    same[case.at] &= other
    known = ~case.wrong
    known[case.at] = other
    return same, source, known


def _with_action_of(case: Case, steps: int) -> Array:
    def replayed() -> Array:
        return case.replayed_with({name: case.along(steps) for name in ACTION})

    values = case.once(("action", steps), replayed)
    return np.where(np.isnan(values) & (case.along(steps) >= 0), np.inf, values)
