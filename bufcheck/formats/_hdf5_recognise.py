"""Decides which column each object under the root of an HDF5 file is (child process)."""

from __future__ import annotations

import math
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from bufcheck.errors import ReadError
from bufcheck.formats import _hdf5_types as types
from bufcheck.formats._hdf5_columns import (
    Column,
    Number,
    Padded,
    Ragged,
    Vlen,
    arrow_type,
    numbers,
)
from bufcheck.formats._hdf5_columns_text import Coded, Packed, Text
from bufcheck.formats._hdf5_layout import DUMP_AGAIN, Folder, Stored

MAX_METADATA = 16 << 20
MAX_SCHEMA = 1 << 20


def columns(root: Folder, ragged: set[str], lengths_in: str) -> dict[str, Column]:
    """Every column of the file, in file order. What is no column is left out."""
    lengths = _lengths(root.children.get(lengths_in))
    found: dict[str, Column] = {}
    for link, item in root.children.items():
        owner = item.group if isinstance(item, Folder) else h5py.Dataset(_open(item))
        named = text_attribute(owner, "column_name")
        name = link if named is None else named
        declared = types.parse(text_attribute(owner, "arrow_type") or "")
        if isinstance(item, Folder):
            column = _from_folder(name, item, declared)
        else:
            pad = _pad(owner)
            column = _from_dataset(name, item, declared, name in ragged, pad, lengths)
        if column is not None:
            if name in found:
                raise ReadError(f"two columns are called {name}", DUMP_AGAIN)
            column.required = "not_null" in owner.attrs
            found[name] = column
    return found


def text_attribute(owner: Any, name: str, limit: int = MAX_SCHEMA) -> str | None:
    raw = raw_attribute(owner, name, limit)
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ReadError(f"the attribute {name} is not UTF-8", DUMP_AGAIN) from None


def raw_attribute(owner: Any, name: str, limit: int = MAX_METADATA) -> bytes | None:
    """A string attribute, fixed or variable length; None if there is none."""
    if name not in owner.attrs:
        return None
    if owner.attrs.get_id(name).get_storage_size() > limit:
        raise ReadError(f"the attribute {name} is larger than {limit >> 20} MB", DUMP_AGAIN)
    value = owner.attrs[name]
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if not isinstance(value, bytes):
        raise ReadError(f"the attribute {name} is not text", DUMP_AGAIN)
    if len(value) > limit:
        raise ReadError(f"the attribute {name} is larger than {limit >> 20} MB", DUMP_AGAIN)
    return bytes(value)


def _open(stored: Stored) -> Any:
    from h5py import h5d

    return h5d.open(stored.parent, stored.name.encode())


def _pad(dataset: h5py.Dataset) -> Any:
    if "pad" not in dataset.attrs or dataset.attrs.get_id("pad").get_storage_size() > 64:
        return None
    value = np.asarray(dataset.attrs["pad"])
    return value.reshape(-1)[0] if value.size == 1 and value.dtype.kind in "iufb" else None


def _lengths(item: Stored | Folder | None) -> Stored | None:
    if isinstance(item, Folder):
        found = item.datasets("values")
        item = found[0] if found else None
    good = item is not None and item.dtype is not None and item.dtype.kind in "iu"
    return item if good and len(item.shape) == 1 else None  # type: ignore[union-attr]


def _from_dataset(
    name: str, item: Stored, declared: pa.DataType | None, ragged: bool, pad: Any,
    lengths: Stored | None,
) -> Column | None:  # fmt: skip
    if item.dtype is None:
        return None
    if h5py.check_string_dtype(item.dtype):
        return Text(name, types.text_if_it_fits(declared, pa.string(), 0), [item])
    if base := h5py.check_vlen_dtype(item.dtype):
        natural = pa.list_(arrow_type(base))
        return Vlen(name, types.list_if_it_fits(declared, natural), [item])
    fixed = declared is not None and pa.types.is_fixed_size_list(declared)
    if ragged and len(item.shape) > 1 and not fixed:
        natural = pa.list_(arrow_type(item.dtype))
        kind = types.list_if_it_fits(declared, natural)
        return Padded(name, kind, [item], pad=pad, lengths=lengths)
    return Number(name, _number_type(item, declared), [item])


def _number_type(item: Stored, declared: pa.DataType | None) -> pa.DataType:
    assert item.dtype is not None
    kind = arrow_type(item.dtype)
    if len(item.shape) == 1:
        return kind
    return types.list_if_it_fits(declared, pa.list_(kind, math.prod(item.shape[1:])))


def _from_folder(name: str, folder: Folder, declared: pa.DataType | None) -> Column | None:
    if text_attribute(folder.group, "encoding") == "arrow-ipc":
        return _packed(name, folder)
    valid = _one(folder, "valid")
    if parts := folder.datasets("codes", "dictionary"):
        return _coded(name, folder, parts, declared, valid)
    items = _one(folder, "values_valid")
    if parts := folder.datasets("offsets", "values"):
        if not _plain(parts[0], "iu") or not _plain(parts[1]):
            return None
        natural = pa.list_(_number_type(parts[1], None))
        kind = types.list_if_it_fits(declared, natural)
        return Ragged(name, kind, _with(parts, items), valid, items)
    if parts := folder.datasets("values"):
        if h5py.check_string_dtype(parts[0].dtype):
            return Text(name, types.text_if_it_fits(declared, pa.string(), 0), parts, valid)
        if not _is_number(parts[0]):
            return None
        return Number(name, _number_type(parts[0], declared), _with(parts, items), valid, items)
    return None


def _coded(
    name: str, folder: Folder, parts: list[Stored], declared: pa.DataType | None,
    valid: Stored | None,
) -> Column | None:  # fmt: skip
    offsets = _one(folder, "dictionary_offsets")
    fixed = parts[1].dtype is not None and parts[1].dtype.kind == "S"
    if not _plain(parts[0], "iu") or (not fixed and offsets is None):
        return None
    if not fixed and parts[1].dtype != np.uint8:
        return None
    column = Coded(name, pa.string(), _with(parts, None if fixed else offsets), valid)
    natural = pa.dictionary(pa.int32(), pa.string())
    column.type = types.text_if_it_fits(declared, natural, column.entries)
    return column


def _packed(name: str, folder: Folder) -> Column:
    parts = folder.datasets("values", "offsets", "rows", "schema")
    if parts is None or parts[3].rows > MAX_SCHEMA or not all(_plain(part) for part in parts):
        raise ReadError(f"column {name} is packed as Arrow but incomplete", DUMP_AGAIN)
    try:
        data = numbers(parts[3], 0, parts[3].rows)
        schema = pa.ipc.read_schema(pa.py_buffer(data.tobytes()))
        return Packed(name, schema.field(0).type, parts)
    except (pa.ArrowException, OSError, IndexError, KeyError) as error:
        raise ReadError(f"column {name}: its Arrow schema is damaged: {error}") from None


def _one(folder: Folder, name: str) -> Stored | None:
    found = folder.datasets(name)
    return found[0] if found and found[0].dtype is not None and _is_flag(found[0]) else None


def _is_number(stored: Stored) -> bool:
    return stored.dtype is not None and stored.dtype.kind in "iufb"


def _is_flag(stored: Stored) -> bool:
    return stored.dtype is not None and stored.dtype.kind in "iub"


def _plain(stored: Stored, kinds: str = "iufb") -> bool:
    return stored.dtype is not None and stored.dtype.kind in kinds and len(stored.shape) == 1


def _with(parts: list[Stored], extra: Stored | None) -> list[Stored]:
    return parts if extra is None else [*parts, extra]
