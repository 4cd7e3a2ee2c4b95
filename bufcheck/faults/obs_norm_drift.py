"""States are normalised with other statistics than the actor saw.

The running mean and variance moved on between sampling and storing: every state is a little scaled and
shifted, and the log-prob belongs to the one before.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS = {
    "scale": Parameter(1.05, "what each number is multiplied by"),
    "shift": Parameter(0.02, "what is then added to it"),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    states, lengths = b.table("state_embed")
    moved = (states[hit] * p["scale"] + p["shift"]).astype(states.dtype)
    b.set_vectors("state_embed", hit, [s[:n] for s, n in zip(moved, lengths[hit], strict=True)])
