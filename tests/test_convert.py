"""`bufcheck convert` loses nothing, and its output is whole or absent."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import FIXTURES, HEALTHY, ROOT, bufcheck, refused

from bufcheck import format as formats
from bufcheck.convert import convert


def there_and_back(path: Path, folder: Path) -> pa.Table:
    convert([str(path)], folder / "there.h5")
    convert([str(folder / "there.h5")], folder / "back.parquet")
    return pq.read_table(folder / "back.parquet")


@pytest.mark.parametrize("name", ["healthy.parquet", "demo.parquet", "broken/null-value.parquet"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    original = pq.read_table(FIXTURES / name)
    again = there_and_back(FIXTURES / name, tmp_path)
    assert again.schema.remove_metadata() == original.schema.remove_metadata()
    # NaN is not equal to itself, so equality is asked of what both print.
    assert str(again.to_pylist()) == str(original.to_pylist())
    described = [json.loads(t.schema.metadata[b"bufcheck"]) for t in (original, again)]
    assert described[0] == described[1]


def test_columns_of_ones_own_survive_whatever_they_are(tmp_path: Path) -> None:
    table = pq.read_table(HEALTHY)
    count = len(table)
    own = {
        "x_struct": pa.array([{"a": i, "b": [str(i)]} for i in range(count)]),
        "x_when": pa.array([datetime(2026, 1, 1)] * count),
        "x_text": pa.array(["", None, "héllo\0", "a" * 300] * (count // 4) + [""] * (count % 4)),
        "x_big": pa.array([2**63 + i for i in range(count)], pa.uint64()),
        "x_half": pa.array([0.5] * count, pa.float16()),
        "x_list": pa.array([[1.5, None], None, []] * (count // 3), pa.large_list(pa.float64())),
    }
    for name, column in own.items():
        table = table.append_column(name, column)
    pq.write_table(table, tmp_path / "own.parquet")
    again = there_and_back(tmp_path / "own.parquet", tmp_path)
    for name in own:
        assert again[name].combine_chunks() == table[name].combine_chunks(), name


def test_several_files_become_one(tmp_path: Path) -> None:
    table = pq.read_table(HEALTHY)
    for part in range(3):
        pq.write_table(table.slice(part * 118, 118), tmp_path / f"{part}.parquet")
    assert convert([str(tmp_path)], tmp_path / "all.h5") == 354
    report = bufcheck("validate", tmp_path / "all.h5", "--format", "json").report
    assert report["dump"]["rows"] == 354
    assert report["summary"]["errors"] == 0, "`rows` is that of the new file"


def test_refuses_to_replace_and_unknown_suffixes(tmp_path: Path) -> None:
    target = tmp_path / "a.h5"
    target.write_text("mine")
    assert "say --force" in refused(bufcheck("convert", HEALTHY, target))
    assert target.read_text() == "mine"
    assert bufcheck("convert", HEALTHY, target, "--force").code == 0
    assert "suffix says no format" in refused(bufcheck("convert", HEALTHY, tmp_path / "a.csv"))
    assert "No such file" in refused(bufcheck("convert", HEALTHY, tmp_path / "no" / "a.h5"))


@pytest.mark.parametrize("suffix", ["parquet", "h5"])
def test_killed_at_any_moment_leaves_nothing_or_all(tmp_path: Path, suffix: str) -> None:
    table = pa.concat_tables([pq.read_table(HEALTHY)] * 200)
    described = json.loads(table.schema.metadata[b"bufcheck"]) | {"rows": len(table)}
    pq.write_table(
        table.replace_schema_metadata({"bufcheck": json.dumps(described)}), tmp_path / "in.parquet"
    )
    target = tmp_path / f"out.{suffix}"
    command = [
        sys.executable,
        "-m",
        "bufcheck",
        "convert",
        str(tmp_path / "in.parquet"),
        str(target),
    ]
    for attempt in range(8):
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        time.sleep(0.3 + 0.12 * attempt)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if target.exists():
            source = formats.open_source(target)
            assert sum(b.num_rows for b in source.read(["episode_id"], None)) == len(table)
            target.unlink()


@pytest.mark.parametrize("suffix", ["parquet", "h5"])
def test_a_full_disk_leaves_nothing(tmp_path: Path, suffix: str) -> None:
    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = subprocess.run(
        [sys.executable, "-m", "bufcheck", "convert", str(HEALTHY), str(tmp_path / f"a.{suffix}")],
        capture_output=True,
        text=True,
        preexec_fn=small,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 2, done
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_only_one_of_three_writers_wins(tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    command = [sys.executable, "-m", "bufcheck", "convert", str(HEALTHY), str(target)]
    running = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    codes = sorted(process.wait() for process in running)
    for process in running:
        assert process.stderr is not None
        process.stderr.close()
    assert codes == [0, 2, 2]
    assert pq.read_table(target).num_rows == 354
    assert [p.name for p in tmp_path.iterdir()] == ["out.parquet"]
