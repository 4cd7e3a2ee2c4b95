"""A real PPO's first update tells a faulty buffer from the original, and a cleaned one not.

The same code as benchmarks/training/run.py, which tries more faults on more rows.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks" / "training"))

import ppo
import proof

STEPS, SEEDS = 256, 2
TRIAL = next(trial for trial in proof.TRIALS if trial.case.fault == "double-softmax")
"""It shows in every row it hits, so that what is left is a fair sample of the original."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> proof.Bench:
    return proof.Bench(ppo.last_rollout(tmp_path_factory.mktemp("rollout"), STEPS), SEEDS)


@pytest.fixture(scope="module")
def proven(bench: proof.Bench, tmp_path_factory: pytest.TempPathFactory) -> proof.Proof:
    return bench.prove(TRIAL, tmp_path_factory.mktemp("trial") / "made")


def test_the_original_begins_with_a_ratio_of_one(bench: proof.Bench) -> None:
    assert bench.rows == 2 * STEPS
    assert bench.original().ratio_error < 1e-5


def test_cleaned_and_repaired_match_the_original_and_the_faulty_does_not(proven: proof.Proof) -> None:
    assert proven.holds, proven
    assert proven.faulty.stands_out
    assert proven.faulty.ratio_error > 0.1
    assert proven.cleaned.matches
    assert proven.cleaned.rows == proven.faulty.rows - proven.hit
    assert proven.repaired is not None
    assert proven.repaired.matches
    assert proven.repaired.rows == proven.faulty.rows


def test_a_buffer_that_was_not_cleaned_is_no_proof(proven: proof.Proof) -> None:
    assert not replace(proven, cleaned=proven.faulty).holds
    assert not replace(proven, repaired=proven.faulty).holds


def test_a_fault_that_does_not_show_is_no_proof(proven: proof.Proof) -> None:
    assert not replace(proven, faulty=proven.cleaned).holds
