"""Turns the vectors of each batch into a few scalars a row, so that every rule is SQL over a narrow
table and heavy columns are read once.

What NumPy does well (shapes, finiteness, comparison with the row before) is done here; the rest
(hashes, minima, look-ups) is SQL that DuckDB runs over the same batch on its own threads. FACTS is
the one list of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from bufcheck import schema, vectors
from bufcheck.vectors import Array, Rows

if TYPE_CHECKING:
    import pyarrow as pa

    from bufcheck.dump import Batch, Dump


class Fact(NamedTuple):
    """One derived column of the digest."""

    name: str
    source: str
    """The dump's column it is made of; without it, the fact is NULL."""
    type: str
    sql: str
    meaning: str


def _vector_facts(column: str, prefix: str) -> list[Fact]:
    return [
        Fact(f"{prefix}_len", column, "INTEGER", f"{prefix}_len", f"how many numbers {column} has"),
        Fact(
            f"{prefix}_hash",
            column,
            "UBIGINT",
            f"CASE WHEN {prefix}_len IS NOT NULL THEN hash({prefix}_bytes) END",
            f"equal where {column} is equal, bit for bit",
        ),
        Fact(
            f"{prefix}_nonfinite",
            column,
            "BOOLEAN",
            f"{prefix}_nonfinite",
            f"{column} holds a NaN or an infinity",
        ),
        Fact(f"{prefix}_zero", column, "BOOLEAN", f"{prefix}_zero", f"{column} is all zeros"),
    ]


FACTS: list[Fact] = [
    *_vector_facts("state_embed", "state"),
    Fact(
        "state_repeats", "state_embed", "BOOLEAN", "state_repeats", "the row before has this state"
    ),
    *_vector_facts("action", "action"),
    *_vector_facts("action_mean", "action_mean"),
    *_vector_facts("action_std", "action_std"),
    Fact("subset_len", "subset_indices", "INTEGER", "len(subset_indices)", "ids in the subset"),
    Fact(
        "subset_hash",
        "subset_indices",
        "UBIGINT",
        "hash(subset_indices)",
        "equal where the subset is equal, order included",
    ),
    Fact(
        "subset_stray",
        "subset_indices",
        "BIGINT",
        "subset_stray",
        "an id outside the action space, if the subset has one",
    ),
    Fact(
        "subset_duplicate",
        "subset_indices",
        "BOOLEAN",
        "subset_duplicate",
        "an id stands twice in the subset",
    ),
    Fact(
        "subset_repeats",
        "subset_indices",
        "BOOLEAN",
        "subset_repeats",
        "the row before has this subset",
    ),
    Fact("mask_len", "action_mask", "INTEGER", "len(action_mask)", "entries of the mask"),
    Fact("mask_hash", "action_mask", "UBIGINT", "hash(action_mask)", "equal for equal masks"),
    Fact("mask_legal", "action_mask", "INTEGER", "mask_legal", "actions the mask allows"),
    Fact("logits_len", "logits", "INTEGER", "len(logits)", "how many logits are stored"),
    Fact("logits_hash", "logits", "UBIGINT", "hash(logits)", "equal for equal logits"),
    Fact(
        "logits_nonfinite", "logits", "BOOLEAN", "logits_nonfinite", "a logit is NaN or +infinity"
    ),
    Fact(
        "logits_log_prob",
        "logits",
        "DOUBLE",
        "logits_log_prob",
        "log-prob of action_index under the stored logits, mask and temperature",
    ),
    Fact(
        "log_prob_repeats",
        "old_log_prob",
        "BOOLEAN",
        "log_prob_repeats",
        "the row before has this old_log_prob",
    ),
    Fact(
        "advantage_repeats",
        "advantage",
        "BOOLEAN",
        "advantage_repeats",
        "the row before has this advantage",
    ),
]
"""Facts that take one column. Those that combine several are in `_combined`."""

ALWAYS = {
    "row_id": "BIGINT",
    "file": "INTEGER",
    "key_order": "TINYINT",
    "nulls": "VARCHAR",
}
SQL_TYPES = {"int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN", "string": "VARCHAR"}


def scalar_columns() -> list[str]:
    return [c.name for c in schema.load().columns.values() if c.is_scalar]


COMBINED = {
    "legal_actions": [["num_actions"], ["action_mask"]],
    "chosen_id": [["subset_indices", "action_index"]],
    "chosen_legal": [["action_mask", "action_index"]],
    "logits_log_prob": [["logits", "action_index"], ["logits", "action_index", "action_mask"]],
    "key_order": [["episode_id", "timestep", "agent_id"]],
}
"""Facts made of several columns: all of one of the lists."""


def source_of(fact: str) -> list[list[str]]:
    """The dump columns a digest column is made of: all of one of the lists returned."""
    if fact in COMBINED:
        return COMBINED[fact]
    return [[next((f.source for f in FACTS if f.name == fact), fact)]]


def select(columns: Iterable[str], extra: Iterable[str] = ()) -> str:
    """The SELECT that makes digest rows of the batches a Digester gives."""
    have = set(columns)
    parts = [*ALWAYS, *(f'"{name}"' for name in scalar_columns() if name in have)]
    parts += [f"({f.sql})::{f.type} AS {f.name}" for f in _made_of(have)]
    parts += [f"{sql} AS {name}" for name, sql in _combined(have).items()]
    parts += [f'"{name}"' for name in extra]
    return f"SELECT {', '.join(parts)} FROM batches"


def stand_ins(columns: Iterable[str]) -> list[str]:
    """NULLs for the digest columns a dump cannot fill, so that SQL may name them all the same."""
    have = set(columns)
    known = schema.load().columns
    lacking = {n: SQL_TYPES[known[n].kind] for n in scalar_columns() if n not in have}
    made = {f.name for f in _made_of(have)} | set(_combined(have))
    lacking |= {f.name: f.type for f in FACTS if f.name not in made}
    lacking |= {name: kind for name, kind in _COMBINED_TYPES.items() if name not in made}
    return [f'NULL::{kind} AS "{name}"' for name, kind in lacking.items()]


def _made_of(have: set[str]) -> list[Fact]:
    return [f for f in FACTS if any(set(way) <= have for way in source_of(f.name))]


_COMBINED_TYPES = {"legal_actions": "INTEGER", "chosen_id": "BIGINT", "chosen_legal": "BOOLEAN"}


def _combined(have: set[str]) -> dict[str, str]:
    made = {}
    if offered := [n for n in ("mask_legal", "num_actions") if source_of(n)[0][0] in have]:
        made["legal_actions"] = f"coalesce({', '.join(offered)})::INTEGER"
    for name, column in (("chosen_id", "subset_indices"), ("chosen_legal", "action_mask")):
        if {column, "action_index"} <= have:
            inside = f"action_index >= 0 AND action_index < len({column})"
            made[name] = f"(CASE WHEN {inside} THEN {column}[action_index + 1] END)"
            made[name] += f"::{_COMBINED_TYPES[name]}"
    return made


@dataclass
class Digester:
    """Streams batches; remembers the last row, for the facts that compare neighbours."""

    dump: Dump
    extra: frozenset[str] = frozenset()
    """Columns outside the schema that some rule reads."""
    file: int = -1
    row: int = -1
    key: tuple[Any, Any, Any] | None = None
    before: dict[str, Array] = field(default_factory=dict)
    """The last row of each column that neighbours are compared in."""

    def digest(self, batches: Iterable[Batch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.rows.num_rows:
                yield self._one(batch)

    def _one(self, batch: Batch) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        rows, count = batch.rows, batch.rows.num_rows
        if batch.file != self.file or batch.first_row != self.row + 1:
            self.before = {}  # the row before was not read, or lies in another file
        self.file, self.row = batch.file, batch.first_row + count - 1
        made: dict[str, Any] = {
            "row_id": np.arange(batch.first_row, batch.first_row + count),
            "file": np.full(count, batch.file, np.int32),
            "key_order": self._key_order(rows),
        }
        opened: dict[str, Rows] = {}
        for name in rows.schema.names:
            column = schema.load().columns.get(name)
            if column is None or column.is_scalar:
                if column or name in self.extra:
                    made[name] = rows.column(name)
                continue
            opened[name] = vectors.open_rows(rows.column(name))
            if column.is_vector:
                made |= self._vector(name, opened[name])
            else:
                made[name] = rows.column(name)
        made |= self._ragged(rows, opened)
        made["nulls"] = _nulls(rows, opened)
        for name, fact in (("old_log_prob", "log_prob"), ("advantage", "advantage")):
            if name in made:
                values = rows.column(name).to_numpy(zero_copy_only=False)
                made[f"{fact}_repeats"] = vectors.repeats_scalar(values, self.before.get(name))
                self.before[name] = values[-1]
        arrays = [v if isinstance(v, pa.Array) else pa.array(v) for v in made.values()]
        return pa.RecordBatch.from_arrays(arrays, names=list(made))

    def _vector(self, name: str, rows: Rows) -> dict[str, Any]:
        import pyarrow as pa

        prefix = PREFIX.get(name, name)
        bad, zero = vectors.nonfinite_and_zero(rows)
        made = {
            f"{prefix}_len": pa.array(rows.lengths, mask=rows.null),
            f"{prefix}_bytes": vectors.as_bytes(rows),
            f"{prefix}_nonfinite": pa.array(bad, mask=rows.null),
            f"{prefix}_zero": pa.array(zero, mask=rows.null),
        }
        if name == "state_embed":
            made["state_repeats"] = pa.array(self._repeats(name, rows), mask=rows.null)
        return made

    def _ragged(self, rows: pa.RecordBatch, opened: dict[str, Rows]) -> dict[str, Any]:
        import numpy as np

        made: dict[str, Any] = {}
        if subset := opened.get("subset_indices"):
            made["subset_duplicate"] = vectors.has_duplicate(subset)
            made["subset_stray"] = vectors.stray(subset, self.dump.policy["action_space"])
            made["subset_repeats"] = self._repeats("subset_indices", subset)
        if mask := opened.get("action_mask"):
            made["mask_legal"] = vectors.count_true(mask.values, mask.offsets)
        if logits := opened.get("logits"):
            wrong = np.isnan(logits.values) | np.isposinf(logits.values)
            made["logits_nonfinite"] = vectors.count_true(wrong, logits.offsets) > 0
            if "action_index" in rows.schema.names:
                index = rows.column("action_index").fill_null(-1).to_numpy(zero_copy_only=False)
                policy = self.dump.policy
                made["logits_log_prob"] = vectors.log_prob_of(
                    logits, mask, index, policy["temperature"], policy["masked_logit"]
                )
        return made

    def _repeats(self, name: str, rows: Rows) -> Array:
        found = vectors.repeats(rows, self.before.get(name))
        self.before[name] = rows.row(len(rows.offsets) - 2)
        return found

    def _key_order(self, rows: pa.RecordBatch) -> Any:
        """-1, 0 or 1: how a row's key compares with the key of the row read before it."""
        import numpy as np
        import pyarrow as pa

        names = schema.load().key_columns
        if not set(names) <= set(rows.schema.names):
            return pa.nulls(rows.num_rows, pa.int8())
        episode, step, agent = (rows.column(name) for name in names)
        words = agent.dictionary.to_pylist()
        before = self.key or (None, None, None)
        rank = {word: i for i, word in enumerate(sorted({*words, before[2]} - {None}))}
        ranks = np.array([rank.get(word, 0) for word in words] or [0], np.int64)
        unknown = np.zeros(rows.num_rows + 1, bool)
        order = np.zeros(rows.num_rows, np.int8)
        codes = ranks[agent.indices.fill_null(0).to_numpy(zero_copy_only=False)]
        firsts = (before[0], before[1], rank.get(before[2]))
        numbers = [c.fill_null(0).to_numpy(zero_copy_only=False) for c in (episode, step)]
        for values, first in zip([*numbers, codes], firsts, strict=True):
            unknown[0] |= first is None
            joined = np.concatenate([[0 if first is None else first], values])
            greater = (joined[1:] > joined[:-1]).astype(np.int8)
            order = np.where(order == 0, greater - (joined[1:] < joined[:-1]), order)
        for column in (episode, step, agent):
            if column.null_count:
                unknown[1:] |= column.is_null().to_numpy(zero_copy_only=False)
        self.key = (episode[-1].as_py(), step[-1].as_py(), agent[-1].as_py())
        return pa.array(order.astype(np.int8), mask=unknown[1:] | unknown[:-1])


PREFIX = {"state_embed": "state"}


def _nulls(rows: pa.RecordBatch, opened: dict[str, Rows]) -> Any:
    """The names of the columns that are null in each row, as text; null where there are none."""
    import pyarrow as pa

    found: list[list[str]] | None = None
    for name in rows.schema.names:
        column = schema.load().columns.get(name)
        if column is None or column.nullable:
            continue
        if name in opened:
            null = opened[name].null
        else:
            array = rows.column(name)
            null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
        if null is not None:
            found = found or [[] for _ in range(rows.num_rows)]
            for row in null.nonzero()[0]:
                found[row].append(name)
    if found is None:
        return pa.nulls(rows.num_rows, pa.string())
    return pa.array([", ".join(names) or None for names in found], pa.string())
