"""Every rule against its cases: tests/cases/<rule-name>.yaml, a list of small dumps.

    - name: an index past the end
      rows: [{}, {action_index: 3}, {repeat: 2, reward: "= i * 0.5"}]
      expect: [1]

rows      Each entry says only how it differs from a healthy row, which is FILL below: row i is
          step i of episode 0, agent a. `2/5/b` is short for episode 2, step 5, agent b; an entry
          that says more has it as `at: 2/5/b`. `repeat: 40` makes 40 rows of an entry. A value that
          begins with "=" is computed from i (the row's number) and the columns before it in FILL.
          A column that one row names, all rows have.
healthy   In place of rows: `{episodes: 3, steps: 10, agents: [a, b], sharpness: 1, seed: 0}` plays
          a random policy; sharpness 0 is uniform, 50 nearly certain; `options: [2, 6]` bounds K.
change    Edits, in turn: `{rows: [3, 8..12], set: {…}}` or `{where: timestep > 4, set: {…}}`;
          `{copy: [advantage], over: step}`: everyone has the value of the first row of the step, of
          the agent's `episode`, or of `all`; `{again: [0..9], set: {…}}`: these rows once more, at
          the end.
columns   optional columns to store besides those that rows name; `without`: columns to leave out
types     Arrow types that differ from the schema's; `metadata`: entries that differ from METADATA,
          or `none`; `files: [2, {rows: 3, without: […], metadata: …}]`: the rows, cut into files
config    what bufcheck.toml adds to the metadata: `{policy.logits: prefix}`
actor     an actor that answers the same to every state: {1: 0.5, 3: "log(5)"}, logits of some actions,
          0 for the others; or {mean: […], log_std: […]}; or one of these by agent or agent@version
with      rules to run along with the one under test
expect    `pass`, `{not-checked: words of the reason}`, or the rows flagged: [0, 4..6, dump], where
          `dump` is a finding about the whole dump; or `all`, or a condition, "= i % 2 == 0".
says      words of one of the messages
"""

from __future__ import annotations

import ast
import copy
import json
import math
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from click.testing import CliRunner

from bufcheck import pipeline, schema
from bufcheck import rule as rules
from bufcheck.cli import main
from bufcheck.config import Config
from bufcheck.database import Database

CASES = Path(__file__).parent / "cases"
Row = dict[str, Any]

METADATA: Row = {
    "schema": "experience/1",
    "producer": {"name": "cases", "version": "1"},
    "policy": {"distribution": "categorical", "logits": "gather", "action_space": 16},
    "advantage": {"gamma": 0.99, "gae_lambda": 0.95, "truncation": "bootstrap_value"},
}
FILL: Row = {
    "episode_id": 0,
    "timestep": "= i",
    "agent_id": "a",
    "state_embed": "= [i + 1, 0.5]",
    "subset_indices": [3, 1, 4],
    "num_actions": "= len(subset_indices)",
    "action_index": 1,
    "action": "= [0.1 * i, 0.2]",
    "old_log_prob": "= -1 - i / 64",
    "action_id": "= subset_indices[action_index]",
    "action_mask": "= [True] * num_actions",
    "logits": "= [0.0] * num_actions",
    "action_mean": [0.0, 0.0],
    "action_std": [1.0, 1.0],
    "policy_version": 1,
    "reward": 0.0,
    "value": "= i / 8",
    "advantage": "= 0.5 - i / 16",
    "return": "= value + advantage",
    "terminated": False,
    "truncated": False,
    "bootstrap_value": None,
    "new_log_prob": "= old_log_prob",
    "entropy": 1.0,
    "valid": True,
    "env_id": 0,
    "seed": 7,
    "source": "real",
    "group": None,
}
ALLOWED = {
    "log": math.log,
    "exp": math.exp,
    "len": len,
    "round": round,
    "min": min,
    "max": max,
    "range": range,
}


# From notation to rows


@cache
def compiled(expression: str) -> CodeType:
    tree = ast.parse(expression.strip(), mode="eval")
    assert not any(isinstance(n, ast.Attribute | ast.Lambda) for n in ast.walk(tree)), expression
    return compile(tree, expression, "eval")


def compute(expression: str, known: Row) -> Any:
    return eval(compiled(expression), {"__builtins__": {}, **ALLOWED, **known})


def numbers(listed: Iterable[int | str]) -> Iterator[int]:
    """[1, 4..6] → 1, 4, 5, 6"""
    for entry in listed:
        first, _, last = str(entry).partition("..")
        yield from range(int(first), int(last or first) + 1)


def key_of(text: str) -> Row:
    episode, step, agent = text.split("/")
    return {"episode_id": int(episode), "timestep": int(step), "agent_id": agent}


def fill(i: int, entry: Row, names: list[str]) -> Row:
    row = {**entry, "i": i}
    for name in [*names, *(n for n in entry if n not in names)]:
        value = row[name] if name in row else FILL.get(name)
        computed = isinstance(value, str) and value.startswith("=")
        row[name] = compute(value[1:], row) if computed else value
    return row


def written_rows(entries: list[Any], names: list[str]) -> list[Row]:
    spread: list[Row] = []
    for entry in entries:
        said = {"at": entry} if isinstance(entry, str) else dict(entry)
        if "at" in said:
            said |= key_of(said.pop("at"))
        spread += [said] * said.pop("repeat", 1)
    every = [*names, *{n: 0 for said in spread for n in said if n not in names}]
    every.sort(key=lambda n: list(FILL).index(n) if n in FILL else len(FILL))
    return [fill(i, said, every) for i, said in enumerate(spread)]


def healthy_rows(
    episodes: int = 3,
    steps: int = 10,
    agents: Iterable[str] = ("a", "b"),
    sharpness: float = 1.0,
    options: tuple[int, int] = (2, 6),
    seed: int = 0,
) -> Iterator[Row]:
    rng = np.random.default_rng(seed)
    for e, t, agent in np.ndindex(episodes, steps, len(list(agents))):
        k = int(rng.integers(options[0], options[1] + 1))
        subset = rng.choice(METADATA["policy"]["action_space"], k, replace=False)
        logits = (rng.normal(size=k) * sharpness).astype(np.float32)
        shifted = logits - logits.max()
        log_probs = shifted - np.log(np.exp(shifted).sum())  # in float32, as trainers do
        chances = np.exp(log_probs.astype(np.float64))
        index = int(rng.choice(k, p=chances / chances.sum()))
        reward, value, advantage = rng.normal(size=3).round(3).tolist()
        yield {
            **FILL,
            **key_of(f"{e}/{t}/{list(agents)[agent]}"),
            "state_embed": rng.normal(size=4).astype(np.float32).tolist(),
            "subset_indices": subset.tolist(),
            "action_index": index,
            "logits": logits.tolist(),
            "old_log_prob": float(log_probs[index]),
            "entropy": float(-(chances * log_probs).sum()),
            "terminated": t == steps - 1,
            **{"reward": reward, "value": value, "advantage": advantage},
        }


def changed(rows: list[Row], edit: Row) -> list[Row]:
    rows = copy.deepcopy(rows)
    meant = range(len(rows))
    if "where" in edit:
        meant = [i for i, row in enumerate(rows) if compute(edit["where"], {**row, "i": i})]
    elif "rows" in edit:
        meant = list(numbers(edit["rows"]))
    if "copy" in edit:
        first: dict[Any, Row] = {}
        for row in (rows[i] for i in meant):
            group = {
                "step": (row["episode_id"], row["timestep"]),
                "episode": (row["episode_id"], row["agent_id"]),
                "all": (),
            }[edit["over"]]
            row |= {name: first.setdefault(group, row)[name] for name in edit["copy"]}
        return rows
    if "again" in edit:
        rows += [copy.deepcopy(rows[i]) for i in numbers(edit["again"])]
        meant = range(len(meant), len(rows))
    for i in meant:
        for name, value in edit.get("set", {}).items():
            is_expression = isinstance(value, str) and value.startswith("=")
            rows[i][name] = compute(value[1:], {**rows[i], "i": i}) if is_expression else value
    return rows


def policy_of(case: Row) -> Row:
    said = case.get("metadata", {})
    policy = {} if said == "none" else said.get("policy", {})
    return {"subset": "listed", **METADATA["policy"], **policy}


def rows_of(case: Row) -> tuple[list[str], list[Row]]:
    """The columns of a case's dump, and its rows."""
    names = [*schema.load().required(policy_of(case)), *case.get("columns", [])]
    if "healthy" in case:
        rows = [fill(i, r, list(FILL)) for i, r in enumerate(healthy_rows(**case["healthy"]))]
    else:
        rows = written_rows(case["rows"], names)
        names += [n for n in rows[0] if n != "i" and n not in names]
    for edit in case.get("change", []):
        rows = changed(rows, edit)
        names += [n for n in edit.get("set", {}) if n not in names]
    return [n for n in names if n not in case.get("without", [])], rows


# From rows to files


def arrow_type(name: str, values: list[Any], case: Row) -> pa.DataType:
    if told := case.get("types", {}).get(name):
        if told == "dictionary":
            return pa.dictionary(pa.int32(), pa.string())
        inner = re.fullmatch(r"list<(\w+)>", told)
        return pa.list_(pa.type_for_alias(inner[1])) if inner else pa.type_for_alias(told)
    column = schema.load().columns.get(name)
    if column is None:
        return pa.infer_type(values)
    if name in ("env_id", "group"):
        return pa.int64() if not isinstance(values[0], str) else pa.string()
    kind = column.types[-1] if "float16" not in column.types else "float32"
    if column.is_scalar:
        return pa.type_for_alias(kind.replace("float64", "float32"))
    item = pa.type_for_alias(kind[kind.index("<") + 1 : -1])
    lengths = {len(v) for v in values if v is not None}
    fixed = column.is_vector and len(lengths) == 1
    return pa.list_(item, lengths.pop()) if fixed else pa.list_(item)


def write_dump(case: Row, folder: Path) -> list[str]:
    names, rows = rows_of(case)
    files = [f if isinstance(f, dict) else {"rows": f} for f in case.get("files", [len(rows)])]
    paths, start = [], 0
    for number, file in enumerate(files):
        part = rows[start : start + file["rows"]]
        start += file["rows"]
        kept = [n for n in names if n not in file.get("without", [])]
        types = {n: arrow_type(n, [r[n] for r in rows], {**case, **file}) for n in kept}
        table = pa.table({n: pa.array([r[n] for r in part], types[n]) for n in kept})
        said = file.get("metadata", case.get("metadata", {}))
        if said != "none":
            told = {"rows": len(part), **METADATA}
            for name, value in said.items():
                both = isinstance(value, dict) and isinstance(told.get(name), dict)
                told[name] = {**told[name], **value} if both else value
            table = table.replace_schema_metadata({"bufcheck": json.dumps(told)})
        paths.append(str(folder / f"part-{number}.parquet"))
        pq.write_table(table, paths[-1])
    assert start == len(rows), "`files` must hold all rows"
    return paths


# The cases


def config_of(case: Row) -> Config:
    return Config(metadata=case.get("config", {}))


def actor_of(case: Row) -> Any:
    """What a case replays: a path-less torch module, or several by (agent, version)."""
    said = case.get("actor")
    if said is None:
        return ()
    if any(isinstance(who, str) and who not in ("mean", "log_std") for who in said):
        split = {who: (*who.split("@"), None)[:2] for who in said}
        return {
            (agent, version and int(version)): constant(said[who], case)
            for who, (agent, version) in split.items()
        }
    return constant(said, case)


def constant(said: Row, case: Row) -> Any:
    if "mean" in said:
        answer = [*said["mean"], *said["log_std"]]
    else:
        answer = [0.0] * METADATA["policy"]["action_space"]
        for action, logit in said.items():
            answer[action] = compute(logit, {}) if isinstance(logit, str) else logit
    state = next(r["state_embed"] for r in rows_of(case)[1])
    layer = torch.nn.Linear(len(state), len(answer))
    torch.nn.init.zeros_(layer.weight)
    layer.bias.data = torch.tensor(answer)
    return layer


@cache
def cases_of(name: str) -> list[Row]:
    file = CASES / f"{name}.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return list(yaml.load(file.read_text("utf-8"), loader)) if file.exists() else []


def fails(case: Row) -> bool:
    return case["expect"] != "pass" and not isinstance(case["expect"], dict)


def expected_rows(case: Row) -> list[int | None]:
    """Row ids; None is a finding about the whole dump."""
    if isinstance(case["expect"], str):
        condition = case["expect"].removeprefix("=").replace("all", "True")
        return [i for i, r in enumerate(rows_of(case)[1]) if compute(condition, {**r, "i": i})]
    dump = [None for entry in case["expect"] if entry == "dump"]
    return [*dump, *sorted(numbers(e for e in case["expect"] if e != "dump"))]


def params(*, first_failing: bool = False) -> list[Any]:
    """Every case; or of each rule the first that fails, for what takes long."""
    found = []
    for rule in rules.built_in():
        failing = [case for case in cases_of(rule.name) if fails(case)]
        for case in failing[:1] if first_failing else cases_of(rule.name):
            found.append(pytest.param(rule, case, id=f"{rule.name}: {case['name']}"))
    return found


def check(rule: rules.Rule, case: Row, select: list[str], folder: Path) -> None:
    findings = folder / "findings.parquet" if fails(case) else None
    options = pipeline.Options(
        select=select, findings=findings, config=config_of(case), actor=actor_of(case)
    )
    report = pipeline.validate(write_dump(case, folder), options)
    [entry] = [e for e in report["rules"] if e["name"] == rule.name]
    if findings is None:
        expected = "pass" if case["expect"] == "pass" else "not-checked"
        assert entry["status"] == expected, entry["examples"] or entry["reason"]
        if expected == "not-checked":
            assert case["expect"]["not-checked"] in entry["reason"]
        return
    filed = [f for f in pq.read_table(findings).to_pylist() if f["rule"] == rule.name]
    rows, told = [f["row_id"] for f in filed], [f["message"] for f in filed]
    assert (entry["status"], rows) == ("fail", expected_rows(case)), told or entry["reason"]
    assert entry["rows"] == sum(row is not None for row in rows)
    assert any(case.get("says", "") in message for message in told), told


@pytest.mark.parametrize(("rule", "case"), params())
def test_case(rule: rules.Rule, case: Row, tmp_path: Path) -> None:
    check(rule, case, [rule.name, *case.get("with", [])], tmp_path)


@pytest.mark.parametrize(("rule", "case"), params(first_failing=True))
def test_case_among_all_rules(rule: rules.Rule, case: Row, tmp_path: Path) -> None:
    check(rule, case, [], tmp_path)


@pytest.mark.parametrize(("rule", "case"), params(first_failing=True))
def test_printed_sql_returns_the_flagged_rows(rule: rules.Rule, case: Row, tmp_path: Path) -> None:
    options = pipeline.Options(
        select=[rule.name, *case.get("with", [])], actor=actor_of(case), config=config_of(case)
    )
    job = pipeline.opened(write_dump(case, tmp_path), options)
    with Database() as database:
        pipeline.load(database, job)
        job.chosen = [r for r in job.chosen if r.name != rule.name]
        pipeline.run_rules(database, job)
        printed = rule.runnable_sql(database.settings)
        database.prepared(printed)  # makes the tables it names; the view shows it all
        result = database.connection.execute(printed)
        returned = [column[0] for column in result.description]
        found = [row[returned.index("row_id")] for row in result.fetchall()]
    named = set(re.findall(r"\{(\w+)\}", rule.message))
    assert named <= set(returned), "the message names what the SELECT does not return"
    assert sorted(found, key=lambda r: -1 if r is None else r) == expected_rows(case)


# The collection

EXPECTED = """
missing-column E · wrong-type E · unknown-column W · null-value E* · missing-metadata W
truncated-dump E · incomplete-clean W
nonfinite-value E* · positive-log-prob E* · single-action-log-prob E* · placeholder-log-prob E*
zero-state W · unfilled-row E* · valid-ratio-low W · entropy-bound W
action-index-out-of-range E* · empty-subset E* · subset-length-mismatch E* · subset-duplicate-id E*
subset-id-out-of-range E* · action-id-mismatch E* · action-masked E*
duplicate-key E* · duplicate-payload W · unsorted-rows W · timestep-gap E · missing-agent-step W
done-not-last E · row-after-done E* · mixed-policy-version I
subset-broadcast W · state-broadcast W · log-prob-broadcast W · advantage-broadcast W
constant-num-actions I
log-prob-mismatch E* · sampling-miscalibrated W · logits-log-prob-mismatch E*
new-log-prob-mismatch E
advantage-gae-mismatch E* · return-inconsistent E* · advantage-scale I · advantage-group-centred I
agent-imbalance W · agent-return-order W · agent-zero-column W · reward-wrong-agent W
"""
"""The design's table of rules: E error, W warning, I info, * removes rows."""

every_rule = pytest.mark.parametrize("rule", rules.built_in(), ids=lambda rule: rule.name)


def test_every_rule_has_a_case_that_fails_and_one_that_passes() -> None:
    lacking = [
        f"{rule.name}: no {what} case"
        for rule in rules.built_in()
        for what, there in (
            ("failing", any(fails(case) for case in cases_of(rule.name))),
            ("passing", any(case["expect"] == "pass" for case in cases_of(rule.name))),
        )
        if not there
    ]
    assert not lacking


def test_every_case_file_is_of_a_rule_and_names_its_cases_apart() -> None:
    names = {rule.name for rule in rules.built_in()}
    assert {file.stem for file in CASES.iterdir()} <= names
    for name in names:
        titles = [case["name"] for case in cases_of(name)]
        assert len(titles) == len(set(titles)), name


@every_rule
def test_header_explains_the_rule(rule: rules.Rule) -> None:
    for heading in ("summary", "why", "cause", "remedy", "message"):
        assert getattr(rule, heading).strip(), f"{rule.name} has no {heading}"


def test_file_names_are_code_and_name() -> None:
    for file in sorted(Path(rules.__file__).parent.glob("rules/*/*.sql")):
        rule = rules.load_file(file)
        assert file.name == f"{rule.code}_{rule.name.replace('-', '_')}.sql"


@every_rule
def test_severity_is_that_of_the_design(rule: rules.Rule) -> None:
    letters = dict(re.findall(r"([a-z-]+) ([EWI]\*?)", EXPECTED))
    assert letters[rule.name] == rule.severity[0].upper() + ("*" if rule.removes else "")


@every_rule
@pytest.mark.parametrize("by", ["code", "name"])
def test_explain_knows_it(rule: rules.Rule, by: str) -> None:
    result = CliRunner().invoke(main, ["explain", getattr(rule, by)])
    assert result.exit_code == 0, result.output
    assert f"{rule.code} {rule.name}" in result.output
    assert rule.remedy.split()[0] in result.output
