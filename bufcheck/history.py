"""What was asked at the prompt before: a private file of the last statements."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prompt_toolkit.history import History

HISTORY_ENTRIES = 1000


def history() -> History:
    """Statements of earlier runs, from a private file, or of this run alone where none can be kept."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class Kept(FileHistory):
        def store_string(self, string: str) -> None:
            with contextlib.suppress(OSError):  # a full disk must not end the prompt
                _make_private(Path(str(self.filename)))  # it may have been deleted meanwhile
                super().store_string(string)
                _keep_the_newest(Path(str(self.filename)))

    try:
        path = _history_path()
        if path is None:
            return InMemoryHistory()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_private(path)
        _keep_the_newest(path)
    except (OSError, RuntimeError, ValueError):  # RuntimeError: there is no home
        return InMemoryHistory()
    return Kept(str(path))


def _history_path() -> Path | None:
    given = os.environ.get("BUFCHECK_HISTORY")
    if given is not None:
        return Path(given).expanduser().resolve() if given else None
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state, "bufcheck", "history").resolve()


def _make_private(path: Path) -> None:
    """Makes the file if need be; queries may tell more of a dump than others should read."""
    opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise OSError(f"{path} is not a file")  # /dev/null, say, which is not ours to change
    finally:
        os.close(opened)
    path.chmod(0o600)


def _keep_the_newest(path: Path) -> None:
    """Cuts the file to its last entries; FileHistory puts a `# time` line above each."""
    _, *entries = path.read_bytes().split(b"\n# ")
    if len(entries) <= HISTORY_ENTRIES:
        return
    shorter = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        shorter.touch(0o600)
        shorter.write_bytes(b"".join(b"\n# " + entry for entry in entries[-HISTORY_ENTRIES:]))
        shorter.replace(path)
    finally:
        shorter.unlink(missing_ok=True)
