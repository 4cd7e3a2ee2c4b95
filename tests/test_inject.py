"""Faults put into real files: the truth is what changed, and the formulas are those of torch."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from conftest import Ran, bufcheck, refused
from torch import nn
from torch.distributions import Categorical, Independent, Normal

import bufcheck as api
from bufcheck import fault
from bufcheck.cli import main
from bufcheck.errors import UsageError

AGENTS, VERSIONS, D, A = ("EDU", "IND", "LAB"), 3, 5, 9
EPISODES, STEPS = 6, 5
Row = dict[str, Any]
Make = Callable[..., list[Row]]
ADDS = {"autoreset-row", "cloned-seeds", "dead-agent-padding", "duplicate-rows", "unfilled-rows"}
MOVES = {"ring-wraparound"}
OUTSIDE = ["blended-actors", "noise", "summed-over-agents", "unsaved-actor"]
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("mask-not-applied", {"over": "mask"}),
    ("default-k-fallback", {"of": "subset", "k": 2}),
    ("local-as-global-index", {"kind": "stored"}),
    ("subset-shifted", {"offset": -2}),
    *[("temperature-unaccounted", {"mode": m, "temperature": 1.5}) for m in ("sampled", "unscored")],
    *[("eps-explore-unaccounted", {"mode": m}) for m in ("sampled", "unscored")],
    ("topk-topp-truncation", {"k": 2}),
    *[
        ("logprob-transform", {"kind": k})
        for k in ("negative", "log10", "log2", "scale", "clamp", "log-p-plus-eps")
    ],
    ("reduced-precision", {"to": "float16"}),
    *[("placeholder-logprob", {"value": v}) for v in ("1", "-inf", "uniform", -3.5)],
    ("stale-policy-version", {"back": 2}),
    ("logprob-row-shift", {"offset": -1}),
    ("logprob-row-shift", {"order": "storage", "offset": 2}),
    ("minibatch-permutation", {"block": 10}),
    ("agent-actor-swap", {"kind": "relabelled"}),
    *[("agent-rows-crossed", {"column": c}) for c in ("state_embed", "action_index", "subset_indices")],
    ("argmax-stored", {"kind": "score"}),
    ("dead-agent-padding", {"state": "last", "log_prob": "replayed"}),
    ("empty-mask", {"kind": "mask"}),
    ("action-out-of-range", {"beyond": 3}),
    ("blended-actors", {"partner": "version"}),
]
CASES = [(name, {}) for name in fault.names()] + VARIANTS


# A small world


def network(seed: int, outputs: int = A) -> nn.Sequential:
    rng = torch.Generator().manual_seed(seed)
    made = nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, outputs))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
    return made


@dataclass
class World:
    folder: Path
    modules: dict[tuple[str, int], nn.Sequential]
    pattern: str
    rows: list[Row]
    dump: Path

    def logits(self, row: Row, agent: str | None = None, version: int | None = None) -> torch.Tensor:
        who = (agent or row["agent_id"], row["policy_version"] if version is None else version)
        with torch.no_grad():
            given: torch.Tensor = self.modules[who](torch.tensor(row["state_embed"])).double()
        return given

    def local(self, row: Row, logits: torch.Tensor | None = None) -> torch.Tensor:
        logits = self.logits(row) if logits is None else logits
        chosen = logits[row["subset_indices"]]
        return chosen.where(torch.tensor(row["action_mask"]), -torch.inf)


def write(path: Path, rows: list[Row], **policy: Any) -> Path:
    types = {
        "episode_id": pa.int64(),
        "timestep": pa.int32(),
        "agent_id": pa.dictionary(pa.int32(), pa.string()),
        "policy_version": pa.int64(),
        "state_embed": pa.list_(pa.float32(), D),
        "subset_indices": pa.list_(pa.int32()),
        "num_actions": pa.int32(),
        "action_index": pa.int32(),
        "action_id": pa.int32(),
        "action_mask": pa.list_(pa.bool_()),
        "action": pa.list_(pa.float32(), 2),
        "old_log_prob": pa.float32(),
        "reward": pa.float32(),
        "terminated": pa.bool_(),
        "x_tag": pa.string(),
    }
    table = pa.table({n: pa.array([r[n] for r in rows], t) for n, t in types.items() if n in rows[0]})
    told = {"distribution": "categorical", "logits": "gather", "action_space": A, **policy}
    metadata = {"schema": "experience/1", "rows": len(rows), "policy": told, "x": {"kept": [1, 2]}}
    described = table.replace_schema_metadata({"bufcheck": json.dumps(metadata)})
    pq.write_table(described, path, write_page_checksum=True)
    return path


def keys(rng: Any) -> list[Row]:
    return [
        {
            "episode_id": 10 + episode,
            "timestep": step,
            "agent_id": agent,
            "policy_version": episode * VERSIONS // EPISODES,
            "state_embed": rng.normal(0, 1, D).astype(np.float32).tolist(),
            "reward": float(np.float32(rng.normal())),
            "terminated": step == STEPS - 1 and episode % 2 == 0,
            "x_tag": f"{agent}-{episode}-{step}",
        }
        for episode in range(EPISODES)
        for step in range(STEPS)
        for agent in AGENTS
    ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("world")
    modules = {(a, v): network(10 * i + v) for i, a in enumerate(AGENTS) for v in range(VERSIONS)}
    for (agent, version), module in modules.items():
        api.save_actor(module, folder / f"{agent}-{version}.safetensors")
    rng = np.random.default_rng(0)
    made = World(folder, modules, str(folder / "{agent_id}-{policy_version}.safetensors"), [], Path())
    for row in keys(rng):
        k = int(rng.integers(1, 8))
        row |= {"subset_indices": rng.permutation(A)[:k].tolist(), "num_actions": k}
        row["action_mask"] = (rng.random(k) < 0.85).tolist()
        row["action_mask"][int(rng.integers(k))] = True
        chances = Categorical(logits=made.local(row))
        row["action_index"] = int(rng.choice(k, p=chances.probs.numpy()))
        row["action_id"] = row["subset_indices"][row["action_index"]]
        row["old_log_prob"] = float(chances.log_prob(torch.tensor(row["action_index"])))
        made.rows.append(row)
    made.dump = write(folder / "dump.parquet", made.rows)
    return made


@pytest.fixture(scope="module")
def gaussian(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("gaussian")
    modules = {(a, v): network(10 * i + v, 4) for i, a in enumerate(AGENTS) for v in range(VERSIONS)}
    for (agent, version), module in modules.items():
        api.save_actor(module, folder / f"{agent}-{version}.safetensors")
    rng = np.random.default_rng(1)
    made = World(folder, modules, str(folder / "{agent_id}-{policy_version}.safetensors"), [], Path())
    for row in keys(rng):
        spread = density(made.logits(row))
        row["action"] = (spread.mean + torch.from_numpy(rng.normal(0, 1, 2))).float().tolist()
        row["old_log_prob"] = float(spread.log_prob(torch.tensor(row["action"])))
        made.rows.append(row)
    told = {"distribution": "diagonal_gaussian", "action_space": None}
    made.dump = write(folder / "dump.parquet", made.rows, **told)
    return made


def density(outputs: torch.Tensor) -> Independent:
    return Independent(Normal(outputs[:2], outputs[2:].exp()), 1)


def injected(world: World, out: Path, name: str, **options: Any) -> tuple[list[Row], list[int]]:
    options.setdefault("actor", world.pattern)
    count = fault.inject([str(world.dump)], out, name, **options)
    wrong = truth(out, name)
    assert count == len(wrong)
    return pq.read_table(out).to_pylist(), wrong


def truth(out: Path, name: str) -> list[int]:
    table = pq.read_table(out.with_name(out.stem + ".truth.parquet"))
    assert table.schema.names == ["row_id", "fault"] and table.schema.types == [pa.int64(), pa.string()]
    assert set(table["fault"].to_pylist()) == {name}
    found: list[int] = table["row_id"].to_pylist()
    assert found == sorted(set(found))
    return found


def stored(path: Path) -> list[str]:
    """Each row as text, in which NaN equals itself."""
    return [repr(row) for row in pq.read_table(path).to_pylist()]


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check(source: Path, out: Path, name: str, wrong: list[int]) -> None:
    """The truth is exactly what differs."""
    before, after = stored(source), stored(out)
    if name in MOVES:
        rows = pq.read_table(out)["episode_id"].to_pylist()
        assert before != after and sorted(before) == sorted(after)
        [episode] = {rows[i] for i in wrong}
        assert wrong == [i for i, e in enumerate(rows) if e == episode]
        assert wrong[0] == 0 and wrong[-1] == len(rows) - 1
    elif name in ADDS:
        rest = [row for i, row in enumerate(after) if i not in set(wrong)]
        if name == "dead-agent-padding":  # marks the last rows of episodes that end unmarked
            rest, before = (
                [r.replace("'terminated': True", "'terminated': False") for r in rows]
                for rows in (rest, before)
            )
        assert rest == before
        assert len(after) == len(before) + len(wrong)
    else:
        assert wrong == [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]


# Every fault


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=str)
@pytest.mark.parametrize(("unit", "fraction"), [("rows", 0.3), ("episodes", 0.5)])
def test_the_truth_is_what_changed(
    unit: str, fraction: float, name: str, parameters: Row, world: World, tmp_path: Path
) -> None:
    before = sha(world.dump)
    out = tmp_path / "out.parquet"
    _, wrong = injected(world, out, name, unit=unit, fraction=fraction, seed=3, parameters=parameters)
    check(world.dump, out, name, wrong)
    assert sha(world.dump) == before
    old, new = pq.read_schema(world.dump), pq.read_schema(out)
    assert new.equals(old)
    rows = pq.read_metadata(out).num_rows
    described = json.loads(new.metadata[b"bufcheck"])
    assert described == json.loads(old.metadata[b"bufcheck"]) | {"rows": rows}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.parquet", "out.truth.parquet"]


@pytest.mark.parametrize("name", fault.names())
def test_the_seed_decides(name: str, world: World, tmp_path: Path) -> None:
    made = []
    for i, seed in enumerate((5, 5, 6, 7)):
        out = tmp_path / f"{i}.parquet"
        injected(world, out, name, unit="episodes", fraction=0.4, seed=seed)
        made.append(sha(out))
    assert made[0] == made[1]
    assert len(set(made)) > 1 or name in {*MOVES, "unfilled-rows"}


@pytest.mark.parametrize("name", sorted(set(fault.names()) - MOVES - {"valid-filter-desync"}))
@pytest.mark.parametrize("unit", ["rows", "episodes"])
def test_what_is_to_be_avoided_stays_as_it_is(
    unit: str, name: str, world: World, tmp_path: Path
) -> None:
    first = tmp_path / "first.parquet"
    _, spared = injected(world, first, "noise", unit=unit, fraction=0.02)
    second = World(world.folder, world.modules, world.pattern, [], first)
    out, avoid = tmp_path / "out.parquet", tmp_path / "first.truth.parquet"
    rows, wrong = injected(second, out, name, unit=unit, avoid=avoid)
    check(first, out, name, wrong)
    if name not in ADDS:
        assert not set(spared) & set(wrong)
    if unit == "episodes":
        hit = {rows[i]["episode_id"] for i in wrong}
        assert not hit & {world.rows[i]["episode_id"] for i in spared}


@pytest.mark.parametrize("name", ["noise", "obs-norm-drift", "action-out-of-range"])
def test_units(name: str, world: World, tmp_path: Path) -> None:
    count = len(world.rows)
    _, rows = injected(world, tmp_path / "rows.parquet", name, fraction=0.1)
    assert len(rows) == round(0.1 * count)
    _, rows = injected(world, tmp_path / "one.parquet", name, fraction=1e-6)
    assert len(rows) == 1
    for unit, key in (("episodes", "episode_id"), ("agents", "agent_id")):
        _, rows = injected(world, tmp_path / f"{unit}.parquet", name, unit=unit, fraction=0.34)
        chosen = {world.rows[i][key] for i in rows}
        assert len(chosen) == (2 if unit == "episodes" else 1)
        assert rows == [i for i, row in enumerate(world.rows) if row[key] in chosen]


def test_four_are_outside_the_catalogue() -> None:
    assert [name for name in fault.names() if not fault.load(name).catalogued] == OUTSIDE
    assert len(fault.names()) == 37 + len(OUTSIDE)


# Formulas, by torch.distributions


def scored(world: World, row: Row, logits: torch.Tensor, action: int | None = None) -> float:
    chosen = row["action_index"] if action is None else action
    return float(Categorical(logits=logits).log_prob(torch.tensor(chosen)))


def following(world: World, row: Row, by: int) -> Row | None:
    wanted = (row["episode_id"], row["agent_id"], row["timestep"] + by)
    found = (r for r in world.rows if (r["episode_id"], r["agent_id"], r["timestep"]) == wanted)
    return next(found, None)


def after(agent: str) -> str:
    return AGENTS[(AGENTS.index(agent) + 1) % len(AGENTS)]


def mask_of(world: World, row: Row, local: torch.Tensor) -> torch.Tensor:
    return local.where(torch.tensor(row["action_mask"]), -torch.inf)


def mixture(world: World, row: Row) -> float:
    legal = sum(row["action_mask"])
    return math.log(0.9 * math.exp(scored(world, row, world.local(row))) + 0.1 / legal)


def later(world: World, row: Row, by: int) -> float:
    version = row["policy_version"] + by
    if not 0 <= version < VERSIONS:
        return float(row["old_log_prob"])
    return scored(world, row, world.local(row, world.logits(row, version=version)))


FORMULAS: list[tuple[str, Row, Callable[[World, Row], float]]] = [
    (
        "mask-not-applied",
        {},
        lambda w, r: scored(w, r, w.logits(r), r["action_id"]),
    ),
    (
        "mask-not-applied",
        {"over": "mask"},
        lambda w, r: scored(w, r, w.logits(r)[r["subset_indices"]]),
    ),
    (
        "slice-vs-gather",
        {},
        lambda w, r: scored(w, r, mask_of(w, r, w.logits(r)[: r["num_actions"]])),
    ),
    ("local-as-global-index", {}, lambda w, r: scored(w, r, w.logits(r))),
    ("temperature-unaccounted", {}, lambda w, r: scored(w, r, w.local(r) / 0.7)),
    ("eps-explore-unaccounted", {}, mixture),
    ("double-softmax", {}, lambda w, r: scored(w, r, w.local(r).softmax(0))),
    ("stale-policy-version", {}, lambda w, r: later(w, r, -1)),
    ("recomputed-after-update", {"ahead": 2}, lambda w, r: later(w, r, 2)),
    (
        "agent-actor-swap",
        {},
        lambda w, r: scored(w, r, w.local(r, w.logits(r, agent=after(r["agent_id"])))),
    ),
    (
        "blended-actors",
        {},
        lambda w, r: scored(
            w, r, w.local(r, (w.logits(r) + w.logits(r, agent=after(r["agent_id"]))) / 2)
        ),
    ),
    (
        "logprob-row-shift",
        {},
        lambda w, r: o["old_log_prob"] if (o := following(w, r, 1)) else 0.0,
    ),
    ("argmax-stored", {"kind": "score"}, lambda w, r: float(w.local(r).log_softmax(0).max())),
    ("logprob-transform", {"kind": "log2"}, lambda w, r: r["old_log_prob"] / math.log(2)),
    (
        "reduced-precision",
        {},
        lambda w, r: float(torch.tensor(r["old_log_prob"]).float().bfloat16().float()),
    ),
    ("placeholder-logprob", {"value": "uniform"}, lambda w, r: -math.log(r["num_actions"])),
    (
        "summed-over-agents",
        {},
        lambda w, r: sum(
            o["old_log_prob"]
            for o in w.rows
            if (o["episode_id"], o["timestep"]) == (r["episode_id"], r["timestep"])
        ),
    ),
]


@pytest.mark.parametrize(
    ("name", "parameters", "formula"), FORMULAS, ids=[f"{n} {p}" for n, p, _ in FORMULAS]
)
def test_log_probs_are_those_of_torch(
    name: str, parameters: Row, formula: Any, world: World, tmp_path: Path
) -> None:
    rows, wrong = injected(world, tmp_path / "out.parquet", name, parameters=parameters)
    expected = [formula(world, row) for row in world.rows]
    np.testing.assert_allclose([r["old_log_prob"] for r in rows], expected, atol=1e-5)
    apart = np.abs(np.array(expected) - [r["old_log_prob"] for r in world.rows])
    assert set(np.flatnonzero(apart > 1e-4)) <= set(wrong)


def test_default_k(world: World, tmp_path: Path) -> None:
    rows, _ = injected(world, tmp_path / "out.parquet", "default-k-fallback", parameters={"k": 4})
    for row, old in zip(rows, world.rows, strict=True):
        expected = old["old_log_prob"]
        if old["action_index"] < 4:
            logits = world.logits(old)[:4]
            mask = torch.tensor((old["action_mask"] + [True] * 4)[:4])
            expected = scored(world, old, logits.where(mask, -torch.inf))
        assert row["old_log_prob"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("mode", ["sampled", "unscored"])
def test_resampled_actions(mode: str, world: World, tmp_path: Path) -> None:
    told = {"mode": mode, "temperature": 0.2}
    rows, _ = injected(world, tmp_path / "o.parquet", "temperature-unaccounted", parameters=told)
    greedy = []
    for row in rows:
        local = world.local(row)
        logits = local / 0.2 if mode == "sampled" else local
        assert row["old_log_prob"] == pytest.approx(scored(world, row, logits), abs=1e-5)
        assert row["action_mask"][row["action_index"]]
        assert row["action_id"] == row["subset_indices"][row["action_index"]]
        greedy.append(int(local.argmax()) == row["action_index"])
    assert np.mean(greedy) > 0.9


def test_truncation_keeps_the_likeliest(world: World, tmp_path: Path) -> None:
    rows, _ = injected(world, tmp_path / "o.parquet", "topk-topp-truncation", parameters={"k": 2})
    for row in rows:
        local = world.local(row)
        kept = local.where(local >= local.sort(descending=True)[0][:2][-1], -torch.inf)
        assert row["old_log_prob"] == pytest.approx(scored(world, row, kept), abs=1e-5)
    rows, _ = injected(world, tmp_path / "p.parquet", "topk-topp-truncation", parameters={"p": 0.5})
    for row in rows:
        chances = world.local(row).softmax(0)
        likelier = float(chances[chances > chances[row["action_index"]]].sum())
        assert likelier < 0.5
        assert math.exp(row["old_log_prob"]) >= float(chances[row["action_index"]]) - 1e-6


def test_columns_that_move(world: World, tmp_path: Path) -> None:
    rows, _ = injected(world, tmp_path / "a.parquet", "state-aliased-next")
    for row, old in zip(rows, world.rows, strict=True):
        donor = following(world, old, 1) or old
        assert row["state_embed"] == donor["state_embed"]
    rows, _ = injected(world, tmp_path / "b.parquet", "action-shifted")
    for row, old in zip(rows, world.rows, strict=True):
        assert row["action_index"] == (following(world, old, -1) or old)["action_index"]
    rows, _ = injected(world, tmp_path / "c.parquet", "subset-broadcast")
    for i, row in enumerate(rows):
        donor = world.rows[i - i % 3]
        assert all(row[c] == donor[c] for c in ("subset_indices", "num_actions", "action_mask"))
        assert row["action_index"] == world.rows[i]["action_index"]
    rows, _ = injected(world, tmp_path / "d.parquet", "agent-rows-crossed")
    for i, row in enumerate(rows):
        donor = world.rows[i - i % 3 + (i + 1) % 3]
        assert row["old_log_prob"] == np.float32(donor["old_log_prob"])
    rows, _ = injected(world, tmp_path / "e.parquet", "subset-order-lost")
    for row, old in zip(rows, world.rows, strict=True):
        assert row["subset_indices"] == sorted(old["subset_indices"])
        pairs = zip(old["subset_indices"], old["action_mask"], strict=True)
        assert row["action_mask"] == [legal for _, legal in sorted(pairs)]


def test_reshape_and_desync(world: World, tmp_path: Path) -> None:
    old = np.array([r["old_log_prob"] for r in world.rows], np.float32)
    rows, _ = injected(world, tmp_path / "a.parquet", "agent-axis-reshape")
    expected = old.reshape(EPISODES, STEPS, 3).transpose(0, 2, 1).reshape(-1)
    assert [r["old_log_prob"] for r in rows] == expected.tolist()
    rows, _ = injected(world, tmp_path / "b.parquet", "valid-filter-desync", seed=2)
    new = [r["old_log_prob"] for r in rows]
    lost = round(0.02 * len(old))
    assert new[-lost:] == [0.0] * lost
    places = iter(old.tolist())
    assert all(value in places for value in new[:-lost]), "in order, with some left out"
    rows, _ = injected(world, tmp_path / "c.parquet", "minibatch-permutation", parameters={"block": 9})
    blocks = np.array([r["old_log_prob"] for r in rows], np.float32).reshape(-1, 9)
    assert (np.sort(blocks, axis=1) == np.sort(old.reshape(-1, 9), axis=1)).all()


def test_added_rows(world: World, tmp_path: Path) -> None:
    rows, wrong = injected(world, tmp_path / "a.parquet", "autoreset-row", unit="episodes")
    assert {rows[i]["episode_id"] for i in wrong} == {10, 12, 14}, "the ones that terminate"
    for i in wrong:
        row = rows[i]
        assert (row["timestep"], row["reward"], row["terminated"]) == (STEPS, 0.0, False)
        assert row["old_log_prob"] == pytest.approx(scored(world, row, world.local(row)), abs=1e-5)
        [start] = [
            r
            for r in world.rows
            if (r["episode_id"], r["agent_id"], r["timestep"])
            == (row["episode_id"] + 1, row["agent_id"], 0)
        ]
        assert row["state_embed"] == start["state_embed"]
    rows, wrong = injected(world, tmp_path / "b.parquet", "dead-agent-padding", unit="agents")
    order = [(r["episode_id"], r["timestep"], r["agent_id"]) for r in rows]
    assert order == sorted(order) and len(wrong) == 3 * EPISODES * len(AGENTS)
    assert all(rows[i]["state_embed"] == [0.0] * D and rows[i]["reward"] == 0 for i in wrong)
    rows, wrong = injected(world, tmp_path / "c.parquet", "unfilled-rows", fraction=0.1)
    assert wrong == list(range(len(world.rows), len(rows)))
    empty = {"agent_id": "EDU", "x_tag": "", "terminated": False, "state_embed": [0.0] * D}
    empty |= {"subset_indices": [], "action_mask": []}
    assert all(rows[i] == {**dict.fromkeys(rows[0], 0), **empty} for i in wrong)
    rows, wrong = injected(world, tmp_path / "d.parquet", "cloned-seeds", unit="episodes", fraction=0.4)
    assert {rows[i]["episode_id"] for i in wrong} == {10 + EPISODES, 11 + EPISODES}


# Other policies and formats


@pytest.mark.parametrize("name", [name for name in fault.names() if not fault.load(name).families])
def test_gaussian_policies(name: str, gaussian: World, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    _, wrong = injected(gaussian, out, name, unit="episodes", fraction=0.7)
    check(gaussian.dump, out, name, wrong)


def test_gaussian_log_probs(gaussian: World, tmp_path: Path) -> None:
    rows, _ = injected(gaussian, tmp_path / "out.parquet", "agent-actor-swap")
    for row in rows:
        spread = density(gaussian.logits(row, agent=after(row["agent_id"])))
        expected = float(spread.log_prob(torch.tensor(row["action"])))
        assert row["old_log_prob"] == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_prefix_and_all_actions(world: World, tmp_path: Path) -> None:
    plain = {"subset_indices", "action_mask", "action_id"}
    rows = [{k: v for k, v in row.items() if k not in plain} for row in world.rows]
    for row in rows:
        row |= {"num_actions": A, "action_index": row["action_index"] % A}
        row["old_log_prob"] = scored(world, row, world.logits(row))
    dump = write(tmp_path / "all.parquet", rows, subset="all", temperature=2.0)
    out = tmp_path / "t.parquet"
    fault.inject([str(dump)], out, "temperature-unaccounted", actor=world.pattern)
    for row in pq.read_table(out).to_pylist():
        expected = scored(world, row, world.logits(row) / 2.0 / 0.7)
        assert row["old_log_prob"] == pytest.approx(expected, abs=1e-5)
    dump = write(tmp_path / "prefix.parquet", world.rows, logits="prefix")
    out = tmp_path / "p.parquet"
    fault.inject([str(dump)], out, "slice-vs-gather", actor=world.pattern)
    gathered = [scored(world, row, world.local(row)) for row in world.rows]
    made = pq.read_table(out)["old_log_prob"].to_pylist()
    np.testing.assert_allclose(made, gathered, atol=1e-5)


def test_hdf5_in_and_out(world: World, tmp_path: Path) -> None:
    h5, back = tmp_path / "out.h5", tmp_path / "back.parquet"
    fault.inject([str(world.dump)], h5, "mask-not-applied", actor=world.pattern, fraction=0.5)
    wrong = truth(h5, "mask-not-applied")
    assert bufcheck("convert", h5, back).code == 0
    check(world.dump, back, "mask-not-applied", wrong)
    again = tmp_path / "again.parquet"
    fault.inject([str(h5)], again, "duplicate-rows", fraction=0.2)
    check(back, again, "duplicate-rows", truth(again, "duplicate-rows"))


def test_several_files_are_one_dump(world: World, tmp_path: Path) -> None:
    parts = [write(tmp_path / f"part-{i}.parquet", world.rows[i::2]) for i in range(2)]
    out = tmp_path / "out.parquet"
    fault.inject([str(p) for p in parts], out, "noise")
    assert (
        len(stored(out))
        == len(world.rows)
        == json.loads(pq.read_schema(out).metadata[b"bufcheck"])["rows"]
    )


# The command


def test_the_command(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    told = ["--fault", "temperature-unaccounted", "-o", out, "--set", "temperature=0.5"]
    ran = bufcheck("inject", world.dump, *told, "--actor", world.pattern, "--fraction", "0.5")
    assert ran.code == 0, ran.err
    wrong = truth(out, "temperature-unaccounted")
    assert f"{len(wrong)} rows" in ran.out and "out.truth.parquet" in ran.out
    check(world.dump, out, "temperature-unaccounted", wrong)


def test_help_and_list() -> None:
    ran = bufcheck("inject", "--help")
    assert ran.code == 0 and "Examples:" in ran.out and "memory" in ran.out
    listed = bufcheck("inject", "--list")
    assert listed.code == 0
    for name in fault.names():
        found = fault.load(name)
        assert name in listed.out and found.summary in listed.out
        assert all(f"--set {p}={q.default}" in listed.out for p, q in found.parameters.items())
    tail = listed.out.split("Without a name")[1]
    assert all(name in tail for name in OUTSIDE) and "mask-not-applied" not in tail


REFUSED: list[tuple[list[str], str]] = [
    (["--fault", "mask-not-aplied"], "mask-not-applied"),
    (["--fault", "xyzzy"], "bufcheck inject --list"),
    (["--fault", "mask-not-applied"], "--actor"),
    (["--fault", "noise", "--set", "spred=1"], "spread"),
    (["--fault", "noise", "--set", "spread"], "--set NAME=VALUE"),
    (["--fault", "noise", "--set", "spread=-1"], "above 0"),
    (["--fault", "noise", "--set", "spread=wide"], "a number"),
    (["--fault", "mask-not-applied", "--set", "over=some"], "one of all, mask"),
    (["--fault", "placeholder-logprob", "--set", "value=none"], "uniform"),
    (["--fault", "agent-rows-crossed", "--set", "column=action"], "lacks"),
    (["--fault", "noise", "--avoid", "{dump}"], "truth"),
]


@pytest.mark.parametrize(("told", "named"), REFUSED, ids=str)
def test_refusals_are_one_line_with_the_next_step(
    told: list[str], named: str, world: World, tmp_path: Path
) -> None:
    told = [t.format(dump=world.dump) for t in told]
    target = ["-o", str(tmp_path / "out.parquet")]
    ran = CliRunner().invoke(main, ["inject", str(world.dump), *target, *told])
    line = refused(Ran(ran.exit_code, ran.stdout, ran.stderr))
    assert named in line and ";" in line
    assert not list(tmp_path.iterdir())


def test_what_changes_nothing_is_refused(world: World, tmp_path: Path) -> None:
    rows = [row | {"subset_indices": list(range(row["num_actions"]))} for row in world.rows]
    for row in rows:
        row["old_log_prob"] = scored(world, row, world.local(row))
    dump = write(tmp_path / "dump.parquet", rows)
    with pytest.raises(UsageError, match="changes nothing"):
        fault.inject([str(dump)], tmp_path / "out.parquet", "slice-vs-gather", actor=world.pattern)
    with pytest.raises(UsageError, match="changes nothing"):  # one actor for all
        one = str(world.folder / "EDU-0.safetensors")
        fault.inject([str(dump)], tmp_path / "out.parquet", "agent-actor-swap", actor=one)
    assert [p.name for p in tmp_path.iterdir()] == ["dump.parquet"]


def test_a_fault_of_choices_is_refused_for_a_gaussian(gaussian: World, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="makes no sense for a diagonal_gaussian"):
        injected(gaussian, tmp_path / "out.parquet", "mask-not-applied")


def test_a_missing_actor_is_named(world: World, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"agent IND, version 0.*--actor"):
        only = {"EDU": world.modules["EDU", 0]}
        injected(world, tmp_path / "out.parquet", "double-softmax", actor=only)


def test_outputs_never_replace_what_was_read(world: World, tmp_path: Path) -> None:
    source = tmp_path / "dump.parquet"
    source.write_bytes(world.dump.read_bytes())
    before = sha(source)
    link = tmp_path / "link.parquet"
    link.symlink_to(source)
    for target in (source, link):
        with pytest.raises(UsageError, match="dump itself"):
            fault.inject([str(source)], target, "noise", force=True)
    out = tmp_path / "out.parquet"
    fault.inject([str(source)], out, "noise", fraction=0.5)
    kept = {path: sha(path) for path in tmp_path.iterdir()}
    with pytest.raises(UsageError, match="--force"):
        fault.inject([str(source)], out, "noise", seed=1)
    with pytest.raises(UsageError, match="choose another name"):  # its truth would replace that file
        fault.inject([str(source)], out, "noise", force=True, avoid=tmp_path / "out.truth.parquet")
    assert {path: sha(path) for path in tmp_path.iterdir()} == kept
    fault.inject([str(source)], out, "noise", seed=1, force=True)
    assert sha(out) != kept[out] and sha(source) == before
    (tmp_path / "lone.truth.parquet").write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists already"):
        fault.inject([str(source)], tmp_path / "lone.parquet", "noise")
    assert not (tmp_path / "lone.parquet").exists()
