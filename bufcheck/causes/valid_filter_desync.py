"""Rows were dropped from one tensor only: from there on its values stand one row too early, and one
more for every row dropped."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from bufcheck.case import ALONE, Case
from bufcheck.cause import LEAST, Hypothesis, Verdict
from bufcheck.causes import _permutation
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
LONG = 6
"""Rows of a stretch that cannot be single rows beside each other."""
FAR = 32
"""Rows that may lie between two of a stretch."""


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    candidates = _candidates(case, unexplained)
    offsets = _offsets(case, candidates)
    long, short = _company(case, offsets)
    if ((long | short) & unexplained).sum() < LEAST:
        return
    rows = np.flatnonzero((long if long.any() else short) & (offsets > 0))
    stretch = _stretches(case, case.of("row_id")[rows])
    first = np.searchsorted(stretch, np.arange(stretch[-1] + 1))
    sizes, ahead = np.bincount(stretch), offsets[rows]
    rises = np.diff(ahead)[np.diff(stretch) == 0]
    grows = (ahead[first + (3 * sizes) // 4] > ahead[first]).mean()
    inside = _follows_a_healthy_row(case)[rows][first].mean()
    # A shift stands at one offset from an episode's start; this one starts anywhere, and grows.
    if (rises >= 0).mean() < 0.9 or (grows < 0.3 and inside < 0.7):
        return
    most = int(np.quantile(ahead, 0.99))
    yield Hypothesis(
        {"rows_dropped": most},
        partial(_desynced, candidates=candidates),
        f"the stored value is the replayed one of a row further on, by an offset that grows to {most}",
        rank=0,
    )


def _stretches(case: Case, row_id: Array) -> Array:
    """The number of the stretch each row is in: none that is right lies within one, but for those with
    a single choice."""
    right = np.concatenate([[0], np.cumsum(case.telling)])
    before = right[np.searchsorted(case.scalars["row_id"], row_id)]
    found: Array = np.concatenate([[0], np.cumsum((np.diff(before) > 0) | (np.diff(row_id) > FAR))])
    return found


def _follows_a_healthy_row(case: Case) -> Array:
    """Rows before which, in the same episode, a row is right that has a choice."""
    told = case.wrong | case.telling
    place = np.where(told, np.arange(len(told)), -1)
    before = np.concatenate([[-1], np.maximum.accumulate(place)[:-1]])[case.at]
    same = (before >= 0) & (case.scalars["episode"][before] == case.of("episode"))
    found: Array = same & ~case.wrong[before]
    return found


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


def _company(case: Case, offsets: Array) -> tuple[Array, Array]:
    """Rows of stretches in which most rows show an offset, long ones and short ones: a match by
    accident stands alone, and single rows that were shifted stand here and there."""
    # 0 is what ends are padded with, and what any single choice has.
    rows = np.flatnonzero((offsets > 0) & (np.abs(case.stored) > ALONE))
    long, short = np.zeros(len(offsets), bool), np.zeros(len(offsets), bool)
    if not len(rows):
        return long, short
    ids = case.of("row_id")[rows]
    stretch = _stretches(case, ids)
    same = (np.diff(offsets[rows]) == 0) & (np.diff(stretch) == 0)
    beside = np.append(same, False) | np.insert(same, 0, False)
    first = np.searchsorted(stretch, np.arange(stretch[-1] + 1))
    last = np.append(first[1:], len(rows)) - 1
    spans = _failing_before(case, ids[last] + 1) - _failing_before(case, ids[first])
    sizes = np.bincount(stretch)
    dense = (sizes >= DENSE * spans) & ~_whole_shifts(case, offsets[rows], first, last, rows)
    long[rows] = beside & (dense & (sizes >= LONG))[stretch]
    short[rows] = beside & (dense & (sizes < LONG))[stretch]
    return long, short


def _failing_before(case: Case, row_id: Array) -> Array:
    found: Array = np.searchsorted(case.of("row_id"), row_id)
    return found


def _whole_shifts(case: Case, offsets: Array, first: Array, last: Array, rows: Array) -> Array:
    """Stretches with one offset from an episode's start, where there are more of them than rows that
    happen to be dropped at a start would make: a shift made those."""
    told = case.wrong | case.telling
    place = np.maximum.accumulate(np.where(told, np.arange(len(told)), -1))
    before = np.concatenate([[-1], place[:-1]])[case.at[rows[first]]]
    starts = (before < 0) | (case.scalars["episode"][before] != case.of("episode")[rows[first]])
    whole = starts & (offsets[first] == offsets[last])
    sizes = last - first + 1
    long = sizes >= LONG
    expected = float((1 / sizes[long]).sum())
    usual = expected + 3 * expected**0.5 + 1
    return whole if (whole & long).sum() > usual else np.zeros_like(whole)


def _unclear(case: Case, explained: Array) -> Array:
    """Failing rows that lie within a stretch, and those that hold 0 where a column's end would be
    filled: behind a stretch, or at the end of an episode, with nothing else in between."""
    place, zero = np.arange(len(case.wrong)), case.scalars["stored"] == 0
    state = np.full(len(place), -1)  # 1: of a stretch, 0: not, −1: says nothing
    state[case.telling] = 0
    state[case.at[explained]] = 1
    within = (state[_last(state >= 0)] == 1) & (state[_next(state >= 0)] == 1)
    state[case.wrong & ~zero & (state < 0)] = 0
    last, following = _last(state >= 0), _next(state >= 0)
    episode = case.scalars["episode"]
    ends = (episode[following] != episode) | (state[following] < 0)
    filled = zero & (ends | (state[last] == 1))
    found: Array = (within | filled)[case.at] & ~explained
    return found


def _last(told: Array) -> Array:
    """For every row the place of the last one told, itself or before it; the first row's if none is."""
    found: Array = np.maximum.accumulate(np.where(told, np.arange(len(told)), 0))
    return found


def _next(told: Array) -> Array:
    """The same, at or behind it; the last row's if none is."""
    count = len(told)
    found: Array = np.minimum.accumulate(np.where(told, np.arange(count), count - 1)[::-1])[::-1]
    return found


def _desynced(case: Case, candidates: tuple[int, ...]) -> Verdict:
    offsets = _offsets(case, candidates)
    explained, short = _company(case, offsets)
    if not explained.any():
        explained, short = short, explained
    sources = np.where(explained | short, case.of("row_id") + offsets, -1)
    # A short stretch may be a few single rows that happen to lie together.
    return Verdict(explained, _unclear(case, explained | short), 1e-3, sources, short)
