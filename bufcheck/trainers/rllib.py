"""Ray RLlib: dumps what PPO on the new API stack learns from, rollout by rollout.

    config.callbacks(partial(DumpCallback, "run/dump"))

RLlib turns episodes into a batch in the learner, just before the update: there, and nowhere else, stand
the observations as the module sees them, what was stored when it acted, and the advantages. So the
callback puts one piece before and one behind the learner's connectors, and reads what passes through.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bufcheck import trainer
from bufcheck.errors import UsageError
from bufcheck.trainers._rllib_module import Described, actor_of, describe, judged
from bufcheck.trainers._rllib_rows import Piece, joined, timesteps_of
from bufcheck.vectors import Array
from bufcheck.writer import BufferWriter

try:
    import ray
    from ray.rllib.algorithms.ppo import PPO
    from ray.rllib.callbacks.callbacks import RLlibCallback
    from ray.rllib.connectors.connector_v2 import ConnectorV2
    from ray.rllib.connectors.learner import GeneralAdvantageEstimation
except ImportError as error:
    raise trainer.lacking(error, "rllib") from None

COLUMNS = {
    "obs": "state_embed",
    "action_logp": "old_log_prob",
    "rewards": "reward",
    "advantages": "advantage",
    "value_targets": "return",
    "weights_seq_no": "policy_version",
}
"""What the learner's batch holds, and what a dump calls it."""


class DumpCallback(RLlibCallback):
    """Writes every rollout to `path`, with the actor that made it; `algorithm.stop()` closes the dump.

    `agents`: what the metadata says of them (`{"turn_based": True}`). `modules`: the policies to dump;
    all that are trained when left out. Other options are those of `bufcheck.BufferWriter`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        agents: Mapping[str, Any] | None = None,
        modules: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.path, self.agents, self.modules, self.options = path, agents, modules, options
        self.writer: BufferWriter | None = None

    def on_algorithm_init(self, *, algorithm: Any, **_: Any) -> None:
        # Env runners make a callback of their own each; only the algorithm's comes here.
        try:
            _refuse(algorithm)
            algorithm.learner_group.foreach_learner(lambda learner: self._attach(algorithm, learner))
        except BaseException:
            algorithm.cleanup()  # nobody else can: it has not been returned yet
            raise

    def _attach(self, algorithm: Any, learner: Any) -> None:
        pipeline = learner._learner_connector
        gae = [p for p in pipeline.connectors if isinstance(p, GeneralAdvantageEstimation)]
        if not gae:
            raise UsageError(
                "RLlib: the learner's connectors compute no advantages",
                "leave add_default_connectors_to_learner_pipeline at True",
            )
        described = describe(_chosen(learner, self.modules))
        several = bool(algorithm.config.is_multi_agent)
        shared = {"shared_actor": True} if several and len(described.modules) == 1 else {}
        self.writer = BufferWriter(
            self.path,
            policy=described.policy,
            advantage={
                "gamma": float(gae[0].gamma),
                "gae_lambda": float(gae[0].lambda_),
                "normalization": "rollout of each policy",
                "truncation": "bootstrap_value",
            },
            agents={**shared, **(self.agents or {})},
            producer={"name": "ray.rllib.PPO", "version": ray.__version__},
            **self.options,
        )
        rollouts = _Rollouts(self.writer, learner, described, self.modules is not None)
        pipeline.prepend(_Passing(rollouts.come_in))
        pipeline.append(_Passing(rollouts.go_out))
        _close_with(algorithm, self.writer)


def _refuse(algorithm: Any) -> None:
    config = algorithm.config
    if not (config.enable_rl_module_and_learner and config.enable_env_runner_and_connector_v2):
        raise UsageError("RLlib: this is the old API stack", "leave config.api_stack as it is")
    if not isinstance(algorithm, PPO):
        raise UsageError(
            f"RLlib: {type(algorithm).__name__} is not PPO", "write with bufcheck.BufferWriter yourself"
        )
    if algorithm.learner_group.is_remote:
        raise UsageError(
            "RLlib: remote learners each have a part of a rollout", "set num_learners=0 to dump"
        )


def _chosen(learner: Any, wanted: Sequence[str] | None) -> dict[str, Any]:
    """The modules to dump: those named, else those that are trained."""
    there = dict(sorted(learner.module.items()))
    for name in wanted or ():
        if name not in there:
            raise UsageError(f"RLlib: no policy {name!r}", f"there are {', '.join(there)}")
    names = there if wanted is None else wanted
    found = {n: there[n] for n in names if wanted or learner.should_module_be_updated(n)}
    if not found:
        raise UsageError("RLlib: no policy is trained", "name those to dump: modules=[…]")
    return found


def _close_with(algorithm: Any, writer: BufferWriter) -> None:
    """RLlib tells callbacks when an algorithm begins, and not when it ends."""
    cleanup = algorithm.cleanup

    def close() -> None:
        writer.close()
        cleanup()

    algorithm.cleanup = close


class _Passing(ConnectorV2):
    """A piece of the learner's pipeline that looks on."""

    def __init__(self, look: Callable[[Any, Sequence[Any]], None]) -> None:
        super().__init__()
        self.look = look

    def __call__(self, *, batch: Any, episodes: Sequence[Any], **_: Any) -> Any:
        self.look(batch, episodes)
        return batch


class _Rollouts:
    """Pairs the episodes that come in with the batch that comes out, and writes it."""

    def __init__(self, writer: BufferWriter, learner: Any, described: Described, chosen: bool) -> None:
        self.writer, self.learner, self.described, self.chosen = writer, learner, described, chosen
        self.pieces: list[Piece] = []
        self.next_episode = 0

    def come_in(self, _: Any, episodes: Sequence[Any]) -> None:
        """As they were sampled: the next piece makes each a step longer and marks it as truncated."""
        self.pieces = []
        for episode in episodes:
            of_agents = getattr(episode, "agent_episodes", {None: episode})
            # In the order in which RLlib's own pieces go through them.
            for name in getattr(episode, "agent_ids", [None]):
                own = of_agents[name]
                self.pieces.append(
                    Piece(
                        self.next_episode,
                        "agent" if name is None else str(name),
                        own.module_id,
                        timesteps_of(episode, own, name),
                        bool(own.is_terminated),
                        bool(own.is_truncated),
                    )
                )
            self.next_episode += 1

    def go_out(self, batch: Mapping[str, Any], _: Any) -> None:
        """As the update gets it; the modules are still those that acted."""
        # Counted up before the update begins; env runners stamp their steps with the count they got.
        self.writer.policy_version = self.learner._weights_seq_no - 1
        tables: list[dict[str, Array]] = []
        actors: dict[str | None, str] = {}
        for name, columns in batch.items():
            if name not in self.described.modules:
                self._may_leave_out(name)
                continue
            pieces = [piece for piece in self.pieces if piece.module in (None, name)]
            for piece in pieces:
                if actors.setdefault(piece.agent, name) != name:
                    raise UsageError(
                        f"RLlib: agent {piece.agent!r} acts for {actors[piece.agent]} and {name} in one"
                        " rollout",
                        "map agents to policies for good, or dump one policy: modules=[…]",
                    )
            tables.append(self._rows(name, columns, pieces))
        if tables:
            self._save_actors(actors)
            self.writer.append_rollout(joined(tables, whole=len(tables) == len(batch)))

    def _may_leave_out(self, name: str) -> None:
        if not self.chosen and self.learner.should_module_be_updated(name):
            raise UsageError(
                f"RLlib: policy {name} came in after the dump was begun",
                "name those to dump: modules=[…]",
            )

    def _rows(self, name: str, batch: Mapping[str, Any], pieces: Sequence[Piece]) -> dict[str, Array]:
        """The steps of one policy, without the one that RLlib adds to each piece for its last value."""
        lengths = np.array([len(piece.timesteps) for piece in pieces])
        ends = np.cumsum(lengths + 1) - 1
        real = np.ones(ends[-1] + 1, bool)
        real[ends] = False
        if not np.array_equal(real, _array(batch["loss_mask"])):
            raise UsageError(
                f"RLlib: the batch of {name} is not its episodes one after the other",
                "leave out connectors of your own that rearrange it",
            )
        told = judged(self.described.modules[name], batch)
        values = _array(told["value"])
        filled = lengths > 0
        last = (np.cumsum(lengths) - 1)[filled]
        marks = {n: np.zeros(lengths.sum(), bool) for n in ("terminated", "truncated")}
        for mark, column in marks.items():
            column[last] = np.array([getattr(piece, mark) for piece in pieces])[filled]
        bootstrap = np.full(lengths.sum(), None, object)
        bootstrap[last] = values[ends[filled]]  # of no use where the episode is terminated
        of_batch = {ours: _array(batch[theirs])[real] for theirs, ours in COLUMNS.items()}
        acted = (_array(batch[n])[real] for n in ("actions", "action_dist_inputs"))
        # What was begun before the last update was chosen with older weights, and says so.
        again = _array(told["new_log_prob"])[real].astype(object)
        again[of_batch["policy_version"] != self.writer.policy_version] = None
        return {
            **of_batch,
            **self.described.actions(*acted),
            **marks,
            "value": values[real],
            "new_log_prob": again,
            "bootstrap_value": bootstrap,
            "episode_id": np.repeat([piece.episode for piece in pieces], lengths),
            "agent_id": np.repeat(np.array([piece.agent for piece in pieces], object), lengths),
            "timestep": np.concatenate([piece.timesteps for piece in pieces]),
            "group": np.full(lengths.sum(), f"{name}-{self.writer.policy_version}", object),
        }

    def _save_actors(self, actors: Mapping[str | None, str]) -> None:
        modules = self.described.modules
        if len(modules) == 1:
            actors = {None: next(iter(modules))}
        for agent, name in actors.items():
            network, log_std = actor_of(name, modules[name])
            self.writer.save_actor(agent, network, log_std=log_std)


def _array(tensor: Any) -> Array:
    found: Array = tensor.detach().cpu().numpy()
    return found
