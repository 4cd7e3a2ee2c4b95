"""One fault: what the first update sees of the faulty buffer, of the cleaned, and of the repaired.

Each is held against the original. The noise is the original's own: updates on random rows of it, as
many as are trained on of the buffer, in other orders of minibatches. What lies within three standard
deviations of their mean matches; a faulty buffer must lie ten off.
"""

from __future__ import annotations

import functools
import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ppo
from cases import Case
from ppo import Update
from score import Job, inject
from worlds import World

import bufcheck

SHARE = 0.1
"""Of the rows, that a fault hits."""
WITHIN, FAR = 3.0, 10.0
"""Standard deviations of the original's own updates: what matches, and what stands out."""
REFERENCES = 3
"""Updates on the original for each on another buffer: the noise must be known well."""
RATIO_RIGHT = 2e-4
"""Off 1, before the first step: log-probs may be stored with a rounding of 1e-4."""
REPAIRS = ("realign", "log-prob")
MIN_VALID = 0.8
"""A tenth is hit, and may go."""
MEASURES = ("approx_kl", "clip_fraction")


@dataclass(frozen=True)
class Trial:
    case: Case
    quiet: str | None = None
    """Why one update hardly shows the fault; it must show all others."""


TRIALS = [
    Trial(Case("mask-not-applied")),
    Trial(Case("placeholder-logprob")),
    Trial(Case("double-softmax")),
    Trial(Case("n-by-1-broadcast")),
    Trial(Case("minibatch-permutation")),
    Trial(Case("logprob-row-shift")),
    Trial(Case("subset-shifted")),
    Trial(Case("action-shifted")),
    Trial(Case("temperature-unaccounted"), quiet="the policy is still flat"),
    Trial(Case("eps-explore-unaccounted"), quiet="the policy is still flat"),
    Trial(Case("recomputed-after-update"), quiet="one update moves it little"),
    Trial(Case("reduced-precision"), quiet="it is rounding"),
]


@dataclass(frozen=True)
class Buffer:
    """Updates on one buffer, and on as many rows of the original."""

    rows: int
    updates: list[Update]
    original: list[Update]

    @property
    def ratio_error(self) -> float:
        return max(update.ratio_error for update in self.updates)

    def off(self, measure: str) -> float:
        """How many standard deviations its mean lies off the original's."""
        mean, _ = spread(self.updates, measure)
        expected, noise = spread(self.original, measure)
        apart = abs(mean - expected)
        return apart / noise if noise else math.inf if apart else 0.0

    @property
    def matches(self) -> bool:
        within = all(self.off(measure) <= WITHIN for measure in MEASURES)
        return within and self.ratio_error <= RATIO_RIGHT

    @property
    def stands_out(self) -> bool:
        return all(self.off(measure) > FAR for measure in MEASURES)


def spread(updates: list[Update], measure: str) -> tuple[float, float]:
    """Mean and standard deviation."""
    found = [getattr(update, measure) for update in updates]
    return statistics.mean(found), statistics.stdev(found)


@dataclass(frozen=True)
class Proof:
    trial: Trial
    hit: int
    faulty: Buffer
    cleaned: Buffer
    repaired: Buffer | None
    """None where no row could be mended."""
    mended: int = 0

    @property
    def buffers(self) -> dict[str, Buffer]:
        made = {"faulty": self.faulty, "cleaned": self.cleaned, "repaired": self.repaired}
        return {name: buffer for name, buffer in made.items() if buffer is not None}

    @property
    def holds(self) -> bool:
        """The faulty buffer is told from the original, the others are not."""
        right = self.cleaned.matches and (self.repaired is None or self.repaired.matches)
        return right and (self.faulty.stands_out or self.trial.quiet is not None)


@dataclass
class Bench:
    """A rollout to break, and the updates to make on what becomes of it."""

    world: World
    seeds: int
    known: dict[int, list[Update]] = field(default_factory=dict)
    """Updates on so many rows of the original."""

    @functools.cached_property
    def samples(self) -> ppo.Samples:
        return ppo.read(self.world.dumps[0])

    @property
    def rows(self) -> int:
        return ppo.count(self.samples)

    def original(self, rows: int | None = None) -> Buffer:
        """On so many rows of the original, drawn anew for each update; by default on all."""
        rows = ppo.whole_minibatches(min(rows or self.rows, self.rows))
        if rows not in self.known:
            self.known[rows] = self._updates(self.samples, rows, REFERENCES * self.seeds)
        return Buffer(rows, self.known[rows], self.known[rows])

    def buffer(self, dump: Path) -> Buffer:
        samples = ppo.read(dump)
        rows = ppo.whole_minibatches(ppo.count(samples))
        updates = self._updates(samples, rows, self.seeds)
        return Buffer(ppo.count(samples), updates, self.original(rows).updates)

    def _updates(self, samples: ppo.Samples, rows: int, seeds: int) -> list[Update]:
        actor = ppo.checkpoint(self.world)
        return [ppo.first_update(actor, ppo.some(samples, rows, seed), seed) for seed in range(seeds)]

    def prove(self, trial: Trial, folder: Path, seed: int = 0) -> Proof:
        """`seed` draws the rows that the fault hits."""
        folder.mkdir(parents=True)
        job = Job(self.world, trial.case, "rows", SHARE, seed)
        faulty, hit = inject(job, folder)
        cleaned, _ = self._clean(faulty, folder / "cleaned.parquet")
        repaired, account = self._clean(faulty, folder / "repaired.parquet", REPAIRS)
        mended = sum(account["rows_repaired"].values())
        return Proof(
            trial,
            len(hit),
            self.buffer(faulty),
            self.buffer(cleaned),
            self.buffer(repaired) if mended else None,
            mended,
        )

    def _clean(
        self, faulty: Path, output: Path, repair: tuple[str, ...] = ()
    ) -> tuple[Path, dict[str, Any]]:
        account = bufcheck.clean(
            str(faulty), output=output, actor=self.world.actor, repair=repair, min_valid=MIN_VALID
        )
        return output, account
