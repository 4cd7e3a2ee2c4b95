"""Something else than the natural log-prob is stored.

prob: the probability. negative: the loss's -log p. log10, log2: another base. scale: log p times a
constant, as when it was divided by a temperature. clamp: cut off from below. log-p-plus-eps:
log(p + eps), to be safe from log 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS = {
    "kind": Parameter(
        "prob",
        "what became of it",
        ("prob", "negative", "log10", "log2", "scale", "clamp", "log-p-plus-eps"),
    ),
    "scale": Parameter(0.5, "the constant of scale"),
    "bound": Parameter(-1.0, "the least log-prob that clamp leaves"),
    "eps": Parameter(0.01, "what log-p-plus-eps adds", above=0),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> None:
    log_probs = b.stored[hit]
    made: Any = {
        "prob": np.exp,
        "negative": np.negative,
        "log10": lambda x: x / np.log(10),
        "log2": lambda x: x / np.log(2),
        "scale": lambda x: x * p["scale"],
        "clamp": lambda x: np.maximum(x, p["bound"]),
        "log-p-plus-eps": lambda x: np.log(np.exp(x) + p["eps"]),
    }[p["kind"]]
    b.set("old_log_prob", hit, made(log_probs))
