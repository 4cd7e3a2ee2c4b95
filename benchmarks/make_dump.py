"""Writes a large healthy dump: `python benchmarks/make_dump.py OUT ROWS [--dim D] [--one-row-group]`.

Four agents, episodes of 100 steps, 64 actions of which each sample is offered 2 to 16. With
`--actor FILE.safetensors` a network of two hidden layers of 64 acted, and is written there. With
`--bad SHARE` that share of the rows holds a NaN for a reward.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

AGENTS, STEPS, ACTIONS, HIDDEN = ["a", "b", "c", "d"], 100, 64, 64
BLOCK = 1 << 17


def network(dim: int) -> list[np.ndarray]:
    """Weights of dim → 64 → 64 → ACTIONS, with tanh between: the default of Stable-Baselines3."""
    rng = np.random.default_rng(1)
    sizes = [dim, HIDDEN, HIDDEN, ACTIONS]
    pairs = itertools.pairwise(sizes)
    return [(rng.standard_normal((a, b)) / np.sqrt(a)).astype(np.float32) for a, b in pairs]


def save_network(path: Path, weights: list[np.ndarray]) -> None:
    from safetensors.numpy import save_file

    layers: list[dict[str, object]] = []
    for weight in weights:
        size = {"in_features": weight.shape[0], "out_features": weight.shape[1], "bias": False}
        layers += [{"type": "Linear", **size}, {"type": "Tanh"}]
    shape = [weights[0].shape[0]]
    described = {"format": "bufcheck.actor/1", "layers": layers[:-1], "state_shape": shape, "notes": []}
    tensors = {f"{2 * i}.weight": weight.T.copy() for i, weight in enumerate(weights)}
    save_file(tensors, path, {"bufcheck.actor": json.dumps(described)})


def act(
    states: np.ndarray,
    offsets: np.ndarray,
    subset: np.ndarray,
    weights: list[np.ndarray],
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Which of its subset each row takes, and with what log-prob."""
    hidden = states
    for weight in weights[:-1]:
        hidden = np.tanh(hidden @ weight)
    owner = np.repeat(np.arange(len(states)), np.diff(offsets))
    logits = (hidden @ weights[-1])[owner, subset].astype(np.float64)
    starts = offsets[:-1]
    top = np.maximum.reduceat(logits, starts)
    total = np.log(np.add.reduceat(np.exp(logits - top[owner]), starts)) + top
    noisy = logits + rng.gumbel(size=len(logits))
    best = np.flatnonzero(noisy == np.maximum.reduceat(noisy, starts)[owner])
    return (best - starts).astype(np.int32), (logits[best] - total).astype(np.float32)


def block(
    start: int, count: int, dim: int, rng: np.random.Generator, weights: list[np.ndarray] | None
) -> pa.Table:
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
    states = rng.standard_normal(count * dim, np.float32)
    action = (rng.random(count) * offered).astype(np.int32)
    log_prob = -rng.gamma(2.0, 0.5, count).astype(np.float32) - np.float32(1e-3)
    if weights:
        action, log_prob = act(states.reshape(count, dim), offsets, subset, weights, rng)
    agent = pa.array((row % len(AGENTS)).astype(np.int32))
    return pa.table(
        {
            "episode_id": episode,
            "timestep": step.astype(np.int32),
            "agent_id": pa.DictionaryArray.from_arrays(agent, pa.array(AGENTS)),
            "state_embed": pa.FixedSizeListArray.from_arrays(states, dim),
            "subset_indices": pa.ListArray.from_arrays(offsets, subset),
            "num_actions": offered,
            "action_index": action,
            "old_log_prob": log_prob,
            "policy_version": episode // 50,
            **numbers,
            "return": numbers["value"] + numbers["advantage"],
            "terminated": step == STEPS - 1,
            "truncated": np.zeros(count, bool),
        }
    )


def spoilt(table: pa.Table, share: float, rng: np.random.Generator) -> pa.Table:
    reward = table.column("reward").to_numpy().copy()
    reward[rng.random(len(reward)) < share] = np.nan
    return table.set_column(table.schema.get_field_index("reward"), "reward", pa.array(reward))


def write(
    path: Path, rows: int, dim: int, one_row_group: bool, actor: Path | None, bad: float = 0.0
) -> None:
    rng = np.random.default_rng(0)
    weights = network(dim) if actor else None
    if actor and weights:
        save_network(actor, weights)
    described = {
        "schema": "experience/1",
        "rows": rows,
        "policy": {"distribution": "categorical", "logits": "gather", "action_space": ACTIONS},
    }
    blocks = (block(at, min(BLOCK, rows - at), dim, rng, weights) for at in range(0, rows, BLOCK))
    if bad:
        blocks = (spoilt(table, bad, rng) for table in blocks)
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
    parser.add_argument("--actor", type=Path)
    parser.add_argument("--bad", type=float, default=0.0)
    given = parser.parse_args()
    write(given.out, given.rows, given.dim, given.one_row_group, given.actor, given.bad)
