"""Replays saved actors over a dump: what log-prob does each give to the action that was stored?

Rows are scored batch by batch, so that the pass over the states is shared with the digest. What comes
out are the columns of SCORED, which the view `replay` shows.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from bufcheck import distribution, forward, vectors
from bufcheck.ahead import mapped, prefetch
from bufcheck.errors import ReadError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from bufcheck.actor import Actor, Actors
    from bufcheck.distribution import Scores
    from bufcheck.dump import Batch, Dump
    from bufcheck.vectors import Array

BATCH_ROWS = 1 << 14
MOST_NUMBERS = 1 << 23
"""States, logits or subsets of one forward pass hold no more numbers than this."""
ROUNDINGS = 4
"""Every output of a network is taken to be off by up to this many roundings."""
MOST_WORKERS = 4
PREFIX = "replay_"


class Scored(NamedTuple):
    """A column of the table `replay`."""

    name: str
    numpy: str
    meaning: str


SCORED = [
    Scored("actor", "int32", "which actor, as a number of the table `actors`"),
    Scored("log_prob", "float32", "of the stored action, by that actor"),
    Scored("entropy", "float32", "of the actor's distribution: minus the log-prob it expects"),
    Scored("variance", "float32", "of the log-prob over the actor's own samples"),
    Scored("skew", "float32", "third central moment of that"),
    Scored("rounding", "float32", "how far rounding in policy.precision can move this log-prob"),
    Scored("rank", "int32", "how many choices the actor preferred to the one taken"),
    Scored("choices", "int32", "how many choices had a chance; null for continuous actions"),
]


class Replayer:
    """Scores batches of one dump; counts what it could not."""

    def __init__(
        self,
        dump: Dump,
        actors: Actors,
        *,
        device: str = "cpu",
        batch_rows: int = BATCH_ROWS,
        roundoff: float = 0.0,
    ) -> None:
        """`roundoff`: of the precision log-probs were computed in; 0 allows for none."""
        self.dump, self.actors, self.device = dump, actors, forward.usable_device(device)
        self.batch_rows, self.roundoff = batch_rows, roundoff
        self.policy = dump.policy
        self.family = distribution.of_policy(self.policy)
        self.missing: Counter[tuple[str | None, int | None]] = Counter()
        """Rows without an actor, by agent and version."""
        self.replayed = 0
        self.acting: list[Actor] = []
        """The actors whose rows these are; a diagnosis may look at others."""
        self.is_prefix = self.policy["distribution"] == "categorical"
        self.outputs = self.policy["action_space"] or 1
        self._found: dict[tuple[str | None, int | None], Actor | None] = {}
        self._lock = threading.Lock()
        precise = forward.precision(self.policy)
        actors.prepare = lambda network: network.module.to(self.device, precise)
        shape = self.policy["state_shape"]
        self.width = math.prod(shape) if shape else None

    @property
    def columns(self) -> list[str]:
        """What it reads of the dump."""
        wanted = ["state_embed", *self.family.READS, "agent_id", "policy_version"]
        return [name for name in wanted if self.dump.has(name)]

    def workers(self, spared: int) -> int:
        """Threads that may score batches at once, with so many cores left to others."""
        if self.device != "cpu":
            return 1
        return max(1, min(MOST_WORKERS, (os.cpu_count() or 1) - spared))

    def score(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns of SCORED for an Arrow batch, with PREFIX before their names."""
        import numpy as np
        import torch

        count = rows.num_rows
        made: dict[str, Array] = {s.name: np.zeros(count, s.numpy) for s in SCORED}
        if self.policy["precision"] == "float64":
            made["log_prob"] = np.zeros(count, np.float64)
        known = np.zeros(count, bool)
        countable = self.policy["distribution"] == "categorical"
        with self._lock:
            made["actor"] = self.actors_of(rows)
            self._settle_widths(rows)
        with torch.inference_mode():
            for start in range(0, count, step := self.rows_at_once(rows)):
                piece = rows.slice(start, step)
                part = {name: values[start : start + step] for name, values in made.items()}
                self._score_piece(piece, part, known[start : start + step])
        with self._lock:
            self.replayed += int(known.sum())
        columns = {}
        unknown = None if known.all() else ~known
        for name, values in made.items():
            null = unknown
            if name == "actor":
                null = values < 0
            elif name in ("rank", "choices") and not countable:
                null = np.ones(count, bool)
            columns[PREFIX + name] = vectors.as_arrow(values, null)
        return columns

    def _settle_widths(self, rows: pa.RecordBatch) -> None:
        """By the whole batch: of a piece, a row of another length may be the first or the only one."""
        self.width = self.width or _usual_width(rows.column("state_embed"))
        if "action" in self.family.READS and self.policy.get("action_size") is None:
            self.policy["action_size"] = _usual_width(rows.column("action"))

    def rows_at_once(self, rows: pa.RecordBatch) -> int:
        widest = max(self.outputs, self.width or 1)
        for name in ("state_embed", "subset_indices", "action_mask"):
            if name in rows.schema.names:
                widest = max(widest, int(vectors.lengths_of(rows.column(name)).max(initial=1)))
        return max(1, min(self.batch_rows, MOST_NUMBERS // widest))

    def _score_piece(self, rows: pa.RecordBatch, made: dict[str, Array], known: Array) -> None:
        if self.is_prefix and not self.family.is_prefix(rows):
            self.is_prefix = False
        for actor, mine, scores in self.answers(rows, made["actor"]):
            with self._lock:
                actor.rows += len(scores.log_prob)
            self._file(scores, mine, made, known)

    def answers(self, rows: pa.RecordBatch, numbers: Array) -> Iterator[tuple[Actor, Any, Scores]]:
        """What each actor says of the rows that it is asked about: `numbers` names one for each row.

        Rows are told by their places; what cannot be asked, or has no actor (−1), is left out.
        """
        asked = self.family.ask(rows, self.policy)
        for actor, mine, output, log_std in self.outputs_of(rows, numbers, asked.answerable):
            questions = asked if isinstance(mine, slice) else asked.take(mine)
            try:
                scores = self.family.score(output, log_std, questions.to(self.device), self.policy)
            except UsageError as error:
                raise ReadError(f"{actor.path}: {error.problem}", error.step) from None
            yield actor, mine, scores

    def outputs_of(
        self, rows: pa.RecordBatch, numbers: Array, answerable: Any = True
    ) -> Iterator[tuple[Actor, Any, torch.Tensor, torch.Tensor | None]]:
        """What the networks give for the states of these rows, actor by actor."""
        import numpy as np
        import torch

        states, whole = _states(rows.column("state_embed"), self.width)
        ready = whole & answerable & (numbers >= 0)
        for number in np.flatnonzero(np.bincount(numbers[ready])):
            mine: Any = np.flatnonzero(ready & (numbers == number))
            actor = self.actors.used[number]
            table = states
            if len(mine) == len(ready):
                mine = slice(None)
            else:
                table = states[torch.from_numpy(mine)]
            yield actor, mine, *self.run(actor, table)

    def _file(self, scores: Any, mine: Any, made: dict[str, Array], known: Array) -> None:
        for name in ("log_prob", "entropy", "variance", "skew", "rank", "choices"):
            if (values := getattr(scores, name)) is not None:
                made[name][mine] = values.cpu().numpy()
        rounding = scores.sensitivity * (ROUNDINGS * self.roundoff)
        made["rounding"][mine] = rounding.nan_to_num(0.0, 0.0, 0.0).cpu().numpy()
        known[mine] = True if scores.asked is None else scores.asked.cpu().numpy()

    def run(self, actor: Actor, states: torch.Tensor) -> forward.Output:
        with self._lock:
            network = self.actors.network(actor)
        states = states.to(self.device, forward.precision(self.policy))
        output, log_std = forward.run(actor, network, states, self.policy)
        self.outputs = max(self.outputs, output.shape[1])
        return output, log_std

    def actors_of(self, rows: pa.RecordBatch) -> Array:
        """The number of each row's actor; −1 where there is none."""
        import numpy as np

        count = rows.num_rows
        if self.actors.is_one_for_all:
            actor = self.find(None, None)
            assert actor is not None
            return np.full(count, actor.number, np.int32)
        agents, agent_of = _coded_texts(rows, "agent_id")
        versions, version_of = _coded_numbers(rows, "policy_version")
        pair = agent_of * len(versions) + version_of
        pairs, which, times = np.unique(pair, return_inverse=True, return_counts=True)
        numbers: Array = np.empty(len(pairs), np.int32)
        for i, (code, rows_of) in enumerate(zip(pairs, times, strict=True)):
            agent, version = agents[code // len(versions)], versions[code % len(versions)]
            actor = self.find(agent, version)
            numbers[i] = -1 if actor is None else actor.number
            if actor is None:
                self.missing[agent, version] += int(rows_of)
        found: Array = numbers[which]
        return found

    def find(self, agent: str | None, version: int | None) -> Actor | None:
        if (agent, version) not in self._found:
            self._found[agent, version] = self.actors.find(agent, version)
        return self._found[agent, version]


def scored_batches(
    batches: Iterable[Batch], replay: Replayer, spared: int = 1
) -> Iterator[tuple[Batch, dict[str, pa.Array]]]:
    """Each batch that has rows, with what the actors say of it; threads of their own run the networks,
    on all cores but those spared for what is done with the batches.

    Each runs its network alone: for layers of a usual size that is quicker than to share one layer
    between threads, and ten times so where those have to wait for a core.
    """
    import torch

    filled = (batch for batch in batches if batch.rows.num_rows)
    alone = functools.partial(torch.set_num_threads, 1)
    try:
        yield from mapped(
            lambda batch: (batch, replay.score(batch.rows)), filled, replay.workers(spared), alone
        )
    finally:
        torch.set_num_threads(torch.get_num_threads())  # a part of that setting is not the thread's own


def tables(dump: Dump, replay: Replayer) -> Iterator[pa.RecordBatch]:
    """The whole dump, replayed: row_id, agent and version, both log-probs, and what is in SCORED."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    told = [n for n in ("agent_id", "policy_version", "old_log_prob") if dump.has(n)]
    read = dump.batches(list(dict.fromkeys([*replay.columns, *told])))
    for batch, said in scored_batches(prefetch(read), replay, spared=0):
        scored = {name.removeprefix(PREFIX): values for name, values in said.items()}
        last = batch.first_row + batch.rows.num_rows
        columns = {"row_id": pa.array(np.arange(batch.first_row, last))}
        columns |= {name: batch.rows.column(name) for name in told}
        columns |= scored
        if "old_log_prob" in told:
            both = (batch.rows.column("old_log_prob"), scored["log_prob"])
            columns["residual"] = pc.subtract(*(c.cast(pa.float64()) for c in both))
        columns["expected_log_prob"] = pc.negate(scored["entropy"])
        yield pa.RecordBatch.from_pydict(columns)


def _usual_width(column: pa.Array) -> int | None:
    """How long most rows of a column of vectors are; None where none holds a number."""
    import numpy as np

    lengths = vectors.lengths_of(column)
    sizes, times = np.unique(lengths[lengths > 0], return_counts=True)
    return int(sizes[times.argmax()]) if len(sizes) else None


def _states(column: pa.Array, width: int | None) -> tuple[torch.Tensor, Array]:
    """[B, width] and which rows can be shown to an actor; without a copy where that can be."""
    import numpy as np
    import pyarrow as pa
    import torch

    kind, count = column.type, len(column)
    if pa.types.is_fixed_size_list(kind) and kind.list_size == width and not column.null_count:
        numbers = column.values.slice(column.offset * kind.list_size, count * kind.list_size)
        if not numbers.null_count:
            table = torch.utils.dlpack.from_dlpack(numbers).reshape(count, kind.list_size)
            return table, np.ones(count, bool)
    states, whole = vectors.as_table(vectors.open_rows(column), width)
    return torch.from_numpy(vectors.writable(states)), whole


def _coded_texts(rows: pa.RecordBatch, name: str) -> tuple[list[str | None], Array]:
    """The texts of a dictionary column and each row's place among them; null is the last."""
    import numpy as np

    if name not in rows.schema.names:
        return [None], np.zeros(rows.num_rows, np.int64)
    column = rows.column(name)
    texts = column.dictionary.to_pylist()
    codes = vectors.as_numpy(column.indices, len(texts)).astype(np.int64)
    return [*texts, None], codes


def _coded_numbers(rows: pa.RecordBatch, name: str) -> tuple[list[int | None], Array]:
    import numpy as np

    if name not in rows.schema.names:
        return [None], np.zeros(rows.num_rows, np.int64)
    column = rows.column(name)
    numbers, codes = np.unique(vectors.as_numpy(column, 0), return_inverse=True)
    if column.null_count:
        codes[vectors.as_numpy(column.is_null())] = len(numbers)
    return [*numbers.tolist(), None], codes
