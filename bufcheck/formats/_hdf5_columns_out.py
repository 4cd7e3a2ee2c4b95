"""Takes one column's Arrow arrays apart into the datasets that hold it in HDF5."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bufcheck.errors import WriteError
from bufcheck.formats import _hdf5_types as types
from bufcheck.formats._hdf5_append import Appender

Parts = dict[str, h5py.Dataset]


def for_type(file: h5py.File, kind: pa.DataType) -> Any:
    if not types.has_shape(kind):
        return Pack(file, kind)
    if types.is_text(kind):
        return Texts(file)
    return Rows(file, kind) if types.is_ragged(kind) else Numbers(file, kind)


def raw(array: pa.Array) -> np.ndarray[Any, Any]:
    """The values bit by bit, with zeros where they are null."""
    if pa.types.is_boolean(array.type):
        return np.asarray(pc.fill_null(array, False).to_numpy(zero_copy_only=False))
    dtype = array.type.to_pandas_dtype()
    buffer = array.buffers()[1]
    if not len(array) or buffer is None:
        return np.zeros(len(array), dtype)
    values = np.frombuffer(buffer, dtype)[array.offset : array.offset + len(array)]
    if array.null_count:
        values = np.where(valid_of(array), values, np.zeros(1, dtype))
    return values


def valid_of(array: pa.Array) -> np.ndarray[Any, Any]:
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False))


class Valid:
    """Which values are not null; a dataset only from the first null on."""

    def __init__(self, file: h5py.File, inner: tuple[int, ...] = ()) -> None:
        self.file, self.inner = file, inner
        self.rows = 0
        self.appender: Appender | None = None

    def append(self, array: pa.Array) -> None:
        rows = len(array) // (self.inner[0] if self.inner else 1)
        if array.null_count and self.appender is None:
            self.appender = Appender(self.file, "u1", self.inner)
            for start in range(0, self.rows, self.appender.chunk):
                count = min(self.appender.chunk, self.rows - start)
                self.appender.append(np.ones((count, *self.inner), np.uint8))
        if self.appender is not None:
            self.appender.append(valid_of(array).astype(np.uint8).reshape(rows, *self.inner))
        self.rows += rows

    def finish(self, name: str) -> Parts:
        return {} if self.appender is None else {name: self.appender.finish()}


class Numbers:
    """Scalars, and vectors of one size."""

    def __init__(self, file: h5py.File, kind: pa.DataType) -> None:
        self.inner = (kind.list_size,) if pa.types.is_fixed_size_list(kind) else ()
        item = kind.value_type if self.inner else kind
        self.values = Appender(file, item.to_pandas_dtype(), self.inner)
        self.valid = Valid(file)
        self.items_valid = Valid(file, self.inner)

    def append(self, array: pa.Array) -> None:
        self.valid.append(array)
        if self.inner:
            size = self.inner[0]
            items = array.values.slice(array.offset * size, len(array) * size)
            self.items_valid.append(items)
            self.values.append(raw(items).reshape(len(array), size))
        else:
            self.values.append(raw(array))

    def finish(self) -> Parts:
        rest = self.valid.finish("valid") | self.items_valid.finish("values_valid")
        return {"values": self.values.finish()} | rest


class Rows:
    """Ragged lists: all items one after another, and where each row's begin."""

    def __init__(self, file: h5py.File, kind: pa.DataType) -> None:
        self.values = Appender(file, kind.value_type.to_pandas_dtype())
        self.offsets = Appender(file, "i8")
        self.offsets.append(np.zeros(1, np.int64))
        self.valid, self.items_valid = Valid(file), Valid(file)

    def append(self, array: pa.Array) -> None:
        self.valid.append(array)
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        self.offsets.append(self.values.rows + np.cumsum(lengths, dtype=np.int64))
        items = array.flatten()  # without what may lie hidden under a null
        self.items_valid.append(items)
        self.values.append(raw(items))

    def finish(self) -> Parts:
        parts = {"values": self.values.finish(), "offsets": self.offsets.finish()}
        return parts | self.valid.finish("valid") | self.items_valid.finish("values_valid")


class Texts:
    """Codes into a dictionary. -1 is a null.

    With ever new strings the dictionary would outgrow memory: at SEGMENT entries it is written out
    and started afresh, so that an entry may occur twice in it.
    """

    SEGMENT = 1 << 16
    PADDED_BYTES = 16 << 20

    def __init__(self, file: h5py.File) -> None:
        self.file = file
        self.codes = Appender(file, "i4")
        self.known: dict[bytes, int] = {}
        self.written = 0
        self.bytes: Appender | None = None
        self.offsets: Appender | None = None

    def append(self, array: pa.Array) -> None:
        for start in range(0, len(array), self.SEGMENT // 2):
            piece = array.slice(start, self.SEGMENT // 2)
            if not pa.types.is_dictionary(piece.type):
                piece = piece.dictionary_encode()
            used = pc.drop_null(pc.unique(piece.indices))
            if len(self.known) + len(used) > self.SEGMENT:
                self._flush()
            entries = piece.dictionary.take(used).cast(pa.large_binary()).to_pylist()
            codes = [-1 if entry is None else self._code(entry) for entry in entries]
            table = np.full(len(piece.dictionary) + 1, -1, np.int32)
            table[used.to_numpy()] = codes
            indices = pc.fill_null(piece.indices.cast(pa.int64()), len(piece.dictionary))
            self.codes.append(table[indices.to_numpy()])

    def _code(self, entry: bytes) -> int:
        code = self.known.setdefault(entry, self.written + len(self.known))
        if code >= 2**31:
            raise WriteError("more different strings than HDF5 codes can count")
        return code

    def _flush(self) -> None:
        if self.bytes is None or self.offsets is None:
            self.bytes, self.offsets = Appender(self.file, "u1"), Appender(self.file, "i8")
            self.offsets.append(np.zeros(1, np.int64))
        entries = list(self.known)
        ends = np.cumsum([len(entry) for entry in entries], dtype=np.int64)
        self.offsets.append(self.bytes.rows + ends)
        self.bytes.append(np.frombuffer(b"".join(entries), np.uint8))
        self.written += len(entries)
        self.known.clear()

    def finish(self) -> Parts:
        codes = self.codes.finish()
        entries = list(self.known)
        width = max((len(entry) for entry in entries), default=0)
        # HDF5 pads with NULs and drops them on reading: a string that ends in one needs offsets.
        padded = width * len(entries) <= self.PADDED_BYTES
        if not padded or self.written or any(entry.endswith(b"\0") for entry in entries):
            self._flush()
            assert self.bytes is not None and self.offsets is not None
            ends = self.offsets.finish()
            return {"codes": codes, "dictionary": self.bytes.finish(), "dictionary_offsets": ends}
        kind = h5py.string_dtype("utf-8", max(1, width))
        dictionary = Appender(self.file, kind)
        dictionary.append(np.array(entries, dtype=kind))
        return {"codes": codes, "dictionary": dictionary.finish()}


class Pack:
    """Types HDF5 has no shape for: Arrow streams, one per few thousand rows, as bytes."""

    ROWS, BYTES = 8192, 4 << 20

    def __init__(self, file: h5py.File, kind: pa.DataType) -> None:
        self.schema = pa.schema([pa.field("column", kind)])
        self.values = Appender(file, "u1")
        self.offsets, self.rows = Appender(file, "i8"), Appender(file, "i8")
        self.offsets.append(np.zeros(1, np.int64))
        self.described = Appender(file, "u1")
        self.described.append(np.frombuffer(self.schema.serialize(), np.uint8))

    def append(self, array: pa.Array) -> None:
        each = max(1, min(self.ROWS, self.BYTES * len(array) // max(1, array.nbytes)))
        for start in range(0, len(array), each):
            piece = array.slice(start, each)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self.schema) as stream:
                stream.write_batch(pa.RecordBatch.from_arrays([piece], schema=self.schema))
            self.values.append(np.frombuffer(sink.getvalue(), np.uint8))
            self.offsets.append(np.array([self.values.rows], np.int64))
            self.rows.append(np.array([len(piece)], np.int64))

    def finish(self) -> Parts:
        return {
            "values": self.values.finish(),
            "offsets": self.offsets.finish(),
            "rows": self.rows.finish(),
            "schema": self.described.finish(),
        }
