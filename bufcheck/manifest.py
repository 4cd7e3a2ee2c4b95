"""The account of a cleaning: what went in, what was done to it and why, what came out."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bufcheck import __version__
from bufcheck import rule as rules

if TYPE_CHECKING:
    from bufcheck.dump import Dump
    from bufcheck.rule import Outcome

FORMAT = "bufcheck.manifest/1"
SUFFIX, QUARANTINE = ".manifest.json", ".quarantine.parquet"


def names_for(output: Path) -> tuple[Path, Path]:
    """Where the quarantine and the manifest of an output go."""
    return output.with_name(output.stem + QUARANTINE), output.with_name(output.stem + SUFFIX)


def of_run(
    dump: Dump,
    report: dict[str, Any],
    outcomes: list[Outcome],
    options: dict[str, Any],
    counts: dict[str, Any],
    inputs: list[str],
) -> dict[str, Any]:
    """All but what is known only once the output is written."""
    return {
        "format": FORMAT,
        "bufcheck": __version__,
        "inputs": [
            {"path": str(source.path), "sha256": hashed, "rows": source.rows}
            for source, hashed in zip(dump.sources, inputs, strict=True)
        ],
        "actors": (report["replay"] or {}).get("actors", []),
        "options": options,
        **counts,
        "input": {
            "verdict": report["verdict"],
            "valid_ratio": report["summary"]["valid_ratio"],
            "unverified": report["unverified"],
            "unexplained_rows": report["unexplained_rows"],
        },
        "checked": [_version(outcome) for outcome in outcomes if outcome.status != rules.NOT_CHECKED],
        "not_checked": [
            {"rule": o.rule.name, "reason": o.reason} for o in outcomes if o.status == rules.NOT_CHECKED
        ],
    }


def _version(outcome: Outcome) -> dict[str, Any]:
    """A rule is what its SQL, its parameters and its severity are."""
    rule = outcome.rule
    text = json.dumps([rule.sql, rule.parameters, rule.severity], sort_keys=True)
    return {
        "rule": rule.name,
        "code": rule.code,
        "version": hashlib.sha256(text.encode()).hexdigest()[:12],
        "severity": rule.severity,
        "status": outcome.status,
        "rows": outcome.rows,
    }


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(path: Path, manifest: dict[str, Any]) -> None:
    path.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", "utf-8")
