"""Scored by a network that nobody saved.

To the logits, or the means of a Gaussian policy, a fixed random linear function of the state is added.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

catalogued = False
PARAMETERS = {
    "spread": Parameter(0.5, "how far it is from the saved actor, in units of a logit", above=0),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    outputs, states = b.outputs(hit), b.states.astype(np.float64)
    weights = rng.standard_normal((states.shape[1], b.steered(outputs)))
    scale = np.sqrt(np.nanmean((states**2).sum(axis=1))) or 1.0
    outputs[:, : weights.shape[1]] += p["spread"] * (states[hit] @ weights) / scale
    b.rescore(hit, b.log_prob(hit, outputs))
