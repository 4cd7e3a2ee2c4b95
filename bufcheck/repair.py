"""Mends rows instead of dropping them, where it is proven what they should hold.

A repair is one module in `repairs/`, named after it; its docstring says what it takes for proof.

    RESOLVES            the rules that a mended row no longer breaks
    mend(work)          SQL over the database for the rows it can prove, or a table of them as Arrow

The columns are row_id and any of EDITS, with the new values. A row with an error that the repair does
not resolve is left as it is, and dropped.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bufcheck.errors import UsageError
from bufcheck.sql import literal

if TYPE_CHECKING:
    import pyarrow as pa

    from bufcheck.database import Database
    from bufcheck.dump import Dump
    from bufcheck.replayer import Replayer
    from bufcheck.rule import Rule
    from bufcheck.vectors import Array

EDITS = {
    "old_log_prob": "DOUBLE",
    "action_index": "BIGINT",
    "num_actions": "BIGINT",
    "subset_indices": "BIGINT[]",
    "action_mask": "BOOLEAN[]",
}
"""Columns that a repair may change."""
ORDER = ("num-actions", "subset-order", "realign", "log-prob", "duplicates")
"""What is known more exactly comes first; a row is mended once."""
ABOUT_LOG_PROB = (
    "log-prob-mismatch",
    "positive-log-prob",
    "single-action-log-prob",
    "placeholder-log-prob",
    "logits-log-prob-mismatch",
    "new-log-prob-mismatch",
    "nonfinite-value",
    "null-value",
)
"""What a right log-prob resolves; the last two where nothing else is null or not finite."""
AT_ONCE = 1 << 14


class Work(NamedTuple):
    """What a repair works on. The rules have run, causes are found."""

    database: Database
    dump: Dump
    replay: Replayer | None
    taking: Sequence[Rule]


def names() -> list[str]:
    import bufcheck.repairs as members

    found = {m.name.replace("_", "-") for m in pkgutil.iter_modules(members.__path__)}
    return sorted((n for n in found if n[0] not in "-_"), key=ORDER.index)


def chosen(texts: Sequence[str]) -> list[str]:
    """Names, commas allowed; `all` for every one."""
    wanted = {part.strip() for text in texts for part in text.split(",") if part.strip()}
    if "all" in wanted:
        return names()
    for name in sorted(wanted):
        if name not in names():
            raise UsageError(f"{name!r} is no repair", f"there are {', '.join(names())}, and all")
    return [name for name in names() if name in wanted]


def load(name: str) -> Any:
    return importlib.import_module(f"bufcheck.repairs.{name.replace('-', '_')}")


def mend(work: Work, wanted: Sequence[str]) -> dict[str, int]:
    """Fills `repaired` with the new values of what can be proven; returns rows by repair."""
    database = work.database
    columns = ", ".join(f"{name} {kind}" for name, kind in EDITS.items())
    database.execute(f"CREATE TABLE repaired (row_id BIGINT, repair VARCHAR, {columns})")
    made = {}
    for name in wanted:
        module = load(name)
        found = module.mend(work)
        if found is None:
            made[name] = 0
            continue
        if not isinstance(found, str):
            database.load("mended", found)
            found = "SELECT * FROM mended"
        found = database.prepared(found)
        before = _count(database)
        database.execute(
            f"INSERT INTO repaired BY NAME SELECT *, '{name}' AS repair FROM ({found})"
            " WHERE row_id NOT IN (SELECT row_id FROM repaired)"
            f" AND row_id NOT IN ({_otherwise_wrong(work, module.RESOLVES)})"
        )
        database.execute("DROP TABLE IF EXISTS mended")
        made[name] = _count(database) - before
    return made


def _count(database: Database) -> int:
    [counted] = database.rows("SELECT count(*) AS rows FROM repaired")
    return int(counted["rows"])


def _otherwise_wrong(work: Work, resolved: Sequence[str]) -> str:
    """SQL for the rows that have an error besides those that are resolved."""
    codes = ", ".join(literal(rule.code) for rule in work.taking) or "''"
    rules = ", ".join(literal(name) for name in resolved) or "''"
    return (
        f"SELECT row_id FROM findings WHERE row_id IS NOT NULL AND code IN ({codes}) AND"
        f" (rule NOT IN ({rules})"
        " OR (rule = 'nonfinite-value' AND NOT regexp_full_match(message, 'old_log_prob is [^,]*'))"
        " OR (rule = 'null-value' AND message <> 'null in old_log_prob'))"
    )


def rows_of(work: Work, sql: str) -> Iterator[tuple[pa.RecordBatch, Array]]:
    """The rows whose ids this SQL gives, a bounded number at once: what a replay reads of them."""
    import pyarrow as pa

    from bufcheck.case import ranges

    assert work.replay is not None
    columns = [*work.replay.columns, *(n for n in ("num_actions", "logits") if work.dump.has(n))]
    ids = work.database.columns(f"SELECT row_id FROM ({sql}) ORDER BY row_id")["row_id"]
    for start in range(0, len(ids), AT_ONCE):
        part = ids[start : start + AT_ONCE]
        read = work.dump.batches(list(dict.fromkeys(columns)), ranges(work.dump, part))
        table = pa.Table.from_batches([batch.rows for batch in read]).combine_chunks()
        yield table.to_batches()[0], part


def gives_what_is_stored(work: Work, rows: pa.RecordBatch, ids: Array) -> Array:
    """Which of these rows, as changed, their actors give the stored log-prob."""
    import numpy as np

    from bufcheck.forward import one_thread
    from bufcheck.replayer import PREFIX

    assert work.replay is not None
    settings = work.database.settings
    stored = scalars(work, ids, "old_log_prob")
    with one_thread():
        told = work.replay.score(rows)

    def of(name: str) -> Array:
        column = told[PREFIX + name]
        filled = column.cast("float64").fill_null(float("nan"))
        return np.asarray(filled.to_numpy(zero_copy_only=False))

    log_prob = of("log_prob")
    size = np.minimum(np.abs(stored), np.abs(log_prob))
    with np.errstate(invalid="ignore"):
        allowed = settings["tolerance"] + settings["relative_tolerance"] * size + of("rounding")
        near: Array = np.abs(stored - log_prob) <= allowed
    return near


def scalars(work: Work, ids: Array, name: str) -> Array:
    """A column of the digest for these rows, as float64; NaN for null."""
    listed = ", ".join(map(str, ids.tolist()))
    return work.database.columns(
        f"SELECT coalesce({name}::DOUBLE, 'nan') AS value FROM digest"
        f" WHERE row_id IN ({listed}) ORDER BY row_id"
    )["value"]


def with_column(rows: pa.RecordBatch, name: str, values: Any) -> pa.RecordBatch:
    """The rows with other values in a column, of the type it has."""
    import pyarrow as pa

    place = rows.schema.get_field_index(name)
    field = rows.schema.field(place)
    column = pa.array(values, field.type) if isinstance(values, list) else values.cast(field.type)
    return rows.set_column(place, field, column)
