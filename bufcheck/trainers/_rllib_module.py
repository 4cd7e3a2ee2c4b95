"""What of RLlib's own PPO module a dump needs: its kind of policy, and the layers that act."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bufcheck import trainer
from bufcheck.errors import UsageError
from bufcheck.vectors import Array

try:
    import torch
    from gymnasium import spaces
    from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
    from ray.rllib.core.distribution.torch.torch_distribution import TorchCategorical, TorchDiagGaussian
    from ray.rllib.core.models.torch.encoder import TorchActorCriticEncoder, TorchMLPEncoder
    from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead, TorchMLPHead
except ImportError as error:
    raise trainer.lacking(error, "rllib") from None

_ACTING = ("_forward", "_forward_exploration", "forward_exploration", "get_exploration_action_dist_cls")
_BY_HAND = "write with bufcheck.BufferWriter yourself"


@dataclass(frozen=True)
class Described:
    """The policies of a dump, which are all of one kind."""

    modules: Mapping[str, Any]
    policy: Mapping[str, Any]
    """As the metadata tells it."""
    log_std_limit: float
    """Where the head cuts a log_std that depends on the state; the saved layers do not."""

    def actions(self, actions: Array, inputs: Array) -> dict[str, Array]:
        """The columns for what was sampled, and the distribution it was sampled from."""
        if self.policy["distribution"] == "categorical":
            return {"action_index": actions, "logits": inputs}
        mean, log_std = np.split(inputs, 2, axis=1)
        if (np.abs(log_std) >= self.log_std_limit).any():
            raise UsageError(
                f"RLlib: a log_std reached log_std_clip_param = {self.log_std_limit:g}, and a saved"
                " actor does not stop there",
                'set it higher, or "free_log_std": True',
            )
        return {"action": actions, "action_mean": mean, "action_std": np.exp(log_std)}


def describe(modules: Mapping[str, Any]) -> Described:
    """Refuses what a dump cannot hold, before anything is trained."""
    kinds = {name: _kind(name, module) for name, module in modules.items()}
    first = next(iter(kinds))
    for name, kind in kinds.items():
        if kind != kinds[first]:
            raise UsageError(
                f"RLlib: policies {first} and {name} have other observations or actions, and a dump has"
                " rows of one kind",
                f'dump one of them: modules=["{first}"]',
            )
    seen, sort, size = kinds[first]
    policy: dict[str, Any] = {"distribution": sort, "state_shape": [seen]}
    if sort == "categorical":
        policy |= {"subset": "all", "action_space": size}
    return Described(dict(modules), policy, min(_limit(module.pi) for module in modules.values()))


def actor_of(name: str, module: Any) -> tuple[torch.nn.Sequential, torch.Tensor | None]:
    """The layers from observation to action, and the log_std where it is a parameter of its own."""
    encoder, head = module.encoder, module.pi
    own: Any = getattr(encoder, "encoder" if encoder.config.shared else "actor_encoder", None)
    if type(encoder) is not TorchActorCriticEncoder or type(own) is not TorchMLPEncoder:
        raise UsageError(
            f"RLlib: policy {name} has a {type(own or encoder).__name__}, and only fully connected"
            " encoders can be saved as layers",
            _BY_HAND,
        )
    if type(head) not in (TorchMLPHead, TorchFreeLogStdMLPHead):
        raise UsageError(f"RLlib: policy {name} has a head of its own", _BY_HAND)
    # A copy, because the learner's is in train mode, which changes nothing about these layers.
    network = copy.deepcopy(torch.nn.Sequential(*own.net.mlp, *head.net.mlp)).eval()
    if type(head) is TorchMLPHead:
        return network, None
    limit = float(head.log_std_clip_param_const) if head.clip_log_std else math.inf
    return network, head.log_std.detach().clamp(-limit, limit)


def judged(module: Any, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """What the learner makes of the batch as long as it is the module that acted."""
    with torch.no_grad():
        inputs = module.forward_train(batch)["action_dist_inputs"]
        chance = module.get_train_action_dist_cls().from_logits(inputs)
        return {
            "value": module.compute_values(batch),
            "new_log_prob": chance.logp(batch["actions"]),
        }


def _kind(name: str, module: Any) -> tuple[int, str, int]:
    """(numbers in an observation, distribution, actions or numbers in an action)."""
    if module.is_stateful():
        raise UsageError(
            f"RLlib: policy {name} is recurrent, and a dump does not hold its state",
            "train without use_lstm to dump",
        )
    same = isinstance(module, DefaultPPOTorchRLModule) and all(
        getattr(type(module), method) is getattr(DefaultPPOTorchRLModule, method) for method in _ACTING
    )
    if not same:
        raise UsageError(
            f"RLlib: policy {name} is a {type(module).__name__}, not PPO's own module", _BY_HAND
        )
    seen, done = module.observation_space, module.action_space
    if not isinstance(seen, spaces.Box) or len(seen.shape) != 1:
        raise UsageError(
            f"RLlib: policy {name} sees {_named(seen)}, not a vector",
            "flatten it with FlattenObservations as config.env_runners(env_to_module_connector=…)",
        )
    actor_of(name, module)
    chance = module.get_exploration_action_dist_cls()
    if isinstance(done, spaces.Discrete) and chance is TorchCategorical:
        return int(seen.shape[0]), "categorical", int(done.n)
    if isinstance(done, spaces.Box) and len(done.shape) == 1 and chance is TorchDiagGaussian:
        return int(seen.shape[0]), "diagonal_gaussian", int(done.shape[0])
    raise UsageError(
        f"RLlib: policy {name} acts in {_named(done)} with {getattr(chance, '__name__', chance)};"
        " a dump holds one categorical or Gaussian action a step",
        "use a Discrete or a flat Box action space to dump",
    )


def _named(space: Any) -> str:
    return f"{type(space).__name__}{list(space.shape)}" if space.shape else type(space).__name__


def _limit(head: Any) -> float:
    cuts = type(head) is TorchMLPHead and head.clip_log_std
    return float(head.log_std_clip_param_const) if cuts else math.inf
