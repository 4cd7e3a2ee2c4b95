"""For spreadsheets and scripts: RFC 4180 with a header, in lines that end as everywhere else on Unix.

A NULL is an empty field and an empty text is "", so that the two stay apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO

from bufcheck.result import Asked, Told
from bufcheck.results._scalar import glue, text
from bufcheck.results._text import is_number, plain, write_lines

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".csv",)
BINARY = False


def write(schema: pa.Schema, batches: Iterable[pa.RecordBatch], out: BinaryIO, asked: Asked) -> Told:
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = 0
    write_lines(out, _fields(pa.array(schema.names, pa.string())), ",")
    out.write(b"\n")
    for batch in batches:
        fields = [_fields(column) for column in batch.columns]
        lines = pc.binary_join_element_wise(
            *fields, text(","), null_handling="replace", null_replacement=""
        )
        write_lines(out, lines)
        out.write(b"\n")
        rows += batch.num_rows
    return Told(rows, rows)


def _fields(array: pa.Array) -> pa.Array:
    """Texts as fields: in quotes only where they must be."""
    import pyarrow.compute as pc

    texts = plain(array)
    if is_number(array.type):
        return texts
    special = pc.match_substring_regex(texts, r'[",\r\n]|^$')
    if not pc.any(special).as_py():
        return texts
    doubled = pc.replace_substring(texts, '"', '""')
    return pc.if_else(special, glue('"', doubled, '"'), texts)
