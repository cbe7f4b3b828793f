"""Attention of one part of one step, on the rank's own device: its function and its precision.

The function may be any ``attn(q, k, v, *, causal, window_size, softcap, softmax_scale)`` that
returns out and the natural-log lse: `flash_attn_v2`, `flash_attn_registers`, one of another
library. It gets mask, mask_args, score and score_args too, where the call over ranks has them. The
default is the fastest kernel for the arrays. `numpy_attn` and `numpy_attn_grad` are plain NumPy,
with nothing to compile.

Partial results must be float32. Most kernels' out has the dtype of q. So the default converts q, k
and v of 16 bits to float32 just before the kernel; they travel in 16 bits. On Hopper GPUs it does
better: there `flash_attn_split` and, for head_dim up to 128, `flash_attn_bwd_persistent` take 16
bits and return float32.

`flash_attn_persistent` can do so too, and is a little faster alone. But NCCL moves bytes by thread
blocks, which need SMs, and a persistent kernel holds all SMs until it ends. The thread blocks of
`flash_attn_split` end one after the other. In four runs on two H200s with 65536 tokens each, a
zigzag ring took 150, 110, 146 and 111 ms with the first kernel, and 110 to 112 with the second. The
cause is not proved: see docs/notes/many_gpus.md.
"""

import contextlib
import functools
import importlib

import numpy as np

from fa_numba import checks, dispatch, reference
from fa_numba.checks.refused import RefusedError
from fa_numba.on_cuda_cores import running_state
from fa_numba.runtime import arrays

FORWARD = "flash_attn_split"  # on Hopper GPUs, for 16 bits
WITH_FUNCTIONS = "flash_attn_persistent"  # the same with a user's mask or score


def numpy_attn(q, k, v, **options):
    """Attention in float32 by NumPy: out, lse."""
    return reference.attention(q, k, v, dtype=np.float32, **_with_arguments(options))


def numpy_attn_grad(dout, q, k, v, out, lse, **options):
    """The contribution of these keys to dq, and their dk and dv, in float32 by NumPy.

    out and lse are the results of attention to all keys; k and v are some of these keys.
    """
    options = _with_arguments(options)
    return reference.attention_bwd(dout, q, k, v, state=(out, lse), dtype=np.float32, **options)


def _with_arguments(options):
    """The options, where mask and score need no mask_args and score_args."""
    options, names = dict(options), options.keys() & {"mask", "score"}
    for name in names:
        function, args = options[name], options.pop(f"{name}_args", ())
        options[name] = lambda *x, function=function, args=args: function(*x, *args)
    return options


def local_attn(attn=None):
    """A function of q, k, v that returns out and lse in float32: `attn`, or the default."""
    return _fastest if attn is None else _in_float32(attn)


def local_attn_grad(attn_grad=None):
    """A function that returns dq, dk, dv in float32: `attn_grad`, or the default."""
    return _fastest_grad if attn_grad is None else _in_float32(attn_grad)


def _fastest(q, k, v, **options):
    if returns_float32(q, k, v) and _positive_scale(options):
        attn = _on_hopper(WITH_FUNCTIONS if options.keys() & {"mask", "score"} else FORWARD)
        with contextlib.suppress(RefusedError):
            return attn(q, k, v, out_dtype="float32", **options)
    return _in_float32(dispatch.flash_attn)(q, k, v, **options)


def _fastest_grad(dout, q, k, v, out, lse, **options):
    inputs = dout, q, k, v, out, lse
    fits = q.shape[3] <= checks.MAX_BWD_HEAD_DIM and returns_float32(q, k, v, dout, out)
    if fits and _positive_scale(options):
        attn_grad = _on_hopper("flash_attn_bwd_persistent")
        with contextlib.suppress(RefusedError):
            return attn_grad(*inputs, grad_dtype="float32", **options)
    return _in_float32(dispatch.flash_attn_grad)(*inputs, **options)


def returns_float32(q, k, v, *others):
    """Whether the kernels for Hopper GPUs can take these arrays: 16 bits, aligned rows."""
    if arrays.library_of(q) == "numpy" or arrays.dtype_name(q) == "float32":
        return False
    requirements = checks.TensorCores("flash_attn_persistent", checks.HOPPER)
    try:
        for x in (q, *others):
            requirements.check(x, k, v)
    except RefusedError:
        return False
    return True


@functools.cache
def _on_hopper(name):
    """A function of tensor_core, whose modules need numba-cuda and not plain Numba."""
    return getattr(importlib.import_module(f"fa_numba.tensor_core.{name}"), name)


def _positive_scale(options):
    """Whether the scale of the scores is one that kernels on tensor cores take."""
    scale = options.get("softmax_scale")
    return scale is None or scale > 0


def _in_float32(function):
    def call(*args, **options):
        return function(*(rounded(x, np.float32) for x in args), **options)

    return call


def rounded(x, dtype):
    """The array's values in a dtype; the array itself if it has that dtype."""
    if x.dtype == dtype:
        return x
    if arrays.library_of(x) == "numpy":
        return x.astype(dtype)
    return running_state.convert(x, dtype)
