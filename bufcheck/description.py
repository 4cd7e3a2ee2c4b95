"""What a dump says of itself, as tables: `files` and `columns`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bufcheck import schema
from bufcheck.dump import declared_rows
from bufcheck.whole_file import UNFINISHED

if TYPE_CHECKING:
    from bufcheck.dump import Dump
    from bufcheck.format import Source

FILES = {
    "file": "INTEGER",
    "path": "VARCHAR",
    "format": "VARCHAR",
    "rows": "BIGINT",
    "first_row": "BIGINT",
    "declared_rows": "BIGINT",
    "described": "BOOLEAN",
    "lacks_manifest": "VARCHAR",
    "uneven": "VARCHAR",
    "writer": "VARCHAR",
    "part": "BIGINT",
    "last": "BOOLEAN",
    "unfinished": "VARCHAR",
}
COLUMNS = {
    "name": "VARCHAR",
    "known": "BOOLEAN",
    "own": "BOOLEAN",
    "required": "BOOLEAN",
    "files_with": "BIGINT",
    "files_without": "BIGINT",
    "lacking": "VARCHAR",
    "type": "VARCHAR",
    "expected": "VARCHAR",
    "fits": "BOOLEAN",
    "readable": "BOOLEAN",
}


def files(dump: Dump) -> Iterator[dict[str, Any]]:
    at_work = unfinished(dump)
    for index, source in enumerate(dump.sources):
        yield {
            "file": index,
            "path": str(source.path),
            "format": source.format,
            "rows": source.rows,
            "first_row": dump.starts[index],
            "declared_rows": declared_rows(source),
            "described": source.metadata is not None,
            "lacks_manifest": lacks_manifest(source),
            "uneven": ", ".join(f"{n} has {c}" for n, c in source.uneven.items()) or None,
            **_part(source),
            "unfinished": at_work[index],
        }


def _part(source: Source) -> dict[str, Any]:
    """Which part of what a BufferWriter wrote this file is, if it is one."""
    told = schema.parse_metadata(source.metadata, str(source.path)).get("part") or {}
    kinds = {"writer": str, "number": int, "last": bool}
    found = {name: told.get(name) for name, kind in kinds.items() if type(told.get(name)) is kind}
    if len(found) < len(kinds):
        return {"writer": None, "part": None, "last": None}
    writer = f"{source.path.parent}/{found['writer']}"
    return {"writer": writer, "part": found["number"], "last": found["last"]}


def has_all_parts(dump: Dump) -> bool:
    """Whether what BufferWriters wrote is here from the first part to the last."""
    writers: dict[str, dict[int, bool]] = {}
    for part in map(_part, dump.sources):
        if part["part"] is not None:
            writers.setdefault(part["writer"], {})[part["part"]] = part["last"]
    whole = all(parts[max(parts)] and len(parts) == max(parts) + 1 for parts in writers.values())
    return whole and not any(unfinished(dump))


def unfinished(dump: Dump) -> list[str | None]:
    """For each file: one of its dump that the writer has not closed: it is at work, or was killed."""
    whole_folder = any(Path(given).is_dir() for given in dump.given)
    beside: dict[Path, Path | None] = {}
    for source in dump.sources:
        folder = source.path.parent
        if folder not in beside and (whole_folder or _part(source)["part"] is not None):
            beside[folder] = min(folder.glob(f"{UNFINISHED}*"), default=None)
    found = [beside.get(source.path.parent) for source in dump.sources]
    return [path.name if path else None for path in found]


def lacks_manifest(source: Source) -> str | None:
    """The name of the manifest that a cleaned file should have beside it, and has not."""
    cleaned = schema.parse_metadata(source.metadata, str(source.path)).get("cleaned")
    name = cleaned.get("manifest") if isinstance(cleaned, dict) else None
    if not isinstance(name, str) or Path(name).name != name:
        return None
    return None if (source.path.parent / name).exists() else name


def columns(dump: Dump) -> Iterator[dict[str, Any]]:
    known = schema.load().columns
    required = schema.load().required(dump.policy)
    for name in dict.fromkeys([*dump.columns, *known]):
        stored = dump.columns.get(name, [])
        having = {c.file for c in stored}
        lacking = [i for i in range(len(dump.sources)) if i not in having]
        column = known.get(name)
        wrong = [c for c in stored if column and not schema.fits(column, c.type)]
        yield {
            "name": name,
            "known": column is not None,
            "own": name.startswith(schema.OWN_COLUMN),
            "required": name in required,
            "files_with": len(stored),
            "files_without": len(lacking) if stored else len(dump.sources),
            "lacking": str(dump.sources[lacking[0]].path) if lacking else None,
            "type": schema.type_name((wrong or stored)[0].type) if stored else None,
            "expected": " or ".join(column.types) if column else None,
            # A foreign file promised nothing: what was read into it is `assumed`, not wrong.
            "fits": not wrong or (not dump.declared and all(c.read_as for c in wrong)),
            "readable": dump.has(name),
        }
