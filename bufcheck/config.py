"""Reads bufcheck.toml: what a foreign dump means, and what a team wants checked."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bufcheck import schema
from bufcheck.errors import ConfigError, UsageError

NAME = "bufcheck.toml"
METADATA_TABLES = ("policy", "advantage", "agents")
KNOWN = {"columns", "rules", "select", "ignore", *METADATA_TABLES}


@dataclass(frozen=True)
class Config:
    path: Path | None = None
    columns: dict[str, str] = field(default_factory=dict)
    """experience name → the name it has in the file."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Flat keys, such as policy.logits."""
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)
    """rule name or code → severity and parameters."""


def find(path: Path | None) -> Config:
    """The configuration at `path`, else the bufcheck.toml of the current folder, else none."""
    if path is not None:
        return load(path)
    return load(Path(NAME)) if Path(NAME).is_file() else Config()


def load(path: Path) -> Config:
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    for name in raw:
        if name not in KNOWN:
            raise ConfigError(f"{path}: [{name}] is unknown", f"known: {', '.join(sorted(KNOWN))}")
    columns = _table(raw, "columns", path)
    known = schema.load().columns
    for name, stored in columns.items():
        if name not in known:
            raise ConfigError(
                f"{path}: [columns] {name} is no column of {schema.CURRENT}",
                'write experience_name = "name in the file"; `bufcheck schema` lists the names',
            )
        if not isinstance(stored, str):
            raise ConfigError(f"{path}: [columns] {name} must be the name it has in the file")
    metadata = {name: _table(raw, name, path) for name in METADATA_TABLES if name in raw}
    flat = schema.flatten(metadata, str(path))
    for key in flat:
        if key not in schema.load().keys:
            raise ConfigError(f"{path}: {key} is unknown", "`bufcheck schema` lists the keys")
    rules = _table(raw, "rules", path)
    for name, settings in rules.items():
        if not isinstance(settings, dict):
            raise ConfigError(f"{path}: [rules] {name} must be a table, as in [rules.{name}]")
    return Config(
        path,
        columns,
        flat,
        _names(raw, "select", path),
        _names(raw, "ignore", path),
        rules,
    )


def _table(raw: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    table = raw.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {name} must be a table, as in [{name}]")
    return table


def _names(raw: dict[str, Any], name: str, path: Path) -> tuple[str, ...]:
    names = raw.get(name, [])
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise ConfigError(f"{path}: {name} must be a list of rule names or codes")
    return tuple(names)


def assignments(texts: Sequence[str]) -> dict[str, str]:
    """What --column says: ours=theirs, each once."""
    found: dict[str, str] = {}
    for text in texts:
        ours, equals, theirs = text.partition("=")
        if not equals or not ours.strip() or not theirs.strip() or ours.strip() in found:
            raise UsageError(f"--column {text}: say OURS=THEIRS, each of ours once")
        found[ours.strip()] = theirs.strip()
    return found


def with_columns(config: Config, columns: dict[str, str]) -> Config:
    """The same with more names, which come before those of the file."""
    for name in columns:
        if name not in schema.load().columns:
            raise UsageError(
                f"--column {name}: no column of {schema.CURRENT}", "`bufcheck schema` lists them"
            )
    return replace(config, columns=config.columns | columns)
