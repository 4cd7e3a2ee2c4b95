"""Log-probs with noise on them: no known bug, and none that could be named."""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

catalogued = False
PARAMETERS = {
    "spread": Parameter(0.1, "its standard deviation", above=0),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    b.set("old_log_prob", hit, b.stored[hit] + p["spread"] * rng.standard_normal(len(hit)))
