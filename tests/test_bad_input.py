"""Unreadable, cut off, foreign, hostile: one clear line with the next step, exit 2, nothing written."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import CAMPAIGN, HEALTHY, ROOT, Ran, bufcheck, refused

from bufcheck.convert import convert

MUTATIONS = 600 if CAMPAIGN else 60


@pytest.fixture(scope="module")
def healthy_h5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("h5") / "healthy.h5"
    convert([str(HEALTHY)], path)
    return path


def refuse(path: object, *options: object) -> str:
    return refused(bufcheck("validate", path, *options))


def test_no_such_file() -> None:
    assert "no such file" in refuse("nowhere.parquet")
    assert "no file matches" in refuse("nowhere/*.parquet")


def test_remote_paths_say_how_to_get_them_here() -> None:
    assert "copy it here first" in refuse("s3://bucket/dump.parquet")


def test_empty_and_foreign_files(tmp_path: Path) -> None:
    empty, text = tmp_path / "a.parquet", tmp_path / "b.parquet"
    empty.write_bytes(b"")
    text.write_text("hello\n" * 100)
    assert "is empty" in refuse(empty)
    assert "neither Parquet nor HDF5" in refuse(text)
    assert "no Parquet or HDF5 file" in refuse(tmp_path.joinpath("void").mkdir() or tmp_path / "void")


def test_a_folder_with_a_broken_part_is_refused(tmp_path: Path) -> None:
    (tmp_path / "part-0.parquet").write_bytes(HEALTHY.read_bytes())
    (tmp_path / "part-1.parquet").write_bytes(b"")
    assert "part-1.parquet" in refuse(tmp_path)


def test_still_being_written(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(HEALTHY.read_bytes()[:-100])
    assert "still being written, or was cut off" in refuse(path)


def test_no_rows(tmp_path: Path) -> None:
    pq.write_table(pq.read_table(HEALTHY).slice(0, 0), tmp_path / "a.parquet")
    assert "holds no rows" in refuse(tmp_path / "a.parquet")


def test_a_table_of_something_else(tmp_path: Path) -> None:
    pq.write_table(pa.table({"price": [1, 2], "date": ["x", "y"]}), tmp_path / "a.parquet")
    message = refuse(tmp_path / "a.parquet")
    assert "not an experience dump" in message
    assert "[columns] in bufcheck.toml" in message


def with_metadata(path: Path, raw: bytes) -> Path:
    table = pq.read_table(HEALTHY)
    pq.write_table(table.replace_schema_metadata({b"bufcheck": raw}), path)
    return path


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        (b"{not json", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "names no schema"),
        (b'{"schema": "experience/9"}', "it knows experience/1"),
        (b'{"schema": "experience/1", "rows": "many"}', "must be of type integer"),
        (b'{"schema": "experience/1", "rows": -1}', "must be at least 0"),
        (b'{"schema": "experience/1", "policy": {"logits": "slice"}}', "gather, prefix"),
        (b'{"schema": "experience/1", "policy": {"distribution": "recurrent"}}', "hidden state"),
        (b'{"schema": "experience/1", "policy": {"temperature": 0}}', "must be above 0"),
        (b'{"schema": "experience/1", "policy": {"state_shape": []}}', "positive integers"),
        (b'{"schema": "experience/1", "agents": {"turn_based": 1}}', "must be of type boolean"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_metadata_that_cannot_be_meant(tmp_path: Path, metadata: bytes, says: str) -> None:
    assert says in refuse(with_metadata(tmp_path / "a.parquet", metadata))


def test_files_that_contradict_each_other(tmp_path: Path) -> None:
    for name, logits in (("a", "gather"), ("b", "prefix")):
        described = {"schema": "experience/1", "policy": {"logits": logits}}
        with_metadata(tmp_path / f"{name}.parquet", json.dumps(described).encode())
    assert "check them as two dumps" in refuse(tmp_path)


def test_the_same_file_twice(tmp_path: Path) -> None:
    assert "given twice" in refused(bufcheck("validate", HEALTHY, HEALTHY))


def test_parquet_without_checksums_is_not_verifiable(tmp_path: Path) -> None:
    table = pq.read_table(HEALTHY)
    pq.write_table(table, tmp_path / "a.parquet")
    report = bufcheck("validate", tmp_path / "a.parquet", "--format", "json").report
    assert report["dump"]["integrity"] == "not-verifiable"


def test_a_flipped_bit_in_a_checksummed_page_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    meta = pq.ParquetFile(HEALTHY).metadata.row_group(0)
    columns = [meta.column(i) for i in range(meta.num_columns)]
    [state] = [c for c in columns if c.path_in_schema.startswith("state_embed")]
    data = bytearray(HEALTHY.read_bytes())
    data[state.data_page_offset + state.total_compressed_size - 20] ^= 4
    path.write_bytes(data)
    assert "damaged" in refuse(path)


def hostile_h5(path: Path, kind: str, secret: Path) -> None:
    with h5py.File(secret, "w") as file:
        file["secret"] = np.arange(100)
        file.create_group("inner")["episode_id"] = np.arange(100)
    with h5py.File(path, "w") as file:
        file["timestep"] = np.arange(100, dtype="i4")
        if kind == "external link":
            file["episode_id"] = h5py.ExternalLink(str(secret), "/secret")
        elif kind == "link in mid-path":
            file["group"] = h5py.ExternalLink(str(secret), "/inner")
            file["episode_id"] = h5py.SoftLink("/group/episode_id")
        elif kind == "external storage":
            file.create_dataset("episode_id", (100,), "i8", external=[(str(secret), 0, 800)])
        elif kind == "virtual dataset":
            layout = h5py.VirtualLayout((100,), "i8")
            layout[:] = h5py.VirtualSource(str(secret), "secret", (100,))
            file.create_virtual_dataset("episode_id", layout)
        elif kind == "4 TB":
            file.create_dataset("episode_id", (1 << 39,), "i8", chunks=(1 << 20,))
        elif kind == "giant chunk":
            file.create_dataset("episode_id", (1 << 27,), "i8", chunks=(1 << 27,), compression="gzip")


@pytest.mark.parametrize(
    "kind",
    [
        "external link",
        "link in mid-path",
        "external storage",
        "virtual dataset",
        "4 TB",
        "giant chunk",
    ],
)
def test_hostile_hdf5_is_refused(tmp_path: Path, kind: str) -> None:
    hostile_h5(tmp_path / "a.h5", kind, tmp_path / "secret.bin")
    begun = time.monotonic()
    refuse(tmp_path / "a.h5")
    assert time.monotonic() - begun < 25


def test_hdf5_whose_writer_was_killed(tmp_path: Path, healthy_h5: Path) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(healthy_h5.read_bytes())
    with h5py.File(path, "a") as file:
        for name in file:
            column = file[name]
            if isinstance(column, h5py.Dataset) and column.ndim == 1:
                column.resize((200,))
    ran = bufcheck("validate", path, "--format", "json")
    assert ran.code == 1
    [rule] = [r for r in ran.report["rules"] if r["name"] == "truncated-dump"]
    assert rule["status"] == "fail"
    assert "declares 354 rows and holds 200" in rule["examples"][0]["message"]


def mutate(data: bytes, seed: int) -> bytes:
    """Bit flips anywhere or near the ends, cuts, garbage, zeroed stretches, repeated stretches."""
    rng = random.Random(seed)
    broken = bytearray(data)
    kind = seed % 6
    at = rng.randrange(len(broken))
    size = rng.randint(1, 400)
    if kind == 0:
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
    elif kind == 1:  # where both formats keep their description
        edge = rng.choice([rng.randrange(2000), len(broken) - 1 - rng.randrange(6000)])
        broken[edge] ^= 1 << rng.randrange(8)
    elif kind == 2:
        del broken[at:]
    elif kind == 3:
        broken[at : at + size] = rng.randbytes(len(broken[at : at + size]))
    elif kind == 4:
        broken[at : at + size] = bytes(len(broken[at : at + size]))
    else:
        broken[at:at] = broken[at : at + size]
    return bytes(broken)


@pytest.mark.parametrize("form", ["parquet", "parquet without checksums", "hdf5", "foreign hdf5"])
def test_mutations(form: str, tmp_path: Path, healthy_h5: Path) -> None:
    """A damaged file gives a normal report or exit 2: no traceback, no signal, none over 30 s."""
    source = tmp_path / "source"
    if form == "hdf5":
        source.write_bytes(healthy_h5.read_bytes())
    elif form == "parquet":
        source.write_bytes(HEALTHY.read_bytes())
    elif form == "foreign hdf5":
        plain_h5(source)
    else:
        pq.write_table(pq.read_table(HEALTHY), source, compression="none")
    data = source.read_bytes()

    def attempt(seed: int) -> tuple[int, Ran, float]:
        path = tmp_path / f"{seed}.dump"
        path.write_bytes(mutate(data, seed))
        begun = time.monotonic()
        ran = bufcheck("validate", path, "--format", "json", timeout=40)
        path.unlink()
        return seed, ran, time.monotonic() - begun

    with ThreadPoolExecutor(2) as pool:
        for seed, ran, seconds in pool.map(attempt, range(MUTATIONS // 2)):
            assert seconds < 30, seed
            if ran.code == 2:
                refused(ran)
            else:
                assert ran.code in (0, 1), (seed, ran)
                assert ran.report["verdict"] in ("fail", "unverified"), seed
                assert ran.err == "", (seed, ran.err)


def plain_h5(path: Path) -> None:
    """As h5py users write it: variable-length lists and strings, gzip, no checksums."""
    table = pq.read_table(HEALTHY).to_pydict()
    with h5py.File(path, "w") as file:
        for name in ("episode_id", "timestep", "num_actions", "action_index", "old_log_prob"):
            file.create_dataset(name, data=np.array(table[name]), chunks=True, compression="gzip")
        file["state_embed"] = np.array(table["state_embed"], "f4")
        file.create_dataset("agent_id", data=table["agent_id"], dtype=h5py.string_dtype())
        ragged = file.create_dataset("subset_indices", (354,), h5py.vlen_dtype("i4"))
        for i, ids in enumerate(table["subset_indices"]):
            ragged[i] = ids


def test_output_closed_early() -> None:
    command = f"{sys.executable} -m bufcheck rules | head -1"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert "Traceback" not in done.stderr
