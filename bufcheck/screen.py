"""Could a row break a rule about single rows? A quick answer in NumPy, for trainers that are running.

It may cry wolf and must not miss: the rows it points at are judged by the rules' own SQL. A test holds
it to every case of every such rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bufcheck import vectors
from bufcheck.fields import Field, Fields
from bufcheck.vectors import Array, Rows

NUMBERS = ("old_log_prob", "new_log_prob", "reward", "value", "advantage", "return", "entropy")
VECTORS = ("state_embed", "action", "action_mean", "action_std")
NEAR = 9e-5
"""Under every tolerance: two log-probs that lie closer are equal to any rule."""
ROUNDING = 5e-7
"""Half of what positive-log-prob and single-action-log-prob forgive."""


def suspects(fields: Fields, policy: Mapping[str, Any]) -> Array:
    """The rows that some rule may be broken by."""
    with np.errstate(all="ignore"):
        found = _not_finite(fields)
        log_prob = fields["old_log_prob"].values
        if "timestep" in fields:
            found |= fields["timestep"].values < 0
        if "new_log_prob" in fields:
            found |= abs(fields["new_log_prob"].values - log_prob) > NEAR
        if "state_embed" in fields:
            silent = log_prob == 0
            if silent.any():
                found[silent] |= ~fields["state_embed"].values[silent].any(axis=1)
        if policy["distribution"] == "categorical":
            found |= log_prob > ROUNDING
            found |= _of_choice(fields, policy)
    return np.flatnonzero(found)


def _not_finite(fields: Fields) -> Array:
    found: Array = np.zeros(fields["old_log_prob"].rows, bool)
    for name in NUMBERS:
        if name in fields:
            found |= ~np.isfinite(fields[name].values)
    for name in VECTORS:
        if name in fields:
            values = fields[name].values
            # A sum is not finite where an entry is not; where finite entries overflow, wolf is cried.
            found |= ~np.isfinite(np.einsum("ij->i", values))
    return found


def _of_choice(fields: Fields, policy: Mapping[str, Any]) -> Array:
    """Subset, mask, logits and the action chosen among them."""
    count = fields["num_actions"].values
    index = fields["action_index"].values
    found: Array = (count <= 0) | (index < 0) | (index >= count)
    if policy["subset"] == "all" and policy["action_space"]:
        found |= count != policy["action_space"]
    legal = count
    log_prob = fields["old_log_prob"].values
    subset, mask, logits = (fields.get(n) for n in ("subset_indices", "action_mask", "logits"))
    for ragged in (subset, mask, logits):
        if ragged is not None:
            found |= ragged.lengths != count
    if subset is not None:
        found |= _of_subset(subset, policy)
    if "action_id" in fields:
        chosen = _chosen(subset, index) if subset is not None else index
        found |= fields["action_id"].values != chosen
    if mask is not None:
        assert mask.offsets is not None
        legal = vectors.count_true(mask.values, mask.offsets)
        found |= (legal == 0) | (_chosen(mask, index) != 1)
    found |= (legal == 1) & (abs(log_prob) > ROUNDING)
    if logits is not None:
        told = vectors.log_prob_of(
            _rows(logits), _rows(mask), index, policy["temperature"], policy["masked_logit"]
        )
        found |= ~(abs(told - log_prob) <= NEAR)
    return found


def _of_subset(subset: Field, policy: Mapping[str, Any]) -> Array:
    rows = _rows(subset)
    assert rows is not None
    most = policy["action_space"]
    stray = (subset.values < 0) | (subset.values >= (most if most is not None else np.inf))
    found: Array = vectors.has_duplicate(rows)
    return found | (vectors.count_true(stray, rows.offsets) > 0) if stray.any() else found


def _rows(field: Field | None) -> Any:
    if field is None:
        return None
    offsets = np.asarray(field.offsets, np.int64)
    width = int(offsets[1]) if (field.lengths == offsets[1]).all() else None
    return Rows(field.values, offsets, None, width)


def _chosen(field: Field, index: Array) -> Array:
    """The entry that the index names; -1 where it names none."""
    assert field.offsets is not None
    inside = (index >= 0) & (index < field.lengths)
    place = np.where(inside, field.offsets[:-1] + index, 0)
    if not len(field.values):
        return np.full(len(index), -1)
    return np.where(inside, field.values[place], -1)
