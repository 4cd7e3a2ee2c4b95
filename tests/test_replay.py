"""Replaying actors over dumps: values are those of plain NumPy, and the report says what was judged.

Dumps are sampled here with NumPy from real torch modules; nothing is shared with what replays them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from conftest import ROOT, Ran, bufcheck, failing, refused
from torch import nn

import bufcheck as api
from bufcheck import output
from bufcheck.cli import main
from bufcheck.errors import ReadError, UsageError

AGENTS = ("EDU", "IND", "LAB")
VERSIONS = 4
D, A = 6, 12
REPORTS = jsonschema.Draft202012Validator(
    json.loads((ROOT / "schemas" / "report.v1.schema.json").read_text())
)
SAME = "the two cannot be told apart"
TYPES = {
    "episode_id": pa.int64(),
    "timestep": pa.int32(),
    "agent_id": pa.string(),
    "policy_version": pa.int64(),
    "state_embed": pa.list_(pa.float32()),
    "subset_indices": pa.list_(pa.int32()),
    "num_actions": pa.int32(),
    "action_index": pa.int32(),
    "action_mask": pa.list_(pa.bool_()),
    "action": pa.list_(pa.float32()),
    "old_log_prob": pa.float32(),
}
FIXED = {"state_embed": pa.list_(pa.float32(), D)}
Row = dict[str, Any]
Array = np.ndarray[Any, Any]
Modules = dict[tuple[str, int], nn.Sequential]


# A world of actors, and what NumPy makes of them


def network(seed: int, inputs: int = D, outputs: int = A, sharpness: float = 1.5) -> nn.Sequential:
    rng = torch.Generator().manual_seed(seed)
    made = nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng) * 0.5)
        made[2].weight *= sharpness
    return made


def answers(module: nn.Sequential, state: Any) -> Array:
    """What such a network gives for a state, in NumPy and float64."""
    first, last = module[0], module[2]
    weights = [p.detach().numpy().astype(np.float64) for p in (*first.parameters(), *last.parameters())]
    hidden = np.tanh(weights[0] @ np.asarray(state, np.float64) + weights[1])
    given: Array = weights[2] @ hidden + weights[3]
    return given


def chances(row: Row, logits: Array, kind: str) -> Array:
    """Those of the actions a row offers."""
    if kind == "prefix":
        local = logits[: row["num_actions"]].copy()
    else:
        local = logits[row["subset_indices"]] if "subset_indices" in row else logits.copy()
    if "action_mask" in row:
        local[~np.array(row["action_mask"])] = -np.inf
    grown = np.exp(local - local.max())
    shares: Array = grown / grown.sum()
    return shares


def log_prob(row: Row, logits: Array, kind: str = "gather") -> float:
    return float(np.log(chances(row, logits, kind)[row["action_index"]]))


@dataclass
class Game:
    """How rows are sampled."""

    episodes: int = 8
    steps: int = 4
    most: int = 8
    """actions offered"""
    kind: str = "gather"
    ordered: bool = False
    """Whether every subset is 0..K-1."""
    masked: bool = False
    seed: int = 0

    def play(self, modules: Modules) -> list[Row]:
        rng = np.random.default_rng(self.seed)
        return [
            self._row(rng, modules, episode, step, agent)
            for episode in range(self.episodes)
            for step in range(self.steps)
            for agent in AGENTS
        ]

    def _row(self, rng: Any, modules: Modules, episode: int, step: int, agent: str) -> Row:
        version = episode * VERSIONS // self.episodes
        module = modules[agent, version]
        k = int(rng.integers(1, self.most + 1))
        actions = module[2].out_features
        row: Row = {
            "episode_id": episode,
            "timestep": step,
            "agent_id": agent,
            "policy_version": version,
            "state_embed": rng.normal(0, 1, D).astype(np.float32).tolist(),
            "subset_indices": list(range(k)) if self.ordered else rng.permutation(actions)[:k].tolist(),
            "num_actions": k,
        }
        if self.masked:
            row["action_mask"] = (rng.random(k) < 0.8).tolist()
            row["action_mask"][int(rng.integers(k))] = True
        logits = answers(module, row["state_embed"])
        row["action_index"] = int(rng.choice(k, p=chances(row, logits, self.kind)))
        row["old_log_prob"] = log_prob(row, logits, self.kind)
        return row


def write(path: Path, rows: list[Row], types: dict[str, Any] | None = None, **policy: Any) -> Path:
    """A dump in Parquet with page checksums; `types` and `policy` say what is not as usual."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrow = {**TYPES, **(types or {})}
    table = pa.table(
        {n: pa.array([row[n] for row in rows], t) for n, t in arrow.items() if n in rows[0]}
    )
    metadata = {
        "schema": "experience/1",
        "producer": {"name": "test_replay", "version": "1"},
        "rows": len(rows),
        "policy": {"distribution": "categorical", "logits": "gather", "action_space": A, **policy},
    }
    described = table.replace_schema_metadata({"bufcheck": json.dumps(metadata)})
    pq.write_table(described, path, write_page_checksum=True)
    return path


def save(modules: Modules, folder: Path) -> str:
    """The pattern of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for (agent, version), module in modules.items():
        api.save_actor(module, folder / f"{agent}-{version}.safetensors")
    return str(folder / "{agent_id}-{policy_version}.safetensors")


@dataclass(frozen=True)
class World:
    """One dump of three agents and four versions, with everything it was made of."""

    modules: Modules
    rows: list[Row]
    dump: Path
    folder: Path
    pattern: str

    def expected(self, kind: str = "gather") -> Array:
        return np.array(
            [
                log_prob(
                    r, answers(self.modules[r["agent_id"], r["policy_version"]], r["state_embed"]), kind
                )
                for r in self.rows
            ]
        )


@pytest.fixture(scope="module")
def modules() -> Modules:
    return {(a, v): network(10 * i + v) for i, a in enumerate(AGENTS) for v in range(VERSIONS)}


@pytest.fixture(scope="module")
def world(modules: Modules, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    rows = Game(masked=True).play(modules)
    dump = write(folder / "dump.parquet", rows, FIXED)
    return World(modules, rows, dump, folder / "ckpt", save(modules, folder / "ckpt"))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Sequential, Path]:
    """A single actor, and its file."""
    path = tmp_path_factory.mktemp("one") / "actor.safetensors"
    module = network(99)
    api.save_actor(module, path)
    return module, path


def alike(module: nn.Sequential) -> Modules:
    return {(agent, version): module for agent in AGENTS for version in range(VERSIONS)}


def judged(*paths: Path, **options: Any) -> dict[str, Any]:
    """The report as programs read it, checked against its schema.

    Most tests are about replay alone: they leave out the rules that do not need it.
    """
    options.setdefault("select", ["log_prob"])
    printed = output.render(api.validate(*(str(path) for path in paths), **options), "json")
    report: dict[str, Any] = json.loads(printed)
    REPORTS.validate(report)
    return report


def command(name: str, *arguments: object) -> Ran:
    """The command line, within this process; `validate` with the rules that `judged` selects."""
    chosen = ["--select", "log_prob"] if name == "validate" else []
    result = CliRunner().invoke(main, [name, *map(str, arguments), *chosen])
    return Ran(result.exit_code, result.stdout, result.stderr)


def rule_of(report: dict[str, Any], name: str = "log-prob-mismatch") -> dict[str, Any]:
    [found] = [rule for rule in report["rules"] if rule["name"] == name]
    return dict(found)


def replayed(dump: Any, actors: Any, **options: Any) -> dict[str, list[Any]]:
    given = str(dump) if isinstance(dump, Path) else dump
    return pa.Table.from_batches(list(api.replay(given, actors, **options))).to_pydict()


def flagged(findings: Path, name: str = "log-prob-mismatch") -> list[int]:
    return [f["row_id"] for f in pq.read_table(findings).to_pylist() if f["rule"] == name]


def close(one: Any, other: Any, where: str = "") -> None:
    """Two reports are the same, but for the last digits of numbers.

    By those an error of 0 differs from one of 1e-8, so of the decades only the sum is compared.
    """
    if where.endswith(".decades"):
        one, other = (sum(decade["rows"] for decade in decades) for decades in (one, other))
    elif where.endswith(".actors"):  # in the order they were first needed
        one, other = (sorted(actors, key=lambda actor: str(actor["path"])) for actors in (one, other))
    elif where.endswith(".message"):
        one, other = (re.sub(r"(\.\d{4})\d+", r"\1", text) for text in (one, other))
    if isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            close(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for i, (left, right) in enumerate(zip(one, other, strict=True)):
            close(left, right, f"{where}[{i}]")
    elif isinstance(one, float) and isinstance(other, float):
        assert one == pytest.approx(other, rel=1e-4, abs=2e-6), where
    else:
        assert one == other, where


# Gather against prefix


@pytest.mark.parametrize(("sampled", "declared"), [("gather", "prefix"), ("prefix", "gather")])
def test_gather_and_prefix_are_told_apart(
    sampled: str, declared: str, modules: Modules, tmp_path: Path
) -> None:
    rows = Game(kind=sampled).play(modules)
    pattern = save(modules, tmp_path / "ckpt")
    right = judged(write(tmp_path / "right.parquet", rows, logits=sampled), actor=pattern)
    assert right["verdict"] == "pass"
    wrong = write(tmp_path / "wrong.parquet", rows, logits=declared)
    report = judged(wrong, actor=pattern, findings=tmp_path / "findings.parquet")
    assert report["verdict"] == "fail"
    differs = [
        i
        for i, r in enumerate(rows)
        if abs(
            log_prob(
                r, answers(modules[r["agent_id"], r["policy_version"]], r["state_embed"]), declared
            )
            - r["old_log_prob"]
        )
        > 1e-3
    ]
    assert len(differs) > len(rows) // 2
    assert flagged(tmp_path / "findings.parquet") == differs
    for told in (right, report):
        assert not any(SAME in note for note in told["replay"]["notes"])


@pytest.mark.parametrize("declared", ["gather", "prefix"])
def test_subsets_in_order_cannot_tell_gather_from_prefix(
    declared: str, modules: Modules, tmp_path: Path
) -> None:
    rows = Game(ordered=True).play(modules)
    pattern = save(modules, tmp_path / "ckpt")
    dump = write(tmp_path / "dump.parquet", rows, logits=declared)
    report = judged(dump, actor=pattern)
    assert report["verdict"] == "pass"
    assert [SAME in note for note in report["replay"]["notes"]] == [True]
    ran = command("validate", dump, "--actor", pattern)
    assert ran.code == 0 and SAME in " ".join(ran.out.split())
    rows[-1] = Game(seed=3).play(modules)[-1]
    assert rows[-1]["subset_indices"] != list(range(rows[-1]["num_actions"]))
    report = judged(write(dump, rows, logits=declared), actor=pattern)
    assert not any(SAME in note for note in report["replay"]["notes"])


# Which actor, and what is left when one is gone


def test_every_row_by_its_own_actor(world: World) -> None:
    report = judged(world.dump, actor=world.pattern, select=())
    assert report["verdict"] == "pass"
    assert report["replay"]["rows"] == len(world.rows)
    assert report["replay"]["not_replayed"] == 0 and report["replay"]["missing"] == []
    assert report["replay"]["worst_error"] < 1e-5
    told = {actor["path"]: actor for actor in report["replay"]["actors"]}
    assert len(told) == len(AGENTS) * VERSIONS
    for agent, version in world.modules:
        path = world.folder / f"{agent}-{version}.safetensors"
        assert told[str(path)]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert told[str(path)]["rows"] == 8


def forms(world: World, lost: tuple[str, int]) -> dict[str, list[str]]:
    """Each way to give all actors but that of one agent and version."""
    files = {who: str(world.folder / f"{who[0]}-{who[1]}.safetensors") for who in world.modules}
    left = {who: path for who, path in files.items() if who != lost}
    return {
        "each by itself": [f"{agent}@{version}={path}" for (agent, version), path in left.items()],
        "a pattern by agent": [
            *(f"{a}={world.folder}/{a}-{{policy_version}}.safetensors" for a in AGENTS if a != lost[0]),
            *(f"{a}@{v}={path}" for (a, v), path in left.items() if a == lost[0]),
        ],
    }


def without(world: World, lost: tuple[str, int], folder: Path) -> str:
    """The pattern of a folder where one checkpoint was deleted."""
    pattern = save(world.modules, folder)
    (folder / f"{lost[0]}-{lost[1]}.safetensors").unlink()
    return pattern


LOST = ("IND", 2)
GONE = {"agent_id": "IND", "policy_version": 2, "rows": 8}


def test_a_deleted_checkpoint_leaves_the_dump_unverified(world: World, tmp_path: Path) -> None:
    pattern = without(world, LOST, tmp_path / "ckpt")
    ran = bufcheck("validate", world.dump, "--actor", pattern, "--format", "json")
    assert ran.code == 0, ran.err
    report = ran.report
    assert report["verdict"] == "unverified"
    assert report["replay"]["missing"] == [GONE]
    assert report["replay"]["not_replayed"] == 8
    assert report["replay"]["rows"] == len(world.rows) - 8
    assert report["unverified"] == [
        "the log-probs of 8 rows were not replayed: no actor for 8 of agent IND, version 2"
    ]
    rule = rule_of(report)
    assert (rule["status"], rule["rows"]) == ("not-checked", 0)
    assert rule["reason"] == "found nothing, but 8 rows were not replayed"
    assert command("validate", world.dump, "--actor", pattern, "--strict").code == 1


def test_the_other_ways_to_name_actors_say_the_same(world: World, tmp_path: Path) -> None:
    reports = [judged(world.dump, actor=[without(world, LOST, tmp_path / "ckpt")])]
    reports += [judged(world.dump, actor=given) for given in forms(world, LOST).values()]
    for report in reports:
        for actor in report["replay"]["actors"]:
            actor["path"] = Path(actor["path"]).name
        assert report["replay"]["missing"] == [GONE]
        close(reports[0], report)


def test_a_wrong_row_beside_missing_ones_fails(world: World, tmp_path: Path) -> None:
    rows = [dict(row) for row in world.rows]
    at = next(i for i, r in enumerate(rows) if r["agent_id"] == "LAB" and sum(r["action_mask"]) > 1)
    rows[at]["old_log_prob"] -= 0.3
    dump = write(tmp_path / "dump.parquet", rows)
    pattern = without(world, LOST, tmp_path / "ckpt")
    for given in [[pattern], *forms(world, LOST).values()]:
        report = judged(dump, actor=given, findings=tmp_path / "findings.parquet")
        assert report["verdict"] == "fail"
        assert flagged(tmp_path / "findings.parquet") == [at]
        assert report["replay"]["missing"] == [GONE]


def test_an_agent_without_any_actor(world: World) -> None:
    given = [f"{a}={world.folder}/{a}-{{policy_version}}.safetensors" for a in AGENTS if a != "EDU"]
    report = judged(world.dump, actor=given)
    assert report["verdict"] == "unverified"
    assert report["replay"]["missing"] == [
        {"agent_id": "EDU", "policy_version": version, "rows": 8} for version in range(VERSIONS)
    ]
    assert report["unverified"][0].endswith("agent EDU, version 2; and 1 more")


def test_one_actor_for_several_versions_is_noted(
    one: tuple[nn.Sequential, Path], world: World, tmp_path: Path
) -> None:
    module, path = one
    dump = write(tmp_path / "dump.parquet", Game(masked=True).play(alike(module)))
    report = judged(dump, actor=path)
    assert report["verdict"] == "pass"
    assert report["replay"]["notes"] == ["one actor was replayed for 4 policy versions"]
    assert judged(dump, actor=[f"{agent}={path}" for agent in AGENTS])["replay"]["notes"] == []
    unasked = judged(
        dump, actor=[f"{agent}={path}" for agent in AGENTS] + [f"X={world.folder}/EDU-0.safetensors"]
    )
    assert unasked["replay"]["notes"] == [f"no row needed {world.folder}/EDU-0.safetensors"]
    assert unasked["verdict"] == "pass"
    assert judged(world.dump, actor=path)["verdict"] == "fail"


# The values


def ways_to_give(world: World) -> dict[str, Any]:
    return {
        "a pattern": world.pattern,
        "texts": forms(world, ("", -1))["each by itself"],
        "modules by agent and version": world.modules,
        "files by agent and version": {
            (a, v): world.folder / f"{a}-{v}.safetensors" for a, v in world.modules
        },
        "patterns by agent": {a: f"{world.folder}/{a}-{{policy_version}}.safetensors" for a in AGENTS},
    }


@pytest.mark.parametrize(
    "way",
    [
        "a pattern",
        "texts",
        "modules by agent and version",
        "files by agent and version",
        "patterns by agent",
    ],
)
def test_replay_gives_what_numpy_gives(world: World, way: str) -> None:
    found = replayed(world.dump, ways_to_give(world)[way])
    assert found["row_id"] == list(range(len(world.rows)))
    assert found["agent_id"] == [row["agent_id"] for row in world.rows]
    assert found["policy_version"] == [row["policy_version"] for row in world.rows]
    expected = world.expected()
    stored = np.array([row["old_log_prob"] for row in world.rows], np.float32)
    np.testing.assert_allclose(found["log_prob"], expected, atol=1e-5)
    np.testing.assert_array_equal(found["old_log_prob"], stored)
    residual = stored.astype(float) - np.array(found["log_prob"], np.float64)
    np.testing.assert_array_equal(found["residual"], residual)
    actors = {
        (r["agent_id"], r["policy_version"]): n for r, n in zip(world.rows, found["actor"], strict=True)
    }
    assert sorted(actors.values()) == list(range(len(world.modules))), "one number an actor"
    for i, row in enumerate(world.rows):
        logits = answers(world.modules[row["agent_id"], row["policy_version"]], row["state_embed"])
        shares = chances(row, logits, "gather")
        open_to = shares[shares > 0]
        mean = (open_to * np.log(open_to)).sum()
        assert found["choices"][i] == len(open_to) == sum(row["action_mask"])
        assert found["rank"][i] == (shares > shares[row["action_index"]]).sum()
        assert found["entropy"][i] == pytest.approx(-mean, abs=1e-5)
        assert found["expected_log_prob"][i] == -found["entropy"][i]
        variance = (open_to * (np.log(open_to) - mean) ** 2).sum()
        assert found["variance"][i] == pytest.approx(variance, abs=1e-5)


def test_replay_of_one_actor_and_by_agent(one: tuple[nn.Sequential, Path], tmp_path: Path) -> None:
    module, path = one
    rows = Game().play(alike(module))
    dump = write(tmp_path / "dump.parquet", rows)
    expected = [log_prob(row, answers(module, row["state_embed"])) for row in rows]
    for given in (path, str(path), module, [str(path)], dict.fromkeys(AGENTS, module)):
        found = replayed(dump, given)
        np.testing.assert_allclose(found["log_prob"], expected, atol=1e-5)
        assert set(found["actor"]) == {0}
    partly = replayed(dump, {"IND": module})
    known = [row["agent_id"] == "IND" for row in rows]
    assert [value is not None for value in partly["log_prob"]] == known
    assert [value is not None for value in partly["residual"]] == known


def parts(world: World, folder: Path, count: int) -> list[Path]:
    """The dump in several files of uneven size; their names are counted, not spelled."""
    cuts = np.linspace(0, len(world.rows), count + 1).astype(int) + np.arange(count + 1) % 2
    cuts[[0, -1]] = 0, len(world.rows)
    return [
        write(folder / f"part-{n}.parquet", world.rows[start:stop], FIXED)
        for n, (start, stop) in enumerate(itertools.pairwise(cuts))
    ]


def test_files_formats_and_batches_give_the_same_replay(world: World, tmp_path: Path) -> None:
    files = parts(world, tmp_path / "parts", 12)
    h5 = tmp_path / "dump.h5"
    assert command("convert", world.dump, h5).code == 0
    expected = replayed(world.dump, world.pattern)
    several = [tmp_path / "parts", [str(f) for f in files], api.open_dump(str(tmp_path / "parts"))]
    for dump in (*several, h5):
        found = replayed(dump, world.pattern)
        assert list(found) == list(expected)
        for name in ("row_id", "agent_id", "policy_version", "old_log_prob", "choices", "rank"):
            assert found[name] == expected[name], name
        for name in ("log_prob", "entropy", "variance", "skew", "residual"):
            np.testing.assert_allclose(found[name], expected[name], atol=5e-6, err_msg=name)
    whole = judged(world.dump, actor=world.pattern, select=())
    other = judged(h5, actor=world.pattern, select=())
    split = judged(*files, actor=world.pattern, select=())
    for report in (whole, other, split):
        report["dump"]["paths"], report["dump"]["files"] = [], 0
    assert whole == other
    close(whole, split)


def test_many_threads_say_what_one_does(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = parts(world, tmp_path, 24)
    alone = judged(*files, actor=world.pattern)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    for _ in range(2):
        report = judged(*files, actor=world.pattern)
        close(alone, report)


def test_a_replay_that_cannot_be_says_so(one: tuple[nn.Sequential, Path], tmp_path: Path) -> None:
    rows = [{k: v for k, v in r.items() if k != "state_embed"} for r in Game().play(alike(one[0]))]
    with pytest.raises(UsageError, match="a replay needs column state_embed"):
        api.replay(str(write(tmp_path / "dump.parquet", rows)), one[1])


# Gaussians


@pytest.mark.parametrize(
    "form", ["saved log_std", "saved scalar", "by state", "a pair", "a pair with a scalar"]
)
@pytest.mark.parametrize("family", ["diagonal_gaussian", "squashed_gaussian"])
def test_gaussians_from_file_to_value(family: str, form: str, tmp_path: Path) -> None:
    size, rng = 2, np.random.default_rng(4)
    module = network(5, outputs=2 * size if form == "by state" else size, sharpness=0.3)
    log_std = {"saved scalar": -0.4, "a pair with a scalar": -0.4}.get(
        form, np.array([-0.5, 0.2], np.float32)
    )
    rows = []
    for step in range(40):
        state = rng.normal(0, 1, D).astype(np.float32)
        given = answers(module, state)
        mean, spread = (given[:size], given[size:]) if form == "by state" else (given, log_std)
        before = mean + np.exp(spread) * rng.normal(size=size)
        action = np.float32(np.tanh(before) if family == "squashed_gaussian" else before).astype(float)
        before = np.arctanh(action) if family == "squashed_gaussian" else action
        each = -0.5 * ((before - mean) / np.exp(spread)) ** 2 - spread - 0.5 * np.log(2 * np.pi)
        if family == "squashed_gaussian":
            each = each - np.log(1 - action**2)
        rows.append(
            {
                "episode_id": 0,
                "timestep": step,
                "agent_id": "EDU",
                "state_embed": state.tolist(),
                "action": action.tolist(),
                "old_log_prob": float(each.sum()),
            }
        )
    dump = write(tmp_path / "dump.parquet", rows, distribution=family, action_space=None)
    actor: Any = module
    if form.startswith("saved"):
        actor = tmp_path / "actor.safetensors"
        api.save_actor(module, actor, log_std=log_std)
    elif form.startswith("a pair"):
        actor = Pair(module, torch.as_tensor(log_std))
    report = judged(dump, actor=actor)
    assert report["verdict"] == "pass", failing(report)
    assert report["replay"]["worst_error"] < 1e-4
    assert report["metrics"]["by_num_actions"] == {}, "nothing to count"
    found = replayed(dump, actor)
    np.testing.assert_allclose(found["log_prob"], [row["old_log_prob"] for row in rows], atol=1e-4)
    assert found["choices"] == found["rank"] == [None] * len(rows)


class Pair(nn.Module):
    """Gives what it is told to besides the outputs: a spread, a value, a hidden state."""

    def __init__(self, inner: nn.Module, beside: Any) -> None:
        super().__init__()
        self.inner, self.beside = inner, beside

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return self.inner(states), self.beside


# Metrics


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory, modules: Modules) -> tuple[Path, Path, list[Row]]:
    """A dump in float64 whose log-probs are off by noise, some of them far; and its actors."""
    folder = tmp_path_factory.mktemp("noisy")
    rows = Game(episodes=16, steps=23, masked=True, seed=1).play(modules)
    rng = np.random.default_rng(2)
    for row in rows:
        row["true"] = row["old_log_prob"]
        if rng.random() < 0.5:
            row["old_log_prob"] += float(rng.normal(0, 0.3))
        if rng.random() < 0.03:
            row["old_log_prob"] += float(rng.choice([-1, 1]) * rng.choice([4.9, 5.5, 11.0]))
    types = {"old_log_prob": pa.float64(), **FIXED}
    dump = write(folder / "dump.parquet", rows, types, precision="float64")
    save(modules, folder / "ckpt")
    return dump, folder / "ckpt" / "{agent_id}-{policy_version}.safetensors", rows


def measures(rows: Iterable[Row]) -> dict[str, float]:
    """What the report says of rows, by the book."""
    rows = list(rows)
    stored, true = (np.array([row[n] for row in rows]) for n in ("old_log_prob", "true"))
    residual = stored - true
    ratio = np.exp(-residual)
    wrong = np.abs(residual) > 1e-4 + 1e-5 * np.minimum(np.abs(stored), np.abs(true))
    return {
        "rows": len(rows),
        "mismatches": int(wrong.sum()),
        "mismatch_rate": wrong.mean(),
        "nonfinite": 0,
        "error_mean": np.abs(residual).mean(),
        "error_p99": np.quantile(np.abs(residual), 0.99),
        "error_max": np.abs(residual).max(),
        "k1": -np.log(ratio).mean(),
        "k2": (np.log(ratio) ** 2 / 2).mean(),
        "k3": (ratio - 1 - np.log(ratio)).mean(),
        "chi2": (ratio**2).mean() - 1,
        "ess": ratio.sum() ** 2 / (ratio**2).sum() / len(rows),
        "pearson": np.corrcoef(np.exp(stored), np.exp(true))[0, 1],
        "ratio_above_100": int((ratio > 100).sum()),
        "ratio_below_001": int((ratio < 0.01).sum()),
        "log_ratio_beyond_5": int((np.abs(residual) > 5).sum()),
        "log_ratio_beyond_10": int((np.abs(residual) > 10).sum()),
    }


PARTS: dict[str, Callable[[Row], str]] = {
    "by_agent": lambda row: str(row["agent_id"]),
    "by_version": lambda row: str(row["policy_version"]),
    "by_num_actions": lambda row: str(sum(row["action_mask"])),
    # 23 steps in ten parts: three a part
    "by_time": lambda row: f"{row['timestep'] // 3 * 3}-{row['timestep'] // 3 * 3 + 2}",
}


def test_metrics_are_those_of_numpy(noisy: tuple[Path, Path, list[Row]]) -> None:
    dump, pattern, rows = noisy
    metrics = judged(dump, actor=pattern)["metrics"]
    choice = [row for row in rows if sum(row["action_mask"]) > 1]
    assert 0 < len(choice) < len(rows)
    groups = {("all", ""): choice}
    for part, label in PARTS.items():
        for row in choice:
            groups.setdefault((part, label(row)), []).append(row)
        assert set(metrics[part]) == {name for where, name in groups if where == part}
    for (part, label), members in groups.items():
        found = metrics["all"] if part == "all" else metrics[part][label]
        expected = measures(members)
        assert set(found) == set(expected)
        for name, value in expected.items():
            if name != "error_p99":
                assert found[name] == pytest.approx(value, rel=1e-7, abs=1e-9), (part, label, name)
            elif part == "all":  # estimated: of few rows, it lies between some of the largest
                assert found[name] == pytest.approx(value, rel=0.05)
            else:
                assert value * 0.8 <= found[name] <= found["error_max"], (part, label)
    assert metrics["all"]["log_ratio_beyond_10"] > 0 and metrics["all"]["ratio_above_100"] > 0
    assert metrics["all"]["ratio_below_001"] > 0


def test_decades_are_those_of_numpy(noisy: tuple[Path, Path, list[Row]], world: World) -> None:
    dump, pattern, rows = noisy
    residual = np.array([r["old_log_prob"] - r["true"] for r in rows if sum(r["action_mask"]) > 1])
    far = np.abs(residual[np.abs(residual) > 1e-6])  # beneath, rounding decides
    decades = judged(dump, actor=pattern)["replay"]["decades"]
    assert sum(d["share"] for d in decades) == pytest.approx(1, abs=1e-12)
    assert sum(d["rows"] for d in decades) == len(residual)
    found = {d["error"]: d["rows"] for d in decades}
    assert all(d["share"] == pytest.approx(d["rows"] / len(residual)) for d in decades)
    for decade in range(-6, 2):
        inside = ((far >= 10.0**decade) & (far < 10.0 ** (decade + 1))).sum()
        assert found.get(f"1e{decade} to 1e{decade + 1}", 0) == inside
    healthy = judged(world.dump, actor=world.pattern)["replay"]["decades"]
    assert all(d["error"] == "0" or float(d["error"].split(" to ")[1]) <= 1e-5 for d in healthy)
    order = [float(d["error"].split(" ")[0]) for d in healthy]
    assert order == sorted(order)


def test_what_is_not_finite_survives_into_the_report(
    noisy: tuple[Path, Path, list[Row]], tmp_path: Path
) -> None:
    _, pattern, rows = noisy
    types = {"old_log_prob": pa.float64()}
    at = [i for i, row in enumerate(rows) if sum(row["action_mask"]) > 2][:3]

    def report_with(values: list[float]) -> dict[str, Any]:
        changed = [dict(row) for row in rows]
        for i, value in zip(at, values, strict=False):
            changed[i]["old_log_prob"] = value
        dump = write(tmp_path / "dump.parquet", changed, types, precision="float64")
        report = judged(dump, actor=pattern)
        assert report["verdict"] == "fail"
        text = json.dumps(report["metrics"])
        assert "null" not in text
        return report

    kept = [r for i, r in enumerate(rows) if i not in at[:2] and sum(r["action_mask"]) > 1]
    infinite = report_with([-math.inf, math.inf])
    assert infinite["metrics"]["all"]["error_max"] == "inf"
    assert infinite["replay"]["worst_error"] == pytest.approx(measures(kept)["error_max"], rel=1e-6)
    assert infinite["metrics"]["all"]["nonfinite"] == 2
    for name, value in measures(kept).items():  # the rest is measured without them
        if name in ("error_mean", "k1", "k2", "k3", "chi2", "ess"):
            assert infinite["metrics"]["all"][name] == pytest.approx(value, rel=1e-7), name
    assert {"error": "not finite", "rows": 2, "share": pytest.approx(2 / (len(kept) + 2))} in infinite[
        "replay"
    ]["decades"]
    unknown = report_with([math.nan, math.inf])
    assert unknown["metrics"]["all"]["error_max"] == "NaN"
    assert rule_of(unknown)["rows"] == rule_of(infinite)["rows"]
    overflown = report_with([-1e200, -2000.0])["metrics"]["all"]
    assert overflown["chi2"] == overflown["k2"] == overflown["k3"] == "inf"
    assert overflown["error_max"] == pytest.approx(1e200)
    assert overflown["nonfinite"] == 0


def test_rows_without_a_choice_measure_nothing(one: tuple[nn.Sequential, Path], tmp_path: Path) -> None:
    rows = Game(most=1).play(alike(one[0]))
    report = judged(write(tmp_path / "dump.parquet", rows), actor=one[1])
    assert report["verdict"] == "pass"
    assert report["replay"]["rows"] == len(rows) and report["replay"]["worst_error"] == 0
    assert report["replay"]["decades"] == []
    everything = report["metrics"]["all"]
    assert everything["rows"] == everything["mismatches"] == everything["nonfinite"] == 0
    assert everything["error_mean"] == everything["pearson"] == everything["ess"] == "NaN"
    ran = command("validate", write(tmp_path / "dump.parquet", rows), "--actor", one[1])
    assert ran.code == 0 and "worst error 0 " in ran.out


# Tolerance and precision


def test_tolerance_can_be_tightened_and_loosened(world: World, tmp_path: Path) -> None:
    default = judged(world.dump, actor=world.pattern)["replay"]["tolerance"]
    assert (default["absolute"], default["relative"]) == (1e-4, 1e-5)
    assert (default["given"], default["precision"]) == (False, "float32")
    assert 0 < default["most_for_rounding"] < 1e-4
    for tight in (0.0, 1e-9):
        report = judged(world.dump, actor=world.pattern, tolerance=tight)
        assert report["verdict"] == "fail"
        assert report["replay"]["tolerance"] == {
            "absolute": tight,
            "relative": 0.0,
            "most_for_rounding": 0.0,
            "coarse_rows": 0,
            "precision": "float32",
            "given": True,
        }
        assert rule_of(report)["rows"] > len(world.rows) // 4
    rows = [dict(row) for row in world.rows]
    for row in rows[::5]:
        row["old_log_prob"] -= 0.3
    shifted = write(tmp_path / "dump.parquet", rows)
    assert rule_of(judged(shifted, actor=world.pattern))["rows"] == len(rows[::5])
    assert rule_of(judged(shifted, actor=world.pattern, tolerance=0.29))["rows"] == len(rows[::5])
    assert rule_of(judged(shifted, actor=world.pattern, tolerance=0.31))["status"] == "pass"
    ran = command("validate", shifted, "--actor", world.pattern, "--tolerance", 0.31)
    assert "allowed by --tolerance: 0.31" in ran.out


def test_float64_is_replayed_in_float64(world: World, tmp_path: Path) -> None:
    types = {"old_log_prob": pa.float64(), "state_embed": pa.list_(pa.float64())}
    rng = np.random.default_rng(0)
    rows = []
    for row in world.rows:
        state = rng.normal(0, 1, D).tolist()  # with digits that float32 cannot hold
        logits = answers(world.modules[row["agent_id"], row["policy_version"]], state)
        rows.append({**row, "state_embed": state, "old_log_prob": log_prob(row, logits)})
    dump = write(tmp_path / "dump.parquet", rows, types, precision="float64")
    report = judged(dump, actor=world.pattern)
    assert rule_of(report)["status"] == "pass"
    assert 0 < report["replay"]["worst_error"] < 1e-12
    assert report["replay"]["tolerance"]["precision"] == "float64"
    batches = list(api.replay(str(dump), world.pattern))
    assert batches[0].schema.field("log_prob").type == pa.float64()
    coarse = write(tmp_path / "dump.parquet", rows, types)
    assert judged(coarse, actor=world.pattern)["replay"]["worst_error"] > 1e-9


# What does not fit


class Between(nn.Module):
    """Fails in its own forward, after its layers are done."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(D, 10)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.layer(states).reshape(-1, 3, 7)


MISFITS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "another D": (
        lambda: network(1, inputs=D + 1),
        f"layer 0 (Linear(in_features={D + 1}, out_features=8, bias=True)) does not take [{D}]",
    ),
    "another A": (
        lambda: network(1, outputs=A - 1),
        f"gives {A - 1} logits, but policy.action_space is {A}",
    ),
    "a layer in the middle": (
        lambda: nn.Sequential(nn.Linear(D, 10), nn.Tanh(), nn.Linear(9, A)),
        f"layer 2 (Linear(in_features=9, out_features={A}, bias=True)) does not take [10] for a row",
    ),
    "a single layer": (
        lambda: nn.Linear(D + 2, A),
        f"Linear(in_features={D + 2}, out_features={A}, bias=True) does not take [{D}] for a row",
    ),
    "a picture expected": (
        lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, A)),
        f"layer 0 (Conv2d(3, 2, kernel_size=(3, 3), stride=(1, 1))) does not take [{D}] for a row",
    ),
    "its own code": (Between, f"cannot run on states of shape [{D}]"),
    "one logit too few dimensions": (
        lambda: nn.Sequential(nn.Linear(D, 1), nn.Flatten(0)),
        "it must give a tensor of logits, [B, A]",
    ),
    "a hidden state beside": (lambda: Pair(nn.Linear(D, A), {}), "gives dict for"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_an_actor_that_does_not_fit_is_one_line(case: str, world: World) -> None:
    make, words = MISFITS[case]
    with pytest.raises(ReadError) as caught:
        judged(world.dump, actor=make())
    message = str(caught.value)
    assert words in message and "\n" not in message
    assert message.startswith("<")


def test_an_actor_that_does_not_fit_is_exit_2(world: World, tmp_path: Path) -> None:
    declared = write(tmp_path / "declared.parquet", world.rows, state_shape=[D])
    for case in ("another D", "another A", "a picture expected"):
        make, words = MISFITS[case]
        path = tmp_path / f"{case}.safetensors"
        api.save_actor(make(), path, state_shape=(3, 4, 4) if "picture" in case else None)
        said = refused(command("validate", declared, "--actor", path))
        assert words in said and said.startswith(f"bufcheck: {path}: ")
    said = refused(command("validate", world.dump, "--actor", tmp_path / "another D.safetensors"))
    assert f"expects states of {D + 1} numbers ([{D + 1}]), but state_embed has {D}" in said
    arch = tmp_path / "arch.py"
    arch.write_text(
        "from torch import nn\n\ndef make(state):\n"
        f"    made = nn.Sequential(nn.Linear({D}, 10), nn.Tanh(), nn.Linear(9, {A}))\n"
        "    made.load_state_dict(state)\n    return made\n"
    )
    make, words = MISFITS["a layer in the middle"]
    torch.save(make().state_dict(), tmp_path / "actor.pt")
    given = ["--actor", tmp_path / "actor.pt", "--arch", f"{arch}:make"]
    said = refused(bufcheck("validate", world.dump, *given))
    assert words in said


def test_a_value_beside_the_logits_is_no_matter(world: World) -> None:
    given = {who: Pair(module, torch.zeros(1)) for who, module in world.modules.items()}
    assert judged(world.dump, actor=given)["verdict"] == "pass"


SHAPE = (3, 8, 8)


def pictures(module: nn.Module) -> list[Row]:
    rng = np.random.default_rng(12)
    rows = []
    for step in range(30):
        state = rng.normal(0, 1, math.prod(SHAPE)).astype(np.float32)
        with torch.no_grad():
            logits = module(torch.from_numpy(state).reshape(1, *SHAPE))[0].double().numpy()
        row = {
            "episode_id": 0,
            "timestep": step,
            "agent_id": "EDU",
            "state_embed": state.tolist(),
            "subset_indices": rng.permutation(A)[:5].tolist(),
            "num_actions": 5,
            "action_index": int(rng.integers(5)),
        }
        rows.append({**row, "old_log_prob": log_prob(row, logits)})
    return rows


def test_pictures_are_seen_in_their_shape(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, A))
    path = tmp_path / "actor.safetensors"
    api.save_actor(module, path, state_shape=SHAPE)
    rows = pictures(module)
    dump = write(tmp_path / "dump.parquet", rows, state_shape=list(SHAPE))
    report = judged(dump, actor=path)
    assert report["verdict"] == "pass" and report["replay"]["worst_error"] < 1e-5
    assert judged(dump, actor=module)["verdict"] == "pass"
    undeclared = write(tmp_path / "undeclared.parquet", rows)
    assert judged(undeclared, actor=path)["verdict"] == "pass", "the file knows the shape too"
    turned = write(tmp_path / "turned.parquet", rows, state_shape=[8, 8, 3])
    said = refused(command("validate", turned, "--actor", path))
    assert "layer 0 (Conv2d(3, 4, kernel_size=(3, 3), stride=(2, 2))) does not take [8, 8, 3]" in said
    smaller = tmp_path / "smaller.safetensors"
    api.save_actor(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, A)),
        smaller,
        state_shape=(3, 5, 5),
    )
    said = refused(command("validate", undeclared, "--actor", smaller))
    assert "expects states of 75 numbers ([3, 5, 5]), but state_embed has 192" in said
    wrong = write(tmp_path / "wrong.parquet", rows, state_shape=[3, 5, 5])
    misdeclared = judged(wrong, actor=path, select=())
    assert misdeclared["verdict"] == "fail", "every state has another length than declared"
    assert failing(misdeclared)["wrong-type"] == len(rows)
    assert misdeclared["replay"]["not_replayed"] == len(rows)


# Rows that are broken in other ways, and the options


@pytest.fixture(scope="module")
def broken(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """The dump with rows that nobody can ask about, or whose answer is no number."""
    rows = [dict(row) for row in world.rows]
    at = [i for i, row in enumerate(rows) if row["num_actions"] > 3 and sum(row["action_mask"]) > 1]
    marks = dict(
        zip(
            ["index", "negative", "id", "null", "mask", "nan", "state", "wrong", "legal"],
            at[3::4],
            strict=False,
        )
    )
    rows[marks["index"]]["action_index"] = 50
    rows[marks["negative"]]["action_index"] = -1
    rows[marks["id"]]["subset_indices"] = [A, *rows[marks["id"]]["subset_indices"][1:]]
    rows[marks["null"]]["subset_indices"] = None
    rows[marks["mask"]]["action_mask"] = [True]
    rows[marks["nan"]]["state_embed"] = [math.nan] * D
    rows[marks["state"]]["state_embed"] = [0.5] * (D - 1)
    rows[marks["wrong"]]["old_log_prob"] -= 0.3
    rows[marks["legal"]]["action_mask"] = [False] * rows[marks["legal"]]["num_actions"]
    return write(tmp_path_factory.mktemp("broken") / "dump.parquet", rows), marks


UNASKABLE = ("index", "negative", "id", "null", "mask", "state", "legal")


def test_rows_that_other_rules_flag_do_not_stop_the_replay(
    broken: tuple[Path, dict[str, int]], world: World, tmp_path: Path
) -> None:
    dump, marks = broken
    findings = tmp_path / "findings.parquet"
    report = judged(dump, actor=world.pattern, findings=findings, select=())
    assert flagged(findings) == sorted([marks["nan"], marks["wrong"]])
    assert {"action-index-out-of-range", "nonfinite-value", "null-value", "wrong-type"} <= set(
        failing(report)
    )
    assert report["replay"]["not_replayed"] == len(UNASKABLE)
    assert report["replay"]["missing"] == []
    assert any(
        note.startswith(f"{len(UNASKABLE)} rows cannot be asked") for note in report["replay"]["notes"]
    )
    found = replayed(dump, world.pattern)
    lost = {marks[name] for name in UNASKABLE}
    expected = world.expected()
    for i, value in enumerate(found["log_prob"]):
        if i in lost:
            assert value is None
        elif i == marks["nan"]:
            assert math.isnan(value)
        else:
            assert value == pytest.approx(expected[i], abs=1e-5)


def test_the_size_of_a_batch_changes_nothing(
    broken: tuple[Path, dict[str, int]], world: World, tmp_path: Path
) -> None:
    for dump, sizes in ((world.dump, [7]), (broken[0], [1, 7])):
        found = []
        for size in (8192, *sizes):
            path = tmp_path / f"{size}.parquet"
            report = judged(dump, actor=world.pattern, select=(), batch_size=size, findings=path)
            exact = pq.read_table(path).drop_columns(["replayed_log_prob", "message"])
            found.append((report, exact))
        for report, exact in found[1:]:
            close(found[0][0], report)
            assert exact == found[0][1]


def test_findings_tell_what_the_actor_gives(
    broken: tuple[Path, dict[str, int]], world: World, tmp_path: Path
) -> None:
    dump, marks = broken
    ran = bufcheck(
        *("validate", dump, "--actor", world.pattern, "--batch-size", 8192, "--device", "cpu"),
        *("--findings", tmp_path / "findings.parquet", "--format", "json"),
    )
    assert ran.code == 1, ran.err
    REPORTS.validate(ran.report)
    filed = pq.read_table(tmp_path / "findings.parquet").to_pylist()
    expected = world.expected()
    [wrong] = [f for f in filed if f["row_id"] == marks["wrong"]]
    assert wrong["replayed_log_prob"] == pytest.approx(expected[marks["wrong"]], abs=1e-5)
    assert wrong["old_log_prob"] == pytest.approx(expected[marks["wrong"]] - 0.3, abs=1e-5)
    assert {f["replayed_log_prob"] for f in filed if f["row_id"] == marks["index"]} == {None}
    assert all(math.isnan(f["replayed_log_prob"]) for f in filed if f["row_id"] == marks["nan"])


@pytest.mark.parametrize("device", ["nonsense", "meta", "cuda:99", ""])
def test_a_device_that_is_not_there_is_one_line(device: str, world: World) -> None:
    given = ["--actor", world.pattern, "--device", device]
    said = refused(command("validate", world.dump, *given))
    assert f"--device {device}".rstrip() in said and "say --device cpu" in said


def test_a_sample_is_replayed_and_never_passes(world: World, tmp_path: Path) -> None:
    rows = Game(episodes=24).play(world.modules)
    report = judged(write(tmp_path / "dump.parquet", rows), actor=world.pattern, sample=30)
    sampled = report["dump"]["sampled"]["rows"]
    assert 0 < sampled < len(rows)
    assert report["replay"]["rows"] == sampled and report["replay"]["not_replayed"] == 0
    assert report["metrics"]["all"]["rows"] <= sampled
    assert report["verdict"] == "unverified"
    assert report["unverified"] == [f"only a sample of {sampled} rows was read"]


def test_without_log_prob_mismatch_nothing_is_verified(world: World) -> None:
    for select, ignore in ((["null-value"], []), ([], ["log-prob-mismatch"])):
        report = judged(world.dump, actor=world.pattern, select=select, ignore=ignore)
        assert report["verdict"] == "unverified"
        assert report["unverified"] == ["log-prob-mismatch was not selected"]
        assert report["replay"]["rows"] == len(world.rows)
    alone = judged(world.dump, actor=world.pattern, select=["log-prob-mismatch"])
    assert alone["verdict"] == "pass"
    assert [rule["name"] for rule in alone["rules"]] == ["log-prob-mismatch"]
    ran = command("validate", world.dump, "--actor", world.pattern, "--ignore", "LP001", "--strict")
    assert ran.code == 1


def fingerprints(*paths: Path) -> dict[str, tuple[str, int]]:
    files = [f for path in paths for f in ([path] if path.is_file() else sorted(path.iterdir()))]
    return {str(f): (hashlib.sha256(f.read_bytes()).hexdigest(), f.stat().st_mtime_ns) for f in files}


def test_dump_and_actors_are_left_as_they_were(world: World, tmp_path: Path) -> None:
    h5 = tmp_path / "dump.h5"
    assert command("convert", world.dump, h5).code == 0
    before = fingerprints(world.dump, h5, world.folder)
    assert len(before) == 2 + len(world.modules)
    for dump in (world.dump, h5):
        ran = command("validate", dump, "--actor", world.pattern, "--findings", tmp_path / "f.parquet")
        assert ran.code == 0, ran.err
        replayed(dump, world.pattern)
    assert fingerprints(world.dump, h5, world.folder) == before
    modules = {
        who: {n: p.clone() for n, p in m.state_dict().items()} for who, m in world.modules.items()
    }
    judged(world.dump, actor=world.modules)
    for who, module in world.modules.items():
        assert module.training, "as it came"
        for name, tensor in module.state_dict().items():
            assert torch.equal(tensor, modules[who][name]) and tensor.dtype == torch.float32


# Wide and ragged


def test_wide_action_spaces_give_the_right_values(tmp_path: Path) -> None:
    module = network(3, outputs=5000)
    rows = Game(most=300, steps=6).play(alike(module))
    dump = write(tmp_path / "dump.parquet", rows, action_space=5000)
    expected = [log_prob(row, answers(module, row["state_embed"])) for row in rows]
    found = replayed(dump, module)
    np.testing.assert_allclose(found["log_prob"], expected, atol=2e-5)
    assert found["choices"] == [row["num_actions"] for row in rows]
    report = judged(dump, actor=module)
    assert report["verdict"] == "pass"
    counted: dict[str, int] = {}
    for k in (row["num_actions"] for row in rows if row["num_actions"] > 1):
        low = 1 << (k.bit_length() - 1)
        label = f"{low}-{2 * low - 1}"
        counted[label] = counted.get(label, 0) + 1
    assert {k: v["rows"] for k, v in report["metrics"]["by_num_actions"].items()} == counted


@pytest.mark.parametrize("kind", ["gather", "prefix"])
def test_one_huge_subset_among_small_ones(kind: str, tmp_path: Path) -> None:
    module = network(3, outputs=2500)
    rows = Game(most=2, kind=kind).play(alike(module))
    wide = Game(most=2500, episodes=1, steps=1, seed=1, kind=kind).play(alike(module))[0]
    wide["subset_indices"] = np.random.default_rng(0).permutation(2500)[:2000].tolist()
    wide |= {"num_actions": 2000, "action_index": 1999}
    rows[10] |= {n: wide[n] for n in ("subset_indices", "num_actions", "action_index")}
    expected = [log_prob(row, answers(module, row["state_embed"]), kind) for row in rows]
    for row, value in zip(rows, expected, strict=True):
        row["old_log_prob"] = value
    dump = write(tmp_path / "dump.parquet", rows, action_space=2500, logits=kind)
    found = replayed(dump, module)
    np.testing.assert_allclose(found["log_prob"], expected, atol=2e-5)
    assert found["choices"][10] == 2000
    assert judged(dump, actor=module)["verdict"] == "pass"


def test_a_count_out_of_its_mind_takes_no_memory(
    one: tuple[nn.Sequential, Path], tmp_path: Path
) -> None:
    rows = Game(kind="prefix").play(alike(one[0]))
    expected = [log_prob(row, answers(one[0], row["state_embed"]), "prefix") for row in rows]
    rows[7]["num_actions"] = 2**31 - 1
    dump = write(tmp_path / "dump.parquet", rows, logits="prefix")
    found = replayed(dump, one[1])
    assert [i for i, value in enumerate(found["log_prob"]) if value is None] == [7]
    for i in (0, 6, 8, len(rows) - 1):
        assert found["log_prob"][i] == pytest.approx(expected[i], abs=1e-5)


def test_no_legal_action_among_many_sizes(tmp_path: Path) -> None:
    """Masked actions that keep a chance make K = 0 a row like any other."""
    module = network(3, outputs=50)
    rows = Game(most=50, episodes=20, steps=10).play(alike(module))
    for i, row in enumerate(rows):
        row["action_mask"] = [i % 40 != 0] * row["num_actions"]
        logits = answers(module, row["state_embed"])[row["subset_indices"]]
        logits = np.where(row["action_mask"], logits, -1e9)
        shares = np.exp(logits - logits.max())
        row["old_log_prob"] = float(np.log(shares[row["action_index"]] / shares.sum()))
    dump = write(tmp_path / "dump.parquet", rows, action_space=50, masked_logit=-1e9)
    report = judged(dump, actor=module)
    assert report["replay"]["not_replayed"] == 0
    assert rule_of(report)["status"] == "pass"
    assert report["metrics"]["by_num_actions"]["0"]["rows"] == len(rows[::40])


# Vectors of another length


ODD_STATES: dict[str, Any] = {
    "shorter": [0.5] * (D - 1),
    "longer": [0.5] * (D + 1),
    "empty": [],
    "null": None,
    "with a hole": [0.5] * (D - 1) + [None],
}


@pytest.mark.parametrize("declared", [[D], None], ids=["declared", "not declared"])
@pytest.mark.parametrize("batch_size", [1, 8192])
def test_states_of_another_length_are_not_replayed_and_the_others_are(
    batch_size: int, declared: Any, one: tuple[nn.Sequential, Path], tmp_path: Path
) -> None:
    rows = Game().play(alike(one[0]))
    expected = [row["old_log_prob"] for row in rows]
    odd = dict(zip([0, 1, 30, 31, len(rows) - 1], ODD_STATES.values(), strict=True))
    for i, state in odd.items():
        rows[i]["state_embed"] = state
    dump = write(tmp_path / "dump.parquet", rows, **({"state_shape": declared} if declared else {}))
    found = replayed(dump, one[1])
    for i, value in enumerate(found["log_prob"]):
        assert value is None if i in odd else value == pytest.approx(expected[i], abs=1e-5), i
    report = judged(dump, actor=one[1], batch_size=batch_size, select=())
    assert report["replay"]["not_replayed"] == len(odd)
    assert report["replay"]["rows"] == len(rows) - len(odd)
    assert rule_of(report)["status"] == "not-checked"
    assert report["verdict"] == "fail", "wrong-type and null-value see them"


@pytest.mark.parametrize("batch_size", [1, 8192])
def test_actions_of_another_length_are_not_replayed_and_the_others_are(
    batch_size: int, tmp_path: Path
) -> None:
    module = Pair(network(5, outputs=2), torch.zeros(2))
    rng = np.random.default_rng(0)
    rows: list[Row] = []
    for step in range(20):
        state = rng.normal(0, 1, D).astype(np.float32).tolist()
        action = rng.normal(0, 1, 2).astype(np.float32).tolist()
        away = np.array(action) - answers(module.inner, state)  # type: ignore[arg-type]
        told = {"state_embed": state, "action": action}
        rows.append({"episode_id": 0, "timestep": step, "agent_id": "EDU", **told})
        rows[-1]["old_log_prob"] = float(-0.5 * (away**2).sum() - math.log(2 * math.pi))
    for i, action in enumerate([None, [0.1], [0.1, 0.2, 0.3], []]):
        rows[3 * i]["action"] = action
    dump = write(tmp_path / "dump.parquet", rows, distribution="diagonal_gaussian", action_space=None)
    report = judged(dump, actor=module, batch_size=batch_size)
    assert report["replay"]["not_replayed"] == 4
    assert report["replay"]["worst_error"] < 1e-5
    found = replayed(dump, module)
    assert [i for i, value in enumerate(found["log_prob"]) if value is None] == [0, 3, 6, 9]


# At the edges


def test_a_failing_dump_still_names_the_rows_without_an_actor(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.folder, tmp_path / "ckpt")
    (tmp_path / "ckpt" / "LAB-2.safetensors").unlink()
    rows = [dict(row) for row in world.rows]
    rows[0]["old_log_prob"] -= 1
    dump = write(tmp_path / "dump.parquet", rows, FIXED)
    pattern = tmp_path / "ckpt" / "{agent_id}-{policy_version}.safetensors"
    ran = command("validate", dump, "--actor", pattern)
    assert ran.code == 1
    missing = sum(row["agent_id"] == "LAB" and row["policy_version"] == 2 for row in rows)
    assert f"not replayed: {missing} rows" in ran.out
    assert f"no actor for {missing} rows of agent LAB, version 2" in ran.out


@pytest.mark.parametrize("given", ["NOBODY={one}", "EDU@99={one}", "{folder}/none/{{agent_id}}.pt"])
def test_actors_that_fit_no_row_are_a_mistake(
    given: str, world: World, one: tuple[nn.Sequential, Path], tmp_path: Path
) -> None:
    line = refused(
        bufcheck("validate", world.dump, "--actor", given.format(one=one[1], folder=tmp_path))
    )
    assert "no row has an actor" in line


def test_an_agent_may_have_an_equals_sign_in_its_name(
    one: tuple[nn.Sequential, Path], tmp_path: Path
) -> None:
    rows = [
        {**row, "agent_id": "lr=1"} for row in Game().play(alike(one[0])) if row["agent_id"] == "EDU"
    ]
    dump = write(tmp_path / "dump.parquet", rows, FIXED)
    assert judged(dump, actor=[f"lr=1={one[1]}"])["replay"]["not_replayed"] == 0


def test_arch_without_an_actor_is_a_mistake(world: World) -> None:
    assert "--actor" in refused(bufcheck("validate", world.dump, "--arch", "a.py:make"))


def test_actions_are_stored_in_float32_whatever_they_were_computed_in(tmp_path: Path) -> None:
    """A narrow Gaussian far from 0 loses more by that than float64 log-probs are apart."""
    rng = np.random.default_rng(0)
    std, mean = 1e-3, 7.0
    exact = rng.normal(mean, std, 400)
    rows = [
        {
            "episode_id": 0,
            "timestep": i,
            "agent_id": "a",
            "state_embed": [0.0],
            "action": [float(np.float32(x))],
            "old_log_prob": -0.5 * ((x - mean) / std) ** 2
            - math.log(std)
            - 0.5 * math.log(2 * math.pi),
        }
        for i, x in enumerate(exact)
    ]
    actor = nn.Linear(1, 2)
    actor.weight.data.zero_()
    actor.bias.data = torch.tensor([mean, math.log(std)])
    types = {"old_log_prob": pa.float64(), "state_embed": pa.list_(pa.float32(), 1)}
    told = {"distribution": "diagonal_gaussian", "precision": "float64", "action_space": None}
    dump = write(tmp_path / "dump.parquet", rows, types, **told)
    found = judged(dump, actor=actor.double())
    assert found["replay"]["worst_error"] > 2e-4
    assert rule_of(found)["status"] == "pass"


SLOW = """
import time, torch
class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 12)
    def forward(self, states):
        open(MARK, "w").close()
        time.sleep(0.2)
        return self.layer(states)
def make(held):
    module = Slow()
    module.load_state_dict(held)
    return module
"""


def test_ctrl_c_during_the_replay(world: World, tmp_path: Path) -> None:
    mark = tmp_path / "running"
    (tmp_path / "slow.py").write_text(f"MARK = {str(mark)!r}\n{SLOW}")
    torch.save({"layer.weight": torch.zeros(A, D), "layer.bias": torch.zeros(A)}, tmp_path / "a.pt")
    options = ["--actor", "a.pt", "--arch", "slow.py:make", "--batch-size", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "bufcheck", "validate", str(world.dump), *options],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    for _ in range(600):
        if mark.exists():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err.strip()) == (130, "bufcheck: interrupted")


def test_a_closed_stdout_is_no_finding(world: World) -> None:
    line = f"{sys.executable} -m bufcheck validate {world.dump} --actor '{world.pattern}' >&-"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, cwd=ROOT)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0
