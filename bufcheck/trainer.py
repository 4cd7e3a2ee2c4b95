"""What the adapters in `trainers/` share. An adapter is one module, named as its library is, that hands
what the library keeps of a rollout to a BufferWriter, and saves the actor that made it.

Each is imported by name (`from bufcheck.trainers.stable_baselines3 import DumpCallback`), needs its
library only then, and has a page in docs/trainers/ with a whole script, which a test runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bufcheck.errors import UsageError
from bufcheck.writer import BufferWriter


def lacking(error: ImportError, extra: str) -> ImportError:
    """Says how to get what an adapter is for."""
    return ImportError(f"{error}; pip install 'bufcheck[{extra}]'", name=error.name)


class LateDump:
    """A dump that the first rollout opens, because only that tells what there is to store."""

    path: Path
    writer: BufferWriter | None = None

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()

    def __exit__(self, *failed: Any) -> None:
        if self.writer is not None:
            self.writer.__exit__(*failed)

    @property
    def actor_pattern(self) -> str:
        """Where the actors lie, as `--actor` takes it."""
        if self.writer is None:
            raise UsageError(f"{self.path}: nothing was written", "train first")
        return self.writer.actor_pattern
