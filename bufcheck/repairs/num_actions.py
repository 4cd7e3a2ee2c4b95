"""num_actions becomes the length of subset_indices, where the actor then gives the stored log-prob, or,
without an actor, the stored logits do and are as many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bufcheck import repair

if TYPE_CHECKING:
    from bufcheck.repair import Work

RESOLVES = ("subset-length-mismatch", "action-index-out-of-range", "empty-subset")
FLAGGED = "SELECT row_id FROM findings WHERE rule = 'subset-length-mismatch' AND row_id IS NOT NULL"
BY_LOGITS = f"""
    SELECT row_id, subset_len AS num_actions
    FROM digest
    WHERE row_id IN ({FLAGGED})
        AND logits_len = subset_len
        AND coalesce(mask_len = subset_len, true)
        AND abs(logits_log_prob - old_log_prob) <= $tolerance + $relative_tolerance * abs(old_log_prob)
"""


def mend(work: Work) -> Any:
    from bufcheck.sql import fill_in

    if not work.dump.has("num_actions") or not work.dump.has("subset_indices"):
        return None
    if work.replay is None:
        if not work.dump.has("logits"):
            return None
        return fill_in(BY_LOGITS, work.database.settings)
    return _by_replay(work)


def _by_replay(work: Work) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = pa.schema([("row_id", pa.int64()), ("num_actions", pa.int64())])
    found = []
    for rows, ids in repair.rows_of(work, FLAGGED):
        lengths = pc.list_value_length(rows.column("subset_indices"))
        changed = repair.with_column(rows, "num_actions", lengths)
        proven = repair.gives_what_is_stored(work, changed, ids)
        columns = [pa.array(ids[proven]), lengths.filter(pa.array(proven)).cast(pa.int64())]
        found.append(pa.RecordBatch.from_arrays(columns, schema=kind))
    return pa.Table.from_batches(found, kind)
