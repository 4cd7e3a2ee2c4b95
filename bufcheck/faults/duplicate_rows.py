"""Rows are appended twice.

A retried write, or a worker that resumed before its last flush. The copy stands right behind the row;
as wrong are listed the copies.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS: dict[str, Parameter] = {}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> tuple[Buffer, Array]:
    return b.grown(hit, hit)
