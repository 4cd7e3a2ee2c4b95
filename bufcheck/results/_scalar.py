"""Single values as text, a column at a time inside Arrow, so that no Python object is made for each.

Numbers are spelled by Arrow, not by way of Python floats: a float32 keeps its few digits, a decimal
all of its many. A NULL stays NULL.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def spelled(array: pa.Array) -> pa.Array:
    """The bare text of every value."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_floating(kind):
        return _float(array)
    if pa.types.is_decimal(kind):
        return _decimal(array)
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return _iso(array)
    if _is_binary(kind):
        return each(array, lambda value: value.hex())
    if pa.types.is_interval(kind):
        return each(array, _duration)
    if pa.types.is_union(kind):
        return each(array, str)
    return array.cast(pa.large_string())


def text(value: str) -> pa.Scalar:
    """Arrow joins large strings only with large strings, which alone may pass 2 GB."""
    import pyarrow as pa

    return pa.scalar(value, pa.large_string())


def glue(*parts: Any) -> pa.Array:
    """Texts and columns of texts, joined row by row; NULL where one of them is."""
    import pyarrow.compute as pc

    parts = tuple(text(part) if isinstance(part, str) else part for part in parts)
    return pc.binary_join_element_wise(*parts, text(""))


def each(array: pa.Array, spell: Callable[[Any], str]) -> pa.Array:
    """The slow way, for what Arrow cannot spell."""
    import pyarrow as pa

    values = (None if value is None else spell(value) for value in array.to_pylist())
    return pa.array(values, pa.large_string())


def quoted(texts: pa.Array) -> pa.Array:
    """Texts as JSON strings; only a column that needs escapes is looked at value by value."""
    import pyarrow.compute as pc

    if pc.any(pc.match_substring_regex(texts, r'["\\\x00-\x1f]')).as_py():
        return each(texts, lambda value: json.dumps(value, ensure_ascii=False))
    return glue('"', texts, '"')


def _float(array: pa.Array) -> pa.Array:
    """1.0, not 1, so that it is read back as a float; NaN, inf and -inf as in the report."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = array.cast(pa.large_string())
    whole = pc.match_substring_regex(texts, r"^-?\d+$")
    if pc.any(whole).as_py():
        texts = pc.if_else(whole, glue(texts, ".0"), texts)
    return pc.if_else(pc.is_nan(array), text("NaN"), texts)


def _decimal(array: pa.Array) -> pa.Array:
    """Arrow writes a small decimal as 1E-10; here it has all its digits."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = array.cast(pa.large_string())
    if pc.any(pc.match_substring(texts, "E")).as_py():
        return each(array, lambda value: format(value, "f"))
    return texts


def _duration(value: Any) -> str:
    """An interval as ISO 8601 has it; months, days and seconds do not add up to each other."""
    seconds = Decimal(value.nanoseconds).scaleb(-9).normalize()
    return f"P{value.months}M{value.days}DT{seconds:f}S"


def _iso(array: pa.Array) -> pa.Array:
    """2026-01-31T12:00:00.5+01:00: Arrow's own spelling has a space, no colon and idle zeros."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = array.cast(pa.large_string())
    for pattern, by in (
        (r"^(-?\d+-\d\d-\d\d) ", r"\1T"),
        (r"([+-]\d\d)(\d\d)$", r"\1:\2"),
        (r"(\.\d*?)0+(\D.*)?$", r"\1\2"),
        (r"\.(\D.*)?$", r"\1"),
    ):
        texts = pc.replace_substring_regex(texts, pattern, by)
    return texts


def _is_binary(kind: pa.DataType) -> bool:
    from pyarrow import types as t

    kinds = (t.is_binary, t.is_large_binary, t.is_fixed_size_binary, t.is_binary_view)
    return any(holds(kind) for holds in kinds)
