"""From what a source holds to what is written: the columns, their types, and what there is to say."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bufcheck import __version__, schema
from bufcheck.config import METADATA_TABLES
from bufcheck.errors import ForeignError
from bufcheck.importer import Asked, Found, Piece
from bufcheck.importers import _names, _policy, _values
from bufcheck.importers._keys import AGENT, Keys, flags

MOST_NAMED = 12
READ_BY_RULES = (
    *("reward", "value", "advantage", "return", "terminated", "truncated", "bootstrap_value"),
    *("policy_version", "logits", "action_mask", "action_mean", "action_std"),
)
OF_FAMILY = {True: ("logits", "action_mask"), False: ("action_mean", "action_std")}
"""Columns of categorical policies, and of continuous ones."""


class Output(NamedTuple):
    name: str
    type: pa.DataType
    source: str
    make: Callable[[Piece], pa.Array]


@dataclass
class Plan:
    found: Found
    roles: dict[str, str]
    policy: _policy.Policy
    metadata: dict[str, Any]
    outputs: list[Output] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        keys = [("episode_id", pa.int64()), ("timestep", pa.int32()), ("agent_id", pa.string())]
        return pa.schema(keys + [(one.name, one.type) for one in self.outputs])

    def batches(self) -> Iterator[pa.RecordBatch]:
        keys = Keys(self.roles, ids_stay=self.found.ids_stay)
        for piece in self.found.pieces():
            rows = keys.of(piece)
            arrays = [
                pa.array(rows.episode_id),
                _values.as_arrow(rows.timestep, pa.int32(), "timestep"),
                rows.agent_id,
                *(one.make(piece) for one in self.outputs),
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def told(self) -> list[str]:
        """What the user should know; a line for each kind of thing."""
        names = {one.name for one in self.outputs} | {"episode_id", "timestep", "agent_id"}
        read = [f"{name} from {source}" for name, source in [*self._keys_read(), *self._columns_read()]]
        lines = [f"read: {', '.join(read)}"] if read else []
        lines += [f"assumed: {note}" for note in [*self.found.assumed, *self.notes]]
        required = schema.load().required({"subset": "listed", **self.policy.settings})
        if missing := [name for name in required if name not in names]:
            lines.append(
                f"not in the source, but required: {', '.join(missing)};"
                " validate will say missing-column"
            )
        others = set(OF_FAMILY[not self.policy.categorical])
        absent = [name for name in READ_BY_RULES if name not in names | others]
        if absent:
            lines.append(
                f"not in the source: {', '.join(absent)}; rules that need them will read not-checked"
            )
        own = [one.name for one in self.outputs if one.name.startswith("x_")]
        if own:
            lines.append(f"carried along: {_few(own)}")
        reasons: dict[str, list[str]] = {}
        for name, reason in {**self.found.left_out, **self.left_out}.items():
            reasons.setdefault(reason, []).append(name)
        return lines + [f"left out: {_few(them)} ({why})" for why, them in reasons.items()]

    def _keys_read(self) -> list[tuple[str, str]]:
        keys = schema.load().key_columns
        return [(name, self.roles[name]) for name in keys if self.roles.get(name, name) != name]

    def _columns_read(self) -> list[tuple[str, str]]:
        return [(one.name, one.source) for one in self.outputs if one.source and one.name[:2] != "x_"]


def _few(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def plan_for(name: str, found: Found, asked: Asked) -> Plan:
    if not found.rows:
        raise ForeignError(f"{found.files[0]}: holds no steps", "was it stopped before it wrote?")
    roles = _names.roles(found.columns, asked, found.files[0])
    policy = _policy.settle(found, roles, asked)
    plan = Plan(found, roles, policy, _metadata(name, policy, asked), notes=list(policy.notes))
    if "agent_id" not in roles:
        plan.notes.append(f"there is one agent, called {AGENT!r}")
    _note_on_episodes(plan)
    used = _add_actions(plan)
    for role, source in roles.items():
        if role in schema.load().columns and source not in used and role not in _KEYS:
            _add(plan, role, source)
    _add_terminated(plan)
    _add_gaussian(plan)
    order = list(schema.load().columns)
    plan.outputs.sort(key=lambda one: order.index(one.name))
    _add_own(plan)
    return plan


_KEYS = ("episode_id", "timestep", "agent_id")


def _metadata(name: str, policy: _policy.Policy, asked: Asked) -> dict[str, Any]:
    made: dict[str, Any] = {
        "schema": schema.CURRENT,
        "producer": {"name": f"bufcheck convert --from {name}", "version": __version__},
    }
    for table in METADATA_TABLES:
        given = asked.config.metadata.items()
        made[table] = {k.split(".")[1]: v for k, v in given if k.startswith(f"{table}.")}
    made["policy"] |= policy.settings
    return made


def _note_on_episodes(plan: Plan) -> None:
    roles = plan.roles
    ends = [roles[r] for r in ("terminated", "truncated", "done", "episode_start") if r in roles]
    if "episode_id" not in roles:
        how = f"are cut by {' and '.join(ends)}" if ends else "are not marked: each part is one"
        plan.notes.append(f"episodes {how}; they are numbered in the order of the source")
    if "done" in roles and "terminated" not in roles:
        plan.notes.append(
            f"{roles['done']} marks the last step of an episode (if the first: --column"
            f" episode_start={roles['done']}), and tells no time limit from a terminal state"
        )


def _add(plan: Plan, role: str, source: str) -> None:
    """One column of the schema, if the source's values can be it."""
    column, kind = schema.load().columns[role], plan.found.columns[source]
    if role in OF_FAMILY[not plan.policy.categorical]:
        return
    wanted = _values.target(column, kind)
    if wanted is None:
        shape = "×".join(map(str, kind.shape)) or "one"
        plan.notes.append(
            f"{source} ({shape} {kind.type} a row) is not what {role} is, and carried along only"
        )
        return
    if pa.types.is_nested(wanted) and role in ("state_embed", "action"):
        item = kind.type.value_type if pa.types.is_nested(kind.type) else kind.type
        if item != wanted.value_type:
            types = [schema.type_name(one) for one in (wanted.value_type, item)]
            plan.notes.append(f"{role} is {types[0]}, as a network sees it; {source} is {types[1]}")
    plan.outputs.append(Output(role, wanted, source, _as_is(source, wanted)))


def _as_is(source: str, wanted: pa.DataType) -> Callable[[Piece], pa.Array]:
    return lambda piece: _values.as_arrow(piece.columns[source], wanted, source)


def _add_actions(plan: Plan) -> set[str]:
    """What was done; and, for a categorical policy, out of how many."""
    source, kind = plan.policy.actions, plan.found.columns[plan.policy.actions]
    if not plan.policy.categorical:
        _add(plan, "action", source)
        return {source}
    role = "action_id" if plan.roles.get("action_id") == source else "action_index"
    if math.prod(kind.shape) != 1 or pa.types.is_nested(kind.type):
        raise ForeignError(
            f"{plan.found.files[0]}: {source} is not one action a row",
            "name it with --column action_index=",
        )
    first = plan.found.first_action

    def make(piece: Piece) -> pa.Array:
        values = piece.columns[source]
        if first:
            values = (
                pa.compute.subtract(values, first) if isinstance(values, pa.Array) else values - first
            )
        return _values.as_arrow(values, pa.int32(), source)

    plan.outputs.append(Output(role, pa.int32(), source, make))
    size = plan.policy.settings.get("action_space")
    if "num_actions" not in plan.roles and plan.policy.settings["subset"] == "all" and size:
        plan.notes.append(f"every step offers all {size} actions")

        def offered(piece: Piece) -> pa.Array:
            return pa.repeat(pa.scalar(size, pa.int32()), len(piece.columns[source]))

        plan.outputs.append(Output("num_actions", pa.int32(), "", offered))
    return {source}


def _add_terminated(plan: Plan) -> None:
    """`dones` where nothing better is known: what trainers that have no more take for terminal."""
    roles = plan.roles
    if "done" not in roles or "terminated" in roles:
        return
    done, cut = roles["done"], roles.get("truncated")

    def make(piece: Piece) -> pa.Array:
        ended = flags(piece.columns[done], done)
        return pa.array(ended & ~flags(piece.columns[cut], cut) if cut else ended)

    plan.outputs.append(Output("terminated", pa.bool_(), done, make))


def _add_gaussian(plan: Plan) -> None:
    """RLlib's inputs of a diagonal Gaussian are its means and the logs of its deviations, in one."""
    source = plan.roles.get("logits", "")
    width = math.prod(plan.found.columns[plan.policy.actions].shape)
    if (
        plan.policy.settings["distribution"] != "diagonal_gaussian"
        or not source.endswith("action_dist_inputs")
        or plan.found.columns[source].shape != (2 * width,)
        or {"action_mean", "action_std"} & set(plan.roles)
    ):
        return
    kind = pa.list_(pa.float32(), width)

    def part(first: int, log: bool) -> Callable[[Piece], pa.Array]:
        def make(piece: Piece) -> pa.Array:
            values = piece.columns[source][:, first : first + width].astype(np.float32)
            with np.errstate(over="ignore"):
                return _values.as_arrow(np.exp(values) if log else values, kind, source)

        return make

    plan.notes.append(f"{source} is the mean and the log of the standard deviation of the actions")
    plan.outputs.append(Output("action_mean", kind, source, part(0, False)))
    plan.outputs.append(Output("action_std", kind, source, part(width, True)))


def _add_own(plan: Plan) -> None:
    """What is left is the user's own."""
    used = {one.source for one in plan.outputs}
    used |= {plan.roles[r] for r in ("timestep", "agent_id") if r in plan.roles}
    episode = plan.roles.get("episode_id")
    if episode and plan.found.ids_stay and pa.types.is_integer(plan.found.columns[episode].type):
        used.add(episode)
    taken: set[str] = set()
    for source, kind in plan.found.columns.items():
        if source in used:
            continue
        wanted = _values.carried(kind)
        if wanted is None:
            plan.left_out[source] = "Arrow has no shape for it"
            continue
        name = "x_" + re.sub(r"\W", "_", source, flags=re.ASCII)
        while name in taken:
            name += "_"
        taken.add(name)
        plan.outputs.append(Output(name, wanted, source, _as_is(source, wanted)))
