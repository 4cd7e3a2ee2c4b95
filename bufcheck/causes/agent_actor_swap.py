"""Another agent's network scored the sample, or agents' rows carry each other's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import LEAST, Hypothesis, predicting
from bufcheck.vectors import Array

FIX = (
    "Look actors up by agent id, not by position: a list of policies and a dict of agents iterate in"
    " different orders. Check that agent_id is attached before rows are sorted or batched."
)
RANK = 1
APPLIES = None
WRONG = "agent"
MOST_AGENTS = 32


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    names = case.facts.agents
    if not 1 < len(names) <= MOST_AGENTS:
        return
    agents = case.of("agent")
    best: dict[int, tuple[int, int]] = {}
    for places in range(1, len(names)):
        hits = case.hits(_by_agent(case, places)) & unexplained
        for agent, count in enumerate(np.bincount(agents[hits & (agents >= 0)], minlength=len(names))):
            other = (agent + places) % len(names)
            best[agent] = max(best.get(agent, (0, 0)), (int(count), other))
    acted = {agent: other for agent, (count, other) in best.items() if count >= LEAST}
    if acted:
        told = {names[agent]: names[other] for agent, other in acted.items()}
        listed = ", ".join(f"{other}'s for {agent}" for agent, other in told.items())
        yield Hypothesis(
            {"acted": told},
            predicting(partial(_swapped, acted=acted)),
            f"another agent's actor gives the stored value ({listed})",
        )


def _swapped(case: Case, acted: Mapping[int, int]) -> Array:
    values, agents, count = np.full(len(case), np.nan), case.of("agent"), len(case.facts.agents)
    for agent, other in acted.items():
        mine = agents == agent
        values[mine] = _by_agent(case, (other - agent) % count)[mine]
    return values


def _by_agent(case: Case, places: int) -> Array:
    def replayed() -> Array:
        agents = case.of("agent")
        other = np.where(agents >= 0, (agents + places) % len(case.facts.agents), -1)
        actors = case.actors_for(other, case.of("version"))
        return case.replayed_with(actors=np.where(actors != case.of("actor"), actors, -1))

    return case.once(("agent", places), replayed)
