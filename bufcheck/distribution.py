"""The families actions are sampled from. The dump's metadata chooses one of `distributions/`.

A family is one module there with

    READS                                          the dump's columns it works on, besides the state
    ask(rows, policy)                              -> what is to be scored of an Arrow batch
    score(output, log_std, asked, policy)          -> Scores, for what `asked.take(rows)` chose

Scores are tensors with an entry a row. What cannot be asked of an actor (an index outside the subset,
a null) is not `asked`, and becomes NULL; a NaN is what the actor itself answered.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from bufcheck.errors import SchemaError

if TYPE_CHECKING:
    import torch


class Scores(NamedTuple):
    log_prob: torch.Tensor
    entropy: torch.Tensor
    """Minus the log-prob the actor expects of its own samples."""
    variance: torch.Tensor
    """Of the log-prob, over the actor's own samples."""
    skew: torch.Tensor
    """Its third central moment."""
    sensitivity: torch.Tensor
    """How far the log-prob moves when every output is off by one part, as rounding makes it."""
    asked: torch.Tensor | None = None
    """False where the question makes no sense to this actor; None where none is."""
    rank: torch.Tensor | None = None
    """How many choices the actor preferred to the one taken."""
    choices: torch.Tensor | None = None
    """How many there were; None where they are uncountable."""


def names() -> list[str]:
    import bufcheck.distributions as members

    return sorted(m.name for m in pkgutil.iter_modules(members.__path__) if m.name[0] != "_")


def of_policy(policy: Mapping[str, Any]) -> Any:
    name = policy["distribution"]
    if name not in names():
        raise SchemaError(
            f"policy.distribution {name!r} cannot be replayed", f"known: {', '.join(names())}"
        )
    return importlib.import_module(f"bufcheck.distributions.{name}")
