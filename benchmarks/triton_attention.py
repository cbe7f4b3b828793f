"""A fused attention forward in Triton, written as its users would: a peer for our kernels.

One program for each tile of queries of a head. It keeps the queries and a running maximum, sum and
output, walks over the keys, and lets Triton choose layouts, copies and products. Under a causal
mask only the last tiles of keys need it, so they have a loop of their own. The tile sizes, warps
and stages are the best of a few for each problem.
"""

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634  # e^x = 2^(x log2 e)

CONFIGS = [
    triton.Config({"BLOCK_M": block_m, "BLOCK_N": block_n}, num_warps=warps, num_stages=stages)
    for block_m, block_n, warps, stages in (
        (128, 64, 4, 3),
        (128, 64, 8, 3),
        (128, 128, 8, 2),
        (128, 128, 8, 3),
    )
]


@triton.jit
def add_tiles(
    acc, l_i, m_i, q, k_rows, v_rows, k_stride, v_stride, scale, m, seqlen_k, shift, first, last,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Add the keys from first to last to the running state of the rows of q."""
    for n_start in range(first, last, BLOCK_N):
        n_start = tl.multiple_of(n_start, BLOCK_N)
        n = n_start + tl.arange(0, BLOCK_N)
        inside = n[:, None] < seqlen_k
        if MASKED:
            k = tl.load(k_rows + n_start.to(tl.int64) * k_stride, mask=inside, other=0.0)
        else:
            k = tl.load(k_rows + n_start.to(tl.int64) * k_stride)
        s = tl.dot(q, k.T) * scale
        if MASKED:
            seen = n[None, :] < seqlen_k
            if CAUSAL:
                seen = seen & (n[None, :] <= m[:, None] + shift)
            s = tl.where(seen, s, -float("inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        origin = tl.where(m_new == -float("inf"), 0.0, m_new)  # a row without a key so far
        p = tl.exp2(s - origin[:, None])
        alpha = tl.exp2(m_i - origin)
        if MASKED:
            v = tl.load(v_rows + n_start.to(tl.int64) * v_stride, mask=inside, other=0.0)
        else:
            v = tl.load(v_rows + n_start.to(tl.int64) * v_stride)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new
    return acc, l_i, m_i


@triton.autotune(CONFIGS, key=["seqlen_q", "seqlen_k", "HEAD_DIM", "CAUSAL"])
@triton.jit
def attention_kernel(
    q, k, v, out, q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head,
    out_batch, out_row, out_head, seqlen_q, seqlen_k, num_heads, group_size, scale,
    HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head. HEAD_DIM is a power of 2."""
    b, head = tl.program_id(1) // num_heads, tl.program_id(1) % num_heads
    kv_head = head // group_size
    m_tile = tl.program_id(0)
    if CAUSAL:
        m_tile = tl.num_programs(0) - 1 - m_tile  # the longest first
    m = m_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, HEAD_DIM)
    rows = m[:, None] < seqlen_q
    b = b.to(tl.int64)
    q_tile = q + b * q_batch + head * q_head + m[:, None].to(tl.int64) * q_row + d[None, :]
    q_tile = tl.load(q_tile, mask=rows, other=0.0)
    n = tl.arange(0, BLOCK_N)[:, None]
    k_rows = k + b * k_batch + kv_head * k_head + n * k_row + d[None, :]
    v_rows = v + b * v_batch + kv_head * v_head + n * v_row + d[None, :]

    shift = seqlen_k - seqlen_q  # query m sees the keys up to m + shift
    last = seqlen_k
    if CAUSAL:
        last = tl.maximum(0, tl.minimum(seqlen_k, (m_tile + 1) * BLOCK_M + shift))
    whole = seqlen_k // BLOCK_N * BLOCK_N
    if CAUSAL:
        seen_by_all = m_tile * BLOCK_M + shift + 1
        whole = tl.maximum(0, tl.minimum(whole, seen_by_all // BLOCK_N * BLOCK_N))
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    m_i = tl.full([BLOCK_M], -float("inf"), tl.float32)
    acc, l_i, m_i = add_tiles(
        acc, l_i, m_i, q_tile, k_rows, v_rows, k_row, v_row, scale, m, seqlen_k, shift, 0, whole,
        BLOCK_N, False, CAUSAL,
    )  # fmt: skip
    acc, l_i, m_i = add_tiles(
        acc, l_i, m_i, q_tile, k_rows, v_rows, k_row, v_row, scale, m, seqlen_k, shift, whole, last,
        BLOCK_N, True, CAUSAL,
    )  # fmt: skip
    acc = tl.where(l_i[:, None] == 0.0, 0.0, acc / l_i[:, None])
    out_rows = out + b * out_batch + head * out_head + m[:, None].to(tl.int64) * out_row
    tl.store(out_rows + d[None, :], acc.to(out.dtype.element_ty), mask=rows)


def triton_attention(q, k, v, *, causal=False):
    """softmax(q kᵀ / √head_dim) v of PyTorch tensors (batch, seqlen, heads, head_dim).

    head_dim a power of 2 from 16 on, the last axis contiguous; causal is bottom-right aligned.
    """
    batch, seqlen_q, num_heads, head_dim = q.shape
    _, seqlen_k, num_kv_heads, _ = k.shape
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    strides = (stride for x in (q, k, v, out) for stride in x.stride()[:3])

    def grid(config):
        return triton.cdiv(seqlen_q, config["BLOCK_M"]), batch * num_heads

    attention_kernel[grid](
        q, k, v, out, *strides, seqlen_q, seqlen_k, num_heads, num_heads // num_kv_heads,
        LOG2_E / head_dim**0.5, HEAD_DIM=head_dim, CAUSAL=causal,
    )  # fmt: skip
    return out
