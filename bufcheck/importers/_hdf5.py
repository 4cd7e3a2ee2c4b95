"""HDF5 files of other tools, read by the child process that reads dumps, with the same care."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bufcheck.errors import ForeignError
from bufcheck.formats import _hdf5_server as server
from bufcheck.formats.hdf5 import STALL_SECONDS
from bufcheck.importer import Kind
from bufcheck.vectors import Array

LOOKED_AT = 1 << 20


class Dataset(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def kind(self) -> Kind:
        return Kind(pa.from_numpy_dtype(self.dtype), self.shape[1:])


class Tree(NamedTuple):
    """What lies where in a file; datasets by their path, without the first slash."""

    path: Path
    datasets: dict[str, Dataset]
    """Those of numbers, with at least one axis."""
    others: list[str]
    texts: dict[str, str | None]
    attributes: dict[str, dict[str, int]]
    """Whole numbers among the attributes of the groups at the root."""


class Part(NamedTuple):
    """Rows of a dataset."""

    path: str
    start: int
    stop: int


def look(path: Path, texts: Sequence[str] = ()) -> Tree:
    """Opens nothing but this file, and reads none of its data; `texts` name short texts to bring."""
    tree = Tree(path, {}, [], {}, {})
    child = server.acquire()
    try:
        child.ask(path, _request(path, texts), STALL_SECONDS)
        while (frame := child.answer(path, STALL_SECONDS))[0] == b"B":
            found = json.loads(frame[1].to_pybytes())
            for name, one in found["datasets"].items():
                tree.datasets[name] = Dataset(tuple(one["shape"]), np.dtype(one["dtype"]))
            tree.others.extend(found["others"])
            tree.texts.update(found["texts"])
            tree.attributes.update(found["attributes"])
    finally:
        server.release(child)
    return tree


def read(tree: Tree, parts: Sequence[Part]) -> Iterator[Array]:
    """The parts, one after the other. A part should be a few megabytes: it is held as a whole."""
    if not parts:
        return
    child = server.acquire()
    try:
        child.ask(tree.path, _request(tree.path, (), parts=list(parts)), STALL_SECONDS)
        for part in parts:
            kind, frame = child.answer(tree.path, STALL_SECONDS)
            if kind != b"B":
                raise ForeignError(f"{tree.path}: ended before {part.path}", "copy it again")
            with pa.ipc.open_stream(frame) as stream:
                flat = stream.read_next_batch().column(0)
            yield _shaped(tree, part, flat)
        child.answer(tree.path, STALL_SECONDS)
    finally:
        server.release(child)


def _shaped(tree: Tree, part: Part, flat: pa.Array) -> Array:
    known = tree.datasets[part.path]
    values = np.asarray(flat.to_numpy(zero_copy_only=False))
    shape = (part.stop - part.start, *known.shape[1:])
    if values.dtype != known.dtype or values.size != math.prod(shape):
        raise ForeignError(
            f"{tree.path}: it was changed while it was read", "wait for its writer to end"
        )
    return values.reshape(shape)


def _request(path: Path, texts: Sequence[str], **more: Any) -> dict[str, Any]:
    return {
        "path": os.path.abspath(path),
        "texts": list(texts),
        "deadline": int(STALL_SECONDS) * 2 + 20,
        **more,
    }


def mentions(path: Path, *words: bytes) -> bool:
    """Whether an HDF5 file has these words near its ends, where names of datasets are; a cheap look."""
    from bufcheck.formats.hdf5 import recognises

    if not path.is_file():
        return False
    with path.open("rb") as file:
        if not recognises(file):
            return False
        file.seek(0)
        near = file.read(LOOKED_AT)
        file.seek(max(0, path.stat().st_size - LOOKED_AT))
        near += file.read(LOOKED_AT)
    return all(word in near for word in words)
