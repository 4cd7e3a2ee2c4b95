"""Log-probs are shuffled with another index than the rest of the minibatch.

Two calls of randperm where there should be one. Blocks are cut from the hit rows as they are stored.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS = {
    "block": Parameter(0, "rows of a minibatch; 0 for all hit rows as one", least=0),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    size = p["block"] or len(hit)
    for start in range(0, len(hit), size):
        block = hit[start : start + size]
        b.borrow(["old_log_prob"], block, rng.permutation(block))
