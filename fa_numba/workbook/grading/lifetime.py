"""A process that ends with the one that started it, however that one ends."""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(sign: int | None = None) -> None:
    """Have the kernel send this signal, SIGKILL by default, when the parent ends. Linux only."""
    if sys.platform != "linux":
        return
    sign = signal.SIGKILL if sign is None else sign  # Windows has none
    import ctypes  # not there in WebAssembly

    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(sign), 0, 0, 0)
    if os.getppid() != parent:  # it has ended in between
        os.kill(os.getpid(), sign)
