"""The whole story: open a dump, digest it in one pass, run the rules, tell the verdict."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bufcheck import __version__, digest, findings, sampling, schema
from bufcheck import rule as rules
from bufcheck.config import Config
from bufcheck.database import Database
from bufcheck.digester import Digester
from bufcheck.dump import Dump, open_dump
from bufcheck.format import VERIFIED, Ranges

if TYPE_CHECKING:
    import pyarrow as pa

    from bufcheck.rule import Outcome, Rule

Progress = Callable[[int, int], None]
"""Called with (rows done, rows in all)."""
T = TypeVar("T")
_KEYS = ("episode_id", "timestep", "agent_id", "old_log_prob")
"""Always read: what every finding is told with."""


@dataclass(frozen=True)
class Options:
    """What `validate` can be told beyond the dump."""

    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    rules: Path | None = None
    tolerance: float | None = None
    sample: int | None = None
    baseline: Path | None = None
    findings: Path | None = None
    config: Config = field(default_factory=Config)


def validate(
    paths: Sequence[str], options: Options | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Checks a dump and returns the report, as schemas/report.v1.schema.json describes it."""
    options = options or Options()
    chosen = rules.choose(options.select, options.ignore, options.config, options.rules)
    dump = open_dump(paths, options.config)
    ranges = sampling.whole_episodes(dump, options.sample) if options.sample else None
    with Database() as database:
        database.describe(dump, _rows(dump, ranges), options.tolerance)
        columns = _load(database, dump, chosen, ranges, progress)
        outcomes = _run_all(chosen, database, dump)
        known = 0
        if options.baseline:
            known = findings.accept_known(database, outcomes, options.baseline)
        if options.findings:
            sources = [source.path for source in dump.sources]
            findings.write(database, options.findings, sources)
        unread = set(dump.columns) - columns
        return _report(dump, database, outcomes, known, ranges, bool(unread))


def _load(
    database: Database,
    dump: Dump,
    chosen: list[Rule],
    ranges: list[Ranges] | None,
    progress: Progress | None,
) -> set[str]:
    """Fills `digest` with what the rules that can run ask for; returns the columns that were read."""
    runnable = [rule for rule in chosen if rules.why_not(rule, dump, database.settings) is None]
    database.name_agents(dump.texts_of("agent_id") if dump.has("agent_id") else [])
    words = _words(runnable, on_demand=False)
    columns = _digest(database, dump, words, ranges, progress)
    closer = _words(runnable, on_demand=True)
    if closer - words and any(_has_rows(database, rule.on_demand) for rule in runnable):
        database.forget()
        columns = _digest(database, dump, closer, ranges, progress)
    database.make_samples(dump, columns)
    database.lock()
    return columns


def _words(runnable: list[Rule], *, on_demand: bool) -> set[str]:
    """What the rules' SQL names, and `samples.column` for each vector that one wants as it is."""
    vectors = (need for rule in runnable for need in rule.needs if need.startswith("samples."))
    return set(vectors).union(*(rules.words_used(rule, on_demand=on_demand) for rule in runnable))


def _has_rows(database: Database, table: str | None) -> bool:
    if table is None:
        return False
    database.prepare_for(f"FROM {table}")
    return bool(database.rows(f"SELECT 1 FROM {table} LIMIT 1"))


def _digest(
    database: Database,
    dump: Dump,
    words: set[str],
    ranges: list[Ranges] | None,
    progress: Progress | None,
) -> set[str]:
    """One pass over the dump, for what SQL with these words needs."""
    import duckdb
    import pyarrow as pa

    facts = digest.facts_used(words)
    own = frozenset(n for n in _own(dump) if n in words) | _vectors_kept(words)
    needed = {n for n in digest.columns_used(words) | set(_KEYS) | own if dump.has(n)}
    # Reading a page verifies its checksum, so a whole check reads the columns no rule needs too.
    whole = dump.integrity == VERIFIED and needed >= {n for n in dump.columns if dump.has(n)} - _own(
        dump
    )
    read = [n for n in dump.columns if n in needed or (whole and dump.has(n))]
    total = _rows(dump, ranges)
    failure: list[BaseException] = []

    def stream() -> Iterator[pa.RecordBatch]:
        try:
            digester = Digester(dump, facts, own)
            for batch in digester.digest(prefetch(dump.batches(read, ranges))):
                yield batch
                if progress:
                    progress(batch.num_rows, total)
        except BaseException as error:
            failure.append(error)
            raise

    batches = stream()
    first = next(batches)
    reader = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))
    try:
        database.load_digest(reader, needed, facts, sorted(own))
    except duckdb.Error:
        if failure:
            raise failure[0] from None  # DuckDB words it as its own; the cause is ours
        raise
    return set(read)


def _rows(dump: Dump, ranges: list[Ranges] | None) -> int:
    return dump.rows if ranges is None else sum(b - a for file in ranges for a, b in file)


def _vectors_kept(words: set[str]) -> set[str]:
    return {
        c.name
        for c in schema.load().columns.values()
        if f"samples.{c.name}" in words and not c.is_scalar
    }


def _own(dump: Dump) -> set[str]:
    return {name for name in dump.columns if name not in schema.load().columns}


def prefetch(items: Iterable[T], depth: int = 3) -> Iterator[T]:
    """Reads ahead on a thread of its own, so that decoding overlaps with what follows."""
    ahead: queue.Queue[tuple[bool, Any]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(entry: tuple[bool, Any]) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                ahead.put(entry, timeout=0.1)
                return

    def read() -> None:
        try:
            for item in items:
                put((True, item))
                if stopped.is_set():
                    return
            put((False, None))
        except BaseException as error:
            put((False, error))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        while True:
            more, item = ahead.get()
            if more:
                yield item
            elif item is None:
                return
            else:
                raise item
    finally:
        stopped.set()
        thread.join()


def _run_all(chosen: list[Rule], database: Database, dump: Dump) -> list[Outcome]:
    # Rules about the findings of others come last.
    order = sorted(chosen, key=lambda rule: any(n.startswith("findings.") for n in rule.needs))
    outcomes = [rules.run(rule, database, dump) for rule in order]
    database.show_digest()
    return sorted(outcomes, key=lambda outcome: outcome.rule.code)


def _report(
    dump: Dump,
    database: Database,
    outcomes: list[Outcome],
    known: int,
    ranges: list[Ranges] | None,
    unread: bool,
) -> dict[str, Any]:
    [counts] = database.rows(
        "SELECT count(*) AS rows, count(DISTINCT episode_id) AS episodes,"
        " (SELECT count(DISTINCT row_id) FROM findings) AS flagged,"
        " (SELECT count(DISTINCT row_id) FROM findings WHERE severity = 'error') AS wrong FROM digest"
    )
    agents = database.rows("SELECT DISTINCT agent_id FROM digest WHERE agent_id IS NOT NULL ORDER BY 1")
    failed = [o for o in outcomes if o.status == rules.FAIL]
    sampled = None
    if ranges is not None:
        sampled = {"rows": counts["rows"], "episodes": counts["episodes"]}
    integrity = dump.integrity
    if integrity == VERIFIED and (unread or sampled):
        integrity = "partly-verified"
    reasons = _open_questions(outcomes, counts["rows"], sampled)
    return {
        "format": "bufcheck.report/1",
        "bufcheck": __version__,
        "dump": {
            "paths": dump.given,
            "files": len(dump.sources),
            "rows": dump.rows,
            "episodes": counts["episodes"],
            "agents": [row["agent_id"] for row in agents],
            "schema": dump.settings["schema"] or "experience/1",
            "integrity": integrity,
            "assumed": dump.assumed,
            "sampled": sampled,
        },
        "verdict": _verdict(failed, reasons),
        "unverified": reasons,
        "summary": {
            "errors": sum(o.rule.severity == "error" for o in failed),
            "warnings": sum(o.rule.severity == "warning" for o in failed),
            "infos": sum(o.rule.severity == "info" for o in failed),
            "not_checked": sum(o.status == rules.NOT_CHECKED for o in outcomes),
            "rows_flagged": counts["flagged"],
            "valid_ratio": 1 - counts["wrong"] / counts["rows"],
            "known_findings": known,
        },
        "rules": [_outcome(o, counts["rows"], database.settings) for o in outcomes],
        "causes": [],
        "unexplained_rows": counts["wrong"],
        "metrics": {},
    }


def _verdict(failed: list[Outcome], reasons: list[str]) -> str:
    if any(o.rule.severity == "error" for o in failed):
        return "fail"
    return "unverified" if reasons else "pass"


def _open_questions(outcomes: list[Outcome], rows: int, sampled: dict[str, int] | None) -> list[str]:
    """What stands between this dump and `pass`, besides findings."""
    reasons = [f"the log-probs of {rows:,} rows were not replayed with an actor"]
    if sampled:
        reasons.append(f"only a sample of {sampled['rows']:,} rows was read")
    reasons += [f"{o.rule.name} was not checked: {o.reason}" for o in outcomes if o.blocks_pass]
    return reasons


def _outcome(outcome: Outcome, rows: int, settings: dict[str, Any]) -> dict[str, Any]:
    rule = outcome.rule
    return {
        "code": rule.code,
        "name": rule.name,
        "family": rule.family,
        "severity": rule.severity,
        "scope": rule.scope,
        "removes": rule.removes,
        "status": outcome.status,
        "rows": outcome.rows,
        "share": outcome.rows / rows,
        "reason": outcome.reason,
        "message": rule.summary,
        "cause": rule.cause,
        "remedy": rule.remedy,
        "examples": outcome.examples,
        "sql": rule.runnable_sql(settings),
    }
