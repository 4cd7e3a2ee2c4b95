"""What every rule means, written a second time: slowly, in plain Python, one row after the other.

`judge` says of a dump that is held in lists and dicts what bufcheck must say of the same dump in a
file. Nothing here comes from bufcheck; test_against_reference.py compares the two, row for row.

Conventions: None is null, and unknown: no comparison with it holds. A vector that is null or holds
a null is unknown as a whole; only `null-value` speaks of it. Floats are what the file stores.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

Row = dict[str, Any]
Found = Iterable[int | None]
"""Row ids; None is one finding about the whole dump."""


# The contract, as far as rules depend on it


class Column(NamedTuple):
    types: tuple[str, ...]
    required: str = "no"
    nullable: bool = False


FLOAT, ANY_FLOAT = ("float32", "float64"), ("float16", "float32", "float64")
NAMED = ("int32", "int64", "string")
SCHEMA = {
    "episode_id": Column(("int64",), "always"),
    "timestep": Column(("int32",), "always"),
    "agent_id": Column(("string",), "always"),
    "state_embed": Column(("list<float32>",), "always"),
    "subset_indices": Column(("list<int32>",), "listed"),
    "num_actions": Column(("int32",), "categorical"),
    "action_index": Column(("int32",), "categorical"),
    "action": Column(("list<float32>",), "gaussian"),
    "old_log_prob": Column(ANY_FLOAT, "always"),
    "action_id": Column(("int32",)),
    "action_mask": Column(("list<bool>",)),
    "logits": Column(("list<float32>",)),
    "action_mean": Column(("list<float32>",)),
    "action_std": Column(("list<float32>",)),
    "policy_version": Column(("int64",)),
    "reward": Column(FLOAT),
    "value": Column(FLOAT),
    "advantage": Column(FLOAT),
    "return": Column(FLOAT),
    "terminated": Column(("bool",)),
    "truncated": Column(("bool",)),
    "bootstrap_value": Column(FLOAT, nullable=True),
    "new_log_prob": Column(ANY_FLOAT, nullable=True),
    "entropy": Column(ANY_FLOAT),
    "valid": Column(("bool",)),
    "env_id": Column(NAMED, nullable=True),
    "seed": Column(("int64",), nullable=True),
    "source": Column(("string",)),
    "group": Column(NAMED, nullable=True),
}
VECTORS = ("state_embed", "action", "action_mean", "action_std")
KEY = ("episode_id", "timestep", "agent_id")
DEFAULTS = {
    "policy.distribution": "categorical",
    "policy.subset": "listed",
    "policy.temperature": 1.0,
    "policy.precision": "float32",
}
ROUNDING = {"float64": 2**-53, "float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}
"""The largest relative error of storing a number."""
SURPRISE = 13.8
"""-ln of one in a million."""


@dataclass
class Dump:
    """A dump as it lies in its files."""

    rows: list[Row]
    types: dict[str, str]
    """Each column's type, as the schema writes it; a vector of any container is `list<…>`."""
    metadata: dict[str, Any] | None
    starts: list[int] = field(default_factory=lambda: [0])
    """The first row of each file."""
    undescribed: set[int] = field(default_factory=set)
    """Files without metadata."""
    declared_rows: dict[int, int | None] = field(default_factory=dict)
    """Where a file declares another count than it holds, or (None) none."""
    absent: dict[str, set[int]] = field(default_factory=dict)
    """Columns that some files lack."""
    uneven: set[int] = field(default_factory=set)
    """Files in which a column is longer than the rest (HDF5)."""

    def file_rows(self, file: int) -> range:
        ends = [*self.starts[1:], len(self.rows)]
        return range(self.starts[file], ends[file])

    @property
    def described(self) -> list[bool]:
        return [
            self.metadata is not None and file not in self.undescribed
            for file in range(len(self.starts))
        ]


# Values


def rounded(value: Any, kind: str) -> Any:
    """The number a column of this type holds after `value` was written to it."""
    code = {"float16": "e", "float32": "f", "float64": "d"}.get(kind)
    if code is None or value is None:
        return value
    try:
        return struct.unpack(code, struct.pack(code, value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def is_list(kind: str) -> bool:
    return kind.startswith("list<")


def item_of(kind: str) -> str:
    return kind[5:-1] if is_list(kind) else kind


def readable(expected: str, stored: str) -> bool:
    """Numbers of any width are read, and integers as floats, flags or names; nothing else is."""
    if is_list(expected) != is_list(stored):
        return False
    expected, stored = item_of(expected), item_of(stored)
    if stored.startswith(("int", "uint")):
        return True
    if stored.startswith("float"):
        return expected.startswith("float")
    return stored == expected


def as_read(value: Any, expected: str, stored: str) -> Any:
    if value is None:
        return None
    if is_list(stored):
        return [as_read(item, item_of(expected), item_of(stored)) for item in value]
    if expected == "bool":
        return bool(value)
    if expected == "string":
        return str(value)
    if expected.startswith("float"):
        return rounded(float(value), stored)
    return value


def finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def same(value: Any) -> Any:
    """A stand-in that is equal where SQL calls numbers equal: NaN is NaN, -0.0 is 0.0."""
    if isinstance(value, list):
        return tuple(same(item) for item in value)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def bits(vector: list[float] | None, kind: str) -> bytes | None:
    """A stand-in that is equal where vectors are equal bit for bit; None where one is unknown."""
    if vector is None or None in vector:
        return None
    code = "d" if kind == "float64" else "f"
    return struct.pack(f"{len(vector)}{code}", *vector)


def known(vector: list[Any] | None) -> list[Any] | None:
    return None if vector is None or None in vector else vector


def all_equal(values: Sequence[Any]) -> bool:
    """All known, and all the same."""
    return None not in values and len(set(values)) == 1


def tolerance(eps: float, a: float, b: float) -> float:
    """How far two computations of one log-prob may lie apart."""
    if eps > ROUNDING["float32"]:
        return 4 * eps * (1 + min(abs(a), abs(b)))
    return 1e-4 + 1e-5 * min(abs(a), abs(b))


def poisson_surprise(observed: float, expected: float) -> float:
    """-ln of a bound on the chance of so many, where so many were expected (Chernoff)."""
    return observed * math.log(observed / expected) - observed + expected


# The dump as rules see it


class Context:
    """Settings, and rows that hold only the columns all files have, in a type that can be read."""

    def __init__(self, dump: Dump) -> None:
        self.dump = dump
        self.settings = {**DEFAULTS, **_flat(dump.metadata or {})}
        self.categorical = self.settings["policy.distribution"] == "categorical"
        self.offers_all = self.settings["policy.subset"] == "all"
        self.foreign = not any(dump.described)
        self.columns = [name for name in dump.types if name in SCHEMA and self._usable(name)]
        self.rows = [self._read(i, row) for i, row in enumerate(dump.rows)]
        for row in self.rows:
            self._derive(row)
        self.eps = self.rounding_of("old_log_prob")
        self.flagged: set[int] = set()
        """Rows with an error finding, so far."""

    def _usable(self, name: str) -> bool:
        stored = self.dump.types[name]
        return not self.dump.absent.get(name) and readable(SCHEMA[name].types[-1], stored)

    def _read(self, index: int, row: Row) -> Row:
        made: Row = dict.fromkeys(SCHEMA)
        for name in self.columns:
            made[name] = as_read(row[name], SCHEMA[name].types[-1], self.dump.types[name])
        made["row_id"] = index
        made["file"] = max(f for f, start in enumerate(self.dump.starts) if start <= index)
        return made

    def _derive(self, row: Row) -> None:
        for name, short in (("state_embed", "state"), ("action", "action_bits")):
            row[short] = bits(row[name], item_of(self.dump.types.get(name, "")))
        row["subset"] = same(known(row["subset_indices"]))
        row["mask"] = same(mask := known(row["action_mask"]))
        row["legal"] = row["num_actions"] if mask is None else sum(mask)
        row["done"] = bool(row["terminated"]) or bool(row["truncated"])

    def has(self, names: str) -> bool:
        """Whether the dump has "a | b & c": a column or setting, or two of them."""
        return any(all(map(self._has, way.split("&"))) for way in names.split("|"))

    def _has(self, name: str) -> bool:
        name = name.strip()
        if name == "rows declared":
            said = zip(self.dump.described, range(len(self.dump.starts)), strict=True)
            return all(d and self.dump.declared_rows.get(f, 0) is not None for d, f in said)
        if "=" in name:
            setting, wanted = name.split("=")
            return bool(self.settings.get(setting) == wanted)
        if "." in name:
            return self.settings.get(name) is not None
        return name in self.columns

    def rounding_of(self, *names: str) -> float:
        """The coarser of the declared precision and the types of these columns."""
        stored = [ROUNDING.get(self.dump.types.get(name, ""), 0.0) for name in names]
        return max(ROUNDING[self.settings["policy.precision"]], *stored)

    def neighbours(self) -> Iterator[tuple[Row, Row]]:
        """Each row of a file but the first, with the row before it."""
        for before, row in pairwise(self.rows):
            if before["file"] == row["file"]:
                yield before, row

    def steps(self) -> dict[tuple[int, int], list[Row]]:
        """The rows of each (episode, timestep)."""
        return self._grouped("episode_id", "timestep")

    def trajectories(self) -> dict[tuple[int, str], list[Row]]:
        """The rows of each (episode, agent), those without a timestep left out."""
        grouped = self._grouped("episode_id", "agent_id")
        kept = {k: [r for r in rows if r["timestep"] is not None] for k, rows in grouped.items()}
        return {key: rows for key, rows in kept.items() if rows}

    def _grouped(self, *names: str) -> dict[Any, list[Row]]:
        groups: dict[Any, list[Row]] = {}
        for row in self.rows:
            key = tuple(row[name] for name in names)
            if None not in key:
                groups.setdefault(key, []).append(row)
        return groups


def _flat(metadata: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in metadata.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": v for inner, v in value.items() if v is not None}
        else:
            flat[name] = value
    return flat


# The list of rules


class Rule(NamedTuple):
    name: str
    severity: str
    judge: Callable[[Context], Found]
    needs: tuple[str, ...]
    wants: str | None
    only: str | None
    legal_if: str | None


RULES: dict[str, Rule] = {}


def rule(
    severity: str,
    *needs: str,
    wants: str | None = None,
    only: str | None = None,
    legal_if: str | None = None,
) -> Callable[[Callable[[Context], Found]], Callable[[Context], Found]]:
    """Registers a judge. Without what it needs it says nothing; without what it wants it cannot
    say `pass`."""

    def register(judge: Callable[[Context], Found]) -> Callable[[Context], Found]:
        name = judge.__name__.replace("_", "-")
        RULES[name] = Rule(name, severity, judge, needs, wants, only, legal_if)
        return judge

    return register


class Judgement(NamedTuple):
    findings: Counter[tuple[str, int | None]]
    statuses: dict[str, str]


def judge(dump: Dump, without: frozenset[str] = frozenset()) -> Judgement:
    context = Context(dump)
    findings: Counter[tuple[str, int | None]] = Counter()
    statuses: dict[str, str] = {}
    # valid-ratio-low is about the findings of all others.
    for name in sorted(RULES, key=lambda n: n == "valid-ratio-low"):
        if name in without:
            continue
        found = _run(RULES[name], context)
        if found is None:
            statuses[name] = "not-checked"
            continue
        rows = [row for row in found if row is not None]
        if RULES[name].severity == "error":
            context.flagged.update(rows)
        findings.update({(name, row): 1 for row in rows})
        if dump_wide := len(found) - len(rows):
            findings[name, None] = dump_wide
        wanting = RULES[name].wants is not None and not context.has(str(RULES[name].wants))
        statuses[name] = "fail" if found else "not-checked" if wanting else "pass"
    return Judgement(findings, statuses)


def _run(rule: Rule, context: Context) -> list[int | None] | None:
    family = "categorical" if context.categorical else "gaussian"
    if rule.only not in (None, family):
        return None
    if rule.legal_if and context.settings.get(rule.legal_if):
        return None
    if not all(context.has(need) for need in rule.needs):
        return None
    return list(rule.judge(context))


# schema


@rule("error")
def missing_column(c: Context) -> Found:
    """A required column is absent, or only some files have a column."""
    kinds = {"always", "categorical" if c.categorical else "gaussian"}
    if c.categorical and not c.offers_all:
        kinds.add("listed")
    for name in {*SCHEMA, *c.dump.types}:
        required = name in SCHEMA and SCHEMA[name].required in kinds
        if name in c.dump.types:
            if c.dump.absent.get(name):
                yield None
        elif required:
            yield None


@rule("error")
def wrong_type(c: Context) -> Found:
    """Another type than the schema's; a vector of another length than the rest; a timestep below 0.

    A file without metadata promised nothing: what can be read from it is taken as it is."""
    for name, stored in c.dump.types.items():
        if name in SCHEMA and stored not in SCHEMA[name].types:
            can = readable(SCHEMA[name].types[-1], stored)
            if not (c.foreign and can):
                yield None
    shape = c.settings.get("policy.state_shape")
    usual_state = math.prod(shape) if shape else _usual_length(c, "state_embed")
    usual_action = _usual_length(c, "action")
    for row in c.rows:
        vectors = {name: known(row[name]) for name in VECTORS}
        lengths = {name: len(vector) for name, vector in vectors.items() if vector is not None}
        action = lengths.get("action")
        if (
            (row["timestep"] is not None and row["timestep"] < 0)
            or lengths.get("state_embed", usual_state) != usual_state
            or (action is not None and action != usual_action)
            or (action is not None and lengths.get("action_mean", action) != action)
            or (action is not None and lengths.get("action_std", action) != action)
        ):
            yield row["row_id"]


def _usual_length(c: Context, name: str) -> int | None:
    """The most frequent length; of several, the shortest."""
    lengths = Counter(len(row[name]) for row in c.rows if known(row[name]) is not None)
    return min(lengths, key=lambda n: (-lengths[n], n)) if lengths else None


@rule("warning")
def unknown_column(c: Context) -> Found:
    return [None for name in c.dump.types if name not in SCHEMA and not name.startswith("x_")]


@rule("error")
def null_value(c: Context) -> Found:
    """A null, or a vector that holds one, where the schema allows none."""
    for row in c.rows:
        for name in c.columns:
            value = row[name]
            hole = isinstance(value, list) and None in value
            if (value is None or hole) and not SCHEMA[name].nullable:
                yield row["row_id"]
                break


@rule("warning")
def missing_metadata(c: Context) -> Found:
    return [None for described in c.dump.described if not described]


@rule("error", wants="rows declared")
def truncated_dump(c: Context) -> Found:
    """A file holds another number of rows than it declares, or columns of different lengths."""
    for file, described in enumerate(c.dump.described):
        held = len(c.dump.file_rows(file))
        declared = c.dump.declared_rows.get(file, held) if described else None
        if declared not in (None, held) or file in c.dump.uneven:
            yield None


@rule("warning")
def incomplete_clean(c: Context) -> Found:
    """A file that clean wrote, and no manifest: a dump of the reference has nothing beside it."""
    cleaned = (c.dump.metadata or {}).get("cleaned") or {}
    return [None for described in c.dump.described if described and cleaned.get("manifest")]


# values


@rule("error", "old_log_prob | state_embed | reward | value | advantage | return")
def nonfinite_value(c: Context) -> Found:
    """A NaN or an infinity. A logit may be -inf (masks are written so); bootstrap_value counts only
    where it is read: on truncated rows (unless advantage.truncation says otherwise), and on an
    unterminated last row of an (episode, agent)."""
    from_bootstrap = c.settings.get("advantage.truncation", "bootstrap_value") == "bootstrap_value"
    last_step = {key: max(r["timestep"] for r in rows) for key, rows in c.trajectories().items()}
    scalars = ("old_log_prob", "new_log_prob", "reward", "value", "advantage", "return", "entropy")
    for row in c.rows:
        numbers = [row[name] for name in scalars if row[name] is not None]
        for name in VECTORS:
            numbers += known(row[name]) or []
        numbers += [x for x in known(row["logits"]) or [] if x != -math.inf]
        last = last_step.get((row["episode_id"], row["agent_id"]))
        at_end = row["timestep"] is not None and row["timestep"] == last
        reads_bootstrap = from_bootstrap if row["truncated"] else at_end and not row["terminated"]
        if reads_bootstrap and row["bootstrap_value"] is not None:
            numbers.append(row["bootstrap_value"])
        if not all(map(math.isfinite, numbers)):
            yield row["row_id"]


@rule("error", "old_log_prob", only="categorical")
def positive_log_prob(c: Context) -> Found:
    """Above 0 by more than rounding explains."""
    least = max(1e-6, c.eps)
    return [r["row_id"] for r in c.rows if finite(r["old_log_prob"]) and r["old_log_prob"] > least]


@rule("error", "old_log_prob", "num_actions | action_mask", only="categorical")
def single_action_log_prob(c: Context) -> Found:
    """One legal action has probability 1. Under a masked_logit that is not very low, masked actions
    keep some of it, so only K = 1 proves anything."""
    least = max(1e-6, 2 * c.eps if c.eps > 1e-6 else 0.0)
    masked = c.settings.get("policy.masked_logit")
    mask_is_hard = masked is None or masked <= -1e4
    for row in c.rows:
        one = row["legal"] == 1 and (row["num_actions"] == 1 or mask_is_hard)
        if one and finite(row["old_log_prob"]) and abs(row["old_log_prob"]) > least:
            yield row["row_id"]


@rule("error", "old_log_prob", "num_actions | action_mask", "state_embed", only="categorical")
def placeholder_log_prob(c: Context) -> Found:
    """Exact zeros, exact -log K or one constant, more often than what lies beside them suggests."""
    judged = [
        row
        for row in c.rows
        if row["legal"] is not None and row["legal"] > 1 and finite(row["old_log_prob"])
    ]
    yield from _zeros(judged, coarse=c.eps > 1e-6)
    if c.eps <= 1e-6:  # under coarse rounding, near -log K says nothing about exactly
        coarse = c.dump.types.get("entropy") == "float16"
        yield from _uniforms(judged, 4e-3 if coarse else 1e-4)
        judged = [row for row in judged if _from_uniform(row) > 1e-6]
    yield from _constants(judged, c.eps)


def _zeros(rows: list[Row], coarse: bool) -> Found:
    """A policy that is sure of itself leaves log-probs near 0 too: as they thin out from within 1e-3
    to within 1e-5, they thin out once more on the way to 0. If they do not thin out, they round to
    it. A low entropy clears a row. Under coarse rounding, whatever is within 0.5 may become 0."""
    zeros = [
        row
        for row in rows
        if row["old_log_prob"] == 0 and not (row["entropy"] is not None and row["entropy"] < 1e-4)
    ]
    closest = sum(0 < abs(row["old_log_prob"]) < 1e-5 for row in rows)
    closer = sum(-1e-3 < row["old_log_prob"] <= -1e-5 for row in rows)
    thins_out = closest + 2 * math.sqrt(closest) < closer - 2 * math.sqrt(closer)
    expected = 0.01 + (closest + 0.1) ** 2 / (closer + 1)
    if coarse:
        expected = 0.01 + sum(row["old_log_prob"] > -0.5 and row["old_log_prob"] != 0 for row in rows)
    if (closest == 0 or thins_out) and _too_many(len(zeros), expected):
        yield from (row["row_id"] for row in zeros)


def _uniforms(rows: list[Row], entropy_error: float) -> Found:
    """A nearly uniform policy leaves 99 times as many within 1e-4 as within 1e-6. An entropy that
    says uniform clears a row."""

    def cleared(row: Row) -> bool:
        entropy = row["entropy"]
        return entropy is not None and abs(entropy - math.log(row["legal"])) < entropy_error

    uniforms = [row for row in rows if _from_uniform(row) <= 1e-6 and not cleared(row)]
    beside = sum(1e-6 < _from_uniform(row) <= 1e-4 for row in rows)
    if _too_many(len(uniforms), 0.01 + beside / 99):
        yield from (row["row_id"] for row in uniforms)


def _from_uniform(row: Row) -> float:
    """How far the log-prob lies from -log K, K being the actions offered or the legal ones."""
    sizes = {row["legal"], row["num_actions"]} - {None}
    return min(abs(row["old_log_prob"] + math.log(k)) for k in sizes if k > 1)


def _constants(rows: list[Row], eps: float) -> Found:
    """One value at many states, though those within 1 % of it are spread over all floats there.
    Several such values are a policy that does not look at its state; and next to 0, where
    log-probs come in steps, values coincide."""
    sampled = [row for row in rows if abs(row["old_log_prob"]) > 1e-3]
    counts = Counter(row["old_log_prob"] for row in sampled)
    states = {
        value: {row["state"] for row in sampled if row["old_log_prob"] == value} - {None}
        for value, times in counts.items()
        if times >= 4
    }
    atoms = []
    for value in sorted(states, key=lambda v: (-len(states[v]), v))[:20]:
        low, high = sorted((0.99 * value, 1.01 * value))
        beside = sum(
            low <= row["old_log_prob"] <= high and row["old_log_prob"] != value for row in sampled
        )
        expected = 0.01 + beside * eps * 100
        if _too_many(len(states[value]), expected, SURPRISE + math.log(len(sampled))):
            atoms.append(value)
    if len(atoms) == 1:
        yield from (row["row_id"] for row in rows if row["old_log_prob"] == atoms[0])


def _too_many(observed: int, expected: float, surprise: float = SURPRISE) -> bool:
    return observed > expected and poisson_surprise(observed, expected) > surprise


@rule("warning", "state_embed")
def zero_state(c: Context) -> Found:
    return [row["row_id"] for row in c.rows if _all_zero(row["state_embed"])]


def _all_zero(vector: list[float] | None) -> bool:
    return bool(known(vector)) and all(x == 0 for x in vector or [])


@rule("error", "state_embed", "old_log_prob", wants="action_index | action")
def unfilled_row(c: Context) -> Found:
    """State, action and log-prob are zero, and so are reward and value where there are any. A
    single legal action has log-prob 0 rightly."""
    for row in c.rows:
        index = row["action_index"]
        no_action = index == 0 if index is not None else _all_zero(row["action"])
        if (
            _all_zero(row["state_embed"])
            and row["old_log_prob"] == 0
            and no_action
            and row["legal"] != 1
            and row["reward"] in (0, None)
            and row["value"] in (0, None)
        ):
            yield row["row_id"]


@rule("warning")
def valid_ratio_low(c: Context) -> Found:
    """Fewer than nine in ten rows are sound: by the errors found, or by the trainer's own claim."""
    if 1 - len(c.flagged) / len(c.rows) < 0.9:
        yield None
    claims = [row["valid"] for row in c.rows if row["valid"] is not None]
    if claims and sum(claims) / len(claims) < 0.9:
        yield None


@rule("warning", "old_log_prob", "num_actions | action_mask", only="categorical")
def entropy_bound(c: Context) -> Found:
    """The mean of -log-prob estimates the entropy, which is at most the mean of log K."""
    excess = [
        -row["old_log_prob"] - math.log(row["legal"])
        for row in c.rows
        if row["legal"] is not None and row["legal"] > 1 and finite(row["old_log_prob"])
    ]
    if len(excess) >= 30:
        mean = math.fsum(excess) / len(excess)
        variance = math.fsum((x - mean) ** 2 for x in excess) / (len(excess) - 1)
        if mean > 1e-3 and mean > 4 * math.sqrt(variance / len(excess)):
            yield None


# subset


@rule("error", "action_index", "num_actions", only="categorical")
def action_index_out_of_range(c: Context) -> Found:
    for row in c.rows:
        index, size = row["action_index"], row["num_actions"]
        if index is not None and (index < 0 or (size is not None and index >= size)):
            yield row["row_id"]


@rule("error", "num_actions | subset_indices | action_mask", only="categorical")
def empty_subset(c: Context) -> Found:
    """Nothing was offered, or the mask forbids all of it."""
    for row in c.rows:
        size, mask = row["num_actions"], known(row["action_mask"])
        if (
            (size is not None and size <= 0)
            or row["subset_indices"] == []
            or (mask is not None and not any(mask))
        ):
            yield row["row_id"]


@rule(
    "error",
    "num_actions",
    "subset_indices | action_mask | logits | policy.subset=all",
    only="categorical",
)
def subset_length_mismatch(c: Context) -> Found:
    space = c.settings.get("policy.action_space")
    for row in c.rows:
        size = row["num_actions"]
        ragged = (row["subset_indices"], row["action_mask"], row["logits"])
        sizes = {len(values) for values in ragged if values is not None}
        if c.offers_all and space is not None:
            sizes.add(space)
        if size is not None and sizes - {size}:
            yield row["row_id"]


@rule("error", "subset_indices", only="categorical")
def subset_duplicate_id(c: Context) -> Found:
    for row in c.rows:
        subset = known(row["subset_indices"]) or []
        if len(set(subset)) < len(subset):
            yield row["row_id"]


@rule("error", "subset_indices", wants="policy.action_space", only="categorical")
def subset_id_out_of_range(c: Context) -> Found:
    space = c.settings.get("policy.action_space", math.inf)
    for row in c.rows:
        if any(not 0 <= item < space for item in known(row["subset_indices"]) or []):
            yield row["row_id"]


@rule(
    "error",
    "action_id",
    "action_index",
    "subset_indices & action_index | policy.subset=all",
    only="categorical",
)
def action_id_mismatch(c: Context) -> Found:
    """action_id is not what action_index points at; where all is offered, ids are indices."""
    for row in c.rows:
        chosen = _at(row["subset_indices"], row["action_index"])
        if chosen is None and c.offers_all:
            chosen = row["action_index"]
        if None not in (row["action_id"], chosen) and row["action_id"] != chosen:
            yield row["row_id"]


def _at(values: list[Any] | None, index: int | None) -> Any:
    inside = values is not None and index is not None and 0 <= index < len(values)
    return values[index] if inside else None  # type: ignore[index]


@rule("error", "action_mask & action_index", only="categorical")
def action_masked(c: Context) -> Found:
    return [r["row_id"] for r in c.rows if _at(r["action_mask"], r["action_index"]) is False]


# keys and time


@rule("error", *KEY)
def duplicate_key(c: Context) -> Found:
    """Copies that agree in every column: all but the first. That contradict each other: all."""
    groups: dict[Any, list[Row]] = {}
    for row in c.rows:
        groups.setdefault(tuple(row[name] for name in KEY), []).append(row)
    for key, rows in groups.items():
        if None not in key and len(rows) > 1:
            contents = {_content(c, row) for row in rows}
            yield from (row["row_id"] for row in (rows if len(contents) > 1 else rows[1:]))


def _content(c: Context, row: Row) -> tuple[Any, ...]:
    """Vectors that describe the state or a continuous action count bit for bit."""
    made: list[Any] = []
    for name in c.columns:
        value, kind = row[name], c.dump.types[name]
        if is_list(kind):
            value = bits(value, item_of(kind)) if name in VECTORS else known(value)
        made.append(same(value))
    return tuple(made)


@rule("warning", "state_embed", "old_log_prob", *KEY)
def duplicate_payload(c: Context) -> Found:
    """Where an agent meets a state for the second time, it should draw the same action again as
    often as its own probability says. If it does so far more often, rows were cloned."""
    judged = [row for row in c.rows if row["state"] is not None and finite(row["old_log_prob"])]
    meetings: dict[Any, list[Row]] = {}
    for row in judged:
        meetings.setdefault((row["agent_id"], row["state"]), []).append(row)
    seconds = [
        (rows[0], rows[1])
        for rows in meetings.values()
        if len(rows) > 1 and not (_same_step(*rows[:2]) and None not in _step(rows[0]))
    ]
    if not _drawn_too_often(seconds):
        return
    first: dict[Any, Row] = {}
    for row in judged:
        original = first.setdefault((row["agent_id"], row["state"], _payload(row)), row)
        if row["agent_id"] is not None and not _same_step(row, original):
            yield row["row_id"]


def _drawn_too_often(seconds: list[tuple[Row, Row]]) -> bool:
    """Hoeffding: the chance of so large a share is at most exp(-n KL(observed, expected)). Meetings
    whose outcome was certain say nothing."""
    tested = [(a, b, _chance(a)) for a, b in seconds if _chance(a) < 0.999]
    repeated = sum(_payload(a) == _payload(b) for a, b, _ in tested)
    if repeated < 3:
        return False
    n = len(tested)
    observed, expected = repeated / n, max(math.fsum(p for *_, p in tested) / n, 1e-6)
    divergence = observed * math.log(observed / expected)
    if observed < 1:
        divergence += (1 - observed) * math.log((1 - observed) / (1 - expected))
    return observed > expected and n * divergence > 6.9


def _chance(row: Row) -> float:
    """That the action is drawn again; a continuous one never is."""
    return 0.0 if row["action_bits"] is not None else math.exp(min(row["old_log_prob"], 0.0))


def _payload(row: Row) -> tuple[Any, ...]:
    names = ("subset", "mask", "action_index", "old_log_prob", "reward", "value")
    return (row["action_bits"], *(same(row[name]) for name in names))


def _step(row: Row) -> tuple[Any, Any]:
    return row["episode_id"], row["timestep"]


def _same_step(a: Row, b: Row) -> bool:
    return _step(a) == _step(b)


@rule("warning", " & ".join(KEY))
def unsorted_rows(c: Context) -> Found:
    """The key is smaller than that of the row before, in the same file."""
    for before, row in c.neighbours():
        keys = [tuple(r[name] for name in KEY) for r in (before, row)]
        if None not in keys[0] + keys[1] and keys[1] < keys[0]:
            yield row["row_id"]


@rule("error", "episode_id", "timestep")
def timestep_gap(c: Context) -> Found:
    """A step that no agent of the episode has, between two that are there; the first row after."""
    episodes: dict[int, dict[int, int]] = {}
    for (episode, step), rows in c.steps().items():
        episodes.setdefault(episode, {})[step] = rows[0]["row_id"]
    for firsts in episodes.values():
        for before, step in _pairs(firsts):
            if step - before > 1:
                yield firsts[step]


def _pairs(values: Iterable[int]) -> list[tuple[int, int]]:
    return list(pairwise(sorted(set(values))))


@rule("warning", *KEY, legal_if="agents.turn_based")
def missing_agent_step(c: Context) -> Found:
    """A hole between two of an agent's steps that others of its episode filled; or, where ends are
    marked, an agent that stops unmarked while its episode goes on."""
    steps, marked = c.steps(), c.has("terminated | truncated")
    ends: dict[int, int] = {}
    for (episode, _), rows in c.trajectories().items():
        ends[episode] = max([ends.get(episode, -(2**63)), *(r["timestep"] for r in rows)])
    for (episode, _), rows in c.trajectories().items():
        firsts: dict[int, int] = {}
        for row in rows:
            firsts.setdefault(row["timestep"], row["row_id"])
        for before, step in _pairs(firsts):
            if any(e == episode and before < s < step for e, s in steps):
                yield firsts[step]
        last = max(firsts)
        if marked and last < ends[episode] and not any(row["done"] for row in rows):
            yield firsts[last]


@rule("error", *KEY, "terminated | truncated")
def done_not_last(c: Context) -> Found:
    for rows in c.trajectories().values():
        last = max(row["timestep"] for row in rows)
        yield from (r["row_id"] for r in rows if r["done"] and r["timestep"] < last)


@rule("error", *KEY, "terminated | truncated")
def row_after_done(c: Context) -> Found:
    for rows in c.trajectories().values():
        ended = min((row["timestep"] for row in rows if row["done"]), default=math.inf)
        yield from (row["row_id"] for row in rows if row["timestep"] > ended)


@rule("info", "policy_version", *KEY)
def mixed_policy_version(c: Context) -> Found:
    """The first row of an (episode, agent) that several versions played."""
    for rows in c.trajectories().values():
        if len({row["policy_version"] for row in rows} - {None}) > 1:
            yield rows[0]["row_id"]


# broadcast


@rule("warning", "subset_indices", *KEY, legal_if="agents.shared_subset", only="categorical")
def subset_broadcast(c: Context) -> Found:
    def shared(rows: list[Row]) -> bool:
        return all_equal([row["subset"] for row in rows])

    yield from _shared_by_agents(c, shared, [row["subset"] for row in c.rows])
    repeats = [b["row_id"] for a, b in c.neighbours() if all_equal([a["subset"], b["subset"]])]
    for run in _surprising_runs(c, repeats, most=1.0, least_rows=4):
        yield from run


@rule("warning", "state_embed", *KEY, legal_if="agents.shared_state")
def state_broadcast(c: Context) -> Found:
    yield from _shared_by_agents(c, _state_shared, [row["state"] for row in c.rows])
    repeats = [b["row_id"] for a, b in c.neighbours() if all_equal([a["state"], b["state"]])]
    for run in _surprising_runs(c, repeats, most=1.0, least_rows=8):
        yield from run
    if len({row["state"] for row in c.rows} - {None}) > 1:
        for rows in c.trajectories().values():
            if len({row["timestep"] for row in rows}) >= 8 and _state_shared(rows):
                yield from (row["row_id"] for row in rows)


def _state_shared(rows: list[Row]) -> bool:
    return all_equal([row["state"] for row in rows])


def _had_choice(row: Row) -> bool:
    return bool(row["legal"] != 1)


@rule("warning", "old_log_prob", "state_embed", *KEY)
def log_prob_broadcast(c: Context) -> Found:
    """Rows with one legal action say nothing: their log-prob is 0 by right."""
    drawn = [same(row["old_log_prob"]) for row in c.rows if _had_choice(row)]
    choosing = {row["row_id"] for row in c.rows if _had_choice(row)}
    yield from choosing.intersection(_shared_by_agents(c, _log_prob_shared, drawn))
    repeats = [
        row["row_id"]
        for before, row in c.neighbours()
        if _equal(before["old_log_prob"], row["old_log_prob"])
        and not all_equal([before["state"], row["state"]])
        and _had_choice(row)
        and not _by_right(row)
    ]
    for run in _surprising_runs(c, repeats, most=0.5, least_rows=4):
        yield from run


def _by_right(row: Row) -> bool:
    """Certain and uniform policies repeat themselves: 0 and -log K are for placeholder-log-prob."""
    log_prob, legal = row["old_log_prob"], max(row["legal"] or 1, 1)
    return abs(log_prob) <= 1e-5 or abs(log_prob + math.log(legal)) <= 1e-6


def _equal(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and a == b


def _log_prob_shared(rows: list[Row]) -> bool:
    """At least two had a choice, their log-probs are equal, their contexts are not."""
    values = [same(row["old_log_prob"]) for row in rows if _had_choice(row)]
    return len(values) > 1 and all_equal(values) and not _same_context(rows)


def _same_context(rows: list[Row]) -> bool:
    names = ("subset", "action_index", "action_bits")
    return _state_shared(rows) and all(len({row[name] for row in rows} - {None}) <= 1 for name in names)


@rule("warning", "advantage", *KEY, legal_if="agents.shared_advantage")
def advantage_broadcast(c: Context) -> Found:
    """One advantage for a whole episode is a method (group-relative ones), not an accident."""

    def shared(rows: list[Row]) -> bool:
        return all_equal([same(r["advantage"]) for r in rows]) and rows[0]["advantage"] != 0

    drawn = [same(row["advantage"]) for row in c.rows if row["advantage"] not in (0, None)]
    yield from _shared_by_agents(c, shared, drawn)
    repeats = [
        row["row_id"]
        for before, row in c.neighbours()
        if _equal(before["advantage"], row["advantage"]) and row["advantage"] != 0
    ]
    for run in _surprising_runs(c, repeats, most=0.5, least_rows=4):
        if not _advantage_of_an_episode(c, c.rows[run[0]], c.rows[run[-1]]):
            yield from run


def _advantage_of_an_episode(c: Context, first: Row, last: Row) -> bool:
    """The run lies in one episode, or in neighbours, that have one advantage each; a column that is
    constant throughout is excused only within an episode."""
    for row in (first, last):
        own = c.trajectories().get((row["episode_id"], row["agent_id"]), [])
        if len({same(r["advantage"]) for r in own} - {None}) != 1:
            return False
    values = {same(row["advantage"]) for row in c.rows} - {None}
    return _equal(first["episode_id"], last["episode_id"]) or len(values) > 1


def _shared_by_agents(
    c: Context, shared: Callable[[list[Row]], bool], drawn: list[Any]
) -> Iterator[int]:
    """The rows of steps whose agents all hold the same, if that happens more often than it would
    if values were dealt at random."""
    joint = [rows for rows in c.steps().values() if _agents(rows) > 1]
    sharing = [rows for rows in joint if shared(rows)]
    sizes = Counter(_agents(rows) for rows in joint)
    values = [value for value in drawn if value is not None]
    expected = sum(times * _chance_of_coincidence(values, n) for n, times in sizes.items())
    observed = len(sharing)
    if observed > expected:
        # Below one in a hundred, the estimate of what is expected is no better than that.
        surprise = observed * math.log(observed / max(expected, 0.01)) - observed + expected
        if surprise > SURPRISE:
            yield from (row["row_id"] for rows in sharing for row in rows)


def _agents(rows: list[Row]) -> int:
    """How many act in these rows of a step; a row without a name is somebody else's."""
    names = [row["agent_id"] for row in rows]
    return len(set(names) - {None}) + names.count(None)


def _chance_of_coincidence(values: list[Any], count: int) -> float:
    """That so many, drawn without putting back, are all equal."""
    ways = sum(math.comb(times, count) for times in Counter(values).values())
    return ways / math.comb(len(values), count) if len(values) >= count else 0.0


def _surprising_runs(
    c: Context, repeats: list[int], most: float, least_rows: int
) -> Iterator[list[int]]:
    """Stretches of rows that hold the same, longer than independent repeats at the rate seen give.

    States and subsets may persist for good reasons, so their own rate is the yardstick. Log-probs
    and advantages hardly ever repeat: their rate counts as at most one half, or a constant column
    would excuse itself."""
    rate = min(len(repeats) / len(c.rows), most)
    runs: list[list[int]] = []
    for row in repeats:
        if runs and runs[-1][-1] == row - 1:
            runs[-1].append(row)
        else:
            runs.append([row - 1, row])
    for run in runs:
        surprise = -(len(run) - 1) * math.log(rate) - math.log(len(c.rows))
        if len(run) >= least_rows and surprise > SURPRISE:
            yield run


@rule("info", "num_actions", "policy.subset=listed", only="categorical")
def constant_num_actions(c: Context) -> Found:
    sizes = {row["num_actions"] for row in c.rows} - {None}
    return [None] if len(sizes) == 1 and len(c.rows) > 1 else []


# log-prob


@rule("error", "logits & action_index", "old_log_prob", only="categorical")
def logits_log_prob_mismatch(c: Context) -> Found:
    """old_log_prob is not the log-softmax of the row's own logits at action_index."""
    for row in c.rows:
        again = _log_prob_of_logits(c, row)
        old = row["old_log_prob"]
        if again is not None and finite(old) and abs(old - again) > tolerance(c.eps, old, again):
            yield row["row_id"]


def _log_prob_of_logits(c: Context, row: Row) -> float | None:
    """None where the row does not allow it to be computed."""
    logits, mask, index = known(row["logits"]), known(row["action_mask"]), row["action_index"]
    if not logits or _at(logits, index) is None:
        return None
    if c.has("action_mask"):
        if mask is None or len(mask) != len(logits):
            return None
        masked = c.settings.get("policy.masked_logit", -math.inf)
        logits = [x if legal else masked for x, legal in zip(logits, mask, strict=True)]
    top = max(logits)
    if any(math.isnan(x) for x in logits) or math.isinf(top):
        return None
    scaled = [(x - top) / c.settings["policy.temperature"] for x in logits]
    return scaled[index] - math.log(math.fsum(math.exp(x) for x in scaled))


@rule("error", "new_log_prob", "old_log_prob")
def new_log_prob_mismatch(c: Context) -> Found:
    eps = c.rounding_of("old_log_prob", "new_log_prob")
    for row in c.rows:
        old, new = row["old_log_prob"], row["new_log_prob"]
        if finite(old) and finite(new) and abs(old - new) > tolerance(eps, old, new):
            yield row["row_id"]
