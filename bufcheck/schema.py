"""Reads the published contract in schemas/ and answers questions about columns and metadata."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from bufcheck import shipped
from bufcheck.errors import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

CURRENT = "experience/1"
OWN_COLUMN = "x_"
"""Columns that start so belong to the user: carried through, never judged."""


@dataclass(frozen=True)
class Column:
    name: str
    types: tuple[str, ...]
    required: str
    meaning: str
    key: bool = False
    nullable: bool = False
    minimum: int | None = None
    unless: str | None = None

    # Asked of every column of every step a trainer hands over: found once.

    @cached_property
    def kind(self) -> str:
        """What the column is made of: "int", "float", "bool", "string", or a list of one of them."""
        item = self.types[-1]
        if self.is_vector or self.is_ragged:
            item = item[item.index("<") + 1 : -1]
        return re.sub(r"\d+$", "", item)

    @cached_property
    def is_vector(self) -> bool:
        return self.types[0].startswith("fixed_size_list<")

    @cached_property
    def is_ragged(self) -> bool:
        return self.types[0].startswith("list<")

    @cached_property
    def is_scalar(self) -> bool:
        return not (self.is_vector or self.is_ragged)


@dataclass(frozen=True)
class Key:
    """One entry of the metadata object, such as policy.temperature."""

    name: str
    type: str
    meaning: str
    default: Any = None
    one_of: tuple[str, ...] = ()
    minimum: float | None = None
    above: float | None = None


@dataclass(frozen=True)
class Schema:
    version: str
    summary: str
    columns: Mapping[str, Column]
    keys: Mapping[str, Key]

    @property
    def key_columns(self) -> list[str]:
        return [c.name for c in self.columns.values() if c.key]

    def required(self, policy: Mapping[str, Any]) -> list[str]:
        """The columns a dump of this policy must have."""
        family = "categorical" if policy["distribution"] == "categorical" else "gaussian"
        offers_all = f"policy.subset = {policy['subset']}"
        return [
            c.name
            for c in self.columns.values()
            if c.required in ("always", family) and c.unless != offers_all
        ]


@cache
def versions() -> list[str]:
    files = sorted(shipped.folder("schemas").glob("experience.v*.toml"))
    return [f"experience/{file.name.split('.v')[1].removesuffix('.toml')}" for file in files]


@cache
def load(version: str = CURRENT) -> Schema:
    if version not in versions():
        raise SchemaError(
            f"schema {version!r} is unknown to this bufcheck",
            f"it knows {', '.join(versions())}; a newer bufcheck may know more",
        )
    name = version.replace("/", ".v") + ".toml"
    raw = tomllib.loads((shipped.folder("schemas") / name).read_text("utf-8"))
    columns = {
        name: Column(name=name, types=tuple(c.pop("types")), **c) for name, c in raw["columns"].items()
    }
    keys = {
        name: Key(name=name, one_of=tuple(k.pop("one_of", ())), **k)
        for name, k in raw["metadata"].items()
    }
    return Schema(raw["schema"], raw["summary"], columns, keys)


def parse_metadata(raw: bytes | None, where: str) -> dict[str, Any]:
    """The metadata object of a file as flat keys ("policy.logits"); {} if it has none."""
    if raw is None:
        return {}
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        raise SchemaError(f"{where}: its `bufcheck` metadata is not JSON", _DAMAGED) from None
    if not isinstance(found, dict):
        raise SchemaError(f"{where}: its `bufcheck` metadata is not a JSON object", _DAMAGED)
    version = found.get("schema")
    if version is None:
        raise SchemaError(f"{where}: its metadata names no schema", f'add "schema": "{CURRENT}"')
    load(str(version))
    return flatten(found, where)


_DAMAGED = "write it again with the trainer, or remove it and describe the dump in bufcheck.toml"


def flatten(nested: Mapping[str, Any], where: str) -> dict[str, Any]:
    """{"policy": {"logits": …}} → {"policy.logits": …}, each value checked against the schema."""
    schema = load()
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if name in schema.keys:
            flat[name] = value
        elif isinstance(value, dict):
            flat |= {f"{name}.{inner}": v for inner, v in value.items()}
        else:
            flat[name] = value
    for name, value in flat.items():
        if name in schema.keys and value is not None:
            _check_value(schema.keys[name], value, where)
    if reason := _REFUSED.get(str(flat.get("policy.kind", ""))):
        raise SchemaError(f"{where}: {reason}")
    return flat


_REFUSED = {
    "factored": "factored (multi-discrete) policies have several log-probs a sample",
    "recurrent": "recurrent policies need their hidden state, which experience/1 does not hold",
}
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "integers": (list,),
}


def _check_value(key: Key, value: Any, where: str) -> None:
    expected = ""
    right_type = isinstance(value, _TYPES[key.type])
    if not right_type or (isinstance(value, bool) and key.type != "boolean"):
        expected = f"must be of type {key.type}"
    elif key.type == "integers":
        if not value or not all(type(v) is int and v > 0 for v in value):
            expected = "must be a list of positive integers"
    elif key.one_of and value not in key.one_of:
        expected = f"must be one of {', '.join(key.one_of)}"
        if key.name == "policy.distribution" and value in _REFUSED:
            expected = f"is refused: {_REFUSED[value]}"
    elif isinstance(value, (int, float)) and (
        not math.isfinite(value)
        or (key.minimum is not None and value < key.minimum)
        or (key.above is not None and value <= key.above)
    ):
        expected = "must be finite"
        if key.above is not None:
            expected = f"must be above {key.above}"
        elif key.minimum is not None:
            expected = f"must be at least {key.minimum}"
    if expected:
        shown = json.dumps(value)[:60]
        raise SchemaError(f"{where}: {key.name} is {shown}, and {expected}")


def type_name(arrow: pa.DataType) -> str:
    """An Arrow type in the words of the schema, encodings and containers set aside."""
    import pyarrow as pa

    if pa.types.is_dictionary(arrow):
        return type_name(arrow.value_type)
    if pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow):
        return "string"
    if pa.types.is_fixed_size_list(arrow):
        return f"fixed_size_list<{type_name(arrow.value_type)}>"
    if _is_list(arrow):
        return f"list<{type_name(arrow.value_type)}>"
    return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(arrow), str(arrow))


def _is_list(arrow: pa.DataType) -> bool:
    import pyarrow as pa

    t = pa.types
    return bool(
        t.is_list(arrow)
        or t.is_large_list(arrow)
        or t.is_fixed_size_list(arrow)
        or t.is_list_view(arrow)
        or t.is_large_list_view(arrow)
    )


def fits(column: Column, arrow: pa.DataType) -> bool:
    """Whether this is a type the schema names for the column."""
    name = type_name(arrow)
    if not column.is_scalar:
        name = name[name.find("<") + 1 : -1] if "<" in name else ""
        return name in [t[t.index("<") + 1 : -1] for t in column.types]
    return name in column.types


def readable_as(column: Column, arrow: pa.DataType) -> pa.DataType | None:
    """The type values are read as, or None where no safe conversion exists.

    Narrower and wider numbers convert, numbers and words do not: an action index stored as a float
    is not an index, whatever its value.
    """
    import pyarrow as pa

    if not column.is_scalar:
        if not _is_list(arrow):
            return None
        item = _item_type(column.kind, arrow.value_type)
        if item is None:
            return None
        if pa.types.is_fixed_size_list(arrow):
            return pa.list_(item, arrow.list_size)
        return pa.list_(item)
    return _item_type(column.kind, arrow)


def _item_type(kind: str, arrow: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa

    t = pa.types
    if t.is_dictionary(arrow):
        arrow = arrow.value_type
    integer, floating = t.is_integer(arrow), t.is_floating(arrow)
    if kind == "string":
        texts = t.is_string(arrow) or t.is_large_string(arrow) or t.is_string_view(arrow)
        return pa.dictionary(pa.int32(), pa.string()) if texts or integer else None
    if kind == "bool":
        return pa.bool_() if t.is_boolean(arrow) or integer else None
    if kind == "int":
        if not integer:
            return None
        return pa.int32() if arrow.bit_width <= 32 and str(arrow) != "uint32" else pa.int64()
    if floating:
        return pa.float64() if t.is_float64(arrow) else pa.float32()
    return pa.float64() if integer else None
