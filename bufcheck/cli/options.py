"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])
FILE = click.Path(path_type=Path, dir_okay=False)


def actors(what_for: str) -> Callable[[F], F]:
    """--actor and how to load one."""

    def add(command: F) -> F:
        for option in reversed(
            [
                click.option(
                    "--actor",
                    multiple=True,
                    metavar="[AGENT[@VERSION]=]PATH",
                    help=f"A checkpoint that acted: {what_for}. PATH may hold {{agent_id}} and {{policy_version}}; repeatable.",
                ),
                click.option(
                    "--arch",
                    metavar="MODULE:FACTORY",
                    help="For state dicts: package.module:factory or file.py:factory. Runs that code; factory(state_dict) returns the module.",
                ),
                click.option(
                    "--trust-checkpoint-code",
                    is_flag=True,
                    help="Load .pt2 and TorchScript files, which run code of their own.",
                ),
            ]
        ):
            command = option(command)
        return command

    return add


def running(command: F) -> F:
    """Where, and how much at once, actors run."""
    command = click.option(
        "--batch-size",
        type=click.IntRange(min=1),
        default=16384,
        show_default=True,
        help="The most rows of one forward pass.",
    )(command)
    return click.option(
        "--device", default="cpu", show_default=True, help="Where actors run: cpu, cuda, mps or auto."
    )(command)


config = click.option(
    "--config",
    type=FILE,
    metavar="bufcheck.toml",
    help="Names, settings and rule options. Default: bufcheck.toml in the current folder, if any.",
)
