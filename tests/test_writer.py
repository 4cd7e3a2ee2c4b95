"""BufferWriter: what goes in comes out, what is wrong is refused at once, what is cut off shows."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import CAMPAIGN, ROOT, bufcheck, failing

import bufcheck as api
from bufcheck import memory, schema, screen
from bufcheck import rule as rules
from bufcheck.incoming import fields_of
from bufcheck.testing import assert_clean

ACTIONS, SEEN = 9, 5
POLICY = {"distribution": "categorical", "action_space": ACTIONS}
Columns = dict[str, Any]


def network(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(SEEN, 16), torch.nn.Tanh(), torch.nn.Linear(16, ACTIONS))


def rollout(actor: torch.nn.Module, rows: int = 60, seed: int = 0, first_episode: int = 0) -> Columns:
    """Episodes of ten steps for two agents, subsets of two to six actions; tensors have a graph."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    states = torch.randn(rows, SEEN)
    subsets = [rng.permutation(ACTIONS)[: rng.integers(2, 7)] for _ in range(rows)]
    chosen, log_probs = [], []
    for logits, subset in zip(actor(states), subsets, strict=True):
        distribution = torch.distributions.Categorical(logits=logits[torch.tensor(subset)])
        chosen.append(distribution.sample())
        log_probs.append(distribution.log_prob(chosen[-1]))
    steps = np.arange(rows) // 2
    return {
        "episode_id": first_episode + steps // 10,
        "timestep": steps % 10,
        "agent_id": np.array(["blue", "red"])[np.arange(rows) % 2],
        "state_embed": states,
        "subset_indices": subsets,
        "action_index": torch.stack(chosen),
        "old_log_prob": torch.stack(log_probs),
        "reward": torch.randn(rows),
        "terminated": steps % 10 == 9,
    }


def as_steps(columns: Columns) -> Iterator[Columns]:
    for i in range(len(columns["old_log_prob"])):
        yield {name: values[i] for name, values in columns.items()}


def read(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        row
        for batch in api.open_dump(str(path)).batches([*rollout(network(), 2), "num_actions"])
        for row in batch.rows.to_pylist()
    ]
    return rows


def as_python(value: Any) -> Any:
    value = value.detach().numpy() if isinstance(value, torch.Tensor) else value
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


# What goes in comes out


@pytest.mark.parametrize("name", ["dump.parquet", "dump.h5", "parts", "parts-h5"])
@pytest.mark.parametrize("how", ["rollouts", "steps", "lists"])
def test_rows_come_back_and_pass(tmp_path: Path, name: str, how: str) -> None:
    actor = network()
    given = [rollout(actor, 60, seed, first_episode=seed * 10) for seed in range(3)]
    path = tmp_path / name
    suffix = ".h5" if name.endswith("h5") else ".parquet"
    with api.BufferWriter(path, policy=POLICY, suffix=suffix, part_rows=100) as buffer:
        for columns in given:
            if how == "rollouts":
                buffer.append_rollout(columns)
            elif how == "lists":
                buffer.append_rollout({name: list(values) for name, values in columns.items()})
            else:
                for step in as_steps(columns):
                    buffer.append(step)
    assert buffer.rows == 180
    if name.startswith("parts"):
        assert len(list(path.glob(f"part-*{suffix}"))) == (1 if how == "steps" else 2)
    back = read(path)
    expected = [step for columns in given for step in as_steps(columns)]
    for got, put in zip(back, expected, strict=True):
        for column, value in put.items():
            assert got[column] == as_python(value), column
        assert got["num_actions"] == len(put["subset_indices"])
    report = assert_clean(path, actor, warnings=True)
    assert report["dump"]["integrity"] == "verified"


def test_what_the_trainer_changes_later_is_not_in_the_dump(tmp_path: Path) -> None:
    """An observation that is written to in place, and log-probs that still have a graph."""
    columns = rollout(network(), 20)
    before = columns["state_embed"].numpy().copy()
    subset = [list(s) for s in columns["subset_indices"]]
    with api.BufferWriter(tmp_path / "a.parquet", policy=POLICY) as buffer:
        buffer.append_rollout(columns)
        for step in as_steps({**columns, "episode_id": columns["episode_id"] + 5}):
            buffer.append(step)
        columns["state_embed"] += 100
        for s in columns["subset_indices"]:
            s[:] = 0
    back = read(tmp_path / "a.parquet")
    assert np.array_equal([r["state_embed"] for r in back], np.concatenate([before, before]))
    assert [r["subset_indices"] for r in back] == subset * 2


def test_padded_subsets_are_cut(tmp_path: Path) -> None:
    columns = rollout(network(), 20)
    sizes = [len(s) for s in columns["subset_indices"]]
    padded = np.full((20, max(sizes)), -1)
    for row, subset in zip(padded, columns["subset_indices"], strict=True):
        row[: len(subset)] = subset
    with api.BufferWriter(tmp_path / "a.parquet", policy=POLICY) as buffer:
        buffer.append_rollout({**columns, "subset_indices": padded, "num_actions": sizes})
    assert [r["subset_indices"] for r in read(tmp_path / "a.parquet")] == [
        s.tolist() for s in columns["subset_indices"]
    ]


def test_own_columns_nulls_and_half_precision(tmp_path: Path) -> None:
    columns = rollout(network(), 4)
    extra = {
        "x_note": ["a", "b", "c", "d"],
        "x_map": np.arange(24).reshape(4, 2, 3),
        "bootstrap_value": [None, None, None, 1.5],
        "seed": [1, None, 3, 4],
        "old_log_prob": columns["old_log_prob"].to(torch.bfloat16),
        "value": np.arange(4, dtype=np.float16),
    }
    with api.BufferWriter(tmp_path / "a.parquet", policy={**POLICY, "precision": "bfloat16"}) as buffer:
        buffer.append_rollout({**columns, **extra})
    table = pq.read_table(tmp_path / "a.parquet")
    assert table["x_note"].to_pylist() == extra["x_note"]
    assert table["x_map"].to_pylist() == np.arange(24).reshape(4, 6).tolist()
    assert table["bootstrap_value"].to_pylist() == [None, None, None, 1.5]
    assert table["seed"].to_pylist() == [1, None, 3, 4]
    assert table["value"].type == pa.float32()
    assert_clean(tmp_path / "a.parquet", network())


def test_a_step_may_leave_nullable_columns_open(tmp_path: Path) -> None:
    with api.BufferWriter(tmp_path / "a.parquet", policy=POLICY) as buffer:
        for i, step in enumerate(as_steps(rollout(network(), 20))):
            buffer.append(step, bootstrap_value=0.5 if i == 19 else None)
    assert pq.read_table(tmp_path / "a.parquet")["bootstrap_value"].to_pylist() == [None] * 19 + [0.5]


def test_gaussian_policies(tmp_path: Path) -> None:
    torch.manual_seed(0)
    mean = torch.nn.Linear(SEEN, 2)
    log_std = torch.tensor([-0.5, 0.3])
    states = torch.randn(40, SEEN)
    distribution = torch.distributions.Normal(mean(states), log_std.exp())
    actions = distribution.sample()
    path = tmp_path / "a.parquet"
    with api.BufferWriter(path, policy={"distribution": "diagonal_gaussian"}) as buffer:
        buffer.append_rollout(
            {
                "episode_id": 0,
                "timestep": np.arange(40),
                "agent_id": "a",
                "state_embed": states,
                "action": actions,
                "action_mean": mean(states),
                "old_log_prob": distribution.log_prob(actions).sum(-1),
            }
        )
        buffer.save_actor(None, mean, log_std=log_std)
    assert_clean(path, buffer.actor_pattern)


# Rollouts of several environments


def play(
    actor: torch.nn.Module, steps: int, envs: int, agents: int | None, seed: int, fresh: bool
) -> tuple[Columns, np.ndarray[Any, Any]]:
    shape = (steps, envs) if agents is None else (steps, envs, agents)
    torch.manual_seed(seed)
    states = torch.randn(*shape, SEEN)
    distribution = torch.distributions.Categorical(logits=actor(states))
    actions = distribution.sample()
    ends = np.random.default_rng(seed).random((steps, envs)) < 0.1
    starts = np.concatenate([np.full((1, envs), fresh), ends[:-1]])
    columns = {"state_embed": states, "action_index": actions, "terminated": ends}
    return {**columns, "old_log_prob": distribution.log_prob(actions)}, starts


@pytest.mark.parametrize("agents", [None, ["red", "blue", "green"]])
def test_environments_become_episodes(tmp_path: Path, agents: list[str] | None) -> None:
    actor, path = network(), tmp_path / "run"
    many = None if agents is None else len(agents)
    over_all = {**POLICY, "subset": "all"}
    with api.BufferWriter(path, policy=over_all, policy_version=0, part_rows=150) as buffer:
        for version in range(3):
            buffer.policy_version = version
            buffer.save_actor(None, actor)
            columns, starts = play(actor, 40, 2, many, version, fresh=version == 0)
            buffer.append_envs(columns, starts=starts, agents=agents)
    report = assert_clean(path, buffer.actor_pattern, warnings=True)
    table = pq.read_table(path, columns=["episode_id", "timestep", "env_id", "agent_id", "terminated"])
    rows = table.to_pylist()
    assert len(rows) == 3 * 40 * 2 * (many or 1)
    assert report["dump"]["agents"] == sorted(agents or ["agent"])
    # Steps count on from one rollout to the next, in a new episode of the dump.
    for env in (0, 1):
        steps = list(
            dict.fromkeys(
                (r["episode_id"], r["timestep"], r["terminated"]) for r in rows if r["env_id"] == env
            )
        )
        assert len(steps) == 120
        for (_, step, ended), (_, following, _) in itertools.pairwise(steps):
            assert following == (0 if ended else step + 1)
    assert len({r["episode_id"] for r in rows}) > 6


def test_rows_spent_on_resetting_are_left_out(tmp_path: Path) -> None:
    actor = network()
    columns, _ = play(actor, 30, 2, None, 1, fresh=True)
    ends = columns["terminated"]
    resetting = np.concatenate([np.zeros((1, 2), bool), ends[:-1]])
    ends[resetting] = False
    resetting = np.concatenate([np.zeros((1, 2), bool), ends[:-1]])
    starts = np.concatenate([np.ones((1, 2), bool), resetting[:-1]])
    with api.BufferWriter(tmp_path / "a.parquet", policy={**POLICY, "subset": "all"}) as buffer:
        buffer.append_envs(columns, starts=starts | resetting, keep=~resetting)
    assert buffer.rows == 60 - resetting.sum()
    assert_clean(tmp_path / "a.parquet", actor, warnings=True)


# What is refused, and how


def good_step() -> Columns:
    return next(as_steps(rollout(network(), 2)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"action_index": 9}, ["action-index-out-of-range", "episode 0, step 0, agent blue"]),
        ({"action_index": 1.0}, ["action_index", "float64", "integers"]),
        ({"old_log_prob": 0.5}, ["positive-log-prob", "old_log_prob is 0.5"]),
        ({"old_log_prob": float("nan")}, ["nonfinite-value", "old_log_prob"]),
        ({"old_log_prob": [-0.5]}, ["old_log_prob", "[1, 1]", "squeeze"]),
        ({"old_log_prob": None}, ["old_log_prob is missing"]),
        ({"state_embed": np.full(SEEN, np.inf)}, ["nonfinite-value", "state_embed"]),
        ({"state_embed": "text"}, ["state_embed"]),
        ({"subset_indices": [1, 2, 1]}, ["subset-duplicate-id"]),
        ({"subset_indices": [1, ACTIONS]}, ["subset-id-out-of-range", str(ACTIONS)]),
        ({"subset_indices": [1.5, 2.0]}, ["subset_indices", "integers"]),
        ({"subset_indices": [[1, 2]]}, ["subset_indices of sample 0", "[1, 2]"]),
        ({"num_actions": 8}, ["subset-length-mismatch", "num_actions is 8"]),
        ({"timestep": -1}, ["timestep is -1"]),
        ({"timestep": 2**40}, ["timestep of sample 0", "int32"]),
        ({"terminated": 2}, ["terminated of sample 0 is 2"]),
        ({"reward": "much"}, ["reward"]),
        ({"agent_id": 0.5}, ["agent_id"]),
        ({"agent_id": None}, ["agent_id is missing"]),
        ({"reward_": 1.0}, ["unknown column 'reward_'", "did you mean reward?"]),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("how", ["append", "append_rollout"])
def test_a_bad_sample_fails_where_it_is_made(
    tmp_path: Path, change: Columns, words: list[str], how: str
) -> None:
    with api.BufferWriter(tmp_path / "a.parquet", policy=POLICY) as buffer:
        step = {**good_step(), **change}
        with pytest.raises(api.SampleError) as refused:
            if how == "append":
                buffer.append(step)
            else:
                one = {n: [v] for n, v in step.items() if v is not None}
                buffer.append_rollout(one)
        for word in words:
            assert word in str(refused.value)
        buffer.append(good_step())  # nothing of the bad one was kept, and the writer goes on
    assert len(pq.read_table(tmp_path / "a.parquet")) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"old_log_prob": np.zeros((20, 1))}, ["[20, 1]", "squeeze its last axis"]),
        ({"reward": np.zeros((20, 1))}, ["reward has shape [20, 1]", "squeeze"]),
        ({"reward": 1.0}, ["reward is one value for 20 rows"]),
        ({"reward": np.zeros(19)}, ["reward has 19 rows, old_log_prob has 20"]),
        ({"state_embed": np.zeros((19, SEEN))}, ["state_embed has 19 rows"]),
        ({"state_embed": np.zeros(20)}, ["one number a row"]),
        ({"subset_indices": [[1, 2]] * 3}, ["subset_indices has 3 rows"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_shapes_that_do_not_fit_are_named(tmp_path: Path, change: Columns, words: list[str]) -> None:
    buffer = api.BufferWriter(tmp_path / "a.parquet", policy=POLICY)
    with pytest.raises(api.SampleError) as refused:
        buffer.append_rollout({**rollout(network(), 20), **change})
    for word in words:
        assert word in str(refused.value)
    buffer.close()
    assert not list(tmp_path.iterdir())


def test_rows_must_be_like_those_before(tmp_path: Path) -> None:
    buffer = api.BufferWriter(tmp_path / "a.parquet", policy=POLICY)
    columns = rollout(network(), 20)
    buffer.append_rollout(columns)
    odd = [
        ({**columns, "value": columns["reward"]}, "value: the rows before did not have it"),
        ({n: c for n, c in columns.items() if n != "reward"}, "reward: the rows before had it"),
        ({**columns, "state_embed": torch.zeros(20, 3)}, "state_embed has 3 numbers"),
        ({**columns, "reward": np.full(20, 1e300)}, "reward is float64, and was float32"),
    ]
    for given, words in odd:
        with pytest.raises(api.SampleError, match=words):
            buffer.append_rollout(given)
    buffer.append_rollout({**columns, "episode_id": columns["episode_id"] + 9, "reward": [0.1] * 20})
    buffer.close()
    assert len(pq.read_table(tmp_path / "a.parquet")) == 40


def test_warn_and_off(tmp_path: Path) -> None:
    bad = {**rollout(network(), 20)}
    bad["action_index"] = bad["action_index"].clone()
    bad["action_index"][7] = 99
    for check in ("warn", "off"):
        path = tmp_path / f"{check}.parquet"
        with api.BufferWriter(path, policy=POLICY, check=check) as buffer:
            if check == "warn":
                with pytest.warns(
                    UserWarning, match=r"action-index-out-of-range: sample 7 \(episode 0"
                ):
                    buffer.append_rollout(bad)
            else:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    buffer.append_rollout(bad)
        assert failing(api.validate(str(path)))["action-index-out-of-range"] == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"check": "loud"}, "check is 'loud'"),
        ({"policy": {"actionspace": 3}}, "policy has no 'actionspace'; known: distribution"),
        ({"policy": {"distribution": "recurrent"}}, "hidden state"),
        ({"worker": 1}, "is one file"),
        ({"worker": -1}, "worker is -1"),
    ],
)
def test_options_that_cannot_be_meant(tmp_path: Path, options: Columns, words: str) -> None:
    with pytest.raises(api.BufcheckError, match=words):
        api.BufferWriter(tmp_path / "a.parquet", **options)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    for name in ("a.parquet", "run"):
        with api.BufferWriter(tmp_path / name, policy=POLICY) as buffer:
            buffer.append_rollout(rollout(network(), 20))
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(api.UsageError, match=r"exists already|is there already"):
            api.BufferWriter(tmp_path / name, policy=POLICY)
        assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(api.UsageError, match="closed"):
        buffer.append(good_step())


# The same rules as validate's

ABOUT_ROWS = [
    rule
    for rule in rules.built_in()
    if rule.scope == "row" and rule.severity == "error" and rule.name != "log-prob-mismatch"
]


def cases() -> list[Any]:
    from test_rule_cases import cases_of

    return [
        pytest.param(rule, case, id=f"{rule.name}: {case['name']}")
        for rule in ABOUT_ROWS
        for case in cases_of(rule.name)
        if case.get("metadata") != "none" and not set(case) & {"files", "config", "without", "types"}
    ]


@pytest.mark.parametrize(("rule", "case"), cases())
def test_the_screen_misses_no_case_of_any_rule(rule: rules.Rule, case: Columns) -> None:
    """What validate would flag, the writer refuses: as a type that does not fit, or by the rule."""
    from test_rule_cases import METADATA, expected_rows, fails, rows_of

    names, rows = rows_of(case)
    told = case.get("metadata", {})
    metadata = memory.described(
        {**METADATA["policy"], **told.get("policy", {})}, {**told.get("advantage", {})}, None
    )
    policy = memory.policy_of(metadata)
    try:
        fields = fields_of({n: [r[n] for r in rows] for n in names}, len(rows), policy)
    except api.SampleError as refused:
        # A null is the business of null-value alone, and nothing a writer takes.
        assert fails(case) or "is missing" in str(refused), refused
        return
    missed = set(expected_rows(case)) - set(screen.suspects(fields, policy)) if fails(case) else set()
    # Which bootstrap values count is known only at the end of an episode.
    missed = {i for i in missed if i is not None and not _only_bootstrap(rows[i])}
    assert not missed


def _only_bootstrap(row: Columns) -> bool:
    value = row.get("bootstrap_value")
    return value is not None and not np.isfinite(value)


@pytest.mark.parametrize("seed", range(40 if CAMPAIGN else 8))
def test_the_screen_misses_nothing_that_validate_flags(tmp_path: Path, seed: int) -> None:
    """Healthy rows with random numbers put in at random places."""
    rng = np.random.default_rng(seed)
    columns = rollout(network(), 400, seed)
    sizes = np.array([len(s) for s in columns["subset_indices"]])
    columns |= {name: c.detach().numpy() for name, c in columns.items() if hasattr(c, "detach")}
    columns |= {
        "num_actions": sizes,
        "action_id": np.array(
            [s[a] for s, a in zip(columns["subset_indices"], columns["action_index"], strict=True)]
        ),
        "action_mask": [np.ones(k, bool) for k in sizes],
        "new_log_prob": columns["old_log_prob"].copy(),
        "value": rng.normal(size=400),
    }
    columns["subset_indices"] = [s.copy() for s in columns["subset_indices"]]
    odd: list[Any] = [0, 1, -1, 0.5, 1e-7, 1e-5, -1e-5, np.nan, np.inf, -np.inf, 7, 99]
    for row in rng.permutation(400)[:120]:
        name = rng.choice([n for n in columns if n not in ("agent_id", "episode_id", "terminated")])
        cell = columns[name]
        value = odd[rng.integers(len(odd))]
        if cell is columns["action_mask"] or cell is columns["subset_indices"]:
            cell[row][rng.integers(len(cell[row]))] = int(np.nan_to_num(value)) & 15
        elif cell.dtype.kind == "f":
            cell[row] = value
        else:
            cell[row] = int(np.clip(np.nan_to_num(value), -1, 99))
    path = tmp_path / "a.parquet"
    with api.BufferWriter(path, policy=POLICY, check="off") as buffer:
        buffer.append_rollout(columns)
    found = tmp_path / "findings.parquet"
    api.validate(str(path), select=[r.code for r in ABOUT_ROWS], findings=found)
    flagged = {f["row_id"] for f in pq.read_table(found).to_pylist()} - {None}
    assert len(flagged) > 40
    policy = memory.policy_of(memory.described(POLICY, None, None))
    suspected = set(screen.suspects(fields_of(columns, 400, policy), policy))
    assert flagged <= suspected
    assert len(suspected) < 200, "it cries wolf too often to be quick"
    broken = memory.broken_rules(
        pq.read_table(path).combine_chunks().to_batches()[0], memory.described(POLICY, None, None)
    )
    assert {o.rule.name for o in broken} == {
        f["rule"] for f in pq.read_table(found).to_pylist() if f["row_id"] is not None
    }


def test_every_required_column_is_asked_for(tmp_path: Path) -> None:
    whole = rollout(network(), 20)
    needed = schema.load().required({**memory.policy_of(memory.described(POLICY, None, None))})
    for name in set(needed) - {"num_actions"}:
        with (
            pytest.raises(api.SampleError, match=f"{name} is missing"),
            api.BufferWriter(tmp_path / "a.parquet", policy=POLICY) as buffer,
        ):
            buffer.append_rollout({n: c for n, c in whole.items() if n != name})


# Actors


def test_actors_are_filed_by_agent_and_version(tmp_path: Path) -> None:
    actors = {"blue": network(1), "red": network(2)}
    with api.BufferWriter(tmp_path / "run", policy=POLICY, policy_version=4) as buffer:
        for version in (4, 5):
            buffer.policy_version = version
            for agent, actor in actors.items():
                saved = buffer.save_actor(agent, actor)
                assert saved == tmp_path / "run.actors" / f"{agent}-{version}.safetensors"
            both = [rollout(actor, 20, version, version * 10) for actor in actors.values()]
            for number, agent in enumerate(actors):
                mine = np.flatnonzero(both[number]["agent_id"] == agent)
                for i in mine:
                    buffer.append({n: c[i] for n, c in both[number].items()})
        with pytest.raises(api.UsageError, match="of all agents or of one"):
            buffer.save_actor(None, actors["red"])
        with pytest.raises(api.UsageError, match="name of a file"):
            buffer.save_actor("../red", actors["red"])
    assert buffer.actor_pattern.endswith("run.actors/{agent_id}-{policy_version}.safetensors")
    assert_clean(tmp_path / "run", buffer.actor_pattern)


# Killed, crashed, at work

TRAINER = """
import sys, time
sys.path[:0] = [{tests!r}]
from test_writer import *
actor = network()
buffer = api.BufferWriter(sys.argv[1], policy=POLICY, part_rows=200, policy_version=0)
buffer.save_actor(None, actor)
print("open", flush=True)
for number in range(1000):
    if {crash!r} == str(number):
        raise RuntimeError("the trainer broke")
    if {forget!r} == str(number):
        sys.exit()
    buffer.append_rollout(rollout(actor, 60, number, number * 10))
    print(buffer.rows, flush=True)
"""


def trainer(path: Path, crash: str = "", forget: str = "") -> subprocess.Popen[str]:
    code = textwrap.dedent(TRAINER).format(tests=str(ROOT / "tests"), crash=crash, forget=forget)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize("name", ["run", "run.parquet", "run.h5"])
@pytest.mark.parametrize("moment", range(20 if CAMPAIGN else 3))
def test_a_killed_trainer_leaves_nothing_that_passes(tmp_path: Path, name: str, moment: int) -> None:
    path = tmp_path / name
    process = trainer(path)
    assert process.stdout is not None
    taken = 0
    for _ in range(1 + moment * 4):
        line = process.stdout.readline().strip()
        taken = int(line) if line.isdigit() else 0
    time.sleep(0.003 * (moment % 5))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    ran = bufcheck("validate", path, "--format", "json", timeout=120)
    if name != "run" or (ran.code == 2 and taken <= 240):
        assert ran.code == 2, ran
        assert ".unfinished-" in ran.err
        assert "killed" in ran.err
        return
    assert ran.code == 1, ran
    assert "truncated-dump" in failing(ran.report)
    # What was finished is there, whole, and without any other fault.
    assert 200 <= ran.report["dump"]["rows"] <= taken + 60
    assert list(failing(ran.report)) == ["truncated-dump"]


def test_a_dump_still_being_written_does_not_pass(tmp_path: Path) -> None:
    path = tmp_path / "run"
    buffer = api.BufferWriter(path, policy=POLICY, part_rows=50)
    for number in range(2):
        buffer.append_rollout(rollout(network(), 60, number, number * 10))
    assert "truncated-dump" in failing(api.validate(str(path)))
    with pytest.raises(api.ReadError, match="no such file"):
        api.validate(str(tmp_path / "other"))
    buffer.close()
    assert_clean(path, network())


def test_a_worker_that_was_killed_before_its_first_part_shows(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with api.BufferWriter(path, policy=POLICY, worker=0) as buffer:
        buffer.append_rollout(rollout(network(), 60))
    assert_clean(path, network())
    killed = subprocess.run(
        [
            sys.executable,
            "-c",
            "import bufcheck, os, sys\n"
            "buffer = bufcheck.BufferWriter(sys.argv[1], worker=1)\n"
            "os.kill(os.getpid(), 9)",
            str(path),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert killed.returncode == -signal.SIGKILL
    assert "truncated-dump" in failing(api.validate(str(path)))
    assert "truncated-dump" in failing(api.validate(str(path / "worker-0-00000.parquet")))


@pytest.mark.parametrize("how", ["crash", "forget"])
@pytest.mark.parametrize("name", ["run", "run.h5"])
def test_what_a_trainer_took_before_it_broke_is_kept_and_marked(
    tmp_path: Path, how: str, name: str
) -> None:
    process = trainer(tmp_path / name, **{how: "4"})
    process.communicate(timeout=120)
    report = api.validate(str(tmp_path / name))
    assert list(failing(report)) == ["truncated-dump"]
    assert report["dump"]["rows"] == 240
    kept = api.validate(str(tmp_path / name), ignore=["truncated-dump"], actor=network())
    assert kept["verdict"] == "pass"


@pytest.mark.parametrize("suffix", [".parquet", ".h5"])
def test_what_was_cut_off_stays_so_when_converted(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "run"
    with pytest.raises(RuntimeError), api.BufferWriter(path, policy=POLICY, part_rows=50) as buffer:
        buffer.append_rollout(rollout(network(), 60))
        buffer.append_rollout(rollout(network(), 60, 1, 10))
        raise RuntimeError
    assert bufcheck("convert", path, tmp_path / f"cut{suffix}").code == 0
    assert "truncated-dump" in failing(api.validate(str(tmp_path / f"cut{suffix}")))
    whole = tmp_path / "whole"
    with api.BufferWriter(whole, policy=POLICY, part_rows=50) as buffer:
        buffer.append_rollout(rollout(network(), 60))
        buffer.append_rollout(rollout(network(), 60, 1, 10))
    assert bufcheck("convert", whole, tmp_path / f"whole{suffix}").code == 0
    assert_clean(tmp_path / f"whole{suffix}", network())


@pytest.mark.parametrize("suffix", [".parquet", ".h5"])
def test_a_full_disk_is_said_and_what_was_written_is_kept(tmp_path: Path, suffix: str) -> None:
    """Two parts fit under the limit on a file's size, the third does not."""
    code = """
        import resource, signal, sys
        import numpy as np
        import bufcheck
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
        rng = np.random.default_rng(0)
        over_all = {"subset": "all", "action_space": 4}
        how = {"policy": over_all, "part_rows": 1, "suffix": sys.argv[2]}
        with bufcheck.BufferWriter(sys.argv[1], **how) as buffer:
            for episode, rows in enumerate([100, 200, 200_000]):
                buffer.append_rollout({
                    "episode_id": episode,
                    "timestep": np.arange(rows),
                    "agent_id": "a",
                    "state_embed": rng.normal(size=(rows, 16)),
                    "action_index": rng.integers(0, 4, rows),
                    "old_log_prob": -rng.random(rows),
                })
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "run"), suffix],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.returncode == 1, ran
    assert "WriteError" in ran.stderr.splitlines()[-1]
    names = [f"part-00000{suffix}", f"part-00001{suffix}"]
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == names
    report = api.validate(str(tmp_path / "run"))
    assert report["dump"]["rows"] == 300
    assert "truncated-dump" in failing(report)


# Several processes


def worker(path: Path, number: int) -> None:
    torch.set_num_threads(1)
    actor = network()
    with api.BufferWriter(
        path, policy=POLICY, worker=number, policy_version=0, part_rows=100
    ) as buffer:
        buffer.save_actor(None, actor)
        for i in range(5):
            buffer.append_rollout(rollout(actor, 60, number * 100 + i, i * 10))


def test_four_processes_write_one_folder(tmp_path: Path) -> None:
    path = tmp_path / "run"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=worker, args=(path, n)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    report = assert_clean(
        path, str(tmp_path / "run.actors" / "actor-{policy_version}.safetensors"), warnings=True
    )
    assert report["dump"]["rows"] == 4 * 5 * 60
    assert report["dump"]["episodes"] == 4 * 15
    table = pq.read_table(path, columns=["episode_id", "timestep", "agent_id"])
    keys = {tuple(row.values()) for row in table.to_pylist()}
    assert len(keys) == 4 * 5 * 60
    assert {key[0] // 10**12 for key in keys} == {0, 1, 2, 3}
    with pytest.raises(api.UsageError, match="another worker number"):
        api.BufferWriter(path, policy=POLICY, worker=2)
    with (
        pytest.raises(api.SampleError, match="episode_id must be"),
        api.BufferWriter(path, policy=POLICY, worker=5) as buffer,
    ):
        buffer.append({**good_step(), "episode_id": 10**12})


def test_a_writer_is_of_the_process_that_opened_it(tmp_path: Path) -> None:
    buffer = api.BufferWriter(tmp_path / "a.parquet", policy=POLICY)
    buffer.append_rollout(rollout(network(), 20))
    child = os.fork()
    if child == 0:
        try:
            buffer.append(good_step())
        except api.UsageError as error:
            os._exit(0 if "worker=" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    buffer.close()
    assert len(pq.read_table(tmp_path / "a.parquet")) == 20


# In the loop


def test_check_batch_finds_what_validate_finds() -> None:
    actor = network()
    columns = rollout(actor, 200)
    keyless = {n: c for n, c in columns.items() if n not in ("episode_id", "timestep", "agent_id")}
    with_new = {**keyless, "new_log_prob": columns["old_log_prob"]}
    report = api.check_batch(with_new, actor, policy=POLICY)
    assert report["verdict"] == "pass"
    assert report["replay"]["worst_error"] < 1e-5
    assert report["summary"]["valid_ratio"] == 1
    assert report["dump"]["assumed"]["columns.episode_id"]["source"] == "not in the batch"
    # One optimiser step too early: the ratio is not 1 any more.
    later = {**with_new, "new_log_prob": columns["old_log_prob"] * 1.01}
    assert "new-log-prob-mismatch" in failing(api.check_batch(later, actor, policy=POLICY))
    # Another network than the one that acted; the columns of another mini-batch.
    assert failing(api.check_batch(keyless, network(5), policy=POLICY))["log-prob-mismatch"] > 150
    rolled = {**keyless, "old_log_prob": columns["old_log_prob"].roll(1)}
    found = api.check_batch(rolled, actor, policy=POLICY)
    assert failing(found)["log-prob-mismatch"] > 150
    shuffled = np.random.default_rng(0).permutation(200)
    mixed = {
        n: [c[i] for i in shuffled] if isinstance(c, list) else c[shuffled] for n, c in columns.items()
    }
    assert api.check_batch(mixed, actor, policy=POLICY)["verdict"] == "pass"
    assert "unsorted-rows" in failing(api.check_batch(mixed, actor, policy=POLICY, select=["all"]))
    with pytest.raises(api.UsageError, match="no rows"):
        api.check_batch({"old_log_prob": []}, actor)


def test_check_batch_leaves_the_network_alone() -> None:
    actor = network().train()
    before = [p.clone() for p in actor.parameters()]
    api.check_batch(rollout(actor, 40), actor, policy=POLICY)
    assert actor.training
    assert all(p.requires_grad for p in actor.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, actor.parameters(), strict=True))


def test_assert_clean_says_what_is_wrong(tmp_path: Path) -> None:
    path, actor = tmp_path / "a.parquet", network()
    with api.BufferWriter(path, policy=POLICY) as buffer:
        buffer.append_rollout(rollout(actor, 60))
    assert assert_clean(path)["verdict"] == "unverified"
    assert assert_clean(path, actor)["verdict"] == "pass"
    with pytest.raises(AssertionError, match=r"error\[LP001\] log-prob-mismatch"):
        assert_clean(path, network(3))
