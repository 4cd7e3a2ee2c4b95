"""Two workers share a seed and play the same episodes.

Copies of whole episodes stand at the end under new episode ids; as wrong are listed the copies. An
episode is copied when its first row is chosen.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS: dict[str, Parameter] = {}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> tuple[Buffer, Array]:
    episodes = b.led(b.episode, hit)
    donors = np.flatnonzero(np.isin(b.episode, episodes))
    grown, new = b.grown(donors, np.full(len(donors), b.rows - 1))
    fresh = int(b.numbers("episode_id").max()) + 1
    grown.set("episode_id", new, fresh + np.searchsorted(episodes, b.episode[donors]))
    return grown, new
