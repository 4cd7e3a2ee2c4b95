"""How bufcheck starts a Python process of its own, for work that may crash, hang or be hostile."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[1])


def command(module: str) -> list[str]:
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """The parent's, so that the same packages are found, but not a file in the current folder: a dump
    may be unpacked next to a hostile h5py.py."""
    here = os.path.realpath(os.getcwd()) if os.path.isdir(os.curdir) else ""
    paths = [
        path
        for path in sys.path
        if os.path.isabs(path) and (os.path.realpath(path) != here or here == ROOT)
    ]
    if ROOT not in map(os.path.realpath, paths):
        paths.append(ROOT)
    return dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join(paths),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }
