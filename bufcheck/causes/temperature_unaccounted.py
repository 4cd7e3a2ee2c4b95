"""Actions were sampled, or scored, at a temperature that the dump does not declare."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import LEAST, Hypothesis, most_common, predicting
from bufcheck.offer import log_softmax, pick
from bufcheck.vectors import Array

FIX = (
    "Divide the logits by the same temperature where actions are sampled and where they are scored, and"
    " declare it as policy.temperature; or sample at 1."
)
RANK = 1
APPLIES = "categorical"
WRONG = "either"
GRID = np.exp(np.linspace(np.log(0.05), np.log(20), 240))
ROWS = 3000


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    fitted = _fitted(case, unexplained)
    if fitted is None or abs(np.log(fitted[0])) < 1e-3:
        return
    temperature, background = fitted
    told = temperature * case.facts.policy["temperature"]
    yield Hypothesis(
        {"T": round(told, 4)},
        predicting(partial(_at, temperature=temperature), background=background),
        f"at temperature {told:.4g} the actor gives the stored value",
    )


def _at(case: Case, temperature: float) -> Array:
    return pick(log_softmax(case.local / temperature), case.chosen)


def _fitted(case: Case, unexplained: Array) -> tuple[float, float] | None:
    """The temperature that most rows ask for, each on its own; and how often any other would do."""
    rows = np.flatnonzero(unexplained & (case.choices > 1) & np.isfinite(case.stored))
    if len(rows) < LEAST:
        return None
    rows = np.random.default_rng(0).permutation(rows)[:ROWS]
    local, chosen, stored = case.local[rows], case.chosen[rows], case.stored[rows]

    def missed(temperatures: Array) -> Array:
        return pick(log_softmax(local / temperatures[:, None]), chosen) - stored

    with np.errstate(all="ignore"):
        curve = np.stack([missed(np.full(len(rows), t)) for t in GRID], 1)
        crossing = (curve[:, :-1] * curve[:, 1:] <= 0) & np.isfinite(curve[:, 1:] - curve[:, :-1])
        row, place = np.nonzero(crossing)
        low, high = np.log(GRID[place]), np.log(GRID[place + 1])
        local, chosen, stored = local[row], chosen[row], stored[row]
        start = missed(np.exp(low))
        for _ in range(24):  # each root, by halving
            middle = (low + high) / 2
            same = missed(np.exp(middle)) * start > 0
            low, high = np.where(same, middle, low), np.where(same, high, middle)
    found = most_common(low, 1e-4, len(rows))
    return None if found is None else (_refined(case, rows, found.value), found.background)


def _refined(case: Case, rows: Array, guess: float) -> float:
    """The mean of what the rows near the guess say, weighted by how well they can tell."""
    step = 1e-3
    around = [
        pick(log_softmax(case.local[rows] / np.exp(guess + s)), case.chosen[rows])
        for s in (-step, 0, step)
    ]
    slope = (around[2] - around[0]) / (2 * step)
    gap = case.stored[rows] - around[1]
    near = (
        np.isfinite(gap) & np.isfinite(slope) & (np.abs(gap) <= 1e-3 * np.abs(slope) + case.facts.noise)
    )
    weight = float((slope[near] ** 2).sum())
    return float(np.exp(guess + ((slope * gap)[near].sum() / weight if weight else 0.0)))
