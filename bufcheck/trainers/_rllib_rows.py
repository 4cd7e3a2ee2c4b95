"""RLlib's pieces of episodes as rows of a dump: their keys, and their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bufcheck.vectors import Array


@dataclass(frozen=True)
class Piece:
    """What one agent did in an episode, as far as one rollout has it."""

    episode: int
    agent: str
    module: str | None
    """None: the only one there is."""
    timesteps: Array
    terminated: bool
    truncated: bool


def timesteps_of(episode: Any, own: Any, agent: Any) -> Array:
    """Since the environment's reset, whoever acted in between."""
    if episode is own:
        return np.arange(own.t_started, own.t_started + len(own))
    # At each of the environment's steps: which observation the agent got there, if it got one.
    seen = episode.env_t_to_agent_t[agent]
    at = [place for place, entry in enumerate(seen.data) if entry != episode.SKIP_ENV_TS_TAG]
    acted = at[-len(own) - 1 : -1] if len(own) else []
    steps: Array = np.array(acted, np.int64) + episode.env_t_started - seen.lookback
    return steps


def joined(tables: Sequence[Mapping[str, Array]], *, whole: bool) -> dict[str, Any]:
    """The rows of all policies, in the order of their keys; columns with None in them as lists."""
    rows = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    order = np.lexsort((rows["agent_id"].astype(str), rows["timestep"], rows["episode_id"]))
    rows = {name: column[order] for name, column in rows.items()}
    if not whole:
        rows["timestep"] = _without_gaps(rows["episode_id"], rows["timestep"])
    return {n: column.tolist() if column.dtype == object else column for n, column in rows.items()}


def _without_gaps(episode: Array, timestep: Array) -> Array:
    """Steps at which only policies acted that are not dumped are not counted."""
    opens = np.append(True, episode[1:] != episode[:-1])
    steps = np.cumsum(opens | np.append(True, timestep[1:] != timestep[:-1]))
    first = np.maximum.accumulate(np.where(opens, np.arange(len(opens)), 0))
    counted: Array = timestep[first] + steps - steps[first]
    return counted
