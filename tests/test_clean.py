"""A buffer to retrain on: what is taken out, what is mended, and that nothing is ever half written."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from conftest import FIXTURES, HEALTHY, ROOT, bufcheck, failing, refused

import bufcheck as api
from bufcheck import fault, removal, repair

sys.path.insert(0, str(ROOT / "benchmarks" / "diagnosis"))

import cases as catalogue
import score
import worlds

ACTORS = str(FIXTURES / "actors" / "{agent_id}-{policy_version}.safetensors")
MANIFEST = json.loads((ROOT / "schemas" / "manifest.v1.schema.json").read_text())
KEY = ["episode_id", "timestep", "agent_id"]
CASES = catalogue.cases()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> worlds.World:
    return worlds.synthetic(tmp_path_factory.mktemp("world"), worlds.Shape(rows=3000), seed=1)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def changed(table: pa.Table, path: Path, **columns: Any) -> Path:
    """A copy of a dump with other values in some columns."""
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        field = table.schema.field(place)
        table = table.set_column(place, field, pa.array(values, field.type))
    pq.write_table(table, path, write_page_checksum=True)
    return path


def spoilt(path: Path, rows: list[int], name: str = "reward", value: float = float("nan")) -> Path:
    """The healthy dump with a bad value in some rows."""
    table = pq.read_table(HEALTHY)
    values = table.column(name).to_pylist()
    for row in rows:
        values[row] = value
    return changed(table, path, **{name: values})


def by_key(path: Path) -> pd.DataFrame:
    return pq.read_table(path).to_pandas().set_index(KEY)


def told(output: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Quarantine and manifest."""
    manifest = json.loads(output.with_name(output.stem + ".manifest.json").read_text())
    jsonschema.validate(manifest, MANIFEST)
    quarantine = pq.read_table(output.with_name(output.stem + ".quarantine.parquet")).to_pandas()
    return quarantine, manifest


# What is taken out


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_bad_rows_go_and_good_ones_stay(
    case: catalogue.Case, world: worlds.World, tmp_path: Path
) -> None:
    if reason := catalogue.reason_against(case, world):
        pytest.skip(reason)
    unit = case.units[-1 if len(case.label) % 2 else 0]
    target, hit = score.inject(score.Job(world, case, unit, 0.05, 3), tmp_path)
    wrong = np.flatnonzero(worlds.wrong(world, [target]))
    seen = hit if case.by_rules else np.intersect1d(hit, wrong)
    if case.fault in ("cloned-seeds", "ring-wraparound"):
        seen = np.array([], int)  # no row of them is wrong in itself
    before = sha256(target)
    output = tmp_path / "clean.parquet"
    share = 0.0 if case.fault == "agent-axis-reshape" else 0.5
    api.clean(str(target), output=output, actor=world.actor, min_valid=share)
    quarantine, manifest = told(output)
    gone = quarantine["row_id"].to_numpy()
    granted = worlds.twins([target], hit) if case.copies else hit
    assert len(np.intersect1d(gone, seen)) >= 0.99 * len(seen)
    assert len(np.intersect1d(gone, granted)) >= 0.99 * len(gone)
    assert manifest["rows_in"] == manifest["rows_kept"] + manifest["rows_dropped"]
    assert manifest["rows_dropped"] == len(gone)
    assert manifest["rows_kept"] == pq.read_metadata(output).num_rows
    assert manifest["rows_in"] == pq.read_metadata(target).num_rows
    assert sha256(target) == before == manifest["inputs"][0]["sha256"]
    assert sha256(output) == manifest["output"]["sha256"]
    assert api.validate(str(output), actor=world.actor)["verdict"] == "pass"


def test_the_quarantine_holds_whole_rows_and_why(tmp_path: Path) -> None:
    bad = tmp_path / "bad.parquet"
    fault.inject([str(HEALTHY)], bad, "placeholder-logprob", actor=ACTORS, fraction=0.1)
    output = tmp_path / "clean.parquet"
    api.clean(str(bad), output=output, actor=ACTORS, min_valid=0.5)
    quarantine, manifest = told(output)
    stored = pq.read_table(bad)
    whole = pq.read_table(tmp_path / "clean.quarantine.parquet").select(stored.column_names)
    assert whole.equals(stored.take(quarantine["row_id"].to_numpy()).combine_chunks())
    assert set(quarantine["cause"]) == {"placeholder-logprob"}
    assert set(quarantine["confidence"]) == {"proven"}
    assert all("log-prob-mismatch" in rules for rules in quarantine["rules"])
    assert (quarantine["stored_log_prob"] == quarantine["old_log_prob"]).all()
    original = by_key(HEALTHY).loc[pd.MultiIndex.from_frame(quarantine[KEY])]
    np.testing.assert_allclose(
        quarantine["replayed_log_prob"], original["old_log_prob"].to_numpy(), atol=1e-5
    )
    assert manifest["causes"] == [
        {"cause": "placeholder-logprob", "confidence": "proven", "rows": len(quarantine)}
    ]
    assert len(manifest["actors"]) == 9
    assert {len(actor["sha256"]) for actor in manifest["actors"]} == {64}


def test_what_stays_is_as_it_was(tmp_path: Path) -> None:
    bad = spoilt(tmp_path / "bad.parquet", [3, 100])
    output = tmp_path / "clean.parquet"
    api.clean(str(bad), output=output)
    before, after = pq.read_table(bad), pq.read_table(output)
    assert after.schema.remove_metadata() == before.schema.remove_metadata()
    kept = [i for i in range(before.num_rows) if i not in (3, 100)]
    assert after.replace_schema_metadata(None).equals(
        before.take(kept).combine_chunks().replace_schema_metadata(None)
    )
    old, new = (json.loads(t.schema.metadata[b"bufcheck"]) for t in (before, after))
    cleaned = new.pop("cleaned")
    assert cleaned == {
        "unit": "row",
        "rows_in": 354,
        "rows_dropped": 2,
        "manifest": "clean.manifest.json",
    }
    assert new == old | {"rows": 352}


def test_a_healthy_dump_stays_whole(tmp_path: Path) -> None:
    output = tmp_path / "clean.h5"
    out = bufcheck("clean", HEALTHY, "-o", output, "--actor", ACTORS)
    assert out.code == 0, out.err
    assert "354 of 354 rows kept (100.00%), 0 dropped" in out.out
    assert "read again and checked: pass" in out.out
    _, manifest = told(output)
    assert manifest["rows_dropped"] == 0
    assert manifest["verification"] == {"verdict": "pass", "unverified": [], "failed": []}
    assert bufcheck("validate", output, "--actor", ACTORS).code == 0


def shuffled(path: Path, seed: int) -> Path:
    """The healthy dump in another order, with columns of types that are easily lost."""
    rng = np.random.default_rng(seed)
    table = pq.read_table(HEALTHY)
    count = table.num_rows
    named = pa.array([f"w{i % 3}" for i in range(count)]).dictionary_encode()
    table = (
        table.append_column("x_worker", named)
        .append_column("x_nested", pa.array([[{"a": i, "b": str(i)}] for i in range(count)]))
        .append_column("x_half", pa.array(np.arange(count).astype(np.float16)))
        .append_column("x_time", pa.array(range(count), pa.timestamp("us", "UTC")))
    )
    table = table.take(rng.permutation(count))
    pq.write_table(table, path, row_group_size=50, write_page_checksum=True)
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".h5"])
def test_rows_are_put_in_order(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bufcheck.rewriting.STRETCH_BYTES", 8_000)  # many stretches
    bad = shuffled(tmp_path / "bad.parquet", seed=2)
    output = tmp_path / f"clean{suffix}"
    api.clean(str(bad), output=output)
    read = tmp_path / "read.parquet"
    api_table = output
    if suffix == ".h5":
        assert bufcheck("convert", output, read).code == 0
        api_table = read
    after = pq.read_table(api_table).replace_schema_metadata(None)
    before = pq.read_table(bad).replace_schema_metadata(None)
    plain = before.set_column(2, "agent_id", before.column("agent_id").cast("string"))
    order = pc.sort_indices(plain, [(name, "ascending") for name in KEY])
    expected = before.take(order)
    assert after.schema.names == expected.schema.names
    for name in expected.column_names:
        assert after.column(name).to_pylist() == expected.column(name).to_pylist(), name
        assert after.column(name).type == expected.column(name).type, name


def test_files_and_a_folder(tmp_path: Path) -> None:
    table = pq.read_table(HEALTHY)
    folder = tmp_path / "parts"
    folder.mkdir()
    described = json.loads(table.schema.metadata[b"bufcheck"])
    for i in range(3):
        part = table.slice(i * 118, 118)
        metadata = {"bufcheck": json.dumps(described | {"rows": 118})}
        pq.write_table(part.replace_schema_metadata(metadata), folder / f"part-{2 - i}.parquet")
    output = tmp_path / "clean.parquet"
    api.clean(str(folder), output=output, actor=ACTORS)
    assert (
        pq.read_table(output).replace_schema_metadata(None).equals(table.replace_schema_metadata(None))
    )
    _, manifest = told(output)
    assert [entry["rows"] for entry in manifest["inputs"]] == [118] * 3
    why = refused(bufcheck("clean", folder, "-o", folder / "clean.parquet"))
    assert "would be part of that dump" in why


def test_a_foreign_dump_becomes_one_of_ours(tmp_path: Path) -> None:
    table = pq.read_table(HEALTHY).replace_schema_metadata(None)
    names = ["ep" if n == "episode_id" else n for n in table.column_names]
    pq.write_table(table.rename_columns(names), tmp_path / "foreign.parquet")
    (tmp_path / "bufcheck.toml").write_text(
        '[columns]\nepisode_id = "ep"\n[policy]\nlogits = "gather"\naction_space = 20\n'
    )
    out = bufcheck("clean", "foreign.parquet", "-o", "clean.parquet", "--actor", ACTORS, cwd=tmp_path)
    assert out.code == 0, out.err
    assert bufcheck("validate", tmp_path / "clean.parquet", "--actor", ACTORS).code == 0


def test_a_warning_removes_nothing_unless_it_is_selected(tmp_path: Path) -> None:
    table = pq.read_table(HEALTHY)
    states = table.column("state_embed").to_pylist()
    states[5] = [0.0] * 8
    bad = changed(table, tmp_path / "bad.parquet", state_embed=states)
    assert failing(api.validate(str(bad)))["zero-state"] == 1
    kept = api.clean(str(bad), output=tmp_path / "a.parquet")
    assert kept["rows_dropped"] == 0
    family = api.clean(str(bad), output=tmp_path / "b.parquet", select=["values"])
    assert family["rows_dropped"] == 0
    named = api.clean(str(bad), output=tmp_path / "c.parquet", select=["values,zero-state"])
    assert named["rules"] == {"zero-state": 1}
    both = spoilt(tmp_path / "both.parquet", [9])
    both = changed(pq.read_table(both), both, state_embed=states)
    every = api.clean(str(both), output=tmp_path / "d.parquet", select=["all,zero-state"])
    assert every["rules"] == {"nonfinite-value": 1, "zero-state": 1}


def test_a_team_s_own_rule_removes_rows(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "late.sql").write_text(
        '/*\ncode = "OWN1"\nname = "too-late"\nseverity = "error"\nscope = "row"\nremoves = true\n'
        'needs = ["digest.timestep"]\nsummary = "s"\nwhy = "w"\ncause = "c"\nremedy = "r"\n'
        'message = "step {timestep}"\n*/\nSELECT row_id, timestep FROM digest WHERE timestep > 8\n'
    )
    done = api.clean(
        str(HEALTHY), output=tmp_path / "c.parquet", rules=tmp_path / "rules", min_valid=0.1
    )
    assert done["rules"].keys() == {"too-late"}
    assert by_key(tmp_path / "c.parquet").index.get_level_values("timestep").max() == 8


# Units


def reference(table: pd.DataFrame, bad: set[int], unit: str) -> pd.DataFrame:
    """What a unit leaves of a dump without copies, in plain loops; `end` marks the cut ends."""
    kept = []
    for _, rows in table.groupby("episode_id", sort=True):
        holes = sorted({t for t, i in zip(rows["timestep"], rows["row"], strict=True) if i in bad})
        if unit == "episode" and holes:
            continue
        part = rows
        if holes and unit == "tail":
            part = rows[rows["timestep"] < holes[0]]
        elif holes and unit == "joint":
            part = rows[~rows["timestep"].isin(holes)]
        kept.append(part)
    left = pd.concat(kept).copy()
    present = set(left["row"])
    value = {}
    for (_, _), rows in table.groupby(["episode_id", "agent_id"]):
        ordered = rows.sort_values("timestep")
        following = list(zip(ordered["row"], ordered["value"], strict=True))[1:]
        for row, done, (after, worth) in zip(
            ordered["row"], ordered["terminated"] | ordered["truncated"], following, strict=False
        ):
            if row in present and after not in present and not done:
                value[row] = worth
    left["end"] = left["row"].isin(value)
    left["next_value"] = left["row"].map(value)
    return left


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("unit", ["tail", "joint", "episode"])
def test_units_leave_no_hole(tmp_path: Path, unit: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    most = 6 if unit == "episode" else 25
    bad_rows = sorted(rng.choice(354, size=int(rng.integers(1, most)), replace=False).tolist())
    column = ["old_log_prob", "reward"][seed % 2]
    bad = spoilt(
        tmp_path / "bad.parquet", bad_rows, column, 0.5 if column == "old_log_prob" else np.nan
    )
    before = failing(api.validate(str(bad), actor=ACTORS))
    output = tmp_path / "clean.parquet"
    api.clean(str(bad), output=output, unit=unit, actor=ACTORS, min_valid=0)
    _, manifest = told(output)
    report = api.validate(str(output), actor=ACTORS)
    after = failing(report)
    for name in ("timestep-gap", "missing-agent-step", "done-not-last", "row-after-done"):
        assert after.get(name, 0) <= before.get(name, 0)
        assert next(r for r in report["rules"] if r["name"] == name)["status"] == "pass"
    table = pq.read_table(bad).to_pandas()
    table["row"] = range(len(table))
    expected = reference(table, set(bad_rows), unit)
    got = pq.read_table(output).to_pandas()
    origin = got["x_cut_from"].fillna(got["episode_id"]) if "x_cut_from" in got else got["episode_id"]
    got = got.set_index(
        pd.MultiIndex.from_arrays([origin.astype(int), got["timestep"], got["agent_id"]])
    )
    expected = expected.set_index(KEY).loc[got.index]
    assert len(expected) == manifest["rows_kept"]
    newly = got["truncated"].to_numpy() & ~expected["truncated"].to_numpy()
    assert (newly == expected["end"].to_numpy()).all()
    stated = {entry["why_not"]: entry["rows"] for entry in manifest["ends"]}
    if column == "old_log_prob":  # the value of the next row is not what is wrong with it
        np.testing.assert_array_equal(got["bootstrap_value"][newly], expected["next_value"][newly])
        assert stated == ({None: int(newly.sum())} if newly.any() else {})
    else:
        doubted = got["bootstrap_value"][newly].isna().sum()
        assert sum(rows for why, rows in stated.items() if why) == doubted
    unchanged = got[~newly]
    assert unchanged["bootstrap_value"].equals(expected["bootstrap_value"][~newly])
    assert unchanged["truncated"].equals(expected["truncated"][~newly])


def test_a_cut_end_where_truncation_is_folded_into_the_reward(tmp_path: Path) -> None:
    table = pq.read_table(spoilt(tmp_path / "bad.parquet", [30], "old_log_prob", 0.5))
    described = json.loads(table.schema.metadata[b"bufcheck"])
    described["advantage"]["truncation"] = "folded_into_reward"
    folded = table.replace_schema_metadata({"bufcheck": json.dumps(described)})
    pq.write_table(folded, tmp_path / "folded.parquet")
    output = tmp_path / "clean.parquet"
    api.clean(str(tmp_path / "folded.parquet"), output=output, unit="tail", actor=ACTORS, min_valid=0)
    before, after = by_key(tmp_path / "folded.parquet"), by_key(output)
    before = before.loc[after.index]
    cut = after["truncated"] & ~before["truncated"]
    assert cut.sum() == 3
    episode, step, _ = after[cut].index[0]
    for agent in ("EDU", "IND", "LAB"):
        value = by_key(tmp_path / "folded.parquet").loc[episode, step + 1, agent]["value"]
        gained = after.loc[episode, step, agent]["reward"] - before.loc[episode, step, agent]["reward"]
        assert gained == pytest.approx(0.99 * value, abs=1e-6)
    assert (after["reward"][~cut] == before["reward"][~cut]).all()


def test_without_advantages_the_default_is_tail(tmp_path: Path) -> None:
    bad = spoilt(tmp_path / "bad.parquet", [40])
    lean = pq.read_table(bad).drop_columns(["advantage", "return", "bootstrap_value"])
    pq.write_table(lean, tmp_path / "lean.parquet")
    done = api.clean(str(tmp_path / "lean.parquet"), output=tmp_path / "c.parquet", min_valid=0)
    assert done["options"]["unit"] == "tail"
    assert "no advantage is stored" in done["options"]["unit_because"]
    assert "bootstrap_value" in pq.read_schema(tmp_path / "c.parquet").names
    why = refused(
        bufcheck("clean", tmp_path / "lean.parquet", "-o", tmp_path / "d.parquet", "--unit", "row")
    )
    assert "leaves holes" in why
    assert "--unit tail" in why
    assert not (tmp_path / "d.parquet").exists()


def test_copies_and_padding_leave_no_hole(tmp_path: Path) -> None:
    for name in ("duplicate-rows", "unfilled-rows", "dead-agent-padding"):
        bad = tmp_path / f"{name}.parquet"
        fault.inject([str(HEALTHY)], bad, name, actor=ACTORS, fraction=0.1, unit="episodes")
        rows = len(pq.read_table(bad.with_suffix(".truth.parquet")))
        for unit in ("tail", "joint", "episode"):
            output = tmp_path / f"{name}-{unit}.parquet"
            done = api.clean(str(bad), output=output, unit=unit, actor=ACTORS, min_valid=0.5)
            assert done["rows_dropped"] == rows, (name, unit)
            assert done["ends"] == []


def test_after_single_rows_are_gone_a_gap_is_no_finding(tmp_path: Path) -> None:
    bad = spoilt(tmp_path / "bad.parquet", list(range(30, 33)))
    output = tmp_path / "clean.parquet"
    done = api.clean(str(bad), output=output, actor=ACTORS)
    assert done["verification"]["verdict"] == "pass"
    status = {r["name"]: r["reason"] for r in api.validate(str(output), actor=ACTORS)["rules"]}
    assert "took rows out" in status["timestep-gap"]


# Repairs


def mended(bad: Path, output: Path, actor: str, *repairs: str) -> dict[str, Any]:
    return api.clean(str(bad), output=output, actor=actor, repair=repairs, min_valid=0)


@pytest.mark.parametrize("fraction", [0.1, 1.0])
@pytest.mark.parametrize(
    ("name", "parameters", "repaired"),
    [
        ("logprob-row-shift", {}, "realign"),
        ("logprob-row-shift", {"offset": -1}, "realign"),
        ("logprob-row-shift", {"order": "storage"}, "realign"),
        ("minibatch-permutation", {}, "realign"),
        ("minibatch-permutation", {"block": 64}, "realign"),
        ("agent-rows-crossed", {}, "realign"),
        ("valid-filter-desync", {}, "realign"),
        ("logprob-transform", {"kind": "prob"}, "log-prob"),
        ("logprob-transform", {"kind": "log10"}, "log-prob"),
        ("mask-not-applied", {}, "log-prob"),
        ("double-softmax", {}, "log-prob"),
        ("temperature-unaccounted", {}, "log-prob"),
    ],
    ids=lambda value: str(value),
)
def test_log_probs_are_mended(
    world: worlds.World, tmp_path: Path, name: str, parameters: Any, repaired: str, fraction: float
) -> None:
    bad, output = tmp_path / "bad.parquet", tmp_path / "clean.parquet"
    unit = "episodes" if name == "valid-filter-desync" else "rows"
    fault.inject(
        world.paths,
        bad,
        name,
        actor=(world.actor,),
        fraction=fraction,
        seed=4,
        unit=unit,
        parameters=parameters,
    )
    done = mended(bad, output, world.actor, repaired)
    assert done["rows_dropped"] == 0
    assert done["verification"]["verdict"] == "pass"
    original, after = by_key(world.dumps[0]), by_key(output)
    assert (original.index == after.index).all()
    np.testing.assert_allclose(after["old_log_prob"], original["old_log_prob"], atol=1e-5)
    marked = after["x_repaired"].notna()
    assert set(after["x_repaired"][marked]) == {repaired}
    assert done["rows_repaired"] == {repaired: int(marked.sum())}
    stored = by_key(bad)
    moved = (stored["old_log_prob"] - original["old_log_prob"]).abs() > 1e-3
    assert marked[moved].all()


@pytest.mark.parametrize("fraction", [0.1, 1.0])
@pytest.mark.parametrize("stored", [(), ("action_id",), ("action_id", "logits")], ids=str)
def test_the_order_of_subsets_is_mended(tmp_path: Path, stored: Any, fraction: float) -> None:
    world = worlds.synthetic(tmp_path, worlds.Shape(rows=2000, masked=True, stored=stored), seed=1)
    bad, output = tmp_path / "bad.parquet", tmp_path / "clean.parquet"
    fault.inject(world.paths, bad, "subset-order-lost", actor=(world.actor,), fraction=fraction)
    done = mended(bad, output, world.actor, "subset-order")
    if fraction == 1 and not stored:
        # With every subset sorted, and no id stored, nothing proves that they once were not.
        assert done["rows_repaired"] == {"subset-order": 0}
        return
    # Two members with the same log-prob cannot be told apart: such a row is dropped.
    assert done["rows_dropped"] <= 0.005 * done["rows_in"]
    after = by_key(output)
    original = by_key(world.dumps[0]).loc[after.index]
    for row, before in zip(after.itertuples(), original.itertuples(), strict=True):
        assert row.subset_indices[row.action_index] == before.subset_indices[before.action_index]
    np.testing.assert_allclose(after["old_log_prob"], original["old_log_prob"], atol=1e-5)
    assert done["verification"]["verdict"] == "pass"


@pytest.mark.parametrize("with_actor", [True, False])
def test_num_actions_is_mended(tmp_path: Path, with_actor: bool) -> None:
    table = pq.read_table(HEALTHY)
    rng = np.random.default_rng(0)
    counts = table.column("num_actions").to_numpy() + rng.integers(-1, 3, table.num_rows)
    bad = changed(table, tmp_path / "bad.parquet", num_actions=counts)
    output = tmp_path / "clean.parquet"
    actor = {"actor": ACTORS} if with_actor else {}
    done = api.clean(str(bad), output=output, repair="num-actions", min_valid=0, **actor)
    assert done["rows_dropped"] == 0
    assert done["rows_repaired"]["num-actions"] > 200
    assert by_key(output).drop(columns="x_repaired").equals(by_key(HEALTHY))


def test_copies_are_marked(tmp_path: Path) -> None:
    bad, output = tmp_path / "bad.parquet", tmp_path / "clean.parquet"
    fault.inject([str(HEALTHY)], bad, "duplicate-rows", actor=ACTORS, fraction=0.1)
    done = mended(bad, output, ACTORS, "duplicates")
    assert done["rows_repaired"]["duplicates"] == done["rows_dropped"] == 35
    assert by_key(output).drop(columns="x_repaired").equals(by_key(HEALTHY))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("state-aliased-next", {}),
        ("action-shifted", {}),
        ("subset-shifted", {}),
        ("subset-broadcast", {}),
        ("agent-rows-crossed", {"column": "subset_indices"}),
        ("sampled-twice", {}),
        ("argmax-stored", {}),
        ("stale-policy-version", {}),
        ("agent-actor-swap", {}),
        ("temperature-unaccounted", {"temperature": 1.5, "mode": "sampled"}),
        ("eps-explore-unaccounted", {"epsilon": 0.25, "mode": "sampled"}),
    ],
    ids=lambda value: str(value),
)
def test_what_cannot_be_proven_is_dropped(
    world: worlds.World, tmp_path: Path, name: str, parameters: Any
) -> None:
    """A right log-prob of a wrong sample would hide the bug."""
    bad, output = tmp_path / "bad.parquet", tmp_path / "clean.parquet"
    fault.inject(
        world.paths, bad, name, actor=(world.actor,), fraction=0.2, seed=2, parameters=parameters
    )
    wrong = np.flatnonzero(worlds.wrong(world, [bad]))
    mended(bad, output, world.actor, "all")
    quarantine, _ = told(output)
    assert set(wrong) <= set(quarantine["row_id"])


def test_an_actor_that_nothing_confirms_mends_nothing(world: worlds.World, tmp_path: Path) -> None:
    bad = tmp_path / "bad.parquet"
    fault.inject(world.paths, bad, "placeholder-logprob", actor=(world.actor,), fraction=1.0)
    done = mended(bad, tmp_path / "clean.parquet", world.actor, "log-prob")
    assert done["rows_repaired"] == {"log-prob": 0}


def test_names_of_repairs_and_units() -> None:
    assert repair.names() == list(repair.ORDER)
    assert set(removal.units()) == {"row", "tail", "joint", "episode"}
    assert all((repair.load(name).__doc__ or "").strip() for name in repair.names())


# Gates


def test_output_that_is_the_source_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "dump.parquet"
    source.write_bytes(HEALTHY.read_bytes())
    (tmp_path / "symlink.parquet").symlink_to(source)
    os.link(source, tmp_path / "hardlink.parquet")
    before = {p.name: sha256(p) for p in tmp_path.iterdir()}
    for name in ("dump.parquet", "symlink.parquet", "hardlink.parquet"):
        for force in ([], ["--force"]):
            why = refused(bufcheck("clean", source, "-o", tmp_path / name, *force))
            assert "is the dump itself" in why
    assert {p.name: sha256(p) for p in tmp_path.iterdir()} == before


def test_files_in_the_way_are_refused(tmp_path: Path) -> None:
    output = tmp_path / "clean.parquet"
    for name in ("clean.parquet", "clean.quarantine.parquet", "clean.manifest.json"):
        (tmp_path / name).write_text("mine")
        assert "exists already" in refused(bufcheck("clean", HEALTHY, "-o", output))
        assert [p.name for p in tmp_path.iterdir()] == [name]
        (tmp_path / name).unlink()
    assert bufcheck("clean", HEALTHY, "-o", output).code == 0
    assert bufcheck("clean", HEALTHY, "-o", output, "--force").code == 0
    told(output)


def test_too_few_rows_left_is_refused(tmp_path: Path) -> None:
    bad = spoilt(tmp_path / "bad.parquet", list(range(0, 354, 5)))
    output = tmp_path / "clean.parquet"
    why = refused(bufcheck("clean", bad, "-o", output))
    assert "only 79.94% of the rows would be left (nonfinite-value 71)" in why
    suggested = why.rsplit(" ", 1)[1]
    assert bufcheck("clean", bad, "-o", output, "--min-valid", suggested).code == 0
    nothing = spoilt(tmp_path / "none.parquet", list(range(354)))
    why = refused(bufcheck("clean", nothing, "-o", tmp_path / "x.parquet", "--min-valid", "0"))
    assert "no row would be left" in why


def test_a_dump_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    table = pq.read_table(HEALTHY)
    described = json.loads(table.schema.metadata[b"bufcheck"]) | {"rows": 400}
    cut = tmp_path / "cut.parquet"
    pq.write_table(table.replace_schema_metadata({"bufcheck": json.dumps(described)}), cut)
    why = refused(bufcheck("clean", cut, "-o", tmp_path / "clean.parquet"))
    assert "would look whole" in why
    told_so = ["--ignore", "truncated-dump"]
    assert bufcheck("clean", cut, "-o", tmp_path / "clean.parquet", *told_so).code == 0


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    bad = spoilt(tmp_path / "bad.parquet", [3, 4])
    out = bufcheck("clean", bad, "-o", tmp_path / "clean.parquet", "--dry-run")
    assert out.code == 0
    assert "352 of 354 rows would be kept (99.44%), 2 would be dropped" in out.out
    assert "nothing was written" in out.out
    assert [p.name for p in tmp_path.iterdir()] == ["bad.parquet"]
    out = bufcheck("clean", bad, "-o", tmp_path / "clean.parquet", "--dry-run", "--format", "json")
    assert json.loads(out.out)["rows_dropped"] == 2


def test_json_is_the_manifest(tmp_path: Path) -> None:
    output = tmp_path / "clean.parquet"
    out = bufcheck("clean", HEALTHY, "-o", output, "--format", "json")
    assert json.loads(out.out) == told(output)[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "clean.txt"], "the suffix says no format"),
        (["-o", "nowhere/clean.parquet"], "No such file or directory"),
        (["-o", "c.parquet", "--repair", "magic"], "is no repair"),
        (["-o", "c.parquet", "--select", "nonsense"], "no rule is called"),
    ],
)
def test_bad_requests(tmp_path: Path, arguments: list[str], words: str) -> None:
    assert words in refused(bufcheck("clean", HEALTHY, *arguments, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []
