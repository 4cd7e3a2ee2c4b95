"""Which files a dump is, and what is read into foreign ones."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import HEALTHY, bufcheck, failing, refused

import bufcheck as library
from bufcheck import pipeline
from bufcheck.ahead import prefetch
from bufcheck.config import Config
from bufcheck.convert import convert
from bufcheck.dump import open_dump
from bufcheck.formats import parquet

ROWS = 354


def in_parts(folder: Path, parts: int, suffix: str = "parquet") -> list[Path]:
    """The healthy dump in several files, each with its own count of rows."""
    import json

    table = pq.read_table(HEALTHY)
    described = json.loads(table.schema.metadata[b"bufcheck"])
    paths = []
    for part in range(parts):
        start, stop = ROWS * part // parts, ROWS * (part + 1) // parts
        piece = table.slice(start, stop - start).replace_schema_metadata(
            {"bufcheck": json.dumps(described | {"rows": stop - start})}
        )
        path = folder / f"part-{part}.parquet"
        pq.write_table(piece, path, write_page_checksum=True)
        if suffix == "h5":
            convert([str(path)], path.with_suffix(".h5"))
            path.unlink()
        paths.append(path.with_suffix(f".{suffix}"))
    return paths


def read_column(paths: list[str], name: str) -> list[Any]:
    dump = open_dump(paths)
    values: list[Any] = []
    for batch in dump.batches([name]):
        assert batch.first_row == len(values)
        values += batch.rows.column(0).to_pylist()
    return values


@pytest.mark.parametrize("suffix", ["parquet", "h5"])
def test_folder_and_glob_are_read_in_natural_order(tmp_path: Path, suffix: str) -> None:
    in_parts(tmp_path, 12, suffix)
    expected = pq.read_table(HEALTHY)["x_note"].to_pylist()
    assert read_column([str(tmp_path)], "x_note") == expected
    assert read_column([f"{tmp_path}/part-*.{suffix}"], "x_note") == expected


def test_formats_are_known_by_content_and_may_mix(tmp_path: Path) -> None:
    _, second = in_parts(tmp_path, 2)
    convert([str(second)], tmp_path / "second.h5")
    second.unlink()
    (tmp_path / "second.h5").rename(tmp_path / "part-1.data")
    (tmp_path / "notes.txt").write_text("not a dump")
    (tmp_path / "_SUCCESS").write_text("")
    assert read_column([str(tmp_path)], "x_note") == pq.read_table(HEALTHY)["x_note"].to_pylist()
    assert failing(pipeline.validate([str(tmp_path)])) == {}


def test_hive_folders_give_columns(tmp_path: Path) -> None:
    table = pq.read_table(HEALTHY)
    for agent in ("EDU", "IND", "LAB"):
        mask = pa.compute.equal(table["agent_id"].cast(pa.string()), agent)
        part = table.filter(mask).drop_columns(["agent_id"]).replace_schema_metadata(None)
        folder = tmp_path / f"agent_id={agent}"
        folder.mkdir()
        pq.write_table(part, folder / "rows.parquet")
    report = pipeline.validate([str(tmp_path)])
    assert report["dump"]["agents"] == ["EDU", "IND", "LAB"]
    assert report["dump"]["assumed"]["columns.agent_id"]["source"] == "the folder's name"
    assert failing(report) == {"missing-metadata": 0}


def test_same_findings_in_one_file_and_in_seven(tmp_path: Path) -> None:
    one = pipeline.validate([str(HEALTHY.parent / "demo.parquet")])
    table = pq.read_table(HEALTHY.parent / "demo.parquet")
    for part in range(7):
        start, stop = len(table) * part // 7, len(table) * (part + 1) // 7
        piece = table.slice(start, stop - start).replace_schema_metadata(
            {
                "bufcheck": table.schema.metadata[b"bufcheck"].replace(
                    b'"rows": 351', b'"rows": %d' % (stop - start)
                )
            }
        )
        pq.write_table(piece, tmp_path / f"{part}.parquet", write_page_checksum=True)
    seven = pipeline.validate([str(tmp_path)])
    assert one["rules"] == seven["rules"]


def test_column_that_only_some_files_have(tmp_path: Path) -> None:
    _, second = in_parts(tmp_path, 2)
    table = pq.read_table(second)
    pq.write_table(table.drop_columns(["reward"]), second, write_page_checksum=True)
    report = pipeline.validate([str(tmp_path)])
    assert failing(report) == {"missing-column": 0}
    [rule] = [r for r in report["rules"] if r["name"] == "missing-column"]
    assert "reward" in rule["examples"][0]["message"]
    assert "part-1.parquet" in rule["examples"][0]["message"]


FOREIGN = """
[columns]
episode_id = "ep"
timestep = "t"
agent_id = "who"
state_embed = "obs"
subset_indices = "legal"
num_actions = "k"
action_index = "act"
old_log_prob = "logp"

[policy]
logits = "prefix"
action_space = 20
"""


def foreign(path: Path) -> None:
    """As a data-frame library writes it: 64-bit integers, lists, other names, no metadata."""
    rows = pq.read_table(HEALTHY).to_pylist()
    names = {
        "ep": "episode_id",
        "t": "timestep",
        "obs": "state_embed",
        "legal": "subset_indices",
        "k": "num_actions",
        "act": "action_index",
        "logp": "old_log_prob",
    }
    columns: dict[str, Any] = {ours: [row[name] for row in rows] for ours, name in names.items()}
    columns["who"] = [["EDU", "IND", "LAB"].index(row["agent_id"]) for row in rows]
    # The mask's single choices show as log-prob 0 among several actions: leave such rows consistent.
    columns["logp"] = [
        min(p, -1e-3) if k > 1 else p for p, k in zip(columns["logp"], columns["k"], strict=True)
    ]
    pq.write_table(pa.table(columns), path)


def test_foreign_file_through_bufcheck_toml(tmp_path: Path) -> None:
    foreign(tmp_path / "foreign.parquet")
    (tmp_path / "bufcheck.toml").write_text(FOREIGN)
    ran = bufcheck("validate", "foreign.parquet", "--format", "json", cwd=tmp_path)
    report = ran.report
    assert not {"missing-column", "wrong-type", "missing-metadata"} & set(failing(report))
    assumed = report["dump"]["assumed"]
    assert assumed["policy.logits"] == {"value": "prefix", "source": "bufcheck.toml"}
    assert assumed["policy.temperature"] == {"value": 1.0, "source": "default"}
    assert "read from 'obs'" in assumed["columns.state_embed"]["value"]
    assert "int64 taken for int32" in assumed["columns.timestep"]["value"]
    [truncated] = [r for r in report["rules"] if r["name"] == "truncated-dump"]
    assert truncated["status"] == "not-checked"
    text = bufcheck("validate", "foreign.parquet", cwd=tmp_path).out
    assert "policy.logits = prefix (bufcheck.toml)" in text


def test_foreign_file_becomes_a_dump(tmp_path: Path) -> None:
    foreign(tmp_path / "foreign.parquet")
    (tmp_path / "bufcheck.toml").write_text(FOREIGN)
    assert bufcheck("convert", "foreign.parquet", "dump.h5", cwd=tmp_path).code == 0
    (tmp_path / "bufcheck.toml").unlink()
    report = bufcheck("validate", "dump.h5", "--format", "json", cwd=tmp_path).report
    assert not {"missing-column", "wrong-type", "missing-metadata"} & set(failing(report))
    assert report["dump"]["rows"] == ROWS
    assert report["dump"]["agents"] == ["0", "1", "2"]
    assert report["dump"]["integrity"] == "verified"


def test_padded_columns_are_cut_whatever_they_are_called(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["k"] = np.array([2, 1, 3], "i4")
        file["legal"] = np.array([[5, 6, 0], [7, 0, 0], [1, 2, 3]], "i4")
    config = Config(columns={"num_actions": "k", "subset_indices": "legal"})
    [batch] = open_dump([str(path)], config).batches(["subset_indices"])
    assert batch.rows.column(0).to_pylist() == [[5, 6], [7], [1, 2, 3]]


def test_a_mapping_to_a_column_that_is_not_there(tmp_path: Path) -> None:
    foreign(tmp_path / "foreign.parquet")
    (tmp_path / "bufcheck.toml").write_text('[columns]\nreward = "prize"\n')
    assert "no column 'prize'" in refused(bufcheck("validate", "foreign.parquet", cwd=tmp_path))


def test_settings_override_is_always_said(tmp_path: Path) -> None:
    config = Config(metadata={"policy.temperature": 2.0})
    dump = open_dump([str(HEALTHY)], config)
    assert dump.settings["policy.temperature"] == 2.0
    assert "the file says 1.0" in dump.assumed["policy.temperature"]["source"]


def test_an_int64_timestep_breaks_a_promise_only_where_one_was_made(tmp_path: Path) -> None:
    table = pq.read_table(HEALTHY)
    at = table.column_names.index("timestep")
    wide = table.set_column(at, "timestep", table["timestep"].cast(pa.int64()))
    pq.write_table(wide, tmp_path / "declared.parquet")
    pq.write_table(wide.replace_schema_metadata(None), tmp_path / "foreign.parquet")
    assert "wrong-type" in failing(pipeline.validate([str(tmp_path / "declared.parquet")]))
    report = pipeline.validate([str(tmp_path / "foreign.parquet")])
    assert "wrong-type" not in failing(report)


@pytest.mark.parametrize("layout", ["padded", "variable-length"])
def test_hdf5_as_other_people_write_it(tmp_path: Path, layout: str) -> None:
    table = pq.read_table(HEALTHY).to_pydict()
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name in ("episode_id", "timestep", "num_actions", "action_index", "old_log_prob"):
            kind = {"episode_id": "i8", "old_log_prob": "f4"}.get(name, "i4")
            file[name] = np.array(table[name], kind)
        file["state_embed"] = np.array(table["state_embed"], "f4")
        file["agent_id"] = np.array(table["agent_id"], "S3")
        if layout == "padded":
            padded = np.zeros((ROWS, 8), "i4")
            for row, ids in enumerate(table["subset_indices"]):
                padded[row, : len(ids)] = ids
            file["subset_indices"] = padded
        else:
            ragged = file.create_dataset("subset_indices", (ROWS,), h5py.vlen_dtype("i4"))
            for row, ids in enumerate(table["subset_indices"]):
                ragged[row] = ids
    assert read_column([str(path)], "subset_indices") == table["subset_indices"]
    assert "missing-metadata" in failing(pipeline.validate([str(path)]))


def test_python_api(tmp_path: Path) -> None:
    report = library.validate(str(HEALTHY), select=["subset"], findings=str(tmp_path / "f.parquet"))
    assert report["verdict"] == "unverified"
    assert library.open_dump(str(HEALTHY)).rows == ROWS
    with pytest.raises(library.ReadError, match="no such file"):
        library.validate("nowhere.parquet")


def test_batches_are_small_also_where_the_file_is_smaller_still(tmp_path: Path) -> None:
    """One-hot states take next to nothing in a file."""
    rows, width = 20_000, 1024
    table = pq.read_table(HEALTHY).slice(0, 1)
    table = pa.concat_tables([table] * rows).combine_chunks()
    states = np.tile(np.eye(1, width, dtype=np.float32).ravel(), rows)
    place = table.schema.get_field_index("state_embed")
    column = pa.FixedSizeListArray.from_arrays(states, width)
    pq.write_table(table.set_column(place, "state_embed", column), tmp_path / "one-hot.parquet")
    assert (tmp_path / "one-hot.parquet").stat().st_size < parquet.BATCH_BYTES
    read = list(open_dump([str(tmp_path / "one-hot.parquet")]).batches(["state_embed"]))
    assert sum(batch.rows.num_rows for batch in read) == rows
    assert max(batch.rows.nbytes for batch in read) < 1.5 * parquet.BATCH_BYTES


def test_whoever_stops_reading_ahead_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    begun = prefetch(itertools.count(), depth=2)
    assert next(begun) == 0
    never_asked = prefetch(itertools.count(), depth=2)
    readers = set(threading.enumerate()) - before
    assert len(readers) == 2
    del begun, never_asked
    assert not any(thread.is_alive() for thread in readers)
