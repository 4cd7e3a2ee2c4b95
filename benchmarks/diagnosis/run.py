"""How well causes are told: `python benchmarks/diagnosis/run.py [MODE] [--jobs 2] [--json FILE]`.

Without a mode, the scoreboard: every fault of cases.py, in 1 %, 10 % and 100 % of the rows or episodes of
every base dump. The modes ask for the other things a diagnosis must and must not do:

    --clean           healthy dumps of many shapes: no cause at all
    --unknown         faults outside the catalogue: rows found, nothing proven
    --leave-one-out   every fault with its own cause taken off the list: no other name proven
    --pairs N         two faults on different rows: both named, each with its own rows
    --permutation     a shuffled column of 100,000 rows: its kind, and where each value came from
    --degenerate      a shared actor, subsets 0..K-1, K = A, one version: what cannot be told is said
    --cost            2,000,000 rows, 10 % of them bad: what causes cost beside plain replay

The exit code is 1 if a limit is missed. Real bases are trained anew by each run, in a few seconds;
needs `pip install '.[test]'`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import cost
import numpy as np
import outside
import pyarrow.parquet as pq
import score
import worlds
from cases import Case, cases, reason_against, shortfall
from score import Job, Result
from worlds import World

FRACTIONS = (0.01, 0.1, 1.0)
UNITS = ("rows", "episodes")
BASES = ("synthetic", "masked-ppo", "masked-ppo-mask", "torchrl")
FURTHER = {
    "masks": worlds.Shape(masked=True),
    "low-logit": worlds.Shape(masked=True, masked_logit=-1e8),
    "prefix-logits": worlds.Shape(logits="prefix"),
    "shared-actor": worlds.Shape(shared_actor=True),
    "ordered-subsets": worlds.Shape(subset="prefix"),
    "k-is-a": worlds.Shape(actions=6, offered=(6, 6)),
    "k-is-2": worlds.Shape(offered=(2, 2)),
    "one-version": worlds.Shape(versions=1),
    "no-version": worlds.Shape(versions=0),
    "parallel": worlds.Shape(envs=8, ends="mixed"),
    "short": worlds.Shape(length=(2, 5)),
    "gaussian": worlds.Shape(gaussian=3),
}
"""On demand: worlds in which less can be told apart, or other things matter."""
ROWS_RIGHT = 0.99
"""Precision and recall of rows, at least."""
CAUSE_RIGHT = {0.01: 0.90, 0.1: 0.95, 1.0: 0.95}
PAIR_RIGHT = 0.95
MOST_JOBS = 2


# Doing


def bases(folder: Path, names: Iterable[str], rows: int, seed: int) -> dict[str, World]:
    names, shapes = list(names), {"synthetic": worlds.Shape(), **FURTHER}
    made = {
        name: worlds.synthetic(folder / name, replace(shapes[name], rows=rows), seed=seed, name=name)
        for name in names
        if name in shapes
    }
    made |= worlds.real(folder, [name for name in names if name not in shapes])
    return {name: made[name] for name in names}


def each(call: Callable[..., Any], given: list[tuple[Any, ...]], jobs: int) -> Iterator[Any]:
    """The results in order; several processes where asked for, never more than the limit."""
    if jobs <= 1:
        yield from (call(*arguments) for arguments in given)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(jobs, MOST_JOBS), context) as pool:
        yield from pool.map(call, *zip(*given, strict=True))


def sampled(given: list[Any], quick: bool, seed: int) -> list[Any]:
    """All, or a seeded tenth."""
    if not quick:
        return given
    keep = sorted(random.Random(seed).sample(range(len(given)), -(-len(given) // 10)))
    return [given[i] for i in keep]


def contaminations(case: Case, fractions: Iterable[float]) -> Iterator[tuple[str, float]]:
    """All rows are all episodes: 100 % is made once."""
    if case.whole_dump:
        yield case.units[0], 1.0
        return
    for fraction in fractions:
        for unit in case.units:
            if fraction < 1 or unit == case.units[0]:
                yield unit, fraction


def wanted(chosen: list[str] | None) -> list[Case]:
    return [case for case in cases() if not chosen or case.fault in chosen]


# The scoreboard

HEAD = (
    f"{'fault':44} {'unit':8} {'share':>5} {'hit':>5} {'seen':>5}  {'found r/p':>11}"
    f"  {'cause r/p':>11}  {'cause':5} {'confidence':10} {'s':>5}"
)


def line(result: Result) -> str:
    start = f"{result.label:44.44} {result.unit:8} {100 * result.fraction:4.0f}%"
    if result.skipped:
        return f"{start} {result.hit:5} left out: {result.skipped}"
    if result.crashed:
        return f"{start} {result.hit:5} {result.detectable:5}  CRASHED {result.crashed}"
    said = "right" if result.right else "WRONG"
    first = "" if result.right else f"  first: {result.first}"
    return (
        f"{start} {result.hit:5} {result.detectable:5}"
        f"  {result.found_recall:5.3f} {result.found_precision:5.3f}"
        f"  {result.recall:5.3f} {result.precision:5.3f}"
        f"  {said:5} {result.confidence or '-':10} {result.seconds:5.2f}{first}"
    )


def scoreboard(given: argparse.Namespace, folder: Path) -> tuple[bool, list[Result]]:
    made = bases(folder, given.base or BASES, given.rows, given.seed)
    jobs, apart = [], []
    for world in made.values():
        for case in wanted(given.fault):
            if reason := reason_against(case, world):
                apart.append((world.name, case.label, reason))
                continue
            for unit, fraction in contaminations(case, given.fraction or FRACTIONS):
                jobs.append((Job(world, case, unit, fraction, given.seed),))
    results, base = [], None
    for result in each(score.run, sampled(jobs, given.quick, given.seed), given.jobs):
        if result.base != base:
            base = result.base
            print(f"\n{base}\n{HEAD}")
        print(line(result), flush=True)
        results.append(result)
    _print_apart(apart)
    return totals(results), results


def _print_apart(apart: list[tuple[str, str, str]]) -> None:
    if apart:
        print("\nCannot be told apart, and not counted:")
    for base, label, reason in apart:
        print(f"  {base:16} {label:44} {reason}")


def totals(results: list[Result]) -> bool:
    """Prints how the limits are kept, and what falls short with the reason known for it."""
    counted = [result for result in results if not result.skipped]
    print(f"\n{len(counted)} cases counted, {len(results) - len(counted)} left out")
    held = True
    for fraction, limit in CAUSE_RIGHT.items():
        those = [result for result in counted if result.fraction == fraction]
        if those:
            share = sum(result.right for result in those) / len(those)
            held &= _limit(f"right cause first, at {100 * fraction:g} %", share, limit, len(those))
    for name in ("found_recall", "found_precision", "recall", "precision"):
        those = [r for r in counted if not (r.by_rules and name == "found_precision")]
        good = sum(getattr(result, name) >= ROWS_RIGHT for result in those)
        worst = min((getattr(result, name) for result in those), default=1.0)
        what = f"{name.replace('_', ' ') if '_' in name else 'cause ' + name} of rows >= {ROWS_RIGHT}"
        print(f"  {what:44} {good} of {len(those)}, the worst {worst:.3f}")
        held &= good == len(those)
    short = [result for result in counted if not _full(result)]
    if short:
        print("\nWhat falls short:")
    for result in short:
        print(f"  {result.base:16} {line(result)}  [{_why(result)}]")
    return held


def _why(result: Result) -> str:
    """A reason excuses rows that were missed; it does not excuse a crash, or another name in front."""
    if result.crashed or (result.causes and not result.right):
        return "no reason known"
    return shortfall(result.fault, result.unit) or "no reason known"


def _full(result: Result) -> bool:
    return result.right and result.worst >= ROWS_RIGHT


def _limit(what: str, value: float, limit: float, count: int) -> bool:
    held = value >= limit
    print(f"  {what:44} {value:6.1%} of {count}, at least {limit:.0%}: {'holds' if held else 'MISSED'}")
    return held


# What must not be said


def clean(given: argparse.Namespace, folder: Path) -> tuple[bool, list[dict[str, Any]]]:
    """Healthy dumps: verdict pass, and no cause."""
    shapes = list(worlds.clean_shapes().items())
    numbered = [(folder, i + given.seed, *shape) for i, shape in enumerate(shapes)]
    results = []
    for result in each(clean_one, sampled(numbered, given.quick, given.seed), given.jobs):
        results.append(_tell_clean(result))
    if not given.quick:
        for name, world in worlds.real(folder, BASES[1:]).items():
            results.append(_tell_clean(healthy(name, world, folder)))
    bad = [result for result in results if not result["held"]]
    print(
        f"\n{len(results)} healthy dumps, {len(bad)} with a cause, a verdict other than pass, or wrong rows"
    )
    return not bad, results


def clean_one(folder: Path, seed: int, name: str, shape: worlds.Shape) -> dict[str, Any]:
    home = Path(tempfile.mkdtemp(dir=folder))
    return healthy(name, worlds.synthetic(home, shape, seed=seed, name=name), home)


def healthy(name: str, world: World, folder: Path) -> dict[str, Any]:
    answer = score.ask(world, world.dumps, folder)
    exact = (
        world.policy.get("precision", "float32") == "float32" and world.dumps[0].suffix == ".parquet"
    )
    return {
        "name": name,
        "verdict": answer.verdict,
        "causes": answer.causes,
        "wrong_rows": int(worlds.wrong(world, world.dumps).sum()) if exact else None,
        "seconds": answer.seconds,
        "held": answer.verdict == "pass" and not answer.causes and not answer.unexplained,
    }


def _tell_clean(result: dict[str, Any]) -> dict[str, Any]:
    causes = (
        ", ".join(f"{c['name']} ({c['confidence']}, {c['rows']})" for c in result["causes"]) or "none"
    )
    print(
        f"{result['name']:44} {result['verdict']:10} causes: {causes:30} {result['seconds']:5.2f} s",
        "" if result["held"] else "  FALSE ALARM",
        "" if not result["wrong_rows"] else f"  the world itself has {result['wrong_rows']} wrong rows",
        flush=True,
    )
    return result


def unknown(given: argparse.Namespace, folder: Path) -> tuple[bool, list[Result]]:
    """Faults of no catalogue: found, and never proven to be something else."""
    made = bases(folder, given.base or BASES, given.rows, given.seed)
    jobs = [
        (world, name, unit, fraction, given.seed)
        for world in made.values()
        for name in outside.UNKNOWN
        for unit, fraction in contaminations(Case(name), given.fraction or FRACTIONS)
    ]
    results = list(_told(each(score.run_unknown, sampled(jobs, given.quick, given.seed), given.jobs)))
    counted = [result for result in results if not result.skipped]
    proven = [result for result in counted if not result.right]
    missed = [r for r in counted if min(r.found_recall, r.found_precision) < ROWS_RIGHT]
    print(f"\n{len(counted)} cases: {len(proven)} with a false proof, {len(missed)} with rows missed")
    return not proven and not missed, results


def _told(results: Iterable[Result]) -> Iterator[Result]:
    """Prints as they come what was proven in place of the truth."""
    base = None
    for result in results:
        if result.base != base:
            base = result.base
            print(f"\n{base}")
        start = f"{result.label:44.44} {result.unit:8} {100 * result.fraction:4.0f}% {result.hit:5}"
        if result.skipped or result.crashed:
            print(f"{start}  {result.crashed or f'left out: {result.skipped}'}", flush=True)
        else:
            said = (
                ", ".join(f"{c['name']} {c['confidence']} {c['rows']}" for c in result.causes)
                or "no cause"
            )
            mark = "" if result.right else "  FALSE PROOF"
            rates = f"{result.found_recall:5.3f} {result.found_precision:5.3f}"
            print(f"{start}  found r/p {rates}  {said}{mark}", flush=True)
        yield result


def leave_one_out(given: argparse.Namespace, folder: Path) -> tuple[bool, list[Result]]:
    """A fault whose cause is off the list must not be proven to be another."""
    made = bases(folder, given.base or BASES, given.rows, given.seed)
    jobs = [
        (Job(world, case, unit, fraction, given.seed, ignore=(case.fault,)),)
        for world in made.values()
        for case in wanted(given.fault)
        if not reason_against(case, world)
        for unit, fraction in contaminations(case, given.fraction or FRACTIONS[1:])
    ]
    results = list(_told(each(score.run_hidden, sampled(jobs, given.quick, given.seed), given.jobs)))
    counted = [result for result in results if not result.skipped]
    proven = [result for result in counted if not result.right]
    print(f"\n{len(counted)} cases with their own cause hidden: {len(proven)} with another name proven")
    return not proven, results


# Two at once


def pairs(given: argparse.Namespace, folder: Path) -> tuple[bool, list[Result]]:
    made = bases(folder, given.base or BASES, given.rows, given.seed)
    rng = random.Random(given.seed)
    results: list[Result] = []
    tried = counted = failed = 0
    while counted < given.pairs and tried < 4 * given.pairs:
        jobs = [_pair(given, list(made.values()), rng, tried + i) for i in range(given.pairs - counted)]
        tried += len(jobs)
        for two in each(score.run_pair, jobs, given.jobs):
            skipped = any(result.skipped for result in two)
            good = all(r.right and min(r.recall, r.precision) >= PAIR_RIGHT for r in two)
            counted += not skipped
            failed += not skipped and not good
            print(f"{two[0].base}: {'left out' if skipped else 'holds' if good else 'FAILS'}")
            for result in two:
                print("  ", line(result), flush=True)
            results += two
    print(f"\n{counted} pairs, {failed} without both causes or with other rows")
    return counted >= given.pairs and not failed, results


def _pair(given: argparse.Namespace, made: list[World], rng: random.Random, number: int) -> Any:
    world = rng.choice(made)
    # A copy is one as long as its original is left alone: no other fault may be beside it.
    able = [c for c in wanted(given.fault) if c.provable and not c.copies]
    able = [c for c in able if not reason_against(c, world)]
    return tuple(
        Job(world, case, rng.choice(case.units), rng.choice((0.05, 0.1, 0.2)), given.seed + number)
        for case in _two(able, rng)
    )


def _two(able: list[Case], rng: random.Random) -> tuple[Case, Case]:
    """Different faults; one that adds rows only in the first place, as the second must keep row ids."""
    while True:
        first, second = rng.sample(able, 2)
        if first.fault != second.fault and not second.adds_rows and not first.whole_dump:
            return first, second


# A shuffled column

PERMUTATIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "global": (outside.globally, {"kind": "global"}),
    "blocks of 64": (outside.in_blocks(64), {"kind": "blocks", "block": 64, "offset": 0}),
    "blocks of 64, from row 17": (
        outside.in_blocks(64, 17),
        {"kind": "blocks", "block": 64, "offset": 17},
    ),
}


def permutation(given: argparse.Namespace, folder: Path) -> tuple[bool, list[dict[str, Any]]]:
    rows = 10_000 if given.quick else 100_000
    world = worlds.synthetic(folder / "large", worlds.Shape(rows=rows), seed=given.seed)
    results = []
    for name, (how, expected) in PERMUTATIONS.items():
        target = folder / "permuted.parquet"
        origin = outside.permuted(world, target, how, given.seed)
        answer = score.ask(world, [target], folder)
        first = answer.causes[0] if answer.causes else {"name": "none", "parameters": {}}
        said = first["parameters"]
        right = first["name"] == "minibatch-permutation"
        right &= all(said.get(key, value) == value for key, value in expected.items())
        right &= said.get("kind") == expected["kind"]
        mapped = mapped_right(world, target, origin, answer)
        held = right and not mapped["mapped wrong within 4e-6"]
        held &= not mapped["not mapped beyond doubt"]
        print(
            f"{name:28} {rows:,} rows: {first['name']} {first.get('confidence')} {said}"
            f"  {answer.seconds:.1f} s  {'right' if right else 'WRONG'};"
            f" {mapped}  {'holds' if held else 'FAILS'}",
            flush=True,
        )
        results.append({"name": name, "cause": first, "mapping": mapped, "held": held})
    return all(result["held"] for result in results), results


def mapped_right(world: World, dump: Path, origin: Any, answer: score.Answer) -> dict[str, int]:
    """Of the wrong rows with one possible source, how many are mapped to it, to none, or to another.

    `within 4e-6` counts as this benchmark replays, in float64. A replay in float32 is off by up to
    ROUNDING, so that at the edge the two may disagree on what is unique: `beyond doubt` leaves those out.
    """
    stored = worlds.Rows(pq.read_table(dump)).numbers("old_log_prob")
    wrong = worlds.wrong(world, [dump])
    found: dict[str, int] = {}
    for name, margin in (("within 4e-6", 0.0), ("beyond doubt", outside.ROUNDING)):
        unique = outside.unique_within(world, dump, stored, outside.NEAR + margin) & wrong
        rows = np.flatnonzero(unique)
        told = [answer.source_of.get(int(row)) for row in rows]
        strays = [t not in (None, int(origin[r])) for t, r in zip(told, rows, strict=True)]
        found |= {
            f"unique {name}": len(rows),
            f"not mapped {name}": told.count(None),
            f"mapped wrong {name}": sum(strays),
            f"ambiguous {name}": int((wrong & ~unique).sum()),
        }
    return found


# Worlds in which some names mean the same

DEGENERATE: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "shared-actor": ("agent-rows-crossed", ("agent-rows-crossed",), ("agent-actor-swap",)),
    "ordered-subsets": (
        "local-as-global-index",
        ("local-as-global-index", "mask-not-applied"),
        ("slice-vs-gather", "subset-order-lost", "local-as-global-index"),
    ),
    "k-is-a": (
        "slice-vs-gather",
        ("slice-vs-gather", "local-as-global-index"),
        ("mask-not-applied", "slice-vs-gather", "local-as-global-index"),
    ),
    "one-version": (
        "temperature-unaccounted",
        ("temperature-unaccounted",),
        ("stale-policy-version", "recomputed-after-update"),
    ),
}
"""A fault to make, the names the first cause must bear, those that must be said not to be told apart."""


def degenerate(given: argparse.Namespace, folder: Path) -> tuple[bool, list[dict[str, Any]]]:
    """The report must say what cannot be told apart."""
    made = bases(folder, DEGENERATE, given.rows, given.seed)
    results = []
    for base, (fault, named, lost) in DEGENERATE.items():
        home = folder / f"{base}-broken"
        home.mkdir()
        target, _ = score.inject(Job(made[base], Case(fault), "episodes", 0.1, given.seed), home)
        answer = score.ask(made[base], [target], home)
        first = answer.causes[0] if answer.causes else {"name": "none"}
        told = {first["name"], *first.get("also", ())}
        text = " ".join(answer.cannot_tell)
        held = set(named) <= told and all(name in text for name in lost)
        print(f"{base}: {fault} is called {' = '.join(sorted(told))}  {'holds' if held else 'FAILS'}")
        for sentence in answer.cannot_tell:
            print(f"    {sentence}", flush=True)
        results.append({"name": base, "told": sorted(told), "said": answer.cannot_tell, "held": held})
    return all(result["held"] for result in results), results


# The command


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    modes = {
        "clean": clean,
        "unknown": unknown,
        "leave_one_out": leave_one_out,
        "pairs": pairs,
        "permutation": permutation,
        "degenerate": degenerate,
        "cost": cost.measure,
    }
    asked = [name for name in modes if getattr(given, name)]
    mode = asked[0] if asked else "scoreboard"
    with tempfile.TemporaryDirectory(prefix="bufcheck-diagnosis-") as folder:
        held, results = (modes.get(mode) or scoreboard)(given, Path(folder))
    if given.json:
        plain = [dataclasses.asdict(r) if dataclasses.is_dataclass(r) else r for r in results]
        text = json.dumps({"mode": mode, "held": bool(held), "results": plain}, indent=1, default=str)
        given.json.write_text(text + "\n")
    return 0 if held else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--clean", action="store_true")
    mode.add_argument("--unknown", action="store_true")
    mode.add_argument("--leave-one-out", action="store_true")
    mode.add_argument("--pairs", type=int, default=0, metavar="N")
    mode.add_argument("--permutation", action="store_true")
    mode.add_argument("--degenerate", action="store_true")
    mode.add_argument("--cost", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a seeded tenth")
    parser.add_argument(
        "--base",
        action="append",
        choices=[*BASES, *FURTHER],
        help=f"repeatable; by default {', '.join(BASES)}",
    )
    parser.add_argument("--fault", action="append", metavar="NAME", help="repeatable; all by default")
    parser.add_argument("--fraction", action="append", type=float, help="repeatable")
    parser.add_argument("--rows", type=int, default=9000, help="of the synthetic base")
    parser.add_argument("--cost-rows", type=int, default=2_000_000, help="of the dump for --cost")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, choices=range(1, MOST_JOBS + 1))
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
