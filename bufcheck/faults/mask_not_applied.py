"""The log-prob comes from a softmax over actions that were not on offer.

The sampler masks what a row may not do, but the code that records the log-prob normalises over all
logits of the network, or over the subset without its action mask. Every log-prob comes out too low,
by the same amount for each action of a row.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._acting import log_sum_exp, pick
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

families = ("categorical",)
PARAMETERS = {
    "over": Parameter(
        "all", "all: every action of the network; mask: the subset, its mask ignored", ("all", "mask")
    ),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    outputs, ids = b.outputs(hit), b.offered(hit)
    taken = pick(b.unmasked(outputs, ids), b.action[hit])
    over = b.unmasked(outputs) if p["over"] == "all" else b.unmasked(outputs, ids)
    b.rescore(hit, taken - log_sum_exp(over)[:, 0])
