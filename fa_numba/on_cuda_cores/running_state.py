"""Merge a partial result into a running one, in place; and round arrays of any size.

merge_states            a new state from two                              (⊕ is explained there)
merge_splits            one state from the splits of one call, in float32
running_state           a state that many partial results are merged into           <- this file

A ring over several GPUs computes attention to the keys of one rank after the other. The running
state is float32, and its lse float64: one number for each row, so that the rounding errors of many
steps do not add up. No exponential overflows, for any two lse (`fa_numba.distributed.merge` has the
formulas). An array operation for each line of these formulas would make six passes over out; this
kernel makes one.
"""

import math

from numba import cuda, float32, float64

from fa_numba.constants import NEG_INF, WARP_SIZE
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div

ROWS = 4  # of a thread block: a warp for each
THREADS = 256  # of a thread block of `convert_kernel`


@cuda.jit
def merge_into_kernel(out, lse, out_b, lse_b):
    """A warp merges a row: one query, one head.

    grid      (⌈seqlen_q / ROWS⌉, num_heads, batch); threads (32, ROWS): thread tx takes columns
              tx, tx + 32, ...
    shared    none
    private   the weight of the new part: the same in every thread of a warp
    HBM       out twice, out_b and lse once, where the new part has a key; lse_b once
    paper     Online normalizer calculation for softmax, section 3.1
    budget    40 registers, 0 bytes shared
    """
    tx = cuda.threadIdx.x
    m = cuda.blockIdx.x * ROWS + cuda.threadIdx.y
    head, b = cuda.blockIdx.y, cuda.blockIdx.z
    if m < out.shape[1]:
        new = lse_b[b, head, m]
        if new != NEG_INF:  # a part without keys changes nothing, whatever its out is
            old = lse[b, head, m]
            difference = float32(float64(new) - old)
            e = math.exp(-abs(difference))  # never overflows
            weight = (float32(1) if difference >= float32(0) else e) / (float32(1) + e)
            cuda.syncwarp()  # all threads have read lse: safe to overwrite
            for d in range(tx, out.shape[3], WARP_SIZE):
                x = out[b, m, head, d]
                out[b, m, head, d] = x - weight * (x - out_b[b, m, head, d])
            if tx == 0:
                larger = float64(new) if difference >= float32(0) else old
                lse[b, head, m] = larger + float64(math.log1p(e))


@cuda.jit
def convert_kernel(x, y):
    """Thread i rounds element i.

    grid      (⌈elements / THREADS⌉,); threads (THREADS,)
    shared    none
    HBM       x, y once
    budget    16 registers, 0 bytes shared
    """
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < x.shape[0]:
        y[i] = float32(x[i])


def merge_into(out, lse, out_b, lse_b):
    """Merge the state (out_b, lse_b) into the state (out, lse), in place.

    Parameters
    ----------
    out, out_b : arrays of shape (batch, seqlen_q, num_heads, head_dim), float32
        0 in out where its lse is −inf; out_b is not read where lse_b is −inf. Any strides.
    lse, lse_b : arrays of shape (batch, num_heads, seqlen_q), float64 and float32
    """
    batch, seqlen_q, num_heads, _ = out.shape
    grid = ceil_div(seqlen_q, ROWS), num_heads, batch
    arrays.launch(merge_into_kernel, grid, (WARP_SIZE, ROWS), out, lse, out_b, lse_b)


def convert(x, dtype):
    """A contiguous array of x's values, rounded to a dtype; x itself if it has that dtype.

    CuPy has arrays of bfloat16 but no kernels for them.

    Parameters
    ----------
    x : GPU array, float32, float16 or bfloat16
    dtype : dtype
        Another one of these.

    Returns
    -------
    array of the shape and library of x
    """
    if x.dtype == dtype:
        return x
    flat = _flat(x)
    y = arrays.empty(x, x.shape, dtype)
    arrays.launch(convert_kernel, (ceil_div(flat.shape[0], THREADS),), (THREADS,), flat, _flat(y))
    return y


def copy(x):
    """A contiguous copy, as bits: of any dtype that has 16 bits, or that its library can copy."""
    made = arrays.empty(x, x.shape, x.dtype)
    copy_into(made, x)
    return made


def copy_into(destination, x):
    """Copy x into an array, or a view of an array, of its shape and dtype, as bits."""
    bits(destination)[...] = bits(x)


def bits(x):
    """A view of a 16-bit array as integers, which every library can copy; others as they are."""
    return arrays.as_int16(x) if x.dtype.itemsize == 2 else x


def _flat(x):
    contiguous = x if x.flags.c_contiguous else copy(x)
    return contiguous.reshape(-1)
