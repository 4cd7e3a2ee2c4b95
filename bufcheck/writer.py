"""BufferWriter: experience written as a trainer makes it, in files that are whole or absent.

A path with a suffix is one file, which gets its name when the writer is closed. Any other path is a
folder of parts, each of which gets its name when it is full: what a killed trainer loses is the last
part, and what it leaves says so, because only the last part of a writer that was closed is marked
`last`. A rollout is checked before it is taken, so that the first bad one fails where it is made.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bufcheck import __version__, incoming, memory, rollout, schema, screen
from bufcheck.errors import SampleError, UsageError
from bufcheck.fields import Fields, as_batch, joined
from bufcheck.parts import PART_ROWS, Parts

if TYPE_CHECKING:
    import torch

CHECKS = ("error", "warn", "off")
STEPS_HELD = 1 << 10
EPISODES_PER_WORKER = 10**12
"""Worker 3's episode 17 is 3000000000017: readable, and no two workers can meet."""


class BufferWriter:
    """Writes the experience of one trainer, or of one worker of it.

        with bufcheck.BufferWriter("run/dump", policy={"action_space": 64}) as buffer:
            buffer.save_actor(None, network)
            buffer.append_rollout({"state_embed": states, "old_log_prob": log_probs, …})

    `policy`, `advantage`, `agents`: what the metadata of a dump says (`bufcheck schema`). `check`: what
    a row that breaks a rule leads to, "error", "warn" or nothing. `worker`: a number for each process
    that writes into one folder. `policy_version` is stored with every row that does not say its own.
    `suffix` and `part_rows`: what the parts in a folder are.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        policy: Mapping[str, Any] | None = None,
        advantage: Mapping[str, Any] | None = None,
        agents: Mapping[str, Any] | None = None,
        producer: Mapping[str, Any] | None = None,
        worker: int | None = None,
        policy_version: int | None = None,
        check: str = "error",
        suffix: str = ".parquet",
        part_rows: int = PART_ROWS,
        actors: str | os.PathLike[str] | None = None,
    ) -> None:
        if check not in CHECKS:
            raise UsageError(f"check is {check!r}", f"say one of {', '.join(CHECKS)}")
        self.path, self.check, self.worker = Path(path), check, worker
        self.policy_version = policy_version
        self.rows = 0
        self._metadata = memory.described(policy, advantage, agents, producer or _PRODUCER)
        self._policy = memory.policy_of(self._metadata)
        self._lock, self._process = threading.RLock(), os.getpid()
        self._steps: list[Fields] = []
        self._names: list[str] | None = None
        self._kinds: dict[str, Any] = {}
        self._clock = rollout.Clock()
        self._parts = Parts(self.path, worker, suffix, part_rows, self._metadata)
        self.actors = Path(actors) if actors is not None else _beside(self.path, self._parts.is_folder)
        self._shared_actor: bool | None = None
        self.closed = False
        atexit.register(self._abandon)

    # Rows

    def append(self, step: Mapping[str, Any] | None = None, /, **columns: Any) -> None:
        """Take one sample: a dict or keywords, each column as one row has it."""
        known = schema.load().columns
        one = {
            name: [value]
            for name, value in {**(step or {}), **columns}.items()
            if value is not None or (name in known and known[name].nullable)
        }
        with self._ready():
            fields = self._checked(incoming.fields_of(self._complete(one), 1, self._policy))
            self._steps.append(fields)
            self.rows += 1
            if len(self._steps) >= STEPS_HELD:
                self._write_steps()

    def append_rollout(self, columns: Mapping[str, Any]) -> None:
        """Take many samples: each column with one entry, vector or list per row."""
        with self._ready():
            rows = incoming.count_rows(columns)
            if rows == 0:
                return
            fields = self._checked(incoming.fields_of(self._complete(columns), rows, self._policy))
            self._write_steps()
            self._parts.append(as_batch(fields))
            self.rows += rows

    def append_envs(
        self,
        columns: Mapping[str, Any],
        *,
        starts: Any,
        agents: Sequence[str] | None = None,
        keep: Any = None,
    ) -> None:
        """Take a rollout of environments: [time, env, …], or with `agents` [time, env, agent, …].

        `starts[t, e]` says that step t is the first after a reset; episode ids and timesteps follow
        from it. `keep[t, e]` is False where an environment spent a step on resetting itself.
        """
        with self._ready():
            rows = rollout.as_rows(columns, starts, self._clock, agents, keep)
            rows.setdefault("agent_id", "agent")
            self.append_rollout(rows)

    # Actors

    def save_actor(self, agent_id: str | None, module: torch.nn.Module, **options: Any) -> Path:
        """Save the actor of an agent (None: of all agents) under the present `policy_version`.

        Options are those of `bufcheck.save_actor`. `actor_pattern` is what --actor takes to find them.
        """
        from bufcheck.actors import described_layers

        with self._ready():
            if self._shared_actor not in (None, agent_id is None):
                raise UsageError("an actor is of all agents or of one", "save either for every agent")
            path = self.actors / _file_name(_as_name(agent_id), self.policy_version)
            self.actors.mkdir(parents=True, exist_ok=True)
            described_layers.save(module, path, **options)
            self._shared_actor = agent_id is None
            return path

    @property
    def actor_pattern(self) -> str:
        """Where the actors lie, as `--actor` takes it."""
        who = "{agent_id}" if self._shared_actor is False else _as_name(None)
        version = None if self.policy_version is None else "{policy_version}"
        return str(self.actors / _file_name(who, version))

    # The end

    def close(self) -> None:
        """Write what is left, verify it and give the last file its name."""
        self._close(whole=True)

    def __enter__(self) -> BufferWriter:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        # Rows that were taken before a trainer broke off are kept, and marked as not all there are.
        self._close(whole=failed is None)

    def _close(self, *, whole: bool) -> None:
        with self._lock:
            if self.closed or os.getpid() != self._process:
                return
            self.closed = True
            atexit.unregister(self._abandon)
            try:
                self._write_steps()
            except BaseException:
                self._parts.close(whole=False)
                raise
            self._parts.close(whole=whole)

    def _abandon(self) -> None:
        """The process ends, and nobody closed the writer."""
        with contextlib.suppress(Exception):
            self._close(whole=False)

    # Within

    @contextlib.contextmanager
    def _ready(self) -> Any:
        with self._lock:
            if self.closed:
                raise UsageError(f"{self.path}: the writer is closed")
            if os.getpid() != self._process:
                raise UsageError(
                    f"{self.path}: opened in another process", "open one in each, with worker=NUMBER"
                )
            yield

    def _complete(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """With the policy's version, and with episode ids that no other worker uses."""
        whole = dict(given)
        if self.policy_version is not None and whole.get("policy_version") is None:
            whole["policy_version"] = self.policy_version
        if self.worker is not None and whole.get("episode_id") is not None:
            ids = incoming.as_array("episode_id", whole["episode_id"])
            if ids.dtype.kind in "iu":
                if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < EPISODES_PER_WORKER:
                    raise SampleError(f"episode_id must be 0 to {EPISODES_PER_WORKER - 1} with worker=")
                whole["episode_id"] = ids.astype("int64") + self.worker * EPISODES_PER_WORKER
        return whole

    def _checked(self, fields: Fields) -> Fields:
        self._hold_to_columns(fields)
        if self.check != "off" and len(screen.suspects(fields, self._policy)):
            # Where an episode ends is not known yet, and so not which bootstrap values count.
            judged = {n: f for n, f in fields.items() if n != "bootstrap_value"}
            broken = memory.broken_rules(as_batch(judged), self._metadata)
            if broken:
                text = " · ".join(_told(outcome) for outcome in broken)
                if self.check == "error":
                    raise SampleError(text, f"`bufcheck explain {broken[0].rule.code}` says more")
                warnings.warn(f"bufcheck: {text}", stacklevel=4)
        if self._names is None:  # what was refused does not say what a row must have
            self._names = list(fields)
            self._kinds = {n: (f.values.dtype, f.values.shape[1:]) for n, f in fields.items()}
        return fields

    def _hold_to_columns(self, fields: Fields) -> None:
        """Every row has what the policy needs, and what the rows before it had."""
        if self._names is None:
            needed = schema.load().required(self._policy)
            if lacking := [name for name in needed if name not in fields]:
                raise SampleError(
                    f"{lacking[0]} is missing", "`bufcheck schema` says what a row must have"
                )
            _fits_the_state(fields, self._policy)
            return
        if list(fields) != self._names:
            odd = sorted(set(fields) ^ set(self._names))[0]
            had = "had it" if odd in self._names else "did not have it"
            raise SampleError(f"{odd}: the rows before {had}", "every row has the same columns")
        for name, field in fields.items():
            kind, inner = self._kinds[name]
            if field.values.shape[1:] != inner:
                raise SampleError(
                    f"{name} has {field.values.shape[1]} numbers, the rows before had {inner[0]}"
                )
            if field.values.dtype != kind:
                fields[name] = field._replace(values=_as_before(name, field.values, kind))

    def _write_steps(self) -> None:
        if self._steps:
            steps, self._steps = self._steps, []
            self._parts.append(as_batch(joined(steps)))


_PRODUCER = {"name": "bufcheck.BufferWriter", "version": __version__}


def _told(outcome: Any) -> str:
    first = outcome.examples[0]
    where = f"sample {first['row_id']}"
    if first["row_id"] is None:
        where = "the rows"
    elif first["agent_id"] is not None:
        where += (
            f" (episode {first['episode_id']}, step {first['timestep']}, agent {first['agent_id']})"
        )
    more = f" ({outcome.rows:,} such rows)" if outcome.rows > 1 else ""
    return f"{outcome.rule.name}: {where}: {first['message']}{more}"


def _fits_the_state(fields: Fields, policy: Mapping[str, Any]) -> None:
    shape, width = policy["state_shape"], fields["state_embed"].values.shape[1]
    if shape is not None and math.prod(shape) != width:
        raise SampleError(f"state_embed has {width} numbers, policy.state_shape {shape} says otherwise")


def _as_before(name: str, values: Any, kind: Any) -> Any:
    """In the type the column has. Rounding to float32 is what trainers do; nothing else may be lost."""
    if kind.kind == "O" or values.dtype.kind == "O":
        raise SampleError(f"{name} is text in some rows and not in others")
    with np.errstate(all="ignore"):
        cast = values.astype(kind)
    same = cast == values
    if kind.kind == "f":
        same |= np.isnan(cast) & np.isnan(values)
        if kind.itemsize >= 4:
            same |= np.isfinite(cast) & np.isfinite(values)
    if not same.all():
        raise SampleError(
            f"{name} is {values.dtype}, and was {kind} in the rows before", "cast it to one type"
        )
    return cast


def _as_name(agent_id: str | None) -> str:
    name = "actor" if agent_id is None else str(agent_id)
    if set(name) & set("/\\\0{}") or name in (".", ".."):
        raise UsageError(f"agent {name!r} cannot be the name of a file", "rename the agent")
    return name


def _file_name(who: str, version: int | str | None) -> str:
    return f"{who}.safetensors" if version is None else f"{who}-{version}.safetensors"


def _beside(path: Path, is_folder: bool) -> Path:
    return path.with_name(f"{path.name if is_folder else path.stem}.actors")
