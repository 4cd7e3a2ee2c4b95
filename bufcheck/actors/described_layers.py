"""`.safetensors` from `bufcheck.save_actor`: the weights, and in the header a list of their layers.

The layers come from a closed list, so that loading builds what is named and runs nothing else.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from bufcheck import actor as engine
from bufcheck.actor import Loading, Network, notes_on
from bufcheck.errors import ReadError, UsageError
from bufcheck.whole_file import whole_file

if TYPE_CHECKING:
    import torch

    from bufcheck.actors._layers import Normalize

KIND = "described layers"
KEY = "bufcheck.actor"
FORMAT = "bufcheck.actor/1"
MOST_HEADER = 1 << 26
TRIAL_ROWS = 64
ADVICE = "save its state_dict and validate with --arch"


def header_of(file: BinaryIO) -> dict[str, Any] | None:
    """The JSON header of a safetensors file; None if it is none."""
    size = int.from_bytes(file.read(8), "little")
    if not 2 <= size <= MOST_HEADER:
        return None
    try:
        header = json.loads(file.read(size))
    except (ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) else None


def recognises(file: BinaryIO) -> bool:
    metadata = (header_of(file) or {}).get("__metadata__")
    return isinstance(metadata, dict) and KEY in metadata


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    import safetensors.torch

    try:
        # Not load_file: its tensors would be views of a file that a trainer may write anew meanwhile.
        tensors: dict[str, torch.Tensor] = safetensors.torch.load(path.read_bytes())
    except OSError:
        raise
    except Exception as error:  # what a damaged file makes safetensors raise
        raise ReadError(f"{path}: a damaged safetensors file ({str(error)[:120]})") from None
    return tensors


def load(path: Path, loading: Loading) -> Network:
    from bufcheck.actors._layers import rebuild

    layers, shape, notes = _description(path)
    tensors = load_tensors(path)
    log_std = tensors.pop("log_std", None)
    try:
        module = rebuild(layers, tensors, shape)
        if log_std is not None and (log_std.ndim != 1 or not log_std.is_floating_point()):
            raise ValueError(f"log_std is {log_std.dtype}{list(log_std.shape)}")
    except Exception as error:  # what layers with absurd arguments raise
        raise ReadError(
            f"{path}: layers and weights do not fit ({_detail(error)})", "save it anew"
        ) from None
    return Network(module, KIND, log_std, tuple(shape), notes)


def _description(path: Path) -> tuple[list[dict[str, Any]], list[int], list[str]]:
    with path.open("rb") as file:
        header = header_of(file) or {}
    try:
        described = json.loads(header["__metadata__"][KEY])
        version = described["format"]
        layers, shape, notes = (described[n] for n in ("layers", "state_shape", "notes"))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ReadError(f"{path}: its description cannot be read", "save it anew") from None
    if version != FORMAT:
        known = f"this bufcheck knows {FORMAT}"
        raise ReadError(f"{path}: is {str(version)[:40]}, {known}", "update bufcheck")
    of = {dict: layers, int: shape, str: notes}
    if not all(isinstance(v, list) and all(type(x) is k for x in v) for k, v in of.items()) or not (
        shape and min(shape) > 0
    ):
        raise ReadError(f"{path}: its description cannot be read", "save it anew")
    return layers, shape, notes


def _detail(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


def save(
    actor: torch.nn.Module | str | Path,
    path: Path,
    *,
    log_std: Any = None,
    state_shape: Sequence[int] | None = None,
    normalization: Any = None,
    notes: Sequence[str] = (),
) -> None:
    """Writes an actor, once what would be read back is seen to give the same output.

    `notes` are told wherever it is replayed.
    """
    from safetensors.torch import save_file

    from bufcheck.actors import _trace
    from bufcheck.actors._layers import arguments_of, rebuild

    network = _network(actor)
    taken = (f"{n} was taken to be {a['value']} ({a['source']})" for n, a in network.assumed.items())
    notes = list(dict.fromkeys([*notes, *network.notes, *taken]))
    with in_eval_mode(network.module):
        chain = _trace.chain(network.module)
        if normalization is not None:
            chain.insert(0, _normalizer(normalization))
        if not chain:
            raise UsageError("save_actor: the module has no layers")
        shape = tuple(state_shape or network.state_shape or _input_shape(chain))
        layers = [{"type": type(m).__name__, **arguments_of(m)} for m in chain]
        tensors = {
            f"{i}.{name}": tensor.detach().cpu().contiguous().clone()
            for i, layer in enumerate(chain)
            for name, tensor in layer.state_dict().items()
        }
        try:
            again = rebuild(json.loads(json.dumps(layers)), tensors, shape)
        except Exception as error:  # what layers raise that are not what their type says
            raise UsageError(
                f"save_actor: cannot be rebuilt for states of shape {list(shape)} ({_detail(error)})",
                ADVICE,
            ) from None
        _compare(network.module, again, shape, normalization is not None)
    if (spread := _log_std(log_std, network)) is not None:
        tensors["log_std"] = spread
    described = {"format": FORMAT, "layers": layers, "state_shape": list(shape), "notes": notes}
    with whole_file(Path(path), replace=True) as temporary:
        save_file(tensors, temporary, {KEY: json.dumps(described)})


@contextlib.contextmanager
def in_eval_mode(module: torch.nn.Module) -> Iterator[None]:
    """Each of its parts gets back the mode it had."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _log_std(given: Any, network: Network) -> torch.Tensor | None:
    import torch

    if given is None:
        given = network.log_std
    if given is None:
        return None
    spread = torch.as_tensor(given).detach().cpu().flatten().clone()
    return spread if spread.is_floating_point() else spread.float()


def _network(actor: Any) -> Network:
    import torch

    if isinstance(actor, torch.nn.Module):
        return Network(actor, "module", notes=notes_on(actor))
    return engine.load(str(actor), Loading())


def _normalizer(given: Any) -> Normalize:
    """From {mean, var, epsilon, clip}, or from Stable-Baselines3's VecNormalize."""
    import torch

    from bufcheck.actors._layers import Normalize

    if getattr(given, "norm_obs", True) is False:
        raise UsageError("save_actor: this VecNormalize leaves states as they are", "leave it out")
    try:
        if hasattr(given, "obs_rms"):
            given = {
                "mean": given.obs_rms.mean,
                "var": given.obs_rms.var,
                "epsilon": given.epsilon,
                "clip": given.clip_obs,
            }
        mean, var = (torch.as_tensor(given[n], dtype=torch.float64) for n in ("mean", "var"))
        layer = Normalize(list(mean.shape), float(given.get("epsilon", 1e-8)), given.get("clip"))
        layer.load_state_dict({"mean": mean, "var": var})
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
        raise UsageError(
            "save_actor: normalization needs mean and var, of one shape", "or pass a VecNormalize"
        ) from None
    return layer


def _input_shape(chain: list[Any]) -> tuple[int, ...]:
    """What the first layer says of it, if it does."""
    first, kind = chain[0], type(chain[0]).__name__
    if kind == "Normalize" and first.shape:
        return tuple(first.shape)
    if kind == "Linear":
        return (first.in_features,)
    if kind == "LayerNorm":
        return tuple(first.normalized_shape)
    raise UsageError(
        f"save_actor: a {type(chain[0]).__name__} does not tell what shape a state has",
        "pass state_shape=(…)",
    )


def _compare(module: Any, again: Any, shape: tuple[int, ...], normalized: bool) -> None:
    """Both on one random batch, in eval mode."""
    import torch

    generator = torch.Generator().manual_seed(0)
    states = torch.rand((TRIAL_ROWS, *shape), generator=generator) * 2 - 1
    if any(type(m).__name__ == "Embedding" for m in again):
        fewest = min(m.num_embeddings for m in again if type(m).__name__ == "Embedding")
        states = torch.randint(0, fewest, (TRIAL_ROWS, *shape), generator=generator)
    device = next((p.device for p in module.parameters()), "cpu")
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    states = states.to(dtype) if states.is_floating_point() else states
    try:
        with torch.no_grad():
            seen = again[0](states) if normalized else states
            expected = module(seen.to(device)).cpu()
            got = again(states)
    except Exception as error:  # whatever the module's own code raises
        raise UsageError(
            f"save_actor: cannot run on states of shape {list(shape)} ({_detail(error)})"
        ) from None
    if expected.shape != got.shape:
        raise UsageError("save_actor: rebuilt from its layers, the actor gives another shape", ADVICE)
    apart = (expected.double() - got.double()).abs()
    apart[(expected == got) | (expected.isnan() & got.isnan())] = 0.0
    worst, scale = float(apart.max()), float(expected.double().abs().nan_to_num(0.0, 0.0).max())
    if not worst <= 1e-5 * max(1.0, scale):
        raise UsageError(
            f"save_actor: rebuilt from its layers, the actor differs by {worst:.3g}", ADVICE
        )
