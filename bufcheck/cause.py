"""Says which bug made the failing rows: replays them under every known one and sees what fits.

A cause is one member of `causes/`, in either of two forms.

A .sql file: a TOML header and a SELECT of the rows that a pattern in the tables proves. The header has
meaning, evidence and fix, in words; when = "first" (before counterfactuals) or "last"; rank, where the
order among them matters; effect = true where the pattern may be the effect of another bug.

A Python module, a counterfactual: "had the trainer done X, this would be stored".

    FIX                          what to change in a trainer
    RANK                         specific names before generic ones: of two that explain the same rows,
                                 the lower rank is told
    APPLIES                      "categorical", or None for every distribution
    WRONG                        what of a row it made wrong: log_prob, action, state, offer, agent,
                                 version, actor, or either (the log-prob, or what the action was
                                 sampled from); by the value of a parameter where that tells
    suppose(case, unexplained)   -> Hypotheses, with whatever had to be fitted
    LAST_RESORT                  True for what is asked only where nothing else explains more

choice.py picks the hypotheses that explain the most rows with the fewest bugs; attribution.py says
which row is whose.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bufcheck import shipped
from bufcheck.case import Case
from bufcheck.sql import split_header
from bufcheck.vectors import Array

PROVEN, LIKELY, HINT = "proven", "likely", "hint"
LEAST = 8
"""Rows: fewer are no pattern."""
SURPRISE = 20.0
"""-ln of the chance that a hypothesis explains so many rows by accident."""
SHUFFLE = 4
"""The rank of what explains any value that stands somewhere else."""
CHAIN = 3
"""Neighbours in a row that a copying bug may have hit."""


class Verdict(NamedTuple):
    """What a hypothesis says of the failing rows of a case."""

    explained: Array
    lost: Array
    """Rows it says nothing about, though the bug would have hit them."""
    chance: float
    """The share of rows it would explain by accident."""
    sources: Array | None = None
    """Where each row's log-prob came from, as row ids; −1 where that is not known."""
    held: Array | None = None
    """Rows that hold a copy, as another row shows."""
    copies: Array | None = None
    """Rows that hold a copy, of a row that is wrong itself."""
    chained: Array | None = None
    """Rows whose neighbour it explains, and about which nothing more can be said."""
    accident: Array | None = None
    """[ways, rows]: the chance of a row to be explained though another bug made it, by several ways to
    tell; None where it is `chance` for all."""

    def by_chance(self, rows: Array) -> float:
        """The share of these rows that it would explain by accident."""
        if self.accident is None or not rows.any():
            return self.chance
        return float(self.accident[:, rows].mean(1).max())


@dataclass(frozen=True)
class Hypothesis:
    parameters: dict[str, Any]
    test: Callable[[Case], Verdict]
    evidence: str
    """What fits, in a sentence."""
    most: str = PROVEN
    """The most confidence it deserves."""
    rank: int | None = None
    """Where its evidence makes it more specific than its module is."""


@dataclass
class Suspect:
    """A hypothesis in the running."""

    name: str
    rank: int
    hypothesis: Hypothesis
    verdict: Verdict
    also: list[str] = field(default_factory=list)
    """Other causes that explain the same rows as well."""


def predicting(
    predict: Callable[[Case], Array],
    *,
    edges: Callable[[Case], Array] | None = None,
    sources: Callable[[Case], Array] | None = None,
    null: Callable[[Case], Array] | None = None,
    habit: Callable[[Case], Array] | None = None,
    copied: Callable[[Case], tuple[Array, Array, Array]] | None = None,
    background: float = 0.0,
    loosely: bool = False,
) -> Callable[[Case], Verdict]:
    """The test of a hypothesis that predicts values: NaN where it says nothing, +inf where it calls a
    row impossible.

    Chance is how often it would fit another row's prediction, or that of `null`, a hypothesis of the
    same kind that is wrong for sure; at least `background`, and `habit`, the chance of each row that
    healthy ones suggest. `copied`: which rows (failing or not) hold what the bug would have copied,
    from which row, and of which rows it is known what they held; where the bug hit single rows, that is
    all that is left to see. What is as common among healthy rows proves nothing.
    `edges`: failing rows that the bug would have hit, and for which there is nothing to predict from.
    `loosely`: where the prediction itself is rounded.
    """

    def test(case: Case) -> Verdict:
        with np.errstate(all="ignore"):
            values = predict(case)
        explained = case.hits(values, loosely=loosely) & ~case.hits(case.replayed)
        turned = np.roll(values, len(values) // 2 + 1)
        ways = [case.hits(turned, loosely=loosely) & ~explained]
        ways += [case.hits(null(case))] if null else []
        ways += [habit(case)] if habit else []
        usual = background
        held = copies = chained = np.zeros(len(values), bool)
        if copied is not None:
            there, source, known = copied(case)
            # Of a row that is wrong itself, its log-prob may tell what it held: what explains it.
            told = _reached(case, explained, source, 1)
            there = (there & ~(case.wrong & known)[source] | told) & (source >= 0)
            # Where it is known what it would have copied, and that is not what stands here, it was not.
            plain = known & (case.wrong | case.telling & case.mostly_right)
            explained &= ~((source >= 0) & plain[source] & ~there)[case.at]
            # A copy of what is not known counts only for what nobody else explains.
            sound = there & known[source] | told
            common = _usual(there[~case.wrong & (source >= 0) & ~case.wrong[source]])
            if common < 0.5:
                held = sound[case.at]
                explained = explained | held
                usual = max(usual, common)
                copies = there[case.at] & ~explained
                # Copied from a row that was hit as well, with nothing left to compare it with.
                chained = _reached(case, explained, source, CHAIN) & ~known[source]
                chained = chained[case.at] & ~explained & ~copies
        accident = np.stack([*ways, np.full(len(values), usual)]).astype(np.float64)
        chance = float(accident.mean(1).max()) if len(values) else usual
        lost = edges(case) if edges else np.zeros(len(values), bool)
        came_from = sources(case) if sources else None
        return Verdict(explained, lost, chance, came_from, held, copies, chained, accident)

    return test


def _usual(healthy: Array) -> float:
    """How common something is among healthy rows; where there are too few, it may always be so."""
    return float(healthy.mean()) if len(healthy) >= LEAST else 1.0


def _reached(case: Case, explained: Array, source: Array, links: int) -> Array:
    """Failing rows that were copied from an explained one, or along a chain of so many copies."""
    hit = np.zeros(len(source), bool)
    hit[case.at] = explained
    found: Array = np.zeros(len(source), bool)
    for _ in range(links):
        found |= case.wrong & (source >= 0) & (hit | found)[source]
    return found


# The collection


def names() -> list[str]:
    """Every cause that can be named."""
    return sorted([*_modules(), *_files()])


def fix_of(name: str) -> str:
    files = _files()
    text: str = (
        split_header(files[name].read_text("utf-8"))[0]["fix"]
        if name in files
        else counterfactual(name).FIX
    )
    return text


def wrong_of(name: str, parameters: Mapping[str, Any]) -> str:
    """What of a row this cause made wrong; `row` where a pattern in the tables is all there is."""
    if name in _files():
        return "row"
    wrong: str | dict[str, str] = counterfactual(name).WRONG
    if isinstance(wrong, str):
        return wrong
    return next(wrong[value] for value in parameters.values() if value in wrong)


def described(name: str) -> str:
    """What the bug is, in words."""
    files = _files()
    if name in files:
        text: str = split_header(files[name].read_text("utf-8"))[0]["meaning"]
        return text
    return " ".join((counterfactual(name).__doc__ or "").split())


@cache
def _modules() -> dict[str, str]:
    import bufcheck.causes as members

    found = (m.name for m in pkgutil.iter_modules(members.__path__))
    return {name.replace("_", "-"): name for name in found if name[0] != "_"}


def counterfactual(name: str) -> Any:
    return importlib.import_module(f"bufcheck.causes.{_modules()[name]}")


def counterfactuals() -> Iterator[tuple[str, Any]]:
    """Every cause that is a Python module, by name."""
    return ((name, counterfactual(name)) for name in _modules())


@cache
def _files() -> dict[str, Path]:
    folder = shipped.PACKAGE / "causes"
    return {file.stem.replace("_", "-"): file for file in sorted(folder.glob("*.sql"))}


class Pattern(NamedTuple):
    """A cause that SQL proves."""

    rank: int
    name: str
    evidence: str
    sql: str
    effect: bool


def patterns(when: str) -> list[Pattern]:
    found = []
    for name, file in _files().items():
        header, sql = split_header(file.read_text("utf-8"))
        if header["when"] == when:
            effect = header.get("effect", False)
            found.append(Pattern(header.get("rank", 1), name, header["evidence"], sql, effect))
    return sorted(found)


# Chance


def surprise(count: int, by_chance: float, rows: int) -> float:
    """-ln of the chance of so many of these rows, where `by_chance` are expected (Chernoff bound)."""
    expected = max(by_chance, 0.5)
    if count <= expected:
        return 0.0
    missed = rows - count
    told = count * math.log(count / expected)
    return told + (missed * math.log(missed / (rows - expected)) if missed else 0.0)


class Mode(NamedTuple):
    value: float
    background: float
    """The share of rows that any other value nearby would have found."""


def most_common(values: Array, width: float, rows: int) -> Mode | None:
    """The centre of the narrow bin that most finite values fall into; None where that is no peak.

    Solutions of single rows crowd somewhere even if nothing is there to be found: what counts is how
    far a bin stands out from those around it.
    """
    values = np.sort(values[np.isfinite(values)])
    if len(values) < LEAST:
        return None
    until = np.searchsorted(values, values + width, side="right")
    start = int((until - np.arange(len(values))).argmax())
    value = float(np.median(values[start : until[start]]))
    count = int(until[start]) - start
    bins = 20
    low, high = np.searchsorted(values, [value - bins * width, value + bins * width])
    around = max(int(high - low) - count, 1) / (2 * bins - 1)
    if surprise(count, 2 * around, len(values)) < SURPRISE + math.log(len(values)):
        return None
    return Mode(value, 2 * around / max(rows, 1))
