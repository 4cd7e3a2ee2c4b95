"""`bufcheck.result` writes what a query found: exactly, in bounded memory, harmless to a terminal."""

from __future__ import annotations

import csv
import io
import json
import re
import tracemalloc
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, cast

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bufcheck import result
from bufcheck.errors import UsageError
from bufcheck.result import Told
from bufcheck.results._columns import unique

NAN, INF = float("nan"), float("inf")


def reader(*batches: pa.RecordBatch) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(batches[0].schema, batches)


def batch(names: str = "x", *columns: Any) -> pa.RecordBatch:
    arrays = [c if isinstance(c, pa.Array) else pa.array(c) for c in columns]
    return pa.RecordBatch.from_arrays(arrays, names.split())


def written(form: str, *batches: pa.RecordBatch, **asked: Any) -> bytes:
    out = io.BytesIO()
    told = result.write(reader(*batches), form, out, **asked)
    assert told.rows == sum(b.num_rows for b in batches)
    if form != "table":
        assert told.shown == told.rows
    return out.getvalue()


def shown(*batches: pa.RecordBatch, **asked: Any) -> list[str]:
    return written("table", *batches, **asked).decode().splitlines()


def rows_of_csv(*batches: pa.RecordBatch) -> list[list[str]]:
    return list(csv.reader(io.StringIO(written("csv", *batches).decode(), newline="")))


def one(array: pa.Array) -> list[Any]:
    """The values of a column, by way of JSON."""
    lines = written("jsonl", batch("x", array)).decode().splitlines()
    return [json.loads(line, parse_float=str)["x"] for line in lines]


def loaded(form: str, data: bytes) -> pa.Table:
    if form == "parquet":
        return pq.read_table(io.BytesIO(data))
    opened = pa.ipc.open_file(data) if data[:6] == b"ARROW1" else pa.ipc.open_stream(data)
    return opened.read_all()


FORMS = {"arrow", "csv", "json", "jsonl", "parquet", "table"}
RICH = batch(
    "whole text real few many rec map amount when who raw",
    pa.array([1, None, 2**63 - 1]),
    pa.array(["", None, 'a "b",\r\nc\\']),
    pa.array([NAN, -INF, 0.1]),
    pa.array([[1, None], None, []], pa.list_(pa.int32())),
    pa.array([[0.5, NAN], None, [1, 2]], pa.list_(pa.float32(), 2)),
    pa.array([{"a": "x", "b": [1]}, None, {"a": None, "b": []}]),
    pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(20, 2)),
    pa.array([datetime(2026, 1, 31, 12, 0, 0, 500000), None, datetime(1969, 1, 1)]),
    pa.array(["EDU", None, "ESG"]).dictionary_encode(),
    pa.array([b"\x00\xff", None, b""]),
)
AS_JSON: list[dict[str, Any]] = [
    {
        "whole": 1,
        "text": "",
        "real": "NaN",
        "few": [1, None],
        "many": [0.5, "NaN"],
        "rec": {"a": "x", "b": [1]},
        "map": {"k": 1},
        "amount": 1.5,
        "when": "2026-01-31T12:00:00.5",
        "who": "EDU",
        "raw": "00ff",
    },
    dict.fromkeys(RICH.schema.names) | {"real": "-inf"},
    {
        "whole": 2**63 - 1,
        "text": 'a "b",\r\nc\\',
        "real": 0.1,
        "few": [],
        "many": [1.0, 2.0],
        "rec": {"a": None, "b": []},
        "map": {},
        "amount": -0.01,
        "when": "1969-01-01T00:00:00",
        "who": "ESG",
        "raw": "",
    },
]


def test_forms_and_suffixes() -> None:
    assert set(result.names()) == FORMS
    known = {
        "a.csv": "csv",
        "a.JSON": "json",
        "a.jsonl": "jsonl",
        "a.ndjson": "jsonl",
        "a.parquet": "parquet",
        "a.pq": "parquet",
        "a.arrow": "arrow",
        "a.arrows": "arrow",
        "a.feather": "arrow",
        "a.txt": "table",
        "a.xlsx": None,
        "csv": None,
    }
    assert {path: result.of_suffix(path) for path in known} == known
    assert result.of_suffix(Path("b/a.csv")) == "csv"
    assert {n for n in FORMS if result.member(n).BINARY} == {"parquet", "arrow"}


def test_an_unknown_form_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="jsonl"):
        result.write(reader(RICH), "xml", io.BytesIO())


@pytest.mark.parametrize("cuts", [[3], [1, 1, 1], [0, 2, 0, 1]], ids=str)
def test_json_round_trip(cuts: list[int]) -> None:
    pieces, start = [], 0
    for size in cuts:
        pieces.append(RICH.slice(start, size))
        start += size
    whole = json.loads(written("json", *pieces), parse_constant=pytest.fail)
    lines = written("jsonl", *pieces).decode().splitlines()
    assert whole == AS_JSON
    assert [json.loads(line, parse_constant=pytest.fail) for line in lines] == AS_JSON


def test_json_has_every_digit() -> None:
    huge = Decimal(10**37 + 1)
    assert one(pa.array([huge, None], pa.decimal128(38, 0))) == [10**37 + 1, None]
    fine = Decimal("12345678901234567890.0123456789")
    assert one(pa.array([fine], pa.decimal128(38, 10))) == [str(fine)]
    assert one(pa.array([Decimal("1e-10")], pa.decimal128(38, 10))) == ["0.0000000001"]
    assert one(pa.array([2**64 - 1], pa.uint64())) == [2**64 - 1]
    assert one(pa.array([0.1, 1, -0.0], pa.float32())) == ["0.1", "1.0", "-0.0"]
    assert one(pa.array([INF, -INF, NAN, None])) == ["inf", "-inf", "NaN", None]


def test_json_times() -> None:
    stamps = pa.array([0, 1_769_860_800_000_000_120], pa.timestamp("ns"))
    assert one(stamps) == ["1970-01-01T00:00:00", "2026-01-31T12:00:00.00000012"]
    zoned = pa.array([1_769_860_800_250], pa.timestamp("ms", "Europe/Berlin"))
    assert one(zoned) == ["2026-01-31T13:00:00.25+01:00"]
    assert one(pa.array([10_000], pa.timestamp("s", "UTC"))) == ["1970-01-01T02:46:40Z"]
    assert one(pa.array([date(2026, 1, 10)])) == ["2026-01-10"]
    assert one(pa.array([10_100_000], pa.time64("us"))) == ["00:00:10.1"]
    interval = pa.array([(1, 2, 1_500_000_000)], pa.month_day_nano_interval())
    assert one(interval) == ["P1M2DT1.5S"]


def test_json_of_slices_and_of_what_duckdb_hands_over() -> None:
    """A sliced array keeps the values around it; they must not come back."""
    lists = pa.array([[9], [1, 2], None, [3]], pa.list_(pa.int8()))
    assert one(lists.slice(1, 2)) == [[1, 2], None]
    maps = pa.array([[(1, "a")], [(2, "b"), (3, None)]], pa.map_(pa.int8(), pa.string()))
    assert one(maps.slice(1)) == [{"2": "b", "3": None}]
    answer = duckdb.sql(
        "SELECT sum(i) AS total, [i, NULL] AS l, {'a': 'nan'::DOUBLE} AS s, 'x'::ENUM('x') AS e,"
        " union_value(k := i) AS u FROM range(3) t(i) GROUP BY i ORDER BY i"
    )
    out = io.BytesIO()
    assert result.write(answer.to_arrow_reader(2), "json", out) == Told(3, 3)
    last = {"total": 2, "l": [2, None], "s": {"a": "NaN"}, "e": "x", "u": "2"}
    assert json.loads(out.getvalue())[2] == last


def test_csv_round_trip() -> None:
    header, *rows = rows_of_csv(RICH.slice(0, 1), RICH.slice(1))
    assert header == RICH.schema.names
    assert rows[1] == ["", "", "-inf"] + [""] * 8
    nested = {"few", "many", "rec", "map"}
    for row, expected in zip([rows[0], rows[2]], [AS_JSON[0], AS_JSON[2]], strict=True):
        for name, text in zip(header, row, strict=True):
            value = expected[name]
            if name in nested:
                assert json.loads(text) == value
            elif name == "amount":
                assert Decimal(text) == Decimal(str(value))
            else:
                assert text == str(value)


def test_csv_to_the_letter() -> None:
    data = written(
        "csv",
        batch(
            "a a c,d",
            pa.array([None, "", 'q"', "x,y", "plain", "l\nm", "\r"]),
            pa.array([1, NAN, INF, -INF, None, 1e-7, 0.1]),
            pa.array([Decimal("1e-9")] * 7, pa.decimal128(20, 9)),
        ),
    )
    fields = [
        ("", "1.0"),
        ('""', "NaN"),
        ('"q"""', "inf"),
        ('"x,y"', "-inf"),
        ("plain", ""),
        ('"l\nm"', "1e-7"),
        ('"\r"', "0.1"),
    ]
    rows = "".join(f"{text},{real},0.000000001\n" for text, real in fields)
    assert data.decode() == 'a,a,"c,d"\n' + rows


def test_duckdb_reads_the_csv_back(tmp_path: Path) -> None:
    scalars = batch(
        "n t f ts d ok amount",
        pa.array([1, None, -(2**63)]),
        pa.array(["", None, 'a "b",\nc']),
        pa.array([NAN, -INF, 1 / 3]),
        pa.array([datetime(2026, 1, 31, 12, 0, 0, 500000), None, datetime(1969, 1, 1)]),
        pa.array([date(2026, 1, 1), None, date(1900, 1, 1)]),
        pa.array([True, None, False]),
        pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(20, 2)),
    )
    path = tmp_path / "a.csv"
    path.write_bytes(written("csv", scalars))
    kinds = "{'n': 'BIGINT', 't': 'VARCHAR', 'f': 'DOUBLE', 'ts': 'TIMESTAMP', 'd': 'DATE', "
    kinds += "'ok': 'BOOLEAN', 'amount': 'DECIMAL(20,2)'}"
    back = duckdb.sql(
        f"FROM read_csv('{path}', header = true, columns = {kinds}, allow_quoted_nulls = false)"
    ).fetchall()
    assert str(back) == str([tuple(row.values()) for row in scalars.to_pylist()])
    sniffed = duckdb.sql(f"SELECT typeof(n), typeof(f), typeof(ts) FROM read_csv('{path}')")
    assert sniffed.fetchall()[0] == ("BIGINT", "DOUBLE", "TIMESTAMP")


@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_binary_round_trip(form: str, is_file: bool) -> None:
    data = written(form, RICH.slice(0, 1), RICH.slice(1), is_file=is_file)
    again = loaded(form, data)
    assert again.schema.field("who").type == pa.string()
    assert again.drop(["who"]).schema == pa.table(RICH).drop(["who"]).schema
    assert str(again.to_pylist()) == str(RICH.to_pylist())


def test_an_arrow_file_can_be_sought_in_and_a_stream_flows() -> None:
    assert written("arrow", RICH, is_file=True)[:6] == b"ARROW1"
    assert pa.ipc.open_stream(written("arrow", RICH)).read_all().num_rows == 3


def test_an_arrow_file_of_a_failed_query_is_not_whole() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield RICH
        raise ValueError("the query failed")

    out = io.BytesIO()
    source = pa.RecordBatchReader.from_batches(RICH.schema, batches())
    with pytest.raises(ValueError, match="the query failed"):
        result.write(source, "arrow", out, is_file=True)
    with pytest.raises(pa.ArrowInvalid):
        pa.ipc.open_file(out.getvalue())


def test_parquet_pages_have_checksums() -> None:
    """A flipped byte in a page is seen by a reader that verifies."""
    data = bytearray(written("parquet", batch("x", [f"text {i}" for i in range(1000)])))
    column = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True).read()


def test_parquet_gathers_small_batches_into_row_groups() -> None:
    small = [batch("x", list(range(100)))] * 50
    meta = pq.ParquetFile(io.BytesIO(written("parquet", *small))).metadata
    assert (meta.num_rows, meta.num_row_groups) == (5000, 1)


def test_what_parquet_cannot_hold_is_refused_with_a_way_out() -> None:
    interval = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
    out = io.BytesIO()
    with pytest.raises(UsageError, match="::VARCHAR"):
        result.write(reader(batch("x", interval)), "parquet", out)


@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_each_batch_may_have_its_own_dictionary(form: str, is_file: bool) -> None:
    words = [["a", "b"], ["c", None], ["b", "d"]]
    kind = pa.dictionary(pa.int8(), pa.string())
    batches = [
        batch("d l s", pa.array(w, kind), pa.array([w, w], pa.list_(kind)), _struct(w, kind))
        for w in words
    ]
    again = loaded(form, written(form, *batches, is_file=is_file))
    assert again.to_pylist() == [row for b in batches for row in b.to_pylist()]


def _struct(words: list[str], kind: pa.DataType) -> pa.Array:
    return pa.array([{"w": word} for word in words], pa.struct([("w", kind)]))


def test_names_that_repeat() -> None:
    assert unique(["a", "a", "b", "a"]) == ["a", "a_1", "b", "a_2"]
    assert unique(["a", "a", "a_1"]) == ["a", "a_2", "a_1"]
    both = batch("a a", [1], [2])
    renamed = {"a": 1, "a_1": 2}
    assert json.loads(written("json", both)) == [renamed]
    assert json.loads(written("jsonl", both)) == renamed
    assert loaded("parquet", written("parquet", both)).to_pylist() == [renamed]
    for is_file in (False, True):
        assert loaded("arrow", written("arrow", both, is_file=is_file)).to_pylist() == [renamed]
    assert rows_of_csv(both) == [["a", "a"], ["1", "2"]]
    assert shown(both)[0].split() == ["a", "a"]


@pytest.mark.parametrize("empty", [[], [RICH.slice(0, 0)]], ids=["no batch", "an empty batch"])
def test_an_empty_result(empty: list[pa.RecordBatch]) -> None:
    def data(form: str) -> bytes:
        out = io.BytesIO()
        source = pa.RecordBatchReader.from_batches(RICH.schema, empty)
        assert result.write(source, form, out) == Told(0, 0)
        return out.getvalue()

    assert json.loads(data("json")) == []
    assert data("jsonl") == b""
    assert data("csv").decode() == ",".join(RICH.schema.names) + "\n"
    assert data("table").decode().split()[:2] == ["whole", "text"]
    for form in ("parquet", "arrow"):
        table = loaded(form, data(form))
        assert (table.num_rows, table.column_names) == (0, RICH.schema.names)


class Sink(io.RawIOBase):
    """Forgets what is written to it."""

    size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.size += len(data)
        return len(data)


@pytest.mark.parametrize("form", sorted(FORMS))
def test_memory_does_not_grow_with_the_result(form: str) -> None:
    rows, count = 1 << 13, 128
    held: list[int] = []
    start = pa.total_allocated_bytes()

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(count):
            held.append(pa.total_allocated_bytes() - start)
            yield batch("n t", pa.repeat(number, rows), pa.repeat("text", rows))

    first = batch("n t", [1], ["t"])
    source = pa.RecordBatchReader.from_batches(first.schema, batches())
    out = Sink()
    tracemalloc.start()
    told = result.write(source, form, cast(BinaryIO, out), most=10)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert told == Told(rows * count, 10 if form == "table" else rows * count)
    assert out.size and len(held) == count
    assert max(held) < 5 << 20, "of 16 MB in Arrow"
    assert peak < 5 << 20


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_large_batch_is_written_in_pieces(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "PIECE_ROWS", 7)
    seen = [piece.num_rows for piece in result._pieces(reader(batch("x", list(range(20)))))]
    assert seen == [7, 7, 6]
    monkeypatch.setattr(result, "PIECE_BYTES", 16)
    assert max(p.num_rows for p in result._pieces(reader(batch("x", [1] * 20)))) == 2
    numbers = list(range(20))
    data = written(form, batch("x", numbers), is_file=True)
    if form in ("parquet", "arrow"):
        assert loaded(form, data)["x"].to_pylist() == numbers
    else:
        assert [int(n) for n in re.findall(r"\d+", data.decode())] == numbers


def test_a_table_lines_up() -> None:
    lines = shown(
        batch(
            "id name score ok",
            [1, None, 300],
            ["x", "日本", None],
            [0.5, NAN, -1234.56789],
            [True, None, False],
        )
    )
    assert lines == [
        "    id  name        score  ok",
        "BIGINT  VARCHAR    DOUBLE  BOOLEAN",
        "     1  x             0.5  true",
        "  NULL  日本          NaN  NULL",
        "   300  NULL     -1234.57  false",
    ]


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (1.0, "1.0"),
        (1 / 3, "0.333333"),
        (1e-12 / 3, "3.33333e-13"),
        (1234567.0, "1234567.0"),
        (-INF, "-inf"),
        (-0.0, "-0.0"),
    ],
)
def test_floats_in_a_table(value: float, cell: str) -> None:
    assert shown(batch("x", [value]))[2].strip() == cell


def test_vectors_are_summarised() -> None:
    vectors = pa.array(
        [[0.12, -1.3, 0.4] + [0.0] * 61, None, [1 / 3] * 6, [], [-1.2345e-8] * 1200],
        pa.list_(pa.float32()),
    )
    assert [line.rstrip() for line in shown(batch("v", vectors))] == [
        "v",
        "FLOAT[]",
        "[0.12, -1.3, 0.4, … 64 numbers]",
        "NULL",
        "[0.333, 0.333, 0.333, … 6 numbers]",
        "[]",
        "[-1.23e-08, -1.23e-08, … 1,200 numbers]",
    ]
    mask = pa.array([[True, False] * 4], pa.list_(pa.bool_(), 8))
    assert shown(batch("m", mask))[1:] == ["BOOLEAN[8]", "[true, false, true, … 8 values]"]
    few = pa.array([[1, None, 3]], pa.list_(pa.int8()))
    assert shown(batch("m", few))[2] == "[1, NULL, 3]"


def test_a_hostile_text_has_no_power_over_the_terminal() -> None:
    nasty = "\x1b[2J\x07a\nb\r\t\x9b31m\u202e\u2028"
    hostile = batch("x \x1b[31m", [nasty], pa.array([{"k\x1b]0;": nasty}]))
    data = written("table", hostile).decode()
    assert all(c.isprintable() or c == "\n" for c in data)
    assert data.count("\n") == 3
    assert r"\x1b[2J\x07a\nb\r\t\x9b31m\u202e\u2028" in data
    assert json.loads(written("jsonl", hostile))["x"] == nasty
    assert b"\x1b" not in written("jsonl", hostile)


def test_long_texts_are_cut() -> None:
    lines = shown(batch("x", ["a" * 40, "a" * 41, "日" * 40, "e\u0301" * 30, "\n" * 30]))
    assert lines[2] == "a" * 40
    assert lines[3] == "a" * 39 + "…"
    assert lines[4] == "日" * 19 + "…"
    assert lines[5].endswith("…") and lines[5].startswith("e\u0301" * 20)
    assert lines[6] == r"\n" * 19 + "\\…"
    long_name = pa.RecordBatch.from_arrays([pa.array([1])], ["n" * 100])
    assert shown(long_name)[0] == "n" * 39 + "…"


def test_at_most_so_many_rows() -> None:
    three = [batch("x", list(range(500))) for _ in range(3)]
    lines = shown(*three, most=501)
    assert lines[2].strip() == "0" and lines[502].strip() == "0"
    assert lines[503:] == ["… 999 more rows"]
    assert shown(*three, most=1499)[-1] == "… 1 more row"
    for all_of_them in (0, 1500, 9999):
        lines = shown(*three, most=all_of_them)
        assert len(lines) == 1502 and "more" not in lines[-1]
    out = io.BytesIO()
    assert result.write(reader(*three), "table", out, most=501) == Told(1500, 501)
    thousands = [batch("x", [1] * 500)] * 4
    assert shown(*thousands, most=1)[-1] == "… 1,999 more rows"


def test_columns_are_left_out_of_the_middle() -> None:
    wide = batch(" ".join(f"c{i}" for i in range(9)), *([i] for i in range(9)))
    lines = shown(wide, width=40)
    assert lines[0].split() == ["c0", "c1", "…", "c7", "c8"]
    assert lines[-1] == "4 of 9 columns shown"
    assert max(map(len, lines)) <= 40
    exact = 9 * 6 + 8 * 2
    assert shown(wide, width=exact) == shown(wide) and len(shown(wide)[0]) == exact
    assert shown(wide, width=exact - 1)[-1] == "8 of 9 columns shown"
    assert shown(wide, width=1)[0].split() == ["c0", "…"]


def test_rows_and_columns_left_out_are_both_told() -> None:
    lines = shown(batch("a b c", *[[1, 2, 3]] * 3), width=16, most=1)
    assert lines[-2:] == ["… 2 more rows", "1 of 3 columns shown"]


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_row_of_nulls_of_every_type(form: str) -> None:
    kinds = [
        *(pa.null(), pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.string()),
        *(pa.large_string(), pa.string_view(), pa.binary(), pa.binary(3), pa.date32(), pa.date64()),
        *(pa.time32("s"), pa.timestamp("ns", "UTC"), pa.decimal128(5, 2), pa.decimal256(50, 2)),
        *(pa.list_(pa.int8()), pa.large_list(pa.string()), pa.list_(pa.list_(pa.float32()), 2)),
        *(pa.struct([("a", pa.int8())]), pa.map_(pa.int8(), pa.string()), pa.duration("s")),
    ]
    names = " ".join(f"c{i}" for i in range(len(kinds)))
    nulls = batch(names, *(pa.nulls(2, kind) for kind in kinds))
    data = written(form, nulls)
    if form in ("parquet", "arrow"):
        assert loaded(form, data).to_pylist() == nulls.to_pylist()
    elif form == "table":
        assert data.decode().splitlines()[2].split() == ["NULL"] * len(kinds)
    elif form == "csv":
        assert data.decode().splitlines()[1:] == ["," * (len(kinds) - 1)] * 2
    else:
        text = data.decode() if form == "json" else f"[{data.decode().strip().splitlines()[0]}]"
        assert json.loads(text)[0] == dict.fromkeys(names.split())
