"""The offered ids come back sorted, while the local index still counts in the old order.

A set(), a sorted() or a database between rollout and dump; the action mask is carried along, the
action_index is not.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

families = ("categorical",)
PARAMETERS: dict[str, Parameter] = {}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    subset, lengths = b.table("subset_indices")
    orders = [np.argsort(subset[i, : lengths[i]], kind="stable") for i in hit]
    b.set_vectors("subset_indices", hit, [subset[i, o] for i, o in zip(hit, orders, strict=True)])
    if b.has("action_mask"):
        mask, sizes = b.table("action_mask")
        fits = sizes[hit] == lengths[hit]
        kept = [mask[i, o] for i, o, fit in zip(hit, orders, fits, strict=True) if fit]
        b.set_vectors("action_mask", hit[fits], kept)
