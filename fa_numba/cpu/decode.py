"""Attention of few queries on a CPU: each key and each value is read from memory once.

A forward tile has WIDTH queries side by side in vectors. One query would fill one lane of them, and
reading memory takes longer than computing here anyway. So head_dim lies along vectors. A task is a
range of keys of some key heads, and all rows, query x query head, that share them:

    for each 64 keys:
        for each key, for each key head, for each row:
            LANES sums of K[n] ∘ q
        s = those of each key added
        for each row:
            scaled, modified, masked; m, α, p, l
            O = α O
        for each key, for each key head, for each row:
            O += p[n] V[n]

All key heads of a token lie side by side in memory. A task takes them all, if it can, token after
token, so that it reads memory from one end to the other. The processor then reads ahead: one core
of an EPYC reads 27 GB/s in this order, and 13 where it reads 64 rows of a head, then those of the
next. If the keys of a head lie side by side instead, a task is of one head.

K and V are read where they lie if at most MAX_IN_PLACE rows share a key head; a register of K or V
then serves up to four rows. For more rows, and if head_dim is no multiple of LANES, a tile of one
head is copied to the cache first, as in `forward`, and P V is the same product of tiles.

The keys are split where there are too few tasks for all threads. Each part then writes its
normalised O and its lse, and `merge` adds them.
"""

import math

import numpy as np

from fa_numba.constants import LOG2_E, NEG_INF, ONE, ZERO
from fa_numba.cpu import expressions, tiles
from fa_numba.cpu.exponential import exp2, tanh
from fa_numba.cpu.tiles import BLOCK_N, ROW, WIDTH, product
from fa_numba.cpu.vectors import (
    COLUMNS,
    E4M3,
    FLOAT16,
    FLOAT32,
    LANES,
    ROWS,
    absolute,
    add_products,
    address_of,
    broadcast,
    fetch_add,
    first_lane,
    inner,
    lane_numbers,
    largest,
    load,
    load_sums,
    maximum,
    multiply_add,
    multiply_subtract,
    no_sums,
    prefetch,
    read_bfloat16,
    read_e4m3,
    read_float16,
    read_float32,
    read_one_float32,
    store,
    sum_each,
    total,
    where_less,
    worker,
    zeros,
)

MAX_ROWS = 256  # of a task
# Rows that share a key head, and read K and V where they lie. More would need more room for the
# sums of `scores_in_place`, which lie where the tiles of K and V do.
MAX_IN_PLACE = 4
# Where things are in a thread's workspace; rows of ROW numbers, except S: rows of BLOCK_N.
K, V = 0, BLOCK_N * ROW
Q = V + BLOCK_N * ROW
O = Q + MAX_ROWS * ROW
S = O + MAX_ROWS * ROW
M_I, L_I, ALPHA = (S + MAX_ROWS * BLOCK_N + i * MAX_ROWS for i in range(3))
K_SCALES, V_SCALES = (ALPHA + MAX_ROWS + i * BLOCK_N for i in range(2))  # of a tile's keys
WORKSPACE = V_SCALES + BLOCK_N + 16  # 16 for the tiles to begin with a cache line

NO_END = 2**40  # keys
W64, W128 = np.int64(64), np.int64(128)  # for each int of Python, Numba compiles a callee anew
LN_2 = math.log(2)
LEAST = np.float32(-3.4028235e38)  # below is −∞ alone


@inner
def begin(w, base, first, q, rows, group, kind, head_dim, width, width_v, sinks):
    """Q of a task, and m, l and O of the sinks alone.

    Parameters
    ----------
    w, base : float32 array, int
        A thread's workspace, and where it begins.
    first, rows : int
        The rows of a key head in the workspace: the first, and how many.
    q : (address, row_bytes, head_bytes)
        Of the first query and head.
    group : int
        Query heads that share the key head.
    kind, head_dim, width, width_v : int
        Dtype of q; numbers in its rows, in the workspace's, and in those of O.
    sinks : float32 array of shape (group,) or (0,)
    """
    address, row_bytes, head_bytes = q
    for r in range(0, rows, group):
        source, to = address + r // group * row_bytes, base + Q + (first + r) * ROW
        tiles.pack(source, head_bytes, group, group, kind, head_dim, width, w, to)
    for r in range(first, first + tiles.round_up(rows, ROWS)):
        for d in range(base + O + r * ROW, base + O + r * ROW + width_v, LANES):
            store(w, d, broadcast(ZERO))
        w[base + M_I + r] = NEG_INF
        w[base + L_I + r] = w[base + ALPHA + r] = ZERO
    if sinks.size:
        for r in range(rows):
            sink = sinks[r % group]
            w[base + M_I + first + r] = sink * LOG2_E
            w[base + L_I + first + r] = ZERO if sink == NEG_INF else ONE


def _make_products(read, size, unrolled=True):
    """q Kᵀ and P V of tokens side by side, for keys and values of a dtype of `size` bytes.

    Token after token, and all heads of each: memory is read from one end to the other, as a
    processor expects when it reads ahead.
    """

    @inner(forceinline=True)
    def dot(w, row, key, width):
        """LANES sums of k ∘ q of one key and row."""
        d, s0, s1 = 0, broadcast(ZERO), broadcast(ZERO)
        while d + 4 * LANES <= width:
            k, at = key + d * size, row + d
            s0 = multiply_add(read(k), load(w, at), s0)
            s1 = multiply_add(read(k + LANES * size), load(w, at + LANES), s1)
            s0 = multiply_add(read(k + 2 * LANES * size), load(w, at + 2 * LANES), s0)
            s1 = multiply_add(read(k + 3 * LANES * size), load(w, at + 3 * LANES), s1)
            d += 4 * LANES
        while d < width:
            s0 = multiply_add(read(key + d * size), load(w, row + d), s0)
            d += LANES
        return s0 + s1

    @inner(forceinline=True)
    def multiply_one_row(w, q, step, x, address, num_keys, heads, width, sums, sums_row):
        for n in range(num_keys):
            for h in range(heads):
                key = address + n * x[2] + h * x[3]
                to = sums + n * sums_row + h * LANES
                store(w, to, dot(w, q + h * step * ROW, key, width))

    @inner(forceinline=True)
    def multiply_rows(w, q, step, x, address, num_keys, heads, rows, width, sums, sums_row):
        for n in range(num_keys):
            for h in range(heads):
                key = address + n * x[2] + h * x[3]
                if rows > 1:
                    prefetch_row(key + x[2], width * size)
                row, to, last = q + h * step * ROW, sums + n * sums_row + h * rows * LANES, 0
                while last + 4 <= rows:  # K is read once for four rows
                    zero = broadcast(ZERO)
                    s0, s1, s2, s3 = zero, zero, zero, zero
                    for d in range(0, width, LANES):
                        k, at = read(key + d * size), row + d
                        s0 = multiply_add(k, load(w, at), s0)
                        s1 = multiply_add(k, load(w, at + ROW), s1)
                        s2 = multiply_add(k, load(w, at + 2 * ROW), s2)
                        s3 = multiply_add(k, load(w, at + 3 * ROW), s3)
                    store(w, to, s0)
                    store(w, to + LANES, s1)
                    store(w, to + 2 * LANES, s2)
                    store(w, to + 3 * LANES, s3)
                    row, to, last = row + 4 * ROW, to + 4 * LANES, last + 4
                for _ in range(last, rows):
                    store(w, to, dot(w, row, key, width))
                    row, to = row + ROW, to + LANES

    @inner(forceinline=True)
    def add_row(w, row, weight, value, width):
        """O += p v of one key and row."""
        d = 0
        while d + 4 * LANES <= width:
            v, at = value + d * size, row + d
            o0 = multiply_add(read(v), weight, load(w, at))
            o1 = multiply_add(read(v + LANES * size), weight, load(w, at + LANES))
            o2 = multiply_add(read(v + 2 * LANES * size), weight, load(w, at + 2 * LANES))
            o3 = multiply_add(read(v + 3 * LANES * size), weight, load(w, at + 3 * LANES))
            store(w, at, o0)
            store(w, at + LANES, o1)
            store(w, at + 2 * LANES, o2)
            store(w, at + 3 * LANES, o3)
            d += 4 * LANES
        while d < width:
            store(w, row + d, multiply_add(read(value + d * size), weight, load(w, row + d)))
            d += LANES

    @inner(forceinline=True)
    def add_one_row(w, p, o, step, x, address, num_keys, heads, width):
        for n in range(num_keys):
            for h in range(heads):
                value = address + n * x[2] + h * x[3]
                add_row(w, o + h * step * ROW, broadcast(w[p + h * BLOCK_N + n]), value, width)

    @inner(forceinline=True)
    def add_rows(w, p, o, step, x, address, num_keys, heads, rows, width):
        for n in range(num_keys):
            for h in range(heads):
                value = address + n * x[2] + h * x[3]
                if rows > 1:
                    prefetch_row(value + x[2], width * size)
                row, at_p, last = o + h * step * ROW, p + h * rows * BLOCK_N + n, 0
                while last + 4 <= rows:
                    p0, p1 = broadcast(w[at_p]), broadcast(w[at_p + BLOCK_N])
                    p2, p3 = broadcast(w[at_p + 2 * BLOCK_N]), broadcast(w[at_p + 3 * BLOCK_N])
                    for d in range(0, width, LANES):
                        v, at = read(value + d * size), row + d
                        o0, o1 = load(w, at), load(w, at + ROW)
                        o2, o3 = load(w, at + 2 * ROW), load(w, at + 3 * ROW)
                        store(w, at, multiply_add(v, p0, o0))
                        store(w, at + ROW, multiply_add(v, p1, o1))
                        store(w, at + 2 * ROW, multiply_add(v, p2, o2))
                        store(w, at + 3 * ROW, multiply_add(v, p3, o3))
                    row, at_p, last = row + 4 * ROW, at_p + 4 * BLOCK_N, last + 4
                for _ in range(last, rows):
                    add_row(w, row, broadcast(w[at_p]), value, width)
                    row, at_p = row + ROW, at_p + BLOCK_N

    # The compiler unrolls a loop whose length it knows, which takes a third less time.

    @inner
    def multiply(w, q, step, x, address, num_keys, heads, rows, width, sums, sums_row):
        """LANES sums for each key and row: of K ∘ q, over each d of the same remainder by LANES."""
        if unrolled and rows == 1 and width == W64:
            multiply_one_row(w, q, step, x, address, num_keys, heads, W64, sums, sums_row)
        elif unrolled and rows == 1 and width == W128:
            multiply_one_row(w, q, step, x, address, num_keys, heads, W128, sums, sums_row)
        else:
            multiply_rows(w, q, step, x, address, num_keys, heads, rows, width, sums, sums_row)

    @inner
    def add_values(w, p, o, step, x, address, num_keys, heads, rows, width):
        """O += P V."""
        if unrolled and rows == 1 and width == W64:
            add_one_row(w, p, o, step, x, address, num_keys, heads, W64)
        elif unrolled and rows == 1 and width == W128:
            add_one_row(w, p, o, step, x, address, num_keys, heads, W128)
        else:
            add_rows(w, p, o, step, x, address, num_keys, heads, rows, width)

    return multiply, add_values


@inner(forceinline=True)
def prefetch_row(address, num_bytes):
    """Begin to read a row of the next token: with several rows a token takes long to compute."""
    for line in range(0, num_bytes, tiles.CACHE_LINE):
        prefetch(address + line)


multiply_float32, add_values_float32 = _make_products(read_float32, 4)
multiply_float16, add_values_float16 = _make_products(read_float16, 2)
multiply_bfloat16, add_values_bfloat16 = _make_products(read_bfloat16, 2)
multiply_e4m3, add_values_e4m3 = _make_products(read_e4m3, 1, unrolled=False)


@inner
def multiply_tile(w, q, k, s, num_keys, width):
    """S of one row and a tile of keys at address k; of LANES keys, where fewer are left."""
    for n in range(0, num_keys, LANES):
        sums = no_sums()
        for d in range(0, width, LANES):
            sums = add_products(sums, k + (n * ROW + d) * 4, 4 * ROW, load(w, q + d))
        store(w, s + n, sum_each(sums))


@inner
def key_at(x, b, head, n, first, table, page_size):
    """Address of key n of a sequence, and how many keys follow it side by side, itself included."""
    address, batch_bytes, row_bytes, head_bytes = x
    address += head * head_bytes
    if page_size == 0:
        return address + b * batch_bytes + (first + n) * row_bytes, NO_END
    page, slot = np.int64(table[b, n // page_size]), n % page_size
    return address + page * batch_bytes + slot * row_bytes, page_size - slot


@inner
def prefetch_page(x, b, head, n, stop, first, table, page_size):
    """If a page begins at key n, begin to read its first tokens: their first lines, and the TLB.

    A processor does not read ahead from one page of the cache to the next.
    """
    if page_size > 0 and n % page_size == 0 and n < stop:
        address, run = key_at(x, b, head, n, first, table, page_size)
        for i in range(min(run, stop - n, LANES)):
            prefetch(address + i * x[2])


@inner
def scores_in_place(
    w, base, x, b, head, n, num_keys, stop, first, table, page_size, kind, heads, rows, width, step
):
    """S of all rows and keys n to n + num_keys − 1, from where K lies.

    Up to the next multiple of LANES, S is that of other keys.

    Parameters
    ----------
    w, base : float32 array, int
        A thread's workspace, and where it begins.
    x : (address, batch_bytes, row_bytes, head_bytes)
        K; of a paged cache the bytes of a page, a token and a head.
    b, head : int
        The sequence, and the first key head.
    n, num_keys, stop : int
        The first key, how many, and the end of all keys of the task: pages before it are fetched.
    first : int
        The sequence's first key among the rows of x.
    table, page_size : int32 array of shape (batch, max_pages), int
        As for `forward.forward`.
    kind, heads, rows, width, step : int
        Dtype of x; key heads; rows of each, and numbers in a row; distance of two heads' rows.
    """
    q, sums = base + Q, base + K
    # An odd number of cache lines, so that the LANES sums of a row lie in different sets of L1.
    sums_row = (heads * rows // 2 * 2 + 1) * LANES
    for done in range(0, num_keys, LANES):
        end, i = min(LANES, num_keys - done), 0
        while i < end:
            address, run = key_at(x, b, head, n + done + i, first, table, page_size)
            part, to = min(run, end - i), sums + i * sums_row
            prefetch_page(x, b, head, n + done + i + part, stop, first, table, page_size)
            if kind == FLOAT32:
                multiply_float32(w, q, step, x, address, part, heads, rows, width, to, sums_row)
            elif kind == FLOAT16:
                multiply_float16(w, q, step, x, address, part, heads, rows, width, to, sums_row)
            elif kind == E4M3:
                multiply_e4m3(w, q, step, x, address, part, heads, rows, width, to, sums_row)
            else:
                multiply_bfloat16(w, q, step, x, address, part, heads, rows, width, to, sums_row)
            i += part
        for r in range(heads * rows):
            of_row = load_sums(w, sums + r * LANES, sums_row)
            store(w, base + S + r * BLOCK_N + done, sum_each(of_row))


@inner
def add_in_place(
    w, base, x, b, head, n, num_keys, stop, first, table, page_size, kind, heads, rows, width,
    step, p,
):  # fmt: skip
    """O += P V of all rows, from where V lies.

    Parameters
    ----------
    w, base, b, head, n, num_keys, stop, first, table, page_size, kind, heads, rows, width, step
        As for `scores_in_place`.
    x : (address, batch_bytes, row_bytes, head_bytes)
        V.
    p : int
        Where row 0 of P begins in w.
    """
    o, done = base + O, 0
    while done < num_keys:
        address, run = key_at(x, b, head, n + done, first, table, page_size)
        part = min(run, num_keys - done)
        prefetch_page(x, b, head, n + done + part, stop, first, table, page_size)
        if kind == FLOAT32:
            add_values_float32(w, p + done, o, step, x, address, part, heads, rows, width)
        elif kind == FLOAT16:
            add_values_float16(w, p + done, o, step, x, address, part, heads, rows, width)
        elif kind == E4M3:
            add_values_e4m3(w, p + done, o, step, x, address, part, heads, rows, width)
        else:
            add_values_bfloat16(w, p + done, o, step, x, address, part, heads, rows, width)
        done += part


@inner
def modify(w, s, num_keys, scale, softcap, slope, ahead):
    """Scale, softcap and ALiBi of one row; the factor that is left to multiply by, above 0."""
    if not softcap and not slope and scale > ZERO:
        return scale
    cap, per_cap = np.float32(softcap), np.float32(scale / softcap) if softcap else ZERO
    for n in range(0, num_keys, LANES):
        x = load(w, s + n)
        x = tanh(x * broadcast(per_cap)) * broadcast(cap) if softcap else x * broadcast(scale)
        if slope:
            distance = broadcast(np.float32(ahead + n)) + lane_numbers()
            x = x - absolute(distance) * broadcast(slope)
        store(w, s + n, x)
    return ONE


@inner
def mask(w, s, num_keys, start, stop):
    """−∞ for all keys of a row but `start` to `stop` − 1."""
    first, last = broadcast(np.float32(start)), broadcast(np.float32(stop))
    for n in range(0, num_keys, LANES):
        if n < start or n + LANES > stop:
            number = lane_numbers() + broadcast(np.float32(n))
            x = where_less(number, first, broadcast(NEG_INF), load(w, s + n))
            store(w, s + n, where_less(number, last, x, broadcast(NEG_INF)))


@inner
def softmax(w, s, num_keys, m_i, l_i, alpha, c):
    """P = 2^(c · S − m) in the place of S of one row; its m, l and α."""
    c, top, old = broadcast(c), broadcast(NEG_INF), broadcast(w[m_i])
    for n in range(s, s + num_keys, LANES):
        top = maximum(load(w, n), top)
    top = maximum(broadcast(largest(top)) * c, old)
    w[m_i] = first_lane(top)
    # No key yet: 0, since −∞ − −∞ is NaN.
    top = where_less(top, broadcast(LEAST), broadcast(ZERO), top)
    factor, sums = exp2(old - top), broadcast(ZERO)
    for n in range(s, s + num_keys, LANES):
        p = exp2(multiply_subtract(load(w, n), c, top))
        store(w, n, p)
        sums = sums + p
    w[alpha] = first_lane(factor)
    w[l_i] = w[l_i] * w[alpha] + total(sums)


@inner
def load_scales(w, to, x, b, head, n, num_keys, first, table, page_size):
    """The scales of keys n to n + num_keys − 1 to w[to] and on, then 1 up to a multiple of LANES.

    Parameters
    ----------
    x : (address, batch_bytes, row_bytes, head_bytes)
        Scales, as K and V are given: 0 bytes from token to token where each head has one.
    w, to, b, head, n, num_keys, first, table, page_size
        As for `tiles.pack_keys`.
    """
    for i in range(num_keys):
        address, _ = key_at(x, b, head, n + i, first, table, page_size)
        w[to + i] = read_one_float32(address)
    for i in range(num_keys, tiles.round_up(num_keys, LANES)):
        w[to + i] = ONE


@inner
def multiply_by(w, s, scales, num_keys):
    """Multiply a row of S or P by the scales of its keys."""
    for i in range(0, num_keys, LANES):
        store(w, s + i, load(w, s + i) * load(w, scales + i))


@inner
def rescale(w, o, alpha, width):
    """O = α O of one row."""
    for d in range(o, o + width, LANES):
        store(w, d, load(w, d) * broadcast(alpha))


@inner
def accumulate(w, base, first, rows, num_keys, head_dim):
    """O = α O + P V."""
    for r in range(0, rows, ROWS):
        for d in range(0, head_dim, WIDTH):
            p, v = base + S + r * BLOCK_N, base + V + d
            acc = product(zeros(), w, p, BLOCK_N, 1, w, v, ROW, num_keys)
            for i in range(ROWS):
                factor = broadcast(w[base + ALPHA + first + r + i])
                for j in range(COLUMNS):
                    at = base + O + (first + r + i) * ROW + d + j * LANES
                    store(w, at, multiply_add(load(w, at), factor, acc[i * COLUMNS + j]))


@inner
def finish(w, base, r, heads, kind, head_dim, width, address, head_bytes, lse, lse_at, lse_step):
    """O / l and lse of a query's rows, to where its results belong.

    Parameters
    ----------
    w, base : float32 array, int
        A thread's workspace, and where it begins.
    r, heads : int
        The query's first row in the workspace; it has one for each head.
    kind, head_dim, width : int
        Dtype of out; numbers in its rows, and in the workspace's.
    address, head_bytes : int
        Of out's first row, and from one head to the next.
    lse, lse_at, lse_step : flat float32 array, int, int
        Where the first lse goes, and how far apart those of two heads are.
    """
    for i in range(r, r + heads):
        l_i, m_i = float(w[base + L_I + i]), float(w[base + M_I + i])
        # Where no key was seen, O is 0, and is divided by 1.
        reciprocal = broadcast(np.float32(1 / l_i if l_i != 0 else 1))
        for d in range(base + O + i * ROW, base + O + i * ROW + width, LANES):
            store(w, d, load(w, d) * reciprocal)
        log_sum = m_i * LN_2 + math.log(l_i) if l_i != 0 else -np.inf
        lse[lse_at + (i - r) * lse_step] = log_sum
    tiles.unpack(w, base + O + r * ROW, ROW, heads, kind, head_dim, address, head_bytes)


@worker
def decode(
    counter, num_tasks, workspace, q, k, v, kind, kv_kind, k_scale, v_scale, max_queries,
    num_chunks, num_splits, heads_per_task, num_blocks, sequences, table, page_size, num_kv_heads,
    group, head_dim, head_dim_v, out, out_split, out_kind, lse, lse_of, lse_split, left, right,
    scale, softcap, slopes, sinks, user,
):  # fmt: skip
    """Take tasks until none is left. The other parameters are those of `forward.forward`.

    Parameters
    ----------
    kind, kv_kind : int
        Dtype of q, and of k and v.
    k_scale, v_scale : (address, batch_bytes, row_bytes, head_bytes)
        Scales of E4M3, as k and v are given.
    max_queries : int
        Queries of a task; times `group`, at most MAX_ROWS.
    num_chunks, num_splits, num_blocks : int
        Tasks that share the queries of a sequence, its keys, and its key heads.
    heads_per_task : int
        Key heads of a task; times its queries and `group`, rounded up to ROWS, at most MAX_ROWS.
    out, out_kind : (address, batch_bytes, row_bytes, head_bytes), int
        Where O goes, and as numbers of which dtype.
    out_split, lse_split : int
        How far apart the results of one split and of the next are, in bytes and in numbers.
    user : User
        As from `expressions.prepared`, for tiles of max_queries.
    """
    w = workspace
    base = tiles.aligned(w)
    scaled = kv_kind == E4M3
    width, width_v = tiles.round_up(head_dim, WIDTH), tiles.round_up(head_dim_v, WIDTH)
    whole = head_dim % LANES == 0 and head_dim_v % LANES == 0
    copied_k = address_of(w) + 4 * (base + K)
    if max_queries * group > MAX_IN_PLACE or not whole:
        for i in range(base + S, base + S + MAX_ROWS * BLOCK_N, LANES):
            store(w, i, broadcast(ZERO))  # rows of P that are no queries, but multiplied
    while True:
        task = fetch_add(counter, 1)
        if task >= num_tasks:
            return
        split, task = task % num_splits, task // num_splits
        chunk, task = task % num_chunks, task // num_chunks
        b, first_head = task // num_blocks, task % num_blocks * heads_per_task
        heads = min(heads_per_task, num_kv_heads - first_head)
        first_q, seqlen_q, first_k, seqlen_k = sequences[b]
        m = chunk * max_queries
        num_queries = min(max_queries, seqlen_q - m)
        if num_queries <= 0:
            continue
        rows = num_queries * group
        in_place = rows <= MAX_IN_PLACE and whole
        step = tiles.round_up(rows, ROWS)  # from the rows of one key head to those of the next
        for h in range(heads):
            head = (first_head + h) * group
            address = q[0] + b * q[1] + (first_q + m) * q[2] + head * q[3]
            own = sinks[head : head + group] if split == 0 else sinks[:0]
            query = address, q[2], q[3]
            begin(w, base, h * step, query, rows, group, kind, head_dim, width, width_v, own)

        position = m + seqlen_k - seqlen_q  # of the first query among the keys
        n = max(0, position - left)
        stop = min(seqlen_k, position + num_queries - 1 + right + 1)
        share = tiles.round_up((stop - n + num_splits - 1) // num_splits, BLOCK_N)
        n += split * share
        stop = min(stop, n + share)
        while n < stop:
            num_keys = min(BLOCK_N, stop - n)
            if user.given:
                all_heads = first_head * group, (first_head + heads) * group
                if expressions.is_hidden(user, b, all_heads, (chunk, chunk + 1), n):
                    n += num_keys
                    continue
            if in_place:
                scores_in_place(
                    w, base, k, b, first_head, n, num_keys, stop, first_k, table, page_size,
                    kv_kind, heads, rows, head_dim, step,
                )  # fmt: skip
            for h in range(heads):
                kv_head = first_head + h
                if not in_place:
                    for x, to, dim, row_width in (
                        (k, base + K, head_dim, width),
                        (v, base + V, head_dim_v, width_v),
                    ):
                        tiles.pack_keys(
                            x, b, kv_head, n, num_keys, first_k, table, page_size, kv_kind,
                            dim, row_width, w, to,
                        )  # fmt: skip
                if scaled:
                    for x, to in ((k_scale, base + K_SCALES), (v_scale, base + V_SCALES)):
                        load_scales(w, to, x, b, kv_head, n, num_keys, first_k, table, page_size)
                for i in range(rows):
                    r, ahead = h * step + i, n - position - i // group
                    s = base + S + (h * rows + i if in_place else i) * BLOCK_N
                    if not in_place:
                        multiply_tile(w, base + Q + r * ROW, copied_k, s, num_keys, width)
                    if scaled:
                        multiply_by(w, s, base + K_SCALES, num_keys)
                    head = kv_head * group + i % group
                    if user.given:
                        query = position + i // group
                        factor = expressions.modified_row(
                            w, s, num_keys, scale, user, b, head, query, chunk, n
                        )
                    else:
                        slope = slopes[head] if slopes.size else ZERO
                        factor = modify(w, s, num_keys, scale, softcap, slope, ahead)
                        start, end = max(0, -left - ahead), min(num_keys, right - ahead + 1)
                        mask(w, s, num_keys, start, end)
                    m_i, l_i, alpha = (base + M_I + r, base + L_I + r, base + ALPHA + r)
                    softmax(w, s, num_keys, m_i, l_i, alpha, np.float32(factor * LOG2_E))
                    if scaled:
                        multiply_by(w, s, base + V_SCALES, num_keys)
                    if in_place:
                        rescale(w, base + O + r * ROW, w[alpha], width_v)
                if not in_place:
                    accumulate(w, base, h * step, rows, num_keys, head_dim_v)
            if in_place:
                add_in_place(
                    w, base, v, b, first_head, n, num_keys, stop, first_k, table, page_size,
                    kv_kind, heads, rows, head_dim_v, step, base + S,
                )  # fmt: skip
            n += num_keys
        for h in range(heads):
            for i in range(num_queries):
                row, head = first_q + m + i, (first_head + h) * group
                address = out[0] + b * out[1] + row * out[2] + head * out[3] + split * out_split
                lse_at = b * lse_of[0] + head * lse_of[1] + row * lse_of[2] + split * lse_split
                finish(
                    w, base, h * step + i * group, group, out_kind, head_dim_v, width_v, address,
                    out[3], lse, lse_at, lse_of[1],
                )  # fmt: skip


@worker
def merge(
    counter, num_tasks, workspace, outs, lses, num_splits, tokens, num_heads, head_dim, kind, out,
    out_of, lse, lse_of,
):  # fmt: skip
    """Add the states of all splits, as `kernels.merge_states` adds two; a task is a query.

    Parameters
    ----------
    outs : flat float32 array, (num_splits, batch, tokens, num_heads, head_dim)
        head_dim is rounded up to WIDTH.
    lses : flat float32 array
        (num_splits, *shape of lse).
    tokens : int
        Of a sequence, or of all if they are packed.
    out, lse : address, flat float32 array
        Where the results go.
    out_of, lse_of : (int, int, int)
        Their strides: of batch, token and head in bytes; of batch, head and token in numbers.
    """
    w = workspace
    base, width = tiles.aligned(w), tiles.round_up(head_dim, WIDTH)
    split_out, split_lse = outs.size // num_splits, lses.size // num_splits
    while True:
        task = fetch_add(counter, 1)
        if task >= num_tasks:
            return
        b, m = task // tokens, task % tokens
        for head in range(num_heads):
            at = b * lse_of[0] + head * lse_of[1] + m * lse_of[2]
            top = NEG_INF
            for split in range(num_splits):
                top = max(top, lses[at + split * split_lse])
            shift = ZERO if top == NEG_INF else top  # −∞ − −∞ is NaN
            for d in range(base, base + width, LANES):
                store(w, d, broadcast(ZERO))
            divisor = ZERO
            for split in range(num_splits):
                weight = np.float32(math.exp(lses[at + split * split_lse] - shift))
                divisor += weight
                source = (task * num_heads + head) * width + split * split_out
                for d in range(0, width, LANES):
                    x = multiply_add(load(outs, source + d), broadcast(weight), load(w, base + d))
                    store(w, base + d, x)
            lse[at] = shift + math.log(divisor) if divisor != 0 else NEG_INF
            if divisor != 0:
                rescale(w, base, ONE / divisor, width)
            address = out + b * out_of[0] + m * out_of[1] + head * out_of[2]
            tiles.unpack(w, base, 0, 1, kind, head_dim, address, 0)
