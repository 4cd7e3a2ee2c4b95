"""Small PPO runs of RLlib for the tests: environments, the bugs put into them, and one way to train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from conftest import Ran, bufcheck
from gymnasium import spaces
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from bufcheck.trainers.rllib import DumpCallback

ROLLOUTS, STEPS = 3, 500
NAMES = ("BLUE", "RED")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Run:
    path: Path
    actors: str

    @property
    def table(self) -> pa.Table:
        return pq.ParquetDataset(sorted(self.path.glob("*.parquet"))).read()

    def column(self, name: str) -> Array:
        """As NumPy has it: vectors as [rows, numbers], nulls as NaN."""
        found = self.table[name].to_pandas()
        whole: Array = np.stack(found) if isinstance(found[0], np.ndarray) else found.to_numpy()
        return whole

    def validate(self) -> Ran:
        return bufcheck("validate", self.path, "--actor", self.actors, "--format", "json", timeout=120)


def config(env: Any = "CartPole-v1", **model: Any) -> PPOConfig:
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2)
        .rl_module(model_config={"fcnet_hiddens": [16, 16], **model})
        .training(train_batch_size_per_learner=STEPS, minibatch_size=100, num_epochs=3, lr=0.01)
        .debugging(seed=1, log_level="ERROR")
    )


def of_agents(given: PPOConfig, shared: bool = False, **more: Any) -> PPOConfig:
    """With a policy for each agent, or one for all."""
    policies = {"both"} if shared else set(NAMES)
    choose = (lambda agent, *_, **__: "both") if shared else (lambda agent, *_, **__: agent)
    return given.multi_agent(policies=policies, policy_mapping_fn=choose, **more)


def train(
    given: PPOConfig,
    path: Path,
    bug: Callable[[Any], None] = lambda algorithm: None,
    rollouts: int = ROLLOUTS,
    **options: Any,
) -> Run:
    algorithm = given.callbacks(partial(DumpCallback, path, **options)).build_algo()
    try:
        bug(algorithm)
        for _ in range(rollouts):
            algorithm.train()
        [callback] = algorithm.callbacks
        return Run(path, callback.writer.actor_pattern)
    finally:
        algorithm.stop()


class Stroll(gymnasium.Env[Any, Any]):
    """Any spaces; ends by itself now and then, and is cut after 30 steps. Observations are random."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.observation_space = given.get("sees", spaces.Box(-5, 5, (5,)))
        self.action_space = given.get("does", spaces.Discrete(4))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        ended = bool(self.np_random.random() < 0.03)
        reward = float(np.sum(action)) + float(self.np_random.normal())
        return self.observation_space.sample(), reward, ended, self.steps == 30, {}


class Duel(MultiAgentEnv):
    """Two agents, who see the time, a sign of who they are, and chance.

    `given` may say that they take turns, that RED leaves early, that they see different numbers, or
    that the environment hands out one array for all time.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        self.given, self.chance = given, np.random.default_rng(5)
        self.possible_agents = list(NAMES)
        widths = {"BLUE": 6, "RED": 7 if given.get("uneven") else 6}
        self.observation_spaces = {name: spaces.Box(-9, 9, (widths[name],)) for name in NAMES}
        self.action_spaces = {name: spaces.Discrete(4) for name in NAMES}
        self.seen = {name: np.zeros(widths[name], np.float32) for name in NAMES}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps, self.agents = 0, list(NAMES)
        return self._look(), {}

    def step(self, action: dict[str, int]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.steps += 1
        rewards = {name: float(chosen) + self.chance.normal() for name, chosen in action.items()}
        ended = {"__all__": bool(self.chance.random() < 0.03)}
        cut = {"__all__": self.steps == 40}
        looks = self._look(everyone=ended["__all__"] or cut["__all__"])
        if self.given.get("leaves") and "RED" in self.agents and self.chance.random() < 0.1:
            self.agents.remove("RED")
            ended["RED"] = True
        return looks, rewards, ended, cut, {}

    def _look(self, everyone: bool = False) -> dict[str, Array]:
        turn = self.agents
        if self.given.get("turns") and not everyone:
            turn = [NAMES[self.steps % 2]]
        for name in turn:
            self.seen[name][:] = self.chance.uniform(-1, 1, len(self.seen[name]))
            self.seen[name][:2] = self.steps / 10, 1.0 if name == "RED" else -1.0
        return {
            name: self.seen[name] if self.given.get("aliased") else self.seen[name].copy()
            for name in turn
        }


# Bugs


class NextObservations(ConnectorV2):
    """Takes each observation one step too late."""

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        for own in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            late = own.get_observations(slice(1, len(own) + 1))
            self.add_n_batch_items(batch, Columns.OBS, late, len(own), own)
        return batch


class OthersLogProbs(ConnectorV2):
    """Gives each agent the log-probs of the other."""

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        for episode in episodes:
            for name in episode.agent_ids:
                [other] = set(NAMES) - {name}
                own, others = episode.agent_episodes[name], episode.agent_episodes[other]
                crossed = others.get_extra_model_outputs(Columns.ACTION_LOGP)
                self.add_n_batch_items(batch, Columns.ACTION_LOGP, crossed, len(own), own)
        return batch


def weights_come_late(algorithm: Any) -> None:
    """The env runner takes each update's weights only when the next one arrives; its count is ahead."""
    module = algorithm.env_runner.module
    load, waiting = module.set_state, [module.get_state()]

    def set_state(state: Any) -> None:
        waiting.append(state)
        load(waiting[-2])

    module.set_state = set_state
