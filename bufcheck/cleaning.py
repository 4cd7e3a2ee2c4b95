"""The other story: check a dump, take out or mend what is proven wrong, write a buffer to retrain on.

Three files are written: the cleaned dump, a quarantine with every row that was taken out, and a
manifest with the account of it. They get their names only once the cleaned dump was read again and
checked with the same rules and actors, the manifest last.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bufcheck import convert, findings, manifest, pipeline, removal, repair, report
from bufcheck import format as formats
from bufcheck.ahead import later
from bufcheck.confidence import Diagnosis
from bufcheck.database import Database
from bufcheck.errors import ReadError, UsageError, WriteError
from bufcheck.rewriting import Rewriter
from bufcheck.whole_file import refuse, sync, whole_files

if TYPE_CHECKING:
    from concurrent.futures import Future

    from bufcheck.reading import Job, Progress
    from bufcheck.rule import Outcome, Rule

Stage = Callable[[str], "Progress | None"]
"""Called with the name of what begins; gives back what is told how far it is."""
MIN_VALID = 0.9
QUARANTINE_FORMAT = "bufcheck.quarantine/1"
UNFINISHED = "incomplete-clean"
"""The rule about outputs without a manifest, which this output does not have yet."""
CUT_OFF = "truncated-dump"


@dataclass(frozen=True)
class Cleaning:
    """What `clean` can be told beyond what `validate` can."""

    unit: str | None = None
    repair: Sequence[str] = ()
    min_valid: float = MIN_VALID
    dry_run: bool = False
    force: bool = False


@dataclass
class Plan:
    """What was found, and what is to be done about it."""

    job: Job
    outcomes: list[Outcome]
    taking: list[Rule]
    account: dict[str, Any]
    """The manifest, as far as it is known."""


def clean(
    paths: Sequence[str],
    output: Path,
    cleaning: Cleaning | None = None,
    options: pipeline.Options | None = None,
    stage: Stage | None = None,
) -> dict[str, Any]:
    """Writes a cleaned buffer to `output`, and returns the manifest."""
    stage = stage or (lambda _: None)
    cleaning, options = cleaning or Cleaning(), options or pipeline.Options()
    formats.of_suffix(output)
    repair.chosen(cleaning.repair)
    quarantine, account = manifest.names_for(output)
    job = pipeline.opened(paths, options, stage("checking"))
    named = [quarantine, output, account]
    sources = [source.path for source in job.dump.sources]
    _refuse(named, sources, paths, cleaning)
    unit, why = removal.choose(cleaning.unit, job.dump)
    seen = [_state(path) for path in sources]
    hashes = [later(manifest.sha256, path) for path in sources]
    with contextlib.ExitStack() as opened:
        database = opened.enter_context(Database())
        plan = _plan(database, job, unit, why, cleaning, options, hashes)
        _gate(plan, cleaning)
        if cleaning.dry_run:
            return plan.account
        rewriter = Rewriter(database, job.dump, unit, plan.taking)
        with whole_files(named, sources=sources, replace=cleaning.force) as temporaries:
            made = dict(zip(("quarantine", "output", "manifest"), temporaries, strict=True))
            _write(rewriter, plan, made, output, stage("writing"))
            opened.close()  # the output gets a database of its own
            if seen != [_state(path) for path in sources]:
                raise ReadError(f"{paths[0]}: it changed while it was read", "wait for its writer")
            _verify(plan, made, options, output, stage("verifying"))
            manifest.write(made["manifest"], plan.account)
    return plan.account


def _refuse(named: list[Path], sources: list[Path], given: Sequence[str], cleaning: Cleaning) -> None:
    """Says what stands in the way before any work is done."""
    quarantine, output, account = named
    for folder in filter(os.path.isdir, given):
        if Path(folder).resolve() in output.resolve().parents:
            raise UsageError(
                f"{output}: lies in {folder}, and would be part of that dump", "choose another folder"
            )
    if output.exists() and not account.exists() and not cleaning.force:
        refuse([output], sources=sources, replace=True)
        raise UsageError(
            f"{output}: exists already, without a manifest: an earlier clean did not finish, or it is"
            " another file",
            "choose another name, or say --force",
        )
    refuse([output, quarantine, account], sources=sources, replace=cleaning.force)


def _state(path: Path) -> tuple[int, int, int]:
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


# Deciding


def _plan(
    database: Database,
    job: Job,
    unit: removal.Unit,
    why: str,
    cleaning: Cleaning,
    options: pipeline.Options,
    hashes: list[Future[str]],
) -> Plan:
    columns = pipeline.load(database, job, also=removal.WORDS)
    outcomes = pipeline.run_rules(database, job)
    if options.baseline:
        findings.accept_known(database, outcomes, options.baseline)
    diagnosis = pipeline.find_causes(database, job)
    sources = [source.path for source in job.dump.sources]
    if options.findings:
        findings.write(database, options.findings, sources)
    if options.causes:
        findings.write_causes(database, options.causes, sources)
    unread = bool(set(job.dump.columns) - columns)
    told = report.of_run(
        report.Checked(job.dump, database, outcomes, job.replay, False, unread, 0, diagnosis)
    )
    selected = [*options.select, *options.config.select]
    taking = [o.rule for o in outcomes if removal.removes(o.rule, selected)]
    wanted = repair.chosen(cleaning.repair)
    repair.mend(repair.Work(database, job.dump, job.replay, taking), wanted)
    removal.plan(database, job.dump, unit, taking)
    counts = removal.counts(database, taking)
    counts["rows_repaired"] = dict.fromkeys(wanted, 0) | {
        row["repair"]: row["rows"]
        for row in database.rows(
            "SELECT repair, count(*) AS rows FROM repaired ANTI JOIN gone USING (row_id) GROUP BY ALL"
        )
    }
    account = manifest.of_run(
        job.dump,
        told,
        outcomes,
        _options(options, cleaning, unit, why, wanted),
        counts,
        [one.result() for one in hashes],
    )
    return Plan(job, outcomes, taking, account)


def _options(
    options: pipeline.Options,
    cleaning: Cleaning,
    unit: removal.Unit,
    why: str,
    repairs: list[str],
) -> dict[str, Any]:
    return {
        "unit": unit.name,
        "unit_because": why,
        "repair": repairs,
        "min_valid": cleaning.min_valid,
        "select": list(options.select),
        "ignore": list(options.ignore),
        "rules": str(options.rules) if options.rules else None,
        "tolerance": options.tolerance,
        "baseline": str(options.baseline) if options.baseline else None,
        "config": str(options.config.path) if options.config.path else None,
    }


def _gate(plan: Plan, cleaning: Cleaning) -> None:
    account, given = plan.account, plan.job.dump.given[0]
    if any(o.rule.name == CUT_OFF and o.findings for o in plan.outcomes):
        raise UsageError(
            f"{given}: was cut off or is still being written, and a cleaned copy would look whole",
            f"dump it again; or say --ignore {CUT_OFF} to clean what there is",
        )
    if not account["rows_kept"]:
        raise UsageError(
            f"{given}: no row would be left ({_why(account)})",
            "see what is wrong with `bufcheck validate`",
        )
    share = account["rows_kept"] / account["rows_in"]
    if share < cleaning.min_valid:
        raise UsageError(
            f"{given}: only {share:.2%} of the rows would be left ({_why(account)}), and --min-valid is"
            f" {cleaning.min_valid:g}",
            f"mend the trainer and dump again, or say --min-valid {share - 0.0005:.3f}",
        )


def _why(account: dict[str, Any]) -> str:
    named = [f"{name} {rows:,}" for name, rows in list(account["rules"].items())[:3]]
    more = account["rows_dropped"] - account["rows_bad"]
    if more:
        named.append(f"{more:,} with them, by unit {account['options']['unit']}")
    return ", ".join(named)


# Doing


def _write(
    rewriter: Rewriter, plan: Plan, made: dict[str, Path], output: Path, progress: Progress | None
) -> None:
    from bufcheck.formats import parquet

    account = plan.account
    described = convert.metadata(plan.job.dump) | {"cleaned": _cleaned(account, output)}
    form = formats.of_suffix(output)
    kept = {"format": QUARANTINE_FORMAT, "cleaned": output.name}
    # Closed whatever happens: rows on their way lie in files of their own, and those must go.
    with (
        parquet.writer(made["quarantine"], rewriter.quarantine_schema(), kept) as quarantine,
        contextlib.closing(rewriter.rows(quarantine, output.parent, progress)) as batches,
    ):
        written = formats.write(form, made["output"], rewriter.schema, batches, described)
    if written != account["rows_kept"] or quarantine.rows != account["rows_dropped"]:
        raise WriteError(
            f"{output}: wrote {written} rows and {quarantine.rows} to quarantine, expected"
            f" {account['rows_kept']} and {account['rows_dropped']}"
        )


def _cleaned(account: dict[str, Any], output: Path) -> dict[str, Any]:
    """What the cleaned dump says of itself."""
    return {
        "unit": account["options"]["unit"],
        "rows_in": account["rows_in"],
        "rows_dropped": account["rows_dropped"],
        "manifest": manifest.names_for(output)[1].name,
    }


def _verify(
    plan: Plan,
    made: dict[str, Path],
    options: pipeline.Options,
    output: Path,
    progress: Progress | None,
) -> None:
    """Opens what was written and checks it with the same rules and actors."""
    quarantine, _ = manifest.names_for(output)
    paths = {"output": (made["output"], output), "quarantine": (made["quarantine"], quarantine)}
    hashes = {name: later(manifest.sha256, path) for name, (path, _) in paths.items()}
    later(sync, made["output"])  # it takes seconds, and is done again when the file gets its name
    config = replace(options.config, columns={})  # the columns have their own names now
    again = replace(options, config=config, findings=None, causes=None)
    job = pipeline.opened([str(made["output"])], again, progress)
    job.chosen = [rule for rule in job.chosen if rule.name != UNFINISHED]
    with Database() as database:
        columns = pipeline.load(database, job)
        outcomes = pipeline.run_rules(database, job)
        if options.baseline:
            findings.accept_known(database, outcomes, options.baseline)
        if job.replay:
            job.replay.acting = list(job.replay.actors.used)
        unread = bool(set(job.dump.columns) - columns)
        told = report.of_run(
            report.Checked(job.dump, database, outcomes, job.replay, False, unread, 0, Diagnosis())
        )
    codes = {rule.code for rule in plan.taking}
    if left := [o for o in outcomes if o.rule.code in codes and o.rows]:
        listed = ", ".join(f"{o.rule.name} in {o.rows:,} rows" for o in left)
        raise WriteError(
            f"{output}: what is left still fails: {listed}",
            "nothing was written; say --unit episode, or select fewer rules",
        )
    if job.dump.rows != plan.account["rows_kept"]:
        raise WriteError(f"{output}: read {job.dump.rows} rows back, not {plan.account['rows_kept']}")
    for name, (_, path) in paths.items():
        rows = plan.account["rows_kept" if name == "output" else "rows_dropped"]
        plan.account[name] = {"path": str(path), "sha256": hashes[name].result(), "rows": rows}
    plan.account["verification"] = {
        "verdict": told["verdict"],
        "unverified": told["unverified"],
        "failed": [
            {"rule": r["name"], "severity": r["severity"], "rows": r["rows"]}
            for r in told["rules"]
            if r["status"] == "fail"
        ],
    }
