"""msgpack with NumPy arrays, as RLlib stores whole episodes: data only, nothing in it can run.

Arrays are maps with a key b"nd", as the package msgpack-numpy writes them. Arrays of objects hold a
pickle; they are left closed.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Any

import numpy as np

from bufcheck.errors import ForeignError

MOST_DEPTH = 64
DAMAGED = "record the episodes again"
NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
LENGTHS = {1: ">B", 2: ">H", 4: ">I"}
BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
TEXTS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
LISTS = {0xDC: 2, 0xDD: 4}
MAPS = {0xDE: 2, 0xDF: 4}
TYPE = re.compile(r"[<>|=]?[biuf][1248]")


def loads(data: bytes) -> Any:
    reader = _Reader(data)
    found = reader.value(0)
    if reader.at != len(data):
        raise ForeignError("an episode has more bytes than it says", DAMAGED)
    return found


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise ForeignError("an episode was cut off", DAMAGED)
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def value(self, depth: int) -> Any:
        if depth > MOST_DEPTH:
            raise ForeignError("an episode is nested deeper than any is", DAMAGED)
        code = self.number(">B")
        if code <= 0x7F or code >= 0xE0:
            return code if code <= 0x7F else code - 0x100
        if code <= 0x8F:
            return self.map(code & 0x0F, depth)
        if code <= 0x9F:
            return self.list(code & 0x0F, depth)
        if code <= 0xBF:
            return self.text(code & 0x1F)
        if code in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[code]
        if code in NUMBERS:
            return self.number(NUMBERS[code])
        return self.sized(code, depth)

    def sized(self, code: int, depth: int) -> Any:
        for kinds, read in ((BYTES, self.take), (TEXTS, self.text)):
            if code in kinds:
                return read(self.number(LENGTHS[kinds[code]]))
        if code in LISTS:
            return self.list(self.number(LENGTHS[LISTS[code]]), depth)
        if code in MAPS:
            return self.map(self.number(LENGTHS[MAPS[code]]), depth)
        raise ForeignError(
            f"an episode holds what msgpack calls {code:#x}, which no episode has", DAMAGED
        )

    def text(self, size: int) -> str:
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise ForeignError("an episode has text that is no UTF-8", DAMAGED) from None

    def list(self, count: int, depth: int) -> list[Any]:
        if count > len(self.data) - self.at:  # each takes a byte at least
            raise ForeignError("an episode was cut off", DAMAGED)
        return [self.value(depth + 1) for _ in range(count)]

    def map(self, count: int, depth: int) -> Any:
        found = {}
        for _ in range(count):
            key = self.value(depth + 1)
            if not isinstance(key, (str, bytes, int)):
                raise ForeignError("an episode has a key that is no text", DAMAGED)
            found[key] = self.value(depth + 1)
        return _array(found) if b"nd" in found else found


def _array(found: dict[Any, Any]) -> Any:
    kind, data = found.get(b"type"), found.get(b"data")
    if found.get(b"kind") in (b"O", b"V"):
        return None
    if not isinstance(kind, str) or not TYPE.fullmatch(kind) or not isinstance(data, bytes):
        raise ForeignError("an episode has an array of no type that is read", DAMAGED)
    shape = found.get(b"shape", []) if found[b"nd"] else []
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise ForeignError("an episode has an array without a shape", DAMAGED)
    dtype = np.dtype(kind)
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ForeignError(f"an episode has an array that claims shape {shape}, and is not", DAMAGED)
    values = np.frombuffer(data, dtype).reshape(shape)
    values = values if dtype.isnative else values.astype(dtype.newbyteorder("="))
    return values if found[b"nd"] else values[()]
