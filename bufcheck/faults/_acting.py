"""What the saved actors say of states, as plain NumPy: every formula of a fault starts from here.

Softmax, densities and draws are written out anew, so that a diagnosis is never proved against itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bufcheck import forward
from bufcheck.actor import Actors, Loading
from bufcheck.errors import ReadError, UsageError
from bufcheck.given import given_as
from bufcheck.vectors import Array

ROWS_AT_ONCE = 1 << 14


class Acting:
    """The actors that were given; loaded when a fault first asks."""

    def __init__(self, actor: Any, arch: str | None, policy: Mapping[str, Any], fault: str) -> None:
        self.given = [] if actor is None or (isinstance(actor, (list, tuple)) and not actor) else actor
        self.arch, self.policy, self.fault = arch, policy, fault
        self._actors: Actors | None = None

    @property
    def actors(self) -> Actors:
        if self._actors is None:
            if isinstance(self.given, list) and not self.given:
                raise UsageError(
                    f"{self.fault} needs the actors that made the log-probs",
                    "give them with --actor [AGENT[@VERSION]=]PATH",
                )
            self._actors = Actors(given_as(self.given), Loading(self.arch))
            precise = forward.precision(self.policy)
            self._actors.prepare = lambda network: network.module.to("cpu", precise)
        return self._actors

    def knows(self, agent: str, version: int | None) -> bool:
        return self.actors.find(agent, version) is not None

    def outputs(self, states: Array, whose: list[tuple[str, int | None]], which: Array) -> Array:
        """[n, outputs]: row i through the actor of whose[which[i]]; NaN where that was not given."""
        numbers = np.array([-1 if (a := self.actors.find(*w)) is None else a.number for w in whose])
        numbers = numbers[which]
        made: Array | None = None
        for number in np.unique(numbers[numbers >= 0]):
            mine = np.flatnonzero(numbers == number)
            given = self._forward(int(number), states[mine])
            if made is None:
                made = np.full((len(states), given.shape[1]), np.nan)
            if given.shape[1] != made.shape[1]:
                raise ReadError(
                    f"{self.actors.used[number].path}: gives {given.shape[1]} outputs, other actors"
                    f" {made.shape[1]}",
                    forward.WHOSE,
                )
            made[mine] = given
        return np.full((len(states), 1), np.nan) if made is None else made

    def _forward(self, number: int, states: Array) -> Array:
        import torch

        actor = self.actors.used[number]
        network = self.actors.network(actor)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            parts = []
            with torch.inference_mode():
                for start in range(0, len(states), ROWS_AT_ONCE):
                    piece = torch.from_numpy(np.array(states[start : start + ROWS_AT_ONCE]))
                    piece = piece.to(forward.precision(self.policy))
                    output, log_std = forward.run(actor, network, piece, self.policy)
                    if log_std is not None:  # of a Gaussian: means, then log_stds
                        output = torch.cat([output, log_std.expand_as(output)], 1)
                    parts.append(output.double().numpy())
            return np.concatenate(parts)
        finally:
            torch.set_num_threads(threads)


def log_sum_exp(values: Array) -> Array:
    """Over the last axis, which is kept; −∞ where all are."""
    top = values.max(axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        total: Array = top + np.log(np.exp(values - top).sum(axis=-1, keepdims=True))
    return total


def log_softmax(values: Array) -> Array:
    with np.errstate(invalid="ignore"):
        logs: Array = values - log_sum_exp(values)
    return logs


def pick(values: Array, places: Array) -> Array:
    """values[i, places[i]]; NaN where there is no such place."""
    inside = (places >= 0) & (places < values.shape[1])
    found = values[np.arange(len(values)), np.where(inside, places, 0)]
    picked: Array = np.where(inside, found, np.nan)
    return picked


def draw(log_probs: Array, rng: np.random.Generator) -> Array:
    """One place per row, by its chance."""
    rising = np.cumsum(np.exp(log_probs), axis=1)
    at = rng.random((len(log_probs), 1)) * rising[:, -1:]
    place = (rising <= at).sum(axis=1)
    last = log_probs.shape[1] - 1 - np.argmax(np.isfinite(log_probs[:, ::-1]), axis=1)
    drawn: Array = np.minimum(place, last)
    return drawn


def gaussian_log_prob(outputs: Array, actions: Array) -> Array:
    size = actions.shape[1]
    if outputs.shape[1] != 2 * size:
        raise UsageError(
            f"the actor gives {outputs.shape[1]} numbers, but an action has {size}",
            "it must give a mean and a log_std for each",
        )
    mean, log_std = outputs[:, :size], outputs[:, size:]
    away = (actions - mean) / np.exp(log_std)
    density: Array = (-0.5 * away**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(axis=1)
    return density
