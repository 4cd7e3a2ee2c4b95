"""Which rows of a column a fault has changed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bufcheck import vectors
from bufcheck.vectors import Array


def differs(old: pa.Array, new: pa.Array) -> Array:
    """Which rows of two columns are not the same, bit for bit."""
    if old is new:
        return np.zeros(len(old), bool)
    nulls = [column.is_null().to_numpy(zero_copy_only=False) for column in (old, new)]
    apart: Array = nulls[0] != nulls[1]
    if not pa.types.is_nested(old.type):
        values = [column.drop_null().to_numpy(zero_copy_only=False) for column in (old, new)]
        both = ~(nulls[0] | nulls[1])
        picked = [_bits(v)[both[~null]] for v, null in zip(values, nulls, strict=True)]
        apart[both] |= picked[0] != picked[1]
        return apart
    rows = [vectors.open_rows(column) for column in (old, new)]
    apart |= rows[0].lengths != rows[1].lengths
    alike = np.flatnonzero(~apart)
    for i in alike:
        one, other = (_bits(r.values[r.offsets[i] : r.offsets[i + 1]]) for r in rows)
        apart[i] = not np.array_equal(one, other)
    return apart


def _bits(values: Array) -> Array:
    if values.dtype.kind != "f":
        return values
    return np.ascontiguousarray(values).view(f"u{values.itemsize}")
