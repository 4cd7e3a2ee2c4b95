"""The pages about dumping: each holds one whole script and the command that checks its dump."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, bufcheck

PAGES = [ROOT / "docs" / "writer.md", *sorted((ROOT / "docs" / "trainers").glob("*.md"))]
HEAVY = {"rllib", "skrl", "tianshou"}
"""Trainers too large to install for every test run: tests/heavy runs their pages."""


def script_of(page: Path) -> str:
    [script] = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    return str(script)


def command_of(page: Path) -> list[str]:
    [command] = re.findall(r"```bash\n(bufcheck validate .*?)```", page.read_text(), re.DOTALL)
    return shlex.split(command)[1:]


def run_page(page: Path, folder: Path) -> None:
    (folder / "train.py").write_text(script_of(page))
    ran = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stderr
    checked = bufcheck(*command_of(page), cwd=folder, timeout=300)
    assert checked.code == 0, checked
    assert "\npass: 0 errors, 0 warnings" in checked.out, checked.out


@pytest.mark.parametrize("page", [p for p in PAGES if p.stem not in HEAVY], ids=lambda p: p.stem)
def test_the_script_of_the_page_leaves_a_dump_that_passes(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


def test_every_adapter_has_a_page() -> None:
    adapters = {p.stem for p in (ROOT / "bufcheck" / "trainers").glob("[!_]*.py")}
    assert adapters <= {page.stem for page in PAGES}
