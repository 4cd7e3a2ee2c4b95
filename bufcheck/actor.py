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
import pkgutil
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bufcheck.errors import ReadError, UsageError
from bufcheck.given import Given, source_for, specificity

if TYPE_CHECKING:
    import torch

MOST_BYTES_LOADED = 256 << 20
"""Networks beyond this are let go of, the longest unused first."""


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


class Actors:
    """The actors given, found by agent and version and loaded when first needed."""

    def __init__(self, given: Iterable[Given], loading: Loading | None = None) -> None:
        self.given = sorted(given, key=specificity)
        self.loading = loading or Loading()
        self.used: list[Actor] = []
        self._by_source: dict[Any, Actor] = {}
        self._loaded: OrderedDict[int, Network] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._sources: dict[int, Any] = {}
        self.prepare: Callable[[Network], object] = lambda network: None
        """What is done to each network when it is loaded."""

    @property
    def is_one_for_all(self) -> bool:
        only = self.given[0]
        return len(self.given) == 1 and (only.agent, only.version, only.places) == (None, None, set())

    def find(self, agent: str | None, version: int | None) -> Actor | None:
        """The actor of these rows: the most specific one given whose file is there."""
        for given in self.given:
            if given.agent not in (None, agent) or given.version not in (None, version):
                continue
            source = source_for(given, agent, version)
            if source is not None:
                return self._actor(source)
        return None

    def network(self, actor: Actor) -> Network:
        """Its network, loaded now or kept from before."""
        import torch

        loaded = self._loaded
        if actor.number not in loaded:
            with torch.inference_mode(False):  # a diagnosis may want to know slopes
                network = load(self._sources[actor.number], self.loading)
                network.module.eval()
                for parameter in network.module.parameters():
                    parameter.requires_grad_(False)
                self.prepare(network)
            actor.kind, actor.notes, actor.assumed = network.kind, network.notes, network.assumed
            loaded[actor.number] = network
            self._sizes[actor.number] = network.nbytes
            while len(loaded) > 1 and sum(self._sizes.values()) > MOST_BYTES_LOADED:
                del self._sizes[loaded.popitem(last=False)[0]]
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
