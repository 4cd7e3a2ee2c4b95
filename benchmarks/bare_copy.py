"""The baseline of P8: imports what bufcheck imports, then reads every column and writes it again.

`python benchmarks/bare_copy.py batches|table DUMP COPY`: the two ways pyarrow offers, with its defaults.
"""

from __future__ import annotations

import sys

import click  # noqa: F401
import duckdb  # noqa: F401
import numpy as np  # noqa: F401
import pyarrow.parquet as pq

how, path, copy = sys.argv[1:]
if how == "table":
    pq.write_table(pq.read_table(path), copy)
else:
    file = pq.ParquetFile(path)
    with pq.ParquetWriter(copy, file.schema_arrow) as writer:
        for batch in file.iter_batches(1 << 17):
            writer.write_batch(batch)
