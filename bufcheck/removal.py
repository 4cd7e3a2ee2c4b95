"""Says which rows go, and how the episodes they are taken from end now.

A row goes because a rule proves it bad, or with others of its unit: taken out alone it may leave a
hole in its episode, across which no advantage can be computed. A unit is one .sql file in `units/`: a
TOML header, then a SELECT of the rows that go, over `digest` and

    bad      row_id of every row that a rule takes out
    holes    episode_id and timestep of those whose step nothing else fills

    meaning        what goes, in words
    stands_alone   it leaves holes, so that every sample must carry its advantage and return
    cuts           the row before a hole becomes the end of its episode
    splits         what follows a hole becomes an episode with an id of its own
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from bufcheck import shipped
from bufcheck.errors import UsageError
from bufcheck.sql import literal, split_header

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bufcheck.database import Database
    from bufcheck.dump import Dump
    from bufcheck.rule import Rule

DEFAULT, WITHOUT_ADVANTAGES = "row", "tail"
LAST_ID = (1 << 63) - 1
WORDS = {
    *("episode_id", "timestep", "agent_id", "key_order", "terminated", "truncated", "value", "reward"),
    *("num_actions", "action_index", "action_id", "old_log_prob", "logits_log_prob"),
}
"""What is read of a dump to clean it, whatever its rules ask for."""
VOUCHED = {"subset", "log_prob"}
VOUCHED_BY_NAME = {"positive-log-prob", "single-action-log-prob", "placeholder-log-prob"}
"""Families of rules, and rules, that speak against an action or its log-prob only: values stand."""


@dataclass(frozen=True)
class Unit:
    name: str
    sql: str
    meaning: str
    stands_alone: bool = False
    cuts: bool = False
    splits: bool = False


@cache
def units() -> dict[str, Unit]:
    files = sorted((shipped.PACKAGE / "units").glob("*.sql"))
    found = {}
    for file in files:
        header, sql = split_header(file.read_text("utf-8"))
        found[file.stem] = Unit(name=file.stem, sql=sql, **header)
    return found


def choose(name: str | None, dump: Dump) -> tuple[Unit, str]:
    """The unit asked for, or the one that suits the dump; and why."""
    alone = dump.has("advantage") and (dump.has("return") or dump.has("value"))
    lacking = "advantage" if not dump.has("advantage") else "return"
    stored = f"advantage and {'return' if dump.has('return') else 'value'} are stored"
    if name is None:
        if alone:
            return units()[DEFAULT], f"{stored}, so that every sample stands alone"
        unit = units()[WITHOUT_ADVANTAGES]
        return unit, f"no {lacking} is stored, and a hole would spoil what is computed across it"
    if name not in units():
        raise UsageError(f"unit cannot be {name!r}", f"it is one of {', '.join(units())}")
    unit = units()[name]
    if unit.stands_alone and not alone:
        raise UsageError(
            f"--unit {name} leaves holes, and the dump has no {lacking}: samples do not stand alone",
            f"say --unit {WITHOUT_ADVANTAGES}, or store advantage and return",
        )
    if not unit.stands_alone and (lost := [n for n in ("episode_id", "timestep") if not dump.has(n)]):
        raise UsageError(f"--unit {name} needs column {lost[0]}")
    return unit, "as asked"


def removes(rule: Rule, selected: Iterable[str]) -> bool:
    """Errors that say so; and a warning that was selected by its own name or code."""
    named = {part.strip().lower() for text in selected for part in text.split(",")}
    if rule.severity == "warning" and named & {rule.name, rule.code.lower()}:
        return True
    return rule.removes and rule.severity == "error"


def plan(database: Database, dump: Dump, unit: Unit, taking: list[Rule]) -> None:
    """Fills `bad`, `holes`, `gone` and `ends`; rows of `repaired` are not bad any more."""
    codes, spurious = _codes(taking), _codes(rule for rule in taking if rule.spurious)
    database.execute(
        f"CREATE TABLE bad AS SELECT row_id, bool_or(code IN ({spurious})) AS spurious FROM findings"
        f" WHERE row_id IS NOT NULL AND code IN ({codes})"
        " AND row_id NOT IN (SELECT row_id FROM repaired) GROUP BY row_id"
    )
    spared = database.prepared(SPARED.format(codes=codes))
    database.execute(f"DELETE FROM bad WHERE row_id IN ({spared})")
    if unit.stands_alone:
        database.execute("CREATE TABLE holes (episode_id BIGINT, timestep BIGINT)")
    else:
        _create(database, "holes", HOLES)
    _create(database, "gone", unit.sql)
    if unit.cuts:
        _create(database, "ends", _ends(dump, taking))
    else:
        database.execute("CREATE TABLE ends (row_id BIGINT, value DOUBLE, why_not VARCHAR)")
    database.execute("CREATE TABLE parts (row_id BIGINT, cut_from BIGINT, episode_id HUGEINT)")
    if unit.splits:
        _split(database)


def _create(database: Database, name: str, sql: str) -> None:
    database.execute(f"CREATE TABLE {name} AS {database.prepared(sql)}")


# A row that is contradicted by nothing but rows that never were steps is contradicted by nothing.
SPARED = """
    WITH contradicted AS (
        SELECT row_id
        FROM findings
        WHERE row_id IS NOT NULL AND code IN ({codes})
        GROUP BY row_id
        HAVING bool_and(rule = 'duplicate-key')
    ),
    keys AS (
        SELECT DISTINCT episode_id, timestep, agent_id
        FROM digest SEMI JOIN contradicted USING (row_id)
    ),
    steps_of_keys AS (
        SELECT any_value(row_id) AS row_id
        FROM digest SEMI JOIN keys USING (episode_id, timestep, agent_id)
        WHERE row_id NOT IN (SELECT row_id FROM bad WHERE spurious)
        GROUP BY episode_id, timestep, agent_id
        HAVING count(*) = 1
    )
    SELECT row_id FROM steps_of_keys SEMI JOIN contradicted USING (row_id)
"""
# Only copies share a key. A copy of a row that stays leaves no hole, nor does a row that never was a
# step of its episode.
HOLES = """
    WITH lost AS (
        SELECT episode_id, timestep, agent_id
        FROM digest JOIN bad USING (row_id)
        WHERE NOT spurious AND episode_id IS NOT NULL AND timestep IS NOT NULL
    ),
    staying AS (
        SELECT episode_id, timestep, agent_id
        FROM digest SEMI JOIN lost USING (episode_id, timestep)
        WHERE row_id NOT IN (SELECT row_id FROM bad)
    )
    SELECT DISTINCT episode_id, timestep
    FROM lost
    WHERE NOT EXISTS (
        FROM staying
        WHERE staying.episode_id = lost.episode_id
            AND staying.timestep = lost.timestep
            AND staying.agent_id IS NOT DISTINCT FROM lost.agent_id
    )
"""


def _ends(dump: Dump, taking: list[Rule]) -> str:
    """The last rows before a hole, each with the value of its next state.

    That is the value stored in the row that was next, unless what took that row out speaks against it.
    """
    turns = literal(bool(dump.settings["agents.turn_based"]))
    doubting = _codes(r for r in taking if r.family not in VOUCHED and r.name not in VOUCHED_BY_NAME)
    return f"""
        WITH doubted AS (
            SELECT row_id FROM findings WHERE code IN ({doubting})
            UNION SELECT row_id FROM causes WHERE wrong IN ('state', 'agent')
        ),
        of_episodes AS (
            SELECT
                row_id, episode_id, timestep, agent_id, value, terminated, truncated,
                row_id IN (SELECT row_id FROM gone) AS gone
            FROM digest SEMI JOIN holes USING (episode_id)
            WHERE row_id NOT IN (SELECT row_id FROM bad WHERE spurious)
        ),
        -- Of the copies of one step, the one that stays counts.
        once AS (
            SELECT * FROM of_episodes
            QUALIFY row_number() OVER
                (PARTITION BY episode_id, agent_id, timestep ORDER BY gone, row_id) = 1
        ),
        followed AS (
            SELECT
                *,
                lead(row_id) OVER turn AS next_row,
                lead(gone) OVER turn AS next_gone,
                lead(timestep) OVER turn AS next_step,
                lead(value) OVER turn AS next_value
            FROM once
            WINDOW turn AS (PARTITION BY episode_id, agent_id ORDER BY timestep)
        )
        SELECT
            row_id,
            next_value::DOUBLE AS value,
            CASE
                WHEN next_value IS NULL THEN 'no value is stored for the next state'
                WHEN NOT isfinite(next_value) THEN 'the value of the next state is not finite'
                WHEN NOT {turns} AND next_step <> timestep + 1
                    THEN 'the next step was missing already'
                WHEN next_row IN (SELECT row_id FROM doubted)
                    THEN 'what is wrong with the next row may concern its value'
            END AS why_not
        FROM followed
        WHERE NOT gone AND next_gone
            AND NOT coalesce(terminated, false) AND NOT coalesce(truncated, false)
    """


PARTS = """
    WITH placed AS (
        SELECT row_id, episode_id, count(holes.timestep) AS part
        FROM digest SEMI JOIN holes USING (episode_id)
        LEFT JOIN holes ON holes.episode_id = digest.episode_id AND holes.timestep < digest.timestep
        WHERE digest.timestep IS NOT NULL AND row_id NOT IN (SELECT row_id FROM gone)
        GROUP BY ALL
    ),
    first_parts AS (SELECT episode_id, min(part) AS part FROM placed GROUP BY episode_id),
    further AS (
        SELECT episode_id, part, row_number() OVER (ORDER BY episode_id, part) AS number
        FROM (
            SELECT DISTINCT episode_id, part
            FROM placed ANTI JOIN first_parts USING (episode_id, part)
        )
    )
    SELECT
        row_id,
        placed.episode_id AS cut_from,
        (SELECT max(episode_id) FROM digest)::HUGEINT + number AS episode_id
    FROM placed JOIN further USING (episode_id, part)
"""


def _split(database: Database) -> None:
    """Gives a new id to every part of an episode behind a hole, but for its first part."""
    database.execute(f"INSERT INTO parts {database.prepared(PARTS)}")
    [most] = database.rows("SELECT max(episode_id) AS id FROM parts")
    if most["id"] is not None and most["id"] > LAST_ID:
        raise UsageError(
            "--unit joint needs new episode ids, and the largest is taken", "say --unit tail"
        )


def _codes(rules: Iterable[Rule]) -> str:
    return ", ".join(literal(rule.code) for rule in rules) or "''"


def counts(database: Database, taking: list[Rule]) -> dict[str, Any]:
    """What goes and why, in numbers."""
    [whole] = database.rows(
        "SELECT (SELECT count(*) FROM digest) AS rows_in, (SELECT count(*) FROM gone) AS dropped,"
        " (SELECT count(*) FROM bad) AS bad, (SELECT count(DISTINCT episode_id) FROM parts) AS split"
    )
    by_rule = database.rows(
        "SELECT rule, count(DISTINCT row_id) AS rows FROM findings SEMI JOIN bad USING (row_id)"
        f" WHERE code IN ({_codes(taking)}) GROUP BY ALL ORDER BY rows DESC, rule"
    )
    by_cause = database.rows(
        "SELECT cause, confidence, count(*) AS rows FROM causes SEMI JOIN bad USING (row_id)"
        " GROUP BY ALL ORDER BY rows DESC, cause"
    )
    ends = database.rows("SELECT why_not, count(*) AS rows FROM ends GROUP BY ALL ORDER BY rows DESC")
    return {
        "rows_in": whole["rows_in"],
        "rows_kept": whole["rows_in"] - whole["dropped"],
        "rows_dropped": whole["dropped"],
        "rows_bad": whole["bad"],
        "rules": {row["rule"]: row["rows"] for row in by_rule},
        "causes": by_cause,
        "ends": ends,
        "episodes_split_off": whole["split"],
    }
