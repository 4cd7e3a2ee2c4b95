"""Brings the experience of other tools into experience/1, through `importers/`.

An importer is one module in `importers/`; its docstring says what it reads.

    EXAMPLE                a command line, for --help
    recognises(path)       whether this file or folder looks like one of its kind; a cheap look
    find(paths, asked)     -> Found: what the source holds, by the names it has there
    TAKES_AXES             there, if --axes means something to it

What the names mean (`importers/aliases.toml`), which family of policies acted, where episodes begin and
what is missing is found out in the same way for all, in `importers/_plan.py`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from bufcheck import format as formats
from bufcheck.config import Config
from bufcheck.errors import ForeignError, NoDumpError, ReadError, UsageError
from bufcheck.whole_file import refuse, whole_file

if TYPE_CHECKING:
    import pyarrow as pa

MOST_SORTED = 256 << 20
"""Rows are sorted in memory up to this size; beyond it they keep the order of the source."""
PIECE_BYTES = 4 << 20
DIFFERENT = ("not in every part of the source", "of several shapes")
AXES = ("time", "env", "agent")


class Kind(NamedTuple):
    """What a column holds in one row: numbers of a shape, or one value of an Arrow type."""

    type: pa.DataType
    shape: tuple[int, ...] = ()


class Piece(NamedTuple):
    """Rows that follow one another, by the names of the source."""

    columns: dict[str, Any]
    """NumPy arrays [rows, …] of numbers, or Arrow arrays of anything."""
    lane: Hashable = 0
    """Rows of a lane follow one another in time, from piece to piece: one environment, say."""
    begins: bool = False
    """The first row begins an episode, whatever came before it in its lane."""


class Asked(NamedTuple):
    """What the user says of the source."""

    config: Config = Config()
    columns: Mapping[str, str] = MappingProxyType({})
    """experience name, or `done` or `episode_start` → the name it has in the source."""
    axes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    files: list[Path]
    columns: dict[str, Kind]
    rows: int
    pieces: Callable[[], Iterator[Piece]]
    """May be asked for more than once."""
    policy: dict[str, Any] = field(default_factory=dict)
    """What the source itself says of the policy: distribution, action_space …"""
    first_action: int = 0
    """What the source calls action 0."""
    assumed: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """What is not carried over → why."""
    ids_stay: bool = True
    """Whole-numbered episode ids are unique over all inputs, and kept as they are."""


class Imported(NamedTuple):
    rows: int
    told: list[str]
    """What was read as what, assumed, missing and left out; a line each."""


def asked(config: Config, columns: dict[str, str], axes: str | None) -> Asked:
    """What --column and --axes say, beside bufcheck.toml."""
    from bufcheck.importers._names import check

    given = tuple(axis.strip() for axis in axes.split(",")) if axes is not None else ()
    if (
        len(set(given)) < len(given)
        or set(given) - set(AXES)
        or (axes is not None and "time" not in given)
    ):
        raise UsageError(
            f"--axes {axes}: not the names of axes", f"say some of {', '.join(AXES)}, with time"
        )
    return Asked(config, check(columns), given)


def names() -> list[str]:
    import bufcheck.importers as members

    found = (m.name.replace("_", "-") for m in pkgutil.iter_modules(members.__path__))
    return sorted(name for name in found if name[0] != "-")


def member(name: str) -> Any:
    if name not in names():
        raise UsageError(f"{name!r} is no importer", f"there are {', '.join(names())}")
    return importlib.import_module(f"bufcheck.importers.{name.replace('-', '_')}")


def hint(error: NoDumpError) -> str:
    """What to say after an error about a file that is no dump, but one that an importer knows."""
    path = Path(error.problem.partition(": ")[0])
    for name in names() if path.exists() else ():
        try:
            if member(name).recognises(path):
                return f"try bufcheck convert --from {name} {path} OUT.parquet"
        except Exception:  # whatever a damaged file makes it raise: there is an error to tell already
            continue
    return ""


def import_dump(
    name: str,
    paths: Sequence[str],
    target: Path,
    asked: Asked,
    *,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """Writes what an importer finds as a dump, in the format of the target's suffix."""
    from bufcheck.importers._plan import plan_for

    form = formats.of_suffix(target)
    refuse([target], replace=force)
    try:
        if asked.axes and not hasattr(member(name), "TAKES_AXES"):
            raise UsageError(f"--axes means nothing to --from {name}", "leave it out")
        found = member(name).find([Path(path) for path in _present(paths)], asked)
        plan = plan_for(name, found, asked)

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in _in_order(plan.batches(), plan):
                yield batch
                if progress:
                    progress(batch.num_rows, found.rows)

        with whole_file(target, sources=found.files, replace=force) as temporary:
            rows = formats.write(form, temporary, plan.schema, batches(), plan.metadata)
            formats.verify(temporary, found.rows)
    except ReadError as error:
        raise ForeignError(error.problem, error.step) from None
    return Imported(rows, plan.told())


def _present(paths: Sequence[str]) -> list[str]:
    seen: set[Path] = set()
    for path in paths:
        if not Path(path).exists():
            raise ForeignError(f"{path}: no such file or folder")
        if Path(path).resolve() in seen:
            raise UsageError(f"{path}: given twice")
        seen.add(Path(path).resolve())
    return list(paths)


def _in_order(batches: Iterable[pa.RecordBatch], plan: Any) -> Iterator[pa.RecordBatch]:
    """By episode, step and agent, where the rows fit in memory; sources mix episodes as they please."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    size = 0
    rest = iter(batches)
    for batch in rest:
        held.append(batch)
        size += batch.nbytes
        if size > MOST_SORTED:
            plan.notes.append("the rows keep the order of the source: there are too many to sort here")
            break
    else:
        keys = [(name, "ascending") for name in ("episode_id", "timestep", "agent_id")]
        table = pa.Table.from_batches(held, plan.schema)
        in_order = table.select([name for name, _ in keys]).combine_chunks()
        rows = pa.compute.sort_indices(in_order, keys)
        if not _counts_up(rows):
            yield from table.take(rows).to_batches(max_chunksize=1 << 14)
            return
    yield from held
    yield from rest


def _counts_up(rows: pa.Array) -> bool:
    import numpy as np

    return bool((rows.to_numpy() == np.arange(len(rows))).all())


# What importers share


def kind_of(values: Any) -> Kind:
    import pyarrow as pa

    if isinstance(values, pa.Array):
        return Kind(values.type)
    return Kind(pa.from_numpy_dtype(values.dtype), tuple(values.shape[1:]))


def common(seen: Iterable[dict[str, Kind]]) -> tuple[dict[str, Kind], dict[str, str]]:
    """The columns that all parts of a source have, in a type that holds all; and why not the others."""
    columns: dict[str, Kind] = {}
    left_out: dict[str, str] = {}
    for number, part in enumerate(seen):
        for name, kind in part.items():
            if name not in columns and not number:
                columns[name] = kind
            elif name not in columns:
                left_out.setdefault(name, DIFFERENT[0])
        for name in [name for name in columns if columns[name] != part.get(name)]:
            wider = _wider(columns[name], part[name]) if name in part else None
            if wider is None:
                left_out[name] = DIFFERENT[1] if name in part else DIFFERENT[0]
                del columns[name]
            else:
                columns[name] = wider
    return columns, left_out


def _wider(one: Kind, other: Kind) -> Kind | None:
    import numpy as np
    import pyarrow as pa

    if one.shape != other.shape:
        return None
    try:
        both = np.result_type(one.type.to_pandas_dtype(), other.type.to_pandas_dtype())
        return Kind(pa.from_numpy_dtype(both), one.shape) if both.kind in "biuf" else None
    except (TypeError, NotImplementedError, pa.ArrowException):
        return None


def rows_at_once(columns: dict[str, Kind]) -> int:
    """So many rows are a piece of a few megabytes."""
    import math

    width = sum(
        math.prod(kind.shape) * (kind.type.bit_width if _is_number(kind.type) else 512)
        for kind in columns.values()
    )
    return max(1, min(1 << 16, 8 * PIECE_BYTES // max(1, width)))


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_primitive(kind))


def scanned(pieces: Iterable[Piece]) -> tuple[dict[str, Kind], dict[str, str], int]:
    """Columns, those left out, and rows, for a source that must be read to be known."""
    rows = 0
    parts: list[dict[str, Kind]] = []
    for piece in pieces:
        described = {name: kind_of(values) for name, values in piece.columns.items()}
        if not parts or described != parts[-1]:
            parts.append(described)
        rows += len(next(iter(piece.columns.values()), ()))
    columns, left_out = common(parts)
    return columns, left_out, rows
