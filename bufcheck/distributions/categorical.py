"""A choice among K actions: softmax over the logits that the row was offered.

policy.logits says which those are: `gather` takes logits[subset_indices], `prefix` takes
logits[:num_actions]; where subset_indices is absent, all of them. Illegal ones are set to
policy.masked_logit (−∞ when null), then everything is divided by policy.temperature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bufcheck import vectors
from bufcheck.distribution import Scores
from bufcheck.vectors import Array, Rows

if TYPE_CHECKING:
    import pyarrow as pa

MASKED_FOR_GOOD = -1e4
"""Above this, a masked logit leaves its action a chance, and it counts as a choice."""
NO_CHANCE = -100.0
"""A log-prob that adds nothing to any sum of chances."""
READS = ("subset_indices", "num_actions", "action_index", "action_mask")


@dataclass(frozen=True)
class Asked:
    """Tables are padded to the largest K of the batch."""

    answerable: Array
    chosen: torch.Tensor
    sizes: torch.Tensor | None = None
    """[B]: K. None for all actions, without a mask."""
    ids: torch.Tensor | None = None
    """[B, K]: which logits; None for the first K."""
    legal: torch.Tensor | None = None
    """[B, K]: the action mask."""
    every: bool = False
    """Whether K has to be all the actions there are."""

    def take(self, rows: Array) -> Asked:
        index = torch.from_numpy(rows)
        picked = {
            name: value[index]
            for name in ("chosen", "sizes", "ids", "legal")
            if (value := getattr(self, name)) is not None
        }
        return replace(self, answerable=self.answerable[rows], **picked)

    def to(self, device: str) -> Asked:
        moved = {
            name: value.to(device)
            for name in ("chosen", "sizes", "ids", "legal")
            if (value := getattr(self, name)) is not None
        }
        return replace(self, **moved)


def is_prefix(rows: pa.RecordBatch) -> bool:
    """Whether every subset is 0..K−1, so that gather and prefix mean the same."""
    if "subset_indices" not in rows.schema.names:
        return True
    subset = vectors.open_rows(rows.column("subset_indices"))
    lengths = subset.lengths
    place = np.arange(len(subset.values)) - np.repeat(subset.offsets[:-1], lengths)
    strays = subset.values != place
    if subset.null is not None:
        strays &= ~np.repeat(subset.null, lengths)
    return not strays.any()


def ask(rows: pa.RecordBatch, policy: Mapping[str, Any]) -> Asked:
    names = rows.schema.names
    chosen = _integers(rows.column("action_index"))
    answerable = chosen >= 0
    subset = mask = lengths = ids = legal = None
    if "subset_indices" in names:
        subset = vectors.open_rows(rows.column("subset_indices"))
    if "action_mask" in names:
        mask = vectors.open_rows(rows.column("action_mask"))
        answerable &= mask.present
    if policy["logits"] == "prefix":
        lengths = _integers(rows.column("num_actions"))
    elif subset is not None:
        lengths = subset.lengths
        answerable &= subset.present
    every = lengths is None
    if lengths is None and mask is not None:  # over all actions
        lengths = mask.lengths
    if lengths is not None:
        answerable &= chosen < lengths
        if mask is not None:
            answerable &= mask.lengths == lengths
        lengths = np.where(answerable, lengths, 0)
        widest = int(lengths.max(initial=0))
        if policy["logits"] == "gather" and subset is not None:
            ids = torch.from_numpy(_padded(subset, widest).astype(np.int64))
        if mask is not None:
            legal = torch.from_numpy(_padded(mask, widest))
    sizes = None if lengths is None else torch.from_numpy(lengths)
    return Asked(answerable, torch.from_numpy(vectors.writable(chosen)), sizes, ids, legal, every)


def score(
    output: torch.Tensor, log_std: torch.Tensor | None, asked: Asked, policy: Mapping[str, Any]
) -> Scores:
    logits, offered = output, None
    actions = logits.shape[1]
    if asked.ids is not None:
        offered = _places(asked, asked.ids.shape[1])
        sensible, ids = _inside(asked.ids, offered, actions)
        logits = logits.gather(1, ids)
    elif asked.sizes is None:
        sensible = asked.chosen < actions
    elif asked.every:
        sensible = asked.sizes == actions
    else:
        # A K that is out of its mind must not be padded to: no row has more than all actions.
        logits = logits[:, : int(asked.sizes.max())]
        sensible, offered = asked.sizes <= actions, _places(asked, logits.shape[1])
    chosen = asked.chosen.clamp(max=logits.shape[1] - 1)
    logits, open_to = _masked(logits, offered, asked.legal, policy["masked_logit"])
    if policy["temperature"] != 1:
        logits = logits / policy["temperature"]
    scores = _softmax_scores(logits, chosen)
    choices = torch.full_like(chosen, logits.shape[1]) if asked.sizes is None else asked.sizes
    closed = policy["masked_logit"]
    if asked.legal is not None and (closed is None or closed <= MASKED_FOR_GOOD):
        assert open_to is not None
        choices = open_to.sum(1)
    if policy["masked_logit"] is None:
        sensible = sensible & (choices > 0)
    return scores._replace(asked=sensible, choices=choices)


def _softmax_scores(logits: torch.Tensor, chosen: torch.Tensor) -> Scores:
    log_probs = torch.log_softmax(logits, 1)
    chances = log_probs.exp()
    mine = chosen[:, None]
    log_prob = log_probs.gather(1, mine)
    # What has no chance adds nothing, whatever its log-prob: 0 · −∞ would be NaN.
    told = log_probs.clamp_min(NO_CHANCE)
    entropy = -(chances * told).sum(1, keepdim=True)
    away = told.add_(entropy)
    weighted = chances.mul_(away).mul_(away)
    own = logits.gather(1, mine)
    # Both the logit and the sum of all that it is held against are rounded.
    size = (own.abs() + (own - log_prob).abs()).nan_to_num_(0.0, 0.0)
    return Scores(
        log_prob[:, 0],
        entropy[:, 0],
        weighted.sum(1),
        away.mul_(weighted).sum(1),
        ((1 - log_prob.exp()) * size)[:, 0],
        rank=(logits > own).sum(1),
    )


def _masked(
    logits: torch.Tensor,
    offered: torch.Tensor | None,
    legal: torch.Tensor | None,
    masked_logit: float | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The logits with illegal ones and padding closed, and which are open."""
    open_to = offered
    if legal is not None:
        if (surplus := legal.shape[1] - logits.shape[1]) != 0:  # of rows that make no sense
            legal = torch.nn.functional.pad(legal, (0, -surplus))
        closed = float("-inf") if masked_logit is None else masked_logit
        logits = logits.masked_fill(~legal, closed)
        open_to = legal if open_to is None else open_to & legal
    if offered is not None:
        logits = logits.where(offered, float("-inf"))
    return logits, open_to


def _places(asked: Asked, width: int) -> torch.Tensor:
    """[B, width]: which are offered; the others are padding."""
    assert asked.sizes is not None
    return torch.arange(width, device=asked.sizes.device) < asked.sizes[:, None]


def _inside(
    ids: torch.Tensor, offered: torch.Tensor, actions: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows name only actions the actor has, and ids that are safe to look up."""
    if not ids.numel() or (int(ids.min()) >= 0 and int(ids.max()) < actions):
        return torch.ones(len(ids), dtype=torch.bool, device=ids.device), ids
    stray = ((ids < 0) | (ids >= actions)) & offered
    return ~stray.any(1), ids.clamp(0, actions - 1)


def _padded(rows: Rows, width: int) -> Array:
    """[B, width]: each row's values, then zeros. Longer rows are cut; they are not asked about."""
    lengths, count = rows.lengths, len(rows.offsets) - 1
    if rows.width == width:
        return vectors.writable(rows.values.reshape(count, width))
    table: Array = np.zeros((count, width), rows.values.dtype)
    fits = lengths <= width
    values = rows.values if fits.all() else rows.values[np.repeat(fits, lengths)]
    table[np.arange(width) < np.where(fits, lengths, 0)[:, None]] = values
    return table


def _integers(column: pa.Array) -> Array:
    """As int64, with −1 for null."""
    numbers: Array = vectors.as_numpy(column, -1).astype(np.int64)
    return numbers
