"""Finds the format of a file by its content, and reads or writes it through `formats/`.

A format is one module in `formats/` with three functions:

    recognises(file)                                  does this open binary file hold it?
    open_source(path, names)                          -> Source; names: what columns are called there
    writer(path, schema, metadata)                    -> Writer

and a tuple `SUFFIXES`, the first of which names its files. Only content decides what a file is.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from bufcheck.errors import NoDumpError, ReadError, UsageError, WriteError

if TYPE_CHECKING:
    import pyarrow as pa

Ranges = list[tuple[int, int]]
VERIFIED, NOT_VERIFIABLE = "verified", "not-verifiable"


@dataclass(frozen=True)
class Source:
    """One opened file of a dump. Nothing heavy has been read yet."""

    path: Path
    format: str
    schema: pa.Schema
    """Its columns, as Arrow types, in file order; without metadata."""
    rows: int
    """The rows that every column has."""
    metadata: bytes | None
    """The raw JSON under the key `bufcheck`, if any."""
    read: Callable[[list[str], Ranges | None], Iterator[pa.RecordBatch]]
    """read(columns, ranges): batches of exactly these columns, in this order, in row order.
    `ranges` are sorted, disjoint (start, stop) rows; None means all of them."""
    integrity: str = NOT_VERIFIABLE
    """"verified" when reading a column also verifies its checksums."""
    uneven: dict[str, int] = field(default_factory=dict)
    """Columns that are longer than `rows`, with their length: a writer was cut off."""


class Writer(Protocol):
    """Takes batches one after the other; as a context manager. What it wrote is a dump once it was
    left without an exception: `rows` is added to its metadata, and they are written, last of all."""

    rows: int
    metadata: dict[str, Any]

    def append(self, batch: pa.RecordBatch) -> None: ...

    def __enter__(self) -> Writer: ...

    def __exit__(self, failed: object, *_: object) -> None: ...


@cache
def names() -> tuple[str, ...]:
    import bufcheck.formats as members

    return tuple(sorted(m.name for m in pkgutil.iter_modules(members.__path__) if m.name[0] != "_"))


def member(name: str) -> Any:
    return importlib.import_module(f"bufcheck.formats.{name}")


def of_file(path: Path) -> str | None:
    """The name of the format this file holds, or None."""
    with path.open("rb") as file:
        for name in names():
            file.seek(0)
            if member(name).recognises(file):
                return name
    return None


def of_suffix(path: Path) -> str:
    """The format an output of this name is to be written in."""
    known = {suffix: name for name in names() for suffix in member(name).SUFFIXES}
    if path.suffix.lower() not in known:
        raise UsageError(f"{path}: the suffix says no format", f"use one of {', '.join(sorted(known))}")
    return known[path.suffix.lower()]


def has_known_suffix(path: Path) -> bool:
    return any(path.suffix.lower() in member(name).SUFFIXES for name in names())


def open_source(path: Path, names: Mapping[str, str] = MappingProxyType({})) -> Source:
    if path.exists() and not path.is_file():
        raise ReadError(f"{path}: not a regular file", "bufcheck reads a dump more than once")
    try:
        size = path.stat().st_size
        name = of_file(path) if size else None
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror or error}") from None
    if size == 0:
        raise ReadError(f"{path}: the file is empty", "was the trainer stopped before it wrote?")
    if name is None:
        raise NoDumpError(f"{path}: {_what_it_looks_like(path)}", f"bufcheck reads {_known()}")
    source: Source = member(name).open_source(path, names)
    return source


def writer(name: str, path: Path, schema: pa.Schema, metadata: dict[str, Any]) -> Writer:
    made: Writer = member(name).writer(path, schema, metadata)
    return made


def write(
    name: str,
    path: Path,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    metadata: dict[str, Any],
) -> int:
    """Writes all batches in the format of this name; returns their rows."""
    with writer(name, path, schema, metadata) as file:
        for batch in batches:
            file.append(batch)
    return file.rows


def verify(path: Path, rows: int) -> None:
    """Reads a new file once, which checks its checksums, before it gets its name."""
    source = open_source(path)
    found = sum(batch.num_rows for batch in source.read(source.schema.names, None))
    if found != rows:
        raise WriteError(f"{path}: wrote {rows} rows, read back {found}")


def _known() -> str:
    return " and ".join({"parquet": "Parquet", "hdf5": "HDF5"}.get(n, n) for n in names())


def _what_it_looks_like(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(8)
    if head[:4] == b"PAR1":
        return "a Parquet file without its footer: it is still being written, or was cut off"
    if head[:2] == b"\x1f\x8b":
        return "gzip-compressed; unpack it first"
    return "neither Parquet nor HDF5"
