"""Pages of a Parquet file: their headers, and the levels that say where rows begin."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from bufcheck.formats._thrift import I32, read_struct, varint
from bufcheck.vectors import Array

HEADER = 512
"""Bytes in which the header of a page of numbers fits."""
DATA_PAGE = 0
PLAIN, RLE = 0, 3


class Page(NamedTuple):
    kind: int
    size: int
    """Unpacked, in bytes."""
    stored: int
    """As it lies in the file."""
    crc: int | None
    header: int
    """How long its header is."""
    values: int
    encodings: tuple[int, ...]
    """Of values, definition levels and repetition levels."""


def pages(file: int, start: int, stop: int) -> Iterator[tuple[Page, Callable[[], memoryview]]]:
    """The pages between these places of the file, each with a function that gives its content."""
    likely = 0
    while start < stop:
        # As much as the page before took is asked for at once.
        block = os.pread(file, HEADER + likely, start)
        page = parse_header(block)
        content, start = start + page.header, start + page.header + page.stored
        if page.stored < 0 or start > stop:
            raise ValueError("a page goes beyond its column")
        yield page, partial(_content, file, page, block, content)
        likely = min(page.stored, 4 << 20)


def _content(file: int, page: Page, block: bytes, at: int) -> memoryview:
    data = memoryview(block)[page.header : page.header + page.stored]
    return data if len(data) == page.stored else memoryview(os.pread(file, page.stored, at))


def parse_header(data: bytes) -> Page:
    fields, length = read_struct(data)
    about = fields.get(5, {})
    crc = fields[4] & 0xFFFFFFFF if 4 in fields else None
    encodings = tuple(about.get(number) for number in (2, 3, 4))
    return Page(fields[1], fields[2], fields[3], crc, length, about.get(1, 0), encodings)


def has_checksum(header: bytes) -> bool:
    """Whether a page has one, by the first fields of its header: (type, size, size as stored, crc)."""
    at, field = 0, 0
    for number in (1, 2, 3, 4):
        field += header[at] >> 4
        if header[at] & 15 != I32 or field != number:
            return False
        at = varint(header, at + 1)[1]
    return True


@lru_cache(32)
def zeros(levels: bytes, count: int) -> Array:
    """Where the level is 0, among levels of one bit. Nearly all pages of a file have the same ones."""
    runs: list[Array] = []
    packed, places = bytearray(), array("q")
    for place, length, level in _runs(levels, count):
        if isinstance(level, bytes):
            packed += level
            places.extend(range(place, place + length, 8))
        elif level == 0:
            runs.append(np.arange(place, place + length))
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little").reshape(-1, 8)
    group, bit = np.nonzero(bits == 0)
    found = np.concatenate([*runs, np.array(places, np.int64)[group] + bit])
    found.sort()
    return found[found < count]


def always(levels: bytes, count: int, level: int) -> bool:
    """Whether all of the levels are this one, as a writer says it shortest."""
    return all(found == level for _, _, found in _runs(levels, count))


def _runs(levels: bytes, count: int) -> Iterator[tuple[int, int, int | bytes]]:
    """(first, how many, which) of one level that repeats; or eight levels of one bit to a byte."""
    at = place = 0
    while place < count:
        head, at = varint(levels, at)
        length = (head >> 1) * (8 if head & 1 else 1)
        if not 0 < length < count - place + 8:
            raise ValueError("levels beyond the page")
        yield place, length, levels[at : at + length // 8] if head & 1 else levels[at]
        at += length // 8 if head & 1 else 1
        place += length
