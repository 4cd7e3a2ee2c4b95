"""Stable-Baselines3's PPO and A2C, sb3-contrib's MaskablePPO and RecurrentPPO: rollouts into a dump.

    model.learn(100_000, callback=DumpCallback("run/dump"))

At the end of a rollout its buffer is whole, advantages included, and the policy is still the one that
filled it. That is when it is read: `train()` reorders the buffer and changes the policy.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from bufcheck import trainer
from bufcheck.errors import UsageError
from bufcheck.vectors import Array
from bufcheck.writer import BufferWriter

try:
    import torch
    from gymnasium import spaces
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
    from stable_baselines3.common.utils import obs_as_tensor

    from bufcheck.trainers import _stable_baselines3_policy as policies
except ImportError as error:
    raise trainer.lacking(error, "sb3") from None

MASKS = ("subset", "mask")


class DumpCallback(BaseCallback):
    """Writes each rollout of a `learn()` into a dump, and the actor that made it beside it.

    `masks`: what MaskablePPO's legal actions are stored as, a "subset" or a "mask" over all actions.
    `every`: only each so-manieth rollout is dumped. `options` are those of `bufcheck.BufferWriter`:
    check, worker, suffix, part_rows, actors.

    The dump is closed when training ends. To dump several calls of `learn()` into one, or to have it
    marked as cut off at once when one of them raises, make the callback in a `with` block.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        masks: str = "subset",
        every: int = 1,
        verbose: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(verbose)
        if masks not in MASKS:
            raise UsageError(f"masks is {masks!r}", f"say one of {', '.join(MASKS)}")
        if every < 1:
            raise UsageError(f"every is {every}", "say 1 to dump every rollout")
        self.path, self.masks, self.every, self.options = path, masks, every, options
        self.rollouts = 0
        self._writer: BufferWriter | None = None
        self._told: dict[str, Any] = {}
        self._held = False
        self._truncated: Array = np.zeros((0, 0), bool)

    @property
    def writer(self) -> BufferWriter:
        if self._writer is None:
            raise UsageError("nothing is dumped before learn()", "pass it as learn(callback=…)")
        return self._writer

    @property
    def actor_pattern(self) -> str:
        """Where the actors lie, as `bufcheck validate --actor` takes it."""
        return self.writer.actor_pattern

    # Open and close

    def __enter__(self) -> DumpCallback:
        self._held = True
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if self._writer is not None:
            self._writer.__exit__(failed)

    def _on_training_start(self) -> None:
        model = policies.replayable(self.model)
        told = policies.description(model, self.masks)
        if self._writer is None:
            self._told = told
            about: Any = {**told, **self.options}
            self._writer = BufferWriter(self.path, policy_version=0, **about)
        elif self._writer.closed:
            raise UsageError(
                f"{self.path}: was closed when training ended",
                "give each learn() a DumpCallback, or all of them one `with DumpCallback(…) as dump:`",
            )
        elif told != self._told:
            raise UsageError(
                f"{self.path}: holds rollouts of another model, or of other settings",
                "give each model a DumpCallback of its own",
            )
        elif 0 < (steps := model.rollout_buffer.pos) < model.rollout_buffer.buffer_size:
            self._pass_over(model, steps)  # of a rollout that the learn() before broke off

    def _on_training_end(self) -> None:
        if not self._held:
            self.writer.close()

    # A rollout

    def _on_rollout_start(self) -> None:
        buffer = self._model.rollout_buffer
        self._truncated = np.zeros((buffer.buffer_size, buffer.n_envs), bool)

    def _on_step(self) -> bool:
        # Called before the step is added to the buffer, which keeps of an end neither kind nor infos.
        # A list, because NumPy's `any` takes 10 µs here, between two passes through a network.
        dones = self.locals["dones"].tolist()
        if True in dones:
            at, infos = self._model.rollout_buffer.pos, self.locals["infos"]
            for env, done in enumerate(dones):
                if done:
                    self._truncated[at, env] = infos[env].get("TimeLimit.truncated", False)
        return True

    def _on_rollout_end(self) -> None:
        model, writer = self._model, self.writer
        if model.rollout_buffer.generator_ready:
            raise UsageError(
                "another callback drew from the rollout buffer, which reorders it",
                "put DumpCallback first in the list of callbacks",
            )
        if self.rollouts % self.every:
            self._pass_over(model, model.rollout_buffer.buffer_size)
        else:
            writer.policy_version = self.rollouts
            _save_actor(writer, model.policy)
            starts = model.rollout_buffer.episode_starts
            writer.append_envs(self._columns(model), starts=starts)
        self.rollouts += 1

    def _pass_over(self, model: OnPolicyAlgorithm, steps: int) -> None:
        """Count steps that are not dumped: those after them are numbered from their reset."""
        buffer = model.rollout_buffer
        starts = buffer.episode_starts[:steps]
        none = np.zeros(starts.shape, bool)
        self.writer.append_envs({"old_log_prob": buffer.log_probs[:steps]}, starts=starts, keep=none)

    @property
    def _model(self) -> OnPolicyAlgorithm:
        assert isinstance(self.model, OnPolicyAlgorithm)
        return self.model

    def _columns(self, model: OnPolicyAlgorithm) -> dict[str, Any]:
        """The buffer, [step, environment, …]."""
        buffer, last = model.rollout_buffer, model._last_episode_starts
        assert last is not None
        done = np.concatenate([buffer.episode_starts[1:], last[None]]).astype(bool)
        bootstrap = np.zeros_like(buffer.values)
        bootstrap[-1] = np.where(done[-1], 0, _last_values(model))
        columns = {
            "state_embed": _states(model),
            "old_log_prob": buffer.log_probs,
            "reward": buffer.rewards,
            "value": buffer.values,
            "advantage": buffer.advantages,
            "return": buffer.returns,
            "terminated": done & ~self._truncated,
            "truncated": done & self._truncated,
            "bootstrap_value": bootstrap,
            **_actions(model, self.masks),
        }
        if model.seed is not None:  # as set_random_seed gives them out
            columns["seed"] = np.broadcast_to(model.seed + np.arange(buffer.n_envs), done.shape)
        return columns


def _save_actor(writer: BufferWriter, policy: Any) -> None:
    gaussian = getattr(policy, "log_std", None)
    notes = [policies.HEAD_ONLY] if policies.is_recurrent(policy) else []
    actor, shape = policies.Actor(policy), policies.state_shape(policy)
    writer.save_actor(None, actor, log_std=gaussian, state_shape=shape, notes=notes)


def _states(model: OnPolicyAlgorithm) -> Array:
    buffer: Any = model.rollout_buffer
    steps, envs = buffer.rewards.shape
    if policies.is_recurrent(model.policy):
        # What the LSTM gave at a step is its hidden state before the next, of the last of its layers.
        after: torch.Tensor = model._last_lstm_states.pi[0]  # type: ignore[attr-defined]
        return np.concatenate([buffer.hidden_states_pi[1:, -1], after[-1:].cpu().numpy()])
    flat = buffer.observations.reshape(steps * envs, *buffer.observations.shape[2:])
    return policies.as_states(flat, model.observation_space).reshape(steps, envs, -1)


def _last_values(model: OnPolicyAlgorithm) -> Array:
    """V of what each environment shows now. PPO has it at hand, MaskablePPO and RecurrentPPO do not."""
    policy: Any = model.policy
    observations: Any = model._last_obs
    with torch.no_grad():
        seen = obs_as_tensor(observations, model.device)
        if policies.is_recurrent(policy):
            starts = torch.as_tensor(model._last_episode_starts, dtype=torch.float32)
            states = model._last_lstm_states.vf  # type: ignore[attr-defined]
            values = policy.predict_values(seen, states, starts.to(model.device))
        else:
            values = policy.predict_values(seen)
    found: Array = values.flatten().cpu().numpy()
    return found


def _actions(model: OnPolicyAlgorithm, masks: str) -> dict[str, Array]:
    buffer: Any = model.rollout_buffer
    if isinstance(model.action_space, spaces.Box):
        return {"action": buffer.actions}
    chosen = buffer.actions[..., 0].astype(np.int32)
    if not hasattr(buffer, "action_masks"):
        return {"action_index": chosen}
    legal = buffer.action_masks.reshape(*chosen.shape, -1).astype(bool)
    if masks == "mask":
        return {"action_index": chosen, "action_mask": legal}
    among = np.take_along_axis(legal.cumsum(axis=-1), chosen[..., None], axis=-1)[..., 0] - 1
    return {
        # Legal actions first, each kind in increasing order: a row counts as far as num_actions says.
        "subset_indices": np.argsort(~legal, axis=-1, kind="stable"),
        "num_actions": legal.sum(axis=-1, dtype=np.int32),
        "action_index": among.astype(np.int32),
        "action_id": chosen,
    }
