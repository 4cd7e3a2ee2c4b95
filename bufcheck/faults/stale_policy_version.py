"""Rows were scored by older weights than the version they are stamped with.

An asynchronous worker acts on before the new weights arrive, while the learner stamps its rows with the
current version. Rows of an agent's first versions, which have no older one, are left alone.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS = {
    "back": Parameter(1, "how many versions older", least=1),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    versions, known = b.version_at(hit, -p["back"])
    hit = hit[known]
    b.rescore(hit, b.log_prob(hit, b.outputs(hit, versions=versions[known])))
