"""Saved actors: which of them acted for which rows, and how a checkpoint becomes a network.

A kind of checkpoint is one module in `actors/` with

    KIND                     what the report calls it
    recognises(file)         does this open binary file hold it?
    load(path, options)      -> Network

Only content decides what a file is. Loading runs no code of the checkpoint's, unless `options` trust
it: a member that would have to is the one that refuses.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import os
import pkgutil
import re
import string
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bufcheck.errors import ReadError, UsageError

if TYPE_CHECKING:
    import torch

MOST_BYTES_LOADED = 256 << 20
"""Networks beyond this are let go of, the longest unused first."""
PLACES = ("agent_id", "policy_version")
_PLACE = re.compile(r"\{(agent_id|policy_version)\}")


@dataclass(frozen=True)
class Loading:
    """How checkpoints may be loaded."""

    arch: str | None = None
    """module:factory or file.py:factory, for state dicts."""
    trust_code: bool = False


@dataclass
class Network:
    """What a checkpoint holds, ready to act."""

    module: torch.nn.Module
    """float[B, *state_shape] → logits[B, A], a mean[B, n], or (mean, log_std)."""
    kind: str
    log_std: torch.Tensor | None = None
    """Of a Gaussian whose spread does not depend on the state."""
    state_shape: tuple[int, ...] | None = None
    notes: list[str] = field(default_factory=list)
    assumed: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        tensors = [*self.module.parameters(), *self.module.buffers()]
        return sum(t.numel() * t.element_size() for t in tensors)


@dataclass
class Actor:
    """One actor that was given, and what became of it."""

    number: int
    path: str
    sha256: str | None
    """None for a module handed over in Python."""
    rows: int = 0
    kind: str = ""
    notes: list[str] = field(default_factory=list)
    assumed: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Given:
    """One --actor: for whom, and where."""

    agent: str | None
    version: int | None
    source: Any
    """A path, a pattern of paths, or a torch module."""

    @property
    def places(self) -> set[str]:
        if not isinstance(self.source, str):
            return set()
        named = {name for _, name, _, _ in _parsed(self.source) if name is not None}
        return named & set(PLACES)


class Actors:
    """The actors given, found by agent and version and loaded when first needed."""

    def __init__(self, given: Iterable[Given], loading: Loading | None = None) -> None:
        self.given = sorted(given, key=_specificity)
        self.loading = loading or Loading()
        self.used: list[Actor] = []
        self._by_source: dict[Any, Actor] = {}
        self._loaded: OrderedDict[int, Network] = OrderedDict()
        self._sources: dict[int, Any] = {}

    @property
    def is_one_for_all(self) -> bool:
        only = self.given[0]
        return len(self.given) == 1 and (only.agent, only.version, only.places) == (None, None, set())

    def find(self, agent: str | None, version: int | None) -> Actor | None:
        """The actor of these rows: the most specific one given whose file is there."""
        for given in self.given:
            if given.agent not in (None, agent) or given.version not in (None, version):
                continue
            source = _fill_in(given, agent, version)
            if source is not None:
                return self._actor(source)
        return None

    def network(self, actor: Actor) -> Network:
        """Its network, loaded now or kept from before."""
        loaded = self._loaded
        if actor.number not in loaded:
            network = load(self._sources[actor.number], self.loading)
            network.module.eval()
            for parameter in network.module.parameters():
                parameter.requires_grad_(False)
            actor.kind, actor.notes, actor.assumed = network.kind, network.notes, network.assumed
            loaded[actor.number] = network
            while len(loaded) > 1 and sum(n.nbytes for n in loaded.values()) > MOST_BYTES_LOADED:
                loaded.popitem(last=False)
        loaded.move_to_end(actor.number)
        return loaded[actor.number]

    def _actor(self, source: Any) -> Actor:
        key = source if isinstance(source, str) else id(source)
        if key not in self._by_source:
            path = source if isinstance(source, str) else f"<{type(source).__name__}>"
            sha256 = _sha256(Path(source)) if isinstance(source, str) else None
            actor = Actor(len(self.used), path, sha256)
            self._by_source[key] = actor
            self._sources[actor.number] = source
            self.used.append(actor)
        return self._by_source[key]


# What was given


def given_as(actors: Any) -> list[Given]:
    """Texts as on the command line; in Python also a module, or {agent or (agent, version): either}."""
    if isinstance(actors, Mapping):
        found = []
        for who, source in actors.items():
            agent, version = who if isinstance(who, tuple) else (who, None)
            found.append(_checked(Given(agent, version, _as_source(source))))
        return _without_twins(found)
    if isinstance(actors, (str, os.PathLike)) or not isinstance(actors, Iterable) or callable(actors):
        actors = [actors]
    return _without_twins(
        [
            _parse(a) if isinstance(a, str) else _checked(Given(None, None, _as_source(a)))
            for a in actors
        ]
    )


def _as_source(source: Any) -> Any:
    return os.fspath(source) if isinstance(source, os.PathLike) else source


def _parse(text: str) -> Given:
    """PATH, AGENT=PATH or AGENT@VERSION=PATH; a path may be a pattern."""
    who, equals, path = text.partition("=")
    fixed = os.path.dirname(text.partition("{")[0])  # what of a pattern's path is the same for all
    if not equals or os.path.exists(text) or ("=" in fixed and os.path.isdir(fixed)):
        return _checked(Given(None, None, text))
    agent, at, version = who.rpartition("@")
    if at and re.fullmatch(r"-?\d+", version):
        return _checked(Given(agent, int(version), path))
    return _checked(Given(who, None, path))


def _checked(given: Given) -> Given:
    if not isinstance(given.source, str):
        if not callable(given.source):
            raise UsageError(f"a {type(given.source).__name__} is no actor", "pass a path or a module")
        return given
    if given.places:
        return given
    if os.path.isdir(given.source):
        raise UsageError(
            f"{given.source}: is a folder",
            "name a file, or a pattern such as DIR/{agent_id}-{policy_version}.pt",
        )
    if not os.path.isfile(given.source):  # nor a pipe or a device: it is read more than once
        raise ReadError(
            f"{given.source}: no such actor", "--actor takes PATH, AGENT=PATH or AGENT@VERSION=PATH"
        )
    return given


def _without_twins(found: list[Given]) -> list[Given]:
    slots = [(g.agent, g.version, bool(g.places)) for g in found]
    for slot, given in zip(slots, found, strict=True):
        if slots.count(slot) > 1 and not given.places:
            who = "every agent" if given.agent is None else given.agent
            raise UsageError(f"two actors are given for {who}", "say AGENT=PATH or AGENT@VERSION=PATH")
    if not found:
        raise UsageError("no actor is given")
    return found


def _specificity(given: Given) -> tuple[bool, bool, bool]:
    return given.version is None, given.agent is None, not given.places


def _parsed(text: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(string.Formatter().parse(text))
    except ValueError:  # a lone brace: a name, not a pattern
        return []


def _fill_in(given: Given, agent: str | None, version: int | None) -> Any:
    """The source for these rows; None where a pattern leads to no file."""
    values = {"agent_id": agent, "policy_version": version}
    if not given.places:
        return given.source
    for name in given.places:
        value = values[name]
        # A name from the dump must not lead out of the folder that the user named.
        if value is None or (isinstance(value, str) and (not value or set(value) & set("/\\\0"))):
            return None
    parts = re.split(r"([/\\])", given.source)
    filled = [_PLACE.sub(lambda found: str(values[found[1]]), part) for part in parts]
    if any(new in (".", "..") and new != old for old, new in zip(parts, filled, strict=True)):
        return None
    path = "".join(filled)
    return path if os.path.isfile(path) else None


# Loading


def names() -> list[str]:
    import bufcheck.actors as members

    return sorted(m.name for m in pkgutil.iter_modules(members.__path__) if m.name[0] != "_")


def member(name: str) -> Any:
    return importlib.import_module(f"bufcheck.actors.{name}")


def load(source: Any, loading: Loading) -> Network:
    """The network of a checkpoint, or of a module handed over in Python."""
    import torch

    if isinstance(source, torch.nn.Module):
        return Network(_copied(source), "module", notes=notes_on(source))
    path = Path(source)
    try:
        with path.open("rb") as file:
            for name in names():
                file.seek(0)
                if member(name).recognises(file):
                    network: Network = member(name).load(path, loading)
                    return network
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror or error}") from None
    raise ReadError(
        f"{path}: not a checkpoint bufcheck knows", "save one with bufcheck.save_actor(module, path)"
    )


def _copied(module: torch.nn.Module) -> torch.nn.Module:
    """Replay sets mode, precision and gradients; the module may be in training at this moment."""
    try:
        return copy.deepcopy(module)
    except Exception as error:  # whatever the module's own parts raise
        detail = " ".join(str(error).split())[:160]
        raise UsageError(
            f"the {type(module).__name__} cannot be copied ({detail})",
            "save its state_dict and pass arch",
        ) from None


def notes_on(module: torch.nn.Module) -> list[str]:
    """What in a module makes its log-probs depend on more than the state."""
    notes = []
    if module.training:
        notes.append("was saved in train mode; it is replayed in eval mode")
    kinds = [type(m).__name__ for m in module.modules()]
    for kind in sorted({k for k in kinds if "Dropout" in k or "BatchNorm" in k}):
        what = "drops nothing" if "Dropout" in kind else "uses its running statistics"
        layers = f"{kinds.count(kind)} {kind} layer{'s' * (kinds.count(kind) > 1)}"
        notes.append(f"has {layers}; in eval mode it {what}")
    return notes


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror or error}") from None
