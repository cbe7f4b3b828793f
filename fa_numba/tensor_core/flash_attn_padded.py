"""flash_attn_persistent for any head_dim and any strides, by zero-padded copies of Q, K and V.

TMA takes rows that begin and end at multiples of 16 bytes: a head_dim that is a multiple of 8.
Columns of zeros change neither a score nor the other columns of out. So Q, K and V are copied into
rows of the next multiple of 8 columns, and the columns of out that belong to head_dim are copied
back (`padded_rows`). Each element is read and written once more: little beside the work of
attention, and the less, the longer the sequence.

Views whose strides are no multiples of 16 bytes are copied in the same way.
"""

from fa_numba import checks
from fa_numba.runtime import arrays
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent
from fa_numba.tensor_core.padded_rows import first_columns, pad_rows


@arrays.replayed
@checks.takes(checks.SCORES | checks.DROPOUT)
def flash_attn_padded(q, k, v, *, softmax_scale=None, **options):
    """Attention on Hopper's tensor cores for any head_dim up to 256, and for views of any strides.

    Parameters
    ----------
    q : GPU array of shape (batch, seqlen_q, num_heads, head_dim), float16 or bfloat16
    k, v : GPU arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
        With a contiguous last axis.
    causal, window_size, softcap, alibi_slopes, softmax_scale, dropout_p, seed, mask, mask_args, \
    score, score_args, sinks
        As for `flash_attn_persistent`.

    Returns
    -------
    out, lse
        As of `flash_attn_persistent`.
    """
    checks.KERNELS["flash_attn_padded"].check(q, k, v)
    head_dim = q.shape[3]
    scale = checks.check_positive_scale(softmax_scale, head_dim)
    out, lse = flash_attn_persistent(*pad_rows(q, k, v), softmax_scale=scale, **options)
    (out,) = first_columns(head_dim, out)
    return out, lse
