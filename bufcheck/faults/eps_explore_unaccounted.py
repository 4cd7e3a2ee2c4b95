"""A share of random actions is mixed in, and one side does not know.

With chance epsilon the sampler takes any legal action. scored: the log-prob is that of the mixture, the
action is the policy's. sampled: both are the mixture's. unscored: the action is the mixture's, the
log-prob the policy's, which a replay of log-probs cannot see.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._acting import log_softmax
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

families = ("categorical",)
PARAMETERS = {
    "epsilon": Parameter(0.1, "the share of random actions", above=0, most=1),
    "mode": Parameter(
        "scored",
        "what knew of it: the log-prob, both, or the sampler only",
        ("scored", "sampled", "unscored"),
    ),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    z = b.local(hit)
    closed = b.policy["masked_logit"]
    legal = np.isfinite(z)
    if closed is not None:
        legal &= z != closed / b.policy["temperature"]
    uniform = legal / np.maximum(legal.sum(axis=1, keepdims=True), 1)
    chances = (1 - p["epsilon"]) * np.exp(log_softmax(z)) + p["epsilon"] * uniform
    with np.errstate(divide="ignore"):
        b.follow(hit, np.log(chances), p["mode"], rng)
