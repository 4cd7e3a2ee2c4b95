"""A real MaskablePPO: one rollout of it as a dump, and the first update of it on any such dump.

The update is the library's own `train()`, from the weights and the optimizer that acted, with the
library's default epochs and minibatches. Only what the rollout buffer holds comes from the dump.
"""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer
from stable_baselines3.common.logger import Logger

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "diagnosis"))

import worlds
from worlds import Array, World

WORLD = "masked-ppo-mask"
"""It holds what MaskablePPO does: every action by its own number, with a mask over all of them."""
DEFAULTS = inspect.signature(MaskablePPO).parameters
EPOCHS: int = DEFAULTS["n_epochs"].default
MINIBATCH: int = DEFAULTS["batch_size"].default

Samples = dict[str, Array]
"""A rollout buffer's arrays by their names there, a row each."""


def last_rollout(folder: Path, steps: int) -> World:
    """Trains for three rollouts of 2 × `steps` rows, and keeps the last as a dump of its own."""
    worlds.SB3_STEPS = steps
    world = worlds.real(folder, [WORLD])[WORLD]
    table = pq.read_table(world.dumps[0])
    about = json.loads(table.schema.metadata[b"bufcheck"])
    table = table.filter(pc.equal(table["policy_version"], world.versions - 1))
    table = table.append_column("return", pc.add(table["advantage"], table["value"]))  # as SB3 has it
    metadata = {"bufcheck": json.dumps({**about, "rows": len(table)})}
    dump = folder / "last-rollout.parquet"
    pq.write_table(table.replace_schema_metadata(metadata), dump)
    return replace(world, dumps=(dump,))


def checkpoint(world: World) -> Path:
    """Of who acted in the last rollout."""
    return Path(world.actor.format(policy_version=world.versions - 1))


def read(dump: Path) -> Samples:
    rows = worlds.Rows(pq.read_table(dump))
    return {
        "observations": rows.padded("state_embed", np.float32(0))[0],
        "actions": rows.numbers("action_index")[:, None],
        "action_masks": rows.padded("action_mask", False)[0],
        "log_probs": rows.numbers("old_log_prob"),
        "values": rows.numbers("value"),
        "advantages": rows.numbers("advantage"),
        "returns": rows.numbers("return"),
    }


def count(samples: Samples) -> int:
    return len(samples["actions"])


def whole_minibatches(rows: int) -> int:
    """How many of so many rows are trained on. A minibatch of one row would make every weight NaN: the
    library divides by the deviation of its advantages."""
    return rows - rows % MINIBATCH


def some(samples: Samples, rows: int, seed: int) -> Samples:
    """So many of the rows, drawn at random, in their order."""
    drawn = np.sort(np.random.default_rng(seed).permutation(count(samples))[:rows])
    return {name: values[drawn] for name, values in samples.items()}


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("sb3_contrib", "stable_baselines3", "torch", "bufcheck")}


class Update(NamedTuple):
    """What a trainer sees of its first update."""

    ratio_error: float
    """The worst |ratio - 1| of the first minibatch, before any step."""
    approx_kl: float
    clip_fraction: float


def first_update(actor: Path, samples: Samples, seed: int) -> Update:
    """`seed` orders the minibatches."""
    torch.set_num_threads(1)
    model = MaskablePPO.load(actor, device="cpu")
    model.n_epochs, model.batch_size = EPOCHS, MINIBATCH
    model.rollout_buffer = _filled(model, samples)
    model.set_logger(Logger(None, []))
    model.set_random_seed(seed)
    error = _ratio_error(model)
    model.set_random_seed(seed)
    model.train()
    told = model.logger.name_to_value
    return Update(error, float(told["train/approx_kl"]), float(told["train/clip_fraction"]))


def _filled(model: Any, samples: Samples) -> MaskableRolloutBuffer:
    buffer = MaskableRolloutBuffer(count(samples), model.observation_space, model.action_space, "cpu")
    for name, values in samples.items():
        getattr(buffer, name)[:, 0] = values
    buffer.full = True
    return buffer


def _ratio_error(model: Any) -> float:
    batch = next(model.rollout_buffer.get(model.batch_size))
    with torch.no_grad():
        _, log_prob, _ = model.policy.evaluate_actions(
            batch.observations, batch.actions.long().flatten(), action_masks=batch.action_masks
        )
    return float((torch.exp(log_prob - batch.old_log_prob) - 1).abs().max())
