"""The subset was sorted after sampling (a set, a database, a sort), and the local index points at
another action now."""

from __future__ import annotations

from collections.abc import Iterator

from bufcheck.case import Case
from bufcheck.cause import LEAST, LIKELY, Hypothesis
from bufcheck.causes import _support
from bufcheck.vectors import Array

FIX = (
    "Keep subset_indices in the order the actor saw: a list or array, never a set; no ORDER BY or sort"
    " on the way. Storing action_id as well would show the mismatch at once."
)
RANK = 3
APPLIES = "categorical"
WRONG = "action"
OFTEN = 0.9


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    if "subset_indices" not in case.rows.schema.names:
        return
    rows, margin = _support.explained_by(case, unexplained, "order-lost")
    if rows.sum() < LEAST:
        return
    usual = _support.sorted_share(case)
    told = f"; of the healthy rows only {usual:.0%} have sorted subsets" if usual < OFTEN else ""
    yield Hypothesis(
        {},
        _support.taking("order-lost", unexplained),
        "the subsets are sorted, and the stored value is that of another member, as likely as the"
        f" policy makes it{told}",
        most=_support.confidence(margin) if usual < OFTEN else LIKELY,
    )
