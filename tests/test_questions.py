"""The named questions: each runs on every kind of dump, and its answer is what plain Python counts."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import FIXTURES, HEALTHY

from bufcheck import findings, pipeline, question
from bufcheck.database import Database
from bufcheck.errors import UsageError
from bufcheck.sql import table_names, table_sql, words_of

Row = dict[str, Any]
Ask = Callable[..., list[Row]]
ACTORS = (str(FIXTURES / "actors" / "{agent_id}-{policy_version}.safetensors"),)
DUMPS = {
    "healthy": HEALTHY,
    "demo": FIXTURES / "demo.parquet",
    **{
        name: FIXTURES / "broken" / f"{name}.parquet"
        for name in (
            "duplicate-key",
            "missing-agent-step",
            "missing-column",
            "mixed-policy-version",
            "nonfinite-value",
            "unfilled-row",
        )
    },
}
VIEWS = {
    *("samples", "digest", "episodes", "agents", "steps", "duplicates", "runs", "sharing"),
    *("replay", "actors", "calibration", "findings", "causes"),
}


def checked(path: Path, actors: tuple[str, ...] = ACTORS) -> Iterator[Ask]:
    """A function that answers questions about one dump, checked as `validate` checks it."""
    job = pipeline.opened([str(path)], pipeline.Options(actor=actors))
    wanted = [question.load(name).sql for name in question.names()] + list(
        map(table_sql, table_names())
    )
    with Database() as database:
        pipeline.load(database, job, words_of(" ".join(wanted)))
        pipeline.run_rules(database, job)
        pipeline.find_causes(database, job)
        database.execute(f"CREATE TABLE listed AS {findings.listed(job.replay is not None)}")
        database.execute("DROP TABLE findings")
        database.execute("ALTER TABLE listed RENAME TO findings")

        def ask(name: str, **parameters: Any) -> list[Row]:
            asked = question.load(name)
            if asked.needs == "actor" and not job.replay:
                return []
            database.prepared(asked.sql)  # makes the tables it names
            given = question.with_parameters(asked, parameters)
            result = database.connection.cursor().execute(asked.sql, given or None)
            columns = [d[0] for d in result.description]
            assert len(columns) == len(set(columns)), columns
            return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]

        yield ask


@pytest.fixture(scope="module")
def asks() -> Iterator[Callable[[str], Ask]]:
    """The dumps by name, each checked once."""
    open_ones = []

    @cache
    def of(name: str) -> Ask:
        open_ones.append(checked(DUMPS[name]))
        return next(open_ones[-1])

    yield of
    for one in open_ones:
        one.close()


@pytest.fixture
def healthy(asks: Callable[[str], Ask]) -> Ask:
    return asks("healthy")


@pytest.fixture
def demo(asks: Callable[[str], Ask]) -> Ask:
    return asks("demo")


@cache
def stored(name: str = "healthy") -> list[Row]:
    rows = pq.read_table(DUMPS[name]).to_pylist()
    return [{"row_id": number, **row} for number, row in enumerate(rows)]


def grouped(rows: Iterable[Row], *by: str) -> dict[Any, list[Row]]:
    """The rows by key, in the order of keys."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in by) if len(by) > 1 else row[by[0]]].append(row)
    return dict(sorted(groups.items()))


def of(rows: Iterable[Row], name: str) -> list[Any]:
    return [row[name] for row in rows]


@cache
def weights(agent: str, version: int) -> tuple[np.ndarray, np.ndarray]:
    from safetensors.numpy import load_file

    tensors = load_file(FIXTURES / "actors" / f"{agent}-{version}.safetensors")
    return tensors["0.weight"].astype(float), tensors["2.weight"].astype(float)


def replayed(row: Row) -> float:
    """The log-prob by the row's actor, in float64."""
    first, second = weights(row["agent_id"], row["policy_version"])
    logits = (second @ np.tanh(first @ np.array(row["state_embed"])))[row["subset_indices"]]
    legal = np.where(row["action_mask"], logits, -np.inf)
    return float(legal[row["action_index"]] - np.logaddexp.reduce(legal))


# Every question


@pytest.mark.parametrize("name", question.names())
def test_a_question_is_well_made(name: str) -> None:
    asked = question.load(name)
    assert re.fullmatch(r"[A-Z][^\n]*\?", asked.question)
    assert set(asked.help) == set(asked.parameters)
    assert set(re.findall(r"\$(\w+)", asked.sql)) == set(asked.parameters)
    assert re.search(r"\nORDER BY [^()]*(\([^()]*\)[^()]*)*$", asked.sql), "the answer has an order"
    assert not re.search(r"[\s.]\*\s*(,|FROM)|\bround\(", asked.sql), "names columns, rounds nothing"
    sources = set(re.findall(r"(?<!DISTINCT )\b(?:FROM|JOIN) (\w+)", asked.sql))
    made = set(re.findall(r"(\w+) AS \(", asked.sql))
    assert sources - made <= VIEWS
    assert asked.needs == ("actor" if sources & {"replay", "actors", "calibration"} else "")


@pytest.mark.parametrize("dump", DUMPS)
def test_every_question_is_answered(dump: str, asks: Callable[[str], Ask]) -> None:
    for name in question.names():
        asks(dump)(name)


@pytest.mark.parametrize(
    "name", [n for n in question.names() if "limit" in question.load(n).parameters]
)
def test_a_limit_cuts_the_same_answer_short(name: str, demo: Ask) -> None:
    whole = demo(name, limit=1000)
    for limit in (0, 1, 3):
        assert str(demo(name, limit=limit)) == str(whole[:limit])


def test_questions_are_answered_of_what_a_dump_must_have_and_no_more(tmp_path: Path) -> None:
    """A continuous policy without optional columns; nothing here has a K, a version or a reward."""
    rng = np.random.default_rng(3)
    keys = [(episode, step) for episode in range(4) for step in range(5)]
    metadata = {"policy": {"distribution": "diagonal_gaussian"}, "rows": len(keys)}
    schema = pa.schema(
        [
            ("episode_id", pa.int64()),
            ("timestep", pa.int32()),
            ("agent_id", pa.string()),
            ("state_embed", pa.list_(pa.float32(), 3)),
            ("action", pa.list_(pa.float32(), 2)),
            ("old_log_prob", pa.float32()),
        ],
        {"bufcheck": json.dumps({"schema": "experience/1", **metadata})},
    )
    rows = [(*key, "solo", rng.normal(size=3), rng.normal(size=2), -rng.random()) for key in keys]
    columns = [
        pa.array(list(column), f.type)
        for column, f in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    pq.write_table(pa.table(columns, schema=schema), tmp_path / "dump.parquet")
    checking = checked(tmp_path / "dump.parquet", ())
    ask = next(checking)
    for name in question.names():
        ask(name)
    assert of(ask("k-histogram"), "num_actions") == [None]
    assert of(ask("return-by-agent"), "with_return") == [0]
    assert of(ask("episode-lengths"), "episodes") == [4]
    checking.close()


# What the actors say


def test_worst_residuals(demo: Ask) -> None:
    sound = [r for r in stored("demo") if r["action_index"] < len(r["subset_indices"])]
    with np.errstate(all="ignore"):
        expected = {r["row_id"]: r["old_log_prob"] - replayed(r) for r in sound}
    answer = demo("worst-residuals", limit=400)
    assert sorted(of(answer, "row_id")) == sorted(expected)
    for row in answer:
        assert row["residual"] == pytest.approx(expected[row["row_id"]], abs=1e-5)
    sizes = [abs(residual) for residual in of(answer, "residual")]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == math.inf
    assert (
        Path(answer[0]["actor_path"]).name
        == f"{answer[0]['agent_id']}-{answer[0]['policy_version']}.safetensors"
    )
    assert demo("worst-residuals", limit=3) == answer[:3]


@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("residual-by-agent-and-version", ["agent_id", "policy_version"]),
        ("residual-by-k", ["num_actions"]),
        ("residual-by-timestep", ["timestep"]),
    ],
)
def test_residuals_by_group(name: str, by: list[str], demo: Ask) -> None:
    residuals = {r["row_id"]: r for r in demo("worst-residuals", limit=400)}
    answer = demo(name)
    groups = grouped(stored("demo"), *by)
    assert [tuple(row[n] for n in by) for row in answer] == [
        key if len(by) > 1 else (key,) for key in groups
    ]
    for row, group in zip(answer, groups.values(), strict=True):
        known = [residuals[r["row_id"]] for r in group if r["row_id"] in residuals]
        finite = [r["residual"] for r in known if math.isfinite(r["residual"])]
        assert (row["rows"], row["replayed"]) == (len(group), len(known))
        assert row["disagreeing"] == sum(abs(r["residual"]) > r["allowed"] for r in known)
        assert row["disagreeing_share"] == pytest.approx(row["disagreeing"] / len(known))
        assert row["residual_mean"] == pytest.approx(np.mean(finite))
        assert row["residual_median"] == pytest.approx(np.median(finite))
        assert row["residual_size_mean"] == pytest.approx(np.mean(np.abs(finite)))
        assert row["residual_size_max"] == max(abs(r["residual"]) for r in known)


def test_residual_histogram(demo: Ask) -> None:
    rows = demo("worst-residuals", limit=400)

    def size(residual: float) -> str:
        if not math.isfinite(residual):
            return "not finite"
        exponent = f"{abs(residual):e}".split("e")[1]
        return f"from 1e{int(exponent)} to 1e{int(exponent) + 1}" if residual else "equal"

    answer = demo("residual-histogram")
    assert {row["size"]: row["rows"] for row in answer} == Counter(map(size, of(rows, "residual")))
    assert (answer[0]["size"], answer[-1]["size"]) == ("equal", "not finite")
    assert sum(of(answer, "share")) == pytest.approx(1)
    decades = of(answer[1:-1], "decade")
    assert decades == sorted(decades)
    wrong = Counter(size(row["residual"]) for row in rows if abs(row["residual"]) > row["allowed"])
    assert {row["size"]: row["disagreeing"] for row in answer if row["disagreeing"]} == wrong


def test_calibration(healthy: Ask) -> None:
    answer = healthy("calibration")
    assert (answer[0]["pooled"], answer[0]["agent_id"]) == (True, None)
    surplus = variance = rows = 0.0
    for row in stored():
        legal = np.where(row["action_mask"], np.array(row["logits"], float), -np.inf)
        chances = np.exp(legal - np.logaddexp.reduce(legal))
        known = chances[chances > 0]
        if len(known) > 1:
            logs = np.log(known)
            surplus += row["old_log_prob"] - known @ logs
            variance += known @ logs**2 - (known @ logs) ** 2
            rows += 1
    assert answer[0]["rows"] == rows
    assert answer[0]["z"] == pytest.approx(surplus / variance**0.5, abs=1e-3)
    assert len(answer) == 1 + len(grouped(stored(), "agent_id", "policy_version"))


# What is stored


def test_k_histogram_and_uniform_and_entropy(healthy: Ask) -> None:
    groups = grouped(stored(), "num_actions")
    counted, uniform, entropy = (
        {row["num_actions"]: row for row in healthy(name)}
        for name in ("k-histogram", "log-prob-against-uniform", "entropy-by-k")
    )
    assert list(counted) == list(uniform) == list(entropy) == list(groups)
    for k, group in groups.items():
        legal = [sum(row["action_mask"]) for row in group]
        log_probs = of(group, "old_log_prob")
        assert counted[k]["rows"] == len(group)
        assert counted[k]["share"] == len(group) / len(stored())
        assert counted[k]["legal_mean"] == pytest.approx(np.mean(legal))
        assert counted[k]["forced"] == legal.count(1)
        assert uniform[k]["uniform_log_prob"] == pytest.approx(-math.log(k))
        assert uniform[k]["log_prob_mean"] == pytest.approx(np.mean(log_probs))
        assert uniform[k]["rows"] == entropy[k]["rows"] == len(group)
        assert uniform[k]["uniform_legal_mean"] == pytest.approx(-np.mean(np.log(legal)))
        assert uniform[k]["log_prob_min"] == min(log_probs)
        assert uniform[k]["log_prob_max"] == max(log_probs)
        assert uniform[k]["above_uniform_mean"] == pytest.approx(np.mean(log_probs + np.log(legal)))
        assert uniform[k]["at_uniform"] == 0
        assert entropy[k]["entropy_mean"] == pytest.approx(np.mean(of(group, "entropy")))
        assert entropy[k]["entropy_min"] == min(of(group, "entropy"))
        assert entropy[k]["entropy_max"] == max(of(group, "entropy"))
        assert entropy[k]["uniform_entropy_mean"] == pytest.approx(np.mean(np.log(legal)))
        assert entropy[k]["minus_log_prob_mean"] == pytest.approx(-np.mean(log_probs))


def test_where_nothing_was_offered_nothing_is_uniform(asks: Callable[[str], Ask]) -> None:
    ask = asks("unfilled-row")
    [uniform], [entropy] = (
        [row for row in ask(name) if row["num_actions"] == 0]
        for name in ("log-prob-against-uniform", "entropy-by-k")
    )
    assert (uniform["rows"], uniform["uniform_log_prob"], uniform["uniform_legal_mean"]) == (
        3,
        None,
        None,
    )
    assert (entropy["rows"], entropy["uniform_entropy_mean"]) == (3, None)


def test_unlikely_actions(healthy: Ask) -> None:
    expected = sorted(stored(), key=lambda row: (row["old_log_prob"], row["row_id"]))[:7]
    answer = healthy("unlikely-actions", limit="7")
    assert of(answer, "row_id") == of(expected, "row_id")
    assert of(answer, "chosen_id") == of(expected, "action_id")
    assert of(answer, "probability") == pytest.approx(np.exp(of(expected, "old_log_prob")))


def test_action_frequency(healthy: Ask) -> None:
    expected = sorted(grouped(stored(), "action_id").items(), key=lambda item: (-len(item[1]), item[0]))
    answer = healthy("action-frequency")
    assert of(answer, "global_id") == [chosen for chosen, _ in expected]
    assert of(answer, "rows") == [len(group) for _, group in expected]
    assert of(answer, "agents") == [len(set(of(group, "agent_id"))) for _, group in expected]
    assert of(answer, "share") == [len(group) / len(stored()) for _, group in expected]
    means = [np.mean(of(group, "old_log_prob")) for _, group in expected]
    assert of(answer, "log_prob_mean") == pytest.approx(means)


def test_reward_by_step(healthy: Ask) -> None:
    groups = grouped(stored(), "timestep")
    answer = healthy("reward-by-step")
    assert of(answer, "timestep") == list(groups)
    for row, group in zip(answer, groups.values(), strict=True):
        rewards = of(group, "reward")
        assert (row["rows"], row["episodes"]) == (len(group), len(set(of(group, "episode_id"))))
        assert row["reward_mean"] == pytest.approx(np.mean(rewards))
        assert row["reward_stddev"] == pytest.approx(np.std(rewards, ddof=1))
        assert (row["reward_min"], row["reward_max"]) == (min(rewards), max(rewards))


@pytest.mark.parametrize(
    ("name", "column"), [("return-by-agent", "agent_id"), ("return-by-version", "policy_version")]
)
def test_returns(name: str, column: str, healthy: Ask) -> None:
    answer = healthy(name)
    groups = grouped(stored(), column)
    assert of(answer, column) == list(groups)
    for row, group in zip(answer, groups.values(), strict=True):
        tracks = grouped(group, "episode_id", "agent_id").values()
        returns = [sum(of(track, "reward")) for track in tracks]
        assert row["with_return"] == len(returns)
        assert row["episodes"] == len(set(of(group, "episode_id")))
        assert row["return_mean"] == pytest.approx(np.mean(returns))
        assert row["return_stddev"] == pytest.approx(np.std(returns, ddof=1))
        assert row["return_median"] == pytest.approx(np.median(returns))
        assert row["return_min"] == pytest.approx(min(returns))
        assert row["return_max"] == pytest.approx(max(returns))
        assert row.get("tracks", len(returns)) == len(returns)


def test_value_error(healthy: Ask) -> None:
    for row, group in zip(healthy("value-error"), grouped(stored(), "agent_id").values(), strict=True):
        value, target = np.array(of(group, "value")), np.array(of(group, "return"))
        assert row["rows"] == len(group)
        assert row["value_mean"] == pytest.approx(value.mean())
        assert row["return_mean"] == pytest.approx(target.mean())
        assert row["bias"] == pytest.approx(np.mean(value - target))
        assert row["root_mean_square_error"] == pytest.approx(np.sqrt(np.mean((value - target) ** 2)))
        assert row["explained_variance"] == pytest.approx(1 - np.var(target - value) / np.var(target))
        assert row["correlation"] == pytest.approx(np.corrcoef(value, target)[0, 1])


def test_advantage_by_agent_leaves_out_what_is_not_finite(asks: Callable[[str], Ask]) -> None:
    groups = grouped(stored("nonfinite-value"), "agent_id")
    answer = asks("nonfinite-value")("advantage-by-agent")
    assert of(answer, "agent_id") == list(groups)
    assert sum(of(answer, "rows")) > sum(of(answer, "finite"))
    for row, group in zip(answer, groups.values(), strict=True):
        finite = np.array([a for a in of(group, "advantage") if math.isfinite(a)])
        assert (row["rows"], row["finite"]) == (len(group), len(finite))
        assert row["advantage_mean"] == pytest.approx(finite.mean())
        assert row["advantage_stddev"] == pytest.approx(finite.std(ddof=1))
        assert row["advantage_median"] == pytest.approx(np.median(finite))
        assert (row["advantage_min"], row["advantage_max"]) == (finite.min(), finite.max())
        assert row["positive_share"] == pytest.approx((finite > 0).mean())


def test_agents_summary(healthy: Ask) -> None:
    answer = healthy("agents-summary")
    for row, (agent, group) in zip(answer, grouped(stored(), "agent_id").items(), strict=True):
        episodes = set(of(group, "episode_id"))
        assert (row["agent_id"], row["rows"], row["episodes"]) == (agent, len(group), len(episodes))
        assert row["share"] == pytest.approx(len(group) / len(stored()))
        assert row["steps_mean"] == pytest.approx(len(group) / len(episodes))
        assert (row["version_min"], row["version_max"]) == (0, 2)
        assert row["reward_mean"] == pytest.approx(np.mean(of(group, "reward")))
        assert row["log_prob_mean"] == pytest.approx(np.mean(of(group, "old_log_prob")))


# Episodes and keys


def test_episode_lengths(asks: Callable[[str], Ask]) -> None:
    rows = stored("missing-agent-step")
    tracks = {k: len(g) for k, g in grouped(rows, "episode_id", "agent_id").items()}
    lengths: dict[int, list[int]] = defaultdict(list)
    for (episode, _), length in tracks.items():
        lengths[episode].append(length)
    longest = {episode: max(found) for episode, found in lengths.items()}
    answer = asks("missing-agent-step")("episode-lengths")
    assert of(answer, "length") == sorted(set(longest.values()))
    for row in answer:
        episodes = [episode for episode, length in longest.items() if length == row["length"]]
        assert (row["episodes"], row["first_episode"]) == (len(episodes), min(episodes))
        assert row["share"] == len(episodes) / len(longest)
        assert row["agents_differ"] == sum(len(set(lengths[e])) > 1 for e in episodes)
    assert sum(of(answer, "agents_differ")) == 1


def test_longest_episodes(asks: Callable[[str], Ask]) -> None:
    episodes = grouped(stored("missing-agent-step"), "episode_id")
    answer = asks("missing-agent-step")("longest-episodes")
    lengths = {e: max(Counter(of(g, "agent_id")).values()) for e, g in episodes.items()}
    assert of(answer, "episode_id") == sorted(episodes, key=lambda e: (-lengths[e], e))
    for row in answer:
        group = episodes[row["episode_id"]]
        steps = of(group, "timestep")
        assert (row["length"], row["agents"]) == (lengths[row["episode_id"]], 3)
        assert (row["rows"], row["first_row"]) == (len(group), group[0]["row_id"])
        assert (row["first_step"], row["last_step"]) == (min(steps), max(steps))
        assert row["reward_sum"] == pytest.approx(sum(of(group, "reward")))


def test_episode_ends(healthy: Ask) -> None:
    for row, group in zip(healthy("episode-ends"), grouped(stored(), "agent_id").values(), strict=True):
        last = {r["episode_id"]: r for r in group}.values()
        assert row["episodes"] == len(last)
        assert row["ended_terminated"] == sum(of(last, "terminated")) > 0
        assert row["ended_truncated"] == sum(of(last, "truncated")) > 0
        assert row["ended_unmarked"] == len(last) - sum(r["terminated"] or r["truncated"] for r in last)
        assert row["ended_both"] == row["marked_early"] == 0


@pytest.mark.parametrize("dump", ["demo", "missing-agent-step"])
def test_missing_steps(dump: str, asks: Callable[[str], Ask], healthy: Ask) -> None:
    expected = []
    for (episode, agent), group in grouped(stored(dump), "episode_id", "agent_id").items():
        for before, after in pairwise(sorted(of(group, "timestep"))):
            if after - before > 1:
                expected.append((episode, agent, before + 1, after - 1, after - before - 1))
    assert [tuple(row.values())[:5] for row in asks(dump)("missing-steps")] == expected != []
    assert healthy("missing-steps") == []


def test_duplicate_keys(asks: Callable[[str], Ask], healthy: Ask) -> None:
    groups = grouped(stored("duplicate-key"), "episode_id", "timestep", "agent_id")
    twice = {key: of(group, "row_id") for key, group in groups.items() if len(group) > 1}
    answer = asks("duplicate-key")("duplicate-keys")
    assert [tuple(row.values())[:6] for row in answer] == [
        (*key, len(rows), rows[0], rows[-1]) for key, rows in twice.items()
    ]
    assert of(answer, "different_log_probs") == of(answer, "different_rewards") == [1] * len(twice)
    assert twice
    assert healthy("duplicate-keys") == []


def test_repeated_states(asks: Callable[[str], Ask], healthy: Ask) -> None:
    seen: dict[Any, list[int]] = defaultdict(list)
    for row in stored("duplicate-key"):
        seen[tuple(row["state_embed"])].append(row["row_id"])
    expected = sorted((rows[0], rows[-1], len(rows)) for rows in seen.values() if len(rows) > 1)
    answer = asks("duplicate-key")("repeated-states")
    assert [(r["first_row"], r["last_row"], r["rows"]) for r in answer] == expected != []
    for row in answer:
        first = stored("duplicate-key")[row["first_row"]]
        told = (row["first_episode"], row["first_timestep"], row["first_agent"])
        assert told == (first["episode_id"], first["timestep"], first["agent_id"])
        assert row["episodes"] == row["agents"] == row["different_log_probs"] == 1
        assert not row["all_zeros"]
    assert healthy("repeated-states") == []


def test_versions_in_episode(asks: Callable[[str], Ask]) -> None:
    answer = asks("mixed-policy-version")("versions-in-episode", limit=100)
    groups = grouped(stored("mixed-policy-version"), "episode_id", "policy_version")
    episodes = Counter(episode for episode, _ in groups)
    expected = sorted(groups, key=lambda key: (-episodes[key[0]], key))
    assert [(row["episode_id"], row["policy_version"]) for row in answer] == expected
    assert of(answer[:2], "versions") == [2, 2]
    for row, key in zip(answer, expected, strict=True):
        steps = of(groups[key], "timestep")
        assert row["agents"] == len(set(of(groups[key], "agent_id")))
        assert (row["rows"], row["first_step"], row["last_step"]) == (
            len(steps),
            min(steps),
            max(steps),
        )


def test_nonfinite_rows(asks: Callable[[str], Ask]) -> None:
    expected = [r["row_id"] for r in stored("nonfinite-value") if not math.isfinite(r["advantage"])]
    answer = asks("nonfinite-value")("nonfinite-rows")
    assert of(answer, "row_id") == expected != []
    assert set(of(answer, "not_finite")) == {"advantage"}


def test_shared_between_agents(demo: Ask) -> None:
    steps = grouped(stored("demo"), "episode_id", "timestep").values()
    shared = sum(len({tuple(row["subset_indices"]) for row in step}) == 1 for step in steps)
    answer = demo("shared-between-agents")
    assert (answer[0]["quantity"], answer[0]["observed"]) == ("subset", shared)
    runs = demo("longest-runs", limit=1000)
    assert of(runs, "surprise") == sorted(of(runs, "surprise"), reverse=True)
    stretches = [r for r in runs if r["quantity"] == "subset"]
    assert len(stretches) >= shared > 0
    for run in stretches:
        same = [r["subset_indices"] for r in stored("demo")[run["first_row"] : run["last_row"] + 1]]
        assert same == [same[0]] * run["length"]


# Findings and causes


def test_findings_by_rule_and_rows_of_rule(demo: Ask, healthy: Ask) -> None:
    everything = demo("rows-of-rule", limit=10_000)
    listed = grouped(everything, "code")
    assert {row["code"]: row["findings"] for row in demo("findings-by-rule")} == {
        code: len(rows) for code, rows in listed.items()
    }
    for row in demo("findings-by-rule"):
        found = [r for r in listed[row["code"]] if r["row_id"] is not None]
        assert row["rows"] == len(found)
        assert row["first_row"] == min(of(found, "row_id"), default=None)
        assert row["episodes"] == len(set(of(found, "episode_id")))
        assert row["agents"] == len(set(of(found, "agent_id")))
        assert row["unexplained"] == of(found, "cause").count(None)
    wrong = [r["row_id"] for r in stored("demo") if not 0 <= r["action_index"] < r["num_actions"]]
    by_name = demo("rows-of-rule", rule="action-index-out-of-range")
    assert of(by_name, "row_id") == wrong != []
    assert by_name == demo("rows-of-rule", rule="su001")
    family = demo("rows-of-rule", rule="LP", limit=10_000)
    assert family == [row for row in everything if row["code"].startswith("LP")] != []
    assert demo("rows-of-rule", rule="LP", limit=2) == family[:2]
    assert healthy("rows-of-rule") == healthy("findings-by-rule") == []


def test_rows_of_cause_and_causes_by_episode(demo: Ask, healthy: Ask) -> None:
    everything = demo("rows-of-cause", limit=10_000)
    assert len({row["cause"] for row in everything}) > 1
    for cause, rows in grouped(everything, "cause").items():
        assert demo("rows-of-cause", cause=cause, limit=10_000) == rows
    by_episode = demo("causes-by-episode", limit=10_000)
    counted = Counter((row["cause"], row["episode_id"]) for row in everything)
    assert {(row["cause"], row["episode_id"]): row["rows"] for row in by_episode} == counted
    for row in by_episode:
        size = len(grouped(stored("demo"), "episode_id")[row["episode_id"]])
        assert row["episode_share"] == pytest.approx(row["rows"] / size)
        key = (row["cause"], row["episode_id"])
        hit = [r for r in everything if (r["cause"], r["episode_id"]) == key]
        steps = of(hit, "timestep")
        assert (row["first_step"], row["last_step"]) == (min(steps), max(steps))
        assert row["agents"] == len(set(of(hit, "agent_id")))
    order = [(row["cause"], row["confidence"], -row["rows"], row["episode_id"]) for row in by_episode]
    assert order == sorted(order)
    for row in everything:
        sample = stored("demo")[row["row_id"]]
        assert (row["episode_id"], row["timestep"], row["agent_id"]) == (
            sample["episode_id"],
            sample["timestep"],
            sample["agent_id"],
        )
    assert healthy("rows-of-cause") == healthy("causes-by-episode") == []


# Names and parameters


def test_a_file_is_its_registration() -> None:
    files = (Path(question.__file__).parent / "questions").glob("*.sql")
    assert question.names() == sorted(file.stem.replace("_", "-") for file in files)
    assert len(question.names()) >= 22
    assert question.load("worst_residuals") == question.load("worst-residuals")
    assert question.load("worst-residuals").parameters == {"limit": 20}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("worst-residual", "did you mean worst-residuals"),
        ("entropy", "entropy-by-k"),
        ("../../rules/x", "`--named list` shows them all"),
        ("", "`--named list` shows them all"),
    ],
)
def test_an_unknown_name_is_told_the_near_ones(name: str, told: str) -> None:
    with pytest.raises(UsageError, match="no question is called") as refused:
        question.load(name)
    assert told in str(refused.value)
    assert str(refused.value).endswith("`--named list` shows them all")


def test_parameters_replace_defaults() -> None:
    asked = question.load("rows-of-rule")
    assert question.with_parameters(asked, {}) == {"rule": "", "limit": 20}
    given = question.with_parameters(asked, {"limit": "7", "rule": "LP001"})
    assert given == {"rule": "LP001", "limit": 7}
    assert question.with_parameters(asked, {"limit": 5, "rule": 4}) == {"rule": "4", "limit": 5}
    assert asked.parameters == {"rule": "", "limit": 20}, "not changed itself"


def test_an_unknown_parameter_is_told_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match=r"rows-of-rule has no parameter 'rows'; it takes .*rule=.*limit=20"
    ):
        question.with_parameters(question.load("rows-of-rule"), {"rows": 1})
    with pytest.raises(UsageError, match="it takes none"):
        question.with_parameters(question.load("k-histogram"), {"limit": 1})


@pytest.mark.parametrize(
    "value", ["many", "", "2.5", "-1", "nan", "1e999", 2.5, -1, True, None, 10**30]
)
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"limit must be a whole number, not .*; say -p limit=20"):
        question.with_parameters(question.load("worst-residuals"), {"limit": value})


def test_a_number_may_have_a_fraction_where_its_default_has() -> None:
    asked = question.Question("own", "What?", "SELECT $least", parameters={"least": 0.5})
    assert question.with_parameters(asked, {"least": "-1e-3"}) == {"least": -0.001}
    for value in ("half", "inf", "nan", True, None):
        with pytest.raises(UsageError, match="least must be a number"):
            question.with_parameters(asked, {"least": value})
