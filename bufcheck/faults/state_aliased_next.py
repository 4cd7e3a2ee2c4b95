"""The stored state is one the environment has since overwritten.

`buffer.append(obs)` without a copy: by the time it is written, the array holds the observation of a
later step. The last rows of an episode keep their own.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS = {
    "offset": Parameter(1, "how many rows later the state is from"),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    b.borrow(["state_embed"], hit, b.neighbour(p["offset"])[hit])
