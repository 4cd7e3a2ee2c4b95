"""Any value as text, nested ones too: what csv, json, jsonl and table share.

`plain` is the bare text of a value and `as_json` the same as JSON; a NULL stays NULL in both.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, BinaryIO

from bufcheck.results._columns import unique
from bufcheck.results._scalar import glue, quoted, spelled, text

if TYPE_CHECKING:
    import pyarrow as pa


def plain(array: pa.Array) -> pa.Array:
    """The text of every value; a list, struct or map as JSON."""
    array = bare(array)
    return as_json(array) if is_nested(array.type) else spelled(array)


def as_json(array: pa.Array) -> pa.Array:
    """Every value as JSON. As in the report, "NaN", "inf" and "-inf" are strings."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = bare(array)
    kind = array.type
    if pa.types.is_struct(kind):
        return _where_valid(array, objects([f.name for f in kind], array.flatten(), len(array)))
    if pa.types.is_map(kind):
        return _map(array)
    if is_list(kind):
        return _joined(array, "[", _or_null(array.flatten()), "]")
    texts = spelled(array)
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_finite(array), texts, quoted(texts))
    return texts if is_number(kind) or pa.types.is_boolean(kind) else quoted(texts)


def objects(names: list[str], columns: list[pa.Array], rows: int) -> pa.Array:
    """One JSON object per row."""
    import pyarrow as pa

    if not columns:
        return pa.repeat(text("{}"), rows)
    parts: list[Any] = []
    for name, column in zip(unique(names), columns, strict=True):
        key = json.dumps(name, ensure_ascii=False)
        parts += [f"{',' if parts else '{'}{key}:", _or_null(column)]
    return glue(*parts, "}")


def write_lines(out: BinaryIO, lines: pa.Array, between: str = "\n") -> None:
    """All lines at once, without a Python object for each."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pa.LargeListArray.from_arrays(pa.array([0, len(lines)], pa.int64()), lines)
    out.write(pc.binary_join(whole, text(between))[0].as_buffer())


def bare(array: pa.Array) -> pa.Array:
    """What an extension stores, and a dictionary stands for."""
    import pyarrow as pa

    if isinstance(array, pa.ExtensionArray):
        return bare(array.storage)
    return bare(array.dictionary_decode()) if pa.types.is_dictionary(array.type) else array


def is_number(kind: pa.DataType) -> bool:
    from pyarrow import types as t

    return bool(t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind))


def is_nested(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return is_list(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind)


def is_list(kind: pa.DataType) -> bool:
    from pyarrow import types as t

    kinds = (t.is_list, t.is_large_list, t.is_fixed_size_list, t.is_list_view, t.is_large_list_view)
    return any(holds(kind) for holds in kinds)


def _map(array: pa.Array) -> pa.Array:
    """A map as an object: whatever its keys are, in JSON they are texts."""
    import pyarrow as pa

    kind = array.type
    pair = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
    pairs = array.cast(pa.list_(pair))
    keys, values = pairs.flatten().flatten()
    return _joined(pairs, "{", glue(quoted(plain(keys)), ":", _or_null(values)), "}")


def _joined(array: pa.Array, start: str, items: pa.Array, end: str) -> pa.Array:
    """One text per list out of one text per item. Items of a NULL list are not among them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.list_value_length(array).cast(pa.int64()).fill_null(0)
    places = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    lists = pa.LargeListArray.from_arrays(places, items)
    return _where_valid(array, glue(start, pc.binary_join(lists, text(",")), end))


def _where_valid(array: pa.Array, texts: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.large_string()))


def _or_null(array: pa.Array) -> pa.Array:
    return as_json(array).fill_null(text("null"))
