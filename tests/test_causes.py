"""Which bug made the bad rows: a seeded part of benchmarks/diagnosis, which holds all of it.

The worlds, the log-probs that tell which rows are wrong, and the bugs share no code with
what finds them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from conftest import FIXTURES, ROOT, bufcheck

import bufcheck as api
from bufcheck import cause, fault

sys.path.insert(0, str(ROOT / "benchmarks" / "diagnosis"))

import cases as catalogue
import run as board
import score
import worlds

CAMPAIGN = bool(os.environ.get("BUFCHECK_CAMPAIGN"))
ROWS = 3000
ACTORS = str(FIXTURES / "actors" / "{agent_id}-{policy_version}.safetensors")
CASES = catalogue.cases()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> worlds.World:
    return worlds.synthetic(tmp_path_factory.mktemp("world"), worlds.Shape(rows=ROWS), seed=1)


def identifiable(case: catalogue.Case, world: worlds.World) -> None:
    if reason := catalogue.reason_against(case, world):
        pytest.skip(reason)


def options(**given: Any) -> argparse.Namespace:
    plain = {"quick": not CAMPAIGN, "seed": 0, "jobs": 1, "base": ["synthetic"], "fault": None}
    return argparse.Namespace(**{**plain, "rows": ROWS, "fraction": None, **given})


def test_every_fault_of_the_catalogue_has_a_cause() -> None:
    made = {name for name in fault.names() if fault.load(name).catalogued}
    assert made == set(cause.names())
    assert {case.fault for case in CASES} == made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_the_bug_is_named_with_its_rows(case: catalogue.Case, world: worlds.World) -> None:
    identifiable(case, world)
    unit = case.units[-1]
    result = score.run(score.Job(world, case, unit, 0.3, 3))
    if result.skipped:
        pytest.skip(result.skipped)
    if not case.provable:
        assert result.confidence != cause.PROVEN
        return
    assert result.right, result
    if not case.by_rules:
        assert result.found_recall >= 0.99
        assert min(result.recall, result.precision) >= 0.99, result


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_with_its_own_cause_hidden_no_other_is_proven(
    case: catalogue.Case, world: worlds.World
) -> None:
    identifiable(case, world)
    job = score.Job(world, case, case.units[0], 0.3, 5, ignore=(case.fault,))
    assert score.run_hidden(job).proven == []


def test_clean_dumps_have_no_cause(tmp_path: Path) -> None:
    held, results = board.clean(options(), tmp_path)
    assert held, [r for r in results if r]


def test_unknown_bugs_prove_nothing(tmp_path: Path) -> None:
    held, results = board.unknown(options(), tmp_path)
    assert held, results


def test_two_bugs_on_different_rows(tmp_path: Path) -> None:
    held, results = board.pairs(options(pairs=20 if CAMPAIGN else 4, rows=9000), tmp_path)
    assert held, results


# Each was told wrongly once: base, then fault, parameters, unit and fraction of the two.
MIXED: list[tuple[str, *tuple[tuple[str, dict[str, Any], str, float], ...]]] = [
    (
        "masked-ppo-mask",
        ("subset-shifted", {}, "episodes", 0.2),
        ("mask-not-applied", {}, "rows", 0.05),
    ),
    (
        "masked-ppo-mask",
        ("placeholder-logprob", {"value": "0"}, "episodes", 0.2),
        ("logprob-transform", {"kind": "clamp"}, "rows", 0.2),
    ),
    (
        "masked-ppo-mask",
        ("n-by-1-broadcast", {}, "rows", 0.05),
        ("placeholder-logprob", {"value": "0"}, "rows", 0.1),
    ),
    (
        "synthetic",
        ("logprob-row-shift", {}, "rows", 0.2),
        ("topk-topp-truncation", {"k": 2}, "rows", 0.2),
    ),
    (
        "synthetic",
        ("minibatch-permutation", {"block": 64}, "episodes", 0.05),
        ("obs-norm-drift", {}, "episodes", 0.06),
    ),
    (
        "synthetic",
        ("subset-shifted", {}, "rows", 0.1),
        ("logprob-row-shift", {"offset": -1}, "rows", 0.2),
    ),
    (
        "synthetic",
        ("valid-filter-desync", {}, "episodes", 0.2),
        ("action-shifted", {}, "rows", 0.1),
    ),
    (
        "torchrl",
        ("logprob-row-shift", {"order": "storage"}, "rows", 0.05),
        ("obs-norm-drift", {}, "rows", 0.1),
    ),
    (
        "synthetic",
        ("agent-rows-crossed", {"column": "old_log_prob"}, "rows", 0.05),
        ("logprob-row-shift", {"order": "storage"}, "rows", 0.1),
    ),
    (
        "masked-ppo-mask",
        ("argmax-stored", {}, "episodes", 0.05),
        ("action-out-of-range", {}, "episodes", 0.05),
    ),
    (
        "masked-ppo-mask",
        ("action-out-of-range", {}, "episodes", 0.2),
        ("minibatch-permutation", {"block": 64}, "episodes", 0.2),
    ),
    (
        "synthetic",
        ("n-by-1-broadcast", {}, "episodes", 0.05),
        ("logprob-transform", {"kind": "clamp"}, "episodes", 0.1),
    ),
    (
        "torchrl",
        ("argmax-stored", {"kind": "score"}, "episodes", 0.1),
        ("sampled-twice", {}, "rows", 0.1),
    ),
]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, worlds.World]:
    names = dict.fromkeys(base for base, *_ in MIXED)
    return board.bases(tmp_path_factory.mktemp("bases"), names, 9000, 1)


@pytest.mark.parametrize("mixed", MIXED, ids=lambda m: f"{m[1][0]}+{m[2][0]}")
def test_pairs_that_were_mixed_up(mixed: Any, bases: dict[str, worlds.World]) -> None:
    base, *faults = mixed
    jobs = [
        score.Job(bases[base], catalogue.Case(name, given), unit, fraction, seed=3)
        for name, given, unit, fraction in faults
    ]
    for result in score.run_pair(*jobs):
        assert not result.skipped
        assert result.right, result
        assert min(result.recall, result.precision) >= board.PAIR_RIGHT, result


def test_permutations_are_recovered(tmp_path: Path) -> None:
    held, results = board.permutation(options(), tmp_path)
    assert held, results


def test_names_that_mean_the_same(tmp_path: Path) -> None:
    held, results = board.degenerate(options(), tmp_path)
    assert held, results


# What the report says


def injected(tmp_path: Path, name: str, **given: Any) -> Path:
    target = tmp_path / "bad.parquet"
    fault.inject([str(FIXTURES / "healthy.parquet")], target, name, actor=ACTORS, **given)
    return target


def test_a_cause_is_told_with_evidence_and_fix(tmp_path: Path) -> None:
    bad = injected(tmp_path, "temperature-unaccounted", fraction=0.5)
    out = bufcheck("validate", str(bad), "--actor", ACTORS)
    assert out.code == 1
    assert "cause: temperature-unaccounted (proven)  T = 0.7" in out.out
    assert "fix: Divide the logits by the same temperature" in " ".join(out.out.split())
    report = json.loads(bufcheck("validate", str(bad), "--actor", ACTORS, "--format", "json").out)
    [found] = report["causes"]
    assert found["parameters"] == {"T": 0.7}
    assert found["share"] == 1
    assert report["unexplained_rows"] == 0


def test_stamped_versions_that_did_not_act(tmp_path: Path) -> None:
    bad = injected(tmp_path, "stale-policy-version")
    report = api.validate(str(bad), actor=ACTORS)
    assert report["causes"][0]["name"] == "stale-policy-version"
    told = {(c["policy_version"], c["acted"]) for c in report["checkpoints"]}
    assert told
    assert all(acted == version - 1 for version, acted in told)


def test_rows_are_written_with_cause_and_source(tmp_path: Path) -> None:
    bad = injected(tmp_path, "logprob-row-shift")
    api.validate(str(bad), actor=ACTORS, causes=tmp_path / "c.parquet", findings=tmp_path / "f.parquet")
    rows = pq.read_table(tmp_path / "c.parquet").to_pylist()
    assert {row["cause"] for row in rows} == {"logprob-row-shift"}
    agents = 3
    moved = [row["source_row_id"] - row["row_id"] for row in rows if row["source_row_id"] is not None]
    assert set(moved) == {agents}
    causes = set(pq.read_table(tmp_path / "f.parquet", columns=["cause"])["cause"].to_pylist())
    assert "logprob-row-shift" in causes


def test_an_ignored_cause_is_not_named(tmp_path: Path) -> None:
    bad = injected(tmp_path, "double-softmax", fraction=0.5)
    report = api.validate(str(bad), actor=ACTORS, ignore=["double-softmax"])
    assert "double-softmax" not in {found["name"] for found in report["causes"]}
    assert report["unexplained_rows"] > 0


def test_without_actors_patterns_are_still_named(tmp_path: Path) -> None:
    bad = injected(tmp_path, "duplicate-rows", fraction=0.1)
    report = api.validate(str(bad))
    assert [found["name"] for found in report["causes"]] == ["duplicate-rows"]


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ({"shared_actor": True}, "agents share an actor"),
        ({"subset": "prefix"}, "every subset is 0..K-1"),
        ({"versions": 1}, "a single version of the policy"),
    ],
    ids=str,
)
def test_what_cannot_be_told_apart_is_said(tmp_path: Path, shape: dict[str, Any], told: str) -> None:
    made = worlds.synthetic(tmp_path, worlds.Shape(rows=600, **shape))
    report = api.validate(*made.paths, actor=made.actor)
    assert any(sentence.startswith(told) for sentence in report["cannot_tell"]), report["cannot_tell"]


@pytest.mark.parametrize("name", cause.names())
def test_explain_knows_every_cause(name: str) -> None:
    out = bufcheck("explain", name)
    assert out.code == 0
    assert f"cause: {name}" in out.out
    assert "Fix" in out.out
