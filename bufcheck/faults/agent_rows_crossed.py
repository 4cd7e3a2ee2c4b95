"""In one column, the agents of a step have each other's values.

The collector iterates agents in one order for this column and in another for the rest. Each agent gets
what belongs to the next (by name, and the last what belongs to the first), in every step that holds a
chosen row. A subset takes count and mask along.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import SUBSET, Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS = {
    "column": Parameter(
        "old_log_prob",
        "which one",
        ("old_log_prob", "state_embed", "action_index", "action", "subset_indices"),
    ),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    b.need(p["column"])
    rows = b.whole(b.step, hit)
    donors = b.sibling()[rows]
    if p["column"] == "action_index":
        b.set_action(rows, b.action[donors])
    else:
        b.borrow(SUBSET if p["column"] == "subset_indices" else [p["column"]], rows, donors)
