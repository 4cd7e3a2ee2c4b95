"""Dropout or batch statistics are on while rows are scored.

The network was left in train mode: each pass has noise of its own, which no replay can repeat. Here it
is Gaussian noise on the logits, or on the means of a Gaussian policy.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS = {
    "spread": Parameter(0.3, "the standard deviation of the noise", above=0),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    outputs = b.outputs(hit)
    size = b.steered(outputs)
    outputs[:, :size] += p["spread"] * rng.standard_normal((len(hit), size))
    b.rescore(hit, b.log_prob(hit, outputs))
