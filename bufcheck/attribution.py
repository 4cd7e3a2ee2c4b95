"""Which of the causes that were chosen a failing row is put down to, where several explain it.

A row that two causes explain was made by one of them, and fits the other by accident. Which one that
was depends on how often each would fit by accident, and on what else happened nearby: a bug that hit
most of an episode has made the doubtful rows of it as well, and one that hits whole episodes has not
made a single row of one. So rows are dealt out in the order in which causes were chosen, and then again
and again by what the dealing says of every episode. Other ways to begin are tried as well: what comes
out the likeliest is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import SHUFFLE, SURPRISE, Suspect, Verdict
from bufcheck.choice import MAINLY
from bufcheck.vectors import Array

LUCK = 0.01
"""A chance so small that it is no reason to prefer another cause."""
ROUNDS = 8
FAR = 2.0
"""Rows that what is known of the whole dump weighs, beside those of an episode."""
SPARSE, UNUSUAL = 0.2, -4.0
"""Less of an episode than that part of what a cause usually has, and the log of how likely that is."""


def owners(case: Case, chosen: Sequence[Suspect], verdicts: Sequence[Verdict]) -> Array:
    """The number of the cause that each failing row is given to; −1 where none explains it."""
    # What a shift could not fill is padded with 0.
    fits = np.stack([(v.explained | v.lost & (case.stored == 0)) & case.unexplained for v in verdicts])
    found = _in_order(fits, sorted(range(len(chosen)), key=_in_turn(chosen)))
    if not (fits.sum(0) > 1).any():
        return found
    episode, right = _episodes(case)
    starts = [
        _in_order(fits, sorted(range(len(chosen)), key=_by_luck(chosen))),
        _in_order(fits, sorted(range(len(chosen)), key=_last_first(chosen))),
        _by_episode(fits, found, episode, [suspect.rank >= SHUFFLE for suspect in chosen]),
    ]
    by_chance, luck = _by_chance(fits, verdicts), _luck(case, fits, verdicts)
    found, most = _dealt(fits, found, by_chance, luck, episode, right)
    # The causes that were chosen first explain the most with the fewest: it takes a reason.
    needed = most + SURPRISE
    for start in starts:
        other, likely = _dealt(fits, start, by_chance, luck, episode, right)
        if likely > max(most, needed):
            found, most = other, likely
    return found


def _in_order(fits: Array, order: Sequence[int]) -> Array:
    owner = np.full(fits.shape[1], -1)
    for number in reversed(order):
        owner[fits[number]] = number
    return owner


def _by_episode(fits: Array, owner: Array, episode: Array, shuffles: Sequence[bool]) -> Array:
    """Each row is the cause's that explains the most of its episode; of two, the one it was."""
    size = int(episode.max()) + 1
    counts = np.stack([np.bincount(episode, rows, size) for rows in fits])[:, episode]
    last = np.array(shuffles)[:, None]
    rated = np.where(fits, np.where(last, 0.0, counts), -1.0)
    rated += 0.5 * (np.arange(len(fits))[:, None] == owner)
    return np.where(owner >= 0, rated.argmax(0), -1)


def _in_turn(chosen: Sequence[Suspect]) -> Callable[[int], Any]:
    """As they were chosen; but a shuffle explains whatever moved, and comes last."""
    return lambda n: (chosen[n].rank >= SHUFFLE, n)


def _last_first(chosen: Sequence[Suspect]) -> Callable[[int], Any]:
    """What was chosen for the rows that others left may have made some of those as well."""
    return lambda n: (chosen[n].rank >= SHUFFLE, -n)


def _by_luck(chosen: Sequence[Suspect]) -> Callable[[int], Any]:
    """What fits least by chance comes first; where that is next to never, what is most specific."""
    return lambda n: (
        chosen[n].rank >= SHUFFLE,
        max(chosen[n].verdict.chance, LUCK),
        chosen[n].rank,
    )


def _episodes(case: Case) -> tuple[Array, Array]:
    """The episode of each failing row, as a number; and how many rows of each are right and tell it."""
    names, every = np.unique(case.scalars["episode"], return_inverse=True)
    every = every.reshape(-1)
    return every[case.at], np.bincount(every, case.telling, len(names))


def _dealt(
    fits: Array, owner: Array, by_chance: Array, luck: Array, episode: Array, right: Array
) -> tuple[Array, float]:
    """Rows dealt out as is most likely, from this start; and the log of how likely that is."""
    owner = owner.copy()
    rows = np.flatnonzero(owner >= 0)
    for _ in range(ROUNDS):
        rated = _rated(fits, owner, by_chance, luck[:, rows], episode, rows, right)
        here = rated[owner[rows], np.arange(len(rows))]
        # Of two that are as good as each other, the one that was there stays.
        best = np.where(rated.max(0) > here + 1e-9, rated.argmax(0), owner[rows])
        if (best == owner[rows]).all():
            break
        owner[rows] = best
    return owner, float(here.sum())


def _by_chance(fits: Array, verdicts: Sequence[Verdict]) -> Array:
    """[causes, causes]: how often the second fits rows that the first made, by accident, at least."""
    made = np.array([[verdict.by_chance(rows) for verdict in verdicts] for rows in fits])
    found: Array = np.clip(made, LUCK, 1.0)
    return found


def _luck(case: Case, fits: Array, verdicts: Sequence[Verdict]) -> Array:
    """[causes, rows]: the chance that each fits a row another made, by what that row is: what is padded
    fits any shift, and the log-prob of a single choice stands in many rows. A copy is no luck."""
    found: Array = np.tile(case.nothing, (len(fits), 1))
    for mine, rows, verdict in zip(found, fits, verdicts, strict=True):
        mine[rows & ~verdict.explained] = 1.0
        if verdict.held is not None:
            mine[verdict.held] = 0.0
    return found


def _rated(
    fits: Array,
    owner: Array,
    by_chance: Array,
    luck: Array,
    episode: Array,
    rows: Array,
    right: Array,
) -> Array:
    """[causes, rows]: the log of how likely each cause made each of these rows, up to a constant."""
    count, size = len(fits), len(right)
    own = np.stack([owner == number for number in range(count)])
    near = np.stack([np.bincount(episode, mine, size) for mine in own])[:, episode[rows]]
    usual = _usual_shares(near, owner[rows], right[episode[rows]])
    near -= own[:, rows]  # a row is no witness of itself
    share = (own.sum(1) + 1) / (own.sum() + count)
    prior = np.log((near + FAR * share[:, None]) / (near.sum(0) + FAR))
    prior += np.where(_share(near + 1, right[episode[rows]]) < SPARSE * usual[:, None], UNUSUAL, 0.0)
    rated = np.full(prior.shape, -np.inf)
    for first in range(count):
        seen = (own[first] & fits).sum(1) / max(int(own[first].sum()), 1)
        also = np.maximum(np.maximum(seen, by_chance[first])[:, None], luck)
        also = np.clip(also, 1e-3, 1 - 1e-3)
        pattern = np.where(fits[:, rows], np.log(also), np.log(1 - also))
        pattern[first] = 0.0
        told = prior[first] + pattern.sum(0)
        rated[first] = np.where(fits[first, rows], told, -np.inf)
    return rated


def _share(mine: Array, right: Array) -> Array:
    """Of the rows of an episode that a cause made, or left right."""
    found: Array = mine / (mine + right)
    return found


def _usual_shares(near: Array, owner: Array, right: Array) -> Array:
    """What share of an episode each cause has, by most of its rows; 0 where it hits single ones."""
    shares = np.zeros(len(near))
    for number, count in enumerate(near):
        mine = owner == number
        if mine.any():
            shares[number] = np.median(_share(count, right)[mine])
    return np.where(shares >= MAINLY, shares, 0.0)
