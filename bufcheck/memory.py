"""Experience that is still in memory, checked as a dump is: the same rules, the same replay."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bufcheck import incoming, pipeline, schema
from bufcheck import rule as rules
from bufcheck.config import Config
from bufcheck.database import Database
from bufcheck.dump import Dump, of_sources
from bufcheck.errors import UsageError
from bufcheck.fields import as_batch
from bufcheck.format import Ranges, Source

if TYPE_CHECKING:
    import pyarrow as pa

    from bufcheck.rule import Outcome

NAME = "<memory>"
BATCH_ROWS = 1 << 14
TABLES = ("policy", "advantage", "agents")
KEYS = {"timestep": 0, "agent_id": "agent"}
"""What rows without keys of their own get: each is an episode of one step."""


def described(
    policy: Mapping[str, Any] | None,
    advantage: Mapping[str, Any] | None,
    agents: Mapping[str, Any] | None,
    producer: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The metadata of a dump, each entry held to the schema."""
    told: dict[str, Any] = {"schema": schema.CURRENT}
    if producer:
        told["producer"] = dict(producer)
    for table, given in zip(TABLES, (policy, advantage, agents), strict=True):
        told[table] = dict(given or {})
        for name in told[table]:
            if f"{table}.{name}" not in schema.load().keys:
                known = [k.split(".")[1] for k in schema.load().keys if k.startswith(f"{table}.")]
                raise UsageError(f"{table} has no {name!r}", f"known: {', '.join(known)}")
    schema.flatten(told, "the description of the buffer")
    return told


def policy_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Every entry of `policy`, with its default where none is told."""
    keys = schema.load().keys
    names = [name.split(".")[1] for name in keys if name.startswith("policy.")]
    return {n: metadata["policy"].get(n, keys[f"policy.{n}"].default) for n in names}


def as_dump(batch: pa.RecordBatch, metadata: Mapping[str, Any], config: Config | None = None) -> Dump:
    def read(columns: list[str], ranges: Ranges | None) -> Iterator[pa.RecordBatch]:
        chosen = batch.select(columns)
        for start, stop in [(0, batch.num_rows)] if ranges is None else ranges:
            for first in range(start, stop, BATCH_ROWS):
                yield chosen.slice(first, min(BATCH_ROWS, stop - first))

    told = json.dumps(dict(metadata) | {"rows": batch.num_rows}).encode()
    source = Source(Path(NAME), "memory", batch.schema, batch.num_rows, told, read)
    return of_sources([NAME], [source], config or Config())


def broken_rules(batch: pa.RecordBatch, metadata: Mapping[str, Any]) -> list[Outcome]:
    """The errors about single rows that these rows would be found with; no actor is asked."""
    about_rows = [
        rule.code
        for rule in rules.built_in()
        if rule.scope == "row" and rule.severity == "error" and rule.code != "LP001"
    ]
    job = pipeline.opened(as_dump(batch, metadata), pipeline.Options(select=about_rows))
    with Database() as database:
        pipeline.load(database, job)
        outcomes = pipeline.run_rules(database, job)
    return [outcome for outcome in outcomes if outcome.status == rules.FAIL]


def check_batch(
    batch: Mapping[str, Any], metadata: Mapping[str, Any], options: pipeline.Options
) -> dict[str, Any]:
    """The report on rows in memory. Rows that have no keys get some, which the report tells."""
    import numpy as np

    rows = incoming.count_rows(batch)
    if rows == 0:
        raise UsageError("the batch holds no rows")
    keys = {"episode_id": np.arange(rows), **KEYS}
    lacking = {name: value for name, value in keys.items() if batch.get(name) is None}
    fields = incoming.fields_of({**batch, **lacking}, rows, policy_of(metadata))
    dump = as_dump(as_batch(fields), metadata)
    for name in lacking:
        dump.assumed[f"columns.{name}"] = {
            "value": "every row is an episode of its own" if name == "episode_id" else str(keys[name]),
            "source": "not in the batch",
        }
    return pipeline.validate(dump, options)
