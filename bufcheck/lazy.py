"""A table for DuckDB that is read only when, and as far as, a query asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset

Read = Callable[[list[str]], "Iterator[pa.RecordBatch]"]


def dataset(schema: pa.Schema, read: Read) -> pyarrow.dataset.Dataset:
    """To be registered with DuckDB, which asks an Arrow dataset for a scanner of the columns it needs.

    A table with `__arrow_c_stream__` would be scanned in full, and a reader once.
    """
    import pyarrow as pa
    import pyarrow.dataset

    class Lazy(pyarrow.dataset.InMemoryDataset):  # type: ignore[misc]
        def scanner(self, columns: list[str] | None = None, **options: Any) -> _Scanner:
            filter_ = options.get("filter")
            names = schema.names if columns is None else columns
            # What the filter looks at need not be among the columns; to read too many does no harm.
            text = "" if filter_ is None else str(filter_)
            needed = [n for n in schema.names if n in names or n in text]

            def batches() -> Iterator[pa.RecordBatch]:
                for batch in read(needed):
                    kept = batch if filter_ is None else batch.filter(filter_)
                    yield kept.select(names)

            selected = pa.schema([schema.field(name) for name in names])
            return _Scanner(pa.RecordBatchReader.from_batches(selected, batches()))

    return Lazy(schema.empty_table())


class _Scanner:
    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader
        self.projected_schema = reader.schema

    def to_reader(self) -> pa.RecordBatchReader:
        return self._reader
