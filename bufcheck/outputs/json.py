"""The report for programs: one JSON document, as schemas/report.v1.schema.json describes it."""

from __future__ import annotations

import json
import math
from typing import Any


def render(report: dict[str, Any]) -> str:
    return json.dumps(_plain(report), indent=2, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become the strings "NaN", "inf" and "-inf"."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    return value
