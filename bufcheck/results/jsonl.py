"""For programs that read as it comes: one JSON object per line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO

from bufcheck.result import Asked, Told
from bufcheck.results._text import objects, write_lines

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".jsonl", ".ndjson")
BINARY = False


def write(schema: pa.Schema, batches: Iterable[pa.RecordBatch], out: BinaryIO, asked: Asked) -> Told:
    rows = 0
    for batch in batches:
        write_lines(out, objects(schema.names, batch.columns, batch.num_rows))
        out.write(b"\n")
        rows += batch.num_rows
    return Told(rows, rows)
