"""Which episode, step and agent each row is: as the source says, or by its order and done flags."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bufcheck.errors import ForeignError
from bufcheck.importer import Piece
from bufcheck.vectors import Array

AGENT = "agent"
"""What an agent is called that the source has no name for."""


class Rows(NamedTuple):
    episode_id: Array
    timestep: Array
    agent_id: pa.Array


class Place(NamedTuple):
    """How far an agent has come in its lane."""

    ordinal: int = -1
    steps: int = 0
    ended: bool = True


def flags(values: Any, name: str) -> Array:
    """Truths, however they are stored: 0 and 1 in any type."""
    if isinstance(values, pa.Array):
        values = np.asarray(values.to_numpy(zero_copy_only=False))
    flat: Array = values.reshape(len(values), -1)
    if flat.shape[1] != 1 or flat.dtype.kind not in "biuf":
        raise ForeignError(f"{name} is not one flag a row", "name the right column with --column")
    flat = flat[:, 0]
    if flat.dtype.kind != "b" and not ((flat == 0) | (flat == 1)).all():
        raise ForeignError(
            f"{name} holds values besides 0 and 1", "name the right column with --column"
        )
    return flat.astype(bool)


def cut(begins: Array, place: Place) -> tuple[Array, Array]:
    """The ordinal of each row's episode, and its step in it, where `begins` marks first rows."""
    index = np.arange(len(begins))
    since = np.maximum.accumulate(np.where(begins, index, -place.steps))
    return place.ordinal + np.cumsum(begins), index - since


class Keys:
    """Gives rows their keys, piece after piece."""

    def __init__(self, roles: dict[str, str], *, ids_stay: bool) -> None:
        self.roles, self.ids_stay = roles, ids_stay
        self._ids: dict[Hashable, int] = {}
        self._steps: dict[tuple[int, Hashable], int] = {}
        self._places: dict[tuple[Hashable, Hashable], Place] = {}

    def of(self, piece: Piece) -> Rows:
        count = len(next(iter(piece.columns.values())))
        agent = self._agents(piece, count)
        encoded = agent.dictionary_encode()
        codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False))
        names = encoded.dictionary.to_pylist()
        if "episode_id" in self.roles:
            episode = self._told(piece)
            step = None if "timestep" in self.roles else self._counted(episode, codes, names)
        else:
            episode, step = self._derived(piece, codes, names)
        if "timestep" in self.roles:
            step = _whole(piece.columns[self.roles["timestep"]], self.roles["timestep"])
        assert step is not None
        return Rows(episode.astype(np.int64), step.astype(np.int64), agent)

    def _agents(self, piece: Piece, count: int) -> pa.Array:
        if "agent_id" not in self.roles:
            return pa.repeat(AGENT, count)
        values = piece.columns[self.roles["agent_id"]]
        if not isinstance(values, pa.Array):
            values = pa.array(_whole(values, self.roles["agent_id"]))
        return values.cast(pa.string()).fill_null(AGENT)

    def _told(self, piece: Piece) -> Array:
        values = piece.columns[self.roles["episode_id"]]
        if self.ids_stay and not isinstance(values, pa.Array):
            return _whole(values, self.roles["episode_id"])
        texts = values.to_pylist() if isinstance(values, pa.Array) else values.reshape(-1).tolist()
        # An id of one file is not that of another, unless the importer put both in one lane.
        return np.array(
            [self._ids.setdefault((piece.lane, t), len(self._ids)) for t in texts], np.int64
        )

    def _counted(self, episode: Array, codes: Array, names: list[str]) -> Array:
        """The order of the rows of an agent in an episode."""
        step = np.zeros(len(episode), np.int64)
        order = np.lexsort((codes, episode))  # stable: rows of one group stay in their order
        changes = (np.diff(episode[order]) != 0) | (np.diff(codes[order]) != 0)
        for rows in np.split(order, np.flatnonzero(changes) + 1):
            key = (int(episode[rows[0]]), names[codes[rows[0]]])
            step[rows] = self._steps.get(key, 0) + np.arange(len(rows))
            self._steps[key] = int(step[rows[-1]]) + 1
        return step

    def _derived(self, piece: Piece, codes: Array, names: list[str]) -> tuple[Array, Array]:
        ends, starts = self._ends(piece, len(codes)), self._starts(piece, len(codes))
        episode, step = np.zeros(len(codes), np.int64), np.zeros(len(codes), np.int64)
        if piece.begins:
            for key, place in self._places.items():
                if key[0] == piece.lane:
                    self._places[key] = place._replace(ended=True)
        for code in np.unique(codes):
            rows = np.flatnonzero(codes == code)
            key = (piece.lane, names[code])
            place = self._places.get(key, Place())
            begins = np.concatenate([[place.ended], ends[rows[:-1]]]) | starts[rows]
            ordinal, step[rows] = cut(begins, place)
            episode[rows] = [
                self._ids.setdefault((piece.lane, o), len(self._ids)) for o in ordinal.tolist()
            ]
            self._places[key] = Place(int(ordinal[-1]), int(step[rows[-1]]) + 1, bool(ends[rows[-1]]))
        return episode, step

    def _ends(self, piece: Piece, count: int) -> Array:
        ends = np.zeros(count, bool)
        for role in ("terminated", "truncated", "done"):
            if role in self.roles:
                ends |= flags(piece.columns[self.roles[role]], self.roles[role])
        return ends

    def _starts(self, piece: Piece, count: int) -> Array:
        if "episode_start" not in self.roles:
            return np.zeros(count, bool)
        name = self.roles["episode_start"]
        return flags(piece.columns[name], name)


def _whole(values: Any, name: str) -> Array:
    if isinstance(values, pa.Array):
        values = np.asarray(values.to_numpy(zero_copy_only=False))
    flat: Array = values.reshape(len(values), -1)
    if flat.shape[1] != 1 or flat.dtype.kind not in "iu":
        raise ForeignError(
            f"{name} is not one whole number a row", "name the right column with --column"
        )
    return flat[:, 0]
