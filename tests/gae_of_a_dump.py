"""Advantages computed anew, in plain NumPy, from nothing but a dump's columns and metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Array = np.ndarray[Any, Any]


def read(folder: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Scalar columns of all parts, and the metadata of the first."""
    tables = [pq.read_table(part) for part in sorted(folder.glob("*.parquet"))]
    metadata = json.loads(tables[0].schema.metadata[b"bufcheck"])
    whole = pa.concat_tables(tables)
    flat = [f.name for f in whole.schema if not pa.types.is_nested(f.type)]
    return {name: whole[name].to_numpy() for name in flat}, metadata


def recomputed(columns: dict[str, Array], told: dict[str, Any]) -> Array:
    """GAE by its textbook: each piece of an episode backwards, as `told` (metadata.advantage) says."""
    assert told["normalization"] in ("none", "rollout")
    gamma, decay = told["gamma"], told["gamma"] * told["gae_lambda"]
    found = np.full(len(columns["reward"]), np.nan)
    pieces: dict[tuple[int, str], list[int]] = {}
    for row, key in enumerate(zip(columns["episode_id"], columns["agent_id"], strict=True)):
        pieces.setdefault(key, []).append(row)
    for rows in pieces.values():
        rows.sort(key=columns["timestep"].__getitem__)
        after, follows = 0.0, None
        for row in reversed(rows):
            if columns["terminated"][row]:
                next_value = after = 0.0
            elif columns["truncated"][row] or follows is None:
                folded = columns["truncated"][row] and told["truncation"] != "bootstrap_value"
                next_value = 0.0 if folded else float(columns["bootstrap_value"][row])
                after = 0.0
            else:
                next_value = float(columns["value"][follows])
            delta = columns["reward"][row] + gamma * next_value - columns["value"][row]
            found[row] = after = delta + decay * after
            follows = row
    if told["normalization"] == "rollout":
        for version in np.unique(columns["policy_version"]):
            mine = columns["policy_version"] == version
            found[mine] = (found[mine] - found[mine].mean()) / found[mine].std(ddof=1)
    return found
