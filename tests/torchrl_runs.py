"""TorchRL runs of a few seconds for test_trainer_torchrl.py, dumped as they go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import AddStateIndependentNormalScale, NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, GymEnv, SerialEnv, StepCounter, TransformedEnv
from torchrl.modules import (
    MLP,
    IndependentNormal,
    MaskedCategorical,
    MultiAgentMLP,
    OneHotCategorical,
    ProbabilisticActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss, ValueEstimators
from trainers import one_thread

from bufcheck.trainers.torchrl import TensorDictDump

ROLLOUTS, FRAMES = 3, 400
AGENTS = 3
SEEN, CHOICES = 6, 5
Spoil = Callable[[TensorDictBase, Any], None]


def as_it_is(batch: TensorDictBase, actor: Any) -> None: ...


# One agent


def cartpole(folder: Path, spoil: Spoil = as_it_is, *, late: bool = False) -> TensorDictDump:
    """Two environments, one-hot actions, and a time limit that is met."""
    torch.manual_seed(0)
    env = SerialEnv(2, lambda: TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=30)))
    env.set_seed(0)
    actor = _actor(MLP(4, 2, num_cells=[32, 32]), ["logits"], OneHotCategorical)
    return train(folder, env, actor, _critic(4), spoil, late=late)


def pendulum(folder: Path) -> TensorDictDump:
    """A spread that depends on the state."""
    torch.manual_seed(0)
    net = nn.Sequential(MLP(3, 2, num_cells=[32, 32]), NormalParamExtractor())
    actor = _actor(net, ["loc", "scale"], IndependentNormal)
    return train(folder, _pendulum(), actor, _critic(3))


def squashed(folder: Path, gain: float = 1.0) -> TensorDictDump:
    """Actions between −1 and 2, by one spread for all states; `gain` drives them to the ends."""
    torch.manual_seed(0)
    mlp = MLP(3, 1, num_cells=[32, 32])
    mlp[-1].weight.data *= gain
    net = nn.Sequential(mlp, AddStateIndependentNormalScale((1,)))
    bounds = {"low": torch.tensor([-1.0]), "high": torch.tensor([2.0])}
    actor = _actor(net, ["loc", "scale"], TanhNormal, distribution_kwargs=bounds)
    return train(folder, _pendulum(), actor, _critic(3))


def masked(folder: Path, spoil: Spoil = as_it_is, **options: Any) -> TensorDictDump:
    torch.manual_seed(0)
    fed = {"logits": "logits", "mask": "action_mask"}
    actor = _actor(MLP(SEEN, CHOICES, num_cells=[32]), ["logits"], MaskedCategorical, fed)
    return train(folder, Errands(), actor, _critic(SEEN), spoil, **options)


def aliased(folder: Path) -> TensorDictDump:
    """An environment that computes the next state in the place of the one it was handed."""
    torch.manual_seed(0)
    fed = {"logits": "logits", "mask": "action_mask"}
    actor = _actor(MLP(SEEN, CHOICES, num_cells=[32]), ["logits"], MaskedCategorical, fed)
    return train(folder, Errands(in_place=True), actor, _critic(SEEN))


def _actor(net: nn.Module, gives: list[str], kind: Any, fed: Any = None, **options: Any) -> Any:
    return ProbabilisticActor(
        TensorDictModule(net, ["observation"], gives),
        in_keys=fed or gives,
        distribution_class=kind,
        return_log_prob=True,
        **options,
    )


def _critic(seen: int) -> Any:
    return ValueOperator(MLP(seen, 1, num_cells=[32]), ["observation"])


def _pendulum() -> EnvBase:
    env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(max_steps=70))
    env.set_seed(0)
    return env


class Errands(EnvBase):
    """Every step allows some of the actions; one of the numbers seen is paid."""

    def __init__(self, *, in_place: bool = False) -> None:
        super().__init__()
        self.in_place = in_place
        self.observation_spec = Composite(
            observation=Unbounded((SEEN,)), action_mask=Binary(CHOICES, (CHOICES,), dtype=torch.bool)
        )
        self.action_spec = Categorical(CHOICES, shape=())
        self.reward_spec = Unbounded((1,))
        self.steps = 0

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        self.steps = 0
        return self._look()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.steps += 1
        reward = tensordict["observation"][tensordict["action"]].clone()
        after = self._look()
        if self.in_place:
            tensordict["observation"].copy_(after["observation"])
        after["reward"] = reward[None]
        after["terminated"] = torch.rand(1) < 0.03
        after["truncated"] = torch.tensor([self.steps == 40])
        after["done"] = after["terminated"] | after["truncated"]
        return after

    def _set_seed(self, seed: int | None) -> None:
        torch.manual_seed(seed or 0)

    def _look(self) -> TensorDictBase:
        legal = torch.rand(CHOICES) < 0.5
        legal[torch.randint(CHOICES, ())] = True
        return TensorDict({"observation": torch.randn(SEEN), "action_mask": legal}, [])


# Several agents


def gathering(
    folder: Path,
    spoil: Spoil = as_it_is,
    *,
    share: bool = False,
    gaussian: bool = False,
    late: bool = False,
    **options: Any,
) -> TensorDictDump:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_agents": AGENTS, "centralized": False, "share_params": share}
    gives = ["loc", "scale"] if gaussian else ["logits"]
    net: nn.Module = MultiAgentMLP(SEEN, 4 if gaussian else CHOICES, depth=2, num_cells=32, **sizes)
    if gaussian:
        net = nn.Sequential(net, NormalParamExtractor("exp"))
    grouped = [("agents", name) for name in gives]
    actor = ProbabilisticActor(
        TensorDictModule(net, [("agents", "observation")], grouped),
        in_keys=grouped,
        out_keys=[("agents", "action")],
        distribution_class=IndependentNormal if gaussian else torch.distributions.Categorical,
        return_log_prob=True,
        log_prob_key=("agents", "sample_log_prob"),
    )
    value = MultiAgentMLP(SEEN, 1, depth=1, num_cells=32, **sizes)
    critic = TensorDictModule(value, [("agents", "observation")], [("agents", "state_value")])
    env = Gathering(gaussian=gaussian)
    return train(folder, env, actor, critic, spoil, late=late, grouped=True, **options)


class Gathering(EnvBase):
    """Each agent sees numbers of its own, and is paid by the one it chooses."""

    def __init__(self, *, gaussian: bool = False) -> None:
        super().__init__()
        many = (AGENTS,)
        chosen = Unbounded((*many, 2)) if gaussian else Categorical(CHOICES, shape=many)
        self.observation_spec = _grouped(observation=Unbounded((*many, SEEN)))
        self.action_spec = _grouped(action=chosen)
        self.reward_spec = _grouped(reward=Unbounded((*many, 1)))
        self.steps, self.gaussian = 0, gaussian

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        self.steps = 0
        return self._look()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.steps += 1
        seen, action = tensordict["agents", "observation"], tensordict["agents", "action"]
        after = self._look()
        paid = action.sum(-1, True) if self.gaussian else seen.gather(-1, action.unsqueeze(-1))
        after["agents", "reward"] = paid
        after["terminated"] = torch.rand(1) < 0.05
        after["truncated"] = torch.tensor([self.steps == 17])
        after["done"] = after["terminated"] | after["truncated"]
        return after

    def _set_seed(self, seed: int | None) -> None:
        torch.manual_seed(seed or 0)

    def _look(self) -> TensorDictBase:
        seen = torch.randn(AGENTS, SEEN)
        return TensorDict({"agents": TensorDict({"observation": seen}, [AGENTS])}, [])


def _grouped(**spec: Any) -> Composite:
    return Composite(agents=Composite(**spec, shape=(AGENTS,)))


# The loop


def train(
    folder: Path,
    env: EnvBase,
    actor: Any,
    critic: Any,
    spoil: Spoil = as_it_is,
    *,
    late: bool = False,
    grouped: bool = False,
    **options: Any,
) -> TensorDictDump:
    """PPO. `late`: the batch is appended after the update, by mistake."""
    loss = ClipPPOLoss(actor, critic, normalize_advantage=not grouped)
    if grouped:
        names = ("reward", "action", "done", "terminated", "sample_log_prob")
        loss.set_keys(value=("agents", "state_value"), **{name: ("agents", name) for name in names})
    loss.make_value_estimator(ValueEstimators.GAE, gamma=0.97, lmbda=0.9)
    adam = torch.optim.Adam(loss.parameters(), lr=3e-3)
    with one_thread(), TensorDictDump(folder / "dump", actor, loss, **options) as dump:
        for batch in batches(env, actor):
            if grouped:
                _share_ends(batch)
            with torch.no_grad():
                loss.value_estimator(
                    batch,
                    params=loss.critic_network_params,
                    target_params=loss.target_critic_network_params,
                )
            spoil(batch, actor)
            if not late:
                dump.append(batch)
            for _ in range(5):
                losses = loss(batch)
                adam.zero_grad()
                sum(v for k, v in losses.items() if k.startswith("loss_")).backward()
                adam.step()
            if late:
                dump.append(batch)
    return dump


def batches(env: EnvBase, actor: Any) -> Iterator[TensorDictBase]:
    collector = Collector(env, actor, frames_per_batch=FRAMES, total_frames=FRAMES * ROLLOUTS)
    yield from collector
    collector.shutdown()


def _share_ends(batch: TensorDictBase) -> None:
    shape = batch["next", "agents", "reward"].shape
    for name in ("done", "terminated"):
        batch["next", "agents", name] = batch["next", name].unsqueeze(-1).expand(shape)
