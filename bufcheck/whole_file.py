"""Writes a file so that it is either absent or complete."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bufcheck.errors import UsageError, WriteError

TEMPORARY = ".bufcheck-"


@contextlib.contextmanager
def whole_file(path: Path, *, sources: Sequence[Path] = (), replace: bool = False) -> Iterator[Path]:
    """Yields a temporary name beside `path`; gives it that name when the block ends well.

    Refuses a path that is one of the `sources`, by whatever name, and, unless told to `replace`,
    one that exists.
    """
    for source in sources:
        if path.exists() and os.path.samefile(path, source):
            raise UsageError(f"{path}: is the dump itself", "choose another name for the output")
    if path.is_dir() or (path.exists() and not replace):
        raise UsageError(f"{path}: exists already", "choose another name, or say --force")
    try:
        handle, name = tempfile.mkstemp(prefix=TEMPORARY, suffix=path.suffix, dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise WriteError(f"{path}: {error.strerror or error}") from None
    temporary = Path(name)
    try:
        yield temporary
        _sync(temporary)
        os.chmod(temporary, 0o666 & ~_umask())
        if replace:
            os.replace(temporary, path)
        else:
            _link(temporary, path)
        _sync(path.parent)
    except OSError as error:
        raise WriteError(f"{path}: {error.strerror or error}", "nothing was written") from None
    finally:
        temporary.unlink(missing_ok=True)


def _link(temporary: Path, path: Path) -> None:
    """A link fails where the name exists: two writers cannot both win."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise UsageError(f"{path}: another process wrote it meanwhile") from None
    except OSError:  # a file system without hard links
        if path.exists():
            raise UsageError(f"{path}: another process wrote it meanwhile") from None
        os.rename(temporary, path)


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder to flush it
    handle = os.open(path, os.O_RDONLY if path.is_dir() or os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
