"""The report for people: findings grouped by rule, worst first, the verdict last."""

from __future__ import annotations

import textwrap
from typing import Any

from click import style

COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}
VERDICTS = {"pass": "green", "fail": "red", "unverified": "yellow"}
WIDTH = 100
MOST_ACTORS = 3
MOST_CHECKPOINTS = 6


def render(report: dict[str, Any]) -> str:
    blocks = [_dump(report["dump"])]
    if report["replay"]:
        blocks.append(_replay(report["replay"]))
    failed = [rule for rule in report["rules"] if rule["status"] == "fail"]
    for severity in COLOURS:
        blocks += [_finding(rule) for rule in failed if rule["severity"] == severity]
    blocks += [_cause(cause) for cause in report["causes"]]
    if unexplained := report["unexplained_rows"]:
        named = "no cause explains" if not report["causes"] else "no other cause explains"
        blocks.append(
            f"{style('unexplained', bold=True)}: {named} {_count(unexplained, 'row')} in error"
        )
    if report["checkpoints"]:
        blocks.append(_checkpoints(report["checkpoints"]))
    blocks.append("\n".join([*_left_open(report), _verdict(report, failed)]))
    return "\n\n".join(blocks)


def _dump(dump: dict[str, Any]) -> str:
    paths = dump["paths"]
    name = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    agents = dump["agents"]
    facts = [
        _count(dump["rows"], "row"),
        _count(dump["episodes"], "episode"),
        f"{_count(len(agents), 'agent')}" + (f" ({', '.join(agents)})" if len(agents) <= 6 else ""),
        dump["schema"],
        f"integrity {dump['integrity']}",
    ]
    if dump["files"] > 1:
        facts.insert(0, _count(dump["files"], "file"))
    lines = [f"{style(name, bold=True)}: {' · '.join(facts)}"]
    if dump["sampled"]:
        sampled = dump["sampled"]
        lines.append(
            f"a sample: {_count(sampled['rows'], 'row')} in {_count(sampled['episodes'], 'episode')}"
        )
    return "\n".join(lines)


def _replay(replay: dict[str, Any]) -> str:
    actors = _count(len(replay["actors"]), "actor")
    lines = [f"{style('replay', bold=True)}: {_count(replay['rows'], 'row')} with {actors}"]
    if replay["rows"]:
        tolerance = replay["tolerance"]
        allowed = f"{tolerance['absolute']:.2g}"
        if tolerance["relative"]:
            allowed += f" + {tolerance['relative']:.2g}·|log-prob|"
        if tolerance["most_for_rounding"] > tolerance["absolute"]:
            allowed += f" + up to {tolerance['most_for_rounding']:.2g} for rounding"
        whose = "by --tolerance" if tolerance["given"] else f"for {tolerance['precision']}"
        lines[0] += f", worst error {replay['worst_error'] or 0:.2g}"
        if strange := sum(d["rows"] for d in replay["decades"] if d["error"] == "not finite"):
            lines[0] += f", {strange:,} not finite"
        lines[0] += f" (allowed {whose}: {allowed})"
        spread = (f"{_percent(decade['share'])} {decade['error']}" for decade in replay["decades"])
        if replay["decades"]:
            lines.append(_wrap(f"errors: {' · '.join(spread)}", "  "))
    if replay["not_replayed"]:
        lines.append(style(f"  not replayed: {_count(replay['not_replayed'], 'row')}", bold=True))
        lines += [_group(group) for group in replay["missing"][:MOST_ACTORS]]
        if len(replay["missing"]) > MOST_ACTORS:
            lines.append(f"    … and {len(replay['missing']) - MOST_ACTORS:,} groups more")
    for actor in replay["actors"][:MOST_ACTORS]:
        digest = f" sha256 {actor['sha256'][:12]}" if actor["sha256"] else ""
        lines.append(f"  {actor['path']}: {actor['kind']}, {_count(actor['rows'], 'row')}{digest}")
        lines += [_wrap(f"note: {note}", "    ") for note in actor["notes"]]
    if len(replay["actors"]) > MOST_ACTORS:
        lines.append(
            f"  … and {len(replay['actors']) - MOST_ACTORS:,} more (all of them: --format json)"
        )
    lines += [_wrap(f"note: {note}", "  ") for note in replay["notes"]]
    return "\n".join(lines)


def _group(group: dict[str, Any]) -> str:
    version = group["policy_version"]
    whose = f"agent {group['agent_id']}" + ("" if version is None else f", version {version}")
    return f"    no actor for {_count(group['rows'], 'row')} of {whose}"


def _finding(rule: dict[str, Any]) -> str:
    colour = COLOURS[rule["severity"]]
    head = style(f"{rule['severity']}[{rule['code']}] {rule['name']}", fg=colour, bold=True)
    lines = [head, _wrap(rule["message"], "  ")]
    if rule["rows"]:
        share = f"{_count(rule['rows'], 'row')}, {_percent(rule['share'])} of the dump"
    else:
        share = "about the whole dump"
    if rule["reason"]:
        share += f"; {rule['reason']}"
    lines.append(style(f"  {share}", bold=True))
    lines += [_example(example) for example in rule["examples"]]
    if rule["rows"] > len(rule["examples"]):
        rest = rule["rows"] - len(rule["examples"])
        lines.append(style(f"    … and {rest:,} more (all of them: --findings FILE.parquet)", dim=True))
    lines.append(_wrap(f"likely cause: {rule['cause']}", "  "))
    lines.append(_wrap(f"remedy: {rule['remedy']}", "  "))
    lines.append(style(f"  next: bufcheck explain {rule['code']}", dim=True))
    return "\n".join(lines)


def _cause(cause: dict[str, Any]) -> str:
    told = ", ".join(f"{name} = {_plain(value)}" for name, value in cause["parameters"].items())
    head = style(f"cause: {cause['name']}", fg="magenta", bold=True)
    rows = f"{_count(cause['rows'], 'row')}, {_percent(cause['share'])} of the rows in question"
    lines = [f"{head} ({cause['confidence']})" + (f"  {told}" if told else ""), f"  {rows}"]
    lines.append(_wrap(f"evidence: {cause['evidence']}", "  "))
    if cause["also"]:
        lines.append(_wrap(f"cannot be told apart here from: {', '.join(cause['also'])}", "  "))
    lines.append(_wrap(f"fix: {cause['fix']}", "  "))
    return "\n".join(lines)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}: {v}" for k, v in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else _value(value)


def _checkpoints(found: list[dict[str, Any]]) -> str:
    lines = [style("checkpoints:", bold=True)]
    for one in found[:MOST_CHECKPOINTS]:
        rows = f"{_count(one['rows'], 'row')} of {_count(one['episodes'], 'episode')}"
        lines.append(f"  {rows} stamped version {one['policy_version']} were scored by {one['acted']}")
    if len(found) > MOST_CHECKPOINTS:
        lines.append(f"  … and {len(found) - MOST_CHECKPOINTS:,} more (all of them: --format json)")
    return "\n".join(lines)


def _example(example: dict[str, Any]) -> str:
    if example["row_id"] is None:
        return _wrap(example["message"], "    ")
    where = style(f"row {example['row_id']}", fg="blue")
    key = f"episode {example['episode_id']}, step {example['timestep']}, agent {example['agent_id']}"
    return f"    {where}  {key}: {example['message']}"


def _left_open(report: dict[str, Any]) -> list[str]:
    lines = []
    open_rules = [r for r in report["rules"] if r["status"] == "not-checked"]
    if open_rules:
        reasons: dict[str, list[str]] = {}
        for rule in open_rules:
            reasons.setdefault(rule["reason"], []).append(rule["name"])
        listed = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
        lines.append(_wrap(f"not checked: {listed}", "", style_head="not checked:"))
    if report["cannot_tell"]:
        told = "; ".join(report["cannot_tell"])
        lines.append(_wrap(f"cannot be told apart: {told}", "", style_head="cannot be told apart:"))
    if assumed := report["dump"]["assumed"]:
        listed = "; ".join(f"{k} = {_value(a['value'])} ({a['source']})" for k, a in assumed.items())
        lines.append(_wrap(f"assumed: {listed}", "", style_head="assumed:"))
    if known := report["summary"]["known_findings"]:
        lines.append(f"baseline: {_count(known, 'known finding')} not shown")
    return lines


def _verdict(report: dict[str, Any], failed: list[dict[str, Any]]) -> str:
    summary, verdict = report["summary"], report["verdict"]
    passed = sum(rule["status"] == "pass" for rule in report["rules"])
    counts = [_count(summary["errors"], "error"), _count(summary["warnings"], "warning")]
    if summary["infos"]:
        counts.append(_count(summary["infos"], "info"))
    text = f"{', '.join(counts)}; {_count(passed, 'rule')} passed, {summary['not_checked']} not checked"
    if failed:
        text += f"; {_count(summary['rows_flagged'], 'row')} flagged"
        text += f", valid ratio {summary['valid_ratio']:.4g}"
    line = style(verdict, fg=VERDICTS[verdict], bold=True) + f": {text}"
    if verdict == "unverified":
        line += f" ({'; '.join(report['unverified'])})"
    return line


def _wrap(text: str, indent: str, style_head: str = "") -> str:
    wrapped = textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    )
    return wrapped.replace(style_head, style(style_head, bold=True), 1) if style_head else wrapped


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _percent(share: float) -> str:
    if 0 < share < 0.0001:
        return "under 0.01 %"
    return f"{100 * share:.3g} %"
