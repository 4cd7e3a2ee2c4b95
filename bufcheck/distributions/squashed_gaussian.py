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
REACH, STEP = 6.5, 0.5
NODES, MOST_NODES = 48, 512
"""Expectations over the Gaussian: an even grid this far out, in standard deviations, and in steps of
what is squashed no wider than this."""


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
    std = log_std.exp()
    widest = float(std.nan_to_num(0.0).max()) if std.numel() else 0.0
    nodes = min(MOST_NODES, max(NODES, math.ceil(2 * REACH * widest / STEP)))
    places = [REACH * (2 * i / (nodes - 1) - 1) for i in range(nodes)]
    weights = [math.exp(-0.5 * x * x) for x in places]
    centre = -_log_slope(mean, epsilon)
    first, second, third = (torch.zeros_like(mean) for _ in range(3))
    for x, weight in zip(places, weights, strict=True):
        away = -0.5 * x * x - _log_slope(mean + std * x, epsilon) - centre
        share = away * (weight / sum(weights))
        first += share
        second += (share := share * away)
        third += share * away
    expected = centre + first - log_std - HALF_LOG_TAU
    variance = second - first * first
    skew = third - 3 * first * second + 2 * first**3
    return expected.sum(1), variance.sum(1), skew.sum(1)


def _log_slope(before: Tensor, epsilon: float) -> Tensor:
    """log(1 - tanh(before)² + epsilon)"""
    size = before.abs()
    slope = -2 * (size + torch.log1p(torch.exp(-2 * size)) - math.log(2))
    return (slope.exp() + epsilon).log() if epsilon else slope
