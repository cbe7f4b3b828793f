"""Attention of one part of one step, on the rank's own device: its function and its precision.

The function may be any ``attn(q, k, v, *, causal, window_size, softcap, softmax_scale)`` that
returns out and the natural-log lse: `flash_attn_v2`, `flash_attn_registers`, one of another
library. The default is `flash_attn`, and `flash_attn_grad` for gradients: they take the fastest
kernel for the arrays. `numpy_attn` and `numpy_attn_grad` are plain NumPy, with nothing to compile.

Partial results must be float32. A kernel's out has the dtype of its q. So q, k and v of 16 bits are
converted to float32 just before the kernel; they travel in 16 bits. On a GPU this excludes the
tensor cores of 16 bits. `flash_attn_split` takes 16 bits and returns a float32 out on Hopper GPUs;
nothing here calls it yet.
"""

import numpy as np

from fa_numba import dispatch, reference
from fa_numba.runtime import arrays


def numpy_attn(q, k, v, **options):
    """Attention in float32 by NumPy: out, lse."""
    return reference.attention(q, k, v, dtype=np.float32, **options)


def numpy_attn_grad(dout, q, k, v, out, lse, **options):
    """The contribution of these keys to dq, and their dk and dv, in float32 by NumPy.

    out and lse are the results of attention to all keys; k and v are some of these keys.
    """
    return reference.attention_bwd(dout, q, k, v, state=(out, lse), dtype=np.float32, **options)


def local_attn(attn=None):
    """The function, or the default, with arguments converted to float32."""
    return _in_float32(dispatch.flash_attn if attn is None else attn)


def local_attn_grad(attn_grad=None):
    """The function for gradients, or the default, with arguments converted to float32."""
    return _in_float32(dispatch.flash_attn_grad if attn_grad is None else attn_grad)


def _in_float32(function):
    def call(*args, **options):
        return function(*map(as_float32, args), **options)

    return call


def as_float32(x):
    """The array in float32; no copy if it is float32 already."""
    return x if arrays.dtype_name(x) == "float32" else x.astype(np.float32)
