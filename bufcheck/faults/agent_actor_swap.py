"""An agent's rows go through another agent's network, or carry its name.

scored: the log-prob is by the actor of the next agent (by name, and from the last to the first) of the
same version. relabelled: agent_id is handed on in that order among the agents of each step that holds
a chosen row.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS = {
    "kind": Parameter("scored", "what was swapped: who scored, or the names", ("scored", "relabelled")),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    if p["kind"] == "relabelled":
        rows = b.whole(b.step, hit)
        b.borrow(["agent_id"], rows, b.sibling()[rows])
        return
    other = (b.agent[hit] + 1) % len(b.agents)
    b.rescore(hit, b.log_prob(hit, b.outputs(hit, agents=other)))
