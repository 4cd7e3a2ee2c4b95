"""The script of docs/trainers/cleanrl.md, as it is and with the bugs that such scripts have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gae_of_a_dump
import numpy as np
import pytest
from conftest import ROOT
from test_trainer_pages import script_of

import bufcheck

SCRIPT = script_of(ROOT / "docs" / "trainers" / "cleanrl.md")
NOT_CHECKED = {
    "action-id-mismatch",
    "action-masked",
    "constant-num-actions",
    "logits-log-prob-mismatch",
    "new-log-prob-mismatch",
    "subset-broadcast",
    "subset-duplicate-id",
    "subset-id-out-of-range",
}
"""What needs subsets, masks, logits or a second look at log-probs: CleanRL keeps none of them."""


def run(folder: Path, *changes: tuple[str, str]) -> dict[str, Any]:
    script = SCRIPT
    for old, new in changes:
        assert script.count(old) == 1, old
        script = script.replace(old, new)
    (folder / "train.py").write_text(script)
    ran = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stderr
    actor = str(folder / "run" / "dump.actors" / "actor-{policy_version}.safetensors")
    return bufcheck.validate(str(folder / "run" / "dump"), actor=[actor])


def assert_healthy(report: dict[str, Any], folder: Path) -> dict[str, Any]:
    assert report["verdict"] == "pass", report
    assert (report["summary"]["errors"], report["summary"]["warnings"]) == (0, 0)
    assert report["replay"]["worst_error"] < 1e-5
    assert {r["name"] for r in report["rules"] if r["status"] == "not-checked"} == NOT_CHECKED
    columns, metadata = gae_of_a_dump.read(folder / "run" / "dump")
    assert columns["truncated"].any() and columns["terminated"].any()
    expected = gae_of_a_dump.recomputed(columns, metadata["advantage"])
    np.testing.assert_allclose(columns["advantage"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(columns["return"], expected + columns["value"], rtol=1e-4, atol=1e-4)
    return columns


def test_the_script_passes_and_its_advantages_are_what_the_metadata_says(tmp_path: Path) -> None:
    columns = assert_healthy(run(tmp_path), tmp_path)
    assert len(columns["reward"]) == 6 * 128 * 4
    assert columns["timestep"].max() == 59  # of 60, over the ends of rollouts


NEXT_STEP = ("AutoresetMode.SAME_STEP", "AutoresetMode.NEXT_STEP")


def test_rows_spent_on_resetting_are_left_out_as_the_page_says(tmp_path: Path) -> None:
    report = run(
        tmp_path,
        NEXT_STEP,
        ("next_done = torch.zeros(ENVS)\n", "next_done = was_spent = torch.zeros(ENVS)\n"),
        (
            "    buffer.append_envs(rollout, starts=dones)\n",
            "    starts = torch.cat([was_spent[None], dones[:-1]])\n"
            "    was_spent = dones[-1].clone()\n"
            "    buffer.append_envs(rollout, starts=starts, keep=dones == 0)\n",
        ),
    )
    columns = assert_healthy(report, tmp_path)
    assert len(columns["reward"]) < 6 * 128 * 4
    assert (columns["reward"] == 1).all()  # CartPole pays every step but one that resets
    assert columns["timestep"].max() == 59


BUGS = {
    "the environments' own array is stored after they wrote to it": (
        "state-aliased-next",
        (".SAME_STEP,\n", ".SAME_STEP,\n    copy=False,\n"),
        (
            "next_obs = torch.Tensor(envs.reset(seed=1)[0])",
            "next_obs = torch.from_numpy(envs.reset(seed=1)[0])",
        ),
        ("        obs[step] = next_obs\n", ""),
        (
            "        next_obs, next_done = torch.Tensor(seen),",
            "        obs[step] = next_obs\n        next_obs, next_done = torch.from_numpy(seen),",
        ),
    ),
    "the actor is saved after the update": (
        "stale-policy-version",
        ("    buffer.save_actor(None, agent.actor)\n", ""),
        (
            "            optimizer.step()\n",
            "            optimizer.step()\n    buffer.save_actor(None, agent.actor)\n",
        ),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_the_script_is_named(bug: str, tmp_path: Path) -> None:
    cause, *changes = BUGS[bug]
    report = run(tmp_path, *changes)
    assert report["verdict"] == "fail"
    assert report["causes"][0]["name"] == cause, report["causes"]


def test_rows_spent_on_resetting_are_found_where_they_are_kept(tmp_path: Path) -> None:
    """Each lies behind the end of the episode that it is counted to."""
    report = run(
        tmp_path, NEXT_STEP, (", starts=dones)", ", starts=torch.cat([dones[:1] * 0, dones[:-1]]))")
    )
    assert report["verdict"] == "fail"
    assert report["causes"][0]["name"] == "autoreset-row", report["causes"]
