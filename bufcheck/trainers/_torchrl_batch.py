"""What a batch of a TorchRL collector holds, as columns: [T] or [E, T], of one agent or several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase

from bufcheck.errors import SampleError
from bufcheck.trainers._torchrl_actor import Family, Parts, told

UNSQUASHED = 1e-6
"""TorchRL scores an action no nearer to its bounds than this: torch.finfo(float32).resolution."""
ESTIMATED = ("advantage", "value_target", "value", "reward", "done", "terminated")
USUAL = {"value": "state_value"}
TRAJECTORY = ("collector", "traj_ids")


class Reader:
    """Reads batches of one collector, each where the one before it ended."""

    def __init__(
        self,
        parts: Parts,
        family: Family,
        agents: int | None,
        estimator: Any,
        keys: Mapping[str, Any],
    ) -> None:
        self.parts, self.family, self.agents = parts, family, agents
        self.estimator, self.keys = estimator, keys
        self._last: tuple[torch.Tensor, torch.Tensor | None] | None = None

    def columns(self, batch: TensorDictBase) -> tuple[dict[str, Any], torch.Tensor, Any]:
        steps = batch.batch_dims
        there = (
            None if self.agents is None else batch.get((*path_of(self.parts.sees)[:-1], "mask"), None)
        )
        if there is not None and not bool(there.all()):
            raise SampleError(
                "agents leave before their episode ends", "write the rows with bufcheck.BufferWriter"
            )
        done, trajectory = self._steps(batch, "done"), batch.get(TRAJECTORY, None)
        if trajectory is not None:
            trajectory = _in_time(trajectory.reshape(batch.shape), steps)
            _refuse_shuffled(trajectory)
        starts = self._starts(done, trajectory)
        action = batch.get(self.parts.head.dist_sample_keys[0])
        sees, log_prob = batch.get(self.parts.sees), self.log_prob(batch)
        columns: dict[str, Any] = {"state_embed": sees, "old_log_prob": log_prob}
        if self.family.distribution == "categorical":
            columns["action_index"] = action.argmax(-1) if self.family.one_hot else action
            columns["logits"] = batch.get(self.parts.params["logits"], None)
            columns["action_mask"] = self._mask(batch)
        else:
            columns["action"], columns["old_log_prob"] = self._within(action, log_prob)
            columns["action_mean"] = batch.get(self.parts.params["loc"], None)
            columns["action_std"] = batch.get(self.parts.params["scale"], None)
        ended, terminal = self._scalar(batch, "done"), self._scalar(batch, "terminated")
        terminal = ended if terminal is None else terminal
        columns |= {
            "reward": self._scalar(batch, "reward"),
            "value": self._scalar(batch, "value"),
            "bootstrap_value": self._scalar(batch, "value", after=True),
            "advantage": self._scalar(batch, "advantage"),
            "return": self._scalar(batch, "value_target"),
            "terminated": terminal,
            "truncated": ended & ~terminal,
        }
        if self.estimator is not None and columns["advantage"] is None:
            raise SampleError("the batch has no advantages", "append it after the value estimator ran")
        given = {name: _in_time(v, steps) for name, v in columns.items() if v is not None}
        return given, starts, None if trajectory is None else trajectory >= 0

    def _starts(self, done: torch.Tensor, trajectory: torch.Tensor | None) -> torch.Tensor:
        """[time, env]: first after a reset. Without trajectories, every batch begins with one."""
        starts = torch.ones_like(done)
        starts[1:] = done[:-1]
        if trajectory is not None:
            starts[1:] |= trajectory[1:] != trajectory[:-1]
        if self._last is not None and trajectory is not None and self._last[1] is not None:
            starts[0] = self._last[0] | (trajectory[0] != self._last[1])
        self._last = (done[-1].clone(), None if trajectory is None else trajectory[-1].clone())
        return starts

    def _mask(self, batch: TensorDictBase) -> Any:
        """What the actor is told is legal; or, if it is told nothing, what the environment says."""
        if "action_mask" in self.keys and self.keys["action_mask"] is None:
            return None
        key = self.parts.params.get("mask") or self._key(batch, "action_mask", after=False)
        return None if key is None else batch.get(key)

    def _within(self, action: torch.Tensor, log_prob: torch.Tensor) -> tuple[Any, Any]:
        """A squashed action as tanh gave it, in (−1, 1), and the log-prob of that."""
        low, high = self.family.low, self.family.high
        if low is None or high is None:
            return action, log_prob
        low, high = low.to(action.device).double(), high.to(action.device).double()
        half = ((high - low) / 2).expand(action.shape)
        unit = (action.double() - (high + low) / 2) / half
        moved = log_prob.double() + half.log().sum(-1)
        unit = unit.clamp(UNSQUASHED - 1, 1 - UNSQUASHED)
        return unit.to(action.dtype), moved.to(log_prob.dtype)

    # Where a batch has what

    def log_prob(self, batch: TensorDictBase) -> Any:
        key = self.parts.head.log_prob_key
        found = batch.get(key, None)
        if found is None:
            raise SampleError(
                f"the batch has no {told([key])}", "make the actor with return_log_prob=True"
            )
        many = () if self.agents is None else (self.agents,)
        shape, inner = tuple(found.shape), (*batch.shape, *many)
        if shape == (*inner, 1) and batch.get(self.parts.head.dist_sample_keys[0]).shape == shape:
            return found.squeeze(-1)  # of a Normal, which has one for each number, and there is one
        if shape != inner:
            raise SampleError(
                f"log-probs have shape {list(shape)}, expected {list(inner)}",
                "one for each action: IndependentNormal instead of Normal",
            )
        return found

    def _key(self, batch: TensorDictBase, name: str, *, after: bool) -> Any:
        """As told, as the estimator has it, in the group of agents, or at the root."""
        if name in self.keys:
            return self.keys[name]
        usual = USUAL.get(name, name)
        places = [(*path_of(self.parts.sees)[:-1], usual), (usual,)]
        if name in ESTIMATED and hasattr(self.estimator, "tensor_keys"):
            places.insert(0, path_of(getattr(self.estimator.tensor_keys, name)))
        for place in places:
            key = ("next", *place) if after else place
            if batch.get(key, None) is not None:
                return place
        return None

    def _scalar(self, batch: TensorDictBase, name: str, *, after: bool = False) -> Any:
        """[*batch], or [*batch, agent]: one number a row, repeated where agents share it."""
        after = after or name in ("reward", "done", "terminated")
        key = self._key(batch, name, after=after)
        if key is None and name == "done":
            raise SampleError("the batch has no ('next', 'done')", "append what a collector yields")
        if key is None:
            return None
        found = batch.get(("next", *path_of(key)) if after else key)
        many = () if self.agents is None else (self.agents,)
        inner = tuple(found.shape[batch.batch_dims :])
        if inner == (*many, 1):
            return found.squeeze(-1)
        if many and inner in ((), (1,)):
            return found.reshape(*batch.shape, 1).expand(*batch.shape, *many)
        if inner != many:
            raise SampleError(f"{name} has shape {list(found.shape)}", "one number a row is meant")
        return found

    def _steps(self, batch: TensorDictBase, name: str) -> torch.Tensor:
        """[time, env]: of all agents at once."""
        found = batch.get(("next", name), None)
        if found is None or tuple(found.shape) != (*batch.shape, 1):
            found = self._scalar(batch, name)
            found = found if self.agents is None else found.all(-1)
        return _in_time(found.reshape(batch.shape), batch.batch_dims)


def path_of(key: Any) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def _in_time(found: torch.Tensor, dims: int) -> torch.Tensor:
    """[time, env, …] of [time, …] or [env, time, …]."""
    return found.reshape(-1, *found.shape[dims - 1 :]).transpose(0, 1)


def refuse_unordered(batch: TensorDictBase) -> None:
    if not batch.batch_dims:
        raise SampleError("the batch is one step", "append what a collector yields")
    if batch.get(("collector", "mask"), None) is not None:
        raise SampleError("the batch is split into trajectories", "append it before split_trajs")
    if "time" in batch.names and batch.names[-1] != "time":
        raise SampleError(f"the batch has axes {batch.names}", "time has to be the last")
    if (valid := batch.get("shifted_valid", None)) is not None and not bool(valid.all()):
        raise SampleError("GAE left out steps (shifted_valid)", "raise its shifted_budget")


def _refuse_shuffled(trajectory: torch.Tensor) -> None:
    """A trajectory that comes back after another is a batch in disorder."""
    for column in trajectory.T:
        if len(torch.unique_consecutive(column)) != len(torch.unique(column)):
            raise SampleError("the batch is shuffled", "append it as the collector yields it")
