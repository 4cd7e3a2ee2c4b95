"""RLlib's PPO, dumped by the adapter: healthy runs pass, bugs are found and named.

Run by the command in CONTRIBUTING.md; RLlib is too large to install for every test run.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Else Ray on Linux takes the machine's outer address, even for 127.0.0.1, and listens on all of them.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

import numpy as np
import pytest
import ray
import rllib_runs as runs
import torch
from conftest import ROOT, failing
from gymnasium import spaces
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.connectors.env_to_module import FlattenObservations, MeanStdFilter
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from test_trainer_pages import run_page

from bufcheck.errors import SampleError, UsageError

pytestmark = [
    # RLlib registers the environment of each algorithm under one name.
    pytest.mark.filterwarnings("ignore:.*Overriding environment rllib-:UserWarning"),
    # ray.data sets its own deprecated fields when it is loaded, which remote learners do.
    pytest.mark.filterwarnings("ignore:.use_[a-z0-9_]+. is deprecated:DeprecationWarning"),
]

ALL_OFFERED = {
    "subset-broadcast",
    "constant-num-actions",
    "subset-duplicate-id",
    "subset-id-out-of-range",
    "action-id-mismatch",
    "action-masked",
}
CATEGORICAL = ALL_OFFERED | {
    "logits-log-prob-mismatch",
    "action-index-out-of-range",
    "empty-subset",
    "subset-length-mismatch",
    "positive-log-prob",
    "single-action-log-prob",
    "placeholder-log-prob",
    "entropy-bound",
}
"""Rules that are about other policies: those over subsets, and all that are for categorical ones."""


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One local Ray for all tests, on this machine only, of which nothing is left behind."""
    folder = tempfile.mkdtemp(prefix="bc-")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=folder,
    )
    assert ray.util.get_node_ip_address() == "127.0.0.1"
    with pytest.MonkeyPatch.context() as patch:
        # Else each algorithm leaves a folder of results in the home folder.
        patch.setattr("ray.tune.trainable.trainable.DEFAULT_STORAGE_PATH", folder)
        yield
    ray.shutdown()
    torch.set_num_threads(threads)
    until = time.monotonic() + 20
    while (left := processes_of(folder)) and time.monotonic() < until:
        time.sleep(0.2)
    shutil.rmtree(folder, ignore_errors=True)
    assert not left


def processes_of(folder: str) -> list[str]:
    """Processes that were started with this folder among their arguments."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            said = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has just ended
            continue
        if folder in said:
            found.append(said)
    return found


def passes(run: runs.Run, unchecked: set[str]) -> dict[str, Any]:
    ran = run.validate()
    report = ran.report
    assert (ran.code, report["verdict"]) == (0, "pass"), report
    assert (report["summary"]["errors"], report["summary"]["warnings"]) == (0, 0), report
    assert report["replay"]["worst_error"] < 1e-5
    assert {r["name"] for r in report["rules"] if r["status"] == "not-checked"} == unchecked
    assert all(not actor["notes"] for actor in report["replay"]["actors"])
    return report


def fails_with(run: runs.Run, cause: str) -> dict[str, Any]:
    ran = run.validate()
    assert (ran.code, ran.report["verdict"]) == (1, "fail"), ran.report
    assert ran.report["causes"][0]["name"] == cause, ran.report["causes"]
    assert ran.report["causes"][0]["confidence"] == "proven", ran.report["causes"]
    return ran.report


def advantages_are_gae(run: runs.Run) -> None:
    """From the dump alone. The update's are standardised over each policy's rollout, which is told."""
    of = json.loads(run.table.schema.metadata[b"bufcheck"])["advantage"]
    assert of["truncation"] == "bootstrap_value" and of["normalization"] == "rollout of each policy"
    names = ("reward", "value", "bootstrap_value", "terminated", "truncated", "advantage", "return")
    has = {n: run.column(n) for n in names}
    plain = np.zeros(len(has["value"]))
    ends = {}  # of (episode, agent): the row after, going backwards
    keys = list(zip(run.column("episode_id"), run.column("agent_id"), strict=True))
    for row in reversed(range(len(keys))):
        after = ends.get(keys[row])
        over = has["terminated"][row] or has["truncated"][row] or after is None
        follows = has["bootstrap_value"][row] if over else has["value"][after]
        if has["terminated"][row]:
            follows = 0.0
        plain[row] = has["reward"][row] + of["gamma"] * follows - has["value"][row]
        if not over:
            plain[row] += of["gamma"] * of["gae_lambda"] * plain[after]
        ends[keys[row]] = row
    assert np.isfinite(plain).all()
    scale = np.abs(has["return"]).max() + np.abs(has["value"]).max() + 1
    np.testing.assert_allclose(has["return"] - has["value"], plain, atol=2e-6 * scale)
    groups = run.column("group")
    for group in set(groups):
        inside = groups == group
        slope, offset = np.polyfit(plain[inside], has["advantage"][inside], 1)
        assert slope > 0
        straight = slope * plain[inside] + offset
        np.testing.assert_allclose(
            has["advantage"][inside], straight, atol=2e-6 * scale * max(slope, 1)
        )


MIXED = spaces.Dict({"where": spaces.Box(-9, 9, (3,)), "which": spaces.Discrete(4)})


def strolling(**given: Any) -> PPOConfig:
    return runs.config(runs.Stroll).environment(runs.Stroll, env_config=given)


@pytest.mark.parametrize("share", [False, True], ids=["apart", "shared"])
def test_cartpole_passes(share: bool, tmp_path: Path) -> None:
    run = runs.train(runs.config(vf_share_layers=share), tmp_path / "dump")
    passes(run, ALL_OFFERED)
    advantages_are_gae(run)
    assert sorted(set(run.column("policy_version"))) == [0, 1, 2]
    assert len(run.table) >= runs.ROLLOUTS * runs.STEPS


@pytest.mark.parametrize("free", [False, True], ids=["of the state", "free"])
def test_pendulum_passes(free: bool, tmp_path: Path) -> None:
    run = runs.train(runs.config("Pendulum-v1", free_log_std=free), tmp_path / "dump")
    passes(run, CATEGORICAL)
    advantages_are_gae(run)
    # What was sampled, not what the environment got: that lies within its limits.
    assert np.abs(run.column("action")).max() > 2.0
    assert run.column("truncated").any()


@pytest.mark.parametrize("shared", [False, True], ids=["two policies", "one policy"])
def test_two_agents_pass(shared: bool, tmp_path: Path) -> None:
    run = runs.train(runs.of_agents(runs.config(runs.Duel), shared), tmp_path / "dump")
    report = passes(run, ALL_OFFERED)
    advantages_are_gae(run)
    assert report["dump"]["agents"] == list(runs.NAMES)
    assert len(report["replay"]["actors"]) == runs.ROLLOUTS * (1 if shared else 2)
    assert_timesteps_are_the_environments(run)


@pytest.mark.parametrize("manner", ["turns", "leaves"])
def test_agents_that_do_not_act_at_every_step_pass(manner: str, tmp_path: Path) -> None:
    given = runs.of_agents(runs.config(runs.Duel)).environment(runs.Duel, env_config={manner: True})
    run = runs.train(given, tmp_path / "dump", agents={"turn_based": manner == "turns"})
    unchecked = ALL_OFFERED | ({"missing-agent-step"} if manner == "turns" else set())
    passes(run, unchecked)
    advantages_are_gae(run)
    assert_timesteps_are_the_environments(run)


def test_a_policy_that_is_not_trained_is_left_out(tmp_path: Path) -> None:
    given = runs.of_agents(runs.config(runs.Duel), policies_to_train=["RED"])
    given = given.environment(runs.Duel, env_config={"turns": True})
    run = runs.train(given, tmp_path / "dump")
    passes(run, ALL_OFFERED)
    assert set(run.column("agent_id")) == {"RED"}


def assert_timesteps_are_the_environments(run: runs.Run) -> None:
    seen = run.column("state_embed")
    np.testing.assert_allclose(seen[:, 0], run.column("timestep") / 10, atol=1e-5)
    np.testing.assert_array_equal(seen[:, 1] > 0, run.column("agent_id") == "RED")


def test_what_connectors_make_of_observations_is_stored(tmp_path: Path) -> None:
    """A Dict, flattened and one-hot in part."""
    given = strolling(sees=MIXED)
    given = given.env_runners(env_to_module_connector=lambda *_, **__: FlattenObservations())
    run = runs.train(given, tmp_path / "dump")
    passes(run, ALL_OFFERED)
    advantages_are_gae(run)
    assert run.column("state_embed").shape[1] == 7
    assert set(run.column("state_embed")[:, 3:].sum(axis=1)) == {1.0}


def test_observations_are_stored_as_the_filter_left_them(tmp_path: Path) -> None:
    """Its statistics move all the time. The very first state is its own mean, and so all zeros."""
    given = strolling().env_runners(env_to_module_connector=lambda *_, **__: MeanStdFilter())
    run = runs.train(given, tmp_path / "dump")
    report = run.validate().report
    assert report["verdict"] == "pass", report
    assert failing(report) == {"zero-state": 1}
    assert report["replay"]["worst_error"] < 1e-5
    assert np.abs(run.column("state_embed").std(axis=0) - 1).max() < 0.2
    advantages_are_gae(run)


def test_whole_episodes_pass(tmp_path: Path) -> None:
    given = runs.config(runs.Stroll).env_runners(batch_mode="complete_episodes")
    run = runs.train(given, tmp_path / "dump")
    passes(run, ALL_OFFERED)
    advantages_are_gae(run)


def test_a_remote_env_runner_passes(tmp_path: Path) -> None:
    run = runs.train(runs.config().env_runners(num_env_runners=1), tmp_path / "dump")
    passes(run, ALL_OFFERED)
    advantages_are_gae(run)


def test_a_run_goes_on_from_a_checkpoint_in_another_dump(tmp_path: Path) -> None:
    """Versions count on, so that two dumps of one run can be told apart."""
    first = tmp_path / "saved"
    runs.train(runs.config(), tmp_path / "one", lambda a: (a.train(), a.save_to_path(first)), 0)
    run = runs.train(runs.config(), tmp_path / "two", lambda a: a.restore_from_path(first))
    passes(run, ALL_OFFERED)
    assert sorted(set(run.column("policy_version"))) == [1, 2, 3]


def test_weights_that_come_late_are_named(tmp_path: Path) -> None:
    run = runs.train(runs.config(), tmp_path / "dump", runs.weights_come_late, 4, check="off")
    report = fails_with(run, "stale-policy-version")
    mismatch = next(r for r in report["rules"] if r["name"] == "log-prob-mismatch")
    assert mismatch["rows"] > 0.6 * len(run.table)


def test_weights_that_come_late_end_the_run_where_they_are_checked(tmp_path: Path) -> None:
    """At the first rollout they made: the learner's own log-probs are not those that were stored."""
    with pytest.raises(SampleError, match="new-log-prob-mismatch"):
        runs.train(runs.config(), tmp_path / "dump", runs.weights_come_late)


def test_the_actor_after_the_update_is_named(tmp_path: Path) -> None:
    run = runs.train(runs.config(), tmp_path / "dump", rollouts=4)
    files = [Path(run.actors.format(policy_version=version)) for version in range(4)]
    saved = [file.read_bytes() for file in files]
    for file, later in zip(files, saved[1:], strict=False):
        file.write_bytes(later)
    report = fails_with(run, "stale-policy-version")
    assert report["causes"][0]["parameters"] == {"offset": -1}


def test_crossed_agents_are_named(tmp_path: Path) -> None:
    given = runs.of_agents(runs.config(runs.Duel))
    given = given.training(learner_connector=lambda *_, **__: runs.OthersLogProbs())
    fails_with(runs.train(given, tmp_path / "dump", check="off"), "agent-rows-crossed")


def test_observations_one_step_late_are_named(tmp_path: Path) -> None:
    given = runs.config(runs.Stroll).training(
        learner_connector=lambda *_, **__: runs.NextObservations()
    )
    fails_with(runs.train(given, tmp_path / "dump", check="off"), "state-aliased-next")


def test_an_array_that_the_environment_writes_over_is_no_bug_here(tmp_path: Path) -> None:
    """RLlib copies what environments return; if it ever stops, this fails."""
    given = runs.of_agents(runs.config(runs.Duel)).environment(runs.Duel, env_config={"aliased": True})
    passes(runs.train(given, tmp_path / "dump"), ALL_OFFERED)


class Own(DefaultPPOTorchRLModule):
    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        return super()._forward(batch, **kwargs)


REFUSED = {
    "lstm": (lambda: runs.config(use_lstm=True), "recurrent"),
    "several actions": (lambda: strolling(does=spaces.MultiDiscrete([2, 3])), "MultiDiscrete"),
    "a tuple": (lambda: strolling(does=spaces.Tuple([spaces.Discrete(2)] * 2)), "acts in Tuple"),
    "images": (lambda: strolling(sees=spaces.Box(0, 1, (64, 64, 3))), "not a vector"),
    "own module": (lambda: runs.config().rl_module(rl_module_spec=RLModuleSpec(Own)), "is a Own"),
    "old stack": (lambda: runs.config().api_stack(False, False), "old API stack"),
    "not PPO": (
        lambda: IMPALAConfig().environment("CartPole-v1").env_runners(num_env_runners=0),
        "IMPALA is not PPO",
    ),
    "remote": (lambda: runs.config().learners(num_learners=1), "remote learners"),
    "no gae": (
        lambda: runs.config().learners(add_default_connectors_to_learner_pipeline=False),
        "compute no advantages",
    ),
    "uneven": (
        lambda: runs.of_agents(runs.config(runs.Duel)).environment(
            runs.Duel, env_config={"uneven": True}
        ),
        "BLUE and RED have other observations",
    ),
}


@pytest.mark.parametrize("which", REFUSED)
def test_refused(which: str, tmp_path: Path) -> None:
    given, why = REFUSED[which]
    with pytest.raises(UsageError, match=why) as refusal:
        runs.train(given(), tmp_path / "dump")
    assert refusal.value.step and "\n" not in str(refusal.value)
    assert not (tmp_path / "dump").exists()


def test_a_log_std_at_its_limit_is_refused(tmp_path: Path) -> None:
    """The head stops there, and its layers, which are what is saved, do not."""
    given = runs.config("Pendulum-v1", log_std_clip_param=0.0)
    with pytest.raises(UsageError, match="log_std_clip_param"):
        runs.train(given, tmp_path / "dump")


def test_a_policy_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no policy 'blue'; there are default_policy"):
        runs.train(runs.config(), tmp_path / "dump", modules=["blue"])


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # where RLlib leaves a folder of results
    run_page(ROOT / "docs" / "trainers" / "rllib.md", tmp_path)
