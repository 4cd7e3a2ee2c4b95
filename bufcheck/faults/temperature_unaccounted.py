"""Sampling and scoring disagree on the temperature.

scored: the sampler does not know the temperature that the log-prob was computed at. sampled: both used
it, but the policy that learns does not. unscored: the action was sampled with it, the log-prob was
computed without; a replay of log-probs cannot see that.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._acting import log_softmax
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

families = ("categorical",)
PARAMETERS = {
    "temperature": Parameter(0.7, "what the logits are divided by", above=0),
    "mode": Parameter(
        "scored",
        "what knew the temperature: the log-prob, both, or the sampler only",
        ("scored", "sampled", "unscored"),
    ),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    b.follow(hit, log_softmax(b.local(hit) / p["temperature"]), p["mode"], rng)
