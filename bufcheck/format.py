"""Finds the format of a file by its content, and reads or writes it through `formats/`.

A format is one module in `formats/` with three functions:

    recognises(file)                                  does this open binary file hold it?
    open_source(path, names)                          -> Source; names: what columns are called there
    write(path, schema, batches, metadata)            -> rows written

and a tuple `SUFFIXES`, the first of which names its files. Only content decides what a file is.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bufcheck.errors import NoDumpError, ReadError, UsageError

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


def names() -> list[str]:
    import bufcheck.formats as members

    return sorted(m.name for m in pkgutil.iter_modules(members.__path__) if m.name[0] != "_")


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
