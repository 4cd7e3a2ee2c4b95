from __future__ import annotations

import json
from dataclasses import asdict

import click


@click.command(name="schema")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
def command(form: str) -> None:
    """Print the contract: the columns of a dump, their types and meaning, and its metadata.

    \b
    Examples:
      bufcheck schema
      bufcheck schema --format json
    """
    from bufcheck import schema

    contract = schema.load()
    if form == "json":
        click.echo(
            json.dumps(
                {
                    "schema": contract.version,
                    "summary": contract.summary,
                    "columns": [asdict(column) for column in contract.columns.values()],
                    "metadata": [asdict(key) for key in contract.keys.values()],
                },
                indent=2,
            )
        )
        return
    click.secho(f"{contract.version}", bold=True)
    click.echo(f"{contract.summary}\n")
    click.secho("Columns", bold=True)
    for column in contract.columns.values():
        need = {"always": "required", "no": "optional"}.get(column.required, column.required)
        need += " key" if column.key else ""
        click.echo(f"  {column.name:16} {' or '.join(column.types):32} {need:14} {column.meaning}")
    click.echo(f"  {'x_…':16} {'anything':32} {'optional':14} your own, carried through untouched\n")
    click.secho("Metadata, one JSON object under the key `bufcheck`", bold=True)
    for key in contract.keys.values():
        default = "" if key.default is None else f"default {json.dumps(key.default)}"
        kind = "/".join(key.one_of) or key.type
        click.echo(f"  {key.name:26} {kind:52} {default:22} {key.meaning}")
