"""Chooses among all hypotheses those that together explain the most failing rows with the fewest bugs.

Each is judged against chance, on the rows that are still unexplained; the best is taken, then again on
what is left. Those chosen are then held against every failing row: what none explains is unexplained.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from bufcheck import cause
from bufcheck.case import Case
from bufcheck.cause import LEAST, PROVEN, SHUFFLE, SURPRISE, Hypothesis, Suspect, Verdict, surprise
from bufcheck.vectors import Array

GENERIC = 3
"""The rank of what explains any other action on offer; above it, the same is true."""
NEARLY = 0.98
"""Of two hypotheses that explain about the same, the more specific one is told."""
DOUBTED = 0.9
"""What a row counts that is explained by a hypothesis which something speaks against."""
EDGE_COVERAGE = 0.8
"""What a shift lost at an episode's edge is its own where it explains this much of the episode."""
MOST_CHANCE = 0.99
INTACT = ("log_prob", "state", "version", "agent", "actor")
"""What may be wrong of a row whose action and offer are as they were."""
FEW = 3
"""A cause that explains so many times the rows of another, and those as well, makes it superfluous."""
MAINLY = 0.5
"""Of rows, for what is said of most of them."""
CHAINED = 0.3
"""Of the rows of a copying bug, how many may be neighbours where it hit single ones."""


def choose(case: Case, without: frozenset[str]) -> list[Suspect]:
    """The hypotheses that together explain the most failing rows with the fewest bugs."""
    unexplained = np.ones(len(case), bool)
    edges = np.zeros(len(case), bool)
    chosen: list[tuple[Suspect, Array]] = []
    while (unexplained & ~edges).sum() >= LEAST:
        for last_resort in (False, True):
            suspects = list(_suspects(case, unexplained, without, last_resort=last_resort))
            best = _best(case, suspects, unexplained)
            if best is not None:
                break
        if best is None:
            break
        best = _owner(case, suspects, best, unexplained) or best
        wider = _with_strays(case, best, chosen, unexplained)
        if (wider & ~unexplained).any():
            best = next(_of_cause(case, wider, best.name), best)
        claimed = claims(case, best.verdict, wider)
        if (claimed & edges).sum() > claimed.sum() / 2:
            unexplained, edges = unexplained & ~edges, np.zeros(len(case), bool)
            continue
        best.also = _twins(best, suspects, claimed)
        # What a later one explains as well, and far more beside it, was never a bug of its own.
        dropped = [rows for _, rows in chosen if _swallows(best, claimed, rows)]
        kept = [(s, rows) for s, rows in chosen if not _swallows(best, claimed, rows)]
        chosen = [*kept, (best, claimed)]
        # What it lost at an edge may be another's in truth, but for what it could not fill.
        lost = claimed & best.verdict.lost & ~best.verdict.explained & (case.stored != 0)
        edges |= lost
        unexplained = np.any([unexplained, *dropped], axis=0) & ~(claimed & ~lost)
    return [suspect for suspect, _ in chosen]


def _swallows(best: Suspect, claimed: Array, rows: Array) -> bool:
    covered = (best.verdict.explained & rows).sum() >= 0.95 * rows.sum()
    return bool(covered and claimed.sum() > FEW * rows.sum())


def _with_strays(
    case: Case, best: Suspect, chosen: list[tuple[Suspect, Array]], unexplained: Array
) -> Array:
    """What is still to be explained, and beside a shuffle the few rows that were taken for another bug:
    here and there a shuffle moves a value by one row, or to another agent."""
    if best.rank != SHUFFLE:
        return unexplained
    count = (best.verdict.explained & unexplained).sum()
    few = [rows for _, rows in chosen if FEW * rows.sum() < count and _scattered(case, rows)]
    found: Array = np.any([unexplained, *few], axis=0)
    return found


def _scattered(case: Case, rows: Array) -> bool:
    """Whether most of these rows stand among failing ones of another kind."""
    stream = streams(case)
    share = np.bincount(stream, rows) / np.bincount(stream)
    return bool(np.median(share[stream[rows]]) < MAINLY)


def _suspects(
    case: Case, unexplained: Array, without: frozenset[str], *, last_resort: bool
) -> Iterator[Suspect]:
    family = "categorical" if case.facts.is_categorical else "gaussian"
    for name, module in cause.counterfactuals():
        if name in without or module.APPLIES not in (None, family):
            continue
        if getattr(module, "LAST_RESORT", False) == last_resort:
            yield from _of_cause(case, unexplained, name)


def _of_cause(case: Case, unexplained: Array, name: str) -> Iterator[Suspect]:
    module = cause.counterfactual(name)
    able = unexplained & case.in_range if module.WRONG in INTACT else unexplained
    for hypothesis in module.suppose(case, able):
        verdict = tested(case, name, hypothesis)
        if (verdict.explained & unexplained).sum() >= LEAST:
            rank = module.RANK if hypothesis.rank is None else hypothesis.rank
            yield Suspect(name, rank, hypothesis, verdict)


def tested(case: Case, name: str, hypothesis: Hypothesis) -> Verdict:
    """What a hypothesis says of a case. A bug that changes neither action nor offer makes no index that
    is out of range."""
    verdict = hypothesis.test(case)
    if cause.wrong_of(name, hypothesis.parameters) not in INTACT or case.in_range.all():
        return verdict
    copies = None if verdict.copies is None else verdict.copies & case.in_range
    return verdict._replace(
        explained=verdict.explained & case.in_range, lost=verdict.lost & case.in_range, copies=copies
    )


def _surprising(verdict: Verdict, rows: Array) -> tuple[float, int, float]:
    """How surprising it is that a hypothesis explains so many of these rows; how many they are, and the
    chance of each."""
    chance, count = min(verdict.by_chance(rows), MOST_CHANCE), int(rows.sum())
    return surprise(int((verdict.explained & rows).sum()), chance * count, count), count, chance


def _best(case: Case, suspects: list[Suspect], unexplained: Array) -> Suspect | None:
    rated = []
    for suspect in suspects:
        verdict = suspect.verdict
        # An index out of range may be a bug of its own, and says nothing of another one.
        found, rows, chance = max(
            _surprising(verdict, judged) for judged in (unexplained, unexplained & case.in_range)
        )
        if found < SURPRISE + math.log(len(suspects)):
            continue
        # Only what is not its own can be explained by accident. What a shuffle would take only where
        # nobody else explains it is no reason to prefer it.
        shuffled = suspect.rank == SHUFFLE
        claimed = claims(case, verdict._replace(copies=None) if shuffled else verdict, unexplained)
        gained = (int(claimed.sum()) - chance * rows) / (1 - chance)
        rated.append((gained * (1.0 if suspect.hypothesis.most == PROVEN else DOUBTED), suspect))
    return _most_specific(rated)


def _owner(case: Case, suspects: list[Suspect], best: Suspect, unexplained: Array) -> Suspect | None:
    """A shuffle explains whatever moved, two draws any action. What has whole streams to itself is
    a bug of its own."""
    if best.rank < GENERIC:
        return None
    stream = streams(case)
    size = int(stream.max()) + 1
    rated = []
    for suspect in suspects:
        if suspect.rank >= best.rank or suspect.verdict.by_chance(unexplained) > MAINLY:
            continue
        failing = np.bincount(stream, unexplained & ~suspect.verdict.lost, size)
        explained = np.bincount(stream, suspect.verdict.explained & unexplained, size)
        own = (explained >= LEAST) & (explained >= 0.9 * failing)
        if own.sum() >= 3:
            rated.append(
                (int((claims(case, suspect.verdict, unexplained) & own[stream]).sum()), suspect)
            )
    return _most_specific(rated)


def _most_specific(rated: Sequence[tuple[float, Suspect]]) -> Suspect | None:
    """The one with the most; of those that have nearly as much, the lowest rank."""
    if not rated:
        return None
    most = max(count for count, _ in rated)
    close = [(suspect.rank, -count, suspect) for count, suspect in rated if count >= NEARLY * most]
    return min(close, key=lambda entry: entry[:2])[2]


def _twins(best: Suspect, suspects: list[Suspect], claimed: Array) -> list[str]:
    """Other names for the same rows: what explains nearly all of them, and is as specific."""
    mine = claimed & best.verdict.explained
    found = set()
    for other in suspects:
        same = (other.verdict.explained & mine).sum() >= 0.99 * mine.sum()
        if same and other.name != best.name and other.rank <= best.rank:
            found.add(other.name)
    return sorted(found)


def claims(
    case: Case,
    verdict: Verdict,
    unexplained: Array,
    already: Array | None = None,
    *,
    alone: Array | bool = True,
) -> Array:
    """The rows a cause takes: what it explains, and what it lost in the streams that are its own.

    `already`: rows that were given to it before. `alone`: where no other cause is about
    neighbours, so that rows about which nothing can be said are its own.
    """
    mine = verdict.explained & unexplained
    if already is not None:
        mine = mine | already
    if verdict.copies is not None:
        mine = mine | verdict.copies & unexplained
    lost = verdict.lost & unexplained & ~mine
    if verdict.chained is not None:
        left = unexplained & ~mine & (~lost | verdict.chained)
        mine = mine | _linked(case, verdict, left & alone, left)
        lost = lost & ~mine
    if not lost.any():
        return mine
    stream = streams(case)
    size = int(stream.max()) + 1
    explained = np.bincount(stream, mine, size)
    others = np.bincount(stream, unexplained & ~mine & ~lost, size)
    own = (explained >= 2) & (explained >= EDGE_COVERAGE * (explained + others))
    # What a shift could not fill is padded with 0.
    found: Array = mine | (lost & (own[stream] | (case.stored == 0)))
    return found


def _linked(case: Case, verdict: Verdict, able: Array, left: Array) -> Array:
    """Of the rows that are left, those about which nothing can be said, where that is what most of them
    are: what another bug left beside the rows of this one is no more often there than elsewhere. An
    index out of range is judged apart, as it may be a bug of its own."""
    found = np.zeros(len(left), bool)
    for kind in (case.in_range, ~case.in_range):
        rows = verdict.chained & able & kind
        if rows.sum() >= MAINLY * (left & kind).sum():
            found |= rows
    # Where single rows were hit, few of them are neighbours.
    few = found.sum() <= CHAINED * verdict.explained.sum()
    return found if few else np.zeros_like(found)


def streams(case: Case) -> Array:
    """Which episode and agent a failing row is of, as a number."""
    both = np.stack([case.of("episode"), case.of("agent")])
    return np.unique(both, axis=1, return_inverse=True)[1].reshape(-1)
