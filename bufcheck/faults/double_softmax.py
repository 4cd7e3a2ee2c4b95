"""Probabilities are handed over where logits are expected.

`Categorical(logits=softmax(z))`: what is normalised again are numbers between 0 and 1, so that every
log-prob is close to -log K, and a masked action gets a chance back.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._acting import log_softmax, pick
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

families = ("categorical",)
PARAMETERS: dict[str, Parameter] = {}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    z = b.local(hit)
    padding = b.offered(hit) < 0
    again = np.where(padding, -np.inf, np.exp(log_softmax(z)))
    b.rescore(hit, pick(log_softmax(again), b.action[hit]))
