"""NumPy .npz files: arrays over time, time × envs, or time × envs × agents, by their usual names.

Several files are several rollouts. Nothing pickled in them is read.
"""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bufcheck.errors import ForeignError
from bufcheck.importer import Asked, Found, Kind, Piece, common

if TYPE_CHECKING:
    import numpy as np

EXAMPLE = "bufcheck convert --from npz rollout-*.npz dump.parquet"
TAKES_AXES = True
MOST_ARRAYS = 10_000
MOST_EXPANSION = 1100
"""Deflate cannot shrink anything more than about 1032 times."""
AGAIN = "save it again with numpy.savez"


def recognises(path: Path) -> bool:
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        members = archive.namelist()
    return bool(members) and all(name.endswith(".npy") for name in members)


def find(paths: list[Path], asked: Asked) -> Found:
    from bufcheck.importers import _rollout

    opened = []
    left_out: dict[str, str] = {}
    for path in paths:
        shapes = _shapes(path, left_out)
        layout = _rollout.layout(shapes, asked, path)
        left_out |= layout.left_out
        opened.append((path, shapes, layout))
    columns, differing = common(_rollout.kinds(shapes, layout) for _, shapes, layout in opened)

    def pieces() -> Iterator[Piece]:
        numbering = _rollout.Numbering()
        for number, (path, _, layout) in enumerate(opened):
            wanted = {*(name for name in columns if name in layout.reach), *layout.roles.values()}
            yield from _rollout.pieces(_arrays(path, wanted), layout, columns, number, numbering)

    assumed = list(dict.fromkeys(line for *_, layout in opened for line in _rollout.told(layout)))
    rows = sum(layout.rows for *_, layout in opened)
    stay = all(layout.ids_stay for *_, layout in opened)
    stay &= len(paths) == 1 or "episode_id" not in opened[0][2].roles
    return Found(
        paths,
        columns,
        rows,
        pieces,
        assumed=assumed,
        left_out=left_out | differing,
        ids_stay=stay,
    )


def _shapes(path: Path, left_out: dict[str, str]) -> dict[str, Kind]:
    import pyarrow as pa

    from bufcheck.importers._memory import refuse_too_large

    shapes, total = {}, 0
    for name, dtype, shape in _headers(path):
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            left_out[name] = "pickled, and not read" if dtype.hasobject else "not numbers"
            continue
        total += dtype.itemsize * math.prod(shape)
        shapes[name] = Kind(pa.from_numpy_dtype(dtype.newbyteorder("=")), shape)
    refuse_too_large(path, total)
    return shapes


def _open(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, EOFError) as error:
        raise ForeignError(f"{path}: no .npz file ({error})", AGAIN) from None


class Header(NamedTuple):
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def _headers(path: Path) -> list[Header]:
    """What each array is, none of which claims more than the file can hold."""
    with _open(path) as archive:
        members = [one for one in archive.infolist() if one.filename.endswith(".npy")]
        claimed = sum(one.file_size for one in members)
        if not members:
            raise ForeignError(f"{path}: holds no arrays", AGAIN)
        if len({one.filename for one in members}) < len(members):
            raise ForeignError(f"{path}: two arrays have one name", AGAIN)
        if len(members) > MOST_ARRAYS or claimed > MOST_EXPANSION * path.stat().st_size + (1 << 20):
            raise ForeignError(f"{path}: claims to hold more than it can", AGAIN)
        return [_header_of(path, archive, one) for one in members]


def _header_of(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Header:
    name = member.filename.removesuffix(".npy")
    with _readable(path, name), archive.open(member) as file:
        shape, dtype = _header(file)
        size = member.file_size - file.tell()
        if dtype.hasobject:
            shape = ()
        elif size != dtype.itemsize * math.prod(shape) or min(shape, default=0) < 0:
            raise ForeignError(f"{path}: {name} claims shape {shape}, and is not", AGAIN)
        return Header(name, dtype, shape)


def _header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = npy.read_array_header_1_0(file)
    else:
        shape, _, dtype = npy.read_array_header_2_0(file)
    return shape, dtype


def _arrays(path: Path, names: set[str]) -> dict[str, Any]:
    import numpy as np
    from numpy.lib import format as npy

    found = {}
    with _open(path) as archive:
        for name in sorted(names):
            with _readable(path, name), archive.open(f"{name}.npy") as file:
                held = npy.read_array(file, allow_pickle=False)
                found[name] = np.asarray(held, dtype=held.dtype.newbyteorder("="))
    return found


@contextlib.contextmanager
def _readable(path: Path, name: str) -> Iterator[None]:
    """One line instead of what zipfile, zlib and NumPy raise for a damaged array."""
    try:
        yield
    except ForeignError:
        raise
    except Exception as error:
        detail = " ".join(str(error).split())[:120] or type(error).__name__
        raise ForeignError(f"{path}: {name} cannot be read ({detail})", AGAIN) from None
