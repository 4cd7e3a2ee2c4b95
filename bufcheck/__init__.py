"""bufcheck: check a stored on-policy buffer before anyone trains on it again.

    import bufcheck
    bufcheck.save_actor(network, "actor.safetensors")
    report = bufcheck.validate("dump.parquet", actor="actor.safetensors")
    report["verdict"]

This file is the public API; everything else may move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bufcheck.errors import (
    BufcheckError,
    ConfigError,
    QueryError,
    ReadError,
    SampleError,
    SchemaError,
    UsageError,
    WriteError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from os import PathLike

    import pyarrow as pa
    import torch

    from bufcheck.connection import Connection
    from bufcheck.dump import Dump
    from bufcheck.writer import BufferWriter

__version__ = "0.1.0"
__all__ = [
    "BufcheckError",
    "BufferWriter",
    "ConfigError",
    "QueryError",
    "ReadError",
    "SampleError",
    "SchemaError",
    "UsageError",
    "WriteError",
    "check_batch",
    "clean",
    "connect",
    "open_dump",
    "replay",
    "save_actor",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name == "BufferWriter":  # only a trainer needs it, and it brings NumPy along
        from bufcheck.writer import BufferWriter

        return BufferWriter
    raise AttributeError(f"module 'bufcheck' has no attribute {name!r}")


def validate(*paths: str, **options: Any) -> dict[str, Any]:
    """Check a dump (files, globs, folders) and return the report as a dict.

    Options are those of `bufcheck validate`: select, ignore, rules, tolerance, sample, baseline,
    findings, causes, actor, arch, trust_checkpoint_code, device, batch_size, and config (the path of a
    bufcheck.toml). `actor` takes what `replay` takes.
    """
    from bufcheck import pipeline

    return pipeline.validate([str(path) for path in paths], _options(options))


def check_batch(
    batch: Mapping[str, Any],
    actor: Any = None,
    *,
    policy: Mapping[str, Any] | None = None,
    advantage: Mapping[str, Any] | None = None,
    agents: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Check rows that are still in memory, in the training loop; returns the report `validate` returns.

    `batch` holds a tensor, array or list per column of the schema; `actor` is what `replay` takes, the
    network in training included. Put what the update recomputed before its first step into
    `new_log_prob`: it must equal `old_log_prob`, or the ratio is not 1 where it has to be. Rows of a
    mini-batch come in any order, so rules about time and neighbours are left out, unless `select` names
    them. `policy`, `advantage` and `agents` are what the metadata of a dump says.
    """
    from bufcheck import memory

    if "select" not in options:
        options["ignore"] = [*options.get("ignore", ()), "time", "broadcast"]
    if actor is not None:
        options["actor"] = actor
    return memory.check_batch(batch, memory.described(policy, advantage, agents), _options(options))


def clean(
    *paths: str,
    output: str | PathLike[str],
    unit: str | None = None,
    repair: str | Sequence[str] = (),
    min_valid: float = 0.9,
    dry_run: bool = False,
    force: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Write a cleaned dump, its quarantine and its manifest; returns the manifest as a dict.

    `unit` is row, tail, joint or episode; `repair` names what may be mended. Other options are those of
    `validate`. Refuses, as UsageError, what `bufcheck clean` refuses.
    """
    from pathlib import Path

    from bufcheck import cleaning

    repairs = [repair] if isinstance(repair, str) else list(repair)
    told = cleaning.Cleaning(unit, repairs, min_valid, dry_run, force)
    return cleaning.clean([str(p) for p in paths], Path(output), told, _options(options))


def connect(*paths: str, **options: Any) -> Connection:
    """Open a dump for SQL: `connect("dump.parquet").sql("SELECT … FROM samples").df()`.

    The views are those of `bufcheck query`, each made when a query first names it. Options are those of
    `validate`; with `actor` there are `replay` and `causes` too.
    """
    from bufcheck import pipeline
    from bufcheck.connection import Connection

    return Connection(pipeline.opened([str(path) for path in paths], _options(options)))


def _options(given: dict[str, Any]) -> Any:
    from pathlib import Path

    from bufcheck import config as configuration
    from bufcheck import pipeline

    for name in ("rules", "baseline", "findings", "causes", "config"):
        if given.get(name) is not None:
            given[name] = Path(given[name])
    if (path := given.pop("config", None)) is not None:
        given["config"] = configuration.load(path)
    return pipeline.Options(**given)


def open_dump(*paths: str) -> Dump:
    """Open a dump; `batches(columns)` on it streams Arrow record batches with stable row ids."""
    from bufcheck.dump import open_dump

    return open_dump([str(path) for path in paths])


def replay(
    dump: str | PathLike[str] | Sequence[str] | Dump,
    actors: Any,
    *,
    device: str = "cpu",
    arch: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Recompute every log-prob of a dump; yields Arrow batches in row order.

    `actors` is a checkpoint's path, a torch module, a dict of either by agent or (agent, version), or
    a list of texts as `--actor` takes them. The columns are those of the view `replay`: row_id,
    log_prob, residual (stored minus replayed), entropy, expected_log_prob, variance, rank, actor, …
    """
    from bufcheck import actor as engine
    from bufcheck import dump as dumps
    from bufcheck import replayer
    from bufcheck.given import given_as
    from bufcheck.settings import replay_lacks, replay_roundoff

    if not isinstance(dump, dumps.Dump):
        paths = [dump] if isinstance(dump, str) or hasattr(dump, "__fspath__") else dump
        dump = dumps.open_dump([str(path) for path in paths])
    if lacking := replay_lacks(dump):
        raise UsageError(f"{dump.given[0]}: a replay needs {lacking}")
    found = engine.Actors(given_as(actors), engine.Loading(arch))
    roundoff = replay_roundoff(dump)
    return replayer.tables(dump, replayer.Replayer(dump, found, device=device, roundoff=roundoff))


def save_actor(
    actor: torch.nn.Module | str | PathLike[str],
    path: str | PathLike[str],
    *,
    log_std: Any = None,
    state_shape: Sequence[int] | None = None,
    normalization: Any = None,
) -> None:
    """Save an actor as a .safetensors file that describes its own layers and runs no code.

    `actor` is a module that sends its input through layers of torch.nn one after the other, or a
    checkpoint bufcheck can read. `log_std`: the spread of a Gaussian that does not depend on the state.
    `state_shape`: of one state, where the first layer does not tell. `normalization`: what was done to
    states before the actor saw them, as {"mean", "var", "epsilon", "clip"} or a VecNormalize, for dumps
    that hold raw observations. The file is written once it is seen to give the same outputs.
    """
    from pathlib import Path

    from bufcheck.actors import described_layers

    source: Any = str(actor) if hasattr(actor, "__fspath__") else actor
    described_layers.save(
        source, Path(path), log_std=log_std, state_shape=state_shape, normalization=normalization
    )
