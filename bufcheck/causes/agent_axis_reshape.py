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
    failing = kind.moves.failing
    every = np.arange(len(failing.row_id))
    wanted = _permutation.stride_source(failing, every, kind.name)
    # By value: the replayed log-prob of the place it should have come from.
    first = case.scalars["row_id"]
    place = _permutation.lookup(case, failing.row_id, wanted, -1)
    episode = case.scalars["episode"]
    starts = {int(e): int(i) for e, i in zip(*np.unique(episode, return_index=True), strict=True)}
    order = np.lexsort((first, episode))
    sorted_episode = episode[order]
    begin = np.searchsorted(sorted_episode, case.of("episode"))
    assert len(starts) > 0
    source = order[np.minimum(begin + np.maximum(place, 0), len(order) - 1)]
    values = np.where(place >= 0, case.scalars["replayed"][source], np.nan)
    explained = case.hits(values)
    lost = np.isnan(values)
    return Verdict(explained, lost, 1e-4, np.where(explained, first[source], -1))
