"""Minari datasets: a dataset's folder, stored as HDF5, Arrow or Parquet.

Its infos have one entry more than there are steps, the first from the reset: what belongs to step t,
the log-prob too, is at t + 1. Minari itself is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bufcheck.errors import ForeignError
from bufcheck.importer import Asked, Found, Kind, Piece, common, kind_of

EXAMPLE = "bufcheck convert --from minari ~/.minari/datasets/cartpole/expert-v0 dump.parquet"
MAIN, METADATA = "main_data.hdf5", "metadata.json"
MOST_METADATA = 64 << 20
COPY = "copy the dataset again"
LEAST_IMAGE = 32
STEPS = ("actions", "rewards", "terminations", "truncations")


class Episode(NamedTuple):
    """What there is of an episode before its data are read."""

    number: int
    steps: int
    columns: dict[str, Kind]
    seed: int | None
    where: Any
    """What the storage needs to read it."""


def recognises(path: Path) -> bool:
    folder = _data_folder(path)
    return folder is not None and "total_episodes" in _metadata(folder)


class Dataset(NamedTuple):
    folder: Path
    metadata: dict[str, Any]
    storage: Any
    """The module that reads it."""
    episodes: list[Episode]
    first: int
    """What its episode 0 is called: those of a second dataset are numbered on from the first's."""

    def space(self, name: str) -> dict[str, Any]:
        try:
            space = json.loads(self.metadata.get(name) or "{}")
        except (ValueError, TypeError, RecursionError):
            raise ForeignError(f"{self.folder / METADATA}: its {name} is not JSON", COPY) from None
        return space if isinstance(space, dict) else {}


def find(paths: list[Path], asked: Asked) -> Found:
    datasets: list[Dataset] = []
    for path in paths:
        datasets.append(_opened(path, sum(_numbers(one.episodes) for one in datasets)))
    everything = [episode for one in datasets for episode in one.episodes]
    columns, left_out = common(episode.columns for episode in everything)
    _leave_out_images(columns, left_out, datasets)
    known = [episode.seed for episode in everything if episode.seed is not None]
    seeds = len(known) == len(everything) and max(known, default=0) < 2**63

    def pieces() -> Iterator[Piece]:
        for one in datasets:
            for held, episode, start in one.storage.read(one.episodes, columns):
                count = len(next(iter(held.values())))
                yield Piece({**_keys(episode, start, count, one.first, seeds), **held})

    keys = _keys(Episode(0, 0, {}, 0, None), 0, 0, 0, seeds)
    kinds = {**{name: kind_of(values) for name, values in keys.items()}, **columns}
    files = [p for one in datasets for p in sorted(one.folder.rglob("*")) if p.is_file()]
    rows = sum(episode.steps for episode in everything)
    return Found(files, kinds, rows, pieces, left_out=left_out, **_told(columns, datasets))


def _opened(path: Path, first: int) -> Dataset:
    folder = _data_folder(path)
    if folder is None:
        raise ForeignError(
            f"{path}: no Minari dataset: it has no {METADATA}",
            "name the dataset's folder, which holds data/",
        )
    from bufcheck.importers import _minari_arrow, _minari_hdf5

    metadata = _metadata(folder)
    storage = _minari_hdf5 if (folder / MAIN).is_file() else _minari_arrow
    episodes = storage.episodes(folder)
    _refuse_the_incomplete(folder, metadata, episodes)
    return Dataset(folder, metadata, storage, episodes, first)


def _numbers(episodes: list[Episode]) -> int:
    return max((episode.number for episode in episodes), default=-1) + 1


def _keys(episode: Episode, start: int, count: int, first: int, seeds: bool) -> dict[str, Any]:
    import numpy as np

    keys = {
        "episode_id": np.full(count, first + episode.number, np.int64),
        "timestep": start + np.arange(count, dtype=np.int64),
    }
    return keys | ({"seed": np.full(count, episode.seed, np.int64)} if seeds else {})


def _data_folder(path: Path) -> Path | None:
    """The folder that holds the data, whichever part of a dataset was named."""
    folder = path.parent if path.is_file() else path
    near = (folder, folder / "data", folder.parent)
    return next((one for one in near if (one / METADATA).is_file() and _is_main(one)), None)


def _is_main(folder: Path) -> bool:
    """In Arrow storage every episode has a metadata.json of its own."""
    return (folder / MAIN).is_file() or any(child.name.isdecimal() for child in folder.iterdir())


def _metadata(folder: Path) -> dict[str, Any]:
    path = folder / METADATA
    try:
        if path.stat().st_size > MOST_METADATA:
            raise ForeignError(f"{path}: larger than any metadata", COPY)
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        detail = " ".join(str(error).split())[:120]
        raise ForeignError(f"{path}: cannot be read ({detail})", COPY) from None
    if not isinstance(found, dict):
        raise ForeignError(f"{path}: not a JSON object", COPY)
    return found


def _refuse_the_incomplete(folder: Path, metadata: dict[str, Any], episodes: list[Episode]) -> None:
    counted = {"total_episodes": len(episodes), "total_steps": sum(one.steps for one in episodes)}
    for key, count in counted.items():
        said = metadata.get(key)
        if said is not None and said != count:
            what = key.removeprefix("total_")
            raise ForeignError(
                f"{folder}: its {METADATA} says {said} {what}, but {count} are there", COPY
            )


def _told(columns: dict[str, Kind], datasets: list[Dataset]) -> dict[str, Any]:
    """What the spaces say of the policy, and what is taken for granted."""
    assumed = []
    if any(name.startswith("infos/") for name in columns):
        assumed.append(
            "infos[t + 1] is of step t, as DataCollector records them, behind the info of the reset"
        )
    parts = [name for name in columns if name.startswith("observations/")]
    if parts:
        assumed.append(
            f"observations are in parts ({', '.join(parts[:6])}); name the one the actor saw with"
            " --column state_embed=NAME"
        )
    action = datasets[0].space("action_space")
    alike = all(one.space("action_space") == action for one in datasets)
    size, first = action.get("n"), action.get("start", 0)
    if not alike or action.get("type") != "Discrete" or type(size) is not int or type(first) is not int:
        return {"assumed": assumed}
    if size < 1:
        return {"assumed": assumed}
    policy = {"distribution": "categorical", "action_space": size}
    assumed.append(f"the policy is categorical over {size} actions, as the action space says")
    return {"assumed": assumed, "policy": policy, "first_action": first}


def _leave_out_images(
    columns: dict[str, Kind], left_out: dict[str, str], datasets: list[Dataset]
) -> None:
    """JPEG is not what the actor saw, to the last bit; Minari stores images so unless told not to."""
    for one in datasets:
        for name, space in (("observations", "observation_space"), ("actions", "action_space")):
            if one.metadata.get("jpeg_encoding", True) and _is_image(one.space(space)):
                columns.pop(name, None)
                left_out[name] = (
                    "JPEG images are not what the actor saw; collect with jpeg_encoding=False"
                )


def _is_image(space: dict[str, Any]) -> bool:
    shape = space.get("shape")
    return (
        space.get("type") == "Box"
        and space.get("dtype") == "uint8"
        and isinstance(shape, list)
        and len(shape) in (2, 3)
        and all(type(n) is int for n in shape)
        and min(shape[:2]) >= LEAST_IMAGE
    )
