"""The stored action index lies outside the row's subset.

The environment's own numbering, a subset that shrank after sampling, or a count that starts at 1: the
index is K, or more.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

families = ("categorical",)
PARAMETERS = {
    "beyond": Parameter(0, "how far past K", least=0),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    b.set("action_index", hit, b.sizes[hit] + p["beyond"])
