"""One column holds, at the agents of a step, the values of each other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from bufcheck import vectors
from bufcheck.case import ACTION, CONTEXT, Case
from bufcheck.cause import Hypothesis, predicting
from bufcheck.causes import _neighbours
from bufcheck.offer import hashed
from bufcheck.vectors import Array

FIX = (
    "Stack per-agent tensors in one fixed agent order everywhere, or key them by agent id until the row"
    " is written; check transposes between [steps, agents] and [agents, steps]."
)
RANK = 1
APPLIES = None
WRONG = {
    "old_log_prob": "log_prob",
    "state_embed": "state",
    "subset_indices": "offer",
    "action_index": "action",
    "action": "action",
}
MOST_AGENTS = 8
COLUMNS = {"state_embed": ("state_embed",), "action_index": ACTION, "subset_indices": CONTEXT}


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    agents = min(case.most_agents, MOST_AGENTS)
    if agents < 2:
        return
    yield Hypothesis(
        {"column": "old_log_prob"},
        predicting(_nearest_sibling, sources=_nearest_row, habit=lambda case: case.nothing),
        "the stored value is the replayed log-prob of another agent of the same step",
    )
    for column, names in COLUMNS.items():
        if set(names) & set(case.rows.schema.names):
            for places in range(1, agents):
                yield Hypothesis(
                    {"column": column, "agents_on": places},
                    predicting(
                        partial(_with_columns_of, names=names, places=places),
                        null=_neighbours.any_action if names == ACTION else None,
                        habit=partial(_as_usual, places=places) if names == ACTION else None,
                    ),
                    f"with the {column} of another agent of the same step, the actor gives the"
                    " stored value",
                )


def _nearest(case: Case) -> Array:
    """The row of the step, other than its own, whose log-prob comes nearest to the stored one; −1 where
    they are not exchanged: that row still holds its own, or nobody holds this one's."""

    def found() -> Array:
        best, least = np.full(len(case), -1), np.full(len(case), np.inf)
        kept = np.zeros(len(case), bool)
        for places in range(1, min(case.most_agents, MOST_AGENTS)):
            other = case.beside(places)
            with np.errstate(invalid="ignore"):
                away = np.abs(case.scalars["replayed"][other] - case.stored)
                held = np.abs(case.scalars["stored"][other] - case.replayed)
            closer = (other >= 0) & ~case.telling[other] & (away < least)
            best, least = np.where(closer, other, best), np.where(closer, away, least)
            kept |= (other >= 0) & (held <= case.near(case.replayed, loosely=True))
        return np.where(kept, best, -1)

    return case.once("nearest sibling", found)


def _nearest_sibling(case: Case) -> Array:
    row = _nearest(case)
    return np.where(row >= 0, case.scalars["replayed"][row], np.nan)


def _nearest_row(case: Case) -> Array:
    row = _nearest(case)
    return np.where(row >= 0, case.scalars["row_id"][row], -1)


def _as_usual(case: Case, places: int) -> Array:
    return _neighbours.same_action(case, case.all_beside(places))


def _with_columns_of(case: Case, names: tuple[str, ...], places: int) -> Array:
    def replayed() -> Array:
        values = case.replayed_with({name: case.beside(places) for name in names})
        return np.where(_contradicted(case, names, places), np.inf, values)

    return case.once(("replayed beside", names, places), replayed)


def _contradicted(case: Case, names: tuple[str, ...], places: int) -> Array:
    """Failing rows in whose step another row is right with what it holds, and would not be with what
    would have been its own: agents are crossed in a whole step, or not at all."""
    other = case.all_beside(places)
    alike = np.ones(len(other), bool)
    for name in names:
        if name in case.rows.schema.names:
            alike &= _alike(case, name, other)
    against = np.zeros(int(case.step_of.max(initial=0)) + 1, bool)
    against[case.step_of[case.telling & (other >= 0) & ~alike]] = True
    found: Array = against[case.step_of[case.at]]
    return found


def _alike(case: Case, name: str, other: Array) -> Array:
    """Rows that hold the same as the other row."""
    column = case.rows.column(name)
    if name != "state_embed":
        told = hashed(column)
        same: Array = told == told[other]
        return same
    states = vectors.open_rows(column)
    if not states.width:
        return np.ones(len(other), bool)
    table = states.values.reshape(-1, states.width)
    made: Array = (table == table[other]).all(1)
    return made
