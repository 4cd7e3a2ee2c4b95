"""Real saved models of Stable-Baselines3, read without it, against what their own policies compute."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from conftest import CAMPAIGN
from gymnasium import spaces
from sb3_contrib import TRPO, MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from bufcheck.actor import Loading, Network, load
from bufcheck.actors import described_layers
from bufcheck.errors import ReadError

pytestmark = [
    # The environments here sample from their spaces, and SB3 comments on spaces and batch sizes.
    pytest.mark.filterwarnings("ignore::UserWarning:stable_baselines3.*"),
    pytest.mark.filterwarnings("ignore::UserWarning:sb3_contrib.*"),
    pytest.mark.filterwarnings("ignore::UserWarning:gymnasium.*"),
]

VECTOR = spaces.Box(-1, 1, (4,))
MATRIX = spaces.Box(-1, 1, (2, 3))
IMAGE = spaces.Box(0, 255, (48, 44, 3), np.uint8)
SMALL_IMAGE = spaces.Box(0, 255, (4, 5, 3), np.uint8)
DARK = spaces.Box(0, 200, (4, 5, 3), np.uint8)
FLOATS = spaces.Box(0, 1, (2, 36, 40))
BITS = spaces.MultiBinary(5)
FIVE = spaces.Discrete(5)
REACH = spaces.Box(-2, 2, (3,))
TABLE = spaces.Box(-2, 2, (2, 2))


class Spaces(gymnasium.Env[Any, Any]):
    """Has these spaces, and does nothing."""

    observation_space: Any
    action_space: Any

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}

    def action_masks(self) -> np.ndarray[Any, Any]:
        return np.ones(self.action_space.n, bool)


class OwnExtractor(BaseFeaturesExtractor):
    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, 4)

    def forward(self, states: Any) -> Any:
        return states * 2


class OwnPolicy(ActorCriticPolicy): ...


class OwnReLU(torch.nn.ReLU): ...


def saved(
    path: Path,
    algorithm: Any = PPO,
    states: Any = VECTOR,
    actions: Any = FIVE,
    policy: Any = "MlpPolicy",
    **options: Any,
) -> Any:
    """A model with weights far from their start, and its zip at `path`."""
    torch.manual_seed(3)
    rollout = {"n_steps": 8} if algorithm in (PPO, A2C, TRPO, MaskablePPO, RecurrentPPO) else {}
    kwargs = {"policy_kwargs": options} if options else {}
    model = algorithm(policy, Spaces(states, actions), device="cpu", **rollout, **kwargs)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            fan_in = parameter[0].numel()
            parameter += torch.randn_like(parameter) / max(4, fan_in) ** 0.5
    model.save(path)
    return model


def loaded(path: Path) -> Network:
    network = load(str(path), Loading())
    network.module.eval()
    return network


def observations(model: Any, rows: int = 64) -> Any:
    """As the policy sees them, its images already channel-first."""
    space = model.observation_space
    space.seed(5)
    return np.stack([space.sample() for _ in range(rows)])


ReLU = torch.nn.ReLU
REPLAYED: dict[str, dict[str, Any]] = {
    "defaults": {},
    "a2c": {"algorithm": A2C},
    "trpo": {"algorithm": TRPO},
    "masked": {"algorithm": MaskablePPO},
    "relu": {"activation_fn": ReLU},
    "masked elu": {"algorithm": MaskablePPO, "activation_fn": torch.nn.ELU},
    "gelu": {"activation_fn": torch.nn.GELU, "net_arch": [7]},
    "one size": {"net_arch": [16, 8, 12]},
    "two sizes": {"net_arch": {"pi": [9], "vf": [16, 16]}},
    "no hidden layer": {"net_arch": []},
    "only a critic": {"net_arch": {"vf": [16]}},
    "own extractor each": {"share_features_extractor": False},
    "matrix": {"states": MATRIX},
    "bits": {"states": BITS},
    "flat image": {"states": SMALL_IMAGE},
    "no image: bounds": {"states": DARK},
    "flat image as it is": {"states": SMALL_IMAGE, "normalize_images": False},
    "gaussian": {"actions": REACH},
    "gaussian table": {"actions": TABLE, "net_arch": [8], "log_std_init": -1.0},
    "cnn": {"states": IMAGE, "policy": "CnnPolicy"},
    "cnn, gaussian": {"states": IMAGE, "policy": "CnnPolicy", "actions": REACH},
    "masked cnn": {"algorithm": MaskablePPO, "states": IMAGE, "policy": "CnnPolicy"},
    "cnn each": {"states": IMAGE, "policy": "CnnPolicy", "share_features_extractor": False},
    "cnn and more": {
        "states": IMAGE,
        "policy": "CnnPolicy",
        "net_arch": [16],
        "activation_fn": torch.nn.SiLU,
        "features_extractor_kwargs": {"features_dim": 32},
    },
    "cnn on floats": {"states": FLOATS, "policy": "CnnPolicy", "normalize_images": False},
}


@pytest.mark.parametrize("name", REPLAYED)
def test_gives_what_the_policy_gives(name: str, tmp_path: Path) -> None:
    model = saved(tmp_path / "model.zip", **REPLAYED[name])
    network = loaded(tmp_path / "model.zip")
    seen = observations(model)
    states = torch.as_tensor(seen, dtype=torch.float32)
    assert network.state_shape == seen.shape[1:]
    with torch.no_grad():
        wanted = model.policy.get_distribution(torch.as_tensor(seen)).distribution
        given = network.module(states)
    if network.log_std is None:
        torch.testing.assert_close(given.log_softmax(-1), wanted.logits, rtol=1e-6, atol=1e-6)
    else:
        torch.testing.assert_close(given, wanted.mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(
            network.log_std.exp().expand_as(given), wanted.stddev, rtol=1e-6, atol=1e-6
        )
    assert (network.log_std is None) == isinstance(model.action_space, spaces.Discrete)


@pytest.mark.parametrize("name", REPLAYED)
def test_is_saved_again_as_described_layers(name: str, tmp_path: Path) -> None:
    saved(tmp_path / "model.zip", **REPLAYED[name])
    described_layers.save(tmp_path / "model.zip", tmp_path / "actor.safetensors")
    before, after = loaded(tmp_path / "model.zip"), loaded(tmp_path / "actor.safetensors")
    states = torch.rand(16, *(before.state_shape or ())) * 9
    with torch.no_grad():
        assert torch.equal(before.module(states), after.module(states))
    assert before.state_shape == after.state_shape
    if before.log_std is not None:
        assert after.log_std is not None and torch.equal(before.log_std, after.log_std)


TANH = {"activation_fn": {"value": "Tanh", "source": "Stable-Baselines3's default"}}


@pytest.mark.parametrize(
    ("name", "assumed"),
    [
        ("defaults", {"activation_fn": "Tanh"}),
        ("one size", {"activation_fn": "Tanh"}),
        ("relu", {}),
        ("no hidden layer", {}),
        ("flat image", {"activation_fn": "Tanh", "image_scaling": "state / 255"}),
        ("flat image as it is", {"activation_fn": "Tanh"}),
        ("no image: bounds", {"activation_fn": "Tanh"}),
        ("cnn", {"cnn_stride": [4, 2, 1], "image_scaling": "state / 255"}),
        ("cnn and more", {"cnn_stride": [4, 2, 1], "image_scaling": "state / 255"}),
        ("cnn on floats", {"cnn_stride": [4, 2, 1]}),
    ],
)
def test_says_what_it_assumed(name: str, assumed: dict[str, Any], tmp_path: Path) -> None:
    saved(tmp_path / "model.zip", **REPLAYED[name])
    found = loaded(tmp_path / "model.zip").assumed
    assert {key: entry["value"] for key, entry in found.items()} == assumed
    assert all(entry["source"] for entry in found.values())
    if "activation_fn" in found:
        assert found["activation_fn"] == TANH["activation_fn"]


def test_says_that_statistics_are_missing(tmp_path: Path) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    envs = VecNormalize(DummyVecEnv([lambda: Spaces(VECTOR, FIVE)]))
    model = PPO("MlpPolicy", envs, n_steps=8, batch_size=8, n_epochs=1, device="cpu")
    model.learn(8)
    model.save(tmp_path / "model.zip")
    (note,) = loaded(tmp_path / "model.zip").notes
    assert "VecNormalize" in note


# Refusals

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "recurrent": ({"algorithm": RecurrentPPO, "policy": "MlpLstmPolicy"}, "recurrent"),
    "off-policy q": ({"algorithm": DQN}, "no action_net"),
    "off-policy sac": ({"algorithm": SAC, "actions": REACH}, "no action_net"),
    "off-policy td3": ({"algorithm": TD3, "actions": REACH}, "no action_net"),
    "multi-discrete": ({"actions": spaces.MultiDiscrete([3, 2])}, "MultiDiscrete"),
    "multi-binary": ({"actions": BITS}, "MultiBinary"),
    "dict": (
        {"states": spaces.Dict(a=VECTOR, b=VECTOR), "policy": "MultiInputPolicy"},
        "Dict",
    ),
    "dict with image": (
        {"states": spaces.Dict(a=IMAGE, b=VECTOR), "policy": "MultiInputPolicy"},
        "Dict",
    ),
    "ids as states": ({"states": FIVE}, "one-hot"),
    "several ids as states": ({"states": spaces.MultiDiscrete([3, 2])}, "one-hot"),
    "own extractor": ({"features_extractor_class": OwnExtractor}, "OwnExtractor"),
    "own policy": ({"policy": OwnPolicy}, "policy class"),
    "own activation": ({"activation_fn": OwnReLU}, "OwnReLU"),
    "learnt activation": ({"activation_fn": torch.nn.PReLU}, "policy_net"),
    "activation made by a function": ({"activation_fn": lambda: ReLU()}, "activation_fn"),
}


def refusal(path: Path) -> str:
    with pytest.raises(ReadError) as caught:
        loaded(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    assert caught.value.step
    return message


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_the_reason(name: str, tmp_path: Path) -> None:
    options, reason = REFUSED[name]
    saved(tmp_path / "model.zip", **options)
    assert reason in refusal(tmp_path / "model.zip")


def test_refuses_noise_that_depends_on_the_state(tmp_path: Path) -> None:
    PPO("MlpPolicy", Spaces(VECTOR, REACH), use_sde=True, device="cpu").save(tmp_path / "model.zip")
    assert "gSDE" in refusal(tmp_path / "model.zip")


# Damage and malice


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "model.zip"
    saved(path)
    return path


def rewritten(source: Path, path: Path, **members: bytes | None) -> Path:
    """A copy with other bytes in `data` or `policy_pth`; None leaves the member out."""
    given = {name.replace("_pth", ".pth"): content for name, content in members.items()}
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = given.get(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
    return path


def data_of(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        found: dict[str, Any] = json.loads(archive.read("data"))
    return found


def with_data(source: Path, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    data = data_of(source)
    change(data)
    return rewritten(source, path, data=json.dumps(data).encode())


def with_weights(source: Path, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    with zipfile.ZipFile(source) as archive:
        weights = torch.load(io.BytesIO(archive.read("policy.pth")), weights_only=True)
    change(weights)
    stream = io.BytesIO()
    torch.save(weights, stream)
    return rewritten(source, path, policy_pth=stream.getvalue())


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def as_torch_zip(pickled: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")
    return stream.getvalue()


@pytest.mark.parametrize("packed", [bytes, as_torch_zip])
@pytest.mark.parametrize("forced", [False, True])
def test_a_pickle_for_weights_is_not_run(
    packed: Callable[[bytes], bytes],
    forced: bool,
    plain: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if forced:
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    pickled = packed(pickle.dumps({"action_net.weight": Evil(tmp_path / "ran")}, protocol=2))
    refusal(rewritten(plain, tmp_path / "evil.zip", policy_pth=pickled))
    assert not (tmp_path / "ran").exists()


def test_pickles_in_data_are_not_run(plain: Path, tmp_path: Path) -> None:
    import base64

    evil = base64.b64encode(pickle.dumps(Evil(tmp_path / "ran"))).decode()

    def poison(data: dict[str, Any]) -> None:
        for value in data.values():
            if isinstance(value, dict) and ":serialized:" in value:
                value[":serialized:"] = evil
        data["policy_kwargs"] = {":type:": "<class 'dict'>", ":serialized:": evil}

    path = with_data(plain, tmp_path / "evil.zip", poison)
    assert loaded(path).assumed == TANH
    assert not (tmp_path / "ran").exists()


def test_torchscript_for_weights_is_not_run(plain: Path, tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/constants.pkl", pickle.dumps(()))
        archive.writestr("archive/data.pkl", pickle.dumps({}))
        archive.writestr("archive/version", "3\n")
    refusal(rewritten(plain, tmp_path / "evil.zip", policy_pth=stream.getvalue()))


@pytest.mark.parametrize("name", ["data", "policy.pth"])
def test_a_member_that_claims_too_much_is_not_read(name: str, plain: Path, tmp_path: Path) -> None:
    content = bytearray(plain.read_bytes())
    at = content.rindex(b"PK\x01\x02", 0, content.rindex(name.encode()))
    content[at + 24 : at + 28] = (0xF0000000).to_bytes(4, "little")
    (tmp_path / "bomb.zip").write_bytes(content)
    assert "claims" in refusal(tmp_path / "bomb.zip")


def test_weights_that_unpack_to_too_much_are_not_read(plain: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(plain) as archive:
        content = bytearray(archive.read("policy.pth"))
    at = content.rindex(b"PK\x01\x02")
    content[at + 24 : at + 28] = (0xF0000000).to_bytes(4, "little")
    bomb = rewritten(plain, tmp_path / "bomb.zip", policy_pth=bytes(content))
    assert "claim" in refusal(bomb)


def test_one_number_spread_over_terabytes_is_not_copied(plain: Path, tmp_path: Path) -> None:
    wide = torch.zeros(1).expand(1_000_000, 1_000_000)
    bomb = with_weights(plain, tmp_path / "bomb.zip", lambda w: w.update({"action_net.weight": wide}))
    assert "bytes" in refusal(bomb)


def test_an_unusual_packing_is_refused_and_deflate_is_read(plain: Path, tmp_path: Path) -> None:
    for method, name in ((zipfile.ZIP_LZMA, "lzma.zip"), (zipfile.ZIP_DEFLATED, "deflate.zip")):
        with zipfile.ZipFile(plain) as old, zipfile.ZipFile(tmp_path / name, "w", method) as new:
            for member in old.namelist():
                new.writestr(member, old.read(member))
    assert "packed" in refusal(tmp_path / "lzma.zip")
    loaded(tmp_path / "deflate.zip")


def space(**entries: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["observation_space"].update(entries)


WRONG_DATA: dict[str, Callable[[dict[str, Any]], object]] = {
    "no policy class": lambda d: d.pop("policy_class"),
    "a list for a policy class": lambda d: d["policy_class"].update(__module__=["x"]),
    "a list for an extractor": lambda d: d.update(policy_kwargs={"features_extractor_class": []}),
    "an object for an activation": lambda d: d.update(policy_kwargs={"activation_fn": {"a": "\n"}}),
    "no action space": lambda d: d.pop("action_space"),
    "no observation space": lambda d: d.pop("observation_space"),
    "text for a space": lambda d: d.update(action_space="Discrete"),
    "a number for a type": lambda d: d["action_space"].update({":type:": 3}),
    "another action count": lambda d: d["action_space"].update(n="6"),
    "another state shape": space(_shape=[5]),
    "an enormous state shape": space(_shape=[2**40, 2**40, 2**40]),
    "a state shape past 64 bits": space(_shape=[2**70]),
}


@pytest.mark.parametrize("name", WRONG_DATA)
def test_data_that_does_not_fit(name: str, plain: Path, tmp_path: Path) -> None:
    refusal(with_data(plain, tmp_path / "wrong.zip", WRONG_DATA[name]))


HIDDEN = "mlp_extractor.policy_net.0"
WRONG_WEIGHTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "no head": lambda w: w.pop("action_net.weight"),
    "a hidden layer lost": lambda w: [w.pop(f"{HIDDEN}.{n}") for n in ("weight", "bias")],
    "a hidden layer in an odd place": lambda w: w.update(
        {f"{HIDDEN[:-1]}1.weight": torch.zeros(64, 64)}
    ),
    "a bias of another size": lambda w: w.update({"action_net.bias": torch.zeros(4)}),
    "layers that do not follow": lambda w: w.update({f"{HIDDEN}.weight": torch.zeros(63, 4)}),
    "a spread for logits": lambda w: w.update(log_std=torch.zeros(5)),
    "a layer nobody knows": lambda w: w.update({"mlp_extractor.shared_net.0.weight": torch.zeros(1)}),
    "no numbers": lambda w: w.update({"action_net.weight": torch.zeros(0, 64)}),
    "text": lambda w: w.update({"action_net.weight": "text"}),
    "whole numbers": lambda w: w.update({"action_net.weight": torch.zeros(5, 64, dtype=torch.int64)}),
    "a sparse tensor": lambda w: w.update({"action_net.weight": torch.zeros(5, 64).to_sparse()}),
    "a name with a line break": lambda w: w.update({"a\nb": torch.zeros(1)}),
    "a name of many digits": lambda w: w.update(
        {f"mlp_extractor.policy_net.{'1' * 5000}.weight": torch.zeros(1)}
    ),
}


@pytest.mark.parametrize("name", WRONG_WEIGHTS)
def test_weights_that_do_not_fit(name: str, plain: Path, tmp_path: Path) -> None:
    refusal(with_weights(plain, tmp_path / "wrong.zip", WRONG_WEIGHTS[name]))


@pytest.mark.parametrize(
    "members",
    [
        {"data": b""},
        {"data": b"\xff\xfe{"},
        {"data": b"[]"},
        {"data": b"[" * 200_000},
        {"policy_pth": b""},
        {"policy_pth": b"no weights"},
        {"policy_pth": pickle.dumps([1, 2])},
        {"policy_pth": None},
        {"data": None},
    ],
)
def test_damaged_members(members: dict[str, bytes | None], plain: Path, tmp_path: Path) -> None:
    refusal(rewritten(plain, tmp_path / "damaged.zip", **members))


def test_cut_off_anywhere(plain: Path, tmp_path: Path) -> None:
    content = plain.read_bytes()
    for size in [0, 3, 29, 33, 40, *range(100, len(content), len(content) // 20), len(content) - 1]:
        (tmp_path / "cut.zip").write_bytes(content[:size])
        message = refusal(tmp_path / "cut.zip")
        assert "damaged" in message or size < 34, message


def flipped(content: bytes, chance: random.Random, first: int = 0) -> bytes:
    damaged = bytearray(content)
    for _ in range(chance.choice((1, 1, 4, 32))):
        damaged[chance.randrange(first, len(content))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


@pytest.mark.parametrize("place", ["anywhere", "directory", "data", "policy.pth"])
def test_flipped_bits(place: str, plain: Path, tmp_path: Path) -> None:
    """It loads, or says in one line why not. In a member, its checksum is made right again."""
    content, chance, path = plain.read_bytes(), random.Random(7), tmp_path / "flipped.zip"
    with zipfile.ZipFile(plain) as archive:
        members = {name: archive.read(name) for name in ("data", "policy.pth")}
    for _ in range(1000 if CAMPAIGN else 100):
        if place in members:
            member = place.replace(".", "_")
            rewritten(plain, path, **{member: flipped(members[place], chance)})
        else:
            first = content.rindex(b"PK\x03\x04") if place == "directory" else 0
            path.write_bytes(flipped(content, chance, first))
        try:
            loaded(path)
        except ReadError as error:
            assert "\n" not in str(error)
