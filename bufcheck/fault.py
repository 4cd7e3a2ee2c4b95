"""Puts a known bug into a copy of a dump, and writes down which rows it hit.

A fault is one module in `faults/`, named after it, with a docstring that tells how trainers get it, and

    PARAMETERS                               name → Parameter
    apply(buffer, hit, parameters, rng)      overwrites columns of the rows that are hit
    families                                 the policy.distributions it makes sense for; default all
    catalogued                               False for what no cause names; default True

One that adds or moves rows gives back a new Buffer and the rows of it that are wrong. Names are those
of causes; code is not shared with them: a diagnosis proved against its own formula proves nothing.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bufcheck import format as formats
from bufcheck.config import Config
from bufcheck.convert import convert
from bufcheck.dump import open_dump
from bufcheck.errors import ReadError, UsageError
from bufcheck.whole_file import whole_files

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from bufcheck.faults._buffer import Buffer
    from bufcheck.vectors import Array

UNITS = ("rows", "episodes", "agents")
TRUTH = ".truth.parquet"


@dataclass(frozen=True)
class Parameter:
    """What can be said about a fault, with --set NAME=VALUE."""

    default: Any
    """Its type is the parameter's."""
    meaning: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    above: float | None = None

    def parse(self, fault: str, name: str, value: Any) -> Any:
        try:
            parsed = type(self.default)(value)
        except (TypeError, ValueError):
            parsed = None
        if parsed is None or not self._allows(parsed):
            raise UsageError(f"{fault}: {name} cannot be {value!r}", f"it is {self.range}")
        return parsed

    def _allows(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        return not (
            (self.least is not None and not value >= self.least)
            or (self.most is not None and not value <= self.most)
            or (self.above is not None and not value > self.above)
        )

    @property
    def range(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        kind = {int: "a whole number", float: "a number"}.get(type(self.default), "a text")
        bounds = [(self.least, "of at least"), (self.above, "above"), (self.most, "up to")]
        return " ".join([kind, *(f"{word} {bound:g}" for bound, word in bounds if bound is not None)])


@dataclass(frozen=True)
class Fault:
    name: str
    summary: str
    parameters: Mapping[str, Parameter]
    families: tuple[str, ...]
    catalogued: bool
    apply: Any


def names() -> list[str]:
    import bufcheck.faults as members

    found = (m.name for m in pkgutil.iter_modules(members.__path__) if m.name[0] != "_")
    return sorted(name.replace("_", "-") for name in found)


def load(name: str) -> Fault:
    if name not in names():
        near = difflib.get_close_matches(name, names(), 3, 0.5)
        guess = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(f"{name!r} is no known fault", f"{guess}`bufcheck inject --list` names all")
    module: Any = importlib.import_module(f"bufcheck.faults.{name.replace('-', '_')}")
    return Fault(
        name,
        module.__doc__.splitlines()[0],
        module.PARAMETERS,
        getattr(module, "families", ()),
        getattr(module, "catalogued", True),
        module.apply,
    )


def inject(
    paths: Sequence[str],
    target: Path,
    name: str,
    *,
    actor: Any = (),
    arch: str | None = None,
    unit: str = "rows",
    fraction: float = 1.0,
    seed: int = 0,
    parameters: Mapping[str, Any] | None = None,
    avoid: Path | None = None,
    config: Config | None = None,
    force: bool = False,
) -> int:
    """Writes the faulty dump to `target`, and beside it which rows are wrong. Returns how many.

    The whole dump is held in memory. The rows, episodes or agents to hit are drawn by `seed`; those in
    `avoid`, the truth file of another fault, are left as they are.
    """
    import numpy as np

    from bufcheck.faults._acting import Acting
    from bufcheck.faults._buffer import Buffer

    fault = load(name)
    told = _settle(fault, parameters or {})
    if unit not in UNITS:
        raise UsageError(f"unit cannot be {unit!r}", f"it is one of {', '.join(UNITS)}")
    if not 0 < fraction <= 1:
        raise UsageError(f"fraction cannot be {fraction}", "it is above 0 and at most 1")
    formats.of_suffix(target)
    dump = open_dump(paths, config)
    family = dump.policy["distribution"]
    if fault.families and family not in fault.families:
        raise UsageError(
            f"{name} makes no sense for a {family} policy", f"it is for {', '.join(fault.families)}"
        )
    table, metadata = _read(paths, config)
    spared = np.zeros(table.num_rows, bool)
    if avoid is not None:
        spared[_truth(avoid, table.num_rows)] = True
    acting = Acting(actor, arch, dump.policy, name)
    source = {n: _plain(table.column(n)) for n in table.column_names}
    buffer = Buffer(source, acting, spared)
    rng = np.random.default_rng(seed)
    hit = _chosen(buffer, unit, fraction, rng)
    made = fault.apply(buffer, hit, MappingProxyType(told), rng)
    buffer, wrong = made if made is not None else (buffer, _changed(source, buffer))
    if not len(wrong):
        raise UsageError(
            f"{name} changes nothing in this dump", "choose other parameters, another unit or seed"
        )
    arrays = [c.cast(table.schema.field(n).type) for n, c in buffer.columns.items()]
    sources = [s.path for s in dump.sources] + ([avoid] if avoid else [])
    result = type(table).from_arrays(arrays, schema=table.schema)
    _write(target, result, metadata, name, np.sort(wrong), sources, force)
    return len(wrong)


def _settle(fault: Fault, given: Mapping[str, Any]) -> dict[str, Any]:
    for name in given:
        if name not in fault.parameters:
            known = ", ".join(fault.parameters) or "none"
            raise UsageError(f"{fault.name} has no parameter {name!r}", f"it has: {known}")
    return {
        name: parameter.parse(fault.name, name, given.get(name, parameter.default))
        for name, parameter in fault.parameters.items()
    }


def _read(paths: Sequence[str], config: Config | None) -> tuple[pa.Table, dict[str, Any]]:
    """Every column with its type, and the metadata; whatever was given, read as one Parquet file."""
    import json

    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory(prefix="bufcheck-") as folder:
        whole = Path(folder) / "whole.parquet"
        convert(paths, whole, config)
        table = pq.read_table(whole, memory_map=False)
    metadata: dict[str, Any] = json.loads((table.schema.metadata or {})[b"bufcheck"])
    return table.replace_schema_metadata(None), metadata


def _plain(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_large_string(column.type):
        column = column.cast(pa.string())
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def _truth(path: Path, rows: int) -> Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found: Array = pq.read_table(path, columns=["row_id"]).column(0).to_numpy()
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        detail = str(error).splitlines()[0][:120]
        raise ReadError(f"{path}: not a truth file ({detail})", "give an OUT.truth.parquet") from None
    if len(found) and (found.min() < 0 or found.max() >= rows):
        raise UsageError(
            f"{path}: names rows the dump lacks", "give the truth file that was written with this dump"
        )
    return found.astype(np.int64)


def _chosen(buffer: Buffer, unit: str, fraction: float, rng: np.random.Generator) -> Array:
    """The rows to hit: a share of the units, at least one, drawn at random."""
    import numpy as np

    free = np.flatnonzero(~buffer.avoid)
    groups = {"rows": np.arange(buffer.rows)}.get(unit)
    if groups is None:
        groups = buffer.episode if unit == "episodes" else buffer.agent
    units = np.unique(groups[free])
    if unit == "episodes":
        units = np.setdiff1d(units, groups[buffer.avoid])
    wanted = max(1, round(fraction * len(np.unique(groups))))
    drawn = rng.permutation(units)[:wanted]
    hit: Array = free[np.isin(groups[free], drawn)]
    if not len(hit):
        raise UsageError(f"no {unit} are left to hit", "the file given to --avoid names all of them")
    return hit


def _changed(source: Mapping[str, pa.Array], buffer: Buffer) -> Array:
    import numpy as np

    from bufcheck.faults._differs import differs

    apart = np.zeros(buffer.rows, bool)
    for name, column in buffer.columns.items():
        apart |= differs(source[name], column)
    return np.flatnonzero(apart)


def _write(
    target: Path,
    table: pa.Table,
    metadata: dict[str, Any],
    name: str,
    wrong: Array,
    sources: list[Path],
    force: bool,
) -> None:
    """Both files or neither. The truth gets its name first: there is no faulty dump without it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    truth = target.with_name(target.stem + TRUTH)
    with whole_files([truth, target], sources=sources, replace=force) as [list_of_rows, dump]:
        which = {"row_id": pa.array(wrong, pa.int64()), "fault": pa.repeat(name, len(wrong))}
        pq.write_table(pa.table(which), list_of_rows, write_page_checksum=True)
        batches = table.to_batches(1 << 14)
        formats.write(formats.of_suffix(target), dump, table.schema, batches, metadata)
        formats.verify(dump, table.num_rows)
