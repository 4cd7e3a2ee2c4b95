"""Asks a dump in SQL: finds out which views a question needs, and has it answered in a box."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bufcheck.box import Box, FailedError
from bufcheck.errors import QueryError, UsageError
from bufcheck.views import Views

if TYPE_CHECKING:
    import pyarrow as pa

    from bufcheck.reading import Job

MEMORY = 2 << 30
TIMEOUT = 300.0
LEAST_MEMORY = 256 << 20
BROKEN = ("InternalException", "FatalException")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass
class Session:
    """Questions to one dump, each answered in full before the next."""

    job: Job
    memory: int = MEMORY
    timeout: float = TIMEOUT
    begun: float | None = None
    """When the first question was asked, if that was before now."""
    views: Views = field(init=False)
    _box: Box | None = None

    def __post_init__(self) -> None:
        self.views = Views(self.job)
        self._started()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.views.close()

    def ask(self, sql: str, parameters: Mapping[str, Any] | None = None) -> pa.RecordBatchReader:
        """The answer, as it comes."""
        import pyarrow as pa

        box = self._started()
        begun, self.begun = self.begun or time.monotonic(), None
        before = time.monotonic()
        views = self.views.prepare(sql)
        # To replay or check the dump first may take its time; the limit is on the question.
        until = begun + self.timeout + (time.monotonic() - before)
        answer = self._answered(box.ask(sql, parameters or {}, views, until, self.timeout), sql)
        return pa.RecordBatchReader.from_batches(next(answer), answer)

    def stop(self) -> None:
        """Ends the question that is being answered; the next one gets a new box."""
        if self._box is not None:
            self._box.end()
            self._box = None

    def _started(self) -> Box:
        if self._box is None or not self._box.alive:
            self.stop()
            self._box = Box(self.views.read, self.memory, os.cpu_count() or 1)
        return self._box

    def _answered(self, frames: Iterator[Any], sql: str) -> Iterator[Any]:
        try:
            yield from frames
        except FailedError as failed:
            raise self._explained(failed, sql) from None

    def _explained(self, failed: FailedError, sql: str) -> QueryError:
        """DuckDB's words in one line: where in the SQL, and what may have been meant."""
        if failed.kind in BROKEN or "TransactionContext" in failed.text:
            self.stop()  # what it says next would be about this
        text, _, place = failed.text.partition("\n\nLINE ")
        said = " ".join(text.partition("Stack Trace")[0].split())
        if failed.kind == "OutOfMemoryException" or "bad_alloc" in said or failed.kind == "MemoryError":
            more = f"--memory {_written(2 * self.memory)}"
            return QueryError(
                f"the query needs more than {_written(self.memory)} of memory",
                f"make it smaller, or say {more}",
            )
        missing = re.search(r"Table with name (\S+) does not exist", said)
        step = self.views.why_not(missing[1].strip('"').lower()) if missing else ""
        if missing:
            said = f"there is no view {missing[1]}"
        return QueryError(said.rstrip("!.") + _where(place), step)


def _where(place: str) -> str:
    """DuckDB points with carets below the line; on one line that is a column."""
    found = re.match(r"(\d+): (.*)\n( *)(\^+)", place)
    if not found:
        return ""
    line, shown, blanks, carets = found.groups()
    column = max(len(blanks) - len(f"LINE {line}: "), 0)
    word = shown[column : column + len(carets)].split("...")[0].strip()
    exact = "" if shown.startswith("...") else f", column {column + 1}"
    return f" (line {line}{exact}{f', at {word}' if word else ''})"


def memory_of(text: str) -> int:
    """ "2GB" → bytes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    size = int(float(found[1]) * UNITS[found[2].upper()]) if found else 0
    if size < LEAST_MEMORY:
        raise UsageError(
            f"{text!r} is no size of memory", f"say {_written(LEAST_MEMORY)} or more, as in 2GB"
        )
    return size


def _written(size: int) -> str:
    return f"{size / (1 << 30):g}GB" if size >= 1 << 30 else f"{size >> 20}MB"


def parameters_of(given: tuple[str, ...]) -> dict[str, Any]:
    """name=value texts. A value is read as JSON where it is JSON, else it is a text."""
    import json

    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"-p {text}: not a parameter", "say -p name=value, and $name in the SQL")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
