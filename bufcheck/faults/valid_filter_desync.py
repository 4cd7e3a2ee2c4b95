"""Invalid rows are dropped from the log-probs, but not from the rest.

From the first dropped row on, log-probs lie one row too early, from the second on two; zeros fill the
end. Each unbroken run of hit rows loses some, at least one; a run of a single row is left alone.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS = {
    "dropped": Parameter(0.02, "the share of rows that is dropped", above=0, most=1),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    for run in np.split(hit, np.flatnonzero(np.diff(hit) != 1) + 1):
        if len(run) < 2:
            continue
        lost = min(len(run), max(1, round(p["dropped"] * len(run))))
        kept = np.delete(run, rng.permutation(len(run))[:lost])
        b.borrow(["old_log_prob"], run[: len(kept)], kept)
        b.set("old_log_prob", run[len(kept) :], 0.0)
