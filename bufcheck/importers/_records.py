"""Plain containers, as people pickle them, as arrays over time.

A dict of arrays or lists is one rollout; a list of such dicts is one a dict. A list of dicts of single
values is one rollout, a dict a step; a list of lists of those is one rollout a list.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa

from bufcheck.importer import Asked
from bufcheck.importers import _names
from bufcheck.importers._unpickle_parts import (
    Allowed,
    Held,
    Refused,
    Storage,
    Unfinished,
    numbers_of,
)

SEQUENCES = (list, tuple, deque)
MOST_DEPTH = 32
LEAVES_PER_BYTE, FREE_LEAVES = 100, 50_000_000
EXPECTED = "it is neither a dict of arrays nor a list of dicts"


def rollouts(held: Any, size: int, asked: Asked) -> list[dict[str, Any]]:
    """The rollouts in what a file of this many bytes held: columns by name, NumPy or Arrow."""
    leaves = _leaves(held, {}, 0)
    if leaves > LEAVES_PER_BYTE * size + FREE_LEAVES:
        raise Refused(f"it unfolds to {leaves:,} values, far more than its size allows")
    held = plain(held)
    if isinstance(held, dict):
        inner = [
            v for v in held.values() if isinstance(v, SEQUENCES) and v and isinstance(plain(v[0]), dict)
        ]
        if len(inner) != 1 or _names.roles(_texts(held), Asked(), "").keys() & {"reward", "action"}:
            return [columns_of(held)]
        held = inner[0]
    if not isinstance(held, SEQUENCES) or not held:
        raise Refused(EXPECTED)
    items = [plain(item) for item in held]
    if all(isinstance(item, dict) for item in items):
        return [_stacked(items)] if _are_steps(items, asked) else [columns_of(item) for item in items]
    if all(isinstance(item, SEQUENCES) for item in items):
        each = [[plain(step) for step in item] for item in items if item]
        if each and all(isinstance(step, dict) for steps in each for step in steps):
            return [_stacked(steps) for steps in each]
    raise Refused(EXPECTED)


def _leaves(held: Any, known: dict[int, int], depth: int) -> int:
    """How many values this unfolds to; a container named twice is counted twice, but looked at once."""
    if id(held) in known:
        if known[id(held)] < 0:
            raise Refused("it contains itself")
        return known[id(held)]
    if depth > MOST_DEPTH:
        raise Refused("it is nested deeper than any experience")
    if isinstance(held, (dict, *SEQUENCES, set, frozenset)):
        known[id(held)] = -1
        values = held.values() if isinstance(held, dict) else held
        known[id(held)] = sum(_leaves(value, known, depth + 1) for value in values)
        return known[id(held)]
    if isinstance(held, Held):
        return _leaves(held.values, known, depth + 1)
    if isinstance(held, np.ndarray):
        return held.size
    return int(held.numel()) if hasattr(held, "numel") else 1


def plain(held: Any) -> Any:
    """What stands behind a value: the array, not the box it came in."""
    if isinstance(held, Held):
        return held.values
    if isinstance(held, (Unfinished, Storage, Allowed)):
        return None
    if type(held).__module__.partition(".")[0] == "torch" and hasattr(held, "detach"):
        return numbers_of(held)
    if isinstance(held, SEQUENCES) and not isinstance(held, list):
        return list(held)
    return held


def _texts(held: dict[Any, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in held.items()}


def _are_steps(items: list[dict[Any, Any]], asked: Asked) -> bool:
    """Whether each dict is one step: its rewards, or what else is one number a step, are single."""
    roles = _names.roles(_texts(items[0]), Asked(columns=_present(asked, items[0])), "")
    for role in ("reward", "old_log_prob", "done", "terminated", "value"):
        if role in roles:
            values = [_texts(item).get(roles[role]) for item in items]
            return all(np.size(_single(value)) == 1 for value in values)
    return True


def _present(asked: Asked, item: dict[Any, Any]) -> dict[str, str]:
    told = {**asked.config.columns, **asked.columns}
    return {role: name for role, name in told.items() if name in _texts(item)}


def _single(value: Any) -> Any:
    value = plain(value)
    return range(len(value)) if isinstance(value, list) else value


def columns_of(held: dict[Any, Any]) -> dict[str, Any]:
    """The values of a dict that have a length, as arrays; of dicts in it by `outer/inner`."""
    found = {name: array_of(value) for name, value in _leaf_items(held, "")}
    return {name: values for name, values in found.items() if values is not None}


def _leaf_items(held: dict[Any, Any], path: str, depth: int = 0) -> list[tuple[str, Any]]:
    items: list[tuple[str, Any]] = []
    for key, value in held.items():
        value = plain(value)
        if isinstance(value, dict) and depth < 3:
            items += _leaf_items(value, f"{path}{key}/", depth + 1)
        else:
            items.append((f"{path}{key}", value))
    return items


def _stacked(steps: list[dict[Any, Any]]) -> dict[str, Any]:
    """One array a name, for the names that every step has."""
    rows = [dict(_leaf_items(step, "")) for step in steps]
    names = [name for name in rows[0] if all(name in row for row in rows)]
    found = {name: array_of([row[name] for row in rows]) for name in names}
    return {name: values for name, values in found.items() if values is not None}


def array_of(values: Any) -> Any:
    """NumPy for numbers, Arrow for texts and lists of several lengths; None for what is neither."""
    if isinstance(values, np.ndarray):
        return values if values.ndim and values.dtype.kind in "biuf" else _texts_of(values)
    if not isinstance(values, list) or not values:
        return None
    unboxed = [_unboxed(value) for value in values]
    try:
        made = np.asarray(unboxed)
        if made.dtype.kind in "biuf":
            return made
    except (ValueError, OverflowError):
        pass
    try:
        lists = [v.tolist() if isinstance(v, (np.ndarray, np.generic)) else v for v in unboxed]
        found = pa.array(lists)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return None if pa.types.is_null(found.type) or pa.types.is_struct(found.type) else found


def _unboxed(value: Any) -> Any:
    value = plain(value)
    return [_unboxed(inner) for inner in value] if isinstance(value, list) else value


def _texts_of(values: np.ndarray[Any, Any]) -> Any:
    return pa.array(values.tolist()) if values.ndim == 1 and values.dtype.kind == "U" else None
