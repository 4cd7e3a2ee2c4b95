"""Writes Arrow batches as HDF5: plain datasets where HDF5 has a shape for the type.

Datasets are written without a name and linked into place at the end, because only then is it known
whether a column had nulls; the metadata come last of all. Of a writer that was killed remains a
file without columns, most often without even the signature of HDF5.
"""

from __future__ import annotations

import io
import json
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


class Writer:
    """Takes batches one after the other; what it wrote is a dump once it was closed well."""

    def __init__(self, path: Path, schema: pa.Schema, metadata: dict[str, Any]) -> None:
        if len(set(schema.names)) < len(schema.names):
            raise WriteError(f"{path}: two columns of one name", "rename one of them")
        try:
            self._disk = Disk(path, "w+")
        except OSError as error:
            raise WriteError(f"{path}: {error.strerror}", "write elsewhere") from None
        self.rows, self.metadata, self._schema = 0, metadata, schema
        # v110: its structure is checksummed too, and attributes may have any size.
        self._file = h5py.File(self._disk, "w", track_order=True, libver=("v110", "v110"))
        self._columns = [out.for_type(self._file, field.type) for field in schema]

    def append(self, batch: pa.RecordBatch) -> None:
        if batch.schema.names != self._schema.names or batch.schema.types != self._schema.types:
            raise WriteError(f"{self._disk.name}: a batch has other columns than the file")
        if batch.num_rows == 0:
            return
        for writer, column in zip(self._columns, batch.columns, strict=True):
            writer.append(column)
        self._disk.check()
        self.rows += batch.num_rows

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        with self._disk:
            try:
                if failed is None:
                    self._finish()
            finally:
                self._file.close()
            if failed is None:
                self._disk.check()

    def _finish(self) -> None:
        links = _link_names(self._schema.names)
        for link, field, writer in zip(links, self._schema, self._columns, strict=True):
            _link(self._file, link, field, writer.finish())
        self._file.flush()
        described = json.dumps(self.metadata | {"rows": self.rows}, ensure_ascii=False)
        self._file.attrs["bufcheck"] = np.bytes_(described.encode())


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
