"""The log-prob was taken over more actions than the sample was offered: the mask or subset was
forgotten where the log-prob was computed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import Hypothesis, predicting
from bufcheck.offer import log_softmax, log_sum, offers, pick
from bufcheck.vectors import Array

FIX = (
    "Apply the same mask or subset where the log-prob is computed as where the action is sampled:"
    " build one distribution per sample and take both from it."
)
RANK = 0
APPLIES = "categorical"
WRONG = "either"
MOST_ACTIONS = 4096


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    count = case.logits.shape[1]
    yield Hypothesis(
        {"over": "all actions"},
        predicting(_over_all),
        f"a softmax over all {count} actions, instead of those offered, gives the stored value",
    )
    if "action_mask" in case.rows.schema.names:
        yield Hypothesis(
            {"over": "the subset without its mask"},
            predicting(_unmasked),
            "a softmax over the subset without action_mask gives the stored value",
        )
    if case.most_agents > 1 and count <= MOST_ACTIONS:
        yield Hypothesis(
            {"over": "what the step's agents were offered together"},
            predicting(_over_the_step),
            "a softmax over what all agents of the step were offered gives the stored value",
        )


def _over_all(case: Case) -> Array:
    return pick(case.tempered, case.chosen_id) - log_sum(case.tempered)


def _unmasked(case: Case) -> Array:
    return case.scored(case.offer.ids, case.offer.offered, case.chosen)


def _over_the_step(case: Case) -> Array:
    actions = case.logits.shape[1]
    steps, of_row = np.unique(case.step_of[case.at], return_inverse=True)
    there = np.flatnonzero(np.isin(case.step_of, steps))
    offer = offers(case.rows, there, case.facts.policy, actions)
    open_to = np.zeros((len(steps), actions), bool)
    row, place = np.nonzero(offer.offered & offer.legal)
    open_to[np.searchsorted(steps, case.step_of[there])[row], offer.ids[row, place]] = True
    logits = np.where(open_to[of_row], case.tempered, -np.inf)
    return pick(log_softmax(logits), case.chosen_id)
