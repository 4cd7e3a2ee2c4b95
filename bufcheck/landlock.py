"""Landlock: a Linux process gives up every file but those under one folder, for good.

A second layer: where the kernel lacks it, or another system runs, the box of `boxed` holds without.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from pathlib import Path

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""The same numbers on every architecture that has them."""
RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""How many rights on files each version of the interface knows."""
TCP_SINCE, SCOPES_SINCE = 4, 6
BENEATH_PATH = 1
SET_NO_NEW_PRIVILEGES = 38


def version() -> int:
    """What this kernel offers; 0 for nothing."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64", "riscv64"):
        return 0
    return max(0, _call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def only(folder: Path) -> bool:
    """From here on this thread, and what it starts, opens nothing outside `folder`.

    No TCP either, and no signal to others, where the kernel can forbid them.
    """
    offered = version()
    if not offered:
        return False
    files = (1 << max(count for since, count in RIGHTS.items() if since <= offered)) - 1
    tcp = 0b11 if offered >= TCP_SINCE else 0
    scopes = 0b11 if offered >= SCOPES_SINCE else 0
    size = 24 if offered >= SCOPES_SINCE else 16 if offered >= TCP_SINCE else 8
    asked = struct.pack("<QQQ", files, tcp, scopes)[:size]
    rules = _call(CREATE_RULESET, asked, ctypes.c_size_t(size), ctypes.c_uint32(0))
    if rules < 0:
        return False
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        rule = struct.pack("<Qi", files, handle)
        held = _call(ADD_RULE, rules, BENEATH_PATH, rule, ctypes.c_uint32(0)) == 0
        none = ctypes.c_ulong(0)
        held = (
            held
            and ctypes.CDLL(None).prctl(SET_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), none, none, none) == 0
        )
        return held and _call(RESTRICT_SELF, rules, ctypes.c_uint32(0)) == 0
    finally:
        os.close(handle)
        os.close(rules)


def _call(number: int, *arguments: object) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments))
