"""TorchScript archives (`torch.jit.save`): loading one runs the code in it, so that takes trust."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import BinaryIO

from bufcheck.actor import Loading, Network, notes_on
from bufcheck.errors import ReadError

KIND = "TorchScript"


def names_in_zip(file: BinaryIO) -> list[str]:
    """Of its members; none if the file is no zip, or a broken one."""
    file.seek(0)
    if file.read(4) != b"PK\x03\x04":
        return []
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except Exception:  # a damaged directory makes zipfile raise anything
        return []


def inside(names: list[str]) -> set[str]:
    """The same names without the folder that torch puts everything in."""
    return {name.partition("/")[2] for name in names}


def recognises(file: BinaryIO) -> bool:
    names = inside(names_in_zip(file))
    return "constants.pkl" in names or any(name.startswith("code/") for name in names)


def load(path: Path, loading: Loading) -> Network:
    import torch

    refuse_unless_trusted(path, loading, "a TorchScript file")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.load` is deprecated", DeprecationWarning)
        try:
            module = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
        except Exception as error:  # what a damaged archive makes torch raise
            raise unloadable(path, KIND, error) from None
    is_frozen = not hasattr(module, "training")  # torch.jit.freeze settles the mode
    return Network(module, KIND, notes=[] if is_frozen else notes_on(module))


def refuse_unless_trusted(path: Path, loading: Loading, what: str) -> None:
    if not loading.trust_code:
        raise ReadError(
            f"{path}: loading {what} can run code it brings",
            "say --trust-checkpoint-code if you trust it, or save with bufcheck.save_actor",
        )


def unloadable(path: Path, kind: str, error: Exception) -> ReadError:
    detail = " ".join(str(error).split())[:160] or type(error).__name__
    return ReadError(f"{path}: this {kind} cannot be loaded ({detail})", "save it anew")
