"""What a trainer hands over, as columns: tensors, arrays or lists, detached, copied, and checked.

What cannot be meant (a float for an index, `[N, 1]` for `[N]`) is
a SampleError that names the column and, where one is to blame, the sample.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bufcheck import schema
from bufcheck.errors import SampleError
from bufcheck.fields import Field, Fields
from bufcheck.vectors import Array

if TYPE_CHECKING:
    from bufcheck.schema import Column

CONSTANTS = {"episode_id", "timestep", "agent_id", "num_actions", "policy_version", "env_id", "seed"}
CONSTANTS |= {"source", "group", "valid", "terminated", "truncated"}
"""One value for all rows is meant so in these; elsewhere it is a broadcast that nobody meant."""
INTEGERS = {np.dtype(kind): np.iinfo(kind) for kind in (np.int32, np.int64)}
INT32 = INTEGERS[np.dtype(np.int32)]


def fields_of(given: Mapping[str, Any], rows: int, policy: Mapping[str, Any]) -> Fields:
    """Every column of these rows. `num_actions` is filled in where subsets or the policy tell it."""
    known = schema.load().columns
    for name in given:
        if name not in known and not name.startswith(schema.OWN_COLUMN):
            raise SampleError(f"unknown column {name!r}", _meant(name, known))
    found = {
        name: _field(known.get(name), name, value, rows)
        for name, value in given.items()
        if value is not None and not (name in known and known[name].is_ragged)
    }
    lengths = found["num_actions"].values if "num_actions" in found else None
    for name, value in given.items():
        if name in known and known[name].is_ragged and value is not None:
            found[name] = _ragged(known[name], value, rows, lengths)
    if lengths is None and policy["distribution"] == "categorical":
        count = None
        if "subset_indices" in found:
            count = found["subset_indices"].lengths.astype(np.int32)
        elif policy["subset"] == "all" and policy["action_space"]:
            count = np.full(rows, policy["action_space"], np.int32)
        if count is not None:
            found["num_actions"] = Field(count)
    return {name: found[name] for name in [*known, *found] if name in found}


def _meant(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}? " if near else ""
    return (
        f"{hint}columns of your own start with {schema.OWN_COLUMN}; `bufcheck schema` lists the others"
    )


def count_rows(given: Mapping[str, Any]) -> int:
    """How many rows are handed over: told by the log-probs, which every row has."""
    told = given.get("old_log_prob")
    if told is None:
        raise SampleError("old_log_prob is missing", "store it when the action is sampled")
    found = as_array("old_log_prob", told)
    if found.ndim != 1:
        raise SampleError(
            f"old_log_prob has shape {list(found.shape)}, expected one number a row", _flatten(found)
        )
    return len(found)


def as_array(name: str, value: Any) -> Array:
    """Tensors detached, moved and read as NumPy does; not yet a copy."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()  # NumPy has no such type; float32 holds every value of it
        value = value.numpy()
    elif isinstance(value, (list, tuple)) and any(hasattr(entry, "detach") for entry in value):
        value = [as_array(name, entry) for entry in value]
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise SampleError(_uneven(name, value, str(error))) from None


def _uneven(name: str, value: Any, error: str) -> str:
    """Which of the rows is not like the first."""
    shapes = [np.shape(entry) for entry in value] if isinstance(value, (list, tuple)) else []
    for at, shape in enumerate(shapes):
        if shape != shapes[0]:
            return f"{name} of sample {at} has shape {list(shape)}, sample 0 has {list(shapes[0])}"
    return f"{name} cannot be read as numbers ({error.splitlines()[0][:100]})"


def _flatten(found: Array) -> str:
    if found.ndim == 2 and found.shape[1] == 1:
        return "squeeze its last axis: an [N, 1] beside an [N] is how rows get broadcast"
    return "hand over one row per (episode, timestep, agent), or use append_envs for [time, env, …]"


def _field(column: Column | None, name: str, value: Any, rows: int) -> Field:
    if column is None:
        return _own(name, value, rows)
    value, null = _without_nulls(column, value)
    if column.kind == "string" and ("int64" not in column.types or _is_text(value)):
        return Field(_texts(name, value, rows), null=null)
    found = as_array(name, value)
    if column.is_vector:
        return Field(_vectors(column, found, rows))
    return Field(_scalars(column, _one_a_row(name, found, rows)), null=null)


def _without_nulls(column: Column, value: Any) -> tuple[Any, Array | None]:
    """A list with something in the place of each None, and where that was."""
    if not isinstance(value, (list, tuple)) or all(entry is not None for entry in value):
        return value, None
    null = np.array([entry is None for entry in value])
    if not column.nullable:
        raise SampleError(f"{column.name} of sample {int(null.argmax())} is missing")
    nothing: Any = "" if any(isinstance(entry, str) for entry in value) else 0
    return [nothing if entry is None else entry for entry in value], null


def _one_a_row(name: str, found: Array, rows: int) -> Array:
    if found.ndim == 0 and (name in CONSTANTS or rows == 1):
        return np.full(rows, found)
    if found.ndim == 0:
        raise SampleError(f"{name} is one value for {rows} rows", "hand over one value a row")
    if found.ndim > 1:
        raise SampleError(f"{name} has shape {list(found.shape)}, expected [{rows}]", _flatten(found))
    if len(found) != rows:
        raise SampleError(f"{name} has {len(found)} rows, old_log_prob has {rows}")
    return found


def _scalars(column: Column, found: Array) -> Array:
    if column.kind == "bool":
        return _truths(column.name, found)
    if column.kind == "float":
        return _floats(column, found)
    if found.dtype.kind not in "iu":
        raise SampleError(f"{column.name} is {found.dtype}, expected integers", _cast_hint(found))
    target = np.dtype(np.int64 if "int64" in column.types else np.int32)
    if not np.can_cast(found.dtype, target):
        limits = INTEGERS[target]
        outside = (found < limits.min) | (found > limits.max)
        if outside.any():
            at = int(np.flatnonzero(outside)[0])
            raise SampleError(f"{column.name} of sample {at} is {found[at]}, too large for {target}")
    return found.astype(target)


def _cast_hint(found: Array) -> str:
    if found.dtype.kind == "f":
        return "index with integers, and store those"
    return "hand over an integer array or tensor"


def _truths(name: str, found: Array) -> Array:
    """Booleans, or the 0 and 1 that many trainers keep instead."""
    if found.dtype.kind != "b" and not np.isin(found, (0, 1)).all():
        at = int(np.flatnonzero(~np.isin(found, (0, 1)))[0])
        raise SampleError(f"{name} of sample {at} is {found[at]}, expected true or false")
    return found.astype(bool)


def _floats(column: Column, found: Array) -> Array:
    if found.dtype.kind not in "fiu":
        raise SampleError(f"{column.name} is {found.dtype}, expected floats")
    if found.dtype.kind != "f":
        return found.astype(np.float64)
    name = f"float{8 * found.dtype.itemsize}"
    return found.astype(name if name in column.types else np.float32)


def _vectors(column: Column, found: Array, rows: int) -> Array:
    if found.dtype.kind not in "fiub":
        raise SampleError(f"{column.name} is {found.dtype}, expected floats")
    if found.ndim < 1 or len(found) != rows:
        what = f"has {len(found)} rows" if found.ndim else "is one number"
        raise SampleError(f"{column.name} {what}, old_log_prob has {rows}")
    if found.ndim == 1 and column.name == "state_embed":
        raise SampleError(
            f"state_embed has shape {list(found.shape)}: one number a row", "hand over [rows, numbers]"
        )
    # A copy, always: an observation that the environment goes on writing to is a classic.
    return np.array(found.reshape(rows, -1), np.float32)


def _is_text(value: Any) -> bool:
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return isinstance(first, str) or getattr(first, "dtype", np.dtype(int)).kind in "UO"


def _texts(name: str, value: Any, rows: int) -> Array:
    """Texts as objects; agents may be numbered."""
    if isinstance(value, (str, int)):
        return np.full(rows, str(value), object)
    found = _one_a_row(name, as_array(name, value), rows)
    if found.dtype.kind not in "UOiu":
        raise SampleError(f"{name} is {found.dtype}, expected texts or integers")
    if set(map(type, found.tolist())) == {str}:
        return found.astype(object)
    return found.astype(str).astype(object)


def _own(name: str, value: Any, rows: int) -> Field:
    """A column of the user's, carried as it is: numbers, truths or texts, a row of any shape."""
    found = as_array(name, value)
    if found.ndim == 0:
        found = np.full(rows, found)
    if len(found) != rows:
        raise SampleError(f"{name} has {len(found)} rows, old_log_prob has {rows}")
    if found.dtype.kind == "U":
        found = found.astype(object)
    if found.dtype.kind not in "biuf" and not (found.dtype.kind == "O" and found.ndim == 1):
        raise SampleError(f"{name} is {found.dtype}, which a dump cannot hold")
    native = found.dtype.newbyteorder("=")  # Arrow knows no other
    return Field(np.array(found.reshape(rows, -1) if found.ndim > 1 else found, native))


# Columns whose rows differ in length


def _ragged(column: Column, value: Any, rows: int, lengths: Array | None) -> Field:
    item = {"int": np.int32, "bool": np.bool_, "float": np.float32}[column.kind]
    if isinstance(value, (list, tuple)) or np.dtype(object) == getattr(value, "dtype", None):
        return _of_lists(column, value, rows, item)
    found = as_array(column.name, value)
    if found.ndim != 2 or len(found) != rows:
        raise SampleError(
            f"{column.name} has shape {list(found.shape)}, expected {rows} rows of entries",
            "hand over a list of arrays, or [rows, most] cut by num_actions",
        )
    width = found.shape[1]
    if lengths is None or (lengths == width).all():
        flat, offsets = found.reshape(-1), np.arange(rows + 1) * width
        return Field(_items(column, flat, item), offsets)
    # Padded: a row counts as far as num_actions says.
    cut = np.clip(lengths, 0, width)
    flat = found[np.arange(width) < cut[:, None]]
    return Field(_items(column, flat, item), np.concatenate([[0], np.cumsum(cut)]))


def _of_lists(column: Column, value: Sequence[Any], rows: int, item: type) -> Field:
    if len(value) != rows:
        raise SampleError(f"{column.name} has {len(value)} rows, old_log_prob has {rows}")
    _without_nulls(column, value)
    pieces = [as_array(column.name, piece) for piece in value]
    for at, piece in enumerate(pieces):
        if piece.ndim != 1:
            raise SampleError(
                f"{column.name} of sample {at} has shape {list(piece.shape)}, expected a list"
            )
    sizes = np.array([len(piece) for piece in pieces])
    filled = [piece for piece in pieces if len(piece)]
    flat = np.concatenate(filled) if filled else np.zeros(0, item)
    return Field(_items(column, flat, item), np.concatenate([[0], np.cumsum(sizes)]))


def _items(column: Column, flat: Array, item: type) -> Array:
    if column.kind == "bool":
        return _truths(column.name, flat)
    if column.kind == "int":
        if flat.dtype.kind not in "iu":
            raise SampleError(f"{column.name} holds {flat.dtype}, expected integers", _cast_hint(flat))
        if len(flat) and (flat.min() < INT32.min or flat.max() > INT32.max):
            raise SampleError(f"{column.name} holds {flat.max()}, too large for int32")
    elif flat.dtype.kind not in "fiu":
        raise SampleError(f"{column.name} holds {flat.dtype}, expected floats")
    return np.array(flat, item)
