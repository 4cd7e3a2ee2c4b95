"""Reads rules and runs them. A rule is one .sql file: a TOML header, then a SELECT of the bad rows.

The header says what the rule is (code, name, severity, scope, removes), what it is for (summary, why,
cause, remedy), what it says of a row (message, with the SELECT's columns in braces), and when it can
run:

    needs       table.column entries; without one of them the rule is not-checked. "a | b": either.
    wants       entries that widen the rule: without them it can fail, but not pass.
    spurious    the rows it finds never were steps of their episodes: without them, no hole is left
    applies     the policy family it is about; legal_if: a list of settings that declare its
                pattern legal, or are the reason why it is
    unless      SQL that gives a reason, or NULL: why to have found nothing is not to have passed
    on_demand   a table; columns other than those in `needs` are read only if it has rows
    parameters  numbers the SQL names as $parameter; bufcheck.toml can change them. The entries of the
                table `metadata` ($rows, $policy_action_space, …) can be named in the same way.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bufcheck import digest, settings, shipped
from bufcheck.database import Database
from bufcheck.dump import declared_rows
from bufcheck.errors import ConfigError, UsageError
from bufcheck.sql import fill_in, split_header, table_sql, tables_named_in, words_of

if TYPE_CHECKING:
    from bufcheck.config import Config
    from bufcheck.dump import Dump

SEVERITIES = ("error", "warning", "info")
SCOPES = ("row", "episode", "dump")
EXAMPLES = 5
PASS, FAIL, NOT_CHECKED = "pass", "fail", "not-checked"


@dataclass(frozen=True)
class Rule:
    code: str
    name: str
    severity: str
    scope: str
    summary: str
    why: str
    cause: str
    remedy: str
    message: str
    sql: str
    family: str
    needs: tuple[str, ...]
    wants: tuple[str, ...] = ()
    removes: bool = False
    spurious: bool = False
    applies: str | None = None
    legal_if: tuple[str, ...] = ()
    unless: str | None = None
    on_demand: str | None = None
    parameters: dict[str, float | str] = field(default_factory=dict)

    def runnable_sql(self, values: Mapping[str, Any]) -> str:
        """The SELECT with parameters and settings filled in: what runs, and what the report prints."""
        return fill_in(self.sql, {**values, **self.parameters})


@dataclass
class Outcome:
    rule: Rule
    status: str
    reason: str | None = None
    blocks_pass: bool = False
    """Whether the dump could have been judged, but was not."""
    rows: int = 0
    findings: int = 0
    """Rows, and findings about the whole dump."""
    examples: list[dict[str, Any]] = field(default_factory=list)


# Loading


@cache
def built_in() -> tuple[Rule, ...]:
    return tuple(load_folder(shipped.PACKAGE / "rules"))


def load_folder(folder: Path) -> list[Rule]:
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder of rules")
    rules = [load_file(file) for file in sorted(folder.rglob("*.sql"))]
    if not rules:
        raise UsageError(f"{folder}: holds no .sql file", "`bufcheck explain SC004` shows one")
    return sorted(rules, key=lambda rule: rule.code)


def load_file(file: Path) -> Rule:
    try:
        header, sql = split_header(file.read_text("utf-8"))
    except (ValueError, OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}", "see CONTRIBUTING.md, 'Add a rule'") from None
    lists: dict[str, Any] = {key: tuple(header.pop(key, ())) for key in ("needs", "wants", "legal_if")}
    for key, value in lists.items():
        if isinstance(header.get(key), str) or not all(isinstance(entry, str) for entry in value):
            raise ConfigError(f"{file}: header: {key} must be a list of texts")
    try:
        rule = Rule(sql=sql, family=file.parent.name, **lists, **header)
    except TypeError as error:
        what = str(error).split("__init__() ")[-1]
        raise ConfigError(f"{file}: header: {what}", "see CONTRIBUTING.md, 'Add a rule'") from None
    if rule.severity not in SEVERITIES:
        raise ConfigError(f"{file}: severity must be one of {', '.join(SEVERITIES)}")
    if rule.scope not in SCOPES:
        raise ConfigError(f"{file}: scope must be one of {', '.join(SCOPES)}")
    for name in re.findall(r"\$([a-z_]+)", sql):
        if name not in rule.parameters and name not in settings.NAMES:
            raise ConfigError(f"{file}: ${name} is neither one of its [parameters] nor a setting")
    return rule


def choose(
    select: Sequence[str], ignore: Sequence[str], config: Config, folder: Path | None = None
) -> list[Rule]:
    """The rules to run: built in and the team's own, as selected and configured."""
    rules = list(built_in()) + (load_folder(folder) if folder else [])
    names = [n for rule in rules for n in (rule.code, rule.name)]
    if twice := {n for n in names if names.count(n) > 1}:
        raise ConfigError(f"two rules are called {min(twice)}", "rename yours")
    rules = [_configured(rule, config) for rule in rules]
    for name in config.rules:
        find(name, rules)
    wanted = _matching(select or config.select, rules) if select or config.select else rules
    unwanted = {rule.code for rule in _matching([*ignore, *config.ignore], rules)}
    chosen = [rule for rule in wanted if rule.code not in unwanted]
    if not chosen:
        raise UsageError("no rule is left to run", "loosen --select or --ignore")
    return chosen


def find(name: str, rules: Iterable[Rule] | None = None, also: Iterable[str] = ()) -> Rule:
    """`also`: names of other things the user may have meant."""
    rules = list(built_in() if rules is None else rules)
    for rule in rules:
        if name.lower() in (rule.code.lower(), rule.name):
            return rule
    raise UsageError(f"no rule is called {name!r}", _near(name, rules, also))


def _near(name: str, rules: list[Rule], also: Iterable[str]) -> str:
    import difflib

    names = [*(n for rule in rules for n in (rule.name, rule.code)), *also]
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else "`bufcheck rules` lists them"


def _matching(names: Sequence[str], rules: list[Rule]) -> list[Rule]:
    """Rules by name, code, family or the start of a code (KT, SU00), or `all`; commas allowed."""
    parts = [p.strip() for name in names for p in name.split(",") if p.strip()]
    found: dict[str, Rule] = {}
    for part in parts:
        of_part = [
            r for r in rules if part == "all" or r.family == part or r.code.startswith(part.upper())
        ]
        found |= {r.code: r for r in of_part or [find(part, rules)]}
    return [found[code] for code in sorted(found)]


def _configured(rule: Rule, config: Config) -> Rule:
    settings = {**config.rules.get(rule.code, {}), **config.rules.get(rule.name, {})}
    severity = settings.pop("severity", rule.severity)
    if severity not in SEVERITIES:
        raise ConfigError(f"{config.path}: [rules.{rule.name}] severity is {severity!r}")
    for name, value in settings.items():
        if name not in rule.parameters:
            known = ", ".join(["severity", *rule.parameters])
            raise ConfigError(f"{config.path}: [rules.{rule.name}] has no {name}", f"known: {known}")
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ConfigError(f"{config.path}: [rules.{rule.name}] {name} must be a number")
    return replace(rule, severity=severity, parameters={**rule.parameters, **settings})


# What a rule reads, and whether a dump has it


def words_used(rule: Rule, *, on_demand: bool) -> set[str]:
    """The names its SQL works with, those of the tables it is about included.

    Without `on_demand`, a rule that looks closer only where a table has rows counts with what it
    needs to fill that table.
    """
    if rule.on_demand and not on_demand:
        return words_of(" ".join(rule.needs)) | words_of(table_sql(rule.on_demand))
    return words_with_tables(rule.sql)


def words_with_tables(sql: str) -> set[str]:
    """The names a piece of SQL uses, and those that the tables it reads are made with."""
    words = words_of(sql)
    for name in tables_named_in(sql):
        words |= words_with_tables(table_sql(name))
    return words


def why_not(rule: Rule, dump: Dump, values: Mapping[str, Any]) -> tuple[str, bool] | None:
    """Why the rule cannot run on this dump, and whether that stands in the way of `pass`."""
    family = "categorical" if dump.policy["distribution"] == "categorical" else "gaussian"
    if rule.applies not in (None, family):
        return f"for {rule.applies} policies only", False
    for setting in rule.legal_if:
        if isinstance(why := values.get(setting), str):
            return why, False
        if why:
            key = setting.replace("_", ".", 1).replace("subset_all", "subset = all")
            return f"{key} declares it legal", False
    for need in rule.needs:
        if lacking := missing(need, dump, values):
            return f"needs {lacking[0]}", lacking[1]
    return None


def missing(need: str, dump: Dump, values: Mapping[str, Any]) -> tuple[str, bool] | None:
    """What of "table.column | table.column" the dump lacks; None if any alternative is there."""
    lacking: list[tuple[str, bool]] = []
    for way in need.split("|"):
        table, _, name = way.strip().partition(".")
        lack = _lack(table, name, dump, values)
        if lack is None:
            return None
        lacking.append(lack)
    return " or ".join(dict.fromkeys(text for text, _ in lacking)), lacking[0][1]


def _lack(table: str, name: str, dump: Dump, values: Mapping[str, Any]) -> tuple[str, bool] | None:
    if table == "metadata":
        key = name.replace("_", ".", 1)
        return (f"{key} in the metadata", True) if values.get(name) is None else None
    if table == "files" and name == "declared_rows":
        told = all(declared_rows(source) is not None for source in dump.sources)
        return None if told else ("`rows` in the metadata of every file", True)
    if table == "replay":
        return (str(values["replay_lacks"]), False) if values["replay_lacks"] else None
    if table in ("digest", "samples") and name not in ("row_id", "nulls"):
        lacking = [[c for c in way if not dump.has(c)] for way in digest.sources_of(name)]
        if all(lacking):
            return f"column {' and '.join(lacking[0])}", False
    return None


# Running


def run(rule: Rule, database: Database, dump: Dump) -> Outcome:
    """Runs one rule and files its findings in the table `findings`."""
    import duckdb

    values = database.settings
    if reason := why_not(rule, dump, values):
        return Outcome(rule, NOT_CHECKED, *reason)
    try:
        select = database.prepared(rule.runnable_sql(database.settings))
        [made] = database.rows(f"CREATE OR REPLACE TEMP TABLE hits AS {select}")
        if not made["Count"]:
            return _found_nothing(rule, dump, database)
        [counted] = database.rows(
            "SELECT count(DISTINCT row_id) AS rows, count(*) FILTER (row_id IS NULL) AS whole FROM hits"
        )
        rows, findings = counted["rows"], counted["rows"] + counted["whole"]
        database.execute(_filing(rule))
        examples = _examples(rule, database)
    except duckdb.Error as error:
        if isinstance(error, duckdb.OutOfMemoryException):
            raise
        detail = " ".join(str(error).split())[:300]
        raise ConfigError(f"rule {rule.name}: its SQL failed: {detail}") from None
    return Outcome(rule, FAIL, rows=rows, findings=findings, examples=examples)


def _found_nothing(rule: Rule, dump: Dump, database: Database) -> Outcome:
    for want in rule.wants:
        if lacking := missing(want, dump, database.settings):
            return Outcome(rule, NOT_CHECKED, f"found nothing, but needs {lacking[0]}", lacking[1])
    if rule.unless:
        [[reason]] = [row.values() for row in database.rows(fill_in(rule.unless, database.settings))]
        if reason is not None:
            return Outcome(rule, NOT_CHECKED, reason)
    return Outcome(rule, PASS)


def _filing(rule: Rule) -> str:
    """One finding per row; those about the whole dump one each."""
    label = f"'{rule.code}', '{rule.name}', '{rule.severity}'"
    message = message_sql(rule.message)
    return (
        f"INSERT INTO findings SELECT row_id, {label}, min({message}) FROM hits"
        f" WHERE row_id IS NOT NULL GROUP BY row_id"
        f" UNION ALL SELECT NULL, {label}, {message} FROM hits WHERE row_id IS NULL"
    )


def message_sql(template: str) -> str:
    """'a {b} c' → concat('a ', b, ' c'), so that DuckDB words each finding itself."""
    parts = []
    for i, part in enumerate(re.split(r"\{(\w+)\}", template)):
        if i % 2:
            parts.append(f"coalesce(\"{part}\"::VARCHAR, 'none')")
        elif part:
            parts.append("'" + part.replace("'", "''") + "'")
    return f"concat({', '.join(parts)})"


def _examples(rule: Rule, database: Database) -> list[dict[str, Any]]:
    return database.rows(
        "SELECT row_id, episode_id, timestep, agent_id, message"
        f" FROM (SELECT row_id, {message_sql(rule.message)} AS message FROM hits"
        f" ORDER BY row_id NULLS FIRST, message LIMIT {EXAMPLES})"
        " LEFT JOIN (SELECT row_id, episode_id, timestep, agent_id FROM digest) USING (row_id)"
        " ORDER BY row_id NULLS FIRST, message"
    )
