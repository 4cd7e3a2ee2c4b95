"""Speed and memory as ratios within one run: `python benchmarks/run.py [P1 P2 …] [--rows N]`.

Whole processes are measured (wall time, peak memory of the process and its children), the median of
three, alternating with their baseline so that a busy machine slows both. Needs `pip install '.[bench]'`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
NINE_RULES = (
    "FIN,positive-log-prob,action-index-out-of-range,subset-length-mismatch,subset-id-out-of-range,"
    "duplicate-key"
)


# As on most machines: libraries come with bytecode, and bufcheck's own is kept from its first run on.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


class Cost(NamedTuple):
    seconds: float
    megabytes: float


def run(*command: str) -> Cost:
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = process.stdout, process.stderr
    assert out is not None
    assert err is not None
    text, error = out.read(), err.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{' '.join(command)} failed:\n{text.decode()}{error.decode()}")
    return Cost(seconds, usage.ru_maxrss / 1024)


def make(dump: Path, rows: int, *options: str) -> None:
    """In a process of its own: a child's peak memory counts that of the parent it was forked from."""
    run(str(HERE / "make_dump.py"), str(dump), str(rows), *options)
    os.sync()  # or the kernel would still be writing it out while the first command is measured


def medians(times: int, *commands: list[str]) -> list[Cost]:
    """Runs the commands in turn, so that what else the machine does falls on all of them."""
    costs: list[list[Cost]] = [[] for _ in commands]
    for _ in range(times):
        for cost, command in zip(costs, commands, strict=True):
            cost.append(run(*command))
    return [
        Cost(statistics.median(c.seconds for c in cost), statistics.median(c.megabytes for c in cost))
        for cost in costs
    ]


def show(name: str, what: str, value: float, limit: float, detail: str) -> bool:
    held = value <= limit
    print(
        f"{name}  {what:58} {value:8.2f}  at most {limit:<7g} {'holds' if held else 'EXCEEDED':8}  {detail}"
    )
    return held


def p1(folder: Path, rows: int) -> bool:
    """validate without actor, against the quickest of three bare reads of every column.

    `bounded` is how bufcheck has to read: one thread, page by page, checksums verified. The other two are
    pyarrow's defaults: they verify nothing, take two to four times the memory of ours, and swing by a
    factor of three as the kernel has pages to hand out.
    """
    dump = str(folder / "dump.parquet")
    make(Path(dump), rows)
    ways = ("bounded", "batches", "table")
    ours, *bare = medians(
        3,
        ["-m", "bufcheck", "validate", dump],
        *([str(HERE / "bare_read.py"), how, dump] for how in ways),
    )
    best = min(bare)
    ratio = ours.seconds / best.seconds
    held = show("P1", f"validate against a bare read, {rows:,} rows", ratio, 1.5, _beside(ours, best))
    for way, cost in zip(ways, bare, strict=True):
        ratio = ours.seconds / cost.seconds
        print(f"    {'against ' + way:58} {ratio:8.2f}  {'':25} {_beside(ours, cost)}")
    return held


def _beside(ours: Cost, other: Cost) -> str:
    return f"{ours.seconds:.2f} s / {other.seconds:.2f} s, {ours.megabytes:.0f} MB / {other.megabytes:.0f} MB"


def p2(folder: Path, rows: int) -> bool:
    """validate with an actor, against a bare read and a bare forward pass in one process.

    The baseline is the quicker of reading as pyarrow does by default, and of reading as bufcheck has to:
    page by page, with bounded memory and checksums verified.
    """
    dump, actor = str(folder / "dump.parquet"), str(folder / "actor.safetensors")
    make(Path(dump), rows, "--actor", actor)
    ours, *bare = medians(
        3,
        ["-m", "bufcheck", "validate", dump, "--actor", actor],
        *([str(HERE / "bare_forward.py"), how, dump, actor] for how in ("batches", "bounded")),
    )
    ratio = ours.seconds / min(bare).seconds
    what = f"validate with an actor against bare read + forward, {rows:,}"
    return show("P2", what, ratio, 1.3, _beside(ours, min(bare)))


def p3(folder: Path, rows: int) -> bool:
    """Rows per second of bufcheck.replay, reading included, against a loop over rows with Categorical.

    Neither counts the start of Python: the loop runs over 20,000 rows only, as it would take minutes.
    """
    dump, actor = str(folder / "dump.parquet"), str(folder / "actor.safetensors")
    make(Path(dump), rows, "--actor", actor)
    speeds: dict[str, list[float]] = {"replay": [], "loop": []}
    for _ in range(3):
        for how, found in speeds.items():
            command = [sys.executable, str(HERE / "bare_forward.py"), how, dump, actor, "20000"]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found.append(float(done.stdout))
    ours, loop = (statistics.median(found) for found in speeds.values())
    held = ours / loop >= 100
    print(
        f"P3  {'replayed rows per second against a loop with Categorical':58} {ours / loop:8.0f}"
        f"  at least 100   {'holds' if held else 'MISSED':8}  {ours:,.0f} rows/s / {loop:,.0f} rows/s"
    )
    return held


def p5(folder: Path, rows: int) -> bool:
    """Peak memory with an actor: 20M rows against 2M, and absolute; and P7, the time for ten times as many."""
    dump, actor = folder / "dump.parquet", str(folder / "actor.safetensors")
    costs = []
    for count in (2_000_000, 20_000_000):
        make(dump, count, "--dim", "16", "--actor", actor)
        costs.append(run("-m", "bufcheck", "validate", str(dump), "--actor", actor))
    few, many = costs
    ratio = many.megabytes / few.megabytes
    held = show("P5", "memory, 20,000,000 rows against 2,000,000", ratio, 1.2, _beside(many, few))
    held &= show(
        "P5", "20,000,000 rows with an actor, MB", many.megabytes, 1024, f"{many.seconds:.1f} s"
    )
    what = "time, 20,000,000 rows against 2,000,000"
    return held & show("P7", what, many.seconds / few.seconds, 10.5, _beside(many, few))


def p4(folder: Path, rows: int) -> bool:
    """Nine rules, against dataframely on Polars."""
    dump = str(folder / "dump.parquet")
    make(Path(dump), rows)
    ours, peer = medians(
        3,
        [
            "-m",
            "bufcheck",
            "validate",
            dump,
            "--select",
            NINE_RULES,
            "--rules",
            str(HERE / "nine_rules"),
        ],
        [str(HERE / "peer_dataframely.py"), dump],
    )
    seconds = f"{ours.seconds:.2f} s / {peer.seconds:.2f} s"
    memory = f"{ours.megabytes:.0f} MB / {peer.megabytes:.0f} MB"
    quick = show(
        "P4", "nine rules against dataframely, time", ours.seconds / peer.seconds, 1.0, seconds
    )
    small = show(
        "P4", "nine rules against dataframely, memory", ours.megabytes / peer.megabytes, 0.5, memory
    )
    return quick and small


def p6(folder: Path, rows: int) -> bool:
    """bufcheck --help, against importing click."""
    ours, bare = medians(15, ["-m", "bufcheck", "--help"], ["-c", "import click"])
    detail = f"{1000 * ours.seconds:.0f} ms / {1000 * bare.seconds:.0f} ms"
    return show("P6", "bufcheck --help against import click", ours.seconds / bare.seconds, 2.0, detail)


def p8(folder: Path, rows: int) -> bool:
    """clean without actors, 1 % of the rows bad, against reading and writing: the quicker of two ways."""
    dump, copy = str(folder / "dump.parquet"), str(folder / "copy.parquet")
    make(Path(dump), rows, "--bad", "0.01")
    ours, *bare = medians(
        3,
        ["-m", "bufcheck", "clean", dump, "-o", str(folder / "clean.parquet"), "--force"],
        *([str(HERE / "bare_copy.py"), how, dump, copy] for how in ("batches", "table")),
    )
    ratio = ours.seconds / min(bare).seconds
    what = f"clean against a bare read + write, {rows:,} rows"
    return show("P8", what, ratio, 2.2, _beside(ours, min(bare)))


def g9(folder: Path, rows: int) -> bool:
    """Memory, whatever the row groups: wide rows in one, and 10M rows in one against the same in many."""
    dump = folder / "dump.parquet"
    make(dump, 400_000, "--dim", "512", "--one-row-group")
    wide = run("-m", "bufcheck", "validate", str(dump))
    what = "400,000 rows x 512 floats in one row group, MB"
    held = show("G9", what, wide.megabytes, 512, f"{wide.seconds:.1f} s")
    costs = []
    for options in (["--one-row-group"], []):
        make(dump, 10_000_000, "--dim", "16", *options)
        costs.append(run("-m", "bufcheck", "validate", str(dump)))
    one, many = costs
    held &= show(
        "G9", "10,000,000 rows in one row group, MB", one.megabytes, 1024, f"{one.seconds:.1f} s"
    )
    what = "10,000,000 rows in one row group against 77, memory"
    return held & show("G9", what, one.megabytes / many.megabytes, 1.2, _beside(one, many))


def q1(folder: Path, rows: int) -> bool:
    """A query of scalars, on HDF5 against the same on Parquet; and against one that must read the states."""
    dump, hdf5 = str(folder / "dump.parquet"), str(folder / "dump.h5")
    make(Path(dump), rows)
    run("-m", "bufcheck", "convert", dump, hdf5, "--force")
    scalars = "SELECT agent_id, avg(reward), count(*) FROM samples GROUP BY 1"
    states = "SELECT agent_id, avg(state_embed[1]), count(*) FROM samples GROUP BY 1"
    ours, parquet, whole = medians(
        3,
        ["-m", "bufcheck", "query", hdf5, scalars],
        ["-m", "bufcheck", "query", dump, scalars],
        ["-m", "bufcheck", "query", hdf5, states],
    )
    what = f"a query of scalars, HDF5 against Parquet, {rows:,} rows"
    held = show("Q1", what, ours.seconds / parquet.seconds, 3.0, _beside(ours, parquet))
    print(f"    {'one that reads the states takes':58} {whole.seconds / ours.seconds:8.2f}  times that")
    return held


BENCHMARKS: dict[str, Callable[[Path, int], bool]] = {
    "P1": p1,
    "P2": p2,
    "P3": p3,
    "P4": p4,
    "P5": p5,
    "P6": p6,
    "P7": p5,
    "P8": p8,
    "G9": g9,
    "Q1": q1,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default"
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    given = parser.parse_args()
    if unknown := set(given.names) - set(BENCHMARKS):
        parser.error(f"{min(unknown)} is none of {', '.join(BENCHMARKS)}")
    chosen = dict.fromkeys(BENCHMARKS[n] for n in given.names or BENCHMARKS)
    with tempfile.TemporaryDirectory(prefix="bufcheck-bench-") as name:
        results = [measure(Path(name), given.rows) for measure in chosen]
    sys.exit(0 if all(results) else 1)
