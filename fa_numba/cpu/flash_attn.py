"""`flash_attn` of NumPy arrays."""

import numpy as np

from fa_numba import checks
from fa_numba.cpu import threads
from fa_numba.cpu.forward import WORKSPACE, forward
from fa_numba.cpu.tiles import BLOCK_M
from fa_numba.cpu.vectors import KINDS

NO_LIMIT = 2**40
NO_SLOPES = np.empty(0, np.float32)
NO_TABLE = np.empty((0, 0), np.int32)


def layout(x):
    """Address of an array, and its strides in bytes but for the last."""
    return (x.__array_interface__["data"][0], *x.strides[:-1])


def flash_attn(
    q,
    k,
    v,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
):
    checks.check_qkv(q, k, v)
    batch, seqlen_q, num_heads, head_dim = q.shape
    seqlen_k, num_kv_heads = k.shape[1:3]
    (causal, (left, right), softcap, _), slopes = checks.check_mask(
        q, causal, window_size, softcap, alibi_slopes
    )
    scale = checks.check_softmax_scale(softmax_scale, head_dim)
    out = np.empty(q.shape, q.dtype)
    lse = np.empty((batch, num_heads, seqlen_q), np.float32)
    sequences = np.tile(np.array([0, seqlen_q, 0, seqlen_k]), (batch, 1))
    tasks = -(-seqlen_q // BLOCK_M)
    threads.run(
        forward, tasks * batch * num_heads, WORKSPACE,
        layout(q), layout(k), layout(v), layout(out), KINDS[str(q.dtype)],
        sequences, np.arange(batch + 1) * tasks, NO_TABLE, 0,
        num_heads, num_heads // num_kv_heads, head_dim, lse.reshape(-1), (num_heads * seqlen_q, seqlen_q, 1),
        NO_LIMIT if left < 0 else left, 0 if causal else NO_LIMIT if right < 0 else right,
        scale, np.float32(softcap), NO_SLOPES if alibi_slopes is None else np.ascontiguousarray(slopes),
    )
    return out, lse
