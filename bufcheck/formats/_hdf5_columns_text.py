"""The columns that are no numbers: strings, and what only Arrow itself can hold (child process)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from bufcheck.errors import ReadError
from bufcheck.formats._hdf5_columns import SLICE_BYTES, VLEN_ROWS, Column, numbers, offsets_of
from bufcheck.formats._hdf5_layout import DUMP_AGAIN, MAX_ROWS


@dataclass
class Text(Column):
    """Strings, one by one; fixed-length ones, or variable-length ones."""

    def fit(self, start: int, stop: int) -> int:
        dtype = self.made_of[0].dtype
        if dtype is not None and dtype.kind == "O":
            return min(stop, start + VLEN_ROWS)
        return super().fit(start, stop)

    def read(self, start: int, stop: int) -> pa.Array:
        return utf8(self.made_of[0].data[start:stop].tolist(), self.type, self.name,
                    self.nulls(start, stop))  # fmt: skip


def utf8(
    values: list[bytes], kind: pa.DataType, name: str, nulls: np.ndarray[Any, Any] | None = None
) -> pa.Array:
    try:
        raw = pa.array(values, pa.large_binary(), mask=nulls)
        plain = raw.cast(pa.large_string())
        if pa.types.is_dictionary(kind):
            return plain.cast(kind.value_type).dictionary_encode().cast(kind)
        return plain.cast(kind)
    except pa.ArrowInvalid as error:
        what = str(error).splitlines()[0]
        raise ReadError(f"column {name} holds text that is not UTF-8 ({what})") from None


@dataclass
class Coded(Column):
    """made_of = [codes, dictionary(, dictionary_offsets)]; code -1 is a null.

    The dictionary is fixed-length strings or, with dictionary_offsets, the bytes of all of them.
    A large one is not loaded whole: codes that stand together were written together.
    """

    WHOLE_ENTRIES, WHOLE_BYTES = 1 << 16, 32 << 20

    @property
    def entries(self) -> int:
        return self.made_of[1].rows if len(self.made_of) == 2 else self.made_of[2].rows - 1

    @property
    def row_bytes(self) -> int:
        return self.made_of[0].row_bytes

    def fit(self, start: int, stop: int) -> int:
        """A short code can stand for a long string."""
        if pa.types.is_dictionary(self.type):
            return stop
        codes = self._codes(start, stop)
        if not len(codes) or codes.max() < 0:
            return stop
        first, last = int(codes[codes >= 0].min()), int(codes.max()) + 1
        if len(self.made_of) == 2:
            widths = np.full(last - first, self.made_of[1].row_bytes)
        else:
            widths = np.diff(offsets_of(self.made_of[2], first, last, self.made_of[1].rows))
        total = np.cumsum(np.where(codes < 0, 0, widths[np.maximum(codes - first, 0)]))
        return start + max(1, int(np.searchsorted(total, SLICE_BYTES, side="right")))

    def read(self, start: int, stop: int) -> pa.Array:
        codes = self._codes(start, stop)
        real = codes[codes >= 0]
        first, last = (int(real.min()), int(real.max()) + 1) if len(real) else (0, 0)
        size = self.made_of[1].rows * self.made_of[1].row_bytes
        if self.entries <= self.WHOLE_ENTRIES and size <= self.WHOLE_BYTES:
            first, dictionary = 0, self._whole
        else:
            dictionary = self._dictionary(first, last)
        coded = pa.types.is_dictionary(self.type)
        kind = self.type.index_type if coded else pa.int32()
        local = np.maximum(codes - first, 0)
        indices = pa.array(local, mask=codes < 0).cast(kind)
        if not coded:
            return dictionary.take(indices)
        return pa.DictionaryArray.from_arrays(indices, dictionary)

    def _codes(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        codes = numbers(self.made_of[0], start, stop).astype(np.int64, copy=False)
        if len(codes) and (codes.min() < -1 or codes.max() >= self.entries):
            raise ReadError(
                f"column {self.name}: a code is outside its dictionary of {self.entries} entries",
                DUMP_AGAIN,
            )
        nulls = self.nulls(start, stop)
        return codes if nulls is None else np.where(nulls, -1, codes)

    @cached_property
    def _whole(self) -> pa.Array:
        return self._dictionary(0, self.entries)

    def _dictionary(self, first: int, last: int) -> pa.Array:
        kind = self.type.value_type if pa.types.is_dictionary(self.type) else self.type
        if len(self.made_of) == 2:
            return utf8(self.made_of[1].data[first:last].tolist(), kind, self.name)
        offsets = offsets_of(self.made_of[2], first, last, self.made_of[1].rows)
        data = numbers(self.made_of[1], int(offsets[0]), int(offsets[-1])).tobytes()
        cuts = (offsets - offsets[0]).tolist()
        return utf8([data[a:b] for a, b in pairwise(cuts)], kind, self.name)


@dataclass
class Packed(Column):
    """Types HDF5 has no shape for: made_of = [values, offsets, rows], one Arrow stream each."""

    @cached_property
    def _ends(self) -> np.ndarray[Any, Any]:
        counts = numbers(self.made_of[2], 0, self.made_of[2].rows).astype(np.int64)
        if (counts < 0).any() or counts.sum(dtype=np.float64) > MAX_ROWS:
            raise ReadError(f"column {self.name}: its row counts make no sense", DUMP_AGAIN)
        return np.cumsum(counts)

    @property
    def rows(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def row_bytes(self) -> int:
        return 16

    def fit(self, start: int, stop: int) -> int:
        return min(stop, int(self._ends[np.searchsorted(self._ends, start, side="right")]))

    def read(self, start: int, stop: int) -> pa.Array:
        parts, at = [], start
        while at < stop:
            index = int(np.searchsorted(self._ends, at, side="right"))
            first = int(self._ends[index - 1]) if index else 0
            end = min(stop, int(self._ends[index]))
            parts.append(self._piece(index).slice(at - first, end - at))
            at = end
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _piece(self, index: int) -> pa.Array:
        if getattr(self, "_last", (None, None))[0] != index:
            offsets = offsets_of(self.made_of[1], index, index + 1, self.made_of[0].rows)
            data = numbers(self.made_of[0], int(offsets[0]), int(offsets[1]))
            try:
                with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
                    array = stream.read_next_batch().column(0)
                array.validate(full=True)
            except (pa.ArrowException, StopIteration) as error:
                raise ReadError(f"column {self.name}: {error}", DUMP_AGAIN) from None
            before = int(self._ends[index - 1]) if index else 0
            if array.type != self.type or len(array) != self._ends[index] - before:
                raise ReadError(f"column {self.name}: its parts do not agree", DUMP_AGAIN)
            self._last = (index, array)
        array = self._last[1]
        assert isinstance(array, pa.Array)
        return array
