"""What the footer of a Parquet file says of where its columns lie.

pyarrow knows it too, but ends the process where a damaged footer contradicts itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from bufcheck.formats._parquet_page import has_checksum
from bufcheck.formats._thrift import read_struct

TAIL = 8


class Chunk(NamedTuple):
    """A column in one row group."""

    type: int
    codec: int
    values: int
    size: int
    """Unpacked, in bytes."""
    start: int
    stop: int
    """Where its pages lie in the file."""


class RowGroup(NamedTuple):
    rows: int
    chunks: list[Chunk]


def read_footer(path: Path) -> list[RowGroup]:
    """The row groups. Raises ValueError where the footer is damaged."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - TAIL, 0))
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(size - TAIL - length, 0))
        data = file.read(length)
    try:
        groups = [_group(told, size) for told in read_struct(data)[0][4]]
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"its footer cannot be read: {error!r}") from None
    return groups


def has_page_checksums(path: Path, footer: list[RowGroup]) -> bool:
    """Whether the first page of every column chunk carries a CRC. pyarrow verifies but does not say."""
    with path.open("rb") as file:
        for group in footer:
            for chunk in group.chunks if group.rows else []:  # a file that holds no rows has no pages
                file.seek(chunk.start)
                if not has_checksum(file.read(64)):
                    return False
    return bool(footer)


def _group(told: dict[int, Any], size: int) -> RowGroup:
    rows, chunks = told[3], [_chunk(column[3]) for column in told[1]]
    if rows < 0 or not all(isinstance(number, int) for chunk in chunks for number in chunk):
        raise ValueError("its footer holds no numbers where it should")
    for chunk in chunks if rows else []:
        if not 0 < chunk.start <= chunk.stop <= size:
            raise ValueError(f"a column lies at {chunk.start} to {chunk.stop}, outside the file")
    return RowGroup(rows, chunks)


def _chunk(told: dict[int, Any]) -> Chunk:
    first, dictionary = told[9], told.get(11, 0)
    start = dictionary if 0 < dictionary < first else first
    return Chunk(told[1], told[4], told[5], told[6], start, start + told[7])
