"""Log-probs of [T, n] are flattened as if they were [n, T].

A view where a transpose was needed: the column of an episode is x.reshape(T, n).T.reshape(-1), all
others are stored step by step. Hits whole episodes, those that hold a chosen row, and only those in
which every agent has a row at every step.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS: dict[str, Parameter] = {}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    b.need("old_log_prob")
    rows = b.whole(b.episode, hit)
    for episode in np.unique(b.episode[rows]):
        mine = rows[b.episode[rows] == episode]
        steps, agents = (len(np.unique(x[mine])) for x in (b.timestep, b.agent))
        if len(mine) == steps * agents:
            b.borrow(["old_log_prob"], mine, mine.reshape(steps, agents).T.reshape(-1))
