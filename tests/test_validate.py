"""What `bufcheck validate` says and how it exits, on the fixtures, through the real command line."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import FIXTURES, HEALTHY, ROOT, bufcheck, failing, refused

from bufcheck import digest
from bufcheck import rule as rules

BROKEN = sorted((FIXTURES / "broken").glob("*.parquet"))
ACTORS = ["--actor", FIXTURES / "actors" / "{agent_id}-{policy_version}.safetensors"]
REPORT_SCHEMA = json.loads((ROOT / "schemas" / "report.v1.schema.json").read_text())


def test_healthy_has_no_findings_and_is_unverified_without_an_actor() -> None:
    ran = bufcheck("validate", HEALTHY, "--format", "json")
    assert ran.code == 0
    jsonschema.validate(ran.report, REPORT_SCHEMA)
    assert failing(ran.report) == {}
    assert ran.report["verdict"] == "unverified"
    assert ran.report["dump"]["integrity"] == "verified"
    assert ran.report["dump"]["assumed"] == {}
    assert ran.report["summary"]["valid_ratio"] == 1


def test_strict_wants_a_pass() -> None:
    assert bufcheck("validate", HEALTHY, "--strict").code == 1
    assert bufcheck("validate", HEALTHY, "--strict", *ACTORS).code == 0


def test_there_is_a_broken_fixture_for_every_rule() -> None:
    assert [path.stem for path in BROKEN] == sorted(rule.name for rule in rules.built_in())


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.stem)
def test_broken_fixture(path: Path) -> None:
    replayed = any(need.startswith("replay.") for need in rules.find(path.stem).needs)
    actors = ACTORS if replayed else []
    ran = bufcheck("validate", path, "--format", "json", *actors)
    jsonschema.validate(ran.report, REPORT_SCHEMA)
    assert path.stem in failing(ran.report)
    errors = any(r["status"] == "fail" and r["severity"] == "error" for r in ran.report["rules"])
    assert ran.code == (1 if errors else 0)
    assert ran.report["verdict"] == ("fail" if errors else "pass" if replayed else "unverified")
    alone = bufcheck("validate", path, "--select", path.stem, "--format", "json", *actors)
    if path.stem != "valid-ratio-low":
        assert failing(alone.report) == {path.stem: failing(ran.report)[path.stem]}


def test_broken_fixture_as_hdf5_gives_the_same_findings(tmp_path: Path) -> None:
    for path in [FIXTURES / "demo.parquet", FIXTURES / "broken" / "null-value.parquet"]:
        copy = tmp_path / f"{path.stem}.h5"
        assert bufcheck("convert", path, copy).code == 0
        one = bufcheck("validate", path, "--format", "json").report
        other = bufcheck("validate", copy, "--format", "json").report
        for report in (one, other):
            report["dump"]["paths"] = []
        assert one == other


def test_text_names_rows_values_cause_and_next_step() -> None:
    ran = bufcheck("validate", FIXTURES / "broken" / "action-index-out-of-range.parquet")
    assert ran.code == 1
    assert "error[SU001] action-index-out-of-range" in ran.out
    assert "4 rows" in ran.out
    assert "action_index is " in ran.out
    assert "likely cause:" in ran.out
    assert "bufcheck explain SU001" in ran.out
    assert ran.out.strip().splitlines()[-1].startswith("fail: 1 error, 0 warnings")
    assert "\x1b[" not in ran.out + ran.err, "colours belong on a terminal"


def test_colours_on_a_terminal() -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "bufcheck", "validate", str(HEALTHY)]
    process = subprocess.Popen(command, stdout=follower, stderr=follower, cwd=ROOT)
    os.close(follower)
    shown = b""
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    os.close(leader)
    assert process.wait() == 0
    assert b"\x1b[" in shown


def test_fail_on() -> None:
    warned = FIXTURES / "broken" / "zero-state.parquet"
    assert bufcheck("validate", warned).code == 0
    assert bufcheck("validate", warned, "--fail-on", "warning").code == 1
    wrong = FIXTURES / "broken" / "null-value.parquet"
    assert bufcheck("validate", wrong, "--fail-on", "never").code == 0


def test_info_never_changes_the_verdict() -> None:
    ran = bufcheck(
        "validate", FIXTURES / "broken" / "constant-num-actions.parquet", "--fail-on", "warning"
    )
    assert ran.code == 0


def test_select_and_ignore_take_names_codes_families_and_prefixes() -> None:
    demo = FIXTURES / "demo.parquet"

    def ran(*options: str) -> set[str]:
        report = bufcheck("validate", demo, "--format", "json", *options).report
        return {rule["code"] for rule in report["rules"]}

    assert ran("--select", "SU001,null-value") == {"SU001", "SC004"}
    assert ran("--select", "subset") == ran("--select", "SU")
    assert "KT004" not in ran("--ignore", "timestep-gap")
    assert "did you mean null-value" in refused(bufcheck("validate", demo, "--select", "nul-value"))


def test_findings_file_has_one_row_per_finding(tmp_path: Path) -> None:
    target = tmp_path / "findings.parquet"
    demo = FIXTURES / "demo.parquet"
    report = bufcheck("validate", demo, "--format", "json", "--findings", target).report
    table = pq.read_table(target)
    assert table.column_names[:10] == [
        "row_id",
        "episode_id",
        "timestep",
        "agent_id",
        "code",
        "rule",
        "severity",
        "cause",
        "old_log_prob",
        "replayed_log_prob",
    ]
    found = table.to_pylist()
    for name, rows in failing(report).items():
        of_rule = [f for f in found if f["rule"] == name]
        assert len({f["row_id"] for f in of_rule if f["row_id"] is not None}) == rows
        assert len(of_rule) == max(rows, 1)
    rows = pq.read_table(demo).to_pylist()
    for finding in found:
        if finding["row_id"] is not None:
            row = rows[finding["row_id"]]
            assert all(finding[k] == row[k] for k in ("episode_id", "timestep", "agent_id"))
    ids = [f["row_id"] for f in found if f["row_id"] is not None]
    assert ids == sorted(ids)


def test_baseline_reports_only_what_is_new(tmp_path: Path) -> None:
    known = tmp_path / "known.parquet"
    broken = FIXTURES / "broken" / "null-value.parquet"
    assert bufcheck("validate", broken, "--findings", known).code == 1
    again = bufcheck("validate", broken, "--baseline", known, "--format", "json")
    assert again.code == 0
    assert failing(again.report) == {}
    assert again.report["summary"]["known_findings"] == 4
    other = bufcheck("validate", FIXTURES / "demo.parquet", "--baseline", known)
    assert other.code == 1
    assert "not a file of findings" in refused(bufcheck("validate", broken, "--baseline", HEALTHY))


def test_sample_reads_whole_episodes_and_never_passes() -> None:
    ran = bufcheck("validate", HEALTHY, "--sample", 100, "--format", "json")
    sampled = ran.report["dump"]["sampled"]
    assert 0 < sampled["rows"] < 354
    assert ran.report["verdict"] == "unverified"
    assert any("sample" in reason for reason in ran.report["unverified"])
    assert failing(ran.report) == {}, "whole episodes have no gaps"


@pytest.mark.parametrize("agents", [digest.FEW_AGENTS, digest.FEW_AGENTS + 1])
def test_agents_keep_their_names_however_many_there_are(agents: int, tmp_path: Path) -> None:
    table = pq.read_table(HEALTHY).slice(0, agents)
    names: list[str | None] = [f"agent-{(7 * row) % agents}" for row in range(agents)]  # unsorted
    names[5] = None
    place = table.schema.get_field_index("agent_id")
    table = table.set_column(place, "agent_id", pa.array(names))
    place = table.schema.get_field_index("reward")
    table = table.set_column(place, "reward", pa.array(np.full(agents, np.nan, np.float32)))
    pq.write_table(table, tmp_path / "many.parquet")
    found = tmp_path / "found.parquet"
    bufcheck("validate", tmp_path / "many.parquet", "--findings", found)
    told = pq.read_table(found, filters=[("rule", "==", "nonfinite-value")]).sort_by("row_id")
    assert told.column("agent_id").to_pylist() == names


def test_configuration_sets_severities_and_parameters(tmp_path: Path, healthy: Path) -> None:
    config = tmp_path / "bufcheck.toml"
    config.write_text(
        'ignore = ["unsorted-rows"]\n[rules.valid-ratio-low]\nleast = 1.1\nseverity = "error"\n'
    )
    ran = bufcheck("validate", healthy, "--format", "json", cwd=tmp_path)
    assert ran.code == 1
    assert failing(ran.report) == {"valid-ratio-low": 0}
    assert "using bufcheck.toml" in ran.err
    config.write_text("[rules.valid-ratio-low]\nlest = 1\n")
    assert "known: severity, least" in refused(bufcheck("validate", healthy, cwd=tmp_path))
    config.write_text("[rule.x]\n")
    assert "is unknown" in refused(bufcheck("validate", healthy, cwd=tmp_path))


OWN_RULE = """/*
code = "OWN01"
name = "note-is-short"
severity = "error"
scope = "row"
needs = ["samples.x_note"]
summary = "s"
why = "w"
cause = "c"
remedy = "r"
message = "the note is {x_note}"
[parameters]
least = 8
*/
SELECT row_id, x_note FROM samples WHERE length(x_note) < $least
"""


def test_a_teams_own_rules(tmp_path: Path) -> None:
    folder = tmp_path / "team"
    folder.mkdir()
    (folder / "OWN01_note_is_short.sql").write_text(OWN_RULE)
    ran = bufcheck("validate", HEALTHY, "--rules", folder, "--format", "json")
    assert ran.code == 1
    rows = pq.read_table(HEALTHY).to_pylist()
    assert failing(ran.report)["note-is-short"] == sum(len(r["x_note"]) < 8 for r in rows) < 354
    lacking = bufcheck("validate", HEALTHY, "--rules", folder, "--select", "OWN01")
    assert lacking.code == 1
    (folder / "OWN02_x.sql").write_text(
        OWN_RULE.replace("x_note", "x_gone").replace("OWN01", "OWN02").replace("note-is", "gone-is")
    )
    listed = bufcheck("validate", HEALTHY, "--rules", folder, "--format", "json").report["rules"]
    [gone] = [rule for rule in listed if rule["code"] == "OWN02"]
    assert (gone["status"], gone["reason"]) == ("not-checked", "needs column x_gone")
    (folder / "OWN02_x.sql").write_text("SELECT 1")
    assert "TOML header" in refused(bufcheck("validate", HEALTHY, "--rules", folder))
    (folder / "OWN02_x.sql").write_text(
        OWN_RULE.replace("OWN01", "OWN02")
        .replace("note-is", "odd-is")
        .replace("FROM samples", "FROM nowhere")
    )
    assert "its SQL failed" in refused(bufcheck("validate", HEALTHY, "--rules", folder))


def test_a_teams_rule_may_read_vectors(tmp_path: Path) -> None:
    rule = OWN_RULE.replace("x_note", "state_embed").replace("length(state_embed)", "state_embed[1]")
    (tmp_path / "OWN01_x.sql").write_text(rule.replace("least = 8", "least = 0.5"))
    ran = bufcheck("validate", HEALTHY, "--rules", tmp_path, "--select", "OWN01", "--format", "json")
    rows = pq.read_table(HEALTHY).to_pylist()
    assert failing(ran.report)["note-is-short"] == sum(r["state_embed"][0] < 0.5 for r in rows)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1 AS row_id FROM read_csv('/etc/hostname')",
        "SELECT 1 AS row_id FROM '/etc/hostname'",
        "COPY digest TO '{target}'",
        "SELECT 1 AS row_id; COPY (SELECT 1) TO '{target}'",
    ],
)
def test_a_teams_rule_reaches_no_file(tmp_path: Path, statement: str) -> None:
    folder, target = tmp_path / "team", tmp_path / "stolen.csv"
    folder.mkdir()
    header = OWN_RULE[: OWN_RULE.index("[parameters]")]
    (folder / "OWN01_x.sql").write_text(header + "*/\n" + statement.format(target=target))
    refused(bufcheck("validate", HEALTHY, "--rules", folder))
    assert not target.exists()


def test_the_source_is_never_touched(tmp_path: Path, healthy: Path) -> None:
    before = hashlib.sha256(healthy.read_bytes()).hexdigest(), healthy.stat().st_mtime_ns
    bufcheck("validate", healthy)
    (tmp_path / "link.parquet").symlink_to(healthy)
    os.link(healthy, tmp_path / "hard.parquet")
    for name in ("healthy.parquet", "link.parquet", "hard.parquet"):
        message = refused(bufcheck("validate", healthy, "--findings", tmp_path / name))
        assert "is the dump itself" in message
        refused(bufcheck("convert", healthy, tmp_path / name, "--force"))
    assert before == (hashlib.sha256(healthy.read_bytes()).hexdigest(), healthy.stat().st_mtime_ns)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "hard.parquet",
        "healthy.parquet",
        "link.parquet",
    ]


def test_ctrl_c_exits_130_in_one_line(tmp_path: Path) -> None:
    endless = "SELECT count(*) AS row_id FROM digest a, digest b, digest c, digest d, digest e"
    header = OWN_RULE[: OWN_RULE.index("[parameters]")].replace("{x_note}", "{row_id}")
    (tmp_path / "OWN01_x.sql").write_text(header + "*/\n" + endless)
    command = [sys.executable, "-m", "bufcheck", "validate", str(HEALTHY), "--rules", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    time.sleep(2.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.strip() == "bufcheck: interrupted"


def test_every_command_has_help_with_examples() -> None:
    for name in ("validate", "convert", "schema", "rules", "explain", "demo"):
        ran = bufcheck(name, "--help")
        assert ran.code == 0
        assert "Examples:" in ran.out


def test_schema_for_people_and_programs() -> None:
    assert "state_embed" in bufcheck("schema").out
    described = json.loads(bufcheck("schema", "--format", "json").out)
    assert described["schema"] == "experience/1"
    assert {"episode_id", "old_log_prob", "action"} <= {c["name"] for c in described["columns"]}
    assert "policy.logits" in {k["name"] for k in described["metadata"]}


def test_demo_ends_well(tmp_path: Path) -> None:
    ran = bufcheck("demo", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert ran.out.count("$ bufcheck ") >= 4
    assert list(tmp_path.iterdir()) == []
