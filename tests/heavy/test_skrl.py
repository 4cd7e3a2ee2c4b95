"""skrl's PPO, dumped as it updates: healthy runs pass, bugs are named, the rest is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gae_of_a_dump
import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from skrl.agents.torch.ppo import PPO
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model
from skrl.resources.preprocessors.torch import RunningStandardScaler
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from test_trainer_pages import run_page
from torch import nn
from trainers import one_thread

import bufcheck
from bufcheck.errors import UsageError
from bufcheck.trainers.skrl import UpdateDump

ENVS, STEPS, UPDATES = 4, 128, 3
GAUSSIAN = {
    "action-index-out-of-range",
    "empty-subset",
    "entropy-bound",
    "placeholder-log-prob",
    "positive-log-prob",
    "single-action-log-prob",
    "subset-length-mismatch",
}
NOT_CHECKED = {
    "action-id-mismatch",
    "action-masked",
    "constant-num-actions",
    "logits-log-prob-mismatch",
    "new-log-prob-mismatch",
    "subset-broadcast",
    "subset-duplicate-id",
    "subset-id-out-of-range",
}


def layers(size: int, gives: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, 32), nn.Tanh(), nn.Linear(32, gives))


class Chooses(CategoricalMixin, Model):
    def __init__(self, *, views: bool = False, options: Any = None, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self, **(options or {}))
        self.net, self.views = layers(4, 2), views

    def compute(self, inputs: Any, role: str) -> Any:
        seen = inputs["observations"]
        return self.net(seen.view(-1, 4) if self.views else seen), {}


class Steers(GaussianMixin, Model):
    def __init__(self, *, by_state: bool = False, options: Any = None, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self, **(options or {}))
        self.net, self.by_state = layers(3, 1), by_state
        self.log_std = nn.Parameter(torch.zeros(1))

    def compute(self, inputs: Any, role: str) -> Any:
        spread = inputs["observations"][:, :1] if self.by_state else self.log_std
        return self.net(inputs["observations"]), {"log_std": spread}


class Values(DeterministicMixin, Model):
    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = layers(spaces["observation_space"].shape[0], 1)

    def compute(self, inputs: Any, role: str) -> Any:
        return self.net(inputs["observations"]), {}


def environment(name: str, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> Any:
    envs = [lambda: gym.make(name, max_episode_steps=50)] * ENVS
    return wrap_env(SyncVectorEnv(envs, autoreset_mode=mode))


def train(
    folder: Path,
    policy: Any = Chooses,
    env: Any = None,
    kind: Any = PPO,
    model: Any = None,
    memory: int = STEPS,
    network: Any = None,
    **cfg: Any,
) -> UpdateDump:
    set_seed(0)
    env = env or environment("CartPole-v1" if policy is Chooses else "Pendulum-v1")
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    spaces["device"] = "cpu"
    acts = policy(**(model or {}), **spaces)
    told: dict[str, Any] = {"rollouts": STEPS, "learning_epochs": 4, "mini_batches": 4}
    told["experiment"] = {"directory": str(folder), "write_interval": 0, "checkpoint_interval": 0}
    agent = kind(
        models={"policy": acts, "value": Values(**spaces)},
        memory=RandomMemory(memory_size=memory, num_envs=env.num_envs, device="cpu"),
        cfg=told | {"time_limit_bootstrap": True} | cfg,
        **spaces,
    )
    steps = {"timesteps": STEPS * UPDATES, "headless": True, "disable_progressbar": True}
    trainer = SequentialTrainer(env=env, agents=agent, cfg=steps)
    chosen = acts.net if network == "its own" else network
    with one_thread(), UpdateDump(folder / "dump", agent, env, network=chosen) as dump:
        trainer.train()
    assert "update" not in vars(agent) and "sample" not in vars(agent.memory)
    return dump


def checked(dump: UpdateDump) -> dict[str, Any]:
    return bufcheck.validate(str(dump.path), actor=[dump.actor_pattern])


SCALED = {
    "observation_preprocessor": RunningStandardScaler,
    "observation_preprocessor_kwargs": {"size": 3, "device": "cpu"},
    "value_preprocessor": RunningStandardScaler,
    "value_preprocessor_kwargs": {"size": 1, "device": "cpu"},
}
HEALTHY: dict[str, tuple[dict[str, Any], set[str]]] = {
    "cartpole": ({}, NOT_CHECKED),
    "one environment": ({"env": "one"}, NOT_CHECKED),
    "pendulum": ({"policy": Steers}, NOT_CHECKED | GAUSSIAN),
    "pendulum, scaled": ({"policy": Steers, **SCALED}, NOT_CHECKED | GAUSSIAN),
    "layers handed over": ({"model": {"views": True}, "network": "its own"}, NOT_CHECKED),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_passes_and_its_advantages_are_what_the_metadata_says(
    name: str, tmp_path: Path
) -> None:
    options, not_checked = HEALTHY[name]
    if one := options.get("env") == "one":
        options = options | {"env": wrap_env(gym.make("CartPole-v1", max_episode_steps=50))}
    report = checked(train(tmp_path, **options))
    assert report["verdict"] == "pass", report
    assert (report["summary"]["errors"], report["summary"]["warnings"]) == (0, 0)
    assert report["replay"]["worst_error"] < 1e-5
    found = {rule["name"] for rule in report["rules"] if rule["status"] == "not-checked"}
    assert found == not_checked
    columns, metadata = gae_of_a_dump.read(tmp_path / "dump")
    assert len(columns["reward"]) == STEPS * UPDATES * (1 if one else ENVS)
    assert columns["timestep"].max() == 49 or one
    told = metadata["advantage"]
    assert told["truncation"] == "folded_into_reward" and told["normalization"] == "rollout"
    expected = gae_of_a_dump.recomputed(columns, told)
    np.testing.assert_allclose(columns["advantage"], expected, rtol=1e-4, atol=1e-4)


def test_what_has_no_name_is_not_described(tmp_path: Path) -> None:
    assert checked(train(tmp_path, time_limit_bootstrap=False))["verdict"] == "pass"
    _, metadata = gae_of_a_dump.read(tmp_path / "dump")
    assert metadata["advantage"] == {"gamma": 0.99, "normalization": "rollout"}


# Bugs


class InPlace:
    """Hands out one tensor, and writes every observation into it, as simulators on a GPU do."""

    def __init__(self, env: Any) -> None:
        self.env, self.shown = env, torch.zeros(ENVS, 4)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self) -> Any:
        return self.shown.copy_(self.env.reset()[0]), {}

    def step(self, actions: Any) -> Any:
        seen, *rest = self.env.step(actions)
        return self.shown.copy_(seen), *rest


class OneBehind(PPO):
    """Keeps the log-prob of the step before."""

    held = None

    def act(self, *args: Any, **options: Any) -> Any:
        given = super().act(*args, **options)
        now, before = self._current_log_prob, self.held
        self.held, self._current_log_prob = now, now if before is None else before
        return given


@pytest.mark.parametrize(
    ("cause", "options"),
    [("state-aliased-next", {"env": InPlace}), ("logprob-row-shift", {"kind": OneBehind})],
)
def test_a_bug_is_named(cause: str, options: dict[str, Any], tmp_path: Path) -> None:
    if "env" in options:
        options = {"env": options["env"](environment("CartPole-v1"))}
    report = checked(train(tmp_path, **options))
    assert report["verdict"] == "fail"
    assert report["causes"][0]["name"] == cause, report["causes"]


def test_a_run_learns_what_it_would_unwatched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learned = []
    for name in ("watched", "unwatched"):
        dump = train(tmp_path / name, Steers, **SCALED)
        learned.append([p.detach().clone() for p in dump.agent.policy.parameters()])
        monkeypatch.setattr(UpdateDump, "_append", lambda *_: None)
        monkeypatch.setattr(UpdateDump, "_last_values", lambda *_: None)
    assert all(torch.equal(a, b) for a, b in zip(*learned, strict=True))


class Other(PPO):
    def update(self, *, timestep: int, timesteps: int) -> None: ...


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "steps spent on resets": ({"env": "NEXT_STEP"}, "AutoresetMode.SAME_STEP"),
    "another update": ({"kind": Other}, "Other does not update as PPO does"),
    "probabilities": ({"model": {"options": {"unnormalized_log_prob": False}}}, "over logits"),
    "clipped actions": (
        {"policy": Steers, "model": {"options": {"clip_actions": True}}},
        "leave that to the environment",
    ),
    "log_std of the state": ({"policy": Steers, "model": {"by_state": True}}, "depends on the state"),
    "layers that cannot be followed": ({"model": {"views": True}}, "pass network="),
    "other layers": ({"network": layers(4, 2)}, "gives something else"),
    "a longer memory": ({"memory": STEPS * 2}, "make memory_size the rollouts"),
    "mixed precision": ({"mixed_precision": True}, "train without it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_replayed_is_refused(name: str, tmp_path: Path) -> None:
    options, message = REFUSED[name]
    if options.get("env") == "NEXT_STEP":
        options = {"env": environment("CartPole-v1", AutoresetMode.NEXT_STEP)}
    with pytest.raises(UsageError) as caught:
        train(tmp_path, **options)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_script_of_the_page_leaves_a_dump_that_passes(tmp_path: Path) -> None:
    run_page(ROOT / "docs" / "trainers" / "skrl.md", tmp_path)
