"""Reads a dump once more and writes it anew: without the rows that go, with the values that changed, in
the order of (episode_id, timestep, agent_id). What goes is written beside it, whole.

Memory does not grow with the dump: rows that are stored in another order are first spread over files,
each of which holds a stretch of the new order that fits in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bufcheck.ahead import prefetch
from bufcheck.convert import arrow_schema, stored_batches
from bufcheck.repair import EDITS
from bufcheck.vectors import as_arrow, as_numpy
from bufcheck.whole_file import scratch

if TYPE_CHECKING:
    import pyarrow as pa

    from bufcheck.database import Database
    from bufcheck.dump import Dump
    from bufcheck.formats.parquet import Writer
    from bufcheck.removal import Unit
    from bufcheck.rule import Rule
    from bufcheck.vectors import Array

REPAIRED, CUT_FROM = "x_repaired", "x_cut_from"
STRETCH_BYTES = 64 << 20
"""Of rows in memory while they are put in order."""
MOST_STRETCHES = 256
ACCOUNT = ("row_id", "rules", "cause", "confidence", "stored_log_prob", "replayed_log_prob")
"""What a row in quarantine says beside its own columns."""


class Rewriter:
    """Knows what becomes of every row; `plan` of removal.py, and repairs, were made."""

    def __init__(self, database: Database, dump: Dump, unit: Unit, taking: list[Rule]) -> None:
        self.database, self.dump = database, dump
        self.stored = arrow_schema(dump)
        self._list_changes(taking)
        self.in_order = self._place_rows()
        self.schema = self._schema(unit)

    # What changes

    def _list_changes(self, taking: list[Rule]) -> None:
        """`changes`: a row for every row that does not stay as it is."""
        folded = self.dump.settings["advantage.truncation"] == "folded_into_reward"
        gamma = (self.dump.settings["advantage.gamma"] if folded else None) or "NULL::DOUBLE"
        edits = ", ".join(f"repaired.{name}" for name in EDITS)
        codes = ", ".join(f"'{rule.code}'" for rule in taking) or "''"
        replayed = "log_prob" if not self.database.settings["replay_lacks"] else "NULL::DOUBLE"
        source = "replay" if not self.database.settings["replay_lacks"] else "digest"
        self.database.execute(
            f"""
            CREATE TABLE changes AS
            WITH accounts AS (
                SELECT row_id, list(DISTINCT rule ORDER BY rule) AS rules
                FROM findings SEMI JOIN gone USING (row_id) WHERE code IN ({codes}) GROUP BY row_id
            ),
            named AS (SELECT row_id, cause, confidence FROM causes SEMI JOIN gone USING (row_id)),
            log_probs AS (
                SELECT
                    row_id,
                    old_log_prob::DOUBLE AS stored_log_prob,
                    {replayed}::DOUBLE AS replayed_log_prob
                FROM {source} SEMI JOIN gone USING (row_id)
            ),
            touched AS (
                SELECT row_id FROM gone UNION SELECT row_id FROM ends
                UNION SELECT row_id FROM parts UNION SELECT row_id FROM repaired
            )
            SELECT
                row_id,
                row_id IN (SELECT row_id FROM gone) AS gone,
                ends.row_id IS NOT NULL AS ends,
                CASE WHEN why_not IS NULL THEN ends.value END AS bootstrap_value,
                CASE WHEN why_not IS NULL THEN ends.value * {gamma} END AS reward_added,
                parts.episode_id::BIGINT AS episode_id,
                parts.cut_from,
                repaired.repair,
                {edits},
                coalesce(rules, []) AS rules,
                cause,
                confidence,
                stored_log_prob,
                replayed_log_prob
            FROM touched
            LEFT JOIN ends USING (row_id) LEFT JOIN parts USING (row_id)
            LEFT JOIN repaired USING (row_id) LEFT JOIN accounts USING (row_id)
            LEFT JOIN named USING (row_id) LEFT JOIN log_probs USING (row_id)
            ORDER BY row_id
            """
        )
        [made] = self.database.rows(
            "SELECT count(*) FILTER (ends) AS ends, count(cut_from) AS split, count(repair) AS repaired"
            " FROM changes WHERE NOT gone"
        )
        self.made: dict[str, int] = made

    def _place_rows(self) -> bool:
        """`places`: the new order of what stays, if it is another; returns whether it is the old."""
        keys = [n for n in ("episode_id", "timestep", "agent_id") if self.dump.has(n)]
        [broken] = self.database.rows(
            "SELECT count(*) AS rows FROM digest WHERE row_id > 0 AND coalesce(key_order < 0, true)"
        )
        if not keys or not (broken["rows"] or self.made["split"]):
            return True
        order = ", ".join(f"{'staying.' if n != 'episode_id' else ''}{n}" for n in keys)
        self.database.execute(
            "CREATE TABLE places AS SELECT row_id,"
            f" row_number() OVER (ORDER BY {order}, row_id) - 1 AS place FROM ("
            " SELECT staying.* REPLACE (coalesce(parts.episode_id, staying.episode_id) AS episode_id)"
            " FROM digest AS staying LEFT JOIN parts USING (row_id)"
            " WHERE row_id NOT IN (SELECT row_id FROM gone)) AS staying ORDER BY row_id"
        )
        [moved] = self.database.rows(
            "SELECT count(*) AS rows FROM (SELECT place, row_number() OVER (ORDER BY row_id) AS seen"
            " FROM places) WHERE place <> seen - 1"
        )
        return not moved["rows"]

    def _schema(self, unit: Unit) -> pa.Schema:
        """The dump's own, and what cleaning has to add to it."""
        import pyarrow as pa

        added = []
        if unit.cuts and self.made["ends"]:
            # Where no end is marked at all, to mark one would say something of all others.
            if self.dump.has("terminated") and "truncated" not in self.stored.names:
                added.append(pa.field("truncated", pa.bool_()))
            if self.dump.has("value") and "bootstrap_value" not in self.stored.names:
                added.append(pa.field("bootstrap_value", self.stored.field("value").type))
        if self.made["split"] and CUT_FROM not in self.stored.names:
            added.append(pa.field(CUT_FROM, pa.int64()))
        if self.made["repaired"] and REPAIRED not in self.stored.names:
            added.append(pa.field(REPAIRED, pa.string()))
        return pa.schema([*self.stored, *added])

    # Writing

    def quarantine_schema(self) -> pa.Schema:
        import pyarrow as pa

        types = [
            pa.int64(),
            pa.list_(pa.string()),
            pa.string(),
            pa.string(),
            pa.float64(),
            pa.float64(),
        ]
        extra = [pa.field(self._account_name(n), t) for n, t in zip(ACCOUNT, types, strict=True)]
        return pa.schema([*self.stored, *extra])

    def _account_name(self, name: str) -> str:
        return name if name not in self.stored.names else f"bufcheck_{name}"

    def rows(
        self, quarantine: Writer, folder: Path, progress: Callable[[int, int], None] | None = None
    ) -> Generator[pa.RecordBatch]:
        """What stays, in order; what goes is given to `quarantine` on the way."""
        with contextlib.closing(self._kept(quarantine, progress)) as kept:
            if self.in_order:
                for batch, _ in kept:
                    yield batch
            else:
                yield from _sorted(kept, self.schema, self.dump.rows, folder)

    def _kept(
        self, quarantine: Writer, progress: Callable[[int, int], None] | None
    ) -> Generator[tuple[pa.RecordBatch, Array | None]]:
        """Each batch as it stays, with the new places of its rows where the order is another."""
        import numpy as np

        first = 0
        for batch in prefetch(stored_batches(self.dump, self.stored)):
            last = first + batch.num_rows
            changes = self._between("changes", first, last)
            places = None
            if not self.in_order:
                places = as_numpy(_one(self._between("places", first, last).column("place")))
            kept = np.ones(batch.num_rows, bool)
            at = as_numpy(_one(changes.column("row_id"))) - first
            gone = as_numpy(_one(changes.column("gone")))
            kept[at[gone]] = False
            if gone.any():
                quarantine.append(self._accounted(batch, changes, at, gone))
            changed = self._changed(batch, changes, at)
            if gone.any():
                changed = changed.filter(as_arrow(kept))
            if changed.num_rows:
                yield changed, places
            if progress:
                progress(batch.num_rows, self.dump.rows)
            first = last

    def _between(self, table: str, first: int, last: int) -> pa.Table:
        found = self.database.arrow(
            f"SELECT * FROM {table} WHERE row_id >= {first} AND row_id < {last} ORDER BY row_id"
        )
        return found.combine_chunks()

    def _accounted(self, batch: pa.RecordBatch, changes: pa.Table, at: Array, gone: Array) -> Any:
        import pyarrow as pa

        rows = batch.take(as_arrow(at[gone]))
        of_gone = changes.filter(as_arrow(gone)).combine_chunks()
        schema = self.quarantine_schema()
        extra = [
            _one(of_gone.column(n)).cast(schema.field(self._account_name(n)).type) for n in ACCOUNT
        ]
        return pa.RecordBatch.from_arrays([*rows.columns, *extra], schema=schema)

    def _changed(self, batch: pa.RecordBatch, changes: pa.Table, at: Array) -> pa.RecordBatch:
        """The batch with its new values, and the columns that cleaning adds."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for field in self.schema:
            if field.name not in columns:
                empty = pa.nulls(batch.num_rows, field.type)
                columns[field.name] = empty if field.name != "truncated" else empty.fill_null(False)
        if changes.num_rows:
            # Which line of `changes` is about each row; null for most.
            line = np.zeros(batch.num_rows, np.int64)
            touched = np.zeros(batch.num_rows, bool)
            line[at], touched[at] = np.arange(len(at)), True
            lines = as_arrow(line, ~touched)

            def of(name: str) -> pa.Array:
                return _one(changes.column(name)).take(lines)

            def put(name: str, values: pa.Array, where: pa.Array | None = None) -> None:
                if name in columns:
                    where = values.is_valid() if where is None else where
                    kind = self.schema.field(name).type
                    columns[name] = pc.if_else(where, values.cast(kind), columns[name])

            if pc.any(changes.column("ends")).as_py():
                ends = of("ends").fill_null(False)
                put("truncated", ends, ends)
                put("bootstrap_value", of("bootstrap_value"), ends)
                if "reward" in columns:
                    put("reward", pc.add(columns["reward"].cast(pa.float64()), of("reward_added")))
            if self.made["split"]:
                put(CUT_FROM, of("cut_from"))
                put("episode_id", of("episode_id"))
            if self.made["repaired"]:
                for name in EDITS:
                    put(name, of(name))
                put(REPAIRED, of("repair"))
        return pa.RecordBatch.from_arrays([columns[n] for n in self.schema.names], schema=self.schema)


def _one(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def _sorted(
    batches: Iterator[tuple[pa.RecordBatch, Array | None]], schema: pa.Schema, rows: int, folder: Path
) -> Iterator[pa.RecordBatch]:
    """Rows by their places: spread over files of one stretch each, then put in order one by one."""
    import numpy as np
    import pyarrow as pa

    spread = schema.append(pa.field("place", pa.int64()))
    last = len(schema)
    stretch = 0
    with scratch(folder) as place:
        files: dict[int, Any] = {}
        with contextlib.ExitStack() as opened:
            for batch, places in batches:
                assert places is not None
                stretch = stretch or _stretch(batch, rows)
                number = places // stretch
                order = np.argsort(number, kind="stable")
                columns = [*batch.columns, as_arrow(places)]
                whole = pa.RecordBatch.from_arrays(columns, schema=spread).take(as_arrow(order))
                starts = np.flatnonzero(np.r_[True, np.diff(number[order]) > 0])
                for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
                    which = int(number[order[start]])
                    if which not in files:
                        file = opened.enter_context(open(place / f"{which}", "wb"))
                        files[which] = opened.enter_context(pa.ipc.new_stream(file, spread))
                    files[which].write_batch(whole.slice(start, stop - start))
        for which in sorted(files):
            path = place / f"{which}"
            with path.open("rb") as stored, pa.ipc.open_stream(stored) as reader:
                table = reader.read_all().unify_dictionaries().combine_chunks()
            path.unlink()
            order = np.argsort(as_numpy(_one(table.column(last))))
            table = table.remove_column(last).take(as_arrow(order))
            yield from table.combine_chunks().to_batches(1 << 14)


def _stretch(batch: pa.RecordBatch, rows: int) -> int:
    """How many rows like these may be in memory at once; at least so many that files are few."""
    each: int = max(1, batch.nbytes // batch.num_rows)
    return max(STRETCH_BYTES // each, -(-rows // MOST_STRETCHES), 1)
