"""How much may be held at once, of sources that must be held whole."""

from __future__ import annotations

import os
from pathlib import Path

from bufcheck.errors import ForeignError

MOST_BYTES = 8 << 30


def most_bytes() -> int:
    """Half of the machine's memory, and no more than a limit."""
    try:
        return min(MOST_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    except (AttributeError, ValueError, OSError):  # Windows
        return MOST_BYTES // 4


def refuse_too_large(path: Path, size: int) -> None:
    if size > most_bytes():
        raise ForeignError(
            f"{path}: {size / 1e9:.1f} GB, more than the {most_bytes() / 1e9:.1f} GB held at once",
            "split it into several files, which are read one after the other",
        )
