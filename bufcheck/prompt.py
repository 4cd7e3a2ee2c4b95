"""The interactive prompt of `bufcheck query`: statements go from the keyboard to a session."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import itertools
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from bufcheck.completion import COMMANDS, candidates
from bufcheck.errors import BufcheckError, UsageError
from bufcheck.history import history
from bufcheck.statement import statements

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.lexers import Lexer

PROMPT = "bufcheck> "
CONTINUATION = "     ...> "
HINT = "`.help` for help, Ctrl-D or .quit to leave"

LEAVE = (".quit", ".exit")
HELP = "A statement ends with `;` and may span lines. Tab completes, Ctrl-R searches, Ctrl-C stops."


class Session(Protocol):
    """What the prompt needs of whoever runs the queries."""

    def ask(self, sql: str) -> None:
        """Runs one statement and prints its table and footer; a BufcheckError says what was wrong."""

    def stop(self) -> None:
        """Ends what runs, if anything does, after a KeyboardInterrupt; the next ask works again."""

    def tables(self) -> Mapping[str, list[str]]:
        """The columns of each view."""

    def explain(self, name: str) -> str:
        """What a rule is about; a BufcheckError if there is none of that name."""


def run(session: Session, title: str) -> None:
    """Reads and answers until the user leaves; nothing else ends it, neither Ctrl-C nor an error."""
    # Plain pseudo-terminals do not say where their cursor is, and asking them prints a warning.
    os.environ["PROMPT_TOOLKIT_NO_CPR"] = "1"
    with _terminal():
        prompt = _prompt(session)
        print(title, HINT, sep="\n", flush=True)
        _converse(session, prompt)


def _converse(session: Session, prompt: PromptSession[str]) -> None:
    while True:
        try:
            text = _read(prompt)
            if text is None or not _answer(session, text):
                return
        except KeyboardInterrupt:
            _stop(session)


# What was typed


def _read(prompt: PromptSession[str]) -> str | None:
    """What the user entered: nothing after Ctrl-C, None to leave."""
    try:
        # prompt_toolkit shows a dumb terminal the prompt first: what is typed at once would echo twice
        with prompt.input.raw_mode():
            return prompt.prompt()
    except KeyboardInterrupt:
        return ""
    except EOFError:
        return None


# What is answered


def _answer(session: Session, text: str) -> bool:
    """Runs what was entered until something fails; False if it asks to leave."""
    for statement in statements(text)[0]:
        if statement in LEAVE:
            return False
        try:
            if statement.startswith("."):
                print(_command(session, statement))
            else:
                session.ask(statement)
        except Exception as error:
            _complain(error)
            break
    return True


def _stop(session: Session) -> None:
    """Ends the running query; an impatient second Ctrl-C must not end the prompt with it."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        session.stop()
        print("\nstopped", flush=True)
    except Exception as error:
        _complain(error)
    finally:
        signal.signal(signal.SIGINT, before)


def _complain(error: Exception) -> None:
    """One line, whatever the message holds: it may quote a dump, which must not steer the terminal."""
    text = str(error) if isinstance(error, BufcheckError) else f"{type(error).__name__}: {error}"
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stderr.isatty()
    print(f"error: {line}" if plain else f"\x1b[31merror: {line}\x1b[0m", file=sys.stderr, flush=True)


def _command(session: Session, statement: str) -> str:
    """The answer to a dot command."""
    name, _, rest = statement.partition(" ")
    argument = rest.strip()
    if name == ".tables":
        counts = {view: len(columns) for view, columns in session.tables().items()}
        return _listed((view, f"{count} column{'s' * (count != 1)}") for view, count in counts.items())
    if name == ".schema":
        return _schema(session.tables(), argument)
    if name == ".explain":
        if not argument:
            raise UsageError(".explain needs a rule", "try `.explain CODE`, or its name in words")
        return session.explain(argument).rstrip("\n")
    if name == ".help":
        return _listed(COMMANDS.items()) + f"\n{HELP}"
    raise UsageError(f"{name} is not a command", _near(name, COMMANDS) or "`.help` lists them")


def _schema(tables: Mapping[str, list[str]], wanted: str) -> str:
    views = [view for view in tables if not wanted or view.lower() == wanted.lower()]
    if wanted and not views:
        raise UsageError(f"{wanted} is not a view", _near(wanted, tables) or "`.tables` lists them")
    return "\n".join("\n  ".join([view, *tables[view]]) for view in views)


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.lower(), list(names))
    return f"did you mean {' or '.join(near)}?" if near else ""


def _listed(pairs: Iterable[tuple[str, str]]) -> str:
    rows = list(pairs)
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:{width}}  {text}" for name, text in rows)


# What prompt_toolkit is told


def _terminal() -> AbstractContextManager[object]:
    """Where prompt_toolkit writes; left to itself it sends a dumb terminal two escape sequences."""
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.output.plain_text import PlainTextOutput
    from prompt_toolkit.utils import is_dumb_terminal

    return create_app_session(output=PlainTextOutput(sys.stdout) if is_dumb_terminal() else None)


def _prompt(session: Session) -> PromptSession[str]:
    from prompt_toolkit import PromptSession

    return PromptSession(
        PROMPT,
        multiline=True,
        prompt_continuation=lambda width, _, wraps: " " * width if wraps else CONTINUATION,
        history=history(),
        completer=_completer(session),
        complete_while_typing=False,
        key_bindings=_keys(session),
        lexer=_lexer(),
        enable_suspend=True,
    )


def _keys(session: Session) -> KeyBindings:
    """Enter runs a complete text, and adds a line to any other. Tab completes at once what is certain:
    prompt_toolkit would look for it meanwhile, and forget it when the user types on."""
    from prompt_toolkit.application.current import get_app_session
    from prompt_toolkit.enums import DEFAULT_BUFFER
    from prompt_toolkit.filters import has_focus
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.utils import is_dumb_terminal

    keys = KeyBindings()

    @keys.add("enter", filter=has_focus(DEFAULT_BUFFER))
    def enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        menu = buffer.complete_state
        if menu and menu.current_completion and len(menu.completions) > 1:
            buffer.complete_state = None  # Enter takes what the menu shows
        elif not statements(buffer.text)[1]:
            if not buffer.text.strip():
                buffer.reset()  # blanks are not worth remembering
            buffer.validate_and_handle()
        else:
            buffer.newline(copy_margin=False)
            if is_dumb_terminal():  # where prompt_toolkit draws no second line by itself
                get_app_session().output.write(f"\r{CONTINUATION}")
                get_app_session().output.flush()

    @keys.add("tab", filter=has_focus(DEFAULT_BUFFER))
    def tab(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state:
            buffer.complete_next()
            return
        word, found = _candidates(session, buffer.document)
        certain = _common_start([text.lower() for text in found])
        if len(found) == 1 or len(certain) > len(word):
            buffer.delete_before_cursor(len(word))
            buffer.insert_text(found[0][: len(certain)])
        if len(found) > 1:
            buffer.start_completion(select_first=False)

    return keys


def _common_start(texts: list[str]) -> str:
    alike = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))
    return "".join(letters[0] for letters in alike)


def _candidates(session: Session, document: Document) -> tuple[str, list[str]]:
    tables: Mapping[str, list[str]] = {}
    with contextlib.suppress(Exception):  # a session in trouble says so when it is asked
        tables = session.tables()
    return candidates(document.text_before_cursor, document.text_after_cursor, tables)


def _completer(session: Session) -> Completer:
    from prompt_toolkit.completion import Completer, Completion

    class Candidates(Completer):
        def get_completions(self, document: Document, _: CompleteEvent) -> Iterable[Completion]:
            word, found = _candidates(session, document)
            return [Completion(text, -len(word)) for text in found]

    return Candidates()


def _lexer() -> Lexer | None:
    """Colours for SQL where pygments happens to be installed."""
    from prompt_toolkit.lexers import PygmentsLexer

    try:
        sql: Any = importlib.import_module("pygments.lexers.sql")
    except ImportError:
        return None
    return PygmentsLexer(sql.SqlLexer)
