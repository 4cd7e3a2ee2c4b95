"""A progress bar on stderr, on a terminal only, and only for work that takes a while."""

from __future__ import annotations

import sys
import time

import click

PATIENCE = 1.0


class ProgressBar:
    """Called with (rows done, rows in all)."""

    def __init__(self, label: str) -> None:
        self.label, self.done = label, 0
        self.begun = self.shown = time.monotonic()
        self.wanted = sys.stderr.isatty()

    def __call__(self, rows: int, total: int) -> None:
        self.done += rows
        now = time.monotonic()
        if not self.wanted or now - self.begun < PATIENCE or now - self.shown < 0.1:
            return
        self.shown = now
        filled = 30 * self.done // max(total, 1)
        rate = self.done / (now - self.begun)
        left = (total - self.done) / rate
        bar = "█" * filled + "░" * (30 - filled)
        click.echo(
            f"\r{self.label} {bar} {self.done:,}/{total:,} rows, {left:.0f} s left ",
            nl=False,
            err=True,
        )

    def close(self) -> None:
        if self.wanted and self.shown != self.begun:
            click.echo("\r\033[K", nl=False, err=True)
