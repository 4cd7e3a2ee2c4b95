"""Recovers a permutation of the log-prob column by value, and says what kind it is.

Every failing row's stored log-prob is looked for among the replayed ones of all failing rows. Rows with
exactly one match show where values came from; the pattern of those moves has a name: an offset in time
or in storage, an exchange within a step, a transposed axis, an offset that grows, blocks, or none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bufcheck.case import Case, Failing
from bufcheck.cause import Verdict
from bufcheck.vectors import Array

WIDTH = 4e-6
"""How near a value must come to be taken for another's."""
LEAST_PAIRS = 24
MOSTLY = 0.8
"""A kind holds if this much of the moves are of it; chance matches make up the rest."""


@dataclass(frozen=True)
class Kind:
    name: str
    """time, storage, step, stride, stride back, growing, blocks or global"""
    moves: Moves
    offset: int = 0
    """How far values moved; of blocks, where the first one begins."""
    block: int = 0
    share: float = 0.0
    """Of the moves, how many are of this kind."""


@dataclass(frozen=True)
class Moves:
    """What was matched, by places in `failing`."""

    failing: Failing
    target: Array
    """Rows with exactly one match…"""
    source: Array
    """…and that match."""
    open: Array
    """The failing rows that were looked for."""
    matched: Array
    """For every failing row, how many matches it has."""
    chance: float
    """How often a value that belongs to none is matched."""


def classified(case: Case, unexplained: Array) -> Kind | None:
    """The kind of permutation that rows not yet explained show; None where they show none."""
    key = ("kind", unexplained.tobytes())
    if key not in case.noted:
        case.noted[key] = _classified(case, unexplained)
    found: Kind | None = case.noted[key]
    return found


def open_rows(case: Case, failing: Failing, unexplained: Array) -> Array:
    """Which of all failing rows are not yet explained, where that is known: in a case that is all of
    them. Else all may be."""
    return unexplained if len(failing.row_id) == len(case) else np.ones(len(failing.row_id), bool)


def _classified(case: Case, unexplained: Array) -> Kind | None:
    failing = case.facts.failing
    if failing is None:
        return None
    targets = open_rows(case, failing, unexplained)
    moves = _matched(failing, targets, _width(case))
    if len(moves.target) < LEAST_PAIRS:
        return None
    return _kind(moves)


def _width(case: Case) -> float:
    return case.facts.tolerance if case.facts.is_coarse else WIDTH


def _matched(failing: Failing, targets: Array, width: float, group: Array | None = None) -> Moves:
    """`group`: matches must come from the row's own."""
    apart = 0 if group is None else group.astype(np.float64) * 1e3
    wanted, offered = failing.stored + apart, failing.replayed + apart
    usable = targets & np.isfinite(wanted)
    donors = np.flatnonzero(np.isfinite(offered))
    donors = donors[np.argsort(offered[donors], kind="stable")]
    values = offered[donors]
    low = np.searchsorted(values, wanted - width, "left")
    high = np.searchsorted(values, wanted + width, "right")
    matched = np.where(usable, high - low, 0)
    # The same search for values that lie beside the true ones: what is found there is chance.
    away = 50 * width
    beside = np.searchsorted(values, wanted + away + width, "right") - np.searchsorted(
        values, wanted + away - width, "left"
    )
    chance = float((beside[usable] > 0).mean()) if usable.any() else 0.0
    target = np.flatnonzero(matched == 1)
    source = donors[np.minimum(low[target], max(len(donors) - 1, 0))] if len(donors) else target
    return Moves(failing, target, source, targets, matched, chance)


def _kind(moves: Moves) -> Kind | None:
    f, i, j = moves.failing, moves.target, moves.source
    same_episode = f.episode[i] == f.episode[j]
    same_stream = same_episode & (f.agent[i] == f.agent[j])
    ahead = f.timestep[j] - f.timestep[i]
    if same_stream.mean() >= MOSTLY:
        offset, share = _mode(ahead[same_stream])
        if share * same_stream.mean() >= MOSTLY and offset:
            return Kind("time", moves, offset, share=share)
    step = same_episode & (ahead == 0)
    if step.mean() >= MOSTLY:
        return Kind("step", moves, share=float(step.mean()))
    offset, share = _mode(f.row_id[j] - f.row_id[i])
    if share >= MOSTLY:
        return Kind("storage", moves, offset, share=share)
    for name in ("stride", "stride back"):
        fits = same_episode & (stride_source(f, i, name) == f.places[0][j])
        if fits.mean() >= MOSTLY:
            return Kind(name, moves, share=float(fits.mean()))
    return _growing(moves) or _shuffled(moves)


def _mode(values: Array) -> tuple[int, float]:
    found, times = np.unique(values, return_counts=True)
    best = int(times.argmax())
    return int(found[best]), float(times[best] / len(values))


def stride_source(failing: Failing, rows: Array, name: str) -> Array:
    """Where a value comes from if [steps, agents] was read as [agents, steps]; or the reverse."""
    key = np.unique(np.stack([failing.episode, failing.agent]), axis=1)
    episodes, agents = np.unique(key[0], return_counts=True)
    count = np.maximum(agents[np.searchsorted(episodes, failing.episode[rows])], 1)
    place, size = (part[rows] for part in failing.places)
    steps = np.maximum(size // count, 1)
    read: Array = place % steps * count + place // steps
    back: Array = place % count * steps + place // count
    return read if name == "stride" else back


def _growing(moves: Moves) -> Kind | None:
    """An offset that never falls, but by the end of a stretch: no shuffle looks like this."""
    f = moves.failing
    ahead = f.row_id[moves.source] - f.row_id[moves.target]
    near = (ahead > 0) & (ahead <= np.quantile(ahead, 0.9) * 2 + 4)
    if near.mean() < MOSTLY:
        return None
    # Shuffled rows change their offset at every row; a desync at few.
    if (np.diff(ahead[near]) != 0).mean() > 0.25:
        return None
    return Kind("growing", moves, share=float(near.mean()))


def _shuffled(moves: Moves) -> Kind | None:
    f = moves.failing
    share = float((moves.matched > 0)[moves.open & np.isfinite(f.stored)].mean())
    moved = moves.source - moves.target
    if _mode(moved)[1] > 0.2:
        return None  # too regular for a shuffle, and none of the regular kinds
    if (share - moves.chance) / max(1 - moves.chance, 1e-9) < 0.5:
        return None
    block, first = _block(moves)
    return Kind("blocks" if block else "global", moves, first, block, share)


def _block(moves: Moves) -> tuple[int, int]:
    """The size of blocks that no move leaves, and where they begin; 0 where there are none.

    Places are counted in row order over the dump and, failing that, over the rows in question alone.
    """
    for place in (moves.failing.row_id, _rank(moves.open)):
        low, high = np.sort(np.stack([place[moves.target], place[moves.source]]), axis=0)
        # Matches by chance lie anywhere: among moves that are mostly short, the far ones are theirs.
        short = high - low <= 8 * np.median(high - low)
        low, high = low[short], high[short]
        total = int(place[-1] - place[0]) + 2
        crossing = np.zeros(total, np.int64)
        np.add.at(crossing, low - place[0] + 1, 1)
        np.add.at(crossing, high - place[0] + 1, -1)
        level = np.cumsum(crossing)
        # A boundary is where next to nothing crosses; a stray match by chance may.
        span = float(np.mean(high - low))
        free = np.flatnonzero(level[:-1] <= 0.02 * span) + place[0]
        size, first = _spacing(free, int(place[0]), total, low, high)
        if size and size < total / 3:
            return size, first
    return 0, 0


def _rank(rows: Array) -> Array:
    """Each row's place among the chosen ones."""
    found: Array = np.cumsum(rows) - 1
    return np.maximum(found, 0)


def _spacing(boundaries: Array, start: int, total: int, low: Array, high: Array) -> tuple[int, int]:
    """The size B for which nearly every B-th place is a boundary, and where that begins; no move from
    `low` to `high` leaves its block. (Where few rows moved, nearly every place is a boundary.)"""
    if len(boundaries) < 3:
        return 0, 0
    gaps = np.diff(boundaries)
    sizes, times = np.unique(gaps[gaps > 1], return_counts=True)
    there = np.zeros(total + 1, bool)
    there[np.clip(boundaries - start, 0, total)] = True
    for size in sizes[np.argsort(-times)][:16].tolist():
        # Boundaries lie at one remainder; by its own rows a block may have more, but not everywhere.
        remainders = np.bincount((boundaries - start) % size, minlength=size)
        first = int(remainders.argmax())
        edges = np.arange(first, total - 1, size)
        within = (low - start - first) // size == (high - start - first) // size
        if len(edges) >= 3 and there[edges].mean() >= 0.9 and within.mean() >= 0.95:
            return size, (first + start) % size
    return 0, 0


def regrouped(case: Case, kind: Kind) -> Moves:
    """Matches again, each row within its own block: far fewer then have several."""
    if not kind.block:
        return kind.moves
    f = kind.moves.failing
    by_row = (f.row_id - kind.offset) // kind.block
    by_place = (_rank(kind.moves.open) - kind.offset) // kind.block
    inside = [(g[kind.moves.target] == g[kind.moves.source]).mean() for g in (by_row, by_place)]
    group = by_row if inside[0] >= inside[1] else by_place
    inner, outer = _matched(f, kind.moves.open, _width(case), group), kind.moves
    # What lies at a boundary that was taken for another block's keeps the match it had.
    strays = inner.matched[outer.target] == 0
    return Moves(
        f,
        np.concatenate([inner.target, outer.target[strays]]),
        np.concatenate([inner.source, outer.source[strays]]),
        inner.open,
        np.where(inner.matched > 0, inner.matched, outer.matched),
        inner.chance,
    )


def also_healthy(case: Case, kind: Kind, moves: Moves) -> tuple[Array, Array]:
    """Row ids of failing rows that match none of the failing, and of the one healthy row each matches:
    by accident, what was shuffled into that one is what it had."""
    f = moves.failing
    ids, replayed = f.everyone()
    order = np.argsort(replayed, kind="stable")
    values, width = replayed[order], _width(case)
    unmatched = moves.matched == 0
    if kind.block:
        # Nor does one that only a row of another block matches.
        block = (f.row_id - kind.offset) // kind.block
        unmatched[moves.target[block[moves.target] != block[moves.source]]] = True
    left = np.flatnonzero(unmatched & np.isfinite(f.stored))
    low = np.searchsorted(values, f.stored[left] - width, "left")
    high = np.searchsorted(values, f.stored[left] + width, "right")
    left, low = left[high - low == 1], low[high - low == 1]
    source = ids[order[low]]
    if kind.block:
        same = (f.row_id[left] - kind.offset) // kind.block == (source - kind.offset) // kind.block
        left, source = left[same], source[same]
    return left, source


def lookup(case: Case, row_id: Array, values: Array, missing: int) -> Array:
    """`values` by row id, for the failing rows of a case."""
    wanted = case.of("row_id")
    place = np.minimum(np.searchsorted(row_id, wanted), max(len(row_id) - 1, 0))
    if not len(row_id):
        return np.full(len(wanted), missing)
    return np.where(row_id[place] == wanted, values[place], missing)


def verdict(
    case: Case, moves: Moves, rows: Array, healthy: tuple[Array, Array] | None = None
) -> Verdict:
    """Explains `rows` (places in failing), and says where they came from; `healthy` of a shuffle."""
    f = moves.failing
    explained, source = np.zeros(len(f.row_id), np.int8), np.full(len(f.row_id), -1)
    explained[rows] = 1
    source[moves.target] = f.row_id[moves.source]
    if healthy is not None:
        explained[healthy[0]], source[healthy[0]] = 1, healthy[1]
    found = lookup(case, f.row_id, explained, 0) > 0
    none, sources = np.zeros(len(found), bool), lookup(case, f.row_id, source, -1)
    if healthy is None:
        return Verdict(found, none, moves.chance, sources)
    passed_on = lookup(case, f.row_id, _passed_on(case, moves).astype(np.int8), 0) > 0
    # What came from elsewhere, and went nowhere, may be another bug's: nobody else's, it is this one's.
    return Verdict(found & passed_on, none, moves.chance, sources, copies=found & ~passed_on)


def _passed_on(case: Case, moves: Moves) -> Array:
    """For every failing row, whether its own log-prob is stored in some other: a shuffle loses none."""
    f, width = moves.failing, _width(case)
    stored = np.sort(f.stored[np.isfinite(f.stored)])
    low = np.searchsorted(stored, f.replayed - width, "left")
    high = np.searchsorted(stored, f.replayed + width, "right")
    found: Array = (high > low) | ~np.isfinite(f.replayed)
    return found
