"""`.pt2` archives (`torch.export.save`): parts of one are unpickled, so loading it takes trust."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from bufcheck.actor import Loading, Network
from bufcheck.actors.torchscript import inside, names_in_zip, refuse_unless_trusted, unloadable
from bufcheck.errors import ReadError

KIND = "exported program"


def recognises(file: BinaryIO) -> bool:
    """Today's layout has everything in a folder; up to torch 2.7 there was none."""
    names = names_in_zip(file)
    return "archive_format" in inside(names) or bool(
        {"serialized_exported_program.json", "archive_format"} & set(names)
    )


def load(path: Path, loading: Loading) -> Network:
    import torch

    refuse_unless_trusted(path, loading, "a .pt2 file")
    try:
        with path.open("rb") as file, _quiet():
            program = torch.export.load(file).module()
    except Exception as error:  # what a damaged archive makes torch raise
        raise unloadable(path, KIND, error) from None
    return Network(_as_module(program, path), KIND)


def _as_module(program: Any, path: Path) -> Any:
    import torch

    class Program(torch.nn.Module):
        """Runs the program. Whether it trains was settled when it was exported."""

        def __init__(self) -> None:
            super().__init__()
            self.program = program
            self.training = False

        def forward(self, states: torch.Tensor) -> Any:
            try:
                return self.program(states)
            except AssertionError as error:
                detail = " ".join(str(error).split())[:160]
                raise ReadError(
                    f"{path}: does not take {list(states.shape)} states ({detail})",
                    "export it with dynamic_shapes for the batch, or save with bufcheck.save_actor",
                ) from None

        def train(self, mode: bool = True) -> Program:
            return self

    return Program()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch logs the tracebacks of what it then raises."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
