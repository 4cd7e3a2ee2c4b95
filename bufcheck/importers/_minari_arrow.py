"""Minari's Arrow and Parquet storages: one folder an episode, with one row for every observation.

All columns have T + 1 rows; the last ones of actions, rewards and flags are padding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from bufcheck.errors import ForeignError, ReadError
from bufcheck.formats import parquet
from bufcheck.importer import Kind, kind_of
from bufcheck.importers import _arrow
from bufcheck.importers.minari import COPY, METADATA, STEPS, Episode

MOST_EPISODE = 2 << 30


def episodes(folder: Path) -> list[Episode]:
    numbers = sorted(int(child.name) for child in folder.iterdir() if child.name.isdecimal())
    made = []
    for number in numbers:
        where = folder / str(number)
        columns, steps = _columns(_table(where), where)
        kinds = {name: kind_of(values) for name, values in columns.items()}
        made.append(Episode(number, steps, kinds, _seed(where), where))
    return made


def read(
    given: list[Episode], columns: dict[str, Kind]
) -> Iterator[tuple[dict[str, Any], Episode, int]]:
    """An episode at a time, as Minari itself reads them."""
    for episode in given:
        if episode.steps:
            held, _ = _columns(_table(episode.where), episode.where)
            yield {name: held[name] for name in columns}, episode, 0


def _seed(where: Path) -> int | None:
    try:
        found = json.loads((where / METADATA).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    seed = found.get("seed") if isinstance(found, dict) else None
    return seed if type(seed) is int else None


def _table(where: Path) -> pa.Table:
    files = sorted(
        p for p in where.iterdir() if p.is_file() and p.name[0] not in "._" and p.name != METADATA
    )
    if not files:
        raise ForeignError(f"{where}: holds no data", COPY)
    if sum(file.stat().st_size for file in files) > MOST_EPISODE:
        raise ForeignError(f"{where}: an episode of more than {MOST_EPISODE >> 30} GB", COPY)
    try:
        table = pa.concat_tables([_one(file) for file in files])
        table.validate(full=True)
    except ReadError as error:
        raise ForeignError(error.problem, COPY) from None
    except (pa.ArrowException, OSError, ValueError, MemoryError, KeyError) as error:
        detail = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ForeignError(f"{where}: cannot be read ({detail[:120]})", COPY) from None
    return table


def _one(file: Path) -> pa.Table:
    with file.open("rb") as opened:
        if parquet.recognises(opened):
            source = parquet.open_source(file)
            return pa.Table.from_batches(source.read(source.schema.names, None), source.schema)
    with pa.OSFile(str(file)) as opened, pa.ipc.open_file(opened) as reader:
        return reader.read_all()


def _columns(table: pa.Table, where: Path) -> tuple[dict[str, Any], int]:
    """Names as in HDF5 storage, cut to the steps there were."""
    table = table.combine_chunks()
    for name in STEPS:
        if name not in table.column_names:
            raise ForeignError(f"{where}: has no {name}", COPY)
    steps = max(0, len(table) - 1)
    found: dict[str, Any] = {}
    for name in table.column_names:
        first = 1 if name == "infos" else 0
        if name == "episode_id":
            continue  # the folder's name
        for leaf, array in _arrow.leaves(name, table.column(name).combine_chunks()):
            values = _arrow.plain(array.slice(first, steps))
            if values is not None:
                found[leaf] = values
    return found, steps
