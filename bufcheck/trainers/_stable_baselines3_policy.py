"""Which policies of Stable-Baselines3 can be replayed, their actor, and what a dump says of them."""

from __future__ import annotations

import copy
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs

from bufcheck.actors import _trace
from bufcheck.actors._layers import by_255
from bufcheck.errors import UsageError
from bufcheck.vectors import Array

PACKAGES = {"stable_baselines3": "stable-baselines3", "sb3_contrib": "sb3-contrib"}
FAMILIES = {
    "CategoricalDistribution": "categorical",
    "MaskableCategoricalDistribution": "categorical",
    "DiagGaussianDistribution": "diagonal_gaussian",
}
MASKED_LOGIT = -1e8
"""What sb3-contrib sets the logits of illegal actions to."""
TRIAL_ROWS = 16
NEAR = 1e-5
BY_HAND = "write its rollouts with bufcheck.BufferWriter"
HEAD_ONLY = (
    "acts from the LSTM's output on, which is what state_embed holds; the LSTM itself is not replayed"
)


class Actor(torch.nn.Module):
    """The policy's own layers, from a state as the dump holds it to logits or means.

    They are the live ones, not copies: what is saved is what acts at that moment.
    """

    def __init__(self, policy: Any) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        if not is_recurrent(policy):
            if policy.normalize_images and is_image_space(policy.observation_space):
                layers.append(by_255())
            layers.append(policy.pi_features_extractor)
        self.features = torch.nn.Sequential(*layers)
        self.extractor, self.head = policy.mlp_extractor, policy.action_net
        self.training = policy.training

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        given: torch.Tensor = self.head(self.extractor.forward_actor(self.features(states)))
        return given


def is_recurrent(policy: Any) -> bool:
    return hasattr(policy, "lstm_actor")


def state_shape(policy: Any) -> tuple[int, ...]:
    """Of one state as the dump holds it."""
    space = policy.observation_space
    if is_recurrent(policy):
        return (int(policy.lstm_output_dim),)
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return (int(sum(space.nvec)),)
    return tuple(space.shape)


def as_states(observations: Array, space: spaces.Space[Any]) -> Array:
    """[rows, …] as the network is fed, but that images keep their 0 to 255: the actor scales them."""
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        flat = observations.reshape(len(observations), -1)
        ids = torch.as_tensor(flat[:, 0] if isinstance(space, spaces.Discrete) else flat)
        seen = preprocess_obs(ids, space)
        assert isinstance(seen, torch.Tensor)
        return seen.numpy()
    return observations


# What a dump says


def description(model: OnPolicyAlgorithm, masks: str) -> dict[str, dict[str, Any]]:
    """`policy`, `advantage` and `producer` of the metadata."""
    policy: Any = model.policy
    family = FAMILIES[type(policy.action_dist).__name__]
    told: dict[str, Any] = {"distribution": family}
    shape = state_shape(policy)
    if len(shape) > 1:
        told["state_shape"] = list(shape)
    told["precision"] = str(next(policy.action_net.parameters()).dtype).removeprefix("torch.")
    if isinstance(model.action_space, spaces.Discrete):
        told["action_space"] = int(model.action_space.n)
        told["logits"] = "gather"
        masked = hasattr(model.rollout_buffer, "action_masks")
        told["subset"] = "listed" if masked and masks == "subset" else "all"
        if masked and masks == "mask":
            told["masked_logit"] = MASKED_LOGIT
    advantage = {
        "gamma": float(model.rollout_buffer.gamma),
        "gae_lambda": float(model.rollout_buffer.gae_lambda),
        "normalization": "none",  # PPO normalises each minibatch, not what is in the buffer
        "truncation": "folded_into_reward",
    }
    return {"policy": told, "advantage": advantage, "producer": _producer(model)}


def _producer(model: OnPolicyAlgorithm) -> dict[str, str]:
    for kind in type(model).__mro__:
        package = PACKAGES.get(kind.__module__.split(".")[0])
        if package is not None:
            return {"name": f"{package} {kind.__name__}", "version": version(package)}
    raise AssertionError("an OnPolicyAlgorithm is Stable-Baselines3's")


# What cannot be replayed


def replayable(model: BaseAlgorithm) -> OnPolicyAlgorithm:
    """The model, once it is seen that its rollouts can be dumped and replayed."""
    who = type(model).__name__
    if not isinstance(model, OnPolicyAlgorithm):
        raise UsageError(f"{who} is off-policy, and stores no log-probs", "bufcheck is for PPO and kin")
    actions, observations = model.action_space, model.observation_space
    if not isinstance(actions, (spaces.Discrete, spaces.Box)):
        kind = type(actions).__name__
        raise UsageError(
            f"the actions are {kind}: a factored policy, which experience/1 does not hold",
            "make them one Discrete space",
        )
    if isinstance(observations, spaces.Dict):
        raise UsageError(
            "the observations are a Dict, and a stored state is one vector",
            "wrap the environment in gymnasium's FlattenObservation",
        )
    policy: Any = model.policy
    if model.use_sde:
        raise UsageError("gSDE is on, whose noise depends on the state", "say use_sde=False")
    family = type(getattr(policy, "action_dist", None)).__name__
    if family not in FAMILIES or not hasattr(policy, "mlp_extractor"):
        raise UsageError(f"{type(policy).__name__} is no policy that bufcheck knows", BY_HAND)
    policy.set_training_mode(False)  # as it is about to be for the rollout
    actor = Actor(policy)
    try:
        _trace.chain(actor)
    except UsageError as error:
        advice = f"{BY_HAND}, save its state_dict and validate with --arch"
        raise UsageError(error.problem.replace("save_actor: ", "the actor: "), advice) from None
    _try(policy, actor)
    return model


def _observations(space: spaces.Space[Any]) -> Array:
    """Some that the policy takes. Bounds of a Box may be the largest numbers there are."""
    if isinstance(space, spaces.Box) and space.dtype != np.uint8:
        chosen = np.random.default_rng(0).uniform(-1, 1, (TRIAL_ROWS, *space.shape))
        return chosen.astype(space.dtype)
    space = copy.deepcopy(space)  # whose own chance is left alone
    space.seed(0)
    return np.stack([space.sample() for _ in range(TRIAL_ROWS)])


def _try(policy: Any, actor: Actor) -> None:
    """A policy of the user's own may compute anything from the same layers."""
    seen = _observations(policy.observation_space)
    observations = torch.as_tensor(seen, device=policy.device)
    with torch.no_grad():
        if is_recurrent(policy):
            lstm = policy.lstm_actor
            before = torch.zeros(lstm.num_layers, TRIAL_ROWS, lstm.hidden_size, device=policy.device)
            starts = torch.ones(TRIAL_ROWS, device=policy.device)
            distribution, (after, _) = policy.get_distribution(observations, (before, before), starts)
            given = actor(after[-1])
        else:
            distribution = policy.get_distribution(observations)
            states = torch.as_tensor(as_states(seen, policy.observation_space))
            given = actor(states.float().to(policy.device))
        inner = distribution.distribution
        if isinstance(inner, torch.distributions.Normal):
            expected = torch.cat([inner.mean, inner.stddev])
            given = torch.cat([given, policy.log_std.exp().expand_as(given)])
        else:
            expected, given = inner.logits, given.log_softmax(-1)
    apart = (expected - given).abs().max()
    if not apart <= NEAR * max(1.0, float(expected.abs().max())):
        raise UsageError(
            f"{type(policy).__name__} computes its distribution in a way of its own", BY_HAND
        )
