"""A [N, 1] met a [N], and every row of the batch got the batch's mean.

The product is [N, N], and a mean over the wrong axis makes a column of it again. Blocks are cut from
the hit rows as they are stored.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS = {
    "block": Parameter(64, "rows of a batch", least=2),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    for start in range(0, len(hit), p["block"]):
        block = hit[start : start + p["block"]]
        b.set("old_log_prob", block, b.stored[block].mean())
