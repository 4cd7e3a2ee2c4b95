"""The dumps that the scoreboard breaks: synthetic ones of many shapes, and those of real trainers.

Every world is healthy, and comes with the weights of who acted: `replayed` recomputes any dump's
log-probs from them in NumPy and float64, and shares no code with bufcheck's replay.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

import bufcheck

NAMES = ("EDU", "IND", "LAB", "TAX", "WEL")
GAMMA, LAMBDA = 0.99, 0.95
TESTS = Path(__file__).resolve().parents[2] / "tests"

Array = np.ndarray[Any, Any]
Layers = list[tuple[Array, Array]]
"""Weight and bias of every linear layer, with tanh between."""


@dataclass(frozen=True)
class Shape:
    """What a synthetic dump is like."""

    rows: int = 9000
    agents: int = 3
    shared_actor: bool = False
    versions: int = 4
    """0: no policy_version. One checkpoint more than this is saved."""
    straddle: bool = False
    """Versions change in the middle of episodes."""
    actions: int = 20
    offered: tuple[int, int] = (1, 8)
    subset: str = "random"
    """or sorted, prefix (0..K-1), all"""
    logits: str = "gather"
    masked: bool = False
    masked_logit: float | None = None
    gaussian: int = 0
    """The size of a continuous action; 0: discrete."""
    dim: int = 8
    smooth: float = 0.9
    """How much of a state the next one keeps."""
    length: tuple[int, int] = (20, 40)
    ends: str = "terminated"
    """or truncated, mixed, unmarked"""
    envs: int = 0
    """Environments in parallel, their rows interleaved in the order of time; 0: one after the other."""
    shuffled: bool = False
    files: int = 1
    suffix: str = ".parquet"
    precision: str = "float32"
    column: str = "float32"
    """The type of old_log_prob."""
    extras: bool = True
    """Reward, value, advantage, return and the flags."""
    stored: tuple[str, ...] = ()
    """More columns: action_id, logits, entropy, new_log_prob, valid, seed."""
    temperature: float = 1.0
    dropout: float = 0.0
    """A Dropout layer in the actors. It was off."""
    sharpness: float = 2.0


@dataclass(frozen=True)
class World:
    """A healthy dump and who acted in it."""

    name: str
    dumps: tuple[Path, ...]
    actor: str
    """As --actor takes it."""
    layers: dict[tuple[str, int], Layers]
    versions: int
    """How many acted; 0 if the dump does not tell."""
    policy: dict[str, Any]
    log_std: Array | None = None
    traits: frozenset[str] = field(default_factory=frozenset)
    """What tells faults apart here, as cases.py asks for it."""

    @property
    def paths(self) -> list[str]:
        return [str(path) for path in self.dumps]


# Actors


def network(shape: Shape, seed: int) -> nn.Sequential:
    rng = torch.Generator().manual_seed(seed)
    outputs = shape.gaussian or shape.actions
    layers: list[nn.Module] = [nn.Linear(shape.dim, 24), nn.Tanh(), nn.Linear(24, outputs)]
    if shape.dropout:
        layers.insert(2, nn.Dropout(shape.dropout))
    made = nn.Sequential(*layers).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            spread = 1 / np.sqrt(parameter.shape[1]) if parameter.dim() == 2 else 0.2
            parameter.copy_(torch.randn(parameter.shape, generator=rng) * spread)
        layers[-1].weight.mul_(shape.sharpness)
    return made


def updated(module: nn.Sequential, shape: Shape, seed: int) -> nn.Sequential:
    """The next version: the same with about 7 % of noise on its weights."""
    rng = torch.Generator().manual_seed(seed)
    made = network(shape, 0)
    made.load_state_dict(module.state_dict())
    with torch.no_grad():
        for parameter in made.parameters():
            noise = torch.randn(parameter.shape, generator=rng)
            parameter.add_(0.07 * float(parameter.std(correction=0)) * noise)
    return made


def family(shape: Shape, seed: int) -> dict[tuple[str, int], nn.Sequential]:
    """Every agent's versions; one object for all agents where they share their actor."""
    made: dict[tuple[str, int], nn.Sequential] = {}
    for i, agent in enumerate(NAMES[: shape.agents]):
        for version in range(max(shape.versions, 1) + 1):
            if shape.shared_actor and i:
                made[agent, version] = made[NAMES[0], version]
            elif version:
                made[agent, version] = updated(made[agent, version - 1], shape, seed + 97 * version + i)
            else:
                made[agent, version] = network(shape, seed * 1009 + i)
    return made


def layers_of(module: nn.Sequential) -> Layers:
    linear = [layer for layer in module if isinstance(layer, nn.Linear)]
    return [(_numbers(layer.weight), _numbers(layer.bias)) for layer in linear]


def _numbers(tensor: torch.Tensor) -> Array:
    numbers: Array = tensor.detach().numpy().astype(np.float64)
    return numbers


def forward(layers: Layers, states: Array) -> Array:
    """Logits, or means, in NumPy and float64."""
    hidden = states.astype(np.float64)
    for weight, bias in layers[:-1]:
        hidden = np.tanh(hidden @ weight.T + bias)
    given: Array = hidden @ layers[-1][0].T + layers[-1][1]
    return given


# Synthetic worlds


def synthetic(folder: Path, shape: Shape, *, seed: int = 0, name: str = "synthetic") -> World:
    """Plays, and writes the dump and the actors."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    rng = np.random.default_rng([seed, 11])
    modules = family(shape, seed)
    log_std = rng.normal(-0.5, 0.2, shape.gaussian).astype(np.float32) if shape.gaussian else None
    actor = _save(folder / "actors", modules, shape, log_std)
    columns = _layout(shape, rng)
    columns["state"] = _states(columns, shape, rng)
    if shape.gaussian:
        assert log_std is not None
        _act_continuously(columns, shape, modules, log_std, seed)
    else:
        _offer(columns, shape, rng)
        _act(columns, shape, modules, seed)
    if shape.extras:
        _reward(columns, shape, rng)
    order = _order(columns, shape, rng)
    columns = {key: value[order] for key, value in columns.items()}
    world = World(
        name,
        tuple(_files(folder, shape)),
        actor,
        {who: layers_of(module) for who, module in modules.items()},
        shape.versions,
        _policy(shape),
        log_std,
    )
    _write(world, columns, shape)
    return replace(world, traits=traits(world, shape.shared_actor, shape.smooth > 0))


def _save(folder: Path, modules: dict[tuple[str, int], nn.Sequential], shape: Shape, std: Any) -> str:
    folder.mkdir(exist_ok=True)
    who = "shared" if shape.shared_actor or shape.agents == 1 else "{agent_id}"
    pattern = f"{who}-{{policy_version}}.safetensors" if shape.versions else f"{who}.safetensors"
    log_std = None if std is None else torch.from_numpy(std)
    for (agent, version), module in modules.items():
        path = folder / pattern.format(agent_id=agent, policy_version=version)
        if not path.exists() and (shape.versions or version == 0):
            bufcheck.save_actor(module, path, log_std=log_std)
    return str(folder / pattern)


def _layout(shape: Shape, rng: Any) -> dict[str, Array]:
    """Who acts when: whole episodes up to the number of rows, ordered by episode, step and agent."""
    low, high = shape.length
    steps = -(-shape.rows // shape.agents)
    lengths: list[int] = []
    while sum(lengths) < steps:
        lengths.append(min(int(rng.integers(low, high + 1)), steps - sum(lengths)))
    many = np.array(lengths)
    episode = np.repeat(np.arange(len(many)), many)
    step = np.arange(steps) - np.repeat(np.cumsum(many) - many, many)
    along = np.arange(steps) / steps if shape.straddle else episode / len(many)
    version = (along * max(shape.versions, 1)).astype(np.int64)
    return {
        "episode": episode.repeat(shape.agents),
        "step": step.repeat(shape.agents),
        "agent": np.tile(np.arange(shape.agents), steps),
        "version": version.repeat(shape.agents),
        "last": (step == many[episode] - 1).repeat(shape.agents),
    }


def _states(columns: dict[str, Array], shape: Shape, rng: Any) -> Array:
    """Each agent's own walk, that starts anew with every episode."""
    fresh = rng.normal(0, 1, (len(columns["step"]), shape.dim))
    if not shape.smooth:
        return np.asarray(fresh, np.float32)
    keep, change = shape.smooth, np.sqrt(1 - shape.smooth**2)
    for step in range(1, int(columns["step"].max()) + 1):
        at = np.flatnonzero(columns["step"] == step)
        fresh[at] = keep * fresh[at - shape.agents] + change * fresh[at]
    return np.asarray(fresh, np.float32)


def _offer(columns: dict[str, Array], shape: Shape, rng: Any) -> None:
    rows = len(columns["step"])
    low, high = shape.offered
    count = rng.integers(low, high + 1, rows) if shape.subset != "all" else np.full(rows, shape.actions)
    width = int(count.max())
    offered = np.arange(width) < count[:, None]
    ids = np.argsort(rng.random((rows, shape.actions)), axis=1)[:, :width]
    if shape.subset in ("prefix", "all"):
        ids = np.broadcast_to(np.arange(width), (rows, width))
    elif shape.subset == "sorted":
        ids = np.sort(np.where(offered, ids, shape.actions), axis=1)
    columns |= {"count": count, "ids": np.where(offered, ids, 0), "offered": offered}
    if shape.masked:
        mask = rng.random((rows, width)) < 0.8
        mask[np.arange(rows), (rng.random(rows) * count).astype(int)] = True
        columns["mask"] = mask & offered


def _act(
    columns: dict[str, Array], shape: Shape, modules: dict[tuple[str, int], nn.Sequential], seed: int
) -> None:
    """Samples in float32, as a trainer does: torch's Categorical over the logits of what is offered."""
    torch.manual_seed(seed)
    rows = len(columns["step"])
    local = torch.zeros(columns["offered"].shape)
    action, log_prob, entropy = (np.zeros(rows, t) for t in (np.int64, np.float32, np.float32))
    for (agent, version), module in modules.items():
        at = _rows_of(columns, agent, version)
        with torch.no_grad():
            logits = module(torch.from_numpy(columns["state"][at]))
            ids = torch.from_numpy(columns["ids"][at])
            taken = logits.gather(1, ids) if shape.logits == "gather" else logits[:, : ids.shape[1]]
            local[at] = taken
            taken = taken / shape.temperature
            if shape.masked:
                legal = torch.from_numpy(columns["mask"][at])
                low = -torch.inf if shape.masked_logit is None else shape.masked_logit
                taken = taken.masked_fill(~legal, low)
            taken = taken.masked_fill(~torch.from_numpy(columns["offered"][at]), -torch.inf)
            policy = torch.distributions.Categorical(logits=taken, validate_args=False)
            chosen = policy.sample()
            action[at], log_prob[at] = chosen.numpy(), policy.log_prob(chosen).numpy()
            weight = policy.probs
            entropy[at] = -(weight * torch.where(weight > 0, policy.logits, 0.0)).sum(-1).numpy()
    columns |= {"action": action, "log_prob": log_prob, "entropy": entropy, "local": local.numpy()}


def _rows_of(columns: dict[str, Array], agent: str, version: int) -> Array:
    return np.flatnonzero((columns["agent"] == NAMES.index(agent)) & (columns["version"] == version))


def _act_continuously(
    columns: dict[str, Array],
    shape: Shape,
    modules: dict[tuple[str, int], nn.Sequential],
    log_std: Array,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    rows = len(columns["step"])
    action, log_prob = np.zeros((rows, shape.gaussian), np.float32), np.zeros(rows, np.float32)
    for (agent, version), module in modules.items():
        at = _rows_of(columns, agent, version)
        with torch.no_grad():
            mean = module(torch.from_numpy(columns["state"][at]))
            policy = torch.distributions.Normal(mean, torch.from_numpy(log_std).exp())
            chosen = policy.sample()
            action[at], log_prob[at] = chosen.numpy(), policy.log_prob(chosen).sum(1).numpy()
    columns |= {"vector": action, "log_prob": log_prob}


def _reward(columns: dict[str, Array], shape: Shape, rng: Any) -> None:
    """Rewards and values, and the advantages and returns that follow from them."""
    rows, many = len(columns["step"]), shape.agents
    critic = rng.normal(0, 0.4, shape.dim)
    reward = rng.normal(0, 1, rows).astype(np.float32)
    value = (columns["state"] @ critic + rng.normal(0, 0.1, rows)).astype(np.float32)
    beyond = (columns["state"] @ critic + rng.normal(0, 0.1, rows)).astype(np.float32)
    last = columns["last"]
    kind = {"terminated": 0, "truncated": 1, "unmarked": 2}.get(shape.ends)
    how = columns["episode"] % 3 if kind is None else np.full(rows, kind)
    advantage = np.zeros(rows)
    running, following = np.zeros(many), np.zeros(many)
    for at in range(rows - many, -1, -many):
        here = slice(at, at + many)
        if last[at]:
            running = np.zeros(many)
            following = np.zeros(many) if how[at] == 0 else beyond[here].astype(float)
        running = reward[here] + GAMMA * following - value[here] + GAMMA * LAMBDA * running
        advantage[here], following = running, value[here].astype(float)
    columns |= {
        "reward": reward,
        "value": value,
        "advantage": advantage.astype(np.float32),
        "return": (advantage + value).astype(np.float32),
        "terminated": last & (how == 0),
        "truncated": last & (how == 1),
        "bootstrap_value": np.where(last & (how > 0), beyond, np.nan).astype(np.float32),
    }


def _order(columns: dict[str, Array], shape: Shape, rng: Any) -> Array:
    rows = len(columns["step"])
    if shape.shuffled:
        shuffled: Array = rng.permutation(rows)
        return shuffled
    if not shape.envs:
        return np.arange(rows)
    env = columns["episode"] % shape.envs
    columns["env"] = env
    time = np.zeros(rows, int)
    for which in range(shape.envs):
        at = np.flatnonzero(env == which)
        time[at] = np.arange(len(at)) // shape.agents
    order: Array = np.lexsort((columns["agent"], env, time))
    return order


def _policy(shape: Shape) -> dict[str, Any]:
    if shape.gaussian:
        return {"distribution": "diagonal_gaussian", "precision": shape.precision}
    return {
        "distribution": "categorical",
        "logits": shape.logits,
        "subset": "all" if shape.subset == "all" else "listed",
        "action_space": shape.actions,
        "temperature": shape.temperature,
        "masked_logit": shape.masked_logit,
        "precision": shape.precision,
    }


def _files(folder: Path, shape: Shape) -> Iterable[Path]:
    if shape.files == 1:
        return [folder / f"dump{shape.suffix}"]
    return [folder / f"dump-{i}{shape.suffix}" for i in range(shape.files)]


def _write(world: World, columns: dict[str, Array], shape: Shape) -> None:
    table = _table(columns, shape)
    cuts = np.linspace(0, len(table), len(world.dumps) + 1).astype(int)
    for path, (start, stop) in zip(world.dumps, itertools.pairwise(cuts), strict=True):
        part = table.slice(start, stop - start)
        if path.suffix == ".parquet":
            write(path, part, world.policy, shape)
            continue
        whole = path.with_suffix(".whole.parquet")
        write(whole, part, world.policy, shape)
        command = [sys.executable, "-m", "bufcheck", "convert", str(whole), str(path)]
        subprocess.run(command, check=True, capture_output=True)
        whole.unlink()


def write(path: Path, table: pa.Table, policy: dict[str, Any], shape: Shape) -> None:
    about: dict[str, Any] = {
        "schema": "experience/1",
        "producer": {"name": "benchmarks/diagnosis", "version": "1"},
        "rows": len(table),
        "policy": policy,
        "agents": {"shared_actor": shape.shared_actor},
    }
    if shape.extras:
        about["advantage"] = {"gamma": GAMMA, "gae_lambda": LAMBDA}
        about["advantage"] |= {"normalization": "none", "truncation": "bootstrap_value"}
    described = table.replace_schema_metadata({"bufcheck": json.dumps(about)})
    pq.write_table(described, path, write_page_checksum=True)


def _table(columns: dict[str, Array], shape: Shape) -> pa.Table:
    agents = pa.array(NAMES[: shape.agents])
    table: dict[str, Any] = {
        "episode_id": pa.array(columns["episode"], pa.int64()),
        "timestep": pa.array(columns["step"], pa.int32()),
        "agent_id": pa.DictionaryArray.from_arrays(columns["agent"].astype(np.int32), agents),
        "state_embed": _vectors(columns["state"]),
    }
    if shape.gaussian:
        table["action"] = _vectors(columns["vector"])
    else:
        if shape.subset != "all":
            table["subset_indices"] = _ragged(columns["ids"].astype(np.int32), columns["offered"])
        table["num_actions"] = pa.array(columns["count"], pa.int32())
        table["action_index"] = pa.array(columns["action"], pa.int32())
    table["old_log_prob"] = _stored(columns["log_prob"], shape)
    if shape.masked:
        table["action_mask"] = _ragged(columns["mask"], columns["offered"])
    if shape.versions:
        table["policy_version"] = pa.array(columns["version"], pa.int64())
    if shape.extras:
        for name in ("reward", "value", "advantage", "return", "terminated", "truncated"):
            table[name] = pa.array(columns[name])
        if shape.ends != "terminated":
            table["bootstrap_value"] = pa.array(columns["bootstrap_value"], from_pandas=True)
    if shape.envs:
        table["env_id"] = pa.array(columns["env"], pa.int64())
    return pa.table(table | {name: _extra(name, columns, shape) for name in shape.stored})


def _extra(name: str, columns: dict[str, Array], shape: Shape) -> Any:
    rows = np.arange(len(columns["step"]))
    if name == "action_id":
        return pa.array(columns["ids"][rows, columns["action"]], pa.int32())
    if name == "logits":
        return _ragged(columns["local"], columns["offered"])
    if name == "new_log_prob":
        return _stored(columns["log_prob"], shape)
    if name == "valid":
        return pa.array(np.ones(len(rows), bool))
    if name == "x_note":
        return pa.array([f"row {row}" for row in rows])
    return pa.array(columns[name])


def _stored(log_prob: Array, shape: Shape) -> Any:
    if shape.precision == "bfloat16":
        log_prob = torch.from_numpy(log_prob).bfloat16().float().numpy()
    return pa.array(log_prob.astype(shape.column))


def _vectors(rows: Array) -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.astype(np.float32).ravel()), rows.shape[1])


def _ragged(rows: Array, offered: Array) -> Any:
    offsets = np.concatenate([[0], offered.sum(axis=1).cumsum()]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(rows[offered]))


# Worlds of real trainers

SB3_STEPS, TORCHRL_FRAMES = 1536, 1000
"""Per rollout, so that one row in a hundred is more than 50 rows."""


def real(folder: Path, names: Iterable[str]) -> dict[str, World]:
    """Those asked for of masked-ppo (legal actions as a subset), masked-ppo-mask (as a mask over all),
    torchrl (three agents with an actor each); each trainer runs once."""
    wanted, made = set(names), {}
    if wanted & {"masked-ppo", "masked-ppo-mask"}:
        trainers = _trainers()
        trainers.STEPS = SB3_STEPS
        run = trainers.sb3_masked(_fresh(folder / "masked-ppo"))
        for name, dump in zip(("masked-ppo", "masked-ppo-mask"), run.dumps, strict=True):
            made[name] = _world(name, dump, run, _zipped)
    if "torchrl" in wanted:
        trainers = _trainers()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import trainers_torchrl

            trainers_torchrl.FRAMES = TORCHRL_FRAMES
            run = trainers.torchrl_multi_agent(_fresh(folder / "torchrl"))
        made["torchrl"] = _world("torchrl", run.dumps[0], run, _described)
    return {name: made[name] for name in names}


def _fresh(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _trainers() -> Any:
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))
    import trainers

    return trainers


def _world(name: str, dump: Path, run: Any, read: Any) -> World:
    layers = {
        (agent, version): read(Path(run.actors.format(agent_id=agent, policy_version=version)))
        for agent in run.agents
        for version in range(run.versions + 1)
    }
    policy = json.loads(pq.read_schema(dump).metadata[b"bufcheck"])["policy"]
    world = World(name, (dump,), run.actors, layers, run.versions, policy)
    return replace(world, traits=traits(world, shared_actor=False, smooth=False))


def _zipped(path: Path) -> Layers:
    """The actor of a Stable-Baselines3 zip: two hidden layers and the head."""
    with zipfile.ZipFile(path) as archive:
        weights = torch.load(io.BytesIO(archive.read("policy.pth")), weights_only=True)
    names = ("mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net")
    return [(_numbers(weights[f"{n}.weight"]), _numbers(weights[f"{n}.bias"])) for n in names]


def _described(path: Path) -> Layers:
    from safetensors.torch import load_file

    weights = load_file(path)
    numbers = sorted({int(name.split(".")[0]) for name in weights})
    return [(_numbers(weights[f"{n}.weight"]), _numbers(weights[f"{n}.bias"])) for n in numbers]


# What a dump holds, and what its log-probs ought to be


@dataclass(frozen=True)
class Rows:
    """A dump's columns as NumPy sees them; lists padded."""

    table: pa.Table

    def numbers(self, name: str) -> Array:
        """As floats, null as NaN."""
        found = self.table[name].combine_chunks()
        numbers: Array = found.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return numbers

    def texts(self, name: str) -> Array:
        return np.array(self.table[name].cast(pa.string()).to_pylist(), object)

    def padded(self, name: str, fill: Any) -> tuple[Array, Array]:
        """The values of a list column, and how many each row has."""
        column = self.table[name].combine_chunks()
        if pa.types.is_fixed_size_list(column.type):
            column = column.cast(pa.list_(column.type.value_type))
        sizes = np.nan_to_num(column.value_lengths().to_numpy(zero_copy_only=False)).astype(int)
        values = column.flatten().to_numpy(zero_copy_only=False)
        padded = np.full((len(column), max(int(sizes.max(initial=0)), 1)), fill)
        padded[np.arange(padded.shape[1]) < sizes[:, None]] = values
        return padded, sizes


def replayed(world: World, paths: Iterable[Path]) -> Array:
    """Every row's log-prob by who acted, in float64; NaN where there is none."""
    rows = Rows(pa.concat_tables([pq.read_table(path) for path in paths], promote_options="permissive"))
    output = outputs_of(world, rows)
    continuous = "action" in rows.table.column_names
    return densities_of(world, rows, output) if continuous else log_probs_of(world, rows, output)


def outputs_of(world: World, rows: Rows) -> Array:
    """Of each row's actor; NaN for rows of nobody known."""
    states, _ = rows.padded("state_embed", np.float32(np.nan))
    agents = rows.texts("agent_id")
    versions = rows.numbers("policy_version") if world.versions else np.zeros(len(agents))
    output = np.full((len(agents), len(next(iter(world.layers.values()))[-1][1])), np.nan)
    for (agent, version), layers in world.layers.items():
        at = np.flatnonzero((agents == agent) & (versions == version))
        output[at] = forward(layers, states[at])
    return output


@np.errstate(all="ignore")
def log_probs_of(world: World, rows: Rows, output: Array) -> Array:
    """Of the actions taken, given every row's logits."""
    count, action = rows.numbers("num_actions"), rows.numbers("action_index")
    everything, actions = np.arange(len(count)), output.shape[1]
    if "subset_indices" in rows.table.column_names:
        ids, sizes = rows.padded("subset_indices", -1)
    else:
        ids, sizes = np.broadcast_to(np.arange(actions), output.shape), np.full(len(count), actions)
    offered = np.arange(ids.shape[1]) < sizes[:, None]
    right = (sizes == count) & (action >= 0) & (action < count) & (count <= actions)
    right &= np.where(offered, (ids >= 0) & (ids < actions), True).all(axis=1)
    if world.policy.get("logits", "gather") == "gather":
        local = np.take_along_axis(output, np.clip(ids, 0, actions - 1), axis=1)
    else:
        local = output[:, : ids.shape[1]]
    local = local / world.policy.get("temperature", 1.0)
    legal = offered.copy()
    if "action_mask" in rows.table.column_names:
        mask, lengths = rows.padded("action_mask", False)
        wide = np.zeros_like(offered)
        shared = min(mask.shape[1], wide.shape[1])
        wide[:, :shared] = mask[:, :shared]
        legal &= wide
        right &= lengths == sizes
    low = world.policy.get("masked_logit")
    local = np.where(legal, local, np.where(offered, -np.inf if low is None else low, -np.inf))
    top = local.max(axis=1, keepdims=True)
    total = np.log(np.exp(local - top).sum(axis=1)) + top[:, 0]
    chosen = np.clip(np.nan_to_num(action), 0, ids.shape[1] - 1).astype(int)
    right &= legal[everything, chosen]
    found: Array = np.where(right, local[everything, chosen] - total, np.nan)
    return found


def densities_of(world: World, rows: Rows, output: Array) -> Array:
    """Of the continuous actions taken, given every row's means."""
    assert world.log_std is not None
    action, _ = rows.padded("action", np.float32(np.nan))
    log_std = world.log_std.astype(np.float64)
    away = (action - output) / np.exp(log_std)
    found: Array = (-0.5 * away**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(axis=1)
    return found


def wrong(world: World, paths: Iterable[Path]) -> Array:
    """Which rows' stored log-probs are not those of who acted: what a finder could find."""
    paths = list(paths)
    expected = replayed(world, paths)
    stored = np.concatenate([Rows(pq.read_table(path)).numbers("old_log_prob") for path in paths])
    apart = np.abs(stored - expected)
    return ~(apart <= 1e-4 + 1e-5 * np.abs(expected))


def twins(paths: Iterable[Path], rows: Array) -> Array:
    """The rows that hold what one of these does, but for the key: which is the copy, nobody can say."""
    held = Rows(pa.concat_tables([pq.read_table(path) for path in paths]))
    states, _ = held.padded("state_embed", np.float32(np.nan))
    content = np.column_stack([states.astype(np.float64), held.numbers("old_log_prob")])
    _, kind = np.unique(content, axis=0, return_inverse=True)
    return np.flatnonzero(np.isin(kind.ravel(), kind.ravel()[rows]))


def traits(world: World, shared_actor: bool, smooth: bool) -> frozenset[str]:
    """What this world has that a fault may need in order to be told from others."""
    if world.dumps[0].suffix != ".parquet":
        return frozenset()
    rows = Rows(pa.concat_tables([pq.read_table(path) for path in world.dumps]))
    names = set(rows.table.column_names)
    found = {"discrete"} if "action_index" in names else set()
    found |= {name for name in ("reward", "terminated", "action_mask") if name in names}
    agents = len(set(rows.texts("agent_id").tolist()))
    found |= {"offers-differ"} if "action_mask" in names else set()
    found |= {"agents"} if agents > 1 else set()
    found |= {"own-actors"} if agents > 1 and not shared_actor else set()
    found |= {"versions"} if world.versions > 1 else set()
    found |= {"smooth"} if smooth else set()
    if "num_actions" in names:
        count = rows.numbers("num_actions")
        found |= {"K-varies"} if count.min() < count.max() else set()
        found |= {"some-K-below-A"} if count.min() < world.policy["action_space"] else set()
        found |= {"more-than-5"} if world.policy["action_space"] > 5 else set()
    if "subset_indices" in names:
        ids, sizes = rows.padded("subset_indices", 1 << 30)
        found.add("subsets")
        found |= {"offers-differ"} if len(np.unique(ids, axis=0)) > 1 else set()
        order = np.arange(ids.shape[1]) >= sizes[:, None]
        found |= {"scattered"} if ((ids != np.arange(ids.shape[1])) & ~order).any() else set()
        found |= {"ordered"} if (np.diff(ids, axis=1) < 0).any() else set()
    return frozenset(found)


# Healthy shapes

CLEAN: dict[str, dict[str, Any]] = {
    "default": {},
    "another seed": {},
    "single agent": {"agents": 1},
    "two agents": {"agents": 2},
    "five agents": {"agents": 5},
    "shared actor": {"shared_actor": True},
    "shared actor, five agents": {"shared_actor": True, "agents": 5},
    "one version": {"versions": 1},
    "no version": {"versions": 0},
    "no version, single agent": {"versions": 0, "agents": 1},
    "ten versions": {"versions": 10},
    "straddling versions": {"straddle": True},
    "masks": {"masked": True},
    "masks with a low logit": {"masked": True, "masked_logit": -1e8},
    "masks over all": {"masked": True, "subset": "all", "actions": 8},
    "masks over all, low logit": {
        "masked": True,
        "subset": "all",
        "actions": 8,
        "masked_logit": -1e8,
    },
    "prefix logits": {"logits": "prefix"},
    "prefix logits, sorted subsets": {"logits": "prefix", "subset": "sorted"},
    "subsets 0..K-1": {"subset": "prefix"},
    "subsets 0..K-1, shared actor, one version": {
        "subset": "prefix",
        "shared_actor": True,
        "versions": 1,
    },
    "sorted subsets": {"subset": "sorted"},
    "all actions": {"subset": "all", "actions": 6},
    "all of many actions": {"subset": "all", "actions": 40},
    "K = A, listed": {"actions": 6, "offered": (6, 6)},
    "K constant": {"offered": (5, 5)},
    "K = 2": {"offered": (2, 2)},
    "K up to A": {"actions": 8, "offered": (1, 8)},
    "many actions": {"actions": 200, "offered": (2, 40)},
    "gaussian": {"gaussian": 3},
    "gaussian, single agent, no version": {"gaussian": 1, "agents": 1, "versions": 0},
    "float16": {"precision": "float16", "column": "float16"},
    "bfloat16": {"precision": "bfloat16"},
    "float64": {"column": "float64"},
    "short episodes": {"length": (1, 4)},
    "one long episode": {"length": (10_000, 10_000), "agents": 1, "versions": 1},
    "long episodes, several agents": {"length": (500, 500)},
    "truncated": {"ends": "truncated"},
    "mixed ends": {"ends": "mixed"},
    "unmarked ends": {"ends": "unmarked"},
    "shuffled rows": {"shuffled": True},
    "three files": {"files": 3},
    "parallel environments": {"envs": 8},
    "parallel environments, single agent": {"envs": 16, "agents": 1},
    "only the needed columns": {"extras": False},
    "every column": {
        "masked": True,
        "stored": ("action_id", "logits", "entropy", "new_log_prob", "valid", "x_note"),
    },
    "HDF5": {"suffix": ".h5"},
    "temperature 0.7 declared": {"temperature": 0.7},
    "dropout in the actor, off": {"dropout": 0.2},
    "wide states": {"dim": 128},
    "states that jump": {"smooth": 0.0},
    "states that hardly move": {"smooth": 0.999},
    "near-uniform policy": {"sharpness": 0.05},
    "sharp policy": {"sharpness": 12.0},
    "few rows": {"rows": 60},
    "larger": {"rows": 30_000},
}


@functools.cache
def clean_shapes() -> dict[str, Shape]:
    return {name: Shape(**changes) for name, changes in CLEAN.items()}
