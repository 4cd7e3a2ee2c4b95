"""Writes the same rollouts in one of three ways, and prints the seconds it took and the CPU seconds.

`python benchmarks/bare_write.py writer|rollouts|table OUT ROLLOUTS ROWS DIM`: BufferWriter, which checks
and verifies; or pyarrow with its defaults, rollout by rollout or all in one table. Arrays are made before
the clock starts, and pyarrow's columns of them after.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import bufcheck

ACTIONS, MOST, DIFFERENT = 64, 16, 8
POLICY = {"distribution": "categorical", "logits": "gather", "action_space": ACTIONS}

Columns = dict[str, Any]


def rollout(number: int, rows: int, dim: int) -> Columns:
    """Subsets of 2 to 16 of 64 actions, padded as trainers keep them."""
    rng = np.random.default_rng(number)
    offered = rng.integers(2, MOST + 1, rows).astype(np.int32)
    first, stride = rng.integers(0, ACTIONS, rows), rng.integers(0, ACTIONS // 2, rows) * 2 + 1
    subsets = (first[:, None] + stride[:, None] * np.arange(MOST)) % ACTIONS
    numbers = {n: rng.standard_normal(rows, np.float32) for n in ("reward", "value", "advantage")}
    return {
        "timestep": np.arange(rows, dtype=np.int32),
        "state_embed": rng.standard_normal((rows, dim), np.float32),
        "subset_indices": subsets.astype(np.int32),
        "num_actions": offered,
        "action_index": (rng.random(rows) * offered).astype(np.int32),
        "old_log_prob": -rng.gamma(2.0, 0.5, rows).astype(np.float32) - np.float32(1e-3),
        **numbers,
        "return": numbers["value"] + numbers["advantage"],
        "terminated": np.zeros(rows, bool),
        "truncated": np.zeros(rows, bool),
    }


def rollouts(count: int, rows: int, dim: int) -> list[Columns]:
    made = [rollout(number, rows, dim) for number in range(DIFFERENT)]
    episodes = [np.full(rows, number, np.int64) for number in range(count)]
    agents = np.full(rows, "agent", object)
    return [
        {"episode_id": episode, "agent_id": agents, **made[number % DIFFERENT]}
        for number, episode in enumerate(episodes)
    ]


def as_table(columns: Columns) -> pa.Table:
    """The same columns as a trainer's author would build them."""
    counts, dim = columns["num_actions"], columns["state_embed"].shape[1]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    flat = columns["subset_indices"][np.arange(MOST) < counts[:, None]]
    arrays = {name: pa.array(values) for name, values in columns.items() if values.ndim == 1}
    arrays["state_embed"] = pa.FixedSizeListArray.from_arrays(
        pa.array(columns["state_embed"].reshape(-1)), dim
    )
    arrays["subset_indices"] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat))
    return pa.table(arrays)


def write(how: str, path: Path, given: list[Columns]) -> None:
    if how == "writer":
        with bufcheck.BufferWriter(path, policy=POLICY) as buffer:
            for columns in given:
                buffer.append_rollout(columns)
    elif how == "rollouts":
        with pq.ParquetWriter(path, as_table(given[0]).schema) as file:
            for columns in given:
                file.write_table(as_table(columns))
    else:
        pq.write_table(pa.concat_tables([as_table(columns) for columns in given]), path)


if __name__ == "__main__":
    how, out, *sizes = sys.argv[1:]
    made = rollouts(*map(int, sizes))
    write(how, Path(f"{out}.warm-up.parquet"), made[:1])  # what is imported only then
    wall, cpu = time.perf_counter(), time.process_time()
    write(how, Path(out), made)
    print(time.perf_counter() - wall, time.process_time() - cpu)
