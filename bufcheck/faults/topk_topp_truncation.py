"""Actions are sampled from the likeliest only, and scored there.

Top-k keeps k actions; top-p the fewest whose chances add up to p. What is kept is normalised again, so
that stored log-probs are too high for the policy that learns.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._acting import log_softmax
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

families = ("categorical",)
PARAMETERS = {
    "p": Parameter(0.9, "the chance that is kept", above=0, most=1),
    "k": Parameter(0, "how many actions are kept; 0 for top-p", least=0),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    log_probs = log_softmax(b.local(hit))
    order = np.argsort(-log_probs, axis=1, kind="stable")
    falling = np.take_along_axis(np.exp(log_probs), order, 1)
    if p["k"]:
        kept = np.tile(np.arange(falling.shape[1]) < p["k"], (len(hit), 1))
    else:
        kept = np.cumsum(falling, axis=1) - falling < p["p"]
    inside = np.zeros_like(kept)
    np.put_along_axis(inside, order, kept, 1)
    b.follow(hit, log_softmax(np.where(inside, log_probs, -np.inf)), "sampled", rng)
