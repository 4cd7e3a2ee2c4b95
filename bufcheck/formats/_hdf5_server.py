"""The parent's side of the process that reads HDF5: starts it, asks it, watches it, ends it.

One child serves request after request. A second one is started only while two reads are under
way at once; one that crashed, hung or was left in the middle of an answer is not used again.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from bufcheck import spawn
from bufcheck.errors import ReadError

HEADER = struct.Struct("<cQ")
MOST_FRAME = 8 << 30
PIPE_BYTES = 1 << 20
DUMP_AGAIN = "dump the buffer again, or restore the file from a copy"

_idle: list[Child] = []
_all: set[Child] = set()


class Child:
    """A running `_hdf5_child`. Only one thread talks to it at a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            spawn.command("bufcheck.formats._hdf5_child"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            bufsize=0, cwd=spawn.ROOT, env=_environment(),
        )  # fmt: skip
        self.stalled = self.busy = False
        with contextlib.suppress(ImportError, AttributeError, OSError):  # Linux only
            import fcntl

            fcntl.fcntl(self._answers.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        _all.add(self)

    @property
    def _answers(self) -> Any:
        assert self.process.stdout is not None
        return self.process.stdout

    def ask(self, path: Path, request: dict[str, Any], patience: float) -> None:
        """Sends a request. Until its last answer has come, the child is `busy`."""
        assert self.process.stdin is not None
        self.busy = True
        left = memoryview(json.dumps(request).encode() + b"\n")
        with self._watched(path, patience):
            while left:
                left = left[self.process.stdin.write(left) :]

    def answer(self, path: Path, patience: float) -> tuple[bytes, pa.Buffer]:
        """The next frame. A child that sends none for `patience` seconds is killed."""
        with self._watched(path, patience):
            kind, size = HEADER.unpack(self._exactly(HEADER.size))
            if kind not in b"DBEZ" or size > MOST_FRAME:
                raise EOFError
            frame = self._exactly(size)
        self.busy = kind == b"B"
        if kind == b"E":
            error = json.loads(frame.to_pybytes())
            raise ReadError(f"{path}: {error['error']}", error["step"])
        return kind, frame

    @contextlib.contextmanager
    def _watched(self, path: Path, patience: float) -> Iterator[None]:
        watchdog = threading.Timer(patience, self._give_up)
        watchdog.daemon = True
        watchdog.start()
        try:
            yield
        except (EOFError, OSError, ValueError):
            raise self._obituary(path, patience) from None
        finally:
            watchdog.cancel()

    def _exactly(self, size: int) -> pa.Buffer:
        buffer = pa.allocate_buffer(size)
        left = memoryview(buffer)
        while left:
            count = self._answers.readinto(left)
            if not count:
                raise EOFError
            left = left[count:]
        return buffer

    def _give_up(self) -> None:
        self.stalled = True
        self.process.kill()

    def _obituary(self, path: Path, patience: float) -> ReadError:
        self.end()
        if self.stalled:
            return ReadError(
                f"{path}: HDF5 gave no data for {patience:g} s: the file is damaged", DUMP_AGAIN
            )
        code = self.process.returncode
        if code < 0:
            with contextlib.suppress(ValueError):
                how = signal.Signals(-code).name
                return ReadError(
                    f"{path}: the process reading it was ended by {how}: the file is damaged, or "
                    "memory ran out", DUMP_AGAIN,
                )  # fmt: skip
        return ReadError(f"{path}: the process reading it ended early ({code})", DUMP_AGAIN)

    def end(self) -> None:
        """Kills it and waits for it: no zombie stays behind."""
        _all.discard(self)
        self.process.kill()
        self.process.wait()
        self.close()

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def acquire() -> Child:
    while True:
        try:
            child = _idle.pop()
        except IndexError:
            return Child()
        if child.process.poll() is None:
            return child
        child.end()


def release(child: Child) -> None:
    """Back into the pool, unless it still has something to say that nobody will listen to."""
    if not child.busy and not _idle and child.process.poll() is None:
        _idle.append(child)
    else:
        child.end()


def _environment() -> dict[str, str]:
    """Without what lets HDF5 load code from elsewhere."""
    kept = {
        name: value for name, value in spawn.environment().items()
        if not name.startswith("HDF5_") or name == "HDF5_USE_FILE_LOCKING"
    }  # fmt: skip
    return kept | {
        "HDF5_PLUGIN_PRELOAD": "::",  # no filter plugins
        # Keep freed memory: fresh pages for every batch cost a third of the speed.
        "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    }


def shut_down() -> None:
    for child in list(_all):
        child.end()
    _idle.clear()


def _forget() -> None:
    """After a fork the children belong to the parent: two askers would mix up their answers."""
    for child in _all:
        child.close()
    _all.clear()
    _idle.clear()


atexit.register(shut_down)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
