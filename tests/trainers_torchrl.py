"""A TorchRL run with several agents, for trainers.py: importing TorchRL is slow, and warns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase
from torchrl.modules import MultiAgentMLP, ProbabilisticActor
from torchrl.objectives import ClipPPOLoss, ValueEstimators
from trainers import ROLLOUTS, Array, Run, names, one_thread, vectors, write

from bufcheck.actors import described_layers

AGENTS = ("blue", "green", "red")
SEEN, CHOICES, FRAMES = 6, 5, 300


def train(folder: Path) -> Run:
    """Three agents with a network each; rows of a step in the order of their names."""
    with one_thread():
        torch.manual_seed(0)
        env = Gathering()
        net = MultiAgentMLP(
            SEEN, CHOICES, len(AGENTS), centralized=False, share_params=False, depth=2, num_cells=32
        )
        actor = ProbabilisticActor(
            TensorDictModule(net, [("agents", "observation")], [("agents", "logits")]),
            in_keys=[("agents", "logits")],
            out_keys=[("agents", "action")],
            distribution_class=torch.distributions.Categorical,
            return_log_prob=True,
            log_prob_key=("agents", "sample_log_prob"),
        )
        collector = Collector(env, actor, frames_per_batch=FRAMES, total_frames=FRAMES * ROLLOUTS)
        kept = []
        update = _updates(actor)
        _save_agents(net, folder, 0)
        for version, batch in enumerate(collector):
            update(batch)
            kept.append(batch.cpu().clone())
            _save_agents(net, folder, version + 1)
        collector.shutdown()
    policy = {"distribution": "categorical", "subset": "all", "action_space": CHOICES}
    dump = write(folder / "gathering.parquet", _columns(kept), policy)
    return Run((dump,), str(folder / "{agent_id}-{policy_version}.safetensors"), agents=AGENTS)


class Gathering(EnvBase):
    """Each agent sees numbers of its own, and is paid by the one it chooses."""

    def __init__(self) -> None:
        super().__init__()
        many = (len(AGENTS),)
        self.observation_spec = _grouped(observation=Unbounded((*many, SEEN)))
        self.action_spec = _grouped(action=Categorical(CHOICES, shape=many))
        self.reward_spec = _grouped(reward=Unbounded((*many, 1)))
        self.steps = 0

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        self.steps = 0
        return self._look()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.steps += 1
        seen, action = tensordict["agents", "observation"], tensordict["agents", "action"]
        after = self._look()
        after["agents", "reward"] = seen.gather(-1, action.unsqueeze(-1))
        after["terminated"] = torch.tensor([self.steps == 17])
        after["done"] = after["terminated"].clone()
        return after

    def _set_seed(self, seed: int | None) -> None:
        torch.manual_seed(seed or 0)

    def _look(self) -> TensorDictBase:
        seen = torch.randn(len(AGENTS), SEEN)
        return TensorDict({"agents": TensorDict({"observation": seen}, [len(AGENTS)])}, [])


def _grouped(**spec: Any) -> Composite:
    return Composite(agents=Composite(**spec, shape=(len(AGENTS),)))


def _updates(actor: Any) -> Any:
    """PPO on a batch, its advantages written into it."""
    value = MultiAgentMLP(
        SEEN, 1, len(AGENTS), centralized=False, share_params=False, depth=1, num_cells=32
    )
    critic = TensorDictModule(value, [("agents", "observation")], [("agents", "state_value")])
    loss = ClipPPOLoss(actor, critic, normalize_advantage=False)
    names = ("reward", "action", "done", "terminated", "sample_log_prob")
    loss.set_keys(value=("agents", "state_value"), **{name: ("agents", name) for name in names})
    loss.make_value_estimator(ValueEstimators.GAE, gamma=0.99, lmbda=0.95)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-3)

    def update(batch: Any) -> None:
        for name in ("done", "terminated"):
            ended = batch["next", name].unsqueeze(-1).expand(batch["next", "agents", "reward"].shape)
            batch["next", "agents", name] = ended
        with torch.no_grad():
            loss.value_estimator(
                batch,
                params=loss.critic_network_params,
                target_params=loss.target_critic_network_params,
            )
        for _ in range(5):
            losses = loss(batch)
            total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
            optimizer.zero_grad()
            total.backward()
            optimizer.step()

    return update


def _save_agents(net: MultiAgentMLP, folder: Path, version: int) -> None:
    """Each agent's own slice of the stacked weights, as a network that stands alone."""
    stacked = {name: tensor for name, tensor in net.state_dict().items() if name.startswith("params.")}
    for i, agent in enumerate(AGENTS):
        alone = torch.nn.Sequential(
            *(torch.nn.Linear(SEEN, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Tanh()),
            torch.nn.Linear(32, CHOICES),
        ).eval()
        alone.load_state_dict({name.removeprefix("params."): t[i] for name, t in stacked.items()})
        described_layers.save(alone, folder / f"{agent}-{version}.safetensors")


def _columns(batches: list[Any]) -> dict[str, pa.Array]:
    steps, many = sum(len(b) for b in batches), len(AGENTS)

    def of(*key: str) -> Array:
        return np.concatenate([b[key].numpy() for b in batches])

    def flat(*key: str) -> Array:
        return of(*key).reshape(steps * many)

    episode = of("collector", "traj_ids").reshape(steps)
    began = np.maximum.accumulate(np.where(np.diff(episode, prepend=-1) != 0, np.arange(steps), 0))
    version = np.repeat(np.arange(len(batches)), [len(b) for b in batches])
    return {
        "episode_id": pa.array(episode.repeat(many), pa.int64()),
        "timestep": pa.array((np.arange(steps) - began).repeat(many), pa.int32()),
        "agent_id": names([*AGENTS] * steps),
        "state_embed": vectors(of("agents", "observation").reshape(steps * many, SEEN)),
        "num_actions": pa.array(np.full(steps * many, CHOICES), pa.int32()),
        "action_index": pa.array(flat("agents", "action"), pa.int32()),
        "old_log_prob": pa.array(flat("agents", "sample_log_prob"), pa.float32()),
        "policy_version": pa.array(version.repeat(many), pa.int64()),
        "reward": pa.array(flat("next", "agents", "reward"), pa.float32()),
        "value": pa.array(flat("agents", "state_value"), pa.float32()),
        "advantage": pa.array(flat("advantage"), pa.float32()),
        "terminated": pa.array(of("next", "terminated").reshape(steps).repeat(many), pa.bool_()),
    }
