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


def checking(command: F) -> F:
    """Which rules run, how strictly, and what else is written of their findings."""
    for option in reversed(
        [
            click.option(
                "--findings",
                type=FILE,
                metavar="FILE.parquet",
                help="Also write every finding, one row each.",
            ),
            click.option(
                "--causes",
                type=FILE,
                metavar="FILE.parquet",
                help="Also write which cause explains which row, and where its log-prob came from.",
            ),
            click.option(
                "--select",
                multiple=True,
                metavar="RULE",
                help="Run only these: names, codes, families, the start of a code, or all; repeatable, commas allowed.",
            ),
            click.option(
                "--ignore",
                multiple=True,
                metavar="RULE",
                help="Do not run these; a cause by its name is not looked for.",
            ),
            click.option(
                "--rules",
                type=click.Path(path_type=Path),
                metavar="DIR",
                help="Also run the .sql rules of this folder.",
            ),
            click.option(
                "--tolerance",
                type=click.FloatRange(min=0),
                help="How far two log-probs of one sample may lie apart. Default: by the dump's precision.",
            ),
            click.option(
                "--baseline",
                type=FILE,
                metavar="FILE.parquet",
                help="Accept the findings of an earlier --findings file; report only new ones.",
            ),
        ]
    ):
        command = option(command)
    return command


config = click.option(
    "--config",
    type=FILE,
    metavar="bufcheck.toml",
    help="Names, settings and rule options. Default: bufcheck.toml in the current folder, if any.",
)
