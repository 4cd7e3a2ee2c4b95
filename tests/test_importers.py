"""`bufcheck convert --from`: what other tools stored becomes a dump in which nothing has moved."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import pickle
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import foreign
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import CAMPAIGN, HEALTHY, ROOT, bufcheck, failing, refused
from foreign import SAMPLES, Sample

import bufcheck as api
from bufcheck import importer, schema
from bufcheck.config import Config
from bufcheck.errors import BufcheckError, ForeignError, NoDumpError
from bufcheck.importer import Asked, Imported, import_dump
from bufcheck.importers import _names

MUTATIONS = 150 if CAMPAIGN else 15


def brought(
    name: str, source: Path | list[Path], target: Path, *, config: Config | None = None, **asked: Any
) -> tuple[pa.Table, Imported]:
    paths = source if isinstance(source, list) else [source]
    wanted = Asked(config or Config(), **asked)
    done = import_dump(name, [str(path) for path in paths], target, wanted, force=True)
    return pq.read_table(target), done


def refusal(name: str, source: Path | list[Path], tmp_path: Path, **asked: Any) -> str:
    """Asserts one line with a next step, and nothing written."""
    with pytest.raises(ForeignError) as caught:
        brought(name, source, tmp_path / "refused.parquet", **asked)
    message = str(caught.value)
    assert "\n" not in message and "; " in message
    assert not list(tmp_path.glob("refused*")) and not list(tmp_path.glob(".bufcheck*"))
    return message


def policy(**settings: Any) -> Config:
    return Config(metadata={f"policy.{name}": value for name, value in settings.items()})


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def content(path: Path) -> dict[str, str]:
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


# Every importer, every sample


def test_every_importer_has_a_sample_a_page_and_an_example() -> None:
    page = (ROOT / "docs" / "importers.md").read_text()
    help_text = bufcheck("convert", "--help").out
    assert {sample.importer for sample in SAMPLES.values()} == set(importer.names())
    for name in importer.names():
        member = importer.member(name)
        assert inspect.getdoc(member) and f"## {name}\n" in page
        assert f"--from {name} " in member.EXAMPLE and member.EXAMPLE in help_text


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_a_sample_becomes_a_dump_that_its_actor_confirms(sample: Sample, tmp_path: Path) -> None:
    source = sample.write(tmp_path, 0)
    before = content(source)
    table, done = brought(sample.importer, source, tmp_path / "dump.parquet")
    assert content(source) == before
    assert done.rows == len(table) == sample.rows
    report = api.validate(tmp_path / "dump.parquet", actor=sample.actor())
    assert failing(report) == {}
    assert report["verdict"] == "pass"
    states = np.stack(table["state_embed"].to_pylist())
    assert table["timestep"].to_pylist() == states[:, 0].astype(int).tolist()
    keys = table.select(["episode_id", "timestep", "agent_id"])
    assert keys == keys.sort_by([(name, "ascending") for name in keys.column_names])


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_log_probs_of_other_rows_are_found(sample: Sample, tmp_path: Path) -> None:
    brought(sample.importer, sample.write(tmp_path, 1), tmp_path / "dump.parquet")
    report = api.validate(tmp_path / "dump.parquet", actor=sample.actor())
    assert report["verdict"] == "fail"
    assert "log-prob-mismatch" in failing(report)


@pytest.mark.parametrize("name", ["minari-hdf5", "d4rl", "rllib-json", "npz-envs", "pickle-steps"])
def test_without_from_the_error_ends_with_the_importer(name: str, tmp_path: Path) -> None:
    sample = SAMPLES[name]
    source = sample.write(tmp_path, 0)
    for command in (["validate", source], ["convert", source, tmp_path / "dump.parquet"]):
        end = f"try bufcheck convert --from {sample.importer} {source} OUT.parquet"
        assert refused(bufcheck(*command)).endswith(end)


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_every_sample_is_recognised_by_its_importer_alone(sample: Sample, tmp_path: Path) -> None:
    source = sample.write(tmp_path, 0)
    known = importer.hint(NoDumpError(f"{source}: is no dump"))
    assert known == f"try bufcheck convert --from {sample.importer} {source} OUT.parquet"


def damaged(source: Path, folder: Path, rng: random.Random) -> Path:
    """A copy with some bytes of one file changed, cut off or put in."""
    copy = folder / source.name
    if source.is_dir():
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(source, copy)
    else:
        shutil.copy(source, copy)
    files = [copy] if copy.is_file() else sorted(p for p in copy.rglob("*") if p.is_file())
    file = rng.choice(files)
    data = bytearray(file.read_bytes())
    for _ in range(rng.choice((1, 1, 3, 20))):
        at = rng.randrange(len(data))
        data[at] = rng.choice((0, 0xFF, data[at] ^ (1 << rng.randrange(8)), rng.randrange(256)))
    cut = rng.randrange(len(data)) if rng.random() < 0.25 else len(data)
    file.write_bytes(bytes(data[:cut]))
    return copy


@pytest.mark.parametrize("name", SAMPLES)
def test_damage_is_one_line_or_harmless(name: str, tmp_path: Path) -> None:
    sample = SAMPLES[name]
    source = sample.write(tmp_path, 0)
    (tmp_path / "copies").mkdir()
    rng = random.Random(name)
    for _ in range(MUTATIONS):
        copy = damaged(source, tmp_path / "copies", rng)
        try:
            brought(sample.importer, copy, tmp_path / "out.parquet")
        except BufcheckError as error:
            assert "\n" not in str(error)
        importer.hint(NoDumpError(f"{copy}: is no dump"))


# The command


def test_the_command_says_what_it_read_assumed_and_missed(tmp_path: Path) -> None:
    source, target = foreign.npz_envs(tmp_path), tmp_path / "dump.h5"
    ran = bufcheck("convert", "--from", "npz", source, target)
    assert ran.code == 0 and ran.out == f"{target}: 72 rows\n"
    assert "read: state_embed from obs, " in ran.err and "old_log_prob from logprobs" in ran.err
    assert "assumed: the first axes are time × env" in ran.err
    assert "not in the source: advantage, return, truncated" in ran.err
    assert "rules that need them will read not-checked" in ran.err
    assert "say --force" in refused(bufcheck("convert", "--from", "npz", source, target))
    assert bufcheck("convert", "--from", "npz", source, target, "--force").code == 0


def test_a_source_without_log_probs_is_written_and_said_so(tmp_path: Path) -> None:
    source = foreign.d4rl(tmp_path)
    with h5py.File(source, "a") as file:
        del file["infos/action_log_probs"]
    _, done = brought("d4rl", source, tmp_path / "dump.parquet")
    missing = "not in the source, but required: old_log_prob; validate will say missing-column"
    assert missing in done.told
    report = api.validate(tmp_path / "dump.parquet")
    assert failing(report) == {"missing-column": 0}
    [rule] = [rule for rule in report["rules"] if rule["name"] == "missing-column"]
    [example] = rule["examples"]
    assert "column old_log_prob" in example["message"]


def test_bad_requests_are_one_line(tmp_path: Path) -> None:
    source, target = foreign.npz_time(tmp_path), tmp_path / "dump.parquet"
    unknown = bufcheck("convert", "--from", "gym", source, target)
    assert unknown.code == 2 and "none of d4rl, minari, npz, pickle, rllib" in unknown.err
    ask = ["convert", "--from", "npz", source, target]
    assert "say OURS=THEIRS" in refused(bufcheck(*ask, "--column", "reward"))
    assert "no column of experience/1" in refused(bufcheck(*ask, "--column", "rewards=reward"))
    nothing = refused(bufcheck(*ask, "--column", "reward=gains"))
    assert "has nothing called 'gains'; mend --column" in nothing
    assert "not the names of axes" in refused(bufcheck(*ask, "--axes", "time,batch"))
    gone = refused(bufcheck("convert", "--from", "npz", tmp_path / "no.npz", target))
    assert gone.endswith("no such file or folder")
    twice = refused(bufcheck("convert", "--from", "npz", source, source, target))
    assert "given twice" in twice
    assert "suffix" in refused(bufcheck("convert", "--from", "npz", source, tmp_path / "dump.csv"))
    axes = refused(bufcheck("convert", "--from", "d4rl", source, target, "--axes", "time"))
    assert "--axes means nothing to --from d4rl" in axes


def test_a_checkpoint_is_not_taken_for_experience(tmp_path: Path) -> None:
    torch.save(foreign.categorical_actor().state_dict(), tmp_path / "actor.pt")
    message = refused(bufcheck("validate", HEALTHY, "--actor", tmp_path / "actor.pt"))
    assert "--arch" in message and "--from" not in message


def test_a_source_is_not_its_own_target(tmp_path: Path) -> None:
    source = foreign.rllib_rows(tmp_path)
    before = content(source)
    message = refused(bufcheck("convert", "--from", "rllib", "--force", source, source))
    assert "is the dump itself" in message and content(source) == before


# Names


def test_usual_names_mean_one_thing_each() -> None:
    table = _names._table()["columns"]
    known = {*schema.load().columns, *_names.HELPERS}
    assert set(table) <= known
    names = [name for aliases in table.values() for name in aliases]
    assert len(set(names)) == len(names)
    assert not set(names) & known


def test_columns_may_be_named_by_the_user(tmp_path: Path) -> None:
    states, dones, rewards = foreign.rollout()
    acted = foreign.act(states)
    source = saved(
        tmp_path / "a.npz",
        x=states, u=acted.actions, lp=acted.log_probs, r=rewards, dones=dones, values=rewards,
    )  # fmt: skip
    (tmp_path / "bufcheck.toml").write_text(
        '[columns]\nstate_embed = "x"\naction_index = "u"\nold_log_prob = "r"\n'
        "[policy]\naction_space = 3\n[advantage]\ngamma = 0.9\n"
    )
    given = ["--column", "old_log_prob=lp", "--column", "reward=r"]
    ran = bufcheck("convert", "--from", "npz", source.name, "dump.parquet", *given, cwd=tmp_path)
    assert ran.code == 0, ran.err
    (tmp_path / "bufcheck.toml").unlink()
    assert (
        api.validate(tmp_path / "dump.parquet", actor=foreign.categorical_actor())["verdict"] == "pass"
    )
    described = json.loads(pq.read_schema(tmp_path / "dump.parquet").metadata[b"bufcheck"])
    assert described["advantage"] == {"gamma": 0.9}
    assert described["policy"]["action_space"] == 3
    assert described["producer"]["name"] == "bufcheck convert --from npz"


def test_what_means_nothing_to_the_schema_is_carried_along(tmp_path: Path) -> None:
    table, done = brought("d4rl", foreign.d4rl(tmp_path), tmp_path / "dump.parquet")
    after = np.concatenate([one.states[1:] for one in foreign.episodes()])
    assert np.array_equal(np.stack(table["x_next_observations"].to_pylist()), after)
    assert np.array_equal(np.stack(table["x_infos_qpos"].to_pylist())[:, 0], table["timestep"])
    assert "carried along: x_infos_qpos, x_next_observations" in done.told


# Policies


def one_rollout(**arrays: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "obs": rng.normal(size=(12, 4)).astype(np.float32),
        "actions": rng.integers(0, 3, 12),
        "rewards": rng.normal(size=12),
        "log_probs": np.full(12, -1.0),
        **arrays,
    }


def settled(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pq.read_schema(path).metadata[b"bufcheck"])["policy"]
    return found


def test_how_many_actions_there_are_is_not_guessed(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.npz", **one_rollout())
    message = refusal("npz", source, tmp_path)
    assert message.endswith("say [policy] action_space = N in bufcheck.toml")
    table, _ = brought("npz", source, tmp_path / "o.parquet", config=policy(action_space=7))
    assert table["num_actions"].unique().to_pylist() == [7]
    wide = saved(
        tmp_path / "b.npz", **one_rollout(logits=np.zeros((12, 5)), action_masks=np.ones((12, 5)))
    )
    brought("npz", wide, tmp_path / "o.parquet")
    assert settled(tmp_path / "o.parquet") == {
        "distribution": "categorical", "subset": "all", "action_space": 5,
    }  # fmt: skip
    odd = saved(
        tmp_path / "c.npz", **one_rollout(logits=np.zeros((12, 5)), action_masks=np.ones((12, 4)))
    )
    assert "cannot both be right" in refusal("npz", odd, tmp_path)


def test_factored_and_doubtful_actions_are_refused(tmp_path: Path) -> None:
    factored = saved(tmp_path / "a.npz", **one_rollout(actions=np.zeros((12, 2), int)))
    assert "factored policy has several log-probs" in refusal("npz", factored, tmp_path)
    doubtful = saved(tmp_path / "b.npz", **one_rollout(actions=np.arange(12) % 3 * 1.0))
    assert 'distribution = "categorical" and action_space = N' in refusal("npz", doubtful, tmp_path)
    config = policy(distribution="categorical", action_space=3)
    table, _ = brought("npz", doubtful, tmp_path / "o.parquet", config=config)
    assert table["action_index"].to_pylist() == [0, 1, 2] * 4
    broken = saved(tmp_path / "c.npz", **one_rollout(actions=np.arange(12) % 3 * 0.5))
    assert "not whole" in refusal("npz", broken, tmp_path, config=config)
    none = saved(tmp_path / "d.npz", obs=np.zeros((3, 2)), rewards=np.zeros(3))
    assert "nothing that looks like actions" in refusal("npz", none, tmp_path)


def test_floats_are_actions_of_a_gaussian(tmp_path: Path) -> None:
    states = foreign.episodes()[0].states[:-1]
    acted = foreign.act_gaussian(states)
    source = tmp_path / "a.json"
    batch = {
        "type": "SampleBatch",
        "obs": states.tolist(),
        "actions": acted.actions.tolist(),
        "rewards": [0.0] * len(states),
        "action_logp": acted.log_probs.tolist(),
        "action_dist_inputs": acted.inputs.tolist(),
        "eps_id": [1] * len(states),
    }
    source.write_text(json.dumps(batch))
    table, done = brought("rllib", source, tmp_path / "o.parquet")
    assert settled(tmp_path / "o.parquet") == {"distribution": "diagonal_gaussian"}
    assert np.allclose(np.stack(table["action_mean"].to_pylist()), acted.inputs[:, :2])
    assert np.allclose(np.stack(table["action_std"].to_pylist()), np.exp(acted.inputs[:, 2:]))
    assert any("state_embed is float32" in line and "float64" in line for line in done.told)
    report = api.validate(tmp_path / "o.parquet", actor=foreign.gaussian_actor())
    assert report["verdict"] == "pass"


def test_d4rl_tells_the_family_where_it_knows_it(tmp_path: Path) -> None:
    source = foreign.d4rl(tmp_path)
    with h5py.File(source, "a") as file:
        del file["metadata/policy/output_distribution"]
        file["metadata/policy/output_distribution"] = np.bytes_("tanh_gaussian")
    brought("d4rl", source, tmp_path / "o.parquet")
    assert settled(tmp_path / "o.parquet")["distribution"] == "squashed_gaussian"


def test_images_keep_their_shape_in_the_metadata(tmp_path: Path) -> None:
    pixels = np.arange(12 * 2 * 3 * 1, dtype=np.uint8).reshape(12, 2, 3, 1)
    source = saved(tmp_path / "a.npz", **one_rollout(obs=pixels))
    table, _ = brought("npz", source, tmp_path / "o.parquet", config=policy(action_space=3))
    assert settled(tmp_path / "o.parquet")["state_shape"] == [2, 3, 1]
    assert table["state_embed"][1].as_py() == [6, 7, 8, 9, 10, 11]


# Episodes, axes, agents


def test_dones_before_the_step_are_starts(tmp_path: Path) -> None:
    """CleanRL stores whether the step before was the last."""
    states, dones, rewards = foreign.rollout()
    acted = foreign.act(states)
    before = np.concatenate([np.ones_like(dones[:1]), dones[:-1]]).astype(np.float32)
    arrays = {"obs": states, "actions": acted.actions, "logprobs": acted.log_probs, "rewards": rewards}
    for name, asked in (("dones", {"episode_start": "dones"}), ("episode_starts", {})):
        source = saved(tmp_path / f"{name}.npz", **arrays, logits=acted.inputs, **{name: before})
        table, _ = brought("npz", source, tmp_path / "o.parquet", columns=asked)
        rows = np.stack(table["state_embed"].to_pylist())
        assert table["timestep"].to_pylist() == rows[:, 0].astype(int).tolist()
        ends = table["terminated"].to_numpy().reshape(3, -1).T
        assert np.array_equal(ends[:-1], dones[:-1]) and not ends[-1].any()


def test_axes_may_be_said(tmp_path: Path) -> None:
    states, dones, rewards = (np.swapaxes(values, 0, 1) for values in foreign.rollout())
    acted = foreign.act(states)
    source = saved(
        tmp_path / "a.npz",
        obs=states, actions=acted.actions, logprobs=acted.log_probs, rewards=rewards, dones=dones,
        logits=acted.inputs,
    )  # fmt: skip
    table, _ = brought("npz", source, tmp_path / "o.parquet", axes=("env", "time"))
    assert table["timestep"].to_pylist() == [row[0] for row in table["state_embed"].to_pylist()]
    assert table["env_id"].unique().to_pylist() == [0, 1, 2]
    table, _ = brought("npz", source, tmp_path / "o.parquet", axes=("agent", "time"))
    assert table["agent_id"].unique().to_pylist() == ["agent_0", "agent_1", "agent_2"]
    assert "do not all begin" in refusal("npz", source, tmp_path, axes=("time", "env", "agent"))


def test_an_episode_of_agents_ends_when_all_are_done(tmp_path: Path) -> None:
    shape = (6, 1, 2)
    dones = np.zeros(shape, bool)
    dones[1:3, :, 0], dones[2, :, 1] = True, True
    source = saved(
        tmp_path / "a.npz",
        obs=np.ones((*shape, 4)), actions=np.zeros(shape, int), rewards=np.zeros(shape),
        log_probs=np.zeros(shape), dones=dones,
    )  # fmt: skip
    table, _ = brought("npz", source, tmp_path / "o.parquet", config=policy(action_space=2))
    assert table["episode_id"].to_pylist() == [0] * 6 + [1] * 6
    assert table["timestep"].to_pylist() == [0, 0, 1, 1, 2, 2] * 2
    assert table["terminated"].to_pylist()[:6] == [False, False, True, False, True, True]


def test_several_files_are_several_rollouts(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    sources = [foreign.npz_envs(tmp_path), foreign.npz_envs(tmp_path / "other")]
    alone, _ = brought("npz", sources[0], tmp_path / "o.parquet")
    table, _ = brought("npz", sources, tmp_path / "o.parquet")
    count = len(alone["episode_id"].unique())
    assert len(table) == 2 * len(alone) and len(table["episode_id"].unique()) == 2 * count
    assert table.slice(len(alone))["timestep"] == alone["timestep"]


def test_files_that_differ_are_not_one_source(tmp_path: Path) -> None:
    both = [foreign.npz_envs(tmp_path), foreign.npz_agents(tmp_path)]
    message = refusal("npz", both, tmp_path)
    assert "the parts of the source differ in" in message and "actions" in message


def test_episode_ids_of_several_files_are_kept_apart(tmp_path: Path) -> None:
    sources = [
        saved(
            tmp_path / f"{n}.npz",
            **one_rollout(episode_id=np.repeat([4, 9], 6), logits=np.ones((12, 3))),
        )
        for n in range(2)
    ]
    alone, _ = brought("npz", sources[0], tmp_path / "o.parquet")
    assert alone["episode_id"].to_pylist() == [4] * 6 + [9] * 6
    table, _ = brought("npz", sources, tmp_path / "o.parquet")
    assert table["episode_id"].to_pylist() == np.repeat(range(4), 6).tolist()
    assert table["x_episode_id"].to_pylist() == ([4] * 6 + [9] * 6) * 2


def test_rows_of_mixed_episodes_are_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pq.read_table(foreign.rllib_rows(tmp_path))
    step = np.concatenate([np.arange(length) for length in foreign.LENGTHS])
    mixed = table.take(np.argsort(step, kind="stable"))
    pq.write_table(mixed, tmp_path / "mixed.parquet")
    brought("rllib", tmp_path / "mixed.parquet", tmp_path / "o.parquet")
    report = api.validate(tmp_path / "o.parquet", actor=foreign.categorical_actor())
    assert failing(report) == {} and report["verdict"] == "pass"
    monkeypatch.setattr(importer, "MOST_SORTED", 1000)
    _, done = brought("rllib", tmp_path / "mixed.parquet", tmp_path / "o.parquet")
    assert any("keep the order of the source" in line for line in done.told)
    assert set(failing(api.validate(tmp_path / "o.parquet"))) == {"unsorted-rows"}


def test_flags_are_zero_or_one(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.npz", **one_rollout(dones=np.arange(12), logits=np.ones((12, 3))))
    assert "dones holds values besides 0 and 1" in refusal("npz", source, tmp_path)


# Minari


def test_minari_actions_may_begin_elsewhere(tmp_path: Path) -> None:
    brought("minari", foreign.minari(tmp_path, start=5), tmp_path / "o.parquet")
    report = api.validate(tmp_path / "o.parquet", actor=foreign.categorical_actor())
    assert report["verdict"] == "pass"


@pytest.mark.parametrize("form", ["hdf5", "arrow"])
def test_minari_infos_are_those_of_the_step_before(form: str, tmp_path: Path) -> None:
    table, done = brought("minari", foreign.minari(tmp_path, form=form), tmp_path / "o.parquet")
    after = np.stack(table["x_infos_position"].to_pylist())[:, 0] / 2
    assert np.array_equal(after, table["timestep"].to_numpy() + 1)
    assert any("infos[t + 1] is of step t" in line for line in done.told)
    assert table["seed"].to_pylist() == table["episode_id"].to_pylist()
    assert sum(table["truncated"].to_pylist()) == 1


def test_minari_by_any_part_of_the_dataset(tmp_path: Path) -> None:
    folder = foreign.minari(tmp_path)
    for part in (folder, folder / "data", folder / "data" / "main_data.hdf5"):
        table, _ = brought("minari", part, tmp_path / "o.parquet")
        assert len(table) == sum(foreign.LENGTHS)
    (tmp_path / "two").mkdir()
    both = [folder, foreign.minari(tmp_path / "two", form="arrow")]
    table, _ = brought("minari", both, tmp_path / "o.parquet")
    assert table["episode_id"].unique().to_pylist() == list(range(8))
    assert "no Minari dataset" in refusal("minari", tmp_path, tmp_path)


def test_a_minari_dataset_that_lacks_episodes_is_refused(tmp_path: Path) -> None:
    folder = foreign.minari(tmp_path, form="arrow")
    shutil.rmtree(folder / "data" / "2")
    assert "says 4 episodes, but 3 are there" in refusal("minari", folder, tmp_path)
    folder = foreign.minari(tmp_path)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        del file["episode_1"]
    assert "says 4 episodes, but 3 are there" in refusal("minari", folder, tmp_path)


def test_minari_images_and_parts_are_not_guessed(tmp_path: Path) -> None:
    folder = foreign.minari(tmp_path)
    path = folder / "data" / "metadata.json"
    space = {"type": "Box", "dtype": "uint8", "shape": [64, 64, 3], "low": 0, "high": 255}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"observation_space": json.dumps(space)}))
    table, done = brought("minari", folder, tmp_path / "o.parquet")
    assert "state_embed" not in table.column_names
    assert any(line.startswith("left out: observations (JPEG") for line in done.told)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        for group in file.values():
            values = group["observations"][()]
            del group["observations"]
            group["observations/goal"], group["observations/pose"] = values[:, :1], values
    _, done = brought("minari", folder, tmp_path / "o.parquet")
    assert any("--column state_embed=NAME" in line for line in done.told)
    asked = {"state_embed": "observations/pose"}
    brought("minari", folder, tmp_path / "o.parquet", columns=asked)
    report = api.validate(tmp_path / "o.parquet", actor=foreign.categorical_actor())
    assert report["verdict"] == "pass"


# What must not be read


@pytest.mark.parametrize("name", ["d4rl", "minari-hdf5"])
def test_hdf5_opens_no_other_file(name: str, tmp_path: Path) -> None:
    source = SAMPLES[name].write(tmp_path, 0)
    file = source if source.is_file() else source / "data" / "main_data.hdf5"
    with h5py.File(tmp_path / "secret.h5", "w") as secret:
        secret["x"] = np.ones(27)
    with h5py.File(file, "a") as opened:
        group = opened["infos"] if name == "d4rl" else opened["episode_0"]["infos"]
        group["more"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "x")
    assert "external link" in refusal(SAMPLES[name].importer, source, tmp_path)
    with h5py.File(file, "a") as opened:
        group = opened["infos"] if name == "d4rl" else opened["episode_0"]["infos"]
        del group["more"]
        layout = h5py.VirtualLayout((27,), "f8")
        layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "x", (27,))
        group.create_virtual_dataset("more", layout)
    assert "virtual dataset" in refusal(SAMPLES[name].importer, source, tmp_path)


def npy(shape: tuple[int, ...], data: bytes, dtype: str = "<f8") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def test_npz_that_claims_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absurd = zipped(tmp_path / "a.npz", {"rewards.npy": npy((1 << 50,), b"\0" * 80)})
    assert "claims shape" in refusal("npz", absurd, tmp_path)
    negative = zipped(tmp_path / "b.npz", {"rewards.npy": npy((-5, -2), b"\0" * 80)})
    refusal("npz", negative, tmp_path)
    monkeypatch.setattr("bufcheck.importers._memory.MOST_BYTES", 1000)
    assert "more than the 0.0 GB held at once" in refusal("npz", foreign.npz_envs(tmp_path), tmp_path)
    text = tmp_path / "c.npz"
    text.write_text("hello")
    assert "no .npz file" in refusal("npz", text, tmp_path)


def test_npz_arrays_of_objects_stay_closed(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "canary",)

    infos = np.array([Evil()] * 12, dtype=object)
    source = saved(tmp_path / "a.npz", **one_rollout(infos=infos, logits=np.ones((12, 3))))
    _, done = brought("npz", source, tmp_path / "o.parquet")
    assert "left out: infos (pickled, and not read)" in done.told
    assert not (tmp_path / "canary").exists()


def test_rllib_columns_that_unpack_to_code_or_too_much_are_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "canary",)

    batch = {"type": "SampleBatch", "actions": [1], "rewards": [0.0], "eps_id": [1]}
    source = tmp_path / "a.json"
    source.write_text(json.dumps(batch | {"obs": foreign.packed(Evil())}))
    assert "it holds more than plain data" in refusal("rllib", source, tmp_path)
    assert not (tmp_path / "canary").exists()
    source.write_text(json.dumps(batch | {"obs": foreign.packed(np.zeros(4))[:-9]}))
    assert "compressed column is damaged" in refusal("rllib", source, tmp_path)


def test_torch_files_with_more_than_tensors_are_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "canary",)

    for zip_form in (True, False):
        torch.save([{"rewards": Evil()}], tmp_path / "a.pt", _use_new_zipfile_serialization=zip_form)
        assert "more than plain data" in refusal("pickle", tmp_path / "a.pt", tmp_path)
    assert not (tmp_path / "canary").exists()
    wide = torch.zeros(1).expand(1 << 40)
    torch.save({"rewards": wide, "actions": wide}, tmp_path / "a.pt")
    assert "far more than its size allows" in refusal("pickle", tmp_path / "a.pt", tmp_path)


def test_what_is_no_experience_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    for held in (3, "text", [], [1, 2], [[1], [2]], {"a": 1}, {"rewards": "x"}, [{"a": None}], None):
        path.write_bytes(pickle.dumps(held))
        refusal("pickle", path, tmp_path)
