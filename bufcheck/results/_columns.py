"""What the forms need to know of columns: a name for each, and types that any file can hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def unique(names: Iterable[str]) -> list[str]:
    """SQL may name two columns alike, readers that go by name may not: the later become a_1, a_2."""
    given = list(names)
    taken, found = set(given), set[str]()
    for place, name in enumerate(given):
        count = 0
        while given[place] in found or (count and given[place] in taken):
            count += 1
            given[place] = f"{name}_{count}"
        found.add(given[place])
    return given


def settled(schema: pa.Schema) -> pa.Schema:
    """The schema a file is written with: one name per column, and no dictionaries.

    Each batch of a query may bring a dictionary of its own, and an Arrow file holds but one.
    """
    import pyarrow as pa

    fields = [field.with_type(_plain(field.type)) for field in schema]
    names = unique(schema.names)
    return pa.schema([f.with_name(n) for f, n in zip(fields, names, strict=True)], schema.metadata)


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch, as the settled schema wants it. Columns go by place: names may repeat."""
    import pyarrow as pa

    pairs = zip(batch.columns, schema.types, strict=True)
    columns = [c if c.type.equals(kind) else c.cast(kind) for c, kind in pairs]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without dictionaries, at any depth."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        key, item = (f.with_type(_plain(f.type)) for f in (kind.key_field, kind.item_field))
        return pa.map_(key, item, kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain(kind.value_type)))
    return kind
