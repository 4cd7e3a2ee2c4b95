"""Pickled experience: a list of dicts, a dict of lists or arrays; and what torch.save made of such.

Plain containers, numbers, texts, NumPy arrays and torch tensors are read; nothing in the file is run.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bufcheck.errors import ForeignError
from bufcheck.importer import Asked, Found, Kind, Piece, common

EXAMPLE = "bufcheck convert --from pickle episodes.pkl dump.parquet"
TAKES_AXES = True
TORCH_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
SUFFIXES = (".pkl", ".pickle", ".p", ".pt", ".pth", ".torch")
PLAIN = "save lists, dicts, numbers, NumPy arrays and tensors only, or use numpy.savez"


def recognises(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(2)
    if head == b"PK":
        return _is_torch_zip(path)
    old = head[:1] in b"(]}c" and path.suffix.lower() in SUFFIXES
    return (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05") or old


def find(paths: list[Path], asked: Asked) -> Found:
    from bufcheck.importers import _rollout

    kept = _load(paths[0], asked) if len(paths) == 1 else None
    parts: list[dict[str, Kind]] = []
    left_out: dict[str, str] = {}
    assumed: dict[str, None] = {}
    rows, stay = 0, True
    for path in paths:
        for arrays in kept or _load(path, asked):
            shapes = _shapes(arrays)
            layout = _rollout.layout(shapes, asked, path)
            parts.append(_rollout.kinds(shapes, layout))
            left_out |= layout.left_out
            assumed |= dict.fromkeys(_rollout.told(layout))
            rows += layout.rows
            stay &= layout.ids_stay and ("episode_id" not in layout.roles or not len(parts) > 1)
    columns, differing = common(parts)

    def pieces() -> Iterator[Piece]:
        numbering = _rollout.Numbering()
        for number, path in enumerate(paths):
            for part, arrays in enumerate(kept or _load(path, asked)):
                layout = _rollout.layout(_shapes(arrays), asked, path)
                yield from _rollout.pieces(arrays, layout, columns, (number, part), numbering)

    out = {name: why for name, why in (left_out | differing).items() if name not in columns}
    return Found(paths, columns, rows, pieces, assumed=list(assumed), left_out=out, ids_stay=stay)


def _shapes(arrays: dict[str, Any]) -> dict[str, Kind]:
    import pyarrow as pa

    return {
        name: Kind(values.type, (len(values),))
        if isinstance(values, pa.Array)
        else Kind(pa.from_numpy_dtype(values.dtype), values.shape)
        for name, values in arrays.items()
    }


def _load(path: Path, asked: Asked) -> list[dict[str, Any]]:
    from bufcheck.importers import _records, _unpickle
    from bufcheck.importers._memory import refuse_too_large
    from bufcheck.importers._unpickle_parts import Refused

    try:
        size = path.stat().st_size
        refuse_too_large(path, size)
        data = path.read_bytes()
    except OSError as error:
        raise ForeignError(f"{path}: {error.strerror or error}") from None
    try:
        held = _torch(path, data) if _is_torch(path, data) else _unpickle.loads(data)
        return _records.rollouts(held, size, asked)
    except Refused as refused:
        raise ForeignError(f"{path}: {refused}", PLAIN) from None
    except RecursionError:
        raise ForeignError(f"{path}: it is nested deeper than any experience", PLAIN) from None
    except (RuntimeError, TypeError, ValueError, MemoryError) as error:  # tensors that are no numbers
        detail = " ".join(str(error).split())[:100] or type(error).__name__
        raise ForeignError(f"{path}: it holds what is no experience ({detail})", PLAIN) from None


def _is_torch(path: Path, data: bytes) -> bool:
    return data.startswith(TORCH_MAGIC) or (data[:2] == b"PK" and _is_torch_zip(path))


def _is_torch_zip(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False


def _torch(path: Path, data: bytes) -> Any:
    """What torch.save made, by torch's own reader of data that runs no code."""
    import re

    import torch

    from bufcheck.importers._unpickle_parts import Refused

    if data[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(member.file_size for member in archive.infolist()) > len(data):
                raise Refused("it claims to hold more than it can")  # torch.save compresses nothing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:  # what a damaged or a hostile file makes torch raise
            text = " ".join(str(error).split())
            if found := re.search(r"GLOBAL (\S+)", text):
                raise Refused(f"it holds more than plain data ({found[1][:80]!r})") from None
            detail = text.rpartition("WeightsUnpickler error: ")[2][:100] or type(error).__name__
            raise Refused(f"it cannot be read ({detail})") from None
