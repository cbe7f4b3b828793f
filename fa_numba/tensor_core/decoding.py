"""What the decoding kernels on tensor cores share: a split's keys, its softmax, the warps' merge.

A thread block has a tile of ROWS rows of one K/V head: a row is a query of a query head, and the
heads of a group are neighbours. Its warps take turns in the keys of a split, 16 keys at a time, and
each has a softmax of its own: what they have is merged at the end.
"""

import functools
import math

import numpy as np
from numba import cuda

from fa_numba import checks
from fa_numba.kernels import masks
from fa_numba.kernels.flash_decode_wide import check_problem, divide
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.convert import exp2
from fa_numba.tensor_core.fragments import over_quad_max, over_quad_sum

KEYS = 16  # of a warp's turn
NEG_INF = np.float32(-np.inf)
ZERO, LN2, LOG2_E = np.float32(0), np.float32(math.log(2)), np.float32(math.log2(math.e))


def check_on_tensor_cores(name, supported, q, k_cache, v_cache, *rest):
    """`check_problem`, for the tensor-core kernel `name` and on its GPU."""
    problem = check_problem(q, k_cache, v_cache, *rest)
    checks.check_decode_tensor_core(q, k_cache, v_cache, name=name, supported=supported)
    checks.check_aligned(q=q, k_cache=k_cache, v_cache=v_cache)
    return problem


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
def make_merge(HEAD_DIM, ROWS, WARPS):
    """merge(parts, m_parts, l_parts, m_i, l_i, out_partial, lse_partial, ...): a split's result.

    Each warp has left its rows of out, not yet divided, in parts (WARPS, ROWS, HEAD_DIM).
    """
    THREADS = 32 * WARPS

    @cuda.jit(device=True, forceinline=True)
    def merge(
        parts,
        m_parts,
        l_parts,
        m_i,
        l_i,
        out_partial,
        lse_partial,
        split,
        b,
        kv_head,
        m_tile,
        group_size,
        seqlen_q,
        tid,
    ):
        lane, warp = tid & 31, tid >> 5
        l_i = over_quad_sum(l_i)
        if lane & 3 == 0 and lane >> 2 < ROWS:
            m_parts[warp, lane >> 2] = m_i
            l_parts[warp, lane >> 2] = l_i
        cuda.syncthreads()  # what every warp has is there: safe to merge

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

    return merge
