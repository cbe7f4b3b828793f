"""One head of FlashAttention-2 in Triton: the lines that docs/other_languages.md shows."""

import triton
import triton.language as tl


@triton.jit
def flash_attn(
    q, k, v, out, N, scale, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)  #: own
    d = tl.arange(0, D)
    q_tile = tl.load(q + m[:, None] * D + d, mask=m[:, None] < N, other=0.0)  #: q
    m_i = tl.full((BLOCK_M,), float("-inf"), tl.float32)  #: state
    l_i = tl.zeros((BLOCK_M,), tl.float32)  #: state
    acc = tl.zeros((BLOCK_M, D), tl.float32)  #: state
    for n_start in range(0, N, BLOCK_N):
        n = n_start + tl.arange(0, BLOCK_N)
        k_tile = tl.load(k + n[:, None] * D + d, mask=n[:, None] < N, other=0.0)  #: kv
        v_tile = tl.load(v + n[:, None] * D + d, mask=n[:, None] < N, other=0.0)
        s = scale * tl.dot(q_tile, tl.trans(k_tile))  #: scores
        s = tl.where(n < N, s, float("-inf"))  #: edge
        m_new = tl.maximum(m_i, tl.max(s, axis=1))  #: max
        alpha = tl.exp(m_i - m_new)  #: alpha
        p = tl.exp(s - m_new[:, None])  #: p
        l_i = alpha * l_i + tl.sum(p, axis=1)  #: sum
        acc = alpha[:, None] * acc + tl.dot(p.to(v_tile.dtype), v_tile)  #: acc
        m_i = m_new
    tl.store(out + m[:, None] * D + d, acc / l_i[:, None], mask=m[:, None] < N)  #: out
