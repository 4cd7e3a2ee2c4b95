"""The command line: one file per command, options in, exit code out, no logic."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import time
from typing import Any

import click

from bufcheck import __version__
from bufcheck.errors import BufcheckError, NoDumpError

STARTED = time.monotonic()
COMMANDS = ("validate", "query", "clean", "convert", "inject", "schema", "rules", "explain", "demo")
EXIT_OK, EXIT_FINDINGS, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 2, 130


class Commands(click.Group):
    """Imports a command when it is called; and says every failure in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"bufcheck.cli.{name}").command
        return command

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
            sys.exit(code if isinstance(code, int) else EXIT_OK)
        except (click.Abort, KeyboardInterrupt):
            _interrupted()
        except click.ClickException as error:
            error.show()
            sys.exit(EXIT_FAILED)
        except NoDumpError as error:
            from bufcheck.importer import hint

            way = hint(error)
            _fail(f"{error}; {way}" if way else str(error))
        except BufcheckError as error:
            _fail(str(error))
        except BrokenPipeError:
            # The reader of our output has left; there is nobody to tell.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(EXIT_FAILED)
        except Exception as error:
            if _came_of_ctrl_c(error):
                _interrupted()
            if os.environ.get("BUFCHECK_DEBUG"):
                raise
            detail = " ".join(str(error).split())[:300]
            problem = f"unexpected {type(error).__name__}: {detail}"
            _fail(f"{problem}; BUFCHECK_DEBUG=1 shows where")


def _interrupted() -> None:
    # Not sys.exit: a query that has not noticed yet would crash the interpreter's shutdown.
    _say("interrupted")
    _flush()
    os._exit(EXIT_INTERRUPTED)


def _came_of_ctrl_c(error: BaseException | None) -> bool:
    """A library that is interrupted while it is imported fails in its own way when it is used again."""
    while error and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it may have been closed before we began
            stream.flush()


def _say(message: str) -> None:
    prefix = click.style("bufcheck:", fg="red", bold=True)
    click.echo(f"{prefix} {' '.join(message.split())}", err=True)


def _fail(message: str) -> None:
    _say(message)
    sys.exit(EXIT_FAILED)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with `bufcheck demo`, then `bufcheck validate dump.parquet`.",
)
@click.version_option(__version__, prog_name="bufcheck")
def main() -> None:
    """Check a stored on-policy buffer before anyone trains on it again."""


def run() -> None:
    """What the command `bufcheck` starts. To take torch apart at the end would take half a second."""
    _keep_memory()
    if not any(word.startswith("--actor") for word in sys.argv):
        # The threads that NumPy starts would turn on the spot for 0.1 s; only actors multiply matrices.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(100_000)  # to import torch makes many objects and no garbage worth looking for
    try:
        main(prog_name="bufcheck")
    except SystemExit as done:
        _flush()
        os._exit(done.code if isinstance(done.code, int) else EXIT_FAILED)


def _keep_memory() -> None:
    """Lets the allocators keep what one batch freed for the next, instead of asking for it anew."""
    import ctypes

    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")  # Arrow's, which reads it when it is loaded
    trim_threshold, mmap_threshold = -1, -3
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(mmap_threshold, 8 << 20)
        library.mallopt(trim_threshold, 64 << 20)
