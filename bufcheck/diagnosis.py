"""Puts the causes to a dump's failing rows: reads what they need, files what they claim.

Hypotheses are chosen on a sample of whole episodes and then held against all failing rows, episode by
episode, so that memory does not grow with the dump. What stays unexplained is sampled again: a rare
bug may have been missed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bufcheck import attribution, choice, confidence, digest, forward, undecidable
from bufcheck import case as cases
from bufcheck import cause as engine
from bufcheck.case import SCALARS, Case, Facts, Failing
from bufcheck.cause import LEAST, PROVEN, Suspect
from bufcheck.confidence import Diagnosis, Found
from bufcheck.given import versions_given
from bufcheck.vectors import Array, as_arrow, texts_as_arrow

if TYPE_CHECKING:
    from bufcheck.database import Database
    from bufcheck.dump import Dump
    from bufcheck.replayer import Replayer

SCREENED = 20_000
"""Failing rows that hypotheses are chosen on."""
ROUNDS = 3
MOST_MATCHED = 4_000_000
"""Failing rows among which a permutation is looked for."""
NOISY = 1000
"""Healthy rows it takes to measure how exact a replay is."""


def diagnose(
    dump: Dump, database: Database, replay: Replayer | None, without: frozenset[str] = frozenset()
) -> Diagnosis:
    """Fills the table `causes`, a row for each row that a cause explains."""
    database.execute(
        "CREATE TABLE causes"
        " (row_id BIGINT, number INTEGER, cause VARCHAR, source_row_id BIGINT, confidence VARCHAR,"
        " wrong VARCHAR)"
    )
    [counted] = database.rows(
        "SELECT count(DISTINCT row_id) AS flagged,"
        " count(DISTINCT row_id) FILTER (severity = 'error') AS wrong FROM findings"
    )
    apart = undecidable.of_dump(database, replay) if replay else []
    if not counted["flagged"]:
        return Diagnosis(cannot_tell=apart)
    found: list[Found] = []
    _patterns(database, "first", found, without)
    versions: list[int] = []
    if replay is not None and counted["wrong"]:
        facts = _facts(dump, database, replay)
        versions = facts.versions
        # Damaged numbers are what is looked for, not warnings on stderr.
        with forward.one_thread(), np.errstate(all="ignore"):
            _counterfactuals(dump, database, facts, found, without)
    _patterns(database, "last", found, without)
    return replace(confidence.told(database, found, versions), cannot_tell=apart)


def _patterns(database: Database, when: str, found: list[Found], without: frozenset[str]) -> None:
    for pattern in engine.patterns(when):
        if pattern.name in without:
            continue
        select = database.prepared(pattern.sql)
        [made] = database.rows(
            f"INSERT INTO causes SELECT DISTINCT row_id, {len(found)}, '{pattern.name}',"
            f" NULL, NULL, NULL FROM ({select}) WHERE row_id NOT IN (SELECT row_id FROM causes)"
        )
        if made["Count"]:
            found.append(Found(pattern.name, {}, pattern.evidence, PROVEN, effect=pattern.effect))


# Counterfactuals


def _counterfactuals(
    dump: Dump, database: Database, facts: Facts, found: list[Found], without: frozenset[str]
) -> None:
    for number in range(ROUNDS):
        database.execute(
            "CREATE OR REPLACE TEMP TABLE wrong AS SELECT row_id FROM replay"
            " WHERE (abs(residual) <= allowed) IS NOT TRUE"
            " AND row_id IN (SELECT row_id FROM findings WHERE severity = 'error')"
            " AND row_id NOT IN (SELECT row_id FROM causes)"
            # Behind an agent's end nothing was sampled, whatever is stored there; nor in an empty row.
            " AND row_id NOT IN (SELECT row_id FROM findings WHERE row_id IS NOT NULL"
            " AND rule IN ('row-after-done', 'unfilled-row'))"
        )
        episodes = database.columns(
            "SELECT coalesce(episode_id, -1) AS episode, min(row_id) AS first, count(*) AS rows,"
            " count(*) FILTER (row_id IN (FROM wrong)) AS wrong"
            " FROM replay GROUP BY 1 HAVING count(*) FILTER (row_id IN (FROM wrong)) > 0 ORDER BY first"
        )
        if episodes["wrong"].sum() < LEAST:
            return
        facts = _with_failing(facts, database)
        most = cases.rows_at_once(facts)
        sample = _sample(episodes, most, seed=number)
        healthy = _healthy(database, episodes, most // 8, seed=number)
        case = _read(dump, database, facts, np.append(episodes["episode"][sample], healthy), 2 * most)
        chosen = choice.choose(case, without)
        if not chosen:
            return
        first = len(found)
        for suspect in chosen:
            hypothesis = suspect.hypothesis
            found.append(
                Found(
                    suspect.name,
                    hypothesis.parameters,
                    hypothesis.evidence,
                    hypothesis.most,
                    suspect.also,
                    suspect,
                )
            )
        whole = len(sample) == len(episodes["episode"]) and episodes["rows"].sum() <= most
        every = iter([case]) if whole else _all(dump, database, facts, episodes, most)
        for part in every:
            _file(database, part, chosen, first)
        if whole:
            return


def _facts(dump: Dump, database: Database, replay: Replayer) -> Facts:
    settings = database.settings
    [healthy] = database.rows(
        "SELECT count(*) AS rows, quantile_cont(abs(residual), 0.999) AS noise FROM replay"
        " WHERE abs(residual) <= allowed AND choices IS DISTINCT FROM 1"
    )
    noise = cases.DEFAULT_NOISE
    if healthy["rows"] >= NOISY:
        noise = float(np.clip(4 * healthy["noise"], 1e-6, settings["tolerance"]))
    names = []
    if dump.has("agent_id"):
        [named] = database.rows(f"SELECT enum_range(NULL::{digest.AGENT_TYPE}) AS agents")
        names = named["agents"]
    known = database.rows("SELECT DISTINCT policy_version AS v FROM digest WHERE policy_version >= 0")
    versions = {row["v"] for row in known}
    if versions:
        versions |= {v for v in versions_given(replay.actors.given) if v >= 0}
    layers = sorted({note for actor in replay.acting for note in actor.notes if "layer" in note})
    return Facts(
        replay,
        settings["tolerance"],
        settings["relative_tolerance"],
        noise,
        names,
        sorted(versions),
        layers,
    )


def _with_failing(facts: Facts, database: Database) -> Facts:
    made = database.columns(
        "SELECT row_id, coalesce(old_log_prob, 'nan')::DOUBLE AS stored,"
        " coalesce(log_prob, 'nan')::DOUBLE AS replayed, coalesce(episode_id, -1) AS episode,"
        f" coalesce(timestep, -1) AS timestep, {_agent(facts)} AS agent"
        f" FROM replay WHERE row_id IN (FROM wrong) ORDER BY row_id LIMIT {MOST_MATCHED}"
    )

    def count_places() -> tuple[Array, Array]:
        # Counted over all rows of an episode, right or wrong.
        found = database.columns(
            "SELECT place, rows FROM (SELECT row_id,"
            " row_number() OVER (PARTITION BY episode_id ORDER BY row_id) - 1 AS place,"
            " count(*) OVER (PARTITION BY episode_id) AS rows FROM replay)"
            f" WHERE row_id IN (FROM wrong) ORDER BY row_id LIMIT {MOST_MATCHED}"
        )
        return found["place"], found["rows"]

    def everyone() -> tuple[Array, Array]:
        found = database.columns(
            "SELECT row_id, log_prob::DOUBLE AS replayed FROM replay WHERE isfinite(log_prob)"
            f" AND row_id NOT IN (FROM wrong) ORDER BY row_id LIMIT {MOST_MATCHED}"
        )
        return found["row_id"], found["replayed"]

    return replace(
        facts,
        failing=Failing(count_places=count_places, everyone=everyone, **made),
    )


def _agent(facts: Facts) -> str:
    """SQL for the number of a row's agent; −1 where it has none."""
    return "coalesce(enum_code(agent_id), -1)::BIGINT" if facts.agents else "-1::BIGINT"


def _sample(episodes: dict[str, Array], most: int, seed: int) -> Array:
    """Episodes at random, up to so many rows and failing rows; in order."""
    order = np.random.default_rng(seed).permutation(len(episodes["episode"]))
    rows, wrong = np.cumsum(episodes["rows"][order]), np.cumsum(episodes["wrong"][order])
    taken = int(np.searchsorted(rows, most, "right"))
    taken = min(max(taken, 1), int(np.searchsorted(wrong, SCREENED)) + 1)
    return np.sort(order[:taken])


def _healthy(database: Database, episodes: dict[str, Array], most: int, seed: int) -> Array:
    """Some episodes without a failing row, to see what is usual in this dump."""
    found = database.columns(
        "SELECT coalesce(episode_id, -1) AS episode, count(*) AS rows FROM replay"
        " GROUP BY 1 HAVING count(*) FILTER (row_id IN (FROM wrong)) = 0 ORDER BY hash(episode, 7)"
        " LIMIT 64"
    )
    return found["episode"][np.cumsum(found["rows"]) <= most]


def _all(
    dump: Dump, database: Database, facts: Facts, episodes: dict[str, Array], most: int
) -> Iterator[Case]:
    """Every episode with failing rows, as many at once as may be."""
    start = 0
    ends = np.cumsum(episodes["rows"])
    while start < len(ends):
        done = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + most, "right")))
        size = int(ends[stop - 1] - done)
        for skipped in range(0, size, most):  # an episode longer than that is cut
            yield _read(dump, database, facts, episodes["episode"][start:stop], most, skipped)
        start = stop


def _read(
    dump: Dump, database: Database, facts: Facts, episodes: Array, most: int, skipped: int = 0
) -> Case:
    import pyarrow as pa

    database.connection.register("picked", pa.table({"episode": as_arrow(episodes)}))
    made = database.columns(
        "SELECT row_id, coalesce(episode_id, -1) AS episode, coalesce(timestep, -1) AS timestep,"
        f" {_agent(facts)} AS agent, coalesce(policy_version, -1) AS version,"
        " coalesce(old_log_prob, 'nan')::DOUBLE AS stored,"
        " coalesce(log_prob, 'nan')::DOUBLE AS replayed,"
        " coalesce(rounding, 0)::DOUBLE AS rounding, coalesce(actor, -1) AS actor,"
        " row_id IN (FROM wrong) AS wrong"
        " FROM replay SEMI JOIN picked ON picked.episode = coalesce(episode_id, -1)"
        f" ORDER BY row_id LIMIT {most} OFFSET {skipped}"
    )
    database.connection.unregister("picked")
    wrong = made.pop("wrong").astype(bool)
    scalars = {name: made[name] for name in SCALARS}
    return cases.read(facts, dump, made["row_id"], scalars, wrong)


def _file(database: Database, case: Case, chosen: list[Suspect], first: int) -> None:
    """Gives each failing row of a case to the one of the chosen that most likely made it."""
    import pyarrow as pa

    verdicts = [choice.tested(case, suspect.name, suspect.hypothesis) for suspect in chosen]
    owner = attribution.owners(case, chosen, verdicts)
    owner = np.where(owner >= 0, first + owner, -1)
    case.unexplained = case.unexplained & (owner < 0)
    # What one lost at an edge, another may have explained: only then it is the first one's.
    for number, verdict in enumerate(verdicts):
        already = owner == first + number
        others = [v.lost for n, v in enumerate(verdicts) if n != number]
        alone = ~np.any(others, axis=0) if others else True
        lost = choice.claims(case, verdict, case.unexplained, already, alone=alone)
        owner[lost] = first + number
        case.unexplained = case.unexplained & ~lost
    source = np.full(len(case), -1)
    for number, verdict in enumerate(verdicts):
        if verdict.sources is not None:
            source = np.where(owner == first + number, verdict.sources, source)
    given = np.flatnonzero(owner >= 0)
    table = {
        "row_id": as_arrow(case.of("row_id")[given]),
        "number": as_arrow(owner[given].astype(np.int32)),
        "cause": texts_as_arrow([chosen[number].name for number in owner[given] - first]),
        "source_row_id": as_arrow(source[given], source[given] < 0),
    }
    database.connection.register("claimed", pa.table(table))
    database.execute("INSERT INTO causes SELECT *, NULL, NULL FROM claimed")
    database.connection.unregister("claimed")
