"""One forward pass: states through a network, and a clear word where the two do not fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bufcheck.errors import ReadError, UsageError

if TYPE_CHECKING:
    import torch

    from bufcheck.actor import Actor, Network

Output = tuple["torch.Tensor", "torch.Tensor | None"]
"""Logits or means, [B, A], and the log_std of a Gaussian."""
WHOSE = "is this the checkpoint of this dump?"


def precision(policy: Mapping[str, Any]) -> torch.dtype:
    import torch

    return torch.float64 if policy["precision"] == "float64" else torch.float32


def run(actor: Actor, network: Network, states: torch.Tensor, policy: Mapping[str, Any]) -> Output:
    """What a network, already on its device, says to these rows of state_embed."""
    shape = policy["state_shape"] or network.state_shape or [states.shape[1]]
    if math.prod(shape) != states.shape[1]:
        raise ReadError(
            f"{actor.path}: expects states of {math.prod(shape)} numbers ({list(shape)}),"
            f" but state_embed has {states.shape[1]}",
            WHOSE,
        )
    states = states.reshape(-1, *shape)
    try:
        output = network.module(states)
    except Exception as error:  # whatever a module raises that is shown what it was not made for
        raise _mismatch(actor, network, states, error) from None
    return _checked(actor, network, output, len(states), policy)


@contextmanager
def one_thread() -> Iterator[None]:
    """Layers of a usual size are quicker on one thread than shared between several."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _checked(
    actor: Actor, network: Network, output: Any, count: int, policy: Mapping[str, Any]
) -> Output:
    import torch

    log_std = network.log_std
    if isinstance(output, (tuple, list)) and len(output) == 2:
        output, log_std = output
    fits = isinstance(output, torch.Tensor) and output.ndim == 2 and len(output) == count
    if not fits or not (log_std is None or isinstance(log_std, torch.Tensor)):
        wrong = log_std if fits else output
        came = list(wrong.shape) if isinstance(wrong, torch.Tensor) else type(wrong).__name__
        gaussian = policy["distribution"] != "categorical"
        wanted = "tensors mean and log_std, [B, n] each" if gaussian else "a tensor of logits, [B, A]"
        raise ReadError(f"{actor.path}: gives {came} for {count} states", f"it must give {wanted}")
    space = policy["action_space"]
    if policy["distribution"] == "categorical" and space not in (None, output.shape[1]):
        raise ReadError(
            f"{actor.path}: gives {output.shape[1]} logits, but policy.action_space is {space}", WHOSE
        )
    return output, None if log_std is None else log_std.to(output.device)


def usable_device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).cpu()
    except (RuntimeError, AssertionError, ImportError) as error:
        detail = str(error).splitlines()[0][:120]
        raise UsageError(
            f"--device {name} cannot be used here ({detail})", "say --device cpu"
        ) from None
    return name


def _mismatch(actor: Actor, network: Network, states: torch.Tensor, error: Exception) -> ReadError:
    """Which layer it was that would not take what it was given."""
    import torch

    entered: list[tuple[str, Any, Any]] = []

    def note(name: str, layer: Any) -> Any:
        return lambda _, given: entered.append((name, layer, given))

    hooks = []
    for name, layer in network.module.named_modules():
        if not any(True for _ in layer.children()):
            hooks.append(layer.register_forward_pre_hook(note(name, layer)))
            hooks.append(layer.register_forward_hook(lambda *_: entered.clear()))
    try:
        network.module(states[:1])
    except Exception as again:
        error = again
    for hook in hooks:
        hook.remove()
    detail = " ".join(str(error).split())[:160]
    if not entered:
        detail = detail or type(error).__name__
        return ReadError(
            f"{actor.path}: cannot run on states of shape {list(states.shape[1:])} ({detail})",
            "an actor is a module that takes states: of an agent with a critic, give its actor",
        )
    name, layer, given = entered[-1]
    came = [list(g.shape[1:]) for g in given if isinstance(g, torch.Tensor)]
    where = f"layer {name} ({layer})" if name else str(layer)
    return ReadError(
        f"{actor.path}: {where} does not take {came[0] if came else given} for a row ({detail})",
        "is this the checkpoint of this dump, and policy.state_shape what the actor saw?",
    )
