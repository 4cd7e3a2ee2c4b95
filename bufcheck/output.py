"""Shows a report in one of the ways of `outputs/`: each a module with render(report) -> str."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any


def names() -> list[str]:
    folder = Path(__file__).parent / "outputs"
    return sorted(m.name for m in pkgutil.iter_modules([str(folder)]))


def render(report: dict[str, Any], name: str) -> str:
    text: str = importlib.import_module(f"bufcheck.outputs.{name}").render(report)
    return text
