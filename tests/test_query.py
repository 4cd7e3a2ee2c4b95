"""`bufcheck query`: the same answers as DuckDB on a plain table, from both formats."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import FIXTURES, HEALTHY, bufcheck, failing, refused

import bufcheck as package
from bufcheck import pipeline, query, question
from bufcheck.convert import convert
from bufcheck.dump import Dump

ACTOR = str(FIXTURES / "actors" / "{agent_id}-{policy_version}.safetensors")
KEYS = ["agent_id", "episode_id", "old_log_prob", "timestep"]
BROKEN = sorted((FIXTURES / "broken").glob("*.parquet"))

# What is asked, and what a plain table of the dump is asked instead where it has no such view.
QUESTIONS: list[tuple[str, str | None]] = [
    ("SELECT count(*) FROM samples", None),
    ("SELECT row_id, episode_id, timestep, agent_id FROM samples", None),
    ("SELECT * FROM samples", None),
    ("FROM samples WHERE row_id BETWEEN 10 AND 20", None),
    ("SELECT agent_id, count(*), avg(reward), stddev(reward) FROM samples GROUP BY ALL", None),
    ("SELECT policy_version, agent_id, sum(reward) FROM samples GROUP BY CUBE (1, 2)", None),
    ("SELECT state_embed[1], state_embed[-1], state_embed[2:4] FROM samples", None),
    ("SELECT len(state_embed), list_sum(state_embed), list_max(state_embed) FROM samples", None),
    ("SELECT row_id, unnest(subset_indices) AS id FROM samples", None),
    ("SELECT id, count(*) FROM (SELECT unnest(subset_indices) AS id FROM samples) GROUP BY 1", None),
    ("SELECT list_contains(subset_indices, 3), list_sort(subset_indices) FROM samples", None),
    ("SELECT subset_indices[action_index + 1] = action_id, count(*) FROM samples GROUP BY 1", None),
    ("SELECT list_filter(action_mask, lambda m: m) FROM samples", None),
    ("SELECT list_transform(logits, lambda x: x * 2) FROM samples WHERE num_actions > 5", None),
    (
        "SELECT row_id, lag(old_log_prob) OVER (PARTITION BY episode_id, agent_id ORDER BY timestep)"
        " FROM samples",
        None,
    ),
    (
        "SELECT row_id, sum(reward::DOUBLE) OVER (PARTITION BY episode_id ORDER BY row_id DESC)"
        " FROM samples QUALIFY row_number() OVER (PARTITION BY agent_id ORDER BY reward, row_id) <= 7",
        None,
    ),
    (
        "SELECT a.row_id, b.row_id FROM samples a JOIN samples b ON a.episode_id = b.episode_id"
        " AND a.timestep + 1 = b.timestep AND a.agent_id = b.agent_id WHERE a.reward > b.reward",
        None,
    ),
    ("SELECT agent_id FROM samples WHERE agent_id > 'E' AND agent_id <> 'LAB' AND valid", None),
    ("SELECT terminated, truncated, count(*) FROM samples GROUP BY ALL", None),
    ("SELECT quantile_cont(value, [0.1, 0.5, 0.9]) FROM samples", None),
    ("SELECT count(*) FROM samples WHERE reward < 0.5 AND timestep IN (1, 2, 3)", None),
    ("SELECT DISTINCT x_note FROM samples", None),
    ("WITH RECURSIVE t(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM t WHERE n < 5)"
     " SELECT n, count(row_id) FROM t LEFT JOIN samples ON timestep = n GROUP BY 1", None),
    ("FROM samples WHERE row_id IN (SELECT max(row_id) FROM samples GROUP BY agent_id)", None),
    ("SELECT s FROM samples s WHERE row_id = 5", None),
    ("SELECT corr(value, \"return\"), regr_slope(value, \"return\") FROM samples", None),
    (
        "SELECT num_actions, count(*), sum(subset_len) FROM digest GROUP BY 1",
        "SELECT num_actions, count(*), sum(len(subset_indices)) FROM samples GROUP BY 1",
    ),
    (
        "SELECT s.row_id, d.chosen_id, d.mask_legal FROM samples s JOIN digest d USING (row_id)",
        "SELECT row_id, subset_indices[action_index + 1], len(list_filter(action_mask, lambda m: m))"
        " FROM samples",
    ),
    (
        "SELECT episode_id, agent_id, rows, steps, reward_sum, version_min, version_max FROM episodes",
        "SELECT episode_id, agent_id, count(*), count(DISTINCT timestep), sum(reward::DOUBLE),"
        " min(policy_version), max(policy_version) FROM samples GROUP BY ALL",
    ),
    (
        "SELECT agent_id, rows, episodes, reward_mean, log_prob_mean FROM agents",
        "SELECT agent_id, count(*), count(DISTINCT episode_id), avg(reward::DOUBLE),"
        " avg(old_log_prob::DOUBLE) FROM samples GROUP BY 1",
    ),
    (
        "SELECT e.agent_id, count(*), max(last_step) FROM episodes e JOIN agents USING (agent_id)"
        " GROUP BY ALL",
        "SELECT agent_id, count(DISTINCT episode_id), max(timestep) FROM samples GROUP BY ALL",
    ),
    (
        "SELECT count(*), max(abs(residual)) < 1e-5, min(s.num_actions) FROM replay"
        " JOIN samples s USING (row_id) WHERE log_prob IS NOT NULL",
        "SELECT count(*), true, min(num_actions) FROM samples",
    ),
    ("SELECT code, count(*) FROM findings GROUP BY 1", "SELECT 'x', 1 WHERE false"),
    ("SELECT cause, count(*) FROM causes GROUP BY 1", "SELECT 'x', 1 WHERE false"),
]  # fmt: skip


@pytest.fixture(scope="module", params=["parquet", "h5", "two files"])
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("dump")
    if request.param == "parquet":
        paths = [HEALTHY]
    elif request.param == "h5":
        paths = [folder / "dump.h5"]
        convert([str(HEALTHY)], paths[0])
    else:
        table = pq.read_table(HEALTHY)
        paths = [folder / "1.parquet", folder / "2.parquet"]
        for path, part in zip(paths, (table[:100], table[100:]), strict=True):
            described = json.loads(table.schema.metadata[b"bufcheck"]) | {"rows": len(part)}
            pq.write_table(part.replace_schema_metadata({"bufcheck": json.dumps(described)}), path)
    job = pipeline.opened([str(path) for path in paths], pipeline.Options(actor=(ACTOR,)))
    with query.Session(job) as made:
        yield made


@pytest.fixture(scope="module")
def plain() -> duckdb.DuckDBPyConnection:
    """What DuckDB itself reads of the same rows."""
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE samples AS SELECT row_number() OVER () - 1 AS row_id, *"
        f" FROM read_parquet('{HEALTHY}')"
    )
    return connection


def comparable(value: Any) -> Any:
    """Floats to nine digits, and no difference between lists and tuples."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else float(f"{value:.9g}")
    if isinstance(value, dict):
        return {k: comparable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [comparable(v) for v in value]
    return value


def rows_of(table: pa.Table) -> list[str]:
    columns = [column.to_pylist() for column in table.columns]
    return sorted(repr(comparable(row)) for row in zip(*columns, strict=True))


@pytest.mark.parametrize(("asked", "instead"), QUESTIONS)
def test_the_same_answer_as_on_a_plain_table(
    session: query.Session, plain: duckdb.DuckDBPyConnection, asked: str, instead: str | None
) -> None:
    answer = session.ask(asked).read_all()
    expected = plain.sql(instead or asked).to_arrow_table()
    assert rows_of(answer) == rows_of(expected)
    if instead is None:
        assert answer.column_names == expected.column_names


def test_there_are_thirty() -> None:
    assert len(QUESTIONS) >= 30


def test_the_columns_told_are_those_there_are(session: query.Session) -> None:
    for name, columns in session.views.columns().items():
        assert sorted(session.ask(f"SELECT * FROM {name} LIMIT 0").schema.names) == sorted(columns), (
            name
        )


# What is read


class Reads(list[list[str]]):
    """The columns of every pass over a dump, as it is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        batches = Dump.batches

        def noted(dump: Dump, columns: Any, ranges: Any = None) -> Any:
            self.append(list(columns))
            return batches(dump, columns, ranges)

        monkeypatch.setattr(Dump, "batches", noted)


@pytest.mark.parametrize("suffix", [".parquet", ".h5"])
@pytest.mark.parametrize(
    ("asked", "read"),
    [
        ("SELECT avg(reward) FROM samples", ["reward"]),
        ("SELECT count(*) FROM samples WHERE timestep = 3", ["timestep"]),
        ("SELECT reward FROM samples WHERE agent_id = 'EDU'", ["agent_id", "reward"]),
        ("SELECT reward FROM samples WHERE value < 0", ["reward", "value"]),
        ("SELECT max(row_id) FROM samples", ["episode_id"]),
        ("SELECT subset_len FROM digest", [*KEYS, "subset_indices"]),
        ("SELECT rows, reward_sum FROM episodes GROUP BY ALL ORDER BY rows NULLS LAST",
         [*KEYS, "advantage", "policy_version", "reward", "terminated", "truncated"]),
    ],
)  # fmt: skip
def test_only_the_columns_used_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, asked: str, read: list[str]
) -> None:
    path = tmp_path / f"dump{suffix}"
    convert([str(HEALTHY)], path)
    job = pipeline.opened([str(path)], pipeline.Options())
    job.agents.result()
    reads = Reads(monkeypatch)
    with query.Session(job) as session:
        session.ask(asked).read_all()
    assert [sorted(columns) for columns in reads] == [sorted(read)]


def test_a_limit_ends_the_reading_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pq.read_table(HEALTHY)
    pq.write_table(pa.concat_tables([table] * 300), tmp_path / "long.parquet")
    read = 0
    batches = Dump.batches

    def counted(dump: Dump, columns: Any, ranges: Any = None) -> Any:
        nonlocal read
        for batch in batches(dump, columns, ranges):
            read += batch.rows.num_rows
            yield batch

    job = pipeline.opened([str(tmp_path / "long.parquet")], pipeline.Options())
    job.agents.result()
    monkeypatch.setattr(Dump, "batches", counted)
    with query.Session(job) as session:
        assert session.ask("SELECT * FROM samples LIMIT 3").read_all().num_rows == 3
    assert 0 < read < 354 * 300


# What no word of the SQL tells

WHOLE = [
    "SELECT count(*) FROM digest a NATURAL JOIN digest b",
    "SELECT count(*) FROM samples NATURAL JOIN digest",
    "SELECT DISTINCT ON (agent_id) * FROM digest ORDER BY agent_id, row_id",
    "SELECT 1 AS x, /* all */ * FROM digest",
    "SELECT d FROM digest d WHERE row_id = 3",
    "SELECT to_json(e) FROM episodes e",
    "SELECT count(DISTINCT digest) FROM digest",
    "SELECT count(confirmed) FROM digest",
    "SELECT \"it's\".state_hash, 'x' FROM digest AS \"it's\"",
    "SELECT $$it's$$ AS a, state_hash, 'b' FROM digest",
    'SELECT STATE_HASH, "Subset_Len" FROM DIGEST',
]


@pytest.mark.parametrize("asked", WHOLE)
def test_an_answer_does_not_depend_on_what_was_asked_before(asked: str) -> None:
    def fresh() -> query.Session:
        return query.Session(pipeline.opened([str(HEALTHY)], pipeline.Options(actor=(ACTOR,))))

    with fresh() as session:
        first = session.ask(asked).read_all()
    with fresh() as session:
        for other in ("SELECT row_id, residual FROM replay", "SELECT * FROM digest, episodes LIMIT 1"):
            session.ask(other).read_all()
        assert rows_of(session.ask(asked).read_all()) == rows_of(first)
    assert first.num_rows


def test_a_new_alias_is_no_reason_to_check_again(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = 0
    run_rules = pipeline.run_rules

    def counted(*given: Any) -> Any:
        nonlocal checks
        checks += 1
        return run_rules(*given)

    monkeypatch.setattr(pipeline, "run_rules", counted)
    with query.Session(pipeline.opened([str(HEALTHY)], pipeline.Options())) as session:
        for asked in ("count(*) AS n1", "count(*) AS n2", "max(row_id) AS f"):
            session.ask(f"SELECT {asked} FROM findings").read_all()
    assert checks == 1


def test_odd_columns_of_ones_own(tmp_path: Path) -> None:
    table = pq.read_table(HEALTHY)
    count = len(table)
    halves = pa.array([[0.5, None]] * count, pa.large_list(pa.float16()))
    own = {
        "x_halves": halves,
        "x_struct": pa.array([{"h": 0.5}] * count, pa.struct([("h", pa.float16())])),
        "x_wide": pa.array([Decimal("1.25")] * count, pa.decimal256(50, 2)),
        "x_kind": pa.array(["a", None] * (count // 2)).dictionary_encode(),
        "row_id": pa.array([7] * count),
    }
    for name, column in own.items():
        table = table.append_column(name, column)
    pq.write_table(table, tmp_path / "own.parquet")
    with query.Session(pipeline.opened([str(tmp_path / "own.parquet")], pipeline.Options())) as session:
        [row] = session.ask(f"SELECT {', '.join(own)} FROM samples LIMIT 1").read_all().to_pylist()
    assert list(row.values()) == [[0.5, None], {"h": 0.5}, "1.25", "a", 0]


@pytest.mark.parametrize("name", ["agent_code", "flags", "null_bits", "Flags"])
def test_a_column_of_ones_own_hides_none_of_ours(name: str, tmp_path: Path) -> None:
    table = pq.read_table(HEALTHY)
    pq.write_table(table.append_column(name, pa.array([2] * table.num_rows)), tmp_path / "own.parquet")

    def asked(path: Path, own: str) -> object:
        sql = f"SELECT agent_id, state_zero, nulls, terminated, {own} AS own FROM digest ORDER BY ALL"
        with query.Session(pipeline.opened([str(path)], pipeline.Options())) as session:
            return session.ask(sql).read_all().to_pydict()

    assert asked(tmp_path / "own.parquet", name) == asked(HEALTHY, "2::BIGINT")


def test_a_session_leaves_no_thread(healthy: Path) -> None:
    before = set(threading.enumerate())
    with query.Session(pipeline.opened([str(healthy)], pipeline.Options())) as session:
        session.ask("SELECT count(*) FROM samples").read_all()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


def test_a_failure_is_told_once(healthy: Path) -> None:
    job = pipeline.opened([str(healthy)], pipeline.Options())
    job.agents.result()
    data = healthy.read_bytes()
    with query.Session(job) as session:
        healthy.unlink()
        with pytest.raises(package.BufcheckError, match=healthy.name):
            session.ask("SELECT sum(reward) FROM samples").read_all()
        healthy.write_bytes(data)
        session.ask("SELECT sum(reward) FROM samples").read_all()
        with pytest.raises(package.QueryError, match="nosuch"):
            session.ask("SELECT nosuch FROM samples").read_all()


# Rules


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.stem)
def test_the_sql_of_a_failing_rule_returns_its_rows(path: Path) -> None:
    needs_actor = path.stem in ("log-prob-mismatch", "sampling-miscalibrated")
    given: dict[str, Any] = {"actor": (ACTOR,)} if needs_actor else {}
    report = package.validate(str(path), **given)
    failed = [rule for rule in report["rules"] if rule["status"] == "fail"]
    assert failed
    with query.Session(pipeline.opened([str(path)], pipeline.Options(**given))) as session:
        for rule in failed:
            found = session.ask(rule["sql"]).read_all()["row_id"].to_pylist()
            assert len({row for row in found if row is not None}) == rule["rows"], rule["name"]
            assert {e["row_id"] for e in rule["examples"]} <= set(found)


def test_findings_are_those_of_validate(tmp_path: Path) -> None:
    path = FIXTURES / "broken" / "log-prob-mismatch.parquet"
    files = {"findings": tmp_path / "f.parquet", "causes": tmp_path / "c.parquet"}
    package.validate(str(path), actor=(ACTOR,), **files)
    with query.Session(pipeline.opened([str(path)], pipeline.Options(actor=(ACTOR,)))) as session:
        asked = session.ask("SELECT * FROM findings").read_all()
        causes = session.ask("SELECT * FROM causes").read_all()
    assert rows_of(asked) == rows_of(pq.read_table(tmp_path / "f.parquet"))
    assert asked.num_rows and rows_of(causes) == rows_of(pq.read_table(tmp_path / "c.parquet"))


# In Python


def test_connect_has_the_same_views() -> None:
    with package.connect(str(HEALTHY), actor=(ACTOR,)) as buffer:
        few = buffer.sql("SELECT row_id, reward FROM samples WHERE agent_id = $who", who="EDU")
        assert few.to_arrow_table().num_rows == 118
        assert buffer.sql("SELECT count(*) FROM replay WHERE abs(residual) < 1e-5").fetchall() == [
            (354,)
        ]
        assert buffer.sql("SELECT count(*) FROM findings").fetchall() == [(0,)]
        assert few.aggregate("count(*)").fetchall() == [
            (118,)
        ]  # still good after other views were made
        assert set(buffer.views) >= {"samples", "digest", "findings", "replay", "causes", "episodes"}


def test_connect_joins_with_ones_own_tables() -> None:
    with package.connect(str(HEALTHY)) as buffer:
        buffer.duckdb.register("mine", pa.table({"agent_id": ["EDU"], "team": ["red"]}))
        [[count]] = buffer.sql("SELECT count(*) FROM samples JOIN mine USING (agent_id)").fetchall()
        assert count == 118


# The command


def asked(*arguments: object) -> Any:
    ran = bufcheck("query", *arguments)
    assert ran.code == 0, ran.err
    return ran


def test_formats(tmp_path: Path) -> None:
    sql = "SELECT agent_id, count(*) AS n FROM samples GROUP BY 1 ORDER BY 1"
    rows = [{"agent_id": name, "n": 118} for name in ("EDU", "IND", "LAB")]
    assert json.loads(asked(HEALTHY, sql, "--format", "json").out) == rows
    lines = asked(HEALTHY, sql, "--format", "jsonl").out.splitlines()
    assert [json.loads(line) for line in lines] == rows
    assert asked(HEALTHY, sql, "--format", "csv").out == "agent_id,n\nEDU,118\nIND,118\nLAB,118\n"
    table = asked(HEALTHY, sql).out
    assert "agent_id" in table and "3 rows in" in table
    asked(HEALTHY, sql, "-o", tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == rows
    asked(HEALTHY, sql, "-o", tmp_path / "a.arrow")
    assert pa.ipc.open_file(tmp_path / "a.arrow").read_all().to_pylist() == rows
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.arrow", "a.parquet"]


def test_a_long_table_is_cut_and_says_so() -> None:
    out = asked(HEALTHY, "SELECT row_id FROM samples").out
    assert "354 rows in" in out and "100 shown" in out
    assert "100 shown" not in asked(HEALTHY, "SELECT row_id FROM samples", "--rows", 0).out


def test_sql_from_a_file_and_parameters(tmp_path: Path) -> None:
    file = tmp_path / "q.sql"
    file.write_text(
        "-- who\nSELECT $who AS who, count(*) AS n, $k + 1 AS k FROM samples WHERE agent_id = $who;\n"
    )
    out = asked(HEALTHY, "-f", file, "-p", "who=EDU", "-p", "k=2", "--format", "json").out
    assert json.loads(out) == [{"who": "EDU", "n": 118, "k": 3}]


def test_long_sql_as_an_argument() -> None:
    sql = "SELECT " + " + ".join(["1"] * 300) + " AS a"
    assert json.loads(asked(HEALTHY, sql, "--format", "json").out) == [{"a": 300}]


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_bytes(b"SELECT '\xff'")
    assert "UTF-8" in refused(bufcheck("query", HEALTHY, "-f", tmp_path / "q.sql"))


def test_named_questions() -> None:
    listed = bufcheck("query", "--named", "list")
    assert listed.code == 0 and all(name in listed.out for name in question.names())
    out = asked(
        HEALTHY, "--named", "worst-residuals", "--actor", ACTOR, "-p", "limit=2", "--format", "json"
    ).out
    assert len(json.loads(out)) == 2
    assert "did you mean" in refused(bufcheck("query", HEALTHY, "--named", "worst-residual"))


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT rewrd FROM samples", 'line 1, column 8, at rewrd'),
        ("SELECT 1,\n  rewrd\nFROM samples", 'line 2, column 3, at rewrd'),
        ("SELECT rewrd FROM samples", '"reward"'),
        ("SELEC 1 ", "syntax error"),
        ("SELECT * FROM sampels", "did you mean samples"),
        ("SELECT * FROM replay", "replay needs an actor: --actor"),
        ("SELECT 1; SELECT 2", "ask one at a time"),
        ("SELECT $x + 1", "x"),
        ("SELECT error('boom ' || row_id) FROM samples", "boom"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_clear_line(sql: str, says: str) -> None:
    told = refused(bufcheck("query", HEALTHY, sql, "--format", "json"))
    assert says in told


@pytest.mark.parametrize("how", ["path", "symlink", "hard link"])
def test_the_answer_never_replaces_the_dump(healthy: Path, tmp_path: Path, how: str) -> None:
    target = tmp_path / "other.parquet"
    if how == "path":
        target = healthy
    elif how == "symlink":
        target.symlink_to(healthy)
    else:
        target.hardlink_to(healthy)
    before = healthy.read_bytes()
    assert "is the dump itself" in refused(bufcheck("query", healthy, "SELECT 1 AS a", "-o", target))
    assert healthy.read_bytes() == before


def test_a_damaged_dump_is_said_to_be_damaged(healthy: Path) -> None:
    data = bytearray(healthy.read_bytes())
    middle = len(data) // 3
    for at in range(middle, middle + 400):
        data[at] ^= 0xFF
    healthy.write_bytes(data)
    told = refused(bufcheck("query", healthy, "SELECT * FROM samples", "--format", "json"))
    assert healthy.name in told


def test_findings_need_no_verdict(tmp_path: Path) -> None:
    path = FIXTURES / "broken" / "duplicate-key.parquet"
    out = asked(path, "SELECT rule, count(*) AS n FROM findings GROUP BY 1", "--format", "json").out
    assert {row["rule"]: row["n"] for row in json.loads(out)} == failing(package.validate(str(path)))
