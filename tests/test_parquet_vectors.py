"""Vectors taken from Parquet pages as they lie there: the same as Arrow reads, whatever the file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import CAMPAIGN

from bufcheck.errors import ReadError
from bufcheck.formats import _parquet_page, _parquet_vectors, parquet
from bufcheck.formats._parquet_vectors import Vectors
from bufcheck.formats._thrift import varint

ROWS = 6_000
FLIPS = 2_000 if CAMPAIGN else 200


@pytest.fixture
def by_arrow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were left to Arrow, piece by piece."""
    left: list[int] = []
    real = Vectors._by_arrow

    def counted(self: Vectors, *span: Any) -> Iterator[pa.Array]:
        for piece in real(self, *span):
            left.append(len(piece))
            yield piece

    monkeypatch.setattr(Vectors, "_by_arrow", counted)
    monkeypatch.setattr(_parquet_vectors, "LEAST_PAGE", 1 << 10)
    return left


def vectors(width: int, rows: int = ROWS, kind: str = "float32", seed: int = 0) -> pa.Array:
    numbers = np.random.default_rng(seed).standard_normal(rows * width).astype(kind)
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers), width)


def written(path: Path, column: pa.Array, field: pa.Field | None = None, **options: Any) -> Path:
    count = pa.array(np.arange(len(column)))
    field = field or pa.field("v", column.type)
    schema = pa.schema([pa.field("n", pa.int64()), field])
    options = {"use_dictionary": False, "data_page_size": 1 << 14, **options}
    pq.write_table(pa.table([count, column], schema=schema), path, **options)
    return path


def read(path: Path) -> pa.Table:
    batches = list(parquet.open_source(path).read(["n", "v"], None))
    return pa.Table.from_batches(batches)


def same(path: Path) -> bool:
    return bool(read(path).equals(pq.read_table(path)))


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("width", [8, 17, 64, 5000])
def test_plain_pages_are_taken_as_they_lie(
    width: int, compression: str, kind: str, tmp_path: Path, by_arrow: list[int]
) -> None:
    """Also where a row begins in one page and ends in another, or goes on for several."""
    rows = ROWS if width < 1000 else 60
    path = written(
        tmp_path / "a.parquet",
        vectors(width, rows, kind),
        compression=compression,
        row_group_size=rows // 2 - 3,
        write_page_checksum=True,
    )
    assert same(path)
    assert by_arrow == []


@pytest.mark.parametrize("width", [8, 17])
def test_a_dictionary_that_was_given_up(width: int, tmp_path: Path, by_arrow: list[int]) -> None:
    path = written(
        tmp_path / "a.parquet", vectors(width), use_dictionary=True, dictionary_pagesize_limit=1 << 15
    )
    assert same(path)
    assert 0 < sum(by_arrow) < ROWS, "its rows are Arrow's, the rest is not"


def test_a_number_that_cannot_be_null(tmp_path: Path, by_arrow: list[int]) -> None:
    kind = pa.list_(pa.field("element", pa.float32(), nullable=False), 9)
    column = pa.FixedSizeListArray.from_arrays(vectors(9).values, type=kind)
    assert same(written(tmp_path / "a.parquet", column, pa.field("v", kind, nullable=False)))
    assert by_arrow == []


def _with_null_rows() -> pa.Array:
    rows = vectors(9).to_pylist()
    rows[4000] = None
    return pa.array(rows, pa.list_(pa.float32(), 9))


def _with_null_numbers() -> pa.Array:
    flat = vectors(9).values.to_pylist()
    flat[9 * 4000 + 3] = None
    return pa.FixedSizeListArray.from_arrays(pa.array(flat, pa.float32()), 9)


@pytest.mark.parametrize(
    ("column", "options"),
    [
        (_with_null_rows(), {}),
        (_with_null_numbers(), {}),
        (vectors(9), {"data_page_version": "2.0"}),
        (vectors(9), {"use_byte_stream_split": True}),
        (vectors(9), {"compression": "gzip"}),
        (vectors(9), {"use_dictionary": True}),
        (vectors(9), {"data_page_size": 200, "write_batch_size": 20}),
        (vectors(7), {}),
        (vectors(9).cast(pa.list_(pa.float32())), {}),
        (vectors(9, kind="float16"), {}),
    ],
)
def test_what_is_not_plain_is_left_to_arrow(
    column: pa.Array, options: dict[str, Any], tmp_path: Path, by_arrow: list[int]
) -> None:
    path = written(tmp_path / "a.parquet", column, **options)
    assert same(path)
    assert by_arrow or not _parquet_vectors.columns_of(pq.ParquetFile(path), ["v"])


def test_batches_are_aligned_in_memory(tmp_path: Path, by_arrow: list[int]) -> None:
    path = written(tmp_path / "a.parquet", vectors(2000, 400), data_page_size=1 << 20)
    for batch in parquet.open_source(path).read(["n", "v"], None):
        assert batch.column(1).values.buffers()[1].address % 8 == 0


@pytest.mark.parametrize("checksums", [False, True])
def test_flipped_bits_are_read_as_arrow_reads_them(
    checksums: bool, tmp_path: Path, by_arrow: list[int]
) -> None:
    """Wherever in the column: both refuse the file, or both give the same numbers."""
    chunks, content = a_small_file(tmp_path, checksums)
    random_, refused = random.Random(checksums), 0
    places = [c.data_page_offset + i for c in chunks for i in range(60)]
    for chunk in chunks:
        first, size = chunk.data_page_offset, chunk.total_compressed_size
        places += [random_.randrange(first, first + size) for _ in range(FLIPS)]
    for place in places:
        path = flipped(tmp_path, content, place, random_)
        expected = as_arrow_reads(path)
        if expected is None:
            refused += 1
            with pytest.raises(ReadError, match="damaged"):
                read(path)
        else:
            assert bits(read(path)) == bits(expected), place
    assert refused > 0


def test_a_damaged_footer_gives_no_other_numbers_than_arrow(
    tmp_path: Path, by_arrow: list[int]
) -> None:
    """Nor does it end the process, as a look into it with pyarrow would.

    What nobody needs for reading, as counts of levels, may differ: then it gives what was written.
    """
    chunks, content = a_small_file(tmp_path, checksums=False)
    whole = pq.read_table(tmp_path / "whole.parquet")
    footer = chunks[1].data_page_offset + chunks[1].total_compressed_size
    random_, same = random.Random(0), 0
    for place in [random_.randrange(footer, len(content)) for _ in range(4 * FLIPS)]:
        path = flipped(tmp_path, content, place, random_)
        expected = as_arrow_reads(path)
        try:
            found = read(path)
        except (ReadError, KeyError):  # of a column that goes by another name
            continue
        assert bits(found) == bits(whole if expected is None else expected), place
        same += 1
    assert same > 0


def a_small_file(folder: Path, checksums: bool) -> tuple[list[Any], bytes]:
    path = written(
        folder / "whole.parquet", vectors(9, 1500), row_group_size=800, write_page_checksum=checksums
    )
    chunks = [pq.ParquetFile(path).metadata.row_group(group).column(1) for group in range(2)]
    return chunks, path.read_bytes()


def flipped(folder: Path, content: bytes, place: int, random_: random.Random) -> Path:
    damaged = bytearray(content)
    damaged[place] ^= 1 << random_.randrange(8)
    path = folder / "damaged.parquet"
    path.write_bytes(damaged)
    return path


def as_arrow_reads(path: Path) -> pa.Table | None:
    try:
        file = pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
        return pa.Table.from_batches(file.iter_batches(columns=["n", "v"]))
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return None


def bits(table: pa.Table) -> bytes:
    """As they are: a NaN equals no NaN."""
    column = table.column("v").combine_chunks()
    if not pa.types.is_fixed_size_list(column.type):
        return repr(column.to_pylist()).encode()
    return bytes(column.values.to_numpy(zero_copy_only=False).tobytes())


@pytest.mark.parametrize(
    "levels", [b"\xff" * 4 + b"\x7f\x01", b"\xfe" + b"\xff" * 4 + b"\x7f\x01", b"\0\1", b""]
)
def test_levels_that_claim_too_much_are_refused(levels: bytes) -> None:
    with pytest.raises((ValueError, LookupError)):
        _parquet_page.zeros(levels, 64)
    with pytest.raises((ValueError, LookupError)):
        _parquet_page.always(levels, 64, 1)


def test_a_number_without_end_is_refused_at_once() -> None:
    assert varint(b"\xff" * 9 + b"\x01", 0) == (2**64 - 1, 10)
    with pytest.raises(ValueError, match="64 bits"):
        varint(b"\xff" * 10 + b"\x01", 0)


def test_small_row_groups_come_together(tmp_path: Path) -> None:
    """A trainer may write one for each rollout."""
    path = written(tmp_path / "a.parquet", vectors(9), row_group_size=7)
    batches = list(parquet.open_source(path).read(["n", "v"], None))
    assert len(batches) < 5
    assert pa.Table.from_batches(batches).equals(pq.read_table(path))
    some = list(parquet.open_source(path).read(["n"], [(5, 9), (700, 703)]))
    assert [n for batch in some for n in batch.column(0).to_pylist()] == [5, 6, 7, 8, 700, 701, 702]
