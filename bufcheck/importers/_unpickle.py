"""Reads pickles of plain data, and runs nothing of theirs.

A pickle is a program. This runs it on a machine that knows fewer instructions than Python's, can call
nothing but what stands in `_unpickle_parts.ALLOWED`, each with its arguments checked, and gives up when
a small file asks for much work. It is Python's own machine in Python, not that in C, which makes room
for whatever a file claims to need.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from bufcheck.importers._unpickle_parts import (
    ALLOWED,
    Allowed,
    Budget,
    Refused,
    Unfinished,
    without_depth,
)

MOST_NAME = 80
UNKNOWN = (
    *(pickle.PERSID, pickle.BINPERSID, pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX),
    *(pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
)
"""Instructions that plain data never need: they make objects of classes, or ask us for some."""


def loads(data: bytes) -> Any:
    """What the pickle holds; `Refused` in one line if it is more than plain data, or damaged."""
    try:
        return _Machine(data).load()
    except Refused:
        raise
    except RecursionError:
        raise Refused("it is nested deeper than any experience") from None
    except MemoryError:
        raise Refused("it takes more memory than there is") from None
    except Exception as error:  # whatever a damaged program makes of its stack
        detail = " ".join(str(error).split())[:100] or type(error).__name__
        raise Refused(f"it is damaged ({detail})") from None


class _Machine(pickle._Unpickler):
    dispatch: ClassVar[dict[int, Callable[..., Any]]] = dict(pickle._Unpickler.dispatch)

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]
    read: Callable[[int], bytes]

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._budget = Budget(len(data))

    def find_class(self, module_name: str, global_name: str) -> Any:
        known = ALLOWED.get((module_name, global_name))
        if known is None:
            shown = f"{module_name}.{global_name}"[:MOST_NAME]
            raise Refused(f"it holds more than plain data ({shown!r})")
        return known

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        function = self.stack[-1]
        if not isinstance(function, Allowed) or not isinstance(arguments, tuple):
            raise Refused("it calls what is no function of plain data")
        self._budget.spend(1)
        self.stack[-1] = function.make(self._budget, *arguments)

    def _build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], Unfinished):
            raise Refused("it gives a state to what has none")
        self.stack[-1].finish(state, self._budget)

    def _append(self) -> None:
        value = self.stack.pop()
        self._grown(list, deque).append(value)

    def _appends(self) -> None:
        values = self.pop_mark()
        self._grown(list, deque).extend(values)

    def _setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._put(self._grown(dict), [key, value])

    def _setitems(self) -> None:
        values = self.pop_mark()
        self._put(self._grown(dict), values)

    def _dict(self) -> None:
        values = self.pop_mark()
        made: dict[Any, Any] = {}
        self._put(made, values)
        self.stack.append(made)

    def _additems(self) -> None:
        values = self.pop_mark()
        self._grown(set).update(without_depth(values))

    def _frozenset(self) -> None:
        values = self.pop_mark()
        self.stack.append(frozenset(without_depth(values)))

    def _grown(self, *kinds: type) -> Any:
        if not isinstance(self.stack[-1], kinds):
            raise Refused("it adds to what is no container")
        return self.stack[-1]

    @staticmethod
    def _put(held: dict[Any, Any], values: list[Any]) -> None:
        keys = without_depth(values[::2])
        held.update(zip(keys, values[1::2], strict=True))

    def _bytearray(self) -> None:
        """As bytes, and only if they are there: Python's own makes room for them first."""
        [size] = struct.unpack("<Q", self.read(8))
        if size > self._budget.size:
            raise Refused("it claims to hold more than it can")
        self.stack.append(self.read(size))

    def _unknown(self) -> NoReturn:
        raise Refused("it makes objects of classes of its own")


for _code, _does in {
    pickle.REDUCE: _Machine._reduce,
    pickle.BUILD: _Machine._build,
    pickle.APPEND: _Machine._append,
    pickle.APPENDS: _Machine._appends,
    pickle.SETITEM: _Machine._setitem,
    pickle.SETITEMS: _Machine._setitems,
    pickle.DICT: _Machine._dict,
    pickle.ADDITEMS: _Machine._additems,
    pickle.BYTEARRAY8: _Machine._bytearray,
    pickle.FROZENSET: _Machine._frozenset,
    **dict.fromkeys(UNKNOWN, _Machine._unknown),
}.items():
    _Machine.dispatch[_code[0]] = _does
