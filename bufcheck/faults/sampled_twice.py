"""The stored action is not the one that was scored, but a second draw.

`dist.sample()` is called once for the environment and once for the log-prob.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._acting import draw, log_softmax
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

families = ("categorical",)
PARAMETERS: dict[str, Parameter] = {}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    b.set_action(hit, draw(log_softmax(b.local(hit)), rng))
