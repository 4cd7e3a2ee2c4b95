"""Values as cells of a table: short, on one line, and without power over the terminal."""

from __future__ import annotations

import math
import unicodedata
from typing import TYPE_CHECKING, Any

from bufcheck.results._text import bare, is_list, is_number, plain

if TYPE_CHECKING:
    import pyarrow as pa

WIDEST = 40
FEW = 6
"""A list of more numbers than this is summarised by its first ones."""
_SHORT = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "halffloat": "HALF",
    "float": "FLOAT",
    "double": "DOUBLE",
    "null": "NULL",
    "month_day_nano_interval": "INTERVAL",
}
_KINDS = (
    ("string", "VARCHAR"),
    ("large_string", "VARCHAR"),
    ("binary", "BLOB"),
    ("large_binary", "BLOB"),
    ("fixed_size_binary", "BLOB"),
    ("date", "DATE"),
    ("time64", "TIME"),
    ("time32", "TIME"),
    ("struct", "STRUCT"),
    ("map", "MAP"),
    ("union", "UNION"),
)


def type_name(kind: pa.DataType) -> str:
    """The type as SQL calls it, or else as Arrow does."""
    import pyarrow as pa
    from pyarrow import types as t

    if isinstance(kind, pa.BaseExtensionType):
        return line(kind.extension_name)
    if t.is_dictionary(kind):
        return type_name(kind.value_type)
    if is_list(kind):
        size = kind.list_size if t.is_fixed_size_list(kind) else ""
        return f"{type_name(kind.value_type)}[{size}]"
    if t.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if t.is_timestamp(kind):
        return "TIMESTAMPTZ" if kind.tz else "TIMESTAMP"
    for test, name in _KINDS:
        if getattr(t, f"is_{test}")(kind):
            return name
    return _SHORT.get(str(kind), line(str(kind)))


def cells(array: pa.Array) -> list[str]:
    """One cell per value."""
    from pyarrow import types as t

    array = bare(array)
    if t.is_floating(array.type):
        return [number(value) for value in array.to_pylist()]
    if is_list(array.type) and (is_number(inner := array.type.value_type) or t.is_boolean(inner)):
        return _vectors(array)
    return ["NULL" if value is None else line(value) for value in plain(array).to_pylist()]


def line(text: str) -> str:
    """A text, cut, and with whatever moves, hides or colours other text spelled out."""
    start = "".join(_visible(character) for character in text[: WIDEST + 1])
    if width(start) <= WIDEST and len(text) <= WIDEST:
        return start
    while width(start) >= WIDEST:
        start = start[:-1]
    return start + "…"


def width(text: str) -> int:
    """The columns it takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def number(value: Any, digits: int = 6) -> str:
    """So many digits, or all if that is shorter; a whole float still looks like a float."""
    if value is None:
        return "NULL"
    if not isinstance(value, float):
        return str(value).lower()
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    short = f"{value:.{digits}g}"
    short = f"{short}.0" if short.lstrip("-").isdigit() else short
    return min(repr(value), short, key=len)


def _vectors(array: pa.Array) -> list[str]:
    """The start of each list, and how long it is; of a list of a million only the start is touched."""
    import pyarrow as pa
    import pyarrow.compute as pc

    starts = pc.list_slice(array, 0, FEW, return_fixed_size_list=False).to_pylist()
    lengths = pc.list_value_length(array).to_pylist()
    noun = "values" if array.type.value_type == pa.bool_() else "numbers"
    return [
        "NULL" if start is None else _vector(start, length, noun)
        for start, length in zip(starts, lengths, strict=True)
    ]


def _vector(start: list[Any], length: int, noun: str) -> str:
    """As much of it as a cell holds: fewer digits first, then fewer numbers."""
    whole = [(length, "")] if length <= FEW else []
    for count, rest in [*whole, *((n, f", … {length:,} {noun}") for n in (3, 2, 1))]:
        for digits in (6, 3):
            text = f"[{', '.join(number(value, digits) for value in start[:count])}{rest}]"
            if len(text) <= WIDEST:
                return text
    return line(text)


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
