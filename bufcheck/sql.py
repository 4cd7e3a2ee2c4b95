"""SQL as text: the files that hold it, what it names, and how settings are filled in."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any

from bufcheck import shipped


@cache
def table_names() -> list[str]:
    return sorted(file.stem for file in (shipped.PACKAGE / "tables").glob("*.sql"))


@cache
def _table(name: str) -> tuple[dict[str, Any], str]:
    return split_header((shipped.PACKAGE / "tables" / f"{name}.sql").read_text("utf-8"))


def table_header(name: str) -> dict[str, Any]:
    """Its `meaning`, and that of its `columns`."""
    return _table(name)[0]


def table_sql(name: str) -> str:
    return _table(name)[1]


def tables_named_in(sql: str) -> list[str]:
    """The tables of `tables/` that stand in a FROM or JOIN: columns may have the same names."""
    ends = "WHERE|GROUP|ORDER|HAVING|JOIN|ON|USING|UNION|LIMIT|SELECT|WINDOW|SEMI|LEFT|ANTI"
    places = re.findall(
        rf"\b(?:FROM|JOIN)\b([^()]*?)(?=\b(?:{ends})\b|[()]|$)", _bare(sql), re.IGNORECASE
    )
    words = words_of(" ".join(places))
    return [name for name in table_names() if name in words]


def words_of(sql: str) -> set[str]:
    """The names a piece of SQL uses."""
    return set(re.findall(r"\w+", _bare(sql)))


def _bare(sql: str) -> str:
    """SQL without comments and texts."""
    return re.sub(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'", " ", sql, flags=re.DOTALL)


def fill_in(sql: str, values: Mapping[str, Any]) -> str:
    """SQL with each $name replaced by its value, so that it runs anywhere as it stands."""
    return re.sub(r"\$([a-z_]+)", lambda match: literal(values[match[1]]), sql)


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def split_header(text: str) -> tuple[dict[str, Any], str]:
    """A .sql file of ours is a TOML header in its first comment, then one SELECT."""
    match = re.match(r"\s*/\*(.*?)\*/\s*(.*)", text, re.DOTALL)
    if match is None:
        raise ValueError("the file does not begin with a /* TOML header */")
    return tomllib.loads(match[1]), match[2].strip().rstrip(";")
