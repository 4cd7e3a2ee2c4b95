from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bufcheck.cli import EXIT_FINDINGS, EXIT_OK, options
from bufcheck.cli.progress import ProgressBar

EPILOG = """\b
Examples:
  bufcheck validate dump.parquet
  bufcheck validate dump.parquet --actor actor.safetensors
  bufcheck validate dump.parquet --actor RED=red.zip --actor BLUE@3=blue-3.safetensors
  bufcheck validate dump.parquet --actor 'ckpt/{agent_id}-{policy_version}.safetensors'
  bufcheck validate dump.parquet --actor model.pt --arch mycode.py:make_actor
  bufcheck validate rollouts/ --format json > report.json
  bufcheck validate dump.h5 --select subset,KT --fail-on warning
  bufcheck validate foreign.parquet --config bufcheck.toml
  bufcheck validate dump.parquet --findings known.parquet
  bufcheck validate dump.parquet --baseline known.parquet

\b
Exit codes: 0 no finding at or above --fail-on, 1 findings (or not pass with --strict),
2 the check could not be done.
"""


@click.command(name="validate", epilog=EPILOG)
@click.argument("dump", nargs=-1, required=True)
@options.actors("replay it over the dump")
@options.running
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print the report.",
)
@options.checking
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "never"]),
    default="error",
    show_default=True,
    help="The severity from which findings give exit code 1.",
)
@click.option("--strict", is_flag=True, help="Exit 1 unless the verdict is pass.")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    help="A quick look at whole episodes of about N rows; its verdict is never pass.",
)
@options.config
def command(
    dump: tuple[str, ...],
    form: str,
    config: Path | None,
    fail_on: str,
    strict: bool,
    **given: Any,
) -> None:
    """Check a dump: files, globs or folders of Parquet or HDF5.

    Every rule ends as pass, fail or not-checked with the reason; `bufcheck rules` lists them. With
    --actor every log-prob is recomputed too: without, no verdict is better than unverified. Rows that
    fail are replayed again under every known bug, and the report names the ones that made them.
    """
    from bufcheck import config as configuration
    from bufcheck import output, pipeline

    settings = configuration.find(config)
    progress = ProgressBar("replaying" if given["actor"] else "reading")
    report = pipeline.validate(dump, pipeline.Options(config=settings, **given), progress)
    progress.close()
    if settings.path and config is None:
        click.echo(f"using {settings.path}", err=True)
    click.echo(output.render(report, form))
    raise click.exceptions.Exit(_exit_code(report, fail_on, strict))


def _exit_code(report: dict[str, Any], fail_on: str, strict: bool) -> int:
    summary = report["summary"]
    found = {"error": summary["errors"], "warning": summary["errors"] + summary["warnings"]}
    if found.get(fail_on, 0) or (strict and report["verdict"] != "pass"):
        return EXIT_FINDINGS
    return EXIT_OK
