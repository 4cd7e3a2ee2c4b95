from __future__ import annotations

from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path, dir_okay=False)
EPILOG = """\b
Examples:
  bufcheck inject --list
  bufcheck inject dump.parquet --fault logprob-row-shift -o shifted.parquet
  bufcheck inject dump.parquet --fault mask-not-applied -o bad.parquet --actor actor.safetensors
  bufcheck inject dump.h5 --fault stale-policy-version -o stale.h5 --unit episodes --fraction 0.2 \\
      --actor 'ckpt/{agent_id}-{policy_version}.safetensors' --set back=2
  bufcheck inject bad.parquet --fault noise -o worse.parquet --fraction 0.1 --avoid bad.truth.parquet
"""


def _list(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from bufcheck import fault

    found = [fault.load(name) for name in fault.names()]
    _print([f for f in found if f.catalogued])
    click.echo("\nWithout a name among the causes, to see what is made of the unknown:\n")
    _print([f for f in found if not f.catalogued])
    context.exit()


def _print(faults: list[Any]) -> None:
    for found in faults:
        only = f" ({', '.join(found.families)} only)" if found.families else ""
        click.echo(f"{click.style(found.name, bold=True)}{only}\n    {found.summary}")
        for name, parameter in found.parameters.items():
            among = f" [{'|'.join(parameter.choices)}]" if parameter.choices else ""
            click.echo(f"    --set {name}={parameter.default}{among}  {parameter.meaning}")


@click.command(name="inject", epilog=EPILOG)
@click.argument("dump", nargs=-1, required=True)
@click.option("--fault", "name", required=True, metavar="NAME", help="Which bug; --list names all.")
@click.option(
    "-o",
    "--output",
    "target",
    required=True,
    type=click.Path(path_type=Path),
    metavar="OUT",
    help="The dump to write, Parquet or HDF5 by its suffix. Beside it: OUT's stem + .truth.parquet.",
)
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list,
    help="Print every fault with its parameters, and leave.",
)
@click.option(
    "--actor",
    multiple=True,
    metavar="[AGENT[@VERSION]=]PATH",
    help="A checkpoint that acted; most faults need them. PATH may hold {agent_id} and {policy_version}; repeatable.",
)
@click.option(
    "--arch",
    metavar="MODULE:FACTORY",
    help="For state dicts: package.module:factory or file.py:factory. Runs that code.",
)
@click.option(
    "--unit",
    type=click.Choice(["rows", "episodes", "agents"]),
    default="rows",
    show_default=True,
    help="What is hit: scattered rows, whole episodes, or all rows of some agents.",
)
@click.option(
    "--fraction",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="The share of these that is hit; at least one is.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="The same seed hits the same rows."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of the fault; repeatable.",
)
@click.option(
    "--avoid",
    type=FILE,
    metavar="FILE.truth.parquet",
    help="Leave the rows of an earlier fault as they are, and with --unit episodes their episodes.",
)
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@click.option(
    "--config",
    type=FILE,
    metavar="bufcheck.toml",
    help="What a foreign file means. Default: bufcheck.toml in the current folder, if any.",
)
def command(
    dump: tuple[str, ...],
    target: Path,
    name: str,
    settings: tuple[str, ...],
    config: Path | None,
    **options: Any,
) -> None:
    """Put a known bug into a copy of a dump, to see what a check makes of it.

    Beside the copy a truth file lists the rows that are wrong, by their row_id in the copy. A fault that
    adds or moves rows numbers those behind them anew: put such a one in first. The whole dump is held
    in memory.
    """
    from bufcheck import config as configuration
    from bufcheck import fault
    from bufcheck.errors import UsageError

    told = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"--set {setting}: has no value", "write --set NAME=VALUE")
        told[key.strip()] = value.strip()
    found = configuration.find(config)
    rows = fault.inject(dump, target, name, parameters=told, config=found, **options)
    click.echo(f"{target}: {name} in {rows:,} rows, listed in {target.stem}{fault.TRUTH}")
