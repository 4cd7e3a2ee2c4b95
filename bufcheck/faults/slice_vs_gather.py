"""One side takes logits[:K], the other logits[subset_indices].

The sampler slices the first K logits where the row's actions have other ids, or gathers where the dump
declares a prefix. The two are the same only where every subset is 0..K-1. Mask and temperature are
applied as they should be.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._acting import log_softmax, pick
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

families = ("categorical",)
PARAMETERS: dict[str, Parameter] = {}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    other = "prefix" if b.policy["logits"] == "gather" else "gather"
    b.need("subset_indices")
    z = b.local(hit, ids=b.offered(hit, other))
    b.rescore(hit, pick(log_softmax(z), b.action[hit]))
