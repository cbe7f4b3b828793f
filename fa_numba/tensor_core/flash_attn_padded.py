"""flash_attn_persistent for any head_dim and any strides, by zero-padded copies of Q, K and V.

TMA takes rows that begin and end at multiples of 16 bytes: a head_dim that is a multiple of 8.
Columns of zeros change neither a score nor the other columns of out. So Q, K and V are copied into
rows of the next multiple of 8 columns, and the columns of out that belong to head_dim are copied
back. Each element is read and written once more: little beside the work of attention, and the
less, the longer the sequence.

Views whose strides are no multiples of 16 bytes are copied in the same way.
"""

import functools

from numba import cuda, float32
from numba import uint64 as u64

from fa_numba import checks
from fa_numba.runtime import arrays
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent
from fa_numba.tensor_core.forward import HOPPER
from fa_numba.tiling.block_sizes import ceil_div

CHUNK = 8  # elements in 16 bytes
THREADS = 256  # of a thread block, at most


def heads_at_once(num_cols):
    """Heads of a token that a thread block copies at a time, with one thread for each column."""
    return max(1, THREADS // num_cols)


@functools.cache
def make_copy_columns(COLS, NEW_COLS):
    """The kernel that copies rows of COLS columns to rows of NEW_COLS."""
    HEADS = heads_at_once(NEW_COLS)

    @cuda.jit
    def copy_columns_kernel(x, y):
        """Copies the columns that both have; further columns of y become 0.

        grid      (seqlen, batch); NEW_COLS × HEADS threads walk the heads of a token
        HBM       x and y once
        """
        n, b, col = u64(cuda.blockIdx.x), u64(cuda.blockIdx.y), u64(cuda.threadIdx.x)
        for head in range(cuda.threadIdx.y, y.shape[2], HEADS):
            if col < COLS:
                y[b, n, u64(head), col] = x[b, n, u64(head), col]
            else:
                y[b, n, u64(head), col] = float32(0)

    return copy_columns_kernel


def copy_columns(x, num_cols):
    """A copy of x with num_cols columns: the first ones of x, zero-padded.

    Parameters
    ----------
    x : GPU array of shape (batch, seqlen, heads, cols)
    num_cols : int

    Returns
    -------
    array of shape (batch, seqlen, heads, num_cols), contiguous
    """
    batch, seqlen, heads, cols = x.shape
    y = arrays.empty(x, (batch, seqlen, heads, num_cols), x.dtype)
    kernel, threads = make_copy_columns(cols, num_cols), (num_cols, heads_at_once(num_cols))
    arrays.launch(kernel, (seqlen, batch), threads, x, y)
    return y


@arrays.replayed
def flash_attn_padded(
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
    """Attention on Hopper's tensor cores for any head_dim up to 256, and for views of any strides.

    Parameters
    ----------
    q : GPU array of shape (batch, seqlen_q, num_heads, head_dim), float16 or bfloat16
    k, v : GPU arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
        With a contiguous last axis.
    causal, window_size, softcap, alibi_slopes, softmax_scale
        As for `flash_attn_persistent`.

    Returns
    -------
    out, lse
        As of `flash_attn_persistent`.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it must be, and what it got.
    RuntimeError
        On a GPU that has no wgmma.
    """
    checks.check_tensor_core_padded(
        q, k, v, name="flash_attn_padded", supported=HOPPER, max_head_dim=checks.MAX_HEAD_DIM
    )
    head_dim = q.shape[3]
    scale = checks.check_positive_scale(softmax_scale, head_dim)
    num_cols = CHUNK * ceil_div(head_dim, CHUNK)
    out, lse = flash_attn_persistent(
        *(copy_columns(x, num_cols) for x in (q, k, v)),
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        softmax_scale=scale,
    )
    return copy_columns(out, head_dim), lse
