"""Questions people ask a dump, each with a name. A question is one .sql file: a TOML header, then a
SELECT that answers it.

    question    what it answers, in one line
    needs       "actor" where it reads what only a replay makes, else ""
    parameters  what the SQL names as $parameter, with its default: a number or a text
    help        what each parameter means

Its SQL may read the tables of docs/tables.md. It names columns one by one: a column nobody names is
never read from the dump, and naming `findings` or `causes` runs the whole check.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from bufcheck import shipped
from bufcheck.errors import UsageError
from bufcheck.sql import split_header

LARGEST = 2**63 - 1
"""What a BIGINT of DuckDB holds."""


@dataclass(frozen=True)
class Question:
    name: str
    question: str
    sql: str
    needs: str = ""
    parameters: dict[str, float | str] = field(default_factory=dict)
    help: dict[str, str] = field(default_factory=dict)


@cache
def names() -> list[str]:
    files = (shipped.PACKAGE / "questions").glob("*.sql")
    return sorted(file.stem.replace("_", "-") for file in files)


@cache
def load(name: str) -> Question:
    name = name.lower().replace("_", "-")
    if name not in names():
        raise UsageError(f"no question is called {name!r}", _near(name))
    file = shipped.PACKAGE / "questions" / f"{name.replace('-', '_')}.sql"
    header, sql = split_header(file.read_text("utf-8"))
    return Question(name=name, sql=sql, **header)


def with_parameters(question: Question, given: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults, with what is given in their place: texts as on the command line, or values."""
    for name in given:
        if name not in question.parameters:
            raise UsageError(f"{question.name} has no parameter {name!r}", _known(question))
    return {
        name: _as_default(question, name, given[name]) if name in given else default
        for name, default in question.parameters.items()
    }


def _near(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, names(), n=3, cutoff=0.5)
    near = near or [known for known in names() if name and name in known][:3]
    listing = "`--named list` shows them all"
    return f"did you mean {' or '.join(near)}? {listing}" if near else listing


def _known(question: Question) -> str:
    if not question.parameters:
        return "it takes none: leave out -p"
    told = (f"-p {name}={default}" for name, default in question.parameters.items())
    return f"it takes {', '.join(told)}"


def _as_default(question: Question, name: str, value: Any) -> float | str:
    """A value of the kind its default has; whole numbers count something, so none is negative."""
    default = question.parameters[name]
    if isinstance(default, str):
        return str(value)
    whole = isinstance(default, int)
    try:
        number = None if isinstance(value, bool) else _number(value, whole=whole)
    except (TypeError, ValueError):
        number = None
    if number is None or not math.isfinite(number) or (whole and not 0 <= number <= LARGEST):
        kind = "a whole number" if whole else "a number"
        raise UsageError(
            f"{question.name}: {name} must be {kind}, not {value!r}", f"say -p {name}={default}"
        )
    return number


def _number(value: Any, *, whole: bool) -> float:
    if not whole:
        return float(value)
    number = int(value)
    return number if isinstance(value, str) or number == value else math.nan
