"""Shared parts of the decoding kernels on tensor cores: keys of a split, softmax, products, merge.

A thread block has a tile of ROWS rows of one K/V head: a row is a query of a query head, and the
heads of a group are neighbours. Its warps share the keys of a split: a warp's iteration takes 16
keys, and the next one the 16 keys after those of all warps. Each warp has its own softmax
statistics, and its own out; they are merged at the end. Lines are those of Algorithm 1 of
FlashAttention-2, arXiv:2307.08691.

A persistent kernel loops over work units: a tile of rows in one split of a sequence.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32, uint64

from fa_numba import checks
from fa_numba.constants import FULL_WARP, LN2, LOG2_E, NEG_INF, ONE, ZERO
from fa_numba.expressions.functions import NO_EXPRESSIONS
from fa_numba.expressions.tiles import MIXED
from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.decode_problem import check_problem, divide
from fa_numba.on_cuda_cores.run_time_masks import UNREAD, MaskArgs
from fa_numba.on_cuda_cores.user_scores import make_user_scores
from fa_numba.ptx.convert import exp2, unpack_e4m3_pairs, unpack_e4m3x4
from fa_numba.ptx.ldmatrix import ldmatrix_x4, ldmatrix_x4_trans
from fa_numba.ptx.statement import global_address
from fa_numba.ptx.vectors import load_global_b32
from fa_numba.runtime import arrays
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.fragments import over_quad_max, over_quad_sum
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.num_splits import choose_even_splits

KEYS = 16  # of a warp's iteration

# Elements of `ahead`, the iteration for which a warp loads next.
UNIT, BATCH, KV_HEAD = 0, 1, 2  # its work unit, and the sequence and head of that
N, N_END = 3, 4  # its first key, and the end of the unit's keys
AHEAD_LENGTH = 5


class Sizes(NamedTuple):
    """Sizes of a decoding problem, on the GPU."""

    seqlen_q: int
    group_size: int
    num_m_tiles: int
    num_kv_heads: int
    num_splits: int
    num_units: int
    mask_args: MaskArgs


class Unit(NamedTuple):
    """A work unit: a tile of rows in one split of a sequence."""

    b: int
    split: int
    kv_head: int
    m_tile: int


def check_on_tensor_cores(
    name, supported, q, k_cache, v_cache, *rest, head_dims=checks.ONE_HEAD_DIM, **more
):
    """`check_problem`, for the tensor-core kernel `name` and its GPU."""
    problem = check_problem(q, k_cache, v_cache, *rest, head_dims=head_dims, **more)
    limits = {"supported": supported, "max_head_dim": head_dims.most}
    checks.check_decode_tensor_core(q, k_cache, v_cache, name=name, **limits)
    checks.check_aligned(q=q, k_cache=k_cache, v_cache=v_cache)
    return problem


def splits_and_grid(problem, rows, warps):
    """num_splits and grid of a persistent kernel: at most a thread block for each SM.

    All thread blocks have the same number of work units, or one fewer.
    """
    num_sms = arrays.num_sms(problem.q)
    num_tiles = problem.num_tiles(rows) * problem.q.shape[0]
    num_splits = problem.num_splits or choose_even_splits(
        num_tiles, problem.num_n_tiles(KEYS * warps), num_sms
    )
    num_units = num_tiles * num_splits
    return num_splits, (ceil_div(num_units, max(1, ceil_div(num_units, num_sms))),)


@functools.cache
def make_keys_of_split(ROWS, BLOCK_N, CAUSAL, WINDOW):
    """keys_of_split(split, num_splits, m_tile, seqlen_q, seqlen_k, group_size, mask_args).

    Returns first and end. The splits divide the tiles of BLOCK_N keys evenly, from the first tile
    with a key that a row sees. With more splits than tiles some splits get no keys, and the state
    (0, -inf).
    """
    bounds = run_time_masks.make_bounds(CAUSAL, WINDOW)
    first_key, end_key = bounds.first_key, bounds.end_key

    @cuda.jit(device=True, forceinline=True)
    def keys_of_split(split, num_splits, m_tile, seqlen_q, seqlen_k, group_size, mask_args=UNREAD):
        first_m, _ = divide(m_tile * ROWS, group_size)
        last_m, _ = divide(m_tile * ROWS + ROWS - 1, group_size)
        first_n = first_key(first_m + seqlen_k - seqlen_q, mask_args)
        first_tile, _ = divide(first_n, BLOCK_N)
        num_n_tiles, _ = divide(seqlen_k + BLOCK_N - 1, BLOCK_N)
        each, more = divide(num_n_tiles - first_tile, num_splits)
        n_first = (first_tile + split * each + min(split, more)) * BLOCK_N
        n_end = n_first + (each + (1 if split < more else 0)) * BLOCK_N
        end = end_key(last_m + seqlen_k - seqlen_q, seqlen_k, mask_args)
        return n_first, min(n_end, end)

    return keys_of_split


@cuda.jit(device=True, forceinline=True)
def warp_of(tid):
    """Index of the warp, as lane 0 has it: the compiler then knows that all lanes agree.

    Otherwise each syncwarp and each shuffle waits for all loads in flight.
    """
    return cuda.shfl_sync(FULL_WARP, tid >> 5, 0)


@cuda.jit(device=True, forceinline=True)
def unit_of(index, sizes):
    """The work unit of this index.

    Neighbouring units are heads of one sequence: keys that are read at the same time are
    neighbours in memory.
    """
    index, m_tile = divide(index, sizes.num_m_tiles)
    index, kv_head = divide(index, sizes.num_kv_heads)
    b, split = divide(index, sizes.num_splits)
    return Unit(b, split, kv_head, m_tile)


@functools.cache
def make_advance(ROWS, WARPS, CAUSAL, WINDOW):
    """advance(ahead, warp, seq_lens, sizes): go to the warp's next iteration; True if there is one.

    It is in unit ahead[UNIT] or in a later one: a thread block takes every gridDim.x-th unit. It
    starts with ``ahead[N] = ahead[N_END] = 0`` in the unit before its first one.
    """
    BLOCK_N = KEYS * WARPS
    keys_of_split = make_keys_of_split(ROWS, BLOCK_N, CAUSAL, WINDOW)

    @cuda.jit(device=True, forceinline=True)
    def begin_unit(ahead, warp, seq_lens, sizes):
        unit = unit_of(ahead[UNIT], sizes)
        n_first, n_end = keys_of_split(
            unit.split, sizes.num_splits, unit.m_tile, sizes.seqlen_q, seq_lens[unit.b],
            sizes.group_size, sizes.mask_args,
        )  # fmt: skip
        ahead[BATCH], ahead[KV_HEAD] = unit.b, unit.kv_head
        ahead[N], ahead[N_END] = n_first + KEYS * warp, n_end

    @cuda.jit(device=True, forceinline=True)
    def advance(ahead, warp, seq_lens, sizes):
        ahead[N] += BLOCK_N
        while ahead[N] >= ahead[N_END] and ahead[UNIT] < sizes.num_units:
            ahead[UNIT] += int32(cuda.gridDim.x)
            if ahead[UNIT] < sizes.num_units:
                begin_unit(ahead, warp, seq_lens, sizes)
        return ahead[UNIT] < sizes.num_units

    return advance


@functools.cache
def make_online_softmax(
    DTYPE, CAUSAL, WINDOW, SOFTCAP, ALIBI, WEIGHTED=False, EXPRESSIONS=NO_EXPRESSIONS
):
    """online_softmax(s, p, m_i, l_i, n, at, seqlen_k, slope, softmax_scale, lane, mask_args, args).

    s, the unscaled scores of the 16 keys from n on, becomes P, packed as the operand of the next
    product. A row of S belongs to a quad of lanes; `at` is its (b, head, position): the last is its
    index among the keys. args are those of EXPRESSIONS, the user's mask and score. With WEIGHTED,
    `weights` follows: an array like s, by which P is multiplied, though not its sum.

    Returns
    -------
    m_i, l_i, alpha : float32
        The new statistics; l_i is the sum over this lane's keys alone.
    """
    first_key, end_key, sees = run_time_masks.make_bounds(CAUSAL, WINDOW)
    score = run_time_masks.make_score(SOFTCAP, ALIBI)
    pack = forward.pack_of(DTYPE)
    modified, WRITTEN = make_user_scores(EXPRESSIONS).modified, EXPRESSIONS != NO_EXPRESSIONS
    MODIFIED = SOFTCAP > 0 or ALIBI or WRITTEN  # a score_mod: a score is not just scale · q·k

    @cuda.jit(device=True, forceinline=True)
    def online_softmax(
        s, p, m_i, l_i, n, at, seqlen_k, slope, softmax_scale, lane, mask_args, args, weights=0
    ):
        b, head, position = at
        to_base_2 = LOG2_E if MODIFIED else softmax_scale * LOG2_E
        end = end_key(position, seqlen_k, mask_args)
        whole = n >= first_key(position, mask_args) and n + KEYS <= end
        for t in range(2):
            for c in range(2):
                key = n + 8 * t + 2 * (lane & 3) + c
                if MODIFIED:
                    s[t, c] = score(s[t, c] * softmax_scale, position - key, slope, mask_args)
                if WRITTEN:
                    s[t, c] = modified(s[t, c], b, head, position, key, seqlen_k, MIXED, args)
                s[t, c] *= to_base_2
                if not whole and not sees(position, key, seqlen_k, mask_args):
                    s[t, c] = NEG_INF
        m_new = max(max(s[0, 0], s[0, 1]), max(s[1, 0], s[1, 1]))
        m_new = max(m_i, over_quad_max(m_new))  # m_i <- max(m_i, rowmax(S))              line 9
        shift = ZERO if m_new == NEG_INF else m_new  # no key yet: -inf - -inf is NaN
        alpha = exp2(m_i - shift)  # rescales sums under the old maximum
        l_i *= alpha
        for t in range(2):
            x, y = exp2(s[t, 0] - shift), exp2(s[t, 1] - shift)  # P = exp(S - m_i)       line 9
            l_i += x + y
            if WEIGHTED:
                x, y = x * weights[t, 0], y * weights[t, 1]
            p[t] = pack(x, y)
        return m_new, l_i, alpha

    return online_softmax


class Products(NamedTuple):
    """The products of a warp's iteration, with 16 keys in shared memory.

    Attributes
    ----------
    load_queries(q_reg, q, b, m, head, is_query, lane)
        Load Q of this lane's row as an operand; 0 for a row that is no query.
    scores(s, q_reg, k, tile, chunk)
        S = Q Kᵀ, with the queries as rows.
    add_weighted(acc, v, p, alpha, tile, chunk, lane)
        out <- alpha out + P V, transposed: a lane has columns of two queries.
    """

    load_queries: Callable
    scores: Callable
    add_weighted: Callable


@functools.cache
def make_products(HEAD_DIM, DTYPE, at):
    """`Products` for a layout of the keys.

    ``at(tile, chunk, j)`` is the address of this lane's row for ldmatrix: the 16 columns from 16 j
    on, in the first or second half. tile and chunk are the lane's own, and are only passed on.
    """
    mma = forward.mma_of(DTYPE)
    STEPS = ceil_div(HEAD_DIM, 16)

    @cuda.jit(device=True, forceinline=True)
    def load_queries(q_reg, q, b, m, head, is_query, lane):
        source = uint64(0)
        if is_query:
            source = global_address(q[b, m, head]) + uint64(4 * (lane & 3))
        for j in range(STEPS):
            for i in range(4):
                q_reg[j, i] = uint32(0)  # rows 8 to 15, registers 1 and 3, are always 0
            for i in range(2):
                if is_query and 16 * j + 8 * i < HEAD_DIM:
                    q_reg[j, 2 * i] = load_global_b32(source + uint64(32 * j + 16 * i))

    @cuda.jit(device=True, forceinline=True)
    def scores(s, q_reg, k, tile, chunk):
        for t in range(2):
            for i in range(4):
                s[t, i] = ZERO
        for j in range(STEPS):
            ldmatrix_x4(k, at(tile, chunk, j))
            for t in range(2):
                if 16 * j + 8 >= HEAD_DIM:
                    k[t, 1] = uint32(0)  # past the end of the key: 0 · NaN is NaN
                mma(s[t], q_reg[j], k[t])

    @cuda.jit(device=True, forceinline=True)
    def add_weighted(acc, v, p, alpha, tile, chunk, lane):
        alpha_0 = cuda.shfl_sync(FULL_WARP, alpha, 8 * (lane & 3))
        alpha_1 = cuda.shfl_sync(FULL_WARP, alpha, 8 * (lane & 3) + 4)
        for j in range(STEPS):
            ldmatrix_x4_trans(v, at(tile, chunk, j))
            acc[j, 0] *= alpha_0
            acc[j, 1] *= alpha_1
            acc[j, 2] *= alpha_0
            acc[j, 3] *= alpha_1
            mma(acc[j], v, p)

    return Products(load_queries, scores, add_weighted)


@functools.cache
def make_products_of_bytes(HEAD_DIM, at, LEAN=False):
    """`Products` for keys of e4m3 and float16 queries; HEAD_DIM is a multiple of 16.

    ``at(tile, chunk, j)`` is as for `make_products`, of the 32 columns from 32 j on: to ldmatrix
    two bytes are one element. So a lane has four neighbours of a key, where mma's B has two and two
    that are eight apart; Q has the same ones, since a dot product has no order. Transposed, it has
    columns 2 r and 2 r + 1 of two keys, which become rows r and r + 8 of mma's A: out's columns are
    in that order.

    With LEAN out is rescaled only when a maximum has grown: else by 1. And the zeros beside Q are a
    number that the compiler does not know: it copies known ones for each product.
    """
    mma = forward.mma_of("float16")
    STEPS = HEAD_DIM // 16
    LOADS = ceil_div(STEPS, 2)

    @cuda.jit(device=True, forceinline=True)
    def load_queries(q_reg, q, b, m, head, is_query, lane):
        source = uint64(0)
        if is_query:
            source = global_address(q[b, m, head]) + uint64(8 * (lane & 3))
        zero = uint32(uint64(q.shape[2]) >> uint64(32)) if LEAN else uint32(0)
        for j in range(STEPS):
            for i in range(4):
                q_reg[j, i] = zero  # rows 8 to 15, registers 1 and 3, are always 0
            for i in range(2):
                if is_query:
                    q_reg[j, 2 * i] = load_global_b32(source + uint64(32 * j + 4 * i))

    @cuda.jit(device=True, forceinline=True)
    def scores(s, q_reg, k, tile, chunk):
        k_16 = cuda.local.array(2, uint32)
        for t in range(2):
            for i in range(4):
                s[t, i] = ZERO
        for j in range(LOADS):
            ldmatrix_x4(k, at(tile, chunk, j))
            for t in range(2):
                for i in range(2):
                    if 2 * j + i < STEPS:
                        unpack_e4m3x4(k_16, k[t, i])
                        mma(s[t], q_reg[2 * j + i], k_16)

    @cuda.jit(device=True, forceinline=True)
    def add_weighted(acc, v, p, alpha, tile, chunk, lane):
        v_16 = cuda.local.array((2, 2), uint32)
        v_a = cuda.local.array(4, uint32)
        if not LEAN or cuda.any_sync(FULL_WARP, alpha != ONE):
            alpha_0 = cuda.shfl_sync(FULL_WARP, alpha, 8 * (lane & 3))
            alpha_1 = cuda.shfl_sync(FULL_WARP, alpha, 8 * (lane & 3) + 4)
            if LEAN:
                for j in range(STEPS):
                    for i in range(4):
                        acc[j, i] *= alpha_0 if i % 2 == 0 else alpha_1
        for j in range(LOADS):
            ldmatrix_x4_trans(v, at(tile, chunk, j))
            for i in range(2):
                if 2 * j + i < STEPS:
                    for t in range(2):  # of 8 keys
                        unpack_e4m3_pairs(v_16[t], v[2 * t + i])
                        v_a[2 * t], v_a[2 * t + 1] = v_16[t, 0], v_16[t, 1]
                    out = acc[2 * j + i]
                    if not LEAN:
                        out[0] *= alpha_0
                        out[1] *= alpha_1
                        out[2] *= alpha_0
                        out[3] *= alpha_1
                    mma(out, v_a, p)

    return Products(load_queries, scores, add_weighted)


@functools.cache
def make_add_parts(HEAD_DIM, ROWS, WARPS):
    """add_parts(acc, m_i, l_i, parts, warp, lane, b, first_row, kv_head, group_size, seqlen_q).

    Merge (⊕) parts of attention to other keys into a warp's state: every WARPS-th of (out_partial,
    lse_partial), (num_parts, 1, batch · seqlen_q, num_heads, HEAD_DIM) and (num_parts, 1,
    num_heads, batch · seqlen_q), float32. Rows are those of b and kv_head from first_row on, acc is
    that of `Products.add_weighted`. Returns m_i and l_i.
    """
    STEPS = ceil_div(HEAD_DIM, 16)
    VALUES_SHAPE = (2, 2 * STEPS)

    @cuda.jit(device=True, forceinline=True)
    def place_of(r, b, first_row, kv_head, group_size, seqlen_q):
        """Whether a row is a query; its place in the parts, or that of the first row."""
        m, head = divide(first_row + r, group_size)
        is_query = r < ROWS and m < seqlen_q
        if not is_query:
            m, head = divide(first_row, group_size)
        return is_query, int32(b * seqlen_q + m), int32(kv_head * group_size + head)

    @cuda.jit(device=True, forceinline=True)
    def add_parts(
        acc, m_i, l_i, parts, warp, lane, b, first_row, kv_head, group_size, seqlen_q
    ):  # fmt: skip
        values = cuda.local.array(VALUES_SHAPE, float32)
        outs, lses = parts
        rest = b, first_row, kv_head, group_size, seqlen_q
        is_query, m, head = place_of(lane >> 2, *rest)
        _, m_0, head_0 = place_of(2 * (lane & 3), *rest)
        _, m_1, head_1 = place_of(2 * (lane & 3) + 1, *rest)
        for part in range(warp, lses.shape[0], WARPS):
            x_0 = outs[part, 0, m_0, head_0, lane >> 2 :]
            x_1 = outs[part, 0, m_1, head_1, lane >> 2 :]
            for i in range(2 * STEPS):  # all loads before the first use
                if 8 * i < HEAD_DIM:
                    values[0, i], values[1, i] = x_0[uint64(8 * i)], x_1[uint64(8 * i)]
            m_part = lses[part, 0, head, m] * LOG2_E
            if not is_query:
                m_part = NEG_INF
            m_new = max(m_i, m_part)
            shift = ZERO if m_new == NEG_INF else m_new
            alpha, beta = exp2(m_i - shift), exp2(m_part - shift)
            l_i *= alpha
            if lane & 3 == 0:  # l_i is summed over the lanes of a row
                l_i += beta
            m_i = m_new
            for c in range(2):
                of_acc = cuda.shfl_sync(FULL_WARP, alpha, 8 * (lane & 3) + 4 * c)
                of_part = cuda.shfl_sync(FULL_WARP, beta, 8 * (lane & 3) + 4 * c)
                for j in range(STEPS):
                    for t in range(2):
                        if 16 * j + 8 * t < HEAD_DIM:
                            x = acc[j, 2 * t + c] * of_acc
                            acc[j, 2 * t + c] = x + of_part * values[c, 2 * j + t]
        return m_i, l_i

    return add_parts


class States(NamedTuple):
    """Shared memory for the states of all warps: out, not yet divided by l_i, m_i and l_i."""

    parts: Any  # (WARPS, ROWS, HEAD_DIM)
    m_parts: Any  # (WARPS, ROWS)
    l_parts: Any


class Merge(NamedTuple):
    """Functions that merge the states of a thread block's warps.

    Attributes
    ----------
    store_rows(parts, acc, tid)
        Store a warp's rows of out, in the layout of `Products.add_weighted`.
    store_state(states, m_i, l_i, tid)
        Store its statistics; a barrier must follow.
    merge(states, out_partial, lse_partial, unit, group_size, seqlen_q, tid)
        Store the partial result of a `Unit`.
    """

    store_rows: Callable
    store_state: Callable
    merge: Callable


@functools.cache
def make_merge(HEAD_DIM, ROWS, WARPS, BYTES=False):
    """`Merge` for these compile-time constants; BYTES is that of `make_products_of_bytes`."""
    THREADS = 32 * WARPS
    STEPS = ceil_div(HEAD_DIM, 16)

    @cuda.jit(device=True, forceinline=True)
    def store_rows(parts, acc, tid):
        lane, warp = tid & 31, tid >> 5
        for j in range(STEPS):
            for i in range(4):
                d, r = 16 * j + (lane >> 2) + 8 * (i >> 1), 2 * (lane & 3) + (i & 1)
                if BYTES:
                    d = 16 * j + 2 * (lane >> 2) + (i >> 1)
                if r < ROWS and d < HEAD_DIM:
                    parts[uint64(warp), uint64(r), uint64(d)] = acc[j, i]

    @cuda.jit(device=True, forceinline=True)
    def store_state(states, m_i, l_i, tid):
        lane, warp = tid & 31, tid >> 5
        l_i = over_quad_sum(l_i)
        if lane & 3 == 0 and lane >> 2 < ROWS:
            states.m_parts[warp, lane >> 2] = m_i
            states.l_parts[warp, lane >> 2] = l_i

    @cuda.jit(device=True, forceinline=True)
    def merge(states, out_partial, lse_partial, unit, group_size, seqlen_q, tid):
        parts, m_parts, l_parts = states
        b, split, kv_head, m_tile = unit
        for item in range(tid, ROWS * HEAD_DIM, THREADS):
            r, d = divide(item, HEAD_DIM)
            m, head = divide(m_tile * ROWS + r, group_size)
            head += kv_head * group_size
            if m < seqlen_q:
                m_all = NEG_INF
                for w in range(WARPS):
                    m_all = max(m_all, m_parts[w, r])
                shift = ZERO if m_all == NEG_INF else m_all
                l_all, x = ZERO, ZERO
                for w in range(WARPS):
                    alpha = exp2(m_parts[w, r] - shift)
                    l_all += alpha * l_parts[w, r]
                    x += alpha * parts[w, r, d]
                out_partial[split, b, m, head, d] = x / l_all if l_all != ZERO else ZERO  # line 12
                if d == 0:  # lse, -inf: no key                                           line 13
                    lse_partial[split, b, head, m] = (m_all + math.log2(l_all)) * LN2

    return Merge(store_rows, store_state, merge)
