from __future__ import annotations

import textwrap

import click


@click.command(name="explain")
@click.argument("name", metavar="CODE-OR-NAME")
def command(name: str) -> None:
    """Say what a rule finds, why it hurts training, the likely cause, the remedy, and its SQL.

    \b
    Examples:
      bufcheck explain SU001
      bufcheck explain placeholder-log-prob
      bufcheck explain mask-not-applied
    """
    from bufcheck import cause as causes
    from bufcheck import rule as rules

    if name in causes.names():
        click.secho(f"cause: {name}\n", bold=True)
        _section("What it is", causes.described(name))
        _section("Fix", causes.fix_of(name))
        _section("Make it", f"bufcheck inject DUMP --fault {name} -o OUT")
        if not any(rule.name == name for rule in rules.built_in()):
            return
    rule = rules.find(name, also=causes.names())
    removes = ", removes rows in clean" if rule.removes else ""
    click.secho(f"{rule.code} {rule.name}", bold=True)
    click.echo(f"{rule.severity}, judged per {rule.scope}{removes}\n")
    for title, text in (
        ("What it finds", rule.summary),
        ("Why it hurts", rule.why),
        ("Likely cause", rule.cause),
        ("Remedy", rule.remedy),
    ):
        _section(title, text)
    click.secho("Needs", bold=True)
    click.echo("  " + ", ".join([*rule.needs, *(f"{want} (to pass)" for want in rule.wants)]) + "\n")
    if rule.parameters:
        click.secho(f"Parameters ([rules.{rule.name}] in bufcheck.toml)", bold=True)
        click.echo("".join(f"  {k} = {v}\n" for k, v in rule.parameters.items()))
    click.secho("SQL", bold=True)
    click.echo(textwrap.indent(rule.sql, "  "))


def _section(title: str, text: str) -> None:
    click.secho(title, bold=True)
    click.echo(textwrap.fill(text, 96, initial_indent="  ", subsequent_indent="  ") + "\n")
