"""Writes Arrow batches as HDF5: plain datasets where HDF5 has a shape for the type.

Datasets are written without a name and linked into place at the end, because only then is it known
whether a column had nulls; the metadata come last of all. Of a writer that was killed remains a
file without columns, most often without even the signature of HDF5.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from bufcheck.errors import WriteError
from bufcheck.formats import _hdf5_columns_out as out
from bufcheck.formats import _hdf5_types as types


class Disk(io.FileIO):
    """The output file. Once it is full, HDF5 is told that all is well.

    HDF5 cannot give up a file it fails to write: it tries again at exit, and crashes the process.
    So the first failure is kept for `check`, and later writes go nowhere.
    """

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while left and self.failure is None:
                left = left[super().write(left) :]
        except OSError as error:
            self.failure = error
        return size

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size) if self.failure is None else 0
        except OSError as error:
            self.failure = error
            return 0

    def check(self) -> None:
        if self.failure is not None:
            why = self.failure.strerror or str(self.failure)
            raise WriteError(f"{self.name}: {why}", "free some space, or write elsewhere")


def write(
    path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], metadata: dict[str, Any]
) -> int:
    """Writes all batches; `metadata["rows"]` is set to their count, which is returned."""
    try:
        disk = Disk(path, "w+")
    except OSError as error:
        raise WriteError(f"{path}: {error.strerror}", "write elsewhere") from None
    with disk:
        # v110: its structure is checksummed too, and attributes may have any size.
        with h5py.File(disk, "w", track_order=True, libver=("v110", "v110")) as file:
            rows = _write(disk, file, schema, batches)
            metadata["rows"] = rows
            file.flush()
            file.attrs["bufcheck"] = np.bytes_(json.dumps(metadata, ensure_ascii=False).encode())
        disk.check()
    return rows


def _write(disk: Disk, file: h5py.File, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    if len(set(schema.names)) < len(schema.names):
        raise WriteError(f"{disk.name}: two columns of one name", "rename one of them")
    writers = [out.for_type(file, field.type) for field in schema]
    rows = 0
    for batch in batches:
        if batch.schema.names != schema.names or batch.schema.types != schema.types:
            raise WriteError(f"{disk.name}: a batch has other columns than the file")
        if batch.num_rows == 0:
            continue
        for writer, column in zip(writers, batch.columns, strict=True):
            writer.append(column)
        disk.check()
        rows += batch.num_rows
    links = _link_names(schema.names)
    for link, field, writer in zip(links, schema, writers, strict=True):
        _link(file, link, field, writer.finish())
    return rows


def _link(file: h5py.File, link: str, field: pa.Field, parts: dict[str, h5py.Dataset]) -> None:
    if list(parts) == ["values"]:
        file[link] = owner = parts["values"]
    else:
        owner = file.create_group(link, track_order=True)
        for name, dataset in parts.items():
            owner[name] = dataset
    if link != field.name:
        owner.attrs["column_name"] = np.bytes_(field.name.encode())
    if not field.nullable:
        owner.attrs["not_null"] = np.uint8(1)
    if not types.has_shape(field.type):
        owner.attrs["encoding"] = np.bytes_(b"arrow-ipc")
    elif field.type not in types.NUMBERS.values():
        owner.attrs["arrow_type"] = np.bytes_(str(field.type).encode())


def _link_names(columns: list[str]) -> list[str]:
    """HDF5 has no names with a slash in them, nor `.`; those columns get another link name."""
    links = []
    for number, name in enumerate(columns):
        if name in ("", ".", "..") or "/" in name or not name.isprintable():
            name = f"column_{number}"
            while name in columns:
                name += "_"
        links.append(name)
    return links
