"""SQL stays in its box: it reads the dump and nothing else, writes nothing, and ends in time."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import HEALTHY, ROOT, bufcheck, refused

from bufcheck import landlock, pipeline, query
from bufcheck.errors import QueryError

SECRET = "a secret that no query may see"

# {file}: a file beside the dump with SECRET in it; {new}: a name that is free; {link}: a link to the
# file; {spill}: the folder DuckDB spills to; {dump}: the dump; {port}: where somebody listens.
ESCAPES = """
SELECT * FROM read_text('{file}')
SELECT * FROM read_blob('{file}')
SELECT * FROM read_csv('{file}')
SELECT * FROM read_csv_auto('{file}', header = false)
SELECT * FROM read_json('{file}')
SELECT * FROM read_ndjson('{file}')
SELECT * FROM read_parquet('{dump}')
SELECT * FROM parquet_scan('{dump}')
SELECT * FROM parquet_metadata('{dump}')
SELECT * FROM parquet_schema('{dump}')
SELECT * FROM sniff_csv('{file}')
SELECT * FROM '{file}'
SELECT * FROM '{dump}'
SELECT * FROM "{dump}"
SELECT * FROM '{link}'
SELECT * FROM read_text('{link}')
SELECT * FROM glob('/etc/*')
SELECT * FROM glob('{folder}/*')
SELECT * FROM glob('{spill}/*')
SELECT * FROM read_text('{spill}/*')
SELECT * FROM read_text('/proc/self/environ')
SELECT * FROM read_text('/etc/passwd')
SELECT * FROM read_text('../../../../../../../etc/passwd')
SELECT (SELECT content FROM read_text('{file}')) AS x FROM samples
SELECT * FROM query('SELECT * FROM read_text(''{file}'')')
SELECT * FROM query_table('{file}')
COPY samples TO '{new}'
COPY samples TO '{new}' (FORMAT parquet)
COPY samples TO '{dump}' (FORMAT parquet)
COPY (SELECT 1) TO '{spill}/x.csv'
COPY samples FROM '{file}'
WITH x AS (COPY samples TO '{new}') SELECT * FROM x
WITH x AS (COPY samples TO '{dump}' (FORMAT parquet)) SELECT * FROM x
WITH x AS (COPY (SELECT 1) TO '{spill}/x.csv') SELECT * FROM x
WITH x AS (COPY (SELECT 1) TO '{spill}/x.csv'), y AS (SELECT * FROM x) SELECT * FROM samples, y
SELECT * FROM query('WITH x AS (COPY (SELECT 1) TO ''{spill}/x.csv'') SELECT * FROM x')
EXPLAIN ANALYZE WITH x AS (COPY (SELECT 1) TO '{spill}/x.csv') SELECT * FROM x
EXPORT DATABASE '{new}'
IMPORT DATABASE '{folder}'
ATTACH '{new}' AS other
ATTACH '{spill}/x.db' AS other
ATTACH ':memory:' AS other
INSTALL httpfs
INSTALL spatial FROM community
FORCE INSTALL httpfs
LOAD httpfs
LOAD '{file}'
SET enable_external_access = true
SET lock_configuration = false
SET temp_directory = '{folder}'
SET allowed_directories = ['/']
SET memory_limit = '100GB'
SET GLOBAL threads = 99
RESET enable_external_access
PRAGMA database_list
PRAGMA enable_profiling
PRAGMA profiling_output = '{new}'
CALL enable_logging(storage = 'file', storage_path = '{new}')
CALL pragma_version()
SET VARIABLE x = 1
SELECT getenv('HOME')
SELECT * FROM SECRET
SELECT * FROM os
SELECT * FROM pyarrow_table
SELECT * FROM globals()
CREATE TABLE t AS SELECT * FROM samples
CREATE TEMP TABLE t AS SELECT 1
CREATE VIEW samples AS SELECT 1
CREATE SECRET s (TYPE s3)
CREATE PERSISTENT SECRET s (TYPE http)
CREATE MACRO f(x) AS x
INSERT INTO samples SELECT * FROM samples
WITH x AS (INSERT INTO samples SELECT * FROM samples RETURNING 1) SELECT * FROM x
UPDATE samples SET reward = 0
DELETE FROM samples
DROP VIEW samples
ALTER TABLE samples RENAME TO s
BEGIN TRANSACTION
CHECKPOINT
VACUUM
PREPARE p AS SELECT 1
EXECUTE p
USE other
SELECT 1; COPY samples TO '{new}'
SELECT 1; SET enable_external_access = true
SELECT * FROM 'http://127.0.0.1:{port}/x.parquet'
SELECT * FROM read_csv('http://127.0.0.1:{port}/x.csv')
SELECT * FROM read_parquet('s3://bucket/x.parquet')
SELECT * FROM read_text('http://127.0.0.1:{port}/')
ATTACH 'http://127.0.0.1:{port}/x.db'
SELECT * FROM sqlite_scan('{file}', 't')
SELECT * FROM postgres_scan('host=127.0.0.1 port={port}', 'public', 't')
EXPLAIN ANALYSE WITH x AS (COPY (SELECT 1) TO '{spill}/x.csv') SELECT * FROM x
EXPLAIN (ANALYSE) WITH x AS (COPY (SELECT 1) TO '{spill}/x.csv') SELECT * FROM x
EXPLAIN (ANALYZE true, FORMAT json) COPY (SELECT 1) TO '{spill}/x.csv'
EXPLAIN /* ANALYZE */ ANALYZE SELECT 1
EXPLAIN -- a plan
EXPLAIN ANALYSE CREATE MACRO abs(x) AS 7
EXPLAIN ANALYSE BEGIN
EXPLAIN COPY samples TO '{new}'
EXPLAIN SELECT * FROM read_csv('{spill}/*')
SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM glob(''{spill}/*'')'))
SELECT * FROM query(CASE WHEN random() < .5 THEN 'SELECT 1' ELSE 'FROM glob(''{spill}/*'')' END)
SELECT * FROM "query" /* */ ('SELECT * FROM samples')
SELECT * FROM register_external_resource_type('a', kind := 'b', create_function := 'read_text')
SELECT * FROM checkpoint()
SELECT * FROM truncate_duckdb_logs()
FROM duckdb_secrets()
""".strip().splitlines()


class Listening:
    """A server that notes whoever calls."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port, self.calls = self.socket.getsockname()[1], 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.calls += 1
            connection.close()


@pytest.fixture(scope="module")
def listening() -> Iterator[Listening]:
    made = Listening()
    yield made
    made.socket.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("box")
    (made / "dump.parquet").write_bytes(HEALTHY.read_bytes())
    (made / "file.csv").write_text(f"a,b\n{SECRET},1\n")
    (made / "link.csv").symlink_to(made / "file.csv")
    return made


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[query.Session]:
    job = pipeline.opened([str(folder / "dump.parquet")], pipeline.Options())
    with query.Session(job, timeout=60) as made:
        yield made


def spill_of(session: query.Session) -> Path:
    [[path]] = session.ask("SELECT current_setting('temp_directory')").read_all().to_pydict().values()
    return Path(path)


def filled(escape: str, folder: Path, spill: Path, listening: Listening) -> str:
    names = {"file": folder / "file.csv", "link": folder / "link.csv", "new": folder / "new.csv"}
    return escape.format(
        **names, dump=folder / "dump.parquet", folder=folder, spill=spill, port=listening.port
    )


def contents(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir() if p.is_file()}


@pytest.mark.parametrize("escape", ESCAPES)
def test_escape(session: query.Session, folder: Path, listening: Listening, escape: str) -> None:
    spill, before = spill_of(session), contents(folder)
    sql = filled(escape, folder, spill, listening)
    with pytest.raises(QueryError) as refusal:
        print(session.ask(sql).read_all())
    assert SECRET not in str(refusal.value)
    assert contents(folder) == before
    assert list(spill.iterdir()) == []
    assert listening.calls == 0
    # The box is as good as before.
    assert session.ask("SELECT count(*) AS n FROM samples").read_all().to_pylist() == [{"n": 354}]


@pytest.mark.parametrize("escape", [ESCAPES[0], ESCAPES[31], ESCAPES[33], "SET threads = 1"])
def test_escape_by_command(folder: Path, listening: Listening, escape: str) -> None:
    before = contents(folder)
    sql = filled(escape, folder, folder / "spill", listening)
    assert SECRET not in refused(bufcheck("query", folder / "dump.parquet", sql, "--format", "csv"))
    assert contents(folder) == before


@pytest.mark.parametrize(
    "sql",
    [
        "EXPLAIN SELECT count(*) FROM samples",
        "explain -- a comment\nWITH x AS (SELECT 'analyze' AS a) SELECT * FROM x",
        "SHOW samples",
        "SHOW TABLES",
        "DESCRIBE SELECT * FROM samples",
        "SUMMARIZE samples",
        "VALUES (1)",
        "SELECT * FROM range(3), unnest([1, 2]), generate_series(1, 2)",
        'SELECT copy, "insert" FROM (SELECT 1 AS copy, 2 AS "insert")',
        "PIVOT samples ON agent_id IN ('EDU', 'IND') USING count(*) GROUP BY timestep",
        "SELECT json_extract('{\"a\": 1}', '$.a'), * FROM json_each('{\"a\": 1}')",
    ],
)
def test_questions_that_are_none_of_this(session: query.Session, sql: str) -> None:
    assert session.ask(sql).read_all().num_rows


def test_python_is_out_of_reach(session: query.Session) -> None:
    secret_table = SECRET  # noqa: F841
    with pytest.raises(QueryError, match="no view secret_table"):
        session.ask("SELECT * FROM secret_table")


def test_there_are_forty() -> None:
    assert len(ESCAPES) >= 40


# The second layer

TRIES = """
import os, socket, sys
from pathlib import Path
from bufcheck import landlock
inside, outside, port = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
abi = landlock.version()
assert landlock.only(inside)
(inside / "mine").write_text("spilled")
assert (inside / "mine").read_text() == "spilled"

def denied(call):
    try:
        call()
    except PermissionError:
        return True
    return False

print([
    denied(lambda: outside.read_text()),
    denied(lambda: outside.write_text("changed")),
    denied(lambda: os.listdir("/")),
    denied(lambda: (inside / ".." / "new").write_text("x")),
    denied(lambda: os.unlink(outside)),
    denied(lambda: open("/proc/self/environ").read()),
    abi < landlock.TCP_SINCE or denied(lambda: socket.create_connection(("127.0.0.1", port))),
    abi < landlock.SCOPES_SINCE or denied(lambda: os.kill(os.getppid(), 0)),
])
"""


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
def test_landlock_shuts_what_python_can_reach(tmp_path: Path, listening: Listening) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside.txt"
    inside.mkdir()
    outside.write_text(SECRET)
    done = subprocess.run(
        [sys.executable, "-c", TRIES, inside, outside, str(listening.port)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == str([True] * 8), done.stderr
    assert outside.read_text() == SECRET and listening.calls == 0


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
def test_the_box_is_landlocked(session: query.Session) -> None:
    session.ask("SELECT 1").read_all()
    assert session._box is not None and session._box.landlocked
    # The threads that run SQL are bound: the first, and those DuckDB started after it was. What Arrow
    # started at import is not, and runs none.
    tasks = Path(f"/proc/{session._box.process.pid}/task")
    told = [(task / "status").read_text() for task in tasks.iterdir()]
    assert sum("NoNewPrivs:\t1" in text for text in told) == os.cpu_count()


# Limits

RUNAWAYS = [
    "SELECT count(*) FROM samples a, samples b, samples c, samples d, samples e",
    "SELECT count(*) FROM range(100000) a, range(100000) b, range(100000) c",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t",
    "WITH RECURSIVE t(n) AS (SELECT 'x' UNION ALL SELECT n || n FROM t) SELECT max(len(n)) FROM t",
    "SELECT len(repeat('x', 2000000000))",
    "SELECT repeat(agent_id, 1000000000) FROM samples",
    "SELECT list_sum(range(2000000000))",
    "SELECT list_sum(range(2000000000 + row_id)) FROM samples",
    "SELECT max(i) FROM (SELECT i FROM range(100000000000) t(i) ORDER BY hash(i))",
]
MEASURED = """
import resource, subprocess, sys, time
begun = time.monotonic()
command = [sys.executable, "-m", "bufcheck", *sys.argv[1:]]
done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
seconds = time.monotonic() - begun
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(done.returncode, seconds, peak // 1024, done.stdout + done.stderr.strip())
"""
BASE_MB = 350
"""What Python, DuckDB and Arrow take before anything is asked."""


def processes_with(mark: str) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("sql", RUNAWAYS)
def test_runaways_end_in_time(sql: str, tmp_path: Path) -> None:
    mark = f"bufcheck-test-{uuid.uuid4()}"
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, "query", HEALTHY, sql, "--timeout", "5", "--memory", "1GB"],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MARK": mark, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    code, seconds, peak, told = done.stdout.split(" ", 3)
    assert int(code) == 2, told
    assert float(seconds) < 7, told
    assert int(peak) < 1024 + BASE_MB
    assert told.startswith("bufcheck: the query") and len(told.splitlines()) == 1
    assert processes_with(mark) == []
    assert list(tmp_path.iterdir()) == []  # what was spilled is gone


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_is_left_when_the_command_is_ended(how: signal.Signals, tmp_path: Path) -> None:
    mark = f"bufcheck-test-{uuid.uuid4()}"
    command = subprocess.Popen(
        [sys.executable, "-m", "bufcheck", "query", HEALTHY, RUNAWAYS[1]],
        env={**os.environ, "PYTHONPATH": str(ROOT), "MARK": mark, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    until = time.monotonic() + 40
    while len(processes_with(mark)) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(1)
    assert len(processes_with(mark)) == 2
    command.send_signal(how)
    code = command.wait(timeout=20)
    assert code == (-how if how == signal.SIGKILL else 128 + how)
    while processes_with(mark) and time.monotonic() < until:
        time.sleep(0.05)
    assert processes_with(mark) == []
    if how == signal.SIGKILL:  # nobody was left to tidy up; the next one does
        assert list(tmp_path.iterdir())
        bufcheck_in(tmp_path)
    assert list(tmp_path.iterdir()) == []


def bufcheck_in(temporary: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "bufcheck", "query", HEALTHY, "SELECT 1 AS a"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL, capture_output=True, check=True,
    )  # fmt: skip


def test_a_box_that_died_is_replaced(session: query.Session) -> None:
    session.ask("SELECT 1").read_all()
    assert session._box is not None
    session._box.process.kill()
    session._box.process.wait()
    assert session.ask("SELECT 2 AS a").read_all().to_pylist() == [{"a": 2}]


def test_an_answer_that_is_not_wanted_any_more_ends_the_box(session: query.Session) -> None:
    reader = session.ask("SELECT range AS i FROM range(100000000)")
    assert reader.read_next_batch().num_rows
    reader.close()
    del reader
    assert session.ask("SELECT 3 AS a").read_all().to_pylist() == [{"a": 3}]


@pytest.mark.parametrize(("text", "size"), [("2GB", 2 << 30), ("512 MB", 512 << 20), ("1.5g", 3 << 29)])
def test_sizes(text: str, size: int) -> None:
    assert query.memory_of(text) == size


@pytest.mark.parametrize("text", ["", "much", "10MB", "-1GB"])
def test_sizes_that_are_none(text: str) -> None:
    assert "is no size of memory" in refused(bufcheck("query", HEALTHY, "SELECT 1 ", "--memory", text))
