"""Mistakes that a lockstep engine is apt to make, each met once while this one was written."""

import ast
import time

import numpy as np
import pytest
from numba import cuda, float32, int32, int64

import numba_cuda_simulator as simt
from numba_cuda_simulator.errors import UnsupportedError
from numba_cuda_simulator.waits import MEMORY, NOTHING, decided_by


@cuda.jit
def two_tiles_on_one_line(x, out):
    left, right = cuda.shared.array(32, int64), cuda.shared.array(32, int64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    left[t], right[t] = x[i], 2 * x[i]
    cuda.syncthreads()
    out[i] = left[31 - t] + 100 * right[t ^ 1]


def test_two_tiles_on_one_line():
    """Two calls in one line make two arrays, each with the name of its variable."""
    x, out = np.arange(96), np.zeros(96, np.int64)
    trace = simt.trace(two_tiles_on_one_line, 3, 32, x, out)
    rows = x.reshape(3, 32)
    swapped = rows.reshape(3, 16, 2)[..., ::-1].reshape(3, 32)
    np.testing.assert_array_equal(out.reshape(3, 32), rows[:, ::-1] + 200 * swapped)
    assert set(trace.shared) == {"left", "right"} and not trace.races


@cuda.jit
def dynamic_of_two_types(out):
    floats, ints = cuda.shared.array(0, float32), cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    floats[t] = t
    cuda.syncthreads()
    out[t] = ints[t]


def test_dynamic_arrays_share_memory():
    out = np.zeros(32, np.int32)
    simt.run(dynamic_of_two_types, 1, 32, out, shared_bytes=128)
    np.testing.assert_array_equal(out, np.arange(32, dtype=np.float32).view(np.int32))


# --- loops that wait for other threads --------------------------------------------------------


@cuda.jit
def grid_barrier(arrived, out):
    """Wait for all blocks of the grid; they do not fit on a GPU at once either."""
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(arrived, 0, 1)
        while arrived[0] < cuda.gridDim.x:
            pass
    cuda.syncthreads()


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "plain"])
def test_waiting_is_refused_at_once(checked):
    start = time.process_time()
    with pytest.raises(UnsupportedError, match="never ends.*waits for another thread"):
        with simt.options(races=False):
            simt.run(grid_barrier, 500, 256, np.zeros(1, np.int32), np.zeros(1), checked=checked)
    assert time.process_time() - start < 1


@cuda.jit
def try_lock(lock, out):
    """A lock that lockstep can run: those who do not get it go round again."""
    done = False
    while not done:
        if cuda.atomic.cas(lock, 0, 0, 1) == 0:
            out[0] += cuda.threadIdx.x
            cuda.atomic.exch(lock, 0, 0)
            done = True


def test_try_lock():
    out = np.zeros(1)
    simt.run(try_lock, 1, 64, np.zeros(1, np.int32), out, checked=False)
    assert out[0] == 63 * 64 / 2


@pytest.mark.parametrize("loop, waits", [
    ("while cuda.atomic.cas(lock, 0, 0, 1) != 0: pass", True),
    ("while got != 0: got = cuda.atomic.cas(lock, 0, 0, 1)", True),
    ("while flag[0] == 0: cuda.nanosleep(100)", True),
    ("while turn[0] != t: spins += 1", True),
    ("while True:\n  if cuda.atomic.cas(lock, 0, 0, 1) == 0: break", True),
    ("while True:\n  v = flag[0]\n  if v == 1: break", True),
    ("while j < seq_lens[b]:\n  acc += k[j]\n  j += 1", False),  # long, and it ends
    ("while j < n:\n  if stop[0] > 0: break\n  j += 1", False),
    ("while keys[low] < v: low += 1", False),
    ("while j < x.shape[0]:\n  acc += x[j]", None), ("while True:\n  x[j] += 1", None),
    ("while p.x < 3 or f(j):\n  x[j] += 1", False),
    ("while p.size < 3:\n  p.size += 1", False), ("while j < 9:\n  if x[j]: break", False),
    ("while old < v:\n  seen = old\n  old = cuda.atomic.cas(x, 0, seen, v)", False),
])  # fmt: skip
def test_which_loops_wait(loop, waits):
    assert decided_by(ast.parse(loop).body[0]) == {True: MEMORY, False: None, None: NOTHING}[waits]


@cuda.jit(device=True)
def of_some_threads(x, i):
    if i > 2:
        value = x[i]
    else:
        return 0
    while i < 20:
        i += 5
        if i == 13:
            break
        before = i
    return value + before * (i != 13)


@cuda.jit
def assigned_where_it_is_read(x, out):
    i = cuda.grid(1)
    if i < 5:
        a = x[i]
    elif i < 10:
        a, b = 7, 8
    if i < 5 and a > 2 or i >= 5:
        out[i] = a if i < 10 else -1
    if 5 <= i < 10 and b == 8:
        b += 1
        out[i] = b
    for j in range(i):
        last = j
    if i:
        out[i] += 100 * last
    if i < 8:
        out[i] += 10_000 * of_some_threads(x, i)


def test_a_variable_that_only_some_threads_assign():
    """It has a value where they read it, though not in the others."""
    x, out = np.arange(64), np.zeros(64, np.int64)
    simt.run(assigned_where_it_is_read, 2, 32, x, out)
    for i, got in enumerate(out):
        want = (i if 2 < i < 5 else 0) if i < 5 else 9 if i < 10 else -1
        want += 100 * max(i - 1, 0)
        if 2 < i < 8:
            stop = next(n for n in range(i, 100, 5) if n >= 20 or n == 13)
            want += 10_000 * (i + stop * (stop != 13))
        assert got == want, i
