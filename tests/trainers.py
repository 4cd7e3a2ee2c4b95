"""Real training runs of a few seconds, each leaving a dump and the actors that made it.

Everything an actor did is in the dump as the trainer had it; `policy_version` is the rollout's number,
and the actors are saved before the update that follows it. One more is saved at the end: the next.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from bufcheck.actors import described_layers

ENVS, STEPS, ROLLOUTS = 2, 512, 3
ACTIONS = 8
MASKED_LOGIT = -1e8
"""What sb3-contrib sets the logits of illegal actions to."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Run:
    dumps: tuple[Path, ...]
    actors: str
    """A pattern, as --actor takes it."""
    versions: int = ROLLOUTS
    agents: tuple[str, ...] = ("agent",)

    def with_the_next_actors(self, folder: Path) -> str:
        """A pattern under which every version has the actor that the following update made."""
        folder.mkdir()
        pattern = Path(self.actors).name
        for number in range(self.versions):
            for agent in self.agents:
                names = [pattern.format(agent_id=agent, policy_version=v) for v in (number, number + 1)]
                (folder / names[0]).write_bytes((Path(self.actors).parent / names[1]).read_bytes())
        return str(folder / pattern)


# Stable-Baselines3


def sb3_cartpole(folder: Path) -> Run:
    with one_thread():
        envs = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * ENVS)
        kept = _train(PPO, envs, folder)
    columns = {
        **kept.columns(),
        "num_actions": pa.array(np.full(kept.rows, 2), pa.int32()),
        "action_index": pa.array(kept.flat("actions")[:, 0], pa.int32()),
    }
    policy = {"distribution": "categorical", "subset": "all", "action_space": 2}
    return Run((write(folder / "cartpole.parquet", columns, policy),), kept.pattern)


def sb3_masked(folder: Path) -> Run:
    """Two dumps of one run: the legal actions as a subset, and as a mask over all."""
    with one_thread():
        kept = _train(MaskablePPO, DummyVecEnv([Errands] * ENVS), folder)
    legal = kept.flat("action_masks").astype(bool)
    chosen = kept.flat("actions")[:, 0].astype(int)
    local = legal.cumsum(axis=1)[np.arange(kept.rows), chosen] - 1
    subset = {
        "subset_indices": pa.array([np.flatnonzero(row) for row in legal], pa.list_(pa.int32())),
        "num_actions": pa.array(legal.sum(axis=1), pa.int32()),
        "action_index": pa.array(local, pa.int32()),
        "action_id": pa.array(chosen, pa.int32()),
    }
    mask = {
        "num_actions": pa.array(np.full(kept.rows, ACTIONS), pa.int32()),
        "action_index": pa.array(chosen, pa.int32()),
        "action_mask": pa.array(list(legal), pa.list_(pa.bool_())),
    }
    policy = {"distribution": "categorical", "action_space": ACTIONS}
    listed = {**policy, "logits": "gather", "subset": "listed"}
    over_all = {**policy, "subset": "all", "masked_logit": MASKED_LOGIT}
    dumps = (
        write(folder / "subset.parquet", {**kept.columns(), **subset}, listed),
        write(folder / "mask.parquet", {**kept.columns(), **mask}, over_all),
    )
    return Run(dumps, kept.pattern)


def sb3_pendulum(folder: Path) -> Run:
    with one_thread():
        envs = DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")] * ENVS)
        kept = _train(PPO, envs, folder)
    columns = {**kept.columns(), "action": vectors(kept.flat("actions"))}
    policy = {"distribution": "diagonal_gaussian"}
    return Run((write(folder / "pendulum.parquet", columns, policy),), kept.pattern)


def sb3_pendulum_normalized(folder: Path) -> Run:
    """Raw states; the actors normalise them, with statistics that stood still."""
    with one_thread():
        envs = VecNormalize(
            DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")] * ENVS), norm_reward=False
        )
        envs.seed(0)
        envs.reset()
        chance = np.random.default_rng(0)
        for _ in range(200):
            envs.step(chance.uniform(-2, 2, (ENVS, 1)).astype(np.float32))
        envs.training = False
        kept = _train(PPO, envs, folder)
    for number in range(ROLLOUTS + 1):
        saved = folder / f"rollout-{number}.zip"
        described_layers.save(saved, saved.with_suffix(".safetensors"), normalization=envs)
    columns = {
        **kept.columns(),
        "state_embed": vectors(kept.flat("raw_observations")),
        "action": vectors(kept.flat("actions")),
    }
    dump = write(folder / "pendulum.parquet", columns, {"distribution": "diagonal_gaussian"})
    return Run((dump,), str(folder / "rollout-{policy_version}.safetensors"))


class Errands(gymnasium.Env[Array, Any]):
    """Every step allows some of the actions, sometimes only one; one of them is paid best."""

    observation_space = spaces.Box(-5, 5, (6,))
    action_space = spaces.Discrete(ACTIONS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward = float(self.state[action % 6]) + 0.1 * float(action)
        self.steps += 1
        ended = bool(self.np_random.random() < 0.03)
        return self._look(), reward, ended, self.steps == 60, {}

    def action_masks(self) -> Array:
        return self.legal

    def _look(self) -> Array:
        self.state = self.np_random.uniform(-1, 1, 6).astype(np.float32)
        offered = self.np_random.permutation(ACTIONS)[: self.np_random.integers(1, ACTIONS + 1)]
        self.legal = np.isin(np.arange(ACTIONS), offered)
        return self.state


class Recorder(BaseCallback):
    """Keeps what each rollout buffer held, and the actor that filled it."""

    NAMES = (
        "observations",
        "actions",
        "log_probs",
        "values",
        "rewards",
        "episode_starts",
        "advantages",
    )

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.pattern = str(folder / "rollout-{policy_version}.zip")
        self.kept: dict[str, list[Array]] = {}
        self.versions = 0

    def _on_training_start(self) -> None:
        self.raw = self._raw()

    def _raw(self) -> Array | None:
        envs = self.model.get_vec_normalize_env()
        found = None if envs is None else envs.get_original_obs()
        assert not isinstance(found, dict)
        return found

    def _on_step(self) -> bool:
        if self.raw is not None:  # of before the step; the buffer takes the normalised one
            self._keep("raw_observations", self.raw[None])
            self.raw = self._raw()
        truncated = [bool(info.get("TimeLimit.truncated")) for info in self.locals["infos"]]
        self._keep("truncated", np.array([truncated]))
        self._keep("done", np.array([self.locals["dones"]], bool))
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.locals["rollout_buffer"]
        masks = ("action_masks",) if hasattr(buffer, "action_masks") else ()
        for name in (*self.NAMES, *masks):
            self._keep(name, getattr(buffer, name).copy())
        self._keep("versions", np.full(buffer.rewards.shape, self.versions))
        self.save()

    def save(self) -> None:
        self.model.save(self.pattern.format(policy_version=self.versions))
        self.versions += 1

    def _keep(self, name: str, values: Array) -> None:
        self.kept.setdefault(name, []).append(values)

    # As rows: one environment after the other, each in the order of time.

    def flat(self, name: str) -> Array:
        found = np.concatenate(self.kept[name]).swapaxes(0, 1)
        return found.reshape(-1, *found.shape[2:])

    @property
    def rows(self) -> int:
        return len(self.flat("rewards"))

    def columns(self) -> dict[str, pa.Array]:
        starts, places = self.flat("episode_starts").astype(bool), np.arange(self.rows)
        began = np.maximum.accumulate(np.where(starts, places, 0))
        truncated = self.flat("truncated")
        return {
            "episode_id": pa.array(starts.cumsum() - 1, pa.int64()),
            "timestep": pa.array(places - began, pa.int32()),
            "agent_id": names(["agent"] * self.rows),
            "state_embed": vectors(self.flat("observations")),
            "old_log_prob": pa.array(self.flat("log_probs"), pa.float32()),
            "policy_version": pa.array(self.flat("versions"), pa.int64()),
            "reward": pa.array(self.flat("rewards"), pa.float32()),
            "value": pa.array(self.flat("values"), pa.float32()),
            "advantage": pa.array(self.flat("advantages"), pa.float32()),
            "terminated": pa.array(self.flat("done") & ~truncated, pa.bool_()),
            "truncated": pa.array(truncated, pa.bool_()),
        }


def _train(algorithm: Any, envs: Any, folder: Path) -> Recorder:
    recorder = Recorder(folder)
    model = algorithm(
        "MlpPolicy", envs, n_steps=STEPS, batch_size=128, n_epochs=5, seed=0, device="cpu"
    )
    model.learn(ENVS * STEPS * ROLLOUTS, callback=recorder)
    recorder.save()
    return recorder


# TorchRL


def torchrl_multi_agent(folder: Path) -> Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchRL, when imported, uses what it deprecates
        from trainers_torchrl import train
    return train(folder)


# Dumps


def vectors(rows: Array) -> pa.Array:
    flat = rows.reshape(len(rows), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel(), pa.float32()), flat.shape[1])


def names(names: list[str]) -> pa.Array:
    return pa.array(names, pa.string()).dictionary_encode()


def write(path: Path, columns: Mapping[str, pa.Array], policy: Mapping[str, Any]) -> Path:
    table = pa.table(dict(columns))
    about = {"schema": "experience/1", "rows": len(table), "policy": dict(policy)}
    about["producer"] = {"name": "tests/trainers.py", "version": versions()}
    pq.write_table(table.replace_schema_metadata({"bufcheck": json.dumps(about)}), path)
    return path


def versions() -> str:
    names = ("stable_baselines3", "sb3_contrib", "torchrl", "torch")
    return ", ".join(f"{name} {version(name)}" for name in names)


@contextmanager
def one_thread() -> Iterator[None]:
    """Small networks are slower on several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
