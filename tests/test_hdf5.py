"""HDF5: what goes in comes out, and no file, however broken or hostile, gets further than that."""

from __future__ import annotations

import gc
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest

from bufcheck import format as formats
from bufcheck.errors import ReadError, WriteError
from bufcheck.formats import _hdf5_server as server
from bufcheck.formats import hdf5

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module", autouse=True)
def no_child_is_left() -> Any:
    yield
    processes = [child.process for child in server._all]
    server.shut_down()
    assert all(process.returncode is not None for process in processes)
    assert not server._all and not server._idle


def everything(path: Path, columns: list[str] | None = None, ranges: Any = None) -> pa.Table:
    source = hdf5.open_source(path)
    names = source.schema.names if columns is None else columns
    schema = pa.schema([source.schema.field(name) for name in names])
    return pa.Table.from_batches(source.read(names, ranges), schema)


def save(path: Path, **columns: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, data in columns.items():
            file[name] = data
    return path


def refusal(path: Path, columns: list[str] | None = None) -> str:
    with pytest.raises(ReadError) as caught:
        everything(path, columns)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and "\n" not in text and "Traceback" not in text
    return text


# Round trips

N = 1000
NULLS = [i % 7 == 3 for i in range(N)]


def nulled(values: Any, kind: pa.DataType) -> pa.Array:
    return pa.array([None if gone else value for value, gone in zip(values, NULLS, strict=True)], kind)


def columns_of_every_type() -> dict[str, pa.Array]:
    numbers = [i % 100 for i in range(N)]
    words = [["IND", "EDU", "", "Ünïcödé 🦀", "a\0b"][i % 5] for i in range(N)]
    vectors = [[i * 0.5, -0.0, float("inf")] for i in range(N)]
    ragged = [list(range(i % 6)) for i in range(N)]
    holes = [[None if j % 2 else j for j in range(i % 6)] for i in range(N)]
    found: dict[str, pa.Array] = {}
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
                 pa.uint32(), pa.uint64(), pa.float32(), pa.float64()):  # fmt: skip
        found[str(kind)] = pa.array(numbers, kind)
        found[f"{kind} null"] = nulled(numbers, kind)
    found["half"] = pa.array(np.arange(N, dtype=np.float16))
    found["half null"] = nulled(np.arange(N, dtype=np.float16), pa.float16())
    found["bool"] = pa.array([i % 3 == 0 for i in range(N)])
    found["bool null"] = nulled([i % 3 == 0 for i in range(N)], pa.bool_())
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()),
                 pa.dictionary(pa.int32(), pa.large_string())):  # fmt: skip
        found[f"text {kind}"] = pa.array(words, kind)
        found[f"text {kind} null"] = nulled(words, kind)
    found["ends in NUL"] = pa.array(["a\0", "", "\0"] * 333 + ["b"])
    found["all null text"] = pa.array([None] * N, pa.string())
    for kind in (pa.list_(pa.float32(), 3), pa.list_(pa.field("element", pa.float64(), False), 3),
                 pa.list_(pa.float16(), 3)):  # fmt: skip
        halves = [[np.float16(v) for v in row] for row in vectors]
        found[str(kind)] = pa.array(halves if "half" in str(kind) else vectors, kind)
        if "not null" not in str(kind):
            found[f"{kind} null"] = nulled(found[str(kind)].to_pylist(), kind)
    found["vector of holes"] = nulled([[1.0, None, 3.0]] * N, pa.list_(pa.float32(), 3))
    found["vector of bool"] = pa.array([[True, i % 2 == 0] for i in range(N)], pa.list_(pa.bool_(), 2))
    for kind in (pa.list_(pa.int32()), pa.large_list(pa.int16()),
                 pa.list_(pa.field("element", pa.uint64()))):  # fmt: skip
        found[str(kind)] = pa.array(ragged, kind)
        found[f"{kind} null"] = nulled(ragged, kind)
        found[f"{kind} holes"] = nulled(holes, kind)
    found["ragged bool"] = pa.array([[j % 2 == 0 for j in row] for row in ragged])
    found["logits"] = pa.array(vectors, pa.list_(pa.float32(), 3))  # a name that is padded
    found |= packed_columns()
    return found


def packed_columns() -> dict[str, pa.Array]:
    """Types HDF5 has no shape for."""
    return {
        "x_struct": pa.array([{"a": i, "b": [[1], None]} if i % 9 else None for i in range(N)]),
        "x_time/with a slash": pa.array(range(N), pa.timestamp("us", "UTC")),
        "x_nested": pa.array([[[i], []] for i in range(N)]),
        "x_binary": pa.array([b"\xff\x00"] * N),
        "x_null": pa.nulls(N),
        "x_empty vector": pa.array([[]] * N, pa.list_(pa.int32(), 0)),
        "x_coded number": pa.array([i % 4 for i in range(N)]).dictionary_encode(),
        "": pa.array(range(N)),
        ".": pa.array(range(N)),
    }


def test_every_type_comes_back_as_it_was(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict(columns_of_every_type())
    pieces = [batch.slice(0, 1), batch.slice(1, 0), batch.slice(1, 332), batch.slice(333)]
    metadata = {"schema": "experience/1", "producer": {"name": "ü"}}
    path = tmp_path / "all.h5"
    assert formats.write("hdf5", path, batch.schema, pieces, metadata) == N
    source = hdf5.open_source(path)
    assert source.metadata is not None and json.loads(source.metadata) == {**metadata, "rows": N}
    assert source.rows == N and not source.uneven and source.integrity == "verified"
    assert source.schema.equals(batch.schema, check_metadata=True)
    back = pa.Table.from_batches(source.read(source.schema.names, None))
    back.validate(full=True)
    for name in batch.schema.names:
        assert back[name].combine_chunks().equals(batch[name]), name
    minus = back["logits"].combine_chunks().values.to_numpy()[1::3]
    assert np.signbit(minus).all()
    ranges = [(0, 1), (5, 9), (300, 301), (330, 340), (998, 1000)]
    some = pa.Table.from_batches(source.read(source.schema.names, ranges))
    rows = np.concatenate([np.arange(a, b) for a, b in ranges])
    assert some.equals(pa.Table.from_batches([batch]).take(rows).combine_chunks()) or all(
        some[name].to_pylist() == batch[name].take(pa.array(rows)).to_pylist()
        for name in batch.schema.names
    )


def test_not_null_is_remembered_and_any_json_is_stored(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("b", pa.int64(), False), pa.field("a", pa.list_(pa.int8()), False)])
    batch = pa.RecordBatch.from_pydict({"b": [1], "a": [[2]]}, schema=schema)
    path = tmp_path / "a.h5"
    formats.write("hdf5", path, schema, [batch], {"big": "ä" * 200_000})
    source = hdf5.open_source(path)
    assert source.schema.equals(schema)
    assert source.metadata is not None and len(source.metadata) > 400_000


def test_dictionaries_that_differ_from_batch_to_batch(tmp_path: Path) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    first = pa.DictionaryArray.from_arrays(pa.array([1, 0, None], pa.int8()), ["b", "a"])
    other = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int8()), ["a", None, "c"])
    batches = [pa.RecordBatch.from_arrays([x], names=["agent_id"]) for x in (first, other)]
    formats.write("hdf5", tmp_path / "a.h5", batches[0].schema, batches, {})
    back = everything(tmp_path / "a.h5")
    assert back.schema.field(0).type == kind
    assert back["agent_id"].to_pylist() == ["a", "b", None, "a", None, "c"]


def test_ever_new_and_long_strings_are_written_in_segments(tmp_path: Path) -> None:
    words = [f"row {i}" for i in range(150_000)] + ["long" * 300_000, "row 1"]
    batch = pa.RecordBatch.from_pydict({"x_note": words})
    formats.write("hdf5", tmp_path / "a.h5", batch.schema, [batch], {})
    source = hdf5.open_source(tmp_path / "a.h5")
    assert source.integrity == "verified"
    assert everything(tmp_path / "a.h5")["x_note"].to_pylist() == words


def test_batches_of_other_columns_are_refused(tmp_path: Path) -> None:
    one, two = (pa.RecordBatch.from_pydict({name: [1]}) for name in "ab")
    with pytest.raises(WriteError, match="other columns"):
        formats.write("hdf5", tmp_path / "a.h5", one.schema, [one, two], {})


def test_a_killed_writer_leaves_nothing_that_reads_as_a_dump(tmp_path: Path) -> None:
    code = """if True:
        import os, sys, numpy as np, pyarrow as pa
        from pathlib import Path
        from bufcheck import format as formats
        batch = pa.RecordBatch.from_pydict({"a": np.arange(1_000_000)})
        def batches():
            yield from [batch] * 3
            os.kill(os.getpid(), 9)
        formats.write("hdf5", Path(sys.argv[1]), batch.schema, batches(), {})
    """
    path = tmp_path / "a.h5"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, env=environment)
    assert done.returncode == -9 and path.stat().st_size > 1_000_000
    assert refusal(path)


def test_a_small_dump_is_a_small_file(tmp_path: Path) -> None:
    assert dump(tmp_path / "a.h5", 10).stat().st_size < 20_000


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    code = """if True:
        import resource, signal, sys, numpy as np, pyarrow as pa
        from pathlib import Path
        from bufcheck.errors import WriteError
        from bufcheck import format as formats
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
        batch = pa.RecordBatch.from_pydict({"a": np.arange(1_000_000)})
        try:
            formats.write("hdf5", Path(sys.argv[1]), batch.schema, [batch], {})
        except WriteError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.h5")],
        capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "File too large; free some space" in done.stdout and done.stderr == ""


# Files that others wrote


def test_padded_columns_are_cut(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.h5",
        subset_indices=np.arange(12, dtype="i4").reshape(4, 3),
        action_mask=np.array([[1, 0, 0], [1, 1, 1], [0, 0, 0], [0, 1, 0]], dtype=bool),
        logits=np.array([[1, np.nan, np.nan], [np.nan, 2, 3], [np.nan] * 3, [1, 2, 3]], "f4"),
        num_actions=np.array([2, 9, -1, 0]),
        other=np.arange(8).reshape(4, 2),
    )
    with h5py.File(path, "a") as file:
        file["logits"].attrs["pad"] = np.nan
    table = everything(path)
    assert table["subset_indices"].to_pylist() == [[0, 1], [3, 4, 5], [], []]
    assert table["action_mask"].to_pylist() == [[True, False], [True] * 3, [], []]
    back = table["logits"].to_pylist()
    assert [len(row) for row in back] == [1, 3, 0, 3]
    assert table.schema.field("other").type == pa.list_(pa.int64(), 2)
    assert everything(path, ["subset_indices"], [(1, 3)]).to_pydict() == {
        "subset_indices": [[3, 4, 5], []]
    }
    bare = save(tmp_path / "b.h5", subset_indices=np.arange(4).reshape(2, 2))
    assert everything(bare)["subset_indices"].to_pylist() == [[0, 1], [2, 3]]


def test_other_shapes(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=1024) as file:
        file["image"] = np.arange(24, dtype=">f4").reshape(2, 3, 4)
        vlen = file.create_dataset("subset_indices", (2,), h5py.vlen_dtype(np.int32))
        vlen[0], vlen[1] = [1, 2], []
        file["agent_id"] = np.array([b"IND", "é".encode()])
        file.create_dataset("group", data=["x", "yé"], dtype=h5py.string_dtype())
        file["flag"] = np.array([True, False])
        file["a scalar"] = 3
        file["compound"] = np.zeros(2, [("a", "i4"), ("b", "f8")])
        file["reference"] = np.array([file["flag"].ref] * 2, dtype=h5py.ref_dtype)
        file["opaque"] = np.zeros(2, "V7")
        file["nested/deeper/data"] = np.arange(2)
        file["coded/codes"] = np.array([0, -1])
        file["coded/dictionary"] = np.array([b"one"])
        file.attrs["bufcheck"] = '{"schema": "experience/1"}'
    with path.open("rb") as raw:
        assert hdf5.recognises(raw)
    assert not hdf5.recognises(io.BytesIO(b"PAR1" * 1000))
    table = everything(path)
    assert hdf5.open_source(path).integrity == "not-verifiable"
    assert hdf5.open_source(path).metadata == b'{"schema": "experience/1"}'
    assert table.to_pydict() == {
        "agent_id": ["IND", "é"], "coded": ["one", None], "flag": [True, False],
        "group": ["x", "yé"], "subset_indices": [[1, 2], []],
        "image": [list(map(float, range(12))), list(map(float, range(12, 24)))],
    }  # fmt: skip


def test_uneven_columns_and_selection(tmp_path: Path) -> None:
    path = save(tmp_path / "a.h5", a=np.arange(5), b=np.arange(3), c=np.arange(3))
    source = hdf5.open_source(path)
    assert source.rows == 3 and source.uneven == {"a": 5}
    assert everything(path, ["c", "a"]).to_pydict() == {"c": [0, 1, 2], "a": [0, 1, 2]}
    assert list(source.read([], None)) == [] == list(source.read(["a"], []))
    with pytest.raises(ReadError, match="no column zz"):
        list(source.read(["zz"], None))


def test_scattered_ranges_and_odd_chunks(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    values = np.arange(300_000)
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=values, chunks=(997,), compression="gzip", shuffle=True)
        file.create_dataset("b", data=values.reshape(-1, 1) * [1, 2], chunks=(70_001, 1),
                            compression="lzf")  # fmt: skip
    starts = np.unique(np.random.default_rng(0).integers(0, 299_000, 3000)) // 3 * 3
    ranges = [(int(a), int(a) + 2) for a in np.unique(starts)]
    source = hdf5.open_source(path)
    batches = list(source.read(["b", "a"], ranges))
    rows = np.concatenate([np.arange(a, b) for a, b in ranges])
    table = pa.Table.from_batches(batches)
    assert len(batches) < 40 and (table["a"].to_numpy() == rows).all()
    assert table["b"].combine_chunks().values.to_pylist()[:2] == [rows[0], 2 * rows[0]]
    assert (everything(path)["a"].to_numpy() == values).all()


# Refusals


def test_links_to_other_files_are_refused_without_opening_them(tmp_path: Path) -> None:
    """The other file is a FIFO: whoever opens it waits for ever, and is noticed."""
    other = tmp_path / "other.h5"
    os.mkfifo(other)
    for number, target in enumerate(("/a", "/group")):
        path = save(tmp_path / f"{number}.h5", a=np.arange(3))
        with h5py.File(path, "a") as file:
            file["x"] = h5py.ExternalLink(str(other), target)
        start = time.monotonic()
        assert "column x is an external link to another file; copy" in refusal(path, ["a"])
        assert time.monotonic() - start < 10
    for place in ("column/values", "deep/er/values"):
        path = save(tmp_path / "in.h5", a=np.arange(3))
        with h5py.File(path, "a") as file:
            file.create_group(place.rpartition("/")[0])
            file[place] = h5py.ExternalLink(str(other), "/v")
        assert f"column {place} is an external link" in refusal(path, ["a"])


def test_soft_links_external_storage_and_virtual_datasets_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "soft.h5", a=np.arange(3))
    with h5py.File(path, "a") as file:
        file["x"] = h5py.SoftLink("/a")
    assert "soft link" in refusal(path, ["a"])
    secret = tmp_path / "secret"
    secret.write_bytes(b"password" * 3)
    with h5py.File(tmp_path / "external.h5", "w") as file:
        file["a"] = np.arange(3)
        file.create_dataset("x", (24,), "u1", external=[(str(secret), 0, 24)])
    assert "another file" in refusal(tmp_path / "external.h5", ["a"])
    fifo = tmp_path / "fifo.h5"
    os.mkfifo(fifo)
    layout = h5py.VirtualLayout((3,), "i8", maxshape=(None,))
    layout[: h5py.h5s.UNLIMITED] = h5py.VirtualSource(str(fifo), "a", (3,), maxshape=(None,))[
        : h5py.h5s.UNLIMITED
    ]
    with h5py.File(tmp_path / "virtual.h5", "w", libver="latest") as file:
        file["a"] = np.arange(3)
        file.create_virtual_dataset("deep/x", layout)
    assert "virtual dataset" in refusal(tmp_path / "virtual.h5", ["a"])


def test_absurd_sizes_are_refused(tmp_path: Path) -> None:
    def made(name: str, shape: Any, **how: Any) -> Path:
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("a", shape, "f4", **how)
        return tmp_path / name

    four = made("4tb.h5", (10**12,), chunks=(1024,))
    assert four.stat().st_size < 10_000
    assert "declares 4.0 TB but stores 0 bytes" in refusal(four)
    assert "chunks of" in refusal(made("chunk.h5", (100,), chunks=(80_000_000,), maxshape=(None,)))
    assert "rows" in refusal(made("rows.h5", (2**41, 0)))
    assert "one row" in refusal(made("row.h5", (0, 10**9)))
    with h5py.File(tmp_path / "many.h5", "w", libver="latest") as file:
        for i in range(10_001):
            file.create_group(str(i))
    assert "columns" in refusal(tmp_path / "many.h5")
    with h5py.File(tmp_path / "loop.h5", "w") as file:
        file["a"] = np.arange(3)
        file["g/self"] = file["/"]
        file["g/g"] = file["g"]
    assert everything(tmp_path / "loop.h5")["a"].to_pylist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"offsets": [0, 2, 1], "values": [1, 2]}, "backwards"),
        ({"offsets": [1, 2, 2], "values": [1, 2]}, "start at 1"),
        ({"offsets": [0, 2, 9], "values": [1, 2]}, "end at 9"),
        ({"offsets": [0, -2, 2], "values": [1, 2]}, "backwards"),
        ({"codes": [0, 2], "dictionary": np.array([b"a", b"b"])}, "outside its dictionary"),
        ({"codes": [0, -2], "dictionary": np.array([b"a", b"b"])}, "outside its dictionary"),
        ({"codes": [0, 1], "dictionary": np.array([b"a", b"\xff"])}, "not UTF-8"),
        ({"values": np.array([b"a", b"\xff"])}, "not UTF-8"),
    ],
)
def test_parts_that_contradict_each_other(tmp_path: Path, parts: Any, why: str) -> None:
    path = save(tmp_path / "a.h5", **{f"x/{name}": np.asarray(v) for name, v in parts.items()})
    assert why in refusal(path)


def test_a_file_that_is_being_written_or_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["a"] = np.arange(100_000)
        file.flush()
        assert "still being written" in refusal(path)
        (tmp_path / "killed.h5").write_bytes(path.read_bytes())
    assert "still being written" in refusal(tmp_path / "killed.h5")
    (tmp_path / "cut.h5").write_bytes(path.read_bytes()[:50_000])
    assert "was cut off" in refusal(tmp_path / "cut.h5")
    assert "No such file" in refusal(tmp_path / "absent.h5")


def test_filters_that_need_a_plugin_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((10,))
        plan.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))
        space = h5py.h5s.create_simple((10,))
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, space, plan)
        file["a"] = np.arange(10)
    assert "filter 32015, which needs a plugin" in refusal(path, ["x"])
    assert everything(path, ["a"]).num_rows == 10


# The child process


def dump(path: Path, rows: int = 400_000) -> Path:
    batch = pa.RecordBatch.from_pydict(
        {
            "a": np.arange(rows),
            "state_embed": pa.FixedSizeListArray.from_arrays(
                pa.array(np.arange(rows * 16, dtype=np.float32)), 16
            ),
        }
    )
    formats.write("hdf5", path, batch.schema, [batch], {})
    return path


def test_a_killed_child_is_one_error_and_the_next_read_works(tmp_path: Path) -> None:
    source = hdf5.open_source(dump(tmp_path / "a.h5"))
    stream = source.read(["state_embed"], None)
    next(stream)
    (child,) = server._all
    child.process.send_signal(signal.SIGSEGV)
    with pytest.raises(ReadError, match="ended by SIGSEGV"):
        list(stream)
    assert child.process.returncode is not None
    assert sum(batch.num_rows for batch in source.read(["a"], None)) == 400_000


def test_a_hanging_child_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = hdf5.open_source(dump(tmp_path / "a.h5", 10))
    (child,) = server._idle
    monkeypatch.setattr(hdf5, "STALL_SECONDS", 1)
    child.process.send_signal(signal.SIGSTOP)
    with pytest.raises(ReadError, match="gave no data for 1 s: the file is damaged; dump"):
        list(source.read(["a"], None))
    assert child.process.returncode == -signal.SIGKILL
    monkeypatch.undo()
    assert everything(tmp_path / "a.h5").num_rows == 10


def test_a_reader_that_stops_early_leaves_no_child_waiting(tmp_path: Path) -> None:
    source = hdf5.open_source(dump(tmp_path / "a.h5"))
    stream = source.read(["state_embed"], None)
    next(stream)
    (child,) = server._all
    stream.close()  # type: ignore[attr-defined]
    assert child.process.returncode is not None
    assert sum(batch.num_rows for batch in source.read(["a"], None)) == 400_000
    one, two = source.read(["state_embed"], None), source.read(["a"], None)
    assert [next(one).num_rows > 0, next(two).num_rows > 0] == [True, True]
    del one, two
    gc.collect()
    assert len(server._all) <= 1


def test_two_reads_at_once_do_not_mix(tmp_path: Path) -> None:
    source = hdf5.open_source(dump(tmp_path / "a.h5"))
    pairs = zip(source.read(["a"], None), source.read(["a"], None), strict=True)
    assert all(one.equals(two) for one, two in pairs)
    assert len(server._all) == 1


def test_the_child_ends_with_its_parent_and_h5py_stays_out(tmp_path: Path) -> None:
    path = dump(tmp_path / "a.h5")
    (tmp_path / "h5py.py").write_text("open('hacked', 'w')")
    (tmp_path / "sitecustomize.py").write_text("open('hacked', 'w')")
    code = f"""if True:
        import sys, os; sys.path.insert(0, {str(ROOT)!r})
        from pathlib import Path
        from bufcheck.formats import hdf5
        assert not {{"h5py", "pyarrow", "torch"}} & set(sys.modules)
        source = hdf5.open_source(Path("a.h5"))
        stream = source.read(["state_embed"], None); next(stream)
        assert "h5py" not in sys.modules
        from bufcheck.formats import _hdf5_server
        print(*[child.process.pid for child in _hdf5_server._all], flush=True)
        if sys.argv[1] == "kill": os.kill(os.getpid(), 9)
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    for how in ("kill", "exit"):
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, how], cwd=tmp_path, capture_output=True,
            text=True, timeout=60, env=environment,
        )  # fmt: skip
        assert done.stderr == "" and done.returncode == (-9 if how == "kill" else 0)
        end = time.monotonic() + 5
        while _alive(int(done.stdout)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not _alive(int(done.stdout))
    assert path.exists() and not (tmp_path / "hacked").exists()


def _alive(pid: int) -> bool:
    """Running, that is: a container's init may leave the zombie of an orphan."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


# Damage


def small_dumps(folder: Path) -> list[Path]:
    """One as bufcheck writes it, and one in every shape that others use."""
    rows = 60
    batch = pa.RecordBatch.from_pydict({k: v[:rows] for k, v in columns_of_every_type().items()})
    keep = ["int64", "half null", "text string", "list<item: int32> null", "logits", "x_struct"]
    batch = batch.select(keep)
    formats.write("hdf5", folder / "ours.h5", batch.schema, [batch], {"schema": "experience/1"})
    with h5py.File(folder / "theirs.h5", "w") as file:
        file["episode_id"] = np.arange(rows)
        file.create_dataset("agent_id", data=["IND", "EDU"] * 30, dtype=h5py.string_dtype())
        vlen = file.create_dataset("subset_indices", (rows,), h5py.vlen_dtype(np.int32))
        for i in range(rows):
            vlen[i] = range(i % 5)
        file.create_dataset("state", data=np.ones((rows, 4)), compression="gzip", chunks=(16, 2))
        file.attrs["bufcheck"] = json.dumps({"schema": "experience/1"})
    return [folder / "ours.h5", folder / "theirs.h5"]


def mutated(data: bytes, random: np.random.Generator) -> bytes:
    raw = bytearray(data)
    at = int(random.integers(0, len(raw)))
    match random.integers(0, 5):
        case 0 | 1:
            for spot in random.integers(8, len(raw), int(random.integers(1, 6))):
                raw[spot] ^= 1 << int(random.integers(0, 8))
        case 2:
            del raw[max(at, 64) :]
        case 3:
            raw[at : at + 40] = random.bytes(len(raw[at : at + 40]))
        case 4:
            raw[at : at + 200] = bytes(len(raw[at : at + 200]))
    return bytes(raw)


@pytest.mark.parametrize("seed", range(2))
def test_a_damaged_file_is_an_error_or_data(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "BUFCHECK_MUTATIONS" not in os.environ:  # a few of these files do hang HDF5
        monkeypatch.setattr(hdf5, "STALL_SECONDS", 2)
    source = small_dumps(tmp_path)[seed]
    good = source.read_bytes()
    random = np.random.default_rng(seed)
    bad = tmp_path / "bad.h5"
    outcomes = {"read": 0, "refused": 0}
    for _ in range(int(os.environ.get("BUFCHECK_MUTATIONS", "75"))):
        bad.write_bytes(mutated(good, random))
        digest = hashlib.sha256(bad.read_bytes()).digest()
        start = time.monotonic()
        try:
            everything(bad).validate(full=True)
            outcomes["read"] += 1
        except ReadError as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
        assert time.monotonic() - start < 25
        assert hashlib.sha256(bad.read_bytes()).digest() == digest
    assert outcomes["refused"] > 0
    assert everything(source).num_rows == 60


def test_damage_to_what_bufcheck_wrote_is_noticed(tmp_path: Path) -> None:
    path = dump(tmp_path / "a.h5", 4096)
    good = path.read_bytes()
    at = good.index(np.arange(1000, 1010, dtype=np.float32).tobytes())
    path.write_bytes(good[:at] + b"\x01" + good[at + 1 :])
    assert "cannot read it" in refusal(path)


def test_reading_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = dump(tmp_path / "a.h5", 1000)
    before = path.read_bytes(), path.stat().st_mtime_ns
    path.chmod(0o444)
    everything(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
