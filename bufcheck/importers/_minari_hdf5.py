"""Minari's HDF5 storage: one group an episode, `episode_7`, in main_data.hdf5."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bufcheck.errors import ForeignError
from bufcheck.importer import Kind, rows_at_once
from bufcheck.importers import _hdf5
from bufcheck.importers.minari import COPY, MAIN, STEPS, Episode

PARTS_AT_ONCE = 200_000
"""Of one request; more are another request."""


def episodes(folder: Path) -> list[Episode]:
    tree = _hdf5.look(folder / MAIN)
    of: dict[int, dict[str, _hdf5.Dataset]] = {}
    for path, dataset in tree.datasets.items():
        if found := re.fullmatch(r"episode_(\d{1,12})/(.+)", path):
            of.setdefault(int(found[1]), {})[found[2]] = dataset
    made = []
    for number in sorted(of):
        datasets = of[number]
        lacking = [name for name in STEPS[1:] if name not in datasets]
        if lacking:
            raise ForeignError(f"{tree.path}: episode_{number} has no {lacking[0]}", COPY)
        steps = datasets["rewards"].shape[0]
        columns = {
            name: one.kind
            for name, one in datasets.items()
            if _first(name, one.shape[0], steps) is not None
        }
        attributes = tree.attributes.get(f"episode_{number}", {})
        made.append(Episode(number, steps, columns, attributes.get("seed"), (tree, datasets)))
    return made


def _first(name: str, rows: int, steps: int) -> int | None:
    """The row that belongs to step 0; None if there is not one a step."""
    if rows == steps:
        return 0
    if rows == steps + 1 and name.startswith("infos/"):
        return 1  # the first came with the reset, before any action
    return 0 if rows == steps + 1 and name.split("/")[0] == "observations" else None


def read(
    given: list[Episode], columns: dict[str, Kind]
) -> Iterator[tuple[dict[str, Any], Episode, int]]:
    """(columns, episode, first step), a few megabytes at a time."""
    step = rows_at_once(columns)
    cuts = [
        (episode, start, min(start + step, episode.steps))
        for episode in given
        for start in range(0, episode.steps, step)
    ]
    at_once = max(1, PARTS_AT_ONCE // max(1, len(columns)))
    for begin in range(0, len(cuts), at_once):
        some = cuts[begin : begin + at_once]
        parts = [part for cut in some for part in _parts(*cut, list(columns))]
        values = _hdf5.read(some[0][0].where[0], parts)
        for episode, start, _ in some:
            yield {name: next(values) for name in columns}, episode, start
        for _ in values:  # the end of the answer, so that the child can be asked again
            pass


def _parts(episode: Episode, start: int, stop: int, names: list[str]) -> list[_hdf5.Part]:
    _, datasets = episode.where
    parts = []
    for name in names:
        first = _first(name, datasets[name].shape[0], episode.steps)
        assert first is not None
        parts.append(_hdf5.Part(f"episode_{episode.number}/{name}", start + first, stop + first))
    return parts
