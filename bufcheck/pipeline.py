"""The whole story: open a dump, digest and replay it in one pass, run the rules, tell the verdict."""

from __future__ import annotations

import importlib
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bufcheck import actor, cause, findings, reading, replayer, report, sampling, settings
from bufcheck import rule as rules
from bufcheck.ahead import later
from bufcheck.config import Config
from bufcheck.database import Database
from bufcheck.diagnosis import diagnose
from bufcheck.dump import Dump, open_dump
from bufcheck.errors import UsageError
from bufcheck.given import given_as
from bufcheck.reading import Job, Progress
from bufcheck.replayer import Replayer

if TYPE_CHECKING:
    from bufcheck.confidence import Diagnosis
    from bufcheck.rule import Outcome, Rule


@dataclass(frozen=True)
class Options:
    """What `validate` can be told beyond the dump."""

    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    rules: Path | None = None
    tolerance: float | None = None
    sample: int | None = None
    baseline: Path | None = None
    findings: Path | None = None
    causes: Path | None = None
    actor: Any = ()
    """Texts as on the command line, or what given_as takes in Python."""
    arch: str | None = None
    trust_checkpoint_code: bool = False
    device: str = "cpu"
    batch_size: int = replayer.BATCH_ROWS
    config: Config = field(default_factory=Config)


def validate(
    given: Sequence[str] | Dump, options: Options | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Checks a dump and returns the report, as schemas/report.v1.schema.json describes it."""
    options = options or Options()
    job = opened(given, options, progress)
    with Database() as database:
        columns = load(database, job)
        outcomes = run_rules(database, job)
        known = 0
        if options.baseline:
            known = findings.accept_known(database, outcomes, options.baseline)
        diagnosis = find_causes(database, job)
        sources = [source.path for source in job.dump.sources]
        if options.findings:
            findings.write(database, options.findings, sources)
        if options.causes:
            findings.write_causes(database, options.causes, sources)
        sampled, unread = job.ranges is not None, bool(set(job.dump.columns) - columns)
        return report.of_run(
            report.Checked(job.dump, database, outcomes, job.replay, sampled, unread, known, diagnosis)
        )


def opened(given: Sequence[str] | Dump, options: Options, progress: Progress | None = None) -> Job:
    if options.actor:  # torch takes its time to import; the dump can be opened meanwhile
        later(importlib.import_module, "torch")
    without = frozenset(_names(options.ignore)) & set(cause.names())
    rule_names = {rule.name for rule in rules.built_in()}
    ignored = [n for n in _names(options.ignore) if n not in without or n in rule_names]
    chosen = rules.choose(options.select, ignored, options.config, options.rules)
    actors = _actors(options)
    dump = given if isinstance(given, Dump) else open_dump(given, options.config)
    agents = later(_agents, dump)
    ranges = sampling.whole_episodes(dump, options.sample) if options.sample else None
    lacking = settings.replay_lacks(dump) if actors else "an actor: --actor"
    replay = _replay(dump, actors, options) if actors and lacking is None else None
    return Job(dump, chosen, without, ranges, lacking, replay, options.tolerance, agents, progress)


def load(database: Database, job: Job, also: Set[str] = frozenset()) -> set[str]:
    """Fills the tables with what the rules ask for, and SQL with the words `also`.

    Returns the columns that were read.
    """
    columns = _load(database, job, also)
    if job.replay:
        _refuse_strangers(job.replay, job.dump, job.rows)
    return columns


def load_words(database: Database, job: Job, words: set[str], *, replayed: bool) -> None:
    """Fills the tables with what SQL with these words needs, and no rule."""
    job = job if replayed else replace(job, replay=None, lacking="an actor: --actor")
    database.settings = job.settings
    _read(database, job, words)
    if job.replay:
        database.make_replay(job.replay.actors.used)
        _refuse_strangers(job.replay, job.dump, job.rows)
    database.lock()


def run_rules(database: Database, job: Job) -> list[Outcome]:
    # Rules about the findings of others come last.
    order = sorted(job.chosen, key=lambda rule: any(n.startswith("findings.") for n in rule.needs))
    outcomes = [rules.run(rule, database, job.dump) for rule in order]
    return sorted(outcomes, key=lambda outcome: outcome.rule.code)


def find_causes(database: Database, job: Job) -> Diagnosis:
    if job.replay:
        job.replay.acting = list(job.replay.actors.used)
    return diagnose(job.dump, database, job.replay, job.without)


def _names(texts: Sequence[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def _actors(options: Options) -> actor.Actors | None:
    if isinstance(options.actor, (tuple, list)) and not options.actor:
        if options.arch:
            raise UsageError("--arch says how to load an actor, and none is given", "add --actor PATH")
        return None
    loading = actor.Loading(options.arch, options.trust_checkpoint_code)
    return actor.Actors(given_as(options.actor), loading)


def _refuse_strangers(replay: Replayer, dump: Dump, rows: int) -> None:
    """Not one row has an actor: a name was mistyped, and a report would not be what was asked for."""
    if sum(replay.missing.values()) < rows:
        return
    (agent, version), _ = replay.missing.most_common(1)[0]
    told = f"version {version}" if dump.has("policy_version") else "the dump has no policy_version"
    raise UsageError(
        f"no row has an actor: most are of agent {agent}, {told}",
        "say --actor PATH, AGENT=PATH, AGENT@VERSION=PATH or a pattern that leads to files",
    )


def _replay(dump: Dump, actors: actor.Actors, options: Options) -> Replayer:
    roundoff = settings.replay_roundoff(dump) if options.tolerance is None else 0.0
    return Replayer(
        dump, actors, device=options.device, batch_rows=options.batch_size, roundoff=roundoff
    )


def _load(database: Database, job: Job, also: Set[str]) -> set[str]:
    """Fills `digest` with what the rules that can run ask for; returns the columns that were read."""
    dump, replay = job.dump, job.replay
    database.settings = job.settings
    runnable = [rule for rule in job.chosen if rules.why_not(rule, dump, database.settings) is None]
    # A replay has the states at hand anyway: what may be wanted later is then cheaper to take now.
    closer = _words(runnable, on_demand=True) | also
    words = closer if replay else _words(runnable, on_demand=False) | also
    columns = _read(database, job, words)
    if closer - words and any(_has_rows(database, rule.on_demand) for rule in runnable):
        database.forget()
        again = reading.begin(job, closer)
        reading.store(database, job, again)
        columns = set(again.columns)
    database.make_samples(dump, columns)
    if replay:
        database.make_replay(replay.actors.used)
    database.lock()
    return columns


def _read(database: Database, job: Job, words: set[str]) -> set[str]:
    """One pass for SQL with these words, while the dump is described; returns the columns read."""
    under_way = reading.begin(job, words)
    try:
        database.describe(job.dump)
        database.name_agents(job.agents.result())
    except BaseException:
        under_way.batches.close()
        raise
    reading.store(database, job, under_way)
    return set(under_way.columns)


def _agents(dump: Dump) -> set[str]:
    return dump.texts_of("agent_id") if dump.has("agent_id") else set()


def _words(runnable: list[Rule], *, on_demand: bool) -> set[str]:
    """What the rules' SQL names, and `samples.column` for each vector that one wants as it is."""
    vectors = (need for rule in runnable for need in rule.needs if need.startswith("samples."))
    return set(vectors).union(*(rules.words_used(rule, on_demand=on_demand) for rule in runnable))


def _has_rows(database: Database, table: str | None) -> bool:
    if table is None:
        return False
    return bool(database.rows(database.prepared(f"SELECT 1 FROM {table} LIMIT 1")))
