"""What --actor says: which file, pattern or module is for which agent and version."""

from __future__ import annotations

import glob
import os
import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bufcheck.errors import ReadError, UsageError

PLACES = ("agent_id", "policy_version")
_PLACE = re.compile(r"\{(agent_id|policy_version)\}")


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
    who, equals, path = _split(text)
    fixed = os.path.dirname(text.partition("{")[0])  # what of a pattern's path is the same for all
    if not equals or os.path.exists(text) or ("=" in fixed and os.path.isdir(fixed)):
        return _checked(Given(None, None, text))
    agent, at, version = who.rpartition("@")
    if at and re.fullmatch(r"-?\d+", version):
        return _checked(Given(agent, int(version), path))
    return _checked(Given(who, None, path))


def _split(text: str) -> tuple[str, str, str]:
    """At the first = that leads to a file; an agent's name may hold one too."""
    for match in re.finditer("=", text):
        who, path = text[: match.start()], text[match.end() :]
        if os.path.isfile(path) or _PLACE.search(path.partition("=")[0]):
            return who, "=", path
    return text.partition("=")


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
    if not given.source:
        raise UsageError(
            "--actor names no file", "--actor takes PATH, AGENT=PATH or AGENT@VERSION=PATH"
        )
    if "{" in given.source and not os.path.isfile(given.source):
        raise UsageError(
            f"{given.source}: no such actor", "a pattern has {agent_id} or {policy_version}"
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


def specificity(given: Given) -> tuple[bool, bool, bool]:
    return given.version is None, given.agent is None, not given.places


def _parsed(text: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(string.Formatter().parse(text))
    except ValueError:  # a lone brace: a name, not a pattern
        return []


def source_for(given: Given, agent: str | None, version: int | None) -> Any:
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


def versions_given(given: Iterable[Given]) -> set[int]:
    """The policy versions that checkpoints are there for: named outright, or found by a pattern."""
    found = set()
    for one in given:
        if one.version is not None:
            found.add(one.version)
        if "policy_version" in one.places:
            # An agent's name may be anything; a version is a number.
            places = {"agent_id": ".*?", "policy_version": r"(-?\d+)"}
            parts = re.split(r"(\{agent_id\}|\{policy_version\})", one.source)
            spelled = "".join(places.get(p[1:-1]) or re.escape(p) for p in parts)
            anything = "".join("*" if p[1:-1] in places else glob.escape(p) for p in parts)
            matches = (re.fullmatch(spelled, path) for path in glob.iglob(anything))
            found |= {int(match[1]) for match in matches if match}
    return found
