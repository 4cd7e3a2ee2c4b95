"""Parquet: read page by page, so that memory does not grow with the row groups."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

from bufcheck.errors import ReadError
from bufcheck.format import NOT_VERIFIABLE, VERIFIED, Ranges, Source
from bufcheck.formats._parquet_footer import RowGroup, has_page_checksums, read_footer

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

SUFFIXES = (".parquet", ".pq")
MAGIC = b"PAR1"
BATCH_BYTES = 8 << 20
"""Decoded size of a batch; small enough to bound memory, so large that threads seldom take turns."""
MOST_ROWS = 1 << 17
ROW_GROUP_ROWS, ROW_GROUP_BYTES = 1 << 17, 32 << 20


def recognises(file: BinaryIO) -> bool:
    """Both ends must be right: a file without its footer is not yet Parquet."""
    if file.read(4) != MAGIC:
        return False
    file.seek(0, os.SEEK_END)
    if file.tell() < 12:
        return False
    file.seek(-4, os.SEEK_END)
    return file.read(4) == MAGIC


def open_source(path: Path, names: Mapping[str, str] = MappingProxyType({})) -> Source:
    import pyarrow as pa

    try:
        parquet = _open(path)
        schema = parquet.schema_arrow
        rows = parquet.metadata.num_rows
        footer = _footer(path, parquet)
        checksums = has_page_checksums(path, footer)
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError) as error:
        raise _damaged(path, error) from None
    if rows < 0:
        raise ReadError(f"{path}: damaged Parquet file (it declares {rows} rows)", _NEXT)
    if len(set(schema.names)) < len(schema.names):
        raise ReadError(f"{path}: two columns have the same name", "rename one of them")

    def read(columns: list[str], ranges: Ranges | None) -> Iterator[pa.RecordBatch]:
        return _read(path, footer, columns, ranges)

    return Source(
        path=path,
        format="parquet",
        schema=schema.remove_metadata(),
        rows=rows,
        metadata=(parquet.metadata.metadata or {}).get(b"bufcheck"),
        read=read,
        integrity=VERIFIED if checksums else NOT_VERIFIABLE,
    )


def writer(path: Path, schema: pa.Schema, metadata: dict[str, Any]) -> Writer:
    return Writer(path, schema, metadata)


class Writer:
    """Takes batches one after the other; what it wrote is a dump once it was closed well."""

    def __init__(self, path: Path, schema: pa.Schema, metadata: dict[str, Any]) -> None:
        import pyarrow.parquet as pq

        self.rows, self.metadata = 0, metadata
        self._schema = schema.remove_metadata()
        self._waiting: list[pa.RecordBatch] = []
        self._held, self._bytes = 0, 0
        # `rows` is known only at the end, so the Arrow schema, which carries it, is stored then. To
        # look for repeats among floats takes a third of the time, and there are hardly any.
        self._file = pq.ParquetWriter(
            path,
            self._schema,
            write_page_checksum=True,
            store_schema=False,
            use_dictionary=[
                leaf for field in self._schema for leaf in _repetitive(field.name, field.type)
            ],
        )

    def append(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self.rows += batch.num_rows
        self._held += batch.num_rows
        self._bytes += batch.nbytes
        # A row group is at most so many rows or bytes, or writing wide rows would need memory.
        if self._held >= ROW_GROUP_ROWS or self._bytes > ROW_GROUP_BYTES:
            self._flush()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        import base64
        import json

        try:
            if failed is None:
                if self._waiting:
                    self._flush()
                described = {"bufcheck": json.dumps(self.metadata | {"rows": self.rows})}
                whole = self._schema.with_metadata(described).serialize()
                arrow = base64.b64encode(whole).decode()
                self._file.add_key_value_metadata({**described, "ARROW:schema": arrow})
        finally:
            self._file.close()

    def _flush(self) -> None:
        import pyarrow as pa

        self._file.write_table(pa.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._held, self._bytes = [], 0, 0


def _repetitive(path: str, kind: pa.DataType) -> Iterator[str]:
    """The leaves of a column, as Parquet names them, in which values repeat."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        for field in kind:
            yield from _repetitive(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(kind):
        yield from _repetitive(f"{path}.key_value.key", kind.key_type)
        yield from _repetitive(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_nested(kind):
        yield from _repetitive(f"{path}.list.element", kind.value_type)
    elif not pa.types.is_floating(kind) and not pa.types.is_boolean(kind):
        yield path


_NEXT = "copy it again from its origin, or dump it again"


def _damaged(path: Path, error: Exception) -> ReadError:
    detail = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ReadError(f"{path}: damaged Parquet file ({detail[:200]})", _NEXT)


def _open(path: Path, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    # Without pre-buffering and with a small buffer, pages are read as they are decoded: one huge
    # row group costs no more memory than many small ones.
    return pq.ParquetFile(
        path,
        metadata=metadata,
        buffer_size=1 << 20,
        pre_buffer=False,
        page_checksum_verification=True,
    )


def _read(
    path: Path, footer: list[RowGroup], columns: list[str], ranges: Ranges | None
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    try:
        parquet = _open(path)
        groups = _row_groups(footer, ranges)
        position = 0
        for first, last, start in groups:
            position = start
            for batch in _batches(path, parquet, footer, columns, range(first, last)):
                batch.validate()
                yield from _within(batch, position, ranges)
                position += batch.num_rows
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise _damaged(path, error) from None


def _batches(
    path: Path, parquet: pq.ParquetFile, footer: list[RowGroup], columns: list[str], groups: range
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from bufcheck.formats._parquet_vectors import Vectors, columns_of

    # Each with a reader of its own: two iterations of one share their batch size.
    wide = {
        column.name: Vectors(path, _open(path, parquet.metadata), footer, column, groups)
        for column in columns_of(parquet, columns)
    }
    others = [name for name in columns if name not in wide]
    if not others:  # somebody must say how many rows there are
        wide, others = {}, columns
    stored = parquet.schema_arrow
    schema = pa.schema([stored.field(name) for name in columns])
    rows = _batch_rows(parquet, footer, columns)
    for batch in _together(parquet.iter_batches(rows, groups, others, use_threads=False), rows // 2):
        arrays = [
            wide[name].take(batch.num_rows) if name in wide else batch.column(name) for name in columns
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    for vectors in wide.values():
        vectors.end()


def _together(batches: Iterable[pa.RecordBatch], least: int) -> Iterator[pa.RecordBatch]:
    """At least so many rows at a time: to whoever takes them, ten cost as much as thousands."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= least:
            yield from _joined(held)
            held, rows = [], 0
    yield from _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    import pyarrow as pa

    if len(batches) < 2:
        return batches
    return list(pa.Table.from_batches(batches).combine_chunks().to_batches())


def _row_groups(footer: list[RowGroup], ranges: Ranges | None) -> Iterator[tuple[int, int, int]]:
    """(first group, past the last, first row) of each run of row groups that is needed."""
    if ranges is None:
        yield 0, len(footer), 0
        return
    start = 0
    for index, group in enumerate(footer):
        stop = start + group.rows
        if any(a < stop and start < b for a, b in ranges):
            yield index, index + 1, start
        start = stop


def _within(batch: pa.RecordBatch, position: int, ranges: Ranges | None) -> Iterator[pa.RecordBatch]:
    if ranges is None:
        yield batch
        return
    for start, stop in ranges:
        low, high = max(start - position, 0), min(stop - position, batch.num_rows)
        if low < high:
            yield batch.slice(low, high - low)


def _batch_rows(parquet: pq.ParquetFile, footer: list[RowGroup], columns: list[str]) -> int:
    """Rows that decode to about BATCH_BYTES, judged by the first row groups."""
    import pyarrow as pa

    groups = footer[:4]
    schema = parquet.schema_arrow
    decoded, most = 0, MOST_ROWS
    for index in range(len(parquet.schema)):
        leaf = parquet.schema.column(index)
        if (name := leaf.path.split(".")[0]) in columns:
            for chunk in (group.chunks[index] for group in groups):
                # What repeats takes little room in a file.
                decoded += max(chunk.size, chunk.values * _WIDTHS[leaf.physical_type], 0)
            kind = schema.field(name).type
            if leaf.physical_type == "BYTE_ARRAY" and not pa.types.is_dictionary(kind):
                most = min(most, MOST_ROWS // 8)  # how long texts are is not said anywhere
            elif pa.types.is_nested(kind):
                most = min(most, MOST_ROWS // 4)  # what is made of lists takes room too
    rows = sum(group.rows for group in groups)
    return max(256, min(most, int(BATCH_BYTES * max(rows, 1) // max(decoded, 1))))


_WIDTHS = {
    "BOOLEAN": 1,
    "INT32": 4,
    "FLOAT": 4,
    "INT64": 8,
    "DOUBLE": 8,
    "INT96": 12,
    "FIXED_LEN_BYTE_ARRAY": 16,
    "BYTE_ARRAY": 16,
}


def _footer(path: Path, parquet: pq.ParquetFile) -> list[RowGroup]:
    footer = read_footer(path)
    if sum(group.rows for group in footer) != parquet.metadata.num_rows:
        raise ValueError("its row groups do not hold the rows it declares")
    if any(len(group.chunks) != len(parquet.schema) for group in footer):
        raise ValueError("a row group lacks a column")
    return footer
