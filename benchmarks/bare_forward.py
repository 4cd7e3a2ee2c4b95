"""The baselines of P2 and P3: `python benchmarks/bare_forward.py HOW DUMP ACTOR [ROWS]`.

`batches` imports what bufcheck imports, reads every column as pyarrow does by default, runs the actor
over the states, batch by batch, and does nothing with what comes out. `bounded` reads as bufcheck has
to, with memory that does not grow with the row groups and with checksums verified. `replay` is
bufcheck.replay, and prints the rows it managed per second, reading included. `loop` scores one row at a time with
torch.distributions.Categorical, as many a script does, and prints the rows it managed per second.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable

import click  # noqa: F401
import duckdb  # noqa: F401
import numpy as np  # noqa: F401
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors
import torch
from torch.distributions import Categorical

import bufcheck


def load(path: str) -> torch.nn.Sequential:
    with safetensors.safe_open(path, framework="pt") as file:
        described = json.loads(file.metadata()["bufcheck.actor"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    made = []
    for layer in described["layers"]:
        kind = getattr(torch.nn, layer.pop("type"))
        made.append(kind(**layer))
    module = torch.nn.Sequential(*made)
    module.load_state_dict(tensors)
    return module.eval()


def forward(batches: Iterable[pa.RecordBatch], actor: torch.nn.Module) -> int:
    rows = 0
    for batch in batches:
        states = torch.from_dlpack(batch.column("state_embed").flatten())
        actor(states.reshape(batch.num_rows, -1))
        rows += batch.num_rows
    return rows


def loop(dump: str, actor: torch.nn.Module, rows: int) -> float:
    batch = next(pq.ParquetFile(dump).iter_batches(rows))
    columns = {
        name: batch.column(name).to_pylist()
        for name in ("state_embed", "subset_indices", "action_index")
    }
    begun = time.perf_counter()
    for state, subset, action in zip(*columns.values(), strict=True):
        logits = actor(torch.tensor(state))[torch.tensor(subset)]
        Categorical(logits=logits).log_prob(torch.tensor(action))
    return batch.num_rows / (time.perf_counter() - begun)


if __name__ == "__main__":
    how, dump, actor = sys.argv[1:4]
    torch.set_num_threads(1)  # quicker than two for layers of this size
    with torch.inference_mode():
        if how == "batches":
            print(forward(pq.ParquetFile(dump).iter_batches(), load(actor)))
        elif how == "bounded":
            file = pq.ParquetFile(
                dump, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True
            )
            print(forward(file.iter_batches(8192, use_threads=False), load(actor)))
        elif how == "replay":
            begun = time.perf_counter()
            rows = sum(batch.num_rows for batch in bufcheck.replay(dump, actor))
            print(rows / (time.perf_counter() - begun))
        else:
            print(loop(dump, load(actor), int(sys.argv[4])))
