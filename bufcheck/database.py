"""The DuckDB session: one private database in memory that spills to a private folder.

It sees no file and no Python variable; what it holds was handed to it as Arrow. Besides `digest` it
has the tables of `tables/`, each made when somebody first asks for it.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from bufcheck import description, digest
from bufcheck.replayer import PREFIX, SCORED
from bufcheck.sql import fill_in, literal, table_sql, tables_named_in, words_of

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from bufcheck.actor import Actor
    from bufcheck.dump import Dump
    from bufcheck.vectors import Array

T = TypeVar("T")
MEMORY_LIMIT = "320MB"
_TYPES = {
    str: "VARCHAR",
    bool: "BOOLEAN",
    int: "BIGINT",
    float: "DOUBLE",
    list: "BIGINT[]",
    type(None): "INTEGER",
}
_GIVEN = {"digest", "columns", "files", "metadata", "findings", "samples", "replay", "actors"}


class Database:
    def __init__(self, memory_limit: str = MEMORY_LIMIT) -> None:
        self._memory_limit = memory_limit
        self._folder = tempfile.mkdtemp(prefix="bufcheck-")
        self._made = set(_GIVEN)
        self._stuck = False
        self._worker = ThreadPoolExecutor(1)
        self._view: dict[str, str] = {}
        self._agents = 0
        self.settings: dict[str, Any] = {}
        """The one row of `metadata`; SQL names its entries as $entry."""

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """Opened by whoever needs it first: DuckDB takes its time to import."""
        import duckdb

        connection = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": self._memory_limit,
                "temp_directory": self._folder,
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "python_enable_replacements": False,
            },
        )
        # Not at connect: that would forbid naming the folder to spill to. It cannot be undone.
        connection.execute("SET enable_external_access = false")
        return connection

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._stuck and "connection" in vars(self):
            self.connection.close()
        self._worker.shutdown(wait=not self._stuck)
        shutil.rmtree(self._folder, ignore_errors=True)

    def load(self, name: str, rows: pa.Table | pa.RecordBatchReader, select: str = "") -> None:
        """CREATE TABLE name AS the select over `batches`, which is the Arrow data given."""
        self.connection.register("batches", rows)
        try:
            self.execute(f"CREATE TABLE {name} AS {select or 'SELECT * FROM batches'}")
        finally:
            if not self._stuck:  # a busy connection takes no call
                self.connection.unregister("batches")

    def tell(self, name: str, rows: list[dict[str, Any]], types: dict[str, str]) -> None:
        """CREATE TABLE name of a few rows, given as they are."""
        kind = ", ".join(f'"{column}" {sql}' for column, sql in types.items())
        sql = f"CREATE TABLE {name} AS SELECT unnest(?::STRUCT({kind})[], recursive := true)"
        self._interruptible(lambda: self.connection.execute(sql, [rows]))

    def name_agents(self, names: Iterable[str]) -> None:
        """Makes the type of `agent_id`, in the order of the names, which is the order of texts."""
        names = sorted(names)
        self._agents = len(names)
        listed = ", ".join(literal(name) for name in names)
        self.execute(f"CREATE TYPE {digest.AGENT_TYPE} AS ENUM ({listed})")

    def load_digest(
        self,
        rows: pa.RecordBatchReader,
        columns: set[str],
        facts: frozenset[str],
        own: Iterable[str],
        *,
        replayed: bool = False,
    ) -> None:
        """The view `digest`: what could be stored, with NULLs for the rest."""
        if replayed:  # actors need every core: a second thread here only gets in their way
            self.execute("SET threads = 1")
        as_they_are = [digest.own_name(name) for name in own]
        if replayed:
            as_they_are += [PREFIX + column.name for column in SCORED]
        self.load("digested", rows, digest.stored_select(columns, facts, as_they_are, self._agents))
        self.execute("RESET threads")
        self._view = digest.view_columns(columns, facts, own)
        self._show_digest()

    def _show_digest(self) -> None:
        self.execute(f"CREATE OR REPLACE VIEW digest AS {self._digest_sql(set(self._view))}")

    def _digest_sql(self, words: set[str]) -> str:
        shown = {n: sql for n, sql in self._view.items() if n == "row_id" or n in words}
        listed = ", ".join(f'{sql} AS "{name}"' for name, sql in shown.items())
        return f"SELECT {listed} FROM digested"

    def describe(self, dump: Dump) -> None:
        """Makes the tables that say what the dump is: `files`, `columns`, `metadata`, `findings`."""
        self.tell("files", list(description.files(dump)), description.FILES)
        self.tell("columns", list(description.columns(dump)), description.COLUMNS)
        told = {**self.settings, "sample_below": str(self.settings["sample_below"])}
        self.tell("metadata", [told], {name: _TYPES[type(value)] for name, value in told.items()})
        self.execute(
            "CREATE TABLE findings (row_id BIGINT, code VARCHAR, rule VARCHAR, severity VARCHAR,"
            " message VARCHAR)"
        )

    def forget(self) -> None:
        """Drops the digest and what was made of it, to be loaded anew."""
        for name in sorted(self._made - _GIVEN):
            self.execute(f"DROP TABLE {name}")
        self.execute("DROP VIEW digest")
        self.execute("DROP TABLE digested")
        self._made = set(_GIVEN)

    def make_samples(self, dump: Dump, columns: Iterable[str]) -> None:
        """The view `samples`: the dump's own columns, as far as they were kept."""
        kept = [n for n in dump.columns if n in columns and n in self._view]
        listed = ", ".join(["row_id", *(f'{self._view[n]} AS "{n}"' for n in kept)])
        self.execute(f"CREATE VIEW samples AS SELECT {listed} FROM digested")

    def make_replay(self, actors: Iterable[Actor]) -> None:
        """The view `replay`: what the actors said, beside what was stored; and the table `actors`."""
        stored, replayed = f"{self._view['old_log_prob']}::DOUBLE", f"{PREFIX}log_prob::DOUBLE"
        residual = f"{stored} - {replayed}"
        near, relative = self.settings["tolerance"], self.settings["relative_tolerance"]
        size = f"least(abs({stored}), abs({replayed}))"
        allowed = f"{near!r} + {relative!r} * {size} + {PREFIX}rounding"
        told = ("episode_id", "agent_id", "policy_version", "timestep", "num_actions", "old_log_prob")
        columns = {name: self._view[name] for name in told}
        columns |= {column.name: f"{PREFIX}{column.name}" for column in SCORED}
        columns |= {"expected_log_prob": f"-{PREFIX}entropy", "residual": residual, "allowed": allowed}
        listed = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
        self.execute(f"CREATE VIEW replay AS SELECT row_id, {listed} FROM digested")
        self._view["confirmed"] = f"abs({residual}) <= {allowed}"
        self._show_digest()
        rows = [{"actor": a.number, "path": a.path, "sha256": a.sha256} for a in actors]
        self.tell("actors", rows, {"actor": "INTEGER", "path": "VARCHAR", "sha256": "VARCHAR"})

    def lock(self) -> None:
        """After this no SQL can loosen the configuration."""
        self.execute("SET lock_configuration = true")

    def prepared(self, sql: str) -> str:
        """The SELECT, ready to run: the tables of `tables/` that it names are made, and of `digest` it
        sees the columns it names. To bind all sixty anew takes longer than most queries do.
        """
        for name in tables_named_in(sql):
            if name not in self._made:
                self._made.add(name)
                select = self.prepared(fill_in(table_sql(name), self.settings))
                self.execute(f"CREATE TABLE {name} AS {select}")
        words = words_of(sql)
        if "digest" not in words:
            return sql
        every_column = re.search(r"(?:SELECT|,|\.)\s*\*", sql, re.IGNORECASE)
        seen = self._digest_sql(set(self._view) if every_column else words)
        return f"WITH digest AS NOT MATERIALIZED ({seen}) FROM (\n{sql}\n)"

    def execute(self, sql: str) -> None:
        self.rows(sql)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        def run() -> list[dict[str, Any]]:
            result = self.connection.execute(sql)
            names = [d[0] for d in result.description or []]
            return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

        return self._interruptible(run)

    def columns(self, sql: str) -> dict[str, Array]:
        """The same as arrays, for what has no NULL in it."""
        return self._interruptible(lambda: dict(self.connection.execute(sql).fetchnumpy()))

    def arrow(self, sql: str) -> pa.Table:
        return self._interruptible(lambda: self.connection.sql(sql).to_arrow_table())

    def _interruptible(self, run: Callable[[], T]) -> T:
        """Runs DuckDB on another thread: it holds up Ctrl-C where it runs, so that is not here."""
        if threading.current_thread() is not threading.main_thread():
            return run()
        try:
            return self._worker.submit(run).result()
        except KeyboardInterrupt:
            # A busy connection takes no call, and an interrupt can take a minute: leave it running,
            # and let the command line end the process.
            self._stuck = True
            raise
