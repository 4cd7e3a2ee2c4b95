"""Fits the scale and shift of each number of the state under which actors give the stored log-probs."""

from __future__ import annotations

from typing import Any

import numpy as np

from bufcheck.case import Case
from bufcheck.vectors import Array, as_arrow

ROWS = 4000
ROUNDS = 12
MOST_NUMBERS = 256
LEAST_ROWS = 16
LEAST_SHARE = 0.3
"""Of the rows it was fitted to, a fit that means anything explains this much."""


def fitted(case: Case, unexplained: Array) -> tuple[Array, Array] | None:
    """Scale and shift, by Gauss-Newton over half of the rows; None where there are too few.

    First one of each for all numbers of the state; then, with rows enough, each number's own.
    """
    width = case.facts.replay.width or 0
    able = unexplained & np.isfinite(case.stored) & np.isfinite(case.replayed)
    rows = np.random.default_rng(0).permutation(np.flatnonzero(able))[: min(ROWS, able.sum() // 2)]
    if not 0 < width <= MOST_NUMBERS or len(rows) < LEAST_ROWS:
        return None
    if case.facts.replay.policy["state_shape"] not in (None, [width]):
        return None  # an image: not normalised number by number
    change = np.concatenate([np.ones(width), np.zeros(width)])
    together = np.repeat(np.eye(2), width, axis=0)
    for ways in (together, np.eye(2 * width)):
        if len(rows) < 3 * ways.shape[1]:
            break
        for _ in range(ROUNDS):
            values, slopes, states = _with_slopes(case, rows, change[:width], change[width:])
            missed = case.stored[rows] - values
            good = np.isfinite(missed) & np.isfinite(slopes).all(1)
            if good.sum() < LEAST_ROWS:
                return None
            # The rows that fit worst are left out: other bugs may be among them.
            good &= np.abs(missed) <= max(4 * np.median(np.abs(missed[good])), case.facts.noise)
            jacobian = (np.concatenate([slopes * states, slopes], 1) @ ways)[good]
            step = np.linalg.lstsq(jacobian, missed[good], rcond=1e-7)[0]
            change = change + ways @ np.clip(step, -0.5, 0.5)
            if np.abs(step).max() < 1e-7:
                break
        explained = np.abs(case.stored[rows] - values) <= case.near(case.stored)[rows]
        if explained.mean() > 0.9:
            break
    if explained.mean() < LEAST_SHARE:
        return None
    return change[:width], change[width:]


def replayed(case: Case, scale: Array, shift: Array) -> Array:

    column = case.rows.column("state_embed").take(as_arrow(case.at))
    states = _table(column, len(scale)) * scale + shift
    return case.replayed_as(states.astype(np.float32))


def _with_slopes(case: Case, rows: Array, scale: Array, shift: Array) -> tuple[Array, Array, Array]:
    """Log-probs of some failing rows at changed states, their slopes, and the stored states."""
    import torch

    replay = case.facts.replay
    batch = case.rows.take(as_arrow(case.at[rows]))
    states = _table(batch.column("state_embed"), len(scale))
    values, slopes = np.full(len(rows), np.nan), np.full(states.shape, np.nan)
    asked = replay.family.ask(batch, replay.policy)
    numbers = case.of("actor")[rows]
    for number in np.unique(numbers[(numbers >= 0) & asked.answerable]):
        mine = np.flatnonzero((numbers == number) & asked.answerable)
        given: Any = torch.tensor(states[mine] * scale + shift, dtype=torch.float32, requires_grad=True)
        actor = replay.actors.used[number]
        with torch.enable_grad():
            output, log_std = replay.run(actor, given)
            scores = replay.family.score(output, log_std, asked.take(mine), replay.policy)
            (slope,) = torch.autograd.grad(scores.log_prob.sum(), given)
        values[mine] = scores.log_prob.detach().double().numpy()
        slopes[mine] = slope.double().numpy()
    return values, slopes, states


def _table(column: Any, width: int) -> Array:
    from bufcheck import vectors

    table, whole = vectors.as_table(vectors.open_rows(column), width)
    found: Array = np.where(whole[:, None], table, np.nan).astype(np.float64)
    return found
