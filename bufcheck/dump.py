"""A Dump: one file, several, a glob or a folder, read as one stream of Arrow batches.

Rows are numbered from 0 across the files, in the order given; a folder is sorted as people count
(part-2 before part-10). Names, types and settings are resolved once, here, so that nothing below
knows which file a column came from or what it was called there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bufcheck import format as formats
from bufcheck import schema
from bufcheck.config import NAME as CONFIG_NAME
from bufcheck.config import Config
from bufcheck.errors import NoDumpError, ReadError, SchemaError
from bufcheck.files import files_of
from bufcheck.format import NOT_VERIFIABLE, VERIFIED, Ranges, Source

if TYPE_CHECKING:
    import pyarrow as pa


class Batch(NamedTuple):
    file: int
    first_row: int
    rows: pa.RecordBatch


@dataclass(frozen=True)
class Stored:
    """A column as one file stores it, with the name it goes by here."""

    name: str
    stored_name: str
    file: int
    type: pa.DataType
    """As stored."""
    read_as: pa.DataType | None
    """As read; None if it cannot be."""
    constant: Any = None
    """The value a Hive folder gives it."""
    in_path: bool = False


@dataclass(frozen=True)
class Dump:
    given: list[str]
    sources: list[Source]
    starts: list[int]
    """The row id of each file's first row."""
    rows: int
    columns: dict[str, list[Stored]]
    """name → one entry per file that has it, in their order."""
    settings: dict[str, Any]
    """Every metadata key with its value: declared, from bufcheck.toml, or the default."""
    declared: bool
    """Whether the files describe themselves."""
    assumed: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def policy(self) -> dict[str, Any]:
        return {k.split(".")[1]: v for k, v in self.settings.items() if k.startswith("policy.")}

    @property
    def integrity(self) -> str:
        return VERIFIED if all(s.integrity == VERIFIED for s in self.sources) else NOT_VERIFIABLE

    def assumed_from_config(self) -> list[str]:
        return [k for k, note in self.assumed.items() if note["source"].startswith(CONFIG_NAME)]

    def has(self, name: str) -> bool:
        """Whether every file has the column, in a type that can be read."""
        found = self.columns.get(name, [])
        return len(found) == len(self.sources) and all(c.read_as is not None for c in found)

    def type_of(self, name: str) -> pa.DataType:
        """The type `batches` gives the column: the widest any file needs."""
        return _widest([c.read_as for c in self.columns[name] if c.read_as is not None])

    def texts_of(self, name: str) -> set[str]:
        """The different texts of a column; a quick pass, for texts are stored as a dictionary."""
        found: set[str] = set()
        for batch in self.batches([name]):
            found.update(
                word for word in batch.rows.column(0).dictionary.to_pylist() if word is not None
            )
        return found

    def batches(self, columns: Sequence[str], ranges: list[Ranges] | None = None) -> Iterator[Batch]:
        """Every row, or those in `ranges` (one list per file), of columns the whole dump `has`."""
        import pyarrow as pa

        wanted = pa.schema([(name, self.type_of(name)) for name in columns])
        for index, source in enumerate(self.sources):
            stored = [self.columns[name][index] for name in columns]
            within = ranges[index] if ranges is not None else None
            yield from _read(source, index, self.starts[index], stored, wanted, within)


def open_dump(paths: Sequence[str], config: Config | None = None) -> Dump:
    config = config or Config()
    found = files_of(paths)
    sources = [formats.open_source(path, config.columns) for path, _ in found]
    return of_sources(list(paths), sources, config, [hive for _, hive in found])


def of_sources(
    given: list[str], sources: list[Source], config: Config, hive: Sequence[dict[str, str]] = ()
) -> Dump:
    """A dump of what is open already. `hive`: the columns that folders give each source."""
    starts, rows = [], 0
    for source in sources:
        starts.append(rows)
        rows += source.rows
    if rows == 0:
        raise NoDumpError(f"{given[0]}: holds no rows", "was the trainer stopped before it wrote?")
    settings, assumed = _settle(_declared(sources), config)
    columns = _columns(sources, hive or [{}] * len(sources), config)
    foreign = not any(s.metadata for s in sources)
    for stored in (c for entries in columns.values() for c in entries):
        if note := _assumption(stored, foreign):
            assumed[f"columns.{stored.name}"] = note
    dump = Dump(given, sources, starts, rows, columns, settings, declared=not foreign, assumed=assumed)
    _refuse_the_unrelated(dump)
    return dump


# What the files say of themselves


def _declared(sources: list[Source]) -> dict[str, Any]:
    """The metadata all files agree on."""
    agreed: dict[str, Any] = {}
    said_by: dict[str, Path] = {}
    for source in sources:
        for key, value in schema.parse_metadata(source.metadata, str(source.path)).items():
            if key in agreed and agreed[key] != value and "." in key:
                raise SchemaError(
                    f"{source.path}: {key} is {value!r}, but {said_by[key]} says {agreed[key]!r}",
                    "check them as two dumps",
                )
            agreed.setdefault(key, value)
            said_by.setdefault(key, source.path)
    return agreed


def declared_rows(source: Source) -> int | None:
    rows = schema.parse_metadata(source.metadata, str(source.path)).get("rows")
    return rows if isinstance(rows, int) else None


def _settle(
    declared: dict[str, Any], config: Config
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    settings: dict[str, Any] = {}
    assumed: dict[str, dict[str, Any]] = {}
    for name, key in schema.load().keys.items():
        settings[name] = declared.get(name, key.default)
        if name in config.metadata:
            settings[name] = config.metadata[name]
            if name not in declared:
                assumed[name] = {"value": settings[name], "source": CONFIG_NAME}
            elif declared[name] != settings[name]:
                origin = f"{CONFIG_NAME}; the file says {declared[name]!r}"
                assumed[name] = {"value": settings[name], "source": origin}
        elif name not in declared and key.default is not None:
            assumed[name] = {"value": key.default, "source": "default"}
    return settings, assumed


# Columns


def _columns(
    sources: list[Source], hive: Sequence[dict[str, str]], config: Config
) -> dict[str, list[Stored]]:
    known = schema.load().columns
    ours = {stored: name for name, stored in config.columns.items()}
    columns: dict[str, list[Stored]] = {}
    for index, (source, in_path) in enumerate(zip(sources, hive, strict=True)):
        path = source.path
        names = {ours.get(f.name, f.name): f for f in source.schema}
        if lost := [s for n, s in config.columns.items() if n not in names]:
            raise ReadError(f"{path}: has no column {lost[0]!r}", f"mend [columns] in {config.path}")
        for name, arrow in names.items():
            read_as = arrow.type
            if name in known:
                read_as = schema.readable_as(known[name], arrow.type)
            columns.setdefault(name, []).append(Stored(name, arrow.name, index, arrow.type, read_as))
        for key, value in in_path.items():
            name = ours.get(key, key)
            if name not in names:
                columns.setdefault(name, []).append(_from_path(name, key, index, value, path))
    return columns


def _from_path(name: str, key: str, file: int, value: str, path: Path) -> Stored:
    import pyarrow as pa

    known = schema.load().columns.get(name)
    kind = known.kind if known and known.is_scalar else "string"
    target = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}.get(kind, pa.string())
    null = value == "__HIVE_DEFAULT_PARTITION__"
    try:
        constant = pa.scalar(None if null else value, pa.string()).cast(target)
    except pa.ArrowException:
        raise ReadError(f"{path}: its folder says {key}={value}, which is no {kind}") from None
    read_as = schema.readable_as(known, target) if known else target
    return Stored(name, key, file, target, read_as, constant, in_path=True)


def _assumption(stored: Stored, foreign: bool) -> dict[str, Any] | None:
    """What was taken for granted about a column, so that it can be printed."""
    if stored.in_path:
        return {"value": stored.name, "source": "the folder's name"}
    notes = []
    if stored.name != stored.stored_name:
        notes.append(f"read from {stored.stored_name!r}")
    known = schema.load().columns.get(stored.name)
    if foreign and known and stored.read_as is not None and not schema.fits(known, stored.type):
        notes.append(f"{schema.type_name(stored.type)} taken for {' or '.join(known.types)}")
    if not notes:
        return None
    origin = CONFIG_NAME if stored.name != stored.stored_name else "default"
    return {"value": ", ".join(notes), "source": origin}


def _refuse_the_unrelated(dump: Dump) -> None:
    required = schema.load().required(dump.policy)
    readable = any(dump.has(name) for name in schema.load().columns)
    if not readable or not any(name in dump.columns for name in required):
        names = ", ".join(list(dump.columns)[:8])
        raise NoDumpError(
            f"{dump.given[0]}: not an experience dump: none of its columns ({names}) is in the schema",
            f"name them under [columns] in {CONFIG_NAME}; `bufcheck schema` lists what is needed",
        )


def _widest(types: list[pa.DataType]) -> pa.DataType:
    import pyarrow as pa

    if all(t == types[0] for t in types):
        return types[0]
    if any(pa.types.is_nested(t) for t in types):
        items = [t.value_type for t in types]
        return pa.list_(_widest(items))
    return max(types, key=lambda t: t.bit_width)


def _read(
    source: Source,
    index: int,
    start: int,
    stored: list[Stored],
    wanted: pa.Schema,
    ranges: Ranges | None,
) -> Iterator[Batch]:
    import pyarrow as pa

    in_file = [c.stored_name for c in stored if not c.in_path]
    # A dump whose columns all lie in folder names still needs a column to count rows by.
    read = in_file or [source.schema.names[0]]
    position = 0
    spans = iter(ranges if ranges is not None else [(0, source.rows)])
    span_start, span_stop = next(spans, (0, 0))
    position = span_start
    for batch in source.read(read, ranges):
        while position >= span_stop:
            span_start, span_stop = next(spans)
            position = span_start
        arrays = []
        for column, target in zip(stored, wanted, strict=True):
            if column.in_path:
                array = pa.repeat(column.constant, batch.num_rows)
            else:
                array = batch.column(column.stored_name)
            arrays.append(_as_type(array, target.type, source.path, column.name))
        yield Batch(index, start + position, pa.RecordBatch.from_arrays(arrays, schema=wanted))
        position += batch.num_rows


def _as_type(array: pa.Array, wanted: pa.DataType, path: Path, name: str) -> pa.Array:
    import pyarrow as pa

    if array.type == wanted and not pa.types.is_dictionary(wanted):
        return array
    try:
        if pa.types.is_dictionary(wanted):
            if not pa.types.is_dictionary(array.type):
                array = array.cast(pa.string()).dictionary_encode()
            array.validate(full=True)  # a damaged file can hold bytes that are no text
        return array if array.type == wanted else array.cast(wanted)
    except pa.ArrowException as error:
        detail = str(error).splitlines()[0][:120]
        raise ReadError(f"{path}: column {name} cannot be read as {wanted} ({detail})") from None
