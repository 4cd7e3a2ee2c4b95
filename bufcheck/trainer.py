"""What the adapters in `trainers/` share. An adapter is one module, named as its library is, that hands
what the library keeps of a rollout to a BufferWriter, and saves the actor that made it.

Each is imported by name (`from bufcheck.trainers.stable_baselines3 import DumpCallback`), needs its
library only then, and has a page in docs/trainers/ with a whole script, which a test runs.
"""

from __future__ import annotations


def lacking(error: ImportError, extra: str) -> ImportError:
    """Says how to get what an adapter is for."""
    return ImportError(f"{error}; pip install 'bufcheck[{extra}]'", name=error.name)
