"""What DumpCallback costs a PPO on CartPole: `python benchmarks/cartpole.py STEPS DUMP`.

Two models with Stable-Baselines3's defaults and one seed learn in turns, rollout by rollout, one of them
dumped: what else the machine does falls on both. Prints the CPU seconds of each, and those of the imports
that only the dump needs, which are among the first.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from stable_baselines3 import PPO


def learning(steps: int, callback: Any) -> Iterator[None]:
    """As PPO.learn does it, with a pause after each rollout and its update."""
    model = PPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu")
    total, callback = model._setup_learn(steps, callback)
    callback.on_training_start(locals(), globals())
    assert model.env is not None
    while model.num_timesteps < total:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        model._update_current_progress_remaining(model.num_timesteps, total)
        model.train()
        yield
    callback.on_training_end()


def main(steps: int, dump: str) -> None:
    torch.set_num_threads(1)
    begun = time.process_time()
    from bufcheck.trainers.stable_baselines3 import DumpCallback

    imports = time.process_time() - begun
    runs = [learning(steps, DumpCallback(dump)), learning(steps, None)]
    spent, going, turn = [imports, 0.0], [True, True], 0
    while any(going):
        for which in (0, 1) if turn % 2 else (1, 0):
            begun = time.process_time()
            going[which] = next(runs[which], True) is None
            spent[which] += time.process_time() - begun
        turn += 1
    print(*spent, imports)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
