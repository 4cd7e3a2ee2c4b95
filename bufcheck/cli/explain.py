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
    click.echo(text_of(name))


def text_of(name: str) -> str:
    from bufcheck import cause as causes
    from bufcheck import rule as rules

    told = []
    if name in causes.names():
        told = [
            click.style(f"cause: {name}\n", bold=True),
            _section("What it is", causes.described(name)),
            _section("Fix", causes.fix_of(name)),
            _section("Make it", f"bufcheck inject DUMP --fault {name} -o OUT"),
        ]
        if not any(rule.name == name for rule in rules.built_in()):
            return "\n".join(told)
    rule = rules.find(name, also=causes.names())
    removes = ", removes rows in clean" if rule.removes else ""
    needs = ", ".join([*rule.needs, *(f"{want} (to pass)" for want in rule.wants)])
    told += [
        click.style(f"{rule.code} {rule.name}", bold=True),
        f"{rule.severity}, judged per {rule.scope}{removes}\n",
        _section("What it finds", rule.summary),
        _section("Why it hurts", rule.why),
        _section("Likely cause", rule.cause),
        _section("Remedy", rule.remedy),
        f"{click.style('Needs', bold=True)}\n  {needs}\n",
    ]
    if rule.parameters:
        title = f"Parameters ([rules.{rule.name}] in bufcheck.toml)"
        listed = "".join(f"  {k} = {v}\n" for k, v in rule.parameters.items())
        told.append(f"{click.style(title, bold=True)}\n{listed}")
    told.append(f"{click.style('SQL', bold=True)}\n{textwrap.indent(rule.sql, '  ')}")
    return "\n".join(told)


def _section(title: str, text: str) -> str:
    filled = textwrap.fill(text, 96, initial_indent="  ", subsequent_indent="  ")
    return f"{click.style(title, bold=True)}\n{filled}\n"
