"""A dump in memory, as faults see it: columns to read and overwrite, neighbours, siblings, log-probs.

Only rows that may be changed are ever changed; a value that would not change keeps its bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from bufcheck import vectors
from bufcheck.errors import UsageError
from bufcheck.faults._acting import Acting, draw, gaussian_log_prob, log_softmax, pick
from bufcheck.vectors import Array

SAME = 1e-6
"""Log-probs closer than this are one number to float32 networks: such a row is not hit."""
NO_VERSION = np.iinfo(np.int64).min
SUBSET = ("subset_indices", "num_actions", "action_mask")
Parameters = Mapping[str, Any]


class Buffer:
    def __init__(self, columns: Mapping[str, pa.Array], acting: Acting, avoid: Array) -> None:
        self.columns = dict(columns)
        self._given = columns
        """As they came: what one row takes from another was there before the fault."""
        self.acting, self.policy = acting, acting.policy
        self.avoid = avoid
        """Rows that must stay as they are."""
        self.rows = len(avoid)

    # Reading

    def has(self, name: str) -> bool:
        return name in self.columns

    def need(self, name: str) -> pa.Array:
        if name not in self.columns:
            raise UsageError(
                f"{self.acting.fault} needs the column {name}, which the dump lacks",
                "`bufcheck inject --list` names the others",
            )
        return self.columns[name]

    def numbers(self, name: str) -> Array:
        """A scalar column as int64 or float64; nulls as the least integer, or NaN."""
        column = self.need(name)
        if pa.types.is_integer(column.type):
            column = column.cast(pa.int64()).fill_null(NO_VERSION)
            return np.array(column.to_numpy(zero_copy_only=False))
        return np.array(column.to_numpy(zero_copy_only=False), np.float64)

    def flags(self, name: str) -> Array:
        """A column of booleans; all False where the dump lacks it."""
        if not self.has(name):
            return np.zeros(self.rows, bool)
        return np.array(self.columns[name].fill_null(False).to_numpy(zero_copy_only=False))

    def table(self, name: str) -> tuple[Array, Array]:
        """A column of vectors as [N, width], zeros behind the short ones; and each row's length."""
        opened = vectors.open_rows(self.need(name))
        lengths = opened.lengths
        made: Array = np.zeros((self.rows, int(lengths.max(initial=0))), opened.values.dtype)
        made[np.arange(made.shape[1]) < lengths[:, None]] = opened.values
        return made, lengths

    @cached_property
    def stored(self) -> Array:
        """old_log_prob, as float64."""
        return self.numbers("old_log_prob")

    @property
    def action(self) -> Array:
        return self.numbers("action_index")

    @cached_property
    def sizes(self) -> Array:
        return self.numbers("num_actions")

    # Who, when

    @cached_property
    def episode(self) -> Array:
        return np.unique(self.numbers("episode_id"), return_inverse=True)[1]

    @cached_property
    def timestep(self) -> Array:
        return self.numbers("timestep")

    @cached_property
    def _agents(self) -> tuple[list[str], Array]:
        texts = self.need("agent_id").fill_null("").to_numpy(zero_copy_only=False).astype(str)
        names, codes = np.unique(texts, return_inverse=True)
        return names.tolist(), codes

    @property
    def agents(self) -> list[str]:
        """Their names, in order."""
        return self._agents[0]

    @property
    def agent(self) -> Array:
        """Each row's place among `agents`."""
        return self._agents[1]

    @cached_property
    def version(self) -> Array:
        if not self.has("policy_version"):
            return np.full(self.rows, NO_VERSION)
        return self.numbers("policy_version")

    @cached_property
    def step(self) -> Array:
        """A number for each (episode, timestep)."""
        steps = np.unique(self.timestep, return_inverse=True)[1]
        return np.unique(self.episode * (int(steps.max()) + 1) + steps, return_inverse=True)[1]

    @cached_property
    def track(self) -> Array:
        """A number for each (episode, agent)."""
        return np.unique(self.episode * len(self.agents) + self.agent, return_inverse=True)[1]

    def neighbour(self, offset: int) -> Array:
        """The row so many places later in time, of the same episode and agent; −1 where none is."""
        order = np.lexsort((self.timestep, self.track))
        place = np.arange(self.rows) + offset
        inside = (place >= 0) & (place < self.rows)
        other = order[np.where(inside, place, 0)]
        found: Array = np.full(self.rows, -1)
        found[order] = np.where(inside & (self.track[other] == self.track[order]), other, -1)
        return found

    def sibling(self) -> Array:
        """The row of the next agent of the same step; after the last agent comes the first."""
        order = np.lexsort((self.agent, self.step))
        starts = np.flatnonzero(np.diff(self.step[order], prepend=-1))
        sizes = np.diff(starts, append=self.rows)
        first, size = np.repeat(starts, sizes), np.repeat(sizes, sizes)
        found: Array = np.empty(self.rows, np.int64)
        found[order] = order[first + (np.arange(self.rows) - first + 1) % size]
        return found

    def whole(self, groups: Array, hit: Array) -> Array:
        """All rows of the groups that hold a hit row, and none that must stay as it is."""
        touched = np.zeros(int(groups.max()) + 1, bool)
        touched[groups[hit]] = True
        touched[groups[self.avoid]] = False
        return np.flatnonzero(touched[groups])

    def led(self, groups: Array, hit: Array, *, by_last: bool = False) -> Array:
        """The groups whose first (or last) row in time is hit; if none, that of the first hit row."""
        order = np.lexsort((self.timestep, groups))
        edge = np.diff(groups[order], append=-1) if by_last else np.diff(groups[order], prepend=-1)
        leaders = order[np.flatnonzero(edge)]
        found = groups[leaders[np.isin(leaders, hit)]]
        chosen = np.unique(found) if len(found) else groups[hit[:1]]
        return np.setdiff1d(chosen, groups[self.avoid])

    # Writing

    def set(self, name: str, rows: Array, values: Any) -> None:
        """Overwrites a scalar column."""
        old = self.need(name)
        new = np.broadcast_to(np.asarray(values), (len(rows),))
        if not pa.types.is_string(old.type):
            with np.errstate(over="ignore"):
                new = new.astype(old.type.to_pandas_dtype())
        now = old.take(pa.array(rows)).to_numpy(zero_copy_only=False)
        same = now == new
        if new.dtype.kind == "f":
            same |= np.isnan(new) & np.isnan(now)
        changed = ~same & ~self.avoid[rows]
        self._merge(name, rows[changed], pa.array(new[changed], old.type))

    def set_vectors(self, name: str, rows: Array, values: Sequence[Any] | Array) -> None:
        """Overwrites a column of vectors."""
        free = ~self.avoid[rows]
        kept = [value for value, ok in zip(values, free, strict=True) if ok]
        self._merge(name, rows[free], pa.array(kept, self.need(name).type))

    def borrow(self, names: Sequence[str], rows: Array, donors: Array) -> None:
        """Gives rows what their donors have in these columns, those of them that the dump has."""
        good = (donors >= 0) & ~self.avoid[rows]
        good[good] &= ~self.avoid[donors[good]]  # what lies there may be another fault's
        for name in names:
            if self.has(name):
                given = self._given[name].take(pa.array(donors[good]))
                self._merge(name, rows[good], given)

    def set_action(self, rows: Array, action: Array) -> None:
        """Another action was taken: its index, and its id where that is stored too."""
        self.set("action_index", rows, action)
        if self.has("action_id") and self.has("subset_indices"):
            subset, lengths = self.table("subset_indices")
            inside = (action >= 0) & (action < lengths[rows])
            self.set("action_id", rows[inside], subset[rows[inside], action[inside]])

    def rescore(self, rows: Array, log_probs: Array) -> None:
        """Stores these log-probs, but where they are what the row's own actor gives."""
        own = self.log_prob(rows)
        with np.errstate(invalid="ignore"):
            same = np.abs(log_probs - own) <= SAME
        keep = ~same & ~np.isnan(log_probs)
        self.set("old_log_prob", rows[keep], log_probs[keep])

    def follow(self, rows: Array, chances: Array, mode: str, rng: np.random.Generator) -> None:
        """Another distribution, given by its log-probs, scored the action, sampled it, or both."""
        if mode == "scored":
            self.rescore(rows, pick(chances, self.action[rows]))
            return
        drawn = draw(chances, rng)
        scored_by = chances if mode == "sampled" else log_softmax(self.local(rows))
        self.rescore(rows, pick(scored_by, drawn))
        self.set_action(rows, drawn)

    def grown(self, donors: Array, after: Array) -> tuple[Buffer, Array]:
        """A buffer with copies of the donors, each behind the row `after`; and where they now are."""
        place = np.concatenate([np.arange(self.rows), after + 0.5])
        order = np.argsort(place, kind="stable")
        source = np.concatenate([np.arange(self.rows), donors])[order]
        columns = {name: column.take(pa.array(source)) for name, column in self.columns.items()}
        avoid = np.concatenate([self.avoid, np.zeros(len(donors), bool)])[order]
        where = np.empty(len(order), np.int64)
        where[order] = np.arange(len(order))
        return Buffer(columns, self.acting, avoid), where[self.rows :]

    def _merge(self, name: str, rows: Array, new: pa.Array) -> None:
        if len(rows):
            index = np.arange(self.rows)
            index[rows] = self.rows + np.arange(len(rows))
            self.columns[name] = pa.concat_arrays([self.columns[name], new]).take(pa.array(index))

    # What actors say

    @cached_property
    def states(self) -> Array:
        table, _ = vectors.as_table(vectors.open_rows(self.need("state_embed")))
        return table

    def outputs(self, rows: Array, agents: Array | None = None, versions: Array | None = None) -> Array:
        """[n, outputs], float64: what the rows' actors say, or those of other agents or versions."""
        agents = self.agent[rows] if agents is None else agents
        versions = self.version[rows] if versions is None else versions
        pairs, which = np.unique(np.stack([agents, versions], 1), axis=0, return_inverse=True)
        whose = [(self.agents[a], None if v == NO_VERSION else int(v)) for a, v in pairs]
        for agent, version in whose:
            if not self.acting.knows(agent, version):
                at = "" if version is None else f", version {version}"
                raise UsageError(
                    f"{self.acting.fault} needs the actor of agent {agent}{at}",
                    "give it with --actor [AGENT[@VERSION]=]PATH",
                )
        return self.acting.outputs(self.states[rows], whose, which.reshape(-1))

    def version_at(self, rows: Array, offset: int) -> tuple[Array, Array]:
        """The version so many places on among the agent's own; and which rows have one.

        Past the last of the dump, versions are counted on, as far as there are actors of that number.
        """
        self.need("policy_version")
        versions, known = self.version[rows], np.zeros(len(rows), bool)
        found = versions.copy()
        for code, name in enumerate(self.agents):
            have = np.unique(self.version[self.agent == code])
            have = have[have != NO_VERSION]
            mine = np.flatnonzero((self.agent[rows] == code) & (versions != NO_VERSION))
            place = np.searchsorted(have, versions[mine]) + offset
            inside = (place >= 0) & (place < len(have))
            found[mine] = np.where(inside, have[np.where(inside, place, 0)], versions[mine] + offset)
            for version in np.unique(found[mine[place >= 0]]):
                known[mine[place >= 0]] |= (found[mine[place >= 0]] == version) & self.acting.knows(
                    name, int(version)
                )
        return found, known

    def offered(self, rows: Array, kind: str | None = None) -> Array:
        """[n, K]: which logit each place of the row's subset is; −1 behind the last."""
        kind = kind or self.policy["logits"]
        if kind == "gather" and self.has("subset_indices"):
            table, lengths = self.table("subset_indices")
            ids, sizes = table[rows].astype(np.int64), lengths[rows]
        else:
            sizes = self.sizes[rows]
            if kind != "prefix" and self.policy["action_space"]:
                sizes = np.full(len(rows), self.policy["action_space"])
            ids = np.tile(np.arange(int(sizes.max(initial=1))), (len(rows), 1))
        found: Array = np.where(np.arange(ids.shape[1]) < sizes[:, None], ids, -1)
        return found

    def local(self, rows: Array, outputs: Array | None = None, ids: Array | None = None) -> Array:
        """[n, K]: the logits behind the row's choice, masked and at the policy's temperature."""
        outputs = self.outputs(rows) if outputs is None else outputs
        ids = self.offered(rows) if ids is None else ids
        logits = self.unmasked(outputs, ids)
        if self.has("action_mask"):
            mask, lengths = self.table("action_mask")
            width = min(mask.shape[1], logits.shape[1])
            closed = ~mask[rows, :width] & (np.arange(width) < lengths[rows, None])
            value = -np.inf if self.policy["masked_logit"] is None else self.policy["masked_logit"]
            shut = value / self.policy["temperature"]
            logits[:, :width] = np.where(closed & (ids[:, :width] >= 0), shut, logits[:, :width])
        return logits

    def unmasked(self, outputs: Array, ids: Array | None = None) -> Array:
        """Logits at the policy's temperature: of all actions, or of those named in `ids`."""
        logits: Array = outputs / self.policy["temperature"]
        if ids is None:
            return logits
        stray = ids >= logits.shape[1]
        found = np.take_along_axis(logits, np.where(stray | (ids < 0), 0, ids), 1)
        chosen: Array = np.where(ids < 0, -np.inf, np.where(stray, np.nan, found))
        return chosen

    def log_prob(self, rows: Array, outputs: Array | None = None) -> Array:
        """Of the stored actions, by their own actors or by the outputs of others."""
        outputs = self.outputs(rows) if outputs is None else outputs
        family = self.policy["distribution"]
        if family == "categorical":
            return pick(log_softmax(self.local(rows, outputs)), self.action[rows])
        if family == "diagonal_gaussian":
            actions, _ = self.table("action")
            return gaussian_log_prob(outputs, actions[rows].astype(np.float64))
        raise UsageError(
            f"{self.acting.fault} cannot compute log-probs of a {family}",
            "choose a fault that moves stored values: logprob-row-shift, say",
        )

    def steered(self, outputs: Array) -> int:
        """How many of an actor's outputs say where it goes: all logits; of a Gaussian, the means."""
        return int(outputs.shape[1]) // (1 if self.policy["distribution"] == "categorical" else 2)
