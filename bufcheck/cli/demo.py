from __future__ import annotations

import shlex
import shutil
import tempfile
from pathlib import Path

import click


@click.command(name="demo")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), required=False)
def command(folder: Path | None) -> None:
    """Tell the whole story on a small dump, printing each command as you would type it.

    The files go to FOLDER, or to a temporary folder that is removed at the end.

    \b
    Examples:
      bufcheck demo
      bufcheck demo try-it
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="bufcheck-demo-") as name:
            _story(Path(name))
    else:
        folder.mkdir(parents=True, exist_ok=True)
        _story(folder)
        click.echo(f"\nThe files are in {folder}.")


def _story(folder: Path) -> None:
    from bufcheck import shipped

    for name in ("healthy.parquet", "demo.parquet"):
        shutil.copyfile(shipped.folder("fixtures") / name, folder / name)
    shutil.copytree(shipped.folder("fixtures") / "actors", folder / "actors", dirs_exist_ok=True)
    healthy, broken = str(folder / "healthy.parquet"), str(folder / "demo.parquet")
    hdf5, findings = str(folder / "demo.h5"), str(folder / "findings.parquet")
    _say("A healthy dump. Nothing is wrong with it, but without an actor nothing proves it either.")
    _run("validate", healthy)
    _say("With the checkpoints that acted, every log-prob is recomputed. Now it is proven.")
    actors = str(folder / "actors" / "{agent_id}-{policy_version}.safetensors")
    _run("validate", healthy, "--actor", actors)
    _say("A dump from a trainer in trouble. Which rows, what is wrong with them, what to change.")
    _run("validate", broken, "--actor", actors, "--findings", findings)
    _say("One of those rules in full.")
    _run("explain", "placeholder-log-prob")
    _say("Any question about it, in SQL.")
    by_rule = "SELECT severity, rule, count(*) AS rows FROM findings GROUP BY ALL ORDER BY ALL"
    _run("query", broken, by_rule)
    _say("A buffer to retrain on: what is proven wrong goes to quarantine, with an account of it.")
    cleaned = str(folder / "clean.parquet")
    _run("clean", broken, "-o", cleaned, "--actor", actors, "--min-valid", "0.7", "--force")
    _run("validate", cleaned, "--actor", actors)
    _say("The same dump as HDF5 gives the same account.")
    _run("convert", broken, hdf5, "--force")
    _run("validate", hdf5, "--select", "placeholder-log-prob,timestep-gap")
    click.secho("\nThat was bufcheck. Next: bufcheck validate YOUR-DUMP", bold=True)


def _say(text: str) -> None:
    click.echo()
    click.secho(f"# {text}", fg="green")


def _run(*arguments: str) -> None:
    """Runs a command in this process and shows its exit code, if it is not 0."""
    from bufcheck.cli import main

    click.secho(f"$ bufcheck {shlex.join(arguments)}", bold=True)
    command = main.get_command(click.Context(main), arguments[0])
    assert command is not None
    try:
        code = command.main(
            list(arguments[1:]), prog_name=f"bufcheck {arguments[0]}", standalone_mode=False
        )
    except click.exceptions.Exit as done:
        code = done.exit_code
    if code:
        click.secho(f"(exit code {code})", dim=True)
