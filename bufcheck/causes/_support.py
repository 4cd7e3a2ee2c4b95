"""Rows whose stored log-prob is that of another member of what was offered, and why that may be.

Which member j it is, against the stored action a, tells the bugs apart: each makes some pairs (a, j)
likelier than others, and the actor says by how much. Rows may be of several bugs, each of which has
its own episodes mostly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import LEAST, LIKELY, PROVEN, Verdict
from bufcheck.offer import Offer, log_sum, offers, pick
from bufcheck.vectors import Array

MODELS = ("argmax-action", "argmax-score", "sampled-twice", "order-lost", "other")
GREEDY = ("argmax-action", "argmax-score")
NEVER = -14.0
"""Log-likelihood of what a model rules out: a tie or a chance match may."""
CHANCE = 1e-3
"""How often a value is some member's by accident."""
CLEAR = 12.0
"""Nats by which a model must beat the others to be called proof."""
SURE, EACH = 7.0, 0.02
"""Nats that a model must add to others to be taken for one of several, and for every row more: the more
there are, the more of them several models fit that none of them made."""
ROUNDS, FAR = 25, 2.0
"""Of dealing rows out; and the rows that all episodes together weigh, beside those of one."""
WHOLE, SPARSE, UNUSUAL = 0.4, 0.4, -4.0
"""The part of an episode that a bug has which hits whole ones; less than that part of it, where it has
not; and the log of how likely that is."""


@dataclass(frozen=True)
class Support:
    member: Array
    """Which place has the stored log-prob; −1 where none does."""
    model: Array
    """Which of MODELS fits best; −1 for rows out of the family."""
    nearby: Array
    """For every row, the model that fits best in its episode, or elsewhere where that says nothing."""
    margin: dict[int, float]
    """Of the model, if one made all rows: nats by which it beats the next best."""
    several: bool = False
    """Whether it took more than one to explain them, now or before."""


def explained_by(case: Case, unexplained: Array, model: str) -> tuple[Array, float]:
    """The rows that a model takes, and by how much it beats the others there."""
    key = ("support", unexplained.tobytes())
    if key not in case.noted:
        case.noted[key] = _judged(case, unexplained)
    support: Support = case.noted[key]
    number = MODELS.index(model)
    return support.model == number, support.margin.get(number, 0.0)


def taking(model: str, unexplained: Array) -> Callable[[Case], Verdict]:
    """The test of a model. In the case it was found in, rows explained before are left out."""
    key = ("support", unexplained.tobytes())

    def test(case: Case) -> Verdict:
        open_to = unexplained if key in case.noted else case.unexplained
        rows, _ = explained_by(case, open_to, model)
        none = np.zeros(len(case), bool)
        if model not in GREEDY:
            return Verdict(rows, none, CHANCE)
        # What another cause explains as well may be greedy all the same.
        support: Support = case.noted["support", open_to.tobytes()]
        number = MODELS.index(model)
        able = (likelihoods(case)[:, number] > NEVER) & (member(case) >= 0) & case.in_range
        rows = rows | able & (support.nearby == number) & ~open_to
        accident = np.where(member(case) >= 0, _top(case), 0.0)
        return Verdict(rows, none, CHANCE, accident=np.maximum(accident, CHANCE)[None])

    return test


def _top(case: Case) -> Array:
    """The chance of the likeliest place."""
    found: Array = np.exp(np.where(np.isfinite(case.local), case.log_chances, -np.inf).max(1))
    return found


def confidence(margin: float) -> str:
    return PROVEN if margin >= CLEAR else LIKELY


def sorted_share(case: Case) -> float:
    """How many of the healthy rows with three choices or more have ascending subsets."""
    healthy = np.flatnonzero(~case.wrong)[:20_000]
    offer = offers(case.rows, healthy, case.facts.policy, case.logits.shape[1])
    several = offer.sizes > 2
    return float(_ascending(offer)[several].mean()) if several.any() else 1.0


def member(case: Case) -> Array:
    """Which other place has the stored log-prob; −1 where none does."""

    def nearest() -> Array:
        with np.errstate(invalid="ignore"):
            away = np.abs(case.log_chances - case.stored[:, None])
        away = np.where(np.isfinite(case.local), np.nan_to_num(away, nan=np.inf), np.inf)
        best = away.argmin(1)
        found = np.isfinite(case.stored) & (away.min(1) <= case.near(case.stored))
        return np.where(found, best, -1)

    return case.once("member", nearest)


def likelihoods(case: Case) -> Array:
    """[failing, models]: log of how likely each makes the pair of stored action and scored member."""

    def found() -> Array:
        j, a = member(case), case.chosen
        chances = np.where(np.isfinite(case.local), np.exp(case.log_chances), 0.0)
        log_j, log_a = pick(case.log_chances, j), pick(case.log_chances, a)
        top = chances.max(1)
        choices = np.maximum(case.choices, 2)
        with np.errstate(all="ignore"):
            twice = log_a + log_j - np.log(np.maximum(1 - (chances**2).sum(1), 1e-9))
            others = np.log(np.maximum(1 - top, 1e-9))
            greedy_a = np.where(log_a >= np.log(top) - 1e-9, log_j - others, NEVER)
            greedy_j = np.where(log_j >= np.log(top) - 1e-6, log_a - others, NEVER)
            stale = log_j - np.log(choices - 1)
            nothing = -np.log(choices * (choices - 1))
        lost = np.where(_ascending(case.offer), stale, NEVER)
        table = np.stack([greedy_a, greedy_j, twice, lost, nothing], 1)
        made: Array = np.nan_to_num(np.maximum(table, NEVER), nan=NEVER)
        return made

    return case.once("support likelihoods", found)


def _ascending(offer: Offer) -> Array:
    ids = np.where(offer.offered, offer.ids.astype(np.int64), np.int64(1) << 40)
    rising: Array = np.diff(ids, axis=1) >= 0
    return np.asarray(rising.all(axis=1))


def _judged(case: Case, unexplained: Array) -> Support:
    rows = np.flatnonzero(unexplained & (member(case) >= 0) & case.in_range)
    model = np.full(len(case), -1)
    if len(rows) < LEAST:
        return Support(member(case), model, model, {})
    told = likelihoods(case)[rows]
    episodes, episode = np.unique(case.of("episode")[rows], return_inverse=True)
    right = np.searchsorted(np.sort(case.scalars["episode"][case.telling]), [episodes, episodes + 1])
    mixed = partial(_mixed, told, episode.reshape(-1), np.diff(right, axis=0)[0])
    active = _needed(mixed, len(rows))
    total, shares = mixed(active)
    model[rows] = active[shares.argmax(1)]
    by_episode = np.stack([np.bincount(episode, share) for share in shares.T], 1)
    best = active[by_episode.argmax(1)]
    nearby = np.full(len(case), np.bincount(model[rows]).argmax())
    place = np.minimum(np.searchsorted(episodes, case.of("episode")), len(episodes) - 1)
    known = episodes[place] == case.of("episode")
    nearby[known] = best[place[known]]
    # Several at once, or one after the other, may be one bug that nobody knows.
    before = [noted for noted in case.noted.values() if isinstance(noted, Support)]
    several = len(active) > 1 or any(support.several for support in before)
    margin = {} if several else {int(active[0]): total - _next_best(mixed, int(active[0]))}
    return Support(member(case), model, nearby, margin, several)


Mixed = Callable[[Array], tuple[float, Array]]


def _mixed(told: Array, episode: Array, right: Array, active: Array) -> tuple[float, Array]:
    """These models together, each row made by one of them, and those of an episode mostly by the same:
    the log-likelihood, and [rows, models] the chance of each to have made a row. `right`: how many rows
    of each episode tell that nothing happened to them."""
    told = told[:, active]
    shares = np.exp(told - log_sum(told)[:, None])
    for _ in range(ROUNDS):
        near = np.stack([np.bincount(episode, share) for share in shares.T], 1)[episode]
        unusual = _unusual(near, shares, right[episode])
        near -= shares  # a row is no witness of itself
        weights = (near + FAR * shares.mean(0)) / (near.sum(1, keepdims=True) + FAR)
        joint = told + np.log(np.maximum(weights, 1e-12)) + unusual
        likely = log_sum(joint)
        shares = np.exp(joint - likely[:, None])
    return float(likely.sum()), shares


def _unusual(near: Array, shares: Array, right: Array) -> Array:
    """What speaks against a model in an episode of which it has far less than it usually has: a bug
    that hits whole ones does not make a single row."""
    part = near / np.maximum(near + right[:, None], 1e-9)
    found = np.zeros(near.shape)
    for number, mine in enumerate(shares.argmax(1) == np.arange(near.shape[1])[:, None]):
        usual = float(np.median(part[mine, number])) if mine.any() else 0.0
        if usual >= WHOLE:
            found[part[:, number] < SPARSE * usual, number] = UNUSUAL
    return found


def _needed(mixed: Mixed, rows: int) -> Array:
    """The model that explains the rows best, and those that are needed beside it."""
    every, worth = range(len(MODELS)), SURE + EACH * rows
    active, total = np.zeros(0, np.int64), -np.inf
    while more := [np.append(active, n) for n in every if n not in active]:
        likely = [mixed(models)[0] for models in more]
        if max(likely) < total + worth:
            break
        active, total = more[int(np.argmax(likely))], max(likely)
    # What was the best alone may be superfluous beside the others.
    for number in active.tolist():
        rest = active[active != number]
        if len(rest) and mixed(rest)[0] >= mixed(active)[0] - worth:
            active = rest
    return active


def _next_best(mixed: Mixed, number: int) -> float:
    """The log-likelihood of the best of the other models, alone."""
    return max(mixed(np.array([other]))[0] for other in range(len(MODELS)) if other != number)
