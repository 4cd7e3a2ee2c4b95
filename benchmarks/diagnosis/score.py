"""Breaks a world, asks bufcheck what happened, and compares the answer with the truth.

Which rows are wrong is decided here from the weights of who acted (worlds.wrong); bufcheck's replay has
no say in it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import outside
import pyarrow.parquet as pq
import torch
from cases import Case
from worlds import Array, World, twins, wrong

import bufcheck

FEWEST = 50
"""Rows hit, below which a case says nothing."""


@dataclass(frozen=True)
class Answer:
    """What bufcheck said of a dump."""

    causes: list[dict[str, Any]]
    unexplained: int
    verdict: str
    errors: Array
    """row_id of every error finding"""
    cause_of: dict[str, Array]
    """row_id of the findings of each cause"""
    seconds: float
    cannot_tell: list[str]
    source_of: dict[int, int]
    """row_id → the row whose log-prob it holds, where that was recovered"""

    def rows_of(self, name: str) -> Array:
        """The rows put down to a cause, or to one that is said to look the same."""
        same = [c["name"] for c in self.causes if name == c["name"] or name in c.get("also", ())]
        found = [self.cause_of[other] for other in same if other in self.cause_of]
        return np.unique(np.concatenate(found)) if found else np.array([], int)

    def first_is(self, name: str) -> bool:
        return bool(self.causes) and _named(self.causes[0], name)

    def names(self, name: str) -> bool:
        return any(_named(cause, name) for cause in self.causes)

    def proven(self) -> list[str]:
        return [cause["name"] for cause in self.causes if cause["confidence"] == "proven"]


def _named(cause: dict[str, Any], name: str) -> bool:
    return name == cause["name"] or name in cause.get("also", ())


def ask(world: World, paths: Iterable[Path], folder: Path, ignore: tuple[str, ...] = ()) -> Answer:
    torch.set_num_threads(1)
    findings, sources = folder / "findings.parquet", folder / "causes.parquet"
    begun = time.perf_counter()
    report = bufcheck.validate(
        *(str(path) for path in paths),
        actor=world.actor,
        findings=findings,
        causes=sources,
        ignore=ignore,
    )
    seconds = time.perf_counter() - begun
    moved = pq.read_table(sources, columns=["row_id", "source_row_id"]).drop_null().to_pydict()
    found = pq.read_table(findings).to_pydict()
    columns = zip(found["row_id"], found["severity"], found["cause"], strict=True)
    known = [each for each in columns if each[0] is not None]
    cause_of: dict[str, list[int]] = {}
    for row, _, cause in known:
        if cause is not None:
            cause_of.setdefault(cause, []).append(row)
    return Answer(
        report["causes"],
        report["unexplained_rows"],
        report["verdict"],
        np.unique(np.array([row for row, severity, _ in known if severity == "error"], int)),
        {cause: np.unique(rows) for cause, rows in cause_of.items()},
        seconds,
        report.get("cannot_tell", []),
        dict(zip(moved["row_id"], moved["source_row_id"], strict=True)),
    )


@dataclass(frozen=True)
class Job:
    """One case on one world."""

    world: World
    case: Case
    unit: str
    fraction: float
    seed: int = 0
    ignore: tuple[str, ...] = ()


@dataclass
class Result:
    base: str
    fault: str
    label: str
    unit: str
    fraction: float
    skipped: str | None = None
    """Why there is nothing to say."""
    hit: int = 0
    detectable: int = 0
    found_recall: float = 1.0
    """Of rows with an error finding; further below, of rows put down to the expected cause."""
    found_precision: float = 1.0
    recall: float = 1.0
    precision: float = 1.0
    right: bool = False
    """The expected cause comes first, or is said to look the same as the first."""
    named: bool = False
    """The expected cause is among those told."""
    proven: list[str] = field(default_factory=list)
    confidence: str | None = None
    """Of the first cause."""
    crashed: str | None = None
    causes: list[dict[str, Any]] = field(default_factory=list)
    unexplained: int = 0
    seconds: float = 0.0
    by_rules: bool = False
    """Rules about time flag the rows beside those hit as well: what they find besides is not counted."""

    @property
    def worst(self) -> float:
        """The least of the rates that count."""
        rates = [self.found_recall, self.recall, self.precision]
        return min(rates if self.by_rules else [*rates, self.found_precision])

    @property
    def first(self) -> str:
        return str(self.causes[0]["name"]) if self.causes else "none"


def run(job: Job) -> Result:
    """Injects, validates and scores, in a folder of its own."""
    result = blank(job)
    with tempfile.TemporaryDirectory(prefix="bufcheck-diagnosis-") as name:
        folder = Path(name)
        try:
            target, hit = inject(job, folder)
        except bufcheck.BufcheckError as problem:
            result.skipped = f"not made: {problem}"
            return result
        judge([result], [job], target, [hit], folder)
    return result


def blank(job: Job) -> Result:
    case = job.case
    return Result(
        job.world.name, case.fault, case.label, job.unit, job.fraction, by_rules=case.by_rules
    )


def inject(job: Job, folder: Path, source: Path | None = None, avoid: Path | None = None) -> Any:
    """The broken dump, and the rows hit."""
    from bufcheck import fault

    target = folder / f"{job.case.fault}.parquet"
    fault.inject(
        [str(source)] if source else job.world.paths,
        target,
        job.case.fault,
        actor=(job.world.actor,),
        unit=job.unit,
        fraction=job.fraction,
        seed=job.seed,
        parameters=dict(job.case.parameters) or None,
        avoid=avoid,
    )
    truth = pq.read_table(target.with_suffix(".truth.parquet")).to_pydict()
    pairs = zip(truth["row_id"], truth["fault"], strict=True)
    return target, np.unique(np.array([row for row, name in pairs if name == job.case.fault], int))


def judge(
    results: list[Result], jobs: list[Job], target: Path, hits: list[Array], folder: Path
) -> None:
    """Asks about a dump in which every job hit some rows; a crash counts as nothing found."""
    wrong_rows = np.flatnonzero(wrong(jobs[0].world, [target]))
    seen = [
        hit if job.case.by_rules else np.intersect1d(hit, wrong_rows)
        for job, hit in zip(jobs, hits, strict=True)
    ]
    for result, hit, visible in zip(results, hits, seen, strict=True):
        result.hit, result.detectable = len(hit), len(visible)
        if len(hit) < FEWEST:
            result.skipped = f"{len(hit)} rows hit, fewer than {FEWEST}"
        elif len(visible) < FEWEST:
            result.skipped = f"only {len(visible)} rows with another log-prob, fewer than {FEWEST}"
    if any(result.skipped for result in results):
        return
    try:
        answer = ask(jobs[0].world, [target], folder, jobs[0].ignore)
    except Exception as problem:
        for result in results:
            result.crashed = f"{type(problem).__name__}: {problem}"
            result.found_recall = result.recall = 0.0
        return
    everything = np.unique(np.concatenate(hits))
    for result, job, hit, visible in zip(results, jobs, hits, seen, strict=True):
        grade(result, job.case, answer, hit, visible, twins([target], hit) if job.case.copies else hit)
        if len(jobs) > 1:
            result.found_precision = rates(answer.errors, everything, visible)[1]


def grade(
    result: Result, case: Case, answer: Answer, hit: Array, visible: Array, granted: Array
) -> None:
    own = answer.rows_of(case.fault)
    found = np.union1d(answer.errors, own) if case.by_rules else answer.errors
    result.found_recall, result.found_precision = rates(found, granted, visible)
    if case.whole_dump:
        result.found_recall = result.found_precision = 1.0
        result.right = answer.first_is(case.fault)
    elif case.provable:
        result.recall, result.precision = rates(own, granted, visible)
        result.right = answer.first_is(case.fault)
    else:
        result.right = not answer.proven()
    result.named = answer.names(case.fault)
    result.proven = answer.proven()
    result.confidence = answer.causes[0]["confidence"] if answer.causes else None
    keep = ("name", "rows", "share", "confidence", "parameters", "also", "evidence")
    result.causes = [{key: cause[key] for key in keep if key in cause} for cause in answer.causes]
    result.unexplained = answer.unexplained
    result.seconds = answer.seconds


def rates(found: Array, hit: Array, visible: Array) -> tuple[float, float]:
    """Recall over the rows that could be seen, precision over the rows that were hit."""
    recall = len(np.intersect1d(found, visible)) / len(visible) if len(visible) else 1.0
    precision = len(np.intersect1d(found, hit)) / len(found) if len(found) else 1.0
    return recall, precision


# Other questions


def run_unknown(world: World, name: str, unit: str, fraction: float, seed: int) -> Result:
    """A fault outside the catalogue. Right means: nothing is said to be proven."""
    job = Job(world, Case(name, provable=False), unit, fraction)
    result = blank(job)
    if name in outside.NEEDS and outside.NEEDS[name] not in world.traits:
        result.skipped = f"needs {outside.NEEDS[name]}"
        return result
    with tempfile.TemporaryDirectory(prefix="bufcheck-diagnosis-") as given:
        target = Path(given) / "dump.parquet"
        hit = outside.spoil(world, target, name, unit, fraction, seed)
        judge([result], [job], target, [hit], Path(given))
    return result


def run_hidden(job: Job) -> Result:
    """A fault whose own cause is ignored. Right means: no other name is said to be proven."""
    result = run(job)
    result.right = not result.proven and not result.crashed
    return result


def run_pair(first: Job, second: Job) -> list[Result]:
    """One result for each of two faults; the second is made in rows the first left alone.

    Right means: it is named, in whatever place.
    """
    results = [blank(first), blank(second)]
    with tempfile.TemporaryDirectory(prefix="bufcheck-diagnosis-") as given:
        folder = Path(given)
        try:
            middle, hit = inject(first, folder)
            target, other = inject(second, folder, middle, middle.with_suffix(".truth.parquet"))
        except bufcheck.BufcheckError as problem:
            for result in results:
                result.skipped = f"not made: {problem}"
            return results
        judge(results, [first, second], target, [hit, other], folder)
    for result in results:
        result.right = result.named
    return results
