"""RLlib's files as batches: columns of as many values as there are steps, by RLlib's names.

A line or a row of a file is a SampleBatch (columns of many steps), a MultiAgentBatch (a SampleBatch for
each policy), one step, or one packed episode.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bufcheck.errors import ForeignError
from bufcheck.formats import parquet
from bufcheck.importers import _arrow, _msgpack, _records, _unpickle
from bufcheck.importers._keys import AGENT
from bufcheck.importers._memory import refuse_too_large
from bufcheck.importers._unpickle_parts import Refused

PACKED = "BCJNG"
"""How an LZ4 frame begins, in base64."""
MOST_EXPANSION = 255
STEPS_AT_ONCE = 4096
AGAIN = "record it again with RLlib"
NAMES = {"agent_id": AGENT, "module_id": "default_policy"}
"""Null in data of a single agent."""
Batch = dict[str, Any]


def of_file(path: Path) -> Iterator[Batch]:
    with path.open("rb") as file:
        is_parquet = file.read(4) == parquet.MAGIC
    try:
        yield from _of_parquet(path) if is_parquet else _of_json(path)
    except ForeignError as error:
        raise ForeignError(_located(path, error.problem), error.step or AGAIN) from None
    except Refused as refused:
        raise ForeignError(f"{path}: in a compressed column: {refused}", AGAIN) from None
    except (pa.ArrowException, OSError, ValueError, RecursionError, MemoryError) as error:
        detail = " ".join(str(error).split())[:120] or type(error).__name__
        raise ForeignError(f"{path}: cannot be read ({detail})", AGAIN) from None


def _located(path: Path, problem: str) -> str:
    return problem if problem.startswith(str(path)) else f"{path}: {problem}"


# JSON, a line each


def _of_json(path: Path) -> Iterator[Batch]:
    refuse_too_large(path, path.stat().st_size)
    steps: list[dict[str, Any]] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            found = _line(line, number)
            if "type" not in found and np.ndim(found.get("rewards", 0)) == 0:
                steps.append(found)
                if len(steps) >= STEPS_AT_ONCE:
                    yield _of_steps(steps)
                    steps = []
            else:
                yield from _of_record(found)
    if steps:
        yield _of_steps(steps)


def _line(line: bytes, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise ForeignError(f"line {number} is not JSON", "was the writer stopped?") from None
    if not isinstance(found, dict):
        raise ForeignError(f"line {number} is no JSON object", AGAIN)
    return found


def _of_record(record: dict[str, Any]) -> Iterator[Batch]:
    if record.get("type") == "MultiAgentBatch" or "policy_batches" in record:
        policies = record.get("policy_batches")
        if not isinstance(policies, dict):
            raise ForeignError("a MultiAgentBatch has no policy_batches", AGAIN)
        for policy, columns in policies.items():
            if columns:
                yield _named(_of_columns(columns), str(policy))
    else:
        yield _of_columns(record)


def _of_columns(record: Any) -> Batch:
    if not isinstance(record, dict):
        raise ForeignError("a batch is no set of columns", AGAIN)
    batch: Batch = {}
    for name, values in record.items():
        if name in ("type", "count"):
            continue
        values = unpacked(values) if _is_packed(values) else values
        if isinstance(values, dict):
            inner = _records.columns_of(values)
            batch |= {f"{name}/{key}": column for key, column in inner.items()}
        else:
            batch[name] = _array(values)
    return batch


def _array(values: Any) -> Any:
    """A column: an array, a list of what makes one, or of packed arrays."""
    if isinstance(values, (list, np.ndarray)) and len(values) and _is_packed(values[0]):
        values = [unpacked(value) for value in values]
    return _records.array_of(values)


def _named(batch: Batch, policy: str) -> Batch:
    """Agents of several policies, by policy and by the number they have in an episode."""
    count = len(next((v for v in batch.values() if v is not None), ()))
    number = batch.pop("agent_index", None)
    if number is not None and len(number) == count:
        names = [f"{policy}-{n}" for n in np.asarray(number).reshape(-1).tolist()]
    else:
        names = [policy] * count
    return {**batch, "agent_id": pa.array(names, pa.string())}


def _of_steps(steps: list[dict[str, Any]]) -> Batch:
    return _of_columns({name: [step.get(name) for step in steps] for name in steps[0]} | _texts(steps))


def _texts(steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: [str(step.get(name) or default) for step in steps]
        for name, default in NAMES.items()
        if name in steps[0]
    }


# Parquet, a row each


def _of_parquet(path: Path) -> Iterator[Batch]:
    source = parquet.open_source(path)
    names = source.schema.names
    if names == ["item"] and _is_binary(source.schema.field("item").type):
        for batch in source.read(names, None):
            for packed in batch.column(0).to_pylist():
                yield _of_episode(_msgpack.loads(packed or b""))
        return
    rewards = source.schema.field("rewards").type if "rewards" in names else None
    in_batches = rewards is not None and pa.types.is_nested(rewards)
    for batch in source.read(names, None):
        if in_batches or "policy_batches" in names:
            for row in batch.to_pylist():
                yield from _of_record(_without_nulls(row))
        else:
            yield _of_rows(batch)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _of_rows(rows: pa.RecordBatch) -> Batch:
    batch: Batch = {}
    for field, array in zip(rows.schema, rows.columns, strict=True):
        if field.name in NAMES:
            texts = [NAMES[field.name] if v is None else str(v) for v in array.to_pylist()]
            batch[field.name] = pa.array(texts, pa.string())
            continue
        for name, leaf in _arrow.leaves(field.name, array):
            values = _arrow.plain(leaf, _arrow.shape_of(field))
            if isinstance(values, pa.Array) and len(values) and _is_packed(values[0].as_py()):
                values = _array(values.to_pylist())
            batch[name] = values
    return batch


# Whole episodes


def _of_episode(state: Any) -> Batch:
    """SingleAgentEpisode.get_state(): buffers that begin with what lies before the episode."""
    if not isinstance(state, dict) or not isinstance(state.get("actions"), dict):
        raise ForeignError("an item is no packed episode", AGAIN)
    actions = _buffer(state["actions"])
    steps = 0 if actions is None else len(actions)
    begun = state.get("t_started")
    batch: Batch = {
        "eps_id": pa.array([str(state.get("id_"))] * steps, pa.string()),
        "t": (begun if type(begun) is int else 0) + np.arange(steps),
        "actions": actions,
        "rewards": _buffer(state.get("rewards")),
        "terminateds": _last(steps, state.get("is_terminated")),
        "truncateds": _last(steps, state.get("is_truncated")),
    }
    for name, default in NAMES.items():
        batch[name] = pa.array([str(state.get(name) or default)] * steps, pa.string())
    observations = _buffer(state.get("observations"))
    if isinstance(observations, np.ndarray):
        batch["obs"] = observations[:steps]  # the last one came after the last step
    outputs = state.get("extra_model_outputs")
    for name, held in (outputs if isinstance(outputs, dict) else {}).items():
        batch[str(name)] = _buffer(held)
    return batch


def _buffer(held: Any) -> Any:
    """The data of an InfiniteLookbackBuffer, without what it looks back on."""
    if not isinstance(held, dict):
        return None
    skipped = held.get("lookback")
    values = _records.array_of(held.get("data"))
    return values[skipped:] if values is not None and type(skipped) is int and skipped > 0 else values


def _last(steps: int, flag: Any) -> Any:
    flags = np.zeros(steps, bool)
    flags[-1:] = bool(flag)
    return flags


# Packed columns


def _is_packed(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(PACKED)


def unpacked(text: str) -> Any:
    """ray.rllib.utils.compression.unpack, without running what is pickled in it."""
    try:
        packed = base64.b64decode(text, validate=True)
        most = MOST_EXPANSION * len(packed) + (1 << 16)
        with pa.CompressedInputStream(pa.BufferReader(packed), "lz4") as stream:
            data = stream.read(most + 1)
    except (ValueError, OSError, pa.ArrowException) as error:
        detail = " ".join(str(error).split())[:100]
        raise ForeignError(f"a compressed column is damaged ({detail})", AGAIN) from None
    if len(data) > most:
        raise ForeignError("a compressed column claims to hold more than it can", AGAIN)
    return _records.plain(_unpickle.loads(data))
