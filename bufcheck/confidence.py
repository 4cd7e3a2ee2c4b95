"""How sure a diagnosis is of each cause, and what the report says of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bufcheck import cause as engine
from bufcheck.cause import HINT, LIKELY, PROVEN, Suspect

if TYPE_CHECKING:
    from bufcheck.database import Database

SURE = 0.98
"""A proven cause leaves this little of its episodes unexplained."""
FAINT = 0.05
"""A hint that explains less than this share of what is unexplained is none."""


@dataclass
class Found:
    """A cause, and what is said of it."""

    name: str
    parameters: dict[str, Any]
    evidence: str
    most: str
    also: list[str] = field(default_factory=list)
    suspect: Suspect | None = None
    effect: bool = True
    """Whether rows it leaves unexplained speak against it."""


@dataclass
class Diagnosis:
    causes: list[dict[str, Any]] = field(default_factory=list)
    unexplained: int = 0
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    """Which version gives the log-probs of rows stamped with another."""
    cannot_tell: list[str] = field(default_factory=list)
    """Which bugs would look alike, or like nothing, in this dump."""


def told(database: Database, found: list[Found], versions: list[int]) -> Diagnosis:
    database.execute(
        "CREATE OR REPLACE TEMP TABLE bad AS"
        " SELECT row_id, coalesce(episode_id, -1) AS episode, number, cause, confirmed"
        " FROM (SELECT row_id FROM findings WHERE severity = 'error' AND row_id IS NOT NULL"
        " UNION SELECT row_id FROM causes) LEFT JOIN causes USING (row_id)"
        " LEFT JOIN (SELECT row_id, episode_id, confirmed FROM digest) USING (row_id)"
    )
    [whole] = database.rows(
        "SELECT count(*) AS bad, count(*) FILTER (number IS NULL) AS left_over FROM bad"
    )
    told: dict[int, str] = {}
    for _ in range(2):  # what is not proven explains nothing for sure, and counts as left over
        counted = _counted(database, told)
        told = {row["number"]: _confidence(found[row["number"]], row) for row in counted}
    entries: dict[tuple[str, str], dict[str, Any]] = {}
    for row in counted:
        one, number, level = found[row["number"]], row["number"], told[row["number"]]
        if level == HINT and row["rows"] < FAINT * (row["rows"] + whole["left_over"]):
            # Too little of what is wrong to be worth a name.
            database.execute(f"DELETE FROM causes WHERE number = {number}")
            whole["left_over"] += row["rows"]
            continue
        wrong = engine.wrong_of(one.name, one.parameters)
        database.execute(
            f"UPDATE causes SET confidence = '{level}', wrong = '{wrong}' WHERE number = {number}"
        )
        fitted = {k: v for k, v in one.parameters.items() if k not in ("unique", "ambiguous")}
        if (key := (one.name, repr(fitted))) in entries:
            entries[key]["rows"] += row["rows"]
        else:
            entries[key] = _entry(one, row, level)
    causes = sorted(entries.values(), key=lambda entry: -entry["rows"])
    for entry in causes:
        entry["share"] = entry["rows"] / whole["bad"]
    database.execute("DROP TABLE bad")
    return Diagnosis(causes, whole["left_over"], _checkpoints(database, found, versions))


def _counted(database: Database, told: dict[int, str]) -> list[dict[str, Any]]:
    """For each cause its rows and episodes, and what speaks against it there and in all of the dump:
    rows that are unexplained, or that the same bug took with other parameters; there, also what a
    doubtful one took. Other errors in rows whose log-prob is right do not."""
    doubted = ", ".join(str(n) for n, level in told.items() if level != PROVEN) or "-1"
    return database.rows(
        f"WITH judged AS (SELECT *, number IS NULL OR number IN ({doubted}) AS open FROM bad"
        " WHERE number IS NOT NULL OR confirmed IS NOT TRUE),"
        " own AS (SELECT episode, number, any_value(cause) AS cause, count(*) AS rows"
        " FROM judged WHERE number IS NOT NULL GROUP BY episode, number),"
        " same AS (SELECT episode, cause, count(*) FILTER (NOT open) AS rows FROM judged"
        " WHERE cause IS NOT NULL GROUP BY ALL),"
        " left_over AS (SELECT episode, count(*) AS rows FROM judged WHERE open GROUP BY ALL),"
        " all_same AS (SELECT cause, count(*) AS rows FROM judged GROUP BY ALL)"
        " SELECT number, any_value(own.cause) AS cause, sum(own.rows)::BIGINT AS rows,"
        " count(*) AS episodes,"
        " sum(coalesce(left_over.rows, 0) + same.rows - own.rows)::BIGINT AS left_over,"
        " ((SELECT count(*) FROM judged WHERE number IS NULL) + any_value(all_same.rows)"
        " - sum(own.rows))::BIGINT AS elsewhere,"
        " (SELECT count(*) FROM judged WHERE open AND number IS NOT NULL) AS doubted"
        " FROM own JOIN same USING (episode, cause) LEFT JOIN left_over USING (episode)"
        " JOIN all_same USING (cause) GROUP BY number ORDER BY rows DESC, number"
    )


def _entry(one: Found, row: dict[str, Any], level: str) -> dict[str, Any]:
    evidence = f"in {row['rows']:,} rows of {row['episodes']:,} episodes {one.evidence}"
    if one.suspect is not None and one.suspect.verdict.chance > 0:
        by_chance = max(one.suspect.verdict.chance, 1e-6)
        evidence += f"; by chance it would in {by_chance:.2g} of the failing rows"
    return {
        "name": one.name,
        "rows": row["rows"],
        "share": 0.0,
        "confidence": level,
        "parameters": one.parameters,
        "evidence": evidence,
        "fix": engine.fix_of(one.name),
        "also": one.also,
    }


def _confidence(one: Found, row: dict[str, Any]) -> str:
    """A bug that leaves much of what it touched unexplained may be another, seen in part."""
    rows = row["rows"]
    # Where it hits several rows of an episode, the episode is the measure; else the dump.
    left_over = row["left_over"] if rows >= 3 * row["episodes"] else row["elsewhere"]
    if one.suspect is None and one.effect:  # the effect of what others may be the cause of
        left_over = max(left_over, row["doubted"])
    covered = rows / (rows + left_over)
    limits = [PROVEN, LIKELY, HINT]
    level = 0 if not one.effect or covered >= SURE else 1 if covered >= 0.5 else 2
    if one.also:
        level = max(level, 1)
    return limits[max(level, limits.index(one.most))]


def _checkpoints(database: Database, found: list[Found], versions: list[int]) -> list[dict[str, Any]]:
    offsets = {
        number: one.parameters["offset"]
        for number, one in enumerate(found)
        if one.name in ("stale-policy-version", "recomputed-after-update")
    }
    if not offsets:
        return []
    listed = ", ".join(map(str, offsets))
    rows = database.rows(
        "SELECT policy_version, number, count(*) AS rows, count(DISTINCT episode_id) AS episodes"
        f" FROM causes JOIN digest USING (row_id) WHERE number IN ({listed}) GROUP BY ALL ORDER BY 1, 2"
    )
    told = []
    for row in rows:
        place = versions.index(row["policy_version"]) + offsets[row["number"]]
        told.append(
            {
                "policy_version": row["policy_version"],
                "acted": versions[place] if 0 <= place < len(versions) else None,
                "rows": row["rows"],
                "episodes": row["episodes"],
            }
        )
    return told
