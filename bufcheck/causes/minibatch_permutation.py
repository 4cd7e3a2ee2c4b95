"""The log-probs were shuffled against the rows: one tensor was indexed with another permutation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import LIKELY, PROVEN, Hypothesis
from bufcheck.causes import _permutation
from bufcheck.vectors import Array

FIX = (
    "Shuffle once, with one index for every tensor of the batch; write the buffer before it is"
    " shuffled, or carry a row id through the shuffle."
)
RANK = 4
APPLIES = None
WRONG = "log_prob"


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    kind = _permutation.classified(case, unexplained)
    if kind is None or kind.name not in ("blocks", "global"):
        return
    moves = _permutation.regrouped(case, kind)
    rows = np.flatnonzero(moves.matched > 0)
    healthy = _permutation.also_healthy(case, kind, moves)
    # A permutation gives every value once; matches by chance would share them.
    shared = 1 - len(np.unique(moves.source)) / max(len(moves.source), 1)
    told = f"in blocks of {kind.block} rows" if kind.block else "over all of them"
    ambiguous = int((moves.matched > 1).sum())
    parameters = {"kind": kind.name, "unique": len(moves.target), "ambiguous": ambiguous}
    yield Hypothesis(
        parameters | ({"block": kind.block, "offset": kind.offset} if kind.block else {}),
        lambda case: _permutation.verdict(case, moves, rows, healthy),
        f"the stored values are the replayed ones of other rows, shuffled {told}:"
        f" {len(moves.target):,} rows match exactly one, {ambiguous:,} several",
        most=PROVEN if shared < 0.1 else LIKELY,
    )
