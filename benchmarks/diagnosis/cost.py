"""What causes cost beside plain replay: a large dump, the same with one row in ten bad, both validated."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.append(str(Path(__file__).resolve().parents[1]))

import make_dump

LIMIT = 2.0
"""Seconds more for a bad dump, over the seconds of the clean one."""
EPISODE = make_dump.STEPS * len(make_dump.AGENTS)
BAD = 10
"""One episode in so many."""
DIM = 64

Array = np.ndarray[Any, Any]


def measure(given: argparse.Namespace, folder: Path) -> tuple[bool, list[dict[str, Any]]]:
    """Whole processes, the median of three in turn, so that a busy machine slows all alike."""
    rows = given.cost_rows // 10 if given.quick else given.cost_rows
    actor = folder / "actor.safetensors"
    dumps = {"clean": folder / "clean.parquet"}
    make_dump.write(dumps["clean"], rows, DIM, False, actor)
    for name, fault in FAULTS.items():
        dumps[name] = folder / f"{name}.parquet"
        spoil(dumps["clean"], dumps[name], fault)
    seconds: dict[str, list[float]] = {name: [] for name in dumps}
    for _ in range(3):
        for name, dump in dumps.items():
            seconds[name].append(_validate(dump, actor))
    plain = statistics.median(seconds.pop("clean"))
    print(f"{rows:,} rows, plain replay: {plain:.2f} s")
    results = []
    for name, taken in seconds.items():
        more = (statistics.median(taken) - plain) / plain
        held = more <= LIMIT
        print(
            f"  {name:20} {statistics.median(taken):6.2f} s: {more:5.2f} times plain replay on top,"
            f" at most {LIMIT:g}: {'holds' if held else 'EXCEEDED'}",
            flush=True,
        )
        results.append({"name": name, "rows": rows, "plain": plain, "seconds": taken, "ratio": more})
    return all(result["ratio"] <= LIMIT for result in results), results


def _validate(dump: Path, actor: Path) -> float:
    command = [sys.executable, "-m", "bufcheck", "validate", str(dump), "--actor", str(actor)]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return time.perf_counter() - begun


def spoil(source: Path, target: Path, fault: Callable[[pa.RecordBatch, Array, Any], Array]) -> None:
    """Rewrites the log-probs of one episode in ten, a batch at a time."""
    rng = np.random.default_rng(5)
    opened = pq.ParquetFile(source)
    with pq.ParquetWriter(target, opened.schema_arrow, write_page_checksum=True) as writer:
        for batch in opened.iter_batches(EPISODE * 250):
            stored = batch["old_log_prob"].to_numpy()
            bad = batch["episode_id"].to_numpy() % BAD == 3
            changed = np.where(bad, fault(batch, stored, rng), stored).astype(np.float32)
            at = batch.schema.get_field_index("old_log_prob")
            writer.write_batch(batch.set_column(at, "old_log_prob", pa.array(changed)))


def _logits(batch: pa.RecordBatch) -> Array:
    states = batch["state_embed"].flatten().to_numpy().reshape(-1, DIM)
    *hidden, last = make_dump.network(DIM)
    for weight in hidden:
        states = np.tanh(states @ weight)
    logits: Array = states @ last
    return logits


def no_mask(batch: pa.RecordBatch, stored: Array, rng: Any) -> Array:
    """The softmax over all actions."""
    logits = _logits(batch)
    place = batch["subset_indices"].offsets.to_numpy()[:-1] + batch["action_index"].to_numpy()
    chosen = batch["subset_indices"].values.to_numpy()[place]
    total = np.log(np.exp(logits.astype(np.float64)).sum(axis=1))
    found: Array = logits[np.arange(len(logits)), chosen] - total
    return found


def rolled(batch: pa.RecordBatch, stored: Array, rng: Any) -> Array:
    """Each agent's of the step before."""
    return np.roll(stored, len(make_dump.AGENTS))


def noisy(batch: pa.RecordBatch, stored: Array, rng: Any) -> Array:
    """What nothing explains: every hypothesis is tried."""
    found: Array = stored - rng.gamma(2.0, 0.2, len(stored))
    return found


FAULTS = {"mask-not-applied": no_mask, "logprob-row-shift": rolled, "noise": noisy}
