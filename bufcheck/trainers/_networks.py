"""An actor taken out of a trainer's own classes, and the proof that it acts as they do."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from bufcheck.actors.described_layers import in_eval_mode
from bufcheck.errors import UsageError

ADVICE = "write the rows with bufcheck.BufferWriter, and the actor with bufcheck.save_actor or --arch"
APART = 1e-4
PROBED = 64
"""Rows of a batch that both are asked about."""


class Network(NamedTuple):
    """What `save_actor` takes."""

    module: nn.Module
    log_std: torch.Tensor | None = None

    def given(self, states: torch.Tensor) -> torch.Tensor:
        """Logits, or means and log standard deviations."""
        with torch.no_grad(), in_eval_mode(self.module):
            found: torch.Tensor = self.module(states)
        if self.log_std is None:
            return found
        return torch.cat([found, self.log_std.detach().expand_as(found)], -1)


def hold_to(found: torch.Tensor, expected: torch.Tensor, who: str) -> None:
    """What the layers give is what the trainer's actor gave."""
    off = float((found - expected).abs().max()) if found.shape == expected.shape else float("inf")
    if not off <= APART * max(1.0, float(expected.abs().max())):
        raise UsageError(
            f"{who}: layer by layer, the actor gives something else (by {off:.3g})", ADVICE
        )
