"""Answers for HDF5 files of other tools, whose datasets lie in groups (child process).

What lies where is told first; then slices of datasets are sent, in the order they are asked for. The
walk refuses what it refuses in a dump: links, virtual datasets, sizes that nothing stands behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import h5py
import pyarrow as pa

from bufcheck.errors import ReadError
from bufcheck.formats import _hdf5_stream
from bufcheck.formats._hdf5_columns import arrow_type, numbers
from bufcheck.formats._hdf5_layout import DUMP_AGAIN, Folder, Stored, Walk

MOST_TEXT = 1000
MOST_ATTRIBUTE = 64
GROUPS_AT_ONCE = 200
MOST_GROUPS = 1_000_000
"""As many episodes as one file may hold."""


def answer(walk: Walk, file: h5py.File, request: dict[str, Any]) -> Iterator[tuple[bytes, Any]]:
    yield from (
        _slices(walk, file, request["parts"]) if "parts" in request else _told(walk, file, request)
    )
    yield b"Z", b""


def _slices(walk: Walk, file: h5py.File, parts: list[Any]) -> Iterator[tuple[bytes, Any]]:
    for path, start, stop in parts:
        stored = walk.dataset(file, path)
        if stored.dtype is None or stop > stored.rows:
            raise ReadError(f"{path} is not what it was a moment ago", "wait until its writer is done")
        # Flat: the reader knows the shape, and a list for every row would cost more than the rows.
        flat = pa.array(numbers(stored, start, stop).reshape(-1), arrow_type(stored.dtype))
        yield b"B", _hdf5_stream.serialised(pa.RecordBatch.from_arrays([flat], ["values"]))


def _told(walk: Walk, file: h5py.File, request: dict[str, Any]) -> Iterator[tuple[bytes, Any]]:
    """A few groups at a time: to walk a file of many takes longer than a reader should be silent."""
    some: dict[str, Stored | Folder] = {}
    for name, item in walk.one_by_one(file):
        some[name] = item
        if len(some) == GROUPS_AT_ONCE:
            yield b"B", json.dumps(_described(some, request["texts"])).encode()
            some = {}
    yield b"B", json.dumps(_described(some, request["texts"])).encode()


def _datasets(children: dict[str, Stored | Folder], path: str) -> Iterator[tuple[str, Stored]]:
    for name, item in children.items():
        if isinstance(item, Folder):
            yield from _datasets(item.children, f"{path}{name}/")
        else:
            yield path + name, item


def _described(some: dict[str, Stored | Folder], texts: list[str]) -> dict[str, Any]:
    found = dict(_datasets(some, ""))
    numeric = {
        path: {"shape": stored.shape, "dtype": stored.dtype.newbyteorder("=").str}
        for path, stored in found.items()
        if stored.dtype is not None and stored.dtype.kind in "iufb"
    }
    return {
        "datasets": numeric,
        "others": [path for path in found if path not in numeric],
        "texts": {path: _text(found[path]) for path in texts if path in found},
        "attributes": {
            name: _numbers_of(item.group) for name, item in some.items() if isinstance(item, Folder)
        },
    }


def _text(stored: Stored) -> str | None:
    """A single short text, as np.bytes_ leaves it."""
    from h5py import h5d

    dataset = h5py.Dataset(h5d.open(stored.parent, stored.name.encode()))
    if dataset.shape != () or dataset.dtype.kind not in "SO" or dataset.nbytes > MOST_TEXT:
        return None
    value = dataset[()]
    return value.decode("utf-8", "replace")[:MOST_TEXT] if isinstance(value, bytes) else None


def _numbers_of(group: h5py.Group) -> dict[str, int]:
    """Whole numbers among its attributes; an episode's id and seed are such."""
    found = {}
    for name in group.attrs:
        if group.attrs.get_id(name).get_storage_size() > MOST_ATTRIBUTE:
            continue
        try:
            value = group.attrs[name]
        except (TypeError, ValueError, OSError) as error:
            raise ReadError(f"the attribute {name} cannot be read ({error})", DUMP_AGAIN) from None
        if getattr(value, "dtype", None) is not None and value.dtype.kind in "iu" and not value.shape:
            found[name] = int(value)
    return found
