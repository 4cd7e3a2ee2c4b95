"""Columns of other tools' Arrow tables, as importers hand them on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

EXTENSION = b"ARROW:extension:metadata"


def leaves(name: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """The columns in a column of structs, by `outer/inner`."""
    if pa.types.is_struct(array.type):
        for field in array.type:
            yield from leaves(f"{name}/{field.name}", pa.compute.struct_field(array, field.name))
    else:
        yield name, array


def plain(array: pa.Array, shape: tuple[int, ...] | None = None) -> Any:
    """Numbers, and lists of as many numbers in every row, as NumPy; texts and other lists as they are;
    None for what no column is made of."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return plain(array.storage, shape)
    if _is_list(kind):
        return _table(array, shape)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return array if array.null_count else np.asarray(array.to_numpy(zero_copy_only=False))
    return array if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None


def _is_list(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


def _table(array: pa.Array, shape: tuple[int, ...] | None) -> Any:
    inner = array.type.value_type
    if _is_list(inner) and not array.null_count:
        below = plain(array.flatten())  # a list of lists is a matrix, if its rows are of one length
        if not isinstance(below, np.ndarray):
            return None
        width = _width(array)
        return None if width is None else below.reshape(len(array), width, *below.shape[1:])
    if not pa.types.is_primitive(inner) or pa.types.is_temporal(inner):
        return None
    width = None if array.null_count or array.flatten().null_count else _width(array)
    if width is None:
        return array
    flat = np.asarray(array.flatten().to_numpy(zero_copy_only=False))
    row = shape if shape is not None and math.prod(shape) == width else (width,)
    return flat.reshape(len(array), *row)


def _width(array: pa.Array) -> int | None:
    lengths = pa.compute.unique(pa.compute.list_value_length(array)).to_pylist()
    return int(lengths[0]) if len(lengths) == 1 else None


def shape_of(field: pa.Field) -> tuple[int, ...] | None:
    """The shape of a tensor column, as Ray keeps it beside the flat numbers."""
    raw = (field.metadata or {}).get(EXTENSION)
    try:
        found = json.loads(raw) if raw is not None else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not all(type(n) is int and n > 0 for n in found):
        return None
    return tuple(found)
