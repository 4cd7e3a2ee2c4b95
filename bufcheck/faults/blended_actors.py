"""Scored by a network between two saved ones.

The mean of what the row's actor and another say: the next agent's (by name, and from the last to the
first), or the next version's. As averaged weights would do.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

catalogued = False
PARAMETERS = {
    "partner": Parameter("agent", "whose actor is the other", ("agent", "version")),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    if p["partner"] == "agent":
        other = b.outputs(hit, agents=(b.agent[hit] + 1) % len(b.agents))
    else:
        versions, known = b.version_at(hit, 1)
        hit = hit[known]
        other = b.outputs(hit, versions=versions[known])
    b.rescore(hit, b.log_prob(hit, (b.outputs(hit) + other) / 2))
