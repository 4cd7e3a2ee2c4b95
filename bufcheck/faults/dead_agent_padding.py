"""An agent that has left the episode goes on filling rows.

Fixed-size storage repeats its last row until the episode's end, or `steps` beyond where the agent lasts
that long, with reward 0; its last own row is marked terminated if nothing ends there yet. An agent of
an episode is padded when its last row is chosen; as wrong are listed the padded rows.
"""

from __future__ import annotations

import numpy as np

from bufcheck.fault import Parameter
from bufcheck.faults._buffer import Buffer, Parameters
from bufcheck.vectors import Array

PARAMETERS = {
    "state": Parameter("zero", "what the padding shows", ("zero", "last")),
    "log_prob": Parameter("0", "0, or replayed: what the actor gives there", ("0", "replayed")),
    "steps": Parameter(3, "rows beyond the end of an episode", least=1),
}


def apply(b: Buffer, hit: Array, p: Parameters, rng: np.random.Generator) -> tuple[Buffer, Array]:
    tracks = b.led(b.track, hit, by_last=True)
    last = np.flatnonzero((b.neighbour(1) < 0) & np.isin(b.track, tracks))
    ended = b.flags("terminated") | b.flags("truncated")
    if b.has("terminated"):
        b.set("terminated", last[~ended[last]], True)
    padding = [place for row in last for place in _places(b, int(row), p["steps"])]
    padding.sort(key=lambda place: (place[1], b.agent[place[0]]))
    rows, times, after = (np.array(x, np.int64) for x in zip(*padding, strict=True))
    grown, new = b.grown(rows, after)
    grown.set("timestep", new, times)
    if grown.has("reward"):
        grown.set("reward", new, 0)
    if p["state"] == "zero":
        width = b.states.shape[1]
        grown.set_vectors("state_embed", new, list(np.zeros((len(new), width))))
    grown.set("old_log_prob", new, grown.log_prob(new) if p["log_prob"] == "replayed" else 0.0)
    return grown, new


def _places(b: Buffer, row: int, beyond: int) -> list[tuple[int, int, int]]:
    """(the row itself, a timestep, the row it comes behind) of each row that pads."""
    here = np.flatnonzero(b.episode == b.episode[row])
    own, end = int(b.timestep[row]), int(b.timestep[here].max())
    stop = end if own < end else end + beyond
    found = []
    for time in range(own + 1, stop + 1):
        earlier = b.timestep[here] < time
        same = (b.timestep[here] == time) & (b.agent[here] < b.agent[row])
        found.append((row, time, int(here[earlier | same].max())))
    return found
