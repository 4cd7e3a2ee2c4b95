"""A place within the subset is taken for a global action id, or the reverse.

Scoring indexes the full softmax with the local action_index; or the global id of the action is stored
as action_index, and may then lie outside the subset.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._acting import log_softmax, pick
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

families = ("categorical",)
PARAMETERS = {
    "kind": Parameter(
        "score",
        "score: the log-prob is of another action; stored: the id is stored",
        ("score", "stored"),
    ),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    action = b.action[hit]
    if p["kind"] == "score":
        b.rescore(hit, pick(log_softmax(b.unmasked(b.outputs(hit))), action))
        return
    subset, lengths = b.table("subset_indices")
    inside = (action >= 0) & (action < lengths[hit])
    b.set("action_index", hit[inside], subset[hit[inside], action[inside]])
