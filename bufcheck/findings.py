"""The table of findings as a file: written for other programs, read back as a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bufcheck import format as formats
from bufcheck.errors import ReadError
from bufcheck.rule import EXAMPLES, FAIL, PASS
from bufcheck.whole_file import whole_file

if TYPE_CHECKING:
    from bufcheck.database import Database
    from bufcheck.rule import Outcome

MARK = "bufcheck.findings/1"
CAUSES_MARK = "bufcheck.causes/1"
COLUMNS = (
    "row_id",
    "episode_id",
    "timestep",
    "agent_id",
    "code",
    "rule",
    "severity",
    "cause",
    "old_log_prob",
    "replayed_log_prob",
    "message",
)
CAUSES_COLUMNS = ("row_id", "cause", "confidence", "source_row_id")
CAUSES = f"SELECT {', '.join(CAUSES_COLUMNS)} FROM causes"


def listed(replayed: bool) -> str:
    """SQL for every finding, with the row it is about."""
    log_prob = "log_prob::DOUBLE" if replayed else "NULL::DOUBLE"
    replay = "LEFT JOIN (SELECT row_id, log_prob FROM replay) USING (row_id)" if replayed else ""
    return f"""
        SELECT
            findings.row_id, episode_id::BIGINT AS episode_id, timestep::INTEGER AS timestep,
            agent_id::VARCHAR AS agent_id, code, rule, severity, causes.cause AS cause,
            old_log_prob::DOUBLE AS old_log_prob, {log_prob} AS replayed_log_prob, message
        FROM findings LEFT JOIN digest USING (row_id) LEFT JOIN causes USING (row_id) {replay}
    """


def write(database: Database, path: Path, sources: Sequence[Path]) -> None:
    """One row per finding. It replaces an older file: findings are an output, never a source."""
    replayed = not database.settings["replay_lacks"]
    ordered = f"{listed(replayed)} ORDER BY findings.row_id NULLS FIRST, code, message"
    reader = database.connection.sql(ordered).to_arrow_reader(1 << 16)
    with whole_file(path, sources=sources, replace=True) as temporary:
        formats.write("parquet", temporary, reader.schema, reader, {"format": MARK})


def write_causes(database: Database, path: Path, sources: Sequence[Path]) -> None:
    """One row per row that a cause explains, and where its log-prob came from if that is known."""
    reader = database.connection.sql(f"{CAUSES} ORDER BY row_id").to_arrow_reader(1 << 16)
    with whole_file(path, sources=sources, replace=True) as temporary:
        formats.write("parquet", temporary, reader.schema, reader, {"format": CAUSES_MARK})


def accept_known(database: Database, outcomes: list[Outcome], path: Path) -> int:
    """Takes the findings of an earlier run out of this one; returns how many were known.

    A row is recognised by its key, so that the baseline survives a dump that grew; a finding about
    the whole dump by its words.
    """
    source = formats.open_source(path)
    needed = ["code", "row_id", "episode_id", "timestep", "agent_id", "message"]
    if not set(needed) <= set(source.schema.names):
        raise ReadError(f"{path}: not a file of findings", "make one with --findings")
    import pyarrow as pa

    schema = pa.schema([source.schema.field(name) for name in needed])
    database.load("known", pa.RecordBatchReader.from_batches(schema, source.read(needed, None)))
    [before] = database.rows("SELECT count(*) AS findings FROM findings")
    database.execute(
        "CREATE TABLE remaining AS SELECT * FROM findings WHERE row_id IS NULL AND NOT EXISTS"
        " (FROM known WHERE known.row_id IS NULL AND known.code = findings.code"
        "  AND known.message = findings.message)"
        " UNION ALL SELECT findings.* FROM findings JOIN digest USING (row_id) WHERE NOT EXISTS"
        " (FROM known WHERE known.row_id IS NOT NULL AND known.code = findings.code"
        "  AND known.episode_id IS NOT DISTINCT FROM digest.episode_id"
        "  AND known.timestep IS NOT DISTINCT FROM digest.timestep"
        "  AND known.agent_id IS NOT DISTINCT FROM digest.agent_id)"
    )
    database.execute("DROP TABLE findings")
    database.execute("ALTER TABLE remaining RENAME TO findings")
    for outcome in outcomes:
        if outcome.status == FAIL:
            _recount(database, outcome)
    [after] = database.rows("SELECT count(*) AS findings FROM findings")
    return int(before["findings"] - after["findings"])


def _recount(database: Database, outcome: Outcome) -> None:
    code = outcome.rule.code
    [counted] = database.rows(
        f"SELECT count(row_id) AS rows, count(*) AS findings FROM findings WHERE code = '{code}'"
    )
    if counted["findings"] == outcome.findings:
        return
    known = outcome.findings - counted["findings"]
    outcome.rows, outcome.findings = counted["rows"], counted["findings"]
    outcome.reason = f"{known} known from the baseline"
    outcome.status = FAIL if outcome.findings else PASS
    outcome.examples = database.rows(
        "SELECT findings.row_id, episode_id, timestep, agent_id, message"
        f" FROM findings LEFT JOIN digest USING (row_id) WHERE code = '{code}'"
        f" ORDER BY findings.row_id NULLS FIRST, message LIMIT {EXAMPLES}"
    )
