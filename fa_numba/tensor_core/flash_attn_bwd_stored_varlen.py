"""Gradients of packed batches with head_dim 264 to 512, one sequence after the other.

flash_attn_bwd_stored divides its queries into parts on the host, which has to know the lengths: so
cu_seqlens is copied from the GPU, and that copy waits for the GPU.
"""

from fa_numba import checks
from fa_numba.checks.attention import require_starts
from fa_numba.runtime import arrays
from fa_numba.tensor_core.flash_attn_bwd_stored import flash_attn_bwd_stored


@checks.takes(checks.NO_SLOPES)
def flash_attn_bwd_stored_varlen(dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, **options):
    """Attention of packed batches, backward, head_dim 264 to 512: 16 bits on Hopper GPUs.

    The same bits in every run. It waits for the GPU, and launches kernels for each sequence: for
    few long ones.

    Parameters
    ----------
    dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, softmax_scale
        As for `flash_attn_bwd_varlen`, all of one head_dim: a multiple of 8, 264 to 512.
    causal, window_size, softcap
        As for `flash_attn_varlen`.

    Returns
    -------
    dq, dk, dv : arrays
        As of `flash_attn_bwd_varlen`.
    """
    inputs = dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k
    checks.KERNELS["flash_attn_bwd_stored_varlen"].check_packed_gradients(*inputs)
    starts_q, starts_k = map(arrays.to_numpy, (cu_seqlens_q, cu_seqlens_k))
    require_starts("cu_seqlens_q", arrays.facts(starts_q), "q", q.shape[0])
    require_starts("cu_seqlens_k", arrays.facts(starts_k), "k", k.shape[0])
    gradients = [arrays.full(q, x.shape, 0, q.dtype) for x in (q, k, v)]
    for b in range(len(starts_q) - 1):
        of_q, of_k = (slice(int(x[b]), int(x[b + 1])) for x in (starts_q, starts_k))
        if of_q.start == of_q.stop or of_k.start == of_k.stop:
            continue
        of_sequence = [x[None, of_q] for x in (dout, q)] + [x[None, of_k] for x in (k, v)]
        of_sequence += out[None, of_q], lse[None, :, of_q]
        found = flash_attn_bwd_stored(*of_sequence, **options)
        for gradient, part, tokens in zip(gradients, found, (of_q, of_k, of_k), strict=True):
            gradient[tokens] = part[0]
    return tuple(gradients)
