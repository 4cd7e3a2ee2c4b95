"""Thrift's compact protocol, which Parquet describes itself in: numbers, lists and structs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, TEXT, LIST, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 12
DEEPEST, LONGEST = 12, 63
"""Levels of nesting, and bits of a number: to read on where a file is damaged could take forever."""


def read_struct(data: bytes, at: int = 0, depth: int = 0) -> tuple[dict[int, Any], int]:
    """{field: value} and where it ends. None for what nobody here asks for: texts, short numbers."""
    found: dict[int, Any] = {}
    field = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            field, at = _number(data, at, depth)
        if head & 15 in (TRUE, FALSE):
            found[field] = head & 15 == TRUE
        else:
            found[field], at = _reader(head & 15)(data, at, depth + 1)
    return found, at + 1


def varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > LONGEST:
            raise ValueError("a number of more than 64 bits")


def _reader(kind: int) -> Callable[[bytes, int, int], tuple[Any, int]]:
    if kind not in _READERS:
        raise ValueError(f"no type of Thrift: {kind}")
    return _READERS[kind]


def _number(data: bytes, at: int, _: int) -> tuple[int, int]:
    number, at = varint(data, at)
    return number >> 1 ^ -(number & 1), at


def _short(data: bytes, at: int, _: int) -> tuple[None, int]:
    return None, varint(data, at)[1]


def _text(data: bytes, at: int, _: int) -> tuple[None, int]:
    length, at = varint(data, at)
    return None, at + length


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    size, kind = data[at] >> 4, data[at] & 15
    at += 1
    if size == 15:
        size, at = varint(data, at)
    read = _byte if kind in (TRUE, FALSE) else _reader(kind)
    found = []
    for _ in range(size):
        value, at = read(data, at, depth + 1)
        found.append(value)
    return found, at


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    return read_struct(data, at, depth)


def _byte(data: bytes, at: int, _: int) -> tuple[int, int]:
    return data[at], at + 1


def _double(data: bytes, at: int, _: int) -> tuple[None, int]:
    if at + 8 > len(data):
        raise IndexError(at)
    return None, at + 8


_READERS: dict[int, Callable[[bytes, int, int], tuple[Any, int]]] = {
    BYTE: _byte,
    I16: _short,
    I32: _number,
    I64: _number,
    DOUBLE: _double,
    TEXT: _text,
    LIST: _list,
    STRUCT: _struct,
}
