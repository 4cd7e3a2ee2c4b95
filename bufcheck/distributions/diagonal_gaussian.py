"""A continuous action, each of its numbers from a Gaussian of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from bufcheck import vectors
from bufcheck.distribution import Scores
from bufcheck.errors import UsageError
from bufcheck.vectors import Array

if TYPE_CHECKING:
    import pyarrow as pa

READS = ("action",)
HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Asked:
    answerable: Array
    action: torch.Tensor

    def take(self, rows: Array) -> Asked:
        return Asked(self.answerable[rows], self.action[torch.from_numpy(rows)])

    def to(self, device: str) -> Asked:
        return Asked(self.answerable, self.action.to(device))


def ask(rows: pa.RecordBatch, policy: Mapping[str, Any]) -> Asked:
    opened = vectors.open_rows(rows.column("action"))
    table, whole = vectors.as_table(opened, policy.get("action_size"))
    return Asked(whole, torch.from_numpy(vectors.writable(table)).double())


def score(
    output: torch.Tensor, log_std: torch.Tensor | None, asked: Asked, policy: Mapping[str, Any]
) -> Scores:
    mean, log_std = spread(output, log_std, asked.action.shape[1])
    std = log_std.exp()
    z = (asked.action - mean) / std
    size = mean.shape[1]
    logs = log_std.sum(1)
    return Scores(
        log_prob=-0.5 * (z * z).sum(1) - logs - size * HALF_LOG_TAU,
        entropy=logs + size * (0.5 + HALF_LOG_TAU),
        # The log-prob is a constant minus half a chi-squared of `size` degrees.
        variance=torch.full_like(logs, size / 2),
        skew=torch.full_like(logs, -size),
        sensitivity=sensitivity(asked.action, mean, log_std, z),
    )


def spread(
    output: torch.Tensor, log_std: torch.Tensor | None, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(mean, log_std), both [B, size], in float64."""
    mean = output
    if log_std is None and output.shape[1] == 2 * size:
        mean, log_std = output[:, :size], output[:, size:]
    if log_std is None or mean.shape[1] != size:
        raise UsageError(
            f"the actor gives {mean.shape[1]} numbers{'' if log_std is None else ' and a log_std'},"
            f" but an action has {size}",
            f"it must give {2 * size} (means, then log_stds), or {size} and save_actor(…, log_std=…)",
        )
    if log_std.ndim and log_std.shape[-1] not in (1, size):
        raise UsageError(f"log_std has {log_std.shape[-1]} numbers, but an action has {size}")
    mean = mean.double()
    return mean, log_std.double().expand_as(mean)


def sensitivity(
    action: torch.Tensor, mean: torch.Tensor, log_std: torch.Tensor, z: torch.Tensor
) -> torch.Tensor:
    by_mean = z.abs() / log_std.exp() * (action.abs() + mean.abs())
    return (by_mean + (z * z - 1).abs() * log_std.abs()).sum(1)
