"""Real training runs, replayed: the actors that acted pass, those of one update later do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trainers
from conftest import Ran, bufcheck

pytestmark = [
    # Collector speaks of what its next version will do with policies that need transforms.
    pytest.mark.filterwarnings("ignore:The env passed to Collector:FutureWarning"),
]

WORST = 1e-5
RUNS = {
    "cartpole": trainers.sb3_cartpole,
    "masked": trainers.sb3_masked,
    "pendulum": trainers.sb3_pendulum,
    "pendulum_normalized": trainers.sb3_pendulum_normalized,
    "torchrl": trainers.torchrl_multi_agent,
}
DUMPS = ["cartpole-0", "masked-0", "masked-1", "pendulum-0", "pendulum_normalized-0", "torchrl-0"]


@pytest.fixture(scope="module")
def runs() -> dict[str, trainers.Run]:
    """Filled as tests ask: each run is made once."""
    return {}


@pytest.fixture(params=DUMPS)
def trained(
    request: pytest.FixtureRequest,
    runs: dict[str, trainers.Run],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[trainers.Run, Path]:
    name, _, number = request.param.rpartition("-")
    if name not in runs:
        runs[name] = RUNS[name](tmp_path_factory.mktemp(name))
    return runs[name], runs[name].dumps[int(number)]


def validate(dump: Path, actors: str) -> Ran:
    return bufcheck("validate", dump, "--actor", actors, "--format", "json", timeout=120)


def rule(report: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(r for r in report["rules"] if r["name"] == name)
    return found


def rows_with_a_choice(dump: Path) -> int:
    table = pq.read_table(dump)
    if "action_mask" in table.column_names:
        return sum(sum(mask) > 1 for mask in table["action_mask"].to_pylist())
    if "num_actions" in table.column_names:
        return sum(k > 1 for k in table["num_actions"].to_pylist())
    return len(table)


def test_the_actors_that_acted_pass(trained: tuple[trainers.Run, Path]) -> None:
    run, dump = trained
    ran = validate(dump, run.actors)
    assert ran.code == 0, ran
    assert ran.report["verdict"] == "pass", ran.report
    assert rule(ran.report, "log-prob-mismatch")["status"] == "pass"
    assert 0 <= ran.report["replay"]["worst_error"] < WORST


def test_the_actors_of_one_update_later_fail(
    trained: tuple[trainers.Run, Path], tmp_path: Path
) -> None:
    run, dump = trained
    ran = validate(dump, run.with_the_next_actors(tmp_path / "next"))
    assert ran.code == 1, ran
    assert ran.report["verdict"] == "fail"
    mismatch = rule(ran.report, "log-prob-mismatch")
    assert mismatch["status"] == "fail"
    assert mismatch["rows"] >= 0.8 * rows_with_a_choice(dump)


@pytest.mark.parametrize("trained", ["cartpole-0", "torchrl-0"], indirect=True)
def test_one_actor_for_all_versions_fails_on_the_others(trained: tuple[trainers.Run, Path]) -> None:
    run, dump = trained
    ran = validate(dump, run.actors.replace("{policy_version}", "0"))
    assert ran.code == 1, ran
    failed = rule(ran.report, "log-prob-mismatch")["rows"]
    assert 0.5 * rows_with_a_choice(dump) < failed < 0.7 * len(pq.read_table(dump))


@pytest.mark.parametrize("trained", ["masked-0"], indirect=True)
def test_subsets_of_every_size_are_among_the_masked(trained: tuple[trainers.Run, Path]) -> None:
    """The run tests what it is meant to."""
    sizes = set(pq.read_table(trained[1])["num_actions"].to_pylist())
    assert sizes == set(range(1, trainers.ACTIONS + 1))
