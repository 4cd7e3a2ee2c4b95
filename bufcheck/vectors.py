"""NumPy kernels of the digest: what can be said of a column of vectors, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, Any]


class Rows(NamedTuple):
    """A column of vectors as one flat array: row i is values[offsets[i]:offsets[i + 1]]."""

    values: Array
    offsets: Array
    null: Array | None
    """Rows that are null or hold a null; None where there are none."""
    width: int | None = None
    """The length every row has; None where they differ."""

    @property
    def present(self) -> Array | bool:
        """Rows without a null; True where all are."""
        return True if self.null is None else ~self.null

    @property
    def lengths(self) -> Array:
        return np.diff(self.offsets)

    def row(self, index: int) -> Array:
        return self.values[self.offsets[index] : self.offsets[index + 1]].copy()


def open_rows(array: pa.Array) -> Rows:
    import pyarrow as pa

    count, width = len(array), None
    if pa.types.is_fixed_size_list(array.type):
        width = array.type.list_size
        child = array.values.slice(array.offset * width, count * width)
        offsets = np.arange(count + 1, dtype=np.int64) * width
    else:
        offsets = as_numpy(array.offsets).astype(np.int64)
        child = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        offsets -= offsets[0]
        if (np.diff(offsets) == offsets[1]).all():
            width = int(offsets[1])
    null = as_numpy(array.is_null()) if array.null_count else None
    if child.null_count:
        holes = count_true(as_numpy(child.is_null()), offsets) > 0
        null = holes if null is None else null | holes
    return Rows(as_numpy(child, 0), offsets, null, width)


def lengths_of(array: pa.Array) -> Array:
    """How long each row is; 0 where it is null. Arrow's own function would have to be imported."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(array.type):
        lengths: Array = np.full(len(array), array.type.list_size)
    else:
        lengths = np.diff(as_numpy(array.offsets))
    if array.null_count:
        lengths = np.where(as_numpy(array.is_null()), 0, lengths)
    return lengths


def as_numpy(array: pa.Array, null: int | None = None) -> Array:
    """Numbers or truths of Arrow, without a copy where that can be, and `null` or NaN for what is null.

    Its own to_numpy imports pandas, where that is installed: a fifth of a second that nobody needs.
    """
    import pyarrow as pa

    if array.null_count and null is not None:
        array = array.fill_null(pa.scalar(null).cast(array.type))
    if array.null_count or not len(array):
        given: Array = array.to_numpy(zero_copy_only=False)
        return given
    if not pa.types.is_boolean(array.type):
        return np.from_dlpack(array)
    first, last = array.offset, array.offset + len(array)
    bits = np.frombuffer(array.buffers()[1], np.uint8)[first // 8 : -(-last // 8)]
    return np.unpackbits(bits, bitorder="little")[first % 8 :][: len(array)].view(bool)


def as_arrow(values: Array, null: Array | None = None) -> pa.Array:
    """The reverse: null where `null` is set. pa.array would import pandas too."""
    import pyarrow as pa

    there = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    if values.dtype == bool:
        bits = pa.py_buffer(np.packbits(values, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(values), [there, bits])
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [there, pa.py_buffer(values)])


def texts_as_arrow(texts: list[str]) -> pa.Array:
    """Texts of which few differ, as the names of agents do."""
    import pyarrow as pa

    encoded = {text: text.encode() for text in set(texts)}
    count = len(texts)
    if len(encoded) == 1:
        [whole] = encoded.values()
        ends, joined = np.arange(count + 1, dtype=np.int32) * np.int32(len(whole)), whole * count
    else:
        rows = [encoded[text] for text in texts]
        ends, joined = np.zeros(count + 1, np.int32), b"".join(rows)
        np.cumsum(np.fromiter(map(len, rows), np.int64, count), out=ends[1:])
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(joined)])


def count_true(flags: Array, offsets: Array) -> Array:
    """How many flags are set in each row."""
    total = np.zeros(len(flags) + 1, np.int64)
    np.cumsum(flags, out=total[1:])
    counted: Array = total[offsets[1:]] - total[offsets[:-1]]
    return counted


def as_bytes(rows: Rows) -> pa.Array:
    """Each row as one binary value, without a copy, for a hash; null where it holds a null.

    With offsets, also where all are equally long: DuckDB copies what has a fixed size.
    """
    import pyarrow as pa

    values = np.ascontiguousarray(rows.values)
    there = None if rows.null is None else pa.py_buffer(np.packbits(~rows.null, bitorder="little"))
    ends = pa.py_buffer(rows.offsets * values.itemsize)
    buffers = [there, ends, pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.large_binary(), len(rows.offsets) - 1, buffers)


def nonfinite_and_zero(rows: Rows) -> tuple[Array, Array]:
    """Which rows hold a NaN or an infinity, and which are zero throughout.

    The sum of squares tells both at the price of one pass. It can overflow or vanish for finite
    values, so the rows it points at are looked at again.
    """
    width = rows.width
    if not width:
        bad = count_true(~np.isfinite(rows.values), rows.offsets) > 0
        return bad, (count_true(rows.values != 0, rows.offsets) == 0) & (rows.lengths > 0)
    table = rows.values.reshape(-1, width)
    squares = np.einsum("ij,ij->i", table, table)
    bad, zero = ~np.isfinite(squares), squares == 0
    bad[bad] = ~np.isfinite(table[bad]).all(axis=1)
    zero[zero] = (table[zero] == 0).all(axis=1)
    return bad, zero


def repeats(rows: Rows, before: Array | None) -> Array:
    """Which rows equal the row before them, bit for bit; `before` is the row before the first."""
    bits = np.ascontiguousarray(rows.values)
    if bits.dtype.kind == "f":
        bits = bits.view(f"u{bits.itemsize}")
    if rows.width:
        return _repeats_in_table(bits.reshape(-1, rows.width), before)
    lengths, starts = rows.lengths, rows.offsets[:-1]
    same = np.zeros(len(lengths), bool)
    if before is not None and len(lengths) and lengths[0] == len(before):
        same[0] = np.array_equal(
            bits[: lengths[0]], before.view(bits.dtype) if before.dtype.kind == "f" else before
        )
    # Lengths and first values rule out nearly every row of a healthy dump; compare the rest whole.
    maybe = np.flatnonzero((lengths[1:] == lengths[:-1]) & (lengths[1:] > 0)) + 1
    maybe = maybe[bits[starts[maybe]] == bits[starts[maybe - 1]]]
    if len(maybe):
        sizes = lengths[maybe]
        ends = np.cumsum(sizes)
        inner = np.arange(ends[-1]) - np.repeat(ends - sizes, sizes)
        here = np.repeat(starts[maybe], sizes) + inner
        differs = bits[here] != bits[here - np.repeat(sizes, sizes)]
        same[maybe] = count_true(differs, np.concatenate([[0], ends])) == 0
    same[1:] |= (lengths[1:] == 0) & (lengths[:-1] == 0)
    return same


def _repeats_in_table(table: Array, before: Array | None) -> Array:
    same = np.zeros(len(table), bool)
    np.equal(table[1:, 0], table[:-1, 0], out=same[1:])
    maybe = np.flatnonzero(same)  # one number rules out nearly every row of a healthy dump
    same[maybe] = (table[maybe] == table[maybe - 1]).all(axis=1)
    if before is not None:
        same[0] = np.array_equal(table[0], before.view(table.dtype))
    return same


def repeats_scalar(values: Array, before: Array | None) -> Array:
    """The same for a column of numbers."""
    same = np.zeros(len(values), bool)
    np.equal(values[1:], values[:-1], out=same[1:])
    if before is not None:
        same[0] = values[0] == before
    return same


def compare_neighbours(columns: list[Array]) -> Array:
    """-1, 0 or 1 for each row but the first: its columns against those of the row before, in order."""
    order: Array = np.zeros(len(columns[0]) - 1, np.int8)
    for values in columns:
        greater, less = values[1:] > values[:-1], values[1:] < values[:-1]
        np.copyto(order, greater.view(np.int8) - less.view(np.int8), where=order == 0)
    return order


def has_duplicate(rows: Rows) -> Array:
    """Which rows name a value twice."""
    lengths, count = rows.lengths, len(rows.offsets) - 1
    found = np.zeros(count, bool)
    if not len(rows.values):
        return found
    # Powers of two, of ids folded to 64: a sum has as many bits as summands where none stands twice.
    bits = rows.values.astype(np.uint64)
    bits &= np.uint64(63)
    np.left_shift(np.uint64(1), bits, out=bits)  # in place: another array would be fresh memory
    np.cumsum(bits, out=bits)
    upto = bits[rows.offsets - 1]
    upto[rows.offsets == 0] = 0
    maybe = np.flatnonzero(np.bitwise_count(upto[1:] - upto[:-1]) < lengths)
    if len(maybe):
        sizes = lengths[maybe]
        ends = np.cumsum(sizes)
        owner = np.repeat(np.arange(len(maybe)), sizes)
        inner = np.arange(ends[-1]) - np.repeat(ends - sizes, sizes)
        values = rows.values[np.repeat(rows.offsets[maybe], sizes) + inner]
        order = np.lexsort((values, owner))
        owner, values = owner[order], values[order]
        twice = (owner[1:] == owner[:-1]) & (values[1:] == values[:-1])
        found[maybe[owner[1:][twice]]] = True
    return found


def stray(rows: Rows, size: int | None) -> pa.Array:
    """The first value of each row that is not one of 0..size-1; null where there is none, or a null."""
    import pyarrow as pa

    count = len(rows.offsets) - 1
    outside = rows.values < 0 if size is None else (rows.values < 0) | (rows.values >= size)
    where = np.flatnonzero(outside)
    if not len(where):
        return pa.nulls(count, pa.int32())
    owner, first = np.unique(np.searchsorted(rows.offsets, where, "right") - 1, return_index=True)
    found, none = np.zeros(count, np.int32), np.ones(count, bool)
    found[owner] = np.clip(rows.values[where[first]], -(2**31), 2**31 - 1)
    none[owner] = False
    if rows.null is not None:
        none |= rows.null
    return as_arrow(found, none)


def log_prob_of(
    logits: Rows, mask: Rows | None, action: Array, temperature: float, masked_logit: float | None
) -> Array:
    """log softmax(logits / temperature)[action] per row; NaN where the row does not allow it."""
    count = len(logits.offsets) - 1
    lengths, starts = logits.lengths, logits.offsets[:-1]
    result = np.full(count, np.nan)
    good = (lengths > 0) & (action >= 0) & (action < lengths)
    for column in (logits, mask):
        if column is not None and column.null is not None:
            good &= ~column.null
    values = logits.values.astype(np.float64)
    if mask is not None:
        good &= mask.lengths == lengths
        allowed = np.ones(len(values), bool)
        judged = np.flatnonzero(good)
        allowed[_members(starts, lengths, judged)] = mask.values[
            _members(mask.offsets[:-1], lengths, judged)
        ]
        values[~allowed] = -np.inf if masked_logit is None else masked_logit
    if not good.any():
        return result
    values /= temperature
    rows = np.flatnonzero(good)
    values = values[_members(starts, lengths, rows)]
    begins = np.concatenate([[0], np.cumsum(lengths[rows])[:-1]])
    top = np.maximum.reduceat(values, begins)
    shifted = values - np.repeat(top, lengths[rows])
    total = np.log(np.add.reduceat(np.exp(shifted), begins))
    result[rows] = shifted[begins + action[rows]] - total
    return result


def _members(starts: Array, lengths: Array, rows: Array) -> Array:
    """The flat positions of these rows' values, in order."""
    sizes = lengths[rows]
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    members: Array = np.arange(total) - np.repeat(ends - sizes, sizes)
    members += np.repeat(starts[rows], sizes)
    return members


def writable(values: Array) -> Array:
    """What torch takes without a warning; Arrow's own memory is read-only, and is copied."""
    return np.require(values, requirements=["C", "W"])


def as_table(rows: Rows, width: int | None = None) -> tuple[Array, Array]:
    """[B, width] and which rows are whole: without a null, and that wide (or as wide as most)."""
    count = len(rows.offsets) - 1
    whole = np.ones(count, bool) if rows.null is None else ~rows.null
    if rows.width is not None and width in (None, rows.width):
        return rows.values.reshape(count, rows.width), whole
    lengths = rows.lengths
    if width is None:
        sizes, times = np.unique(lengths, return_counts=True)
        width = int(sizes[times.argmax()])
    whole &= lengths == width
    table: Array = np.zeros((count, width), rows.values.dtype)
    kept = np.flatnonzero(lengths == width)
    table[kept] = rows.values[_members(rows.offsets[:-1], lengths, kept)].reshape(-1, width)
    return table, whole
