"""The greedy action is stored with the log-prob of the sampled one, or the reverse.

action: action_index is the likeliest action of the row. score: old_log_prob is the largest the row has,
as when max() stands where gather() should.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._acting import log_softmax
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

families = ("categorical",)
PARAMETERS = {
    "kind": Parameter("action", "what is greedy", ("action", "score")),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    log_probs = log_softmax(b.local(hit))
    if p["kind"] == "action":
        b.set_action(hit, log_probs.argmax(axis=1))
    else:
        b.rescore(hit, log_probs.max(axis=1))
