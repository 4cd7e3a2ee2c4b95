"""The process that reads HDF5 for bufcheck: `python -m bufcheck.formats._hdf5_child`.

A damaged HDF5 file can crash or hang the library that reads it, so it is never read in the process
the user started. Requests are lines of JSON on stdin. Answers are frames on stdout: one letter,
eight bytes of length, and that many bytes: D a description (JSON), B one batch (an Arrow stream),
E an error (JSON), Z the end of a read.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import signal
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bufcheck.errors import ReadError

MEMORY = 8 << 30
HEADER = struct.Struct("<cQ")
Frame = tuple[bytes, Any]
DAMAGED = "dump the buffer again, or restore the file from a copy"


def main() -> None:
    answers: queue.Queue[Frame] = queue.Queue(maxsize=1)
    threading.Thread(target=_send_all, args=(answers, _private_stdout()), daemon=True).start()
    _limit()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        _deadline(request["deadline"])
        for frame in _answer_or_error(request):
            _deadline(0)  # a slow consumer is no reason to die
            answers.put(frame)
            _deadline(request["deadline"])
        _deadline(0)


def _answer_or_error(request: dict[str, Any]) -> Iterator[Frame]:
    try:
        yield from _answer(request)
    except ReadError as error:
        yield _error(error.problem, error.step)
    except MemoryError:
        why = f"reading it takes more than {MEMORY >> 30} GiB of memory: it is damaged"
        yield _error(why, DAMAGED)
    except Exception as error:
        yield _error(*_explain(error))


def _private_stdout() -> int:
    """Keeps the answers on a descriptor of their own: libraries may print."""
    answers = os.dup(1)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    return answers


def _limit() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _deadline(seconds: int) -> None:
    """Ends this process if it hangs in HDF5 after its parent, and so the watchdog, was killed."""
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def _send_all(answers: queue.Queue[Frame], pipe: int) -> None:
    """In a thread of its own: while one batch is on its way, the next is read."""
    while True:
        kind, payload = answers.get()
        left = [memoryview(HEADER.pack(kind, len(payload))), memoryview(payload).cast("B")]
        while left:
            try:
                sent = os.write(pipe, left[0])
            except OSError:
                os._exit(0)  # nobody listens any more
            left[0] = left[0][sent:]
            if not left[0]:
                left.pop(0)


def _error(problem: str, step: str) -> Frame:
    return b"E", json.dumps({"error": problem, "step": step}).encode()


def _answer(request: dict[str, Any]) -> Iterator[Frame]:
    try:
        import h5py
    except ImportError as error:
        raise ReadError(f"HDF5 needs h5py ({error})", "pip install h5py") from None
    from bufcheck.formats import _hdf5_layout, _hdf5_recognise, _hdf5_stream, _hdf5_tree

    path = Path(request["path"])
    with h5py.File(path, "r") as file:
        if "texts" in request:  # a file of another tool, for an importer
            walk = _hdf5_layout.Walk(path.stat().st_size, *[_hdf5_tree.MOST_GROUPS] * 2)
            yield from _hdf5_tree.answer(walk, file, request)
            return
        root = _hdf5_layout.Walk(path.stat().st_size).root(file)
        columns = _hdf5_recognise.columns(root, set(request["ragged"]), request["lengths"])
        if "columns" not in request:
            yield b"D", json.dumps(_describe(root, columns)).encode()
            return
        wanted = request["columns"]
        if missing := [name for name in wanted if name not in columns]:
            raise ReadError(f"has no column {missing[0]}", f"it has {', '.join(columns)}")
        rows = min(column.rows for column in columns.values())
        ranges = [(0, rows)] if request["ranges"] is None else request["ranges"]
        if ranges and ranges[-1][1] > rows:
            raise ReadError("has fewer rows than a moment ago", "wait until its writer is done")
        for batch in _hdf5_stream.batches([columns[name] for name in wanted], ranges):
            yield b"B", _hdf5_stream.serialised(batch)
        yield b"Z", b""


def _describe(root: Any, columns: dict[str, Any]) -> dict[str, Any]:
    from bufcheck.formats import _hdf5_recognise, _hdf5_stream

    metadata = _hdf5_recognise.raw_attribute(root.group, "bufcheck")
    schema = _hdf5_stream.schema_of(list(columns.values()))
    parts = [part for column in columns.values() for part in (*column.made_of, column.valid)]
    return {
        "schema": base64.b64encode(schema.serialize()).decode(),
        "metadata": None if metadata is None else base64.b64encode(metadata).decode(),
        "lengths": [column.rows for column in columns.values()],
        "verified": bool(parts) and all(part.verified for part in parts if part is not None),
    }


def _explain(error: Exception) -> tuple[str, str]:
    """What an exception from h5py means to someone who only wanted to read a dump."""
    text = " ".join(str(error).split())
    low = text.lower()
    if isinstance(error, BlockingIOError) or "lock file" in low or "open for write" in low:
        return "is still being written, or its writer was killed", (
            "wait for the writer to close it; if none is running, dump the buffer again"
        )
    if "truncated file" in low:
        return f"was cut off ({text[text.lower().index('truncated file') :].rstrip(')')})", DAMAGED
    if isinstance(error, PermissionError | FileNotFoundError | IsADirectoryError):
        return os.strerror(error.errno or 0), ""
    return f"HDF5 cannot read it: {text[:300] or type(error).__name__}", DAMAGED


if __name__ == "__main__":
    main()
