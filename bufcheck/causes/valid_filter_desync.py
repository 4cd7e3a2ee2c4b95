"""Rows were dropped from one tensor only: from there on its values stand one row too early, and one
more for every row dropped."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import LEAST, Hypothesis, Verdict
from bufcheck.causes import _permutation, _stretches
from bufcheck.causes._stretches import GAP, last_told
from bufcheck.vectors import Array

FIX = (
    "Filter every tensor of the batch with the same mask, in one place; compare their lengths after it."
)
RANK = 3
APPLIES = None
WRONG = "log_prob"
FEW, MOST = 16, 2000
"""Offsets that are tried."""
DENSE = 0.6
"""How many of a stretch's rows show an offset."""


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    candidates = _candidates(case, unexplained)
    # 0 is what ends are padded with, and what any single choice has.
    offsets = np.where(unexplained & (np.abs(case.stored) > 1e-6), _offsets(case, candidates), 0)
    rows = np.flatnonzero(offsets)
    if len(rows) < LEAST:
        return
    found = _stretches.long_ones(case, rows)
    if found is None:
        return
    stretch, sizes, first = found
    ids = case.of("row_id")[rows]
    spans = ids[first + sizes - 1] - ids[first] + 1
    if sizes.sum() < DENSE * spans.sum():
        return  # single rows, here and there
    ahead = offsets[rows]
    rises = np.diff(ahead)[np.diff(stretch) == 0]
    grows = (ahead[first + (3 * sizes) // 4] > ahead[first]).mean()
    inside = _stretches.inside(case, rows[first])
    # A shift stands at one offset from an episode's start; this one starts anywhere, and grows.
    if (rises >= 0).mean() < 0.9 or (grows < 0.3 and inside < _stretches.MOSTLY):
        return
    most = int(np.quantile(ahead, 0.99))
    yield Hypothesis(
        {"rows_dropped": most},
        partial(_desynced, candidates=candidates),
        f"the stored value is the replayed one of a row further on, by an offset that grows to {most}",
        rank=0,
    )


def _candidates(case: Case, unexplained: Array) -> tuple[int, ...]:
    """Offsets that rows with one match only show, and the first few anyway."""
    kind, found = _permutation.classified(case, unexplained), set(range(1, FEW + 1))
    if kind is not None and kind.name == "growing":
        row_id = kind.moves.failing.row_id
        ahead = row_id[kind.moves.source] - row_id[kind.moves.target]
        values, times = np.unique(ahead[ahead > 0], return_counts=True)
        found |= set(values[(times >= 3) & (values <= np.quantile(ahead, 0.9) * 2 + 4)][:MOST].tolist())
    return tuple(sorted(found, reverse=True))


def _offsets(case: Case, candidates: tuple[int, ...]) -> Array:
    """How far ahead, in storage order, the row lies that has the stored value; 0 where none does."""

    def nearest() -> Array:
        ids, replayed = case.scalars["row_id"], case.scalars["replayed"]
        stored, near = case.stored, case.near(case.stored)
        found = np.zeros(len(case), np.int64)
        for offset in candidates:
            there = np.minimum(case.at + offset, len(ids) - 1)
            fits = (ids[there] == case.of("row_id") + offset) & (
                np.abs(replayed[there] - stored) <= near
            )
            found[fits] = offset
        return found

    return case.once(("offsets ahead", candidates), nearest)


def _in_company(row_id: Array, offsets: Array) -> Array:
    """Rows whose neighbour shows the same offset: a match by accident stands alone."""
    rows = np.flatnonzero(offsets > 0)
    found = np.zeros(len(offsets), bool)
    same = (np.diff(offsets[rows]) == 0) & (np.diff(row_id[rows]) <= GAP)
    found[rows[1:][same]] = True
    found[rows[:-1][same]] = True
    return found


def _unclear(case: Case, explained: Array, most: int) -> Array:
    """Failing rows that lie within a stretch, and those that hold 0 where a column's end would be
    filled: behind a stretch, or at the end of an episode, with nothing else in between, and no more of
    them than rows were dropped."""
    place, zero = np.arange(len(case.wrong)), case.scalars["stored"] == 0
    state = np.full(len(place), -1)  # 1: of a stretch, 0: not, −1: says nothing
    state[case.telling] = 0
    state[case.at[explained]] = 1
    within = (state[last_told(state >= 0)] == 1) & (state[_next(state >= 0)] == 1)
    state[case.wrong & ~zero & (state < 0)] = 0
    last, following = last_told(state >= 0), _next(state >= 0)
    episode = case.scalars["episode"]
    ends = (episode[following] != episode) | (state[following] < 0)
    filled = zero & (ends | (state[last] == 1)) & (place - last <= most + GAP)
    found: Array = (within | filled)[case.at] & ~explained
    return found


def _next(told: Array) -> Array:
    """The same, at or behind it; the last row's if none is."""
    count = len(told)
    found: Array = np.minimum.accumulate(np.where(told, np.arange(count), count - 1)[::-1])[::-1]
    return found


def _desynced(case: Case, candidates: tuple[int, ...]) -> Verdict:
    offsets = _offsets(case, candidates)
    explained = _in_company(case.of("row_id"), offsets)
    sources = np.where(explained, case.of("row_id") + offsets, -1)
    # What stands at the end of the stretch is padding.
    most = int(offsets[explained].max(initial=0))
    lost = _unclear(case, explained, most) | ~explained & (case.stored != 0)
    return Verdict(explained, lost, 1e-3, sources)
