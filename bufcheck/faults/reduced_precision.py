"""Log-probs pass through sixteen bits on their way to the dump.

Autocast, a half-precision replay store or a bf16 actor head; the column keeps its type, its values lie
on the grid of the smaller one.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS = {
    "to": Parameter("bfloat16", "the type they were rounded to", ("bfloat16", "float16")),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    single = b.stored[hit].astype(np.float32)
    if p["to"] == "float16":
        b.set("old_log_prob", hit, single.astype(np.float16).astype(np.float32))
        return
    bits = single.view(np.uint32).astype(np.uint64)
    even = bits + 0x7FFF + ((bits >> 16) & 1)  # to the nearest, and to even in the middle
    rounded = (even & 0xFFFF0000).astype(np.uint32).view(np.float32)
    b.set("old_log_prob", hit, np.where(np.isfinite(single), rounded, single))
