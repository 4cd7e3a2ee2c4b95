"""The shapes a column can have in HDF5, each read slice by slice as Arrow (child process).

A column has a `type`, its number of `rows`, the datasets it is `made_of`, `read(start, stop)`, and
`fit(start, stop)`, which moves `stop` down until the slice is a few megabytes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from bufcheck.errors import ReadError
from bufcheck.formats._hdf5_layout import DUMP_AGAIN, Stored

SLICE_BYTES = 8 << 20
MOST_ROWS = 1 << 16
VLEN_ROWS = 2048


def numbers(stored: Stored, start: int, stop: int) -> np.ndarray[Any, Any]:
    """Rows as a contiguous array in this machine's byte order."""
    data = stored.data[start:stop]
    if len(data) != stop - start:
        raise ReadError(f"column {stored.path} ends at row {start + len(data)}", DUMP_AGAIN)
    if data.dtype == np.bool_:
        return np.asarray(data.view(np.uint8) != 0)  # a damaged byte 7 is no boolean to NumPy
    return np.ascontiguousarray(data, dtype=data.dtype.newbyteorder("="))


def arrow_type(dtype: np.dtype[Any]) -> pa.DataType:
    return pa.from_numpy_dtype(dtype.newbyteorder("="))


@dataclass
class Column(ABC):
    name: str
    type: pa.DataType
    made_of: list[Stored]
    valid: Stored | None = None
    required: bool = field(default=False, init=False)

    @property
    def rows(self) -> int:
        return min(part.rows for part in (self.made_of[0], self.valid) if part is not None)

    @property
    def row_bytes(self) -> int:
        return self.made_of[0].row_bytes

    def fit(self, start: int, stop: int) -> int:
        return min(stop, start + max(1, SLICE_BYTES // max(1, self.row_bytes)))

    @abstractmethod
    def read(self, start: int, stop: int) -> pa.Array: ...

    def nulls(self, start: int, stop: int) -> np.ndarray[Any, Any] | None:
        return None if self.valid is None else numbers(self.valid, start, stop) == 0

    def mask(self, start: int, stop: int) -> pa.Array | None:
        nulls = self.nulls(start, stop)
        return None if nulls is None or not nulls.any() else pa.array(nulls)


@dataclass
class Number(Column):
    """(N,) as it is; (N, a, b, …) as a fixed_size_list of a·b·… items."""

    items_valid: Stored | None = None

    def read(self, start: int, stop: int) -> pa.Array:
        data = numbers(self.made_of[0], start, stop)
        if data.ndim == 1:
            return pa.array(data, mask=self.nulls(start, stop))
        mask = None
        if self.items_valid is not None:
            mask = numbers(self.items_valid, start, stop).reshape(-1) == 0
        items = pa.array(data.reshape(-1), mask=mask)
        if self.type.list_size == 0:
            return pa.array([[]] * (stop - start), self.type)
        return pa.FixedSizeListArray.from_arrays(items, type=self.type, mask=self.mask(start, stop))


@dataclass
class Ragged(Column):
    """made_of = [offsets, values]; row i is values[offsets[i]:offsets[i + 1]]."""

    items_valid: Stored | None = None
    _known: tuple[int, Any] = field(default=(0, ()), init=False)

    @property
    def rows(self) -> int:
        rows = max(0, self.made_of[0].rows - 1)
        return rows if self.valid is None else min(rows, self.valid.rows)

    @property
    def row_bytes(self) -> int:
        return self.made_of[0].row_bytes

    def fit(self, start: int, stop: int) -> int:
        item = self.made_of[1].row_bytes
        offsets = self._offsets(start, stop)
        within = np.searchsorted(offsets, offsets[0] + SLICE_BYTES // item, side="right")
        return start + max(1, min(int(within) - 1, stop - start))

    def read(self, start: int, stop: int) -> pa.Array:
        offsets = self._offsets(start, stop)
        first, last = int(offsets[0]), int(offsets[-1])
        mask = None
        if self.items_valid is not None:
            mask = numbers(self.items_valid, first, last) == 0
        items = pa.array(numbers(self.made_of[1], first, last), mask=mask)
        return ragged(self.type, offsets - first, items, self.mask(start, stop))

    def _offsets(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        begun, known = self._known  # `fit` has just read what `read` needs
        if begun == start and stop - start < len(known):
            return np.asarray(known[: stop - start + 1])
        offsets = offsets_of(self.made_of[0], start, stop, self.made_of[1].rows)
        if start == 0 and offsets[0] != 0:
            raise ReadError(
                f"column {self.name}: its offsets start at {offsets[0]}, not at 0", DUMP_AGAIN
            )
        self._known = (start, offsets)
        return offsets


def offsets_of(stored: Stored, start: int, stop: int, end: int) -> np.ndarray[Any, Any]:
    offsets: np.ndarray[Any, Any] = numbers(stored, start, stop + 1).astype(np.int64, copy=False)
    if (offsets[1:] < offsets[:-1]).any() or offsets[0] < 0:
        raise ReadError(f"{stored.path}: its offsets go backwards", DUMP_AGAIN)
    if offsets[-1] > end:
        raise ReadError(
            f"{stored.path}: its offsets end at {offsets[-1]}, but only {end} values are stored",
            DUMP_AGAIN,
        )
    return offsets


def ragged(
    kind: pa.DataType, offsets: np.ndarray[Any, Any], items: pa.Array, mask: pa.Array | None
) -> pa.Array:
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(pa.array(offsets), items, type=kind, mask=mask)
    if offsets[-1] >= 2**31:
        raise ReadError(f"one row holds {offsets[-1]} items", DUMP_AGAIN)
    short = pa.array(offsets.astype(np.int32, copy=False))
    return pa.ListArray.from_arrays(short, items, type=kind, mask=mask)


@dataclass
class Padded(Column):
    """A 2-D dataset whose rows are shorter than its width: cut at `pad`, or at `num_actions`."""

    pad: Any = None
    lengths: Stored | None = None

    def read(self, start: int, stop: int) -> pa.Array:
        data = numbers(self.made_of[0], start, stop)
        data = data.reshape(len(data), math.prod(data.shape[1:]))
        lengths = self._lengths(data, start, stop)
        kept = np.arange(data.shape[1]) < lengths[:, None]
        offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        return ragged(self.type, offsets, pa.array(data[kept]), self.mask(start, stop))

    def _lengths(self, data: np.ndarray[Any, Any], start: int, stop: int) -> np.ndarray[Any, Any]:
        rows, width = data.shape
        if self.pad is not None and width:
            real = ~np.isnan(data) if self.pad != self.pad else data != self.pad
            return np.where(real.any(axis=1), width - real[:, ::-1].argmax(axis=1), 0)
        if self.lengths is not None:
            lengths = np.clip(numbers(self.lengths, start, stop), 0, width)
            return np.asarray(lengths, dtype=np.int64)
        return np.full(rows, width, dtype=np.int64)


@dataclass
class Vlen(Column):
    """Variable-length rows. Nothing tells their size before they are read: few at a time."""

    def fit(self, start: int, stop: int) -> int:
        return min(stop, start + VLEN_ROWS)

    def read(self, start: int, stop: int) -> pa.Array:
        rows = self.made_of[0].data[start:stop]
        assert self.made_of[0].dtype is not None
        base = h5py.check_vlen_dtype(self.made_of[0].dtype).newbyteorder("=")
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        items = np.concatenate([np.empty(0, base), *rows]).astype(base, copy=False)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        return ragged(self.type, offsets, pa.array(items), self.mask(start, stop))
