"""What a dump costs a trainer: `python benchmarks/writer.py [W1 W2 W3] [--rollouts N]`.

What is compared takes turns, so that what else the machine does falls on all of it, and the median counts.
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

HERE = Path(__file__).parent
ROLLOUTS, ROWS, DIM = 200, 4096, 64


def printed(*command: object) -> list[float]:
    """The numbers a process prints."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [float(number) for number in done.stdout.split()]


def show(name: str, what: str, value: str, bound: str, held: bool, detail: str) -> bool:
    print(f"{name}  {what:58} {value:>8}  {bound:16} {'holds' if held else 'MISSED':8}  {detail}")
    return held


def w1(folder: Path, rollouts: int) -> bool:
    """The CPU time of a PPO on CartPole with DumpCallback against without; see cartpole.py.

    A neighbour's load changes a rollout's CPU time by some percent, so the median of the ratios of two
    neighbouring rollouts counts, and what a run pays once is added to it. The same without any dump tells
    how much of it is noise.
    """
    found: dict[str, list[float]] = {"dump": [], "noise": []}
    for number in range(3):
        for kind, ratios in found.items():
            dump = folder / f"cartpole-{number}" if kind == "dump" else "-"
            once, *turns = printed(HERE / "cartpole.py", rollouts, dump)
            ours, bare = turns[:rollouts], turns[rollouts:]
            first = max(0.0, ours[0] - statistics.median(ours))  # it imports what writes
            pairs = statistics.median(o / b for o, b in zip(ours, bare, strict=True))
            ratios.append(pairs + (once + first) / sum(bare))
    ratio = statistics.median(found["dump"])
    what = f"CPU time of a PPO with DumpCallback, {rollouts} x 2,048 steps"
    detail = "; ".join(f"{kind} {' '.join(f'{r:.3f}' for r in found[kind])}" for kind in found)
    return show("W1", what, f"{ratio:.3f}", "at most 1.03", ratio <= 1.03, detail)


def w2(folder: Path, rollouts: int) -> bool:
    """append_rollout, with its checks and its verification, against pyarrow: the quicker of two ways."""
    costs: dict[str, list[list[float]]] = {how: [] for how in ("writer", "rollouts", "table")}
    for number in range(5):
        for how, found in costs.items():
            out = folder / f"{how}-{number}.parquet"
            found.append(printed(HERE / "bare_write.py", how, out, ROLLOUTS, ROWS, DIM))
            out.unlink()
    wall, cpu = (
        {how: statistics.median(cost[kind] for cost in found) for how, found in costs.items()}
        for kind in (0, 1)
    )
    ratio = min(wall["rollouts"], wall["table"]) / wall["writer"]
    what = f"rows a second against bare pyarrow, {ROLLOUTS} x {ROWS:,} rows x {DIM}"
    rows = ROLLOUTS * ROWS
    detail = ", ".join(
        f"{how} {rows / wall[how]:,.0f} rows/s ({cpu[how]:.2f} s of CPU)" for how in costs
    )
    return show("W2", what, f"{ratio:.2f}", "at least 0.5", ratio >= 0.5, detail)


def w3(folder: Path, rollouts: int) -> bool:
    """One step at a time, handed over by `append`; for information."""
    sys.path.insert(0, str(HERE))
    from bare_write import POLICY, rollout

    import bufcheck

    columns = {"episode_id": [0] * ROWS, "agent_id": ["agent"] * ROWS, **rollout(0, ROWS, DIM)}
    columns["subset_indices"] = [
        row[:k] for row, k in zip(columns["subset_indices"], columns["num_actions"], strict=True)
    ]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    spent = []
    for number in range(4):
        with bufcheck.BufferWriter(folder / f"steps-{number}", policy=POLICY) as buffer:
            begun = time.process_time()
            for row in rows:
                buffer.append(row)
            spent.append((time.process_time() - begun) / ROWS)
    taken = 1e6 * statistics.median(spent[1:])  # the first also imports what it needs
    print(f"W3  {'append, CPU microseconds a step':58} {taken:8.0f}  {len(columns)} columns")
    return True


def _listed(seconds: list[float]) -> str:
    return " ".join(f"{s:.2f}" for s in seconds)


BENCHMARKS: dict[str, Callable[[Path, int], bool]] = {"W1": w1, "W2": w2, "W3": w3}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default"
    )
    parser.add_argument("--rollouts", type=int, default=20, help="of the PPO in W1, of each kind")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bufcheck-bench-") as name:
        results = [BENCHMARKS[n](Path(name), given.rollouts) for n in given.names or BENCHMARKS]
    sys.exit(0 if all(results) else 1)
