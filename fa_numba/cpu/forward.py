"""FlashAttention forward on a CPU: the same tiles, another cache.

A task is BLOCK_M queries of one head. It keeps Q, the running maximum, the running sum and O of its
queries in the thread's own cache, as a thread block keeps them in shared memory and registers, and
walks over the tiles of K and V. S is computed transposed, Sᵀ = K Qᵀ: queries lie along the vector,
so that the maximum and the sum of a row of S are taken lane by lane, and never across lanes.

    Q (64 x d), transposed once         Qᵀ: d x 64
    for each tile of 64 keys that some query of the task sees:
        Sᵀ = K Qᵀ                       64 keys x 64 queries
        masked, where a query does not see all of the keys
        m, α = e^(m_old − m), P = e^(S − m), l
        dropout
        Oᵀ = α Oᵀ + Vᵀ Pᵀ               d x 64
    O = (Oᵀ / l)ᵀ, lse = m + log l

The maximum is in units of log 2, as 2^x is cheaper than e^x. All options are branches at run time,
once per tile: one compilation serves all of them and all dtypes.
"""

import math

import numpy as np

from fa_numba.constants import LOG2_E, NEG_INF, ONE, ZERO
from fa_numba.cpu import expressions, tiles
from fa_numba.cpu.dropout import drop
from fa_numba.cpu.exponential import exp2
from fa_numba.cpu.scores import scores
from fa_numba.cpu.tiles import BLOCK_M, BLOCK_N, MAX_HEAD_DIM, ROW, WIDTH, product
from fa_numba.cpu.vectors import (
    COLUMNS,
    LANES,
    ROWS,
    absolute,
    broadcast,
    fetch_add,
    inner,
    load,
    maximum,
    multiply_add,
    multiply_subtract,
    store,
    where_less,
    worker,
    zeros,
)

# Where things are in a thread's workspace: a panel for each WIDTH queries, then K, V and S.
QT = 0  # Qᵀ: head_dim rows of WIDTH
OT = QT + MAX_HEAD_DIM * WIDTH
M_I, L_I = (OT + MAX_HEAD_DIM * WIDTH + i * WIDTH for i in range(2))
PANEL = L_I + WIDTH  # numbers from one panel to the next
K = BLOCK_M // WIDTH * PANEL  # rows of ROW
V = K + BLOCK_N * ROW
ST = V + BLOCK_N * ROW  # Sᵀ and Pᵀ of one panel: BLOCK_N rows of WIDTH
ALPHA = ST + BLOCK_N * WIDTH
WORKSPACE = ALPHA + WIDTH + 16  # 16 for the tiles to begin with a cache line

LN_2 = math.log(2)
LEAST = np.float32(-3.4028235e38)  # below is −∞ alone
TINY = np.float32(1e-30)  # l is at least 1 where a key was seen


@inner
def softmax(w, st, m_i, l_i, alpha, rows, factor):
    """P = 2^(factor · S − m) in the place of S; m, l and α of each query. factor > 0."""
    c = broadcast(factor)
    old0, old1 = load(w, m_i), load(w, m_i + LANES)
    top0 = top1 = broadcast(NEG_INF)
    for n in range(st, st + rows * WIDTH, WIDTH):
        top0, top1 = maximum(load(w, n), top0), maximum(load(w, n + LANES), top1)
    top0, top1 = maximum(top0 * c, old0), maximum(top1 * c, old1)
    store(w, m_i, top0)
    store(w, m_i + LANES, top1)
    # No key yet: 0, since −∞ − −∞ is NaN.
    top0 = where_less(top0, broadcast(LEAST), broadcast(ZERO), top0)
    top1 = where_less(top1, broadcast(LEAST), broadcast(ZERO), top1)
    alpha0, alpha1 = exp2(old0 - top0), exp2(old1 - top1)
    sum0 = sum1 = broadcast(ZERO)
    for n in range(st, st + rows * WIDTH, WIDTH):
        p0 = exp2(multiply_subtract(load(w, n), c, top0))
        p1 = exp2(multiply_subtract(load(w, n + LANES), c, top1))
        store(w, n, p0)
        store(w, n + LANES, p1)
        sum0, sum1 = sum0 + p0, sum1 + p1
    store(w, alpha, alpha0)
    store(w, alpha + LANES, alpha1)
    store(w, l_i, multiply_add(load(w, l_i), alpha0, sum0))
    store(w, l_i + LANES, multiply_add(load(w, l_i + LANES), alpha1, sum1))


@inner
def accumulate(w, v, pt, alpha, ot, rows, head_dim):
    """Oᵀ = α Oᵀ + Vᵀ Pᵀ for a panel: Oᵀ (head_dim, WIDTH), V (rows, ROW), Pᵀ (rows, WIDTH)."""
    for d in range(0, head_dim, ROWS):
        acc = product(zeros(), w, v + d, 1, ROW, w, pt, WIDTH, rows)
        for i in range(ROWS):
            for j in range(COLUMNS):
                at = ot + (d + i) * WIDTH + j * LANES
                rescaled = multiply_add(
                    load(w, at), load(w, alpha + j * LANES), acc[i * COLUMNS + j]
                )
                store(w, at, rescaled)


@inner
def attend(
    w, base, panel, n, num_keys, head_dim, head_dim_v, ahead, left, right, mod, index, dropout,
    user, at,
):  # fmt: skip
    """Keys n to n + num_keys − 1 of the tile, for the queries of one panel.

    Parameters
    ----------
    w, base, panel : float32 array, int, int
        A thread's workspace, where it begins, and where the panel does.
    n, num_keys, head_dim, head_dim_v : int
    ahead : int
        Position of key n, less that of the panel's first query.
    left, right : int
        Keys that a query sees before and after its position.
    mod : (float32, float32, float32)
        Scale, softcap and ALiBi slope, as for `scores.scores`.
    index : (int, int, int, int)
        Batch, head, query and key of the first entry, for dropout.
    dropout, user : tuple
        As for `forward`.
    at : tuple
        As for `scores.scores`.
    """
    st, rows = base + ST, tiles.round_up(num_keys, ROWS)
    factor = scores(
        w, base + K + n * ROW, panel + QT, st, num_keys, head_dim, ahead, left, right, mod, -1,
        user, at,
    )  # fmt: skip
    softmax(w, st, panel + M_I, panel + L_I, base + ALPHA, rows, np.float32(factor * LOG2_E))
    if dropout[0]:
        b, head, query, key = index
        drop(w, st, rows, key, query, head, b, dropout)
    accumulate(w, base + V + n * ROW, st, base + ALPHA, panel + OT, rows, head_dim_v)


@inner
def begin(w, base, address, row_bytes, num_queries, kind, head_dim, head_dim_v, sink):
    """Qᵀ of a task, and m, l and O of the sink alone; −∞ is none.

    Parameters
    ----------
    w, base : float32 array, int
        A thread's workspace, and where it begins.
    address, row_bytes : int
        Of the first query's row of q, and from one row to the next.
    num_queries, kind, head_dim, head_dim_v : int
        Rows; dtype of q; numbers in a row of q, and in one of O.
    sink : float32
    """
    width = tiles.round_up(head_dim, LANES)
    for m in range(0, num_queries, WIDTH):
        panel = base + m // WIDTH * PANEL
        source, rows = address + m * row_bytes, min(num_queries - m, WIDTH)
        tiles.pack(source, row_bytes, rows, WIDTH, kind, head_dim, width, w, base + K)
        tiles.transpose(w, base + K, ROW, WIDTH, width, w, panel + QT, WIDTH)
        for i in range(0, tiles.round_up(head_dim_v, ROWS) * WIDTH, LANES):
            store(w, panel + OT + i, broadcast(ZERO))
        for i in range(0, WIDTH, LANES):
            store(w, panel + M_I + i, broadcast(sink * LOG2_E))
            store(w, panel + L_I + i, broadcast(ZERO if sink == NEG_INF else ONE))


@inner
def finish(w, base, address, row_bytes, num_queries, kind, head_dim, lse, lse_start):
    """O / l, and lse = m + log l, to where the results belong.

    Parameters
    ----------
    w, base : float32 array, int
        A thread's workspace, and where it begins.
    address, row_bytes : int
        Of the first query's row of out, and from one row to the next.
    num_queries, kind, head_dim : int
        Rows; their dtype and length.
    lse, lse_start : flat float32 array, int
        Where the first query's lse goes.
    """
    width = tiles.round_up(head_dim, LANES)
    for m in range(0, num_queries, WIDTH):
        panel, rows = base + m // WIDTH * PANEL, min(num_queries - m, WIDTH)
        for i in range(0, WIDTH, LANES):
            l_i = load(w, panel + L_I + i)
            # Where no key was seen, O is 0, and is divided by 1.
            l_i = where_less(absolute(l_i), broadcast(TINY), broadcast(ONE), l_i)
            reciprocal = broadcast(ONE) / l_i
            for d in range(panel + OT + i, panel + OT + i + head_dim * WIDTH, WIDTH):
                store(w, d, load(w, d) * reciprocal)
        tiles.transpose(w, panel + OT, WIDTH, width, WIDTH, w, base + K, ROW)
        tiles.unpack(w, base + K, ROW, rows, kind, head_dim, address + m * row_bytes, row_bytes)
        for i in range(rows):
            m_i, l_i = float(w[panel + M_I + i]), float(w[panel + L_I + i])
            lse[lse_start + m + i] = m_i * LN_2 + math.log(l_i) if l_i != 0 else -np.inf


@worker
def forward(
    counter, num_tasks, workspace, q, k, v, out, kind, block_m, sequences, tasks_before, table,
    page_size, num_heads, group, head_dim, head_dim_v, lse, lse_of, left, right, scale, softcap,
    slopes, dropout, sinks, user,
):  # fmt: skip
    """Take tasks until none is left.

    Parameters
    ----------
    counter, num_tasks, workspace : int64 array of shape (1,), int, float32 array
        The next task, which all threads count up; how many there are; this thread's memory.
    q, k, v, out : (address, batch_bytes, row_bytes, head_bytes)
    kind : FLOAT32, FLOAT16 or BFLOAT16
    block_m : int
        Queries of a task, at most BLOCK_M.
    sequences : int64 array of shape (batch, 4)
        First query, number of queries, first key, number of keys.
    tasks_before : int64 array of shape (batch + 1,)
        Tiles of queries of the sequences before, for one head.
    table, page_size : int32 array of shape (batch, max_pages), int
        Pages of the keys; page_size 0: there are none.
    group : int
        Query heads for each key head.
    head_dim, head_dim_v : int
        Numbers in a row of q and k, and in one of v and out.
    lse, lse_of : flat float32 array; (int, int, int)
        Where lse of a batch, a head and a query is: their strides.
    left, right : int
        Keys that a query sees before and after its position.
    slopes : float32 array of shape (num_heads,) or (0,)
    dropout : (bool, int, uint64, float32)
        As from `dropout.options`.
    sinks : float32 array of shape (num_heads,) or (0,)
    user : User
        As from `expressions.prepared`, for tiles of WIDTH queries; with one there are no other
        masks.
    """
    w = workspace
    base = tiles.aligned(w)
    width, width_v = tiles.round_up(head_dim, ROWS), tiles.round_up(head_dim_v, ROWS)
    while True:
        task = fetch_add(counter, 1)
        if task >= num_tasks:
            return
        b, end = 0, len(sequences)  # searchsorted takes longer to compile
        while end - b > 1:
            middle = (b + end) // 2
            b, end = (middle, end) if tasks_before[middle] * num_heads <= task else (b, middle)
        in_sequence = task - tasks_before[b] * num_heads
        num_tiles = tasks_before[b + 1] - tasks_before[b]
        head = in_sequence // num_tiles
        # Last first: with a causal mask those have the most keys.
        m = (num_tiles - 1 - in_sequence % num_tiles) * block_m
        first_q, seqlen_q, first_k, seqlen_k = sequences[b]
        num_queries = min(block_m, seqlen_q - m)
        slope = slopes[head] if slopes.size else ZERO
        mod = scale, softcap, slope

        row = first_q + m
        address = q[0] + b * q[1] + row * q[2] + head * q[3]
        sink = sinks[head] if sinks.size else NEG_INF
        begin(w, base, address, q[2], num_queries, kind, head_dim, head_dim_v, sink)
        position = m + seqlen_k - seqlen_q  # of the first query among the keys
        n = max(0, position - left)
        stop = min(seqlen_k, position + num_queries - 1 + right + 1)
        while n < stop:
            num_keys = min(BLOCK_N, stop - n)
            if user.given:
                panels = m // WIDTH, (m + num_queries - 1) // WIDTH + 1
                if expressions.is_hidden(user, b, (head, head + 1), panels, n):
                    n += num_keys
                    continue
            for x, to, dim, row_width in (
                (k, base + K, head_dim, width),
                (v, base + V, head_dim_v, width_v),
            ):
                tiles.pack_keys(
                    x, b, head // group, n, num_keys, first_k, table, page_size, kind, dim,
                    row_width, w, to,
                )  # fmt: skip
            for first in range(0, num_queries, WIDTH):
                # Of the tile, the keys that some query of the panel sees.
                ahead = n - position - first
                last = min(first + WIDTH, num_queries) - 1 - first
                start = max(0, -left - ahead) // ROWS * ROWS
                end = min(num_keys, last - ahead + right + 1)
                at = b, head, position + first, n, last + 1, False
                if user.given:
                    start, end, masked = expressions.seen_keys(
                        user, b, head, position + first, (m + first) // WIDTH, last + 1, n, num_keys
                    )
                    at = b, head, position + first, n + start, last + 1, masked
                if start < end:
                    panel = base + first // WIDTH * PANEL
                    attend(
                        w, base, panel, start, end - start, head_dim, head_dim_v, ahead + start,
                        left, right, mod, (b, head, m + first, n + start), dropout, user, at,
                    )  # fmt: skip
            n += num_keys
        address = out[0] + b * out[1] + row * out[2] + head * out[3]
        lse_start = b * lse_of[0] + head * lse_of[1] + row * lse_of[2]
        finish(w, base, address, out[2], num_queries, kind, head_dim_v, lse, lse_start)
