"""The Hopper kernels' gradients for any head_dim and any strides, by zero-padded copies.

flash_attn_bwd_persistent   head_dim a multiple of 8, up to 128
flash_attn_bwd_wide         head_dim a multiple of 8, 136 to 256
flash_attn_bwd_padded       any head_dim up to 256, any strides     <- this file

As `flash_attn_padded` does forward: dout, Q, K, V and out are copied into rows of the next multiple
of 8 columns, by one launch, and the columns of dQ, dK and dV that belong to head_dim are copied
back, by another. Columns of zeros change neither a score nor delta, and their gradients are 0. An
array that TMA takes as it is, is not copied.
"""

from fa_numba import checks
from fa_numba.runtime import arrays
from fa_numba.tensor_core import backward
from fa_numba.tensor_core.flash_attn_bwd_persistent import flash_attn_bwd_persistent
from fa_numba.tensor_core.flash_attn_bwd_wide import flash_attn_bwd_wide
from fa_numba.tensor_core.padded_rows import first_columns, pad_rows


@arrays.replayed
def flash_attn_bwd_padded(
    dout,
    q,
    k,
    v,
    out,
    lse,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    dropout_p=0.0,
    seed=0,
    deterministic=False,
    mask=None,
    mask_args=(),
    score=None,
    score_args=(),
    sinks=None,
):
    """FlashAttention, backward, on Hopper for any head_dim up to 256, and for views of any strides.

    Parameters
    ----------
    dout, q, k, v, out, lse : GPU arrays
        As for `flash_attn_bwd_persistent`, of any strides with a contiguous last axis, and all of
        one head_dim.
    causal, window_size, softcap, alibi_slopes, softmax_scale, dropout_p, seed, deterministic, \
    mask, mask_args, score, score_args, sinks
        As for `flash_attn_bwd_persistent`, and for `flash_attn_bwd_wide` at a head_dim above 128,
        which has no dropout.

    Returns
    -------
    dq, dk, dv, dsinks : arrays
        As of `flash_attn_bwd_persistent`.
    """
    inputs = dout, q, k, v, out, lse
    options = softmax_scale, deterministic
    scale, deterministic = backward.check("flash_attn_bwd_padded", inputs, *options)
    head_dim = q.shape[3]
    if head_dim > checks.MAX_BWD_HEAD_DIM:
        checks.check_no_dropout("flash_attn_bwd_padded", head_dim, dropout_p)
    attend_grad, dropout = flash_attn_bwd_persistent, {"dropout_p": dropout_p, "seed": seed}
    if head_dim > checks.MAX_BWD_HEAD_DIM:
        attend_grad, dropout = flash_attn_bwd_wide, {}
    dq, dk, dv, *dsinks = attend_grad(
        *pad_rows(dout, q, k, v, out), lse, causal=causal, window_size=window_size,
        softcap=softcap, alibi_slopes=alibi_slopes, softmax_scale=scale,
        deterministic=deterministic, mask=mask, mask_args=mask_args, score=score,
        score_args=score_args, sinks=sinks, **dropout,
    )  # fmt: skip
    return *first_columns(head_dim, dq, dk, dv), *dsinks
