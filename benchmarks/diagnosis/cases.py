"""Which faults the scoreboard makes, with which parameters, and where they can be told from others.

A fault's name is the name of the cause that must be found. Where a world cannot tell it from another, or
from nothing at all, the reason is here and the case does not count against the limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from worlds import World

REASONS = {
    "agents": "one agent only",
    "own-actors": "all agents share an actor",
    "versions": "one version only",
    "subsets": "no subsets: every action is offered",
    "scattered": "subsets are 0..K-1: a local index is the global one",
    "ordered": "subsets are stored in ascending order already",
    "some-K-below-A": "K = A in every row: all actions are offered",
    "K-varies": "K is constant",
    "masks-or-subsets": "neither masks nor subsets: the softmax over all actions is right",
    "offers-differ": "every row is offered the same actions",
    "terminated": "no ends of episodes",
    "action_mask": "no masks",
    "more-than-5": "no more actions than the constant, 5",
}


@dataclass(frozen=True)
class Case:
    fault: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    """Traits without which the fault changes nothing, or looks like another."""
    by_rules: bool = False
    """Found by plain rules: every row hit counts, whatever its log-prob."""
    provable: bool = True
    """False: no cause can prove it, by elimination it is `likely` at most."""
    units: tuple[str, ...] = ("rows", "episodes")
    whole_dump: bool = False
    """It moves rows and changes none: there is one way to make it, and no rows are bad ones."""
    copies: bool = False
    """The rows hit are copies: their originals may as well be named."""
    adds_rows: bool = False
    """Row ids of the output are not those of the source."""

    @property
    def label(self) -> str:
        given = ", ".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.fault} ({given})" if given else self.fault


def reason_against(case: Case, world: World) -> str | None:
    """Why this fault cannot be told apart in this world."""
    traits = world.traits | ({"masks-or-subsets"} if _restricts(world) else set())
    lacking = [need for need in case.needs if need not in traits]
    return REASONS[lacking[0]] if lacking else None


def _restricts(world: World) -> bool:
    return bool(world.traits & {"action_mask", "some-K-below-A"})


def cases() -> list[Case]:
    return [*_distributions(), *_subsets(), *_values(), *_moved(), *_agents(), *_structures()]


def _distributions() -> list[Case]:
    """Another distribution scored the action, or sampled it too."""
    return [
        Case("mask-not-applied", needs=("masks-or-subsets",)),
        Case("mask-not-applied", {"over": "mask"}, needs=("action_mask", "subsets")),
        Case("temperature-unaccounted"),
        Case("temperature-unaccounted", {"temperature": 1.5, "mode": "sampled"}),
        Case("eps-explore-unaccounted"),
        Case("eps-explore-unaccounted", {"epsilon": 0.25, "mode": "sampled"}),
        Case("topk-topp-truncation", {"p": 0.7}),
        Case("topk-topp-truncation", {"k": 2}),
        Case("double-softmax"),
        Case("stale-policy-version", needs=("versions",)),
        Case("stale-policy-version", {"back": 2}, needs=("versions",)),
        Case("recomputed-after-update", needs=("versions",)),
        Case("obs-norm-drift"),
        Case("obs-norm-drift", {"scale": 0.9, "shift": 0.0}),
        Case("stochastic-layer-on", provable=False),
    ]


def _subsets() -> list[Case]:
    """Other actions were offered than the row says, or in another order."""
    return [
        Case("slice-vs-gather", needs=("subsets", "scattered")),
        Case("default-k-fallback", needs=("more-than-5",)),
        Case("default-k-fallback", {"k": 3}),
        Case("default-k-fallback", {"k": 3, "of": "subset"}, needs=("subsets", "K-varies")),
        Case("local-as-global-index", needs=("subsets", "scattered")),
        Case("local-as-global-index", {"kind": "stored"}, needs=("subsets", "scattered")),
        Case("subset-order-lost", needs=("subsets", "ordered")),
        Case("subset-shifted", needs=("offers-differ",)),
        Case("subset-shifted", {"offset": -1}, needs=("offers-differ",)),
        Case("subset-broadcast", needs=("agents", "offers-differ")),
    ]


def _values() -> list[Case]:
    """The right log-prob, and something done to it; or none at all."""
    kinds = ("prob", "negative", "log10", "log2", "scale", "clamp", "log-p-plus-eps")
    return [
        *(Case("logprob-transform", {"kind": kind}) for kind in kinds),
        Case("reduced-precision"),
        Case("reduced-precision", {"to": "float16"}),
        *(Case("placeholder-logprob", {"value": value}) for value in ("0", "1", "-inf", "uniform")),
        Case("n-by-1-broadcast"),
    ]


def _moved() -> list[Case]:
    """One column against the others."""
    return [
        Case("logprob-row-shift"),
        Case("logprob-row-shift", {"offset": -1}),
        Case("logprob-row-shift", {"offset": 3}),
        Case("logprob-row-shift", {"order": "storage"}, needs=("agents",)),
        Case("state-aliased-next"),
        Case("action-shifted"),
        Case("action-shifted", {"offset": -1}),
        Case("sampled-twice"),
        Case("argmax-stored"),
        Case("argmax-stored", {"kind": "score"}),
        Case("minibatch-permutation"),
        Case("minibatch-permutation", {"block": 64}),
        # A dropped row moves those behind it: among scattered rows there is nothing behind.
        Case("valid-filter-desync", units=("episodes",)),
    ]


def _agents() -> list[Case]:
    columns = ("old_log_prob", "state_embed", "action_index")
    return [
        Case("agent-actor-swap", needs=("agents", "own-actors")),
        Case("agent-actor-swap", {"kind": "relabelled"}, needs=("agents", "own-actors")),
        *(Case("agent-rows-crossed", {"column": column}, needs=("agents",)) for column in columns),
        Case("agent-rows-crossed", {"column": "subset_indices"}, needs=("agents", "subsets")),
        Case("agent-axis-reshape", needs=("agents",)),
    ]


def _structures() -> list[Case]:
    """What plain rules prove."""
    rules = {"by_rules": True}
    grown = {"by_rules": True, "adds_rows": True}
    return [
        Case("action-out-of-range", **rules),
        Case("empty-mask", needs=("subsets",), **rules),
        Case("empty-mask", {"kind": "mask"}, needs=("action_mask",), **rules),
        Case("unfilled-rows", **grown),
        Case("duplicate-rows", copies=True, **grown),
        Case("cloned-seeds", copies=True, **grown),
        Case("dead-agent-padding", **grown),
        Case("dead-agent-padding", {"state": "last", "log_prob": "replayed"}, **grown),
        Case("autoreset-row", needs=("terminated",), **grown),
        Case("ring-wraparound", whole_dump=True, **grown),
    ]


LOST = "of a single row hit, the {0} is stored nowhere else: only what it was overwritten with is left"
SHORTFALLS: dict[tuple[str, str], str] = {
    ("state-aliased-next", "rows"): LOST.format("state"),
    ("action-shifted", "rows"): LOST.format("action"),
    ("subset-shifted", "rows"): LOST.format("subset"),
    ("subset-broadcast", ""): "the other agents' subsets are stored nowhere else",
    ("sampled-twice", "rows"): "under a nearly uniform policy, few draws are like any other action",
    ("obs-norm-drift", "rows"): "a few rows fit the state of a neighbouring step as well",
}
"""Why a fault may miss the limits, by name and unit; "" for every unit."""


def shortfall(fault: str, unit: str) -> str | None:
    return SHORTFALLS.get((fault, unit)) or SHORTFALLS.get((fault, ""))
