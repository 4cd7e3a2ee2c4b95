"""What is known of each row: a few scalars instead of its vectors, so that every rule is SQL over a
narrow table and heavy columns are read once.

FACTS lists what can be known; only the facts that some rule asks for are made. What NumPy does well
(shapes, finiteness, comparison with the row before) is done by digester.py; hashes and look-ups are
SQL that DuckDB runs over the same batch. Yes-or-no facts share one integer a row, `flags`, and so do
nulls: the view `digest` unpacks them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bufcheck import schema
from bufcheck.sql import words_of

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
    null = 1 << list(schema.load().columns).index(column)
    hashed = f"CASE WHEN null_bits & {null} = 0 THEN hash({prefix}_bytes) END"
    return [
        Fact(f"{prefix}_len", source, "INTEGER", f"{prefix}_len", f"how many entries {column} has"),
        Fact(f"{prefix}_hash", source, "UBIGINT", hashed, f"equal where {column} is, in order"),
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
CONFIRMED = "the actor that acted gives the stored log-prob; null where no actor was asked"
PREFIX = {"state_embed": "state", "subset_indices": "subset", "action_mask": "mask"}
AGENT_TYPE = "agent_name"
"""An ENUM of the dump's agents: one byte a row where a text takes sixteen, and quicker to group by."""
FEW_AGENTS = 256
_SQL_TYPES = {"int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN", "string": "VARCHAR"}


def own_name(name: str) -> str:
    """Under which a column is stored that some SQL reads as it is: no user's name hides one of ours."""
    return name if name in schema.load().columns else f"own.{name}"


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


def lists_read(facts: frozenset[str]) -> set[str]:
    """The ragged columns that DuckDB itself must see to make these facts: to hand it lists is dear."""
    words = {word for f in FACTS.values() if f.name in facts for word in words_of(f.sql)}
    return {c.name for c in schema.load().columns.values() if c.is_ragged and c.name in words}


def _available(facts: frozenset[str], have: set[str]) -> list[Fact]:
    return [f for f in FACTS.values() if f.name in facts and any(set(w) <= have for w in f.sources)]


def stored_select(columns: set[str], facts: frozenset[str], own: Iterable[str], agents: int) -> str:
    """The SELECT that makes rows to store of the batches a Digester gives."""
    # To look up a text takes five times as long as to take the n-th of a short list.
    by_number = f"(enum_range(NULL::{AGENT_TYPE})::{AGENT_TYPE}[])[agent_code]"
    agent = by_number if agents <= FEW_AGENTS else f"agent_id::{AGENT_TYPE}"
    parts = ["row_id", *_packed(columns, facts)]
    for name in scalar_columns():
        if name in columns and name not in FLAGS:
            parts.append(f'"{name}"' if name != "agent_id" else f"{agent} AS agent_id")
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
    view["confirmed"] = "NULL::BOOLEAN"
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
    return {name: f'"{own_name(name)}"' for name in own} | view


def _flag_sql(name: str) -> str:
    return f"(flags & {1 << FLAGS.index(name)}) <> 0"


def _nulls_sql() -> str:
    names = ", ".join(
        f"CASE WHEN null_bits & {1 << bit} <> 0 THEN '{name}' END"
        for bit, name in enumerate(schema.load().columns)
    )
    return f"CASE WHEN null_bits <> 0 THEN concat_ws(', ', {names}) END"
