"""What a diagnosis works on: failing rows, the episodes around them, and what actors say of them.

A Case holds whole episodes in row order. Most of its arrays have an entry for each failing row, in the
order of `at`; those called `all_…` have one for every row. A counterfactual is a replay of the failing
rows with some of their columns taken from other rows, or by other actors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bufcheck.offer import Offer, hashed, log_softmax, offers, pick, take
from bufcheck.vectors import Array, as_arrow, as_numpy

if TYPE_CHECKING:
    import pyarrow as pa

    from bufcheck.dump import Dump
    from bufcheck.format import Ranges
    from bufcheck.replayer import Replayer

SCALARS = (
    "row_id",
    "episode",
    "timestep",
    "agent",
    "version",
    "stored",
    "replayed",
    "rounding",
    "actor",
)
"""What the database tells of every row; `agent` is a number, `actor` that of the table `actors`."""
CONTEXT = ("subset_indices", "num_actions", "action_mask")
"""The columns that say what a row was offered."""
ACTION = ("action_index", "action")
MOST_NUMBERS = 1 << 25
"""States, logits and subsets of one case hold no more numbers than this."""
CLOSED = -1e4
"""A log-prob below this is that of an action that was masked with a large negative logit."""
ALONE = 1e-6
"""A log-prob nearer to 0 than this is that of a single choice."""
COARSE = 2e-5
DEFAULT_NOISE = 2e-5
"""How far a replay may be off where no row confirms it."""


@dataclass(frozen=True)
class Failing:
    """Scalars of every failing row of the dump, in row order."""

    row_id: Array
    stored: Array
    replayed: Array
    episode: Array
    timestep: Array
    agent: Array
    count_places: Callable[[], tuple[Array, Array]]
    """Which row of its episode each is, in storage order, and how many the episode has."""

    everyone: Callable[[], tuple[Array, Array]]
    """Row ids and replayed log-probs of healthy rows."""

    @cached_property
    def places(self) -> tuple[Array, Array]:
        return self.count_places()


@dataclass(frozen=True)
class Facts:
    """What holds for the whole dump."""

    replay: Replayer
    tolerance: float
    relative: float
    noise: float
    """How far the stored log-probs of healthy rows lie from the replayed ones."""
    agents: list[str]
    """Their names, by number."""
    versions: list[int]
    """Every version the dump holds or a checkpoint is known for, in order."""
    actors: list[str] = field(default_factory=list)
    """Notes on the layers of the checkpoints that make log-probs depend on more than the state."""
    failing: Failing | None = None

    @property
    def policy(self) -> dict[str, Any]:
        return self.replay.policy

    @property
    def is_coarse(self) -> bool:
        """Whether log-probs were stored with so few bits that nothing finer can be asked."""
        return self.relative > COARSE

    @property
    def is_categorical(self) -> bool:
        return bool(self.policy["distribution"] == "categorical")


@dataclass
class Case:
    facts: Facts
    rows: pa.RecordBatch
    scalars: dict[str, Array]
    """SCALARS of every row, in row order."""
    wrong: Array
    """Which rows fail."""
    noted: dict[Any, Any] = field(default_factory=dict)
    """What one cause worked out and others may use."""

    def __post_init__(self) -> None:
        self.at = np.flatnonzero(self.wrong)
        self.unexplained = np.ones(len(self.at), bool)
        """Kept by who puts hypotheses to the case one after the other."""

    def __len__(self) -> int:
        return len(self.at)

    def once(self, key: Any, make: Callable[[], Array]) -> Array:
        """What was worked out under this key before, or now."""
        if key not in self.noted:
            self.noted[key] = make()
        found: Array = self.noted[key]
        return found

    def of(self, name: str) -> Array:
        return self.scalars[name][self.at]

    @cached_property
    def stored(self) -> Array:
        return self.of("stored")

    @cached_property
    def replayed(self) -> Array:
        return self.of("replayed")

    # Judging a prediction

    def near(self, values: Array, *, loosely: bool = False) -> Array:
        """How far a stored log-prob may lie from a right prediction of it; loosely: as far as from a
        right replay."""
        facts = self.facts
        size = np.minimum(np.abs(self.stored), np.abs(values))
        size = np.where(np.isfinite(size), size, 0.0)
        # How a closed action's log-prob of -1e8 is rounded says nothing of what else was stored.
        rounding = np.where(self.replayed < CLOSED, 0.0, np.nan_to_num(self.of("rounding")))
        allowed: Array = facts.tolerance + facts.relative * size + rounding
        if facts.is_coarse or loosely:
            return allowed
        found: Array = np.minimum(allowed, facts.noise + 1e-6 * size + rounding)
        return found

    def hits(self, values: Array, *, loosely: bool = False) -> Array:
        """Which rows hold what was predicted."""
        with np.errstate(invalid="ignore"):
            near = np.abs(self.stored - values) <= self.near(values, loosely=loosely)
        found: Array = near | (np.isneginf(values) & np.isneginf(self.stored))
        return found

    # Neighbours

    def along(self, steps: int) -> Array:
        """The row of the same episode and agent that many steps later; −1 where there is none."""
        return self.all_along(steps)[self.at]

    def all_along(self, steps: int) -> Array:
        """The same for every row, failing or not."""
        return self.once(("along", steps), lambda: self._along(steps))

    def _along(self, steps: int) -> Array:
        order = self._by_stream
        episode, agent, time = (self.scalars[n][order] for n in ("episode", "agent", "timestep"))
        found = np.full(len(order), -1)
        size = abs(steps)
        if 0 < size < len(order):
            late, early = slice(size, None), slice(None, -size)
            same = (episode[late] == episode[early]) & (agent[late] == agent[early])
            same &= time[late] - time[early] == size
            here, there = (early, late) if steps > 0 else (late, early)
            found[order[here][same]] = order[there][same]
        return found

    def beside(self, places: int) -> Array:
        """The row of the agent that many names on, in the same step; −1 where the step is alone."""
        return self.all_beside(places)[self.at]

    def all_beside(self, places: int) -> Array:
        """The same for every row, failing or not."""
        return self.once(("beside", places), lambda: self._beside(places))

    def _beside(self, places: int) -> Array:
        starts, sizes, order, place = self._steps
        group = np.repeat(np.arange(len(starts)), sizes)
        other = starts[group] + (place + places) % sizes[group]
        found = np.full(len(order), -1)
        found[order] = np.where(sizes[group] > 1, order[other], -1)
        found[found == np.arange(len(found))] = -1
        return found

    @cached_property
    def step_of(self) -> Array:
        """A number for the step each row (failing or not) belongs to."""
        starts, sizes, order, _ = self._steps
        found: Array = np.empty(len(order), np.int64)
        found[order] = np.repeat(np.arange(len(starts)), sizes)
        return found

    @property
    def most_agents(self) -> int:
        return int(self._steps[1].max(initial=0))

    @cached_property
    def _by_stream(self) -> Array:
        return np.lexsort([self.scalars[n] for n in ("row_id", "timestep", "agent", "episode")])

    @cached_property
    def _steps(self) -> tuple[Array, Array, Array, Array]:
        """Where each step starts in the order (episode, timestep, agent), its size, that order, and
        each row's place in its step."""
        order = np.lexsort([self.scalars[n] for n in ("row_id", "agent", "timestep", "episode")])
        episode, time = self.scalars["episode"][order], self.scalars["timestep"][order]
        new = np.ones(len(order), bool)
        new[1:] = (episode[1:] != episode[:-1]) | (time[1:] != time[:-1])
        starts = np.flatnonzero(new)
        sizes = np.diff(np.append(starts, len(order)))
        return starts, sizes, order, np.arange(len(order)) - np.repeat(starts, sizes)

    # Counterfactuals

    def replayed_with(
        self, sources: Mapping[str, Array] | None = None, actors: Array | None = None
    ) -> Array:
        """The log-probs of the failing rows, had some columns been those of other rows (given by
        their places in the case, −1 for none), or had other actors acted (by number, −1 for none)."""
        import pyarrow as pa

        columns, lost = {}, np.zeros(len(self), bool)
        for name in self.rows.schema.names:
            source = (sources or {}).get(name, self.at)
            lost |= source < 0
            columns[name] = self.rows.column(name).take(as_arrow(np.maximum(source, 0)))
        numbers = self.of("actor") if actors is None else actors
        return self._asked(pa.RecordBatch.from_pydict(columns), np.where(lost, -1, numbers))

    def replayed_as(self, states: Array) -> Array:
        """The log-probs of the failing rows, had these been their states."""
        import pyarrow as pa

        batch = self.rows.take(as_arrow(self.at))
        place = batch.schema.names.index("state_embed")
        table = pa.FixedSizeListArray.from_arrays(as_arrow(states.reshape(-1)), states.shape[1])
        return self._asked(batch.set_column(place, "state_embed", table), self.of("actor"))

    def _asked(self, batch: pa.RecordBatch, numbers: Array) -> Array:
        import torch

        replay, values = self.facts.replay, np.full(len(self), np.nan)
        with torch.inference_mode():
            for start in range(0, len(self), step := replay.rows_at_once(batch)):
                piece = slice(start, start + step)
                part = values[piece]
                for _, mine, scores in replay.answers(batch.slice(start, step), numbers[piece]):
                    told = scores.log_prob.double().cpu().numpy()
                    if scores.asked is not None:
                        told = np.where(scores.asked.cpu().numpy(), told, np.nan)
                    part[mine] = told
        return values

    def actors_for(self, agents: Array, versions: Array) -> Array:
        """The number of each (agent, version)'s actor; −1 where none was given."""
        find, names = self.facts.replay.find, self.facts.agents
        # To sort pairs as one number each takes a hundredth of the time.
        known, place = np.unique(versions, return_inverse=True)
        pairs, which = np.unique(agents * len(known) + place.reshape(-1), return_inverse=True)
        numbers = []
        for agent, version in zip(pairs // len(known), known[pairs % len(known)].tolist(), strict=True):
            actor = find(names[agent] if agent >= 0 else None, version if version >= 0 else None)
            numbers.append(-1 if actor is None else actor.number)
        return np.array(numbers, np.int32)[which.reshape(-1)]

    # What categorical actors said

    @cached_property
    def logits(self) -> Array:
        """[failing, actions], by each row's own actor; NaN where it was not asked."""
        import torch

        batch = self.rows.take(as_arrow(self.at))
        replay, numbers = self.facts.replay, self.of("actor")
        found = np.full((len(self), replay.outputs), np.nan, np.float32)
        with torch.inference_mode():
            for start in range(0, len(self), step := replay.rows_at_once(batch)):
                piece = slice(start, start + step)
                part = found[piece]
                outputs = replay.outputs_of(batch.slice(start, step), numbers[piece])
                for _, mine, output, _ in outputs:
                    part[mine] = output.cpu().numpy()
        return found.astype(np.float64)

    @cached_property
    def offer(self) -> Offer:
        return offers(self.rows, self.at, self.facts.policy, self.logits.shape[1])

    @cached_property
    def chosen(self) -> Array:
        """action_index; −1 where it is null."""
        found: Array = self.all_actions[self.at]
        return found

    @cached_property
    def all_actions(self) -> Array:
        """action_index of every row, failing or not; −1 where it is null."""
        found: Array = as_numpy(self.rows.column("action_index"), -1).astype(np.int64)
        return found

    @cached_property
    def in_range(self) -> Array:
        """Failing rows whose index is that of something on offer."""
        if not self.facts.is_categorical:
            return np.ones(len(self), bool)
        found: Array = (self.chosen >= 0) & (self.chosen < self.offer.sizes)
        return found

    @cached_property
    def any_action(self) -> Array:
        """The action_index of rows picked at random: what a wrong one would be like."""
        return np.random.default_rng(0).choice(self.all_actions, len(self))

    @cached_property
    def nothing(self) -> Array:
        """The chance of each failing row that another row has its stored value: that of a single choice
        stands in many."""
        healthy = np.abs(self.scalars["stored"][~self.wrong]) <= ALONE
        usual = float(healthy.mean()) if len(healthy) else 0.0
        return np.where(np.abs(self.stored) <= ALONE, usual, 0.0)

    @cached_property
    def telling(self) -> Array:
        """Healthy rows with a choice: of a single one the log-prob is 0, whatever else is stored."""
        found: Array = ~self.wrong & (np.abs(self.scalars["stored"]) > ALONE)
        return found

    @cached_property
    def mostly_right(self) -> Array:
        """Rows of episodes that a bug did not hit, or only here and there: of one that was hit, those
        rows are still right for which it makes no difference."""
        episode = np.unique(self.scalars["episode"], return_inverse=True)[1].reshape(-1)
        right, wrong = np.bincount(episode, self.telling), np.bincount(episode, self.wrong)
        found: Array = (right > wrong)[episode]
        return found

    @cached_property
    def local(self) -> Array:
        """[failing, places]: the logits of what a row was offered; −inf where a place is closed."""
        logits = take(self.logits, self.offer.ids)
        policy = self.facts.policy
        closed = -np.inf if policy["masked_logit"] is None else policy["masked_logit"]
        logits = np.where(self.offer.legal, logits, closed)
        found: Array = np.where(self.offer.offered, logits, -np.inf) / policy["temperature"]
        return found

    @cached_property
    def log_chances(self) -> Array:
        """[failing, places]: the log-prob of each place of what a row was offered."""
        return log_softmax(self.local)

    def scored(self, ids: Array, offered: Array, chosen: Array) -> Array:
        """The log-prob of a place, had these ids been offered: [failing, places] each."""
        logits = np.where(offered, take(self.logits, ids), -np.inf) / self.facts.policy["temperature"]
        return pick(log_softmax(logits), np.where(chosen < ids.shape[1], chosen, -1))

    @cached_property
    def tempered(self) -> Array:
        """[failing, actions]: the logits of all actions, at the dump's temperature."""
        found: Array = self.logits / self.facts.policy["temperature"]
        return found

    @cached_property
    def chosen_id(self) -> Array:
        """The action that was taken, by its id; −1 where the index is out of range."""
        ids = pick(np.where(self.offer.offered, self.offer.ids, -1), self.chosen)
        return np.nan_to_num(ids, nan=-1).astype(np.int64)

    @cached_property
    def choices(self) -> Array:
        """How many places had a chance."""
        from bufcheck.distributions import categorical

        closed = self.facts.policy["masked_logit"]
        shut = closed is None or closed <= categorical.MASKED_FOR_GOOD
        found: Array = (self.offer.offered & (self.offer.legal | (not shut))).sum(1)
        return found

    @cached_property
    def all_offered(self) -> Array:
        """A number for every row, equal where rows were offered the same in the same order."""
        found = np.zeros(self.rows.num_rows, np.uint64)
        for name in CONTEXT:
            if name in self.rows.schema.names:
                found = found * np.uint64(31) + hashed(self.rows.column(name))
        return found


# Reading


def read(facts: Facts, dump: Dump, ids: Array, scalars: dict[str, Array], wrong: Array) -> Case:
    """The rows of these ids (in order), with all that a counterfactual can change."""
    import pyarrow as pa

    names = [n for n in ("state_embed", *CONTEXT, *ACTION) if dump.has(n)]
    batches = [batch.rows for batch in dump.batches(names, ranges(dump, ids))]
    table = pa.Table.from_batches(batches).combine_chunks()
    rows = table.to_batches()[0] if table.num_rows else batches[0]
    return Case(facts, rows, scalars, wrong)


def ranges(dump: Dump, ids: Array) -> list[Ranges]:
    """Where rows lie in each file of the dump."""
    found: list[Ranges] = []
    stops = [*dump.starts[1:], dump.rows]
    for start, stop in zip(dump.starts, stops, strict=True):
        mine = ids[np.searchsorted(ids, start) : np.searchsorted(ids, stop)] - start
        cuts = np.flatnonzero(np.diff(mine) > 1) + 1
        pieces = np.split(mine, cuts) if len(mine) else []
        found.append([(int(piece[0]), int(piece[-1]) + 1) for piece in pieces])
    return found


def rows_at_once(facts: Facts) -> int:
    replay = facts.replay
    width = (replay.width or 1) + 2 * replay.outputs
    return int(np.clip(MOST_NUMBERS // width, 1 << 10, 1 << 17))
