"""Experience of one small policy, stored as other tools store it. Log-probs are what the policy gives.

The first number of every observation is the step within its episode, the second the number of the
episode in its environment: what an importer derives can be held against what the actor saw.
"""

from __future__ import annotations

import base64
import collections
import json
import os
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

ACTIONS, WIDTH, DIMENSIONS = 3, 4, 2
LENGTHS = (7, 5, 9, 6)
Array = np.ndarray[Any, Any]


def categorical_actor() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, ACTIONS))


def gaussian_actor() -> nn.Sequential:
    """Means, then logs of standard deviations."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 2 * DIMENSIONS))


class Acted(NamedTuple):
    actions: Array
    log_probs: Array
    inputs: Array
    """Logits, or means and logs of standard deviations."""


def act(states: Array, shift: int = 0) -> Acted:
    """`shift` puts each log-prob on the row after its own."""
    torch.manual_seed(1)
    with torch.no_grad():
        logits = categorical_actor()(torch.as_tensor(states))
        policy = torch.distributions.Categorical(logits=logits)
        actions = policy.sample()
        log_probs = policy.log_prob(actions).numpy()
    return Acted(actions.numpy(), np.roll(log_probs, shift, axis=0), logits.numpy())


def act_gaussian(states: Array, shift: int = 0) -> Acted:
    torch.manual_seed(1)
    with torch.no_grad():
        inputs = gaussian_actor()(torch.as_tensor(states))
        mean, log_std = inputs.chunk(2, -1)
        policy = torch.distributions.Normal(mean, log_std.exp())
        actions = policy.sample()
        log_probs = policy.log_prob(actions).sum(-1).numpy()
    return Acted(actions.numpy(), np.roll(log_probs, shift, axis=0), inputs.numpy())


class Episode(NamedTuple):
    states: Array
    rewards: Array
    acted: Acted


def episodes(shift: int = 0, act: Callable[[Array, int], Acted] = act) -> list[Episode]:
    """One more state than steps, as environments give them."""
    rng = np.random.default_rng(3)
    made = []
    for number, length in enumerate(LENGTHS):
        states = rng.normal(size=(length + 1, WIDTH)).astype(np.float32)
        states[:, 0], states[:, 1] = np.arange(length + 1), number
        made.append(Episode(states, rng.normal(size=length), act(states[:-1], shift)))
    return made


class Rollout(NamedTuple):
    """time × environments, reset as soon as an episode ends."""

    states: Array
    dones: Array
    rewards: Array


def rollout(steps: int = 24, envs: int = 3) -> Rollout:
    rng = np.random.default_rng(4)
    dones = rng.random((steps, envs)) < 0.2
    states = rng.normal(size=(steps, envs, WIDTH)).astype(np.float32)
    count, number = np.zeros(envs), np.zeros(envs)
    for step in range(steps):
        states[step, :, 0], states[step, :, 1] = count, number
        count = np.where(dones[step], 0, count + 1)
        number += dones[step]
    return Rollout(states, dones, rng.normal(size=(steps, envs)))


# Minari


@contextmanager
def _minari_in(folder: Path) -> Iterator[None]:
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("MINARI_DATASETS_PATH")
        if before is not None:
            os.environ["MINARI_DATASETS_PATH"] = before


def minari(folder: Path, shift: int = 0, form: str = "hdf5", start: int = 0) -> Path:
    """As DataCollector records it: the first info is the reset's, that of step t is at t + 1."""
    import minari as library
    from gymnasium import spaces
    from minari.data_collector.episode_buffer import EpisodeBuffer

    buffers = []
    for number, (states, rewards, acted) in enumerate(episodes(shift)):
        steps = len(rewards)
        buffers.append(
            EpisodeBuffer(
                seed=number,
                observations=states,
                actions=acted.actions + start,
                rewards=rewards.tolist(),
                terminations=[False] * (steps - 1) + [number != 1],
                truncations=[False] * (steps - 1) + [number == 1],
                infos={
                    "log_prob": np.concatenate([[0], acted.log_probs]).astype(np.float32),
                    "position": states.astype(np.float64) * 2,
                },
            )
        )
    with _minari_in(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it names no author and no code
        library.create_dataset_from_buffers(
            dataset_id=f"cases/{form}-v0",
            buffer=buffers,
            observation_space=spaces.Box(-100, 100, (WIDTH,), np.float32),
            action_space=spaces.Discrete(ACTIONS, start=start),
            data_format=form,
        )
    return folder / "cases" / f"{form}-v0"


# D4RL


def d4rl(folder: Path, shift: int = 0) -> Path:
    """As D4RL's collect_data.py writes it; the policy here is a plain Gaussian."""
    played = episodes(shift, act_gaussian)
    ends = np.cumsum(LENGTHS) - 1
    terminals, timeouts = np.zeros((2, sum(LENGTHS)), bool)
    terminals[ends], timeouts[ends] = [True, False, True, True], [False, True, False, False]
    path = folder / "hopper.hdf5"
    with h5py.File(path, "w") as file:
        for name, values in {
            "observations": np.concatenate([one.states[:-1] for one in played]),
            "next_observations": np.concatenate([one.states[1:] for one in played]),
            "actions": np.concatenate([one.acted.actions for one in played]),
            "rewards": np.concatenate([one.rewards for one in played]).astype(np.float32),
            "terminals": terminals,
            "timeouts": timeouts,
            "infos/action_log_probs": np.concatenate([one.acted.log_probs for one in played]),
            "infos/qpos": np.concatenate([one.states[:-1, :2] for one in played]),
        }.items():
            file.create_dataset(name, data=values, compression="gzip")
        file["metadata/algorithm"] = np.bytes_("DAPG")
        file["metadata/policy/output_distribution"] = np.bytes_("gaussian")
        file["metadata/policy/fc0/weight"] = np.ones((8, WIDTH))
    return path


# RLlib


def packed(values: Any) -> str:
    """ray.rllib.utils.compression.pack: pickle, an LZ4 frame, base64."""
    raw = pa.compress(pickle.dumps(values), codec="lz4", asbytes=True)
    return base64.b64encode(raw).decode("ascii")


def sample_batch(number: int, one: Episode, compress: bool = True) -> dict[str, Any]:
    steps = len(one.rewards)
    store = packed if compress else np.ndarray.tolist
    return {
        "obs": store(one.states[:-1]),
        "new_obs": store(one.states[1:]),
        "actions": one.acted.actions.tolist(),
        "rewards": one.rewards.tolist(),
        "terminateds": [False] * (steps - 1) + [number != 1],
        "truncateds": [False] * (steps - 1) + [number == 1],
        "action_logp": one.acted.log_probs.tolist(),
        "action_dist_inputs": one.acted.inputs.tolist(),
        "vf_preds": [0.5] * steps,
        "infos": [{}] * steps,
        "eps_id": [900 - number] * steps,
        "agent_index": [0] * steps,
        "t": list(range(steps)),
    }


def rllib_json(folder: Path, shift: int = 0) -> Path:
    """JsonWriter, as it is set up by default: obs and new_obs compressed, a fragment a line."""
    batches = [sample_batch(*item) for item in enumerate(episodes(shift))]
    lines = [json.dumps({"type": "SampleBatch", **batch}) for batch in batches]
    out = folder / "out"
    out.mkdir()
    (out / "output-2026-01-01_worker-0_0.json").write_text("\n".join(lines[:2]) + "\n")
    (out / "output-2026-01-01_worker-0_1.json").write_text("\n".join(lines[2:]) + "\n")
    return out


def rllib_agents(folder: Path, shift: int = 0) -> Path:
    """MultiAgentBatches, each with the first half of an episode or the second."""
    lines = []
    for number, one in enumerate(episodes(shift)):
        other = one.states + np.array([0, 0, 1, 1], np.float32)
        blue = Episode(other, -one.rewards, act(other[:-1], shift))
        teams = {"RED": one, "BLUE": blue}
        batches = {name: sample_batch(number, of, compress=False) for name, of in teams.items()}
        for half in (slice(0, 3), slice(3, None)):
            policies = {
                team: {name: values[half] for name, values in batch.items()}
                for team, batch in batches.items()
            }
            lines.append({"type": "MultiAgentBatch", "count": 3, "policy_batches": policies})
    path = folder / "agents.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def rllib_parquet(folder: Path, shift: int = 0) -> Path:
    """DatasetWriter with format "parquet": a SampleBatch a row."""
    rows = [{"type": "SampleBatch", **sample_batch(*item)} for item in enumerate(episodes(shift))]
    for row in rows:
        del row["infos"]
    pq.write_table(pa.Table.from_pylist(rows), folder / "batches.parquet")
    return folder / "batches.parquet"


def rllib_rows(folder: Path, shift: int = 0, compress: bool = True) -> Path:
    """OfflineSingleAgentEnvRunner: a step a row, observations compressed, no count of steps."""
    rows = []
    store = packed if compress else np.ndarray.tolist
    for number, (states, rewards, acted) in enumerate(episodes(shift)):
        for t in range(len(rewards)):
            last = t == len(rewards) - 1
            rows.append(
                {
                    "eps_id": f"episode-{number}",
                    "agent_id": None,
                    "module_id": None,
                    "obs": store(states[t]),
                    "actions": int(acted.actions[t]),
                    "rewards": rewards[t],
                    "new_obs": store(states[t + 1]),
                    "terminateds": last and number != 1,
                    "truncateds": last and number == 1,
                    "action_logp": float(acted.log_probs[t]),
                    "action_dist_inputs": acted.inputs[t].tolist(),
                }
            )
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    return folder / "rows.parquet"


def msgpacked(value: Any) -> bytes:
    """msgpack.packb(value, default=msgpack_numpy.encode), for what an episode is made of."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, (np.ndarray, np.generic)):
        whole = isinstance(value, np.ndarray)
        parts: dict[Any, Any] = {b"nd": whole, b"type": value.dtype.str}
        if whole:
            parts |= {b"kind": b"", b"shape": list(value.shape)}
        return msgpacked(parts | {b"data": value.tobytes()})
    if isinstance(value, int):
        return b"\xd3" + value.to_bytes(8, "big", signed=True)
    if isinstance(value, float):
        return b"\xcb" + np.array(value, ">f8").tobytes()
    if isinstance(value, str):
        return b"\xdb" + len(value.encode()).to_bytes(4, "big") + value.encode()
    if isinstance(value, bytes):
        return b"\xc6" + len(value).to_bytes(4, "big") + value
    if isinstance(value, dict):
        inner = [part for item in value.items() for part in item]
        return b"\xdf" + len(value).to_bytes(4, "big") + b"".join(map(msgpacked, inner))
    return b"\xdd" + len(value).to_bytes(4, "big") + b"".join(map(msgpacked, value))


def rllib_episodes(folder: Path, shift: int = 0) -> Path:
    """Whole episodes of the new API stack, in two pieces, the second of which looks back a step."""
    items = []
    for number, (states, rewards, acted) in enumerate(episodes(shift)):
        for start, stop in ((0, 3), (3, len(rewards))):
            back = min(start, 1)
            begin = start - back

            def buffer(values: Any, stop: int = stop, begin: int = begin, back: int = back) -> Any:
                data = list(values[begin:stop])
                return {"data": data, "lookback": back, "finalized": False, "space": None}

            over = stop == len(rewards)
            state = {
                "id_": f"episode-{number}",
                "agent_id": None,
                "module_id": None,
                "multi_agent_episode_id": None,
                "observations": buffer(states, stop + 1),
                "actions": buffer(acted.actions),
                "rewards": buffer(rewards.tolist()),
                "infos": buffer([{}] * 20),
                "extra_model_outputs": {
                    "action_logp": buffer(acted.log_probs),
                    "action_dist_inputs": buffer(acted.inputs),
                },
                "is_terminated": over and number != 1,
                "is_truncated": over and number == 1,
                "t_started": start,
                "t": stop,
            }
            items.append(msgpacked(state))
    pq.write_table(pa.table({"item": pa.array(items, pa.binary())}), folder / "episodes.parquet")
    return folder / "episodes.parquet"


# NumPy


def npz_time(folder: Path, shift: int = 0) -> Path:
    states, dones, rewards = (values[:, 0] for values in rollout())
    acted = act(states, shift)
    np.savez(
        folder / "one.npz",
        observations=states,
        actions=acted.actions,
        old_log_probs=acted.log_probs[:, None],
        rewards=rewards[:, None],
        terminated=dones.astype(np.float32),
        action_masks=np.ones((len(states), ACTIONS), np.int8),
        learning_rate=3e-4,
    )
    return folder / "one.npz"


def npz_envs(folder: Path, shift: int = 0) -> Path:
    """time × envs, with the value of the state after the last step."""
    states, dones, rewards = rollout()
    acted = act(states, shift)
    np.savez_compressed(
        folder / "envs.npz",
        obs=states,
        actions=acted.actions,
        logprobs=acted.log_probs,
        rewards=rewards,
        dones=dones,
        values=np.zeros((len(states) + 1, states.shape[1]), np.float32),
        logits=acted.inputs,
    )
    return folder / "envs.npz"


def npz_agents(folder: Path, shift: int = 0) -> Path:
    """time × envs × agents; the environments end for all agents at once."""
    states, dones, rewards = rollout()
    agents = 11
    states = np.repeat(states[:, :, None], agents, axis=2)
    states[..., 2] = np.arange(agents)
    acted = act(states, shift)
    np.savez(
        folder / "agents.npz",
        obs=states,
        actions=acted.actions[..., None],
        action_log_probs=acted.log_probs[..., None],
        rewards=np.repeat(rewards[:, :, None, None], agents, axis=2),
        dones=dones,
        available_actions=np.ones((len(states) + 1, *states.shape[1:3], ACTIONS)),
    )
    return folder / "agents.npz"


# Pickles


def pickle_steps(folder: Path, shift: int = 0, protocol: int = 4) -> Path:
    """A list of dicts, one a step; NumPy and torch mixed, as buffers are."""
    steps: Any = collections.deque()
    for states, rewards, acted in episodes(shift):
        for t in range(len(rewards)):
            step = {
                "state": states[t],
                "action": np.int64(acted.actions[t]),
                "logp": torch.tensor(acted.log_probs[t]),
                "reward": float(rewards[t]),
                "done": t == len(rewards) - 1,
                "logits": torch.tensor(acted.inputs[t]),
                "info": collections.OrderedDict(name="x", seen={"a": t}),
            }
            steps.append(step)
    path = folder / f"steps-{protocol}.pkl"
    path.write_bytes(pickle.dumps(steps, protocol))
    return path


def trajectories(shift: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "observations": one.states,
            "actions": one.acted.actions,
            "log_probs": one.acted.log_probs.tolist(),
            "rewards": one.rewards,
            "terminals": np.arange(len(one.rewards)) == len(one.rewards) - 1,
            "logits": one.acted.inputs,
        }
        for one in episodes(shift)
    ]


def pickle_episodes(folder: Path, shift: int = 0) -> Path:
    """A list of dicts of arrays, one an episode, with the state after the last step."""
    path = folder / "episodes.pkl"
    path.write_bytes(pickle.dumps({"episodes": trajectories(shift), "env": "Hopper"}))
    return path


def pickle_columns(folder: Path, shift: int = 0) -> Path:
    """A dict of lists."""
    found = trajectories(shift)
    for one in found:
        one["observations"] = one["observations"][:-1]
    columns = {name: [row for one in found for row in one[name]] for name in found[0]}
    path = folder / "columns.pkl"
    path.write_bytes(pickle.dumps(columns))
    return path


def torch_saved(folder: Path, shift: int = 0, zipped: bool = True) -> Path:
    found = [
        {name: torch.as_tensor(np.asarray(values)) for name, values in one.items()}
        for one in trajectories(shift)
    ]
    path = folder / "episodes.pt"
    torch.save(found, path, _use_new_zipfile_serialization=zipped)
    return path


def of_form(form: str) -> Callable[[Path, int], Path]:
    return lambda folder, shift: minari(folder, shift, form)


class Sample(NamedTuple):
    importer: str
    write: Callable[[Path, int], Path]
    rows: int = sum(LENGTHS)
    actor: Callable[[], nn.Module] = categorical_actor


SAMPLES = {
    "minari-hdf5": Sample("minari", of_form("hdf5")),
    "minari-arrow": Sample("minari", of_form("arrow")),
    "minari-parquet": Sample("minari", of_form("parquet")),
    "d4rl": Sample("d4rl", d4rl, actor=gaussian_actor),
    "rllib-json": Sample("rllib", rllib_json),
    "rllib-agents": Sample("rllib", rllib_agents, rows=2 * sum(LENGTHS)),
    "rllib-parquet": Sample("rllib", rllib_parquet),
    "rllib-rows": Sample("rllib", rllib_rows),
    "rllib-plain-rows": Sample("rllib", lambda folder, shift: rllib_rows(folder, shift, False)),
    "rllib-episodes": Sample("rllib", rllib_episodes),
    "npz-time": Sample("npz", npz_time, rows=24),
    "npz-envs": Sample("npz", npz_envs, rows=72),
    "npz-agents": Sample("npz", npz_agents, rows=72 * 11),
    "pickle-steps": Sample("pickle", pickle_steps),
    "pickle-old-steps": Sample("pickle", lambda folder, shift: pickle_steps(folder, shift, 2)),
    "pickle-episodes": Sample("pickle", pickle_episodes),
    "pickle-columns": Sample("pickle", pickle_columns),
    "pickle-torch": Sample("pickle", torch_saved),
    "pickle-old-torch": Sample("pickle", lambda folder, shift: torch_saved(folder, shift, False)),
}
