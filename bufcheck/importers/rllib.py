"""RLlib's offline data: SampleBatches as JSON or Parquet, rows or whole episodes of the new API stack.

Compressed columns are read too; what is pickled in them is read as plain data, and none of it is run.
Ray itself is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bufcheck.errors import ForeignError
from bufcheck.importer import Asked, Found, Piece, scanned

EXAMPLE = "bufcheck convert --from rllib /tmp/cartpole-out dump.parquet"
LOOKED_AT = 1 << 16
NOT_ROWS = "not one value of one shape a step"


def recognises(path: Path) -> bool:
    if path.is_dir():
        first = next(iter(_in_folder(path)), None)
        return first is not None and recognises(first)
    with path.open("rb") as file:
        head = file.read(LOOKED_AT)
    if head[:4] == b"PAR1":
        import pyarrow.parquet as pq

        names = set(pq.read_schema(path).names)
        steps = {"obs", "actions", "rewards"} <= names and names & {"eps_id", "terminateds", "type"}
        return names == {"item"} or bool(steps) or "policy_batches" in names
    batch = b'"SampleBatch"' in head or b'"MultiAgentBatch"' in head
    return head[:1] == b"{" and (batch or (b'"obs"' in head and b'"eps_id"' in head))


def find(paths: list[Path], asked: Asked) -> Found:
    from bufcheck.importers import _rllib_batches

    files = [file for path in paths for file in (_in_folder(path) if path.is_dir() else [path])]
    if not files:
        raise ForeignError(f"{paths[0]}: no JSON or Parquet file in this folder")
    skipped: dict[str, str] = {}

    def batches() -> Iterator[dict[str, Any]]:
        for file in files:
            yield from _rllib_batches.of_file(file)

    def described() -> Iterator[Piece]:
        for batch in batches():
            yield Piece(_rows(batch, skipped))

    columns, left_out, rows = scanned(described())

    def pieces() -> Iterator[Piece]:
        for batch in batches():
            held = _rows(batch, {})
            if held:
                yield Piece({name: held[name] for name in columns})

    assumed = []
    if "eps_id" not in columns:
        assumed.append("without eps_id, all rows are in the order they were played")
    out = {name: why for name, why in (skipped | left_out).items() if name not in columns}
    return Found(files, columns, rows, pieces, assumed=assumed, left_out=out, ids_stay=False)


def _in_folder(folder: Path) -> list[Path]:
    found = [p for p in folder.rglob("*") if p.suffix in (".json", ".parquet") and p.is_file()]
    return sorted(p for p in found if not any(part[0] in "._" for part in p.relative_to(folder).parts))


def _rows(batch: dict[str, Any], skipped: dict[str, str]) -> dict[str, Any]:
    """The columns of a batch that have a value for each of its rows."""
    lengths = [len(batch[name]) for name in ("rewards", "actions", "obs") if name in batch]
    if not lengths:
        raise ForeignError(
            f"a batch has neither rewards nor actions nor obs; it has {', '.join(sorted(batch)[:12])}",
            "is this RLlib's offline data?",
        )
    held = {}
    for name, values in batch.items():
        if values is not None and len(values) == lengths[0]:
            held[name] = values
        else:
            skipped[name] = NOT_ROWS
    return held if lengths[0] else {}
