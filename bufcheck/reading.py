"""One pass over a dump: decoded ahead, replayed where there are actors, digested and stored."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from bufcheck import digest, replayer, schema, settings
from bufcheck.ahead import prefetch
from bufcheck.digester import Digester
from bufcheck.format import VERIFIED, Ranges

if TYPE_CHECKING:
    from concurrent.futures import Future

    import pyarrow as pa

    from bufcheck.database import Database
    from bufcheck.dump import Batch, Dump
    from bufcheck.replayer import Replayer
    from bufcheck.rule import Rule

Progress = Callable[[int, int], None]
"""Called with (rows done, rows in all)."""
KEYS = ("episode_id", "timestep", "agent_id", "old_log_prob")
"""Always read: what every finding is told with."""
AHEAD = 6
"""Batches decoded ahead: as many as get ready while DuckDB is being imported."""


@dataclass
class Job:
    """An opened dump, and what is to be done with it."""

    dump: Dump
    chosen: list[Rule]
    without: frozenset[str]
    """Causes that are not looked for."""
    ranges: list[Ranges] | None
    lacking: str | None
    """Why nothing can be replayed, if so."""
    replay: Replayer | None
    tolerance: float | None
    agents: Future[set[str]]
    progress: Progress | None = None

    @property
    def rows(self) -> int:
        """How many are read."""
        ranges = self.ranges
        return self.dump.rows if ranges is None else sum(b - a for file in ranges for a, b in file)

    @property
    def settings(self) -> dict[str, Any]:
        """What SQL may name as $setting."""
        return settings.of_dump(self.dump, self.rows, self.tolerance, self.lacking)


class Reading(NamedTuple):
    """One pass over the dump that has begun, for what some SQL needs."""

    columns: list[str]
    needed: set[str]
    """Those of them that the SQL works on."""
    facts: frozenset[str]
    own: frozenset[str]
    """Columns outside the schema, and vectors, that it reads as they are."""
    batches: Generator[Batch, None, None]


def begin(job: Job, words: set[str]) -> Reading:
    """Begins to decode what SQL with these words needs: it goes on while DuckDB is imported."""
    dump, replay = job.dump, job.replay
    own = frozenset(n for n in _own(dump) if n in words) | _vectors_kept(words)
    needed = {n for n in digest.columns_used(words) | set(KEYS) | own if dump.has(n)}
    if replay:
        needed |= set(replay.columns) | {n for n in ("timestep", "num_actions") if dump.has(n)}
    # Reading a page verifies its checksum, so a whole check reads the columns no rule needs too.
    whole = dump.integrity == VERIFIED and needed >= {n for n in dump.columns if dump.has(n)} - _own(
        dump
    )
    columns = [n for n in dump.columns if n in needed or (whole and dump.has(n))]
    if any(source.format != "parquet" for source in dump.sources):
        job.agents.result()  # a child reads HDF5, one thing at a time: another would have to be started
    batches = prefetch(dump.batches(columns, job.ranges), 2 if replay else AHEAD)
    return Reading(columns, needed, digest.facts_used(words), own, batches)


def store(database: Database, job: Job, reading: Reading) -> None:
    """Fills the table behind `digest` with what was begun."""
    import duckdb
    import pyarrow as pa

    replay, facts, own = job.replay, reading.facts, reading.own
    if replay:
        replay.missing.clear()  # of an earlier pass
    failure: list[BaseException] = []

    def stream() -> Iterator[pa.RecordBatch]:
        try:
            digester = Digester(job.dump, facts, own, sorted(job.agents.result()))
            for batch, scored in _scored(reading.batches, replay):
                yield digester.digest(batch, scored)
                if job.progress:
                    job.progress(batch.rows.num_rows, job.rows)
        except BaseException as error:
            failure.append(error)
            raise

    batches = stream()
    first = next(batches)
    reader = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))
    try:
        database.load_digest(reader, reading.needed, facts, sorted(own), replayed=replay is not None)
    except duckdb.Error:
        if failure:
            raise failure[0] from None  # DuckDB words it as its own; the cause is ours
        raise


def _scored(
    batches: Iterable[Batch], replay: Replayer | None
) -> Iterator[tuple[Batch, dict[str, pa.Array]]]:
    if replay is None:
        return ((batch, {}) for batch in batches if batch.rows.num_rows)
    return replayer.scored_batches(batches, replay)


def _vectors_kept(words: set[str]) -> set[str]:
    return {
        c.name
        for c in schema.load().columns.values()
        if f"samples.{c.name}" in words and not c.is_scalar
    }


def _own(dump: Dump) -> set[str]:
    return {name for name in dump.columns if name not in schema.load().columns}
