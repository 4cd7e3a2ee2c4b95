"""Columns of rows in memory, as NumPy has them: joined, and handed on as Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bufcheck.vectors import Array, as_arrow, texts_as_arrow

if TYPE_CHECKING:
    import pyarrow as pa


class Field(NamedTuple):
    """One column: [N] scalars, [N, D] vectors, or with `offsets` rows of any length, end to end."""

    values: Array
    offsets: Array | None = None
    null: Array | None = None

    @property
    def lengths(self) -> Array:
        """Of a column of vectors: how long each is."""
        if self.offsets is None:
            return np.full(len(self.values), self.values.shape[1])
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def rows(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1


Fields = dict[str, Field]


def joined(pieces: Sequence[Fields]) -> Fields:
    """The rows of several calls, one after the other."""
    if len(pieces) == 1:
        return pieces[0]
    return {name: _join([piece[name] for piece in pieces]) for name in pieces[0]}


def _join(fields: Sequence[Field]) -> Field:
    values = np.concatenate([field.values for field in fields])
    null = None
    if any(field.null is not None for field in fields):
        null = np.concatenate(
            [np.zeros(field.rows, bool) if field.null is None else field.null for field in fields]
        )
    if fields[0].offsets is None:
        return Field(values, None, null)
    lengths = np.concatenate([field.lengths for field in fields])
    return Field(values, np.concatenate([[0], np.cumsum(lengths)]), null)


def as_batch(fields: Fields) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([_arrow(f) for f in fields.values()], names=list(fields))


def _arrow(field: Field) -> pa.Array:
    import pyarrow as pa

    values, null = field.values, field.null
    if field.offsets is not None:
        ends = as_arrow(field.offsets.astype(np.int32))
        return pa.ListArray.from_arrays(ends, as_arrow(values))
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(as_arrow(values.reshape(-1)), values.shape[1])
    if values.dtype.kind == "O":
        texts = texts_as_arrow(values.tolist())
        return texts if null is None else pa.array(texts.to_pylist(), mask=null)
    return as_arrow(values, null)
