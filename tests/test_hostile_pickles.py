"""Pickles that would run code, or take all memory or time: refused in one line, and nothing happens."""

from __future__ import annotations

import collections
import io
import os
import pickle
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conftest import ROOT, bufcheck, refused

from bufcheck.importers import _unpickle
from bufcheck.importers._unpickle_parts import ALLOWED, Refused

Write = Callable[[Path], bytes]
"""Given the canary's path, a pickle that would make that file."""


class Call:
    """Pickles as a call of this function."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.parts = (function, arguments, state) if state is not None else (function, arguments)

    def __reduce__(self) -> Any:
        return self.parts


def calling(module: str, name: str, *arguments: Any) -> Callable[[Path], bytes]:
    """A call of what can be named; CANARY in the arguments is the canary's path."""

    def write(canary: Path) -> bytes:
        given = [a.replace("CANARY", str(canary)) if isinstance(a, str) else a for a in arguments]
        body = b"".join(pickle.dumps(argument, 0)[:-1] for argument in given)
        return f"c{module}\n{name}\n(".encode() + body + b"tR."

    return write


def in_list(write: Write) -> Write:
    """The same in a list of steps, behind plain data."""

    def inside(canary: Path) -> bytes:
        return b"(lp9\n(dVreward\nF1.0\nsVinfo\n" + write(canary)[:-1] + b"sa."

    return inside


def with_state(canary: Path) -> bytes:
    """OrderedDict with a state, whose keys BUILD would set."""
    return pickle.dumps(Call(collections.OrderedDict, state={"__class__": os.system}))


def through_inst(canary: Path) -> bytes:
    return b"(Vtouch " + bytes(canary) + b"\nios\nsystem\n."


def through_obj(canary: Path) -> bytes:
    return b"(cos\nsystem\nVtouch " + bytes(canary) + b"\no."


def through_newobj(canary: Path) -> bytes:
    return b"\x80\x02csubprocess\nPopen\nVtouch " + bytes(canary) + b"\n\x85\x81."


def through_stack_global(canary: Path) -> bytes:
    command = f"touch {canary}".encode()
    return b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c" + bytes([len(command)]) + command + b"\x85R."


def getattr_chain(canary: Path) -> bytes:
    """getattr(__import__("os"), "system")(…)"""
    module = b"c__builtin__\n__import__\n(Vos\ntR"
    return b"c__builtin__\ngetattr\n(" + module + b"Vsystem\ntR(Vtouch " + bytes(canary) + b"\ntR."


def dotted_name(canary: Path) -> bytes:
    """numpy.dtype.__class__ … a name that walks from what is allowed."""
    return b"\x80\x04\x8c\x05numpy\x8c\x10dtype.__subclasses__\x93)R."


def in_object_array(canary: Path) -> bytes:
    command = Call(os.system, f"touch {canary}")
    return pickle.dumps({"rewards": np.array([command, command], dtype=object)})


def nested_pickle_of_numpy(canary: Path) -> bytes:
    """numpy.load of a file that holds a pickle."""
    evil = canary.with_name("evil.npy")
    np.save(evil, np.array([Call(os.system, f"touch {canary}")], dtype=object), allow_pickle=True)
    return b"cnumpy\nload\n(V" + bytes(evil) + b"\nNI01\ntR."


def torch_load(canary: Path) -> bytes:
    evil = canary.with_name("evil.pt")
    torch.save(Call(os.system, f"touch {canary}"), evil)
    return b"ctorch\nload\n(V" + bytes(evil) + b"\nNNI00\ntR."


def storage_with_code(canary: Path) -> bytes:
    """torch.storage._load_from_bytes, which unpickles anything when torch itself reads it."""
    file = io.BytesIO()
    torch.save(Call(os.system, f"touch {canary}"), file, _use_new_zipfile_serialization=False)
    storage = b"ctorch.storage\n_load_from_bytes\n" + pickle.dumps((file.getvalue(),), 3)[2:-1] + b"R"
    return (
        b"\x80\x03ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00K\x01\x85K\x01\x85I00\nNtR."
    )


def function_as_state(canary: Path) -> bytes:
    """BUILD on a function that may be called: its defaults would be others from now on."""
    return b"\x80\x02cnumpy\ndtype\nN}X\x0c\x00\x00\x00__defaults__K\x01\x85s\x86b."


def array_with_hooks(canary: Path) -> bytes:
    """An array of a class of the file's."""
    return b"cnumpy.core.multiarray\n_reconstruct\n(cos\nsystem\n(I0\ntVb\ntR."


def structured_type(canary: Path) -> bytes:
    return pickle.dumps({"rewards": np.zeros(2, [("a", "f8"), ("b", "O")])})


HOSTILE: dict[str, Write] = {
    "os.system": calling("os", "system", "touch CANARY"),
    "posix.system": calling("posix", "system", "touch CANARY"),
    "subprocess": calling("subprocess", "getoutput", "touch CANARY"),
    "eval": calling("builtins", "eval", "open('CANARY', 'w')"),
    "old eval": calling("__builtin__", "eval", "open('CANARY', 'w')"),
    "exec": calling("builtins", "exec", "open('CANARY', 'w')"),
    "open": calling("builtins", "open", "CANARY", "w"),
    "io.open": calling("io", "open", "CANARY", "w"),
    "import": calling("builtins", "__import__", "antigravity"),
    "runpy": calling("runpy", "run_path", "CANARY"),
    "pty": calling("pty", "spawn", "touch CANARY"),
    "timeit": calling("timeit", "timeit", "open('CANARY', 'w')"),
    "pathlib": lambda canary: pickle.dumps(Call(Path.touch, canary)),
    "codecs.open": calling("codecs", "open", "CANARY", "w"),
    "codecs": calling("_codecs", "encode", "CANARY", "rot13"),
    "codecs.decode": calling("_codecs", "decode", "CANARY", "unicode_escape"),
    "f2py": calling("numpy.f2py", "compile", "CANARY"),
    "numpy.load": nested_pickle_of_numpy,
    "numpy.fromfile": calling("numpy", "fromfile", "CANARY"),
    "numpy.save": calling("numpy", "save", "CANARY", 1),
    "numpy.memmap": calling("numpy", "memmap", "CANARY", "uint8", "w+", 0, 8),
    "numpy.runstring": calling("numpy.testing._private.utils", "runstring", "open('CANARY', 'w')", {}),
    "torch.load": torch_load,
    "torch.hub": calling("torch.hub", "load", "CANARY", "x"),
    "torch storage": storage_with_code,
    "copyreg": calling("copyreg", "_reconstructor", "CANARY", "x", None),
    "functools": calling("functools", "partial", "CANARY"),
    "attrgetter": calling("operator", "attrgetter", "system"),
    "INST": through_inst,
    "OBJ": through_obj,
    "NEWOBJ": through_newobj,
    "STACK_GLOBAL": through_stack_global,
    "EXT1": lambda canary: b"\x80\x02\x82\x01.",
    "EXT4": lambda canary: b"\x80\x02\x84\x01\x00\x00\x00.",
    "PERSID": lambda canary: b"Pos.system\n.",
    "getattr": getattr_chain,
    "dotted": dotted_name,
    "state": with_state,
    "state of a function": function_as_state,
    "object array": in_object_array,
    "array class": array_with_hooks,
    "structured": structured_type,
    "namedtuple": lambda canary: pickle.dumps([pickle.Pickler, Tried]),
}


class Tried(NamedTuple):
    reward: float = 1.0


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "in a list"])
@pytest.mark.parametrize("name", HOSTILE)
def test_code_is_not_run(name: str, wrapped: bool, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    write = in_list(HOSTILE[name]) if wrapped else HOSTILE[name]
    with pytest.raises(Refused) as caught:
        _unpickle.loads(write(canary))
    assert "\n" not in str(caught.value)
    assert not canary.exists()


def test_torch_may_not_be_told_to_trust_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    canary, source = tmp_path / "canary", tmp_path / "evil.pt"
    with pytest.raises(Refused):
        _unpickle.loads(storage_with_code(canary))
    torch.save([{"rewards": Call(os.system, f"touch {canary}")}], source)
    message = refused(bufcheck("convert", "--from", "pickle", source, tmp_path / "o.parquet"))
    assert "it holds more than plain data ('posix.system')" in message
    assert not canary.exists()


def test_the_canary_would_sing(tmp_path: Path) -> None:
    """Python's own reader runs them, or this would prove nothing."""
    for name in ("os.system", "INST", "OBJ", "STACK_GLOBAL", "getattr", "object array"):
        canary = tmp_path / name.replace(" ", "-")
        pickle.loads(HOSTILE[name](canary))
        assert canary.exists(), name


@pytest.mark.parametrize("name", ["os.system", "torch storage", "numpy.load", "object array"])
def test_the_command_refuses_in_one_line(name: str, tmp_path: Path) -> None:
    canary, source = tmp_path / "canary", tmp_path / "evil.pkl"
    source.write_bytes(in_list(HOSTILE[name])(canary))
    message = refused(bufcheck("convert", "--from", "pickle", source, tmp_path / "o.parquet"))
    assert message.startswith(f"bufcheck: {source}: it ")
    assert not canary.exists() and not (tmp_path / "o.parquet").exists()


# Memory and time


def laughs(depth: int = 12, width: int = 10) -> bytes:
    """Ten times ten times … one list."""
    data = b"(lp0\nF1.0\na0"
    for level in range(1, depth):
        data += f"(lp{level}\n".encode() + f"g{level - 1}\na".encode() * width + b"0"
    return b"(dVrewards\n" + data[:-1] + b"s."


def long_memo() -> bytes:
    """To note something under a high number makes the machine in C take all memory up to it."""
    return b"\x80\x02]r" + struct.pack("<I", 2**32 - 1) + b"."


def array(shape: bytes, data: bytes = b"C\x08" + bytes(8)) -> bytes:
    dtype = b"cnumpy\ndtype\nX\x02\x00\x00\x00f8\x89\x88\x87R"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
    return (
        b"\x80\x03}X\x07\x00\x00\x00rewards"
        + empty
        + b"(K\x01"
        + shape
        + dtype
        + b"\x89"
        + data
        + b"tbs."
    )


def same_bytes_often() -> bytes:
    """One megabyte, made an array a hundred thousand times."""
    start = b"\x80\x04]\x94(B" + struct.pack("<I", 1 << 20) + bytes(1 << 20) + b"\x940"
    made = b"c_codecs\nencode\nh\x01\x85R"
    return start + made * 100_000 + b"e."


BOMBS: dict[str, Callable[[], bytes]] = {
    "billion laughs": laughs,
    "memo": long_memo,
    "memo as text": lambda: b"]p999999999999\n.",
    "shape": lambda: array(b"\x8a\x06" + bytes([255] * 5) + b"\x00\x85"),
    "negative shape": lambda: array(b"J\xff\xff\xff\xff\x85"),
    "many axes": lambda: array(b"(" + b"K\x01" * 4000 + b"t"),
    "bytes": lambda: b"\x80\x04\x8e" + struct.pack("<Q", 1 << 50) + b"x.",
    "bytearray": lambda: b"\x80\x05\x96" + struct.pack("<Q", 1 << 36) + b"x.",
    "text": lambda: b"\x80\x04\x8d" + struct.pack("<Q", 1 << 50) + b"x.",
    "frame": lambda: b"\x80\x04\x95" + struct.pack("<Q", 1 << 50) + b"x.",
    "long": lambda: b"\x80\x02\x8b\xff\xff\xff\x7fx.",
    "deep": lambda: b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
    "deep key": lambda: b"\x80\x02}N" + b"\x85" * 500_000 + b"Ns.",
    "deep member": lambda: b"\x80\x04\x8f(N" + b"\x85" * 500_000 + b"\x90.",
    "itself": lambda: b"(lp0\ng0\na.",
    "often": same_bytes_often,
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_with_little_memory_and_time(name: str, tmp_path: Path) -> None:
    source = tmp_path / "bomb.pkl"
    source.write_bytes(BOMBS[name]())

    def little() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bufcheck",
            "convert",
            "--from",
            "pickle",
            source,
            tmp_path / "o.parquet",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=little,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 2, done
    assert len(done.stderr.strip().splitlines()) == 1 and "unexpected" not in done.stderr, done.stderr


def test_garbage_is_refused() -> None:
    rng = np.random.default_rng(0)
    plain = pickle.dumps([{"obs": np.ones(3), "reward": 1.0, "t": torch.ones(2), "s": {1, 2}}])
    for _ in range(2000):
        data = bytearray(plain if rng.random() < 0.8 else rng.bytes(60))
        for at in rng.integers(0, len(data), rng.integers(1, 5)):
            data[at] = rng.integers(0, 256)
        try:
            _unpickle.loads(bytes(data))
        except Refused as refusal:
            assert "\n" not in str(refusal)


# What may be in it


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_come_back(protocol: int) -> None:
    held = {
        "list": [1, -2.5, True, None, "ü", b"\x00\xff", b"", 2**70, (1, (2,))],
        "set": {1, "a"},
        "frozen": frozenset({2}),
        "bytes": bytearray(b"ab"),
        "ordered": collections.OrderedDict(a=1),
        "deque": collections.deque([1, 2], maxlen=4),
    }
    assert _unpickle.loads(pickle.dumps(held, protocol)) == held


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", ["?", "i1", "<i8", ">i4", "u2", "f2", "<f4", ">f8", "U3", "S2"])
def test_arrays_come_back(kind: str, protocol: int) -> None:
    for values in (
        np.arange(6).reshape(2, 3).astype(kind),
        np.asfortranarray(np.arange(6).reshape(2, 3).astype(kind)),
        np.zeros((0, 2), kind),
        np.arange(12).reshape(4, 3).astype(kind)[::2],
    ):
        found = _unpickle.loads(pickle.dumps(values, protocol))
        found = getattr(found, "values", found)
        assert np.array_equal(found, values) and found.dtype == values.dtype.newbyteorder("=")
    if kind not in ("U3", "S2"):
        assert _unpickle.loads(pickle.dumps(np.ones((), kind)[()], protocol)) == 1


@pytest.mark.parametrize(
    "kind", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
)
def test_tensors_come_back(kind: torch.dtype) -> None:
    whole = torch.arange(24).reshape(4, 6).to(kind)
    for tensor in (whole, whole[1], whole.T, whole[::2, 1:3], whole[:0], torch.ones((), dtype=kind)):
        found = _unpickle.loads(pickle.dumps(tensor))
        assert np.array_equal(
            found, tensor.float().numpy() if kind == torch.bfloat16 else tensor.numpy()
        )
    parameter = torch.nn.Parameter(torch.ones(3))
    assert np.array_equal(_unpickle.loads(pickle.dumps(parameter)), np.ones(3))


def test_the_list_of_what_may_be_called_is_closed() -> None:
    modules = {module for module, _ in ALLOWED}
    cores = {f"numpy.{core}.{part}" for core in ("core", "_core") for part in ("multiarray", "numeric")}
    assert modules == {
        *("numpy", *cores, "torch._utils", "torch.storage"),
        *("_codecs", "collections", "builtins", "__builtin__"),
    }  # fmt: skip
    assert len(ALLOWED) == 22
