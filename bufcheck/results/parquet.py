"""For the next tool, and for bufcheck itself: Parquet, with a checksum on every page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO

from bufcheck.errors import UsageError
from bufcheck.result import Asked, Told
from bufcheck.results._columns import fitted, settled

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

SUFFIXES = (".parquet", ".pq")
BINARY = True
GROUP_ROWS = 1 << 17
GROUP_BYTES = 32 << 20
"""A row group is written when it has so much: a larger one would cost memory, a small one speed."""


def write(schema: pa.Schema, batches: Iterable[pa.RecordBatch], out: BinaryIO, asked: Asked) -> Told:
    import pyarrow as pa

    rows, waiting = 0, list[pa.RecordBatch]()
    schema = settled(schema)
    with _open(schema, out) as writer:
        for batch in batches:
            waiting.append(fitted(batch, schema))
            rows += batch.num_rows
            if (
                sum(b.num_rows for b in waiting) >= GROUP_ROWS
                or sum(b.nbytes for b in waiting) >= GROUP_BYTES
            ):
                writer.write_table(pa.Table.from_batches(waiting, schema))
                waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, schema))
    return Told(rows, rows)


def _open(schema: pa.Schema, out: BinaryIO) -> pq.ParquetWriter:
    """Parquet has no intervals and no unions; nothing is written before that is known."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetWriter(out, schema, compression="zstd", write_page_checksum=True)
    except pa.ArrowNotImplementedError as error:
        problem = f"Parquet cannot hold this result ({str(error).splitlines()[0]})"
        raise UsageError(problem, "cast the column in the SELECT, as in x::VARCHAR") from None
