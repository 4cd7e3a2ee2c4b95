"""One agent's subset is written for all agents of the step.

The collector asks the first agent what can be done and repeats it along the agent axis: subset, count
and mask are those of the agent whose name comes first. The actions are the agents' own.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import SUBSET, Buffer, Parameters
from bufcheck.vectors import Array

families = ("categorical",)
PARAMETERS: dict[str, Parameter] = {}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    order = np.lexsort((b.agent, b.step))
    first = order[np.flatnonzero(np.diff(b.step[order], prepend=-1))]
    b.borrow(SUBSET, hit, first[b.step[hit]])
