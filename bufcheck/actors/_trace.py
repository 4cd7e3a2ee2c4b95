"""Finds the chain of layers a module runs its input through."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from bufcheck.actors._layers import Chain, is_known
from bufcheck.errors import UsageError

# What a forward() may say in place of a layer, and the layer it means.
_FUNCTIONS: dict[Any, str] = {
    functional.relu: "ReLU",
    torch.relu: "ReLU",
    functional.relu6: "ReLU6",
    functional.leaky_relu: "LeakyReLU",
    functional.elu: "ELU",
    functional.selu: "SELU",
    functional.gelu: "GELU",
    functional.silu: "SiLU",
    functional.mish: "Mish",
    functional.tanh: "Tanh",
    torch.tanh: "Tanh",
    functional.sigmoid: "Sigmoid",
    torch.sigmoid: "Sigmoid",
    functional.softplus: "Softplus",
    functional.softsign: "Softsign",
    functional.hardtanh: "Hardtanh",
    functional.hardswish: "Hardswish",
    torch.flatten: "Flatten",
}
_METHODS = {"relu": "ReLU", "tanh": "Tanh", "sigmoid": "Sigmoid", "flatten": "Flatten"}
_ARGUMENTS = {
    "LeakyReLU": ("negative_slope",),
    "ELU": ("alpha",),
    "GELU": ("approximate",),
    "Softplus": ("beta", "threshold"),
    "Hardtanh": ("min_val", "max_val"),
    "Flatten": ("start_dim", "end_dim"),
}
_ADVICE = "save its state_dict and validate with --arch"


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return is_known(m) or super().is_leaf_module(m, module_qualified_name)


def chain(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Copies of the layers, in the order the input goes through them."""
    if is_known(module):
        return [_copied(module)]
    if type(module) is Chain:  # was described before
        return [_copied(layer) for layer in module]
    try:
        graph = _Tracer().trace(module)
    except Exception as error:  # whatever the module's own code raises under tracing
        detail = " ".join(str(error).split())[:160]
        raise UsageError(f"save_actor: forward() cannot be followed ({detail})", _ADVICE) from None
    layers: list[torch.nn.Module] = []
    at: fx.Node | None = None
    for node in graph.nodes:
        if node.op == "output":
            if node.args != (at,):
                raise UsageError(
                    "save_actor: forward() returns more than the last layer gives", _ADVICE
                )
        elif node.op == "placeholder":
            if at is not None and not node.args:
                raise UsageError("save_actor: forward() takes more than a state", _ADVICE)
            at = at or node
        elif node.op == "get_attr" and not node.users:
            continue  # looked at, and not used: a parameter that is returned beside the output
        elif node.all_input_nodes != [at]:
            raise UsageError(f"save_actor: {node.name} does not follow the layer before it", _ADVICE)
        else:
            layers.append(_layer(node, module))
            at = node
    return layers


def _copied(layer: torch.nn.Module) -> torch.nn.Module:
    try:
        return copy.deepcopy(layer)
    except RuntimeError:  # its weights are computed anew at every call, as weight_norm does
        raise UsageError(
            f"save_actor: a {type(layer).__name__} has weights that are computed, not stored", _ADVICE
        ) from None


def _layer(node: fx.Node, module: torch.nn.Module) -> torch.nn.Module:
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        if is_known(layer):
            return _copied(layer)
        raise UsageError(
            f"save_actor: {node.target} is a {type(layer).__name__}, which is not described", _ADVICE
        )
    names = {"call_function": _FUNCTIONS, "call_method": _METHODS}.get(node.op, {})
    kind = names.get(node.target)
    if kind is None:
        what = getattr(node.target, "__name__", node.target)
        raise UsageError(f"save_actor: forward() calls {what}, which is not described", _ADVICE)
    given = dict(zip(_ARGUMENTS.get(kind, ()), node.args[1:], strict=False))
    given |= {k: v for k, v in node.kwargs.items() if k in _ARGUMENTS.get(kind, ())}
    if kind == "Flatten":
        given = {"start_dim": 0, "end_dim": -1} | given  # the function's defaults, not the layer's
    made: torch.nn.Module = getattr(torch.nn, kind)(**given)
    return made
