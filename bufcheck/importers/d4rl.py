"""D4RL and files like it: HDF5 with observations, actions, rewards, terminals and timeouts.

Rows stand in the order they were played; episodes end where `terminals` or `timeouts` is set. Log-probs
are in `infos/action_log_probs`, where a file has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bufcheck.errors import ForeignError
from bufcheck.importer import Asked, Found, Piece, common, rows_at_once

if TYPE_CHECKING:
    from bufcheck.importers._hdf5 import Tree

EXAMPLE = "bufcheck convert --from d4rl hopper_medium-v2.hdf5 dump.parquet"
DISTRIBUTION = "metadata/policy/output_distribution"
FAMILIES = {"tanh_gaussian": "squashed_gaussian", "gaussian": "diagonal_gaussian"}


def recognises(path: Path) -> bool:
    from bufcheck.importers._hdf5 import mentions

    return mentions(path, b"observations", b"actions", b"terminals")


def find(paths: list[Path], asked: Asked) -> Found:
    from bufcheck.importers import _hdf5

    trees = [_hdf5.look(path, [DISTRIBUTION]) for path in paths]
    rows = [_rows(tree) for tree in trees]
    columns, left_out = common(
        {name: one.kind for name, one in tree.datasets.items() if one.shape[0] == count}
        for tree, count in zip(trees, rows, strict=True)
    )
    for tree in trees:
        for name in [*tree.datasets, *tree.others]:
            if name not in columns and not name.startswith("metadata/"):
                left_out.setdefault(name, "not numbers, one value a step")
    step = rows_at_once(columns)

    def pieces() -> Iterator[Piece]:
        for number, (tree, count) in enumerate(zip(trees, rows, strict=True)):
            cuts = [(start, min(start + step, count)) for start in range(0, count, step)]
            parts = [_hdf5.Part(name, *cut) for cut in cuts for name in columns]
            values = _hdf5.read(tree, parts)
            for _ in cuts:
                yield Piece({name: next(values) for name in columns}, lane=number)
            for _ in values:  # the end of the answer, so that the child can be asked again
                pass

    return Found(paths, columns, sum(rows), pieces, **_told(trees), left_out=left_out, ids_stay=False)


def _rows(tree: Tree) -> int:
    for name in ("rewards", "actions", "observations"):
        if name in tree.datasets:
            return tree.datasets[name].shape[0]
    raise ForeignError(
        f"{tree.path}: has no rewards, actions or observations at its root",
        "describe it in bufcheck.toml and convert it without --from",
    )


def _told(trees: list[Tree]) -> dict[str, Any]:
    """What the files say of the policy; SAC's, say, is a squashed Gaussian."""
    assumed = []
    if any("timeouts" not in tree.datasets for tree in trees):
        assumed.append("without timeouts, an episode cut by a time limit runs on into the next")
    said = {tree.texts.get(DISTRIBUTION) for tree in trees}
    family = FAMILIES.get(said.pop() or "") if len(said) == 1 else None
    if family is None:
        return {"assumed": assumed}
    assumed.append(f"the policy is a {family.replace('_', ' ')}, as {DISTRIBUTION} says")
    return {"assumed": assumed, "policy": {"distribution": family}}
