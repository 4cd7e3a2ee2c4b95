"""bufcheck: inspect, verify and clean stored on-policy experience."""

from __future__ import annotations

__version__ = "0.1.0"
