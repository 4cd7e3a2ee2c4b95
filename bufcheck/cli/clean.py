from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bufcheck.cli import options
from bufcheck.cli.progress import ProgressBar

if TYPE_CHECKING:
    from bufcheck.reading import Progress

EPILOG = """\b
Examples:
  bufcheck clean dump.parquet -o clean.parquet
  bufcheck clean dump.parquet -o clean.parquet --actor actor.safetensors
  bufcheck clean dump.parquet -o clean.parquet --dry-run
  bufcheck clean rollouts/ -o clean.h5 --unit tail
  bufcheck clean dump.parquet -o clean.parquet --actor a.zip --repair realign,log-prob
  bufcheck clean dump.parquet -o clean.parquet --select all,zero-state
  bufcheck clean dump.parquet -o clean.parquet --min-valid 0.5 --force

\b
Beside OUT stand OUT's stem with .quarantine.parquet (every row that was taken out, whole, and why) and
with .manifest.json (the account of it, written last).

\b
Exit codes: 0 OUT is written, and was read again and checked; 2 refused or failed, nothing is written.
"""


@click.command(name="clean", epilog=EPILOG)
@click.argument("dump", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="OUT",
    help="The cleaned dump: Parquet or HDF5, by its suffix.",
)
@click.option(
    "--unit",
    type=click.Choice(["row", "tail", "joint", "episode"]),
    help="What goes with a bad row: nothing, the rest of its episode, all agents of its step, its whole"
    " episode. Default: row where advantage and return are stored, else tail.",
)
@click.option(
    "--repair",
    multiple=True,
    metavar="NAME",
    help="Mend rows where it is proven what they should hold: log-prob, realign, subset-order,"
    " num-actions, duplicates, or all; repeatable, commas allowed.",
)
@click.option(
    "--min-valid",
    type=click.FloatRange(0, 1),
    default=0.9,
    show_default=True,
    help="Refuse if less than this share of the rows would be left.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing.")
@click.option("--force", is_flag=True, help="Replace OUT and what stands beside it.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print the account; json is the manifest.",
)
@options.actors("replay it over the dump")
@options.running
@options.checking
@options.config
def command(
    dump: tuple[str, ...],
    output: Path,
    form: str,
    config: Path | None,
    unit: str | None,
    repair: tuple[str, ...],
    min_valid: float,
    dry_run: bool,
    force: bool,
    **given: Any,
) -> None:
    """Write a buffer to retrain on, and an account of what was taken out.

    Rows that an error proves bad are removed, or mended with --repair; what is left is sorted by
    (episode_id, timestep, agent_id), written, read again, and checked with the same rules and actors
    before it gets its name. Warnings remove nothing unless --select names them, as in --select
    all,zero-state. The dump itself is never touched.
    """
    from bufcheck import cleaning, pipeline
    from bufcheck import config as configuration
    from bufcheck.whole_file import left_over

    settings = configuration.find(config)
    wanted = cleaning.Cleaning(unit, repair, min_valid, dry_run, force)
    for path in left_over(output.parent):
        click.echo(f"{path}: left over from a bufcheck that was killed; it can be deleted", err=True)
    bars: list[ProgressBar] = []

    def stage(label: str) -> Progress:
        for bar in bars:
            bar.close()
        bars.append(ProgressBar(label))
        return bars[-1]

    account = cleaning.clean(dump, output, wanted, pipeline.Options(config=settings, **given), stage)
    bars[-1].close()
    if settings.path and config is None:
        click.echo(f"using {settings.path}", err=True)
    click.echo(json.dumps(account, indent=1) if form == "json" else _told(account, dry_run))


def _told(account: dict[str, Any], dry_run: bool) -> str:
    rows, kept, dropped = account["rows_in"], account["rows_kept"], account["rows_dropped"]
    option = account["options"]
    would = "would be " if dry_run else ""
    lines = [f"{kept:,} of {rows:,} rows {would}kept ({kept / rows:.2%}), {dropped:,} {would}dropped"]
    lines += [f"  {count:>9,}  {name}" for name, count in account["rules"].items()]
    if more := dropped - account["rows_bad"]:
        lines.append(f"  {more:>9,}  with them, by unit {option['unit']}")
    lines.append(f"unit {option['unit']}: {option['unit_because']}")
    for cause in account["causes"]:
        lines.append(f"cause: {cause['cause']} ({cause['confidence']}), {cause['rows']:,} rows")
    for name, count in account["rows_repaired"].items():
        lines.append(f"repair {name}: {count:,} rows {would}mended")
    for end in account["ends"]:
        told = "get the value of their next state" if end["why_not"] is None else end["why_not"]
        lines.append(f"episode ends that were cut: {end['rows']:,}, {told}")
    if account["episodes_split_off"]:
        lines.append(f"episodes split off behind a hole: {account['episodes_split_off']:,}")
    if dry_run:
        return "\n".join([*lines, "nothing was written (--dry-run)"])
    verified = account["verification"]
    lines.append(f"read again and checked: {click.style(verified['verdict'], bold=True)}")
    for failed in verified["failed"]:
        lines.append(f"  {failed['severity']}: {failed['rule']}, {failed['rows']:,} rows, are left")
    lines += [f"  {reason}" for reason in verified["unverified"][:3]]
    lines.append(f"wrote {account['output']['path']}, {account['quarantine']['path']} and the manifest")
    return "\n".join(lines)
