"""Rewrites a dump in another format, or a foreign one as experience/1. Nothing is lost on the way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bufcheck import __version__, description, schema
from bufcheck import format as formats
from bufcheck.config import METADATA_TABLES, Config
from bufcheck.dump import Dump, Stored, open_dump
from bufcheck.errors import UsageError
from bufcheck.whole_file import whole_file

if TYPE_CHECKING:
    import pyarrow as pa


def convert(
    paths: Sequence[str],
    target: Path,
    config: Config | None = None,
    *,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Writes the dump to `target`, in the format its suffix names; returns the rows written."""
    form = formats.of_suffix(target)
    dump = open_dump(paths, config)
    arrow = arrow_schema(dump)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in stored_batches(dump, arrow):
            yield batch
            if progress:
                progress(batch.num_rows, dump.rows)

    sources = [source.path for source in dump.sources]
    with whole_file(target, sources=sources, replace=force) as temporary:
        rows = formats.write(form, temporary, arrow, batches(), metadata(dump))
        formats.verify(temporary, dump.rows)
    return rows


def _common_columns(dump: Dump) -> list[Stored]:
    for name, stored in dump.columns.items():
        if len(stored) < len(dump.sources):
            having = {c.file for c in stored}
            lacking = next(s.path for i, s in enumerate(dump.sources) if i not in having)
            raise UsageError(f"{lacking}: lacks column {name}, which other files have")
    return [stored[0] for stored in dump.columns.values()]


def arrow_schema(dump: Dump) -> pa.Schema:
    """A dump that declares itself keeps its types, right or wrong; a foreign one gets the schema's."""
    import pyarrow as pa

    fields = []
    for column in _common_columns(dump):
        kept = column.type
        known = schema.load().columns.get(column.name)
        if not dump.declared and known and not schema.fits(known, kept):
            kept = _target(known, column)
        fields.append(pa.field(column.name, kept))
    return pa.schema(fields)


def _target(known: schema.Column, stored: Stored) -> pa.DataType:
    import pyarrow as pa

    if stored.read_as is None:
        raise UsageError(
            f"column {known.name} is {schema.type_name(stored.type)}, which cannot become"
            f" {' or '.join(known.types)}"
        )
    name = known.types[0]
    if known.is_scalar:
        return pa.string() if name == "string" else pa.type_for_alias(name)
    item = pa.type_for_alias(name[name.index("<") + 1 : -1])
    if pa.types.is_fixed_size_list(stored.type):
        return pa.list_(item, stored.type.list_size)
    return pa.list_(item)


def stored_batches(dump: Dump, arrow: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Every row with every column, in row order, in the types that `arrow_schema` settled on."""
    import pyarrow as pa

    for index, source in enumerate(dump.sources):
        here = {name: dump.columns[name][index] for name in arrow.names}
        wanted = [c.stored_name for c in here.values() if not c.in_path]
        for batch in source.read(wanted, None):
            arrays = []
            for field in arrow:
                column = here[field.name]
                if column.in_path:
                    array = pa.repeat(column.constant, batch.num_rows)
                else:
                    array = batch.column(column.stored_name)
                arrays.append(_cast(array, field, source.path))
            yield pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _cast(array: pa.Array, field: pa.Field, path: Path) -> pa.Array:
    import pyarrow as pa

    if array.type == field.type:
        return array
    try:
        return array.cast(field.type)
    except pa.ArrowException as error:
        detail = str(error).splitlines()[0]
        raise UsageError(f"{path}: column {field.name} is not {field.type}: {detail}") from None


def metadata(dump: Dump) -> dict[str, Any]:
    """What a file says of itself that holds the rows of this dump."""
    raw = dump.sources[0].metadata
    if raw is not None:
        kept: dict[str, Any] = json.loads(raw)
        if kept.pop("part", None) is not None and not description.has_all_parts(dump):
            # What was cut off stays so under its new name.
            kept["part"] = {"writer": "part", "number": 0, "last": False}
        return kept
    described: dict[str, Any] = {
        "schema": schema.CURRENT,
        "producer": {"name": "bufcheck convert", "version": __version__},
    }
    for table in METADATA_TABLES:
        described[table] = {
            name.split(".")[1]: value
            for name, value in dump.settings.items()
            if name.startswith(f"{table}.") and value is not None
        }
    return described
