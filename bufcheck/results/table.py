"""For people: names, types, rows, in columns that line up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from bufcheck.result import Asked, Told
from bufcheck.results._cell import cells, line, type_name, width
from bufcheck.results._text import is_number

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".txt",)
BINARY = False
GAP = "  "


class Column(NamedTuple):
    cells: list[str]
    """Its name, its type, then a cell per row."""
    right: bool
    """Numbers stand at the right: the greater one reaches further left."""

    def width(self) -> int:
        return max(map(width, self.cells))

    def padded(self) -> list[str]:
        wide = self.width()
        gaps = [" " * (wide - width(cell)) for cell in self.cells]
        pairs = zip(self.cells, gaps, strict=True)
        return [gap + cell if self.right else cell + gap for cell, gap in pairs]


def write(schema: pa.Schema, batches: Iterable[pa.RecordBatch], out: BinaryIO, asked: Asked) -> Told:
    """Keeps the rows that are shown, as text; the others are only counted."""
    columns = [Column([line(f.name), type_name(f.type)], is_number(f.type)) for f in schema]
    rows = shown = 0
    for batch in batches:
        rows += batch.num_rows
        taken = min(batch.num_rows, asked.most - shown) if asked.most else batch.num_rows
        if taken:
            for column, values in zip(columns, batch.slice(0, taken).columns, strict=True):
                column.cells.extend(cells(values))
            shown += taken
    for text in _lines(columns, asked.width, rows - shown):
        out.write(f"{text}\n".encode())
    return Told(rows, shown)


def _lines(columns: list[Column], limit: int | None, more: int) -> Iterable[str]:
    """The table, and under it what it leaves out: rows, then columns."""
    left, right = _fitting(columns, limit)
    kept = columns[:left] + columns[len(columns) - right :]
    if len(kept) < len(columns):
        kept.insert(left, Column(["…"] * len(columns[0].cells), False))
    for parts in zip(*(column.padded() for column in kept), strict=True):
        yield GAP.join(parts).rstrip()
    if more:
        yield f"… {more:,} more {'row' if more == 1 else 'rows'}"
    if left + right < len(columns):
        yield f"{left + right} of {len(columns)} columns shown"


def _fitting(columns: list[Column], limit: int | None) -> tuple[int, int]:
    """How many columns of the left and of the right fit. The first is shown in any case."""
    widths = [column.width() + len(GAP) for column in columns]
    if limit is None or sum(widths) - len(GAP) <= limit:
        return len(columns), 0
    left, right, free = 1, 0, limit - 1 - widths[0]
    while left + right < len(columns):
        at_right = right < left
        free -= widths[-1 - right] if at_right else widths[left]
        if free < 0:
            break
        left, right = (left, right + 1) if at_right else (left + 1, right)
    return left, right
