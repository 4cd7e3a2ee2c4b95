"""The baseline of P1: imports what bufcheck imports, then reads every column and does nothing.

`python benchmarks/bare_read.py bounded|batches|table DUMP`: `bounded` reads as bufcheck has to, with memory
that does not grow with the row groups and with checksums verified; the others are pyarrow's defaults.
"""

from __future__ import annotations

import sys

import click  # noqa: F401
import duckdb  # noqa: F401
import numpy as np  # noqa: F401
import pyarrow.parquet as pq

how, path = sys.argv[1:]
if how == "table":
    rows = pq.read_table(path).num_rows
elif how == "batches":
    rows = sum(batch.num_rows for batch in pq.ParquetFile(path).iter_batches())
else:
    file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True)
    rows = sum(batch.num_rows for batch in file.iter_batches(8192, use_threads=False))
print(rows)
