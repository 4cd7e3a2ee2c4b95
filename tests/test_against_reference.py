"""bufcheck against tests/reference.py: random dumps, broken in random ways, judged twice.

Every dump is healthy by construction; then up to four things go wrong with it. It is written as
Parquet or in one of three HDF5 layouts, as one file or as several, and what bufcheck finds must be
what the reference finds, rule for rule and row for row. BUFCHECK_CAMPAIGN=1 tries ten times as
many.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reference
from reference import SCHEMA, VECTORS, Dump, is_list, item_of

from bufcheck import pipeline
from bufcheck import rule as rules
from bufcheck.formats import parquet

DUMPS = 600 if os.environ.get("BUFCHECK_CAMPAIGN") else 60
FIRST = int(os.environ.get("BUFCHECK_FIRST_SEED", "0"))
LAYOUTS = ("parquet", "ragged", "padded", "vlen")
WITHOUT_REFERENCE = frozenset({"log-prob-mismatch", "sampling-miscalibrated"})
"""Built-in rules the reference does not know: those that need an actor, for which test_replay.py and
test_calibration.py have references of their own."""
Random = random.Random


# Healthy dumps


def healthy(rng: Random) -> Dump:
    """Random agents, episodes, policy and columns; log-probs are those of a random softmax."""
    gaussian = rng.random() < 0.15
    metadata = _metadata(rng, gaussian)
    policy = _Policy(rng, metadata["policy"])
    agents = rng.sample(["a", "b", "IND", "Ünï", "agent-10", "agent-2"], rng.choice([1, 2, 2, 3, 4]))
    turns = metadata.get("agents", {}).get("turn_based", False)
    rows: list[dict[str, Any]] = []
    wanted, episode = rng.choice([20, 60, 120, 200]), rng.choice([0, -3, 10**12])
    while len(rows) < wanted:
        rows += _episode(rng, policy, episode, sorted(agents), turns)
        episode += rng.choice([1, 1, 1, 5])
    return _with_columns(rng, rows[:300], metadata, gaussian)


def _metadata(rng: Random, gaussian: bool) -> dict[str, Any]:
    subset = rng.choice(["listed", "listed", "all"])
    policy: dict[str, Any] = {
        "distribution": "categorical",
        "subset": subset,
        "action_space": rng.choice([2, 4, 8] if subset == "all" else [2, 6, 12, 40]),
        "temperature": rng.choice([1.0, 1.0, 0.5]),
        "masked_logit": rng.choice([None, None, -1e9, -5.0]),
        "precision": rng.choice(["float32", "float32", "float64", "float16", "bfloat16"]),
    }
    if gaussian:
        policy["distribution"] = rng.choice(["diagonal_gaussian", "squashed_gaussian"])
    flags = ("symmetric", "shared_subset", "shared_state", "shared_advantage", "turn_based")
    agents = {name: rng.random() < 0.5 for name in flags if rng.random() < 0.2}
    metadata = {"schema": "experience/1", "policy": policy, "agents": agents}
    truncation = rng.choice([None, "bootstrap_value", "folded_into_reward", "none"])
    return metadata | ({"advantage": {"truncation": truncation}} if truncation else {})


class _Policy:
    """Draws a context, an action and its log-prob."""

    def __init__(self, rng: Random, policy: dict[str, Any]) -> None:
        self.rng, self.policy = rng, policy
        self.width = rng.randint(1, 4)
        self.space = policy["action_space"]
        most = min(8, self.space)
        self.sizes = range(1, most + 1) if rng.random() < 0.8 else [rng.randint(1, most)]
        self.spread = rng.choice([1.0, 1.0, 1.0, 0.0, 0.001, 12.0])
        # A small pool of states: they recur rightly, and so do log-probs.
        pool = [self._vector() for _ in range(rng.choice([5, 30]))]
        self.pool = pool if rng.random() < 0.25 else []
        self.tables = {i: self._logits(self.space) for i in range(len(pool))}
        self.masks = rng.random() < 0.6

    def _vector(self) -> list[float]:
        return [self.rng.gauss(0, 1) for _ in range(self.width)]

    def _logits(self, count: int) -> list[float]:
        made = [self.rng.gauss(0, 1) * self.spread for _ in range(count)]
        return [reference.rounded(x, "float32") for x in made]

    def sample(self) -> dict[str, Any]:
        rng = self.rng
        chosen = rng.randrange(len(self.pool)) if self.pool else None
        row: dict[str, Any] = {
            "state_embed": self._vector() if chosen is None else list(self.pool[chosen])
        }
        if self.policy["subset"] == "all":
            subset = list(range(self.space))
        else:
            subset = rng.sample(range(self.space), rng.choice(self.sizes))
        logits = self._logits(len(subset))
        if chosen is not None:
            logits = [self.tables[chosen][i] for i in subset]
        mask = [not self.masks or rng.random() < 0.8 for _ in subset]
        mask[rng.randrange(len(mask))] = True
        masked = self.policy["masked_logit"]
        masked = -math.inf if masked is None else masked
        scaled = [
            (x if legal else masked) / self.policy["temperature"]
            for x, legal in zip(logits, mask, strict=True)
        ]
        total = math.log(math.fsum(math.exp(x - max(scaled)) for x in scaled)) + max(scaled)
        logps = [x - total for x in scaled]
        legal = [i for i in range(len(mask)) if mask[i]]
        index = rng.choices(legal, [math.exp(logps[i]) + 1e-9 for i in legal])[0]
        return row | {
            "subset_indices": subset,
            "num_actions": len(subset),
            "action_index": index,
            "action_id": subset[index],
            "action_mask": mask,
            "logits": logits,
            "old_log_prob": logps[index],
            "new_log_prob": logps[index],
            "entropy": -math.fsum(math.exp(p) * p for p in logps if p > -700),
        }


def _episode(
    rng: Random, policy: _Policy, episode: int, agents: list[str], turns: bool
) -> list[dict[str, Any]]:
    rows = []
    first, length = rng.choice([0, 0, 0, 7]), rng.randint(1, 14)
    end = rng.choice(["terminated", "truncated", "neither"])
    advantage = rng.gauss(0, 1) if rng.random() < 0.1 else None
    for step in range(length):
        for place, agent in enumerate(agents):
            if turns and step % len(agents) != place:
                continue
            row = policy.sample()
            row |= {"episode_id": episode, "timestep": first + step, "agent_id": agent}
            for name in ("reward", "value", "advantage", "return", "bootstrap_value"):
                row[name] = rng.choice([0.0, 1.0]) if name == "reward" else rng.gauss(0, 1)
            if advantage is not None:
                row["advantage"] = advantage
            last = step == length - 1
            row["terminated"] = last and end == "terminated"
            row["truncated"] = last and end == "truncated"
            if not last and rng.random() < 0.5:
                row["bootstrap_value"] = rng.choice([None, math.nan])
            for name in ("action", "action_mean", "action_std"):
                row[name] = [rng.gauss(0, 1), rng.gauss(0, 1)]
            rows.append(row)
    return rows


TYPES: dict[str, list[str]] = {name: list(column.types) for name, column in SCHEMA.items()}
OPTIONAL = [name for name, column in SCHEMA.items() if column.required == "no"]
OF_A_KIND = {"subset_indices", "num_actions", "action_index", "action_id", "action_mask", "logits"}


def _with_columns(
    rng: Random, rows: list[dict[str, Any]], metadata: dict[str, Any], gaussian: bool
) -> Dump:
    version, environments = rng.randint(0, 5), rng.choice([1, 3])
    groups: dict[str, list[Any]] = {"int32": [0, 1], "int64": [-1, 2**40], "string": ["", "g"]}
    types = {name: rng.choice(kinds) for name, kinds in TYPES.items()}
    for row in rows:
        row |= {"policy_version": version, "valid": rng.random() < 0.98, "source": "real"}
        row["env_id"] = groups[types["env_id"]][row["episode_id"] % environments % 2]
        row["group"] = rng.choice([None, *groups[types["group"]]])
        row["seed"] = rng.choice([None, 1, 2**62])
    dropped = {name for name in OPTIONAL if rng.random() < 0.45}
    dropped |= OF_A_KIND if gaussian else {"action", "action_mean", "action_std"}
    if metadata["policy"]["subset"] == "all" and rng.random() < 0.7:
        dropped.add("subset_indices")
    if "action_mask" in dropped and any(not all(row["action_mask"]) for row in rows):
        dropped.add("logits")  # without their mask they would give other log-probs
    for key in [key for key in metadata["policy"] if rng.random() < 0.3]:
        if key in ("action_space", "precision") or metadata["policy"][key] is None:
            del metadata["policy"][key]
    kept = {name: kind for name, kind in types.items() if name not in dropped}
    if rng.random() < 0.2:
        kept["x_note"] = "float64"
    made = [{name: row.get(name) for name in kept} for row in rows]
    return Dump(made, kept, metadata)


# What goes wrong

Corruption = Callable[[Dump, Random], None]
CORRUPTIONS: dict[str, Corruption] = {}
FLOATS = [name for name, column in SCHEMA.items() if column.types[-1].startswith("float")]
RAGGED = ["subset_indices", "action_mask", "logits"]


def corruption(function: Corruption) -> Corruption:
    CORRUPTIONS[function.__name__] = function
    return function


def some(dump: Dump, rng: Random) -> list[dict[str, Any]]:
    """One row, a few, a block, or a share of them."""
    count = len(dump.rows)
    how = rng.randrange(4)
    if how == 0:
        return [rng.choice(dump.rows)]
    if how == 1:
        return rng.sample(dump.rows, min(count, rng.randint(2, 12)))
    start = rng.randrange(count)
    if how == 2:
        return dump.rows[start : start + rng.randint(2, 40)]
    share = rng.choice([0.15, 0.5, 1.0])
    return [row for row in dump.rows if rng.random() < share] or dump.rows[:1]


def one_of(dump: Dump, rng: Random, names: list[str]) -> str | None:
    here = [name for name in names if name in dump.types]
    return rng.choice(here) if here else None


def put(dump: Dump, rng: Random, name: str, value: Callable[[dict[str, Any]], Any]) -> None:
    """Sets a column in some rows; a null stays a null."""
    if name in dump.types:
        for row in some(dump, rng):
            if row[name] is not None:
                row[name] = value(row)


@corruption
def nonfinite_scalar(dump: Dump, rng: Random) -> None:
    if name := one_of(dump, rng, FLOATS):
        put(dump, rng, name, lambda _: rng.choice([math.nan, math.inf, -math.inf]))


@corruption
def nonfinite_item(dump: Dump, rng: Random) -> None:
    if name := one_of(dump, rng, [*VECTORS, "logits"]):
        for row in some(dump, rng):
            if row[name]:
                bad = rng.choice([math.nan, math.inf, -math.inf])
                row[name][rng.randrange(len(row[name]))] = bad


@corruption
def null_anywhere(dump: Dump, rng: Random) -> None:
    name = rng.choice(list(dump.types))
    for row in some(dump, rng):
        row[name] = None


@corruption
def null_item(dump: Dump, rng: Random) -> None:
    if name := one_of(dump, rng, [*VECTORS, *RAGGED]):
        for row in some(dump, rng):
            if row[name]:
                row[name][rng.randrange(len(row[name]))] = None


@corruption
def index_out_of_range(dump: Dump, rng: Random) -> None:
    put(dump, rng, "action_index", lambda _: rng.choice([-1, 0, 8, 50, 2**31 - 1, -(2**31)]))


@corruption
def wrong_num_actions(dump: Dump, rng: Random) -> None:
    fixed = rng.choice([None, 0, 5, -1, 2**31 - 1, 1])
    put(dump, rng, "num_actions", lambda r: r["num_actions"] + 1 if fixed is None else fixed)


@corruption
def subset_ids(dump: Dump, rng: Random) -> None:
    """An id twice, or one that does not exist."""
    if "subset_indices" in dump.types:
        kind = rng.choice(["twice", "stray", "far twice"])
        for row in some(dump, rng):
            subset = row["subset_indices"]
            if subset and kind == "stray":
                subset[rng.randrange(len(subset))] = rng.choice([-1, 12, 2**31 - 1, 64])
            elif subset and len(subset) > 1:
                subset[0] = subset[-1] = rng.choice([subset[0], 64 + (subset[0] or 0)])


@corruption
def same_low_bits(dump: Dump, rng: Random) -> None:
    """Ids that differ by a multiple of 64 are different ids."""
    if "subset_indices" in dump.types:
        for row in some(dump, rng):
            if row["subset_indices"] and row["subset_indices"][0] is not None:
                row["subset_indices"].append(row["subset_indices"][0] + 64)


@corruption
def ragged_length(dump: Dump, rng: Random) -> None:
    """Too long, too short, or empty."""
    if name := one_of(dump, rng, RAGGED):
        how = rng.choice(["longer", "shorter", "empty"])
        for row in some(dump, rng):
            if row[name]:
                more = [*row[name], row[name][0]]
                row[name] = {"longer": more, "shorter": row[name][:-1], "empty": []}[how]


@corruption
def vector_length(dump: Dump, rng: Random) -> None:
    if name := one_of(dump, rng, VECTORS):
        how = rng.randrange(3)
        for row in some(dump, rng):
            if row[name] is not None:
                row[name] = [[*row[name], 1.0], row[name][:-1], []][how]


@corruption
def action_masked(dump: Dump, rng: Random) -> None:
    if "action_mask" in dump.types:
        everything = rng.random() < 0.3
        for row in some(dump, rng):
            for i in range(len(row["action_mask"] or [])):
                if everything or i == row.get("action_index"):
                    row["action_mask"][i] = False


@corruption
def other_action_id(dump: Dump, rng: Random) -> None:
    put(dump, rng, "action_id", lambda _: rng.choice([0, 1, -1, 63]))


@corruption
def rows_stored_twice(dump: Dump, rng: Random) -> None:
    """Identical, contradicting, or one of them; beside the original or at the end."""
    contradict, at_end = rng.random() < 0.5, rng.random() < 0.5
    for row in some(dump, rng)[:20]:
        for _ in range(rng.choice([1, 1, 2])):
            copy = copied(row)
            if contradict and (name := one_of(dump, rng, ["reward", "value", "old_log_prob"])):
                copy[name] = rng.choice([copy[name], 0.5, math.nan, -0.0, 0.0])
            place = len(dump.rows) if at_end else index_of(dump, row) + 1
            dump.rows.insert(place, copy)


def index_of(dump: Dump, row: dict[str, Any]) -> int:
    return next(i for i, other in enumerate(dump.rows) if other is row)


def copied(row: dict[str, Any]) -> dict[str, Any]:
    return {name: list(v) if isinstance(v, list) else v for name, v in row.items()}


def keep(dump: Dump, test: Callable[[dict[str, Any]], bool]) -> None:
    kept = [row for row in dump.rows if test(row)]
    dump.rows = kept if kept else dump.rows


@corruption
def dropped_steps(dump: Dump, rng: Random) -> None:
    if {"episode_id", "timestep"} <= set(dump.types):
        lost = {(r["episode_id"], r["timestep"]) for r in some(dump, rng)[:6]}
        keep(dump, lambda r: (r["episode_id"], r["timestep"]) not in lost)


@corruption
def dropped_rows(dump: Dump, rng: Random) -> None:
    lost = {id(row) for row in some(dump, rng)[:6]}
    keep(dump, lambda row: id(row) not in lost)


@corruption
def agent_leaves(dump: Dump, rng: Random) -> None:
    if {"episode_id", "timestep", "agent_id"} <= set(dump.types):
        row = rng.choice(dump.rows)
        episode, agent, step = row["episode_id"], row["agent_id"], row["timestep"] or 0
        keep(
            dump,
            lambda r: (
                (r["episode_id"], r["agent_id"]) != (episode, agent) or (r["timestep"] or 0) <= step
            ),
        )


@corruption
def swapped_rows(dump: Dump, rng: Random) -> None:
    if rng.random() < 0.2:
        rng.shuffle(dump.rows)
    for _ in range(rng.randint(1, 4)):
        a, b = rng.randrange(len(dump.rows)), rng.randrange(len(dump.rows))
        dump.rows[a], dump.rows[b] = dump.rows[b], dump.rows[a]


@corruption
def early_done(dump: Dump, rng: Random) -> None:
    if name := one_of(dump, rng, ["terminated", "truncated"]):
        put(dump, rng, name, lambda _: True)


@corruption
def extreme_keys(dump: Dump, rng: Random) -> None:
    if name := one_of(dump, rng, ["episode_id", "timestep"]):
        size = 63 if name == "episode_id" else 31
        most = 2**size - 1
        for row in some(dump, rng)[:2]:
            row[name] = rng.choice([-1, most, -most - 1, 0])


@corruption
def shifted_keys(dump: Dump, rng: Random) -> None:
    if name := one_of(dump, rng, ["episode_id", "timestep"]):
        put(dump, rng, name, lambda r: min(r[name] + rng.choice([1, 2]), 2**31 - 1))


@corruption
def other_agent(dump: Dump, rng: Random) -> None:
    put(dump, rng, "agent_id", lambda _: rng.choice(["", "a", "zz", "Z"]))


@corruption
def zeroed_rows(dump: Dump, rng: Random) -> None:
    keys = {"episode_id", "timestep", "agent_id", "num_actions"} if rng.random() < 0.7 else set()
    zeros = {"float": 0.0, "int": 0, "bool": False}
    for row in some(dump, rng):
        for name, kind in dump.types.items():
            zero = zeros.get(item_of(kind).rstrip("0123456789"))
            if zero is None or name in keys or row[name] is None:
                continue
            row[name] = [zero] * len(row[name]) if is_list(kind) else zero


@corruption
def zero_states(dump: Dump, rng: Random) -> None:
    zero = rng.choice([0.0, -0.0, 1e-30])
    put(dump, rng, "state_embed", lambda r: [zero] * len(r["state_embed"]))


@corruption
def placeholder_zero(dump: Dump, rng: Random) -> None:
    put(dump, rng, "old_log_prob", lambda _: rng.choice([0.0, 0.0, -0.0]))


@corruption
def placeholder_constant(dump: Dump, rng: Random) -> None:
    constants = [rng.uniform(-4, 0), rng.uniform(-4, 0)][: rng.choice([1, 1, 2])]
    put(dump, rng, "old_log_prob", lambda _: rng.choice(constants))


@corruption
def placeholder_uniform(dump: Dump, rng: Random) -> None:
    if "num_actions" in dump.types:
        legal = "action_mask" in dump.types and rng.random() < 0.5

        def minus_log_k(row: dict[str, Any]) -> float:
            size = sum(filter(None, row["action_mask"] or [])) if legal else row["num_actions"]
            return -math.log(max(size or 1, 1))

        put(dump, rng, "old_log_prob", minus_log_k)


@corruption
def near_zero_or_uniform(dump: Dump, rng: Random) -> None:
    if "num_actions" in dump.types:
        put(
            dump,
            rng,
            "old_log_prob",
            lambda r: (
                rng.choice([0.0, -math.log(max(r["num_actions"] or 1, 1))])
                - rng.choice([0.0, 3e-7, 5e-6, 5e-5, 5e-4])
            ),
        )


@corruption
def positive_log_probs(dump: Dump, rng: Random) -> None:
    put(dump, rng, "old_log_prob", lambda _: rng.choice([1e-7, 3e-6, 2e-4, 3e-3, 0.5, 1000.0]))


@corruption
def too_low_log_probs(dump: Dump, rng: Random) -> None:
    """As of a softmax over actions that were not offered."""
    less = rng.choice([0.01, 0.3, 2.0])
    everywhere = rng.random() < 0.5
    for row in dump.rows if everywhere else some(dump, rng):
        if row.get("old_log_prob") is not None:
            row["old_log_prob"] -= less


@corruption
def broadcast_in_steps(dump: Dump, rng: Random) -> None:
    """The first agent's value at all agents of a step."""
    name = one_of(dump, rng, ["subset_indices", "state_embed", "old_log_prob", "advantage"])
    if name and {"episode_id", "timestep"} <= set(dump.types):
        firsts: dict[Any, dict[str, Any]] = {}
        share = rng.choice([0.1, 0.5, 1.0])
        lucky = {(r["episode_id"], r["timestep"]): rng.random() < share for r in dump.rows}
        for row in dump.rows:
            key = (row["episode_id"], row["timestep"])
            first = firsts.setdefault(key, row)
            if lucky[key]:
                row[name] = copied(first)[name]


@corruption
def subset_for_all(dump: Dump, rng: Random) -> None:
    """Subsets that are fetched once per step, or hardly ever."""
    if "subset_indices" in dump.types and {"episode_id", "timestep"} <= set(dump.types):
        every = rng.choice([1, 1, 9])
        known: dict[Any, dict[str, Any]] = {}
        for row in dump.rows:
            key = (row["episode_id"], row["timestep"] and row["timestep"] // every)
            row["subset_indices"] = copied(known.setdefault(key, row))["subset_indices"]


@corruption
def broadcast_in_blocks(dump: Dump, rng: Random) -> None:
    name = one_of(dump, rng, ["subset_indices", "state_embed", "old_log_prob", "advantage"])
    if name:
        size = rng.choice([3, 4, 6, 12, 40])
        for _ in range(rng.choice([1, 1, 3])):
            start = rng.randrange(len(dump.rows))
            block = dump.rows[start : start + size]
            for row in block:
                row[name] = copied(block[0])[name]


@corruption
def constant_advantage(dump: Dump, rng: Random) -> None:
    """One advantage per episode: a method, no accident."""
    if {"advantage", "episode_id"} <= set(dump.types):
        values: dict[Any, float] = {}
        for row in some(dump, rng):
            row["advantage"] = values.setdefault(row["episode_id"], rng.gauss(0, 1))


@corruption
def frozen_state(dump: Dump, rng: Random) -> None:
    """A reference to an array that is overwritten: an agent's states are all its last."""
    if {"state_embed", "episode_id", "agent_id"} <= set(dump.types):
        chosen = rng.choice(dump.rows)
        for row in dump.rows:
            if all(row[n] == chosen[n] for n in ("episode_id", "agent_id")):
                row["state_embed"] = copied(chosen)["state_embed"]


@corruption
def cloned_episodes(dump: Dump, rng: Random) -> None:
    if "episode_id" in dump.types:
        episodes = sorted({r["episode_id"] for r in dump.rows if r["episode_id"] is not None})
        for episode in rng.sample(episodes, min(len(episodes), rng.choice([1, 3]))):
            for row in [r for r in dump.rows if r["episode_id"] == episode][:60]:
                clone = copied(row)
                clone["episode_id"] = episodes[-1] // 2 + 7000 + episode // 2
                dump.rows.append(clone)


@corruption
def mixed_versions(dump: Dump, rng: Random) -> None:
    put(dump, rng, "policy_version", lambda _: rng.choice([3, 4, -1]))


@corruption
def missing_column(dump: Dump, rng: Random) -> None:
    for name in rng.sample(list(dump.types), rng.choice([1, 1, 2])):
        if len(dump.types) > 6:
            del dump.types[name]
            for row in dump.rows:
                del row[name]


@corruption
def unknown_column(dump: Dump, rng: Random) -> None:
    name = rng.choice(["rewards", "obs", "action_indx"])
    dump.types[name] = "float64"
    for row in dump.rows:
        row[name] = rng.choice([0.5, math.nan, None])


WRONG_TYPES = {
    "timestep": ["int64", "int16", "float64"],
    "episode_id": ["int32", "float64", "string"],
    "agent_id": ["int32", "int64"],
    "action_index": ["int64", "float64", "int8"],
    "num_actions": ["int64", "int16"],
    "action_id": ["int64", "float32"],
    "state_embed": ["list<float64>"],
    "subset_indices": ["list<int64>", "list<int16>", "list<float32>"],
    "logits": ["list<float64>"],
    "action_mask": ["list<int8>"],
    "action": ["list<float64>"],
    "old_log_prob": ["string", "int32"],
    "reward": ["float16", "int32"],
    "terminated": ["int8", "float32"],
    "valid": ["int32", "string"],
    "source": ["int32"],
    "policy_version": ["int32", "string"],
}


@corruption
def wrong_type(dump: Dump, rng: Random) -> None:
    name = one_of(dump, rng, list(WRONG_TYPES))
    if name:
        kind = rng.choice(WRONG_TYPES[name])
        words: dict[Any, int] = {}
        made = [_converted(row[name], kind, words) for row in dump.rows]
        if all(fits(value, kind) for value in made):
            dump.types[name] = kind
            for row, value in zip(dump.rows, made, strict=True):
                row[name] = value


def _converted(value: Any, kind: str, words: dict[Any, int]) -> Any:
    if isinstance(value, list):
        return [_converted(item, item_of(kind), words) for item in value]
    if value is None:
        return None
    if kind == "string":
        return str(value)
    if isinstance(value, str):
        return words.setdefault(value, 9 + len(words))
    if kind.startswith("float"):
        return float(value)
    return int(value) if math.isfinite(value) else None


def fits(value: Any, kind: str) -> bool:
    if isinstance(value, list):
        return all(fits(item, item_of(kind)) for item in value)
    if value is None or not kind.startswith("int"):
        return True
    return bool(-(2 ** (int(kind[3:]) - 1)) <= value < 2 ** (int(kind[3:]) - 1))


@corruption
def logits_of_another(dump: Dump, rng: Random) -> None:
    put(dump, rng, "logits", lambda r: [x and x + rng.gauss(0, 1) for x in r["logits"]])


@corruption
def logits_minus_infinity(dump: Dump, rng: Random) -> None:
    """Masked logits written as -inf; sometimes that of the chosen action too."""
    if "logits" in dump.types:
        for row in some(dump, rng):
            for i in range(len(row["logits"] or [])):
                if i != row.get("action_index") or rng.random() < 0.1:
                    row["logits"][i] = -math.inf


@corruption
def other_new_log_prob(dump: Dump, rng: Random) -> None:
    more = rng.choice([5e-5, 1e-3, 0.1, -800.0])
    put(dump, rng, "new_log_prob", lambda r: r["new_log_prob"] + more)


@corruption
def low_valid(dump: Dump, rng: Random) -> None:
    put(dump, rng, "valid", lambda _: rng.choice([False, False, True]))


@corruption
def other_settings(dump: Dump, rng: Random) -> None:
    if dump.metadata is not None:
        policy = dump.metadata["policy"]
        name = rng.choice(["temperature", "masked_logit", "subset", "action_space", "state_shape"])
        policy[name] = {
            "temperature": 2.0,
            "masked_logit": rng.choice([0.0, -1e5]),
            "subset": rng.choice(["all", "listed"]),
            "action_space": rng.choice([1, 3, 64]),
            "state_shape": [rng.choice([1, 2, 3]), rng.choice([1, 2])],
        }[name]


@corruption
def no_metadata(dump: Dump, rng: Random) -> None:
    dump.metadata = None


# What goes wrong with the files; applied last


def split(dump: Dump, rng: Random) -> None:
    """Cuts the dump into files; some of them may be empty."""
    cuts = rng.choice([0, 0, 1, 3, 6])
    dump.starts = [0, *sorted(rng.randint(0, len(dump.rows)) for _ in range(cuts))]


def file_faults(dump: Dump, rng: Random, layout: str) -> list[str]:
    done, files = [], range(len(dump.starts))
    if rng.random() < 0.1:
        file = rng.choice(files)
        dump.declared_rows[file] = rng.choice([None, 0, len(dump.file_rows(file)) + 1])
        done.append("declared rows")
    if rng.random() < 0.1 and len(files) > 1:
        dump.undescribed = {rng.choice(files)}
        done.append("a file without metadata")
    if rng.random() < 0.1 and len(files) > 1:
        name = rng.choice(list(dump.types))
        dump.absent[name] = set(rng.sample(files, rng.randint(1, len(files) - 1)))
        done.append(f"files without {name}")
    if rng.random() < 0.05 and layout != "parquet" and "reward" in dump.types:
        dump.uneven = {rng.choice(files)} - dump.absent.get("reward", set())
        done.append("uneven")
    return done


# Writing


def write(dump: Dump, folder: Path, layout: str, rng: Random) -> list[str]:
    """Writes the files of the dump; returns their paths."""
    folder.mkdir(exist_ok=True)
    suffix = "parquet" if layout == "parquet" else "h5"
    paths = []
    for file, described in enumerate(dump.described):
        path = folder / f"part-{file}.{suffix}"
        rows = [dump.rows[i] for i in dump.file_rows(file)]
        columns = {n: k for n, k in dump.types.items() if file not in dump.absent.get(n, ())}
        metadata = None
        if described:
            declared = dump.declared_rows.get(file, len(rows))
            metadata = json.dumps((dump.metadata or {}) | {"rows": declared})
        if layout == "parquet":
            write_parquet(path, rows, columns, metadata, rng)
        else:
            with h5py.File(path, "w") as target:
                if metadata is not None:
                    target.attrs["bufcheck"] = metadata
                for name, kind in columns.items():
                    write_hdf5(target, name, kind, rows, layout)
                if file in dump.uneven:
                    _lengthen(target, "reward")
        paths.append(str(path))
    return paths


def write_parquet(
    path: Path,
    rows: list[dict[str, Any]],
    columns: dict[str, str],
    metadata: str | None,
    rng: Random,
) -> None:
    arrays = {}
    for name, kind in columns.items():
        values = [row[name] for row in rows]
        arrow = arrow_type(item_of(kind))
        if is_list(kind):
            widths = {len(v) for v in values if v is not None}
            fixed = name in VECTORS and len(widths) == 1 and rng.random() < 0.8
            arrow = pa.list_(arrow, widths.pop()) if fixed else pa.list_(arrow)
        elif kind == "string" and rng.random() < 0.5:
            arrow = pa.dictionary(pa.int32(), pa.string())
        if "float16" in kind:
            values = [None if v is None else np.float16(v) for v in values]
        arrays[name] = pa.array(values, arrow)
    table = pa.table(arrays)
    if metadata is not None:
        table = table.replace_schema_metadata({b"bufcheck": metadata.encode()})
    size, checksums = rng.choice([17, 1000]), rng.random() < 0.5
    pq.write_table(table, path, row_group_size=size, write_page_checksum=checksums)


def arrow_type(kind: str) -> pa.DataType:
    named = {"bool": pa.bool_(), "string": pa.string(), "float16": pa.float16()}
    return named.get(kind) or getattr(pa, kind)()


GARBAGE = {"float": 7.5, "int": 3, "bool": True}
"""What lies in the file beneath a null: it must not matter."""


def write_hdf5(
    target: h5py.File, name: str, kind: str, rows: list[dict[str, Any]], layout: str
) -> None:
    values = [row[name] for row in rows]
    if kind == "string":
        _write_text(target, name, values, layout)
        return
    item = item_of(kind)
    dtype = np.dtype(item if item != "bool" else "?")
    garbage = GARBAGE[item.rstrip("0123456789")]
    valid = [value is not None for value in values]
    if not is_list(kind):
        data = np.array([garbage if v is None else v for v in values], dtype)
        if all(valid):
            target[name] = data
        else:
            target[f"{name}/values"], target[f"{name}/valid"] = data, np.array(valid, bool)
        return
    plain = all(valid) and all(None not in value for value in values)
    if name in VECTORS and len({len(v) for v in values if v is not None}) == 1:
        _write_vectors(target, name, values, dtype, garbage)
    elif plain and layout == "vlen":
        column = target.create_dataset(name, (len(values),), h5py.vlen_dtype(dtype))
        for i, value in enumerate(values):
            column[i] = np.array(value, dtype)
    elif not (plain and layout == "padded" and _write_padded(target, name, rows, dtype)):
        _write_ragged(target, name, values, dtype, garbage)


def _write_text(target: h5py.File, name: str, values: list[Any], layout: str) -> None:
    if layout == "vlen" and None not in values:
        target.create_dataset(name, data=values, shape=(len(values),), dtype=h5py.string_dtype())
        return
    words = sorted({v for v in values if v is not None}, reverse=True) or ["none"]
    encoded = np.array([word.encode() for word in words], "S20")
    codes = [-1 if v is None else words.index(v) for v in values]
    target[f"{name}/codes"] = np.array(codes, np.int32)
    target[f"{name}/dictionary"] = encoded


def _write_vectors(
    target: h5py.File, name: str, values: list[Any], dtype: np.dtype[Any], garbage: Any
) -> None:
    width = next(len(v) for v in values if v is not None)
    filled = [v if v is not None else [garbage] * width for v in values]
    known = np.array([[x is not None for x in v] for v in filled], bool)
    data = np.array([[garbage if x is None else x for x in v] for v in filled], dtype)
    if known.all() and None not in values:
        target[name] = data.reshape(len(values), width)
        return
    target[f"{name}/values"], target[f"{name}/values_valid"] = data, known
    target[f"{name}/valid"] = np.array([v is not None for v in values], bool)


def _write_ragged(
    target: h5py.File, name: str, values: list[Any], dtype: np.dtype[Any], garbage: Any
) -> None:
    """values + offsets, with flags for rows and items where there are nulls."""
    filled = [[garbage] if v is None else v for v in values]
    flat = [x for v in filled for x in v]
    target[f"{name}/values"] = np.array([garbage if x is None else x for x in flat], dtype)
    target[f"{name}/offsets"] = np.cumsum([0, *(len(v) for v in filled)], dtype=np.int64)
    if None in values:
        target[f"{name}/valid"] = np.array([v is not None for v in values], bool)
    if None in flat:
        target[f"{name}/values_valid"] = np.array([x is not None for x in flat], bool)


PADS: dict[str, Any] = {"subset_indices": np.int32(-(2**31)), "logits": np.float32(np.nan)}


def _write_padded(
    target: h5py.File, name: str, rows: list[dict[str, Any]], dtype: np.dtype[Any]
) -> bool:
    """A 2-D dataset, cut at its `pad`, masks at num_actions; False if that loses anything."""
    values = [row[name] for row in rows]
    width = max((len(v) for v in values), default=0)
    pad = PADS.get(name)
    if width == 0 or name in VECTORS:
        return False
    if pad is not None:
        if any(v and (v[-1] == pad or v[-1] != v[-1]) for v in values) or dtype != pad.dtype:
            return False
    else:
        sizes = [row.get("num_actions") for row in rows]
        cut = [None if k is None else min(max(k, 0), width) for k in sizes]
        if cut != [len(v) for v in values]:
            return False
        if "num_actions" not in target:
            return False  # written before the masks, unless this file lacks it
    data = np.full((len(values), width), True if pad is None else pad, dtype)
    for i, value in enumerate(values):
        data[i, : len(value)] = value
    target[name] = data
    if pad is not None:
        target[name].attrs["pad"] = pad
    return True


def _lengthen(target: h5py.File, name: str) -> None:
    """Two rows more than the other columns have: their writer was killed in between."""
    item = target[name]
    if isinstance(item, h5py.Dataset):
        data = item[:]
        del target[name]
        target[name] = np.concatenate([data, np.zeros(2, data.dtype)])
    else:
        for part in ("values", "valid"):
            data = item[part][:]
            del item[part]
            item[part] = np.concatenate([data, np.ones(2, data.dtype)])


# Comparing


def found_by_bufcheck(paths: list[str], folder: Path) -> reference.Judgement:
    out = folder / "findings.parquet"
    options = pipeline.Options(findings=out, ignore=sorted(WITHOUT_REFERENCE))
    report = pipeline.validate(paths, options)
    table = pq.read_table(out, columns=["rule", "row_id"]).to_pydict()
    findings = Counter(zip(table["rule"], table["row_id"], strict=True))
    statuses = {entry["name"]: entry["status"] for entry in report["rules"]}
    return reference.Judgement(findings, statuses)


def difference(ours: reference.Judgement, theirs: reference.Judgement) -> list[str]:
    """One line per rule the two judge differently."""
    lines = []
    for name in sorted({*ours.statuses, *theirs.statuses}):
        status = ours.statuses.get(name), theirs.statuses.get(name)
        here = {k: n for k, n in ours.findings.items() if k[0] == name}
        there = {k: n for k, n in theirs.findings.items() if k[0] == name}
        if status[0] != status[1] or here != there:
            only_here = sorted(str(k[1]) for k in here if here[k] > there.get(k, 0))
            only_there = sorted(str(k[1]) for k in there if there[k] > here.get(k, 0))
            lines.append(
                f"{name}: bufcheck {status[0]}, reference {status[1]};"
                f" rows only in bufcheck {only_here[:12]}, only in reference {only_there[:12]}"
            )
    return lines


def broken(seed: int) -> tuple[Dump, str, list[str], Random]:
    rng = Random(seed)
    dump = healthy(rng)
    layout = LAYOUTS[seed % len(LAYOUTS)]
    applied = rng.choices(list(CORRUPTIONS), k=rng.choice([0, 1, 1, 2, 2, 3, 4]))
    applied.sort(key=lambda name: name == "wrong_type")  # the others write what the schema says
    for name in applied:
        CORRUPTIONS[name](dump, rng)
    if rng.random() < 0.7 and "swapped_rows" not in applied:
        _sort(dump)
    split(dump, rng)
    applied += file_faults(dump, rng, layout)
    return dump, layout, applied, rng


def _sort(dump: Dump) -> None:
    """Corruptions that append leave a dump unsorted, which would hide what needs neighbours."""
    keys = [k for k in reference.KEY if k in dump.types]

    def comparable(row: dict[str, Any]) -> list[tuple[bool, Any]]:
        return [(row[k] is not None, row[k] if row[k] is not None else 0) for k in keys]

    dump.rows.sort(key=comparable)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + DUMPS))
def test_bufcheck_finds_what_the_reference_finds(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump, layout, applied, rng = broken(seed)
    if rng.random() < 0.3:  # facts that compare neighbours must not depend on where batches end
        monkeypatch.setattr(parquet, "_batch_rows", lambda *_: 7)
    paths = write(dump, tmp_path / "dump", layout, rng)
    expected = reference.judge(dump, without=WITHOUT_REFERENCE)
    lines = difference(found_by_bufcheck(paths, tmp_path), expected)
    told = f"seed {seed}, {layout}, {len(paths)} files, {len(dump.rows)} rows; applied: {applied}"
    assert not lines, "\n".join([told, *lines])


def test_every_rule_has_a_reference() -> None:
    built_in = {rule.name: rule.severity for rule in rules.built_in()}
    known = {rule.name: rule.severity for rule in reference.RULES.values()}
    assert {name: s for name, s in built_in.items() if name not in WITHOUT_REFERENCE} == known


# What random dumps would show only by luck


def plain(rows: list[dict[str, Any]]) -> Dump:
    """The smallest legal dump of these keys."""
    policy = {"subset": "listed", "action_space": 40}
    types = {name: column.types[0] for name, column in SCHEMA.items() if column.required != "no"}
    types = {name: kind for name, kind in types.items() if name != "action"}
    types["old_log_prob"] = "float32"
    return Dump(rows, types, {"schema": "experience/1", "policy": policy})


def plain_rows(rng: Random, episodes: int, steps: int, agents: int) -> list[dict[str, Any]]:
    rows = []
    for key in range(episodes * steps * agents):
        size = rng.randint(2, 8)
        rows.append(
            {
                "episode_id": key // agents // steps,
                "timestep": key // agents % steps,
                "agent_id": f"agent-{key % agents}",
                "state_embed": [rng.gauss(0, 1), rng.gauss(0, 1)],
                "subset_indices": rng.sample(range(40), size),
                "num_actions": size,
                "action_index": rng.randrange(size),
                "old_log_prob": -math.log(size) + rng.uniform(-0.3, 0.2),
            }
        )
    return rows


def judged(dump: Dump, folder: Path, layout: str = "parquet") -> reference.Judgement:
    folder.mkdir(exist_ok=True)
    return found_by_bufcheck(write(dump, folder / "dump", layout, Random(0)), folder)


@pytest.mark.parametrize("layout", ["parquet", "ragged"])
def test_a_gap_between_two_files_is_found(tmp_path: Path, layout: str) -> None:
    rows = [r for r in plain_rows(Random(1), 1, 20, 2) if r["timestep"] != 9]
    dump = plain(rows)
    dump.starts = [0, 18]
    assert [rows[17]["timestep"], rows[18]["timestep"]] == [8, 10]
    found = judged(dump, tmp_path, layout).findings
    assert {row for rule, row in found if rule == "timestep-gap"} == {18}


def test_one_file_or_seven_give_the_same_findings(tmp_path: Path) -> None:
    dump = plain(plain_rows(Random(2), 6, 10, 3))
    rng = Random(3)
    for row in dump.rows:
        for name in ("old_log_prob", "action_index"):
            if rng.random() < 0.1:
                row[name] = rng.choice([0, 1, 60])
    dump.rows = [row for row in dump.rows if rng.random() < 0.9]
    dump.rows += [copied(row) | {"episode_id": 7} for row in dump.rows[:30]]
    one = judged(dump, tmp_path / "one")
    dump.starts = [0, *sorted(rng.sample(range(1, len(dump.rows)), 6))]
    seven = judged(dump, tmp_path / "seven")
    assert difference(one, seven) == []
    assert len({rule for rule, _ in one.findings}) > 6


def test_row_ids_of_a_folder_follow_the_numbers_in_its_names(tmp_path: Path) -> None:
    """part-2 comes before part-10; the bad row is the first of part-10."""
    dump = plain(plain_rows(Random(4), 1, 24, 1))
    dump.starts = list(range(0, 24, 2))
    dump.rows[20]["action_index"] = -1
    write(dump, tmp_path / "dump", "parquet", Random(0))
    found = found_by_bufcheck([str(tmp_path / "dump")], tmp_path)
    assert found.findings == Counter({("action-index-out-of-range", 20): 1})
    assert found.statuses["unsorted-rows"] == "pass"
