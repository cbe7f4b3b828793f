"""What the decoding kernels on tensor cores share: a split's keys, its softmax, the warps' merge.

A thread block has a tile of ROWS rows of one K/V head: a row is a query of a query head, and the
heads of a group are neighbours. Its warps take turns in the keys of a split, 16 keys at a time, and
each has a softmax of its own: what they have is merged at the end. Lines are those of Algorithm 1
of FlashAttention-2, arXiv:2307.08691.
"""

import functools
import math

from numba import cuda, uint32, uint64

from fa_numba import checks
from fa_numba.constants import FULL_WARP, LN2, LOG2_E, NEG_INF, ZERO
from fa_numba.kernels import masks
from fa_numba.on_cuda_cores.decode_problem import check_problem, divide
from fa_numba.ptx.convert import exp2
from fa_numba.ptx.ldmatrix import ldmatrix_x4, ldmatrix_x4_trans
from fa_numba.ptx.statement import global_address
from fa_numba.ptx.vectors import load_global_b32
from fa_numba.runtime import arrays
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.fragments import over_quad_max, over_quad_sum
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.num_splits import choose_even_splits

KEYS = 16  # of a warp's turn


def check_on_tensor_cores(name, supported, q, k_cache, v_cache, *rest):
    """`check_problem`, for the tensor-core kernel `name` and on its GPU."""
    problem = check_problem(q, k_cache, v_cache, *rest)
    checks.check_decode_tensor_core(q, k_cache, v_cache, name=name, supported=supported)
    checks.check_aligned(q=q, k_cache=k_cache, v_cache=v_cache)
    return problem


def splits_and_grid(problem, rows, warps):
    """num_splits, and the grid: at most a thread block for each SM, each with as many chunks.

    A chunk is a tile of so many rows in a split; some thread blocks may have one less.
    """
    num_sms = arrays.num_sms(problem.q)
    num_tiles = problem.num_tiles(rows) * problem.q.shape[0]
    num_splits = problem.num_splits or choose_even_splits(
        num_tiles, problem.num_n_tiles(KEYS * warps), num_sms
    )
    chunks = num_tiles * num_splits
    return num_splits, (ceil_div(chunks, max(1, ceil_div(chunks, num_sms))),)


@functools.cache
def make_keys_of_split(ROWS, BLOCK_N, CAUSAL, WINDOW):
    """keys_of_split(split, num_splits, m_tile, seqlen_q, seqlen_k, group_size): first and end.

    The tiles of BLOCK_N keys from the first with a key that a row sees, shared out evenly. With
    more splits than tiles some get none: their state is that of no keys, (0, -inf).
    """
    first_key, end_key, _ = masks.make_bounds(CAUSAL, WINDOW)

    @cuda.jit(device=True, forceinline=True)
    def keys_of_split(split, num_splits, m_tile, seqlen_q, seqlen_k, group_size):
        first_m, _ = divide(m_tile * ROWS, group_size)
        last_m, _ = divide(m_tile * ROWS + ROWS - 1, group_size)
        first_tile, _ = divide(first_key(first_m + seqlen_k - seqlen_q), BLOCK_N)
        num_n_tiles, _ = divide(seqlen_k + BLOCK_N - 1, BLOCK_N)
        each, more = divide(num_n_tiles - first_tile, num_splits)
        n_first = (first_tile + split * each + min(split, more)) * BLOCK_N
        n_end = n_first + (each + (1 if split < more else 0)) * BLOCK_N
        return n_first, min(n_end, end_key(last_m + seqlen_k - seqlen_q, seqlen_k))

    return keys_of_split


@cuda.jit(device=True, forceinline=True)
def warp_of(tid):
    """The warp's number, as lane 0 has it: so the compiler knows that all lanes have the same.

    Where it does not, each syncwarp and shuffle waits for all loads that are on their way.
    """
    return cuda.shfl_sync(FULL_WARP, tid >> 5, 0)


@cuda.jit(device=True, forceinline=True)
def place_of(chunk, sizes):
    """Which part of the work `chunk` is: b, split, kv_head, m_tile. `sizes`: see `make_begin_part`.

    Heads are neighbours: what is read at the same time lies side by side.
    """
    _, _, num_m_tiles, num_kv_heads, num_splits, _ = sizes
    rest, m_tile = divide(chunk, num_m_tiles)
    rest, kv_head = divide(rest, num_kv_heads)
    b, split = divide(rest, num_splits)
    return b, split, kv_head, m_tile


@functools.cache
def make_begin_part(ROWS, WARPS, CAUSAL, WINDOW):
    """begin_part(ahead, warp, seq_lens, sizes): go to the first turn of chunk ahead[0] of the work.

    `ahead` says which turn a warp asks for next: chunk, b, kv_head, n, n_end. A thread block that
    stays takes every gridDim.x-th chunk; before its first ``n = n_end = 0`` of one that would come
    before that. `sizes` are seqlen_q, group_size, num_m_tiles, num_kv_heads, num_splits,
    num_chunks.
    """
    keys_of_split = make_keys_of_split(ROWS, KEYS * WARPS, CAUSAL, WINDOW)

    @cuda.jit(device=True, forceinline=True)
    def begin_part(ahead, warp, seq_lens, sizes):
        seqlen_q, group_size, _, _, num_splits, _ = sizes
        b, split, kv_head, m_tile = place_of(ahead[0], sizes)
        n_first, n_end = keys_of_split(split, num_splits, m_tile, seqlen_q, seq_lens[b], group_size)
        ahead[1], ahead[2] = b, kv_head
        ahead[3], ahead[4] = n_first + KEYS * warp, n_end

    return begin_part


@functools.cache
def make_turn_softmax(DTYPE, CAUSAL, WINDOW, SOFTCAP, ALIBI):
    """turn_softmax(s, p, m_i, l_i, n, position, seqlen_k, slope, softmax_scale, lane).

    S of the keys from n on, not yet scaled, becomes P, packed as the operand of the next product.
    A row of S belongs to a quad of lanes, and `position` is its place among the keys.

    Returns
    -------
    m_i, l_i, alpha : float32
        The new statistics; l_i of this lane's keys alone.
    """
    first_key, end_key, sees = masks.make_bounds(CAUSAL, WINDOW)
    score = masks.make_score(SOFTCAP, ALIBI)
    pack = forward.pack_of(DTYPE)
    BENT = SOFTCAP > 0 or ALIBI  # scores are more than scale · q·k

    @cuda.jit(device=True, forceinline=True)
    def turn_softmax(s, p, m_i, l_i, n, position, seqlen_k, slope, softmax_scale, lane):
        to_base_2 = LOG2_E if BENT else softmax_scale * LOG2_E
        whole = n >= first_key(position) and n + KEYS <= end_key(position, seqlen_k)
        for t in range(2):
            for c in range(2):
                key = n + 8 * t + 2 * (lane & 3) + c
                if BENT:
                    s[t, c] = score(s[t, c] * softmax_scale, position - key, slope)
                s[t, c] *= to_base_2
                if not whole and not sees(position, key, seqlen_k):
                    s[t, c] = NEG_INF
        m_new = max(max(s[0, 0], s[0, 1]), max(s[1, 0], s[1, 1]))
        m_new = max(m_i, over_quad_max(m_new))  # m_i <- max(m_i, rowmax(S))              line 9
        shift = ZERO if m_new == NEG_INF else m_new  # no key yet: -inf - -inf is NaN
        alpha = exp2(m_i - shift)  # rescales what was summed under the old maximum
        l_i *= alpha
        for t in range(2):
            x, y = exp2(s[t, 0] - shift), exp2(s[t, 1] - shift)  # P = exp(S - m_i)       line 9
            l_i += x + y
            p[t] = pack(x, y)
        return m_new, l_i, alpha

    return turn_softmax


@functools.cache
def make_products(HEAD_DIM, DTYPE, at):
    """The products of a warp's turn, with 16 keys in shared memory.

    ``at(tile, chunk, j)`` is the address of this lane's row of columns 16 j on, or eight later, for
    ldmatrix; tile and chunk are the lane's own, and no concern of these functions.

    Returns
    -------
    load_queries(q_reg, q, b, m, head, is_query, lane)
        Q of this lane's row as an operand; 0 where there is no such query.
    scores(s, q_reg, k, tile, chunk)
        S = Q Kᵀ, with the queries as rows.
    add_weighted(acc, v, p, alpha, tile, chunk, lane)
        out <- alpha out + P V, transposed: a lane has columns of two queries.
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
                q_reg[j, i] = uint32(0)  # rows 8 to 15, registers 1 and 3, stay 0
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
                    k[t, 1] = uint32(0)  # past the key's end: 0 · NaN is NaN
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

    return load_queries, scores, add_weighted


@functools.cache
def make_merge(HEAD_DIM, ROWS, WARPS):
    """What the warps of a thread block have of a split becomes its result.

    Each leaves its rows of out, not yet divided, in parts (WARPS, ROWS, HEAD_DIM); what they have
    in shared memory are the states, ``parts, m_parts, l_parts``.

    Returns
    -------
    leave_rows(parts, acc, tid)
        A warp's rows, as `make_products` sums them.
    leave_state(states, m_i, l_i, tid)
        Its statistics; a barrier must follow.
    merge(states, out_partial, lse_partial, place, group_size, seqlen_q, tid)
        `place` is that of `place_of`.
    """
    THREADS = 32 * WARPS
    STEPS = ceil_div(HEAD_DIM, 16)

    @cuda.jit(device=True, forceinline=True)
    def leave_rows(parts, acc, tid):
        lane, warp = tid & 31, tid >> 5
        for j in range(STEPS):
            for i in range(4):
                d, r = 16 * j + (lane >> 2) + 8 * (i >> 1), 2 * (lane & 3) + (i & 1)
                if r < ROWS and d < HEAD_DIM:
                    parts[uint64(warp), uint64(r), uint64(d)] = acc[j, i]

    @cuda.jit(device=True, forceinline=True)
    def leave_state(states, m_i, l_i, tid):
        _, m_parts, l_parts = states
        lane, warp = tid & 31, tid >> 5
        l_i = over_quad_sum(l_i)
        if lane & 3 == 0 and lane >> 2 < ROWS:
            m_parts[warp, lane >> 2] = m_i
            l_parts[warp, lane >> 2] = l_i

    @cuda.jit(device=True, forceinline=True)
    def merge(states, out_partial, lse_partial, place, group_size, seqlen_q, tid):
        parts, m_parts, l_parts = states
        b, split, kv_head, m_tile = place
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

    return leave_rows, leave_state, merge
