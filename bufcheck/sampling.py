"""Chooses whole episodes for a quick look at a huge dump."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bufcheck.errors import UsageError
from bufcheck.format import Ranges

if TYPE_CHECKING:
    from bufcheck.dump import Dump

CLUSTERS = 8
"""Neighbouring episodes lie in the same pages, so a sample is a few clusters spread over the dump."""


def whole_episodes(dump: Dump, rows: int) -> list[Ranges] | None:
    """Rows of each file that hold about `rows` rows of whole episodes; None if that is everything."""
    import numpy as np

    if not dump.has("episode_id"):
        raise UsageError("--sample takes whole episodes, and the dump has no episode_id")
    if rows >= dump.rows:
        return None
    column = np.concatenate(
        [
            batch.rows.column(0).fill_null(-1).to_numpy(zero_copy_only=False)
            for batch in dump.batches(["episode_id"])
        ]
    )
    episodes, first, size = np.unique(column, return_index=True, return_counts=True)
    order = np.argsort(first)
    episodes, size = episodes[order], size[order]
    ends = np.cumsum(size)
    chosen = np.zeros(len(episodes), bool)
    for cluster in range(CLUSTERS):
        start = int(np.searchsorted(ends, dump.rows * cluster // CLUSTERS, side="right"))
        taken = 0
        while start < len(episodes) and taken < max(rows // CLUSTERS, 1):
            taken += 0 if chosen[start] else int(size[start])
            chosen[start] = True
            start += 1
    picked = np.isin(column, episodes[chosen])
    stops = [*dump.starts[1:], dump.rows]
    return [_ranges(picked[start:stop]) for start, stop in zip(dump.starts, stops, strict=True)]


def _ranges(picked: object) -> Ranges:
    import numpy as np

    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(picked, np.int8), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
