"""Grows one HDF5 dataset, in whole chunks, whatever the size of the pieces it is given."""

from __future__ import annotations

import math
from typing import Any

import h5py
import numpy as np

CHUNK_BYTES = 1 << 20
CHUNK_ROWS = 1 << 16
MOST_ITEMS = 1 << 20


class Appender:
    """A resizable, checksummed dataset without a name. `finish` writes what is still waiting."""

    def __init__(self, file: h5py.File, dtype: Any, inner: tuple[int, ...] = ()) -> None:
        self.file, self.dtype, self.inner = file, dtype, inner
        fits = CHUNK_BYTES // max(1, np.dtype(dtype).itemsize * math.prod(inner))
        self.chunk = 1 << max(0, min(CHUNK_ROWS, fits).bit_length() - 1)
        self.rows = 0
        self._data: h5py.Dataset | None = None
        self._waiting: list[np.ndarray[Any, Any]] = []
        self._written = 0

    def append(self, piece: np.ndarray[Any, Any]) -> None:
        if not len(piece):
            return
        self._waiting.append(piece)
        self.rows += len(piece)
        if self.rows - self._written >= self.chunk:
            self._write((self.rows - self._written) // self.chunk * self.chunk)

    def finish(self) -> h5py.Dataset:
        if self._data is None:  # less than a chunk: HDF5 would fill it up with zeros
            self.chunk = max(1, self.rows)
        if self.rows > self._written:
            self._write(self.rows - self._written)
        return self._dataset()

    def _dataset(self) -> h5py.Dataset:
        if self._data is None:
            self._data = self.file.create_dataset(
                None,
                shape=(0, *self.inner),
                maxshape=(None, *self.inner),
                # A wide row is cut too: a reader must hold whole chunks.
                chunks=(self.chunk, *(min(n, MOST_ITEMS) for n in self.inner)),
                dtype=self.dtype,
                fletcher32=True,
            )
        return self._data

    def _write(self, count: int) -> None:
        waiting = self._waiting
        whole = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
        end = self._written + count
        data = self._dataset()
        data.resize(end, axis=0)
        data[self._written : end] = whole[:count]
        self._written = end
        # A copy, so that the rest does not keep the caller's batch alive.
        self._waiting = [whole[count:].copy()] if len(whole) > count else []
