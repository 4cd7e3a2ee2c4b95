"""One agent's subset was copied to every agent of its step; their own are lost."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from bufcheck.case import CONTEXT, Case
from bufcheck.cause import LEAST, Hypothesis, Verdict
from bufcheck.vectors import Array

FIX = (
    "Fetch the subset for each agent, after it is known whose turn it is, and give the stored array an"
    " agent axis. The true subsets are lost: these rows cannot be repaired."
)
RANK = 2
APPLIES = "categorical"
WRONG = "offer"


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    if not set(CONTEXT) & set(case.rows.schema.names) or case.most_agents < 2:
        return
    rated = [
        (int((_same(case, agent)[case.at] & unexplained).sum()), agent)
        for agent in range(len(case.facts.agents))
    ]
    count, agent = max(rated, default=(0, 0))
    if count >= LEAST:
        name = case.facts.agents[agent]
        yield Hypothesis(
            {"agent": name},
            partial(_broadcast, agent=agent),
            f"the subset is that of agent {name} in the same step, whose own log-prob is right",
        )


def _same(case: Case, agent: int) -> Array:
    """Rows (failing or not) of other agents that hold what this agent was offered in the step, where
    its own row is right."""
    return _alike(case, agent, case.wrong)


def _alike(case: Case, agent: int, but: Array) -> Array:
    """The same for all rows of this agent but some."""

    def found() -> Array:
        offered, steps = case.all_offered, case.step_of
        size = int(steps.max(initial=0)) + 1
        source = np.full(size, -1)
        mine = (case.scalars["agent"] == agent) & ~but
        source[steps[mine]] = np.flatnonzero(mine)
        row = source[steps]
        made: Array = (row >= 0) & (offered == offered[row]) & (case.scalars["agent"] != agent)
        return made

    return case.once(("same subset", agent, int(but.sum())), found)


def _broadcast(case: Case, agent: int) -> Verdict:
    same = _same(case, agent)
    # How often agents of a healthy step share it; where all steps are hit, how often it is that of the
    # agent's next step. What is usual proves nothing.
    hit = np.zeros(int(case.step_of.max(initial=0)) + 1, bool)
    hit[case.step_of[case.wrong]] = True
    healthy = ~hit[case.step_of] & (case.scalars["agent"] != agent)
    if healthy.sum() >= 50:
        chance = float(same[healthy].mean())
    else:
        later, offered = case.all_along(1), case.all_offered
        mine = (case.scalars["agent"] == agent) & (later >= 0)
        chance = float((offered == offered[later])[mine].mean()) if mine.any() else 1.0
    # Another bug may have hit the agent's own row: a copy all the same, if nobody else explains it.
    copies = _alike(case, agent, ~case.wrong)[case.at]
    return Verdict(same[case.at], np.zeros(len(case), bool), chance, copies=copies)
