"""The number of actions is missing on the way to the scorer, which falls back to a constant.

`info.get("num_actions", 5)` where the key was never set: the log-prob is that of a choice among the
first k logits, or among the first k ids of the subset. Rows whose action lies beyond k are left alone,
since scoring them would have crashed.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._acting import log_softmax, pick
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

families = ("categorical",)
PARAMETERS = {
    "k": Parameter(5, "the constant", least=1),
    "of": Parameter(
        "prefix",
        "prefix: the first k logits; subset: the first k ids of the subset",
        ("prefix", "subset"),
    ),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    hit = hit[b.action[hit] < p["k"]]
    outputs = b.outputs(hit)
    if p["of"] == "subset":
        ids = b.offered(hit, "gather")[:, : p["k"]]
    else:
        ids = np.tile(np.arange(min(p["k"], outputs.shape[1])), (len(hit), 1))
    b.rescore(hit, pick(log_softmax(b.local(hit, outputs, ids)), b.action[hit]))
