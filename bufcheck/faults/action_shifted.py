"""The stored action is the one of the step before.

The action is recorded before it is chosen, or beside the observation it led to. It may lie outside the
row's subset. The first rows of an episode keep their own.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS = {
    "offset": Parameter(1, "how many rows earlier the action is from"),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    donors = b.neighbour(-p["offset"])[hit]
    hit, donors = hit[donors >= 0], donors[donors >= 0]
    if b.has("action_index"):
        fine = ~b.avoid[donors]
        b.set_action(hit[fine], b.action[donors[fine]])
    else:
        b.need("action")
        b.borrow(["action"], hit, donors)
