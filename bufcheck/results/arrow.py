"""For Arrow readers: an IPC stream into a pipe, an IPC file (which can be mapped) as a file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO

from bufcheck.result import Asked, Told
from bufcheck.results._columns import fitted, settled

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".arrow", ".arrows", ".feather")
BINARY = True


def write(schema: pa.Schema, batches: Iterable[pa.RecordBatch], out: BinaryIO, asked: Asked) -> Told:
    import pyarrow as pa

    rows = 0
    schema = settled(schema)
    start = pa.ipc.new_file if asked.is_file else pa.ipc.new_stream
    writer = start(out, schema)
    for batch in batches:
        writer.write_batch(fitted(batch, schema))
        rows += batch.num_rows
    writer.close()  # not if the query failed: without its end a file is seen to be cut off
    return Told(rows, rows)
