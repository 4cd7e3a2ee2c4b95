"""A PPO on CartPole: `python benchmarks/cartpole.py STEPS [DUMP]`, dumped with DumpCallback or not."""

from __future__ import annotations

import sys

import torch
from stable_baselines3 import PPO

torch.set_num_threads(1)
steps, *dump = sys.argv[1:]
model = PPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu")
callback = None
if dump:
    from bufcheck.trainers.stable_baselines3 import DumpCallback

    callback = DumpCallback(dump[0])
model.learn(int(steps), callback=callback)
