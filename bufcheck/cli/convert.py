from __future__ import annotations

from pathlib import Path

import click

from bufcheck.cli.progress import ProgressBar


@click.command(name="convert")
@click.argument("source", nargs=-1, required=True)
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="bufcheck.toml",
    help="What a foreign file means. Default: bufcheck.toml in the current folder, if any.",
)
@click.option("--force", is_flag=True, help="Replace TARGET if it exists.")
def command(source: tuple[str, ...], target: Path, config: Path | None, force: bool) -> None:
    """Rewrite a dump as Parquet or HDF5, by the suffix of TARGET; metadata included, nothing lost.

    A foreign file, described by bufcheck.toml, becomes a dump of experience/1.

    \b
    Examples:
      bufcheck convert dump.parquet dump.h5
      bufcheck convert rollouts/ all.parquet
      bufcheck convert foreign.parquet dump.parquet --config bufcheck.toml
    """
    from bufcheck import config as configuration
    from bufcheck.convert import convert

    progress = ProgressBar("converting")
    rows = convert(source, target, configuration.find(config), force=force, progress=progress)
    progress.close()
    click.echo(f"{target}: {rows:,} rows")
