"""One head of FlashAttention-2 in the CuTe DSL: the lines that docs/other_languages.md shows."""

import cutlass
import cutlass.cute as cute

D, BLOCK_M, BLOCK_N = 64, 16, 16


@cute.kernel
def flash_attn(
    q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, scale: cutlass.Float32
):
    smem = cutlass.utils.SmemAllocator()
    tx, ty, _ = cute.arch.thread_idx()
    m_tile, _, _ = cute.arch.block_idx()
    padded = cute.make_layout((BLOCK_N, D), stride=(D + 1, 1))
    q_tile = smem.allocate_tensor(cutlass.Float32, cute.make_layout((BLOCK_M, D), stride=(D, 1)))
    k_tile = smem.allocate_tensor(cutlass.Float32, padded)
    v_tile = smem.allocate_tensor(cutlass.Float32, cute.make_layout((BLOCK_N, D), stride=(D, 1)))
    scores = cute.make_layout((BLOCK_M, BLOCK_N), stride=(BLOCK_N, 1))
    s_tile = smem.allocate_tensor(cutlass.Float32, scores)
    p_tile = smem.allocate_tensor(cutlass.Float32, scores)
    N = k.shape[0]
    m = m_tile * BLOCK_M + ty  #: own
    for d in cutlass.range_constexpr(0, D, BLOCK_N):
        q_tile[ty, tx + d] = q[m, tx + d] if m < N else cutlass.Float32(0.0)  #: q
    m_i = -cutlass.Float32.inf  #: state
    l_i = cutlass.Float32(0.0)  #: state
    acc = cute.make_rmem_tensor((D // BLOCK_N,), cutlass.Float32)  #: state
    acc.fill(0.0)
    for n_tile in range(cute.ceil_div(N, BLOCK_N)):
        n = n_tile * BLOCK_N + ty
        for d in cutlass.range_constexpr(0, D, BLOCK_N):
            k_tile[ty, tx + d] = k[n, tx + d] if n < N else cutlass.Float32(0.0)  #: kv
            v_tile[ty, tx + d] = v[n, tx + d] if n < N else cutlass.Float32(0.0)
        cute.arch.sync_threads()  #: ready
        s = cutlass.Float32(0.0)
        for d in range(D):
            s += q_tile[ty, d] * k_tile[tx, d]  #: scores
        s = scale * s if n_tile * BLOCK_N + tx < N else -cutlass.Float32.inf  #: edge
        s_tile[ty, tx] = s
        cute.arch.sync_threads()
        m_new = m_i
        for c in cutlass.range_constexpr(BLOCK_N):
            m_new = cute.arch.fmax(m_new, s_tile[ty, c])  #: max
        alpha = cute.math.exp(m_i - m_new)  #: alpha
        p_tile[ty, tx] = cute.math.exp(s - m_new)  #: p
        cute.arch.sync_threads()
        l_i *= alpha
        for c in cutlass.range_constexpr(BLOCK_N):
            l_i += p_tile[ty, c]  #: sum
        for i in cutlass.range_constexpr(D // BLOCK_N):
            acc[i] *= alpha
            for c in cutlass.range_constexpr(BLOCK_N):
                acc[i] += p_tile[ty, c] * v_tile[c, tx + i * BLOCK_N]  #: acc
        m_i = m_new
        cute.arch.sync_threads()  #: free
    if m < N:
        for i in cutlass.range_constexpr(D // BLOCK_N):
            out[m, tx + i * BLOCK_N] = acc[i] / l_i  #: out


@cute.jit
def launch(
    q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, scale: cutlass.Float32
):
    grid = (cute.ceil_div(q.shape[0], BLOCK_M), 1, 1)
    flash_attn(q, k, v, out, scale).launch(grid=grid, block=(BLOCK_N, BLOCK_M, 1))
