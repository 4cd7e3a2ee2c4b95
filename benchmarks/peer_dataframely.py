"""The peer of P4: nine rules as dataframely on Polars states them.

`python benchmarks/peer_dataframely.py DUMP`
"""

from __future__ import annotations

import sys

import dataframely as dy
import polars as pl

ACTIONS = 64


class Experience(dy.Schema):
    episode_id = dy.Int64(primary_key=True)
    timestep = dy.Int32(primary_key=True)
    agent_id = dy.String(primary_key=True)
    old_log_prob = dy.Float32(max=1e-6, allow_inf=False, allow_nan=False)
    reward = dy.Float32(allow_inf=False, allow_nan=False)
    value = dy.Float32(allow_inf=False, allow_nan=False)
    advantage = dy.Float32(allow_inf=False, allow_nan=False)
    num_actions = dy.Int32()
    action_index = dy.Int32()
    subset_indices = dy.List(dy.Int32())

    @dy.rule()
    def action_in_range(cls) -> pl.Expr:
        return (pl.col("action_index") >= 0) & (pl.col("action_index") < pl.col("num_actions"))

    @dy.rule()
    def subset_length(cls) -> pl.Expr:
        return pl.col("subset_indices").list.len() == pl.col("num_actions")

    @dy.rule()
    def subset_ids_in_range(cls) -> pl.Expr:
        ids = pl.col("subset_indices")
        return (ids.list.min() >= 0) & (ids.list.max() < ACTIONS)


frame = (
    pl.scan_parquet(sys.argv[1])
    .select(Experience.column_names())
    .with_columns(pl.col("agent_id").cast(pl.String))
)
good, failure = Experience.filter(frame.collect())
print(len(good), failure.counts())
