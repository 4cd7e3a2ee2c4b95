"""Where the subset has lost its order, action_index becomes the place of the one action on offer that
has the stored log-prob; where logits are stored, the subset gets back the order that they have instead.
Proof is a proven cause, an action_id that is that very action, or every logit; and the replay of the
mended row."""

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
FLAGGED = """
    SELECT row_id FROM causes WHERE cause = 'subset-order-lost' AND confidence = 'proven'
    UNION SELECT row_id FROM findings WHERE row_id IS NOT NULL
        AND rule IN ('action-id-mismatch', 'logits-log-prob-mismatch')
"""
CLOSED = -1e7
"""A logit below this says only that the action was masked."""
PROVEN = "SELECT row_id FROM causes WHERE cause = 'subset-order-lost' AND confidence = 'proven'"


def mend(work: Work) -> Any:
    import numpy as np
    import pyarrow as pa

    if work.replay is None or not all(map(work.dump.has, ("action_index", "subset_indices"))):
        return None
    proven = work.database.columns(PROVEN)["row_id"]
    found = []
    for rows, ids in repair.rows_of(work, FLAGGED):
        action = repair.scalars(work, ids, "action_id")
        if work.dump.has("logits"):
            mended, kept = _reordered(work, rows)
            kept &= repair.gives_what_is_stored(work, mended, ids)
            table = {"row_id": pa.array(ids)}
            for name in ("subset_indices", "action_mask"):
                if name in rows.schema.names:
                    table[name] = mended.column(name)
        else:
            index = _places(work, rows, ids, action)
            mended = repair.with_column(rows, "action_index", pa.array(np.maximum(index, 0)))
            kept = (index >= 0) & (np.isin(ids, proven) | np.isfinite(action))
            table = {"row_id": pa.array(ids), "action_index": pa.array(index)}
        kept &= _agrees(mended, action)
        found.append(pa.table(table).filter(pa.array(kept)))
    return pa.concat_tables(found) if found else None


def _agrees(rows: pa.RecordBatch, action: Array) -> Array:
    """Whether the action that the index points at is the one stored by its id, where it is."""
    import numpy as np
    import pyarrow.compute as pc

    index = rows.column("action_index").fill_null(0).to_numpy(zero_copy_only=False)
    lengths = pc.list_value_length(rows.column("subset_indices")).fill_null(0)
    inside = (index >= 0) & (index < lengths.to_numpy(zero_copy_only=False))
    subsets = rows.column("subset_indices").to_pylist()
    chosen = [s[i] if fine else -1 for s, i, fine in zip(subsets, index, inside, strict=True)]
    found: Array = inside & (np.isnan(action) | (np.array(chosen) == action))
    return found


def _places(work: Work, rows: pa.RecordBatch, ids: Array, action: Array) -> Array:
    """The one place whose action has the stored log-prob (and the stored id); −1 where none has."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    index, times = np.full(len(ids), -1), np.zeros(len(ids), int)
    for place in range(pc.max(pc.list_value_length(rows.column("subset_indices"))).as_py() or 0):
        changed = repair.with_column(rows, "action_index", pa.repeat(place, len(ids)))
        fits = repair.gives_what_is_stored(work, changed, ids) & _agrees(changed, action)
        index[fits] = place
        times += fits
    return np.where(times == 1, index, -1)


def _reordered(work: Work, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Array]:
    """The rows with subset and mask in the order of the stored logits, and where that is plain."""
    import numpy as np
    import torch

    assert work.replay is not None
    masked = "action_mask" in rows.schema.names
    subsets = rows.column("subset_indices").to_pylist()
    masks = rows.column("action_mask").to_pylist() if masked else [None] * len(subsets)
    logits = rows.column("logits").to_pylist()
    plain = np.zeros(len(subsets), bool)
    with torch.inference_mode():
        answers = work.replay.outputs_of(rows, work.replay.actors_of(rows))
        for _, mine, output, _ in answers:
            table = output.double().cpu().numpy()
            places = np.arange(len(subsets))[mine]
            for place, outputs in zip(places, table, strict=True):
                found = _in_order_of(outputs, subsets[place], masks[place], logits[place])
                if found is not None:
                    subsets[place], masks[place] = found
                    plain[place] = True
    mended = repair.with_column(rows, "subset_indices", subsets)
    return (repair.with_column(mended, "action_mask", masks) if masked else mended), plain


def _in_order_of(outputs: Array, subset: Any, mask: Any, logits: Any) -> tuple[Any, Any] | None:
    """Subset and mask in the order of the logits; members are told by what the actor gives them.

    Those that are closed, and whose logits say so and no more, stay in the order they have.
    """
    import numpy as np

    if subset is None or logits is None or len(subset) != len(logits) or None in subset:
        return None
    ids, wanted = np.array(subset, int), np.array(logits, float)
    if not ((ids >= 0) & (ids < len(outputs))).all():
        return None
    legal = np.array(mask, bool) if mask is not None else np.ones(len(ids), bool)
    told = wanted > CLOSED
    sources = np.arange(len(ids)) if told.all() else np.flatnonzero(legal)
    targets = np.flatnonzero(told)
    if len(sources) != len(targets) or len(legal) != len(ids):
        return None
    sources = sources[np.argsort(outputs[ids[sources]])]
    targets = targets[np.argsort(wanted[targets])]
    values, aims = outputs[ids[sources]], wanted[targets]
    near = 1e-4 + 1e-5 * np.abs(aims)
    if (np.abs(values - aims) > near).any() or (np.diff(values) < 2 * near[1:]).any():
        return None
    order = np.full(len(ids), -1)
    order[targets] = sources
    order[order < 0] = np.setdiff1d(np.arange(len(ids)), sources)
    return ids[order].tolist(), legal[order].tolist() if mask is not None else None
