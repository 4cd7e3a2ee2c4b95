"""The column of log-probs is shifted against the rows: each stands a fixed number of rows away."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import LEAST, LIKELY, PROVEN, Hypothesis, predicting
from bufcheck.causes import _permutation, _stretches
from bufcheck.vectors import Array

FIX = (
    "Append log-prob, state and action of a sample in one call, or slice them with the same indices:"
    " look for [1:] against [:-1], a log-prob of the previous act(), or a reward-style shift."
)
RANK = 1
APPLIES = None
WRONG = "log_prob"
STEPS = 4
FEW = 0.3
"""Of the rows that are plainly shifted, how many may come from one that was changed since."""


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    kind = _permutation.classified(case, unexplained)
    far = kind.offset if kind and kind.name in ("time", "storage") else 0
    for steps in dict.fromkeys([1, -1, *range(2, STEPS + 1), *range(-STEPS, -1), far]):
        if steps:
            yield _shift(case, steps, "time")
    most = case.most_agents
    for rows in dict.fromkeys([1, -1, most, -most, far]):
        if rows:
            yield _shift(case, rows, "storage")


def _shift(case: Case, offset: int, order: str) -> Hypothesis:
    unit = "step" if order == "time" else "row"
    where = f"{abs(offset)} {unit}{'s' * (abs(offset) > 1)} {'later' if offset > 0 else 'earlier'}"
    whose = " of the same episode and agent" if order == "time" else " in storage order"
    return Hypothesis(
        {"offset": offset, "order": order},
        predicting(
            partial(_shifted, offset=offset, order=order),
            edges=lambda case: _source(case, offset, order) < 0,
            sources=partial(_rows, offset=offset, order=order),
            habit=lambda case: case.nothing,
        ),
        f"the stored value is the replayed log-prob {where}{whose}",
        # A filter that dropped a row shifts what comes after it in the same way.
        most=LIKELY if _stretches.begin_inside(case, _plainly(case, offset, order)) else PROVEN,
    )


def _plainly(case: Case, offset: int, order: str) -> Array:
    """The failing rows that hold what the replay gives that far away."""
    return np.flatnonzero(case.hits(_replayed(case, _source(case, offset, order))))


def _source(case: Case, offset: int, order: str) -> Array:
    if order == "time":
        return case.along(offset)
    ids = case.scalars["row_id"]
    wanted = case.of("row_id") + offset
    place = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[place] == wanted, place, -1)


def _replayed(case: Case, source: Array) -> Array:
    return np.where(source >= 0, case.scalars["replayed"][source], np.nan)


def _shifted(case: Case, offset: int, order: str) -> Array:
    """The log-prob of what stands that far away. Where that row is wrong itself, what it stores, if no
    third row does; or the log-prob of any action it could have held before another bug, if few rows
    need that."""
    source = _source(case, offset, order)
    values = _replayed(case, source)
    plain = case.hits(values)
    doubtful = np.flatnonzero((source >= 0) & case.wrong[source] & ~plain)
    if not len(doubtful) or FEW * plain.sum() < LEAST:
        return values
    wider = values.copy()
    stored = case.scalars["stored"][source[doubtful]]
    wider[doubtful] = np.where(_rare(case)[doubtful], stored, values[doubtful])
    if case.facts.is_categorical:
        doubtful = doubtful[~case.hits(wider)[doubtful]]
        number = np.cumsum(case.wrong) - 1  # of a failing row
        able = case.log_chances[number[source[doubtful]]]
        missed = np.abs(able - case.stored[doubtful, None])
        nearest = np.where(np.isnan(missed), np.inf, missed).argmin(1)
        wider[doubtful] = able[np.arange(len(able)), nearest]
    few = case.hits(wider).sum() <= (1 + FEW) * plain.sum()
    return wider if few else values


def _rare(case: Case) -> Array:
    """Failing rows whose stored value stands in one other row at most."""

    def found() -> Array:
        _, which, counts = np.unique(case.scalars["stored"], return_inverse=True, return_counts=True)
        return np.asarray(counts[which.reshape(-1)] <= 2)[case.at]

    return case.once("rare", found)


def _rows(case: Case, offset: int, order: str) -> Array:
    source = _source(case, offset, order)
    return np.where(source >= 0, case.scalars["row_id"][source], -1)
