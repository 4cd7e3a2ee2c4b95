"""Tianshou's PPO, dumped as it updates: healthy runs pass, bugs are named, the rest is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gae_of_a_dump
import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT
from test_trainer_pages import run_page
from tianshou.algorithm import A2C, PPO, TRPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net, Recurrent
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch import distributions, nn
from trainers import one_thread

import bufcheck
from bufcheck.errors import UsageError
from bufcheck.trainers.tianshou import UpdateDump

pytestmark = [
    # Tianshou says how it scales actions, and what it deprecates.
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
ENVS, STEPS, UPDATES = 4, 512, 3
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


def net(size: int) -> Net:
    return Net(state_shape=(size,), hidden_sizes=[32])


def discrete(kind: Any = PPO, softmax: bool = False, actor: Any = None, **options: Any) -> Any:
    space = gym.spaces.Discrete(2)
    actor = actor or DiscreteActor(preprocess_net=net(4), action_shape=2, softmax_output=softmax)
    told = {"dist_fn": lambda p: distributions.Categorical(probs=p)} if softmax else {}
    return kind(
        policy=DiscreteActorPolicy(actor=actor, action_space=space, **told),
        critic=DiscreteCritic(preprocess_net=net(4)),
        optim=AdamOptimizerFactory(lr=3e-3),
        **options,
    )


def gaussian(unbounded: bool = True, **actor: Any) -> Any:
    policy = ProbabilisticActorPolicy(
        actor=ContinuousActorProbabilistic(
            preprocess_net=net(3), action_shape=1, unbounded=unbounded, **actor
        ),
        dist_fn=lambda both: distributions.Independent(distributions.Normal(*both), 1),
        action_space=gym.spaces.Box(-2, 2, (1,)),
    )
    critic = ContinuousCritic(preprocess_net=net(3))
    return PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=3e-3), return_scaling=True)


def train(folder: Path, algorithm: Any, name: str = "CartPole-v1", **options: Any) -> UpdateDump:
    envs = DummyVectorEnv([lambda: gym.make(name, max_episode_steps=50)] * ENVS)
    envs.seed(0)
    params = OnPolicyTrainerParams(
        training_collector=Collector(algorithm, envs, VectorReplayBuffer(STEPS * UPDATES, ENVS)),
        max_epochs=1,
        epoch_num_steps=STEPS * UPDATES,
        collection_step_num_env_steps=STEPS,
        update_step_num_repetitions=4,
        batch_size=128,
        verbose=False,
        show_progress=False,
    )
    with one_thread(), UpdateDump(folder / "dump", algorithm, **options) as dump:
        algorithm.run_training(params)
    return dump


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    np.random.seed(0)


HEALTHY = {
    "cartpole": (discrete, "CartPole-v1", NOT_CHECKED),
    "probabilities": (lambda: discrete(softmax=True), "CartPole-v1", NOT_CHECKED),
    "normalised over the rollout": (lambda: discrete(TRPO), "CartPole-v1", NOT_CHECKED),
    "pendulum, returns scaled": (gaussian, "Pendulum-v1", NOT_CHECKED | GAUSSIAN),
    "pendulum, bounded": (lambda: gaussian(unbounded=False), "Pendulum-v1", NOT_CHECKED | GAUSSIAN),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_passes_and_its_advantages_are_what_the_metadata_says(
    name: str, tmp_path: Path
) -> None:
    make, env, not_checked = HEALTHY[name]
    dump = train(tmp_path, make(), env)
    report = bufcheck.validate(str(dump.path), actor=[dump.actor_pattern])
    assert report["verdict"] == "pass", report
    assert (report["summary"]["errors"], report["summary"]["warnings"]) == (0, 0)
    assert report["replay"]["worst_error"] < 1e-5
    found = {rule["name"] for rule in report["rules"] if rule["status"] == "not-checked"}
    assert found == not_checked
    columns, metadata = gae_of_a_dump.read(tmp_path / "dump")
    assert len(columns["reward"]) == STEPS * UPDATES
    assert columns["truncated"].any() and columns["timestep"].max() == 49
    told = metadata["advantage"]
    assert told["truncation"] == "bootstrap_value"
    assert told["normalization"] == ("rollout" if name.startswith("normalised") else "none")
    expected = gae_of_a_dump.recomputed(columns, told)
    np.testing.assert_allclose(columns["advantage"], expected, rtol=1e-4, atol=1e-4)
    expected = gae_of_a_dump.recomputed(columns, told | {"normalization": "none"})
    np.testing.assert_allclose(columns["return"], expected + columns["value"], rtol=1e-4, atol=1e-4)


class Shuffles(PPO):
    """Scores mini-batches without shuffle=False, and joins what comes out."""

    def _preprocess_batch(self, batch: Any, buffer: Any, indices: Any) -> Any:
        ready = super()._preprocess_batch(batch, buffer, indices)
        with torch.no_grad():
            parts = [self.policy(part).dist.log_prob(part.act) for part in ready.split(128)]
        ready.logp_old = torch.cat(parts).flatten()
        return ready


def test_log_probs_of_shuffled_rows_are_named(tmp_path: Path) -> None:
    dump = train(tmp_path, discrete(Shuffles))
    report = bufcheck.validate(str(dump.path), actor=[dump.actor_pattern])
    assert report["verdict"] == "fail"
    assert report["causes"][0]["name"] == "minibatch-permutation", report["causes"]


def test_a_run_learns_what_it_would_unwatched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learned = []
    for name in ("watched", "unwatched"):
        torch.manual_seed(0)
        np.random.seed(0)
        algorithm = discrete()
        train(tmp_path / name, algorithm)
        assert "_preprocess_batch" not in vars(algorithm)
        learned.append([p.detach().clone() for p in algorithm.policy.parameters()])
        monkeypatch.setattr(UpdateDump, "append", lambda *_: None)
    assert all(torch.equal(a, b) for a, b in zip(*learned, strict=True))


class Own(nn.Module):
    """An actor that Tianshou did not make."""

    output_dim = 2

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
        return self.layers(torch.as_tensor(obs)), state


def test_an_actor_of_ones_own_is_handed_over(tmp_path: Path) -> None:
    actor = Own()
    with pytest.raises(UsageError, match="pass network="):
        train(tmp_path / "a", discrete(actor=actor))
    with pytest.raises(UsageError, match="gives something else"):
        train(tmp_path / "b", discrete(actor=actor), network=Own().layers)
    dump = train(tmp_path / "c", discrete(actor=actor), network=actor.layers)
    report = bufcheck.validate(str(dump.path), actor=[dump.actor_pattern])
    assert report["verdict"] == "pass", report


REFUSED = {
    "no log-probs": (lambda: discrete(A2C), "CartPole-v1", "A2C keeps no log-probs"),
    "a memory": (
        lambda: discrete(actor=Recurrent(layer_num=1, state_shape=4, action_shape=2)),
        "CartPole-v1",
        "has a memory",
    ),
    "sigma of the state": (lambda: gaussian(conditioned_sigma=True), "Pendulum-v1", "pass network="),
    "means scaled": (
        lambda: gaussian(unbounded=False, max_action=2.0),
        "Pendulum-v1",
        "gives something else",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_replayed_is_refused(name: str, tmp_path: Path) -> None:
    make, env, message = REFUSED[name]
    with pytest.raises(UsageError) as caught:
        train(tmp_path, make(), env)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_script_of_the_page_leaves_a_dump_that_passes(tmp_path: Path) -> None:
    run_page(ROOT / "docs" / "trainers" / "tianshou.md", tmp_path)
