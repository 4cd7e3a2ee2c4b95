"""Writes the answer of a query in one of the forms of `results/`.

A form is one module in `results/` with

    SUFFIXES                             the suffixes of files that hold it, its own first
    BINARY                               whether it is nothing for a terminal
    write(schema, batches, out, asked)   -> Told; `batches` are never empty and of bounded size

It keeps no batch longer than it must: an answer may be larger than memory.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from bufcheck.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_ROWS = 1 << 13
PIECE_BYTES = 8 << 20
"""What is turned into text at once. A batch may hold a million rows of long vectors."""


class Told(NamedTuple):
    """What was written: the rows of the answer, and how many of them can be read in it."""

    rows: int
    shown: int


class Asked(NamedTuple):
    """How it is to be written. A form ignores what does not concern it."""

    width: int | None
    """Columns of the terminal; None: as wide as it gets."""
    most: int
    """Rows a person wants to see; 0: all of them."""
    is_file: bool
    """Whether it becomes a file of its own, which a reader may seek in."""


def names() -> list[str]:
    import bufcheck.results as members

    return sorted(m.name for m in pkgutil.iter_modules(members.__path__) if m.name[0] != "_")


def member(name: str) -> Any:
    if name not in names():
        raise UsageError(f"{name}: no form of a result", f"use one of {', '.join(names())}")
    return importlib.import_module(f"bufcheck.results.{name}")


def of_suffix(path: str | Path) -> str | None:
    """The form of an output file of this name, or None if its suffix says nothing."""
    known = {suffix: name for name in names() for suffix in member(name).SUFFIXES}
    return known.get(Path(path).suffix.lower())


def write(
    reader: pa.RecordBatchReader,
    form: str,
    out: BinaryIO,
    *,
    width: int | None = None,
    most: int = 0,
    is_file: bool = False,
) -> Told:
    """Writes all of the answer to `out`, which stays open."""
    asked = Asked(width, most, is_file)
    told: Told = member(form).write(reader.schema, _pieces(reader), out, asked)
    return told


def _pieces(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The batches, cut so that no piece is large, whatever the query engine hands over."""
    for batch in reader:
        rows = batch.num_rows
        step = max(1, min(PIECE_ROWS, PIECE_BYTES * rows // max(batch.nbytes, 1)))
        for start in range(0, rows, step):
            yield batch.slice(start, step)
