"""Rollouts of several environments, [time, env, …] or [time, env, agent, …], as rows of a dump.

A rollout cuts episodes: what goes on in the next one was bootstrapped here, so each piece is an episode
of the dump, with an id of its own. Its timesteps count from the environment's reset all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bufcheck import incoming
from bufcheck.errors import SampleError
from bufcheck.vectors import Array

OF_STEPS = ("terminated", "truncated", "env_id", "seed", "policy_version", "source", "group")
"""Columns that may be told once for all agents of a step."""


@dataclass
class Clock:
    """Where each environment stands: the steps since its reset, and the next episode's id."""

    next_episode: int = 0
    steps: Array = field(default_factory=lambda: np.zeros(0, np.int64))

    def read(self, starts: Array) -> tuple[Array, Array]:
        """Episode ids and timesteps, [time, env], and moves on."""
        time, envs = starts.shape
        if len(self.steps) != envs:
            if len(self.steps):
                raise SampleError(f"starts has {envs} environments, before it had {len(self.steps)}")
            self.steps = np.zeros(envs, np.int64)
        first = starts.copy()
        first[0] = True  # of a piece, if not of an episode
        # Ids grow along each environment, and from one to the next: rows come out in their order.
        episode = (np.cumsum(first.T.reshape(-1)) - 1 + self.next_episode).reshape(envs, time).T
        at = np.arange(time)[:, None]
        reset = np.maximum.accumulate(np.where(starts, at, -1), axis=0)
        timestep = np.where(reset < 0, at + self.steps, at - reset)
        self.steps = timestep[-1] + 1
        self.next_episode = int(episode.max()) + 1
        return episode, timestep


def as_rows(
    given: Mapping[str, Any],
    starts: Any,
    clock: Clock,
    agents: Sequence[str] | None = None,
    keep: Any = None,
) -> dict[str, Any]:
    """One row per (episode, timestep, agent), in that order.

    `starts[t, e]`: step t is the first after a reset. `keep[t, e]`: False for what was no step (the
    row that an environment spends on resetting itself).
    """
    first = _steps("starts", starts)
    shape = first.shape
    kept = np.ones(shape, bool) if keep is None else _steps("keep", keep, shape)
    episode, timestep = clock.read(first)
    order = _order(kept)
    if agents is not None:
        names = [str(agent) for agent in agents]
        by_name = np.array(sorted(range(len(names)), key=names.__getitem__))
        shape = (*shape, len(names))
    rows: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or (not hasattr(value, "shape") and isinstance(value, (str, int, float))):
            rows[name] = value
            continue
        table = _table(name, value, shape)
        if agents is None:
            rows[name] = _flat(table)[order]
        else:
            rows[name] = _flat(table)[order][:, by_name].reshape(-1, *table.shape[3:])
    many = 1 if agents is None else len(names)
    keys = {"episode_id": episode, "timestep": timestep, "env_id": np.indices(first.shape)[1]}
    for name, value in keys.items():
        if name not in rows:
            rows[name] = np.repeat(_flat(value)[order], many)
    if agents is not None:
        rows["agent_id"] = np.tile(np.array(names, object)[by_name], len(order))
    return rows


def _steps(name: str, value: Any, shape: tuple[int, ...] | None = None) -> Array:
    found = incoming.as_array(name, value).astype(bool)
    if found.ndim != 2 or (shape is not None and found.shape != shape) or not found.size:
        expected = "[time, env]" if shape is None else list(shape)
        raise SampleError(f"{name} has shape {list(found.shape)}, expected {expected}")
    return found


def _order(kept: Array) -> Array:
    """Positions of the steps in a [time * env] array: one environment after the other."""
    places = np.arange(kept.size).reshape(kept.shape).T.reshape(-1)
    return places[kept.T.reshape(-1)]


def _table(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    found = incoming.as_array(name, value)
    if len(shape) == 3 and name in OF_STEPS and found.shape[:2] == shape[:2] and found.ndim == 2:
        found = np.repeat(found[:, :, None], shape[2], axis=2)
    if found.shape[: len(shape)] != shape:
        axes = "[time, env, agent]" if len(shape) == 3 else "[time, env]"
        raise SampleError(
            f"{name} has shape {list(found.shape)}, expected {axes} = {list(shape)} first"
        )
    return found


def _flat(table: Array) -> Array:
    """Time and environment as one axis."""
    return table.reshape(-1, *table.shape[2:])
