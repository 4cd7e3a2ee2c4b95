"""Streams batches of a dump and adds the facts that NumPy makes: digest.py says which there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bufcheck import digest, schema, vectors
from bufcheck.vectors import Array, Rows

if TYPE_CHECKING:
    import pyarrow as pa

    from bufcheck.dump import Batch, Dump


@dataclass
class Digester:
    """Streams batches; remembers the last row, for the facts that compare neighbours."""

    dump: Dump
    facts: frozenset[str]
    own: frozenset[str] = frozenset()
    """Columns outside the schema, and vectors, that some rule reads as they are."""
    agents: Sequence[str] = ()
    """Every agent of the dump, in order."""
    file: int = -1
    row: int = -1
    key: tuple[int, ...] | None = None
    """The last row's; None where a part of it is null."""
    before: dict[str, Array] = field(default_factory=dict)
    """The last row of each column that neighbours are compared in."""

    @cached_property
    def codes(self) -> dict[str | None, int]:
        return {None: 0, **{name: code for code, name in enumerate(self.agents, 1)}}

    @cached_property
    def lists(self) -> set[str]:
        return digest.lists_read(self.facts)

    def digest(self, batch: Batch, scored: dict[str, pa.Array]) -> pa.RecordBatch:
        """The facts of a batch, and beside them what is already known of its rows."""
        import numpy as np

        # Damaged numbers are findings, not warnings on stderr.
        with np.errstate(all="ignore"):
            return self._facts(batch, scored)

    def _facts(self, batch: Batch, scored: dict[str, pa.Array]) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        rows, count = batch.rows, batch.rows.num_rows
        if batch.file != self.file or batch.first_row != self.row + 1:
            self.before = {}  # the row before was not read, or lies in another file
        self.file, self.row = batch.file, batch.first_row + count - 1
        made: dict[str, Any] = {"row_id": np.arange(batch.first_row, batch.first_row + count)}
        flags: dict[str, Array] = {}
        if "agent_id" in rows.schema.names:
            made["agent_code"] = self._agent_code(rows.column("agent_id"))
        if "key_order" in self.facts:
            made["key_order"] = self._key_order(rows, made.get("agent_code"))
        opened: dict[str, Rows] = {}
        for name in rows.schema.names:
            column = schema.load().columns.get(name)
            if column is None:
                if name in self.own:
                    made[digest.own_name(name)] = rows.column(name)
            elif name in digest.FLAGS:
                flags[name] = vectors.as_numpy(rows.column(name), 0)
            elif column.is_scalar:
                made[name] = rows.column(name)
                self._compare_scalar(name, rows, flags)
            else:
                opened[name] = vectors.open_rows(rows.column(name))
                if name in self.lists or name in self.own:
                    made[name] = rows.column(name)
                if column.is_vector:
                    made |= self._of_vector(name, opened[name], flags)
                else:
                    made |= self._of_list(name, rows.column(name), opened[name])
        made |= self._of_ragged(rows, opened, flags)
        made["null_bits"] = _null_bits(rows, opened)
        made["flags"] = np.zeros(count, np.uint32)
        for name, flag in flags.items():
            if flag.any():
                made["flags"] |= flag.astype(np.uint32) << np.uint32(digest.FLAGS.index(name))
        made |= scored
        arrays = [v if isinstance(v, pa.Array) else vectors.as_arrow(v) for v in made.values()]
        return pa.RecordBatch.from_arrays(arrays, names=list(made))

    def _compare_scalar(self, name: str, rows: pa.RecordBatch, flags: dict[str, Array]) -> None:
        fact = {"old_log_prob": "log_prob_repeats", "advantage": "advantage_repeats"}.get(name)
        if fact in self.facts:
            values = vectors.as_numpy(rows.column(name))
            flags[str(fact)] = vectors.repeats_scalar(values, self.before.get(name))
            self.before[name] = values[-1]

    def _of_vector(self, name: str, rows: Rows, flags: dict[str, Array]) -> dict[str, Any]:
        import numpy as np

        prefix = digest.PREFIX.get(name, name)
        bad, zero = vectors.nonfinite_and_zero(rows)
        flags |= {f"{prefix}_nonfinite": bad & rows.present, f"{prefix}_zero": zero & rows.present}
        if name == "state_embed" and "state_repeats" in self.facts:
            flags["state_repeats"] = self._repeats(name, rows)
        lengths = vectors.as_arrow(rows.lengths.astype(np.int32), rows.null)
        return {f"{prefix}_len": lengths, f"{prefix}_bytes": vectors.as_bytes(rows)}

    def _of_list(self, name: str, column: pa.Array, rows: Rows) -> dict[str, Any]:
        import numpy as np

        prefix, made = digest.PREFIX.get(name, name), {}
        if f"{prefix}_len" in self.facts:
            # A row that holds a null has a length all the same.
            null = vectors.as_numpy(column.is_null()) if column.null_count else None
            made[f"{prefix}_len"] = vectors.as_arrow(rows.lengths.astype(np.int32), null)
        if f"{prefix}_hash" in self.facts:
            made[f"{prefix}_bytes"] = vectors.as_bytes(rows)
        return made

    def _of_ragged(
        self, rows: pa.RecordBatch, opened: dict[str, Rows], flags: dict[str, Array]
    ) -> dict[str, Any]:
        import numpy as np

        made: dict[str, Any] = {}
        policy = self.dump.policy
        subset, mask, logits = (opened.get(n) for n in ("subset_indices", "action_mask", "logits"))
        if subset and "subset_stray" in self.facts:
            made["subset_stray"] = vectors.stray(subset, policy["action_space"])
        if subset and "subset_duplicate" in self.facts:
            flags["subset_duplicate"] = vectors.has_duplicate(subset) & subset.present
        if subset and "subset_repeats" in self.facts:
            flags["subset_repeats"] = self._repeats("subset_indices", subset)
        if mask:
            legal = vectors.count_true(mask.values, mask.offsets)
            made["mask_legal"] = vectors.as_arrow(legal, mask.null)
        if logits:
            wrong = np.isnan(logits.values) | np.isposinf(logits.values)
            flags["logits_nonfinite"] = (vectors.count_true(wrong, logits.offsets) > 0) & logits.present
        if logits and "logits_log_prob" in self.facts and "action_index" in rows.schema.names:
            index = vectors.as_numpy(rows.column("action_index"), -1)
            made["logits_log_prob"] = vectors.log_prob_of(
                logits, mask, index, policy["temperature"], policy["masked_logit"]
            )
        return made

    def _repeats(self, name: str, rows: Rows) -> Array:
        found = vectors.repeats(rows, self.before.get(name))
        self.before[name] = rows.row(len(rows.offsets) - 2)
        if rows.null is not None:  # what is null repeats nothing, and nothing repeats it
            found &= ~rows.null
            found[1:] &= ~rows.null[:-1]
            if rows.null[-1]:
                del self.before[name]
        return found

    def _agent_code(self, agents: pa.Array) -> Array:
        """The place of each row's agent among all of them, from 1; 0 where it is null."""
        import numpy as np

        codes = np.array([self.codes[word] for word in agents.dictionary.to_pylist()] or [0], np.int64)
        found: Array = codes[vectors.as_numpy(agents.indices, 0)]
        if agents.null_count:
            found[vectors.as_numpy(agents.is_null())] = 0
        return found

    def _key_order(self, rows: pa.RecordBatch, agent: Array | None) -> pa.Array:
        """-1, 0 or 1: how a row's key compares with the key of the row read before it."""
        import numpy as np
        import pyarrow as pa

        names = schema.load().key_columns
        if agent is None or not set(names) <= set(rows.schema.names):
            return pa.nulls(rows.num_rows, pa.int8())
        unknown = agent == 0
        columns = [rows.column(name) for name in names[:2]]
        for column in columns:
            if column.null_count:
                unknown |= vectors.as_numpy(column.is_null())
        numbers = [*(vectors.as_numpy(column, 0) for column in columns), agent]
        order = np.empty(rows.num_rows, np.int8)
        order[1:] = vectors.compare_neighbours(numbers)
        first, last = (tuple(int(column[i]) for column in numbers) for i in (0, -1))
        order[0] = (first > self.key) - (first < self.key) if self.key else 0
        before = np.concatenate([[self.key is None], unknown[:-1]])
        self.key = None if unknown[-1] else last
        return vectors.as_arrow(order, unknown | before)


def _null_bits(rows: pa.RecordBatch, opened: dict[str, Rows]) -> Array:
    """One bit per schema column that is null in the row; columns that may be null do not count."""
    import numpy as np

    bits: Array = np.zeros(rows.num_rows, np.uint32)
    for bit, column in enumerate(schema.load().columns.values()):
        if column.nullable or column.name not in rows.schema.names:
            continue
        null = opened[column.name].null if column.name in opened else None
        if column.is_scalar and rows.column(column.name).null_count:
            null = vectors.as_numpy(rows.column(column.name).is_null())
        if null is not None:
            bits |= null.astype(np.uint32) << np.uint32(bit)
    return bits
