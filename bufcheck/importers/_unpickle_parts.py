"""What a pickle may call: a closed list, and what becomes of each call, its arguments checked."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bufcheck.vectors import Array

TYPES = re.compile(r"[<>|=]?([biufSUO])(\d{0,6})")
SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8)}
MOST_AXES = 32
KEYS = (str, int, float, bytes, type(None))
WORK_PER_BYTE, FREE_WORK = 32, 1 << 20


class Refused(Exception):  # noqa: N818
    """Why a pickle is not read, as the end of a line."""


class Budget:
    """A pickle can name one large thing many times; what is done with it is counted each time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.left = WORK_PER_BYTE * size + FREE_WORK

    def spend(self, work: int) -> None:
        self.left -= work
        if self.left < 0:
            raise Refused("it asks for far more work than its size allows")


@dataclass(frozen=True, slots=True)
class Allowed:
    """A name a pickle may use. It is not the thing of that name."""

    name: str
    make: Callable[..., Any]


class Unfinished:
    """Something whose state comes after it."""

    __slots__ = ()

    def finish(self, state: Any, budget: Budget) -> None:
        raise NotImplementedError


class Type(Unfinished):
    """numpy.dtype: numbers, texts and bytes of a fixed size, or objects."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "="

    def finish(self, state: Any, budget: Budget) -> None:
        """Version, byte order, and what only structured types have."""
        plain = isinstance(state, tuple) and len(state) >= 5 and state[2:5] == (None, None, None)
        if not plain or state[1] not in ("<", ">", "|", "="):
            raise Refused("it has arrays of a structured type")
        self.order = state[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        order = "" if self.code == "O" or self.order == "|" else self.order
        return np.dtype(order + self.code)


class Held(Unfinished):
    """numpy.ndarray: the array, once it is there."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: Any = None

    def finish(self, state: Any, budget: Budget) -> None:
        if not isinstance(state, tuple) or len(state) not in (4, 5):
            raise Refused("it has an array without its parts")
        shape, kind, fortran, data = state[-4:]
        if isinstance(kind, Type) and kind.code == "O":
            self.values = _objects(shape, data, budget)
        else:
            self.values = _array(data, kind, shape, "F" if fortran else "C", budget)


def _shape(shape: Any) -> tuple[int, ...]:
    good = isinstance(shape, (tuple, list)) and len(shape) <= MOST_AXES
    if not good or not all(type(n) is int and n >= 0 for n in shape):
        raise Refused("it has an array without a shape")
    return tuple(shape)


def _array(data: Any, kind: Any, shape: Any, order: Any, budget: Budget) -> Array:
    if not isinstance(kind, Type) or kind.code == "O" or order not in ("C", "F"):
        raise Refused("it has an array that is no numbers")
    if not isinstance(data, (bytes, bytearray)):
        raise Refused("it has an array without its data")
    wanted = _shape(shape)
    if math.prod(wanted) * kind.dtype.itemsize != len(data):
        raise Refused(f"it has an array that claims shape {wanted} with {len(data)} bytes")
    budget.spend(len(data))
    if not data:
        return np.zeros(wanted, kind.dtype.newbyteorder("="))
    held = np.frombuffer(data, kind.dtype).reshape(wanted, order=order)
    return held if held.dtype.isnative else held.astype(held.dtype.newbyteorder("="))


def _objects(shape: Any, data: Any, budget: Budget) -> list[Any]:
    """An array of objects is a list to us; they came through this machine like all else."""
    if not isinstance(data, list) or _shape(shape) != (len(data),):
        raise Refused("it has an array of objects with several axes")
    budget.spend(len(data))
    return data


def _reconstruct(budget: Budget, kind: Any, *_: Any) -> Held:
    if kind is not NDARRAY:
        raise Refused("it has an array of a class of its own")
    return Held()


def _from_buffer(budget: Budget, data: Any, kind: Any, shape: Any, order: Any, *_: Any) -> Array:
    return _array(data, kind, shape, order, budget)


def _type(budget: Budget, code: Any, *_: Any) -> Type:
    found = TYPES.fullmatch(code) if isinstance(code, str) else None
    if found is None:
        raise Refused("it has an array of no type that is read")
    letter, size = found[1], int(found[2] or 0)
    if letter == "O":
        return Type("O")
    if letter in SIZES and size not in SIZES[letter]:
        raise Refused("it has an array of no type that is read")
    return Type(f"{letter}{size}")


def _scalar(budget: Budget, kind: Any, data: Any = b"", *_: Any) -> Any:
    return _array(data, kind, (), "C", budget)[()]


def _bytes(budget: Budget, text: Any = b"", coding: Any = "latin1") -> bytes:
    """How old pickles write bytes: as text, to be encoded as Latin-1."""
    if isinstance(text, str) and coding in ("latin1", "latin-1"):
        budget.spend(len(text))
        return text.encode("latin-1")
    if isinstance(text, (bytes, bytearray)):
        budget.spend(len(text))
        return bytes(text)
    raise Refused("it makes bytes of what is neither text nor bytes")


def _listed(budget: Budget, values: Any) -> list[Any]:
    if not isinstance(values, (list, tuple, set, frozenset)):
        raise Refused("it makes a container of what is none")
    budget.spend(len(values))
    return list(values)


def without_depth(values: list[Any]) -> list[Any]:
    """Keys and members of sets: to hash what is nested a million deep would end the process."""
    if not all(isinstance(value, KEYS) for value in values):
        raise Refused("it has keys that are neither texts nor numbers")
    return values


def _members(budget: Budget, values: Any) -> list[Any]:
    return without_depth(_listed(budget, values))


def _ordered(budget: Budget, pairs: Any = ()) -> dict[Any, Any]:
    made: dict[Any, Any] = OrderedDict()
    for pair in _listed(budget, pairs):
        key, value = _listed(budget, pair)
        made[_members(budget, [key])[0]] = value
    return made


def _deque(budget: Budget, values: Any = (), _most: Any = None) -> deque[Any]:
    return deque(_listed(budget, values))


@dataclass(frozen=True, slots=True)
class Storage:
    """The numbers of a torch tensor; they are loaded when the tensor is."""

    data: bytes


def _storage(budget: Budget, data: Any) -> Storage:
    if not isinstance(data, bytes):
        raise Refused("it has a tensor without its data")
    return Storage(data)


def _tensor(budget: Budget, storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Array:
    import torch

    if not isinstance(storage, Storage) or type(offset) is not int or offset < 0:
        raise Refused("it has a tensor without its data")
    shape, steps = _shape(size), _shape(stride)
    budget.spend(len(storage.data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of storages, which are an old way to store tensors
        held = torch.load(io.BytesIO(storage.data), map_location="cpu", weights_only=True)
        if not isinstance(held, torch.TypedStorage) or len(shape) != len(steps):
            raise Refused("it has a tensor without its data")
        flat = torch.tensor(held, dtype=held.dtype)
    last = offset + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    count = math.prod(shape)
    if count and (last >= flat.numel() or count > flat.numel()):
        raise Refused(f"it has a tensor that claims shape {shape} with {flat.numel()} numbers")
    return numbers_of(
        torch.as_strided(flat, shape, steps, offset) if count else flat[:0].reshape(shape)
    )


def numbers_of(tensor: Any) -> Array:
    """A tensor as NumPy; bfloat16, which NumPy lacks, as the float32 it is a part of."""
    import torch

    plain = tensor.detach().cpu()
    if plain.dtype == torch.bfloat16:
        plain = plain.float()
    return np.array(plain.contiguous().numpy())


def _parameter(budget: Budget, tensor: Any, *_: Any) -> Array:
    if not isinstance(tensor, np.ndarray):
        raise Refused("it has a parameter that is no tensor")
    return tensor


def _not_called(budget: Budget, *_: Any) -> Any:
    raise Refused("it makes an array in a way of its own")


NDARRAY = Allowed("numpy.ndarray", _not_called)


def _allowed() -> dict[tuple[str, str], Allowed]:
    made = {("numpy", "ndarray"): NDARRAY}
    named: dict[tuple[str, str], Callable[..., Any]] = {
        ("numpy", "dtype"): _type,
        ("_codecs", "encode"): _bytes,
        ("collections", "OrderedDict"): _ordered,
        ("collections", "deque"): _deque,
        ("torch._utils", "_rebuild_tensor_v2"): _tensor,
        ("torch._utils", "_rebuild_parameter"): _parameter,
        ("torch.storage", "_load_from_bytes"): _storage,
    }
    for core in ("numpy.core", "numpy._core"):  # as NumPy 1 and 2 spell them
        named[f"{core}.multiarray", "_reconstruct"] = _reconstruct
        named[f"{core}.multiarray", "scalar"] = _scalar
        named[f"{core}.numeric", "_frombuffer"] = _from_buffer
    for builtins in ("builtins", "__builtin__"):
        named[builtins, "set"] = lambda budget, values=(): set(_members(budget, values))
        named[builtins, "frozenset"] = lambda budget, values=(): frozenset(_members(budget, values))
        named[builtins, "bytes"] = _bytes
        named[builtins, "bytearray"] = _bytes
    return made | {key: Allowed(".".join(key), make) for key, make in named.items()}


ALLOWED = _allowed()
"""(module, name) → what stands in for it. Nothing else can be called, or even named."""
