"""What SQL sees of a dump: its rows as they are, and what bufcheck makes of them.

A view is made when a query first names it: `samples` is read from the files, only the columns asked
for; the others live in a database of their own, filled with what the words of the query need.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bufcheck import description, digest, findings, pipeline, settings, sql
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

    def __init__(self, job: pipeline.Job) -> None:
        self.job = job
        self._database: Database | None = None
        self._words: set[str] = set()
        self._level = DIGESTED

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
        near = difflib.get_close_matches(name, self.meanings, n=3, cutoff=0.6)
        return (
            f"did you mean {' or '.join(near)}?"
            if near
            else f"the views are {', '.join(self.meanings)}"
        )

    def prepare(self, query: str) -> dict[str, pa.Schema]:
        """Makes what this SQL names; returns the views it can use."""
        words = sql.words_of(_NO_COLUMN.sub(" ", _unwrapped(query)))
        words |= {word.lower() for word in words}
        named = (words & set(self.meanings)) - {"samples"}
        if self.job.replay is None:
            named -= set(REPLAYED)
        if named:
            if _EVERY.search(query):
                words |= set(digest.view_columns(set(), frozenset(), ()))
                words.update(*(sql.table_header(n).get("reads", ()) for n in sql.table_names()))
            self._make(named, words)
        made = {name: self._schema(name) for name in sorted(named)}
        return made | {"samples": self._samples_schema()}

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
            "files": description.files_schema().names,
            "columns": description.columns_schema().names,
            "metadata": list(settings.NAMES),
        }
        for name in sql.table_names():
            header = sql.table_header(name)
            told[name] = [*header.get("keys", ()), *header["columns"]]
        return {name: told[name] for name in self.meanings}

    def read(self, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a view that `prepare` has made, of these columns only."""
        if name == "samples":
            yield from self._samples(columns)
            return
        assert self._database is not None
        listed = ", ".join(f'"{column}"' for column in columns)
        with self._database.connection.cursor() as cursor:
            made = cursor.sql(f"SELECT {listed} FROM ({self._select(name)})")
            yield from made.to_arrow_reader(BATCH_ROWS)

    def close(self) -> None:
        if self._database is not None:
            self._database.__exit__()
            self._database = None

    # The dump's own rows

    def _samples_schema(self) -> pa.Schema:
        import pyarrow as pa

        dump = self.job.dump
        own = [(name, _known_to_duckdb(dump.type_of(name))) for name in dump.columns if dump.has(name)]
        return pa.schema([(ROW_ID, pa.int64()), *own])

    def _samples(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        schema = self._samples_schema()
        wanted = pa.schema([schema.field(name) for name in columns])
        read = [name for name in columns if name != ROW_ID]
        # To count rows takes a column, and a scalar is the cheapest.
        counted = read or [
            min(schema.names[1:], key=lambda n: pa.types.is_nested(schema.field(n).type))
        ]
        for batch in self.job.dump.batches(counted):
            count = batch.rows.num_rows
            ids = pa.array(np.arange(batch.first_row, batch.first_row + count))
            made = [ids if f.name == ROW_ID else batch.rows.column(f.name).cast(f.type) for f in wanted]
            yield pa.RecordBatch.from_arrays(made, schema=wanted)

    # What is made of them

    def _make(self, named: set[str], words: set[str]) -> None:
        level = CHECK if named & set(CHECKED) else REPLAY if named & set(REPLAYED) else DIGESTED
        for name in named & set(sql.table_names()):
            words = words | (rules.words_with_tables(sql.table_sql(name)) - _unread(name, words))
        if self._database is None or not words <= self._words or level > self._level:
            self.close()
            self._words, self._level = self._words | words, max(level, self._level)
            self._database = self._filled()
        for name in named & set(sql.table_names()):
            self._database.prepare_for(f"SELECT * FROM {name}")
        self._database.show_digest(self._words | set(pipeline.KEYS))

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
        import pyarrow as pa

        assert self._database is not None
        with self._database.connection.cursor() as cursor:
            made = cursor.sql(f"SELECT * FROM ({self._select(name)}) LIMIT 0").to_arrow_reader(1)
        reads = sql.table_header(name).get("reads", {}) if name in sql.table_names() else {}
        unread = {column for column, word in reads.items() if word not in self._words}
        return pa.schema([field for field in made.schema if field.name not in unread])

    def _select(self, name: str) -> str:
        if name == "causes":
            return findings.CAUSES
        return findings.listed(self.job.replay is not None) if name == "findings" else f"FROM {name}"


def _unread(table: str, words: set[str]) -> set[str]:
    """What need not be read for a table, because nobody asks for the column it is for."""
    reads: dict[str, str] = sql.table_header(table).get("reads", {})
    return {word for column, word in reads.items() if column not in words}


def _unwrapped(query: str) -> str:
    """SQL within a text is SQL where query('…') or query_table('…') runs it."""
    return query.replace("'", " ") if re.search(r"\bquery(_table)?\s*\(", query, re.I) else query


def _known_to_duckdb(kind: pa.DataType) -> pa.DataType:
    """float16 is not known to it."""
    import pyarrow as pa

    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_known_to_duckdb(kind.value_type), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_known_to_duckdb(kind.value_type))
    return kind
