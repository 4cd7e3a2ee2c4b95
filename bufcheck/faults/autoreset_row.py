"""The step that only resets the environment is stored as if it were experience.

With next-step autoreset the call after the end ignores its action, gives reward 0 and the first
observation of the next episode. In a finished episode whose first row is chosen, each agent gets one
more row: that state (its own last, where no episode follows), the first legal action, and the log-prob
the actor gives to it. As wrong are listed these rows.
"""

from __future__ import annotations

import numpy as np

from bufcheck.errors import UsageError
from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS: dict[str, Parameter] = {}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> tuple[Buffer, Array]:
    last = np.flatnonzero((b.neighbour(1) < 0) & np.isin(b.episode, b.led(b.episode, hit)))
    if b.has("terminated") or b.has("truncated"):
        last = last[(b.flags("terminated") | b.flags("truncated"))[last]]
    if not len(last):
        raise UsageError(
            "autoreset-row: no chosen episode is terminated or truncated", "choose another seed"
        )
    behind = np.full(int(b.episode.max()) + 1, -1)
    np.maximum.at(behind, b.episode, np.arange(b.rows))
    last = last[np.lexsort((b.agent[last], b.episode[last]))]
    states, _ = b.table("state_embed")
    grown, new = b.grown(last, behind[b.episode[last]])
    grown.set("timestep", new, b.timestep[last] + 1)
    grown.set_vectors("state_embed", new, [states[i] for i in _next_start(b, last)])
    for name in ("reward", "terminated", "truncated"):
        if grown.has(name):
            grown.set(name, new, 0)
    if b.has("action_index"):
        grown.set_action(new, np.isfinite(grown.local(new)).argmax(axis=1))
    else:
        actions, _ = grown.table("action")
        grown.set_vectors("action", new, list(np.zeros((len(new), actions.shape[1]))))
    grown.set("old_log_prob", new, grown.log_prob(new))
    return grown, new


def _next_start(b: Buffer, last: Array) -> list[int]:
    """The agent's first row of the episode that follows, or the row itself."""
    first = np.flatnonzero(b.neighbour(-1) < 0)
    starts = {(b.episode[i], b.agent[i]): int(i) for i in first}
    return [starts.get((b.episode[i] + 1, b.agent[i]), int(i)) for i in last]
