"""What can be said of the policy that acted: its family, and how many actions there are.

Nothing is guessed from the values of actions: the largest id seen says little of how many there were.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bufcheck.config import NAME as CONFIG_NAME
from bufcheck.errors import ForeignError
from bufcheck.importer import DIFFERENT, Asked, Found

MOST_LOOKED_AT = 4096
CATEGORICAL = "categorical"


class Policy(NamedTuple):
    settings: dict[str, Any]
    """For the metadata, under `policy`."""
    actions: str
    """The source's column of actions, in whatever role."""
    notes: list[str]

    @property
    def categorical(self) -> bool:
        return bool(self.settings["distribution"] == CATEGORICAL)


def settle(found: Found, roles: dict[str, str], asked: Asked) -> Policy:
    told = {k.split(".")[1]: v for k, v in asked.config.metadata.items() if k.startswith("policy.")}
    actions = next((roles[r] for r in ("action_index", "action", "action_id") if r in roles), None)
    if actions is None:
        if differing := [name for name, why in found.left_out.items() if why in DIFFERENT]:
            raise ForeignError(
                f"{found.files[0]}: the parts of the source differ in {_few(differing)}",
                "convert those that are alike together",
            )
        raise ForeignError(
            f"{found.files[0]}: has nothing that looks like actions",
            f"name them: --column action_index=NAME or action=NAME; it has {_few(found.columns)}",
        )
    notes: list[str] = []
    family = told.get("distribution") or found.policy.get("distribution")
    if family is None:
        family = _family(found, roles, actions, notes)
    settings = {**found.policy, **told, "distribution": family}
    if family == CATEGORICAL:
        settings = _offered(found, roles, actions, settings)
    else:
        settings.pop("action_space", None)
    state = roles.get("state_embed")
    if state is not None and "state_shape" not in settings:
        shape = list(found.columns[state].shape)
        if len(shape) > 1 and all(shape):
            settings["state_shape"] = shape
    return Policy(settings, actions, notes)


def _family(found: Found, roles: dict[str, str], actions: str, notes: list[str]) -> str:
    kind = found.columns[actions]
    width = math.prod(kind.shape)
    if pa.types.is_integer(kind.type) or pa.types.is_boolean(kind.type):
        if width != 1 and "action" in roles:
            raise ForeignError(
                f"{found.files[0]}: {actions} holds {width} whole numbers a row: a factored policy has"
                " several log-probs a sample, which experience/1 does not hold",
                'if it is continuous, say [policy] distribution = "diagonal_gaussian"'
                f" in {CONFIG_NAME}",
            )
        notes.append(f"the policy is categorical, since {actions} holds whole numbers")
        return CATEGORICAL
    if not pa.types.is_floating(kind.type):
        raise ForeignError(
            f"{found.files[0]}: {actions} is {kind.type}, no action that can be scored",
            "name another column with --column action=NAME",
        )
    if width == 1 and _whole(found, actions):
        if roles.keys() & {"logits", "action_mask"}:
            notes.append(f"the policy is categorical, since {actions} holds whole numbers, as floats")
            return CATEGORICAL
        raise ForeignError(
            f"{found.files[0]}: {actions} are whole numbers stored as floats: of a categorical policy,"
            " or of a continuous one?",
            'say [policy] distribution = "categorical" and action_space = N, or distribution ='
            f' "diagonal_gaussian", in {CONFIG_NAME}',
        )
    notes.append(f"the policy is a diagonal Gaussian, since {actions} holds floats")
    return "diagonal_gaussian"


def _whole(found: Found, actions: str) -> bool:
    piece = next(iter(found.pieces()), None)
    if piece is None or isinstance(piece.columns[actions], pa.Array):
        return False
    values = piece.columns[actions].reshape(-1)[:MOST_LOOKED_AT]
    return bool(np.isfinite(values).all() and (values == np.round(values)).all())


def _offered(
    found: Found, roles: dict[str, str], actions: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """What each sample was offered: all actions, unless the source lists them."""
    settings.setdefault("subset", "listed" if "subset_indices" in roles else "all")
    widths = {
        roles[role]: found.columns[roles[role]].shape[0]
        for role in ("logits", "action_mask")
        if role in roles and len(found.columns[roles[role]].shape) == 1
    }
    if len(set(widths.values())) > 1:
        told = " and ".join(f"{name} for {width}" for name, width in widths.items())
        raise ForeignError(
            f"{found.files[0]}: {told} actions cannot both be right", "name the columns with --column"
        )
    if settings["subset"] == "listed":
        return settings
    for width in widths.values():
        settings.setdefault("action_space", width)
    if "action_space" not in settings and "num_actions" not in roles:
        raise ForeignError(
            f"{found.files[0]}: nothing in it says how many actions there are",
            f"say [policy] action_space = N in {CONFIG_NAME}",
        )
    return settings


def _few(names: Any) -> str:
    listed = sorted(names)
    return ", ".join(listed[:12]) + (" …" if len(listed) > 12 else "")
