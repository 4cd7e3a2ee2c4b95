"""Which files a dump is: those given, those a glob matches, those in a folder."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from bufcheck import format as formats
from bufcheck.errors import NoDumpError, ReadError, UsageError
from bufcheck.whole_file import UNFINISHED


def files_of(paths: Sequence[str]) -> list[tuple[Path, dict[str, str]]]:
    """The files meant, each with the columns its Hive folders (key=value) give it."""
    found: list[tuple[Path, dict[str, str]]] = []
    for given in paths:
        if re.match(r"[a-z][a-z0-9+.-]+://", given, re.IGNORECASE):
            raise ReadError(
                f"{given}: bufcheck reads local files",
                "copy it here first (aws s3 cp, gcloud storage cp, curl -O, …)",
            )
        path = Path(given)
        if path.is_dir():
            found += _in_folder(path)
        elif path.exists():
            found.append((path, {}))
        elif glob.has_magic(given):
            matches = sorted(glob.glob(given, recursive=True), key=_natural)
            if not matches:
                raise ReadError(f"{given}: no file matches")
            found += [(Path(m), {}) for m in matches if not Path(m).is_dir()]
        else:
            raise ReadError(f"{given}: no such file or folder", _at_work(path.parent, path.stem))
    seen: set[Path] = set()
    for path, _ in found:
        if path.resolve() in seen:
            raise UsageError(f"{path}: given twice")
        seen.add(path.resolve())
    return found


def _at_work(folder: Path, stem: str) -> str:
    """A BufferWriter's file has another name until it is closed."""
    beside = sorted(folder.glob(f"{UNFINISHED}{glob.escape(stem)}*"))
    return f"{beside[0].name} is there: its writer is at work, or was killed" if beside else ""


def _in_folder(folder: Path) -> list[tuple[Path, dict[str, str]]]:
    found = []
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        if any(part[0] in "._" for part in relative.parts) or not path.is_file():
            continue
        # A file that only claims a format by its suffix is kept, to fail loudly when opened.
        if formats.has_known_suffix(path) or (path.stat().st_size and formats.of_file(path)):
            found.append((path, _hive(relative)))
    if not found:
        raise NoDumpError(f"{folder}: no Parquet or HDF5 file in this folder", _at_work(folder, ""))
    return sorted(found, key=lambda entry: _natural(str(entry[0].relative_to(folder))))


def _natural(text: str) -> list[tuple[int, int, str]]:
    return [
        (0, int(part), part) if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d+)", text)
        if part
    ]


def _hive(relative: Path) -> dict[str, str]:
    pairs = [part.split("=", 1) for part in relative.parts[:-1] if "=" in part]
    return {name: unquote(value) for name, value in pairs}
