from __future__ import annotations

import json
from pathlib import Path

import click


@click.command(name="rules")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@click.option(
    "--rules",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Also list the .sql rules of this folder.",
)
def command(form: str, folder: Path | None) -> None:
    """List every rule: code, severity, name, what it finds. * marks rules that remove rows in clean.

    \b
    Examples:
      bufcheck rules
      bufcheck rules --format json
    """
    from bufcheck import rule as rules

    found = [*rules.built_in(), *(rules.load_folder(folder) if folder else [])]
    if form == "json":
        keys = ("code", "name", "family", "severity", "scope", "removes", "summary", "parameters")
        click.echo(json.dumps([{key: getattr(rule, key) for key in keys} for rule in found], indent=2))
        return
    colours = {"error": "red", "warning": "yellow", "info": "cyan"}
    family = ""
    for rule in found:
        if rule.family != family:
            family = rule.family
            click.secho(f"\n{family.replace('_', '-')}", bold=True)
        mark = "*" if rule.removes else " "
        severity = click.style(f"{rule.severity:8}", fg=colours[rule.severity])
        click.echo(f"  {rule.code} {severity}{mark} {rule.name:28} {rule.summary}")
    click.echo("\n`bufcheck explain NAME` says why a rule matters and what to do.")
