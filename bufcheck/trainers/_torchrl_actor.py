"""TorchRL's actors as networks that can be saved: from observations to logits, or means and spreads.

An actor is a chain of TensorDictModules with a distribution at its end. Its layers are taken out of it,
those of one agent where agents have weights of their own, and what comes out is held against what the
actor itself gives for rows of the batch: what would act otherwise is refused.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from tensordict.nn import (
    AddStateIndependentNormalScale,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from tensordict.nn.utils import biased_softplus, mappings
from torch import distributions, nn
from torchrl import modules
from torchrl.modules.models.utils import SquashDims

from bufcheck.actors._layers import MeanLogStd
from bufcheck.actors.described_layers import in_eval_mode
from bufcheck.errors import UsageError
from bufcheck.trainers._networks import ADVICE, PROBED, Network

ONE_HOT = (
    modules.OneHotCategorical,
    modules.MaskedOneHotCategorical,
    distributions.OneHotCategorical,
)
CATEGORICAL = (distributions.Categorical, modules.MaskedCategorical, *ONE_HOT)


class Family(NamedTuple):
    """What an actor samples from."""

    distribution: str
    one_hot: bool = False
    masked_logit: float | None = None
    low: torch.Tensor | None = None
    high: torch.Tensor | None = None
    """Between which numbers a squashed action lies."""


class Parts(NamedTuple):
    """An actor, taken apart."""

    sees: Any
    """The key of what the first module is fed."""
    chain: list[TensorDictModule]
    head: ProbabilisticTensorDictModule
    params: dict[str, Any]
    """Keys of logits, or of loc and scale, and of a mask, by the name the distribution has for them."""


def apart(actor: Any) -> Parts:
    """The modules in the order they run. What is not one chain cannot be followed."""
    if not isinstance(actor, ProbabilisticTensorDictSequential):
        raise UsageError(
            f"TensorDictDump: the actor is a {type(actor).__name__}, which has no distribution",
            "pass the ProbabilisticActor that acts",
        )
    flat = list(_flat(actor))
    head, chain = flat[-1], flat[:-1]
    if not isinstance(head, ProbabilisticTensorDictModule) or not chain:
        raise UsageError("TensorDictDump: the actor does not end in a distribution", ADVICE)
    for module in chain:
        if not isinstance(module, TensorDictModule) or not isinstance(module.module, nn.Module):
            raise UsageError(f"TensorDictDump: the actor has a {type(module).__name__}", ADVICE)
    if len(chain[0].in_keys) != 1:
        raise UsageError(
            f"TensorDictDump: the actor is fed {told(chain[0].in_keys)}",
            "join observations with torchrl's CatTensors; an actor with a memory cannot be replayed",
        )
    for before, after in itertools.pairwise(chain):
        if list(after.in_keys) != list(before.out_keys):
            raise UsageError(
                f"TensorDictDump: a part of the actor gives {told(before.out_keys)}, and the next one"
                f" takes {told(after.in_keys)}",
                ADVICE,
            )
    names = [key[-1] if isinstance(key, tuple) else key for key in head.dist_keys]
    params = dict(zip(names, head.in_keys, strict=True))
    fed = [key for name, key in params.items() if name != "mask"]
    if fed != list(chain[-1].out_keys) or list(params)[: len(fed)] not in (
        ["logits"],
        ["loc", "scale"],
    ):
        raise UsageError(
            f"TensorDictDump: the distribution is made of {told(head.in_keys)}, expected logits, or loc"
            " and scale, as the network gives them",
            ADVICE,
        )
    return Parts(chain[0].in_keys[0], chain, head, params)


def _flat(module: Any) -> Any:
    if isinstance(module, TensorDictSequential | ProbabilisticTensorDictSequential):
        for part in module.module:
            yield from _flat(part)
    else:
        yield module


def told(keys: Any) -> str:
    return ", ".join(key if isinstance(key, str) else "/".join(key) for key in keys)


# Distributions


def family_of(dist: Any) -> Family:
    kind = type(dist)
    if kind in CATEGORICAL:
        closed = getattr(dist, "neg_inf", -torch.inf)
        if getattr(dist, "_sparse_mask", False):
            raise UsageError("TensorDictDump: MaskedCategorical is given indices", "give it a mask")
        return Family("categorical", kind in ONE_HOT, None if closed == -torch.inf else float(closed))
    if kind is modules.TanhNormal:
        if dist.tanh_loc:
            raise UsageError(
                "TensorDictDump: tanh_loc=True bends the means after the network",
                "end the network with that, and leave tanh_loc off",
            )
        return Family("squashed_gaussian", low=dist.low, high=dist.high)
    inner = dist.base_dist if isinstance(dist, distributions.Independent) else dist
    if kind in (modules.IndependentNormal, distributions.Independent, distributions.Normal) and (
        type(inner) is distributions.Normal
    ):
        return Family("diagonal_gaussian")
    raise UsageError(
        f"TensorDictDump: {kind.__name__} is not a distribution that bufcheck can replay",
        "`bufcheck schema` lists them; factored actions are not among them",
    )


def spread_of(dist: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of the Gaussian within."""
    while hasattr(dist, "base_dist"):
        dist = dist.base_dist
    return dist.loc, dist.scale


# Networks


def is_shared(parts: Parts) -> bool:
    """Whether agents act by the same weights."""
    several = [m for part in parts.chain for m in part.module.modules()]
    if any(isinstance(m, modules.MultiAgentNetBase) and not m.share_params for m in several):
        return False
    return not any(
        isinstance(m, AddStateIndependentNormalScale) and len(m.scale_shape) > 1 for m in several
    )


def network_of(parts: Parts, agent: int) -> Network:
    """The layers that act for one agent, with copies of their weights."""
    layers = [layer for part in parts.chain for layer in _layers(part.module, agent)]
    log_std = None
    if isinstance(layers[-1], AddStateIndependentNormalScale):
        scale: Any = layers.pop()
        kept = scale.state_independent_scale.detach()
        std = mappings(scale.scale_mapping)(kept).clamp_min(scale.scale_lb)
        log_std = (std[agent] if std.ndim > 1 else std).log()
    return Network(nn.Sequential(*layers), log_std)


def _layers(module: Any, agent: int) -> list[nn.Module]:
    if isinstance(module, modules.MultiAgentNetBase):
        return _layers(_of_one(module, agent), agent)
    if type(module) in (nn.Sequential, modules.MLP, modules.ConvNet):
        return [layer for part in module.children() for layer in _layers(part, agent)]
    if type(module) is SquashDims:
        return [nn.Flatten(-module.ndims_in, -1)]
    if type(module) is NormalParamExtractor:
        return [_log_of(module)]
    return [module]


def _of_one(net: Any, agent: int) -> Any:
    """Its own slice of the stacked weights, as a network that stands alone."""
    if net.centralized:
        raise UsageError(
            "TensorDictDump: the actor is centralized: it sees every agent's state", ADVICE
        )
    alone = copy.deepcopy(net._empty_net)
    weights = net.params.data if net.share_params else net.params.data[agent]
    for name, weight in weights.flatten_keys(".").items():
        where, _, last = name.rpartition(".")
        owner = alone.get_submodule(where)
        delattr(owner, last)  # without memory until now
        if weight.is_floating_point():
            owner.register_parameter(last, nn.Parameter(weight.clone()))
        else:
            owner.register_buffer(last, weight.clone())
    return alone


def _log_of(head: NormalParamExtractor) -> MeanLogStd:
    mapping, least = head.scale_mapping, float(head.scale_lb)
    if isinstance(mapping, biased_softplus):
        return MeanLogStd("softplus", float(mapping.bias), float(mapping.min_val), least)
    for name, known in (("exp", "exp"), ("softplus", "softplus"), ("relu", "identity")):
        if mapping is mappings(name):
            return MeanLogStd(known, least=least)
    if mapping is mappings("none"):
        return MeanLogStd("identity", least=least)
    raise UsageError(
        "TensorDictDump: NormalParamExtractor has a scale_mapping that cannot be described",
        "use biased_softplus, softplus, exp, relu or none",
    )


# Proof


def probe(actor: Any, batch: TensorDictBase) -> tuple[TensorDictBase, Any]:
    """What the actor gives for some rows now: its outputs, and the distribution made of them."""
    rows = batch.select(*actor.in_keys).reshape(-1)[:PROBED].clone()
    with torch.no_grad(), in_eval_mode(actor):
        given = actor.get_dist_params(rows)
        return given, actor.build_dist_from_params(given)
