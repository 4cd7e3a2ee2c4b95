"""What SQL sees of a dump: its rows as they are, and what bufcheck makes of them.

A view is made when a query first names it: `samples` is read from the files, only the columns asked
for; the others live in a database of their own, filled with what the words of the query need.
"""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bufcheck import description, digest, findings, pipeline, reading, schema, settings, sql, statement
from bufcheck import rule as rules
from bufcheck.database import Database
from bufcheck.replayer import SCORED

if TYPE_CHECKING:
    import pyarrow as pa

ROW_ID = "row_id"
CHECKED = {
    "findings": "one row per finding, as validate --findings writes them",
    "causes": "which cause explains which row",
}
REPLAYED = {
    "replay": "what its actor says of each row; needs --actor",
    "actors": "the checkpoints that were used; needs --actor",
    "calibration": "how likely the stored actions are to the actor; needs --actor",
}
DESCRIBED = {
    "digest": "a few scalars per row, made of its vectors",
    "columns": "the columns of each file",
    "files": "the files of the dump",
    "metadata": "the settings of the dump, in one row",
}
_EVERY = re.compile(
    r"(?:SELECT|ALL|DISTINCT|,|\.)\s*\*|\bCOLUMNS\s*\(|\b(?:DESCRIBE|SUMMARIZE|TABLE)\b|(?:^|\()\s*FROM\b",
    re.IGNORECASE,
)
"""Where every column is meant, and none named."""
_NO_COLUMN = re.compile(r"\bNULLS\s+(?:FIRST|LAST)\b|\bGROUP\s+BY\b", re.IGNORECASE)
"""Words of SQL that columns are called by too."""
BATCH_ROWS = 1 << 16
DIGESTED, REPLAY, CHECK = range(3)
"""How much was done to fill the database."""


class Views:
    """The views of one dump."""

    def __init__(self, job: reading.Job) -> None:
        self.job = job
        self._database: Database | None = None
        self._outdated: list[Database] = []
        self._words: set[str] = set()
        self._level = DIGESTED
        self._schemas: dict[str, pa.Schema] = {}
        self._lock = threading.Lock()

    @property
    def meanings(self) -> dict[str, str]:
        """Every view with what it holds."""
        tables = {name: str(sql.table_header(name)["meaning"]) for name in sql.table_names()}
        return (
            {"samples": "the dump's own rows, every column"} | DESCRIBED | tables | REPLAYED | CHECKED
        )

    def why_not(self, name: str) -> str:
        """What to do about a view that is not there."""
        if name in set(REPLAYED) and self.job.replay is None:
            return f"{name} needs {self.job.lacking}"
        if name in self.meanings:
            return f"name {name} in the SQL itself"
        near = difflib.get_close_matches(name, self.meanings, n=3, cutoff=0.6)
        return (
            f"did you mean {' or '.join(near)}?"
            if near
            else f"the views are {', '.join(self.meanings)}"
        )

    def prepare(self, query: str) -> dict[str, pa.Schema]:
        """Makes what this SQL names; returns the views it can use."""
        import pyarrow as pa

        self._forget_outdated()
        words = statement.words(_NO_COLUMN.sub(" ", query))
        named = (words & set(self.meanings)) - {"samples"}
        if self.job.replay is None:
            named -= set(REPLAYED)
        if named:
            if _EVERY.search(statement.bare(query)):
                words |= self._matters - self._own
            self._make(named, words)
        made = {name: self._schema(name) for name in sorted(named)} | {
            "samples": self._samples_schema()
        }
        if "digest" in named:  # columns of the user's own are there where they are named
            hidden = self._own - words
            made["digest"] = pa.schema([field for field in made["digest"] if field.name not in hidden])
        self._schemas |= made
        return made

    @property
    def _matters(self) -> set[str]:
        """The words that say what must be read; others are aliases and SQL's own."""
        reads = (sql.table_header(name).get("reads", {}) for name in sql.table_names())
        known = set(digest.view_columns(set(), frozenset(), ())) - {ROW_ID, *reading.KEYS}
        return known | self._own | {column for each in reads for column in each}

    @property
    def _own(self) -> set[str]:
        return set(self.job.dump.columns) - set(schema.load().columns)

    def columns(self) -> dict[str, list[str]]:
        """The columns of every view, without making any: what can be completed."""
        own = [n for n in self._samples_schema().names if n != ROW_ID]
        stored = ["episode_id", "timestep", "agent_id", "policy_version", "num_actions", "old_log_prob"]
        scored = [*(c.name for c in SCORED), "expected_log_prob", "residual", "allowed"]
        told = {
            "samples": [ROW_ID, *own],
            "digest": list(digest.view_columns(set(), frozenset(), ())),
            "replay": [ROW_ID, *stored, *scored],
            "actors": ["actor", "path", "sha256"],
            "findings": list(findings.COLUMNS),
            "causes": list(findings.CAUSES_COLUMNS),
            "files": list(description.FILES),
            "columns": list(description.COLUMNS),
            "metadata": list(settings.NAMES),
        }
        for name in sql.table_names():
            header = sql.table_header(name)
            told[name] = [*header.get("keys", ()), *header["columns"]]
        return {name: told[name] for name in self.meanings}

    def read(self, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a view that `prepare` has made, of these columns only.

        What no word of the SQL told of, as in NATURAL JOIN, is made now.
        """
        import pyarrow as pa

        if name == "samples":
            yield from self._samples(columns)
            return
        with self._lock:
            self._make(
                {name}, set(columns) if name in DESCRIBED or name in sql.table_names() else set()
            )
            assert self._database is not None
            database = self._database
        made_as = self._schemas[name]
        wanted = pa.schema([made_as.field(column) for column in columns])
        listed = ", ".join(f'"{column}"' for column in columns)
        with database.connection.cursor() as cursor:
            made = cursor.sql(f"SELECT {listed} FROM ({self._select(name)})")
            for batch in made.to_arrow_reader(BATCH_ROWS):
                yield batch if batch.schema == wanted else batch.cast(wanted)

    def close(self) -> None:
        if self._database is not None:
            self._outdated.append(self._database)
            self._database = None
        self._forget_outdated()

    def _forget_outdated(self) -> None:
        """A database that was replaced may have been in use until the question was answered."""
        while self._outdated:
            self._outdated.pop().__exit__()

    # The dump's own rows

    def _samples_schema(self) -> pa.Schema:
        import pyarrow as pa

        dump = self.job.dump
        own = [name for name in dump.columns if dump.has(name) and name.lower() != ROW_ID]
        types = [(name, _known_to_duckdb(dump.type_of(name))) for name in own]
        return pa.schema([(ROW_ID, pa.int64()), *types])

    def _samples(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        every = self._samples_schema()
        wanted = pa.schema([every.field(name) for name in columns])
        read = [name for name in columns if name != ROW_ID]
        # To count rows takes a column, and a scalar is the cheapest.
        counted = read or [min(every.names[1:], key=lambda n: pa.types.is_nested(every.field(n).type))]
        for batch in self.job.dump.batches(counted):
            count = batch.rows.num_rows
            ids = pa.array(np.arange(batch.first_row, batch.first_row + count))
            made = [ids if f.name == ROW_ID else batch.rows.column(f.name).cast(f.type) for f in wanted]
            yield pa.RecordBatch.from_arrays(made, schema=wanted)

    # What is made of them

    def _make(self, named: set[str], words: set[str]) -> None:
        level = CHECK if named & set(CHECKED) else REPLAY if named & set(REPLAYED) else DIGESTED
        if self.job.replay is not None and "confirmed" in words:
            level = max(level, REPLAY)
        for name in named & set(sql.table_names()):
            words = words | (rules.words_with_tables(sql.table_sql(name)) - _unread(name, words))
        words = words & self._matters
        if self._database is None or not words <= self._words or level > self._level:
            if self._database is not None:
                self._outdated.append(self._database)
            self._words, self._level = self._words | words, max(level, self._level)
            self._database = self._filled()
        for name in named & set(sql.table_names()):
            self._database.prepared(f"FROM {name}")

    def _filled(self) -> Database:
        database = Database()
        if self._level == CHECK:
            pipeline.load(database, self.job, self._words)
            pipeline.run_rules(database, self.job)
            pipeline.find_causes(database, self.job)
        else:
            replayed = self._level == REPLAY
            pipeline.load_words(database, self.job, self._words, replayed=replayed)
        return database

    def _schema(self, name: str) -> pa.Schema:
        assert self._database is not None
        with self._database.connection.cursor() as cursor:
            made = cursor.sql(f"SELECT * FROM ({self._select(name)}) LIMIT 0")
            return made.to_arrow_reader(1).schema

    def _select(self, name: str) -> str:
        if name == "causes":
            return findings.CAUSES
        return findings.listed(self.job.replay is not None) if name == "findings" else f"FROM {name}"


def _unread(table: str, words: set[str]) -> set[str]:
    """What need not be read for a table, because nobody asks for the column it is for."""
    reads: dict[str, str] = sql.table_header(table).get("reads", {})
    return {word for column, word in reads.items() if column not in words}


def _known_to_duckdb(kind: pa.DataType) -> pa.DataType:
    """The type itself, or one that holds the same and that DuckDB reads."""
    import pyarrow as pa

    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_decimal256(kind):
        return pa.string()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_known_to_duckdb(kind.value_type), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_known_to_duckdb(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, _known_to_duckdb(f.type)) for f in kind])
    return kind
