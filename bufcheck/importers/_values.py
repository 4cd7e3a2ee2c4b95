"""Values of a source as Arrow, in the types of the schema."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from bufcheck import schema
from bufcheck.errors import ForeignError
from bufcheck.importer import Kind
from bufcheck.importers._keys import flags
from bufcheck.vectors import Array


def target(column: schema.Column, kind: Kind) -> pa.DataType | None:
    """The type this column of the schema gets; None where such values cannot be it."""
    width = math.prod(kind.shape)
    natural = kind.type
    if not column.is_scalar and not kind.shape and not pa.types.is_nested(natural):
        width = 1  # a state or an action of one number
    elif column.is_scalar and width != 1:
        return None
    if not column.is_scalar:
        item = pa.type_for_alias(column.types[0][column.types[0].index("<") + 1 : -1])
        if pa.types.is_nested(natural):
            return pa.list_(item) if schema.readable_as(column, natural) else None
        return pa.list_(item, width) if _can_be(natural, item) else None
    known = [pa.string() if name == "string" else pa.type_for_alias(name) for name in column.types]
    if natural in known:
        return natural
    if column.kind == "float" and pa.types.is_integer(natural):
        return pa.float64() if pa.float64() in known else known[-1]
    return next((one for one in known if _can_be(natural, one)), None)


def _can_be(natural: pa.DataType, wanted: pa.DataType) -> bool:
    t = pa.types
    number = t.is_integer(natural) or t.is_floating(natural) or t.is_boolean(natural)
    if t.is_boolean(wanted) or t.is_floating(wanted):
        return bool(number)
    if t.is_integer(wanted):
        return bool(number)
    return bool(t.is_string(natural) or t.is_large_string(natural) or t.is_integer(natural))


def carried(kind: Kind) -> pa.DataType | None:
    """The type of a column that means nothing to the schema; None where Arrow has none for it."""
    width = math.prod(kind.shape)
    if kind.shape:
        return pa.list_(kind.type, width) if width else None
    return None if pa.types.is_null(kind.type) else kind.type


def as_arrow(values: Any, wanted: pa.DataType, name: str) -> pa.Array:
    try:
        if isinstance(values, pa.Array):
            return values if values.type == wanted else values.cast(wanted)
        if not pa.types.is_nested(wanted):
            return _scalars(values.reshape(len(values)), wanted, name)
        width = wanted.list_size
        flat = _scalars(values.reshape(len(values) * width), wanted.value_type, name)
        return pa.FixedSizeListArray.from_arrays(flat, type=wanted)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        detail = str(error).splitlines()[0][:120]
        raise ForeignError(
            f"{name} cannot be {wanted} ({detail})", "name another column with --column"
        ) from None


def _scalars(values: Array, wanted: pa.DataType, name: str) -> pa.Array:
    kind = values.dtype.kind
    if pa.types.is_boolean(wanted):
        return pa.array(flags(values, name))
    if pa.types.is_floating(wanted):
        with np.errstate(over="ignore"):
            return pa.array(np.ascontiguousarray(values, dtype=wanted.to_pandas_dtype()))
    if kind == "f":
        if not (values == np.round(values)).all() or (np.abs(values) > 2**53).any():
            raise ForeignError(f"{name} holds numbers that are not whole", "name another column")
        values = values.astype(np.int64)
    return pa.array(np.ascontiguousarray(values)).cast(wanted)
