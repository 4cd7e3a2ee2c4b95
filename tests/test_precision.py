"""Half precision: clean dumps pass when they say what they were computed in, and faults still show."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bufcheck import pipeline

ROWS, D, A = 2000, 16, 10
HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def network(outputs: int, gain: float) -> torch.nn.Module:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(D, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()]
    last = torch.nn.Linear(64, outputs)
    with torch.no_grad():
        last.weight.mul_(gain)
    return torch.nn.Sequential(*layers, last).eval()


def run_in(how: str, half: torch.dtype, module: torch.nn.Module, states: torch.Tensor) -> torch.Tensor:
    """What a trainer in half precision has for outputs."""
    with torch.inference_mode():
        if how == "computed":
            return copy.deepcopy(module).to(half)(states.to(half))
        if how == "autocast":
            with torch.autocast("cpu", dtype=half):
                return module(states).float()
        return module(states)


def report(
    folder: Path,
    columns: dict[str, Any],
    log_prob: torch.Tensor,
    policy: dict[str, Any],
    actor: Any,
    store: str,
) -> dict[str, Any]:
    row = np.arange(ROWS)
    table = pa.table(
        {
            "episode_id": row // 50,
            "timestep": (row % 50).astype(np.int32),
            "agent_id": pa.array(["a"] * ROWS).dictionary_encode(),
            **columns,
            "old_log_prob": pa.array(log_prob.float().numpy()).cast(store),
        }
    )
    metadata = {"schema": "experience/1", "rows": ROWS, "policy": policy}
    path = folder / "dump.parquet"
    pq.write_table(table.replace_schema_metadata({"bufcheck": json.dumps(metadata)}), path)
    return pipeline.validate([str(path)], pipeline.Options(actor=actor))


def vectors(values: torch.Tensor) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(values.float().numpy().reshape(-1), values.shape[1])


def categorical(
    folder: Path, how: str, half: str, gain: float, declared: str, off: float = 0.0
) -> dict[str, Any]:
    actor, states = network(A, gain), torch.randn(ROWS, D, generator=torch.Generator().manual_seed(1))
    logits = run_in(how, HALVES[half], actor, states)
    policy = torch.distributions.Categorical(logits=logits.float())
    torch.manual_seed(5)
    action = policy.sample()
    log_prob = torch.log_softmax(logits, 1).gather(1, action[:, None])[:, 0].float()
    if how == "stored":
        log_prob = log_prob.to(HALVES[half]).float()
    columns = {
        "state_embed": vectors(states),
        "num_actions": np.full(ROWS, A, np.int32),
        "action_index": action.numpy().astype(np.int32),
    }
    told = {"action_space": A, "subset": "all", "precision": declared}
    store = "float16" if (how, half) == ("stored", "float16") else "float32"
    log_prob[::100] += off
    return report(folder, columns, log_prob, told, actor, store)


@pytest.mark.parametrize("gain", [1.0, 20.0, 100.0], ids=lambda gain: f"gain {gain:g}")
@pytest.mark.parametrize("how", ["computed", "autocast", "stored"])
@pytest.mark.parametrize("half", HALVES)
def test_clean_dumps_pass_with_their_precision_declared(
    half: str, how: str, gain: float, tmp_path: Path
) -> None:
    found = categorical(tmp_path, how, half, gain, declared=half)
    assert found["verdict"] == "pass", found["replay"]
    assert found["replay"]["tolerance"]["precision"] == half


@pytest.mark.parametrize("half", HALVES)
def test_undeclared_they_do_not(half: str, tmp_path: Path) -> None:
    assert categorical(tmp_path, "computed", half, 20.0, declared="float32")["verdict"] == "fail"


def test_the_type_of_a_float16_column_declares_itself(tmp_path: Path) -> None:
    assert categorical(tmp_path, "stored", "float16", 1.0, declared="float32")["verdict"] == "pass"


@pytest.mark.parametrize("half", HALVES)
def test_a_fault_is_larger_than_rounding(half: str, tmp_path: Path) -> None:
    found = categorical(tmp_path, "computed", half, 1.0, declared=half, off=-0.4)
    [rule] = [rule for rule in found["rules"] if rule["name"] == "log-prob-mismatch"]
    assert rule["rows"] == ROWS / 100


@pytest.mark.parametrize("how", ["computed", "autocast", "stored"])
@pytest.mark.parametrize("half", HALVES)
def test_gaussians_too(half: str, how: str, tmp_path: Path) -> None:
    actor, states = network(6, 3.0), torch.randn(ROWS, D, generator=torch.Generator().manual_seed(1))
    output = run_in(how, HALVES[half], actor, states)
    mean, log_std = output[:, :3], output[:, 3:]
    torch.manual_seed(5)
    action = torch.normal(mean.float(), log_std.float().exp()).to(output.dtype)
    policy = torch.distributions.Normal(mean, log_std.exp(), validate_args=False)
    log_prob = policy.log_prob(action).sum(1).float()
    if how == "stored":
        log_prob = log_prob.to(HALVES[half]).float()
    columns = {"state_embed": vectors(states), "action": vectors(action)}
    told = {"distribution": "diagonal_gaussian", "precision": half}
    assert report(tmp_path, columns, log_prob, told, actor, "float32")["verdict"] == "pass"


def test_float32_logits_of_a_thousand_are_rounded_too(tmp_path: Path) -> None:
    found = categorical(tmp_path, "plain", "float16", 3000.0, declared="float32")
    assert found["verdict"] == "pass", found["replay"]
