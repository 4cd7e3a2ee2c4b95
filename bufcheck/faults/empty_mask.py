"""No action is left, and the log-prob is NaN.

A mask that forbids everything makes a softmax over nothing. subset: the row offers no action at all.
mask: it offers some, and its action_mask forbids each.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

families = ("categorical",)
PARAMETERS = {
    "kind": Parameter("subset", "what is empty", ("subset", "mask")),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    if p["kind"] == "mask":
        _, lengths = b.table("action_mask")
        b.set_vectors("action_mask", hit, [np.zeros(n, bool) for n in lengths[hit]])
    else:
        for name in ("subset_indices", "action_mask"):
            if name == "subset_indices" or b.has(name):
                b.set_vectors(name, hit, [[]] * len(hit))
        b.set("num_actions", hit, 0)
    b.set("old_log_prob", hit, np.nan)
