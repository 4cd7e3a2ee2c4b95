"""A local index was taken for a global action id, or a global id was stored as the local index."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import Hypothesis, predicting
from bufcheck.offer import log_sum, pick
from bufcheck.vectors import Array

FIX = (
    "Keep the two kinds of index apart: action_index counts within subset_indices, action_id ="
    " subset_indices[action_index] within all actions. Score and store the same kind."
)
RANK = 0
APPLIES = "categorical"
WRONG = {"local index scored as an id": "either", "id stored as local index": "action"}


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    if "subset_indices" not in case.rows.schema.names or case.facts.policy["logits"] == "prefix":
        return  # an index is an id
    yield Hypothesis(
        {"kind": "local index scored as an id"},
        predicting(_scored_as_id),
        "a softmax over all actions, at action_index as if it were an id, gives the stored value",
    )
    yield Hypothesis(
        {"kind": "id stored as local index"},
        predicting(_stored_as_index, null=_any_member),
        "the stored value is that of the subset's member whose id is the stored action_index",
    )


def _scored_as_id(case: Case) -> Array:
    return pick(case.tempered, case.chosen) - log_sum(case.tempered)


def _any_member(case: Case) -> Array:
    """Some place of the row's own, whatever the index."""
    place = np.random.default_rng(0).integers(0, np.maximum(case.offer.sizes, 1))
    return pick(case.log_chances, place)


def _stored_as_index(case: Case) -> Array:
    same = (case.offer.ids == case.chosen[:, None]) & case.offer.offered
    return pick(case.log_chances, np.where(same.any(1), same.argmax(1), -1))
