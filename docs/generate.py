"""Writes the reference pages from the code; with --check, only compares, and exits 1 if stale."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import click

from bufcheck import (
    cause,
    digest,
    fault,
    findings,
    question,
    replayer,
    rule,
    schema,
    settings,
    shipped,
)
from bufcheck.cli import COMMANDS, main
from bufcheck.sql import split_header, table_names

HERE = Path(__file__).parent
NOTE = "<!-- written by docs/generate.py -->\n"


def rules_page() -> str:
    lines = [NOTE, "# Rules\n", "`*` marks rules whose rows `clean` takes out.\n"]
    family = ""
    for found in rule.built_in():
        if found.family != family:
            family = found.family
            lines.append(f"## {family.replace('_', '-')}\n")
        mark = " *" if found.removes else ""
        lines += [
            f"### {found.code} {found.name}\n",
            f"**{found.severity}**{mark}, judged per {found.scope}. {found.summary}\n",
            f"- Why it hurts: {found.why}",
            f"- Likely cause: {found.cause}",
            f"- Remedy: {found.remedy}",
            f"- Needs: {', '.join(f'`{need}`' for need in found.needs)}",
        ]
        if found.parameters:
            listed = ", ".join(f"`{name} = {value}`" for name, value in found.parameters.items())
            lines.append(f"- Parameters: {listed}")
        lines.append("")
    return "\n".join(lines)


def tables_page() -> str:
    lines = [
        NOTE,
        "# Views\n",
        "What SQL can read: a rule's, and yours in `bufcheck query` and `bufcheck.connect`.\n",
        "## digest\n",
        "One row per sample: every scalar column of the schema (NULL where the dump lacks it), and:\n",
        "| column | meaning |",
        "|---|---|",
        "| `row_id` | counts from 0 across the files of the dump |",
        f"| `nulls` | {digest.NULLS} |",
        f"| `confirmed` | {digest.CONFIRMED} |",
        *(f"| `{fact.name}` | {fact.meaning} |" for fact in digest.FACTS.values()),
        "",
    ]
    for name in table_names():
        text = (shipped.PACKAGE / "tables" / f"{name}.sql").read_text("utf-8")
        header, _ = split_header(text)
        lines += [
            f"## {name}\n",
            f"{header['meaning'].capitalize()}.\n",
            "| column | meaning |",
            "|---|---|",
        ]
        lines += [f"| `{column}` | what the row is about |" for column in header.get("keys", ())]
        lines += [f"| `{column}` | {meaning} |" for column, meaning in header["columns"].items()]
        lines.append("")
    lines += [
        "## replay, with `--actor`\n",
        "One row per sample: what its actor says of it. Besides `agent_id`, `policy_version`,",
        "`timestep`, `num_actions` and `old_log_prob`:\n",
        "| column | meaning |",
        "|---|---|",
        *(f"| `{column.name}` | {column.meaning} |" for column in replayer.SCORED),
        "| `expected_log_prob` | minus entropy |",
        "| `residual` | old_log_prob - log_prob |",
        "| `allowed` | how large the residual of this row may be |",
        "",
        "`actors` has the `path` and `sha256` of each `actor`.\n",
        "## samples\n",
        "`row_id` and every column of the dump, under its name in the schema. A column that only some",
        "files have is left out. In a rule: the scalar and `x_` columns that some rule reads.\n",
        "## findings\n",
        f"{_listed(findings.COLUMNS)}: what `validate --findings` writes.",
        "A rule sees `row_id`, `code`, `rule`, `severity`, `message` of the rules before it.\n",
        "## causes\n",
        f"{_listed(findings.CAUSES_COLUMNS)}: what `validate --causes` writes.\n",
        "## files, columns, metadata\n",
        "What the dump says of itself. The entries of `metadata` can be named in SQL as `$entry`:",
        "every key of the schema with `_` for `.`, and:\n",
        "| setting | meaning |",
        "|---|---|",
        *(f"| `{name}` | {meaning} |" for name, meaning in settings.DERIVED.items()),
    ]
    return "\n".join(lines) + "\n"


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(f"`{column}`" for column in columns)


def schema_page() -> str:
    contract = schema.load()
    lines = [NOTE, f"# Schema {contract.version}\n", contract.summary + "\n"]
    lines += ["| column | type | required | meaning |", "|---|---|---|---|"]
    for column in contract.columns.values():
        key = " (key)" if column.key else ""
        kind = " or ".join(column.types)
        lines.append(f"| `{column.name}`{key} | {kind} | {column.required} | {column.meaning} |")
    lines += [
        "| `x_…` | anything | no | your own, carried through untouched |\n",
        "## Metadata\n",
        "One JSON object: in Parquet under the schema key `bufcheck`, in HDF5 as the root attribute",
        "`bufcheck`.\n",
        "| key | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for entry in contract.keys.values():
        kind = ", ".join(entry.one_of) or entry.type
        default = "" if entry.default is None else f"`{entry.default}`"
        lines.append(f"| `{entry.name}` | {kind} | {default} | {entry.meaning} |")
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    lines = [NOTE, "# Commands\n"]
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        context = click.Context(command, info_name=f"bufcheck {name}", terminal_width=90)
        lines += [f"## bufcheck {name}\n", "```", command.get_help(context), "```\n"]
    return "\n".join(lines)


def causes_page() -> str:
    lines = [
        NOTE,
        "# Causes\n",
        "Each is one file in `bufcheck/causes/`."
        " How they are found and judged: [diagnosis.md](diagnosis.md).\n",
    ]
    made = set(fault.names())
    for name in cause.names():
        lines += [f"## {name}\n", f"{cause.described(name)}\n", f"- Fix: {cause.fix_of(name)}"]
        if name in made:
            lines.append(f"- Make it: `bufcheck inject DUMP --fault {name} -o OUT`")
        lines.append("")
    return "\n".join(lines)


def questions_page() -> str:
    lines = [
        NOTE,
        "# Ready questions\n",
        "`bufcheck query DUMP --named NAME [-p parameter=value]`."
        " Each is one file in `bufcheck/questions/`.\n",
        "| name | question | parameters |",
        "|---|---|---|",
    ]
    for name in question.names():
        found = question.load(name)
        needs = " (needs `--actor`)" if found.needs else ""
        given = ", ".join(f"`{key}={value}`" for key, value in found.parameters.items())
        lines.append(f"| `{name}` | {found.question}{needs} | {given} |")
    return "\n".join(lines) + "\n"


PAGES = {
    "rules.md": rules_page,
    "causes.md": causes_page,
    "questions.md": questions_page,
    "tables.md": tables_page,
    "schema.md": schema_page,
    "cli.md": commands_page,
}


if __name__ == "__main__":
    stale = []
    for name, page in PAGES.items():
        path = HERE / name
        if not path.exists() or path.read_text("utf-8") != page():
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(page(), "utf-8")
    if "--check" in sys.argv and stale:
        print(f"stale: {', '.join(stale)}; run python docs/generate.py")
        sys.exit(1)
