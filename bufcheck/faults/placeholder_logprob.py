"""A log-prob that was never computed is filled in.

Zeros of a fresh buffer, a sentinel of 1, -inf, or the log-prob of a uniform choice.
"""

from __future__ import annotations

import numpy as np

from bufcheck.errors import UsageError
from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS = {
    "value": Parameter("0", "a number, -inf, or uniform for -log K"),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    if p["value"] == "uniform":
        b.set("old_log_prob", hit, -np.log(np.maximum(b.sizes[hit], 1)))
        return
    try:
        value = float(p["value"])
    except ValueError:
        raise UsageError(
            f"placeholder-logprob: value cannot be {p['value']!r}", "it is a number, -inf or uniform"
        ) from None
    b.set("old_log_prob", hit, value)
