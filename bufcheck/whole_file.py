"""Writes files so that they are either absent or complete."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bufcheck.errors import UsageError, WriteError

TEMPORARY = ".bufcheck-"
UNFINISHED = ".unfinished-"
"""What the file of a trainer is called until its writer has closed it."""


@contextlib.contextmanager
def whole_file(
    path: Path,
    *,
    sources: Sequence[Path] = (),
    replace: bool = False,
    prefix: str = TEMPORARY,
) -> Iterator[Path]:
    """Yields a temporary name beside `path`; gives it that name when the block ends well.

    Refuses a path that is one of the `sources`, by whatever name, and, unless told to `replace`,
    one that exists.
    """
    with whole_files([path], sources=sources, replace=replace, prefix=prefix) as [temporary]:
        yield temporary


@contextlib.contextmanager
def whole_files(
    paths: Sequence[Path],
    *,
    sources: Sequence[Path] = (),
    replace: bool = False,
    prefix: str = TEMPORARY,
) -> Iterator[list[Path]]:
    """The same for files of one folder that belong together.

    They get their names in the order given: where the last one is, all are. Of several processes that
    write the same names one wins, with all of its files.
    """
    refuse(paths, sources=sources, replace=replace)
    with contextlib.ExitStack() as stack:
        temporaries = [stack.enter_context(_temporary(path, prefix)) for path in paths]
        try:
            yield temporaries
            for temporary in temporaries:
                sync(temporary)
                os.chmod(temporary, 0o666 & ~_umask())
            with _alone_in(paths[0].parent):
                _publish(temporaries, paths, replace=replace)
            sync(paths[0].parent)
        except OSError as error:
            raise WriteError(f"{paths[0]}: {error.strerror or error}", "nothing was written") from None


def refuse(paths: Sequence[Path], *, sources: Sequence[Path] = (), replace: bool = False) -> None:
    """Says why these names cannot be written, before any work is done."""
    for path in paths:
        for source in sources:
            if path.exists() and os.path.samefile(path, source):
                raise UsageError(f"{path}: is the dump itself", "choose another name for the output")
        if path.is_dir() or (os.path.lexists(path) and not replace):
            raise UsageError(f"{path}: exists already", "choose another name, or say --force")


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A folder in this one, for what is needed only meanwhile."""
    with (
        tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=folder) as name,
        _locked(Path(name), exclusive=False, wait=False),
    ):
        yield Path(name)


def left_over(folder: Path) -> list[Path]:
    """Temporaries in a folder whose writer is gone; known only where files can be locked."""
    found = []
    for path in sorted(folder.glob(f"{TEMPORARY}*")) if folder.is_dir() else []:
        with contextlib.suppress(OSError), _locked(path, exclusive=True, wait=False) as taken:
            if taken:
                found.append(path)
    return found


@contextlib.contextmanager
def _temporary(path: Path, prefix: str) -> Iterator[Path]:
    if prefix == UNFINISHED:
        prefix += f"{path.stem}-"  # so that it tells whose it is
    try:
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=path.suffix, dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise WriteError(f"{path}: {error.strerror or error}") from None
    temporary = Path(name)
    try:
        with _locked(temporary, exclusive=False, wait=False):  # so that others see it is in use
            yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _publish(temporaries: Sequence[Path], paths: Sequence[Path], *, replace: bool) -> None:
    if replace:
        if len(paths) > 1:  # what says that all are there must not stand beside half of the new ones
            paths[-1].unlink(missing_ok=True)
        for temporary, path in zip(temporaries, paths, strict=True):
            os.replace(temporary, path)
        return
    for path in paths:
        if os.path.lexists(path):
            raise UsageError(f"{path}: another process wrote it meanwhile")
    named: list[Path] = []
    try:
        for temporary, path in zip(temporaries, paths, strict=True):
            _name(temporary, path)
            named.append(path)
    except BaseException:
        for path in reversed(named):
            path.unlink(missing_ok=True)
        raise


def _name(temporary: Path, path: Path) -> None:
    """A link fails where the name exists: two writers cannot both win."""
    try:
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            _rename(temporary, path)
    except FileExistsError:
        raise UsageError(f"{path}: another process wrote it meanwhile") from None


def _rename(temporary: Path, path: Path) -> None:
    """A rename that refuses to replace."""
    library = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if library is not None and hasattr(library, "renameat2"):
        here, no_replace = -100, 1
        names = (os.fsencode(temporary), os.fsencode(path))
        if library.renameat2(here, names[0], here, names[1], no_replace) == 0:
            return
        if (code := ctypes.get_errno()) == 17:
            raise FileExistsError(code, os.strerror(code))
    if path.exists():
        raise FileExistsError(17, os.strerror(17))
    os.rename(temporary, path)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One process at a time gives out names in a folder, where folders can be locked."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(_locked(folder, exclusive=True, wait=True))
        yield


@contextlib.contextmanager
def _locked(path: Path, *, exclusive: bool, wait: bool) -> Iterator[bool]:
    """Holds a lock on a file or folder, which ends with the process; yields whether it was got."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield False
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.flock(handle, kind if wait else kind | fcntl.LOCK_NB)
            taken = True
        except OSError:
            taken = False
        yield taken
    finally:
        os.close(handle)


def sync(path: Path) -> None:
    """Waits until what was written is on the disk."""
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
