"""TensorDictDump: TorchRL runs that are dumped pass, bugs in them are named, the rest is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gae_of_a_dump
import numpy as np
import pytest
import torch
from torch import nn

import bufcheck
from bufcheck.errors import UsageError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TorchRL, when imported, uses what it deprecates
    import torchrl_runs as runs
    from tensordict import TensorDict
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torchrl.modules import (
        MLP,
        ActorValueOperator,
        ConvNet,
        IndependentNormal,
        MaskedCategorical,
        MultiAgentMLP,
        ProbabilisticActor,
        TanhNormal,
        ValueOperator,
    )
    from torchrl.objectives.value import GAE

    from bufcheck.trainers.torchrl import TensorDictDump

pytestmark = [
    # Collector speaks of what its next version will do with policies that need transforms.
    pytest.mark.filterwarnings("ignore:The env passed to Collector:FutureWarning"),
]

Categorical = torch.distributions.Categorical
SUBSETS = {
    "action-id-mismatch",
    "constant-num-actions",
    "subset-broadcast",
    "subset-duplicate-id",
    "subset-id-out-of-range",
}
"""What needs subsets: TorchRL offers all actions to every sample."""
CHOICES = {
    "action-index-out-of-range",
    "empty-subset",
    "entropy-bound",
    "logits-log-prob-mismatch",
    "placeholder-log-prob",
    "positive-log-prob",
    "single-action-log-prob",
    "subset-length-mismatch",
}
"""What is about choices among some actions."""
ALWAYS = {"new-log-prob-mismatch"}
HEALTHY: dict[str, tuple[Callable[[Path], TensorDictDump], set[str]]] = {
    "cartpole": (runs.cartpole, SUBSETS | {"action-masked"}),
    "masked": (runs.masked, SUBSETS),
    "pendulum": (runs.pendulum, SUBSETS | CHOICES | {"action-masked"}),
    "squashed": (runs.squashed, SUBSETS | CHOICES | {"action-masked"}),
    "agents": (runs.gathering, SUBSETS | {"action-masked"}),
    "agents-shared": (lambda folder: runs.gathering(folder, share=True), SUBSETS | {"action-masked"}),
    "agents-gaussian": (
        lambda folder: runs.gathering(folder, gaussian=True, names=["red", "green", "blue"]),
        SUBSETS | CHOICES | {"action-masked"},
    ),
}


def checked(dump: TensorDictDump) -> dict[str, Any]:
    return bufcheck.validate(str(dump.path), actor=[dump.actor_pattern])


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_passes_and_its_advantages_are_what_the_metadata_says(
    name: str, tmp_path: Path
) -> None:
    run, not_checked = HEALTHY[name]
    report = checked(run(tmp_path))
    assert report["verdict"] == "pass", report
    assert (report["summary"]["errors"], report["summary"]["warnings"]) == (0, 0)
    assert report["replay"]["worst_error"] < 1e-5
    found = {rule["name"] for rule in report["rules"] if rule["status"] == "not-checked"}
    assert found == not_checked | ALWAYS
    many = runs.AGENTS if name.startswith("agents") else 1
    assert report["dump"]["rows"] == runs.ROLLOUTS * runs.FRAMES * many

    columns, metadata = gae_of_a_dump.read(tmp_path / "dump")
    assert metadata["producer"]["name"] == "torchrl"
    told = {"gamma": 0.97, "gae_lambda": 0.9, "normalization": "none", "truncation": "bootstrap_value"}
    assert metadata["advantage"] == told
    assert columns["truncated"].any()
    expected = gae_of_a_dump.recomputed(columns, told)
    np.testing.assert_allclose(columns["advantage"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(columns["return"], expected + columns["value"], rtol=1e-4, atol=1e-4)


def test_episodes_are_counted_on_from_batch_to_batch(tmp_path: Path) -> None:
    """A piece that goes on in the next batch has an id of its own, and goes on counting."""
    runs.masked(tmp_path)
    columns, _ = gae_of_a_dump.read(tmp_path / "dump")
    last = np.flatnonzero(columns["policy_version"] == 0)[-1]
    assert not columns["terminated"][last] and not columns["truncated"][last]
    assert columns["episode_id"][last + 1] == columns["episode_id"][last] + 1
    assert columns["timestep"][last + 1] == columns["timestep"][last] + 1
    assert columns["timestep"].max() == 39


def test_agents_have_the_names_that_were_given(tmp_path: Path) -> None:
    dump = runs.gathering(tmp_path, names=["red", "green", "blue"])
    columns, metadata = gae_of_a_dump.read(tmp_path / "dump")
    assert list(columns["agent_id"][:3]) == ["blue", "green", "red"]
    assert metadata["agents"] == {"shared_actor": False}
    assert dump.actor_pattern.endswith("{agent_id}-{policy_version}.safetensors")


# Bugs


def score_without_mask(batch: Any, actor: Any) -> None:
    batch["action_log_prob"] = Categorical(logits=batch["logits"]).log_prob(batch["action"])


def cross_agents(batch: Any, actor: Any) -> None:
    batch["agents", "sample_log_prob"] = batch["agents", "sample_log_prob"].roll(1, -1)


BUGS: dict[str, tuple[str, Callable[[Path], TensorDictDump]]] = {
    "mask forgotten when scoring": (
        "mask-not-applied",
        lambda folder: runs.masked(folder, score_without_mask, check="off"),
    ),
    "observation written to by the environment": ("state-aliased-next", runs.aliased),
    "appended after the update": (
        "stale-policy-version",
        lambda folder: runs.cartpole(folder, late=True),
    ),
    "appended after the update, several agents": (
        "stale-policy-version",
        lambda folder: runs.gathering(folder, late=True),
    ),
    "agents crossed": (
        "agent-rows-crossed",
        lambda folder: runs.gathering(folder, cross_agents, check="off"),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_the_loop_is_named(bug: str, tmp_path: Path) -> None:
    cause, run = BUGS[bug]
    report = checked(run(tmp_path))
    assert report["verdict"] == "fail"
    assert report["causes"][0]["name"] == cause, report["causes"]


def test_log_probs_that_are_not_those_of_the_logits_stop_the_loop(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="logits-log-prob-mismatch: sample 0"):
        runs.masked(tmp_path, score_without_mask)


def test_squashed_actions_at_their_bounds_are_found(tmp_path: Path) -> None:
    """TorchRL keeps them off the bounds, and scores what they were before: the ratio is not 1."""
    report = checked(runs.squashed(tmp_path, gain=60.0))
    assert report["verdict"] == "fail"
    assert report["replay"]["worst_error"] > 1


def test_a_mask_that_the_actor_does_not_know_of_is_found(tmp_path: Path) -> None:
    actor = made(MLP(4, 3, num_cells=[8]), ["logits"], Categorical)
    batch = batch_of(actor, 200)
    batch["action_mask"] = torch.rand(200, 3) < 0.7
    with TensorDictDump(tmp_path / "a", actor, check="off") as dump:
        dump.append(batch)
    assert checked(dump)["verdict"] == "fail"
    with TensorDictDump(tmp_path / "b", actor, keys={"action_mask": None}) as dump:
        dump.append(batch)
    assert checked(dump)["verdict"] == "pass"


# Batches and actors of other kinds


def made(net: Any, gives: list[str], kind: Any, sees: str = "observation", **options: Any) -> Any:
    options = {"in_keys": gives, "return_log_prob": True} | options
    return ProbabilisticActor(TensorDictModule(net, [sees], gives), distribution_class=kind, **options)


def batch_of(actor: Any, steps: int, shape: tuple[int, ...] = (4,), mask: int = 0) -> Any:
    generator = torch.Generator().manual_seed(3)
    ended = torch.zeros(steps, 1, dtype=torch.bool)
    batch = TensorDict(
        {
            "observation": torch.randn((steps, *shape), generator=generator),
            "next": {"reward": torch.zeros(steps, 1), "done": ended, "terminated": ended.clone()},
        },
        [steps],
    )
    if mask:
        batch["action_mask"] = torch.rand((steps, mask), generator=generator) < 0.5
        batch["action_mask"][:, 0] = True
    with torch.no_grad():
        return actor(batch)


def gaussian(mapping: str) -> Any:
    return nn.Sequential(MLP(4, 4, num_cells=[8]), NormalParamExtractor(mapping))


def trunk() -> Any:
    """A trunk that the critic shares."""
    shared = TensorDictModule(MLP(4, 8, num_cells=[8]), ["observation"], ["hidden"])
    policy = made(MLP(8, 3, num_cells=[8]), ["logits"], Categorical, "hidden")
    critic = ValueOperator(MLP(8, 1, num_cells=[8]), ["hidden"])
    return ActorValueOperator(shared, policy, critic).get_policy_operator()


IMAGE = (3, 12, 12)
KINDS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    **{
        f"Gaussian by {name}": (
            lambda name=name: made(gaussian(name), ["loc", "scale"], IndependentNormal),
            {},
        )
        for name in ("exp", "softplus", "biased_softplus_0.5_0.1")
    },
    "TanhNormal": (lambda: made(gaussian("exp"), ["loc", "scale"], TanhNormal), {}),
    "one number, by Normal": (
        lambda: made(
            nn.Sequential(MLP(4, 2, num_cells=[8]), NormalParamExtractor()),
            ["loc", "scale"],
            torch.distributions.Normal,
        ),
        {},
    ),
    "masked logit": (
        lambda: made(
            MLP(4, 3, num_cells=[8]),
            ["logits"],
            MaskedCategorical,
            in_keys={"logits": "logits", "mask": "action_mask"},
            distribution_kwargs={"neg_inf": -1e3},
        ),
        {"mask": 3},
    ),
    "shared trunk": (trunk, {}),
    "images": (
        lambda: made(
            nn.Sequential(
                ConvNet(3, num_cells=[4, 4], kernel_sizes=3, strides=1), MLP(256, 3, num_cells=[8])
            ),
            ["logits"],
            Categorical,
        ),
        {"shape": IMAGE},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_actors_of_every_kind_are_replayed(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, options = KINDS[kind]
    actor = make()
    with TensorDictDump(tmp_path / "dump", actor) as dump:
        dump.append(batch_of(actor, 300, **options))
    report = checked(dump)
    assert report["verdict"] == "pass", report
    assert report["replay"]["worst_error"] < 1e-5


def test_what_is_normalised_is_said_to_be(tmp_path: Path) -> None:
    actor = made(MLP(4, 3, num_cells=[8]), ["logits"], Categorical)
    critic = ValueOperator(MLP(4, 1, num_cells=[8]), ["observation"])
    gae = GAE(gamma=0.9, lmbda=0.8, value_network=critic, average_gae=True)
    batch = batch_of(actor, 50)
    batch["next", "observation"] = torch.randn(50, 4)
    with torch.no_grad():
        gae(batch)
    with TensorDictDump(tmp_path / "dump", actor, gae) as dump:
        dump.append(batch)
    _, metadata = gae_of_a_dump.read(tmp_path / "dump")
    assert metadata["advantage"]["normalization"] == "rollout"


# Refusals


def several(**options: Any) -> Any:
    net = MultiAgentMLP(4, 3, 2, share_params=False, depth=1, num_cells=8, **options)
    grouped = [("agents", "logits")]
    return ProbabilisticActor(
        TensorDictModule(net, [("agents", "observation")], grouped),
        in_keys=grouped,
        out_keys=[("agents", "action")],
        distribution_class=Categorical,
        return_log_prob=True,
    )


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        given: torch.Tensor = self.last(seen + self.inner(seen))
        return given


ACTORS: dict[str, tuple[Callable[[], Any], str]] = {
    "no distribution": (
        lambda: TensorDictModule(MLP(4, 3), ["observation"], ["action"]),
        "pass the ProbabilisticActor",
    ),
    "two observations": (
        lambda: ProbabilisticActor(
            TensorDictModule(MLP(8, 3), ["observation", "other"], ["logits"]),
            in_keys=["logits"],
            distribution_class=Categorical,
        ),
        "fed observation, other; join observations",
    ),
    "probabilities": (
        lambda: made(nn.Sequential(MLP(4, 3), nn.Softmax(-1)), ["probs"], Categorical),
        "made of probs, expected logits",
    ),
    "tanh_loc": (
        lambda: made(
            gaussian("exp"), ["loc", "scale"], TanhNormal, distribution_kwargs={"tanh_loc": True}
        ),
        "tanh_loc=True bends the means",
    ),
    "another distribution": (
        lambda: made(gaussian("exp"), ["loc", "scale"], torch.distributions.Laplace),
        "Laplace is not a distribution",
    ),
    "a log-prob for each number": (
        lambda: made(gaussian("exp"), ["loc", "scale"], torch.distributions.Normal),
        "IndependentNormal instead of Normal",
    ),
    "no log-probs": (
        lambda: made(MLP(4, 3), ["logits"], Categorical, return_log_prob=False),
        "return_log_prob=True",
    ),
    "a scale_mapping of one's own": (
        lambda: made(gaussian("expln"), ["loc", "scale"], IndependentNormal),
        "scale_mapping that cannot be described",
    ),
    "layers that skip": (lambda: made(Skips(), ["logits"], Categorical), "--arch"),
}


@pytest.mark.parametrize("name", ACTORS)
def test_an_actor_that_cannot_be_described_is_refused(name: str, tmp_path: Path) -> None:
    make, message = ACTORS[name]
    with pytest.raises(UsageError) as caught:
        actor = make()
        TensorDictDump(tmp_path / "dump", actor).append(batch_of(actor, 20))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def split(batch: Any) -> Any:
    batch["collector", "mask"] = torch.ones(20, dtype=torch.bool)
    return batch


def shuffle(batch: Any) -> Any:
    batch["collector", "traj_ids"] = torch.arange(20) % 3
    return batch


def left_out(batch: Any) -> Any:
    batch["shifted_valid"] = torch.arange(20) > 3
    return batch


BATCHES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "one step": (lambda batch: batch[0], "append what a collector yields"),
    "split into trajectories": (split, "append it before split_trajs"),
    "shuffled": (shuffle, "as the collector yields it"),
    "steps left out": (left_out, "shifted_budget"),
    "no ends": (lambda batch: batch.exclude("next"), "no ('next', 'done')"),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_that_is_no_rollout_is_refused(name: str, tmp_path: Path) -> None:
    spoil, message = BATCHES[name]
    actor = made(MLP(4, 3, num_cells=[8]), ["logits"], Categorical)
    with pytest.raises(UsageError) as caught:
        TensorDictDump(tmp_path / "dump", actor).append(spoil(batch_of(actor, 20)))
    assert message in str(caught.value)


def test_a_batch_without_its_advantages_is_refused(tmp_path: Path) -> None:
    actor = made(MLP(4, 3, num_cells=[8]), ["logits"], Categorical)
    gae = GAE(gamma=0.9, lmbda=0.8, value_network=None)
    with pytest.raises(UsageError, match="after the value estimator ran"):
        TensorDictDump(tmp_path / "dump", actor, gae).append(batch_of(actor, 20))
    resets = GAE(gamma=0.9, lmbda=0.8, value_network=None, auto_reset_env=True)
    with pytest.raises(UsageError, match="auto_reset_env"):
        TensorDictDump(tmp_path / "dump", actor, resets)


def test_agents_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    seen = TensorDict({"observation": torch.randn(20, 2, 4)}, [20, 2])
    batch = TensorDict({"agents": seen, "next": {"done": torch.zeros(20, 1, dtype=torch.bool)}}, [20])
    for options, message in (
        ({"centralized": True}, "is centralized"),
        ({"centralized": False}, "names"),
    ):
        actor = several(**options)
        with torch.no_grad():
            acted = actor(batch.clone())
        names = ["red", "red"] if message == "names" else None
        with pytest.raises(UsageError, match=message):
            TensorDictDump(tmp_path / message.split()[-1], actor, names=names).append(acted)


def leave(batch: Any, actor: Any) -> None:
    batch["agents", "mask"] = torch.arange(runs.AGENTS).expand(*batch.shape, -1) > 0


def test_agents_that_leave_early_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="agents leave before their episode ends"):
        runs.gathering(tmp_path, leave)


def test_nothing_is_left_when_nothing_was_appended(tmp_path: Path) -> None:
    actor = made(MLP(4, 3, num_cells=[8]), ["logits"], Categorical)
    with TensorDictDump(tmp_path / "dump", actor) as dump:
        pass
    assert not (tmp_path / "dump").exists()
    with pytest.raises(UsageError, match="train first"):
        _ = dump.actor_pattern
