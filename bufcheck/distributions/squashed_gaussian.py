"""A continuous action in (−1, 1): tanh of a Gaussian, as in SAC.

The log-prob is the Gaussian's, minus log(1 − tanh²) for each number. policy.squash_epsilon is what a
trainer adds inside that logarithm, if it does. An action at exactly ±1 no longer tells what was
squashed: it cannot be asked about. One beyond has no chance at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from bufcheck.distribution import Scores
from bufcheck.distributions.diagonal_gaussian import (
    HALF_LOG_TAU,
    READS,
    Asked,
    ask,
    sensitivity,
    spread,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["READS", "Asked", "ask", "score"]
NODES, REACH = 48, 6.5
"""Expectations over the Gaussian: an even grid this far out, in standard deviations."""


def score(output: Tensor, log_std: Tensor | None, asked: Asked, policy: Mapping[str, Any]) -> Scores:
    action = asked.action
    mean, log_std = spread(output, log_std, action.shape[1])
    epsilon = policy.get("squash_epsilon") or 0.0
    inside = action.abs() < 1
    kept = action.where(inside, 0)
    before = kept.atanh()
    slope = (1 - kept) * (1 + kept)
    z = (before - mean) / log_std.exp()
    log_prob = -0.5 * z * z - log_std - HALF_LOG_TAU - (slope + epsilon).log()
    # Where tanh is flat, rounding the action moves what was squashed a long way.
    stretched = (z.abs() / log_std.exp() + 2) * kept.abs() / slope
    expected, variance, skew = _moments(mean, log_std, epsilon)
    beyond = (action.abs() > 1).any(1)
    return Scores(
        log_prob=log_prob.sum(1).masked_fill(beyond, -math.inf),
        entropy=-expected,
        variance=variance,
        skew=skew,
        sensitivity=sensitivity(before, mean, log_std, z) + stretched.sum(1),
        asked=beyond | inside.all(1),
    )


def _moments(mean: Tensor, log_std: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and third central moment of the log-prob, summed over independent numbers."""
    x = torch.linspace(-REACH, REACH, NODES, dtype=mean.dtype, device=mean.device)
    weight = torch.exp(-0.5 * x * x)
    weight /= weight.sum()
    u = (mean[..., None] + log_std.exp()[..., None] * x).abs()
    log_slope = -2 * (u + torch.log1p(torch.exp(-2 * u)) - math.log(2))
    if epsilon:
        log_slope = (log_slope.exp() + epsilon).log()
    values = -0.5 * x * x - log_std[..., None] - HALF_LOG_TAU - log_slope
    expected = values @ weight
    away = values - expected[..., None]
    variance = (away * away) @ weight
    return expected.sum(1), variance.sum(1), ((away * away * away) @ weight).sum(1)
