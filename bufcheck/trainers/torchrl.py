"""Batches of a TorchRL collector, of one agent or several, and the actors that made them.

with TensorDictDump("run/dump", actor, loss.value_estimator) as dump:
    for batch in collector:
        loss.value_estimator(batch)
        dump.append(batch)  # with advantages, and before the update
        …
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bufcheck import trainer
from bufcheck.errors import UsageError
from bufcheck.writer import BufferWriter

try:
    import torch
    import torchrl
    from tensordict import TensorDictBase
    from torchrl.modules import MultiAgentNetBase
    from torchrl.objectives.value import GAE

    from bufcheck.trainers import _torchrl_actor as actors
    from bufcheck.trainers import _torchrl_batch as batches
    from bufcheck.trainers._networks import hold_to
except ImportError as error:
    raise trainer.lacking(error, "torchrl") from None


class TensorDictDump(trainer.LateDump):
    """Takes batches as a collector yields them, [T] or [E, T], and saves the actor of each.

    `actor`: the ProbabilisticActor that acts. `estimator`: the GAE that writes advantages, or the loss
    that holds it; gamma, lambda and the keys are read from it. `names`: of the agents, in the order of
    their axis. `keys`: where a batch has reward, done, terminated, value, value_target, advantage or
    action_mask, if elsewhere than usual; None for what is to be left out. Other options are those of
    BufferWriter, `agents={"shared_reward": True}` among them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        actor: Any,
        estimator: Any = None,
        *,
        names: Sequence[str] | None = None,
        keys: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.path, self.actor = Path(path), actor
        self.parts = actors.apart(actor)
        self.estimator = getattr(estimator, "value_estimator", estimator)
        self.names, self.keys, self.options = names, dict(keys or {}), options
        self.rollouts = 0
        if getattr(self.estimator, "auto_reset_env", False):
            raise UsageError(
                "TensorDictDump: GAE(auto_reset_env=True) bootstraps with the state before",
                "leave it off: collectors reset by themselves",
            )

    def append(self, batch: TensorDictBase) -> None:
        """Save the actor as it is now, and the batch it made."""
        batches.refuse_unordered(batch)
        with torch.no_grad():
            given, dist = actors.probe(self.actor, batch)
            if self.writer is None:
                self._begin(batch, dist)
            assert self.writer is not None
            columns, starts, keep = self.reader.columns(batch)
            self.writer.policy_version = self.rollouts
            self._save_actors(given, dist)
            self.writer.append_envs(columns, starts=starts, agents=self.names, keep=keep)
        self.rollouts += 1

    def __enter__(self) -> TensorDictDump:
        return self

    # What a first batch tells

    def _begin(self, batch: TensorDictBase, dist: Any) -> None:
        self.family = actors.family_of(dist)
        self.agents = self._count_agents(batch)
        if self.agents is not None:
            group = batches.path_of(self.parts.head.dist_sample_keys[0])[0]
            self.names = list(self.names or (f"{group}_{i}" for i in range(self.agents)))
            if len(set(self.names)) != self.agents:
                raise UsageError(
                    f"TensorDictDump: {len(set(self.names))} names for {self.agents} agents",
                    "pass names=[…], one for each",
                )
        elif self.names is not None:
            raise UsageError("TensorDictDump: names= is for several agents, and there is one")
        self.is_shared = self.agents is None or actors.is_shared(self.parts)
        self.reader = batches.Reader(self.parts, self.family, self.agents, self.estimator, self.keys)
        options = dict(self.options)
        told = {"shared_actor": self.is_shared} if self.agents is not None else {}
        self.writer = BufferWriter(
            self.path,
            policy=self._policy(batch) | dict(options.pop("policy", None) or {}),
            advantage=self._advantage() | dict(options.pop("advantage", None) or {}),
            agents=told | dict(options.pop("agents", None) or {}),
            producer={"name": "torchrl", "version": torchrl.__version__},
            **options,
        )

    def _count_agents(self, batch: TensorDictBase) -> int | None:
        """None if there is no axis of agents."""
        for part in self.parts.chain:
            for module in part.module.modules():
                if isinstance(module, MultiAgentNetBase):
                    return int(module.n_agents)
        key = batches.path_of(self.parts.head.dist_sample_keys[0])
        group = batch.get(key[:-1]) if len(key) > 1 else batch
        return group.shape[-1] if group.batch_dims == batch.batch_dims + 1 else None

    def _policy(self, batch: TensorDictBase) -> dict[str, Any]:
        told: dict[str, Any] = {"distribution": self.family.distribution}
        if self.family.distribution == "categorical":
            logits = self.parts.chain[-1].out_keys[0]
            told |= {"subset": "all", "masked_logit": self.family.masked_logit}
            told["action_space"] = actors.probe(self.actor, batch)[0].get(logits).shape[-1]
        told["precision"] = str(self.reader.log_prob(batch).dtype).removeprefix("torch.")
        shape = batch.get(self.parts.sees).shape[batch.batch_dims + (self.agents is not None) :]
        return told | {"state_shape": list(shape)} if len(shape) > 1 else told

    def _advantage(self) -> dict[str, Any]:
        """GAE bootstraps with V of the next state, unless that is terminal; done ends its sum."""
        gae = self.estimator
        if gae is None:
            return {}
        told: dict[str, Any] = {"gamma": _rounded(gae.gamma)}
        if isinstance(gae, GAE):
            told["gae_lambda"] = _rounded(gae.lmbda)
            told["truncation"] = "bootstrap_value"
            told["normalization"] = "rollout" if gae.average_gae else "none"
        return told

    # Actors

    def _save_actors(self, given: TensorDictBase, dist: Any) -> None:
        assert self.writer is not None
        states = given.get(self.parts.sees)
        if self.family.distribution == "categorical":
            expected = given.get(self.parts.params["logits"])
        else:
            mean, std = actors.spread_of(dist)
            expected = torch.cat([mean, std.log()], -1)
        shape = tuple(states.shape[1 + (self.agents is not None) :])
        for i in range(1 if self.is_shared else len(self.names or ())):
            network = actors.network_of(self.parts, i)
            mine = ... if self.agents is None else (slice(None), i)
            hold_to(network.given(states[mine]), expected[mine], "TensorDictDump")
            who = None if self.is_shared or self.names is None else self.names[i]
            self.writer.save_actor(who, network.module, log_std=network.log_std, state_shape=shape)


def _rounded(number: Any) -> float:
    """A setting, out of the float32 it is kept in."""
    return float(f"{float(number):.7g}")
