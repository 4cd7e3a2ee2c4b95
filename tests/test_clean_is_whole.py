"""An output of clean is absent, or complete and verified: killed, out of space, or in a race."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import CAMPAIGN, HEALTHY, ROOT, bufcheck, refused

from bufcheck import whole_file
from bufcheck.manifest import sha256

NAMES = {"clean.parquet", "clean.quarantine.parquet", "clean.manifest.json"}
pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and limits of Unix")


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some bad rows, out of order, and large enough that a kill falls into the writing too."""
    rng = np.random.default_rng(0)
    one = pq.read_table(HEALTHY)
    tables = []
    for i in range(40):
        episode = pa.array(one.column("episode_id").to_numpy() + 12 * i)
        tables.append(one.set_column(0, "episode_id", episode))
    table = pa.concat_tables(tables)
    reward = table.column("reward").to_numpy().copy()
    reward[rng.choice(len(reward), 300, replace=False)] = np.nan
    place = table.schema.get_field_index("reward")
    table = table.set_column(place, table.schema.field(place), pa.array(reward))
    described = json.loads(one.schema.metadata[b"bufcheck"]) | {"rows": table.num_rows}
    table = table.take(rng.permutation(table.num_rows))
    path = tmp_path_factory.mktemp("dump") / "dump.parquet"
    table = table.replace_schema_metadata({"bufcheck": json.dumps(described)})
    pq.write_table(table, path, write_page_checksum=True)
    return path


@contextmanager
def cleaning(
    dump: Path, output: Path, *options: str, **given: object
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bufcheck", "clean", str(dump), "-o", str(output), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **given,  # type: ignore[call-overload]
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def is_whole(folder: Path) -> bool:
    """Asserts that what has its name is complete; returns whether all of it is there."""
    named = {p.name for p in folder.iterdir() if not p.name.startswith(".")}
    assert named <= NAMES
    output, account = folder / "clean.parquet", folder / "clean.manifest.json"
    if output.exists():
        rows = pq.ParquetFile(output, page_checksum_verification=True).read().num_rows
        assert rows == json.loads(pq.read_schema(output).metadata[b"bufcheck"])["rows"] == 13860
    if account.exists():
        assert named == NAMES
        told = json.loads(account.read_text())
        assert told["output"]["sha256"] == sha256(output)
        assert told["quarantine"]["sha256"] == sha256(folder / "clean.quarantine.parquet")
        assert told["rows_kept"] == 13860
    return named == NAMES


def taken(dump: Path, folder: Path) -> float:
    """Seconds that a cleaning takes here and now."""
    begun = time.monotonic()
    with cleaning(dump, folder / "clean.parquet") as process:
        assert process.wait(120) == 0, process.stderr and process.stderr.read()
    assert is_whole(folder)
    shutil.rmtree(folder)
    return time.monotonic() - begun


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment(dump: Path, tmp_path: Path, seed: int) -> None:
    before = sha256(dump)
    seconds = taken(dump, folder := _folder(tmp_path, "first"))
    rng = random.Random(seed)
    finished = 0
    for i in range(kills := 25 if CAMPAIGN else 10):
        folder = _folder(tmp_path, str(i))
        with cleaning(dump, folder / "clean.parquet") as process:
            # The last tenth of the time, where files get their names, is tried as often as the rest.
            start = 0.0 if i % 2 else 0.85
            time.sleep(seconds * rng.uniform(start, 1.1))
            process.send_signal(signal.SIGKILL)
            process.wait()
        finished += is_whole(folder)
        if left := whole_file.left_over(folder):
            # What a killed run left is recognised, said, and in nobody's way.
            out = bufcheck("clean", dump, "-o", folder / "again.parquet", "--dry-run")
            assert all(str(path) in out.err for path in left)
        shutil.rmtree(folder)
    assert sha256(dump) == before
    assert finished < kills


def _folder(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


def test_ctrl_c_leaves_nothing(dump: Path, tmp_path: Path) -> None:
    seconds = taken(dump, _folder(tmp_path, "first"))
    for i, share in enumerate(np.linspace(0.3, 0.95, 12 if CAMPAIGN else 6)):
        folder = _folder(tmp_path, str(i))
        with cleaning(dump, folder / "clean.parquet") as process:
            time.sleep(seconds * share)
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
        if code == 0:
            assert is_whole(folder)
        else:  # on a slow day Python itself is interrupted, before it knows of us
            assert code in (130, -signal.SIGINT)
            assert list(folder.iterdir()) == []


@pytest.mark.parametrize("suffix", [".parquet", ".h5"])
@pytest.mark.parametrize("bytes_left", [1, 50_000, 400_000])
def test_no_space_left(dump: Path, tmp_path: Path, bytes_left: int, suffix: str) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, bytes_left))

    with cleaning(dump, tmp_path / f"clean{suffix}", preexec_fn=limited) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1, err
    assert "too large" in err or "space" in err, err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk(dump: Path, tmp_path: Path) -> None:
    disk = _folder(tmp_path, "disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", disk])
    if mounted.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        why = refused(bufcheck("clean", dump, "-o", disk / "clean.parquet"))
        assert "No space left" in why
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_three_at_once(dump: Path, tmp_path: Path, force: list[str]) -> None:
    units = ["row", "tail", "episode"] if force else ["row"] * 3
    options = [[*force, "--unit", unit, "--min-valid", "0"] for unit in units]
    with (
        cleaning(dump, tmp_path / "clean.parquet", *options[0]) as a,
        cleaning(dump, tmp_path / "clean.parquet", *options[1]) as b,
        cleaning(dump, tmp_path / "clean.parquet", *options[2]) as c,
    ):
        ended = [(p.communicate(timeout=120)[1], p.returncode) for p in (a, b, c)]
    assert {p.name for p in tmp_path.iterdir()} == NAMES
    told = json.loads((tmp_path / "clean.manifest.json").read_text())
    for name in ("output", "quarantine"):
        assert told[name]["sha256"] == sha256(Path(told[name]["path"]))
    if force:  # each replaces what was there, with all of its files
        assert [code for _, code in ended] == [0, 0, 0]
        return
    assert sorted(code for _, code in ended) == [0, 2, 2]
    for err, code in ended:
        if code:
            assert len(err.strip().splitlines()) == 1
            assert "exists already" in err or "another process wrote it meanwhile" in err
    assert is_whole(tmp_path)


def test_where_there_are_no_hard_links(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    target = tmp_path / "out.txt"
    with whole_file.whole_file(target) as temporary:
        temporary.write_text("mine")
    assert target.read_text() == "mine"
    other = tmp_path / "other.txt"
    with (
        pytest.raises(Exception, match="another process wrote it meanwhile"),
        whole_file.whole_file(other) as temporary,
    ):
        temporary.write_text("mine")
        other.write_text("theirs")
    assert other.read_text() == "theirs"
    with pytest.raises(FileExistsError):
        whole_file._rename(target, other)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.txt", "out.txt"]


def test_an_output_without_its_manifest_is_said_to_be_incomplete(tmp_path: Path) -> None:
    output = tmp_path / "clean.parquet"
    assert bufcheck("clean", HEALTHY, "-o", output).code == 0
    assert "incomplete-clean" not in bufcheck("validate", output).out
    (tmp_path / "clean.manifest.json").unlink()
    assert "incomplete-clean" in bufcheck("validate", output).out
    assert "did not finish" in refused(bufcheck("clean", HEALTHY, "-o", output))
    assert bufcheck("clean", HEALTHY, "-o", output, "--force").code == 0
    assert "incomplete-clean" not in bufcheck("validate", output).out


def test_a_dump_that_changes_meanwhile_is_refused(dump: Path, tmp_path: Path) -> None:
    copy = tmp_path / "dump.parquet"
    shutil.copy(dump, copy)
    out = _folder(tmp_path, "out")
    with cleaning(copy, out / "clean.parquet") as process:
        while process.poll() is None and not list(out.iterdir()):
            time.sleep(0.001)  # until it begins to write
        os.utime(copy)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "changed while it was read" in err
    assert list(out.iterdir()) == []
