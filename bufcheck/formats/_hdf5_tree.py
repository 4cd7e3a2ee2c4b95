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
from bufcheck.formats._hdf5_layout import DUMP_AGAIN, Folder, Stored

MOST_TEXT = 1000
MOST_ATTRIBUTE = 64
MOST_GROUPS = 1_000_000
"""As many episodes as one file may hold."""


def answer(root: Folder, request: dict[str, Any]) -> Iterator[tuple[bytes, Any]]:
    found = dict(_datasets(root, ""))
    if "parts" not in request:
        yield b"D", json.dumps(_described(root, found, request["texts"])).encode()
        return
    for path, start, stop in request["parts"]:
        stored = found.get(path)
        if stored is None or stored.dtype is None or stop > stored.rows:
            raise ReadError(f"{path} is not what it was a moment ago", "wait until its writer is done")
        # Flat: the reader knows the shape, and a list for every row would cost more than the rows.
        flat = pa.array(numbers(stored, start, stop).reshape(-1), arrow_type(stored.dtype))
        yield b"B", _hdf5_stream.serialised(pa.RecordBatch.from_arrays([flat], ["values"]))
    yield b"Z", b""


def _datasets(folder: Folder, path: str) -> Iterator[tuple[str, Stored]]:
    for name, item in folder.children.items():
        if isinstance(item, Folder):
            yield from _datasets(item, f"{path}{name}/")
        else:
            yield path + name, item


def _described(root: Folder, found: dict[str, Stored], texts: list[str]) -> dict[str, Any]:
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
            name: _numbers_of(item.group)
            for name, item in root.children.items()
            if isinstance(item, Folder)
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
