"""State dicts (`.pt`, `.pth`, `.safetensors`), with the module made by a factory of the user's.

Reading the file runs nothing of it; `--arch` runs the user's own code. What the factory gives back is
held against the file, since a factory that forgets to load the weights looks just like one that does.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import io
import operator
import os
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from bufcheck.actor import Loading, Network, notes_on
from bufcheck.actors import described_layers, exported_program, torchscript
from bufcheck.errors import ReadError, UsageError

if TYPE_CHECKING:
    import torch

KIND = "state dict"
FORMS = "say --arch package.module:factory or --arch path/to/file.py:factory"
MOST_NAMED = 3

Print = tuple[tuple[int, ...], str, bytes]
"""Shape, kind of number, and a hash of the numbers."""


class Stored(NamedTuple):
    name: str
    dtype: torch.dtype


def recognises(file: BinaryIO) -> bool:
    file.seek(0)
    if described_layers.header_of(file) is not None:
        return not described_layers.recognises(_rewound(file))
    if (start := _rewound(file).read(4)) == b"PK\x03\x04":
        names = torchscript.names_in_zip(file)
        return not names or (  # a zip cut off before its directory is for torch to complain of
            "data.pkl" in torchscript.inside(names)
            and not torchscript.recognises(file)
            and not exported_program.recognises(file)
        )
    return start[:1] == b"\x80"


def load(path: Path, loading: Loading) -> Network:
    held = _read(path)
    stored = _prints(held, path)
    if not stored:
        raise ReadError(f"{path}: holds no tensors", "save the actor's state_dict")
    if loading.arch is None:
        raise ReadError(
            f"{path}: a state dict says nothing of its layers",
            "pass --arch module:factory, or save it with bufcheck.save_actor",
        )
    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is not our report
        module = _made(loading.arch, held)
    module.eval()
    notes = notes_on(module) + _compared(module, stored, path, loading.arch)
    return Network(module.cpu(), KIND, notes=notes)


# The file


def _rewound(file: BinaryIO) -> BinaryIO:
    file.seek(0)
    return file


def _read(path: Path) -> Any:
    import torch

    with path.open("rb") as file:
        if described_layers.header_of(file) is not None:
            return described_layers.load_tensors(path)
        zipped = _rewound(file).read(2) == b"PK"
        if zipped:
            _refuse_bombs(path, file)
        # In memory, a raw pickle is never tried as torch's old tar format, which is not safe to read.
        source = _rewound(file) if zipped else io.BytesIO(_rewound(file).read())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on old pickles and archives; the outcome is what counts
            try:
                return torch.load(source, map_location="cpu", weights_only=True, mmap=False)
            except Exception as error:  # what a damaged file makes torch raise
                raise _unread(path, error) from None


def _refuse_bombs(path: Path, file: BinaryIO) -> None:
    """torch.save compresses nothing."""
    claimed = 0
    with contextlib.suppress(Exception), zipfile.ZipFile(file) as archive:
        claimed = sum(member.file_size for member in archive.infolist())
    if claimed > path.stat().st_size:
        raise ReadError(f"{path}: claims to hold more than it can", "save it anew")


def _unread(path: Path, error: Exception) -> ReadError:
    text = " ".join(str(error).split())
    if found := re.search(r"GLOBAL (\S+)", text):
        return ReadError(
            f"{path}: holds more than tensors ({found[1]})",
            "save the module's state_dict(), or the module with bufcheck.save_actor",
        )
    detail = text.rpartition("WeightsUnpickler error: ")[2][:160] or type(error).__name__
    return ReadError(f"{path}: no checkpoint that can be read ({detail})", "save it anew")


def _prints(held: Any, path: Path) -> dict[Print, list[Stored]]:
    """Every tensor of the file by what is in it."""
    found: dict[Print, list[Stored]] = {}
    for name, tensor in _tensors(held, "", set()):
        # A view can have any size, whatever it is a view of.
        if tensor.numel() * tensor.element_size() > path.stat().st_size:
            raise ReadError(f"{path}: claims to hold more than it can", "save it anew")
        if (key := _print(tensor)) is not None:
            found.setdefault(key, []).append(Stored(name, tensor.dtype))
    return found


def _tensors(held: Any, name: str, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    if isinstance(held, torch.Tensor):
        yield name, held
    elif isinstance(held, (dict, list, tuple)) and id(held) not in seen:
        seen.add(id(held))
        for key, value in held.items() if isinstance(held, dict) else enumerate(held):
            yield from _tensors(value, f"{name}.{key}" if name else str(key), seen)


def _print(tensor: torch.Tensor) -> Print | None:
    """None for what has no plain numbers: sparse, quantized, on no device."""
    import torch

    try:
        plain = tensor.detach().cpu().contiguous()
        kind = str(plain.dtype)
        if plain.is_floating_point():
            # float64 holds every narrower number exactly, so a wider copy is still the same one.
            plain, kind = plain.double(), "float"
        numbers = plain.reshape(-1).view(torch.uint8).numpy()
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None
    return tuple(tensor.shape), kind, hashlib.sha256(numbers.data).digest()


# The module


def _compared(
    module: torch.nn.Module, stored: dict[Print, list[Stored]], path: Path, arch: str
) -> list[str]:
    """Every tensor of the module is in the file; what there is to say of the rest."""
    import torch

    lazy = [n for n, p in module.named_parameters() if torch.nn.parameter.is_lazy(p)]
    if lazy:
        raise ReadError(
            f"{path}: {arch} gives a module that is not finished: {_few(lazy)}", "give its layers sizes"
        )
    saved = set(module.state_dict())
    foreign, unsaved, cast, used = [], [], set(), set()
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        key = _print(tensor)
        if key in stored:
            used.add(key)
            if tensor.dtype not in (dtypes := {one.dtype for one in stored[key]}):
                cast.add(f"{_short(min(dtypes, key=str))} made {_short(tensor.dtype)}")
        elif name in saved:
            foreign.append(f"{name} {list(tensor.shape)}")
        else:
            unsaved.append(name)
    if foreign:
        raise ReadError(
            f"{path}: {arch} gives a module with weights that are not in the file: {_few(foreign)}",
            "load the state dict into the module before you return it",
        )
    if not used:
        raise ReadError(f"{path}: {arch} gives a module without weights", "return the actor")
    left = [one.name for key, ones in stored.items() if key not in used for one in ones]
    notes = [f"has weights that were {change}" for change in sorted(cast)]
    if unsaved:
        notes.append(f"has buffers that a state dict leaves out, as {arch} made them: {_few(unsaved)}")
    if left:
        notes.append(f"leaves tensors of the file unused: {_few(left)}")
    return notes


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _few(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


# The factory


def _made(arch: str, held: Any) -> torch.nn.Module:
    import torch

    where, _, name = arch.rpartition(":")
    if not where or not name:
        raise UsageError(f"--arch {arch}: names no factory", FORMS)
    is_file = where.endswith(".py") or os.sep in where
    with _importable(Path(where).resolve().parent if is_file else Path.cwd()):
        module = _run_file(arch, Path(where)) if is_file else _imported(arch, where)
        try:
            factory: Callable[[Any], Any] = operator.attrgetter(name)(module)
        except AttributeError:
            raise UsageError(f"--arch {arch}: {where} has no {name}", FORMS) from None
        if not callable(factory):
            raise UsageError(f"--arch {arch}: {name} is no function", FORMS)
        try:
            made = factory(held)
        except (Exception, SystemExit) as error:
            raise _failed(arch, f"{name}(state_dict) failed", error) from None
    if not isinstance(made, torch.nn.Module):
        raise UsageError(
            f"--arch {arch}: {name}(state_dict) gives {type(made).__name__}", "return a torch module"
        )
    return made


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """As if Python had been started there; `bufcheck` itself is started from elsewhere."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


def _imported(arch: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(f"--arch {arch}: no module named {error.name}", FORMS) from None
        raise _failed(arch, f"importing {name} failed", error) from None
    except (Exception, SystemExit) as error:
        raise _failed(arch, f"importing {name} failed", error) from None


def _run_file(arch: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"--arch {arch}: no such file", FORMS)
    name = f"_bufcheck_arch_{hashlib.sha256(bytes(path.resolve())).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--arch {arch}: {path} is not Python", FORMS)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses in it look themselves up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _failed(arch, f"running {path} failed", error) from None
    return module


def _failed(arch: str, what: str, error: BaseException) -> UsageError:
    detail = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return UsageError(f"--arch {arch}: {what} ({detail})", "factory(state_dict) returns the module")
