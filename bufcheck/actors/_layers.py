"""The closed list of layers that a described actor may be made of, and how each is made again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from bufcheck.actors._shapes import after

MOST_LAYERS = 10_000
MOST_NUMBERS = 1 << 26
"""A layer that makes more of one state is taken for damage."""

# What a layer's constructor is given: attributes of the layer by the same names. `bias` is whether
# there is one; the weights themselves travel as tensors.
LAYERS: dict[str, tuple[str, ...]] = {
    "Linear": ("in_features", "out_features", "bias"),
    "Conv1d": (
        "in_channels",
        "out_channels",
        "kernel_size",
        "stride",
        "padding",
        "dilation",
        "groups",
        "bias",
        "padding_mode",
    ),
    "LayerNorm": ("normalized_shape", "eps", "elementwise_affine", "bias"),
    "BatchNorm1d": ("num_features", "eps", "momentum", "affine", "track_running_stats"),
    "Embedding": ("num_embeddings", "embedding_dim", "padding_idx"),
    "Flatten": ("start_dim", "end_dim"),
    "Unflatten": ("dim", "unflattened_size"),
    "Dropout": ("p",),
    "MaxPool2d": ("kernel_size", "stride", "padding", "dilation"),
    "AvgPool2d": ("kernel_size", "stride", "padding"),
    "AdaptiveAvgPool2d": ("output_size",),
    "Identity": (),
    "ReLU": (),
    "ReLU6": (),
    "LeakyReLU": ("negative_slope",),
    "ELU": ("alpha",),
    "SELU": (),
    "CELU": ("alpha",),
    "GELU": ("approximate",),
    "SiLU": (),
    "Mish": (),
    "Tanh": (),
    "Sigmoid": (),
    "Hardtanh": ("min_val", "max_val"),
    "Hardswish": (),
    "Hardsigmoid": (),
    "Softplus": ("beta", "threshold"),
    "Softsign": (),
    "LogSoftmax": ("dim",),
    "Normalize": ("shape", "epsilon", "clip"),
    "MeanLogStd": ("mapping", "shift", "offset", "least"),
}
LAYERS["Conv2d"] = LAYERS["Conv1d"]
LAYERS["BatchNorm2d"] = LAYERS["BatchNorm1d"]
LAYERS["Dropout1d"] = LAYERS["Dropout2d"] = LAYERS["Dropout"]


class Chain(torch.nn.Sequential):
    """Layers in a row. States are stored as numbers with a point; an Embedding wants ids."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        for layer in self:
            states = layer(states.long() if isinstance(layer, torch.nn.Embedding) else states)
        return states


class Normalize(torch.nn.Module):
    """(x − mean) / √(var + epsilon), clipped: what VecNormalize does before the actor sees a state."""

    mean: torch.Tensor
    var: torch.Tensor

    def __init__(self, shape: list[int], epsilon: float = 0.0, clip: float | None = None) -> None:
        super().__init__()
        self.shape, self.epsilon, self.clip = shape, epsilon, clip
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        # In float64, as NumPy does it, whatever precision the network has.
        mean, var = self.mean.double(), self.var.double()
        scaled = (states.double() - mean) / torch.sqrt(var + self.epsilon)
        if self.clip is not None:
            scaled = scaled.clamp(-self.clip, self.clip)
        return scaled.to(states.dtype)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """A change of precision is for the network; the statistics keep theirs."""
        mean, var = self.mean, self.var
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.mean, self.var = mean.to(self.mean.device), var.to(self.var.device)
        return self


def by_255() -> Normalize:
    """What Stable-Baselines3 does to images before a network sees them."""
    layer = Normalize([])
    layer.load_state_dict({"mean": torch.tensor(0.0), "var": torch.tensor(255.0**2)})
    return layer


class MeanLogStd(torch.nn.Module):
    """The end of a Gaussian whose spread depends on the state: means, then what spreads are made of.

    The second half x becomes log max(least, offset + f(x + shift)); f is exp, softplus or the identity.
    """

    MAPPINGS: ClassVar[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
        "exp": torch.exp,
        "softplus": torch.nn.functional.softplus,
        "identity": torch.nn.Identity(),
    }

    def __init__(
        self, mapping: str = "exp", shift: float = 0.0, offset: float = 0.0, least: float = 0.0
    ) -> None:
        super().__init__()
        if mapping not in self.MAPPINGS:
            raise ValueError(f"a spread by {str(mapping)[:40]!r} is not on the list")
        self.mapping = mapping
        self.shift, self.offset, self.least = float(shift), float(offset), float(least)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        mean, told = states.chunk(2, -1)
        std = self.MAPPINGS[self.mapping](told + self.shift) + self.offset
        return torch.cat([mean, std.clamp_min(self.least).log()], -1)


OWN: dict[str, type[torch.nn.Module]] = {"Normalize": Normalize, "MeanLogStd": MeanLogStd}
"""Layers of the list that torch.nn has not."""


def is_known(module: torch.nn.Module) -> bool:
    """Exactly one of the list: a subclass may do anything."""
    kind = type(module)
    return kind in OWN.values() or (
        kind.__name__ in LAYERS and kind is getattr(torch.nn, kind.__name__, None)
    )


def arguments_of(module: torch.nn.Module) -> dict[str, Any]:
    found = {}
    for name in LAYERS[type(module).__name__]:
        value = getattr(module, name)
        found[name] = (value is not None) if name == "bias" else _told(value)
    return found


def _told(value: Any) -> Any:
    """As JSON has it: sizes may be NumPy's, as an action space's `n` is."""
    if isinstance(value, (tuple, list)):
        return [_told(part) for part in value]
    return value.item() if hasattr(value, "item") else value


def rebuild(
    layers: list[dict[str, Any]], tensors: dict[str, torch.Tensor], shape: Sequence[int]
) -> Chain:
    """The layers with those weights in them, once they are seen to fit each other and a state."""
    if len(layers) > MOST_LAYERS:
        raise ValueError(f"{len(layers)} layers, at most {MOST_LAYERS} are meant")
    # On the device without memory, a layer of any size costs nothing until its weights are there.
    with torch.device("meta"):
        chain = Chain(*(build(layer, tensors.get(f"{i}.weight")) for i, layer in enumerate(layers)))
    reached = tuple(shape)
    for i, layer in enumerate(chain.eval()):
        reached = after(layer, reached)
        if math.prod(reached) > MOST_NUMBERS:
            raise ValueError(f"layer {i} gives {math.prod(reached)} numbers for one state")
    for name, expected in chain.state_dict().items():
        given = tensors.get(name, expected)
        if given.is_floating_point() != expected.is_floating_point():
            raise ValueError(f"{name} is {given.dtype}")
    chain.load_state_dict(tensors, assign=True)
    return chain


def build(layer: dict[str, Any], weight: torch.Tensor | None) -> torch.nn.Module:
    """The layer that a description names; its weights are filled in afterwards."""
    kind = layer["type"]
    if kind not in LAYERS:
        raise ValueError(f"a layer of type {kind!r} is not on the list")
    arguments = {name: _plain(layer[name]) for name in LAYERS[kind] if name in layer}
    if kind == "Embedding":  # given one, it does not draw weights: that is slow without memory
        arguments["_weight"] = weight
    made: torch.nn.Module = (OWN.get(kind) or getattr(torch.nn, kind))(**arguments)
    return made


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
