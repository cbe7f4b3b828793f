"""flash_attn_wide over a packed batch: sequences of any lengths, no padding, head_dim 264 to 512.

The kernel is `flash_attn_wide` with PACKED: this file has its launcher alone.

Paper: Shah et al. 2024, FlashAttention-3, arXiv:2407.08608, section 3.
"""

import numpy as np

from fa_numba import checks
from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.runtime import arrays
from fa_numba.runtime.tensor_maps import tensor_map
from fa_numba.tensor_core.flash_attn_wide import (
    BLOCK_N,
    ROWS,
    THREADS,
    WARP_ROWS,
    make_flash_attn_wide,
    make_plan,
    rows_for_tma,
)


@arrays.replayed
@checks.takes(checks.NO_SLOPES)
def flash_attn_wide_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, **options):
    """FlashAttention-3, forward, over a packed batch, for head_dim 264 to 512, on Hopper GPUs.

    Parameters
    ----------
    q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale
        As for `flash_attn_persistent_varlen`, all of one head_dim: a multiple of 8, 264 to 512.
    causal, window_size, softcap
        As for `flash_attn_varlen`.

    Returns
    -------
    out, lse : arrays
        As of `flash_attn_varlen`.

    Notes
    -----
    The contents of cu_seqlens_q and cu_seqlens_k are not checked, as in
    `flash_attn_persistent_varlen`.
    """
    sequences = cu_seqlens_q, cu_seqlens_k
    checks.KERNELS["flash_attn_wide_varlen"].check_packed(q, k, v, *sequences)
    num_tokens_q, num_heads, head_dim = q.shape
    scores = checks.check_scores(q, positive_scale=True, **options)
    mask, scale = scores.mask, scores.scale_log2
    if 0 in (num_tokens_q, k.shape[0]):
        no_keys = arrays.full(q, q.shape, 0, q.dtype)
        return no_keys, arrays.full(q, (num_heads, num_tokens_q), -np.inf)
    out, lse = arrays.empty(q, q.shape, q.dtype), arrays.empty(q, (num_heads, num_tokens_q))
    options = mask.causal, arrays.dtype_name(q), run_time_masks.constants_of(mask).window_size
    kernel = make_flash_attn_wide(head_dim, *options, mask.softcap, PACKED=True)
    grid = num_tokens_q // ROWS + cu_seqlens_q.shape[0] - 1, num_heads
    group_size = num_heads // k.shape[1]
    k, v = rows_for_tma(*map(arrays.with_axis, (k, v)), grid[0] * group_size)
    boxes = (q, ROWS), (k, BLOCK_N), (v, BLOCK_N), (out, WARP_ROWS)
    maps = (tensor_map(*box) for box in boxes)
    sizes = np.int32(0), np.int32(group_size)  # each sequence has its own seqlen_k
    more = scale, *run_time_masks.arguments_of(mask), (*sequences, out)
    arguments = *maps, arrays.with_axis(lse), *sizes, *more
    size = make_plan().bytes
    arrays.launch(kernel, grid, (THREADS,), *arguments, shared_bytes=size)
    return out, lse
