"""DumpCallback in real training runs: healthy ones pass, those with a bug fail and the bug is named."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import trainers
from conftest import ROOT, failing
from gymnasium import spaces
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper, VecNormalize

import bufcheck
from bufcheck.errors import SampleError, UsageError
from bufcheck.trainers._stable_baselines3_policy import HEAD_ONLY
from bufcheck.trainers.stable_baselines3 import DumpCallback

pytestmark = [
    # SB3 comments on batch sizes and on images smaller than its CNN likes.
    pytest.mark.filterwarnings("ignore::UserWarning:stable_baselines3.*"),
    pytest.mark.filterwarnings("ignore::UserWarning:sb3_contrib.*"),
]

ENVS, STEPS, ROLLOUTS = 2, 128, 3
WORST = 1e-5

Array = np.ndarray[Any, Any]


def cart() -> gymnasium.Env[Any, Any]:
    """Some episodes fall, some reach the time limit."""
    return gymnasium.make("CartPole-v1", max_episode_steps=25)


def pendulum() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("Pendulum-v1")


class Pictures(gymnasium.Env[Array, Any]):
    """Images, channels last; the colour that is brightest is the action to take."""

    observation_space = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        paid = float(action == self.bright)
        return self._look(), paid, bool(self.np_random.random() < 0.1), False, {}

    def _look(self) -> Array:
        seen = self.np_random.integers(0, 200, self.observation_space.shape, np.uint8)
        self.bright = int(self.np_random.integers(3))
        seen[..., self.bright] += 55
        return seen


class Rooms(gymnasium.Env[Any, Any]):
    """Observations are numbers, which the network sees one-hot."""

    observation_space: Any = spaces.Discrete(7)
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._look(), float(self.np_random.random()), False, self.steps == 20, {}

    def _look(self) -> Any:
        return self.np_random.integers(7)


class Doors(Rooms):
    observation_space = spaces.MultiDiscrete([3, 4])

    def _look(self) -> Any:
        return self.np_random.integers([3, 4])


class Boundless(trainers.Errands):
    """A space whose bounds no network takes."""

    observation_space = spaces.Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (6,))


def normalized() -> VecNormalize:
    return VecNormalize(DummyVecEnv([pendulum] * ENVS))


# Healthy


@dataclass(frozen=True)
class Setting:
    algorithm: Any
    envs: Callable[[], Any]
    policy: str = "MlpPolicy"
    steps: int = STEPS
    rollouts: int = ROLLOUTS
    dump: tuple[tuple[str, Any], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    not_checked: frozenset[str] = frozenset()


ALWAYS = frozenset({"logits-log-prob-mismatch", "new-log-prob-mismatch"})
"""Rules for what the trainer does not have: logits and recomputed log-probs."""
ALL = ALWAYS | {"subset-broadcast", "constant-num-actions", "subset-duplicate-id"}
ALL |= {"subset-id-out-of-range", "action-id-mismatch"}
"""And those about subsets, where every action is offered."""
UNMASKED = ALL | {"action-masked"}
LISTED = ALWAYS | {"action-masked"}
GAUSSIAN = UNMASKED | {"action-index-out-of-range", "empty-subset", "subset-length-mismatch"}
GAUSSIAN |= {"positive-log-prob", "single-action-log-prob", "placeholder-log-prob", "entropy-bound"}

SETTINGS = {
    "ppo": Setting(PPO, lambda: DummyVecEnv([cart] * ENVS), not_checked=UNMASKED),
    "a2c": Setting(A2C, lambda: DummyVecEnv([cart] * ENVS), steps=5, rollouts=12, not_checked=UNMASKED),
    "gaussian": Setting(PPO, lambda: DummyVecEnv([pendulum] * ENVS), not_checked=GAUSSIAN),
    "vec-normalize": Setting(PPO, normalized, not_checked=GAUSSIAN),
    "masks-as-subsets": Setting(
        MaskablePPO, lambda: DummyVecEnv([trainers.Errands] * ENVS), not_checked=LISTED
    ),
    "masks-as-masks": Setting(
        MaskablePPO,
        lambda: DummyVecEnv([Boundless] * ENVS),
        dump=(("masks", "mask"),),
        not_checked=ALL,
    ),
    "images": Setting(
        PPO,
        lambda: DummyVecEnv([Pictures] * ENVS),
        policy="CnnPolicy",
        steps=64,
        rollouts=2,
        options=(("n_epochs", 1),),
        not_checked=UNMASKED,
    ),
    "discrete-observations": Setting(PPO, lambda: DummyVecEnv([Rooms] * ENVS), not_checked=UNMASKED),
    "multi-discrete-observations": Setting(
        PPO, lambda: DummyVecEnv([Doors] * ENVS), not_checked=UNMASKED
    ),
    "recurrent": Setting(
        RecurrentPPO,
        lambda: DummyVecEnv([cart] * ENVS),
        policy="MlpLstmPolicy",
        options=(("policy_kwargs", {"lstm_hidden_size": 16, "n_lstm_layers": 2}), ("n_epochs", 2)),
        not_checked=UNMASKED,
    ),
}


def made(setting: Setting, **options: Any) -> Any:
    given = {"policy": setting.policy, "n_steps": setting.steps, "seed": 0, "device": "cpu"}
    if setting.algorithm is not A2C:
        given["n_epochs"] = 4
    return setting.algorithm(env=setting.envs(), **given | dict(setting.options) | options)


def train(setting: Setting, folder: Path, **options: Any) -> DumpCallback:
    dump = DumpCallback(folder / "dump", **dict(setting.dump))
    with trainers.one_thread():
        made(setting, **options).learn(ENVS * setting.steps * setting.rollouts, callback=dump)
    return dump


def report_of(dump: DumpCallback) -> dict[str, Any]:
    return bufcheck.validate(str(dump.path), actor=dump.actor_pattern)


def columns_of(dump: DumpCallback) -> tuple[dict[str, Array], dict[str, Any]]:
    """All that the dump holds: its columns, and its metadata."""
    files = sorted(Path(dump.path).glob("part-*.parquet"))
    table = pq.read_table(files[0])
    assert len(files) == 1
    about = json.loads(table.schema.metadata[b"bufcheck"])
    return {
        name: np.array(table[name].to_pylist())
        for name in table.column_names
        if (name not in ("subset_indices", "action_mask"))
    }, about


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], DumpCallback]:
    """Each run is made once, when a test first asks for it."""
    return cache(lambda name: train(SETTINGS[name], tmp_path_factory.mktemp(name)))


Runs = Callable[[str], DumpCallback]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_healthy_run_passes(name: str, runs: Runs) -> None:
    setting = SETTINGS[name]
    report = report_of(runs(name))
    assert (report["verdict"], failing(report)) == ("pass", {})
    assert report["summary"]["warnings"] == 0
    assert report["dump"]["rows"] == ENVS * setting.steps * setting.rollouts
    assert len(report["replay"]["actors"]) == setting.rollouts
    assert report["replay"]["worst_error"] < WORST
    unchecked = {rule["name"] for rule in report["rules"] if rule["status"] == "not-checked"}
    assert unchecked == setting.not_checked
    # Where only the head is replayed, the report says so.
    notes = {note for actor in report["replay"]["actors"] for note in actor["notes"]}
    assert notes == ({HEAD_ONLY} if name == "recurrent" else set())


@pytest.mark.parametrize("name", SETTINGS)
def test_advantages_follow_from_what_the_dump_says(name: str, runs: Runs) -> None:
    columns, about = columns_of(runs(name))
    told = about["advantage"]
    assert (told["truncation"], told["normalization"]) == ("folded_into_reward", "none")
    expected = np.zeros(len(columns["reward"]))
    order = np.lexsort((columns["timestep"], columns["episode_id"]))
    after: int | None = None
    for row in order[::-1]:
        goes_on = after is not None and columns["episode_id"][after] == columns["episode_id"][row]
        ended = columns["terminated"][row] or columns["truncated"][row]
        assert not (goes_on and ended)
        following, carried = 0.0, 0.0
        if goes_on:
            following, carried = columns["value"][after], expected[after]
        elif not ended:
            following = columns["bootstrap_value"][row]
        delta = columns["reward"][row] + told["gamma"] * following - columns["value"][row]
        expected[row] = delta + told["gamma"] * told["gae_lambda"] * carried
        after = row
    np.testing.assert_allclose(columns["advantage"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(columns["return"], expected + columns["value"], rtol=1e-4, atol=1e-4)


def test_episodes_end_in_both_ways(runs: Runs) -> None:
    """The runs test what they are meant to, and an end is told from a time limit."""
    columns, about = columns_of(runs("ppo"))
    assert columns["terminated"].any()
    assert (columns["timestep"][columns["truncated"]] == 24).all()
    assert columns["truncated"].any()
    assert not (columns["terminated"] & columns["truncated"]).any()
    assert about["producer"]["name"] == "stable-baselines3 PPO"
    assert set(columns["seed"]) == {0, 1}
    assert set(columns["policy_version"]) == set(range(ROLLOUTS))


def test_dumping_leaves_training_as_it_is(tmp_path: Path) -> None:
    models = []
    for callback in (DumpCallback(tmp_path / "dump"), None):
        with trainers.one_thread():
            models.append(made(SETTINGS["ppo"]).learn(ENVS * STEPS * 2, callback=callback))
    for one, other in zip(*(model.policy.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


# Bugs


class MaskForgotten(MaskableActorCriticPolicy):
    """Samples under the mask, and scores without."""

    def forward(self, obs: Any, deterministic: bool = False, action_masks: Any = None) -> Any:
        actions, values, _ = super().forward(obs, deterministic, action_masks)
        return actions, values, self.get_distribution(obs).log_prob(actions)


@pytest.mark.parametrize("masks", ["subset", "mask"])
def test_a_forgotten_mask_is_named(masks: str, tmp_path: Path) -> None:
    setting = Setting(
        MaskablePPO,
        SETTINGS["masks-as-subsets"].envs,
        dump=(("masks", masks), ("check", "off")),
    )
    report = report_of(train(setting, tmp_path, policy=MaskForgotten))
    assert report["verdict"] == "fail"
    assert report["causes"][0]["name"] == "mask-not-applied"


def test_a_forgotten_mask_is_seen_while_training(tmp_path: Path) -> None:
    """One legal action has log-prob 0: that needs no replay."""
    with pytest.raises(SampleError, match="single-action-log-prob"):
        train(SETTINGS["masks-as-subsets"], tmp_path, policy=MaskForgotten)


class Aliased(VecEnvWrapper):
    """Hands out one array, and writes the next observations into it."""

    def reset(self) -> Any:
        self.shown = self.venv.reset()
        return self.shown

    def step_wait(self) -> Any:
        seen, *rest = self.venv.step_wait()
        self.shown[...] = seen
        return self.shown, *rest


def test_aliased_observations_are_named(tmp_path: Path) -> None:
    setting = Setting(PPO, lambda: Aliased(DummyVecEnv([cart] * ENVS)))
    report = report_of(train(setting, tmp_path))
    assert report["verdict"] == "fail"
    assert report["causes"][0]["name"] == "state-aliased-next"


class OneUpdateLate(PPO):
    """Acts with the weights of before the last update, as a worker that is synchronised too early."""

    late: Any = None

    def collect_rollouts(self, *given: Any, **options: Any) -> bool:
        acting = ActorCriticPolicy(self.observation_space, self.action_space, self.lr_schedule)
        acting.set_training_mode(False)
        newest = copy.deepcopy(self.policy.state_dict())
        acting.load_state_dict(self.late or newest)
        self.late = newest
        learning = self.policy.forward
        self.policy.forward = acting.forward  # type: ignore[method-assign]
        try:
            return super().collect_rollouts(*given, **options)
        finally:
            self.policy.forward = learning  # type: ignore[method-assign]


def test_a_stale_policy_is_named(tmp_path: Path) -> None:
    setting = Setting(OneUpdateLate, SETTINGS["ppo"].envs, rollouts=4)
    report = report_of(train(setting, tmp_path))
    assert report["verdict"] == "fail"
    assert report["causes"][0]["name"] == "stale-policy-version"


class SavedLate(DumpCallback):
    """Saves the actor when the update is done, over the one that acted."""

    def _on_rollout_start(self) -> None:
        super()._on_rollout_start()
        if self.rollouts:
            self._save_again()

    def _on_training_end(self) -> None:
        self._save_again()
        super()._on_training_end()

    def _save_again(self) -> None:
        from bufcheck.trainers import stable_baselines3

        stable_baselines3._save_actor(self.writer, self._model.policy)


def test_an_actor_saved_after_the_update_is_named(tmp_path: Path) -> None:
    dump = SavedLate(tmp_path / "dump")
    with trainers.one_thread():
        made(SETTINGS["ppo"]).learn(ENVS * STEPS * 4, callback=dump)
    report = report_of(dump)
    assert report["verdict"] == "fail"
    assert report["causes"][0]["name"] == "stale-policy-version"


# One dump of several calls, of part of a run, or of one that broke off


class Stops(BaseCallback):
    """Ends training, or breaks it, at some step."""

    def __init__(self, at: int, error: Exception | None = None) -> None:
        super().__init__()
        self.at, self.error = at, error

    def _on_step(self) -> bool:
        if self.n_calls == self.at and self.error:
            raise self.error
        return self.n_calls != self.at


def test_several_calls_in_a_with_block_are_one_dump(tmp_path: Path) -> None:
    model = made(SETTINGS["ppo"])
    with trainers.one_thread(), DumpCallback(tmp_path / "dump") as dump:
        model.learn(ENVS * STEPS, callback=dump)
        # It stops within a rollout, which is not dumped, but whose steps count.
        stop = Stops(STEPS + 100)
        model.learn(2 * ENVS * STEPS, callback=[dump, stop], reset_num_timesteps=False)
        model.learn(ENVS * STEPS, callback=dump, reset_num_timesteps=False)
    report = report_of(dump)
    assert (report["verdict"], failing(report)) == ("pass", {})
    assert report["dump"]["rows"] == 3 * ENVS * STEPS
    columns, _ = columns_of(dump)
    assert columns["timestep"].max() == 24
    assert set(columns["policy_version"]) == {0, 1, 2}


def test_without_one_the_dump_is_closed(tmp_path: Path) -> None:
    model = made(SETTINGS["ppo"])
    dump = DumpCallback(tmp_path / "dump")
    with trainers.one_thread():
        model.learn(ENVS * STEPS, callback=dump)
        assert dump.writer.closed
        with pytest.raises(UsageError, match="was closed when training ended; give each learn"):
            model.learn(ENVS * STEPS, callback=dump, reset_num_timesteps=False)


def test_another_model_gets_a_dump_of_its_own(tmp_path: Path) -> None:
    with trainers.one_thread(), DumpCallback(tmp_path / "dump") as dump:
        made(SETTINGS["ppo"]).learn(ENVS * STEPS, callback=dump)
        with pytest.raises(UsageError, match="rollouts of another model, or of other settings"):
            made(SETTINGS["ppo"], gamma=0.9).learn(ENVS * STEPS, callback=dump)


def test_some_of_the_rollouts(tmp_path: Path) -> None:
    dump = DumpCallback(tmp_path / "dump", every=3)
    with trainers.one_thread():
        made(SETTINGS["a2c"]).learn(ENVS * 5 * 10, callback=dump)
    report = report_of(dump)
    assert (report["verdict"], failing(report)) == ("pass", {})
    columns, _ = columns_of(dump)
    assert set(columns["policy_version"]) == {0, 3, 6, 9}
    assert columns["timestep"].max() > 10  # counted on through what was not dumped


def test_what_breaks_off_is_known_to(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="the environment"), DumpCallback(tmp_path / "dump") as dump:
        stop = Stops(STEPS + 10, OSError("the environment is gone"))
        made(SETTINGS["ppo"]).learn(9 * ENVS * STEPS, callback=CallbackList([dump, stop]))
    report = report_of(dump)
    assert report["dump"]["rows"] == ENVS * STEPS
    assert list(failing(report)) == ["truncated-dump"]


def test_what_breaks_off_without_a_with_block_is_known_to(tmp_path: Path) -> None:
    script = (
        "import torch; torch.set_num_threads(1)\n"
        "from stable_baselines3 import PPO\n"
        "from bufcheck.trainers.stable_baselines3 import DumpCallback\n"
        "class Breaks(DumpCallback):\n"
        "    def _on_step(self):\n"
        "        assert self.n_calls < 300\n"
        "        return super()._on_step()\n"
        "model = PPO('MlpPolicy', 'CartPole-v1', n_steps=256, device='cpu')\n"
        "model.learn(10_000, callback=Breaks('dump'))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert "AssertionError" in done.stderr
    report = bufcheck.validate(
        str(tmp_path / "dump"), actor=str(tmp_path / "dump.actors/actor-{policy_version}.safetensors")
    )
    assert report["dump"]["rows"] == 256
    assert list(failing(report)) == ["truncated-dump"]


# Refused


class Factored(Rooms):
    observation_space = spaces.Box(-1, 1, (3,))
    action_space = spaces.MultiDiscrete([2, 3])

    def _look(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


class Switches(Factored):
    action_space = spaces.MultiBinary(3)


class Parts(Factored):
    observation_space = spaces.Dict({"a": spaces.Box(-1, 1, (3,))})
    action_space = spaces.Discrete(2)

    def _look(self) -> Any:
        return {"a": super()._look()}


class Cooled(ActorCriticPolicy):
    """Has a temperature of its own."""

    def _get_action_dist_from_latent(self, latent_pi: Any) -> Any:
        return self.action_dist.proba_distribution(self.action_net(latent_pi) / 2)


class Residual(BaseFeaturesExtractor):
    """Is no chain of layers."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, 4)
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, seen: Any) -> Any:
        return seen + self.layer(seen)


REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "factored actions": ("MultiDiscrete: a factored policy", lambda: PPO("MlpPolicy", Factored())),
    "binary actions": ("MultiBinary: a factored policy", lambda: PPO("MlpPolicy", Switches())),
    "dict observations": ("a Dict, and a stored state is", lambda: PPO("MultiInputPolicy", Parts())),
    "gSDE": ("gSDE is on", lambda: PPO("MlpPolicy", pendulum(), use_sde=True)),
    "off-policy": ("stores no log-probs", lambda: DQN("MlpPolicy", cart(), learning_starts=9)),
    "own distribution": ("in a way of its own", lambda: PPO(Cooled, cart())),
    "own layers": (
        "add does not follow the layer before it.*--arch",
        lambda: PPO("MlpPolicy", cart(), policy_kwargs={"features_extractor_class": Residual}),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_replayed_is_refused_before_training(name: str, tmp_path: Path) -> None:
    reason, model = REFUSED[name]
    with pytest.raises(UsageError, match=reason) as raised:
        model().learn(10, callback=DumpCallback(tmp_path / "dump"))
    assert raised.value.step
    assert not (tmp_path / "dump").exists()


class Draws(BaseCallback):
    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        next(self.model.rollout_buffer.get(8))  # type: ignore[attr-defined]


def test_a_buffer_that_was_reordered_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="reorders it; put DumpCallback first"):
        made(SETTINGS["a2c"]).learn(100, callback=[Draws(), DumpCallback(tmp_path / "dump")])


def test_options_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="say one of subset, mask"):
        DumpCallback(tmp_path, masks="none")
    with pytest.raises(UsageError, match="every is 0"):
        DumpCallback(tmp_path, every=0)
    with pytest.raises(UsageError, match="nothing is dumped before learn"):
        _ = DumpCallback(tmp_path).actor_pattern


def test_options_of_the_writer_are_passed_on(tmp_path: Path) -> None:
    dump = DumpCallback(tmp_path / "dump.h5", actors=tmp_path / "nets", check="warn")
    with trainers.one_thread():
        made(SETTINGS["a2c"]).learn(ENVS * 5 * 4, callback=dump)
    assert dump.actor_pattern == str(tmp_path / "nets" / "actor-{policy_version}.safetensors")
    assert report_of(dump)["verdict"] == "pass"
