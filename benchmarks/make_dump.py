"""Writes a large healthy dump: `python benchmarks/make_dump.py OUT ROWS [--dim D] [--one-row-group]`.

Four agents, episodes of 100 steps, 64 actions of which each sample is offered 2 to 16.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

AGENTS, STEPS, ACTIONS = ["a", "b", "c", "d"], 100, 64
BLOCK = 1 << 17


def block(start: int, count: int, dim: int, rng: np.random.Generator) -> pa.Table:
    row = np.arange(start, start + count)
    offered = rng.integers(2, 17, count).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(offered)]).astype(np.int32)
    owner = np.repeat(np.arange(count), offered)
    place = np.arange(offsets[-1]) - offsets[owner]
    # Walking the circle of actions in odd strides names none twice.
    first, stride = rng.integers(0, ACTIONS, count), rng.integers(0, ACTIONS // 2, count) * 2 + 1
    subset = ((first[owner] + stride[owner] * place) % ACTIONS).astype(np.int32)
    episode, step = row // (len(AGENTS) * STEPS), row // len(AGENTS) % STEPS
    numbers = {n: rng.standard_normal(count, np.float32) for n in ("reward", "value", "advantage")}
    agent = pa.array((row % len(AGENTS)).astype(np.int32))
    return pa.table(
        {
            "episode_id": episode,
            "timestep": step.astype(np.int32),
            "agent_id": pa.DictionaryArray.from_arrays(agent, pa.array(AGENTS)),
            "state_embed": pa.FixedSizeListArray.from_arrays(
                rng.standard_normal(count * dim, np.float32), dim
            ),
            "subset_indices": pa.ListArray.from_arrays(offsets, subset),
            "num_actions": offered,
            "action_index": (rng.random(count) * offered).astype(np.int32),
            "old_log_prob": -rng.gamma(2.0, 0.5, count).astype(np.float32) - np.float32(1e-3),
            "policy_version": episode // 50,
            **numbers,
            "return": numbers["value"] + numbers["advantage"],
            "terminated": step == STEPS - 1,
            "truncated": np.zeros(count, bool),
        }
    )


def write(path: Path, rows: int, dim: int = 64, one_row_group: bool = False) -> None:
    rng = np.random.default_rng(0)
    described = {
        "schema": "experience/1",
        "rows": rows,
        "policy": {"distribution": "categorical", "logits": "gather", "action_space": ACTIONS},
    }
    blocks = (block(at, min(BLOCK, rows - at), dim, rng) for at in range(0, rows, BLOCK))
    first = next(blocks)
    schema = first.schema.with_metadata({"bufcheck": json.dumps(described)})
    with pq.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        if one_row_group:
            whole = pa.concat_tables([first, *blocks]).cast(schema)
            writer.write_table(whole, row_group_size=rows)
        else:
            writer.write_table(first.cast(schema))
            for table in blocks:
                writer.write_table(table.cast(schema))
    os.sync()  # or writing it back would slow whatever is measured next


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("rows", type=int)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--one-row-group", action="store_true")
    given = parser.parse_args()
    write(given.out, given.rows, given.dim, given.one_row_group)
