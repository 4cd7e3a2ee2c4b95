"""Which other version of an agent's policy gives the stored log-probs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from bufcheck.case import Case
from bufcheck.cause import Hypothesis, predicting
from bufcheck.vectors import Array

ROWS = 4000
MOST_OFFSETS = 64
LEAST = 4


def suppose(case: Case, unexplained: Array, direction: int) -> Iterator[Hypothesis]:
    """Hypotheses about versions before (−1) or after (+1) the one a row is stamped with."""
    known = len(case.facts.versions)
    if known < 2 or (case.of("version") < 0).all():
        return
    rows = np.random.default_rng(0).permutation(np.flatnonzero(unexplained))[:ROWS]
    some = np.zeros(len(case), bool)
    some[rows] = True
    for size in range(1, min(known, MOST_OFFSETS + 1)):
        offset = direction * size
        if case.hits(_by_version(case, offset, some))[rows].sum() >= LEAST:
            when = "earlier" if direction < 0 else "later"
            yield Hypothesis(
                {"offset": offset},
                predicting(partial(_by_version, offset=offset)),
                f"the checkpoint {size} version{'s' * (size > 1)} {when} than stamped gives the"
                " stored value",
            )


def _by_version(case: Case, offset: int, some: Array | None = None) -> Array:
    def replayed() -> Array:
        versions = np.array(case.facts.versions)
        stamped = case.of("version")
        place = np.searchsorted(versions, stamped) + offset
        there = (place >= 0) & (place < len(versions)) & (stamped >= 0)
        actors = case.actors_for(case.of("agent"), versions[np.where(there, place, 0)])
        wanted = there & (actors != case.of("actor"))
        return case.replayed_with(
            actors=np.where(wanted if some is None else wanted & some, actors, -1)
        )

    if some is None:
        return case.once(("version", offset), replayed)
    return case.once(("version", offset, some.tobytes()), replayed)
