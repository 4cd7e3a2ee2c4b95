"""Finds the files that ship with bufcheck: in the wheel they lie inside the package, in a checkout
beside it."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent


def folder(name: str) -> Path:
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name
