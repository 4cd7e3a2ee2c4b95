"""Walks an HDF5 file link by link, in the child process, and refuses what must not be read.

Nothing is opened by path: HDF5 would follow external links on the way. Every object of the file
is looked at, asked for or not, before the first byte of data is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5g, h5l, h5o, h5p, h5z

from bufcheck.errors import ReadError

MAX_COLUMNS, MAX_OBJECTS, MAX_DEPTH = 10_000, 100_000, 16
MAX_ROWS = 2**40
MAX_CHUNK = MAX_ROW = 256 << 20
# gzip cannot shrink anything more than about 1032 times; small files may be mostly fill value.
MAX_EXPANSION, FREE_EXPANSION = 1100, 64 << 20
CACHE = 4 << 20
MAX_CACHE = 512 << 20
BUILT_IN_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit",
                    6: "scaleoffset", 32000: "lzf"}  # fmt: skip
ONE_FILE = "copy the data into one file, e.g. with h5repack or h5py"
DUMP_AGAIN = "dump the buffer again, or restore the file from a copy"


@dataclass
class Stored:
    """One dataset. It is opened when its data are wanted, with a chunk cache that fits it."""

    parent: Any
    name: str
    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    """None: a type that no column has (compound, reference, opaque)."""
    chunks: tuple[int, ...] | None
    filters: tuple[int, ...]
    verified: bool
    """Every value of it is covered by a checksum that reading verifies."""

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        assert self.dtype is not None
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @cached_property
    def data(self) -> h5py.Dataset:
        unknown = [code for code in self.filters if code not in BUILT_IN_FILTERS]
        missing = [code for code in self.filters if not h5z.filter_avail(code)]
        for code in unknown + missing:
            raise ReadError(
                f"column {self.path} is stored with HDF5 filter {code}, which needs a plugin",
                "rewrite the file with a built-in one, e.g. h5repack -f GZIP=4 IN OUT",
            )
        access = h5p.create(h5p.DATASET_ACCESS)
        access.set_chunk_cache(*self._cache(), 1.0)
        return h5py.Dataset(h5d.open(self.parent, self.name.encode(), access))

    def _cache(self) -> tuple[int, int]:
        """(slots, bytes) so that no chunk is decoded twice when rows are read in order."""
        if not self.chunks or not self.filters or self.dtype is None:
            return 521, CACHE
        beside = math.prod(-(-n // c) for n, c in zip(self.shape[1:], self.chunks[1:], strict=True))
        stripe = beside * math.prod(self.chunks) * self.dtype.itemsize
        return min(200 * beside, 2_000_000) | 1023, min(max(CACHE, 2 * stripe), MAX_CACHE)


@dataclass
class Folder:
    group: h5py.Group
    children: dict[str, Stored | Folder] = field(default_factory=dict)

    def datasets(self, *names: str) -> list[Stored] | None:
        """Its datasets of these names, if it has all of them."""
        found = [self.children.get(name) for name in names]
        good = [item for item in found if isinstance(item, Stored) and item.dtype is not None]
        return good if len(good) == len(names) else None


@dataclass
class Walk:
    file_bytes: int
    most_columns: int = MAX_COLUMNS
    most_objects: int = MAX_OBJECTS
    objects: int = 0

    def root(self, file: h5py.File) -> Folder:
        """The whole file as a tree of what may be read."""
        return self._folder(h5g.open(file.id, b"/"), "", (h5o.get_info(file.id).addr,))

    def one_by_one(self, file: h5py.File) -> Iterator[tuple[str, Stored | Folder]]:
        """The same, for files whose tree takes long to walk."""
        return self._children(h5g.open(file.id, b"/"), "", (h5o.get_info(file.id).addr,))

    def dataset(self, file: h5py.File, path: str) -> Stored:
        """One dataset, reached and looked at as when the whole file is walked."""
        group = h5g.open(file.id, b"/")
        *groups, name = path.split("/")
        for step in groups:
            self._refuse_links(group, step.encode(), path)
            group = h5g.open(group, step.encode())
        self._refuse_links(group, name.encode(), path)
        return self._dataset(group, name, path)

    def _folder(self, group: Any, path: str, above: tuple[int, ...]) -> Folder:
        return Folder(h5py.Group(group), dict(self._children(group, path, above)))

    def _children(
        self, group: Any, path: str, above: tuple[int, ...]
    ) -> Iterator[tuple[str, Stored | Folder]]:
        if not path and group.get_num_objs() > self.most_columns:
            raise ReadError(f"{group.get_num_objs()} columns are more than {self.most_columns}")
        for name in h5py.Group(group):
            if not isinstance(name, str) or not name.isprintable():
                raise ReadError(f"the column name {name!r} is not text", DUMP_AGAIN)
            where = f"{path}/{name}" if path else name
            self._refuse_links(group, name.encode(), where)
            self._count(len(above))
            info = h5o.get_info(group, name.encode())
            if info.type == h5o.TYPE_DATASET:
                yield name, self._dataset(group, name, where)
            elif info.type == h5o.TYPE_GROUP and info.addr not in above:
                below = h5g.open(group, name.encode())
                yield name, self._folder(below, where, (*above, info.addr))

    def _count(self, depth: int) -> None:
        self.objects += 1
        if self.objects > self.most_objects or depth > MAX_DEPTH:
            raise ReadError("more groups and datasets than any dump has", DUMP_AGAIN)

    def _refuse_links(self, group: Any, name: bytes, where: str) -> None:
        kind = group.links.get_info(name).type
        if kind == h5l.TYPE_EXTERNAL:
            raise ReadError(f"column {where} is an external link to another file", ONE_FILE)
        if kind != h5l.TYPE_HARD:
            raise ReadError(f"column {where} is a soft link, not data", ONE_FILE)

    def _dataset(self, group: Any, name: str, where: str) -> Stored:
        dataset = h5d.open(group, name.encode())
        # The layout first: asking a virtual dataset for its shape opens its source files.
        plan = dataset.get_create_plist()
        if plan.get_layout() == h5d.VIRTUAL:
            raise ReadError(f"column {where} is a virtual dataset over other files", ONE_FILE)
        if plan.get_external_count() > 0:
            raise ReadError(f"column {where} keeps its data in another file", ONE_FILE)
        chunks = plan.get_chunk() if plan.get_layout() == h5d.CHUNKED else None
        filters = tuple(plan.get_filter(i)[0] for i in range(plan.get_nfilters()))
        shape = dataset.shape or ()
        self._refuse_absurd(dataset, shape, chunks, where)
        verified = h5z.FILTER_FLETCHER32 in filters and _every_chunk_exists(dataset, shape, chunks)
        return Stored(group, name, where, shape, _column_dtype(dataset), chunks, filters, verified)

    def _refuse_absurd(
        self, dataset: Any, shape: tuple[int, ...], chunks: tuple[int, ...] | None, where: str
    ) -> None:
        size = dataset.get_type().get_size()
        declared = math.prod(shape) * size
        stored = min(dataset.get_storage_size(), self.file_bytes)
        if shape and shape[0] > MAX_ROWS:
            raise ReadError(f"column {where} declares {shape[0]} rows", DUMP_AGAIN)
        if declared > MAX_EXPANSION * stored + FREE_EXPANSION:
            raise ReadError(
                f"column {where} declares {_human(declared)} but stores {_human(stored)}",
                DUMP_AGAIN,
            )
        if chunks and math.prod(chunks) * size > MAX_CHUNK:
            raise ReadError(
                f"column {where} has chunks of {_human(math.prod(chunks) * size)}",
                f"rewrite it in chunks under {_human(MAX_CHUNK)}, e.g. with h5repack -l CHUNK=",
            )
        if math.prod(shape[1:]) * size > MAX_ROW:
            raise ReadError(
                f"one row of column {where} is {_human(math.prod(shape[1:]) * size)}", DUMP_AGAIN
            )


def _every_chunk_exists(dataset: Any, shape: tuple[int, ...], chunks: tuple[int, ...] | None) -> bool:
    """A chunk that is missing reads as zeros, and no checksum would tell."""
    assert chunks is not None
    return bool(
        dataset.get_num_chunks() == math.prod(-(-n // c) for n, c in zip(shape, chunks, strict=True))
    )


def _column_dtype(dataset: Any) -> np.dtype[Any] | None:
    try:
        dtype = dataset.dtype
    except (TypeError, ValueError):
        return None
    if not dataset.shape:
        return None
    base = h5py.check_vlen_dtype(dtype)
    if base is not None and base is not str and base is not bytes:
        return dtype if dataset.rank == 1 and _is_number(base) else None
    if h5py.check_string_dtype(dtype):
        return dtype if dataset.rank == 1 else None
    return dtype if _is_number(dtype) else None


def _is_number(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "iufb" and dtype.itemsize <= 8


def _human(size: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
