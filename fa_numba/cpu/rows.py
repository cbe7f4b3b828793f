"""Softmax of rows on a CPU, and the k largest values of each.

A row of float32 takes three passes: m; y = e^(x − m) and l; y / l. A row of 16-bit numbers, and
every row of `softmax_topk`, goes by chunks that become float32 in a thread's cache:

    m_new = max(m, largest of the chunk)
    l = l e^(m − m_new) + Σ e^(x − m_new)          online_softmax, CHUNK numbers at once

A row of one chunk keeps its exponentials there and multiplies them by 1 / l; a longer one is read
twice. `softmax_topk` reads each row once, and looks for new candidates only among GROUP numbers
whose largest is one.

Paper: Milakov & Gimelshein 2018, arXiv:1805.02867, Algorithms 3 and 4.
"""

import numpy as np

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.constants import LOG2_E, NEG_INF, ONE, ZERO
from fa_numba.cpu import plans, threads, tiles
from fa_numba.cpu.exponential import exp2
from fa_numba.cpu.vectors import (
    BYTES,
    FLOAT32,
    LANES,
    broadcast,
    fetch_add,
    inner,
    kind_of,
    lanes_above,
    largest,
    load,
    lowest_bit,
    maximum,
    read_float32,
    store,
    total,
    worker,
    write_float32,
)
from fa_numba.tiling.block_sizes import ceil_div

CHUNK = 2**15  # numbers: 128 KB as float32
GROUP = 4 * LANES  # numbers, four vectors
BEST = CHUNK  # where its candidates are in the workspace
WORKSPACE = BEST + 64 + 16
PER_TASK = 2**15  # numbers, at least: some 20 µs, more than it costs to wake a thread


@refuses_other_names
def softmax(x):
    """Softmax of each row of a NumPy array, compiled for the CPU.

    Parameters
    ----------
    x : array of shape (num_rows, num_cols), float32, float16 or bfloat16

    Returns
    -------
    y : array of the shape and dtype of x
        NaN in a row that contains a NaN or ∞, and in a row of −∞ only.
    """
    plan = _plan(x)
    y = np.empty(x.shape, x.dtype)
    _run(softmax_rows, plan, x, y)
    return y


@refuses_other_names
def softmax_topk(x, k):
    """The k largest values of each row's softmax, and their columns, largest first.

    Parameters
    ----------
    x : array of shape (num_rows, num_cols), float32, float16 or bfloat16
    k : int
        From 1 to num_cols, at most 32.

    Returns
    -------
    values : array of shape (num_rows, k), dtype of x
        NaN for a row that contains a NaN or ∞, and for a row of −∞ only.
    columns : array of shape (num_rows, k), int32
        For equal x the smaller column comes first. A NaN ranks as −∞, so that these are always k
        different columns of x.
    """
    plan = _plan(x)
    num_rows, num_cols = x.shape
    k = checks.check_top_k(k, num_cols)
    values = np.empty((num_rows, k), x.dtype)
    columns = np.empty((num_rows, k), np.int32)
    _run(topk_rows, plan, x, values, columns)
    return values, columns


@plans.kept
def _plan(x):
    """The number of tasks, and the arguments of a worker that are no arrays."""
    checks.check_rows(x)
    num_rows, num_cols = x.shape
    per_task = ceil_div(PER_TASK, max(num_cols, 1))
    num_tasks = ceil_div(num_rows, per_task) if x.size else 0
    return num_tasks, (kind_of(x.dtype), num_rows, num_cols, per_task)


def _run(worker, plan, x, y, *more):
    num_tasks, sizes = plan
    rows = ((z.__array_interface__["data"][0], z.strides[0]) for z in (x, y))
    threads.run(worker, num_tasks, WORKSPACE, *rows, *sizes, *more, arrays=(x, y))


@inner
def fill(address, kind, start, count, w, base):
    """Numbers `start` to `start + count` − 1 of a row, as float32; −∞ up to a whole group."""
    stop = base + tiles.round_up(count, GROUP)
    tiles.pack(address + start * BYTES[kind], 0, 1, 1, kind, count, count, w, base)
    for i in range(base + count, stop):
        w[i] = NEG_INF
    return stop


@inner(forceinline=True)
def largest_of_four(x0, x1, x2, x3):
    return largest(maximum(maximum(x0, x1), maximum(x2, x3)))


@inner
def largest_of(w, start, stop):
    """Of whole groups; a NaN is left out."""
    m0 = m1 = m2 = m3 = broadcast(NEG_INF)  # four, so that none waits for the one before
    for i in range(start, stop, GROUP):
        m0, m1 = maximum(load(w, i), m0), maximum(load(w, i + LANES), m1)
        m2, m3 = maximum(load(w, i + 2 * LANES), m2), maximum(load(w, i + 3 * LANES), m3)
    return largest_of_four(m0, m1, m2, m3)


@inner
def exponentials(w, start, stop, m_i):
    """e^(x − m) in the place of x; their sum."""
    # −∞ − −∞ is NaN: a chunk of −∞ alone adds nothing.
    shift = broadcast(ZERO if m_i == NEG_INF else m_i)
    sums = broadcast(ZERO)
    for i in range(start, stop, LANES):
        p = exp2((load(w, i) - shift) * broadcast(LOG2_E))
        store(w, i, p)
        sums = sums + p
    return total(sums)


@inner(forceinline=True)
def rescaled(l_i, m_i, m_new):
    """l e^(m − m_new): the sum so far, of another maximum."""
    if m_i == NEG_INF:
        return l_i  # 0, or NaN
    return l_i * np.float32(np.exp(m_i - m_new))


@inner
def multiply(w, start, stop, factor):
    """x · factor in the place of x."""
    for i in range(start, stop, LANES):
        store(w, i, load(w, i) * broadcast(factor))


@inner
def float32_row(w, base, x, y, num_cols):
    """A row at an address, to another; what follows its last whole group goes by the workspace."""
    bytes_of_groups, step = num_cols // GROUP * GROUP * 4, LANES * 4
    tail = x + bytes_of_groups, y + bytes_of_groups, num_cols % GROUP
    stop = fill(tail[0], FLOAT32, 0, tail[2], w, base)
    m0 = m1 = m2 = m3 = broadcast(largest_of(w, base, stop))
    for i in range(x, tail[0], 4 * step):
        m0, m1 = maximum(read_float32(i), m0), maximum(read_float32(i + step), m1)
        m2, m3 = maximum(read_float32(i + 2 * step), m2), maximum(read_float32(i + 3 * step), m3)
    m_i = largest_of_four(m0, m1, m2, m3)
    sums, shift = broadcast(ZERO), broadcast(m_i)
    for i in range(0, bytes_of_groups, step):
        p = exp2((read_float32(x + i) - shift) * broadcast(LOG2_E))
        write_float32(y + i, p)
        sums = sums + p
    l_i = total(sums) + exponentials(w, base, stop, m_i)
    factor = ONE / l_i
    for i in range(y, tail[1], step):
        write_float32(i, read_float32(i) * broadcast(factor))
    multiply(w, base, stop, factor)
    tiles.unpack(w, base, 0, 1, FLOAT32, tail[2], tail[1], 0)


@worker
def softmax_rows(counter, num_tasks, workspace, x, y, kind, num_rows, num_cols, per_task):
    """Take tasks until none is left.

    Parameters
    ----------
    counter, num_tasks, workspace : int64 array of shape (1,), int, float32 array
        As for `forward.forward`.
    x, y : (address, row_bytes)
        The rows, and their softmax.
    kind, num_rows, num_cols : int
        Their dtype and shape.
    per_task : int
        Rows of a task.
    """
    w = workspace
    base = tiles.aligned(w)
    while True:
        task = fetch_add(counter, 1)
        if task >= num_tasks:
            return
        for row in range(task * per_task, min((task + 1) * per_task, num_rows)):
            source, to = x[0] + row * x[1], y[0] + row * y[1]
            if kind == FLOAT32:
                float32_row(w, base, source, to, num_cols)
                continue
            m_i, l_i = NEG_INF, ZERO
            for start in range(0, num_cols, CHUNK):
                stop = fill(source, kind, start, min(CHUNK, num_cols - start), w, base)
                m_new = max(m_i, largest_of(w, base, stop))
                l_i = rescaled(l_i, m_i, m_new) + exponentials(w, base, stop, m_new)
                m_i = m_new
            for start in range(0, num_cols, CHUNK):
                count = min(CHUNK, num_cols - start)
                stop = base + tiles.round_up(count, GROUP)
                if num_cols > CHUNK:
                    fill(source, kind, start, count, w, base)
                    exponentials(w, base, stop, m_i)
                multiply(w, base, stop, ONE / l_i)
                address = to + start * BYTES[kind]
                tiles.unpack(w, base, 0, 1, kind, count, address, 0)


@inner
def insert(w, best, columns, k, x, column):
    """Put a candidate at its rank in the sorted list, whose last entry drops out."""
    i = k - 1
    while i > 0 and w[best + i - 1] < x:
        w[best + i], columns[i] = w[best + i - 1], columns[i - 1]
        i -= 1
    w[best + i], columns[i] = x, column


@inner
def choose(w, base, count, start, best, columns, k):
    """Candidates among numbers `start` to `start + count` − 1 of a row.

    The first k numbers of a row are candidates. Then a number must be larger than the last in the
    list: an equal one, of a larger column, ranks after it.
    """
    done = 0
    if start == 0:
        done = k
        for column in range(k):
            x = w[base + column]
            insert(w, best, columns, column + 1, x if x == x else NEG_INF, column)
    for group in range(0, count, GROUP):
        if not largest_of(w, base + group, base + group + GROUP) > w[best + k - 1]:
            continue
        for first in range(group, group + GROUP, LANES):
            bits = lanes_above(load(w, base + first), broadcast(w[best + k - 1]))
            while bits:
                column = first + lowest_bit(bits)
                bits &= bits - 1
                x = w[base + column]
                if column >= done and x > w[best + k - 1]:
                    insert(w, best, columns, k, x, start + column)


@worker
def topk_rows(
    counter, num_tasks, workspace, x, values, kind, num_rows, num_cols, per_task, columns
):
    """Take tasks until none is left.

    Parameters
    ----------
    counter, num_tasks, workspace, x, kind, num_rows, num_cols, per_task
        As for `softmax_rows`.
    values : (address, row_bytes)
        The k largest softmax values of each row, in the dtype of x.
    columns : int32 array of shape (num_rows, k)
        Their columns.
    """
    w = workspace
    base = tiles.aligned(w)
    best, k = base + BEST, columns.shape[1]
    stop_best = best + tiles.round_up(k, LANES)
    while True:
        task = fetch_add(counter, 1)
        if task >= num_tasks:
            return
        for row in range(task * per_task, min((task + 1) * per_task, num_rows)):
            source, to = x[0] + row * x[1], values[0] + row * values[1]
            m_i, l_i = NEG_INF, ZERO
            for i in range(best, stop_best):
                w[i] = NEG_INF
            for start in range(0, num_cols, CHUNK):
                count = min(CHUNK, num_cols - start)
                stop = fill(source, kind, start, count, w, base)
                choose(w, base, count, start, best, columns[row], k)
                m_new = max(m_i, w[best])
                l_i = rescaled(l_i, m_i, m_new) + exponentials(w, base, stop, m_new)
                m_i = m_new
            exponentials(w, best, stop_best, m_i)
            multiply(w, best, stop_best, ONE / l_i)
            tiles.unpack(w, best, 0, 1, kind, k, to, 0)
