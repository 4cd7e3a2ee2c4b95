"""Shared by all tests: the real command line in a real process, and the fixtures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "fixtures"
HEALTHY = FIXTURES / "healthy.parquet"
CAMPAIGN = bool(os.environ.get("BUFCHECK_CAMPAIGN"))
"""Run every case of the mutation and property campaigns instead of a seeded tenth."""

collect_ignore_glob = [] if os.environ.get("BUFCHECK_HEAVY") else ["heavy/*"]
"""What needs trainers that are too large to install for every run; CONTRIBUTING.md has the command."""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.out)
        return report


def bufcheck(*arguments: object, cwd: Path | None = None, timeout: float = 60) -> Ran:
    """Runs `bufcheck ARGUMENTS` as a user would."""
    done = subprocess.run(
        [sys.executable, "-m", "bufcheck", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def refused(ran: Ran) -> str:
    """Asserts that the command gave up as it should: one line on stderr, exit 2, nothing printed."""
    assert ran.code == 2, ran
    assert ran.out == "", ran
    lines = ran.err.strip().splitlines()
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("bufcheck: "), ran.err
    assert "Traceback" not in ran.err
    assert "unexpected" not in ran.err, ran.err
    return lines[0]


def failing(report: dict[str, Any]) -> dict[str, int]:
    return {rule["name"]: rule["rows"] for rule in report["rules"] if rule["status"] == "fail"}


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    copy = tmp_path / "healthy.parquet"
    copy.write_bytes(HEALTHY.read_bytes())
    return copy
