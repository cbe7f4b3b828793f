"""One head of FlashAttention-2 in cuTile: the lines that docs/other_languages.md shows."""

import cuda.tile as ct

ZERO = ct.PaddingMode.ZERO


@ct.kernel
def flash_attn(
    q,
    k,
    v,
    out,
    scale: ct.Constant[float],
    D: ct.Constant[int],
    BLOCK_M: ct.Constant[int],
    BLOCK_N: ct.Constant[int],
):
    m_tile, N = ct.bid(0), k.shape[0]  #: own
    q_tile = ct.load(q, index=(m_tile, 0), shape=(BLOCK_M, D), padding_mode=ZERO)  #: q
    m_i = ct.full((BLOCK_M, 1), float("-inf"), ct.float32)  #: state
    l_i = ct.zeros((BLOCK_M, 1), ct.float32)  #: state
    acc = ct.zeros((BLOCK_M, D), ct.float32)  #: state
    for n_tile in range(ct.cdiv(N, BLOCK_N)):
        n = n_tile * BLOCK_N + ct.arange(BLOCK_N, dtype=ct.int32)
        k_tile = ct.load(k, index=(n_tile, 0), shape=(BLOCK_N, D), padding_mode=ZERO)  #: kv
        v_tile = ct.load(v, index=(n_tile, 0), shape=(BLOCK_N, D), padding_mode=ZERO)
        s = ct.zeros((BLOCK_M, BLOCK_N), ct.float32)
        s = ct.mma(q_tile, ct.transpose(k_tile), s)  #: scores
        s = ct.where(n < N, scale * s, float("-inf"))  #: edge
        m_new = ct.maximum(m_i, ct.max(s, axis=1, keepdims=True))  #: max
        alpha = ct.exp(m_i - m_new)  #: alpha
        p = ct.exp(s - m_new)  #: p
        l_i = alpha * l_i + ct.sum(p, axis=1, keepdims=True)  #: sum
        acc = ct.mma(ct.astype(p, v_tile.dtype), v_tile, alpha * acc)  #: acc
        m_i = m_new
    ct.store(out, index=(m_tile, 0), tile=acc / l_i)  #: out
