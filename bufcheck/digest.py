"""Turns the vectors of each batch into a few scalars a row, so that every rule is SQL over a narrow
table and heavy columns are read once.

What NumPy does well (shapes, finiteness, comparison with the row before) is done here; hashes and
look-ups are SQL that DuckDB runs over the same batch on its own threads. FACTS lists what can be known;
only the facts that some rule asks for are made. Yes-or-no facts share one integer a row, `flags`, and
so do nulls: the view `digest` unpacks them.
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

FLAG = "BOOLEAN"


class Fact(NamedTuple):
    """One derived column of the digest."""

    name: str
    sources: tuple[tuple[str, ...], ...]
    """The dump's columns it is made of: all of one of these tuples."""
    type: str
    """FLAG facts live in `flags`, the others in a column of their own."""
    sql: str
    """What is stored, over the batch; empty for flags and for facts only the view makes."""
    meaning: str


def _vector(column: str, prefix: str) -> list[Fact]:
    source = ((column,),)
    hashed = f"CASE WHEN {prefix}_len IS NOT NULL THEN hash({prefix}_bytes) END"
    return [
        Fact(f"{prefix}_len", source, "INTEGER", f"{prefix}_len", f"how many numbers {column} has"),
        Fact(f"{prefix}_hash", source, "UBIGINT", hashed, f"equal where {column} is, bit for bit"),
        Fact(f"{prefix}_nonfinite", source, FLAG, "", f"{column} holds a NaN or an infinity"),
        Fact(f"{prefix}_zero", source, FLAG, "", f"{column} is all zeros"),
    ]


def _ragged(column: str, prefix: str) -> list[Fact]:
    source = ((column,),)
    return [
        Fact(f"{prefix}_len", source, "INTEGER", f"len({column})", f"how many entries {column} has"),
        Fact(
            f"{prefix}_hash", source, "UBIGINT", f"hash({column})", f"equal where {column} is, in order"
        ),
    ]


def _chosen(column: str) -> str:
    inside = f"action_index >= 0 AND action_index < len({column})"
    return f"CASE WHEN {inside} THEN {column}[action_index + 1] END"


_SUBSET, _MASK, _LOGITS = (("subset_indices",),), (("action_mask",),), (("logits",),)
_KEYS = (("episode_id", "timestep", "agent_id"),)
FACTS: dict[str, Fact] = {
    fact.name: fact
    for fact in [
        Fact(
            "key_order",
            _KEYS,
            "TINYINT",
            "key_order",
            "how the key compares with the row before: -1, 0, 1",
        ),
        *_vector("state_embed", "state"),
        Fact("state_repeats", (("state_embed",),), FLAG, "", "the row before has this state"),
        *_vector("action", "action"),
        *_vector("action_mean", "action_mean"),
        *_vector("action_std", "action_std"),
        *_ragged("subset_indices", "subset"),
        Fact(
            "subset_stray", _SUBSET, "INTEGER", "subset_stray", "an id outside the action space, if any"
        ),
        Fact("subset_duplicate", _SUBSET, FLAG, "", "an id stands twice in the subset"),
        Fact("subset_repeats", _SUBSET, FLAG, "", "the row before has this subset"),
        Fact(
            "chosen_id",
            (("subset_indices", "action_index"),),
            "BIGINT",
            _chosen("subset_indices"),
            "subset_indices[action_index]",
        ),
        *_ragged("action_mask", "mask"),
        Fact("mask_legal", _MASK, "INTEGER", "mask_legal", "how many actions the mask allows"),
        Fact(
            "legal_actions",
            (("num_actions",), ("action_mask",)),
            "INTEGER",
            "",
            "how many actions the mask allows; num_actions where there is no mask",
        ),
        Fact(
            "chosen_legal",
            (("action_mask", "action_index"),),
            "TINYINT",
            f"({_chosen('action_mask')})::TINYINT",
            "action_mask[action_index], as 0 or 1",
        ),
        *_ragged("logits", "logits"),
        Fact("logits_nonfinite", _LOGITS, FLAG, "", "a logit is NaN or +infinity"),
        Fact(
            "logits_log_prob",
            (("logits", "action_index"), ("logits", "action_index", "action_mask")),
            "DOUBLE",
            "logits_log_prob",
            "log-prob of action_index under the stored logits, mask and temperature",
        ),
        Fact(
            "log_prob_repeats", (("old_log_prob",),), FLAG, "", "the row before has this old_log_prob"
        ),
        Fact("advantage_repeats", (("advantage",),), FLAG, "", "the row before has this advantage"),
    ]
}
FLAGS = [fact.name for fact in FACTS.values() if fact.type == FLAG]
FLAGS += [c.name for c in schema.load().columns.values() if c.is_scalar and c.kind == "bool"]
NULLS = "names of the columns that are null in this row"
PREFIX = {"state_embed": "state"}
AGENT_TYPE = "agent_name"
"""An ENUM of the dump's agents: one byte a row where a text takes sixteen, and quicker to group by."""
_SQL_TYPES = {"int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN", "string": "VARCHAR"}


def scalar_columns() -> list[str]:
    return [c.name for c in schema.load().columns.values() if c.is_scalar]


def sources_of(name: str) -> tuple[tuple[str, ...], ...]:
    """The dump's columns a column of the digest is made of: all of one of these tuples."""
    return FACTS[name].sources if name in FACTS else ((name,),)


def facts_used(words: set[str]) -> frozenset[str]:
    """The facts that SQL with these words asks for."""
    asked = {name for name in [*FACTS, "nulls"] if name in words}
    return frozenset(asked | {"mask_legal"} if "legal_actions" in asked else asked)


def columns_used(words: set[str]) -> set[str]:
    """The dump's columns that SQL with these words works on, if the dump has them."""
    known = set(schema.load().columns)
    if "nulls" in words:  # any column can hold one
        return known
    made = {c for fact in facts_used(words) for way in sources_of(fact) for c in way}
    return made | (words & known)


def _available(facts: frozenset[str], have: set[str]) -> list[Fact]:
    return [f for f in FACTS.values() if f.name in facts and any(set(w) <= have for w in f.sources)]


def stored_select(columns: set[str], facts: frozenset[str], own: Iterable[str]) -> str:
    """The SELECT that makes rows to store of the batches a Digester gives."""
    parts = ["row_id", *_packed(columns, facts)]
    for name in scalar_columns():
        if name in columns and name not in FLAGS:
            parts.append(f'"{name}"' if name != "agent_id" else f"agent_id::{AGENT_TYPE} AS agent_id")
    stored = [f for f in _available(facts, columns) if f.sql]
    parts += [f"({fact.sql})::{fact.type} AS {fact.name}" for fact in stored]
    parts += [f'"{name}"' for name in own]
    return f"SELECT {', '.join(parts)} FROM batches"


def _packed(columns: set[str], facts: frozenset[str]) -> list[str]:
    """Which of `flags` and `null_bits` somebody will look at."""
    truths = any(name in columns for name in FLAGS)
    packed = ["flags"] if truths or any(name in facts for name in FLAGS) else []
    return [*packed, "null_bits"] if truths or "nulls" in facts else packed


def view_columns(columns: set[str], facts: frozenset[str], own: Iterable[str]) -> dict[str, str]:
    """Each column of the view `digest`: what is stored, unpacked, and NULL for what the dump lacks."""
    view = {"row_id": "row_id", "nulls": _nulls_sql() if "nulls" in facts else "NULL::VARCHAR"}
    for bit, (name, column) in enumerate(schema.load().columns.items()):
        if not column.is_scalar:
            continue
        # Narrow integers would overflow in sums and differences.
        view[name] = f'"{name}"::BIGINT' if column.kind == "int" else f'"{name}"'
        if name not in columns:
            view[name] = f"NULL::{_SQL_TYPES[column.kind]}"
        elif name in FLAGS:
            view[name] = f"CASE WHEN null_bits & {1 << bit} = 0 THEN {_flag_sql(name)} END"
    made = {fact.name for fact in _available(facts, columns)}
    for fact in FACTS.values():
        view[fact.name] = fact.name
        if fact.name == "legal_actions":
            ways = [n for n in ("mask_legal", "num_actions") if n in made or n in columns]
            view[fact.name] = f"coalesce({', '.join([*ways, 'NULL::INTEGER'])})"
        elif fact.name not in made:
            view[fact.name] = f"NULL::{fact.type}"
        elif fact.type == FLAG:
            view[fact.name] = _flag_sql(fact.name)
    return view | {name: f'"{name}"' for name in own}


def _flag_sql(name: str) -> str:
    return f"(flags & {1 << FLAGS.index(name)}) <> 0"


def _nulls_sql() -> str:
    names = ", ".join(
        f"CASE WHEN null_bits & {1 << bit} <> 0 THEN '{name}' END"
        for bit, name in enumerate(schema.load().columns)
    )
    return f"CASE WHEN null_bits <> 0 THEN concat_ws(', ', {names}) END"


@dataclass
class Digester:
    """Streams batches; remembers the last row, for the facts that compare neighbours."""

    dump: Dump
    facts: frozenset[str]
    own: frozenset[str] = frozenset()
    """Columns outside the schema, and vectors, that some rule reads as they are."""
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
        made: dict[str, Any] = {"row_id": np.arange(batch.first_row, batch.first_row + count)}
        flags: dict[str, Array] = {}
        if "key_order" in self.facts:
            made["key_order"] = self._key_order(rows)
        opened: dict[str, Rows] = {}
        for name in rows.schema.names:
            column = schema.load().columns.get(name)
            if column is None:
                if name in self.own:
                    made[name] = rows.column(name)
            elif name in FLAGS:
                flags[name] = _filled(rows.column(name))
            elif column.is_scalar:
                made[name] = rows.column(name)
                self._compare_scalar(name, rows, flags)
            else:
                opened[name] = vectors.open_rows(rows.column(name))
                if column.is_ragged or name in self.own:
                    made[name] = rows.column(name)
                if column.is_vector:
                    made |= self._of_vector(name, opened[name], flags)
        made |= self._of_ragged(rows, opened, flags)
        made["null_bits"] = _null_bits(rows, opened)
        made["flags"] = np.zeros(count, np.uint32)
        for name, flag in flags.items():
            if flag.any():
                made["flags"] |= flag.astype(np.uint32) << np.uint32(FLAGS.index(name))
        arrays = [v if isinstance(v, pa.Array) else pa.array(v) for v in made.values()]
        return pa.RecordBatch.from_arrays(arrays, names=list(made))

    def _compare_scalar(self, name: str, rows: pa.RecordBatch, flags: dict[str, Array]) -> None:
        fact = {"old_log_prob": "log_prob_repeats", "advantage": "advantage_repeats"}.get(name)
        if fact in self.facts:
            values = rows.column(name).to_numpy(zero_copy_only=False)
            flags[str(fact)] = vectors.repeats_scalar(values, self.before.get(name))
            self.before[name] = values[-1]

    def _of_vector(self, name: str, rows: Rows, flags: dict[str, Array]) -> dict[str, Any]:
        import pyarrow as pa

        prefix = PREFIX.get(name, name)
        bad, zero = vectors.nonfinite_and_zero(rows)
        present = True if rows.null is None else ~rows.null
        flags |= {f"{prefix}_nonfinite": bad & present, f"{prefix}_zero": zero & present}
        if name == "state_embed" and "state_repeats" in self.facts:
            flags["state_repeats"] = self._repeats(name, rows) & present
        lengths = pa.array(rows.lengths, pa.int32(), mask=rows.null)
        return {f"{prefix}_len": lengths, f"{prefix}_bytes": vectors.as_bytes(rows)}

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
            flags["subset_duplicate"] = vectors.has_duplicate(subset)
        if subset and "subset_repeats" in self.facts:
            flags["subset_repeats"] = self._repeats("subset_indices", subset)
        if mask:
            made["mask_legal"] = vectors.count_true(mask.values, mask.offsets)
        if logits:
            wrong = np.isnan(logits.values) | np.isposinf(logits.values)
            flags["logits_nonfinite"] = vectors.count_true(wrong, logits.offsets) > 0
        if logits and "logits_log_prob" in self.facts and "action_index" in rows.schema.names:
            index = rows.column("action_index").fill_null(-1).to_numpy(zero_copy_only=False)
            made["logits_log_prob"] = vectors.log_prob_of(
                logits, mask, index, policy["temperature"], policy["masked_logit"]
            )
        return made

    def _repeats(self, name: str, rows: Rows) -> Array:
        found = vectors.repeats(rows, self.before.get(name))
        self.before[name] = rows.row(len(rows.offsets) - 2)
        return found

    def _key_order(self, rows: pa.RecordBatch) -> pa.Array:
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
        numbers = [_filled(episode), _filled(step), ranks[_filled(agent.indices)]]
        order = np.empty(rows.num_rows, np.int8)
        order[1:] = vectors.compare_neighbours(numbers)
        unknown = np.zeros(rows.num_rows, bool)
        for column in (episode, step, agent):
            if column.null_count:
                null = column.is_null().to_numpy(zero_copy_only=False)
                unknown |= null
                unknown[1:] |= null[:-1]
        if None in before:
            unknown[0] = True
        else:
            first = (int(numbers[0][0]), int(numbers[1][0]), agent[0].as_py() or "")
            order[0] = (first > before) - (first < before)
        self.key = (episode[-1].as_py(), step[-1].as_py(), agent[-1].as_py())
        return pa.array(order, mask=unknown)


def _filled(column: pa.Array) -> Array:
    import pyarrow as pa

    filled = column.fill_null(pa.scalar(0).cast(column.type)) if column.null_count else column
    numbers: Array = filled.to_numpy(zero_copy_only=False)
    return numbers


def _null_bits(rows: pa.RecordBatch, opened: dict[str, Rows]) -> Array:
    """One bit per schema column that is null in the row; columns that may be null do not count."""
    import numpy as np

    bits: Array = np.zeros(rows.num_rows, np.uint32)
    for bit, column in enumerate(schema.load().columns.values()):
        if column.nullable or column.name not in rows.schema.names:
            continue
        null = opened[column.name].null if column.name in opened else None
        if column.is_scalar and rows.column(column.name).null_count:
            null = rows.column(column.name).is_null().to_numpy(zero_copy_only=False)
        if null is not None:
            bits |= null.astype(np.uint32) << np.uint32(bit)
    return bits
