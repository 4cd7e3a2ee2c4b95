"""What Tab offers at the prompt: the views and columns that may be meant, and the words of SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from bufcheck.statement import PIECE, bare, statements

COMMANDS = {
    ".tables": "the views and how many columns each has",
    ".schema": "[VIEW]  the columns of one view, or of all",
    ".explain": "RULE  what a rule finds, why it matters and what to do",
    ".help": "this text",
    ".quit": "leave (also .exit, Ctrl-D)",
    ".exit": "leave",
}
KEYWORDS = re.findall(
    r"\w+",
    """
    ALL AND ANTI AS ASC ASOF BETWEEN BY CASE CAST CROSS DESC DESCRIBE DISTINCT ELSE END EXCEPT EXCLUDE
    EXISTS EXPLAIN FALSE FILTER FROM FULL GROUP HAVING ILIKE IN INNER INTERSECT IS JOIN LEFT LIKE LIMIT
    NOT NULL NULLS OFFSET ON OR ORDER OUTER OVER PARTITION QUALIFY RIGHT SELECT SEMI SUMMARIZE THEN TRUE
    UNION USING VALUES WHEN WHERE WINDOW WITH
    """,
)
FUNCTIONS = re.findall(
    r"\w+\(",
    """
    abs( any_value( arg_max( arg_min( avg( coalesce( corr( count( exp( first( greatest( isnan( lag(
    last( lead( least( len( list( ln( max( median( min( quantile_cont( round( row_number( stddev( sum(
    unnest(
    """,
)

_NOT_KEYWORD = rf"(?!(?:{'|'.join(KEYWORDS)})\b)"
_SOURCE = rf"{_NOT_KEYWORD}(\w+)(?:\s+(?:AS\s+)?{_NOT_KEYWORD}(\w+))?"
_SOURCES = re.compile(rf"(?:\b(?:FROM|JOIN)\s+|,\s*){_SOURCE}", re.IGNORECASE)
_AFTER_FROM = re.compile(rf"\b(?:FROM|JOIN)\s+(?:{_SOURCE}\s*,\s*)*\w*$", re.IGNORECASE)


def candidates(before: str, after: str, tables: Mapping[str, list[str]]) -> tuple[str, list[str]]:
    """The word begun before the cursor, and what it may become, the likeliest first."""
    done, _, line = before.rpartition("\n")
    if line.startswith(".") and not statements(done)[1]:
        return _command_candidates(line, tables)
    pieces = list(PIECE.finditer(before))
    if pieces and pieces[-1].lastgroup in ("comment", "quoted"):
        return "", []
    begun = statements(before)[1]
    statement = bare(begun + after.partition(";")[0])
    typed = re.search(r"(?:(\w+)\.)?(\w*)$", begun)
    assert typed, "an empty word is always there"
    owner, word = typed[1], typed[2]
    views = {name.lower(): name for name in tables}
    named = _named(statement, views)
    if owner:
        view = named.get(owner.lower()) or views.get(owner.lower())
        return word, _matching(word, tables[view] if view else [])
    if _AFTER_FROM.search(bare(begun)):
        return word, _matching(word, tables)
    return word, _anywhere(word, tables, set(named.values()))


def _anywhere(word: str, tables: Mapping[str, list[str]], named: set[str]) -> list[str]:
    """Columns, functions, keywords and views; columns of other views only if those named have none."""
    nearest = _matching(word, (column for view in tables if view in named for column in tables[view]))
    columns = nearest or _matching(word, (column for names in tables.values() for column in names))
    # Keywords are offered as the user types them, in small letters or large.
    words = [key.lower() if word.islower() else key for key in KEYWORDS]
    words = [key for key in (*words, *FUNCTIONS) if key.lower().startswith(word.lower())]
    return list(dict.fromkeys([*columns, *words, *_matching(word, tables)]))


def _command_candidates(line: str, tables: Mapping[str, list[str]]) -> tuple[str, list[str]]:
    command, blank, word = line.partition(" ")
    if not blank:
        return command, [name for name in COMMANDS if name.startswith(command.lower())]
    word = word.lstrip()
    return word, _matching(word, tables) if command == ".schema" else []


def _named(statement: str, views: Mapping[str, str]) -> dict[str, str]:
    """The views a statement reads, by each name it may call them."""
    named: dict[str, str] = {}
    for source in _SOURCES.finditer(statement):
        view = views.get(source[1].lower())
        if view:
            named |= {source[1].lower(): view, (source[2] or source[1]).lower(): view}
    return named


def _matching(word: str, names: Iterable[str]) -> list[str]:
    """The names that begin so, each once, quoted where SQL would misread them."""
    found = dict.fromkeys(name for name in names if name.lower().startswith(word.lower()))
    return [name if _is_plain(name) else '"' + name.replace('"', '""') + '"' for name in found]


def _is_plain(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z_]\w*", name) is not None and name.upper() not in KEYWORDS
