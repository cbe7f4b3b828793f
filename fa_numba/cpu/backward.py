"""Gradients of attention on a CPU, from lse, without P in memory.

A task is a head of K and V, with all query heads that share it, or every num_parts-th tile of their
queries. It walks over tiles of BLOCK_M queries, and for each over the tiles of keys that they see:

    Q, dO (128 x d), and Qᵀ, dOᵀ by panels of WIDTH queries; δ = rowsum(dO ∘ O)
    for each tile of 64 keys:
        for each panel:
            Sᵀ = K Qᵀ,  Pᵀ = e^(Sᵀ − lse)
            dPᵀ = V dOᵀ, dSᵀ = Pᵀ ∘ (dPᵀ − δ) · the score's derivative · softmax_scale
            dQ += dS K                  the tile's own, in cache
            dropout of dPᵀ before dSᵀ, of Pᵀ after it
        dV += Pᵀ dO, dK += dSᵀ Q        of the head, float32, in memory

No two threads add to the same numbers, so the sums have one order: the same bits in every run with
as many threads. num_parts is 1 where there are heads enough for all threads; dK and dV of a head
then lie in a thread's workspace. Those of parts are added afterwards. Memory: O(N).
"""

import numpy as np

from fa_numba.constants import LOG2_E, NEG_INF, ZERO
from fa_numba.cpu import expressions, tiles
from fa_numba.cpu.dropout import drop
from fa_numba.cpu.exponential import exp2
from fa_numba.cpu.scores import multiply, scores
from fa_numba.cpu.tiles import BLOCK_M, BLOCK_N, MAX_HEAD_DIM, ROW, WIDTH, product
from fa_numba.cpu.vectors import (
    COLUMNS,
    LANES,
    ROWS,
    broadcast,
    fetch_add,
    inner,
    load,
    minimum,
    multiply_add,
    multiply_subtract,
    store,
    worker,
    zeros,
)

# Where things are in a thread's workspace. Of each panel:
QT = 0  # head_dim rows of WIDTH
DOT = QT + MAX_HEAD_DIM * WIDTH
PT, DST, SLOPE = (DOT + MAX_HEAD_DIM * WIDTH + i * BLOCK_N * WIDTH for i in range(3))
LSE, DELTA = (SLOPE + BLOCK_N * WIDTH + i * WIDTH for i in range(2))
SEEN = DELTA + WIDTH  # of the panel, with a user's mask: first key of the tile, and end
PANEL = SEEN + WIDTH
# Of the task, rows of ROW:
Q = BLOCK_M // WIDTH * PANEL
DO, DQ, K = (Q + i * BLOCK_M * ROW for i in (1, 2, 3))
V = K + BLOCK_N * ROW
AGAIN = V + BLOCK_N * ROW  # K Qᵀ, for the gradients of a score's arguments
END = AGAIN + BLOCK_N * WIDTH
WORKSPACE = END + 16

# Terms of δ that are added one after the other, about √MAX_HEAD_DIM: 16 sums of 32 terms lose the
# fewest digits. An error of δ is the same for all keys of a row: in dQ it does not average out.
SHORT_SUM = 32
LARGEST = np.float32(127)  # of a lse that is not that of the scores


@inner
def begin(w, base, q, dout, out, num_queries, kind, head_dim, head_dim_v, lse, lse_start):
    """Load a tile of queries: Q, dO, Qᵀ, dOᵀ, lse and δ; and set dQ to 0.

    Parameters
    ----------
    w, base : float32 array, int
        A thread's workspace, and where it begins.
    q, dout, out : (address, row_bytes)
        Of the tile's first query.
    num_queries, kind, head_dim, head_dim_v : int
        Rows of the tile; dtype and numbers of a row of q, and of one of dout and out.
    lse, lse_start : flat float32 array, int
        lse of the first query, and of those after it.
    """
    width, width_v = tiles.round_up(head_dim, WIDTH), tiles.round_up(head_dim_v, WIDTH)
    for m in range(0, num_queries, WIDTH):
        panel, rows = base + m // WIDTH * PANEL, min(num_queries - m, WIDTH)
        at = m * ROW
        for x, to, transposed in (
            (out, base + DQ + at, panel + QT),  # for δ alone
            (dout, base + DO + at, panel + DOT),
        ):
            source = x[0] + m * x[1]
            tiles.pack(source, x[1], rows, WIDTH, kind, head_dim_v, width_v, w, to)
            tiles.transpose(w, to, ROW, WIDTH, width_v, w, transposed, WIDTH)
        for i in range(0, WIDTH, LANES):
            delta = broadcast(ZERO)
            for first in range(0, head_dim_v, SHORT_SUM):
                part, end = broadcast(ZERO), min(first + SHORT_SUM, head_dim_v)
                for d in range(i + first * WIDTH, i + end * WIDTH, WIDTH):
                    part = multiply_add(load(w, panel + QT + d), load(w, panel + DOT + d), part)
                delta = delta + part
            store(w, panel + DELTA + i, delta)
        to = base + Q + at
        tiles.pack(q[0] + m * q[1], q[1], rows, WIDTH, kind, head_dim, width, w, to)
        tiles.transpose(w, to, ROW, WIDTH, width, w, panel + QT, WIDTH)
        for r in range(base + DQ + at, base + DQ + at + WIDTH * ROW, ROW):
            for d in range(0, width, LANES):
                store(w, r + d, broadcast(ZERO))
        for i in range(WIDTH):
            # ∞ for a row that saw no key, and for one past the end: e^(s − ∞) = 0.
            x = lse[lse_start + m + i] if i < rows else NEG_INF
            w[panel + LSE + i] = -NEG_INF if x == NEG_INF else x


@inner
def probabilities(w, pt, lse, rows, factor):
    """P = e^(factor · S − lse) in the place of S.

    lse is taken away before the factor of 2^x: the terms nearly cancel where P is large.
    """
    c, lse0, lse1 = broadcast(factor), load(w, lse), load(w, lse + LANES)
    for n in range(pt, pt + rows * WIDTH, WIDTH):
        x0 = multiply_subtract(load(w, n), c, lse0) * broadcast(LOG2_E)
        x1 = multiply_subtract(load(w, n + LANES), c, lse1) * broadcast(LOG2_E)
        store(w, n, exp2(minimum(broadcast(LARGEST), x0)))
        store(w, n + LANES, exp2(minimum(broadcast(LARGEST), x1)))


@inner
def score_gradients(w, pt, dst, delta, slope_at, rows, scale):
    """dS = P ∘ (dP − δ) · scale, times softcap's derivative, in the place of dP."""
    c = broadcast(scale)
    for m in range(0, WIDTH, LANES):
        row_delta = load(w, delta + m)
        for i in range(m, m + rows * WIDTH, WIDTH):
            ds = load(w, pt + i) * (load(w, dst + i) - row_delta) * c
            if slope_at >= 0:
                ds = ds * load(w, slope_at + i)
            store(w, dst + i, ds)


@inner
def add_query_gradients(w, k, dst, dq, rows, head_dim):
    """dQ += dS K, for the queries of a panel."""
    for d in range(0, head_dim, WIDTH):
        for m in range(0, WIDTH, ROWS):
            acc = product(zeros(), w, dst + m, 1, WIDTH, w, k + d, ROW, rows)
            for i in range(ROWS):
                for j in range(COLUMNS):
                    at = dq + (m + i) * ROW + d + j * LANES
                    store(w, at, load(w, at) + acc[i * COLUMNS + j])


@inner
def add_key_gradients(
    w, base, st, other, sums, start, row, first, last, num_keys, head_dim, ahead, left, right, user
):  # fmt: skip
    """dV += Pᵀ dO, or dK += dSᵀ Q.

    Parameters
    ----------
    w, base : float32 array, int
        A thread's workspace, and where it begins.
    st, other : int
        PT and DO, or DST and Q.
    sums, start, row : flat float32 array, int, int
        dV or dK: where the tile's first key is, and the numbers from one key to the next.
    first, last : int
        Panels of queries that see the tile.
    num_keys, head_dim : int
    ahead : int
        Position of the tile's first key, less that of the first query.
    left, right : int
        Keys that a query sees before and after its position.
    user : User
        As for `forward.forward`; with one each panel's keys are at SEEN.
    """
    for d in range(0, head_dim, WIDTH):
        for n in range(0, num_keys, ROWS):
            # Panels in which some query sees some key of the group.
            low = max(first, (ahead + n - right) // WIDTH)
            high = min(last, (ahead + n + ROWS - 1 + left) // WIDTH) + 1
            acc = zeros()
            for panel in range(low, high):
                if user.given:
                    at = base + panel * PANEL + SEEN
                    if n < w[at] or n >= w[at + 1]:
                        continue
                a = base + panel * PANEL + st + n * WIDTH
                b = base + other + panel * WIDTH * ROW + d
                acc = product(acc, w, a, WIDTH, 1, w, b, ROW, WIDTH)
            for i in range(ROWS):
                for j in range(COLUMNS):
                    at = start + (n + i) * row + d + j * LANES
                    store(sums, at, load(sums, at) + acc[i * COLUMNS + j])


@worker
def backward(
    counter, num_tasks, workspace, dout, q, k, v, out, dq, kind, sequences, keys_before, num_parts,
    group, num_kv_heads, head_dim, head_dim_v, lse, lse_of, left, right, scale, softcap, slopes,
    dropout, dk, dv, dk_parts, dv_parts, deltas, user,
):  # fmt: skip
    """Take tasks until none is left. The other parameters are those of `forward.forward`.

    Parameters
    ----------
    keys_before : int64 array of shape (batch + 1,)
        Rows of dk and dv, and of tiles past their ends, of the sequences before, for one head.
    num_parts : int
        Tasks that share a key head.
    dk_parts, dv_parts : flat float32 arrays
        Where num_parts > 1, for `add_parts`: rows of head_dim or head_dim_v, rounded up to WIDTH;
        for each sequence num_kv_heads times num_parts times its rows.
    deltas : flat float32 array of the size of lse, or 0
        Receives δ.
    """
    w = workspace
    base = tiles.aligned(w)
    width, width_v = tiles.round_up(head_dim, WIDTH), tiles.round_up(head_dim_v, WIDTH)
    dk_sums, dv_sums = (w, w) if num_parts == 1 else (dk_parts, dv_parts)
    while True:
        task = fetch_add(counter, 1)
        if task >= num_tasks:
            return
        part, pair = task % num_parts, task // num_parts
        b, kv_head = pair // num_kv_heads, pair % num_kv_heads
        first_q, seqlen_q, first_k, seqlen_k = sequences[b]
        num_rows = keys_before[b + 1] - keys_before[b]
        if num_parts == 1:  # nobody else adds to them: they lie in the thread's workspace
            dk_at, dv_at = base + END, base + END + num_rows * width
        else:
            first_row = keys_before[b] * num_kv_heads + kv_head * num_rows
            first_row = first_row * num_parts + part * num_rows
            dk_at, dv_at = first_row * width, first_row * width_v
        for i in range(0, num_rows * width, LANES):
            store(dk_sums, dk_at + i, broadcast(ZERO))
        for i in range(0, num_rows * width_v, LANES):
            store(dv_sums, dv_at + i, broadcast(ZERO))

        num_tiles = (seqlen_q + BLOCK_M - 1) // BLOCK_M
        for one in range(part, num_tiles * group, num_parts):
            head, m = kv_head * group + one // num_tiles, one % num_tiles * BLOCK_M
            row, num_queries = first_q + m, min(BLOCK_M, seqlen_q - m)
            mod = scale, softcap, slopes[head] if slopes.size else ZERO
            q_rows = q[0] + b * q[1] + row * q[2] + head * q[3], q[2]
            dout_rows = dout[0] + b * dout[1] + row * dout[2] + head * dout[3], dout[2]
            out_rows = out[0] + b * out[1] + row * out[2] + head * out[3], out[2]
            lse_start = b * lse_of[0] + head * lse_of[1] + row * lse_of[2]
            begin(
                w, base, q_rows, dout_rows, out_rows, num_queries, kind, head_dim, head_dim_v, lse,
                lse_start,
            )  # fmt: skip
            if deltas.size:
                for i in range(num_queries):
                    deltas[lse_start + i] = w[base + i // WIDTH * PANEL + DELTA + i % WIDTH]
            position = m + seqlen_k - seqlen_q
            n = max(0, position - left)
            stop = min(seqlen_k, position + num_queries - 1 + right + 1)
            while n < stop:
                num_keys = min(BLOCK_N, stop - n)
                rows = tiles.round_up(num_keys, ROWS)
                if user.given:
                    panels = m // WIDTH, (m + num_queries - 1) // WIDTH + 1
                    if expressions.is_hidden(user, b, (head, head + 1), panels, n):
                        n += num_keys
                        continue
                for x, to, dim, row_width in (
                    (k, base + K, head_dim, width),
                    (v, base + V, head_dim_v, width_v),
                ):
                    source = x[0] + b * x[1] + (first_k + n) * x[2] + kv_head * x[3]
                    tiles.pack(source, x[2], num_keys, rows, kind, dim, row_width, w, to)
                # Panels of which some query sees some key of the tile.
                ahead = n - position
                first = max(0, ahead - right) // WIDTH
                last = min(num_queries - 1, ahead + num_keys - 1 + left) // WIDTH
                for i in range(first, last + 1):
                    # Keys that a query of the panel sees; whole groups of ROWS are computed.
                    start = max(0, i * WIDTH - ahead - left) // ROWS * ROWS
                    seen = min(num_keys, (i + 1) * WIDTH - ahead + right) - start
                    panel, at = base + i * PANEL, (b, head, position, n, num_queries, False)
                    if user.given:
                        queries = min(num_queries - i * WIDTH, WIDTH)
                        start, end, masked = expressions.seen_keys(
                            user, b, head, position + i * WIDTH, m // WIDTH + i, queries, n,
                            num_keys,
                        )  # fmt: skip
                        w[panel + SEEN], w[panel + SEEN + 1] = start, end
                        at = b, head, position + i * WIDTH, n + start, queries, masked
                        seen = end - start
                        if seen <= 0:
                            continue
                    rows = tiles.round_up(seen, ROWS)
                    keys = start * ROW
                    pt, dst = panel + PT + start * WIDTH, panel + DST + start * WIDTH
                    slope_at = panel + SLOPE + start * WIDTH if softcap else -1
                    if user.has_slope:
                        slope_at = panel + SLOPE + start * WIDTH
                    factor = scores(
                        w, base + K + keys, panel + QT, pt, seen, head_dim,
                        ahead + start - i * WIDTH, left, right, mod, slope_at, user, at,
                    )  # fmt: skip
                    probabilities(w, pt, panel + LSE, rows, factor)
                    multiply(w, base + V + keys, panel + DOT, dst, rows, head_dim_v)
                    query = m + i * WIDTH
                    if dropout[0]:
                        drop(w, dst, rows, n + start, query, head, b, dropout)
                    if user.sums_of_task:
                        again = base + AGAIN
                        multiply(w, base + K + keys, panel + QT, again, rows, head_dim)
                        expressions.add_argument_gradients(
                            w, pt, dst, again, panel + DELTA, seen, scale, user, at, task
                        )
                    score_gradients(w, pt, dst, panel + DELTA, slope_at, rows, scale)
                    if dropout[0]:
                        drop(w, pt, rows, n + start, query, head, b, dropout)
                    to = base + DQ + i * WIDTH * ROW
                    add_query_gradients(w, base + K + keys, dst, to, rows, head_dim)
                add_key_gradients(
                    w, base, PT, DO, dv_sums, dv_at + n * width_v, width_v, first, last, num_keys,
                    head_dim_v, ahead, left, right, user,
                )  # fmt: skip
                add_key_gradients(
                    w, base, DST, Q, dk_sums, dk_at + n * width, width, first, last, num_keys,
                    head_dim, ahead, left, right, user,
                )  # fmt: skip
                n += num_keys
            address = dq[0] + b * dq[1] + row * dq[2] + head * dq[3]
            tiles.unpack(w, base + DQ, ROW, num_queries, kind, head_dim, address, dq[2])
        if num_parts == 1:
            for x, sums, at, dim, row_width in (
                (dk, dk_sums, dk_at, head_dim, width),
                (dv, dv_sums, dv_at, head_dim_v, width_v),
            ):
                address = x[0] + b * x[1] + first_k * x[2] + kv_head * x[3]
                tiles.unpack(sums, at, row_width, seqlen_k, kind, dim, address, x[2])


@worker
def add_parts(
    counter, num_tasks, workspace, sums, x, kind, sequences, keys_before, num_parts, num_kv_heads,
    head_dim,
):  # fmt: skip
    """Add the parts of dk or dv, and round them to its dtype; a task is a head of a sequence.

    Parameters
    ----------
    counter, num_tasks, workspace : int64 array of shape (1,), int, float32 array
        As for `forward.forward`.
    sums : flat float32 array
        The parts, as `backward` leaves them.
    x : (address, batch_bytes, row_bytes, head_bytes)
        dk or dv.
    kind, sequences, keys_before, num_parts, num_kv_heads
        As for `backward`.
    head_dim : int
        Numbers in a row of x.
    """
    width = tiles.round_up(head_dim, WIDTH)
    while True:
        task = fetch_add(counter, 1)
        if task >= num_tasks:
            return
        b, head = task // num_kv_heads, task % num_kv_heads
        _, _, first_k, seqlen_k = sequences[b]
        num_rows = keys_before[b + 1] - keys_before[b]
        start = (keys_before[b] * num_kv_heads + head * num_rows) * num_parts * width
        size = num_rows * width
        for part in range(1, num_parts):
            for i in range(0, size, LANES):
                both = load(sums, start + i) + load(sums, start + part * size + i)
                store(sums, start + i, both)
        address = x[0] + b * x[1] + first_k * x[2] + head * x[3]
        tiles.unpack(sums, start, width, seqlen_k, kind, head_dim, address, x[2])
