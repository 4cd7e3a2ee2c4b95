"""What a Stable-Baselines3 zip holds: plain text and tensors. Its pickles stay closed."""

from __future__ import annotations

import io
import json
import pickle
import re
import warnings
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bufcheck.errors import ReadError

if TYPE_CHECKING:
    import torch

DATA, POLICY = "data", "policy.pth"
MOST_DATA = 256 << 20
MOST_WEIGHTS = 2 << 30
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError),
    *(NotImplementedError, RuntimeError, RecursionError, OverflowError, OSError),
)
"""What zipfile and json raise on a damaged file."""
SAVE = "save its network with bufcheck.save_actor(module, path)"


@dataclass
class Saved:
    """What the zip says in plain text, and its weights."""

    path: Path
    data: dict[str, Any]
    weights: dict[str, torch.Tensor]
    assumed: dict[str, dict[str, Any]] = field(default_factory=dict)

    def refusal(self, problem: str, step: str = SAVE) -> ReadError:
        problem = " ".join(problem.split())[:200]  # it may quote the file
        return ReadError(f"{self.path}: {problem}", step)

    def part(self, name: str) -> dict[str, Any]:
        """One of the objects in `data`; its `:type:` is the class it was."""
        found = self.data.get(name)
        return found if isinstance(found, dict) else {}

    def kind(self, space: str) -> str:
        return class_name(self.part(space).get(":type:"))

    @property
    def options(self) -> dict[str, Any]:
        return self.part("policy_kwargs")

    @property
    def state_shape(self) -> tuple[int, ...] | None:
        shape = self.part("observation_space").get("_shape")
        if isinstance(shape, list) and shape and all(type(n) is int and n > 0 for n in shape):
            return tuple(shape)
        return None

    def assume(self, name: str, value: Any, source: str) -> None:
        self.assumed[name] = {"value": value, "source": source}

    def linear(self, name: str) -> Any:
        return self._layer("Linear", name, 2)

    def convolution(self, name: str, stride: int) -> Any:
        return self._layer("Conv2d", name, 4, stride=stride)

    def _layer(self, kind: str, name: str, axes: int, **options: Any) -> Any:
        import torch

        weight, bias = self.weights.get(f"{name}.weight"), self.weights.get(f"{name}.bias")
        if weight is None or weight.dim() != axes or 0 in weight.shape:
            raise self.refusal(f"{name} is not a {kind} layer")
        out, into, *kernel = weight.shape
        if kernel:
            options["kernel_size"] = tuple(kernel)
        layer = getattr(torch.nn, kind)(into, out, bias=bias is not None, **options)
        given = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        try:
            layer.load_state_dict(given)
        except RuntimeError:
            raise self.refusal(f"weight and bias of {name} do not fit each other") from None
        return layer


# Reading


def read(path: Path) -> Saved:
    try:
        with zipfile.ZipFile(path) as archive:
            data = json.loads(_member(path, archive, DATA, MOST_DATA))
            policy = _member(path, archive, POLICY, MOST_WEIGHTS)
    except DAMAGE as error:
        raise _damaged(path, error) from None
    if not isinstance(data, dict):
        raise ReadError(f"{path}: its `data` is not an object", "save the model anew")
    return Saved(path, data, _tensors(path, policy))


def _member(path: Path, archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Its bytes. What deflate gives is cut at the declared size; other methods' is not."""
    info = archive.getinfo(name)
    if info.file_size > most:
        raise ReadError(f"{path}: its `{name}` claims {info.file_size} bytes, more than {most}", SAVE)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ReadError(f"{path}: its `{name}` is packed in an unusual way", "zip it with deflate")
    return archive.read(info)


def _tensors(path: Path, policy: bytes) -> dict[str, torch.Tensor]:
    import torch

    try:
        with zipfile.ZipFile(io.BytesIO(policy)) as inner:
            size = sum(info.file_size for info in inner.infolist())
    except DAMAGE:
        size = len(policy)  # the format before zips, or damage that torch will find
    if size > MOST_WEIGHTS:
        raise ReadError(f"{path}: its weights claim {size} bytes, more than {MOST_WEIGHTS}", SAVE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = torch.load(io.BytesIO(policy), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ReadError(f"{path}: its `{POLICY}` is damaged or more than tensors", SAVE) from None
    except Exception as error:  # unpickling garbage can raise anything
        raise _damaged(path, error) from None
    if not isinstance(found, dict) or not all(map(_is_plain, found.values())):
        raise ReadError(f"{path}: its `{POLICY}` is not a state dict of plain tensors", SAVE)
    # A view repeats one number over any shape: what tensors hold, not what the file does, is counted.
    if sum(t.numel() * 4 for t in found.values()) > MOST_WEIGHTS:
        raise ReadError(f"{path}: its tensors take more than {MOST_WEIGHTS} bytes", SAVE)
    return {str(name): tensor.float().contiguous() for name, tensor in found.items()}


def _is_plain(value: Any) -> bool:
    import torch

    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and value.is_floating_point()
    )


def _damaged(path: Path, error: Exception) -> ReadError:
    detail = (" ".join(str(error).split()) or type(error).__name__)[:120]
    return ReadError(f"{path}: a damaged Stable-Baselines3 zip ({detail})", "save the model anew")


def class_name(text: Any) -> str:
    """Box, of "<class 'gymnasium.spaces.box.Box'>"."""
    found = re.fullmatch(r"<class '([\w.]+)'>", text) if isinstance(text, str) else None
    return found[1].rpartition(".")[2] if found else ""
