"""Arrays over time, or time × environments, or time × environments × agents, as rows.

Which axes there are is read off the arrays that hold one number a step (rewards, log-probs, …); they
must lead the observations and actions, too. Arrays with one entry more in time than there are rewards,
as many buffers have them, end with what came after the last step; that entry belongs to no row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bufcheck.errors import ForeignError
from bufcheck.importer import AXES, Asked, Kind, Piece, rows_at_once
from bufcheck.importers import _keys, _names
from bufcheck.vectors import Array

SCALARS = (
    *("old_log_prob", "reward", "advantage", "value", "return", "done", "terminated", "truncated"),
    *("episode_start", "action_index", "action"),
)
ENDS = ("terminated", "truncated", "done")
AXES_HELP = "say which axes there are with --axes, e.g. --axes time,env"


@dataclass
class Numbering:
    """How many episodes the rollouts before had."""

    taken: int = 0


class Layout(NamedTuple):
    """Which of the arrays are rows, and how."""

    axes: tuple[str, ...]
    """Of AXES, in the order the arrays have them."""
    sizes: tuple[int, ...]
    roles: dict[str, str]
    reach: dict[str, int]
    """How many of the axes each array has; it holds for all along the others."""
    longer: tuple[str, ...]
    """Arrays with an entry more in time, which is left out."""
    left_out: dict[str, str]

    def size(self, axis: str) -> int:
        return self.sizes[self.axes.index(axis)] if axis in self.axes else 1

    @property
    def ids_stay(self) -> bool:
        """Whether no two environments can have given their episodes one id."""
        return "episode_id" not in self.roles or self.size("env") == 1

    @property
    def rows(self) -> int:
        return math.prod(self.sizes)


def layout(shapes: dict[str, Kind], asked: Asked, where: object) -> Layout:
    """`shapes` are those of whole arrays; Arrow arrays have their length only."""
    roles = _names.roles(shapes, asked, where)
    axes = asked.axes or AXES
    at = axes.index("time")
    steps = _steps(shapes, roles, at, where)
    cut: dict[str, tuple[int, ...]] = {}
    longer = []
    for name, kind in shapes.items():
        shape = kind.shape
        if len(shape) > at and shape[at] == steps + 1:
            longer.append(name)
            shape = (*shape[:at], steps, *shape[at + 1 :])
        cut[name] = shape
    sizes = _sizes(cut, shapes, roles, asked, where)
    reach, left_out = {}, {}
    for name, shape in cut.items():
        count = next((n for n in range(len(sizes), 0, -1) if shape[:n] == sizes[:n]), 0)
        if count <= at:
            left_out[name] = "not one value a step"
        elif count < len(sizes) and not pa.types.is_primitive(shapes[name].type):
            left_out[name] = "no numbers"
        else:
            reach[name] = count
    kept = tuple(name for name in longer if name in reach)
    held = {role: name for role, name in roles.items() if name in reach}
    return Layout(axes[: len(sizes)], sizes, held, reach, kept, left_out)


def _steps(shapes: dict[str, Kind], roles: dict[str, str], at: int, where: object) -> int:
    for role in ("reward", "action_index", "action", "old_log_prob"):
        if role in roles and len(shapes[roles[role]].shape) > at:
            return shapes[roles[role]].shape[at]
    raise ForeignError(
        f"{where}: has no rewards, actions or log-probs over time",
        f"name them with --column; it has {', '.join(sorted(shapes)[:12])}",
    )


def _sizes(
    cut: dict[str, tuple[int, ...]],
    shapes: dict[str, Kind],
    roles: dict[str, str],
    asked: Asked,
    where: object,
) -> tuple[int, ...]:
    main = [
        cut[roles[r]] for r in ("state_embed", "action", "action_index", "old_log_prob") if r in roles
    ]
    leads = []
    for role in SCALARS:
        continuous = (
            role == "action" and role in roles and pa.types.is_floating(shapes[roles[role]].type)
        )
        if role in roles and not continuous:
            leads.append(cut[roles[role]][: len(AXES)])
    if asked.axes:
        count = len(asked.axes)
        if not all(len(shape) >= count and shape[:count] == main[0][:count] for shape in main):
            raise ForeignError(f"{where}: its arrays do not all begin with these axes", AXES_HELP)
        return main[0][:count]
    for lead in sorted(leads, key=len, reverse=True):
        for count in range(len(lead), 1, -1):
            if all(shape[:count] == lead[:count] for shape in main):
                return lead[:count]
    return main[0][:1] if main else leads[0][:1]


def kinds(shapes: dict[str, Kind], found: Layout) -> dict[str, Kind]:
    """What each array holds in one row."""
    held = {}
    for name, count in found.reach.items():
        kind = shapes[name]
        held[name] = kind._replace(shape=kind.shape[count:])
    return held | {name: Kind(kind) for name, kind in _made(found).items()}


def _made(found: Layout) -> dict[str, pa.DataType]:
    """Columns that follow from the axes."""
    made = {}
    if found.size("env") > 1 and "env_id" not in found.roles:
        made["env_id"] = pa.int64()
    if "agent" in found.axes and "agent_id" not in found.roles:
        made["agent_id"] = pa.string()
    if "agent" in found.axes and "episode_id" not in found.roles:
        made |= {"episode_id": pa.int64(), "timestep": pa.int64()}
    elif "episode_start" in found.roles and not found.roles.keys() & set(ENDS):
        made["done"] = pa.bool_()
    return made


def pieces(
    arrays: dict[str, Any], found: Layout, columns: dict[str, Kind], lane: Any, numbering: Numbering
) -> Iterator[Piece]:
    """Environment by environment, a few megabytes at a time."""
    steps, agents = found.size("time"), found.size("agent")
    step = max(1, rows_at_once(columns) // agents)
    for env in range(found.size("env")):
        wanted = [name for name in columns if name in found.reach] + list(found.roles.values())
        held = {name: _of_env(arrays[name], name, found, env) for name in dict.fromkeys(wanted)}
        held |= _derived(held, found, env, numbering)
        for start in range(0, steps, step):
            stop = min(start + step, steps)
            rows = {name: _flat(values[start:stop], agents) for name, values in held.items()}
            yield Piece({name: rows[name] for name in columns}, (lane, env), begins=start == 0)


def _of_env(values: Any, name: str, found: Layout, env: int) -> Any:
    """[time, agent, …] of one environment; `agent` has one entry where there are no agents."""
    if isinstance(values, pa.Array):
        return values
    count = found.reach[name]
    if name in found.longer:
        values = values[(slice(None),) * found.axes.index("time") + (slice(found.size("time")),)]
    lead, rest, missing = values.shape[:count], values.shape[count:], found.sizes[count:]
    values = values.reshape(*lead, *[1] * len(missing), *rest)
    values = np.broadcast_to(values, (*lead, *missing, *rest))
    order = [found.axes.index(axis) for axis in AXES if axis in found.axes]
    values = values.transpose(*order, *range(len(order), values.ndim))
    if "env" in found.axes:
        values = values[:, env]
    return values if "agent" in found.axes else values[:, None]


def _flat(values: Any, agents: int) -> Any:
    if isinstance(values, pa.Array):
        return values
    return values.reshape(len(values) * agents, *values.shape[2:])


def _derived(held: dict[str, Any], found: Layout, env: int, numbering: Numbering) -> dict[str, Any]:
    steps, agents = found.size("time"), found.size("agent")
    made: dict[str, Any] = {}
    wanted = _made(found)
    if "env_id" in wanted:
        made["env_id"] = np.full((steps, agents), env)
    if "agent_id" in wanted:
        # With leading zeros, or agent_10 would stand before agent_2.
        names = [f"agent_{n:0{len(str(agents - 1))}}" for n in range(agents)]
        made["agent_id"] = _Names(names)
    if "done" in wanted:
        starts = np.atleast_1d(_together(held, found, ("episode_start",)).any(axis=1))
        made["done"] = np.repeat(np.append(starts[1:], False)[:, None], agents, axis=1)
    if "episode_id" in wanted:
        # The episode of several agents ends when it has ended for all of them.
        ended = np.concatenate([[True], np.all(_together(held, found, ENDS)[:-1], axis=1)])
        begins = ended | _together(held, found, ("episode_start",)).any(axis=1)
        ordinal, step = _keys.cut(begins, _keys.Place(numbering.taken - 1))
        numbering.taken = int(ordinal[-1]) + 1
        made["episode_id"] = np.repeat(ordinal[:, None], agents, axis=1)
        made["timestep"] = np.repeat(step[:, None], agents, axis=1)
    return made


class _Names:
    """The agents' names, over and over; a slice of steps has as many of them as rows."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __getitem__(self, steps: slice) -> pa.Array:
        return pa.array(self.names * (steps.stop - steps.start))


def _together(held: dict[str, Any], found: Layout, roles: tuple[str, ...]) -> Array:
    """[time, agent]: whether one of these flags is set."""
    steps, agents = found.size("time"), found.size("agent")
    flags = np.zeros(steps * agents, bool)
    for role in roles:
        if role in found.roles:
            name = found.roles[role]
            flags |= _keys.flags(_flat(held[name], agents), name)
    return flags.reshape(steps, agents)


def told(found: Layout) -> list[str]:
    """What was taken for granted about the axes."""
    said = [f"the first axes are {' × '.join(found.axes)}"] if len(found.axes) > 1 else []
    if found.longer:
        said.append(f"the last entry of {', '.join(found.longer)} came after the last step")
    return said
