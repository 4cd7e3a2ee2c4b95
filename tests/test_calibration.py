"""sampling-miscalibrated: silent on clean dumps, whatever the policy; loud on ways to mis-sample.

The actor is the identity: a state is its own logits, so that a dump of any policy is quickly made.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import CAMPAIGN

from bufcheck import pipeline

A = 12
Chances = Any
Sampler = Callable[[Chances], Chances]


def simulate(
    path: Path,
    rng: np.random.Generator,
    rows: int = 3000,
    sharpness: float = 1.5,
    agents: int = 3,
    versions: int = 2,
    sampler: Sampler = lambda chances: chances,
) -> None:
    """A dump whose actions are drawn from sampler(policy), with the policy's own log-probs."""
    logits = (rng.standard_normal((rows, A)) * sharpness).astype(np.float32)
    sizes = rng.integers(1, 9, rows)
    order = rng.permuted(np.tile(np.arange(A), (rows, 1)), axis=1)
    offered = np.arange(A) < sizes[:, None]
    local = np.where(offered, np.take_along_axis(logits, order, 1).astype(float), -np.inf)
    chances = np.exp(local - local.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    drawn = sampler(chances).cumsum(1)
    action = (rng.random(rows)[:, None] * drawn[:, -1:] > drawn).sum(1)
    told = np.log(chances[np.arange(rows), action])
    row = np.arange(rows)
    table = pa.table(
        {
            "episode_id": row // (agents * 20),
            "timestep": (row // agents % 20).astype(np.int32),
            "agent_id": pa.array([f"a{i % agents}" for i in range(rows)]).dictionary_encode(),
            "state_embed": pa.FixedSizeListArray.from_arrays(logits.reshape(-1), A),
            "subset_indices": pa.array(
                [o[:k] for o, k in zip(order, sizes, strict=True)], pa.list_(pa.int32())
            ),
            "num_actions": sizes.astype(np.int32),
            "action_index": action.astype(np.int32),
            "old_log_prob": told.astype(np.float32),
            "policy_version": row * versions // rows,
        }
    )
    metadata = {"schema": "experience/1", "rows": rows, "policy": {"action_space": A}}
    pq.write_table(table.replace_schema_metadata({"bufcheck": json.dumps(metadata)}), path)


def fires(path: Path) -> bool:
    options = pipeline.Options(select=["LP001", "LP002"], actor=torch.nn.Identity())
    report = pipeline.validate([str(path)], options)
    status = {rule["code"]: rule["status"] for rule in report["rules"]}
    assert status["LP001"] == "pass"
    return bool(status["LP002"] == "fail")


def test_clean_dumps_raise_no_alarm(tmp_path: Path) -> None:
    """At most two in 2,000, where one in 10,000 is meant: policies from uniform to all but certain."""
    rng = np.random.default_rng(11)
    alarms = []
    for seed in range(2000 if CAMPAIGN else 200):
        made: dict[str, Any] = {
            "rows": int(rng.choice([40, 200, 1000, 3000])),
            "sharpness": float(rng.choice([0.05, 0.5, 1.5, 4.0, 12.0])),
            "agents": int(rng.integers(1, 4)),
            "versions": int(rng.integers(1, 5)),
        }
        simulate(tmp_path / "dump.parquet", rng, **made)
        if fires(tmp_path / "dump.parquet"):
            alarms.append((seed, made))
    assert len(alarms) <= (2 if CAMPAIGN else 0), alarms


def tempered(temperature: float) -> Sampler:
    def sample(chances: Chances) -> Chances:
        raised: Chances = chances ** (1 / temperature)
        return raised / raised.sum(1, keepdims=True)

    return sample


def explore(chances: Chances) -> Chances:
    legal = chances > 0
    return 0.9 * chances + 0.1 * legal / legal.sum(1, keepdims=True)


def top_p(chances: Chances) -> Chances:
    order = np.argsort(-chances, 1)
    ranked = np.take_along_axis(chances, order, 1)
    kept = np.zeros_like(chances)
    np.put_along_axis(kept, order, np.where(ranked.cumsum(1) - ranked < 0.9, ranked, 0), 1)
    return kept / kept.sum(1, keepdims=True)


def argmax(chances: Chances) -> Chances:
    return (chances == chances.max(1, keepdims=True)).astype(float)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "sampler",
    [tempered(0.7), tempered(1.5), explore, top_p, argmax],
    ids=["temperature 0.7", "temperature 1.5", "epsilon 0.1", "top-p 0.9", "argmax"],
)
def test_other_sampling_is_found(sampler: Sampler, seed: int, tmp_path: Path) -> None:
    path = tmp_path / "dump.parquet"
    simulate(path, np.random.default_rng(seed), sampler=sampler)
    assert fires(path)
