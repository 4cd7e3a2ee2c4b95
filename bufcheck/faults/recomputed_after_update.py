"""Old log-probs are rebuilt with weights that have already been updated.

The ratio of PPO is then 1 whatever happened. Past an agent's last version in the dump, versions are
counted on, where an actor of that number was given; rows without one are left alone.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS = {
    "ahead": Parameter(1, "how many versions newer", least=1),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    versions, known = b.version_at(hit, p["ahead"])
    hit = hit[known]
    b.rescore(hit, b.log_prob(hit, b.outputs(hit, versions=versions[known])))
