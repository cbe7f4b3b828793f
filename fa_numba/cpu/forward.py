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
        Oᵀ = α Oᵀ + Vᵀ Pᵀ               d x 64
    O = (Oᵀ / l)ᵀ, lse = m + log l

Scores are in units of log 2, as 2^x is cheaper than e^x. All options are branches at run time, once
per tile: one compilation serves all of them and all dtypes.
"""

import math

import numpy as np
from numba import njit

from fa_numba.cpu import tiles, vectors
from fa_numba.cpu.exponential import LOG2_E, ONE, ZERO, exp2, tanh
from fa_numba.cpu.tiles import BLOCK_M, BLOCK_N, MAX_HEAD_DIM, NEG_INF, ROW, WIDTH, product
from fa_numba.cpu.vectors import (
    COLUMNS,
    LANES,
    ROWS,
    absolute,
    broadcast,
    fetch_add,
    load,
    maximum,
    multiply_add,
    store,
    where_less,
)

# Where the tiles are in a thread's workspace.
QT = 0  # Qᵀ, later Oᵀ: rows of BLOCK_M
OT = QT + MAX_HEAD_DIM * BLOCK_M
ST = OT + MAX_HEAD_DIM * BLOCK_M  # Sᵀ and Pᵀ
M_I, L_I, ALPHA = (ST + BLOCK_N * BLOCK_M + i * BLOCK_M for i in range(3))
K = ALPHA + BLOCK_M  # rows of ROW
V = K + BLOCK_N * ROW
END = V + BLOCK_N * ROW
WORKSPACE = END + 16  # for the tiles to begin with a cache line

LN_2 = math.log(2)
LEAST = np.float32(-3.4028235e38)  # below is −∞ alone
TINY = np.float32(1e-30)  # l is at least 1 where a key was seen


@njit
def scores(w, k, qt, st, rows, queries, head_dim):
    """Sᵀ = K Qᵀ."""
    for m in range(0, queries, WIDTH):
        for n in range(0, rows, ROWS):
            acc = product(w, k + n * ROW, ROW, 1, w, qt + m, BLOCK_M, head_dim)
            for i in range(ROWS):
                for j in range(COLUMNS):
                    store(w, st + (n + i) * BLOCK_M + m + j * LANES, acc[i * COLUMNS + j])


@njit
def modify(w, st, rows, queries, ahead, scale, softcap, slope):
    """Scale, softcap and ALiBi, to scores in units of log 2.

    `ahead` is how far key 0 of the tile lies beyond the position of query 0.
    """
    cap, per_cap = np.float32(softcap), np.float32(scale / softcap) if softcap else ZERO
    for n in range(rows):
        for m in range(0, queries, LANES):
            s = load(w, st + n * BLOCK_M + m)
            if softcap:
                s = tanh(s * broadcast(per_cap)) * broadcast(cap)
            else:
                s = s * broadcast(scale)
            if slope:
                distance = broadcast(np.float32(ahead + n - m)) - vectors.lane_numbers()
                s = s - absolute(distance) * broadcast(slope)
            store(w, st + n * BLOCK_M + m, s * broadcast(LOG2_E))


@njit
def mask(w, st, num_keys, rows, queries, ahead, left, right):
    """−∞ for what a query does not see.

    Query m sees the keys n of the tile with −left <= ahead + n − m <= right, so key n is seen by
    the queries from ahead + n − right to ahead + n + left.
    """
    for n in range(rows):
        first = min(max(ahead + n - right, 0), queries) if n < num_keys else queries
        stop = max(min(ahead + n + left + 1, queries), first)
        for m in range(first):
            w[st + n * BLOCK_M + m] = NEG_INF
        for m in range(stop, queries):
            w[st + n * BLOCK_M + m] = NEG_INF


@njit
def softmax(w, st, m_i, l_i, alpha, rows, queries, factor):
    """P = 2^(factor · S − m) in the place of S; m, l and α of each query."""
    c = broadcast(factor)
    for m in range(0, queries, WIDTH):
        old0, old1 = load(w, m_i + m), load(w, m_i + m + LANES)
        top0, top1 = old0, old1
        for n in range(st + m, st + m + rows * BLOCK_M, BLOCK_M):
            top0 = maximum(load(w, n) * c, top0)
            top1 = maximum(load(w, n + LANES) * c, top1)
        store(w, m_i + m, top0)
        store(w, m_i + m + LANES, top1)
        # No key yet: 0, since −∞ − −∞ is NaN.
        top0 = where_less(top0, broadcast(LEAST), broadcast(ZERO), top0)
        top1 = where_less(top1, broadcast(LEAST), broadcast(ZERO), top1)
        alpha0, alpha1 = exp2(old0 - top0), exp2(old1 - top1)
        sum0 = sum1 = broadcast(ZERO)
        for n in range(st + m, st + m + rows * BLOCK_M, BLOCK_M):
            p0 = exp2(multiply_add(load(w, n), c, broadcast(ZERO) - top0))
            p1 = exp2(multiply_add(load(w, n + LANES), c, broadcast(ZERO) - top1))
            store(w, n, p0)
            store(w, n + LANES, p1)
            sum0 = sum0 + p0
            sum1 = sum1 + p1
        store(w, alpha + m, alpha0)
        store(w, alpha + m + LANES, alpha1)
        store(w, l_i + m, multiply_add(load(w, l_i + m), alpha0, sum0))
        store(w, l_i + m + LANES, multiply_add(load(w, l_i + m + LANES), alpha1, sum1))


@njit
def accumulate(w, v, pt, alpha, ot, rows, queries, head_dim):
    """Oᵀ = α Oᵀ + Vᵀ Pᵀ."""
    for m in range(0, queries, WIDTH):
        for d in range(0, head_dim, ROWS):
            acc = product(w, v + d, 1, ROW, w, pt + m, BLOCK_M, rows)
            for i in range(ROWS):
                for j in range(COLUMNS):
                    at = ot + (d + i) * BLOCK_M + m + j * LANES
                    total = acc[i * COLUMNS + j]
                    store(w, at, multiply_add(load(w, at), load(w, alpha + m + j * LANES), total))


@njit
def attend(w, k, v, num_keys, queries, head_dim, ahead, left, right, mod, base):
    """One tile of keys for one tile of queries."""
    rows = tiles.round_up(num_keys, ROWS)
    scale, softcap, slope = mod
    scores(w, k, base + QT, base + ST, rows, queries, head_dim)
    factor = np.float32(scale * LOG2_E)
    if softcap or slope or scale <= ZERO:
        modify(w, base + ST, rows, queries, ahead, scale, softcap, slope)
        factor = ONE
    if num_keys < rows or ahead + num_keys - 1 > right or ahead - (queries - 1) < -left:
        mask(w, base + ST, num_keys, rows, queries, ahead, left, right)
    softmax(w, base + ST, base + M_I, base + L_I, base + ALPHA, rows, queries, factor)
    accumulate(w, v, base + ST, base + ALPHA, base + OT, rows, queries, head_dim)


@njit
def begin(w, base, address, row_bytes, num_queries, queries, kind, head_dim):
    """Qᵀ of a task, and m, l and O of no key at all."""
    width = tiles.round_up(head_dim, LANES)
    tiles.pack(address, row_bytes, num_queries, queries, kind, head_dim, width, w, base + K)
    tiles.transpose(w, base + K, ROW, queries, width, w, base + QT, BLOCK_M)
    for d in range(tiles.round_up(head_dim, ROWS)):
        for m in range(0, queries, LANES):
            store(w, base + OT + d * BLOCK_M + m, broadcast(ZERO))
    for m in range(0, queries, LANES):
        store(w, base + M_I + m, broadcast(NEG_INF))
        store(w, base + L_I + m, broadcast(ZERO))


@njit
def finish(w, base, address, row_bytes, num_queries, queries, kind, head_dim, lse, lse_start):
    """O / l and the logarithm of l, to where the results belong."""
    width = tiles.round_up(head_dim, LANES)
    for m in range(0, queries, LANES):
        l_i = load(w, base + L_I + m)
        # Where no key was seen, O is 0, and is divided by 1.
        divisor = where_less(absolute(l_i), broadcast(TINY), broadcast(ONE), l_i)
        for d in range(head_dim):
            at = base + OT + d * BLOCK_M + m
            store(w, at, load(w, at) / divisor)
    tiles.transpose(w, base + OT, BLOCK_M, width, queries, w, base + K, ROW)
    tiles.unpack(w, base + K, num_queries, kind, head_dim, address, row_bytes)
    for m in range(num_queries):
        m_i, l_i = float(w[base + M_I + m]), float(w[base + L_I + m])
        lse[lse_start + m] = m_i * LN_2 + math.log(l_i) if l_i != 0 else -np.inf


@njit
def pack_keys(x, b, head, n, num_keys, first, table, page_size, kind, head_dim, width, w, start):
    """Keys n to n + num_keys − 1 of a sequence, or their values, to a tile.

    `x` is the address of the array and its strides in bytes, of batch, token and head; of a paged
    cache those of page, token and head.
    """
    address, batch_bytes, row_bytes, head_bytes = x
    rows = tiles.round_up(num_keys, ROWS)
    address += head * head_bytes
    if page_size == 0:
        address += b * batch_bytes + (first + n) * row_bytes
        tiles.pack(address, row_bytes, num_keys, rows, kind, head_dim, width, w, start)
        return
    done = 0
    while done < num_keys:
        slot = (n + done) % page_size
        page = np.int64(table[b, (n + done) // page_size])
        part = min(page_size - slot, num_keys - done)
        padded = part if done + part < num_keys else rows - done
        source = address + page * batch_bytes + slot * row_bytes
        to = start + done * ROW
        tiles.pack(source, row_bytes, part, padded, kind, head_dim, width, w, to)
        done += part


@njit(nogil=True)
def forward(
    counter, num_tasks, workspace, q, k, v, out, kind, sequences, tasks_before, table, page_size,
    num_heads, group, head_dim, lse, lse_of, left, right, scale, softcap, slopes,
):  # fmt: skip
    """Take tasks until none is left.

    Parameters
    ----------
    q, k, v, out : (address, batch_bytes, row_bytes, head_bytes)
    kind : FLOAT32, FLOAT16 or BFLOAT16
    sequences : int64 array of shape (batch, 4)
        First query, number of queries, first key, number of keys.
    tasks_before : int64 array of shape (batch + 1,)
        Tiles of queries of the sequences before, for one head.
    table, page_size : int32 array of shape (batch, max_pages), int
        Pages of the keys; page_size 0: there are none.
    group : int
        Query heads for each key head.
    lse, lse_of : flat float32 array; (int, int, int)
        Where lse of a batch, a head and a query is: their strides.
    left, right : int
        Keys that a query sees before and after its position.
    slopes : float32 array of shape (num_heads,) or (0,)
    """
    w = workspace
    base = tiles.aligned(w)
    width = tiles.round_up(head_dim, ROWS)
    while True:
        task = fetch_add(counter, 1)
        if task >= num_tasks:
            return
        b = np.searchsorted(tasks_before, task // num_heads, side="right") - 1
        in_sequence = task - tasks_before[b] * num_heads
        num_tiles = tasks_before[b + 1] - tasks_before[b]
        head = in_sequence // num_tiles
        # Last first: with a causal mask those have the most keys.
        m = (num_tiles - 1 - in_sequence % num_tiles) * BLOCK_M
        first_q, seqlen_q, first_k, seqlen_k = sequences[b]
        num_queries = min(BLOCK_M, seqlen_q - m)
        queries = tiles.round_up(num_queries, WIDTH)
        slope = slopes[head] if slopes.size else ZERO
        mod = scale, softcap, slope

        row = first_q + m
        address = q[0] + b * q[1] + row * q[2] + head * q[3]
        begin(w, base, address, q[2], num_queries, queries, kind, head_dim)
        position = m + seqlen_k - seqlen_q  # of the first query among the keys
        n = max(0, position - left)
        stop = min(seqlen_k, position + num_queries - 1 + right + 1)
        while n < stop:
            num_keys = min(BLOCK_N, stop - n)
            for x, to in ((k, base + K), (v, base + V)):
                pack_keys(
                    x, b, head // group, n, num_keys, first_k, table, page_size, kind, head_dim,
                    width, w, to,
                )  # fmt: skip
            ahead = n - position
            attend(w, base + K, base + V, num_keys, queries, head_dim, ahead, left, right, mod, base)
            n += num_keys
        address = out[0] + b * out[1] + row * out[2] + head * out[3]
        lse_start = b * lse_of[0] + head * lse_of[1] + row * lse_of[2]
        finish(
            w, base, address, out[2], num_queries, queries, kind, head_dim, lse, lse_start
        )
