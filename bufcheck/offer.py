"""What rows were offered, and what a softmax over that gives: pieces of a counterfactual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bufcheck import vectors
from bufcheck.vectors import Array

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Offer:
    """[rows, places]: what rows were offered, padded."""

    ids: Array
    offered: Array
    legal: Array
    """What the action mask allows."""

    @property
    def sizes(self) -> Array:
        found: Array = self.offered.sum(1)
        return found


def offers(rows: pa.RecordBatch, at: Array, policy: Mapping[str, Any], actions: int) -> Offer:
    """What these rows were offered, as the dump's policy says; a place −1 in `at` nothing."""
    some = rows.take(vectors.as_arrow(np.maximum(at, 0)))
    names, count = rows.schema.names, len(at)
    if policy["logits"] == "prefix" and "num_actions" in names:
        sizes = vectors.as_numpy(some.column("num_actions"), 0)
        sizes = np.clip(sizes.astype(np.int64), 0, actions)
        ids = np.broadcast_to(np.arange(int(sizes.max(initial=1))), (count, int(sizes.max(initial=1))))
    elif "subset_indices" in names:
        ids, sizes = padded(some.column("subset_indices"))
    else:
        sizes = np.full(count, actions)
        ids = np.broadcast_to(np.arange(actions), (count, actions))
    offered = np.arange(ids.shape[1]) < sizes[:, None]
    offered &= (at >= 0)[:, None] & (ids >= 0) & (ids < actions)
    legal = np.ones_like(offered)
    if "action_mask" in names:
        mask, lengths = padded(some.column("action_mask"))
        width = min(mask.shape[1], legal.shape[1])
        legal[:, :width] = mask[:, :width].astype(bool)
        legal &= np.arange(legal.shape[1]) < lengths[:, None]
    return Offer(np.clip(ids, 0, actions - 1), offered, legal)


def padded(column: pa.Array) -> tuple[Array, Array]:
    """[rows, places] and how many each row has."""
    opened = vectors.open_rows(column)
    lengths = opened.lengths
    width = max(1, int(lengths.max(initial=1)))
    table: Array = np.zeros((len(lengths), width), opened.values.dtype)
    table[np.arange(width) < lengths[:, None]] = opened.values
    return table, lengths


def hashed(column: pa.Array) -> Array:
    """Equal where values are, with the odd accident."""
    import pyarrow as pa

    if not pa.types.is_nested(column.type):
        plain: Array = vectors.as_numpy(column, -1)
        return plain.astype(np.int64).astype(np.uint64)
    opened = vectors.open_rows(column)
    place = np.arange(len(opened.values)) - np.repeat(opened.offsets[:-1], opened.lengths)
    mixed = opened.values.astype(np.int64).astype(np.uint64) + np.uint64(1)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed ^= (place.astype(np.uint64) + np.uint64(1)) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    total = np.zeros(len(mixed) + 1, np.uint64)
    np.cumsum(mixed, out=total[1:])
    found: Array = total[opened.offsets[1:]] - total[opened.offsets[:-1]]
    return found


def take(table: Array, places: Array) -> Array:
    """table[i, places[i, j]]"""
    return np.take_along_axis(table, places, 1)


def pick(table: Array, places: Array) -> Array:
    """table[i, places[i]]; NaN where the place is none of the table's."""
    inside = (places >= 0) & (places < table.shape[1])
    found = table[np.arange(len(table)), np.where(inside, places, 0)].astype(np.float64)
    return np.where(inside, found, np.nan)


def log_softmax(logits: Array) -> Array:
    return logits - log_sum(logits)[:, None]


def log_sum(logits: Array) -> Array:
    """log of the sum of exp, row by row; NaN where nothing is finite."""
    with np.errstate(all="ignore"):
        top = logits.max(1, initial=-np.inf)
        top = np.where(np.isfinite(top), top, np.nan)
        total: Array = np.log(np.exp(logits - top[:, None]).sum(1)) + top
    return total
