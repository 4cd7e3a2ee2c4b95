"""Dropout or batch normalisation was active while actions were sampled, so that no replay can give the
stored log-probs again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import HINT, LEAST, LIKELY, Hypothesis, Verdict
from bufcheck.vectors import Array

FIX = "Call actor.eval() before collecting, or remove dropout and batch normalisation from the actor."
RANK = 9
APPLIES = None
WRONG = "actor"
LAST_RESORT = True


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    layers = case.facts.actors
    missed = (case.stored - case.replayed)[
        unexplained & np.isfinite(case.stored) & np.isfinite(case.replayed)
    ]
    if not layers or len(missed) < LEAST:
        return
    # Sampled from a disturbed policy, and scored by it: on average the stored log-prob is higher.
    z = float(missed.mean() / max(missed.std() / np.sqrt(len(missed)), 1e-12))
    yield Hypothesis(
        {"layers": layers},
        _all,
        f"no other cause fits, and the checkpoint {layers[0]}; the stored log-probs are"
        f" {'higher' if z > 0 else 'lower'} than replayed by {abs(missed.mean()):.2g} on average"
        f" (z = {z:.1f})",
        most=LIKELY if z > 4 else HINT,
    )


def _all(case: Case) -> Verdict:
    told = np.isfinite(case.stored) & np.isfinite(case.replayed)
    return Verdict(told, np.zeros(len(case), bool), 0.0)
