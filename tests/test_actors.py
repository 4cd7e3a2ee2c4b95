"""Checkpoints: what is saved comes back the same, what is damaged or evil is refused in one line."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import random
import subprocess
import sys
import textwrap
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import CAMPAIGN, HEALTHY, ROOT, bufcheck, refused
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F  # noqa: N812

import bufcheck as api
from bufcheck import actor as engine
from bufcheck.actor import Actors, Loading, Network
from bufcheck.actors import described_layers
from bufcheck.actors._layers import LAYERS, MeanLogStd, Normalize
from bufcheck.errors import BufcheckError, ReadError, UsageError
from bufcheck.given import Given, given_as

FLIPS = 2000 if CAMPAIGN else 200


def load(path: Path, **loading: Any) -> Network:
    network = engine.load(str(path), Loading(**loading))
    network.module.eval()
    return network


def save(module: Any, path: Path, **options: Any) -> Path:
    api.save_actor(module, path, **options)
    return path


def refuses(path: Path, **loading: Any) -> str:
    """Asserts one line that names the file."""
    with pytest.raises(ReadError) as caught:
        engine.load(str(path), Loading(**loading))
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    return message


def shaken(module: nn.Module) -> nn.Module:
    """With numbers in it that no constructor gives."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.1)
    return module.eval()


def states(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn((32, *shape), generator=torch.Generator().manual_seed(2)).to(dtype)


def mlp() -> nn.Sequential:
    made = shaken(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)))
    assert isinstance(made, nn.Sequential)
    return made


def same(module: nn.Module, network: Network, given: torch.Tensor) -> bool:
    with torch.no_grad():
        return torch.equal(module.eval()(given), network.module(given))


# save_actor: every layer comes back

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(6, np.int64(4), bias=False), (6,)),  # type: ignore[arg-type]
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, 2, 1, groups=2, padding_mode="circular"), (4, 8)),
    "Conv2d": (lambda: nn.Conv2d(3, 4, (3, 1), padding="same", dilation=2, bias=False), (3, 6, 6)),
    "LayerNorm": (lambda: nn.LayerNorm((2, 3), 1e-2, bias=False), (2, 3)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(5, 1e-2), (5,)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3, affine=False), (3, 4, 4)),
    "Embedding": (lambda: nn.Embedding(7, 3, padding_idx=2), (4,)),
    "Flatten": (lambda: nn.Flatten(2), (2, 3, 4)),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 3)), (6,)),
    "Dropout": (lambda: nn.Dropout(0.9), (5,)),
    "Dropout1d": (lambda: nn.Dropout1d(0.9), (5, 2)),
    "Dropout2d": (lambda: nn.Dropout2d(0.9), (5, 2, 2)),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 2, 1, dilation=2), (2, 9, 9)),
    "AvgPool2d": (lambda: nn.AvgPool2d((2, 3), padding=1), (2, 7, 7)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d((2, None)), (2, 7, 7)),
    "Identity": (nn.Identity, (3,)),
    "ReLU": (nn.ReLU, (3,)),
    "ReLU6": (nn.ReLU6, (3,)),
    "LeakyReLU": (lambda: nn.LeakyReLU(0.3), (3,)),
    "ELU": (lambda: nn.ELU(0.5), (3,)),
    "SELU": (nn.SELU, (3,)),
    "CELU": (lambda: nn.CELU(2.0), (3,)),
    "GELU": (lambda: nn.GELU("tanh"), (3,)),
    "SiLU": (nn.SiLU, (3,)),
    "Mish": (nn.Mish, (3,)),
    "Tanh": (nn.Tanh, (3,)),
    "Sigmoid": (nn.Sigmoid, (3,)),
    "Hardtanh": (lambda: nn.Hardtanh(-0.2, 0.4), (3,)),
    "Hardswish": (nn.Hardswish, (3,)),
    "Hardsigmoid": (nn.Hardsigmoid, (3,)),
    "Softplus": (lambda: nn.Softplus(2.0, 1.0), (3,)),
    "Softsign": (nn.Softsign, (3,)),
    "LogSoftmax": (lambda: nn.LogSoftmax(-1), (3,)),
    "Normalize": (lambda: Normalize([3], 0.1, 0.5), (3,)),
    "MeanLogStd": (lambda: MeanLogStd("softplus", 0.5, 0.01, 1e-4), (6,)),
}


def test_every_layer_of_the_list_has_a_case() -> None:
    assert set(CASES) == set(LAYERS)


@pytest.mark.parametrize("kind", sorted(CASES))
def test_every_layer_comes_back_the_same(kind: str, tmp_path: Path) -> None:
    make, shape = CASES[kind]
    layer = shaken(make())
    network = load(save(layer, tmp_path / "a.safetensors", state_shape=shape))
    given = states(shape)
    if kind == "Embedding":
        given = torch.randint(0, 7, (32, *shape), generator=torch.Generator().manual_seed(3))
        assert torch.equal(layer(given), network.module(given.float()))
    assert same(layer, network, given)
    assert (network.kind, network.state_shape) == ("described layers", shape)
    again = load(save(tmp_path / "a.safetensors", tmp_path / "b.safetensors"))
    assert same(layer, again, given)


class Functional(nn.Module):
    """Says activations in every way a forward() can, and runs one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.middle = nn.Sequential(nn.Linear(5, 5), nn.Sequential(nn.ELU(0.3), nn.Linear(5, 5)))
        self.shared = nn.Linear(5, 5)
        self.last = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor, unused: bool = False) -> torch.Tensor:
        x = F.leaky_relu(self.first(x.flatten(1)), 0.2)
        x = self.shared(torch.tanh(self.middle(x)))
        x = F.gelu(self.shared(x.relu()), approximate="tanh")
        x = F.softplus(F.hardtanh(x, -2.0, max_val=2.0), beta=3.0)
        made: torch.Tensor = self.last(torch.flatten(F.elu(x, 0.7), start_dim=1))
        return made


def test_a_module_of_ones_own_comes_back_the_same(tmp_path: Path) -> None:
    module = shaken(Functional())
    network = load(save(module, tmp_path / "a.safetensors", state_shape=(2, 3)))
    assert same(module, network, states((2, 3)))


def test_weights_that_are_tied_come_back_the_same(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    network = load(save(module, tmp_path / "a.safetensors"))
    assert same(module, network, states((4,)))


def test_an_image_actor_comes_back_the_same(tmp_path: Path) -> None:
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    module(states((2, 6, 6)) * 3 + 1)  # running statistics, as training leaves them
    network = load(save(module.eval(), tmp_path / "a.safetensors", state_shape=(2, 6, 6)))
    assert float(network.module[1].running_mean.abs().max()) > 0  # type: ignore[index]
    assert same(module, network, states((2, 6, 6)))
    assert network.notes == ["has 1 BatchNorm2d layer; in eval mode it uses its running statistics"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_precision_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    module = mlp().to(dtype)
    network = load(save(module, tmp_path / "a.safetensors"))
    assert {p.dtype for p in network.module.parameters()} == {dtype}
    assert same(module, network, states((4,), dtype))


def test_weights_that_are_not_numbers_come_back_too(tmp_path: Path) -> None:
    module = mlp()
    module[2].weight.data[0], module[2].weight.data[1] = float("nan"), float("inf")
    network = load(save(module, tmp_path / "a.safetensors"))
    assert torch.isnan(network.module(states((4,)))[:, 0]).all()


@pytest.mark.parametrize(
    "log_std", [[-0.5, 0.25, 0], np.zeros(3), nn.Parameter(torch.ones(1, 3)), [1, 2, 3]]
)
def test_log_std_is_kept(log_std: Any, tmp_path: Path) -> None:
    network = load(save(mlp(), tmp_path / "a.safetensors", log_std=log_std))
    assert network.log_std is not None and not network.log_std.requires_grad
    expected = log_std.detach() if isinstance(log_std, torch.Tensor) else torch.as_tensor(log_std)
    assert network.log_std.tolist() == expected.flatten().tolist()
    again = load(save(tmp_path / "a.safetensors", tmp_path / "b.safetensors"))
    assert again.log_std is not None and torch.equal(again.log_std, network.log_std)


class Statistics:
    mean, var = np.array([1.0, -2.0, 0.5, 3.0]), np.array([4.0, 0.25, 1.0, 9.0])


@pytest.mark.parametrize("mapping", ["exp", "softplus", "identity"])
def test_a_spread_that_depends_on_the_state_is_given_as_its_log(mapping: str) -> None:
    given = states((4,))
    by = {"exp": torch.exp, "softplus": F.softplus, "identity": lambda x: x}[mapping]
    std = by(given[:, 2:] + 0.3)
    found = MeanLogStd(mapping, 0.3, 0.1, 0.2)(given)
    assert torch.equal(found[:, :2], given[:, :2])
    assert torch.allclose(found[:, 2:].exp(), (std + 0.1).clamp_min(0.2))


def test_a_spread_is_made_of_the_second_half(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no halves"):
        save(nn.Sequential(nn.Linear(4, 3), MeanLogStd()), tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="not on the list"):
        MeanLogStd("sin")


def test_a_parameter_that_is_returned_beside_the_output_is_no_layer(tmp_path: Path) -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.log_std = mlp(), nn.Parameter(torch.zeros(3))

        def both(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.net(seen), self.log_std

        def forward(self, seen: torch.Tensor) -> torch.Tensor:
            return self.both(seen)[0]

    policy = Policy().eval()
    assert same(policy, load(save(policy, tmp_path / "a.safetensors")), states((4,)))


class VecNormalizeLike:
    obs_rms, epsilon, clip_obs, norm_obs = Statistics(), np.float64(1e-8), 1.5, True


NORMALIZATION = {"mean": [1.0, -2.0, 0.5, 3.0], "var": [4.0, 0.25, 1.0, 9.0], "clip": 1.5}


@pytest.mark.parametrize("given", [NORMALIZATION, VecNormalizeLike()], ids=["dict", "VecNormalize"])
def test_states_are_normalized_as_the_environment_did(given: Any, tmp_path: Path) -> None:
    module, raw = mlp(), states((4,)) * 3
    network = load(save(module, tmp_path / "a.safetensors", normalization=given))
    scaled = (raw.numpy().astype(np.float64) - Statistics.mean) / np.sqrt(Statistics.var + 1e-8)
    assert (np.abs(scaled) > 1.5).any()
    seen = torch.from_numpy(np.clip(scaled, -1.5, 1.5).astype(np.float32))
    assert torch.equal(module(seen), network.module(raw))


def test_modes_of_the_module_are_left_as_they_were(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Dropout(0.1))
    module.train()
    module[1].eval()
    network = load(save(module, tmp_path / "a.safetensors"))
    assert [m.training for m in module.modules()] == [True, True, False, True, True]
    assert network.notes == [
        "was saved in train mode; it is replayed in eval mode",
        "has 1 BatchNorm1d layer; in eval mode it uses its running statistics",
        "has 2 Dropout layers; in eval mode it drops nothing",
    ]


# save_actor: what it cannot describe


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.layer(x)


class Skips(Residual):
    def forward(self, x: torch.Tensor) -> Any:
        self.layer(x)
        return F.relu(x)


class Branches(Residual):
    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) if x.sum() > 0 else x


class TwoInputs(Residual):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:  # type: ignore[override]
        return self.layer(x)


class GivesTwo(Residual):
    def forward(self, x: torch.Tensor) -> Any:
        x = self.layer(x)
        return x, x


class Scales(Residual):
    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) * 2


class DoubledLinear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        return super().forward(input) * 2


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4))
    module[0].register_forward_hook(lambda *_: torch.zeros(64, 4))
    return module


def with_weight_norm() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))


def with_a_buffer_more() -> nn.Module:
    module = nn.Linear(4, 4)
    module.register_buffer("seen", torch.zeros(3))
    return module


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "residual": (Residual, {}, "does not follow"),
    "skipped layer": (Skips, {}, "does not follow"),
    "control flow": (Branches, {}, "cannot be followed"),
    "two inputs": (TwoInputs, {}, "takes more than a state"),
    "a tuple": (GivesTwo, {}, "returns more than"),
    "arithmetic": (Scales, {}, "forward() calls mul"),
    "a subclass": (lambda: DoubledLinear(4, 4), {}, "does not follow"),
    "another layer": (lambda: nn.Sequential(nn.Bilinear(4, 4, 2)), {}, "is a Bilinear"),
    "a hook": (hooked, {}, "differs by"),
    "computed weights": (with_weight_norm, {}, "save_actor"),
    "a buffer more": (with_a_buffer_more, {}, "cannot be rebuilt"),
    "no layers": (nn.Sequential, {}, "has no layers"),
    "wrong shape": (mlp, {"state_shape": (5,)}, "states of shape [5]"),
    "unknown shape": (lambda: nn.Conv2d(1, 1, 3), {}, "pass state_shape"),
    "half a normalization": (mlp, {"normalization": {"mean": [0.0]}}, "needs mean and var"),
    "two shapes": (mlp, {"normalization": {"mean": [0.0], "var": [1.0, 2.0]}}, "of one shape"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_described_is_refused(case: str, tmp_path: Path) -> None:
    make, options, words = REFUSED[case]
    path, other = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    other.write_bytes(b"precious")
    for target in (path, other):
        with pytest.raises(UsageError, match="save_actor") as caught:
            save(make(), target, **options)
        assert words in str(caught.value)
    assert os.listdir(tmp_path) == ["b.safetensors"]
    assert other.read_bytes() == b"precious"


# Described layers: damage


def described(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    with path.open("rb") as file:
        header = described_layers.header_of(file)
    assert header is not None
    return json.loads(header["__metadata__"][described_layers.KEY]), load_file(path)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return save(mlp(), tmp_path / "good.safetensors", log_std=[0.0, 0.0, 0.0])


def rewritten(good: Path, change: Callable[[Any, dict[str, torch.Tensor]], Any]) -> Path:
    """A file with another description or other tensors; `change` edits both, or returns the text."""
    description, tensors = described(good)
    text = change(description, tensors)
    path = good.with_name("changed.safetensors")
    text = text if isinstance(text, str) else json.dumps(description)
    save_file(tensors, path, {described_layers.KEY: text})
    return path


def layer(i: int, **changes: Any) -> Callable[[Any, Any], None]:
    return lambda description, _: description["layers"][i].update(changes)


def part(**changes: Any) -> Callable[[Any, Any], None]:
    return lambda description, _: description.update(changes)


def tensor(name: str, value: torch.Tensor) -> Callable[[Any, dict[str, torch.Tensor]], None]:
    return lambda _, tensors: tensors.update({name: value})


CHANGES: dict[str, Callable[[Any, dict[str, torch.Tensor]], Any]] = {
    "type os.system": layer(1, type="os.system"),
    "type Sequential": layer(1, type="Sequential"),
    "type __class__": layer(1, type="__class__"),
    "type Chain": layer(1, type="Chain"),
    "type a list": layer(1, type=["Tanh"]),
    "no type": lambda d, _: d["layers"][1].pop("type"),
    "a layer that is a text": lambda d, _: d["layers"].insert(1, "Tanh"),
    "a layer too many": lambda d, _: d["layers"].append(d["layers"][0]),
    "no layers": part(layers=[]),
    "too many layers": lambda d, _: d["layers"].extend([{"type": "Tanh"}] * 20_000),
    "layers of another kind": part(layers={"0": {"type": "Tanh"}}),
    "absurdly wide": layer(0, out_features=10**12),
    "absurdly wide and deep": layer(0, in_features=10**12, out_features=10**12),
    "beyond any integer": layer(0, out_features=10**40),
    "negative": layer(0, out_features=-8),
    "a text for a number": layer(0, out_features="8"),
    "nothing for a number": layer(0, out_features=None),
    "absurd output": lambda d, _: d["layers"].insert(
        1, {"type": "AdaptiveAvgPool2d", "output_size": [10**6, 10**6]}
    ),
    "absurd padding": lambda d, _: d["layers"].insert(
        1, {"type": "AvgPool2d", "kernel_size": 10**9, "stride": 1, "padding": 5 * 10**8}
    ),
    "absurd embedding": lambda d, _: d["layers"].insert(
        0, {"type": "Embedding", "num_embeddings": 10**12, "embedding_dim": 10**3, "padding_idx": None}
    ),
    "absurd normalization": lambda d, _: d["layers"].insert(
        0, {"type": "Normalize", "shape": [10**6] * 2}
    ),
    "an argument of another kind": lambda d, _: d["layers"].insert(
        1, {"type": "LayerNorm", "normalized_shape": [8], "eps": "tiny", "elementwise_affine": False}
    ),
    "layers that do not meet": lambda d, _: d["layers"].insert(1, {"type": "Flatten", "start_dim": 0}),
    "another state shape": part(state_shape=[5]),
    "an absurd state shape": part(state_shape=[10**6, 10**6, 4]),
    "an empty state shape": part(state_shape=[]),
    "a negative state shape": part(state_shape=[-4]),
    "a state shape of texts": part(state_shape=["4"]),
    "no state shape": part(state_shape=None),
    "notes of another kind": part(notes=[{"a": 1}]),
    "no notes": lambda d, _: d.pop("notes"),
    "a format to come": part(format="bufcheck.actor/2"),
    "a format of another kind": part(format=["bufcheck.actor/1"]),
    "no JSON": lambda *_: "{",
    "JSON without end": lambda *_: "[" * 100_000,
    "a list": lambda *_: "[1, 2]",
    "a tensor missing": lambda _, t: t.pop("0.weight"),
    "a tensor too many": tensor("9.weight", torch.zeros(3)),
    "a tensor of another shape": tensor("0.weight", torch.zeros(8, 5)),
    "a tensor of integers": tensor("0.weight", torch.zeros(8, 4, dtype=torch.int32)),
    "a tensor of complex numbers": tensor("0.weight", torch.zeros(8, 4, dtype=torch.complex64)),
    "log_std of integers": tensor("log_std", torch.zeros(3, dtype=torch.int64)),
    "log_std with two axes": tensor("log_std", torch.zeros(3, 3)),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_description_that_does_not_fit_is_refused(case: str, good: Path) -> None:
    message = refuses(rewritten(good, CHANGES[case]))
    assert message.endswith(("save it anew", "update bufcheck"))


@pytest.mark.parametrize("metadata", ["[]", "5", '"bufcheck.actor"', '{"bufcheck.actor": 5}'])
def test_metadata_of_another_kind_is_refused(metadata: str, tmp_path: Path) -> None:
    header = ('{"__metadata__": ' + metadata + "}").encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    refuses(path)


def survives(path: Path, data: bytes) -> None:
    """Loads, or is refused in one line."""
    path.write_bytes(data)
    try:
        engine.load(str(path), Loading())
    except BufcheckError as error:
        assert "\n" not in str(error)


def test_flipped_bits_never_make_a_traceback(good: Path) -> None:
    data = good.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    for seed in range(FLIPS):
        chance = random.Random(seed)
        flipped = bytearray(data)
        for _ in range(chance.choice([1, 1, 8])):
            bit = chance.randrange(8 * (header if seed % 4 else len(data)))
            flipped[bit // 8] ^= 1 << bit % 8
        survives(good.with_name("flipped.safetensors"), bytes(flipped))


@pytest.mark.parametrize("form", ["safetensors", "zip", "legacy"])
def test_a_file_that_is_cut_off_is_refused(form: str, good: Path) -> None:
    data = {"safetensors": good.read_bytes(), "zip": zipped(weights()), "legacy": legacy(weights())}[
        form
    ]
    path = good.with_name("cut")
    for end in sorted({*range(0, 40), *range(0, len(data) - 1, 97), len(data) - 1}):
        path.write_bytes(data[:end])
        message = refuses(path, arch=f"{__file__}:never")
        assert "--arch" not in message


# State dicts


def weights() -> dict[str, torch.Tensor]:
    return {f"body.{name}": value for name, value in mlp().state_dict().items()}


def zipped(held: Any) -> bytes:
    torch.save(held, buffer := io.BytesIO())
    return buffer.getvalue()


def legacy(held: Any) -> bytes:
    torch.save(held, buffer := io.BytesIO(), _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def safetensors(held: Any) -> bytes:
    from safetensors.torch import save

    data: bytes = save(held)
    return data


FACTORIES = """
import torch
from torch import nn
from {helper} import body

print("the user's code may print")

def make(held, strict=True):
    held = held.get("model_state_dict", held)
    held.pop("critic.weight", None)
    module = nn.Module()
    module.body = body()
    module.forward = module.body.forward
    module.load_state_dict({{k: v.clone() for k, v in held.items()}}, strict)
    return module

def forgets(held):
    return body()

def half_loaded(held):
    module = make(held)
    nn.init.orthogonal_(module.body[2].weight)
    return module

def buffered(held):
    module = make(held)
    module.register_buffer("mask", torch.full((7,), 3.0), persistent=False)
    return module

def doubles(held): return make(held).double()
def drops(held): return nn.Sequential(make(held).body, nn.Dropout(0.5))
def on_no_device(held): return make(held).to("meta")
def lazy(held): return nn.Sequential(make(held).body, nn.LazyLinear(3))
def weightless(held): return nn.Tanh()
def nothing(held): make(held)
def a_dict(held): return held
def raises(held): raise KeyError("body\\nlost")
def leaves(held): raise SystemExit("usage: train.py")
class Holder:
    @staticmethod
    def make(held): return make(held)
    text = "no function"
"""


@pytest.fixture
def factories(tmp_path: Path) -> Path:
    """A file of factories, with a module beside it that it imports."""
    helper = f"helper_{abs(hash(tmp_path))}"
    layers = "nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)"
    (tmp_path / f"{helper}.py").write_text(
        f"from torch import nn\ndef body(): return nn.Sequential({layers})\n"
    )
    path = tmp_path / "factories.py"
    path.write_text(FACTORIES.format(helper=helper))
    return path


@pytest.mark.parametrize("form", [zipped, legacy, safetensors])
@pytest.mark.parametrize("name", ["a.pt", "a.pth", "a.safetensors", "checkpoint"])
def test_a_state_dict_is_loaded_by_content(
    form: Callable[[Any], bytes], name: str, tmp_path: Path, factories: Path, capsys: Any
) -> None:
    path, before = tmp_path / name, list(sys.path)
    path.write_bytes(form(weights()))
    network = load(path, arch=f"{factories}:make")
    assert (network.kind, network.notes) == ("state dict", [])
    assert same(mlp(), network, states((4,)))
    assert capsys.readouterr().out == ""
    assert sys.path == before
    assert refuses(path).endswith(
        "a state dict says nothing of its layers; "
        "pass --arch module:factory, or save it with bufcheck.save_actor"
    )


def test_a_module_in_the_current_folder_can_be_named(
    tmp_path: Path, factories: Path, monkeypatch: Any
) -> None:
    package = tmp_path / "mypackage"
    package.mkdir()
    factories.rename(package / "nets.py")
    (tmp_path / "a.pt").write_bytes(zipped(weights()))
    monkeypatch.chdir(tmp_path)
    try:
        for name in ("make", "Holder.make"):
            assert same(mlp(), load(Path("a.pt"), arch=f"mypackage.nets:{name}"), states((4,)))
        message = refused_arch(Path("a.pt"), "mypackage.missing:make")
    finally:
        for name in [name for name in sys.modules if name.startswith("mypackage")]:
            del sys.modules[name]
    assert "no module named mypackage.missing" in message


def test_a_nested_checkpoint_goes_to_the_factory_as_it_is(tmp_path: Path, factories: Path) -> None:
    path = tmp_path / "a.pt"
    moments = [{"exp_avg": torch.ones(2)}, (torch.zeros(5), "text")]
    held = {"model_state_dict": {**weights(), "critic.weight": torch.ones(1, 8)}, "epoch": 3}
    path.write_bytes(zipped({**held, "optimizer": moments}))
    network = load(path, arch=f"{factories}:make")
    assert same(mlp(), network, states((4,)))
    assert network.notes == [
        "leaves tensors of the file unused: "
        "model_state_dict.critic.weight, optimizer.0.exp_avg, optimizer.1.0"
    ]


@pytest.mark.parametrize(
    "factory, note",
    [
        ("doubles", "has weights that were float32 made float64"),
        ("drops", "has 1 Dropout layer; in eval mode it drops nothing"),
        ("buffered", "has buffers that a state dict leaves out, as {arch} made them: mask"),
    ],
)
def test_what_the_factory_did_beside_is_noted(
    factory: str, note: str, tmp_path: Path, factories: Path
) -> None:
    (tmp_path / "a.pt").write_bytes(zipped(weights()))
    arch = f"{factories}:{factory}"
    assert load(tmp_path / "a.pt", arch=arch).notes == [note.format(arch=arch)]


@pytest.mark.parametrize(
    "factory, words",
    [
        (
            "forgets",
            "not in the file: 0.weight [8, 4], 0.bias [8], 2.weight [3, 8] and 1 more; load the",
        ),
        ("half_loaded", "not in the file: body.2.weight [3, 8]; load the"),
        ("on_no_device", "not in the file: body.0.weight"),
        ("weightless", "gives a module without weights"),
        ("lazy", "gives a module that is not finished"),
    ],
)
def test_a_module_without_the_weights_is_refused(
    factory: str, words: str, tmp_path: Path, factories: Path
) -> None:
    (tmp_path / "a.pt").write_bytes(zipped(weights()))
    assert words in refuses(tmp_path / "a.pt", arch=f"{factories}:{factory}")


def refused_arch(path: Path, arch: str) -> str:
    with pytest.raises(UsageError) as caught:
        engine.load(str(path), Loading(arch=arch))
    message = str(caught.value)
    assert message.startswith(f"--arch {arch}: ") and "\n" not in message
    return message


@pytest.mark.parametrize(
    "factory, words",
    [
        ("nothing", "gives NoneType; return a torch module"),
        ("a_dict", "gives dict; return a torch module"),
        ("raises", r"failed (KeyError: 'body\nlost')"),
        ("leaves", "failed (SystemExit: usage: train.py)"),
        ("missing", "has no missing"),
        ("Holder.text", "is no function"),
    ],
)
def test_a_factory_that_fails_is_one_line(
    factory: str, words: str, tmp_path: Path, factories: Path
) -> None:
    (tmp_path / "a.pt").write_bytes(zipped(weights()))
    assert words in refused_arch(tmp_path / "a.pt", f"{factories}:{factory}")


@pytest.mark.parametrize(
    "arch, words",
    [
        ("factory", "names no factory"),
        ("module:", "names no factory"),
        (":factory", "names no factory"),
        ("nowhere.at.all:make", "no module named nowhere"),
        ("json.nowhere:make", "no module named json.nowhere"),
        ("..json:make", "importing ..json failed"),
        ("nowhere/nets.py:make", "no such file"),
        ("nowhere/nets:make", "no such file"),
    ],
)
def test_an_arch_that_leads_nowhere_is_one_line(arch: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(zipped(weights()))
    assert words in refused_arch(tmp_path / "a.pt", arch)


@pytest.mark.parametrize("code", ["import nowhere_at_all", "def f(:", "raise SystemExit(2)", "1 / 0"])
def test_a_file_that_cannot_be_run_is_one_line(code: str, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(zipped(weights()))
    (tmp_path / "broken.py").write_text(code + "\n")
    message = refused_arch(tmp_path / "a.pt", f"{tmp_path / 'broken.py'}:make")
    assert "broken.py failed (" in message


def test_files_that_hold_no_state_dict_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    for data, words in [
        (zipped(mlp()), "holds more than tensors (torch.nn.modules.container.Sequential)"),
        (legacy(mlp()), "holds more than tensors (torch.nn.modules.container.Sequential)"),
        (zipped({"config": Path("x")}), "holds more than tensors (pathlib."),
        (zipped({"epoch": 3}), "holds no tensors"),
        (safetensors({}), "holds no tensors"),
        (pickle.dumps({"epoch": 3}), "no checkpoint that can be read"),
        (b"\x80", "no checkpoint that can be read"),
        (b"PK\x03\x04 and then nothing", "no checkpoint that can be read"),
        (b"hello", "not a checkpoint bufcheck knows"),
        (b"", "not a checkpoint bufcheck knows"),
    ]:
        path.write_bytes(data)
        message = refuses(path)
        assert words in message and "save" in message


def test_absurd_sizes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.zeros(1).expand(10**6, 10**6)}, path)
    assert "more than it can" in refuses(path)
    source = io.BytesIO(zipped({"w": torch.zeros(1 << 20)}))
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            new.writestr(member.filename, old.read(member))
    assert "more than it can" in refuses(path)


def test_flipped_bits_in_state_dicts_never_make_a_traceback(tmp_path: Path, factories: Path) -> None:
    for form in (zipped, legacy):
        data = form(weights())
        for seed in range(FLIPS // 2):
            flipped = bytearray(data)
            bit = random.Random(seed).randrange(8 * len(data))
            flipped[bit // 8] ^= 1 << bit % 8
            survives(tmp_path / "flipped.pt", bytes(flipped))


# Checkpoints that run code (G2)


class Evil:
    """Unpickled, makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.marker,)


class EvilScript(nn.Module):
    """Loaded, makes a file."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self.marker, self.size = marker, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return (self.marker, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.marker, self.training = state[0], state[1]
        self.size = torch.from_file(state[0], True, 4).numel()


def scripted(module: nn.Module) -> bytes:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        torch.jit.save(torch.jit.script(module), buffer := io.BytesIO())
    return buffer.getvalue()


def exported(module: nn.Module, **options: Any) -> bytes:
    program = torch.export.export(module, (torch.zeros(2, 4),), **options)
    torch.export.save(program, buffer := io.BytesIO())
    return buffer.getvalue()


def flexible() -> bytes:
    return exported(mlp(), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))


def with_members(data: bytes, changes: dict[str, bytes]) -> bytes:
    """The zip with other contents in the members whose names end so."""
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(changed, "w") as new:
        for member in old.infolist():
            ends = [content for end, content in changes.items() if member.filename.endswith(end)]
            new.writestr(member.filename, ends[0] if ends else old.read(member))
    return changed.getvalue()


def sb3_like(marker: Path) -> bytes:
    evil = base64.b64encode(pickle.dumps(Evil(marker))).decode()
    data = {"policy_class": {":type:": "<class 'type'>", ":serialized:": evil}}
    with zipfile.ZipFile(buffer := io.BytesIO(), "w") as archive:
        archive.writestr("data", json.dumps(data))
        archive.writestr("policy.pth", zipped(Evil(marker)))
        archive.writestr("pytorch_variables.pth", zipped(Evil(marker)))
    return buffer.getvalue()


def old_pt2(marker: Path) -> bytes:
    """As torch up to 2.7 wrote it."""
    with zipfile.ZipFile(buffer := io.BytesIO(), "w") as archive:
        archive.writestr("version", "8.9")
        archive.writestr("serialized_exported_program.json", "{}")
        for name in ("state_dict", "constants", "example_inputs"):
            archive.writestr(f"serialized_{name}.pt", zipped(Evil(marker)))
    return buffer.getvalue()


def evil_weights(marker: Path) -> bytes:
    """A weight of it said to be pickled."""
    data = flexible()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        name = next(n for n in archive.namelist() if n.endswith("weights_config.json"))
        config = json.loads(archive.read(name))
    config["config"]["0.weight"]["use_pickle"] = True
    changes = {
        "weights_config.json": json.dumps(config).encode(),
        "weights/weight_0": zipped(Evil(marker)),
    }
    return with_members(data, changes)


def disguised(marker: Path) -> bytes:
    """A pickle for torch that is TorchScript for torch.jit."""
    data, changed = zipped(Evil(marker)), io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(changed, "w") as new:
        for member in old.infolist():
            new.writestr(member.filename, old.read(member))
        new.writestr("archive/constants.pkl", pickle.dumps(Evil(marker)))
    return changed.getvalue()


EVIL: dict[str, Callable[[Path], bytes]] = {
    "zip.pt": lambda marker: zipped({"body.0.weight": torch.zeros(1), "x": Evil(marker)}),
    "legacy.pt": lambda marker: legacy({"x": Evil(marker)}),
    "raw.pt": lambda marker: pickle.dumps(Evil(marker), 2),
    "raw.pkl": lambda marker: pickle.dumps(Evil(marker)),
    "text.pkl": lambda marker: pickle.dumps(Evil(marker), 0),
    "raw.safetensors": lambda marker: pickle.dumps(Evil(marker)),
    "zip.safetensors": lambda marker: zipped(Evil(marker)),
    "sb3.zip": sb3_like,
    "disguised.pt": disguised,
    "good.pt2": lambda _: flexible(),
    "inputs.pt2": lambda marker: with_members(
        flexible(), {"sample_inputs/model.pt": zipped(Evil(marker))}
    ),
    "weights.pt2": evil_weights,
    "old.pt2": old_pt2,
    "inputs.pt": lambda marker: with_members(
        flexible(), {"sample_inputs/model.pt": zipped(Evil(marker))}
    ),
    "script.pt": lambda marker: scripted(EvilScript(str(marker))),
    "good-script.pt": lambda _: scripted(mlp()),
}
NEEDS_TRUST = [
    name for name in EVIL if ".pt2" in name or name in ("inputs.pt", "script.pt", "good-script.pt")
]


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


def put(name: str, marker: Path) -> Path:
    path = marker.with_name(name)
    path.write_bytes(EVIL[name](marker))
    assert not marker.exists()
    return path


@pytest.mark.parametrize("name", EVIL)
def test_loading_runs_no_code(name: str, marker: Path, factories: Path) -> None:
    path = put(name, marker)
    for arch in (None, f"{factories}:make"):
        message = refuses(path, arch=arch)
        assert ("--trust-checkpoint-code" in message) == (name in NEEDS_TRUST or name == "disguised.pt")
    assert not marker.exists()


@pytest.mark.parametrize(
    "name", ["zip.pt", "raw.pkl", "sb3.zip", "disguised.pt", "inputs.pt2", "script.pt"]
)
def test_validate_runs_no_code(name: str, marker: Path) -> None:
    path = put(name, marker)
    assert str(path) in refused(bufcheck("validate", HEALTHY, "--actor", path))
    assert not marker.exists()


@pytest.mark.parametrize("name", ["inputs.pt2", "weights.pt2", "script.pt"])
def test_the_evil_files_are_evil(name: str, marker: Path) -> None:
    """Or refusing them would prove nothing."""
    path = put(name, marker)
    try:
        engine.load(str(path), Loading(trust_code=True))
    except ReadError as error:
        assert "\n" not in str(error)
    assert marker.exists()


@pytest.mark.parametrize("name", ["zip.pt", "legacy.pt", "zip.safetensors"])
def test_the_evil_pickles_are_evil(name: str, marker: Path) -> None:
    torch.load(io.BytesIO(put(name, marker).read_bytes()), weights_only=False)
    assert marker.exists()


def test_the_environment_cannot_make_loading_unsafe(marker: Path, factories: Path) -> None:
    paths = [str(put(name, marker)) for name in EVIL]
    code = """
        import sys
        from bufcheck import actor, errors
        arch, *paths = sys.argv[1:]
        for path in paths:
            try:
                actor.load(path, actor.Loading(arch=arch))
            except errors.ReadError as error:
                print("refused", error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), f"{factories}:make", *paths],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert [line[:7] for line in done.stdout.splitlines()] == ["refused"] * len(paths)
    assert not marker.exists()


# With trust


def test_an_exported_program_that_is_trusted_acts_the_same(tmp_path: Path) -> None:
    for name in ("a.pt2", "a.pt"):
        (tmp_path / name).write_bytes(flexible())
        network = load(tmp_path / name, trust_code=True)
        assert network.kind == "exported program"
        assert not network.module.train().training
        assert torch.allclose(mlp()(states((4,))), network.module(states((4,))), atol=1e-6)
        assert sum(p.numel() for p in network.module.parameters()) == 67
        assert network.module.to("cpu", torch.float64)(states((4,)).double()).dtype == torch.float64


def test_a_program_exported_for_one_batch_size_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    path.write_bytes(exported(mlp()))
    network = load(path, trust_code=True)
    with pytest.raises(ReadError, match=r"does not take .* states .*dynamic_shapes"):
        network.module(states((4,)))


def test_a_script_that_is_trusted_acts_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    for module, notes in [
        (mlp(), []),
        (mlp().train(), ["was saved in train mode; it is replayed in eval mode"]),
    ]:
        path.write_bytes(scripted(module))
        network = load(path, trust_code=True)
        assert (network.kind, network.notes) == ("TorchScript", notes)
        assert torch.allclose(mlp()(states((4,))), network.module(states((4,))), atol=1e-6)


def test_a_frozen_script_that_is_trusted_acts_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        torch.jit.save(torch.jit.freeze(torch.jit.script(mlp())), path)
    network = Actors([Given(None, None, str(path))], Loading(trust_code=True))
    module = network.network(network._actor(str(path))).module
    assert torch.allclose(mlp()(states((4,))), module(states((4,))), atol=1e-6)


@pytest.mark.parametrize("name", ["good.pt2", "good-script.pt"])
def test_damage_in_what_is_trusted_is_one_line(name: str, marker: Path, capfd: Any) -> None:
    """Only cuts: what a flipped bit does in torch's own readers is beyond us, and takes trust."""
    path = put(name, marker)
    data = path.read_bytes()
    for end in (100, len(data) // 2, len(data) - 30):
        path.write_bytes(data[:end])
        refuses(path, trust_code=True)
    ends = {"models/model.json": b"{}", "code/__torch__/torch/nn/modules/container.py": b"def"}
    path.write_bytes(with_members(data, ends))
    assert "cannot be loaded (" in refuses(path, trust_code=True)
    assert capfd.readouterr().err == ""


# Which actor for which rows


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Any) -> Path:
    """Files named as below, and we are in their folder."""
    monkeypatch.chdir(tmp_path)
    for name in [
        *("a.pt", "b.pt", "c.pt", "x=y.pt", "EDU=a.pt", "{odd.pt", "outside.pt"),
        *("ckpt/EDU-3.pt", "ckpt/EDU-4.pt", "ckpt/IND-3.pt", "ckpt/in=1/EDU.pt"),
        *("ckpt/EDU/actor.pt", "ckpt/{policy_version}-3.pt", "ckpt/5.pt", "actor.pt"),
    ]:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    return tmp_path


def found(given: Any, agent: str | None, version: int | None) -> str | None:
    actor = Actors(given_as(given)).find(agent, version)
    return actor.path if actor else None


@pytest.mark.parametrize(
    "given, agent, version, path",
    [
        ("a.pt", "EDU", 3, "a.pt"),
        ("a.pt", None, None, "a.pt"),
        ("EDU=b.pt", "EDU", 3, "b.pt"),
        ("EDU=b.pt", "IND", 3, None),
        ("EDU=b.pt", None, None, None),
        ("EDU@3=b.pt", "EDU", 3, "b.pt"),
        ("EDU@3=b.pt", "EDU", 4, None),
        ("EDU@3=b.pt", "EDU", None, None),
        ("EDU@-1=b.pt", "EDU", -1, "b.pt"),
        ("x=y.pt", "EDU", 3, "x=y.pt"),
        ("EDU=x=y.pt", "EDU", 3, "x=y.pt"),
        ("EDU=a.pt", "IND", 3, "EDU=a.pt"),  # a file of that name is there
        ("team@home=b.pt", "team@home", 3, "b.pt"),
        ("team@home@3=b.pt", "team@home", 3, "b.pt"),
        ("team@home@3=b.pt", "team@home", 4, None),
        ("{odd.pt", "EDU", 3, "{odd.pt"),
        ("ckpt/{agent_id}-{policy_version}.pt", "EDU", 3, "ckpt/EDU-3.pt"),
        ("ckpt/{agent_id}-{policy_version}.pt", "EDU", 5, None),
        ("ckpt/{agent_id}-{policy_version}.pt", "EDU", None, None),
        ("ckpt/{agent_id}-{policy_version}.pt", None, 3, None),
        ("ckpt/{agent_id}-{policy_version}.pt", "{policy_version}", 3, "ckpt/{policy_version}-3.pt"),
        ("EDU=ckpt/{agent_id}-{policy_version}.pt", "EDU", 4, "ckpt/EDU-4.pt"),
        ("EDU=ckpt/{agent_id}-{policy_version}.pt", "IND", 3, None),
        ("ckpt/in=1/{agent_id}.pt", "EDU", 3, "ckpt/in=1/EDU.pt"),
        ("ckpt/{policy_version}.pt", "EDU", 5, "ckpt/5.pt"),
        (Path("a.pt"), "EDU", 3, "a.pt"),
        (Path("x=y.pt"), "EDU", 3, "x=y.pt"),
        ({"EDU": "a.pt", ("EDU", 3): Path("b.pt"), None: "c.pt"}, "EDU", 3, "b.pt"),
        ({"EDU": "a.pt", ("EDU", 3): Path("b.pt"), None: "c.pt"}, "EDU", 4, "a.pt"),
        ({"EDU": "a.pt", ("EDU", 3): Path("b.pt"), None: "c.pt"}, "IND", 3, "c.pt"),
        ({"x=y": "a.pt"}, "x=y", 3, "a.pt"),
    ],
)
def test_the_actor_of_an_agent(
    given: Any, agent: str | None, version: int | None, path: str | None, folder: Path
) -> None:
    assert found(given, agent, version) == path


def test_the_most_specific_actor_wins_in_any_order(folder: Path) -> None:
    given = ["c.pt", "ckpt/{agent_id}-{policy_version}.pt", "EDU=a.pt", "EDU@3=b.pt"]
    Path("EDU=a.pt").unlink()
    for order in (given, given[::-1], given[2:] + given[:2]):
        assert found(order, "EDU", 3) == "b.pt"
        assert found(order, "EDU", 4) == "a.pt"
        assert found(order, "IND", 3) == "ckpt/IND-3.pt"
        assert found(order, "IND", 9) == "c.pt"
        assert found(order, None, None) == "c.pt"
    assert found(["EDU=a.pt", "EDU=ckpt/{agent_id}-{policy_version}.pt"], "EDU", 3) == "ckpt/EDU-3.pt"
    assert found(["EDU=a.pt", "EDU=ckpt/{agent_id}-{policy_version}.pt"], "EDU", 5) == "a.pt"


@pytest.mark.parametrize(
    "agent", ["..", "../outside", "/etc/passwd", "a/../..", ".", "", "..\\x", "EDU\0", "x" * 5000, "~"]
)
@pytest.mark.parametrize(
    "pattern",
    [
        "ckpt/{agent_id}/actor.pt",
        "ckpt/{agent_id}.pt",
        "{agent_id}",
        "ckpt/{agent_id}{agent_id}/actor.pt",
    ],
)
def test_a_name_in_the_dump_leads_nowhere_else(agent: str, pattern: str, folder: Path) -> None:
    assert found(pattern, agent, 3) is None
    assert found("ckpt/{agent_id}/actor.pt", "EDU", 3) == "ckpt/EDU/actor.pt"


@pytest.mark.parametrize(
    "given, words",
    [
        ([], "no actor is given"),
        ({}, "no actor is given"),
        (["a.pt", "b.pt"], "two actors are given for every agent"),
        (["EDU=b.pt", "EDU=c.pt"], "two actors are given for EDU"),
        (["EDU@3=b.pt", "EDU@3=c.pt"], "two actors are given for EDU"),
        ("ckpt", "ckpt: is a folder; name a file, or a pattern"),
        ("EDU=ckpt", "ckpt: is a folder"),
        (
            "nowhere.pt",
            "nowhere.pt: no such actor; --actor takes PATH, AGENT=PATH or AGENT@VERSION=PATH",
        ),
        ("EDU=nowhere.pt", "nowhere.pt: no such actor"),
        ("x" * 5000, "no such actor"),
        ("/dev/zero", "no such actor"),
        (Path("nowhere.pt"), "nowhere.pt: no such actor"),
        ({"EDU": "nowhere.pt"}, "nowhere.pt: no such actor"),
        (5, "a int is no actor"),
        ({"EDU": None}, "a NoneType is no actor"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: Any, words: str, folder: Path) -> None:
    with pytest.raises(BufcheckError) as caught:
        given_as(given)
    assert words in str(caught.value)


def test_rows_of_one_file_share_an_actor(folder: Path) -> None:
    actors = Actors(given_as(["GOV=a.pt", "IND=a.pt", "b.pt"]))
    assert not actors.is_one_for_all
    first, second = actors.find("GOV", 3), actors.find("IND", 4)
    assert first is second and first is not None and first.sha256 is not None
    assert actors.find("EDU", 1) is not first
    assert [actor.path for actor in actors.used] == ["a.pt", "b.pt"]
    assert Actors(given_as("a.pt")).is_one_for_all
    assert not Actors(given_as("ckpt/{agent_id}.pt")).is_one_for_all


def test_a_module_can_be_given_and_is_left_alone() -> None:
    module = mlp().train()
    for given in (module, [module], {"EDU": module}):
        actors = Actors(given_as(given))
        actor = actors.find("EDU", 3)
        assert actor is not None and (actor.path, actor.sha256) == ("<Sequential>", None)
        network = actors.network(actor)
        network.module.to(torch.float64)
        assert actor.kind == "module"
        assert actor.notes == ["was saved in train mode; it is replayed in eval mode"]
    assert all(p.requires_grad and p.dtype == torch.float32 for p in module.parameters())
    assert all(part.training for part in module.modules())


def test_networks_are_let_go_of_and_loaded_again(tmp_path: Path, monkeypatch: Any) -> None:
    loads: list[str] = []
    whole = engine.load

    def counted(source: str, loading: Loading) -> Network:
        loads.append(Path(source).stem)
        return whole(source, loading)

    monkeypatch.setattr(engine, "load", counted)
    for name in "abc":
        save(mlp(), tmp_path / f"{name}.safetensors")
    actors = Actors(given_as(str(tmp_path / "{agent_id}.safetensors")))

    def use(name: str) -> Network:
        actor = actors.find(name, None)
        assert actor is not None
        return actors.network(actor)

    size = use("a").nbytes
    assert size == 67 * 4
    for name in "abcabc":
        use(name)
    assert loads == ["a", "b", "c"]
    monkeypatch.setattr(engine, "MOST_BYTES_LOADED", 2 * size)
    save(mlp(), tmp_path / "d.safetensors")
    use("a")
    use("d")  # lets go of b, then c: a was used since
    assert len(actors._loaded) == 2
    use("a")
    assert loads == ["a", "b", "c", "d"]
    assert same(mlp(), use("b"), states((4,)))
    assert loads == ["a", "b", "c", "d", "b"]
    monkeypatch.setattr(engine, "MOST_BYTES_LOADED", 1)
    use("c")
    assert len(actors._loaded) == 1  # never none
