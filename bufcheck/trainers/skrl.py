"""What skrl's PPO keeps of a rollout, and the policy that made it, written before the update learns.

with UpdateDump("run/dump", agent, env):
    trainer.train()
"""

from __future__ import annotations

import copy
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bufcheck import trainer
from bufcheck.errors import SampleError, UsageError
from bufcheck.writer import BufferWriter

try:
    import skrl.models.torch as models
    import torch
    from skrl.agents.torch.ppo import PPO
    from torch import nn

    from bufcheck.trainers._networks import PROBED, Network, hold_to
except ImportError as error:
    raise trainer.lacking(error, "skrl") from None

WHO = "UpdateDump"
KEPT = ("observations", "actions", "rewards", "terminated", "truncated", "log_prob", "values")
ADVICE = "pass network=, the torch.nn module from observations to logits (or means)"


class UpdateDump(trainer.LateDump):
    """While it is open, every update of the agent is written before it learns.

    `env`: the wrapped environment, asked how it resets. `network`: the policy as torch.nn layers, where
    they cannot be followed through its compute(). Other options are those of BufferWriter.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        agent: Any,
        env: Any,
        *,
        network: nn.Module | None = None,
        **options: Any,
    ) -> None:
        _refuse(agent, env)
        self.path, self.agent, self.options, self.network = Path(path), agent, options, network
        self.updates = 0
        self._ended: torch.Tensor | None = None

    def __enter__(self) -> UpdateDump:
        update, memory = self.agent.update, self.agent.memory

        def watched(**told: Any) -> None:
            kept = {name: memory.get_tensor_by_name(name).clone() for name in KEPT}
            last = self._last_values()
            sample = memory.sample

            def first_written(*args: Any, **options: Any) -> Any:
                del memory.sample  # the update asks once an epoch
                self._append(kept, last)
                return sample(*args, **options)

            memory.sample = first_written
            update(**told)

        self.agent.update = watched
        return self

    def __exit__(self, *failed: Any) -> None:
        del self.agent.update  # its class has the original
        super().__exit__(*failed)

    # Rows

    def _append(self, kept: dict[str, torch.Tensor], last: torch.Tensor) -> None:
        """[time, env, …], as the memory has it, with the advantages that GAE has just put there."""
        agent, seen = self.agent, kept["observations"]
        if len(seen) != agent.cfg.rollouts:
            raise SampleError(
                f"the memory holds {len(seen)} steps, an update takes {agent.cfg.rollouts}",
                "make memory_size the rollouts of the agent",
            )
        with torch.no_grad():  # by statistics that only an update changes
            states = agent._observation_preprocessor(seen.flatten(0, 1)).reshape(seen.shape)
        network, given = self._network(states.flatten(0, 1)[:PROBED])
        columns = self._columns(kept, states, last)
        done = columns["terminated"] | columns["truncated"]
        starts = torch.ones_like(done)
        starts[1:] = done[:-1]
        if self._ended is not None:
            starts[0] = self._ended
        self._ended = done[-1].clone()
        if self.writer is None:
            self.writer = self._opened(given.shape[-1] if "action_index" in columns else None)
        self.writer.policy_version = self.updates
        self._save(network, tuple(states.shape[2:]))
        self.writer.append_envs(columns, starts=starts)
        self.updates += 1

    def _columns(
        self, kept: dict[str, torch.Tensor], states: torch.Tensor, last: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        memory = self.agent.memory
        flat = {name: tensor.squeeze(-1) for name, tensor in kept.items() if name in KEPT[2:]}
        bootstrap = torch.zeros_like(flat["values"])
        bootstrap[-1] = last.squeeze(-1)
        columns = {
            "state_embed": states,
            "old_log_prob": flat["log_prob"],
            "reward": flat["rewards"],
            "value": flat["values"],
            "advantage": memory.get_tensor_by_name("advantages").squeeze(-1),
            "terminated": flat["terminated"],
            "truncated": flat["truncated"] & ~flat["terminated"],
            "bootstrap_value": bootstrap,
        }
        if isinstance(self.agent.policy, models.CategoricalMixin):
            columns["action_index"] = kept["actions"].squeeze(-1).long()
        else:
            columns["action"] = kept["actions"]
        if self.agent.cfg.value_preprocessor is None:  # else they are in the critic's own unit by now
            columns["return"] = memory.get_tensor_by_name("returns").squeeze(-1)
        return columns

    def _save(self, network: Network, shape: tuple[int, ...]) -> None:
        assert self.writer is not None
        try:
            self.writer.save_actor(None, network.module, log_std=network.log_std, state_shape=shape)
        except UsageError as error:
            if self.network is not None:
                raise
            raise UsageError(error.problem, ADVICE) from None

    def _opened(self, choices: int | None) -> BufferWriter:
        options, cfg = dict(self.options), self.agent.cfg
        policy: dict[str, Any] = {"distribution": "diagonal_gaussian"}
        if choices is not None:
            policy = {"subset": "all", "action_space": choices}
        advantage: dict[str, Any] = {"gamma": cfg.discount_factor, "normalization": "rollout"}
        if cfg.time_limit_bootstrap:
            # Without it a truncated step is summed on into the next episode: no GAE that has a name.
            advantage |= {"gae_lambda": cfg.gae_lambda, "truncation": "folded_into_reward"}
        return BufferWriter(
            self.path,
            policy=policy | dict(options.pop("policy", None) or {}),
            advantage=advantage | dict(options.pop("advantage", None) or {}),
            producer={"name": "skrl", "version": version("skrl")},
            **options,
        )

    # Models. Copies are asked: a model may keep what it computed last for the call that follows.

    def _last_values(self) -> torch.Tensor:
        agent = self.agent
        value = copy.deepcopy(agent.value)
        value.enable_training_mode(False)
        with torch.no_grad():
            inputs = {
                "observations": agent._observation_preprocessor(agent._current_next_observations),
                "states": agent._state_preprocessor(agent._current_next_states),
            }
            found: torch.Tensor = agent._value_preprocessor(
                value.act(inputs, role="value")[0], inverse=True
            )
        return found

    def _network(self, states: torch.Tensor) -> tuple[Network, torch.Tensor]:
        """The policy's layers, and what it gives for these states."""
        policy = copy.deepcopy(self.agent.policy)
        policy.enable_training_mode(False)
        layers = self.network or _Followed(copy.deepcopy(policy))
        with torch.no_grad():
            given, outputs = policy.compute({"observations": states, "states": None}, "policy")
        if isinstance(policy, models.CategoricalMixin):
            network = Network(layers)
            hold_to(network.given(states), given, WHO)
            return network, given
        log_std = outputs["log_std"].detach()
        if policy._g_clip_log_std:
            log_std = log_std.clamp(policy._g_min_log_std, policy._g_max_log_std)
        if not bool((log_std == log_std.reshape(-1, given.shape[-1])[0]).all()):
            raise UsageError(
                f"{WHO}: log_std depends on the state", "write the rows with bufcheck.BufferWriter"
            )
        network = Network(layers, log_std.reshape(-1, given.shape[-1])[0])
        hold_to(network.given(states), torch.cat([given, log_std.expand_as(given)], -1), WHO)
        return network, given


class _Followed(nn.Module):
    """A policy as a function of observations alone."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy
        self.eval()

    def forward(self, seen: torch.Tensor) -> Any:
        return self.policy.compute({"observations": seen, "states": None}, "policy")[0]


def _refuse(agent: Any, env: Any) -> None:
    if type(agent).update is not PPO.update:
        raise UsageError(f"{WHO}: {type(agent).__name__} does not update as PPO does", "use PPO")
    policy = agent.policy
    if isinstance(policy, models.GaussianMixin):
        if policy._g_reduction is not torch.sum and policy.num_actions > 1:
            raise UsageError(f"{WHO}: log-probs are not summed over an action", 'say reduction="sum"')
        if policy._g_clip_actions or policy._g_clip_mean_actions:
            raise UsageError(
                f"{WHO}: actions or means are clipped after the network",
                "leave that to the environment",
            )
    elif not isinstance(policy, models.CategoricalMixin) or not policy._c_unnormalized_log_prob:
        raise UsageError(
            f"{WHO}: {type(policy).__name__} is not a policy that bufcheck can replay",
            "GaussianMixin is, and CategoricalMixin over logits",
        )
    if agent.cfg.mixed_precision:
        raise UsageError(f"{WHO}: mixed precision cannot be replayed exactly", "train without it")
    mode = getattr(env.unwrapped, "metadata", {}).get("autoreset_mode")
    if getattr(mode, "name", None) == "NEXT_STEP":
        raise UsageError(
            f"{WHO}: a step is spent on every reset, and skrl trains on it",
            "make the environments with autoreset_mode=AutoresetMode.SAME_STEP",
        )
