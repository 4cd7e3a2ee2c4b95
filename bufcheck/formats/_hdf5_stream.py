"""Cuts what was asked for into Arrow batches of a few megabytes (child process)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from bufcheck.formats._hdf5_columns import MOST_ROWS, SLICE_BYTES, Column

BATCH_BYTES = 4 * SLICE_BYTES
GAP = 256
"""Ranges closer than this are read in one go: a seek costs more than so many rows."""
MOST_PIECES = 512

Span = tuple[int, int, list[tuple[int, int]]]


def schema_of(columns: list[Column]) -> pa.Schema:
    return pa.schema(
        [pa.field(column.name, column.type, nullable=not column.required) for column in columns]
    )


def serialised(batch: pa.RecordBatch) -> pa.Buffer:
    """A stream of its own for every batch, so that each carries its own dictionaries."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def batches(columns: list[Column], ranges: Sequence[Sequence[int]]) -> Iterator[pa.RecordBatch]:
    """Batches in row order; scattered small ranges are gathered into one batch."""
    schema = schema_of(columns)
    step = rows_per_batch(columns)
    pieces: list[list[pa.Array]] = []
    rows = 0
    for start, stop, kept in spans(ranges, step):
        while start < stop:
            end = stop
            for column in columns:
                end = min(end, column.fit(start, end))
            arrays = [column.read(start, end) for column in columns]
            piece = _only(arrays, start, end, kept)
            start = end
            pieces.append(piece)
            rows += len(piece[0])
            if rows and (2 * rows > step or len(pieces) >= MOST_PIECES or start < stop):
                yield _joined(pieces, schema)
                pieces, rows = [], 0
    if rows:
        yield _joined(pieces, schema)


def rows_per_batch(columns: list[Column]) -> int:
    """A power of two, so that batches end where the chunks of most files do."""
    width = sum(column.row_bytes for column in columns)
    widest = max(column.row_bytes for column in columns)
    rows = min(MOST_ROWS, BATCH_BYTES // max(1, width), SLICE_BYTES // max(1, widest))
    return 1 << max(0, int(rows).bit_length() - 1)


def spans(ranges: Sequence[Sequence[int]], step: int) -> Iterator[Span]:
    """(start, stop, the ranges wanted within): at most `step` rows, ending at multiples of it."""
    first = last = 0
    kept: list[tuple[int, int]] = []
    for begin, finish in ranges:
        while begin < finish:
            end = min(finish, (begin // step + 1) * step)
            if kept and (begin - last > GAP or begin // step != first // step):
                yield first, last, kept
                kept = []
            if not kept:
                first = begin
            kept.append((begin, end))
            begin = last = end
    if kept:
        yield first, last, kept


def _only(arrays: list[pa.Array], start: int, end: int, kept: list[tuple[int, int]]) -> list[pa.Array]:
    if len(kept) == 1:
        return arrays
    inside = [np.arange(max(a, start), min(b, end)) for a, b in kept if a < end and b > start]
    rows = pa.array(np.concatenate([np.empty(0, np.int64), *inside]) - start)
    return [array.take(rows) for array in arrays]


def _joined(pieces: list[list[pa.Array]], schema: pa.Schema) -> pa.RecordBatch:
    if len(pieces) == 1:
        return pa.RecordBatch.from_arrays(pieces[0], schema=schema)
    columns = [pa.concat_arrays(list(parts)) for parts in zip(*pieces, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
