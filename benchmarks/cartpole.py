"""What DumpCallback costs a PPO on CartPole: `python benchmarks/cartpole.py ROLLOUTS DUMP`.

One model with Stable-Baselines3's defaults learns, and of every two rollouts one is dumped: what else the
machine does falls on both kinds, and so does where the model's weights lie in memory, which alone makes two
equal models differ by some percent. Prints the CPU seconds of what is paid once (imports, opening, closing),
then those of each rollout with its update: the dumped ones, then the others. If DUMP is `-`, none is dumped,
and what is left is noise.
"""

from __future__ import annotations

import sys
import time

import torch
from stable_baselines3 import PPO


def main(rollouts: int, dump: str) -> None:
    torch.set_num_threads(1)
    model = PPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu")
    _, bare = model._setup_learn(2 * rollouts * model.n_steps)
    assert model.env is not None

    def learn(callback: object) -> float:
        """One rollout and its update, as PPO.learn does them."""
        begun = time.process_time()
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        model.train()
        return time.process_time() - begun

    learn(bare)  # what torch does once falls on neither
    begun = time.process_time()
    dumping = bare
    if dump != "-":
        from bufcheck.trainers.stable_baselines3 import DumpCallback

        dumping = DumpCallback(dump)
    dumping.init_callback(model)
    dumping.on_training_start({}, {})
    once = time.process_time() - begun
    spent: list[list[float]] = [[], []]
    for number in range(2 * rollouts):
        which = (0, 1, 1, 0)[number % 4]  # neither is always the first of two
        spent[which].append(learn((dumping, bare)[which]))
    begun = time.process_time()
    dumping.on_training_end()
    once += time.process_time() - begun
    print(once, *spent[0], *spent[1])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
