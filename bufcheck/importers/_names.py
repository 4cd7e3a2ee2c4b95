"""Which column of a source is which of ours, by the table of usual names and by what the user says."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from functools import cache
from typing import Any

from bufcheck import schema, shipped
from bufcheck.config import NAME as CONFIG_NAME
from bufcheck.errors import ForeignError, UsageError
from bufcheck.importer import Asked

HELPERS = ("done", "episode_start")
"""No columns of the schema; they say where episodes end and begin."""


@cache
def _table() -> dict[str, Any]:
    text = (shipped.PACKAGE / "importers" / "aliases.toml").read_text("utf-8")
    return tomllib.loads(text)


def roles(names: Collection[str], asked: Asked, where: object) -> dict[str, str]:
    """Our name → the source's, for all that it has; a column has one role."""
    told = {**asked.config.columns, **asked.columns}
    found: dict[str, str] = {}
    for role, name in told.items():
        if name not in names:
            origin = "--column" if role in asked.columns else f"[columns] in {CONFIG_NAME}"
            raise ForeignError(
                f"{where}: has nothing called {name!r}",
                f"mend {origin}; it has {', '.join(sorted(names)[:12])}",
            )
        found[role] = name
    taken = set(found.values())
    # An action that is named for what it is needs no guess at what `actions` are.
    settled = {"action"} if {"action_index", "action_id"} & set(told) else set()
    for role in [*schema.load().columns, *HELPERS]:
        usual = None if role in found or role in settled else _named(role, names, taken)
        if usual is not None:
            found[role] = usual
            taken.add(usual)
    return found


def _named(role: str, names: Collection[str], taken: set[str]) -> str | None:
    usual = [role, *_table()["columns"].get(role, ())]
    grouped = [f"{group}/{name}" for name in usual for group in _table()["groups"]]
    return next((name for name in usual + grouped if name in names and name not in taken), None)


def check(columns: dict[str, str]) -> dict[str, str]:
    """What --column gives: names that mean something."""
    known = [*schema.load().columns, *HELPERS]
    for name in columns:
        if name not in known:
            raise UsageError(
                f"--column {name}: no column of {schema.CURRENT}",
                "`bufcheck schema` lists them; done and episode_start mean something too",
            )
    return columns
