"""The log-prob column is off by one against all others.

It was appended before the step where the rest was appended after it, or sliced [1:] where the rest was
not. Where no row lies at that distance, 0 is stored, as padding does.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS = {
    "offset": Parameter(1, "how many rows later the log-prob belongs (negative: earlier)"),
    "order": Parameter(
        "time", "time: within episode and agent; storage: as rows are stored", ("time", "storage")
    ),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    if p["order"] == "time":
        donors = b.neighbour(p["offset"])[hit]
    else:
        donors = hit + p["offset"]
        donors = np.where((donors >= 0) & (donors < b.rows), donors, -1)
    b.set("old_log_prob", hit[donors < 0], 0.0)
    b.borrow(["old_log_prob"], hit, donors)
