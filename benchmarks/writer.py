"""What a dump costs a trainer: `python benchmarks/writer.py [W1 W2 W3] [--steps N]`.

Each way is a process of its own; they take turns, so that what else the machine does falls on all of them,
and the median of three counts. W1 counts the CPU seconds of whole processes, imports included.
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
TIMES = 3
ROLLOUTS, ROWS, DIM = 200, 4096, 64


def cpu_seconds(*command: str) -> float:
    """Of a process and its children."""
    process = subprocess.Popen([sys.executable, *command], env={**os.environ, "OMP_NUM_THREADS": "1"})
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{' '.join(command)} failed")
    return usage.ru_utime + usage.ru_stime


def show(name: str, what: str, value: str, bound: str, held: bool, detail: str) -> bool:
    print(f"{name}  {what:58} {value:>8}  {bound:16} {'holds' if held else 'MISSED':8}  {detail}")
    return held


def w1(folder: Path, steps: int) -> bool:
    """PPO on CartPole with Stable-Baselines3's defaults, with DumpCallback and without."""
    spent: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(TIMES):
        for how, seconds in spent.items():
            dump = [str(folder / f"cartpole-{number}")] if how == "with" else []
            seconds.append(cpu_seconds(str(HERE / "cartpole.py"), str(steps), *dump))
    ours, bare = (statistics.median(seconds) for seconds in spent.values())
    what = f"CPU time of a PPO with DumpCallback, {steps:,} steps"
    detail = f"{ours:.2f} s / {bare:.2f} s; all: {_listed(spent['with'])} / {_listed(spent['without'])}"
    return show("W1", what, f"{ours / bare:.3f}", "at most 1.03", ours / bare <= 1.03, detail)


def w2(folder: Path, steps: int) -> bool:
    """append_rollout, with its checks and its verification, against pyarrow: the quicker of two ways."""
    wall: dict[str, list[float]] = {how: [] for how in ("writer", "rollouts", "table")}
    cpu: dict[str, list[float]] = {how: [] for how in wall}
    for number in range(TIMES):
        for how in wall:
            out = folder / f"{how}-{number}.parquet"
            sizes = map(str, (ROLLOUTS, ROWS, DIM))
            command = [sys.executable, str(HERE / "bare_write.py"), how, str(out), *sizes]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            for kind, found in zip((wall, cpu), done.stdout.split(), strict=True):
                kind[how].append(float(found))
            out.unlink()
    rows = ROLLOUTS * ROWS
    speed = {how: rows / statistics.median(seconds) for how, seconds in wall.items()}
    best = max(speed["rollouts"], speed["table"])
    what = f"rows per second against bare pyarrow, {ROLLOUTS} x {ROWS:,} rows x {DIM}"
    detail = ", ".join(f"{how} {found:,.0f} rows/s" for how, found in speed.items())
    detail += "; CPU " + ", ".join(f"{statistics.median(c):.2f} s" for c in cpu.values())
    ratio = speed["writer"] / best
    return show("W2", what, f"{ratio:.2f}", "at least 0.5", ratio >= 0.5, detail)


def w3(folder: Path, steps: int) -> bool:
    """One step at a time, handed over by `append`; for information."""
    sys.path.insert(0, str(HERE))
    from bare_write import POLICY, rollout

    import bufcheck

    columns = {"episode_id": [0] * ROWS, "agent_id": ["agent"] * ROWS, **rollout(0, ROWS, DIM)}
    columns["subset_indices"] = [
        row[:k] for row, k in zip(columns["subset_indices"], columns["num_actions"], strict=True)
    ]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    with bufcheck.BufferWriter(folder / "steps", policy=POLICY) as buffer:
        begun = time.process_time()
        for row in rows:
            buffer.append(row)
        spent = (time.process_time() - begun) / ROWS
    print(f"W3  {'append, microseconds a step':58} {1e6 * spent:8.0f}  {len(columns)} columns")
    return True


def _listed(seconds: list[float]) -> str:
    return " ".join(f"{s:.2f}" for s in seconds)


BENCHMARKS: dict[str, Callable[[Path, int], bool]] = {"W1": w1, "W2": w2, "W3": w3}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default"
    )
    parser.add_argument("--steps", type=int, default=51_200, help="of the PPO in W1")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bufcheck-bench-") as name:
        results = [BENCHMARKS[n](Path(name), given.steps) for n in given.names or BENCHMARKS]
    sys.exit(0 if all(results) else 1)
