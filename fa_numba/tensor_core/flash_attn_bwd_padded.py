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
from fa_numba.tensor_core.flash_attn_bwd_persistent import flash_attn_bwd_persistent
from fa_numba.tensor_core.flash_attn_bwd_wide import flash_attn_bwd_wide
from fa_numba.tensor_core.padded_rows import first_columns, pad_rows


@arrays.replayed
@checks.takes(checks.SCORES | checks.DROPOUT)
def flash_attn_bwd_padded(dout, q, k, v, out, lse, *, deterministic=False, **options):
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
    name, head_dim, attend_grad = "flash_attn_bwd_padded", q.shape[3], flash_attn_bwd_persistent
    checks.KERNELS[name].check_gradients(dout, q, k, v, out, lse)
    checks.check_flag("deterministic", deterministic)
    options["softmax_scale"] = checks.check_positive_scale(options.get("softmax_scale"), head_dim)
    if head_dim > checks.MAX_BWD_HEAD_DIM:
        checks.check_no_dropout(name, head_dim, options.pop("dropout_p", 0.0))
        options.pop("seed", None)
        attend_grad = flash_attn_bwd_wide
    inputs = *pad_rows(dout, q, k, v, out), lse
    dq, dk, dv, *dsinks = attend_grad(*inputs, deterministic=deterministic, **options)
    return *first_columns(head_dim, dq, dk, dv), *dsinks
