"""What Tianshou's PPO updates on, and the actor that it scores it with, as the update begins.

with UpdateDump("run/dump", algorithm):
    algorithm.run_training(params)
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from bufcheck import trainer
from bufcheck.errors import SampleError, UsageError
from bufcheck.vectors import Array
from bufcheck.writer import BufferWriter

try:
    import tianshou
    import torch
    from tianshou.algorithm.modelfree.a2c import ActorCriticOnPolicyAlgorithm
    from tianshou.algorithm.modelfree.npg import NPG
    from tianshou.data import Batch
    from tianshou.utils.net.common import MLP, Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic
    from tianshou.utils.net.discrete import DiscreteActor
    from torch import distributions, nn

    from bufcheck.trainers._networks import PROBED, Network, hold_to
except ImportError as error:
    raise trainer.lacking(error, "tianshou") from None

WHO = "UpdateDump"
ADVICE = "pass network=, the torch.nn module from observations to logits (or means, with log_std=)"


class UpdateDump(trainer.LateDump):
    """While it is open, every update of the algorithm is written before it is made.

    `network` and `log_std`: the actor as torch.nn layers, where it cannot be taken out of Tianshou's.
    Other options are those of BufferWriter.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        algorithm: Any,
        *,
        network: Any = None,
        log_std: Any = None,
        **options: Any,
    ) -> None:
        if not isinstance(algorithm, ActorCriticOnPolicyAlgorithm):
            raise UsageError(f"{WHO}: {type(algorithm).__name__} is not an actor-critic like PPO")
        self.path, self.algorithm, self.options = Path(path), algorithm, options
        self.network = None if network is None else Network(network, log_std)
        self.updates = self.episodes = 0
        self._last: dict[int, tuple[Array, int]] = {}

    def __enter__(self) -> UpdateDump:
        before = self.algorithm._preprocess_batch

        def and_written(batch: Any, buffer: Any, indices: Any) -> Any:
            scale = self._scale()
            ready = before(batch, buffer, indices)
            self.append(ready, _environments(buffer, indices), scale)
            return ready

        self.algorithm._preprocess_batch = and_written
        return self

    def __exit__(self, *failed: Any) -> None:
        del self.algorithm._preprocess_batch  # its class has the original
        super().__exit__(*failed)

    def append(self, batch: Any, envs: Array, scale: float = 1.0) -> None:
        """A batch that is ready for the update: one environment after the other, each in time."""
        if isinstance(batch.obs, Batch):
            raise SampleError("observations are dicts", "flatten them with a wrapper")
        if "logp_old" not in batch:
            raise SampleError(
                f"{type(self.algorithm).__name__} keeps no log-probs", "PPO, TRPO and NPG keep them"
            )
        states = torch.as_tensor(np.asarray(batch.obs)).float()
        dist = self._dist(batch)
        network = self.network or network_of(self.algorithm.policy.actor)
        network.module.training = self.algorithm.policy.actor.training
        self._prove(network, states[:PROBED].to(_device(network.module)), dist)
        if self.writer is None:
            self.writer = self._opened(states, dist)
        self.writer.policy_version = self.updates
        options = {"log_std": network.log_std, "state_shape": tuple(states.shape[1:])}
        self.writer.save_actor(None, network.module, **options)
        self.writer.append_rollout(self._columns(batch, states, envs, scale))
        self.updates += 1

    def _opened(self, states: torch.Tensor, dist: Any) -> BufferWriter:
        options, algorithm = dict(self.options), self.algorithm
        policy: dict[str, Any] = {"distribution": "diagonal_gaussian"}
        if isinstance(dist, distributions.Categorical):
            policy = {"subset": "all", "action_space": dist.logits.shape[-1]}
        if states.ndim > 2:
            policy["state_shape"] = list(states.shape[1:])
        advantage = {"gamma": algorithm.gamma, "gae_lambda": algorithm.gae_lambda}
        # PPO normalises within mini-batches, after this; NPG and TRPO the whole rollout, before it.
        whole = isinstance(algorithm, NPG) and algorithm.advantage_normalization
        advantage |= {"truncation": "bootstrap_value", "normalization": "rollout" if whole else "none"}
        return BufferWriter(
            self.path,
            policy=policy | dict(options.pop("policy", None) or {}),
            advantage=advantage | dict(options.pop("advantage", None) or {}),
            producer={"name": "tianshou", "version": tianshou.__version__},
            **options,
        )

    def _scale(self) -> float:
        """What values are multiplied with before GAE, with return_scaling; the update changes it."""
        told = self.algorithm
        return float(np.sqrt(told.ret_rms.var + told._eps)) if told.return_scaling else 1.0

    # Rows

    def _columns(self, batch: Any, states: torch.Tensor, envs: Array, scale: float) -> dict[str, Any]:
        terminated, truncated = (np.asarray(batch[n], bool) for n in ("terminated", "truncated"))
        leaves = np.append(envs[1:] != envs[:-1], True)
        discrete = batch.act.ndim == 1
        action = batch.act.long() if discrete else batch.act
        return self._keys(batch, envs, terminated | truncated, leaves) | {
            "env_id": envs,
            "state_embed": states,
            "action_index" if discrete else "action": action,
            "old_log_prob": batch.logp_old,
            "reward": np.asarray(batch.rew),
            "value": batch.v_s * scale,
            "advantage": batch.adv,
            "return": batch.returns * scale,
            "terminated": terminated,
            "truncated": truncated & ~terminated,
            "bootstrap_value": self._bootstraps(batch, (leaves | truncated) & ~terminated) * scale,
        }

    def _keys(self, batch: Any, envs: Array, done: Array, leaves: Array) -> dict[str, Any]:
        """A piece ends with its episode, or where the rollout leaves its environment."""
        first = np.append(True, (done | leaves)[:-1])
        rows = np.arange(len(envs))
        timestep = rows - np.maximum.accumulate(np.where(first, rows, 0))
        piece = np.cumsum(first) - 1
        entered = np.flatnonzero(np.append(True, leaves[:-1]))
        for start, end in zip(entered, np.flatnonzero(leaves), strict=True):
            seen, steps = self._last.get(envs[start], (None, 0))
            if seen is not None and np.array_equal(seen, batch.obs[start]):  # it goes on
                timestep[piece == piece[start]] += steps
            self._last[envs[start]] = (np.array(batch.obs_next[end]), int(timestep[end]) + 1)
        ids = self.episodes + piece
        self.episodes = int(ids[-1]) + 1
        return {"episode_id": ids, "timestep": timestep, "agent_id": "agent"}

    def _bootstraps(self, batch: Any, wanted: Array) -> Array:
        found = np.zeros(len(wanted), np.float32)
        if wanted.any():
            with torch.no_grad():
                told = self.algorithm.critic(batch.obs_next[wanted])
            found[wanted] = told.flatten().cpu().numpy()
        return found

    # The actor

    def _dist(self, batch: Any) -> Any:
        """Of some rows. The policy is not called: it would draw numbers that the run is to have."""
        policy = self.algorithm.policy
        with torch.no_grad():
            given, hidden = policy.actor(batch.obs[:PROBED], state=None, info=batch.info[:PROBED])
            dist = policy.dist_fn(given)
        if hidden is not None:
            raise UsageError(f"{WHO}: the actor has a memory, which cannot be replayed")
        inner = dist.base_dist if type(dist) is distributions.Independent else dist
        if type(inner) not in (distributions.Categorical, distributions.Normal) or (
            type(inner) is distributions.Normal and len(dist.event_shape) != 1
        ):
            raise UsageError(
                f"{WHO}: {type(dist).__name__} is not a distribution that bufcheck can replay",
                "Categorical and Independent(Normal(…), 1) are",
            )
        return dist

    def _prove(self, network: Network, states: torch.Tensor, dist: Any) -> None:
        found = network.given(states)
        if isinstance(dist, distributions.Categorical):
            hold_to(found.log_softmax(-1), dist.logits, WHO)
        else:
            inner = dist.base_dist
            hold_to(found, torch.cat([inner.loc, inner.scale.log()], -1), WHO)


def network_of(actor: Any) -> Network:
    """The layers of Tianshou's own actors."""
    if type(actor) is DiscreteActor:
        # A softmax at its end makes probabilities, whose logarithms are as good as logits.
        return Network(nn.Sequential(*_layers(actor.preprocess), *_layers(actor.last)))
    if type(actor) is ContinuousActorProbabilistic and not actor._c_sigma:
        layers = [*_layers(actor.preprocess), *_layers(actor.mu)]
        if not actor._unbounded:
            layers.append(nn.Tanh())  # times max_action, which is then seen to differ
        return Network(nn.Sequential(*layers), actor.sigma_param.detach().flatten())
    return Network(nn.Sequential(*_layers(actor)))


def _layers(module: Any) -> list[nn.Module]:
    if type(module) is Net and not module.use_dueling and module.num_atoms == 1:
        return _layers(module.model)
    if type(module) is MLP:
        return [*([nn.Flatten(1)] if module.flatten_input else []), *module.model]
    raise UsageError(f"{WHO}: the actor has a {type(module).__name__}", ADVICE)


def _environments(buffer: Any, indices: Array) -> Array:
    """Which environment each row is of: buffers of several keep one part for each."""
    offset = getattr(buffer, "_offset", np.zeros(1, int))
    return np.searchsorted(np.asarray(offset), indices, side="right") - 1


def _device(module: nn.Module) -> Any:
    return next((p.device for p in module.parameters()), torch.device("cpu"))
