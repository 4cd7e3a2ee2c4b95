"""action_index becomes the place of the one action on offer that has the stored log-prob, in rows whose
subset is proven to have lost its order. Where several fit, action_id decides, if it is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bufcheck import repair

if TYPE_CHECKING:
    import pyarrow as pa

    from bufcheck.repair import Work
    from bufcheck.vectors import Array

RESOLVES = (
    "log-prob-mismatch",
    "action-id-mismatch",
    "action-masked",
    "logits-log-prob-mismatch",
    "placeholder-log-prob",
)
FLAGGED = "SELECT row_id FROM causes WHERE cause = 'subset-order-lost' AND confidence = 'proven'"


def mend(work: Work) -> Any:
    import numpy as np
    import pyarrow as pa

    if work.replay is None or not work.dump.has("action_index"):
        return None
    kind = pa.schema([("row_id", pa.int64()), ("action_index", pa.int64())])
    found = []
    for rows, ids in repair.rows_of(work, FLAGGED):
        place = rows.schema.get_field_index("action_index")
        index, times = np.full(len(ids), -1), np.zeros(len(ids), int)
        wanted = _wanted(work, rows, ids)
        for candidate in range(_most_offered(rows)):
            field = rows.schema.field(place)
            changed = rows.set_column(place, field, pa.repeat(candidate, len(ids)).cast(field.type))
            fits = repair.gives_what_is_stored(work, changed, ids)
            fits &= (wanted < 0) | (wanted == candidate)
            index[fits] = candidate
            times += fits
        sure = times == 1
        columns = [pa.array(ids[sure]), pa.array(index[sure].astype(np.int64))]
        found.append(pa.RecordBatch.from_arrays(columns, schema=kind))
    return pa.Table.from_batches(found, kind)


def _most_offered(rows: pa.RecordBatch) -> int:
    import pyarrow.compute as pc

    name = "subset_indices" if "subset_indices" in rows.schema.names else "action_mask"
    return int(pc.max(pc.list_value_length(rows.column(name))).as_py() or 0)


def _wanted(work: Work, rows: pa.RecordBatch, ids: Array) -> Array:
    """The place of action_id in the subset; −1 where it is not stored or not there."""
    import numpy as np

    nowhere = np.full(len(ids), -1)
    if not work.dump.has("action_id"):
        return nowhere
    listed = ", ".join(map(str, ids.tolist()))
    actions = work.database.columns(
        f"SELECT coalesce(action_id, -1) AS id FROM digest WHERE row_id IN ({listed}) ORDER BY row_id"
    )["id"]
    subsets = rows.column("subset_indices").to_pylist()
    places = [
        subset.index(action) if action in (subset or []) else -1
        for subset, action in zip(subsets, actions.tolist(), strict=True)
    ]
    return np.array(places)
