"""A circular buffer is dumped as it lies in memory.

The newest rows come first, then the oldest: the episode that the write head cut in two stands at both
ends of the dump. All rows are moved, none is changed; as wrong are listed the rows of that episode.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS = {
    "at": Parameter(0.33, "where the head stands, as a share of the rows", above=0, most=1),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> tuple[Buffer, Array]:
    inside = np.flatnonzero(b.episode[1:] == b.episode[:-1]) + 1
    inside = inside[~np.isin(b.episode[inside], b.episode[b.avoid])]
    if not len(inside):
        return b, inside
    head = inside[np.abs(inside - p["at"] * b.rows).argmin()]
    order = np.roll(np.arange(b.rows), -head)
    columns = {name: column.take(pa.array(order)) for name, column in b.columns.items()}
    broken = np.flatnonzero((b.episode == b.episode[head])[order])
    return Buffer(columns, b.acting, b.avoid[order]), broken
