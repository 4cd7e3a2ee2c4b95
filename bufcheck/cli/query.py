from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from bufcheck.cli import STARTED, options
from bufcheck.cli.progress import ProgressBar
from bufcheck.errors import UsageError

if TYPE_CHECKING:
    from bufcheck.query import Session

SHOWN = 100
EPILOG = """\b
Examples:
  bufcheck query dump.parquet "SELECT agent_id, avg(reward) FROM samples GROUP BY 1"
  bufcheck query dump.h5 "SELECT * FROM findings WHERE severity = 'error'" --format csv
  bufcheck query dump.parquet --actor a.safetensors "SELECT agent_id, avg(abs(residual)) FROM replay GROUP BY 1"
  bufcheck query dump.parquet --named worst-residuals --actor a.safetensors -p limit=50
  bufcheck query --named list
  bufcheck query dump.parquet -f question.sql -p agent=RED -o answer.parquet
  bufcheck query rollouts/

\b
Views: samples (every column, and row_id), digest, episodes, agents, findings; with --actor also replay
and causes; .tables at the prompt lists all. A view costs something only where it is named.
SQL reads the dump and nothing else: no file, no network, no setting. Exit code 2 if it fails.
"""


@click.command(name="query", epilog=EPILOG)
@click.argument("dump", nargs=-1, metavar="DUMP... [SQL]")
@click.option("-f", "--file", "file", type=click.File(encoding="utf-8"), metavar="FILE.sql", help="Read the SQL from here; - is stdin.")  # fmt: skip
@click.option("--named", metavar="QUESTION", help="A ready question; `--named list` shows them.")
@click.option("-p", "--parameter", "parameters", multiple=True, metavar="NAME=VALUE", help="The value of $NAME in the SQL; repeatable.")  # fmt: skip
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "jsonl", "parquet", "arrow"]),
    help="How to print the answer. Default: by the suffix of -o, else table.",
)
@click.option("-o", "--output", "target", type=options.FILE, metavar="FILE", help="Write the answer here instead.")  # fmt: skip
@click.option("--rows", "most", type=click.IntRange(min=0), default=SHOWN, show_default=True, help="The most rows a table shows; 0 for all.")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=300.0, show_default=True, metavar="SECONDS", help="The most a query may take.")  # fmt: skip
@click.option("--memory", default="2GB", show_default=True, metavar="SIZE", help="The most memory a query may take.")  # fmt: skip
@options.actors("for the views replay and causes")
@options.running
@click.option("--tolerance", type=click.FloatRange(min=0), help="How far two log-probs of one sample may lie apart, for findings.")  # fmt: skip
@click.option("--rules", type=click.Path(path_type=Path), metavar="DIR", help="Also run the .sql rules of this folder, for findings.")  # fmt: skip
@options.config
def command(
    dump: tuple[str, ...],
    file: IO[str] | None,
    named: str | None,
    parameters: tuple[str, ...],
    form: str | None,
    target: Path | None,
    most: int,
    timeout: float,
    memory: str,
    config: Path | None,
    **given: Any,
) -> None:
    """Ask a dump in SQL (DuckDB's), Parquet and HDF5 alike. Without SQL, a prompt."""
    from bufcheck import config as configuration
    from bufcheck import pipeline, query, result

    if named == "list":
        _list_questions()
        return
    paths, sql = _split(dump, alone=file is not None or named is not None)
    values = query.parameters_of(parameters)
    if named is not None:
        sql, values = _named(named, values)
    elif file is not None:
        sql = _text_of(file)
    elif sql is None and not sys.stdin.isatty():
        sql = sys.stdin.read()
        if not sql.strip():
            raise UsageError("no SQL was given", 'say bufcheck query DUMP "SELECT …"')
    elif sql is None and not sys.stdout.isatty():
        raise UsageError("a prompt needs a terminal", 'say bufcheck query DUMP "SELECT …"')
    form = form or (result.of_suffix(target) if target else None)
    if target and not form:
        raise UsageError(f"{target}: the suffix says no format", "say --format csv, json, jsonl, parquet or arrow")  # fmt: skip
    form = form or "table"
    if result.member(form).BINARY and not target and sys.stdout.isatty():
        raise UsageError(f"{form} is not for terminals", f"say -o answer.{form}")
    size = query.memory_of(memory)
    progress = ProgressBar("replaying" if given["actor"] else "reading")
    settings = pipeline.Options(config=configuration.find(config), **given)
    job = pipeline.opened(paths, settings, progress)
    _end_tidily()
    begun = None if sql is None else STARTED
    with query.Session(job, size, timeout, begun=begun) as session:
        if sql is None:
            _converse(session, most, ", ".join(paths))
            return
        for statement in _statements(sql, form, target):
            _answer(session, statement, values, form, target, most, progress)


def _split(given: tuple[str, ...], *, alone: bool) -> tuple[list[str], str | None]:
    """The last argument is SQL if it looks like it, and is no file."""
    if not given:
        raise click.UsageError("Missing argument 'DUMP...'.")
    last = given[-1]
    is_sql = not alone and len(given) > 1 and bool(re.search(r"\s|;|\(", last.strip()))
    if is_sql and not os.path.exists(last):
        return list(given[:-1]), last
    return list(given), None


def _text_of(file: IO[str]) -> str:
    try:
        return file.read()
    except UnicodeDecodeError:
        raise UsageError(f"{file.name}: not a text in UTF-8", "save it as UTF-8") from None


def _end_tidily() -> None:
    """When told to end, ends what was started, too."""
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            number = getattr(signal, name)
            signal.signal(number, lambda received, _: sys.exit(128 + received))


def _statements(sql: str, form: str, target: Path | None) -> list[str]:
    from bufcheck.statement import statements

    complete, rest = statements(sql)
    every = [*complete, *([rest] if rest.strip() else [])]
    if not every:
        raise UsageError("no SQL was given", 'say bufcheck query DUMP "SELECT …"')
    if len(every) > 1 and (form != "table" or target):
        raise UsageError(f"{len(every)} statements, and {form} holds one answer", "ask one at a time")
    return every


def _named(name: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    from bufcheck import question

    found = question.load(name)
    return found.sql, question.with_parameters(found, values)


def _list_questions() -> None:
    from bufcheck import question

    for name in question.names():
        found = question.load(name)
        needs = " (needs --actor)" if found.needs else ""
        click.echo(f"{click.style(name, bold=True)}{needs}\n    {found.question}")
        for parameter, default in found.parameters.items():
            click.echo(f"    -p {parameter}={default}  {found.help.get(parameter, '')}".rstrip())


def _answer(
    session: Session,
    sql: str,
    values: dict[str, Any],
    form: str,
    target: Path | None,
    most: int,
    progress: ProgressBar | None = None,
) -> None:
    from bufcheck import result
    from bufcheck.whole_file import whole_file

    begun = time.monotonic()
    reader = session.ask(sql, values)
    if progress:
        progress.close()
    if target:
        sources = [source.path for source in session.job.dump.sources]
        with (
            whole_file(target, sources=sources, replace=True) as temporary,
            temporary.open("wb") as file,
        ):
            told = result.write(reader, form, file, is_file=True)
        click.echo(f"{target}: {told.rows:,} rows", err=True)
        return
    out = sys.stdout.buffer
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    told = result.write(reader, form, out, width=width, most=most)
    out.flush()
    if form == "table":
        hidden = f", {told.shown:,} shown; --rows 0 shows all" if told.shown < told.rows else ""
        s = "" if told.rows == 1 else "s"
        click.echo(f"{told.rows:,} row{s} in {time.monotonic() - begun:.2f} s{hidden}")


def _converse(session: Session, most: int, title: str) -> None:
    from bufcheck import prompt
    from bufcheck.cli.explain import text_of

    class Asking:
        """The session as the prompt knows it."""

        def ask(self, sql: str) -> None:
            _answer(session, sql, {}, "table", None, most)

        def stop(self) -> None:
            session.stop()

        def tables(self) -> dict[str, list[str]]:
            return session.views.columns()

        def explain(self, name: str) -> str:
            return text_of(name)

    rows = session.job.dump.rows
    prompt.run(Asking(), f"{title}: {rows:,} rows; views: {', '.join(session.views.meanings)}")
