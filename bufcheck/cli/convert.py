from __future__ import annotations

from pathlib import Path

import click

from bufcheck.cli.progress import ProgressBar


class WithImporters(click.Command):
    """Says at the end of --help what each importer reads; they are many, and each knows itself."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        import inspect

        from bufcheck import importer

        with formatter.section("Importers (docs/importers.md says what each assumes)"):
            for name in importer.names():
                member = importer.member(name)
                text = inspect.getdoc(member) or ""
                formatter.write_dl([(name, text.partition("\n\n")[0].replace("\n", " "))])
                formatter.write(f"{'':{formatter.current_indent + 2}}{member.EXAMPLE}\n")


def _importers(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    from bufcheck import importer

    if value is not None and value not in importer.names():
        raise click.BadParameter(f"{value!r} is none of {', '.join(importer.names())}")
    return value


@click.command(name="convert", cls=WithImporters)
@click.argument("source", nargs=-1, required=True)
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "importer_name",
    metavar="NAME",
    callback=_importers,
    help="Read the files of another tool through this importer; see below.",
)
@click.option(
    "--column",
    multiple=True,
    metavar="OURS=THEIRS",
    help="What a column is called in the source, as [columns] in bufcheck.toml says it; repeatable.",
)
@click.option(
    "--axes",
    metavar="AXIS,…",
    help="With --from npz and pickle: what the first axes of an array are, of time, env and agent. Default: time,env,agent as far as they go.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="bufcheck.toml",
    help="What a foreign file means. Default: bufcheck.toml in the current folder, if any.",
)
@click.option("--force", is_flag=True, help="Replace TARGET if it exists.")
def command(
    source: tuple[str, ...],
    target: Path,
    importer_name: str | None,
    column: tuple[str, ...],
    axes: str | None,
    config: Path | None,
    force: bool,
) -> None:
    """Rewrite a dump as Parquet or HDF5, by the suffix of TARGET; metadata included, nothing lost.

    A foreign file, described by bufcheck.toml, becomes a dump of experience/1; the files of other tools
    do with --from. What had to be assumed, and what the source cannot supply, is printed.

    \b
    Examples:
      bufcheck convert dump.parquet dump.h5
      bufcheck convert rollouts/ all.parquet
      bufcheck convert foreign.parquet dump.parquet --config bufcheck.toml
      bufcheck convert --from npz rollout.npz dump.parquet --column old_log_prob=lp
    """
    from bufcheck import config as configuration
    from bufcheck.convert import convert

    settings = configuration.find(config)
    columns = configuration.assignments(column)
    progress = ProgressBar("converting")
    told: list[str] = []
    if importer_name is None:
        settings = configuration.with_columns(settings, columns)
        if axes is not None:
            raise click.UsageError("--axes goes with --from npz or --from pickle")
        rows = convert(source, target, settings, force=force, progress=progress)
    else:
        from bufcheck.importer import asked, import_dump

        wanted = asked(settings, columns, axes)
        rows, told = import_dump(importer_name, source, target, wanted, force=force, progress=progress)
    progress.close()
    for line in told:
        click.echo(line, err=True)
    click.echo(f"{target}: {rows:,} rows")
