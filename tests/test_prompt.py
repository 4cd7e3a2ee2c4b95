"""The prompt of `bufcheck query`, typed at in a real terminal, over a real DuckDB session."""

from __future__ import annotations

import os
import re
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import HEALTHY, ROOT

from bufcheck.completion import COMMANDS, candidates
from bufcheck.history import HISTORY_ENTRIES, history
from bufcheck.statement import statements

in_a_terminal = pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals")
PATIENCE = 20
UP, TAB, ENTER, CTRL_C, CTRL_D, CTRL_R = "\x1b[A", "\t", "\r", "\x03", "\x04", "\x12"
LONG = "SELECT count(*) FROM range(100000000000) a, range(1000) b WHERE a.range % 7 = b.range % 5;"

DRIVER = """
import fcntl, sys, termios, threading
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches us
import duckdb
from bufcheck.errors import BufcheckError, UsageError
from bufcheck.prompt import run

class DuckDB:
    def __init__(self):
        self.connection = duckdb.connect()
        create = self.connection.execute
        create("CREATE TABLE samples AS SELECT 1 AS step, 0.5 AS advantage FROM range(3)")
        create("CREATE TABLE episodes AS SELECT 12 AS episode_length")

    def ask(self, sql):
        if sql == "SELECT breakage":
            raise ZeroDivisionError("a bug\\n\\x1b[2Jof ours")
        answer = []
        def work():
            try:
                answer.append(self.connection.execute(sql).fetchall())
            except Exception as error:
                answer.append(error)
            done.set()
        self.done = done = threading.Event()
        threading.Thread(target=work).start()
        print("asked", flush=True)
        while not done.wait(0.02):
            pass
        if isinstance(answer[0], Exception):
            raise BufcheckError(str(answer[0]))
        print("rows:", answer[0], flush=True)

    def stop(self):
        while not self.done.wait(0.02):  # an interrupt before the query has begun is lost
            self.connection.interrupt()

    def tables(self):
        found = {}
        for table, column in self.connection.execute(
            "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal"
        ).fetchall():
            found.setdefault(table, []).append(column)
        return found

    def explain(self, name):
        if name != "LP001":
            raise UsageError(f"there is no rule {name}", "try LP001")
        return "LP001 finds log-probs above zero"

run(DuckDB(), "a dump of 3 rows")
"""


class Terminal:
    """A process in a pseudo-terminal, and what its screen shows."""

    def __init__(self, script: Path, history: str, **environment: str) -> None:
        import fcntl
        import pty
        import struct
        import termios

        import pyte

        self.screen = pyte.Screen(110, 50)
        self.stream = pyte.ByteStream(self.screen)
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 110, 0, 0))
        given = {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "BUFCHECK_HISTORY": history}
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, **given, **environment},
            start_new_session=True,
        )
        os.close(theirs)
        self.raw = b""

    @property
    def shown(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def look(self, seconds: float) -> None:
        """Draws what the process has written; waits a while for more."""
        if select.select([self.ours], [], [], seconds)[0]:
            try:
                written = os.read(self.ours, 65536)
            except OSError:  # what Linux says when the other side is closed
                written = b""
            self.raw += written
            self.stream.feed(written)

    def expect(self, pattern: str) -> None:
        """Waits until the screen shows this."""
        until = time.monotonic() + PATIENCE
        while not re.search(pattern, self.shown, re.MULTILINE):
            assert time.monotonic() < until, f"no {pattern!r} in:\n{self.shown}"
            self.look(0.2)

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def enter(self, text: str, pattern: str) -> None:
        """Types a line, waits for its answer and for the next prompt."""
        self.type(text + ENTER)
        self.expect(pattern)
        self.expect(r"^bufcheck>\Z")

    def ended(self) -> int:
        """The exit code; nothing that the process started may be left."""
        until = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < until, f"still there:\n{self.shown}"
            self.look(0.1)
        with pytest.raises(ProcessLookupError):
            os.killpg(self.process.pid, 0)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.ours)


COMMAND = f"""
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv = ["bufcheck", "query", {str(HEALTHY)!r}]
from bufcheck.cli import run
run()
"""


@contextmanager
def opened(
    folder: Path, history: str = "", driver: str = DRIVER, **environment: str
) -> Iterator[Terminal]:
    script = folder / "driver.py"
    script.write_text(driver)
    terminal = Terminal(script, history, **environment)
    try:
        terminal.expect(r"^bufcheck>\Z")
        yield terminal
    finally:
        terminal.close()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with opened(tmp_path) as terminal:
        yield terminal


@in_a_terminal
@pytest.mark.parametrize("leave", [CTRL_D, ".quit" + ENTER, ".exit;" + ENTER])
def test_banner_and_leaving(terminal: Terminal, leave: str) -> None:
    assert terminal.shown.startswith("a dump of 3 rows\n`.help` for help, Ctrl-D or .quit to leave\n")
    terminal.type(leave)
    assert terminal.ended() == 0
    assert "WARNING" not in terminal.shown  # about cursor position requests


@in_a_terminal
def test_statements_over_lines_and_several_on_one(terminal: Terminal) -> None:
    terminal.type("SELECT 20 +" + ENTER)
    terminal.expect(r"^     \.\.\.>\Z")
    terminal.enter("22 AS n;", r"rows: \[\(42,\)\]")
    terminal.enter("SELECT 'a;b' || 'it''s;';", r"rows: \[\(\"a;bit's;\",\)\]")
    terminal.enter(
        "SELECT 6 * 11; SELECT 7 * 11; -- both", r"rows: \[\(66,\)\]\nasked\nrows: \[\(77,\)\]"
    )
    terminal.enter(
        "SELECT 8 * 11; SELECT nothing; SELECT 9 * 11;", r"rows: \[\(88,\)\]\nasked\nerror: .*"
    )
    assert "99" not in terminal.shown
    terminal.enter("", r"bufcheck>\nbufcheck>\Z")
    terminal.enter("   ", r"bufcheck>\nbufcheck>\nbufcheck>\Z")


@in_a_terminal
def test_pasted_lines(terminal: Terminal) -> None:
    terminal.type("\x1b[200~-- first\nSELECT 6 * 7;\n.schema episodes\nSELECT 7 * 7;\x1b[201~")
    terminal.expect(r"SELECT 7 \* 7;\Z")
    terminal.enter("", r"rows: \[\(42,\)\]\nepisodes\n  episode_length\nasked\nrows: \[\(49,\)\]")


@in_a_terminal
def test_dot_commands(terminal: Terminal) -> None:
    terminal.enter(".tables", r"samples   2 columns")
    assert "\nepisodes  1 column\n" in terminal.shown
    terminal.enter(".schema SAMPLES", r"samples\n  step\n  advantage")
    terminal.enter(".schema sample", r"error: sample is not a view; did you mean samples\?")
    terminal.enter(".explain LP001", r"^LP001 finds log-probs above zero$")
    terminal.enter(".explain LP9", r"error: there is no rule LP9; try LP001")
    terminal.enter(".tabels", r"error: \.tabels is not a command; did you mean \.tables\?")
    terminal.enter(".zzz", r"error: \.zzz is not a command; `\.help` lists them")
    terminal.enter(".help", r"A statement ends with `;`")


@in_a_terminal
def test_errors_are_one_line_and_the_prompt_goes_on(terminal: Terminal) -> None:
    terminal.enter("SELECT missing;", r"^error: Binder Error.*\n(.+\n)?bufcheck>\Z")
    assert b"\x1b[31merror: " in terminal.raw
    terminal.enter("SELECT breakage;", r"^error: ZeroDivisionError: a bug \[2Jof ours$")
    terminal.enter("SELECT 6 * 7;", r"rows: \[\(42,\)\]")


@in_a_terminal
def test_ctrl_c(terminal: Terminal) -> None:
    terminal.type("SELECT 'half a")
    terminal.expect(r"half a\Z")
    terminal.type(CTRL_C)
    terminal.expect(r"^bufcheck>\Z")
    terminal.type(LONG + ENTER)
    terminal.expect(r"^asked\Z")
    terminal.type(CTRL_C)
    terminal.expect(r"^stopped\nbufcheck>\Z")
    terminal.enter("SELECT 6 * 7;", r"rows: \[\(42,\)\]")
    terminal.type(LONG + " SELECT 9 * 11;" + ENTER)
    terminal.expect(r"42(.|\n)*^asked\Z")
    terminal.type(CTRL_C * 3)
    terminal.expect(r"stopped(.|\n)*^stopped(.|\n)*bufcheck>\Z")
    terminal.enter("SELECT 7 * 7;", r"rows: \[\(49,\)\]")
    assert "99," not in terminal.shown
    terminal.type(CTRL_D)
    assert terminal.ended() == 0


@in_a_terminal
def test_history_across_runs(tmp_path: Path) -> None:
    history = tmp_path / "state" / "history"
    with opened(tmp_path, str(history)) as terminal:
        terminal.type("SELECT 20 +" + ENTER)
        terminal.expect(r"^     \.\.\.>\Z")
        terminal.enter("22;", r"rows: \[\(42,\)\]")
        terminal.enter(UP, r"rows: \[\(42,\)\](.|\n)*rows: \[\(42,\)\]")
        terminal.enter("SELECT 7 * 7;", r"rows: \[\(49,\)\]")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    with opened(tmp_path, str(history)) as terminal:
        terminal.type(UP)
        terminal.expect(r"^bufcheck> SELECT 7 \* 7;\Z")
        terminal.type(UP)
        terminal.expect(r"^bufcheck> SELECT 20 \+\n     \.\.\.> 22;\Z")
        terminal.enter("", r"rows: \[\(42,\)\]")
        terminal.type(CTRL_R + "7 *")
        terminal.expect(r"^bufcheck> SELECT 7 \* 7;")
        terminal.type(ENTER)
        terminal.enter("", r"rows: \[\(49,\)\]")


@in_a_terminal
def test_completion(terminal: Terminal) -> None:
    terminal.type("SELECT count(*) FROM sam" + TAB)
    terminal.expect(r"FROM samples\Z")
    terminal.enter(";", r"rows: \[\(3,\)\]")
    terminal.type("sel" + TAB)
    terminal.expect(r"^bufcheck> select\Z")
    terminal.type(" max(s.ADV" + TAB)
    terminal.expect(r"max\(s\.ADV\Z")  # nothing is called s yet
    terminal.type(CTRL_C)
    terminal.expect(r"^bufcheck>\Z")
    terminal.type("FROM samples s SELECT max(s.ADV" + TAB)
    terminal.expect(r"max\(s\.advantage\b")
    terminal.enter(");", r"rows: \[\(Decimal\('0.5'\),\)\]")
    terminal.type("FROM " + TAB)
    terminal.expect(r"episodes *\n +samples")
    terminal.type(TAB)
    terminal.expect(r"^bufcheck> FROM (episodes|samples)")
    terminal.type(ENTER)  # takes what the menu shows
    terminal.enter(" LIMIT 0;", r"rows: \[\]")
    terminal.type(".sc" + TAB)
    terminal.expect(r"\.schema\Z")
    terminal.type(" ep" + TAB)
    terminal.expect(r"\.schema episodes\Z")
    terminal.enter("", r"^episodes\n  episode_length$")


@in_a_terminal
def test_plain_terminals_get_no_colour(tmp_path: Path) -> None:
    with opened(tmp_path, NO_COLOR="1") as terminal:
        terminal.enter("SELECT missing;", r"^error: Binder Error")
        assert b"\x1b[31m" not in terminal.raw


@in_a_terminal
def test_dumb_terminal(tmp_path: Path) -> None:
    with opened(tmp_path, TERM="dumb") as terminal:
        terminal.type("SELECT 20 +" + ENTER)
        terminal.expect(r"^     \.\.\.>\Z")
        terminal.enter("22;", r"^     \.\.\.> 22;\nasked\nrows: \[\(42,\)\]")
        terminal.enter("SELECT missing;", r"^error: Binder Error")
        terminal.type(LONG + ENTER)
        terminal.expect(r"^asked\Z")
        terminal.type(CTRL_C)
        terminal.expect(r"^stopped\nbufcheck>\Z")
        assert terminal.shown.count("missing;") == terminal.shown.count("WHERE") == 1  # echoed once
        assert b"\x1b" not in terminal.raw
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


@pytest.mark.parametrize(
    ("text", "complete", "rest"),
    [
        ("", [], ""),
        (" \n ", [], ""),
        (";", [], ""),
        (" ; ;; ", [], ""),
        ("SELECT 1", [], "SELECT 1"),
        ("SELECT 1;", ["SELECT 1"], ""),
        (" SELECT 1 ;\n", ["SELECT 1"], ""),
        ("a; b ;c", ["a", "b"], "c"),
        ("a; b FROM ", ["a"], "b FROM "),
        ("SELECT 'a;b';", ["SELECT 'a;b'"], ""),
        ("SELECT 'it''s;';", ["SELECT 'it''s;'"], ""),
        ("SELECT 'it''s;", [], "SELECT 'it''s;"),
        (r"SELECT e'it\'s;';", [r"SELECT e'it\'s;'"], ""),
        (r"SELECT 'one\';", [r"SELECT 'one\'"], ""),
        ('SELECT ";" FROM "a;', [], 'SELECT ";" FROM "a;'),
        ('SELECT ";";', ['SELECT ";"'], ""),
        ("SELECT 1; -- it's; done", ["SELECT 1"], ""),
        ("SELECT 1 -- it's;\n;", ["SELECT 1 -- it's;"], ""),
        ("SELECT 1 -- one;", [], "SELECT 1 -- one;"),
        ("SELECT /* ; ' */ 1;", ["SELECT /* ; ' */ 1"], ""),
        ("SELECT 1; /* open ;", ["SELECT 1"], "/* open ;"),
        ("SELECT 1; /* closed ; */", ["SELECT 1"], ""),
        ("-- only a remark", [], "-- only a remark"),
        ("-- a remark\n;", [], ""),
        ("SELECT $$a;'b$$;", ["SELECT $$a;'b$$"], ""),
        ("SELECT $t$a;$$;$t$;", ["SELECT $t$a;$$;$t$"], ""),
        ("SELECT $$a;", [], "SELECT $$a;"),
        ("SELECT $most - 1;", ["SELECT $most - 1"], ""),
        ("SELECT 4 / 2 - 1;", ["SELECT 4 / 2 - 1"], ""),
        ("SELECT a.b, .5;", ["SELECT a.b, .5"], ""),
        ("SELECT\n.5;", ["SELECT\n.5"], ""),
        (".tables", [".tables"], ""),
        (" .schema it's; ", [".schema it's"], ""),
        (".tables\nSELECT 1;\n.quit", [".tables", "SELECT 1", ".quit"], ""),
        (".tables\nSELECT 1", [".tables"], "SELECT 1"),
        ("-- see\n.tables", [".tables"], ""),
    ],
)
def test_statements(text: str, complete: list[str], rest: str) -> None:
    assert statements(text) == (complete, rest)


TABLES = {
    "samples": ["row_id", "advantage", "old_log_prob"],
    "replay": ["row_id", "replay_log_prob", "order"],
    "Episodes": ["episode", "advances"],
}


@pytest.mark.parametrize(
    ("typed", "word", "found"),
    [
        ("sel|", "sel", ["select"]),
        ("SEL|", "SEL", ["SELECT"]),
        ("SELECT 1; sel|", "sel", ["select"]),
        ("SELECT * FROM |", "", ["samples", "replay", "Episodes"]),
        ("SELECT * FROM SA|", "SA", ["samples"]),
        ("SELECT * FROM samples s, ep|", "ep", ["Episodes"]),
        ("SELECT * FROM samples JOIN re|", "re", ["replay"]),
        ("SELECT adv| FROM samples", "adv", ["advantage"]),
        ("SELECT adv|", "adv", ["advantage", "advances"]),
        ("SELECT adv| FROM replay", "adv", ["advantage", "advances"]),
        ("SELECT adv|; FROM samples", "adv", ["advantage", "advances"]),
        ("SELECT adv| WHERE x = 'FROM samples'", "adv", ["advantage", "advances"]),
        ("SELECT cou|", "cou", ["count("]),
        ("SELECT s.| FROM samples AS s", "", TABLES["samples"]),
        ("SELECT * FROM samples s JOIN replay r ON s.row_id = r.ROW|", "ROW", ["row_id"]),
        ("SELECT * FROM samples JOIN replay ON replay.rep|", "rep", ["replay_log_prob"]),
        ("SELECT episodes.adv|", "adv", ["advances"]),
        ("SELECT other.|", "", []),
        ("SELECT replay.or|", "or", ['"order"']),
        ("SELECT 'FROM |", "", []),
        ("SELECT 1 -- FROM |", "", []),
        ("SELECT 1 /* sel|", "", []),
        (".|", ".", list(COMMANDS)),
        (".SCH|", ".SCH", [".schema"]),
        ("SELECT 1;\n.ex|", ".ex", [".explain", ".exit"]),
        (".schema ep|", "ep", ["Episodes"]),
        (".explain ep|", "ep", []),
    ],
)
def test_candidates(typed: str, word: str, found: list[str]) -> None:
    before, _, after = typed.partition("|")
    assert candidates(before, after, TABLES) == (word, found)


def test_history_keeps_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BUFCHECK_HISTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    kept_so_far = history()
    for number in range(HISTORY_ENTRIES + 5):
        kept_so_far.store_string(f"SELECT\n# {number};")
    file = tmp_path / "bufcheck" / "history"
    assert [path.name for path in file.parent.iterdir()] == ["history"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = list(history().load_history_strings())
    assert len(kept) == HISTORY_ENTRIES
    assert kept[0] == f"SELECT\n# {HISTORY_ENTRIES + 4};"
    assert kept[-1] == "SELECT\n# 5;"


@pytest.mark.parametrize("path", ["", "/dev/null", "/dev/null/history", "/proc/none/history"])
def test_history_without_a_file(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    from prompt_toolkit.history import InMemoryHistory

    monkeypatch.setenv("BUFCHECK_HISTORY", path)
    assert isinstance(history(), InMemoryHistory)


# The command itself


@in_a_terminal
def test_the_command_in_a_terminal(tmp_path: Path) -> None:
    with opened(tmp_path, driver=COMMAND) as terminal:
        terminal.expect("354 rows")
        terminal.type(f"SELECT count(*) AS n{ENTER}")
        terminal.expect(r"\.\.\.>")
        terminal.enter("FROM samples WHERE agent_id = 'EDU';", r"118\s+1 row in")
        terminal.enter("SELECT avg(rew\t) AS mean_of_it FROM sam\t;", r"0\.0736989")
        terminal.type(f"SELECT count(*) FROM range(1000000) a, range(1000000) b, samples;{ENTER}")
        time.sleep(1)
        terminal.type("\x03")
        terminal.expect("stopped")
        terminal.enter("SELECT max(timestep) AS last_of_all FROM samples;", "last_of_all")
        terminal.enter("SELECT rule, count(*) FROM findings GROUP BY 1;", "0 rows in")
        terminal.enter("SELECT nothing FROM samples;", "error: .*nothing")
        terminal.enter(".tables", "samples +24 columns")
        terminal.enter(".explain LP001", "log-prob-mismatch")
        terminal.enter("SELECT 7777 AS again;", "7777")
        terminal.screen.reset()
        terminal.type(f"\x1b[A{ENTER}")
        terminal.expect(r"7777\s+1 row in")
        terminal.type(".quit" + ENTER)
        assert terminal.ended() == 0
