"""FlashAttention over a packed batch, backward: sequences of any lengths, end to end, no padding.

flash_attn_bwd         (batch, seqlen, ...)  dK/dV by tiles of keys, dQ by tiles of queries
flash_attn_varlen_bwd  (num_tokens, ...)     the same, each tile within its sequence  <- this file

A thread block first finds the sequence of its tile (`sequence_of`): a tile of keys in one kernel,
of queries in the other. After that it works on the tokens of one sequence. The kernels are those of
flash_attn_bwd, with the compile-time constant PACKED. delta depends on one row only: its kernel
takes all tokens for one sequence.

Papers: FlashAttention, arXiv:2205.14135, Algorithm 4; FlashAttention-2, arXiv:2307.08691,
Algorithm 2.
"""

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.constants import WARP_SIZE
from fa_numba.kernels.flash_attn_bwd import (
    HEAD_DIMS,
    ROWS,
    dsinks_of,
    make_delta,
    make_dkdv,
    make_dq,
)
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div


@refuses_other_names
def flash_attn_varlen_bwd(
    dout,
    q,
    k,
    v,
    out,
    lse,
    cu_seqlens_q,
    cu_seqlens_k,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    mask=None,
    mask_args=(),
    score=None,
    score_args=(),
    sinks=None,
    block_m=None,
    block_n=None,
):
    """FlashAttention over a packed batch, backward, by recomputation; the same bits in every run.

    Parameters
    ----------
    dout : array of the shape and dtype of out
        Gradient of the loss with respect to out.
    q : array of shape (num_tokens_q, num_heads, head_dim), float32, float16 or bfloat16
    k, v : arrays of shape (num_tokens_k, num_kv_heads, head_dim), dtype of q
        head_dim from 1 to 256. v may have another one than q and k.
    out, lse : arrays
        The results of `flash_attn_varlen` for q, k, v and the same options.
    cu_seqlens_q, cu_seqlens_k, causal, window_size, softcap, alibi_slopes, softmax_scale, mask, \
    mask_args, score, score_args, sinks
        As for `flash_attn_varlen`.
    block_m, block_n : int, default=chosen
        Tile sizes, those of `flash_attn_bwd`.

    Returns
    -------
    dq, dk, dv : arrays of the shapes, dtype and library of q, k, v
        0 for a row that sees no key and for a key that no row sees; dk and dv are summed over the
        query heads that share a key head.
    dsinks : array of the shape, dtype and library of sinks
        With sinks alone.

    Notes
    -----
    The contents of cu_seqlens_q and cu_seqlens_k are checked if they are NumPy arrays, as in
    `flash_attn_varlen`.
    """
    given = dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k
    checks.check_varlen_bwd(*given, head_dims=HEAD_DIMS)
    (num_tokens_q, num_heads, head_dim), head_dim_v = q.shape, v.shape[2]
    num_tokens_k, num_kv_heads, _ = k.shape
    batch = cu_seqlens_q.shape[0] - 1
    options = causal, window_size, softcap, alibi_slopes, softmax_scale
    written = mask, mask_args, score, score_args, sinks
    scores = checks.check_scores(q, *options, *written)
    sizes = head_dim, block_m, block_n
    block_m, block_n = checks.check_block_sizes("flash_attn_bwd", *sizes, head_dim_v=head_dim_v)
    delta = arrays.empty(q, (num_heads, num_tokens_q))
    dq, dk, dv = (arrays.empty(q, x.shape, x.dtype) for x in (q, k, v))

    grid = (ceil_div(num_tokens_q, ROWS), num_heads, 1)
    rows = map(arrays.with_axis, (dout, out, delta))
    arrays.launch(make_delta(ROWS), grid, (WARP_SIZE, ROWS), *rows)

    packed = (dout, q, k, v, cu_seqlens_q, cu_seqlens_k, lse, delta)
    constants = *scores.mask, 0.0, scores.expressions, head_dim_v, True
    options = scores.softmax_scale, scores.slopes, (), (), scores.expression_args
    kernel = make_dkdv(head_dim, block_m, block_n, *constants)
    grid = (num_tokens_k // block_n + batch, num_kv_heads)
    arrays.launch(kernel, grid, (block_m, block_n), *packed, dk, dv, *options)

    kernel = make_dq(head_dim, block_m, block_n, *constants)
    grid = (num_tokens_q // block_m + batch, num_heads)
    arrays.launch(kernel, grid, (block_n, block_m), *packed, dq, *options)
    rows = map(arrays.with_axis, (lse, delta))
    return dq, dk, dv, *dsinks_of(sinks, scores, *rows)
