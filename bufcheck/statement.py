"""Cuts a text into SQL statements, and the dot commands of the prompt."""

from __future__ import annotations

import re

_COMMAND = re.compile(r"(?P<command>\.[^\n]*)")
PIECE = re.compile(
    r"""
      (?P<blank> \s+ )
    | (?P<comment> --[^\n]* | /\*.*?\*/ )
    | (?P<end> ; )
    | (?P<quoted> /\*.* | [eE]'(?:\\.|''|[^'\\])*'? | '[^']*'? | "[^"]*"?
                | \$(?P<tag>[A-Za-z_]\w*|)\$.*?(?:\$(?P=tag)\$|\Z) )
    | (?P<word> \w[\w$]* | . )
    """,
    re.DOTALL | re.VERBOSE,
)


def statements(text: str) -> tuple[list[str], str]:
    """The complete statements of a text, without their `;`, and what follows the last of them.

    A dot command, which stands where a statement would begin, ends with its line. Statements of nothing
    but blanks and comments are left out, and so is a comment after the last `;`.
    """
    found: list[str] = []
    start = at = 0
    begun = False
    while at < len(text):
        piece = (None if begun else _COMMAND.match(text, at)) or PIECE.match(text, at)
        assert piece, "the last alternative matches any character"
        at, kind = piece.end(), piece.lastgroup
        if kind == "command":
            found.append(piece[0].rstrip("; \t\r"))
            start = at
        elif kind == "end":
            found += [text[start : piece.start()].strip()] if begun else []
            start, begun = at, False
        elif kind in ("quoted", "word"):
            begun = True
    return found, text[start:].lstrip() if begun or start == 0 else ""


def bare(sql: str) -> str:
    """SQL without comments and texts, which may hold words that look like names."""
    return PIECE.sub(lambda p: " " if p.lastgroup in ("comment", "quoted") else p[0], sql)


def words(sql: str) -> set[str]:
    """The words of SQL that may be names, quoted or not; also in small letters, as SQL reads them."""
    found = set()
    for piece in PIECE.finditer(sql):
        if piece.lastgroup == "word":
            found.add(piece[0])
        elif piece[0].startswith('"'):
            found.add(piece[0].strip('"').replace('""', '"'))
    return found | {word.lower() for word in found}
