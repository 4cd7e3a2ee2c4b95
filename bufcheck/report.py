"""The report: what schemas/report.v1.schema.json describes, put together from tables and outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bufcheck import __version__, metrics
from bufcheck import rule as rules
from bufcheck.format import VERIFIED

if TYPE_CHECKING:
    from bufcheck.confidence import Diagnosis
    from bufcheck.database import Database
    from bufcheck.dump import Dump
    from bufcheck.replayer import Replayer
    from bufcheck.rule import Outcome

COARSE = 0.1
"""Nats: an allowance for rounding beyond this hides faults that matter."""
MOST_NAMED = 3
"""Groups of rows without an actor that a sentence names; the report lists all."""


@dataclass(frozen=True)
class Checked:
    """What a run of the rules came to."""

    dump: Dump
    database: Database
    outcomes: list[Outcome]
    replay: Replayer | None
    sampled: bool
    """Whether only some episodes were read."""
    unread: bool
    """Whether some columns were not."""
    known: int
    """Findings that a baseline accepted."""
    diagnosis: Diagnosis


def of_run(run: Checked) -> dict[str, Any]:
    dump, database, outcomes = run.dump, run.database, run.outcomes
    [counts] = database.rows(
        "SELECT count(*) AS rows, count(DISTINCT episode_id) AS episodes,"
        " (SELECT count(DISTINCT row_id) FROM findings) AS flagged,"
        " (SELECT count(DISTINCT row_id) FROM findings WHERE severity = 'error') AS wrong FROM digest"
    )
    agents = database.rows("SELECT DISTINCT agent_id FROM digest WHERE agent_id IS NOT NULL ORDER BY 1")
    failed = [o for o in outcomes if o.status == rules.FAIL]
    sampled = None
    if run.sampled:
        sampled = {"rows": counts["rows"], "episodes": counts["episodes"]}
    integrity = dump.integrity
    if integrity == VERIFIED and (run.unread or sampled):
        integrity = "partly-verified"
    replayed = _replay(run.replay, database, counts["rows"]) if run.replay else None
    reasons = _open_questions(outcomes, counts["rows"], sampled, replayed)
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
            "assumed": dump.assumed | _assumed_of(run.replay),
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
            "known_findings": run.known,
        },
        "rules": [_outcome(o, counts["rows"], database.settings) for o in outcomes],
        "causes": run.diagnosis.causes,
        "unexplained_rows": run.diagnosis.unexplained,
        "checkpoints": run.diagnosis.checkpoints,
        "cannot_tell": run.diagnosis.cannot_tell,
        "replay": replayed,
        "metrics": metrics.of_replay(database) if run.replay else {},
    }


def _assumed_of(replay: Replayer | None) -> dict[str, dict[str, Any]]:
    """What had to be assumed about the actors."""
    used = replay.acting if replay else []
    return {f"{actor.path}: {name}": note for actor in used for name, note in actor.assumed.items()}


def _replay(replay: Replayer, database: Database, rows: int) -> dict[str, Any]:
    settings = database.settings
    [worst] = database.rows(
        "SELECT max(abs(residual)) FILTER (isfinite(residual)) AS error, max(rounding) AS rounding,"
        f" count(*) FILTER (rounding > {COARSE}) AS coarse FROM replay"
    )
    unasked = rows - replay.replayed - sum(replay.missing.values())
    missing = [
        {"agent_id": agent, "policy_version": version, "rows": count}
        for (agent, version), count in replay.missing.most_common()
    ]
    return {
        "rows": replay.replayed,
        "not_replayed": rows - replay.replayed,
        "missing": missing,
        "worst_error": worst["error"],
        "tolerance": {
            "absolute": settings["tolerance"],
            "relative": settings["relative_tolerance"],
            "most_for_rounding": worst["rounding"] or 0.0,
            "coarse_rows": worst["coarse"],
            "precision": replay.policy["precision"],
            "given": replay.roundoff == 0,
        },
        "decades": metrics.decades(database),
        "actors": [
            {
                "path": actor.path,
                "sha256": actor.sha256,
                "kind": actor.kind,
                "rows": actor.rows,
                "notes": actor.notes,
            }
            for actor in replay.acting
        ],
        "notes": _notes(replay, database, unasked, worst["coarse"]),
    }


def _notes(replay: Replayer, database: Database, unasked: int, coarse: int) -> list[str]:
    notes = []
    if replay.is_prefix and replay.dump.has("subset_indices"):
        notes.append(
            "every subset is 0..K-1, so policy.logits gather and prefix give the same log-probs:"
            " the two cannot be told apart on this dump"
        )
    if replay.actors.is_one_for_all and replay.dump.has("policy_version"):
        [counted] = database.rows("SELECT count(DISTINCT policy_version) AS versions FROM digest")
        if counted["versions"] > 1:
            notes.append(f"one actor was replayed for {counted['versions']} policy versions")
    if unasked:
        notes.append(
            f"{unasked:,} rows cannot be asked about: a null, an index or id out of range, a state,"
            " mask or subset of another length, no legal action, or a squashed action at its bound"
        )
    used = {actor.path for actor in replay.acting}
    for given in replay.actors.given:
        if isinstance(given.source, str) and not given.places and given.source not in used:
            notes.append(f"no row needed {given.source}")
    if coarse:
        notes.append(
            f"rounding in {replay.policy['precision']} can move the log-probs of {coarse:,} rows"
            f" by more than {COARSE}: a smaller fault does not show in them"
        )
    return notes


def _verdict(failed: list[Outcome], reasons: list[str]) -> str:
    if any(o.rule.severity == "error" for o in failed):
        return "fail"
    return "unverified" if reasons else "pass"


def _open_questions(
    outcomes: list[Outcome],
    rows: int,
    sampled: dict[str, int] | None,
    replayed: dict[str, Any] | None,
) -> list[str]:
    """What stands between this dump and `pass`, besides findings."""
    reasons = []
    if replayed is None:
        reasons.append(f"the log-probs of {rows:,} rows were not replayed with an actor")
    elif replayed["not_replayed"]:
        reasons.append(_not_replayed(replayed))
    elif not any(o.rule.name == "log-prob-mismatch" for o in outcomes):
        reasons.append("log-prob-mismatch was not selected")
    if sampled:
        reasons.append(f"only a sample of {sampled['rows']:,} rows was read")
    reasons += [f"{o.rule.name} was not checked: {o.reason}" for o in outcomes if o.blocks_pass]
    return reasons


def _version(version: int | None, with_versions: bool) -> str:
    if version is None:
        return " without a policy_version" if with_versions else ""
    return f", version {version}"


def _not_replayed(replayed: dict[str, Any]) -> str:
    with_versions = any(group["policy_version"] is not None for group in replayed["missing"])
    text = f"the log-probs of {replayed['not_replayed']:,} rows were not replayed"
    named = [
        f"{group['rows']:,} of agent {group['agent_id']}"
        + _version(group["policy_version"], with_versions)
        for group in replayed["missing"]
    ]
    if len(named) > MOST_NAMED:
        named[MOST_NAMED:] = [f"and {len(named) - MOST_NAMED:,} more"]
    return text + (f": no actor for {'; '.join(named)}" if named else ": they cannot be asked about")


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
