"""The box that user SQL runs in: `python -m bufcheck.boxed`, a process with nothing to lose.

It is handed what it may see, a view at a time and over a socket; it opens no file but those it spills
to, in a folder of its own. Its address space is limited, DuckDB's doors are shut and locked, and on
Linux Landlock shuts them again from outside. It answers until it is killed.

The line on stdin says where to connect to. Frames are one letter and what follows: S a schema, B a
batch (an Arrow stream of its own), E an error (JSON), Z the end.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute
import pyarrow.dataset  # here, because nothing can be imported later

from bufcheck import landlock, lazy
from bufcheck.statement import PIECE

BATCH_ROWS = 1 << 14
SHARE = 0.6
"""Of the memory allowed, what DuckDB may use before it spills."""
FORBIDDEN = re.compile(
    r"COPY|INSERT|UPDATE|DELETE|MERGE|CREATE|DROP|ALTER|ATTACH|DETACH|EXPORT|LOAD|VACUUM|TRANSACTION"
)
"""Steps of a plan that change something: COPY may stand in a WITH and pass for a SELECT."""
FUNCTIONS = re.compile(
    r"(PYTHON_)?ARROW_SCAN|RANGE|GENERATE_SERIES|UNNEST|REPEAT(_ROW)?|JSON_(EACH|TREE)|SUMMARY"
    r"|PRAGMA_(SHOW|TABLE_INFO|VERSION)|DUCKDB_(COLUMNS|TABLES|VIEWS|FUNCTIONS|TYPES|KEYWORDS|SETTINGS)"
)
"""What may stand in a FROM besides the views; others read files, or change something."""
HIDING = re.compile(r'"?\b(query|query_table|json_execute_serialized_sql)"?\s*\(', re.IGNORECASE)
"""Functions that run SQL made of texts: what was looked at need not be what runs."""
READS = "a query reads, and changes nothing"
EXPLAIN = "EXPLAIN (FORMAT json)"


class RefusedError(Exception):
    """This is no question about the dump."""


def main() -> None:
    told = json.loads(sys.stdin.readline())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    _die_with_parent()
    key = bytes.fromhex(told["key"])

    def dial() -> Any:
        return Client(told["address"], authkey=key)

    parent = dial()
    _limit_memory(told["memory"])
    connection = _connected(told["spill"], told["memory"])
    _rehearse(connection)
    held = landlock.only(Path(told["spill"]))
    # A thread is bound by what bound the one that started it, so the others are started only now.
    connection.execute(f"SET threads = {told['threads']}")
    connection.execute("SET lock_configuration = true")
    parent.send_bytes(b"R" + json.dumps({"landlock": held}).encode())
    while True:
        request = json.loads(parent.recv_bytes())
        try:
            _answer(connection, request, parent, dial)
        except BrokenPipeError:
            raise
        except Exception as error:
            parent.send_bytes(b"E" + json.dumps(_told(error)).encode())


def _die_with_parent() -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _limit_memory(most: int) -> None:
    """Of the address space: only that bounds repeat() and range()."""
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + most, mapped + most))


def _connected(spill: str, memory: int) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": f"{int(SHARE * memory)}B",
            "threads": 1,
            "temp_directory": spill,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "python_enable_replacements": False,
        },
    )
    # Not at connect: that would forbid naming the folder to spill to. It cannot be undone.
    connection.execute("SET enable_external_access = false")
    return connection


def _rehearse(connection: duckdb.DuckDBPyConnection) -> None:
    """Asks once what will be asked later: modules that load on first use can be loaded no more then."""
    table = pa.table({"a": [1, 2, 3], "b": ["x", "y", None], "c": [[1.5], [], None]})
    connection.register(
        "rehearsal", lazy.dataset(table.schema, lambda names: iter(table.select(names).to_batches()))
    )
    sql = "SELECT a, c FROM rehearsal WHERE a IN (1, 2) AND b = $b AND a < 7"
    _planned(connection, sql, {"b": "x"})
    for batch in connection.sql(sql, params={"b": "x"}).to_arrow_reader(BATCH_ROWS):
        serialised(batch)
    connection.unregister("rehearsal")


def _answer(
    connection: duckdb.DuckDBPyConnection, request: dict[str, Any], parent: Any, dial: Any
) -> None:
    for name, schema in request["views"].items():
        fields = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(schema)))
        connection.register(name, lazy.dataset(fields, partial(_scan, dial, name)))
    statement = _only_a_question(connection, request["sql"])
    given = {k: v for k, v in request["parameters"].items() if k in statement.named_parameters}
    _refuse_what_changes(connection, statement, given)
    reader = connection.sql(statement.query, params=given or None).to_arrow_reader(BATCH_ROWS)
    parent.send_bytes(b"S" + reader.schema.serialize().to_pybytes())
    for batch in reader:
        parent.send_bytes(b"B" + serialised(batch))
    parent.send_bytes(b"Z")


def _scan(dial: Callable[[], Connection], name: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with dial() as server:
        server.send_bytes(json.dumps({"view": name, "columns": columns}).encode())
        while (frame := server.recv_bytes())[:1] == b"B":
            yield from pa.ipc.open_stream(pa.py_buffer(frame)[1:])
        if frame[:1] == b"E":
            raise RefusedError(frame[1:].decode())


def serialised(batch: pa.RecordBatch) -> bytes:
    """A stream of its own for every batch, so that each carries its own dictionaries."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def _only_a_question(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise RefusedError(f"{len(statements)} statements: ask one at a time")
    kind = statements[0].type.name
    if kind == "MULTI":
        raise RefusedError("PIVOT must name its values here: PIVOT … ON column IN (value, …)")
    if kind not in ("SELECT", "EXPLAIN"):
        raise RefusedError(f"{kind} is refused: {READS}; begin with SELECT, WITH or FROM")
    if found := HIDING.search(_uncommented(sql)):
        raise RefusedError(f"{found[1]} is refused: write the SQL itself")
    if kind == "EXPLAIN":
        _only_a_question_explained(connection, sql)
    return statements[0]


def _only_a_question_explained(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """EXPLAIN (ANALYZE) runs what it explains, whatever that is."""
    explained = re.match(r"\s*EXPLAIN\s+(?!\(|ANALY[SZ]E\b)(.*)", _uncommented(sql), re.I | re.S)
    if explained is None:
        raise RefusedError("EXPLAIN with options is refused; EXPLAIN SELECT … shows the plan")
    inner = connection.extract_statements(explained[1])
    if len(inner) != 1 or inner[0].type.name != "SELECT":
        raise RefusedError(f"EXPLAIN explains a SELECT here: {READS}")
    _refuse_what_changes(connection, inner[0], dict.fromkeys(inner[0].named_parameters))


def _uncommented(sql: str) -> str:
    return PIECE.sub(lambda piece: " " if piece.lastgroup == "comment" else piece[0], sql)


def _refuse_what_changes(
    connection: duckdb.DuckDBPyConnection, statement: duckdb.Statement, given: dict[str, Any]
) -> None:
    """By its plan: DuckDB itself would let the folder it spills to be written and read."""
    if statement.type.name != "SELECT":
        return
    for step in _steps(json.loads(_planned(connection, statement.query, given))):
        name = step["name"].strip().upper().replace(" ", "_")
        function = str(step.get("extra_info", {}).get("Function", "")).strip().upper()
        if function:
            if not FUNCTIONS.fullmatch(function):
                raise RefusedError(
                    f"{function.lower()}() is refused: a query sees the dump, and no file"
                )
        elif FORBIDDEN.search(name):
            raise RefusedError(f"{name} is refused: {READS}")


def _planned(connection: duckdb.DuckDBPyConnection, sql: str, given: dict[str, Any]) -> str:
    try:
        [[_, text]] = connection.execute(f"{EXPLAIN}\n{sql}", given or None).fetchall()
    except duckdb.Error as error:
        # Where it points to is a line further down than in what the user wrote.
        error.args = (re.sub(r"\nLINE (\d+)", lambda m: f"\nLINE {int(m[1]) - 1}", str(error)),)
        raise
    return str(text)


def _steps(plan: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for step in plan:
        yield step
        yield from _steps(step.get("children", []))


def _told(error: Exception) -> dict[str, Any]:
    return {"kind": type(error).__name__, "text": str(error)}


if __name__ == "__main__":
    try:
        main()
    except (EOFError, BrokenPipeError, ConnectionError):
        os._exit(0)  # nobody asks any more
