"""Vectors of one length, taken from the pages of a Parquet file as they lie there.

Arrow spends most of its time on a wide vector finding out where each row begins and what is null. Where
every row has all its numbers, a page is just these, one after the other: to take them costs a third.
Whatever is not as plain as that (nulls, encodings, damage) is left to Arrow, from that row on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np

from bufcheck.formats import _parquet_page as page_format
from bufcheck.formats._parquet_footer import RowGroup
from bufcheck.formats._parquet_page import Page
from bufcheck.vectors import Array

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

LEAST_WIDTH = 8
LEAST_PAGE, MOST_PAGE = 1 << 16, 1 << 26
"""In bytes. Smaller ones cost more here than in Arrow; larger ones would cost memory."""
CODECS = {0: None, 1: "snappy", 6: "zstd"}
PHYSICAL = {"float": ("FLOAT", 4), "double": ("DOUBLE", 5)}
"""By Arrow's type: what Parquet calls it, and its number there."""
_LEVELS_SIZE = 4
DAMAGE = (AttributeError, LookupError, OSError, OverflowError, TypeError, ValueError)
"""What bytes that were not meant to be read like this lead to."""


class UnusualPageError(Exception):
    """It is left to Arrow."""


class Column(NamedTuple):
    name: str
    leaf: int
    type: pa.FixedSizeListType
    stored_type: int
    there: int
    """The definition level of a number that is not null."""

    @property
    def width(self) -> int:
        return int(self.type.list_size)


def columns_of(parquet: pq.ParquetFile, names: list[str]) -> list[Column]:
    """Which of these columns may be read like this."""
    import pyarrow as pa

    if not hasattr(os, "pread"):  # on Windows
        return []
    leaves = [parquet.schema.column(leaf) for leaf in range(len(parquet.schema))]
    schema = parquet.schema_arrow
    found = []
    for index, leaf in enumerate(leaves):
        name = leaf.path.split(".")[0]
        if name not in names or leaf.max_repetition_level != 1:
            continue
        kind = schema.field(name).type
        if not pa.types.is_fixed_size_list(kind) or kind.list_size < LEAST_WIDTH:
            continue
        physical, number = PHYSICAL.get(str(kind.value_type), (None, -1))
        if leaf.physical_type == physical:
            found.append(Column(name, index, kind, number, leaf.max_definition_level))
    return found


class Vectors:
    """A column's rows in some row groups, taken as many at a time as are asked for."""

    def __init__(
        self, path: Path, parquet: pq.ParquetFile, footer: list[RowGroup], column: Column, groups: range
    ) -> None:
        self._parquet, self._footer, self._column = parquet, footer, column
        self._pieces = self._read(path, groups)
        self._piece: pa.Array | None = None

    def take(self, rows: int) -> pa.Array:
        import pyarrow as pa

        taken = []
        while rows:
            piece = next(self._pieces, None) if self._piece is None else self._piece
            if piece is None:
                raise ValueError(f"{self._column.name} has fewer rows than other columns")
            taken.append(piece[:rows])
            self._piece = piece[rows:] if len(piece) > rows else None
            rows -= len(taken[-1])
        # Together with nothing, a single piece is copied too: numbers lie anywhere in their page.
        return pa.concat_arrays([*taken, taken[0][:0]])

    def end(self) -> None:
        if self._piece is not None or next(self._pieces, None) is not None:
            raise ValueError(f"{self._column.name} has more rows than other columns")

    def _read(self, path: Path, groups: range) -> Iterator[pa.Array]:
        import pyarrow as pa

        with path.open("rb") as file:
            for group in groups:
                told = self._footer[group]
                if told.chunks[self._column.leaf].values > told.rows * self._column.width:
                    raise ValueError(f"{self._column.name} has more rows than its row group")
                given = 0
                try:
                    for rows in self._plain_rows(file.fileno(), group):
                        given += len(rows)
                        yield rows
                except (UnusualPageError, *DAMAGE, pa.ArrowException):
                    pass  # Arrow can read it, or knows what to say
                yield from self._by_arrow(group, given)

    def _by_arrow(self, group: int, first: int, last: int | None = None) -> Iterator[pa.Array]:
        last = self._footer[group].rows if last is None else last
        if first >= last:
            return
        size = max(256, (1 << 18) // self._column.width)
        position = 0
        for batch in self._parquet.iter_batches(size, [group], [self._column.name], use_threads=False):
            here = batch.column(0)[max(first - position, 0) : last - position]
            position += batch.num_rows
            if len(here):
                yield here
            if position >= last:
                return
        raise ValueError(f"{self._column.name} has fewer rows than its row group")

    def _plain_rows(self, file: int, group: int) -> Iterator[pa.Array]:
        import pyarrow as pa

        width, rest, skipped = self._column.width, np.empty(0), None
        for first, numbers in self._plain_numbers(file, group):
            if skipped is None:  # a writer begins with a dictionary, and drops it where few repeat
                yield from self._by_arrow(group, 0, -(-first // width))
                skipped = -first % width
            start, skipped = skipped, max(skipped - len(numbers), 0)
            numbers = numbers[start:]
            if len(rest):  # of a row that goes on in this page
                numbers = np.concatenate([rest, numbers])
            count = len(numbers) // width
            rest = numbers[count * width :]
            if count:
                flat = numbers[: count * width].view(np.uint8)
                kind = self._column.type.value_type
                array = pa.Array.from_buffers(kind, count * width, [None, pa.py_buffer(flat)], 0)
                yield pa.FixedSizeListArray.from_arrays(array, type=self._column.type)

    def _plain_numbers(self, file: int, group: int) -> Iterator[tuple[int, Array]]:
        """Page by page: how many numbers of the row group lie before it, and its own."""
        chunk = self._footer[group].chunks[self._column.leaf]
        full = self._footer[group].rows * self._column.width  # a row that is null counts as one number
        if (chunk.type, chunk.values) != (self._column.stored_type, full) or chunk.codec not in CODECS:
            raise UnusualPageError
        before, plain = 0, False
        for page, content in page_format.pages(file, chunk.start, chunk.stop):
            if page.kind == page_format.DATA_PAGE and page.encodings[0] == page_format.PLAIN:
                left = chunk.values - before - page.values
                small = page.size < LEAST_PAGE and left > 0
                if left < 0 or small or max(page.size, page.stored) > MOST_PAGE:
                    raise UnusualPageError
                plain = True
                yield before, self._numbers(page, content(), before, CODECS[chunk.codec])
            elif plain:
                raise UnusualPageError
            before += page.values

    def _numbers(self, page: Page, content: memoryview, before: int, codec: str | None) -> Array:
        """Those of a page, where all are there and each row begins where it should."""
        import pyarrow as pa

        numbers_size = page.values * self._column.type.value_type.bit_width // 8
        if not 0 < numbers_size <= page.size or (page.crc is not None and crc32(content) != page.crc):
            raise UnusualPageError
        if codec:
            content = memoryview(pa.Codec(codec).decompress(content, page.size))
        starts, content = _levels(content)
        there, content = _levels(content)
        width = self._column.width
        expected = np.arange(-before % width, page.values, width)
        if (
            page.encodings[1:] != (page_format.RLE, page_format.RLE)
            or not page_format.always(there, page.values, self._column.there)
            or not np.array_equal(page_format.zeros(starts, page.values), expected)
            or len(content) != numbers_size
        ):
            raise UnusualPageError
        return np.frombuffer(content, self._column.type.value_type.to_pandas_dtype())


def _levels(content: memoryview) -> tuple[bytes, memoryview]:
    """The levels that a page begins with, and what follows."""
    size = int.from_bytes(content[:_LEVELS_SIZE], "little")
    end = _LEVELS_SIZE + size
    return bytes(content[_LEVELS_SIZE:end]), content[end:]
