"""[steps, agents] was read as [agents, steps]: a view or reshape where a transpose was meant."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import Hypothesis, Verdict
from bufcheck.causes import _permutation
from bufcheck.vectors import Array

FIX = (
    "Transpose before flattening (x.transpose(0, 1).reshape(-1)); a reshape or view keeps the old"
    " order."
)
RANK = 2
APPLIES = None
WRONG = "log_prob"


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    kind = _permutation.classified(case, unexplained)
    if kind is None or not kind.name.startswith("stride"):
        return
    agents = case.most_agents
    yield Hypothesis(
        {
            "agents": agents,
            "read_as": "[agents, steps]" if kind.name == "stride" else "[steps, agents]",
        },
        lambda case: _reshaped(case, kind),
        "the stored values are those of the episode with its axes of steps and"
        f" {agents} agents exchanged",
    )


def _reshaped(case: Case, kind: _permutation.Kind) -> Verdict:
    """By value: the replayed log-prob of the place in the episode that it should have come from."""
    failing = kind.moves.failing
    wanted = _permutation.stride_source(failing, np.arange(len(failing.row_id)), kind.name)
    place = _permutation.lookup(case, failing.row_id, wanted, -1)
    row_id, episode = case.scalars["row_id"], case.scalars["episode"]
    order = np.lexsort((row_id, episode))
    begin = np.searchsorted(episode[order], case.of("episode"))
    source = order[np.minimum(begin + np.maximum(place, 0), len(order) - 1)]
    values = np.where(place >= 0, case.scalars["replayed"][source], np.nan)
    explained = case.hits(values)
    return Verdict(explained, np.isnan(values), 1e-4, np.where(explained, row_id[source], -1))
