"""A process that ends with the one that started it, however that one ends."""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(sign: int = signal.SIGKILL) -> None:
    """Have the kernel send this signal when the parent ends. Linux only; elsewhere a no-op."""
    if sys.platform != "linux":
        return
    import ctypes  # not there in WebAssembly

    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(sign), 0, 0, 0)
    if os.getppid() != parent:  # it has ended in between
        os.kill(os.getpid(), sign)
