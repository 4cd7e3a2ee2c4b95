"""Faults no catalogue holds, and shuffled columns: made here, in NumPy, with the truth beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from worlds import Array, Rows, World, log_probs_of, outputs_of, replayed

NEAR, ROUNDING = 4e-6, 1e-6
"""How near a source must lie; how far two replays of one log-prob may lie apart."""


def noise(world: World, rows: Rows, rng: Any) -> Array:
    """Numbers of about the right size."""
    stored = rows.numbers("old_log_prob")
    found: Array = stored + rng.normal(0, 0.3, len(stored))
    return found


def summed_over_agents(world: World, rows: Rows, rng: Any) -> Array:
    """One log-prob for the joint action, in every agent's row."""
    stored = rows.numbers("old_log_prob")
    steps = np.stack([rows.numbers("episode_id"), rows.numbers("timestep")], axis=1)
    _, step = np.unique(steps, axis=0, return_inverse=True)
    return np.bincount(step.ravel(), stored)[step.ravel()]


def blended_actors(world: World, rows: Rows, rng: Any) -> Array:
    """Half the logits of its own actor, half those of another nobody would think of."""
    own, other = outputs_of(world, rows), _strangers(world, rows, rng)
    return log_probs_of(world, rows, 0.5 * own + 0.5 * other)


def unsaved_actor(world: World, rows: Rows, rng: Any) -> Array:
    """Weights that were never written."""
    return log_probs_of(world, rows, _strangers(world, rows, rng))


def _strangers(world: World, rows: Rows, rng: Any) -> Array:
    """What each row's actor would say after an update that no file holds."""
    lost = {
        who: [(w + rng.normal(0, 0.2 * w.std(), w.shape), b) for w, b in layers]
        for who, layers in world.layers.items()
    }
    changed = World(world.name, world.dumps, world.actor, lost, world.versions, world.policy)
    return outputs_of(changed, rows)


UNKNOWN: dict[str, Callable[[World, Rows, Any], Array]] = {
    "noise": noise,
    "summed-over-agents": summed_over_agents,
    "blended-actors": blended_actors,
    "unsaved-actor": unsaved_actor,
}
NEEDS = {"summed-over-agents": "agents"}
"""What a world must have."""


def spoil(world: World, target: Path, name: str, unit: str, fraction: float, seed: int) -> Array:
    """Writes the dump with some of its log-probs replaced; returns which rows."""
    [source] = world.dumps
    table = pq.read_table(source)
    rows, rng = Rows(table), np.random.default_rng([seed, 23])
    hit = chosen(rows, unit, fraction, rng)
    stored = np.where(hit, UNKNOWN[name](world, rows, rng), rows.numbers("old_log_prob"))
    _replace(table, stored, target)
    return np.flatnonzero(hit)


def chosen(rows: Rows, unit: str, fraction: float, rng: Any) -> Array:
    if unit == "rows":
        count = len(rows.table)
        return np.isin(np.arange(count), rng.choice(count, round(fraction * count), replace=False))
    episodes = rows.numbers("episode_id")
    known = np.unique(episodes)
    some = rng.choice(known, max(1, round(fraction * len(known))), replace=False)
    return np.isin(episodes, some)


def _replace(table: pa.Table, stored: Array, target: Path) -> None:
    at = table.schema.get_field_index("old_log_prob")
    kind = table.schema.field(at).type
    changed = table.set_column(at, "old_log_prob", pa.array(stored.astype(kind.to_pandas_dtype())))
    pq.write_table(
        changed.replace_schema_metadata(table.schema.metadata), target, write_page_checksum=True
    )


def permuted(world: World, target: Path, how: Callable[[Array, Any], Array], seed: int) -> Array:
    """Writes the dump with its log-probs in another order; returns the row each one was taken from."""
    [source] = world.dumps
    table = pq.read_table(source)
    origin = how(np.arange(len(table)), np.random.default_rng([seed, 29]))
    _replace(table, Rows(table).numbers("old_log_prob")[origin], target)
    return origin


def globally(rows: Array, rng: Any) -> Array:
    found: Array = rng.permutation(rows)
    return found


def in_blocks(size: int, first: int = 0) -> Callable[[Array, Any], Array]:
    """Each block of rows among themselves; the first of them starts at row `first`."""

    def how(rows: Array, rng: Any) -> Array:
        origin = rows.copy()
        for start in range(first, len(rows), size):
            origin[start : start + size] = rng.permutation(origin[start : start + size])
        return origin

    return how


def unique_within(world: World, dump: Path, stored: Array, tolerance: float) -> Array:
    """Which stored log-probs lie near one row's replayed log-prob only."""
    known = np.sort(replayed(world, [dump]))
    near = np.searchsorted(known, stored + tolerance) - np.searchsorted(known, stored - tolerance)
    unique: Array = near == 1
    return unique
