"""Threads that share the tiles of a problem, as persistent thread blocks share them on a GPU.

Each thread takes the next task from a counter until none is left, so that a thread that the
operating system keeps waiting delays one tile and not its whole part of the problem. The workers
are compiled with `nogil`; there are as many as `numba.set_num_threads` and NUMBA_NUM_THREADS
say, and the caller is one of them. Numba's own `prange` is not used. Its threads may not be called
by two threads at once where they are its "workqueue", and not after a fork where they are
OpenMP's: both end the process.
"""

import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np

from fa_numba.cpu import disk_cache

MAX_KEPT = 2**22  # numbers of a workspace that a thread keeps: 16 MB

_of_this_thread = threading.local()


@functools.cache
def _pool():
    return ThreadPoolExecutor(max(numba.config.NUMBA_NUM_THREADS - 1, 1), "fa_numba")


if hasattr(os, "register_at_fork"):  # a child has the pool, but none of its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def run(worker, num_tasks, workspace_size, *args, arrays):
    """Call worker(counter, num_tasks, workspace, *args) in as many threads as there may be.

    Parameters
    ----------
    worker : compiled function
        Takes tasks with `fetch_add` from `counter` until it gets `num_tasks`.
    num_tasks : int
    workspace_size : int
        Numbers in the float32 array that each thread has for itself.
    arrays : tuple of arrays
        Those whose addresses are among `args`. Each thread keeps them until it has ended: Ctrl-C
        ends this function, but not a task in another thread.
    """
    if not num_tasks:
        return
    disk_cache.keep(worker)
    counter = np.zeros(1, np.int64)
    if num_tasks == 1:
        worker(counter, num_tasks, _workspace(workspace_size), *args)
        return

    def work(kept=arrays):
        worker(counter, num_tasks, _workspace(workspace_size), *args)

    others, waiting = min(numba.get_num_threads(), num_tasks) - 1, []
    try:
        for _ in range(others):
            try:
                waiting.append(_pool().submit(work))
            except RuntimeError:  # no thread can start: too many run, or this process is ending
                _pool().shutdown(wait=False, cancel_futures=True)  # it would keep `work`, not begun
                _pool.cache_clear()
                break
        work()
        for other in waiting:
            if not other.cancel():  # it has begun
                other.result()
    except BaseException:
        counter[0] = num_tasks  # no thread takes another task
        raise


def _workspace(size):
    """A float32 array of at least `size` numbers; kept, unless large: new pages cost time."""
    kept = getattr(_of_this_thread, "workspace", None)
    if kept is None or kept.size < size:
        kept = np.empty(size, np.float32)
        if size <= MAX_KEPT:
            _of_this_thread.workspace = kept
    return kept
