"""The house: what ships, what is imported when, which way imports point, what is documented."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import FIXTURES, ROOT

import bufcheck
from bufcheck import schema

# An engine may use what stands before it; a member of a collection its engine and what that may use.
ORDER = [
    ["errors", "shipped", "ahead", "spawn", "landlock", "lazy", "statement", "history"],
    ["schema", "given", "sql", "result", "completion"],
    ["config", "vectors", "format", "whole_file"],
    ["files"],
    ["dump", "digest"],
    ["fields"],
    ["incoming"],
    ["screen", "rollout"],
    ["digester", "sampling", "settings", "description", "actor", "distribution"],
    ["forward"],
    ["replayer"],
    ["offer"],
    ["case"],
    ["cause", "database"],
    ["rule", "undecidable", "choice"],
    ["findings", "metrics", "confidence", "attribution", "reading"],
    ["diagnosis"],
    ["output", "report"],
    ["pipeline", "convert", "removal", "repair", "manifest"],
    ["rewriting", "importer", "memory", "parts"],
    ["writer"],
    ["trainer", "testing"],
    ["fault", "cleaning", "views", "boxed", "question", "prompt"],
    ["box", "connection"],
    ["query"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
COLLECTIONS = {
    "actors": "actor",
    "causes": "cause",
    "distributions": "distribution",
    "faults": "fault",
    "formats": "format",
    "importers": "importer",
    "outputs": "output",
    "questions": "question",
    "repairs": "repair",
    "results": "result",
    "trainers": "trainer",
}


def modules() -> list[Path]:
    return sorted((ROOT / "bufcheck").rglob("*.py"))


def part_of(path: Path) -> str:
    """The engine a module belongs to: bufcheck/formats/parquet.py is part of format."""
    first = path.relative_to(ROOT / "bufcheck").parts[0].removesuffix(".py")
    return COLLECTIONS.get(first, first)


def imported_parts(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "bufcheck":
                names = [f"bufcheck.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "bufcheck" and len(parts) > 1:
                found.add(COLLECTIONS.get(parts[1], parts[1]))
    return found - {"__version__"}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        return  # the public API may offer anything
    for other in imported_parts(path) - {part}:
        if path.parent.name in COLLECTIONS and RANK.get(other, 99) <= RANK[part]:
            continue
        assert RANK[other] < RANK[part], f"{part} imports {other}"


def test_help_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "bufcheck", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0
    loaded = {line.split("|")[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert not loaded & {"torch", "h5py", "scipy", "pyarrow", "duckdb", "numpy", "jinja2", "polars"}


@pytest.mark.parametrize("given", [[], ["--actor", "actors/{agent_id}-{policy_version}.safetensors"]])
def test_validate_leaves_pandas_alone(given: list[str]) -> None:
    """pyarrow would import it at the first to_numpy or pa.array: 0.2 s where it is installed."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "bufcheck", "validate", "healthy.parquet", *given],
        capture_output=True,
        text=True,
        cwd=FIXTURES,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert "pandas" not in {line.split("|")[-1].strip() for line in done.stderr.splitlines()}


def test_public_names() -> None:
    assert all(hasattr(bufcheck, name) for name in bufcheck.__all__)
    assert sorted(bufcheck.__all__) == bufcheck.__all__


def test_fixtures_are_what_their_script_makes(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("generate", FIXTURES / "generate.py")
    assert spec and spec.loader
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    made = generate.write(tmp_path)
    kinds = ("*.parquet", "*.safetensors")
    stored = sorted(p.relative_to(FIXTURES) for kind in kinds for p in FIXTURES.rglob(kind))
    assert sorted(p.relative_to(tmp_path) for p in made) == stored
    for name in stored:
        if name.suffix == ".safetensors":
            assert (tmp_path / name).read_bytes() == (FIXTURES / name).read_bytes(), name
            continue
        fresh, old = pq.read_table(tmp_path / name), pq.read_table(FIXTURES / name)
        assert fresh.schema.equals(old.schema, check_metadata=True), name
        for column in fresh.column_names:
            assert alike(fresh[column], old[column]), (name, column)


def alike(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Equal; floats to the last few bits, which differ between processors."""
    if one.null_count != other.null_count:
        return False
    flat = [a.combine_chunks() for a in (one, other)]
    while pa.types.is_nested(flat[0].type):
        flat = [a.flatten() for a in flat]
    if not pa.types.is_floating(flat[0].type):
        return bool(flat[0].equals(flat[1]))
    numbers = [a.to_numpy(zero_copy_only=False) for a in flat]
    return bool(np.allclose(*numbers, rtol=1e-5, atol=1e-6, equal_nan=True))


def test_wheel_has_all_it_needs_and_works_from_an_empty_folder(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert built.returncode == 0, built.stderr
    [wheel] = tmp_path.glob("*.whl")
    unpacked, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
        assert not [n for n in archive.namelist() if n.startswith(("tests/", "benchmarks/"))]
    env = {**os.environ, "PYTHONPATH": str(unpacked)}
    done = subprocess.run(
        [sys.executable, "-m", "bufcheck", "demo"],
        cwd=empty,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    where = subprocess.run(
        [sys.executable, "-c", "import bufcheck; print(bufcheck.__file__)"],
        cwd=empty,
        env=env,
        capture_output=True,
        text=True,
    )
    assert str(unpacked) in where.stdout


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]],
    ids=lambda c: " ".join(c),
)
def test_lint_format_and_types(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ci_runs_the_test_command_of_the_readme() -> None:
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert "bufcheck demo" in blocks[0]
    assert "pytest" in blocks[1]
    assert "README.md" in (ROOT / ".ci" / "run").read_text()


def test_generated_pages_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout


def test_every_column_and_setting_has_a_meaning() -> None:
    contract = schema.load()
    assert all(column.meaning for column in contract.columns.values())
    assert all(key.meaning for key in contract.keys.values())
