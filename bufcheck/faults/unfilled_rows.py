"""Rows of a preallocated buffer that were never written are dumped too.

Zeros all through: state, key, action, count and log-prob; an empty subset. They are as many as there
are hit rows, and stand at the end.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS: dict[str, Parameter] = {}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> tuple[Buffer, Array]:
    last = np.full(len(hit), b.rows - 1)
    grown, new = b.grown(np.zeros(len(hit), np.int64), last)
    first = b.agents[0]
    for name, column in grown.columns.items():
        kind = column.type
        if pa.types.is_fixed_size_list(kind):
            grown.set_vectors(name, new, list(np.zeros((len(new), kind.list_size))))
        elif pa.types.is_nested(kind):
            zeros = b.table(name)[0].shape[1] if name in ("state_embed", "action") else 0
            grown.set_vectors(name, new, list(np.zeros((len(new), zeros))))
        elif pa.types.is_string(kind):
            grown.set(name, new, first if name == "agent_id" else "")
        else:
            grown.set(name, new, 0)
    return grown, new
