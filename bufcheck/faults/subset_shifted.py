"""The subset is fetched after env.step, so that a row holds what the next one was offered.

Subset, count and mask are those of the agent's row `offset` steps later; the action is the row's own
and may lie outside them. The last rows of an episode keep theirs.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import SUBSET, Buffer, Parameters
from bufcheck.vectors import Array

families = ("categorical",)
PARAMETERS = {
    "offset": Parameter(1, "how many rows later (negative: earlier)"),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    b.borrow(SUBSET, hit, b.neighbour(p["offset"])[hit])
