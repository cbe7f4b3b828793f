"""Attention of one part of one step, on the rank's own device: which function, in which precision.

Any function ``attn(q, k, v, *, causal, window_size, softcap, softmax_scale)`` that returns out and
the natural-log lse will do: `flash_attn_v2`, `flash_attn_registers`, another library's. Without one
the arrays decide: `flash_attn` and `flash_attn_grad` take the fastest kernel for them.
`numpy_attn` and `numpy_attn_grad` are plain NumPy, for long sequences on a CPU.

Partial results must be float32. A kernel's out has the dtype of its q, so q, k and v of 16 bits
become float32 just before the kernel; on the wire they have 16 bits. On a GPU that would keep the
tensor cores out: there the kernels need an output in float32 for inputs of 16 bits.
"""

import numpy as np

from fa_numba import dispatch, reference
from fa_numba.runtime import arrays


def numpy_attn(q, k, v, **options):
    """Attention in float32 by NumPy: out, lse."""
    return reference.attention(q, k, v, dtype=np.float32, **options)


def numpy_attn_grad(dout, q, k, v, out, lse, **options):
    """The part of dq, and dk, dv, that these keys give, in float32 by NumPy.

    out and lse are those of attention to all keys, of which k and v are a part.
    """
    return reference.attention_bwd(dout, q, k, v, state=(out, lse), dtype=np.float32, **options)


def local_attn(attn=None):
    """The function, or the default; its q, k, v become float32."""
    return _in_float32(dispatch.flash_attn if attn is None else attn)


def local_attn_grad(attn_grad=None):
    """The function of the backward pass, or the default; its arrays become float32."""
    return _in_float32(dispatch.flash_attn_grad if attn_grad is None else attn_grad)


def _in_float32(function):
    def call(*args, **options):
        return function(*map(as_float32, args), **options)

    return call


def as_float32(x):
    """The array in float32; itself where it is float32 already."""
    return x if arrays.dtype_name(x) == "float32" else x.astype(np.float32)
