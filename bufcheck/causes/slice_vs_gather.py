"""The first K logits were scored where the subset's own belong, or the other way round."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import Hypothesis, predicting
from bufcheck.offer import padded
from bufcheck.vectors import Array

FIX = (
    "Index the logits the same way everywhere: logits[subset_indices] (gather) or logits[:K] (prefix),"
    " and declare which in policy.logits."
)
RANK = 0
APPLIES = "categorical"
WRONG = "either"


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    if "subset_indices" not in case.rows.schema.names:
        return
    if case.facts.policy["logits"] == "prefix":
        yield Hypothesis(
            {"scored": "gather"},
            predicting(_gathered),
            "logits[subset_indices], though the dump declares the first K, gives the stored value",
        )
    else:
        yield Hypothesis(
            {"scored": "prefix"},
            predicting(_sliced),
            "the first K logits, though the dump declares logits[subset_indices], give the stored"
            " value",
        )


def _sliced(case: Case) -> Array:
    offer = case.offer
    width = min(offer.ids.shape[1], case.logits.shape[1])
    places = np.broadcast_to(np.arange(width), (len(case), width))
    return case.scored(places, (offer.offered & offer.legal)[:, :width], case.chosen)


def _gathered(case: Case) -> Array:
    ids, sizes = (part[case.at] for part in padded(case.rows.column("subset_indices")))
    actions = case.logits.shape[1]
    offered = (np.arange(ids.shape[1]) < sizes[:, None]) & (ids >= 0) & (ids < actions)
    width = min(ids.shape[1], case.offer.legal.shape[1])
    offered[:, :width] &= case.offer.legal[:, :width]
    return case.scored(np.clip(ids, 0, actions - 1), offered, case.chosen)
