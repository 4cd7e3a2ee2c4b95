"""For programs: one JSON array of objects, a line each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO

from bufcheck.result import Asked, Told
from bufcheck.results._text import objects, write_lines

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".json",)
BINARY = False


def write(schema: pa.Schema, batches: Iterable[pa.RecordBatch], out: BinaryIO, asked: Asked) -> Told:
    rows = 0
    out.write(b"[")
    for batch in batches:
        out.write(b",\n" if rows else b"\n")
        write_lines(out, objects(schema.names, batch.columns, batch.num_rows), ",\n")
        rows += batch.num_rows
    out.write(b"\n]\n" if rows else b"]\n")
    return Told(rows, rows)
