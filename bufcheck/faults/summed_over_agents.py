"""Each row holds the sum of the log-probs of all agents of its step.

As a central learner with one joint ratio would store it.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

catalogued = False
PARAMETERS: dict[str, Parameter] = {}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    sums = np.bincount(b.step, b.stored)
    alone = np.bincount(b.step)[b.step[hit]] == 1
    rows = hit[~alone]
    b.set("old_log_prob", rows, sums[b.step[rows]])
