"""Runs user SQL in a process of its own, `boxed`: hands it what it asks for, and ends it in time."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bufcheck import spawn
from bufcheck.errors import BufcheckError, QueryError

if TYPE_CHECKING:
    import pyarrow as pa

Read = Callable[[str, Sequence[str]], "Iterator[pa.RecordBatch]"]
FOLDER = "bufcheck-box-"
GRACE = 60.0
"""Seconds a box has to start, on the slowest of machines."""


class FailedError(Exception):
    """What DuckDB said, in its own words."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


class Box:
    """One process that answers one question after the other. It is started at once, in the background:
    what it must import takes as long as to open the dump."""

    def __init__(self, read: Read, memory: int, threads: int) -> None:
        self._read, self.memory, self._threads = read, memory, threads
        _sweep()
        self._folder = tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-")
        self._timed_out, self._allowed = False, 0.0
        self.landlocked = False
        self._parent: Connection | None = None
        self._failure: BufcheckError | None = None
        spill = os.path.join(self._folder, "spill")
        os.mkdir(spill, 0o700)
        key = secrets.token_bytes(32)
        family = "AF_PIPE" if os.name == "nt" else "AF_UNIX"
        address = None if os.name == "nt" else os.path.join(self._folder, "socket")
        self._listener = Listener(address, family, backlog=64, authkey=key)
        self.process = subprocess.Popen(
            spawn.command("bufcheck.boxed"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=None if os.environ.get("BUFCHECK_DEBUG") else subprocess.DEVNULL,
            cwd=spawn.ROOT,
            env=_environment(),
        )
        told = {"address": self._listener.address, "key": key.hex(), "spill": spill}
        told |= {"memory": memory, "threads": threads}
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps(told).encode() + b"\n")
            self.process.stdin.flush()
        self._connected = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def ask(
        self,
        sql: str,
        parameters: Mapping[str, Any],
        views: Mapping[str, pa.Schema],
        until: float,
        allowed: float,
    ) -> Iterator[Any]:
        """The schema of the answer, then its batches. `until`: when to give up, on the clock of
        time.monotonic, after `allowed` seconds."""
        import pyarrow as pa

        self._allowed, self._failure = allowed, None
        watchdog = threading.Timer(max(0.0, until - time.monotonic()), self._give_up)
        watchdog.daemon = True
        watchdog.start()
        try:
            parent = self._greeted()
            schemas = {name: schema.serialize().to_pybytes().hex() for name, schema in views.items()}
            request = {"sql": sql, "parameters": dict(parameters), "views": schemas}
            parent.send_bytes(json.dumps(request).encode())
            while (frame := parent.recv_bytes())[:1] != b"Z":
                if frame[:1] == b"E":
                    raise self._failure or FailedError(**json.loads(frame[1:]))
                body = pa.py_buffer(frame)[1:]
                if frame[:1] == b"S":
                    yield pa.ipc.read_schema(body)
                else:
                    yield from pa.ipc.open_stream(body)
        except (EOFError, OSError):
            raise self._obituary() from None
        except GeneratorExit:
            self.end()  # nobody wants the rest
            raise
        finally:
            watchdog.cancel()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """Kills it, waits for it, and removes what it spilled."""
        self.process.kill()
        self.process.wait()
        # Whoever waits for a call does not notice that the listener is closed.
        with contextlib.suppress(AttributeError, OSError), socket.socket(socket.AF_UNIX) as caller:
            caller.connect(self._listener.address)
        with contextlib.suppress(OSError):
            self._listener.close()
        for pipe in (self._parent, self.process.stdin):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _greeted(self) -> Connection:
        deadline = time.monotonic() + GRACE
        while not self._connected.wait(0.05):
            if not self.alive or time.monotonic() > deadline:
                raise EOFError
        assert self._parent is not None
        return self._parent

    def _give_up(self) -> None:
        self._timed_out = True
        self.process.kill()

    def _obituary(self) -> BufcheckError:
        code = self.process.wait() if not self.alive else None
        self.end()
        if self._failure is not None:
            return self._failure
        if self._timed_out:
            return QueryError(
                f"the query took longer than {self._allowed:g} s", "make it smaller, or say --timeout"
            )
        limit = f"{self.memory >> 20} MB of memory"
        return QueryError(
            f"the query's process died ({code}), most likely for want of more than {limit}",
            "make it smaller, or allow more: --memory",
        )

    # What the box is handed

    def _serve(self) -> None:
        """The first to call is the box itself; every later call asks for a view."""
        while True:
            try:
                caller = self._listener.accept()
            except Exception:  # the listener was closed, or the caller was killed as it called
                if not self.alive:
                    return
                continue
            if self._parent is None:
                self._greet(caller)
            else:
                threading.Thread(target=self._hand, args=(caller,), daemon=True).start()

    def _greet(self, caller: Connection) -> None:
        self._parent = caller
        with contextlib.suppress(EOFError, OSError):
            self.landlocked = json.loads(caller.recv_bytes()[1:])["landlock"]
            self._connected.set()

    def _hand(self, caller: Connection) -> None:
        from bufcheck.formats._hdf5_stream import serialised

        with caller, contextlib.suppress(EOFError, OSError):
            asked = json.loads(caller.recv_bytes())
            name = asked["view"]
            try:
                for batch in self._read(name, asked["columns"]):
                    caller.send_bytes(b"B" + serialised(batch))
                caller.send_bytes(b"Z")
            except (BrokenPipeError, ConnectionError):
                raise  # it has seen enough
            except Exception as error:
                told = error if isinstance(error, BufcheckError) else BufcheckError(f"{name}: {error}")
                self._failure = told
                caller.send_bytes(b"E" + str(told).encode())


def _environment() -> dict[str, str]:
    # Every arena of the allocator takes address space, whether it is used or not.
    return spawn.environment() | {"MALLOC_ARENA_MAX": "2"}


def _sweep() -> None:
    """Removes what boxes of processes that were killed have left behind."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        owner = folder.name.removeprefix(FOLDER).partition("-")[0]
        if owner.isdigit() and os.name != "nt" and not _is_running(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
